"""Worked numbers of rules that weigh the clients' losses, or add to them."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.strategies import (
    Cohort,
    Need,
    Setup,
    Statistics,
    Strategy,
    dual_reweighing,
    fairbatch,
    fedavg_gr,
    fedgft,
    fedminmax,
    fedprox,
    parse_spec,
    reweigh,
)
from fairfate.strategies.fedfb import fedfb_odds, fedfb_parity
from rounds_by_hand import rule

ROWS = np.array([[30, 10], [40, 20]])
"""By (group, label)."""


def cohort(local: Statistics, t: int = 1) -> Cohort:
    clients = len(local.counts)
    return Cohort(
        round=t,
        deltas=np.zeros((clients, 1)),
        num_examples=local.counts.sum(axis=(1, 2, 3)),
        client_counts=np.zeros((0, 2, 2, 2), np.int64),
        server_counts=np.zeros((2, 2, 2), np.int64),
        clients=tuple("ABCDEF"[:clients]),
        measured={Need.REPORTS: local},
    )


def report(rows: np.ndarray, *, loss=0.0, probability=0.0, wrong=0) -> Statistics:
    """One client's."""
    rows, wrong = np.asarray(rows), np.broadcast_to(wrong, np.shape(rows))
    counts = np.zeros((*rows.shape, 2), np.int64)
    for label in (0, 1):
        counts[:, label, 1 - label] = wrong[:, label]
        counts[:, label, label] = (rows - wrong)[:, label]
    return Statistics(
        counts[None],
        np.broadcast_to(np.asarray(probability, float), rows.shape)[None],
        np.broadcast_to(np.asarray(loss, float), rows.shape)[None],
    )


def weights(strategy: Strategy, *reports: Statistics) -> np.ndarray:
    """What rows weigh after some rounds."""
    state = strategy.init(np.zeros(1))
    for t, local in enumerate(reports, start=1):
        state = strategy.aggregate(state, cohort(local, t))
    assert strategy.broadcast is not None
    assert strategy.local_loss is not None
    return strategy.local_loss(strategy.broadcast(state, None), ROWS, None).weight


# -- FedFB and FairBatch ------------------------------------------------------------------------------------

LOSS = np.array([[9.0, 8.0], [20.0, 6.0]])


def test_fedfb_parity_by_hand() -> None:
    strategy = fedfb_parity(0.3)
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(report(ROWS, loss=LOSS)))
    assert state.notes["gap"] == pytest.approx(0.291667, abs=1e-6)
    assert 1 + state.moved == pytest.approx([0.78125, 1.145833], abs=1e-6)
    expected = [[0.78125, 1.21875], [1.145833, 0.854167]]
    assert weights(strategy, report(ROWS, loss=LOSS)) == pytest.approx(np.array(expected), abs=1e-6)


def test_fedfb_parity_of_errors_follows_the_selection_rates() -> None:
    # accepted: 5 + 7 of 40 and 20 + 18 of 60
    wrong = np.array([[5, 3], [20, 2]])
    strategy = fedfb_parity(0.3, "error")
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(report(ROWS, wrong=wrong)))
    gap = 38 / 60 - 12 / 40
    assert state.notes["gap"] == pytest.approx(gap)
    assert state.moved == pytest.approx([-0.3 * 100 / 40 * gap, 0.3 * 100 / 60 * gap])


def test_fedfb_parity_slows_down_and_stays_within_bounds() -> None:
    strategy, far = fedfb_parity(10.0, "error"), report(ROWS, wrong=np.array([[0, 10], [40, 0]]))
    found = weights(strategy, far)
    assert found.tolist() == [[0, 2], [2, 0]]
    back = report(ROWS, wrong=np.array([[30, 0], [0, 20]]))
    assert weights(fedfb_parity(0.1, "error"), far, back)[0, 0] == pytest.approx(
        1 - 0.1 * 100 / 40 + 0.1 / 2**0.5 * 100 / 40
    )


