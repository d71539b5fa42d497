"""Rules at the server at their edges: what is asked for, weights that vanish, bounds and notes."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.fairness import metrics
from fairfate.strategies import (
    Need,
    Needs,
    Setup,
    Statistics,
    afl,
    entries,
    fair_fate,
    fairfed,
    fedval,
    parse_spec,
    qffl,
    server_step,
)
from fairfate.strategies.afl import AflState
from fairfate.strategies.f3 import VIOLATIONS, f3, fairest
from fairfate.strategies.fairfed import FairFedState
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.reweighing import local_reweighing
from fairfate.strategies.strategy import ON_VALIDATION, project
from rounds_by_hand import ROWS, cohort, report, rule

# -- what a strategy asks for, and what it says before it knows anything --------------------------------


def test_which_strategies_would_do_the_same_without_groups() -> None:
    blind = {
        entry.name
        for entry in entries()
        if parse_spec(entry.name, "sp").build(Setup(3, learning_rate=0.1)).group_blind
    }
    assert blind == {"afl", "fedprox", "qffl"}


@pytest.mark.parametrize(
    "text",
    [
        "fairgrad",
        "fairbatch",
        "fedfb:metric=sp",
        "fedfb:metric=eo",
        "fedgft",
        "fedminmax",
        "prejudice:scope=global",
    ],
)
def test_before_the_first_round_nothing_is_known_and_the_loss_is_the_usual_one(text: str) -> None:
    strategy = parse_spec(text, "eqo").build(Setup(3))
    state = strategy.init(np.zeros(3))
    assert all(len(value) == 0 for name, value in state._asdict().items() if name != "params")
    assert strategy.broadcast is not None
    assert strategy.local_loss is not None
    told = np.asarray(strategy.broadcast(state, None))
    assert len(told) == 0
    terms = strategy.local_loss(told, ROWS, None)
    assert (terms.weight == 1).all()
    assert terms.push is None or not terms.push.any()


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("fedavg", set()),
        ("fedavg_gr", {Need.ROWS}),
        ("fedavg_gr:counts=once", {Need.ALL_ROWS}),
        ("fair_fate", {Need.SCORES}),
        ("fair_fate:keep=0.5", {Need.SCORES, Need.TRIALS}),
        ("fair_best", {Need.SCORES}),
        ("fedval", {Need.SCORES}),
        ("ffalm", {Need.LOCAL, Need.REPORTS}),
        ("prejudice:scope=batch", set()),
        ("prejudice", {Need.LOCAL}),
        ("prejudice:scope=global", {Need.REPORTS}),
        ("server_step", {Need.DESCENT}),
        *(
            (name, {Need.REPORTS})
            for name in ("afl", "qffl", "fairfed", "fairgrad", "fairbatch", "fedfb", "fedgft")
        ),
        *((name, {Need.REPORTS}) for name in ("fedminmax", "dual_reweighing", "fedfb:metric=sp")),
    ],
)
def test_nothing_is_measured_that_a_strategy_does_not_need(text: str, needs: Needs) -> None:
    strategy = parse_spec(text, "eqo").build(Setup(3, learning_rate=0.1))
    assert strategy.needs == needs
    assert strategy.refresh == (1 if text in ("ffalm", "prejudice") else None)


def test_where_a_strategy_looks_at_the_validation_rows() -> None:
    assert {Need.SCORES, Need.DESCENT, Need.TRIALS} == ON_VALIDATION


# -- weights of clients ---------------------------------------------------------------------------------


def test_afl_counts_by_rows_where_all_shares_have_vanished() -> None:
    two = Statistics(
        np.stack([np.full((2, 2, 2), 1), np.full((2, 2, 2), 3)]), np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    )
    strategy = rule(afl(rate=0.1))
    gone = AflState(np.zeros(2), {}, {"A": -9.0, "B": -9.0})
    assert strategy.aggregate(gone, cohort(two)).params == pytest.approx([0.25, 0.75])
    # 8 - 32 * 0.25 is 0 and 24 - 32 * 0.74 is 0.32: less than a row, and still all that counts
    few = AflState(np.zeros(2), {}, {"A": -0.25, "B": -0.74})
    assert strategy.aggregate(few, cohort(two)).params == pytest.approx([0, 1])


def test_fairfed_counts_by_rows_where_all_weights_have_vanished() -> None:
    local = Statistics(
        np.stack([np.full((2, 2, 2), 1), np.full((2, 2, 2), 3)]), np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    )
    strategy = rule(fairfed(metric="eo", beta=0))
    gone = FairFedState(np.zeros(2), {}, {"A": -9.0, "B": -9.0})
    found = strategy.aggregate(gone, cohort(local))
    assert found.params == pytest.approx([0.25, 0.75])
    assert found.notes["weight"] == pytest.approx([0.25, 0.75])
    few = FairFedState(np.zeros(2), {}, {"A": -0.25, "B": -0.74})
    assert strategy.aggregate(few, cohort(local)).params == pytest.approx([0, 1])


def test_fairfed_reweighs_at_clients_unless_told_not_to() -> None:
    assert rule(fairfed(metric="eo", beta=1)).local_loss is local_reweighing
    for text, loss in (("fairfed", local_reweighing), ("fairfed:local=none", None)):
        assert parse_spec(text, "eo").build(Setup(3)).local_loss is loss


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3, 0.4], [0.0, 0.3, 0.7], [0.7, 0.2, 0.1]])
def test_shares_that_add_up_are_left_as_they_are(values: list[float]) -> None:
    """To the bit, also where their sum is off by a rounding."""
    given = np.array(values)
    assert project(given) is given
    assert project(given * 1000, 1000.0).tolist() == (given * 1000).tolist()


def test_shares_below_zero_are_projected_even_if_they_add_up() -> None:
    assert project(np.array([1.5, -0.5])).tolist() == [1, 0]
    assert project(np.array([3.0, -1.0]), 2.0).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("rho", "fair", "stepped"), [(0.0, False, 0), (1.0, True, 0), (1.0, False, 1), (0.3, False, 1)]
)
def test_a_step_at_the_server_is_noted_and_only_taken_where_it_is_needed(
    rho: float, fair: bool, stepped: int
) -> None:
    asked: list[int] = []
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    one = cohort(
        n=(1,),
        server_counts=unfair[[0, 0]] if fair else unfair,
        descend=lambda params, loss: asked.append(1) or np.array([-2.0]),
    )
    state = rule(server_step(metric="sp", rho=rho)).aggregate(AVERAGING.init(np.zeros(1)), one)
    assert state.notes == {"stepped": stepped}
    assert len(asked) == stepped
    assert state.params == pytest.approx([1 - rho * stepped])


@pytest.mark.parametrize("down", [0.0, np.inf, np.nan])
def test_a_slope_that_leads_nowhere_is_not_taken(down: float) -> None:
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    one = cohort(n=(1,), server_counts=unfair, descend=lambda params, loss: np.array([down]))
    state = rule(server_step(metric="sp", rho=0.5)).aggregate(AVERAGING.init(np.zeros(1)), one)
    assert (state.params.tolist(), state.notes) == ([1], {"stepped": 0})


def test_a_client_without_a_loss_still_counts_in_qffl() -> None:
    """Its weight is the root of 1e-10, the other's that of 1."""
    two = report(ROWS, loss=0.0), report(ROWS, loss=ROWS * 1.0)
    both = cohort(Statistics(*(np.concatenate(of) for of in zip(*two, strict=True))))
    state = rule(qffl(q=0.5), learning_rate=0.1).aggregate(AVERAGING.init(np.zeros(2)), both)
    assert state.notes["loss"] == pytest.approx([1e-10, 1 + 1e-10])
    weights, curvature = np.array([1e-5, 1.0]), np.array([0.5 * 1e5, 0.5]) / 0.1
    step = weights.sum() / (weights + curvature).sum()
    assert state.notes["step"] == pytest.approx(step)
    assert state.params == pytest.approx(step * weights / weights.sum())


