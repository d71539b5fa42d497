"""Worked numbers of rules at the server: who counts, and how far the model moves; and their edges."""

from __future__ import annotations

import numpy as np
import pytest

from builders import ROWS, cohort, report, rule, seen
from fairfate.errors import InputError
from fairfate.fairness import metrics
from fairfate.strategies import (
    Cohort,
    Need,
    Needs,
    Setup,
    Statistics,
    Strategy,
    afl,
    entries,
    fairfed,
    fedadam,
    fedval,
    fedyogi,
    parse_spec,
    qffl,
    server_step,
)
from fairfate.strategies.afl import AflState
from fairfate.strategies.f3 import VIOLATIONS, Order, best_ratio, f3, fairest
from fairfate.strategies.fairfed import FairFedState
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.reweighing import local_reweighing
from fairfate.strategies.server_step import unfairness_slope
from fairfate.strategies.strategy import ON_VALIDATION, project

# FairFed: three clients' counts [group][label][prediction] on their own rows; the third has one group only
OWN = np.array(
    [
        [[[6, 2], [3, 9]], [[8, 2], [4, 16]]],
        [[[5, 1], [2, 2]], [[9, 3], [2, 6]]],
        [[[0, 0], [0, 0]], [[7, 3], [4, 6]]],
    ]
)


def shares(strategy: Strategy, t: int = 1) -> np.ndarray:
    """The clients' weights: each moved its own parameter by one."""
    return strategy.aggregate(strategy.init(np.zeros(3)), cohort(seen(OWN), round=t)).params


def test_fairfed_gaps_and_weights() -> None:
    assert OWN.sum(axis=(1, 2, 3)).tolist() == [50, 30, 20]
    strategy = rule(fairfed(metric="eo", beta=1))
    state = strategy.aggregate(strategy.init(np.zeros(3)), cohort(seen(OWN)))
    assert state.notes["gap"] == pytest.approx([0.000658, 0.200658, 0.09], abs=1e-6)
    assert state.params == pytest.approx([0.596447, 0.196447, 0.207105], abs=1e-6)
    assert state.moved == pytest.approx({"A": 0.096447, "B": -0.103553, "C": 0.007105}, abs=1e-6)


def test_fairfed_clips_and_lets_clients_return() -> None:
    strategy = rule(fairfed(metric="eo", beta=5))
    assert shares(strategy) == pytest.approx([0.806591, 0, 0.193409], abs=1e-6)
    state = strategy.aggregate(strategy.init(np.zeros(3)), cohort(seen(OWN)))
    even = np.stack([OWN[0]] * 3)
    again = strategy.aggregate(state, cohort(seen(even), round=2))
    assert again.notes["weight"].sum() == pytest.approx(1)


def test_fairfed_exp_has_no_memory() -> None:
    assert shares(rule(fairfed(metric="eo", beta=1, variant="exp"))) == pytest.approx(
        [0.538488, 0.264526, 0.196986], abs=1e-6
    )


def test_fairfed_without_any_weight_averages_by_rows() -> None:
    strategy = rule(fairfed(metric="eo", beta=0))
    assert shares(strategy) == pytest.approx([0.5, 0.3, 0.2])


def updates(
    deltas: np.ndarray,
    num_examples: np.ndarray,
    *,
    scores: np.ndarray | None = None,
    loss: np.ndarray | None = None,
    t: int = 1,
) -> Cohort:
    """A round; ``scores`` stand where counts do, for metrics that take them as they are."""
    clients = len(num_examples)
    local = None
    if loss is not None:  # all rows are of one group and label, half of them predicted 1
        counts = np.zeros((clients, 2, 2, 2), np.int64)
        counts[:, 0, 0, 0] = num_examples
        sums = np.zeros((clients, 2, 2))
        sums[:, 0, 0] = loss * num_examples
        local = Statistics(counts, sums * 0, sums)
    return Cohort(
        round=t,
        deltas=np.asarray(deltas, dtype=float),
        num_examples=np.asarray(num_examples),
        client_counts=np.zeros((clients, 2, 2, 2), np.int64) if scores is None else scores,
        server_counts=np.zeros((2, 2, 2), np.int64) if scores is None else np.zeros_like(scores[0]),
        clients=tuple("ABCDEFGH"[:clients]),
        measured={} if local is None else {Need.REPORTS: local},
    )


