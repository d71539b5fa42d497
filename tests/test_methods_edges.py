"""Rules at their edges: absent groups, weights that vanish, bounds, what is noted and what is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.fairness import metrics
from fairfate.strategies import (
    ON_VALIDATION,
    Cohort,
    Need,
    Setup,
    Statistics,
    Strategy,
    adaptive,
    afl,
    dual_reweighing,
    entries,
    f3,
    fair_fate,
    fairbatch,
    fairest,
    fairfed,
    fairgrad,
    fedavg,
    fedfb_odds,
    fedgft,
    fedminmax,
    fedval,
    ffalm,
    parse_spec,
    qffl,
    reweigh,
    rows_so_far,
    scaled,
    server_step,
    told_weights,
    weighted_means,
    yogi,
)
from fairfate.strategies.afl import AflState
from fairfate.strategies.f3 import VIOLATIONS
from fairfate.strategies.fairbatch import shares_to_weights
from fairfate.strategies.fairfed import FairFedState
from fairfate.strategies.fedgft import price
from fairfate.strategies.guard import able, lowered
from fairfate.strategies.prejudice import group_push
from fairfate.strategies.reweighing import local_reweighing
from fairfate.strategies.schedules import constant
from fairfate.strategies.simplex import project
from fairfate.strategies.strategy import client_losses


def report(rows: np.ndarray, loss: object = 0.0, probability: object = 0.0) -> Statistics:
    """One client's rows by (group, label), all predicted 0, with sums of losses and of P(1)."""
    rows = np.asarray(rows)
    return Statistics(
        np.stack([rows, rows * 0], axis=-1)[None],
        np.broadcast_to(np.asarray(probability, float), rows.shape)[None],
        np.broadcast_to(np.asarray(loss, float), rows.shape)[None],
    )


def cohort(local: Statistics | None = None, n: tuple[int, ...] = (1,), **more: object) -> Cohort:
    """Each client moves a parameter of its own by one."""
    clients = len(n) if local is None else len(local.counts)
    given = {
        "round": 1,
        "deltas": np.eye(clients),
        "num_examples": np.array(n) if local is None else local.counts.sum(axis=(1, 2, 3)),
        "client_counts": np.zeros((0, 2, 2, 2), np.int64),
        "server_counts": np.ones((2, 2, 2), np.int64),
        "clients": tuple("ABCDEF"[:clients]),
        "local": local,
    }
    return Cohort(**{**given, **more})


def after(strategy: Strategy, *locals_: Statistics):
    state = strategy.init(np.zeros(1))
    for local in locals_:
        state = strategy.aggregate(state, cohort(local))
    return state


ROWS = np.array([[30, 10], [40, 20]])


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
        ("fedavg", Need.NOTHING),
        ("fedavg_gr", Need.ROWS),
        ("fedavg_gr:counts=once", Need.ALL_ROWS),
        ("fair_fate", Need.SCORES),
        ("fair_fate:keep=0.5", Need.SCORES | Need.TRIALS),
        ("fair_best", Need.SCORES),
        ("fedval", Need.SCORES),
        ("ffalm", Need.LOCAL | Need.REPORTS),
        ("prejudice:scope=batch", Need.NOTHING),
        ("prejudice", Need.LOCAL),
        ("prejudice:scope=global", Need.REPORTS),
        ("server_step", Need.DESCENT),
        *(
            (name, Need.REPORTS)
            for name in ("afl", "qffl", "fairfed", "fairgrad", "fairbatch", "fedfb", "fedgft")
        ),
        *((name, Need.REPORTS) for name in ("fedminmax", "dual_reweighing", "fedfb:metric=sp")),
    ],
)
def test_nothing_is_measured_that_a_strategy_does_not_need(text: str, needs: Need) -> None:
    strategy = parse_spec(text, "eqo").build(Setup(3, learning_rate=0.1))
    assert strategy.needs == needs
    assert strategy.refresh == (1 if text in ("ffalm", "prejudice") else None)


def test_where_a_strategy_looks_at_the_validation_rows() -> None:
    looks = {need for need in Need if need in ON_VALIDATION}
    assert looks == {Need.SCORES, Need.DESCENT, Need.TRIALS}


# -- weights of clients ---------------------------------------------------------------------------------


