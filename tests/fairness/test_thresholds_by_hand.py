"""How thresholds are chosen, piece by piece and by hand: what is tried, what is counted, what is taken."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.fairness import metrics, thresholds
from fairfate.fairness.thresholds import (
    BINS,
    EDGES,
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
    histogram,
)


def margins(sizes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(i % 2, 1, size).astype(np.float32) for i, size in enumerate(sizes)]


def test_bins_are_equal_steps_of_probability() -> None:
    probability = 1 / (1 + np.exp(-EDGES.astype(np.float64)))
    np.testing.assert_allclose(probability, np.arange(1, BINS) / BINS, atol=1e-6)
    assert EDGES[BINS // 2 - 1] == 0


def test_a_score_on_an_edge_is_in_the_bin_below_it() -> None:
    """A row is accepted when its score exceeds the threshold, so that the edge itself is rejected."""
    scores = np.array([EDGES[0], EDGES[0] + 1e-3, 0.0, 1e-6, EDGES[-1], 50.0], dtype=np.float32)
    rows = histogram([scores, scores[:1]])
    assert np.flatnonzero(rows[0, 0]).tolist() == [0, 1, 127, 128, 254, 255]
    assert np.flatnonzero(rows[0, 1]).tolist() == [0]
    for threshold in (-np.inf, EDGES[0], 0.0, EDGES[-1], np.inf):
        at = np.array([threshold], dtype=np.float64)
        np.testing.assert_array_equal(apply_to_histogram(rows, at), apply([scores, scores[:1]], at))


def test_counts_of_thresholds_from_bins_are_those_of_the_rows() -> None:
    result = margins((50, 60, 40, 30, 20, 10), 8)
    chosen = np.array([EDGES[3], EDGES[127], EDGES[200]], dtype=np.float64)
    counted = apply_to_histogram(histogram(result), chosen)
    np.testing.assert_array_equal(counted, apply(result, chosen))
    assert counted.dtype == np.int64


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        ([], 9, [0]),
        ([3], 9, [2, 4, 0]),
        ([4, 1, 2, 2], 9, [0, 1.5, 3, 5, 0]),
        ([1, 2, 4], 1, [0, 1.5, 5, 0]),
        ([1, 2, 4], 2, [0, 1.5, 3, 5, 0]),
        (range(11), 4, [-1, 0.5, 3.5, 6.5, 9.5, 11, 0]),  # the first, fourth, seventh and tenth of ten cuts
    ],
)
def test_thresholds_to_try_by_hand(scores, count: int, expected) -> None:
    assert thresholds._cuts(np.array(scores, dtype=np.float32), count).tolist() == expected


def tried(monkeypatch: pytest.MonkeyPatch, choose, given) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The thresholds of each group that are tried, and their counts."""
    calls = []

    def note(cuts, counts, *rule):
        calls.append((cuts, counts))
        return np.zeros(len(cuts))

    monkeypatch.setattr(thresholds, "_choose", note)
    choose(given, metrics.sp, 0.02, 0.8, "own")
    return calls[0]


@pytest.mark.parametrize(("groups", "each"), [(1, 103**2), (2, 103), (3, 22), (4, 103), (6, 103)])
def test_as_many_thresholds_are_tried_as_there_is_time_for(monkeypatch, groups: int, each: int) -> None:
    """About 103^2 combinations: 22^3 with three groups; one after another, 103 again."""
    cells = [np.arange(k, 24_000, 2 * groups, dtype=np.float32) for k in range(2 * groups)]
    cuts, counts = tried(monkeypatch, choose_from_scores, cells)
    assert [len(value) for value in cuts] == [each] * groups
    for g in range(groups):
        direct = [[[(c <= t).sum(), (c > t).sum()] for c in cells[2 * g : 2 * g + 2]] for t in cuts[g][::9]]
        assert counts[g][::9].tolist() == direct


def test_thresholds_of_a_group_lie_between_its_own_scores(monkeypatch) -> None:
    cells = [np.float32(value) for value in ([10, 11], [12], [20], [22, 26], [30], [31])]
    cuts, _ = tried(monkeypatch, choose_from_scores, cells)
    assert [value.tolist() for value in cuts] == [
        [9, 10.5, 11.5, 13, 0],
        [19, 21, 24, 27, 0],
        [29, 30.5, 32, 0],
    ]