def step(strategy: Strategy, values: Cohort, parameters: int = 1) -> np.ndarray:
    return strategy.aggregate(strategy.init(np.zeros(parameters)), values).params


# -- F3 ------------------------------------------------------------------------------------------------------

N = np.array([40, 100, 60, 200])


VIOLATION, CORRECT = np.array([0.05, 0.04, 0.06, 0.10]), np.array([0.50, 0.60, 0.85, 0.80])


def counts_of(gap: float, correct: float, rows: int = 10_000) -> np.ndarray:
    """Two groups with true positive rates that differ by ``gap`` and an accuracy of ``correct``."""
    right = np.array([correct + gap / 2, correct - gap / 2])
    counts = np.zeros((2, 2, 2), np.int64)
    counts[:, 1, 1], counts[:, 0, 0] = np.rint(right * rows), round(correct * rows)
    counts[:, 1, 0], counts[:, 0, 1] = rows - counts[:, 1, 1], rows - counts[:, 0, 0]
    return counts


FOUR = updates(
    np.array([[1.0], [2.0], [3.0], [4.0]]),
    N,
    scores=np.stack([counts_of(d, a) for d, a in zip(VIOLATION, CORRECT, strict=True)]),
)


def test_the_counts_are_those_of_the_example() -> None:
    assert metrics.eo_diff(FOUR.client_counts) == pytest.approx(VIOLATION)
    assert metrics.accuracy(FOUR.client_counts) == pytest.approx(CORRECT)


@pytest.mark.parametrize(
    ("order", "settings", "expected"),
    [
        (fairest, {}, 2),
        (fairest, {"alpha": 0.5}, 1.714286),
        (fairest, {"alpha": 0.5, "equal": True}, 1.5),
        (best_ratio, {"alpha": 0.5}, 2.375),
        (best_ratio, {"alpha": 0.5, "equal": True}, 2.5),
        (best_ratio, {}, 2),
        (fairest, {"alpha": 1.0}, 3.05),
    ],
)
def test_f3_keeps_the_first_clients(order: Order, settings: dict, expected: float) -> None:
    assert step(f3(metrics.eo_diff, order, **settings), FOUR) == pytest.approx(expected, abs=1e-6)


def test_f3_passes_over_models_that_give_one_answer() -> None:
    one_answer = np.zeros((2, 2, 2), np.int64)
    one_answer[:, :, 1] = 50
    scores = FOUR.client_counts.copy()
    scores[3] = one_answer  # violates nothing
    with_it = FOUR._replace(client_counts=scores)
    assert step(f3(metrics.eo_diff, fairest), with_it) == 4
    assert step(f3(metrics.eo_diff, fairest, min_mcc=0.05), with_it) == 2
    everybody = FOUR._replace(client_counts=np.stack([one_answer] * 4))
    assert step(f3(metrics.eo_diff, fairest, min_mcc=0.05), everybody) == pytest.approx(3.05)  # all, by rows


def test_f3_breaks_ties_by_accuracy_and_then_by_name() -> None:
    same = np.stack([counts_of(0.0, 0.7), counts_of(0.0, 0.8), counts_of(0.0, 0.8), counts_of(0.1, 0.9)])
    tied = FOUR._replace(client_counts=same)
    for order in (fairest, best_ratio):
        assert step(f3(metrics.eo_diff, order), tied) == 2
        assert step(f3(metrics.eo_diff, order), tied._replace(clients=("D", "C", "B", "A"))) == 3


def test_f3_leaves_out_undefined_violations() -> None:
    scores = FOUR.client_counts.copy()
    scores[1, 0] = 0
    assert step(f3(metrics.eo_diff, fairest), FOUR._replace(client_counts=scores)) == 1
    nobody = FOUR._replace(client_counts=np.zeros_like(scores))
    assert step(f3(metrics.eo_diff, fairest), nobody) == pytest.approx(3.05)