def test_fedfb_parity_leaves_an_absent_group_alone() -> None:
    gone = report(np.array([[30, 10], [0, 0]]), loss=np.array([[9.0, 8.0], [0.0, 0.0]]))
    assert (weights(fedfb_parity(0.3), gone) == 1).all()


def test_fedfb_odds_move_along_the_gap_of_the_losses() -> None:
    # means (.3, .8) and (.5, .3): d = (.2, -.5), of length .538516
    d = np.array([0.2, -0.5]) / 0.538516 * 0.05
    expected = [[1 - d[0] / 0.3, 1 - d[1] / 0.1], [1 + d[0] / 0.4, 1 + d[1] / 0.2]]
    found = weights(fedfb_odds(0.05), report(ROWS, loss=LOSS))
    assert found == pytest.approx(np.array(expected), abs=1e-6)
    opportunity = weights(fedfb_odds(0.05, labels=(1,)), report(ROWS, loss=LOSS))
    assert opportunity == pytest.approx(np.array([[1, 1.5], [1, 0.75]]))
    # sums: (11, -2), of length 11.18034
    d = np.array([11, -2]) / 11.18034 * 0.05
    summed = weights(fedfb_odds(0.05, sums=True), report(ROWS, loss=LOSS))
    assert summed[1] == pytest.approx([1 + d[0] / 0.4, 1 + d[1] / 0.2])


def test_fedfb_odds_without_a_gap_or_a_group_do_nothing() -> None:
    assert (weights(fedfb_odds(0.05), report(ROWS, loss=ROWS * 0.5)) == 1).all()
    gone = np.array([[30, 10], [40, 0]])
    assert (
        weights(fedfb_odds(0.05, labels=(1,), sums=True), report(gone, loss=gone * [0.5, 0.2])) == 1
    ).all()


@pytest.mark.parametrize("metric", ["eo", "eqo", "sp"])
def test_shares_stay_within_those_of_their_label(metric: str) -> None:
    strategy = rule(fairbatch(metric=metric, alpha=0.9))
    found = weights(strategy, *[report(ROWS, loss=LOSS, probability=LOSS)] * 3)
    assert (found >= 0).all()
    assert (found * ROWS).sum(axis=0) == pytest.approx(ROWS.sum(axis=0))


def test_fairbatch_for_opportunity_by_hand() -> None:
    """Shares .1 and .1 of label 1; the first group's loss is larger: weights 1.05 and .95."""
    rows = np.array([[40, 10], [40, 10]])
    found = weights(
        rule(fairbatch(metric="eo", alpha=0.005)), report(rows, loss=np.array([[1.0, 5.0], [2.0, 4.0]]))
    )
    assert found == pytest.approx(np.array([[1, 1.05], [1, 0.95]]))


def test_fairbatch_for_odds_moves_the_label_with_the_larger_gap() -> None:
    found = weights(rule(fairbatch(metric="eqo", alpha=0.01)), report(ROWS, loss=LOSS))  # gaps .2 and -.5
    assert found == pytest.approx(np.array([[1, 1.1], [1, 0.95]]))


def test_fairbatch_for_opportunity_never_moves_label_0() -> None:
    loss = ROWS * np.array([[0.1, 0.4], [0.9, 0.5]])  # gaps .8 and .1
    assert weights(rule(fairbatch(metric="eo", alpha=0.01)), report(ROWS, loss=loss)) == pytest.approx(
        np.array([[1, 0.9], [1, 1.05]])
    )
    assert weights(rule(fairbatch(metric="eqo", alpha=0.01)), report(ROWS, loss=loss)) == pytest.approx(
        np.array([[1 - 0.01 / 0.3, 1], [1.025, 1]])
    )


