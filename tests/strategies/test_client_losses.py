"""Worked numbers of rules that weigh the clients' losses, or add to them; and their edges."""

from __future__ import annotations

import numpy as np
import pytest

from builders import ROWS, after, cohort, report, rule, seen
from fairfate.errors import InputError
from fairfate.strategies import (
    Setup,
    Statistics,
    Strategy,
    broadcast_weights,
    dual_reweighing,
    fairbatch,
    fairgrad,
    fedavg_gr,
    fedgft,
    fedminmax,
    fedprox,
    fedyogi,
    ffalm,
    parse_spec,
    prejudice,
    reweigh,
    rows_so_far,
    weighted_means,
)
from fairfate.strategies.adaptive import yogi
from fairfate.strategies.fairbatch import shares_to_weights
from fairfate.strategies.fairgrad import constraints
from fairfate.strategies.fedfb import fedfb_odds, fedfb_parity
from fairfate.strategies.fedgft import price
from fairfate.strategies.ffalm import loss_gap
from fairfate.strategies.prejudice import group_push
from fairfate.strategies.strategy import client_losses, divide


def test_prejudice_remover_by_hand() -> None:
    """p = (.8, .4, .3, .1), s = (1, 1, 0, 0): dR/dp = (.202733, .202733, -.245207, -.245207) by row."""
    probability = np.array([[0.1, 0.3], [0.4, 0.8]])
    push = group_push(1.0, probability, np.ones((2, 2), dtype=np.int64))
    assert push / 4 == pytest.approx([-0.245207, 0.202733], abs=1e-6)


def test_prejudice_with_one_group_is_plain() -> None:
    rows = np.array([[0, 0], [3, 4]])
    assert group_push(2.0, np.array([[0.0, 0.0], [1.0, 3.0]]), rows).tolist() == [0, 0]


def test_prejudice_global_broadcasts_rates_of_the_previous_round() -> None:
    strategy = rule(prejudice(eta=1.0, scope="global"))
    state = strategy.init(np.zeros(3))
    assert strategy.broadcast(state, None).tolist() == []
    rows = np.ones((2, 2), dtype=np.int64)
    counts = np.stack([rows, np.zeros_like(rows)], axis=-1)[None]
    local = Statistics(counts, np.array([[[0.1, 0.3], [0.4, 0.8]]]), np.ones((1, 2, 2)))
    after = strategy.aggregate(state._replace(params=np.zeros(1)), cohort(local))
    assert strategy.broadcast(after, None) == pytest.approx([-0.980829, 0.81093], abs=1e-5)


def test_ffalm_by_hand() -> None:
    """L = (.7, .4), lambda .1, beta 5: the loss gains .255, and lambda becomes .7 with a rate of 2."""
    rows = np.array([[5, 5], [5, 5]])
    local = Statistics(
        np.stack([rows, np.zeros_like(rows)], axis=-1)[None],
        np.ones((1, 2, 2)),
        (rows * np.array([[0.7], [0.4]]))[None],
    )
    gap = float(loss_gap(local, slice(0, 2))[0])
    assert gap == pytest.approx(0.3)
    assert 0.1 * gap + 5 / 2 * gap**2 == pytest.approx(0.255)
    strategy = rule(ffalm(beta=5, rate=2, growth=1.05))
    state = strategy.init(np.zeros(1))._replace(lam=0.1)
    after = strategy.aggregate(state, cohort(local))
    assert after.lam == pytest.approx(0.7)
    assert (after.beta, after.rate) == pytest.approx((5.25, 2 / 1.05))
    # weight of a row: 1 + (lambda + beta gap) / share for group 0, 1 - that for group 1, at least 0
    terms = strategy.local_loss(np.array([0.1, 5.0]), rows, Statistics(*(v[0] for v in local)))
    assert terms.weight[0] == pytest.approx([1 + 1.6 / 0.5] * 2)
    assert terms.weight[1].tolist() == [0, 0]


def test_ffalm_without_a_group_is_plain() -> None:
    rows = np.array([[0, 0], [5, 5]])
    local = Statistics(np.stack([rows, rows * 0], axis=-1), np.ones((2, 2)), np.ones((2, 2)))
    strategy = rule(ffalm(beta=5, rate=2, growth=1.05))
    assert (strategy.local_loss(np.array([0.1, 5.0]), rows, local).weight == 1).all()


# cells (label, group) 00, 01, 10, 11 with counts (60, 20, 10, 10) and accuracy (.9, .8, .5, .7)
FAIRGRAD = np.array([[[54, 6], [5, 5]], [[16, 4], [3, 7]]])