@pytest.mark.parametrize(("groups", "each"), [(1, 257), (2, 254), (3, 37), (4, 254)])
def test_as_many_ends_of_bins_are_tried(monkeypatch, groups: int, each: int) -> None:
    """All 257 ends with one group; else those of 257 - 3 or, with three groups, 257^(2/3) - 3 even ranks,
    among which are none, all and 0."""
    rows = np.ones((groups, 2, BINS), dtype=np.int64)
    rows[:, 1] = 3
    cuts, counts = tried(monkeypatch, choose_from_histogram, rows)
    ends = np.concatenate([[-np.inf], EDGES.astype(np.float64), [np.inf]])
    for g in range(groups):
        assert len(cuts[g]) == each
        assert {-np.inf, 0.0, np.inf} <= set(cuts[g])
        below = np.searchsorted(ends, cuts[g])
        direct = [[[k, BINS - k], [3 * k, 3 * (BINS - k)]] for k in below]
        assert counts[g].tolist() == direct


def test_ends_of_bins_follow_the_ranks_of_the_rows(monkeypatch) -> None:
    """All rows are in four bins: only ends next to these are of use."""
    rows = np.zeros((3, 2, BINS), dtype=np.int64)
    rows[:, 0, [10, 20]] = 5
    rows[:, 1, [20, 30, 200]] = 7
    cuts, _ = tried(monkeypatch, choose_from_histogram, rows)
    ends = np.concatenate([[-np.inf], EDGES.astype(np.float64), [np.inf]])
    assert np.searchsorted(ends, cuts[0]).tolist() == [0, 11, 21, 31, 128, 201, 256]


def chosen(cuts, counts, fairness, tolerance=0.0, keep=0.0, against="own") -> list[float]:
    result = thresholds._choose(
        [np.array(value, dtype=float) for value in cuts],
        [np.array(value) for value in counts],
        fairness,
        tolerance,
        keep,
        against,
    )
    return result.tolist()


def of_one(values: dict[int, float]):
    """Fairness of one group by how many rows with label 1 it rejects."""
    return lambda counts: np.array([values[int(value[0, 1, 0])] for value in counts], dtype=float)


# one group of 10 rows with label 0 and 10 with label 1; its own decisions (the cut at 0) are right for 16
CUTS = [[0.0, 1.0, 2.0, 3.0]]
COUNTS = [[[[8, 2], [2, 8]], [[9, 1], [3, 7]], [[9, 1], [4, 6]], [[10, 0], [7, 3]]]]
"""Right: 16, 16, 15 and 13 of 20; rejected with label 1: 2, 3, 4 and 7."""


@pytest.mark.parametrize(
    ("fairness", "tolerance", "cut"),
    [
        ({2: 0.5, 3: 0.5, 4: 0.9, 7: 1.0}, 0.0, 1.0),  # as fair and as accurate: the later one
        ({2: 0.5, 3: 0.4, 4: 0.9, 7: 1.0}, 0.0, 0.0),
        ({2: 0.5, 3: 0.4, 4: 0.9, 7: 1.0}, 0.0501, 2.0),  # 15 of 20 may be
        ({2: 0.5, 3: 0.4, 4: 0.9, 7: 1.0}, 0.0499, 0.0),
        ({2: 0.5, 3: 0.4, 4: 0.9, 7: 1.0}, 0.1501, 3.0),
        ({2: 0.5, 3: 0.4, 4: 0.5, 7: 0.5}, 1.0, 0.0),  # as fair: the most accurate
        ({2: np.nan, 3: np.nan, 4: 0.0, 7: 1.0}, 0.0501, 2.0),  # an undefined fairness is worse than none
        ({2: np.nan, 3: np.nan, 4: np.nan, 7: 1.0}, 0.0, 1.0),  # ... and better than too little accuracy
        ({2: np.nan, 3: np.nan, 4: np.nan, 7: np.nan}, 0.0501, 1.0),
    ],
)
def test_the_fairest_that_is_accurate_enough_is_chosen(fairness, tolerance: float, cut: float) -> None:
    assert chosen(CUTS, COUNTS, of_one(fairness), tolerance) == [cut]


