"""Strategies of users: brought by a file, as objects, and checked where they are first used."""

from __future__ import annotations

import hashlib
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fairfate
from fairfate.errors import InputError, Stopped
from fairfate.experiments.config import expand
from fairfate.strategies import (
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Setup,
    Strategy,
    entries,
    fair_fate,
    fedavg,
    fedmom,
    labels,
    load_plugin,
    parse_spec,
    register,
)
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.plugins import _LOADED, checked, user_code
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
def test_any_error_of_user_code_is_an_input_error(error: BaseException) -> None:
    with (
        pytest.raises(
            InputError, match=f"this must run without an error, got {type(error).__name__}"
        ) as result,
        user_code("this"),
    ):
        raise error
    assert result.value.__cause__ is error


@pytest.mark.parametrize("error", [InputError("a"), MemoryError("b"), KeyboardInterrupt(), Stopped(2)])
def test_other_errors_pass_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as result, user_code("this"):
        raise error
    assert result.value is error


# -- strategies that are none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "message"),
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
def test_object_that_is_not_a_strategy_is_reported(strategy: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked(strategy, "mine")


@pytest.mark.parametrize("refresh", [None, 1, 7])
def test_a_strategy_without_its_optional_parts_is_one(refresh: int | None) -> None:
    wrapped = checked(AVERAGING._replace(refresh=refresh, needs={Need.LOCAL}), "mine")
    assert (wrapped.broadcast, wrapped.local_loss, wrapped.release, wrapped.scale) == (None,) * 4
    assert (wrapped.refresh, wrapped.needs) == (refresh, {Need.LOCAL})
    assert wrapped.aggregate(wrapped.init(START), COHORT).params.tolist() == [1, 1, 1]


def test_only_the_first_use_is_checked_and_errors_say_where() -> None:
    states = iter([ModelState(START), ModelState(START, {"a": "b"})])
    wrapped = checked(AVERAGING._replace(aggregate=lambda state, cohort: next(states)), "mine")
    for _ in range(2):
        wrapped.aggregate(ModelState(START), COHORT)
    with pytest.raises(InputError, match=r"got StopIteration \(test_own_strategies.py, line \d+\)"):
        wrapped.aggregate(ModelState(START), COHORT)


def test_what_its_functions_return_passes_through() -> None:
    calls: list[Any] = []
    terms = LossTerms(np.ones((2, 2)))
    wrapped = checked(
        AVERAGING._replace(
            broadcast=lambda state, rows: calls.append(rows) or [1.0, 2.0],
            local_loss=lambda *given: calls.append(given) or terms,
            release=lambda state: state.params + 1,
            scale=lambda deltas: deltas[:, 0],
        ),
        "mine",
    )
    state = wrapped.init(START)
    assert wrapped.broadcast is not None
    assert wrapped.local_loss is not None
    assert wrapped.release is not None
    assert wrapped.scale is not None
    assert wrapped.broadcast(state, ROWS) == [1, 2]
    assert wrapped.local_loss(None, ROWS, None) is terms
    assert wrapped.release(state).tolist() == [1, 1, 1]
    assert wrapped.scale(np.full((2, 3), 5.0)).tolist() == [5, 5]
    assert calls[0] is ROWS
    assert calls[1] == (None, ROWS, None)


@pytest.mark.parametrize("field", ["init", "aggregate", "broadcast", "local_loss", "release", "scale"])
def test_errors_of_its_functions_name_them(field: str) -> None:
    wrapped = checked(AVERAGING._replace(**{field: fails}), "mine")
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
        getattr(wrapped, field)(*given[field])


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
def test_state_of_a_wrong_type_is_reported(state: Any, said: str, field: str) -> None:
    wrapped = checked(AVERAGING._replace(**{field: lambda *given: state}), "mine")
    given = (START,) if field == "init" else (ModelState(START), COHORT)
    with pytest.raises(InputError, match=f"strategy 'mine': {field}:? {said}"):
        getattr(wrapped, field)(*given)


@pytest.mark.parametrize(
    "notes", [{"a": 1}, {"a": [True, False]}, {"lam": 0.5}, {"a": np.float32(1), "b": []}]
)
def test_notes_are_numbers_or_one_for_each_client(notes: dict[str, Any]) -> None:
    wrapped = checked(AVERAGING._replace(aggregate=lambda state, cohort: ModelState(START, notes)), "mine")
    assert wrapped.aggregate(ModelState(START), COHORT).notes is notes


def test_init_keeps_the_models_shape() -> None:
    wrapped = checked(AVERAGING._replace(init=lambda params: ModelState(params[:2])), "mine")
    with pytest.raises(InputError, match=r"init must keep the model's shape \(3,\), got \(2,\)"):
        wrapped.init(START)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("abc", "release must return a model of numbers, got str"),
        (START[:2], r"release must keep the model's shape \(3,\), got \(2,\)"),
    ],
)
def test_what_is_released_is_a_model(model: Any, message: str) -> None:
    wrapped = checked(AVERAGING._replace(release=lambda state: model), "mine")
    assert wrapped.release is not None
    with pytest.raises(InputError, match=message):
        wrapped.release(ModelState(START))