@pytest.mark.parametrize(
    ("metric", "better", "weights"),
    [
        ("eqo", (0.025, -0.075, -0.1, 0.1), (0.989583, 1.03125, 1.1, 0.9)),
        ("sp", (0.062857, -0.146667, -0.062857, 0.146667), (0.965279, 1.081016, 1.034721, 0.918984)),
    ],
)
def test_fairgrad_by_hand(metric: str, better, weights) -> None:
    matrix, constant = constraints(metric, FAIRGRAD.sum(axis=-1))
    error = np.array([0.1, 0.5, 0.2, 0.3])  # by (group, label)
    result = (constant + matrix @ error).reshape(2, 2)
    assert result.T.ravel() == pytest.approx(better, abs=1e-6)
    strategy = rule(fairgrad(metric=metric, rate=0.1, epsilon=0.0))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(seen(FAIRGRAD[None])))
    message = strategy.broadcast(state, None).reshape(2, 2)
    assert message.T.ravel() == pytest.approx(weights, abs=1e-6)


def test_fairgrad_eo_moves_only_label_one() -> None:
    strategy = rule(fairgrad(metric="eo", rate=0.1, epsilon=0.0))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(seen(FAIRGRAD[None])))
    message = strategy.broadcast(state, None).reshape(2, 2)
    assert message[:, 0].tolist() == [1, 1]
    assert message[:, 1] == pytest.approx([1.1, 0.9])


def weights(strategy: Strategy, *reports: Statistics) -> np.ndarray:
    """What rows weigh after some rounds."""
    state = strategy.init(np.zeros(1))
    for t, local in enumerate(reports, start=1):
        state = strategy.aggregate(state, cohort(local, round=t))
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
    combined = weights(strategy, far)
    assert combined.tolist() == [[0, 2], [2, 0]]
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
    combined = weights(fedfb_odds(0.05), report(ROWS, loss=LOSS))
    assert combined == pytest.approx(np.array(expected), abs=1e-6)
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
    combined = weights(strategy, *[report(ROWS, loss=LOSS, probability=LOSS)] * 3)
    assert (combined >= 0).all()
    assert (combined * ROWS).sum(axis=0) == pytest.approx(ROWS.sum(axis=0))


def test_fairbatch_for_opportunity_by_hand() -> None:
    """Shares .1 and .1 of label 1; the first group's loss is larger: weights 1.05 and .95."""
    rows = np.array([[40, 10], [40, 10]])
    combined = weights(
        rule(fairbatch(metric="eo", alpha=0.005)), report(rows, loss=np.array([[1.0, 5.0], [2.0, 4.0]]))
    )
    assert combined == pytest.approx(np.array([[1, 1.05], [1, 0.95]]))


def test_fairbatch_for_odds_moves_the_label_with_the_larger_gap() -> None:
    combined = weights(rule(fairbatch(metric="eqo", alpha=0.01)), report(ROWS, loss=LOSS))  # gaps .2 and -.5
    assert combined == pytest.approx(np.array([[1, 1.1], [1, 0.95]]))


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
    combined = weights(
        rule(fairbatch(metric="sp", alpha=0.01)),
        report(ROWS, probability=ROWS - np.array([[24, 2], [16, 2]])),
    )
    assert combined == pytest.approx(np.array([[1 - 0.01 / 0.3, 1], [1 + 0.01 / 0.4, 1]]))


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
    message = eo.broadcast(state, None).reshape(2, 2)
    assert message == pytest.approx(np.array([[0, 10 * -0.1 / 0.1], [0, 10 * 0.1 / 0.2]]))
    odds = rule(fedgft(metric="eqo", gamma=10.0))
    state = odds.aggregate(odds.init(np.zeros(1)), cohort(report(ROWS, probability=p)))
    message = odds.broadcast(state, None).reshape(2, 2)
    assert message == pytest.approx(
        np.array([[5 * -0.3 / 0.3, 5 * -0.1 / 0.1], [5 * 0.3 / 0.4, 5 * 0.1 / 0.2]])
    )


