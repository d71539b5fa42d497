"""Strategies that are not ours: whatever their functions raise or return becomes an error that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fairfate.errors import InputError, Stopped, reason_of
from fairfate.strategies.strategy import CellRows, Cohort, Need, Strategy, Vector

_OPTIONAL = ("broadcast", "local_loss", "release", "scale")


@contextmanager
def calling(what: str, rule: str = "must run without an error") -> Iterator[None]:
    """Code of others' in a block: its errors are the user's to mend, and so is an exit."""
    try:
        yield
    except (InputError, MemoryError, KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        raise InputError(f"{what} {rule}, got {reason_of(error)}") from error


def checked(strategy: Any, name: str) -> Strategy:
    """A strategy of others' whose functions are watched."""
    where = f"strategy '{name}'"
    if not isinstance(strategy, Strategy):
        raise InputError(f"{where}: build must return a Strategy, got {type(strategy).__name__}")
    for field in ("init", "aggregate", "combine", *_OPTIONAL):
        function = getattr(strategy, field)
        if not callable(function) and not (function is None and field in _OPTIONAL):
            raise InputError(f"{where}: {field} must be a function, got {type(function).__name__}")
    if not isinstance(strategy.needs, Need):
        raise InputError(f"{where}: needs must be made of Need, got {strategy.needs!r}")
    refresh = strategy.refresh
    if refresh is not None and not (isinstance(refresh, int) and refresh >= 1):
        raise InputError(f"{where}: refresh must be a whole number >= 1 or None, got {refresh!r}")
    return strategy._replace(
        init=_init(strategy, where),
        aggregate=_aggregate(strategy, where),
        broadcast=_broadcast(strategy, where),
        local_loss=_plain(strategy.local_loss, f"{where}: local_loss"),
        release=_release(strategy, where),
        scale=_plain(strategy.scale, f"{where}: scale"),
    )


def _plain(function: Callable[..., Any] | None, what: str) -> Callable[..., Any] | None:
    if function is None:
        return None

    def watched(*given: Any) -> Any:
        with calling(what):
            return function(*given)

    return watched


def _init(strategy: Strategy, where: str) -> Callable[[Vector], Any]:
    def init(params: Vector) -> Any:
        with calling(f"{where}: init"):
            state = strategy.init(params)
        _check_state(state, f"{where}: init")
        if np.shape(state.params) != np.shape(params):
            raise InputError(
                f"{where}: init must keep the model's shape {np.shape(params)}, got {np.shape(state.params)}"
            )
        return state

    return init


def _aggregate(strategy: Strategy, where: str) -> Callable[[Any, Cohort], Any]:
    def aggregate(state: Any, cohort: Cohort) -> Any:
        with calling(f"{where}: aggregate"):
            after = strategy.aggregate(state, cohort)
        _check_state(after, f"{where}: aggregate")
        return after

    return aggregate


def _broadcast(strategy: Strategy, where: str) -> Callable[[Any, CellRows | None], Vector] | None:
    function = strategy.broadcast
    if function is None:
        return None

    def broadcast(state: Any, rows: CellRows | None) -> Vector:
        with calling(f"{where}: broadcast"):
            told = function(state, rows)
        _check_numbers(told, f"{where}: broadcast must return numbers")
        return told

    return broadcast


def _release(strategy: Strategy, where: str) -> Callable[[Any], Vector] | None:
    function = strategy.release
    if function is None:
        return None

    def release(state: Any) -> Vector:
        with calling(f"{where}: release"):
            model = function(state)
        rule = f"{where}: release must return a model of shape {np.shape(state.params)}"
        _check_numbers(model, rule)
        if np.shape(model) != np.shape(state.params) or not np.isfinite(model).all():
            raise InputError(f"{rule}, in finite numbers, got shape {np.shape(model)}: {model}")
        return model

    return release


def _check_state(state: Any, where: str) -> None:
    for name in ("params", "notes"):
        if not hasattr(state, name):
            raise InputError(f"{where} must return a state with {name}, got {type(state).__name__}")
    _check_numbers(state.params, f"{where} must return params of numbers")
    notes = state.notes
    if not isinstance(notes, Mapping):
        raise InputError(f"{where} must return notes by name, got {type(notes).__name__}")
    for key, value in notes.items():
        if not isinstance(key, str):
            raise InputError(f"{where}: each note must have a text as its name, got {key!r}")
        rule = f"{where}: note {key!r} must be a number, or one for each client"
        _check_numbers(value, rule)
        if np.ndim(value) > (0 if key in ("lam", "beta") else 1):
            raise InputError(f"{rule}, got shape {np.shape(value)}")


def _check_numbers(value: Any, rule: str) -> None:
    try:
        kind = np.asarray(value).dtype.kind
    except Exception as error:  # whatever it is
        raise InputError(f"{rule}, got {reason_of(error)}") from None
    if kind not in "biuf":
        raise InputError(f"{rule}, got {type(value).__name__}")