def test_fairbatch_for_parity_favours_the_group_that_is_favoured_less() -> None:
    # mean P(0) over a group's rows: label 0 (24, 16) / (40, 60), label 1 (2, 2) / (40, 60); group 0 has less
    found = weights(
        rule(fairbatch(metric="sp", alpha=0.01)),
        report(ROWS, probability=ROWS - np.array([[24, 2], [16, 2]])),
    )
    assert found == pytest.approx(np.array([[1 - 0.01 / 0.3, 1], [1 + 0.01 / 0.4, 1]]))


# -- FedGFT -------------------------------------------------------------------------------------------------


def test_fedgft_by_hand() -> None:
    """p = (.9, .5, .2, .4), s = (0, 0, 1, 1) and p = (.7, .3), s = (0, 1): F = .4, a penalty of 3.2."""
    rows = np.array([[[2, 0], [2, 0]], [[1, 0], [1, 0]]])
    local = Statistics(
        np.stack([rows, rows * 0], axis=-1),
        np.array([[[1.4, 0], [0.6, 0]], [[0.7, 0], [0.3, 0]]]),
        np.zeros((2, 2, 2)),
    )
    strategy = rule(fedgft(metric="sp", gamma=20.0))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(local))
    assert state.notes["gap"] == pytest.approx(0.4)
    terms = strategy.local_loss(strategy.broadcast(state, None), rows[0], None)
    assert terms.push == pytest.approx(np.array([[16.0, 16.0], [-16.0, -16.0]]))  # gamma F / P(s)
    penalty = (terms.push * local.probability[0]).sum() / rows[0].sum()
    assert penalty == pytest.approx(3.2)
    absolute = rule(fedgft(metric="sp", gamma=20.0, penalty="absolute"))
    state = absolute.aggregate(absolute.init(np.zeros(1)), cohort(local))
    assert absolute.broadcast(state, None)[0] == pytest.approx(40.0)


def test_fedgft_begins_without_a_price() -> None:
    strategy = rule(fedgft(metric="eo", gamma=20.0))
    assert strategy.local_loss(strategy.broadcast(strategy.init(np.zeros(1)), None), ROWS, None).push is None


def test_fedgft_for_opportunity_and_odds() -> None:
    # mean P(1): label 0 (.2, .5), label 1 (.6, .7)
    p = ROWS * np.array([[0.2, 0.6], [0.5, 0.7]])
    eo = rule(fedgft(metric="eo", gamma=10.0))
    state = eo.aggregate(eo.init(np.zeros(1)), cohort(report(ROWS, probability=p)))
    told = eo.broadcast(state, None).reshape(2, 2)
    assert told == pytest.approx(np.array([[0, 10 * -0.1 / 0.1], [0, 10 * 0.1 / 0.2]]))
    odds = rule(fedgft(metric="eqo", gamma=10.0))
    state = odds.aggregate(odds.init(np.zeros(1)), cohort(report(ROWS, probability=p)))
    told = odds.broadcast(state, None).reshape(2, 2)
    assert told == pytest.approx(np.array([[5 * -0.3 / 0.3, 5 * -0.1 / 0.1], [5 * 0.3 / 0.4, 5 * 0.1 / 0.2]]))


def test_fedgft_keeps_the_difference_while_a_group_is_away() -> None:
    strategy = rule(fedgft(metric="sp", gamma=10.0))
    state = strategy.aggregate(
        strategy.init(np.zeros(1)), cohort(report(ROWS, probability=ROWS * [[0.2], [0.6]]))
    )
    gone = report(np.array([[30, 10], [0, 0]]), probability=np.array([[3.0, 5.0], [0.0, 0.0]]))
    after = strategy.aggregate(state, cohort(gone, 2)._replace(clients=("B",)))
    assert after.gap == pytest.approx([-0.4, -0.4])
    alone = strategy.aggregate(strategy.init(np.zeros(1)), cohort(gone))
    assert (alone.push == 0).all()


# -- Dual reweighing ----------------------------------------------------------------------------------------