def test_fedgft_keeps_the_difference_while_a_group_is_away() -> None:
    strategy = rule(fedgft(metric="sp", gamma=10.0))
    state = strategy.aggregate(
        strategy.init(np.zeros(1)), cohort(report(ROWS, probability=ROWS * [[0.2], [0.6]]))
    )
    gone = report(np.array([[30, 10], [0, 0]]), probability=np.array([[3.0, 5.0], [0.0, 0.0]]))
    after = strategy.aggregate(state, cohort(gone, round=2)._replace(clients=("B",)))
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
    combined = weights(rule(dual_reweighing(metric=metric)), report(ROWS, wrong=SOME_WRONG))
    assert combined == pytest.approx(expected)
    twice = weights(rule(dual_reweighing(metric=metric, rate=0.5)), *[report(ROWS, wrong=SOME_WRONG)] * 2)
    assert twice == pytest.approx(expected)


def test_dual_reweighing_stays_within_bounds() -> None:
    far = report(ROWS, wrong=np.array([[0, 10], [40, 0]]))
    combined = weights(rule(dual_reweighing(metric="sp", rate=100.0, keep=0.0)), far)
    assert np.log(combined) == pytest.approx(np.array([[-3, 3], [3, -3]]))


def test_dual_reweighing_shrinks_while_the_model_is_of_little_use() -> None:
    good, useless = report(ROWS, wrong=SOME_WRONG), report(ROWS, wrong=ROWS // 2)
    strategy = rule(dual_reweighing(metric="eqo", keep=0.8))
    state, multipliers, guarded = strategy.init(np.zeros(1)), [], []
    for t, local in enumerate([good] * 10 + [useless] * 10 + [good] * 10, start=1):
        state = strategy.aggregate(state, cohort(local, round=t))
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
    combined = weights(rule(fedminmax(rate=0.1)), report(rows, loss=loss))
    assert combined == pytest.approx(np.array([[0.9625, 0.9625], [1.15, 1.15]]))
    again = weights(rule(fedminmax(rate=0.1)), *[report(rows, loss=loss)] * 2)
    assert again == pytest.approx(np.array([[0.925, 0.925], [1.3, 1.3]]))


def test_fedminmax_by_cells() -> None:
    rows = np.array([[25, 25], [25, 25]])
    combined = weights(
        rule(fedminmax(rate=0.1, risks="cells")), report(rows, loss=rows * np.array([[0.2, 0.2], [0.2, 1.0]]))
    )
    assert combined == pytest.approx(np.array([[0.92, 0.92], [0.92, 1.24]]))


def test_fedminmax_keeps_the_risk_of_a_group_that_is_away() -> None:
    rows = np.array([[60, 20], [10, 10]])
    there = report(rows, loss=rows * np.array([[0.3], [0.9]]))
    gone = report(np.array([[80, 0], [0, 0]]), loss=np.array([[24.0, 0.0], [0.0, 0.0]]))
    strategy = rule(fedminmax(rate=0.1))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(there))
    after = strategy.aggregate(state, cohort(gone, round=2)._replace(clients=("B",)))
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
    message = strategy.broadcast(strategy.init(np.zeros(1)), every)
    assert strategy.local_loss(message, ROWS, None).weight == pytest.approx(reweigh(every.sum(axis=0)))


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


# -- losses by (group, label) ---------------------------------------------------------------------------


def test_yogi_leaves_a_square_that_is_right() -> None:
    assert yogi(np.array([0.25, 0.0]), np.array([0.5, 0.0]), 0.9).tolist() == [0.25, 0]
    strategy = rule(fedyogi(rate=0.1))
    assert strategy.aggregate(
        strategy.init(np.zeros(1)), cohort(deltas=np.zeros((1, 1)))
    ).params.tolist() == [0]


def test_weights_that_make_group_and_label_independent_of_many_clients_at_once() -> None:
    every = np.random.default_rng(0).integers(0, 9, (4, 3, 2))
    every[0, 0, 0] = 0
    np.testing.assert_allclose(reweigh(every), [reweigh(rows) for rows in every])
    # P(s) P(y) / P(s, y) with 3 of 10 rows in group 0, 4 with label 0, 1 with both
    assert reweigh(np.array([[1, 2], [3, 4]]))[0] == pytest.approx([3 * 4 / (1 * 10), 3 * 6 / (2 * 10)])
    assert reweigh(np.array([[1, 0], [0, 0]])).tolist() == [[1, 1], [1, 1]]


