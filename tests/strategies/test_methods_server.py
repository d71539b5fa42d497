"""Worked numbers of rules at the server: who counts, by how much, and how far the model moves."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.fairness import metrics
from fairfate.strategies import (
    Cohort,
    Need,
    Setup,
    Statistics,
    Strategy,
    afl,
    fedadam,
    fedval,
    fedyogi,
    parse_spec,
    qffl,
    server_step,
)
from fairfate.strategies.f3 import VIOLATIONS, Order, best_ratio, f3, fairest
from fairfate.strategies.server_step import unfairness_slope
from fairfate.strategies.strategy import project
from rounds_by_hand import rule


def cohort(
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


def step(strategy: Strategy, of: Cohort, parameters: int = 1) -> np.ndarray:
    return strategy.aggregate(strategy.init(np.zeros(parameters)), of).params


# -- F3 ------------------------------------------------------------------------------------------------------

N = np.array([40, 100, 60, 200])
VIOLATION, CORRECT = np.array([0.05, 0.04, 0.06, 0.10]), np.array([0.50, 0.60, 0.85, 0.80])


def counts_of(gap: float, correct: float, rows: int = 10_000) -> np.ndarray:
    """Two groups with true positive rates that differ by ``gap`` and an accuracy of ``correct``."""
    right = np.array([correct + gap / 2, correct - gap / 2])
    found = np.zeros((2, 2, 2), np.int64)
    found[:, 1, 1], found[:, 0, 0] = np.rint(right * rows), round(correct * rows)
    found[:, 1, 0], found[:, 0, 1] = rows - found[:, 1, 1], rows - found[:, 0, 0]
    return found


FOUR = cohort(
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
    three = cohort(np.eye(3), np.array([10, 20, 30]), scores=SCORES)
    assert step(rule(fedval(floor=floor), metric), three, 3) == pytest.approx(expected, abs=1e-6)


def test_fedval_is_sharper_with_a_power_and_falls_back_to_rows() -> None:
    three = cohort(np.eye(3), np.array([10, 20, 30]), scores=SCORES)
    squared = (SCORES[:, 0] + 0.001) ** 2
    found = step(rule(fedval(sharpness=2.0), lambda scores: scores[:, 0]), three, 3)
    assert found == pytest.approx(squared / squared.sum())
    nobody = cohort(np.eye(3), np.array([10, 20, 30]), scores=SCORES * np.nan)
    found = step(rule(fedval(floor=0.0), lambda scores: scores[:, 0]), nobody, 3)
    assert found == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_settings_that_came_later_are_written_only_where_they_differ() -> None:
    assert parse_spec("fedval:floor=0.001,sharpness=1", "sp").text == "fedval:metric=sp"
    assert parse_spec("fedval:floor=0.01", "sp").text == "fedval:metric=sp,floor=0.01"
    assert parse_spec("fedavg_gr:counts=round", "sp").text == "fedavg_gr"
    assert parse_spec("fedavg_gr:counts=once", "sp").settings_json == '{"counts": "once"}'


# -- FedAdam and FedYogi -------------------------------------------------------------------------------------


def two_rounds(strategy: Strategy) -> list[float]:
    state, found = strategy.init(np.zeros(1)), []
    for t, update in enumerate((0.1, 0.3), start=1):
        state = strategy.aggregate(state, cohort(np.array([[update]]), np.array([5]), t=t))
        found.append(float(state.params[0]))
    return found


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

TWO = cohort(np.array([[0.1, 0.0], [0.0, 0.2]]), np.array([10, 30]), loss=np.array([0.5, 2.0]))


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


def test_a_step_at_the_server_has_the_length_it_is_told() -> None:
    strategy = rule(server_step(metric="sp", rho=0.5, target=0.9))
    unfair = np.array([[[9, 1], [9, 1]], [[1, 9], [1, 9]]])
    two = cohort(np.array([[3.0, 0.0], [3.0, 8.0]]), np.array([10, 10]))._replace(
        server_counts=unfair, measured={Need.DESCENT: lambda params, loss: np.array([0.0, -7.0])}
    )
    assert step(strategy, two, 2) == pytest.approx([3.0, 4.0 - 0.5 * 5])
    fair = two._replace(server_counts=np.stack([unfair[0]] * 2))
    assert step(strategy, fair, 2) == pytest.approx([3.0, 4.0])
    flat = two._replace(measured={Need.DESCENT: lambda params, loss: np.zeros(2)})
    assert step(strategy, flat, 2) == pytest.approx([3.0, 4.0])
