"""Users' strategies: what they raise or return first is named, and what is right passes through."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from fairfate.errors import InputError, Stopped
from fairfate.strategies import (
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Setup,
    Strategy,
    fedavg,
    parse_spec,
    register,
)
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.plugins import checked, user_code
from fairfate.strategies.registry import _ENTRIES

START = np.zeros(3)
COHORT = Cohort(
    1, np.ones((2, 3)), np.ones(2), np.zeros((0, 2, 2, 2), np.int64), np.zeros((2, 2, 2), np.int64)
)
ROWS = np.ones((2, 2), np.int64)


def fails(*given: Any) -> Any:
    raise KeyError("oh")


# -- errors of others --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("a"), SystemExit(3), RuntimeError(), GeneratorExit("x")])
def test_whatever_is_raised_is_the_users_to_mend(error: BaseException) -> None:
    with (
        pytest.raises(
            InputError, match=f"this must run without an error, got {type(error).__name__}"
        ) as found,
        user_code("this"),
    ):
        raise error
    assert found.value.__cause__ is error


@pytest.mark.parametrize("error", [InputError("a"), MemoryError("b"), KeyboardInterrupt(), Stopped(2)])
def test_what_is_not_theirs_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as found, user_code("this"):
        raise error
    assert found.value is error


# -- strategies that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (None, "strategy 'mine' must be a Strategy, got NoneType"),
        (tuple(AVERAGING), "must be a Strategy, got tuple"),
        (AVERAGING._replace(init=None), "init must be a function, got NoneType"),
        (AVERAGING._replace(aggregate=3), "aggregate must be a function, got int"),
        (AVERAGING._replace(combine=None), "combine must be a function, got NoneType"),
        (AVERAGING._replace(broadcast=3), "broadcast must be a function, got int"),
        (AVERAGING._replace(local_loss="x"), "local_loss must be a function, got str"),
        (AVERAGING._replace(release=1.5), "release must be a function, got float"),
        (AVERAGING._replace(scale=[]), "scale must be a function, got list"),
        (AVERAGING._replace(needs=3), "needs must be a set of Need, got 3"),
        (AVERAGING._replace(refresh=0), "refresh must be a whole number >= 1 or None, got 0"),
        (AVERAGING._replace(refresh=1.5), r"refresh must be a whole number >= 1 or None, got 1\.5"),
    ],
)
def test_what_is_no_strategy_is_said(strategy: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        checked(strategy, "mine")


@pytest.mark.parametrize("refresh", [None, 1, 7])
def test_a_strategy_without_its_optional_parts_is_one(refresh: int | None) -> None:
    found = checked(AVERAGING._replace(refresh=refresh, needs={Need.LOCAL}), "mine")
    assert (found.broadcast, found.local_loss, found.release, found.scale) == (None,) * 4
    assert (found.refresh, found.needs) == (refresh, {Need.LOCAL})
    assert found.aggregate(found.init(START), COHORT).params.tolist() == [1, 1, 1]


def test_only_the_first_use_is_checked_and_errors_say_where() -> None:
    states = iter([ModelState(START), ModelState(START, {"a": "b"})])
    found = checked(AVERAGING._replace(aggregate=lambda state, cohort: next(states)), "mine")
    for _ in range(2):
        found.aggregate(ModelState(START), COHORT)
    with pytest.raises(InputError, match=r"got StopIteration \(test_plugins.py, line \d+\)"):
        found.aggregate(ModelState(START), COHORT)


def test_what_its_functions_return_passes_through() -> None:
    seen: list[Any] = []
    terms = LossTerms(np.ones((2, 2)))
    found = checked(
        AVERAGING._replace(
            broadcast=lambda state, rows: seen.append(rows) or [1.0, 2.0],
            local_loss=lambda *given: seen.append(given) or terms,
            release=lambda state: state.params + 1,
            scale=lambda deltas: deltas[:, 0],
        ),
        "mine",
    )
    state = found.init(START)
    assert found.broadcast is not None
    assert found.local_loss is not None
    assert found.release is not None
    assert found.scale is not None
    assert found.broadcast(state, ROWS) == [1, 2]
    assert found.local_loss(None, ROWS, None) is terms
    assert found.release(state).tolist() == [1, 1, 1]
    assert found.scale(np.full((2, 3), 5.0)).tolist() == [5, 5]
    assert seen[0] is ROWS
    assert seen[1] == (None, ROWS, None)


@pytest.mark.parametrize("field", ["init", "aggregate", "broadcast", "local_loss", "release", "scale"])
def test_errors_of_its_functions_name_them(field: str) -> None:
    found = checked(AVERAGING._replace(**{field: fails}), "mine")
    given = {
        "init": (START,),
        "aggregate": (ModelState(START), COHORT),
        "broadcast": (ModelState(START), ROWS),
        "local_loss": (None, ROWS, None),
        "release": (ModelState(START),),
        "scale": (np.ones((2, 3)),),
    }
    with pytest.raises(
        InputError, match=f"strategy 'mine': {field} must run without an error, got KeyError: 'oh'"
    ):
        getattr(found, field)(*given[field])


# -- what they return --------------------------------------------------------------------------------------


class Bare(NamedTuple):
    params: Any


class Odd:
    def __array__(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("no array")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "must return a state with params, got NoneType"),
        (Bare(START), "must return a state with notes, got Bare"),
        (ModelState("abc"), "must return a model of numbers, got str"),
        (ModelState(Odd()), "must return a model of numbers, got RuntimeError: no array"),
        (ModelState(START, [1]), "must return notes by name, got list"),
        (ModelState(START, {1: 2}), "note 1 must have a text as its name"),
        (ModelState(START, {"a": "b"}), "note 'a' must .* be a number, or one for each client, got str"),
        (ModelState(START, {"a": np.ones((2, 2))}), r"note 'a' must .*, got shape \(2, 2\)"),
        (ModelState(START, {"lam": np.ones(2)}), r"note 'lam' must .*, got shape \(2,\)"),
        (ModelState(START, {"beta": [1]}), r"note 'beta' must .*, got shape \(1,\)"),
    ],
)
@pytest.mark.parametrize("field", ["init", "aggregate"])
def test_a_state_that_is_none_is_said(state: Any, said: str, field: str) -> None:
    found = checked(AVERAGING._replace(**{field: lambda *given: state}), "mine")
    given = (START,) if field == "init" else (ModelState(START), COHORT)
    with pytest.raises(InputError, match=f"strategy 'mine': {field}:? {said}"):
        getattr(found, field)(*given)


@pytest.mark.parametrize(
    "notes", [{"a": 1}, {"a": [True, False]}, {"lam": 0.5}, {"a": np.float32(1), "b": []}]
)
def test_notes_are_numbers_or_one_for_each_client(notes: dict[str, Any]) -> None:
    found = checked(AVERAGING._replace(aggregate=lambda state, cohort: ModelState(START, notes)), "mine")
    assert found.aggregate(ModelState(START), COHORT).notes is notes


def test_init_keeps_the_models_shape() -> None:
    found = checked(AVERAGING._replace(init=lambda params: ModelState(params[:2])), "mine")
    with pytest.raises(InputError, match=r"init must keep the model's shape \(3,\), got \(2,\)"):
        found.init(START)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("abc", "release must return a model of numbers, got str"),
        (START[:2], r"release must keep the model's shape \(3,\), got \(2,\)"),
    ],
)
def test_what_is_released_is_a_model(model: Any, said: str) -> None:
    found = checked(AVERAGING._replace(release=lambda state: model), "mine")
    assert found.release is not None
    with pytest.raises(InputError, match=said):
        found.release(ModelState(START))


def test_what_is_broadcast_is_numbers() -> None:
    found = checked(AVERAGING._replace(broadcast=lambda state, rows: {"a": 1}), "mine")
    assert found.broadcast is not None
    with pytest.raises(InputError, match="broadcast must return numbers, got dict"):
        found.broadcast(ModelState(START), None)


# -- under a name ------------------------------------------------------------------------------------------


@pytest.fixture
def mine():
    def add(build: Any) -> str:
        register("mine", "s", "r")(build)
        return "mine"

    yield add
    _ENTRIES.pop("mine", None)


def test_a_build_that_fails_or_returns_nothing_is_named(mine) -> None:
    with pytest.raises(InputError, match="strategy 'mine' must run without an error, got KeyError: 'oh'"):
        parse_spec(mine(fails), "eo").build(Setup(3))
    with pytest.raises(InputError, match="strategy 'mine' must be a Strategy, got NoneType"):
        parse_spec(mine(lambda setup: None), "eo").build(Setup(3))


def test_a_strategy_of_others_is_watched_and_takes_steps(mine) -> None:
    broken = Strategy(ModelState, fails)
    built = parse_spec(f"{mine(lambda setup: broken)}+clip:norm=1", "eo").build(Setup(3))
    with pytest.raises(InputError, match="strategy 'mine': aggregate must run without an error"):
        built.aggregate(ModelState(START), COHORT)
    assert built.scale is not None
    assert built.scale(np.array([[3.0, 4.0]])).tolist() == [0.2]


def test_a_strategy_that_is_not_there_says_how_to_bring_it(mine) -> None:
    spec = parse_spec(mine(lambda setup: fedavg()), "eo")
    assert spec.code != ""
    _ENTRIES.pop("mine")
    assert spec.code == ""
    with pytest.raises(InputError, match="strategy 'mine' must be registered in every process"):
        spec.build(Setup(3))
    assert parse_spec("fedavg", "eo").code == ""