def test_a_cell_without_rows_weighs_one() -> None:
    result = shares_to_weights(np.array([0.1, 0.05]), np.array([[40, 0], [50, 10]]))
    assert result == pytest.approx(np.array([[1 - 0.1 / 0.4, 1], [1 + 0.1 / 0.5, 1 + 0.05 / 0.1]]))
    assert shares_to_weights(np.zeros(2), np.zeros((2, 2))).tolist() == [[1, 1], [1, 1]]
    assert after(
        rule(fairbatch(metric="eo", alpha=0.01)), report(np.zeros((2, 2), np.int64))
    ).weight.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("rejected", "moved"),
    [
        # of 20 rows in group 0 and 180 in group 1: (.25, .2) and (.05, .25), so that label 0 differs more
        ([[5, 4], [9, 45]], [0.01, 0]),
        # (.25, .2) and (.05, .5): label 1
        ([[5, 4], [9, 90]], [0, 0.01]),
        # (.25, .2) and (.3, .1): label 1, and group 0 is favoured less
        ([[5, 4], [9 * 6, 18]], [0, -0.01]),
    ],
)
def test_fairbatch_for_parity_by_hand(rejected, moved) -> None:
    rows = np.array([[10, 10], [60, 120]])
    state = after(
        rule(fairbatch(metric="sp", alpha=0.01)), report(rows, probability=rows - np.array(rejected))
    )
    assert state.moved == pytest.approx(moved)
    assert (state.notes["moved_0"], state.notes["moved_1"]) == pytest.approx(tuple(moved))


def test_fedfb_odds_move_a_label_that_both_groups_have() -> None:
    rows = np.array([[30, 10], [40, 0]])  # mean losses (.3, .8) and (.5, none)
    state = after(fedfb_odds(0.05), report(rows, loss=rows * [[0.3, 0.8], [0.5, 0]]))
    assert state.moved == pytest.approx([0.05, 0])


def test_a_label_that_one_group_lacks_has_no_price() -> None:
    result = price(np.array([1.0, 1.0]), np.array([[10, 0], [20, 10]]), "eqo")
    assert result.tolist() == [[4, 0], [-2, 0]]
    assert price(np.array([1.0, 1.0]), np.array([[0, 0], [20, 10]]), "sp").tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(("metric", "gap"), [("eqo", 0.5 * 0.4), ("eo", 0.1), ("sp", 34 / 60 - 9 / 40)])
def test_the_largest_difference_of_fedgft_is_noted(metric: str, gap: float) -> None:
    """Mean P(1) is (.1, .6) and (.5, .7): gaps of .4 and .1 by label; over both, 9 of 40 and 34 of 60."""
    local = report(ROWS, probability=ROWS * [[0.1, 0.6], [0.5, 0.7]])
    assert after(rule(fedgft(metric=metric, gamma=1.0)), local).notes["gap"] == pytest.approx(gap)


def test_fedminmax_notes_the_gap_and_leaves_an_absent_group_alone() -> None:
    state = after(rule(fedminmax(rate=0.1)), report(ROWS, loss=ROWS * [[0.5], [0.2]]))
    assert state.notes["risk_gap"] == pytest.approx(0.3)
    absent = after(rule(fedminmax(rate=0.1)), report(np.array([[30, 10], [0, 0]]), loss=[[15, 5], [0, 0]]))
    assert absent.risk == pytest.approx([0.5, 0])  # none so far
    assert absent.weight[2:].tolist() == [1, 1]
    # shares of 1 and 0, moved by .1 times .25 and -.25, are (1, 0) on the simplex again
    assert absent.weight[:2].tolist() == [1, 1]


# -- FairGrad -------------------------------------------------------------------------------------------

# errors by (group, label) .1, .5, .2 and .3; better off than their label by .025, -.1, -.075 and .1
ERRORS = Statistics(
    np.array([[[54, 6], [5, 5]], [[16, 4], [3, 7]]])[None], np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
)


def test_fairgrad_puts_up_with_a_gap() -> None:
    state = after(rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.05)), ERRORS)
    assert state.better == pytest.approx([0.025, -0.1, -0.075, 0.1])
    assert state.up == pytest.approx([0, 0, 0, 0.005])
    assert state.low == pytest.approx([0, 0.005, 0.0025, 0])
    assert state.notes == pytest.approx({"gap": 0.2, "rows": 100})
    again = rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.05)).aggregate(state, cohort(ERRORS))
    assert again.up == pytest.approx([0, 0, 0, 0.01])


def test_fairgrad_has_a_least_weight() -> None:
    free, bounded = (
        after(rule(fairgrad(metric="eqo", rate=5.0, epsilon=0.0, floor=floor)), ERRORS)
        for floor in (-100, 0.5)
    )
    assert free.weight.min() < 0
    assert bounded.weight == pytest.approx(np.maximum(free.weight, 0.5))