def test_f3_violations_between_groups_and_against_everybody() -> None:
    # rows 100 a cell; TPR .8 and .6 of 100 and 300 rows, FPR .1 and .4 of 100 and 100
    counts = np.array([[[90, 10], [20, 80]], [[60, 40], [120, 180]]])
    between, overall = VIOLATIONS["groups"], VIOLATIONS["overall"]
    assert between["eo"](counts) == pytest.approx(0.2)
    assert between["eqo"](counts) == pytest.approx(0.3)
    assert between["sp"](counts) == pytest.approx(220 / 400 - 90 / 200)
    assert overall["eo"](counts) == pytest.approx(260 / 400 - 0.6)  # misses .4 against .35
    assert overall["eqo"](counts) == pytest.approx(0.4 - 50 / 200)
    assert overall["sp"](counts) == pytest.approx(310 / 600 - 90 / 200)
    text = parse_spec("fair_best:metric=worst(sp, eo),against=overall", "eqo")
    assert text.build(Setup(3)).aggregate is not None


# -- FedVal --------------------------------------------------------------------------------------------------

SCORES = np.array([[0.9, 0.6], [0.5, 0.8], [0.2, 0.7]])


@pytest.mark.parametrize(
    ("metric", "floor", "expected"),
    [
        (lambda scores: scores[:, 0], 0.001, (0.562071, 0.312539, 0.125390)),
        (lambda scores: scores.mean(axis=1), 0.0005, (0.405347, 0.351337, 0.243316)),  # a sum of the two
    ],
)
def test_fedval_with_one_and_with_several_metrics(metric, floor: float, expected) -> None:
    three = updates(np.eye(3), np.array([10, 20, 30]), scores=SCORES)
    assert step(rule(fedval(floor=floor), metric), three, 3) == pytest.approx(expected, abs=1e-6)


def test_fedval_is_sharper_with_a_power_and_falls_back_to_rows() -> None:
    three = updates(np.eye(3), np.array([10, 20, 30]), scores=SCORES)
    squared = (SCORES[:, 0] + 0.001) ** 2
    stepped = step(rule(fedval(sharpness=2.0), lambda scores: scores[:, 0]), three, 3)
    assert stepped == pytest.approx(squared / squared.sum())
    nobody = updates(np.eye(3), np.array([10, 20, 30]), scores=SCORES * np.nan)
    stepped = step(rule(fedval(floor=0.0), lambda scores: scores[:, 0]), nobody, 3)
    assert stepped == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_settings_that_came_later_are_written_only_where_they_differ() -> None:
    assert parse_spec("fedval:floor=0.001,sharpness=1", "sp").text == "fedval:metric=sp"
    assert parse_spec("fedval:floor=0.01", "sp").text == "fedval:metric=sp,floor=0.01"
    assert parse_spec("fedavg_gr:counts=round", "sp").text == "fedavg_gr"
    assert parse_spec("fedavg_gr:counts=once", "sp").settings_json == '{"counts": "once"}'


# -- FedAdam and FedYogi -------------------------------------------------------------------------------------


def two_rounds(strategy: Strategy) -> list[float]:
    state, result = strategy.init(np.zeros(1)), []
    for t, update in enumerate((0.1, 0.3), start=1):
        state = strategy.aggregate(state, updates(np.array([[update]]), np.array([5]), t=t))
        result.append(float(state.params[0]))
    return result


def test_fedadam_by_hand() -> None:
    assert two_rounds(rule(fedadam())) == pytest.approx([0.090909, 0.210515], abs=1e-6)


def test_fedadam_with_flowers_correction() -> None:
    first = 0.1 * (1 - 0.99**2) ** 0.5 / (1 - 0.9**2) * 0.01 / (0.01 + 1e-3)
    assert two_rounds(rule(fedadam(rate=0.1, correction="flower")))[0] == pytest.approx(first)


def test_fedyogi_by_hand() -> None:
    # v: 0 + .01 * .01 = .0001, then .0001 + .01 * .09 = .001; m: .01, then .039
    first = 0.01 * 0.01 / (0.01 + 1e-3)
    second = first + 0.01 * 0.039 / (0.001**0.5 + 1e-3)
    assert two_rounds(rule(fedyogi())) == pytest.approx([first, second])


# -- q-FFL and AFL -------------------------------------------------------------------------------------------

