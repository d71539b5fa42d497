"""A run's memory in one file: written whole after every round, so that a killed run can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.files import read_arrays, write_arrays
from fairfate.strategies import Notes

_REST, _PIECES = "(averaged)", "(rounds)"


class Saved(NamedTuple):
    """What a checkpoint holds."""

    identity: dict[str, Any]
    """What must be the same for a run to go on."""
    arrays: dict[str, NDArray[Any]]
    """The arrays of the strategy's state."""
    numbers: dict[str, Any]
    """The rest of it."""
    rest: NDArray[Any]
    """The part of the model that the strategy does not move."""
    names: list[str]
    """Of all clients that ever took part."""
    pieces: list[str]
    """A line of JSON for each round."""


def write_checkpoint(
    path: Path,
    state: Any,
    rest: NDArray[Any],
    identity: dict[str, Any],
    names: list[str],
    pieces: list[str],
) -> None:
    """Write a checkpoint; whole, or the old one stays."""
    arrays, numbers = pack_state(state)
    lines = np.frombuffer("\n".join(pieces).encode(), dtype=np.uint8)
    about = {"identity": identity, "numbers": numbers, "names": names}
    write_arrays(path, {**arrays, _REST: rest, _PIECES: lines}, about)


def read_checkpoint(path: Path) -> Saved:
    """Read what `write_checkpoint` has written."""
    try:
        arrays, about = read_arrays(path)
        rest, pieces = arrays.pop(_REST), arrays.pop(_PIECES).tobytes().decode().split("\n")
        return Saved(about["identity"], arrays, about["numbers"], rest, about["names"], pieces)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"checkpoint must be a file that an earlier run has written, got '{path}' ({error})"
        ) from None


def pack_state(state: Any) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """A strategy's state, a NamedTuple, as arrays and JSON values."""
    arrays: dict[str, NDArray[Any]] = {}
    numbers: dict[str, Any] = {}
    for name, value in state._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[name] = np.ascontiguousarray(value)
        elif isinstance(value, Notes):
            numbers[name] = pack_notes(value)
        elif value is None or isinstance(value, bool | int | float | str):
            numbers[name] = value
        elif isinstance(value, np.generic):
            numbers[name] = value.item()
        else:
            raise InputError(
                "checkpoint must be left out for a strategy that remembers more than arrays, numbers and"
                f" texts, got {type(value).__name__} in '{name}'"
            )
    return arrays, numbers


def unpack_state(like: Any, arrays: dict[str, NDArray[Any]], numbers: dict[str, Any]) -> Any:
    """The state again; ``like`` is one of the same strategy."""
    values = {**numbers, **arrays}
    if set(values) != set(like._fields):
        raise InputError(
            f"checkpoint must hold the strategy's state ({', '.join(like._fields)}), got {', '.join(values)}"
        )
    for name, value in like._asdict().items():
        if isinstance(value, Notes):
            values[name] = unpack_notes(values[name])
    return type(like)(**values)


def pack_notes(notes: Notes) -> list[Any]:
    """Notes as JSON values."""
    return [notes.lam, notes.beta, None if notes.is_fair is None else list(notes.is_fair)]


def unpack_notes(values: list[Any]) -> Notes:
    """The inverse of `pack_notes`."""
    lam, beta, is_fair = values
    return Notes(float(lam), float(beta), None if is_fair is None else tuple(map(bool, is_fair)))