def test_fairgrad_lets_weights_fall_to_minus_one() -> None:
    assert after(rule(fairgrad(metric="eqo", rate=10.0, epsilon=0.0)), ERRORS).weight.min() == -1


def test_dual_reweighing_moves_by_the_gap_and_is_guarded_after_three_useless_rounds() -> None:
    """Skill falls to .9, .81 and .729 of the best; .8 must be kept. Rates of label 1 are .5 and .75."""
    useful = Statistics(
        np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])[None], np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
    )
    useless = useful._replace(counts=np.full((1, 2, 2, 2), 10))
    strategy = rule(dual_reweighing(metric="eo"))
    assert after(strategy, useful).multiplier == pytest.approx([0, -0.125, 0, 0.125])
    for rounds, guarded in ((1, 0), (2, 0), (3, 1)):
        assert after(strategy, useful, *[useless] * rounds).notes["guarded"] == guarded


def test_fairgrad_with_cells_of_one_row_and_of_none() -> None:
    first = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]])[
        None
    ]  # the one row of group 0 with label 1 is wrong
    state = after(rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.0)), ERRORS._replace(counts=first))
    assert state.better == pytest.approx([0, -0.5, 0, 0.5])
    for metric in ("sp", "eo", "eqo"):
        for gone in ((slice(None), slice(0, 1)), (slice(0, 1), slice(None))):  # a label, or a group
            counts = ERRORS.counts[0].copy()
            counts[gone] = 0
            result = after(
                rule(fairgrad(metric=metric, rate=0.1, epsilon=0.0)), ERRORS._replace(counts=counts[None])
            )
            assert np.isfinite(result.weight).all()
            assert (result.weight.reshape(2, 2)[gone] == 1).all()


# -- FFALM ----------------------------------------------------------------------------------------------


def test_ffalm_for_the_favourable_label_alone() -> None:
    """Mean losses with label 1 are .8 and .3, of 10 and 20 of 100 rows."""
    strategy = rule(ffalm(beta=2, rate=0.5, growth=1.1, labels="favourable"))
    local = report(ROWS, loss=ROWS * [[9, 0.8], [0, 0.3]])
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(local))
    assert state.lam == pytest.approx(0.5 * 0.5)
    assert strategy.local_loss is not None
    now = Statistics(*(value[0] for value in local))
    weight = strategy.local_loss(np.array([0.1, 0.2]), ROWS, now).weight
    assert weight == pytest.approx(np.array([[1, 1 + 0.2 / 0.1], [1, 1 - 0.2 / 0.2]]))
    named = parse_spec("ffalm:labels=favourable,beta=2,rate=0.5,growth=1.1", "eqo").build(Setup(3))
    assert named.aggregate(named.init(np.zeros(1)), cohort(local)).lam == pytest.approx(0.25)


@pytest.mark.parametrize("loss", [[[np.inf, 0], [0, 0]], [[0, 0], [np.inf, 0]], [[np.inf, 0], [np.inf, 0]]])
def test_a_gap_of_losses_that_is_not_a_number_moves_nothing(loss) -> None:
    strategy = rule(ffalm(beta=2, rate=0.5, growth=1.1))
    with np.errstate(invalid="ignore"):
        state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(report(ROWS, loss=loss)))
    assert state.lam == 0
    assert state.notes["gap"].tolist() == [0]


def test_ffalm_stops_its_penalty_and_keeps_weights_within_bounds() -> None:
    strategy = rule(ffalm(beta=99, rate=0.5, growth=2.0))
    state = after(strategy, report(ROWS, loss=1.0))
    assert state.beta == 100
    assert state.rate == 0.25
    assert strategy.local_loss is not None
    now = Statistics(*(value[0] for value in report(ROWS, loss=ROWS * [[0.9], [0.1]])))
    assert strategy.local_loss(np.array([50.0, 0.0]), ROWS, now).weight.tolist() == [[10, 10], [0, 0]]


# -- prejudice, the guard's bounds ----------------------------------------------------------------------


def logit(p: float) -> float:
    return float(np.log(p / (1 - p)))