# accepted: label 0 (5, 20) of (30, 40), label 1 (7, 18) of (10, 20)
SOME_WRONG = np.array([[5, 3], [20, 2]])


@pytest.mark.parametrize(
    ("metric", "low", "high"),
    [
        ("sp", (12 / 40 - 38 / 60) / 2, (12 / 40 - 38 / 60) / 2),
        ("eo", 0.0, (0.7 - 0.9) / 2),
        ("eqo", (5 / 30 - 20 / 40) / 2, (0.7 - 0.9) / 2),
    ],
)
def test_dual_reweighing_by_hand(metric: str, low: float, high: float) -> None:
    """Group 0 is favoured less: with label 0 it counts less, with label 1 more, and group 1 the other way."""
    expected = np.exp([[low, -high], [-low, high]])
    found = weights(rule(dual_reweighing(metric=metric)), report(ROWS, wrong=SOME_WRONG))
    assert found == pytest.approx(expected)
    twice = weights(rule(dual_reweighing(metric=metric, rate=0.5)), *[report(ROWS, wrong=SOME_WRONG)] * 2)
    assert twice == pytest.approx(expected)


def test_dual_reweighing_stays_within_bounds() -> None:
    far = report(ROWS, wrong=np.array([[0, 10], [40, 0]]))
    found = weights(rule(dual_reweighing(metric="sp", rate=100.0, keep=0.0)), far)
    assert np.log(found) == pytest.approx(np.array([[-3, 3], [3, -3]]))


def test_dual_reweighing_shrinks_while_the_model_is_of_little_use() -> None:
    good, useless = report(ROWS, wrong=SOME_WRONG), report(ROWS, wrong=ROWS // 2)
    strategy = rule(dual_reweighing(metric="eqo", keep=0.8))
    state, multipliers, guarded = strategy.init(np.zeros(1)), [], []
    for t, local in enumerate([good] * 10 + [useless] * 10 + [good] * 10, start=1):
        state = strategy.aggregate(state, cohort(local, t))
        multipliers.append(state.notes["multiplier"])
        guarded.append(state.notes["guarded"])
    assert not any(guarded[:12])
    # balanced accuracy of the good one: 1 - (25 / 70 + 5 / 30) / 2
    fresh = strategy.aggregate(strategy.init(np.zeros(1)), cohort(good))
    assert fresh.notes["skill"] == pytest.approx(0.1 * (0.5 - (25 / 70 + 5 / 30) / 2))
    assert all(guarded[12:20])
    assert multipliers[19] < multipliers[12] < multipliers[11]
    assert not guarded[-1]
    unguarded = weights(rule(dual_reweighing(metric="eqo", keep=0.0)), *[good] * 10, *[useless] * 10)
    assert np.log(unguarded).max() > multipliers[19]


def test_dual_reweighing_leaves_an_absent_group_alone() -> None:
    gone = report(np.array([[30, 10], [0, 0]]), wrong=np.array([[5, 3], [0, 0]]))
    assert (weights(rule(dual_reweighing(metric="eqo")), gone) == 1).all()


# -- FedMinMax, FedProx, global reweighing ------------------------------------------------------------------


def test_fedminmax_by_hand() -> None:
    """rho (.8, .2), risks (.3, .9), rate .1: mu (.77, .23), weights (.9625, 1.15)."""
    rows = np.array([[60, 20], [10, 10]])
    loss = np.array([[18.0, 6.0], [9.0, 9.0]])
    found = weights(rule(fedminmax(rate=0.1)), report(rows, loss=loss))
    assert found == pytest.approx(np.array([[0.9625, 0.9625], [1.15, 1.15]]))
    again = weights(rule(fedminmax(rate=0.1)), *[report(rows, loss=loss)] * 2)
    assert again == pytest.approx(np.array([[0.925, 0.925], [1.3, 1.3]]))


def test_fedminmax_by_cells() -> None:
    rows = np.array([[25, 25], [25, 25]])
    found = weights(
        rule(fedminmax(rate=0.1, risks="cells")), report(rows, loss=rows * np.array([[0.2, 0.2], [0.2, 1.0]]))
    )
    assert found == pytest.approx(np.array([[0.92, 0.92], [0.92, 1.24]]))


def test_fedminmax_keeps_the_risk_of_a_group_that_is_away() -> None:
    rows = np.array([[60, 20], [10, 10]])
    there = report(rows, loss=rows * np.array([[0.3], [0.9]]))
    gone = report(np.array([[80, 0], [0, 0]]), loss=np.array([[24.0, 0.0], [0.0, 0.0]]))
    strategy = rule(fedminmax(rate=0.1))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(there))
    after = strategy.aggregate(state, cohort(gone, 2)._replace(clients=("B",)))
    assert after.risk == pytest.approx([0.3, 0.9])
    assert after.moved[1] == pytest.approx(2 * state.moved[1])