def test_afl_counts_by_rows_where_all_shares_have_vanished() -> None:
    two = Statistics(
        np.stack([np.full((2, 2, 2), 1), np.full((2, 2, 2), 3)]), np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    )
    strategy = afl(0.1)
    gone = AflState(np.zeros(2), {}, {"A": -9.0, "B": -9.0})
    assert strategy.aggregate(gone, cohort(two)).params == pytest.approx([0.25, 0.75])
    # 8 - 32 * 0.25 is 0 and 24 - 32 * 0.74 is 0.32: less than a row, and still all that counts
    few = AflState(np.zeros(2), {}, {"A": -0.25, "B": -0.74})
    assert strategy.aggregate(few, cohort(two)).params == pytest.approx([0, 1])


def test_fairfed_counts_by_rows_where_all_weights_have_vanished() -> None:
    local = Statistics(
        np.stack([np.full((2, 2, 2), 1), np.full((2, 2, 2), 3)]), np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    )
    strategy = fairfed(metrics.eo_gap, beta=0)
    gone = FairFedState(np.zeros(2), {}, {"A": -9.0, "B": -9.0})
    found = strategy.aggregate(gone, cohort(local))
    assert found.params == pytest.approx([0.25, 0.75])
    assert found.notes["weight"] == pytest.approx([0.25, 0.75])
    few = FairFedState(np.zeros(2), {}, {"A": -0.25, "B": -0.74})
    assert strategy.aggregate(few, cohort(local)).params == pytest.approx([0, 1])


def test_fairfed_reweighs_at_clients_unless_told_not_to() -> None:
    assert fairfed(metrics.eo_gap, beta=1).local_loss is local_reweighing
    for text, loss in (("fairfed", local_reweighing), ("fairfed:local=none", None)):
        assert parse_spec(text, "eo").build(Setup(3)).local_loss is loss


@pytest.mark.parametrize("variant", ["paper", "exp"])
def test_fairfed_by_name_is_of_that_variant(variant: str) -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 20, (3, 2, 2, 2))
    three = cohort(Statistics(counts, counts.sum(axis=-1) * 0.5, counts.sum(axis=-1) * 0.7))
    named = parse_spec(f"fairfed:variant={variant},beta=2", "eo").build(Setup(3))
    rule = fairfed(metrics.eo_gap, beta=2, variant=variant)
    one, other = (of.aggregate(of.init(np.zeros(3)), three) for of in (named, rule))
    assert one.params.tolist() == other.params.tolist()
    assert one.moved == other.moved


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3, 0.4], [0.0, 0.3, 0.7], [0.1] * 10])
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
    state = server_step("sp", metrics.sp, rho=rho).aggregate(fedavg().init(np.zeros(1)), one)
    assert state.notes == {"stepped": stepped}
    assert len(asked) == stepped
    assert state.params == pytest.approx([1 - rho * stepped])


@pytest.mark.parametrize("down", [0.0, np.inf, np.nan])
def test_a_slope_that_leads_nowhere_is_not_taken(down: float) -> None:
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    one = cohort(n=(1,), server_counts=unfair, descend=lambda params, loss: np.array([down]))
    state = server_step("sp", metrics.sp, rho=0.5).aggregate(fedavg().init(np.zeros(1)), one)
    assert (state.params.tolist(), state.notes) == ([1], {"stepped": 0})


def test_a_client_without_a_loss_still_counts_in_qffl() -> None:
    """Its weight is the root of 1e-10, the other's that of 1."""
    two = report(ROWS, loss=0.0), report(ROWS, loss=ROWS * 1.0)
    both = cohort(Statistics(*(np.concatenate(of) for of in zip(*two, strict=True))))
    state = qffl(0.5, 0.1).aggregate(fedavg().init(np.zeros(2)), both)
    assert state.notes["loss"] == pytest.approx([1e-10, 1 + 1e-10])
    weights, curvature = np.array([1e-5, 1.0]), np.array([0.5 * 1e5, 0.5]) / 0.1
    step = weights.sum() / (weights + curvature).sum()
    assert state.notes["step"] == pytest.approx(step)
    assert state.params == pytest.approx(step * weights / weights.sum())