def test_accuracy_may_fall_by_the_tolerance_itself() -> None:
    """12 and 8 of 16 rows are right: 0.75 less 0.25 is 0.5 to the bit."""
    counts = [[[[6, 2], [2, 6]], [[8, 0], [8, 0]]]]
    assert chosen([[0.0, 1.0]], counts, of_one({2: 0.1, 8: 0.2}), 0.25) == [1.0]


def test_accuracy_is_compared_with_the_best_there_is() -> None:
    """The model's own decisions are right for 14 of 20 rows, the best ones for 16, others for 13."""
    counts = [[[[8, 2], [4, 6]], [[8, 2], [2, 8]], [[10, 0], [7, 3]]]]
    fairness = of_one({4: 0.5, 2: 0.4, 7: 1.0})
    rule = (CUTS[0][:3],), counts, fairness
    assert chosen(*rule, 0.0501, against="own") == [2.0]
    assert chosen(*rule, 0.0501, against="best") == [1.0]
    assert chosen(*rule, 0.1001, against="best") == [0.0]


@pytest.mark.parametrize(
    ("keep", "cut"), [(0.0, 3.0), (0.5, 3.0), (0.51, 2.0), (0.83, 2.0), (0.84, 1.0), (1.0, 1.0)]
)
def test_a_share_of_the_skill_is_kept(keep: float, cut: float) -> None:
    """Balanced accuracy above one half is 0.3, 0.3, 0.25 and 0.15: shares of 1, 1, 5/6 and 1/2."""
    assert chosen(CUTS, COUNTS, of_one({2: 0.1, 3: 0.2, 4: 0.3, 7: 0.4}), 1.0, keep) == [cut]


def test_undefined_fairness_is_better_than_too_little_skill() -> None:
    """To reject everybody is right for 90 of 100 rows, the model's own decisions for 78."""
    counts = [[[[70, 20], [2, 8]], [[90, 0], [10, 0]]]]
    assert chosen([[0.0, 1.0]], counts, of_one({2: np.nan, 10: 1.0}), 1.0, 0.8) == [0.0]


def test_without_a_share_to_keep_skill_does_not_count() -> None:
    """The fairest decisions are wrong more often than right."""
    counts = [[[[8, 2], [2, 8]], [[2, 8], [8, 2]]]]
    assert chosen([[0.0, 1.0]], counts, of_one({2: 0.5, 8: 1.0}), 1.0, 0.0) == [1.0]


def test_of_two_equal_groups_the_first_changes() -> None:
    """Either of them could: the later of equal combinations is taken, the first group's cuts come last."""
    counts = [[[[8, 2], [2, 8]], [[9, 1], [3, 7]]]] * 2

    def one_of_them(together: np.ndarray) -> np.ndarray:
        return np.array([float(value[:, 1, 0].sum() == 5) for value in together])

    assert chosen([[0.0, 1.0]] * 2, counts, one_of_them, 1.0) == [1.0, 0.0]


@pytest.mark.parametrize(("groups", "in_turn"), [(1, False), (3, False), (4, True)])
def test_all_combinations_are_tried_for_up_to_three_groups(monkeypatch, groups: int, in_turn: bool) -> None:
    asked = []
    monkeypatch.setattr(thresholds, "_one_by_one", lambda own, *given: asked.append(own) or own)
    result = margins((9, 9) * groups, 2)
    choose_from_scores(result, metrics.sp, 0.1, 0.0, "own")
    assert (len(asked) == 1) == in_turn


def one_by_one(counts: list, best) -> np.ndarray:
    cuts = [np.arange(len(value), dtype=float) for value in counts]
    return thresholds._one_by_one(
        np.zeros(len(counts), dtype=int), cuts, [np.array(value) for value in counts], best
    )


# two groups with three and four cuts: rejected and accepted of 10 rows with label 0, and of 20 and 0 with 1
RISING = [
    [[[0, 10], [0, 20]], [[5, 5], [4, 16]], [[10, 0], [20, 0]]],
    [[[0, 10], [0, 0]], [[3, 7], [0, 0]], [[6, 4], [0, 0]], [[10, 0], [0, 0]]],
]