def test_what_is_broadcast_is_numbers() -> None:
    wrapped = checked(AVERAGING._replace(broadcast=lambda state, rows: {"a": 1}), "mine")
    assert wrapped.broadcast is not None
    with pytest.raises(InputError, match="broadcast must return numbers, got dict"):
        wrapped.broadcast(ModelState(START), None)


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


def test_error_for_an_unregistered_strategy_names_the_plugin_option(mine) -> None:
    spec = parse_spec(mine(lambda setup: fedavg()), "eo")
    assert spec.code != ""
    _ENTRIES.pop("mine")
    assert spec.code == ""
    with pytest.raises(InputError, match="strategy 'mine' must be registered in every process"):
        spec.build(Setup(3))
    assert parse_spec("fedavg", "eo").code == ""


QUICK = {"data": "synthetic:rows=300", "rounds": 2, "seeds": (1, 2)}


@pytest.fixture(autouse=True)
def same_names_afterwards() -> Iterator[None]:
    before = dict(_ENTRIES)
    yield
    _ENTRIES.clear()
    _ENTRIES.update(before)


def shrunk(share: float) -> Strategy:
    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        return ModelState(state.params + np.float32(share) * cohort.mean(cohort.num_examples))

    return Strategy(ModelState, aggregate)


@pytest.mark.parametrize("guard", [False, True])
def test_an_object_is_the_same_as_its_text(guard: bool) -> None:
    for factory, text in (
        (fedavg(), "fedavg"),
        (fedmom(beta=0.8), "fedmom:beta=0.8"),
        (fair_fate(metric="eo", lam0=0.2, max=1), "fair_fate:metric=eo,lam0=0.2,max=1"),
        (fair_fate(keep=0), "fair_fate:keep=0"),
        (fedavg() + "clip:norm=2" + "average", "fedavg+clip:norm=2+average"),
        (fedavg() + "median+thresholds:keep=0.5", "fedavg+median+thresholds:keep=0.5"),
    ):
        assert parse_spec(factory, "sp", guard=guard) == parse_spec(text, "sp", guard=guard)
    assert parse_spec(fedavg, "sp") == parse_spec("fedavg", "sp")


def test_every_strategy_has_an_object_in_the_package() -> None:
    for entry in entries():
        if entry.build.__module__.startswith("fairfate."):
            factory = getattr(fairfate.strategies, entry.name)
            assert factory().build(Setup(3, learning_rate=0.1)).aggregate is not None


def test_hyperparameters_of_an_object_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="unknown hyperparameter of fair_fate 'lamda0'; did you mean 'lam0'"):
        fair_fate(lamda0=1)
    with pytest.raises(InputError, match=r"fedmom: beta must be in \[0, 1\), got 1"):
        fedmom(beta=1)


