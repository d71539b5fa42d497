"""One rule for everybody: the common threshold and the tilted score, by the worked numbers of the method."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairfate.fairness.metrics import FAIRNESS, accuracy, balanced_accuracy, eo, eqo, sp
from fairfate.fairness.tilt import (
    Candidates,
    Guard,
    Tilt,
    bin_edges,
    choose_common,
    choose_tilt,
    find_bins,
    joint_histogram,
    merge_squares,
    plain_rule,
    select,
)

ROWS = np.array(
    [
        [
            [[20, 6, 2, 0], [8, 4, 2, 0], [2, 2, 0, 0], [1, 0, 0, 0]],
            [[4, 1, 0, 0], [6, 3, 1, 0], [6, 2, 1, 0], [5, 1, 0, 0]],
        ],
        [
            [[0, 2, 6, 12], [0, 2, 5, 8], [0, 1, 3, 6], [0, 0, 1, 2]],
            [[0, 0, 1, 2], [0, 1, 2, 5], [0, 2, 6, 9], [0, 2, 7, 15]],
        ],
    ]
)
"""By group, label, and four ranges of both scores."""


def test_plain_rule_of_the_worked_numbers() -> None:
    counts = plain_rule(4).counts(ROWS)
    assert counts.tolist() == [[[42, 5], [15, 15]], [[35, 13], [11, 41]]]
    assert ROWS.sum() == 177
    values = [float(metric(counts)) for metric in (accuracy, balanced_accuracy, sp, eo, eqo)]
    assert np.round(values, 4).tolist() == [0.7514, 0.7467, 0.4810, 0.6341, 0.5135]


def test_table_of_a_rule_by_hand() -> None:
    """a = -0.5, t = 0.25: range (1, 0) has 0.375 - 0.0625 = 0.3125, range (2, 3) 0.625 - 0.4375 = 0.1875."""
    label, group = np.meshgrid((np.arange(4) + 0.5) / 4, (np.arange(4) + 0.5) / 4, indexing="ij")
    rule = Tilt(label - 0.5 * group >= 0.25)
    assert rule.table.astype(int).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    counts = rule.counts(ROWS)
    assert counts.tolist() == [[[34, 13], [9, 21]], [[41, 7], [20, 32]]]
    values = [float(metric(counts)) for metric in (accuracy, sp, eo, eqo)]
    assert np.round(values, 4).tolist() == [0.7232, 0.8832, 0.8791, 0.7032]


TABLE = [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
WITH_MARGIN = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]


@pytest.mark.parametrize(("metric", "value"), [("sp", 0.9342), ("eo", 0.9905)])
@pytest.mark.parametrize("guard", [Guard(0.05, margin=0.0), Guard(0.10)])
def test_choice_of_the_worked_numbers(metric: str, value: float, guard: Guard) -> None:
    rule = choose_tilt(ROWS, FAIRNESS[metric], metric, guard)
    assert rule.table.astype(int).tolist() == TABLE
    counts = rule.counts(ROWS)
    assert counts.tolist() == [[[30, 17], [6, 24]], [[33, 15], [10, 42]]]
    assert round(float(accuracy(counts)), 4) == 0.7288
    assert round(float(FAIRNESS[metric](counts)), 4) == value


def test_choice_for_equalized_odds_with_and_without_the_margin() -> None:
    counts = choose_tilt(ROWS, eqo, "eqo", Guard(0.05, margin=0.0)).counts(ROWS)
    assert counts.tolist() == [[[28, 19], [5, 25]], [[28, 20], [8, 44]]]
    assert np.round([float(accuracy(counts)), float(eqo(counts))], 4).tolist() == [0.7062, 0.9775]
    rule = choose_tilt(ROWS, eqo, "eqo", Guard(0.10))
    assert rule.table.astype(int).tolist() == WITH_MARGIN
    assert round(float(eqo(rule.counts(ROWS))), 4) == 0.9335


@pytest.mark.parametrize("metric", ["sp", "eo", "eqo"])
def test_few_rows_leave_the_plain_rule(metric: str) -> None:
    """With 177 rows two standard errors of any change are more than 0.02."""
    rule = choose_tilt(ROWS, FAIRNESS[metric], metric, Guard())
    assert rule.table.tolist() == plain_rule(4).table.tolist()
    assert (rule.prices, rule.threshold) == ((0.0, 0.0), 0.5)


@pytest.mark.parametrize("metric", ["sp", "eo", "eqo"])
def test_undefined_fairness_leaves_the_plain_rule(metric: str) -> None:
    rows = ROWS.copy()
    rows[1] = 0
    rule = choose_tilt(rows, FAIRNESS[metric], metric, Guard(1.0, 0.0, 0.0))
    assert rule.table.tolist() == plain_rule(4).table.tolist()


def test_a_model_worse_than_chance_keeps_its_decisions() -> None:
    rows = ROWS[:, ::-1]
    rule = choose_tilt(rows, sp, "sp", Guard(0.0))
    assert balanced_accuracy(plain_rule(4).counts(rows)) < 0.5
    assert accuracy(rule.counts(rows)) >= accuracy(plain_rule(4).counts(rows))


def test_counts_of_every_candidate_are_those_of_its_table() -> None:
    """The released table decides as the search has counted, on edges too."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 9, (2, 2, 8, 8))
    for metric in ("sp", "eo", "eqo"):
        seen: list[np.ndarray] = []

        def record(counts: np.ndarray, seen: list[np.ndarray] = seen) -> np.ndarray:
            seen.append(counts)
            return FAIRNESS["sp"](counts)

        rule = choose_tilt(rows, record, metric, Guard(0.3, 0.1, 0.0))
        assert any((counts == rule.counts(rows)).all() for counts in seen[-1])
        assert len(seen[-1]) == (41 if metric != "eqo" else 21 * 21) * 257