def test_an_undefined_score_of_fedval_counts_as_the_floor() -> None:
    scores = np.array([0.5, np.nan, 0.2, 0.0])  # the last is the server's
    three = cohort(n=(1, 1, 1), client_counts=np.zeros((3, 2, 2, 2)))
    found = fedval(lambda counts: scores, floor=0.1).aggregate(fedavg().init(np.zeros(3)), three).params
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
    state = f3(metrics.sp_diff, fairest, alpha=1.0, min_mcc=1.0).aggregate(fedavg().init(np.zeros(2)), two)
    assert state.notes["fair"].tolist() == [True, False]
    assert state.params.tolist() == [1, 0]
    assert state.notes["violation"].tolist() == [0, 0]


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, 1), (0.2, 1), (0.21, 2), (0.4, 2), (0.6, 3), (1.0, 5)])
def test_a_share_of_the_clients_is_rounded_up(alpha: float, kept: int) -> None:
    five = cohort(n=(1,) * 5, client_counts=np.stack([np.array([[[5, 0], [0, 5]]] * 2)] * 5))
    state = f3(metrics.sp_diff, fairest, alpha=alpha).aggregate(fedavg().init(np.zeros(5)), five)
    assert state.notes["fair"].tolist() == [True] * kept + [False] * (5 - kept)


# -- the guard of FAIR-FATE -----------------------------------------------------------------------------

FAIR = np.array([[[8, 2], [2, 8]], [[8, 2], [2, 8]]])
ONE_ANSWER = np.array([[[0, 10], [0, 10]], [[0, 10], [0, 10]]])
WORSE = FAIR[:, ::-1]
"""Wrong more often than right: a skill below 0."""


def share_taken(keep: float, score) -> float:
    strategy = fair_fate(metrics.sp, beta=constant(0.0), lam=constant(0.8), keep=keep)
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


# -- losses by (group, label) ---------------------------------------------------------------------------


def test_yogi_leaves_a_square_that_is_right() -> None:
    assert yogi(np.array([0.25, 0.0]), np.array([0.5, 0.0]), 0.9).tolist() == [0.25, 0]
    strategy = adaptive(yogi, rate=0.1)
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
    state = after(fairbatch("sp", 0.01), report(rows, probability=rows - np.array(rejected)))
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
    assert after(fedgft(metric, 1.0), local).notes["gap"] == pytest.approx(gap)


def test_fedminmax_notes_the_gap_and_leaves_an_absent_group_alone() -> None:
    state = after(fedminmax(0.1), report(ROWS, loss=ROWS * [[0.5], [0.2]]))
    assert state.notes["risk_gap"] == pytest.approx(0.3)
    absent = after(fedminmax(0.1), report(np.array([[30, 10], [0, 0]]), loss=[[15, 5], [0, 0]]))
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
    state = after(fairgrad("eqo", rate=0.1, epsilon=0.05), FAIRGRAD)
    assert state.better == pytest.approx([0.025, -0.1, -0.075, 0.1])
    assert state.up == pytest.approx([0, 0, 0, 0.005])
    assert state.low == pytest.approx([0, 0.005, 0.0025, 0])
    assert state.notes == pytest.approx({"gap": 0.2, "rows": 100})
    again = fairgrad("eqo", rate=0.1, epsilon=0.05).aggregate(state, cohort(FAIRGRAD))
    assert again.up == pytest.approx([0, 0, 0, 0.01])


def test_fairgrad_has_a_least_weight() -> None:
    free, bounded = (
        after(fairgrad("eqo", rate=5.0, epsilon=0.0, floor=floor), FAIRGRAD) for floor in (-100, 0.5)
    )
    assert free.weight.min() < 0
    assert bounded.weight == pytest.approx(np.maximum(free.weight, 0.5))


def test_fairgrad_lets_weights_fall_to_minus_one() -> None:
    assert after(fairgrad("eqo", rate=50.0, epsilon=0.0), FAIRGRAD).weight.min() == -1


def test_dual_reweighing_moves_by_the_gap_and_is_guarded_after_three_useless_rounds() -> None:
    """Skill falls to .9, .81 and .729 of the best; .8 must be kept. Rates of label 1 are .5 and .75."""
    useful = Statistics(
        np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])[None], np.zeros((1, 2, 2)), np.zeros((1, 2, 2))
    )
    useless = useful._replace(counts=np.full((1, 2, 2, 2), 10))
    strategy = dual_reweighing("eo")
    assert after(strategy, useful).multiplier == pytest.approx([0, -0.125, 0, 0.125])
    for rounds, guarded in ((1, 0), (2, 0), (3, 1)):
        assert after(strategy, useful, *[useless] * rounds).notes["guarded"] == guarded