def test_fedprox_is_a_term_of_the_loss() -> None:
    terms = rule(fedprox(mu=0.5)).local_loss(None, ROWS, None)
    assert terms.prox == 0.5
    assert (terms.weight == 1).all()
    assert terms.push is None


def test_global_weights_once_are_those_of_all_clients() -> None:
    every = np.stack([ROWS, ROWS[::-1]])
    strategy = rule(fedavg_gr(counts="once"))
    told = strategy.broadcast(strategy.init(np.zeros(1)), every)
    assert strategy.local_loss(told, ROWS, None).weight == pytest.approx(reweigh(every.sum(axis=0)))


@pytest.mark.parametrize("text", ["fedgft", "fairbatch", "fedfb:metric=eo", "fedfb:metric=eqo", "ffalm"])
def test_rules_for_two_groups_say_so(text: str) -> None:
    from fairfate.data.groups import Groups

    three = Groups.single("race", ("a", "b", "c"))
    with pytest.raises(InputError, match="must be run with two groups, got 3"):
        parse_spec(text, "eqo").build(Setup(3, groups=three))


def test_fedfb_parity_takes_three_groups() -> None:
    rows = np.array([[10, 10], [10, 10], [10, 10]])
    wrong = np.array([[0, 0], [5, 0], [10, 0]])  # rates .5, .75, 1
    strategy = fedfb_parity(0.1, "error")
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(report(rows, wrong=wrong)))
    assert state.moved == pytest.approx([-0.1 * 3 * 0.75, 0.1 * 3 * 0.25, 0.1 * 3 * 0.5])


@pytest.mark.parametrize("name", ["fedfb", "fairbatch", "fedgft", "fairgrad"])
def test_rules_for_single_metrics_say_so(name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: metric must be sp, eo or eqo, got '0.5\\*sp\\+0.5\\*eo'"):
        parse_spec(f"{name}:metric=0.5*sp+0.5*eo", "eqo")


SOME = report(
    ROWS,
    loss=ROWS * np.array([[0.1, 0.4], [0.9, 0.5]]),
    probability=ROWS * np.array([[0.2, 0.6], [0.5, 0.7]]),
    wrong=SOME_WRONG,
)


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("fedfb:metric=sp", fedfb_parity(0.3)),
        ("fedfb:metric=sp,alpha=0.1,surrogate=error", fedfb_parity(0.1, "error")),
        ("fedfb", fedfb_odds(0.005)),
        ("fedfb:metric=eo,step=0.02,gaps=sums", fedfb_odds(0.02, labels=(1,), sums=True)),
        ("fedfb:surrogate=error", fedfb_odds(0.005, surrogate="error")),
    ],
)
def test_fedfb_has_a_rule_for_each_metric(text: str, strategy: Strategy) -> None:
    named = parse_spec(text, "eqo").build(Setup(3))
    assert weights(named, SOME, SOME).tolist() == weights(strategy, SOME, SOME).tolist()
    assert (weights(named, SOME, SOME) != 1).any()