def test_ties_take_the_smallest_prices_then_the_threshold_nearest_one_half() -> None:
    counts = np.repeat(plain_rule(4).counts(ROWS)[None], 4, axis=0)
    ties = (np.array([0.3, 0.1, 0.1, 0.1]), np.array([0.0, 0.2, 0.1, 0.1]), np.array([0.0, 0.0, 0.4, 0.2]))
    assert select(Candidates(counts, np.zeros(4), ties), counts[0], sp, Guard()) == 3


def test_bound_takes_the_most_accurate_rule_that_reaches_it() -> None:
    fairest = choose_tilt(ROWS, sp, "sp", Guard(0.2, margin=0.0)).counts(ROWS)
    bounded = choose_tilt(ROWS, sp, "sp", Guard(0.2, margin=0.0, bound=0.6)).counts(ROWS)
    assert 0.6 <= sp(bounded) < sp(fairest)
    assert accuracy(bounded) > accuracy(fairest)
    beyond = choose_tilt(ROWS, sp, "sp", Guard(0.2, margin=0.0, bound=1.01)).counts(ROWS)
    assert beyond.tolist() == fairest.tolist()


def test_common_threshold_moves_where_it_is_fairer_and_keeps_accuracy() -> None:
    rows = np.zeros((2, 2, 256), dtype=np.int64)
    rows[0, 0, 20], rows[0, 1, 110], rows[0, 1, 200] = 400, 60, 140
    rows[1, 0, 20], rows[1, 1, 200] = 200, 200
    assert choose_common(rows, eo, Guard()) == pytest.approx(math.log(110 / 146))
    assert choose_common(rows, eo, Guard(keep=2.0)) == 0
    assert choose_common(rows * 0, eo, Guard()) == 0


def test_common_threshold_of_nothing_to_gain_is_zero() -> None:
    rows = np.zeros((2, 2, 256), dtype=np.int64)
    rows[:, 0, 20], rows[:, 1, 200] = 50, 50
    assert choose_common(rows, sp, Guard()) == 0


def test_joint_histogram_counts_pairs_of_ranges() -> None:
    own = [np.array([-9, 0, 9], dtype=np.float32), *[np.zeros(0, dtype=np.float32)] * 3]
    group = [np.array([0.1, -0.1, 9], dtype=np.float32), *[np.zeros(0, dtype=np.float32)] * 3]
    counted = joint_histogram(own, group, 4)
    assert counted.shape == (2, 2, 4, 4)
    assert np.argwhere(counted[0, 0]).tolist() == [[0, 2], [1, 1], [3, 3]]
    assert counted.sum() == 3


def test_decisions_are_those_that_the_sums_count() -> None:
    rng = np.random.default_rng(5)
    own = [rng.normal(0, 2, 50).astype(np.float32) for _ in range(4)]
    group = [rng.normal(0, 2, 50).astype(np.float32) for _ in range(4)]
    rule = Tilt(rng.random((8, 8)) < 0.5)
    counts = rule.counts(joint_histogram(own, group, 8)).reshape(4, 2)
    assert [int(rule.decide(a, b).sum()) for a, b in zip(own, group, strict=True)] == counts[:, 1].tolist()


def test_ranges_are_equal_steps_of_probability() -> None:
    np.testing.assert_allclose(1 / (1 + np.exp(-bin_edges(8).astype(float))), np.arange(1, 8) / 8, atol=1e-6)
    assert find_bins(np.array([0.0, 1e-6]), 32).tolist() == [15, 16]
    assert find_bins(np.array([np.inf, 80.0]), 32).tolist() == [31, 31]


def test_merged_squares_hold_no_row_or_enough() -> None:
    rng = np.random.default_rng(7)
    rows = rng.poisson(1.5, (2, 2, 16, 16))
    merged = merge_squares(rows, 10)
    assert (merged.sum(axis=(-1, -2)) == rows.sum(axis=(-1, -2))).all()
    assert ((merged == 0) | (merged >= 10)).all()
    assert merge_squares(rows, 1) is rows
    # a half of one score never loses its rows to the other half while both hold enough
    assert (merged[..., :8, :].sum(axis=(-1, -2)) == rows[..., :8, :].sum(axis=(-1, -2))).all()
