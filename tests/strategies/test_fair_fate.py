"""FAIR-FATE by hand, with the methods that it is made of, and its guard against models of one answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from builders import cohort, rule
from fairfate.data import synthetic
from fairfate.engine.server import Replies, Server
from fairfate.experiments.config import Config
from fairfate.experiments.prepare import prepare
from fairfate.fairness import metrics
from fairfate.fairness.metrics import FAIRNESS, PUBLISHED_FAIRNESS, sp
from fairfate.strategies import (
    Cohort,
    ModelState,
    Need,
    Setup,
    Strategy,
    constant,
    demon,
    exponential,
    fair_fate,
    fedavg,
    fedavg_gr,
    fedavg_lr,
    fedval,
    linear,
    momentum,
    parse_spec,
)
from fairfate.strategies.fair_fate import at_least_as_fair, fairer_normalised
from fairfate.strategies.guards import guard, skill


def counts(low: int, high: int) -> np.ndarray:
    """Ten rows in each group, of which so many are accepted: SP is low / high."""
    return np.array([[[10 - low, low], [0, 0]], [[10 - high, high], [0, 0]]])


# three clients that moved one parameter by 1, 2 and 4, with SP 0.2, 0.5 and 1.0; the server has 0.5
COHORT = Cohort(
    round=1,
    deltas=np.array([[1.0], [2.0], [4.0]]),
    num_examples=np.array([10, 30, 60]),
    client_counts=np.stack([counts(1, 5), counts(4, 8), counts(6, 6)]),
    server_counts=counts(5, 10),
)


ZERO = np.zeros(1)


ALPHA_N = 0.1 * 1 + 0.3 * 2 + 0.6 * 4  # 3.1


def test_fedavg_adds_the_mean_update() -> None:
    strategy = rule(fedavg())
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(ALPHA_N)


def test_fedval_weighs_clients_by_fairness() -> None:
    strategy = rule(fedval(), sp)
    expected = (0.201 * 1 + 0.501 * 2 + 1.001 * 4) / (0.201 + 0.501 + 1.001)
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(expected)


def test_fair_fate_mixes_fair_momentum_with_fedavg() -> None:
    strategy = rule(fair_fate(beta0=0.9, momentum="constant", lam0=0.4, growth="constant", max=1.0), sp)
    state = strategy.aggregate(strategy.init(ZERO), COHORT)
    # fair: the clients with SP 0.5 and 1.0, as fair as the server or fairer
    alpha_f = (0.5 * 2 + 1.0 * 4) / 1.5
    assert state.momentum == pytest.approx(0.1 * alpha_f)
    assert state.params == pytest.approx(0.4 * 0.1 * alpha_f + 0.6 * ALPHA_N)
    assert (state.notes["lam"], state.notes["beta"]) == (0.4, 0.9)
    assert state.notes["fair"].tolist() == [False, True, True]


def test_fair_fate_published_is_strict_normalised_and_corrected() -> None:
    strategy = rule(
        fair_fate(beta0=0.9, momentum="constant", lam0=0.4, growth="constant", max=1.0), sp, published=True
    )
    state = strategy.aggregate(strategy.init(ZERO), COHORT)
    # only the client with SP 1.0 is fairer; v = 0.1 * 4, divided by 1 - 0.9
    assert state.params == pytest.approx(0.4 * 4 + 0.6 * ALPHA_N)
    assert state.notes["fair"].sum() == 1


def test_normalised_scores_weigh_fair_clients_by_their_distance() -> None:
    is_fair, scores = fairer_normalised(np.array([0.2, 0.6, 1.0]), np.array(0.4))
    assert is_fair.tolist() == [False, True, True]
    assert scores.tolist() == pytest.approx([0, 0.5, 1])


def test_equal_scores_leave_the_published_fair_set_empty() -> None:
    is_fair, scores = fairer_normalised(np.array([0.7, 0.7]), np.array(0.7))
    assert not is_fair.any()
    assert scores.tolist() == [0, 0]


def test_leaves_momentum_at_zero_when_no_client_is_fairer() -> None:
    strategy = rule(fair_fate(beta0=0.0, momentum="constant", lam0=1.0, growth="constant", max=1.0), sp)
    fairest = COHORT._replace(client_counts=np.stack([counts(1, 5)] * 3), server_counts=counts(6, 6))
    state = strategy.aggregate(strategy.init(ZERO), fairest)
    assert state.params == state.momentum == 0
    assert state.notes["fair"].sum() == 0


@pytest.mark.parametrize("fair_set", [at_least_as_fair])
def test_an_undefined_score_never_counts_as_fair(fair_set) -> None:
    nan = np.nan
    assert fair_set(np.array([nan, 0.9]), np.array(0.5))[0].tolist() == [False, True]
    assert fair_set(np.array([0.1, 0.9]), np.array(nan))[0].tolist() == [False, False]


def test_a_fair_set_of_zero_scores_gives_no_update() -> None:
    strategy = rule(fair_fate(beta0=0.0, momentum="constant", lam0=1.0, growth="constant", max=1.0), sp)
    unfair = np.stack([counts(0, 5)] * 3)
    state = strategy.aggregate(
        strategy.init(ZERO), COHORT._replace(client_counts=unfair, server_counts=counts(0, 3))
    )
    assert state.params == 0
    assert state.notes["fair"].sum() == 3


def test_local_weights_stay_at_each_client() -> None:
    strategy = rule(fedavg_lr())
    # P(s) P(y) / P(s, y) = 0.5 * 0.5 / (30/80)
    terms = strategy.local_loss(None, np.array([[30, 10], [10, 30]]), None)
    assert terms.weight[0].tolist() == pytest.approx([2 / 3, 2])
    assert (strategy.local_loss(None, np.full((2, 2), 25), None).weight == 1).all()
    assert strategy.broadcast is None
    assert strategy.needs == set()


def test_global_weights_are_those_of_all_rows_together() -> None:
    strategy = rule(fedavg_gr())
    rows = np.array([[[30, 10], [10, 30]], [[0, 20], [20, 0]]])
    # together 30, 30 / 30, 30: independent already
    message = strategy.broadcast(None, rows)
    assert (strategy.local_loss(message, rows[0], None).weight == 1).all()


def final(strategy: Strategy, rounds: int = 3) -> float:
    """One parameter after some rounds of the same cohort, seen from an ever fairer server."""
    state = strategy.init(ZERO)
    for t in range(1, rounds + 1):
        state = strategy.aggregate(state, COHORT._replace(round=t, server_counts=counts(5 - t, 10)))
    return float(state.params[0])


@pytest.mark.parametrize(
    ("text", "beta", "lam"),
    [
        ("lam0=0.2,rho=0.3,max=0.5,beta0=0.7", demon(0.7, 5), exponential(0.2, 0.3, 0.5)),
        ("lam0=0.2,rho=0.3,momentum=none,growth=linear", constant(0.0), linear(0.2, 0.3, 0.9)),
        (
            "metric=eo,lam0=0.2,momentum=constant,growth=constant,beta0=0.7",
            constant(0.7),
            constant(0.2),
        ),
    ],
)
def test_fair_fate_has_the_schedules_it_is_asked_for(text: str, beta, lam) -> None:
    strategy = parse_spec(f"fair_fate:{text}", "sp").build(Setup(5))
    for t in range(1, 6):
        notes = strategy.aggregate(strategy.init(ZERO), COHORT._replace(round=t)).notes
        assert (notes["beta"], notes["lam"]) == (beta(t), lam(t))


@pytest.mark.parametrize(
    ("text", "beta"), [("fedmom:beta=0.7", constant(0.7)), ("feddemon:beta0=0.7", demon(0.7, 5))]
)
@pytest.mark.parametrize("published", [False, True])
def test_server_momentum_has_the_schedule_of_its_name(text: str, beta, published: bool) -> None:
    named = parse_spec(text, "eqo").build(Setup(5, published=published))
    assert final(named) == pytest.approx(final(momentum(beta, bias_correction=published)))


@pytest.mark.parametrize("metric", ["sp", "eo"])
def test_fairness_is_that_of_the_protocol(metric: str) -> None:
    spec = parse_spec("fedval", metric)
    for published, known in ((False, FAIRNESS), (True, PUBLISHED_FAIRNESS)):
        named = spec.build(Setup(5, published=published))
        assert final(named) == pytest.approx(final(rule(fedval(), known[metric])))


GOOD = np.array([[[8, 2], [2, 8]], [[7, 3], [4, 6]]])


ONE_ANSWER = np.array([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])


SETUP = Setup(10)


def server(text: str, counts: np.ndarray = GOOD) -> Server:
    model = Server.start(parse_spec(text, "sp").build(SETUP), np.zeros(1))
    model.counts = counts
    return model


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
    first = server("fedval:min_mcc=0.05")
    first.take(1, replies(GOOD, ONE_ANSWER))
    assert_array_equal(first.params, [1.0])
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


@pytest.mark.parametrize(("bound", "result"), [(1.0, 0.8), (0.5, 0.4), (0.06, 0.05), (0.04, 0.0)])
def test_caution_is_halved_four_times_at_most(bound: float, result: float) -> None:
    tried: list[float] = []

    def score(models: np.ndarray) -> np.ndarray:
        tried.append(float(models[0, 0]))
        return np.stack([GOOD if params[0] <= bound else ONE_ANSWER for params in models])

    strategy = guard(Strategy(ModelState, moved_by_caution), keep=1.0)
    assert strategy.needs == {Need.TRIALS}
    cohort = Cohort(1, np.zeros((1, 1)), np.ones(1), GOOD[None], GOOD, measured={Need.TRIALS: score})
    assert strategy.aggregate(ModelState(np.zeros(1)), cohort).params == pytest.approx(result)
    assert len(tried) <= 6  # the FedAvg step first


def test_fair_fate_lowers_its_share_where_skill_would_be_lost() -> None:
    fair, unfair = GOOD, np.array([[[9, 1], [0, 10]], [[10, 0], [10, 0]]])
    text = "fair_fate:lam0=0.8,rho=0,beta0=0"
    for keep, share in ((0.0, 0.8), (0.8, 0.4)):
        first = server(f"{text},keep={keep}", unfair)
        first.score = lambda models: np.stack([ONE_ANSWER if params[0] > 6 else GOOD for params in models])
        outcome = first.take(1, replies(unfair, fair)._replace(num_examples=np.array([9.0, 1.0])))
        assert outcome.notes["fair"].tolist() == [True, True]
        assert outcome.notes["lam"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("fair_fate", {"min_mcc": 0.05, "keep": 0.8}),
        ("fair_fate:keep=0", {"min_mcc": 0.05, "keep": 0.0}),
        ("fedval+clip", {"min_mcc": 0.05, "clip_norm": 0.0}),
        ("fedavg", {}),
    ],
)
def test_the_guard_is_on_for_data_of_users(text: str, result: dict[str, float]) -> None:
    spec = parse_spec(text, "sp", guard=True)
    assert result.items() <= spec.recorded.items()
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


# -- the guard of FAIR-FATE -----------------------------------------------------------------------------

FAIR = np.array([[[8, 2], [2, 8]], [[8, 2], [2, 8]]])


WORSE = FAIR[:, ::-1]


"""Wrong more often than right: a skill below 0."""


def share_taken(keep: float, score) -> float:
    strategy = rule(
        fair_fate(beta0=0.0, momentum="constant", lam0=0.8, growth="constant", max=1.0, keep=keep), metrics.sp
    )
    counts = np.stack([FAIR, FAIR])
    two = cohort(n=(3, 1), client_counts=counts, server_counts=FAIR, score=score)
    return float(strategy.aggregate(strategy.init(np.zeros(2)), two).notes["lam"])


def test_without_a_share_to_keep_no_model_is_tried() -> None:
    def never(models: np.ndarray) -> np.ndarray:
        raise AssertionError("must not be asked")

    assert share_taken(0.0, never) == 0.8
    assert share_taken(0.5, None) == 0.8


def test_skill_is_compared_with_that_of_the_fedavg_step() -> None:
    """FedAvg moves to (.75, .25), the mixture by .8 of it to (.55, .45)."""
    tried: list[list[float]] = []

    def score(models: np.ndarray) -> np.ndarray:
        tried.extend(models.tolist())
        return np.stack([FAIR if model[0] > 0.6 else ONE_ANSWER for model in models])

    assert share_taken(0.5, score) == 0.4  # (.65, .35)
    assert np.array(tried) == pytest.approx(np.array([[0.75, 0.25], [0.55, 0.45], [0.65, 0.35]]))


def test_a_fedavg_step_of_no_skill_lowers_nothing() -> None:
    assert (
        share_taken(0.5, lambda models: np.stack([ONE_ANSWER if m[0] > 0.7 else WORSE for m in models]))
        == 0.8
    )
