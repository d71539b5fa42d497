"""The guard against models that are fair because they give everybody one answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fairfate import InputError
from fairfate.data import synthetic
from fairfate.engine.server import Replies, Server
from fairfate.experiments.config import Config
from fairfate.experiments.prepare import prepare
from fairfate.strategies import Cohort, ModelState, Need, Setup, Strategy, parse_spec
from fairfate.strategies.guards import guard, skill

GOOD = np.array([[[8, 2], [2, 8]], [[7, 3], [4, 6]]])
ONE_ANSWER = np.array([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])
SETUP = Setup(10)


def server(text: str, counts: np.ndarray = GOOD) -> Server:
    found = Server.start(parse_spec(text, "sp").build(SETUP), np.zeros(1))
    found.counts = counts
    return found


def replies(*counts: np.ndarray) -> Replies:
    deltas = 10.0 ** np.arange(len(counts))[:, None]
    return Replies(tuple("abc"[: len(counts)]), deltas, np.arange(1.0, len(counts) + 1), np.array(counts))


@pytest.mark.parametrize("of_server", [GOOD, ONE_ANSWER])
def test_one_answer_for_everybody_is_fair_by_the_paper_and_never_with_the_guard(
    of_server: np.ndarray,
) -> None:
    paper, guarded = server("fair_fate", of_server), server("fair_fate:min_mcc=0.01", of_server)
    assert paper.take(1, replies(GOOD, ONE_ANSWER)).notes["fair"].tolist()[1]
    assert not guarded.take(1, replies(GOOD, ONE_ANSWER)).notes["fair"].tolist()[1]


def test_zero_is_the_paper_and_is_recorded_where_it_is_given_only() -> None:
    assert "keep" not in parse_spec("fair_fate", "sp").text
    spec = parse_spec("fair_fate:min_mcc=0,keep=0", "sp")
    assert spec.text.endswith("min_mcc=0,keep=0")
    assert parse_spec(spec.text, "sp", guard=True) == spec
    assert Need.TRIALS not in spec.build(SETUP).needs
    guarded = parse_spec("fair_fate:min_mcc=0.05,keep=0.7+thresholds:keep=0.9", "sp")
    assert guarded.recorded["min_mcc"] == 0.05
    assert (guarded.recorded["keep"], guarded.recorded["thresholds_keep"]) == (0.7, 0.9)


def test_fedval_leaves_out_one_answer_unless_there_is_nothing_else() -> None:
    one = server("fedval:min_mcc=0.05")
    one.take(1, replies(GOOD, ONE_ANSWER))
    assert_array_equal(one.params, [1.0])
    all_alike = server("fedval:min_mcc=0.05")
    all_alike.take(1, replies(ONE_ANSWER, ONE_ANSWER))
    assert_allclose(all_alike.params, [(1 * 1 + 2 * 10) / 3])


def test_skill_is_balanced_accuracy_above_one_half() -> None:
    assert skill(GOOD) == pytest.approx((15 / 20 + 14 / 20) / 2 - 0.5)
    assert skill(ONE_ANSWER) == skill(np.zeros((2, 2, 2))) == 0


def moved_by_caution(state: ModelState, cohort: Cohort) -> ModelState:
    """0.8 away from the FedAvg step, times caution."""
    return ModelState(np.array([0.8 * cohort.caution]), {"eligible": cohort.eligible})


@pytest.mark.parametrize(("min_mcc", "eligible"), [(None, True), (0.05, [True, False]), (-1.0, [True, True])])
def test_clients_below_the_least_mcc_are_not_eligible(min_mcc, eligible) -> None:
    strategy = guard(Strategy(ModelState, moved_by_caution), min_mcc=min_mcc)
    cohort = Cohort(1, np.zeros((2, 1)), np.ones(2), np.array([GOOD, ONE_ANSWER]), GOOD)
    assert np.all(strategy.aggregate(ModelState(np.zeros(1)), cohort).notes["eligible"] == np.array(eligible))
    best = np.array([[[5, 0], [0, 5]]] * 2)
    at_bound = guard(Strategy(ModelState, moved_by_caution), min_mcc=1.0)
    cohort = cohort._replace(client_counts=np.array([best, GOOD]))
    assert at_bound.aggregate(ModelState(np.zeros(1)), cohort).notes["eligible"].tolist() == [True, False]


@pytest.mark.parametrize(("bound", "found"), [(1.0, 0.8), (0.5, 0.4), (0.06, 0.05), (0.04, 0.0)])
def test_caution_is_halved_four_times_at_most(bound: float, found: float) -> None:
    tried: list[float] = []

    def score(models: np.ndarray) -> np.ndarray:
        tried.append(float(models[0, 0]))
        return np.stack([GOOD if params[0] <= bound else ONE_ANSWER for params in models])

    strategy = guard(Strategy(ModelState, moved_by_caution), keep=1.0)
    assert strategy.needs == {Need.TRIALS}
    cohort = Cohort(1, np.zeros((1, 1)), np.ones(1), GOOD[None], GOOD, measured={Need.TRIALS: score})
    assert strategy.aggregate(ModelState(np.zeros(1)), cohort).params == pytest.approx(found)
    assert len(tried) <= 6  # the FedAvg step first


def test_fair_fate_lowers_its_share_where_skill_would_be_lost() -> None:
    fair, unfair = GOOD, np.array([[[9, 1], [0, 10]], [[10, 0], [10, 0]]])
    text = "fair_fate:lam0=0.8,rho=0,beta0=0"
    for keep, share in ((0.0, 0.8), (0.8, 0.4)):
        one = server(f"{text},keep={keep}", unfair)
        one.score = lambda models: np.stack([ONE_ANSWER if params[0] > 6 else GOOD for params in models])
        outcome = one.take(1, replies(unfair, fair)._replace(num_examples=np.array([9.0, 1.0])))
        assert outcome.notes["fair"].tolist() == [True, True]
        assert outcome.notes["lam"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fair_fate", {"min_mcc": 0.05, "keep": 0.8}),
        ("fair_fate:keep=0", {"min_mcc": 0.05, "keep": 0.0}),
        ("fedval+clip", {"min_mcc": 0.05, "clip_norm": 0.0}),
        ("fedavg", {}),
    ],
)
def test_the_guard_is_on_for_data_of_users(text: str, found: dict[str, float]) -> None:
    spec = parse_spec(text, "sp", guard=True)
    assert found.items() <= spec.recorded.items()
    assert parse_spec(spec.text, "sp") == spec == parse_spec(spec.text, "sp", guard=True)


def test_which_data_are_users_own(tmp_path: Path) -> None:
    table = synthetic(rows=300, seed=1)
    frame = pd.DataFrame(table.features).assign(y=table.label, s=table.group)
    frame.columns = frame.columns.astype(str)
    frame.to_csv(tmp_path / "own.csv", index=False)
    about = {"data": str(tmp_path / "own.csv"), "target": "y", "favourable": "1", "sensitive": ("s",)}
    for values, on in (
        (about, True),
        ({**about, "protocol": "published", "encode": "ordinal"}, False),
        ({"data": "synthetic", "strategies": ("fedavg", "fair_fate")}, False),
        ({"data": "synthetic"}, True),
    ):
        plan, _ = prepare(Config(**values, seeds=(1,)))
        assert ("min_mcc=0.05,keep=0.8" in plan.config.strategies[1]) == on


def test_what_is_compared_unless_strategies_are_named() -> None:
    def compared(**options: object) -> list[str]:
        return [spec.label for spec in prepare(Config(data="synthetic", seeds=(1,), **options))[0].specs]

    assert compared() == ["fedavg", "fair_fate", "fedavg_lr+average", "fedavg+average+thresholds"]
    assert compared(protocol="published") == ["fedavg", "fair_fate"]
    assert compared(strategies=("fedval",)) == ["fedval"]


def test_settings_are_checked() -> None:
    with pytest.raises(InputError, match=r"fair_fate: min_mcc must be in \[0, 1\], got 2"):
        parse_spec("fair_fate:min_mcc=2", "sp")
    with pytest.raises(InputError, match="fedval"):
        parse_spec("fedval:keep=0.5", "sp")
