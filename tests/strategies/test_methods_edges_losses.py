"""Rules that weigh the clients' losses at their edges: absent groups, cells of one row, bounds and notes."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.strategies import (
    Setup,
    Statistics,
    broadcast_weights,
    dual_reweighing,
    fairbatch,
    fairgrad,
    fedgft,
    fedminmax,
    fedyogi,
    ffalm,
    parse_spec,
    reweigh,
    rows_so_far,
    weighted_means,
)
from fairfate.strategies.adaptive import yogi
from fairfate.strategies.fairbatch import shares_to_weights
from fairfate.strategies.fedfb import fedfb_odds
from fairfate.strategies.fedgft import price
from fairfate.strategies.prejudice import group_push
from fairfate.strategies.steps import scaled
from fairfate.strategies.strategy import client_losses, divide
from rounds_by_hand import ROWS, after, cohort, report, rule

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


def test_updates_are_multiplied_by_their_factors() -> None:
    deltas = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    found = scaled(deltas, np.array([0.0, 0.5, 1.0, 2.0]))
    assert found.tolist() == [[0, 0], [1.5, 2], [5, 6], [14, 16]]
    assert found.dtype == np.float32
    assert deltas[0].tolist() == [1, 2]


def test_a_cell_without_rows_weighs_one() -> None:
    found = shares_to_weights(np.array([0.1, 0.05]), np.array([[40, 0], [50, 10]]))
    assert found == pytest.approx(np.array([[1 - 0.1 / 0.4, 1], [1 + 0.1 / 0.5, 1 + 0.05 / 0.1]]))
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
    found = price(np.array([1.0, 1.0]), np.array([[10, 0], [20, 10]]), "eqo")
    assert found.tolist() == [[4, 0], [-2, 0]]
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
FAIRGRAD = Statistics(
    np.array([[[54, 6], [5, 5]], [[16, 4], [3, 7]]])[None], np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
)


def test_fairgrad_puts_up_with_a_gap() -> None:
    state = after(rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.05)), FAIRGRAD)
    assert state.better == pytest.approx([0.025, -0.1, -0.075, 0.1])
    assert state.up == pytest.approx([0, 0, 0, 0.005])
    assert state.low == pytest.approx([0, 0.005, 0.0025, 0])
    assert state.notes == pytest.approx({"gap": 0.2, "rows": 100})
    again = rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.05)).aggregate(state, cohort(FAIRGRAD))
    assert again.up == pytest.approx([0, 0, 0, 0.01])


def test_fairgrad_has_a_least_weight() -> None:
    free, bounded = (
        after(rule(fairgrad(metric="eqo", rate=5.0, epsilon=0.0, floor=floor)), FAIRGRAD)
        for floor in (-100, 0.5)
    )
    assert free.weight.min() < 0
    assert bounded.weight == pytest.approx(np.maximum(free.weight, 0.5))


def test_fairgrad_lets_weights_fall_to_minus_one() -> None:
    assert after(rule(fairgrad(metric="eqo", rate=10.0, epsilon=0.0)), FAIRGRAD).weight.min() == -1


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
    one = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]])[None]  # the one row of group 0 with label 1 is wrong
    state = after(rule(fairgrad(metric="eqo", rate=0.1, epsilon=0.0)), FAIRGRAD._replace(counts=one))
    assert state.better == pytest.approx([0, -0.5, 0, 0.5])
    for metric in ("sp", "eo", "eqo"):
        for gone in ((slice(None), slice(0, 1)), (slice(0, 1), slice(None))):  # a label, or a group
            counts = FAIRGRAD.counts[0].copy()
            counts[gone] = 0
            found = after(
                rule(fairgrad(metric=metric, rate=0.1, epsilon=0.0)), FAIRGRAD._replace(counts=counts[None])
            )
            assert np.isfinite(found.weight).all()
            assert (found.weight.reshape(2, 2)[gone] == 1).all()


# -- FFALM ----------------------------------------------------------------------------------------------


def test_ffalm_for_the_favourable_label_alone() -> None:
    """Mean losses with label 1 are .8 and .3, of 10 and 20 of 100 rows."""
    strategy = rule(ffalm(beta=2, rate=0.5, growth=1.1, labels="favourable"))
    local = report(ROWS, loss=ROWS * [[9, 0.8], [0, 0.3]])
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(local))
    assert state.lam == pytest.approx(0.5 * 0.5)
    assert strategy.local_loss is not None
    now = Statistics(*(of[0] for of in local))
    weight = strategy.local_loss(np.array([0.1, 0.2]), ROWS, now).weight
    assert weight == pytest.approx(np.array([[1, 1 + 0.2 / 0.1], [1, 1 - 0.2 / 0.2]]))
    named = parse_spec("ffalm:labels=favourable,beta=2,rate=0.5,growth=1.1", "eqo").build(Setup(3))
    assert named.aggregate(named.init(np.zeros(1)), cohort(local)).lam == pytest.approx(0.25)


@pytest.mark.parametrize("loss", [[[np.inf, 0], [0, 0]], [[0, 0], [np.inf, 0]], [[np.inf, 0], [np.inf, 0]]])
def test_a_gap_of_losses_that_is_no_number_moves_nothing(loss) -> None:
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
    now = Statistics(*(of[0] for of in report(ROWS, loss=ROWS * [[0.9], [0.1]])))
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
    found = group_push(1.0, np.array([[0.0, 0.0], [3.0, 3.0]]), rows)
    assert found == pytest.approx([logit(1e-6), -logit(1e-6)])
    everybody = group_push(1.0, rows.astype(float), rows)
    assert everybody.tolist() == [0, 0]


@pytest.mark.parametrize("scope", ["batch", "client", "global"])
def test_prejudice_by_name_is_of_that_scope(scope: str) -> None:
    strategy = parse_spec(f"prejudice:eta=3,scope={scope}", "eo").build(Setup(3))
    assert strategy.local_loss is not None
    assert (strategy.broadcast is not None) == (scope == "global")
    now = Statistics(*(of[0] for of in report(ROWS, probability=ROWS * [[0.2, 0.2], [0.5, 0.5]])))
    terms = strategy.local_loss(np.array([7.0, 8.0]), ROWS, now)
    assert terms.prejudice == (3 if scope == "batch" else 0)
    expected = {"client": group_push(3.0, now.probability, ROWS), "global": [7, 8]}
    if scope == "batch":
        assert terms.push is None
    else:
        assert terms.push == pytest.approx(np.repeat(np.array(expected[scope])[:, None], 2, axis=1))


# -- sums that are shared -------------------------------------------------------------------------------


def test_a_clients_loss_is_a_mean_and_nothing_where_it_is_no_number() -> None:
    rows = np.array([[[2, 0], [1, 1]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]])
    loss = np.array([[[1.0, 0.0], [2.0, 3.0]], [[5.0, 0.0], [0.0, 0.0]], [[np.inf, 0.0], [0.0, 0.0]]])
    found = client_losses(Statistics(np.stack([rows, rows * 0], axis=-1), np.zeros((3, 2, 2)), loss))
    assert found.tolist() == [6 / 4, 0, 0]


def test_a_mean_of_one_row_is_that_row_and_of_none_is_undefined() -> None:
    np.testing.assert_array_equal(divide(np.array([3.0, 4.0, 5.0]), np.array([1, 2, 0])), [3, 2, np.nan])


def test_rows_of_clients_are_known_from_when_they_report() -> None:
    local = report(ROWS)
    every, total = rows_so_far({"Z": np.ones((2, 2)), "A": np.full((2, 2), 99)}, cohort(local))
    assert {name: of.tolist() for name, of in every.items()} == {"Z": [[1, 1], [1, 1]], "A": ROWS.tolist()}
    assert total.tolist() == (ROWS + 1).tolist()
    assert total.dtype == np.float64


@pytest.mark.parametrize("parameters", [1, 7, 399, 400, 401, 1000])
def test_means_are_taken_in_pieces_of_any_size(parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.models.means._BLOCK", 1200)  # 400 numbers of three clients
    deltas = np.random.default_rng(0).normal(size=(3, parameters))
    one, other, none = weighted_means(deltas, np.array([1, 2, 5]), np.array([0, 1, 0]), np.zeros(3))
    np.testing.assert_allclose(one, (deltas * [[1 / 8], [2 / 8], [5 / 8]]).sum(axis=0))
    assert other.tolist() == deltas[1].tolist()
    assert none.tolist() == [0] * parameters
    monkeypatch.setattr("fairfate.models.means._BLOCK", 1)
    assert weighted_means(deltas[:, :5], np.array([1, 2, 5]))[0] == pytest.approx(one[:5])


def test_broadcast_weights_are_the_usual_ones_before_there_are_some() -> None:
    assert broadcast_weights(np.empty(0), ROWS, None).weight.tolist() == [[1, 1], [1, 1]]
    assert broadcast_weights(np.arange(4.0), ROWS, None).weight.tolist() == [[0, 1], [2, 3]]