def test_an_undefined_score_of_fedval_counts_as_the_floor() -> None:
    scores = np.array([0.5, np.nan, 0.2, 0.0])  # the last is the server's
    three = cohort(n=(1, 1, 1), client_counts=np.zeros((3, 2, 2, 2)))
    found = (
        rule(fedval(floor=0.1), lambda counts: scores).aggregate(AVERAGING.init(np.zeros(3)), three).params
    )
    assert found == pytest.approx([0.6 / 1.0, 0.1 / 1.0, 0.3 / 1.0])


# -- F3 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", VIOLATIONS)
def test_violations_of_many_models_are_those_of_each(against: str) -> None:
    counts = np.random.default_rng(1).integers(1, 30, (5, 3, 2, 2))
    for metric in VIOLATIONS[against].values():
        np.testing.assert_allclose(metric(counts), [metric(of) for of in counts])


def test_a_client_at_the_least_mcc_counts() -> None:
    right, wrong = np.array([[[5, 0], [0, 5]]] * 2), np.array([[[4, 1], [0, 5]]] * 2)
    two = cohort(n=(1, 1), client_counts=np.stack([right, wrong]))
    state = f3(metrics.sp_diff, fairest, alpha=1.0, min_mcc=1.0).aggregate(AVERAGING.init(np.zeros(2)), two)
    assert state.notes["fair"].tolist() == [True, False]
    assert state.params.tolist() == [1, 0]
    assert state.notes["violation"].tolist() == [0, 0]


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, 1), (0.2, 1), (0.21, 2), (0.4, 2), (0.6, 3), (1.0, 5)])
def test_a_share_of_the_clients_is_rounded_up(alpha: float, kept: int) -> None:
    five = cohort(n=(1,) * 5, client_counts=np.stack([np.array([[[5, 0], [0, 5]]] * 2)] * 5))
    state = f3(metrics.sp_diff, fairest, alpha=alpha).aggregate(AVERAGING.init(np.zeros(5)), five)
    assert state.notes["fair"].tolist() == [True] * kept + [False] * (5 - kept)


# -- the guard of FAIR-FATE -----------------------------------------------------------------------------

FAIR = np.array([[[8, 2], [2, 8]], [[8, 2], [2, 8]]])
ONE_ANSWER = np.array([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])
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


def test_skill_is_held_against_that_of_the_fedavg_step() -> None:
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