def test_a_run_of_objects_has_the_numbers_of_texts() -> None:
    texts = fairfate.run(**QUICK, strategies=["fair_fate:lam0=0.2,metric=eo", "fedavg+average"], jobs=1)
    objects = fairfate.run(
        **QUICK, strategies=[fair_fate(metric="eo", lam0=0.2), fedavg() + "average"], jobs=1
    )
    assert texts.rounds.equals(objects.rounds)
    assert texts.config["strategy"] == objects.config["strategy"]


def test_a_sweep_takes_objects() -> None:
    (config,) = expand({"strategy": [fair_fate(metric="eo"), "fedmom:beta=0.8|0.9", shrunk(0.5)]})
    assert [text.partition(":")[0] for text in config.strategies] == [
        "fair_fate",
        "fedmom",
        "fedmom",
        "shrunk",
    ]


def test_an_estimator_takes_an_object() -> None:
    from sklearn.base import clone

    table = fairfate.synthetic(rows=300, seed=1)
    features, label = table.features, table.label
    given = {"max_iter": 2, "random_state": 1, "n_clients": 3}
    text = fairfate.FairFederatedClassifier(strategy="fair_fate:lam0=0.5", **given)
    own = clone(fairfate.FairFederatedClassifier(strategy=fair_fate(lam0=0.5), **given))
    predicted = [
        model.fit(features, label, sensitive_features=table.group).predict_proba(features)
        for model in (text, own)
    ]
    assert np.array_equal(*predicted)


def test_bare_strategy_is_named_after_its_function_and_numbered_by_its_values() -> None:
    half, other, again = (parse_spec(shrunk(share), "sp") for share in (0.5, 0.25, 0.5))
    assert (half.name, other.name) == ("shrunk", "shrunk_2")
    assert half == again
    assert half.code == again.code != other.code
    assert labels([half, other]) == ["shrunk", "shrunk_2"]
    whole = fairfate.run(**QUICK, strategies=["fedavg", shrunk(1.0), shrunk(0.5)], jobs=1).rounds
    accuracy = [part["accuracy"].tolist() for _, part in whole.groupby("strategy", sort=False)]
    assert accuracy[0] == accuracy[1] != accuracy[2]


def test_error_for_a_strategy_that_cannot_be_pickled_names_it() -> None:
    lock = threading.Lock()  # no other process can have it
    spec = parse_spec(Strategy(ModelState, lambda state, cohort: lock and state), "sp")
    with pytest.raises(InputError, match="must be one that other processes can be sent"):
        pickle.dumps(spec)


NOTEBOOK = """
import sys
from typing import Annotated, NamedTuple
import numpy as np
import fairfate
from fairfate.strategies import LossTerms, Range, Strategy, fair_fate, register

class State(NamedTuple):
    params: np.ndarray
    notes: dict

def step_of(cohort, share):
    return np.float32(share) * cohort.mean(cohort.num_examples)

@register("mine", "my own")
def mine(setup, *, share: Annotated[float, Range(0, 1), "of the step"] = 0.5):
    def aggregate(state, cohort):
        return State(state.params + step_of(cohort, share), {"n": cohort.num_examples})
    def local_loss(message, rows, local):
        return LossTerms(np.full(rows.shape, 2.0))
    return Strategy(lambda params: State(params, {}), aggregate, local_loss=local_loss)

runs = [
    fairfate.run(
        data="synthetic:rows=300", rounds=2, seeds=(1, 2), jobs=jobs, out=sys.argv[1] if jobs == 2 else None,
        strategies=[fair_fate(lam0=0.2), "fedavg", mine(share=0.3), mine(share=0.3) + "median", mine()],
    ).rounds
    for jobs in (1, 2)
]
assert runs[0].equals(runs[1])
print(runs[0].strategy.unique().tolist(), mine().code)
"""