TWO = updates(np.array([[0.1, 0.0], [0.0, 0.2]]), np.array([10, 30]), loss=np.array([0.5, 2.0]))


@pytest.mark.parametrize(
    ("q", "expected"), [(0, (0.05, 0.1)), (1, (0.016667, 0.133333)), (5, (0.000049, 0.099902))]
)
def test_qffl_by_hand(q: float, expected) -> None:
    assert step(rule(qffl(q=q), learning_rate=0.1), TWO, 2) == pytest.approx(expected, abs=1e-6)


def test_qffl_must_know_the_learning_rate() -> None:
    spec = parse_spec("qffl:q=1", "eqo")
    with pytest.raises(InputError, match="learning_rate must be given for qffl"):
        spec.build(Setup(3))
    assert step(spec.build(Setup(3, learning_rate=0.1)), TWO, 2) == pytest.approx(
        (0.016667, 0.133333), abs=1e-6
    )


def test_afl_moves_weights_towards_larger_losses() -> None:
    strategy = rule(afl(rate=0.1))
    first = strategy.aggregate(strategy.init(np.zeros(2)), TWO)
    assert first.params == pytest.approx([0.025, 0.15])  # by rows
    # lambda = project(.25 + .05, .75 + .2) = (.175, .825)
    second = strategy.aggregate(first, TWO._replace(round=2))
    assert second.notes["weight"] == pytest.approx([0.175, 0.825])
    assert second.params - first.params == pytest.approx([0.0175, 0.165])
    equal = rule(afl(rate=0.1, start="equal"))
    assert step(equal, TWO, 2) == pytest.approx([0.05, 0.1])


def test_afl_changes_shares_among_the_clients_of_a_round() -> None:
    strategy = rule(afl(rate=10.0))
    state = strategy.aggregate(strategy.init(np.zeros(2)), TWO)
    assert state.moved == pytest.approx({"A": -0.25, "B": 0.25})
    others = TWO._replace(clients=("C", "A"), num_examples=np.array([30, 10]), round=2)
    after = strategy.aggregate(state, others)
    assert after.notes["weight"] == pytest.approx([1, 0])  # 30 rows, and 10 - .25 * 70
    assert after.moved["B"] == 0.25


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.9, 0.9, -0.5), (0.5, 0.5, 0)), ((0.83, 0.29), (0.77, 0.23)), ((5.0, 0.0), (1, 0)), ((0.0,), (1,))],
)
def test_the_projection_onto_the_simplex(values, expected) -> None:
    assert project(np.array(values)) == pytest.approx(expected)
    assert project(np.array(values) * 2, 2.0) == pytest.approx(np.array(expected) * 2)


# -- A step at the server ------------------------------------------------------------------------------------

# mean P(1): label 0 (.2, .5), label 1 (.6, .7); of groups (.3, .566667)
SERVER_ROWS = np.array([[30, 10], [40, 20]])


SEEN = Statistics(
    np.stack([SERVER_ROWS, SERVER_ROWS * 0], axis=-1),
    SERVER_ROWS * np.array([[0.2, 0.6], [0.5, 0.7]]),
    SERVER_ROWS * 0.5,
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        # 2 (q_s - mean) n / n_s
        ("sp", [[-0.266667 / 0.4] * 2, [0.266667 / 0.6] * 2]),
        ("eo", [[0, -0.1 / 0.1], [0, 0.1 / 0.2]]),
        ("eqo", [[-0.3 / 0.3, -0.1 / 0.1], [0.3 / 0.4, 0.1 / 0.2]]),
    ],
)
def test_the_slope_of_unfairness_by_hand(metric: str, expected) -> None:
    assert unfairness_slope(SEEN, metric) == pytest.approx(np.array(expected), abs=1e-5)


def test_the_slope_of_unfairness_without_a_group() -> None:
    rows = np.array([[30, 10], [0, 0]])
    alone = Statistics(np.stack([rows, rows * 0], axis=-1), rows * 0.4, rows * 0.5)
    assert (unfairness_slope(alone, "eqo") == 0).all()