def test_equal_rates_for_all_groups_are_where_the_search_begins() -> None:
    """Selection rates of 1, .7, 0 and of 1, .7, .4, 0; of label 1, of 1, .8, 0 and of none, taken as 0."""
    calls = []

    def best(picks: np.ndarray) -> np.ndarray:
        calls.append(picks.tolist())
        return picks[0]

    one_by_one(RISING, best)
    rates = ([1, 0.7, 0], [1, 0.7, 0.4, 0]), ([1, 0.8, 0], [0, 0, 0, 0])
    nearest = [
        [
            min(range(len(values)), key=lambda k, values=values, w=w: abs(values[k] - w / 100))
            for values in rate
        ]
        for rate in rates
        for w in range(101)
    ]
    assert calls[0] == [[0, 0], *nearest]


@pytest.mark.parametrize(("wanted", "calls"), [((2, 3), 1 + 2 * 2), ((0, 3), 1 + 2 * 2), ((0, 0), 1 + 2)])
def test_groups_are_improved_in_turn_until_nothing_changes(wanted: tuple[int, int], calls: int) -> None:
    """Each pass asks once for each group; the last one changes nothing. The first call is for the start."""
    observations = []

    def best(picks: np.ndarray) -> np.ndarray:
        observations.append(picks.tolist())
        return picks[0] if len(observations) == 1 else picks[np.abs(picks - wanted).sum(axis=1).argmin()]

    assert tuple(one_by_one(RISING, best)) == wanted
    assert len(observations) == calls
    assert observations[1] == [[0, 0], [1, 0], [2, 0]]
    assert observations[2] == [[wanted[0], k] for k in range(4)]


def test_a_search_without_an_end_has_one() -> None:
    """Every pass takes the other of two cuts: after twenty it is enough."""
    calls = []

    def restless(picks: np.ndarray) -> np.ndarray:
        calls.append(1)
        return picks[len(calls) // 2 % 2]

    one_by_one(RISING, restless)
    assert len(calls) == 1 + 2 * 20


def test_where_skill_is_undefined_it_rules_nothing_out() -> None:
    """Without rows of label 0 there is no balanced accuracy."""
    counts = [[[[0, 0], [2, 8]], [[0, 0], [4, 6]]]]
    assert chosen([[0.0, 1.0]], counts, of_one({2: 0.1, 4: 0.2}), 1.0, 0.8) == [1.0]


@pytest.mark.parametrize("groups", [3, 4])
@pytest.mark.parametrize("metric", ["sp", "eo"])
def test_no_other_threshold_of_one_group_alone_is_better(monkeypatch, groups: int, metric: str) -> None:
    """Whether all combinations are tried, or one group after another."""
    result = margins(tuple(range(30, 30 + 10 * groups, 5)), 4)
    cuts, _ = tried(monkeypatch, choose_from_scores, result)
    monkeypatch.undo()
    fairness = metrics.FAIRNESS[metric]
    picked = choose_from_scores(result, fairness, 0.1, 0.5, "own")
    own = apply(result, np.zeros(groups))

    def worth(of: np.ndarray) -> tuple[float, float]:
        kept = metrics.balanced_accuracy(of) - 0.5 >= 0.5 * (metrics.balanced_accuracy(own) - 0.5)
        good = kept and metrics.accuracy(of) >= metrics.accuracy(own) - 0.1
        return float(fairness(of)) if good else -2.0, float(metrics.accuracy(of))

    best = worth(apply(result, picked))
    assert best[0] > worth(own)[0]
    for g in range(groups):
        for cut in cuts[g]:
            other = picked.copy()
            other[g] = cut
            assert worth(apply(result, other)) <= best


def test_one_after_another_begins_with_equal_rates_for_all_groups() -> None:
    """Four groups whose scores are far apart: from the model's own decisions, all or nobody of a group, no
    change of one group's threshold helps; equal rates for all do."""
    base = np.arange(-20, 20, dtype=np.float32)
    results = [base + 100 * g + (10 if label else 0) for g in range(-2, 2) for label in (0, 1)]
    own = apply(results, np.zeros(4))
    assert metrics.sp(own) == 0
    picked = choose_from_scores(results, metrics.sp, 1.0, 0.0, "own")
    assert metrics.sp(apply(results, picked)) == 1
    assert metrics.accuracy(apply(results, picked)) > 0.6