@pytest.mark.slow
def test_a_strategy_of_a_notebook_runs_in_several_processes(tmp_path: Path) -> None:
    """Code that is in no file, as in a notebook: its processes cannot import it."""
    results = [
        subprocess.run(
            [sys.executable, "-c", NOTEBOOK.replace("np.full", spelled), str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        for name, spelled in (("a", "np.full"), ("b", "np.full"), ("c", "1 * np.full"))
    ]
    assert [outcome.stderr for outcome in results] == [""] * 3
    names, codes = zip(*(outcome.stdout.rsplit(" ", 1) for outcome in results), strict=True)
    assert names[0] == "['fair_fate', 'fedavg', 'mine', 'mine+median']"
    assert codes[0] == codes[1] != codes[2]


PLUGIN = """
from fairfate.strategies import fedavg, register
@register("NAME", "half of fedavg", "me")
def build(setup):
    return fedavg()
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    before, known = dict(_ENTRIES), dict(_LOADED)

    def write(file: str, name: str, more: str = "") -> Path:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(PLUGIN.replace("NAME", name) + more)
        return path

    yield write
    for entries_, old in ((_ENTRIES, before), (_LOADED, known)):
        entries_.clear()
        entries_.update(old)


def test_a_plugin_is_run_once_and_again_when_it_has_changed(plugin) -> None:
    load_plugin(plugin("mine.py", "mine_one"))
    first = _ENTRIES["mine_one"].build
    load_plugin(plugin("mine.py", "mine_one"))
    assert _ENTRIES["mine_one"].build is first
    load_plugin(plugin("mine.py", "mine_two"))
    assert "mine_two" in _ENTRIES
    assert "mine_one" not in _ENTRIES  # of the older version


def test_plugins_of_one_name_in_two_folders_are_two(plugin) -> None:
    load_plugin(plugin("a/mine.py", "mine_one"))
    load_plugin(plugin("b/mine.py", "mine_two"))
    assert {"mine_one", "mine_two"} <= set(_ENTRIES)
    modules = {_ENTRIES[name].build.__module__ for name in ("mine_one", "mine_two")}
    assert len(modules) == 2
    assert all(re.fullmatch(r"fairfate_plugin_mine_[0-9a-f]{12}", module) for module in modules)


def test_results_of_a_plugin_depend_on_its_file(plugin) -> None:
    file = plugin("mine.py", "mine_one")
    load_plugin(file)
    code = parse_spec("mine_one", "eo").code
    assert code == hashlib.sha256(file.read_bytes()).hexdigest()
    load_plugin(plugin("mine.py", "mine_one", "# another\n"))
    assert parse_spec("mine_one", "eo").code not in ("", code)
    assert parse_spec("fair_fate", "eo").code == ""


def test_code_without_a_file_is_identified_by_its_bytecode(plugin) -> None:
    results = []
    for step in (1, 2, 1):
        scope = {"fedavg": fedavg, "__name__": None}
        exec(f"def build(setup):\n    {step}\n    x = {step}\n    return fedavg()", scope)
        register("mine_text", "s", "r")(scope["build"])
        results.append(parse_spec("mine_text", "eo").code)
        _ENTRIES.pop("mine_text")
    assert results[0] == results[2] != results[1]


def test_a_plugin_that_fails_leaves_everything_as_it_was(plugin) -> None:
    load_plugin(plugin("mine.py", "mine_one"))
    with pytest.raises(InputError, match="must run without an error, got ZeroDivisionError"):
        load_plugin(plugin("mine.py", "mine_two", "1 / 0\n"))
    assert "mine_one" in _ENTRIES
    assert "mine_two" not in _ENTRIES
    load_plugin(plugin("mine.py", "mine_two"))  # mended
    assert "mine_two" in _ENTRIES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("x = 1\n", "must register"),
        ("1 / 0\n", "must run without an error, got ZeroDivisionError"),
        ("import sys; sys.exit(0)\n", "must run without an error, got SystemExit"),
        ("def broken(:\n", "must run without an error, got SyntaxError"),
    ],
)
def test_a_plugin_that_brings_nothing_is_refused(tmp_path, content, message) -> None:
    file = tmp_path / "empty.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_plugin(file)