def test_fairgrad_with_cells_of_one_row_and_of_none() -> None:
    one = np.array([[[1, 0], [1, 0]], [[1, 0], [0, 1]]])[None]  # the one row of group 0 with label 1 is wrong
    state = after(fairgrad("eqo", rate=0.1, epsilon=0.0), FAIRGRAD._replace(counts=one))
    assert state.better == pytest.approx([0, -0.5, 0, 0.5])
    for metric in ("sp", "eo", "eqo"):
        for gone in ((slice(None), slice(0, 1)), (slice(0, 1), slice(None))):  # a label, or a group
            counts = FAIRGRAD.counts[0].copy()
            counts[gone] = 0
            found = after(fairgrad(metric, rate=0.1, epsilon=0.0), FAIRGRAD._replace(counts=counts[None]))
            assert np.isfinite(found.weight).all()
            assert (found.weight.reshape(2, 2)[gone] == 1).all()


# -- FFALM ----------------------------------------------------------------------------------------------


def test_ffalm_for_the_favourable_label_alone() -> None:
    """Mean losses with label 1 are .8 and .3, of 10 and 20 of 100 rows."""
    strategy = ffalm(beta=2, rate=0.5, growth=1.1, only_label_one=True)
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
    strategy = ffalm(beta=2, rate=0.5, growth=1.1)
    with np.errstate(invalid="ignore"):
        state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(report(ROWS, loss=loss)))
    assert state.lam == 0
    assert state.notes["gap"].tolist() == [0]


def test_ffalm_stops_its_penalty_and_keeps_weights_within_bounds() -> None:
    strategy = ffalm(beta=99, rate=0.5, growth=2.0)
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


def test_models_at_the_bound_are_good_enough() -> None:
    right = np.array([[[5, 0], [0, 5]]])
    assert able(right[None], 1.0).tolist() == [True]
    assert lowered(0.8, lambda share: np.array([share]), 0.5, lambda models: right[None]) == 0.8


# -- sums that are shared -------------------------------------------------------------------------------


def test_a_clients_loss_is_a_mean_and_nothing_where_it_is_no_number() -> None:
    rows = np.array([[[2, 0], [1, 1]], [[0, 0], [0, 0]], [[1, 0], [0, 0]]])
    loss = np.array([[[1.0, 0.0], [2.0, 3.0]], [[5.0, 0.0], [0.0, 0.0]], [[np.inf, 0.0], [0.0, 0.0]]])
    found = client_losses(Statistics(np.stack([rows, rows * 0], axis=-1), np.zeros((3, 2, 2)), loss))
    assert found.tolist() == [6 / 4, 0, 0]


def test_rows_of_clients_are_known_from_when_they_report() -> None:
    local = report(ROWS)
    every, total = rows_so_far({"Z": np.ones((2, 2)), "A": np.full((2, 2), 99)}, cohort(local))
    assert {name: of.tolist() for name, of in every.items()} == {"Z": [[1, 1], [1, 1]], "A": ROWS.tolist()}
    assert total.tolist() == (ROWS + 1).tolist()
    assert total.dtype == np.float64


@pytest.mark.parametrize("parameters", [1, 7, 399, 400, 401, 1000])
def test_means_are_taken_in_pieces_of_any_size(parameters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.strategies.strategy._BLOCK", 1200)  # 400 numbers of three clients
    deltas = np.random.default_rng(0).normal(size=(3, parameters))
    one, other, none = weighted_means(deltas, np.array([1, 2, 5]), np.array([0, 1, 0]), np.zeros(3))
    np.testing.assert_allclose(one, (deltas * [[1 / 8], [2 / 8], [5 / 8]]).sum(axis=0))
    assert other.tolist() == deltas[1].tolist()
    assert none.tolist() == [0] * parameters
    monkeypatch.setattr("fairfate.strategies.strategy._BLOCK", 1)
    assert weighted_means(deltas[:, :5], np.array([1, 2, 5]))[0] == pytest.approx(one[:5])


def test_told_weights_are_the_usual_ones_before_there_are_some() -> None:
    for told in (None, np.empty(0)):
        assert told_weights(told, ROWS, None).weight.tolist() == [[1, 1], [1, 1]]
    assert told_weights(np.arange(4.0), ROWS, None).weight.tolist() == [[0, 1], [2, 3]]