def test_server_step_has_the_length_of_its_hyperparameter() -> None:
    strategy = rule(server_step(metric="sp", rho=0.5, target=0.9))
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    two = updates(np.array([[3.0, 0.0], [3.0, 8.0]]), np.array([10, 10]))._replace(
        server_counts=unfair, measured={Need.DESCENT: lambda params, loss: np.array([0.0, -7.0])}
    )
    assert step(strategy, two, 2) == pytest.approx([3.0, 4.0 - 0.5 * 5])
    fair = two._replace(server_counts=np.stack([unfair[0]] * 2))
    assert step(strategy, fair, 2) == pytest.approx([3.0, 4.0])
    flat = two._replace(measured={Need.DESCENT: lambda params, loss: np.zeros(2)})
    assert step(strategy, flat, 2) == pytest.approx([3.0, 4.0])


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
        "fedfact",
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
    message = np.asarray(strategy.broadcast(state, None))
    assert len(message) == 0
    terms = strategy.local_loss(message, ROWS, None)
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
            for name in ("afl", "qffl", "fairfed", "fairgrad", "fedfact", "fairbatch", "fedfb", "fedgft")
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
    state = strategy.aggregate(gone, cohort(local))
    assert state.params == pytest.approx([0.25, 0.75])
    assert state.notes["weight"] == pytest.approx([0.25, 0.75])
    few = FairFedState(np.zeros(2), {}, {"A": -0.25, "B": -0.74})
    assert strategy.aggregate(few, cohort(local)).params == pytest.approx([0, 1])


def test_fairfed_reweighs_at_clients_by_default() -> None:
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
    first = cohort(
        n=(1,),
        server_counts=unfair[[0, 0]] if fair else unfair,
        descend=lambda params, loss: asked.append(1) or np.array([-2.0]),
    )
    state = rule(server_step(metric="sp", rho=rho)).aggregate(AVERAGING.init(np.zeros(1)), first)
    assert state.notes == {"stepped": stepped}
    assert len(asked) == stepped
    assert state.params == pytest.approx([1 - rho * stepped])


@pytest.mark.parametrize("down", [0.0, np.inf, np.nan])
def test_a_slope_that_leads_nowhere_is_not_taken(down: float) -> None:
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    first = cohort(n=(1,), server_counts=unfair, descend=lambda params, loss: np.array([down]))
    state = rule(server_step(metric="sp", rho=0.5)).aggregate(AVERAGING.init(np.zeros(1)), first)
    assert (state.params.tolist(), state.notes) == ([1], {"stepped": 0})


def test_a_client_without_a_loss_still_counts_in_qffl() -> None:
    """Its weight is the root of 1e-10, the other's that of 1."""
    two = report(ROWS, loss=0.0), report(ROWS, loss=ROWS * 1.0)
    both = cohort(Statistics(*(np.concatenate(value) for value in zip(*two, strict=True))))
    state = rule(qffl(q=0.5), learning_rate=0.1).aggregate(AVERAGING.init(np.zeros(2)), both)
    assert state.notes["loss"] == pytest.approx([1e-10, 1 + 1e-10])
    weights, curvature = np.array([1e-5, 1.0]), np.array([0.5 * 1e5, 0.5]) / 0.1
    step = weights.sum() / (weights + curvature).sum()
    assert state.notes["step"] == pytest.approx(step)
    assert state.params == pytest.approx(step * weights / weights.sum())


def test_an_undefined_score_of_fedval_counts_as_the_floor() -> None:
    scores = np.array([0.5, np.nan, 0.2, 0.0])  # the last is the server's
    three = cohort(n=(1, 1, 1), client_counts=np.zeros((3, 2, 2, 2)))
    result = (
        rule(fedval(floor=0.1), lambda counts: scores).aggregate(AVERAGING.init(np.zeros(3)), three).params
    )
    assert result == pytest.approx([0.6 / 1.0, 0.1 / 1.0, 0.3 / 1.0])


# -- F3 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("against", VIOLATIONS)
def test_violations_of_many_models_are_those_of_each(against: str) -> None:
    counts = np.random.default_rng(1).integers(1, 30, (5, 3, 2, 2))
    for metric in VIOLATIONS[against].values():
        np.testing.assert_allclose(metric(counts), [metric(value) for value in counts])


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