def test_a_price_of_predictions_by_hand() -> None:
    """Groups of one, four and no rows, with P(1) of .2, 2 and none in all: means of .2, .5 and .44."""
    rows = np.array([[1, 0], [2, 2], [0, 0]])
    probability = np.array([[0.2, 0.0], [0.5, 1.5], [0.0, 0.0]])
    expected = [2 * (logit(0.2) - logit(0.44)), 2 * (logit(0.5) - logit(0.44)), 0]
    assert group_push(2.0, probability, rows) == pytest.approx(expected)
    assert group_push(2.0, probability[:1], rows[:1]).tolist() == [0]
    assert group_push(2.0, probability[[0, 2]], rows[[0, 2]]).tolist() == [0, 0]
    assert group_push(2.0, probability * 0, rows * 0).tolist() == [0, 0, 0]


def test_a_price_stays_finite_where_all_or_none_are_predicted_one() -> None:
    """Means of 0, 1 and one half are taken to be 1e-6 away from 0 and 1."""
    rows = np.array([[3, 3], [3, 3]])
    result = group_push(1.0, np.array([[0.0, 0.0], [3.0, 3.0]]), rows)
    assert result == pytest.approx([logit(1e-6), -logit(1e-6)])
    everybody = group_push(1.0, rows.astype(float), rows)
    assert everybody.tolist() == [0, 0]


@pytest.mark.parametrize("scope", ["batch", "client", "global"])
def test_prejudice_by_name_is_of_that_scope(scope: str) -> None:
    strategy = parse_spec(f"prejudice:eta=3,scope={scope}", "eo").build(Setup(3))
    assert strategy.local_loss is not None
    assert (strategy.broadcast is not None) == (scope == "global")
    now = Statistics(*(value[0] for value in report(ROWS, probability=ROWS * [[0.2, 0.2], [0.5, 0.5]])))
    terms = strategy.local_loss(np.array([7.0, 8.0]), ROWS, now)
    assert terms.prejudice == (3 if scope == "batch" else 0)
    expected = {"client": group_push(3.0, now.probability, ROWS), "global": [7, 8]}
    if scope == "batch":
        assert terms.push is None
    else:
        assert terms.push == pytest.approx(np.repeat(np.array(expected[scope])[:, None], 2, axis=1))


# -- sums that are shared -------------------------------------------------------------------------------


def test_a_clients_loss_is_a_mean_and_nothing_where_it_is_not_a_number() -> None:
    rows = np.array([[[2, 0], [1, 1]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]])
    loss = np.array([[[1.0, 0.0], [2.0, 3.0]], [[5.0, 0.0], [0.0, 0.0]], [[np.inf, 0.0], [0.0, 0.0]]])
    result = client_losses(Statistics(np.stack([rows, rows * 0], axis=-1), np.zeros((3, 2, 2)), loss))
    assert result.tolist() == [6 / 4, 0, 0]


def test_a_mean_of_one_row_is_that_row_and_of_none_is_undefined() -> None:
    np.testing.assert_array_equal(divide(np.array([3.0, 4.0, 5.0]), np.array([1, 2, 0])), [3, 2, np.nan])


def test_rows_of_clients_are_known_from_when_they_report() -> None:
    local = report(ROWS)
    every, total = rows_so_far({"Z": np.ones((2, 2)), "A": np.full((2, 2), 99)}, cohort(local))
    assert {name: value.tolist() for name, value in every.items()} == {
        "Z": [[1, 1], [1, 1]],
        "A": ROWS.tolist(),
    }
    assert total.tolist() == (ROWS + 1).tolist()
    assert total.dtype == np.float64


@pytest.mark.parametrize("parameters", [1, 7, 399, 400, 401, 1000])
def test_means_are_taken_in_pieces_of_any_size(parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.models.means._BLOCK", 1200)  # 400 numbers of three clients
    deltas = np.random.default_rng(0).normal(size=(3, parameters))
    first, other, none = weighted_means(deltas, np.array([1, 2, 5]), np.array([0, 1, 0]), np.zeros(3))
    np.testing.assert_allclose(first, (deltas * [[1 / 8], [2 / 8], [5 / 8]]).sum(axis=0))
    assert other.tolist() == deltas[1].tolist()
    assert none.tolist() == [0] * parameters
    monkeypatch.setattr("fairfate.models.means._BLOCK", 1)
    assert weighted_means(deltas[:, :5], np.array([1, 2, 5]))[0] == pytest.approx(first[:5])


def test_broadcast_weights_are_the_usual_ones_before_there_are_some() -> None:
    assert broadcast_weights(np.empty(0), ROWS, None).weight.tolist() == [[1, 1], [1, 1]]
    assert broadcast_weights(np.arange(4.0), ROWS, None).weight.tolist() == [[0, 1], [2, 3]]
