"""Strategies as objects: the same as their texts, also of users' own, also in other processes."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fairfate
from fairfate import InputError
from fairfate.experiments.config import expand
from fairfate.strategies import (
    Cohort,
    ModelState,
    Setup,
    Strategy,
    entries,
    fair_fate,
    fedavg,
    fedmom,
    labels,
    parse_spec,
)
from fairfate.strategies.registry import _ENTRIES

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
    with pytest.raises(InputError, match="unknown setting of fair_fate 'lamda0'; did you mean 'lam0'"):
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


def test_a_bare_strategy_is_named_after_its_function_and_told_apart_by_its_values() -> None:
    half, other, again = (parse_spec(shrunk(share), "sp") for share in (0.5, 0.25, 0.5))
    assert (half.name, other.name) == ("shrunk", "shrunk_2")
    assert half == again
    assert half.code == again.code != other.code
    assert labels([half, other]) == ["shrunk", "shrunk_2"]
    whole = fairfate.run(**QUICK, strategies=["fedavg", shrunk(1.0), shrunk(0.5)], jobs=1).rounds
    accuracy = [part["accuracy"].tolist() for _, part in whole.groupby("strategy", sort=False)]
    assert accuracy[0] == accuracy[1] != accuracy[2]


def test_a_strategy_that_cannot_be_sent_says_so() -> None:
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


def test_a_strategy_of_a_notebook_runs_in_several_processes(tmp_path: Path) -> None:
    """Code that is in no file, as in a notebook: its processes cannot import it."""
    found = [
        subprocess.run(
            [sys.executable, "-c", NOTEBOOK.replace("np.full", spelled), str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
        )
        for name, spelled in (("a", "np.full"), ("b", "np.full"), ("c", "1 * np.full"))
    ]
    assert [done.stderr for done in found] == [""] * 3
    names, codes = zip(*(done.stdout.rsplit(" ", 1) for done in found), strict=True)
    assert names[0] == "['fair_fate', 'fedavg', 'mine', 'mine+median']"
    assert codes[0] == codes[1] != codes[2]
