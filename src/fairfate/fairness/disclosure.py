"""Minimum cell counts: no count of fewer than k people is shown, but 0 is.

The same rules hold at a site, for what it sends, in the simulator, which imitates that, and in reports. With
a minimum of 0 or 1 everything is left as it is.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Statistics

MIN_CELL = 10
"""The least count that leaves a site or stands in a report, unless its owner says otherwise."""
_LEAST = 1e-3
"""The least mean probability of a stratum that a sum of losses is made from."""
HIDDEN = -1
"""Stands for a count that is not shown."""
Whole = NDArray[np.int64]


def is_small(counts: Whole, min_cell: int) -> NDArray[np.bool_]:
    """Which counts are not to be shown."""
    return np.asarray((counts > 0) & (counts < min_cell))


def large_strata(stratum: NDArray[Any], min_cell: int, strata: int) -> NDArray[np.bool_]:
    """(rows,) which rows are in a stratum of at least ``min_cell`` rows; the others are excluded everywhere.

    A stratum that is in one number and not in another could be computed by subtraction.

    >>> large_strata(np.array([0, 0, 0, 1]), 2, 4).tolist()
    [True, True, True, False]
    """
    return np.asarray(np.bincount(stratum, minlength=strata)[stratum] >= min_cell)


def show_counts(counts: Whole, min_cell: int, beside_small: NDArray[np.bool_]) -> Whole:
    """Counts to be shown beside each other and their total, small ones as `HIDDEN`.

    Where one of them is small, the others are rounded to multiples of ``min_cell``, so that it cannot be
    computed by subtraction.

    >>> show_counts(np.array([[128, 7, 0], [128, 77, 0]]), 10, np.array([[True], [False]])).tolist()
    [[130, -1, 0], [128, 77, 0]]
    """
    if min_cell <= 1:
        return counts
    rounded = np.where(beside_small, min_cell * np.rint(counts / min_cell).astype(np.int64), counts)
    return np.where(is_small(counts, min_cell), HIDDEN, rounded)


def round_counts(counts: Counts, min_cell: int) -> Counts:
    """Counts by (..., label, prediction), each prediction's moved to the nearest count that may be shown.

    A stratum keeps its rows, so that nothing can be computed by subtraction: of m rows, 0, k to m - k,
    or m are predicted favourable. A stratum of fewer than k rows has none.

    >>> round_counts(np.array([[[47, 3], [6, 44]], [[12, 7], [3, 4]]]), 10).tolist()
    [[[50, 0], [10, 40]], [[19, 0], [0, 0]]]
    """
    if min_cell <= 1:
        return counts
    rows = counts.sum(axis=-1)
    rows = np.where(rows < min_cell, 0, rows)
    moved = _nearest(np.minimum(counts[..., 1], rows), rows, min_cell)
    return np.stack([rows - moved, moved], axis=-1).astype(counts.dtype)


def _nearest(part: NDArray[Any], rows: Whole, k: int) -> NDArray[Any]:
    """Of some rows, the part that may be shown and is nearest: 0, k to all but k, or all."""
    rest = rows - part
    low, high = (part > 0) & (part < k), (rest > 0) & (rest < k)
    moved = np.where(low, np.where(2 * part >= k, k, 0), part)
    moved = np.where(high, np.where(2 * rest >= k, rows - k, rows), moved)
    halves = np.where(2 * part >= rows, rows, 0)
    return np.asarray(np.where((low | high) & (rows < 2 * k), halves, moved))


def round_statistics(statistics: Statistics, min_cell: int) -> Statistics:
    """The same for counts with sums of probabilities and losses; a stratum without rows has no sums.

    A sum of probabilities can be as good as a count, so it is a multiple of the minimum, or all. A sum of
    losses could be one person's: in its place stands that of a stratum in which everybody has the mean
    probability.
    """
    if min_cell <= 1:
        return statistics
    counts = round_counts(statistics.counts, min_cell)
    rows = counts.sum(axis=-1)
    coarse = min_cell * np.rint(statistics.probability / min_cell)
    probability = _nearest(np.minimum(coarse, rows), rows, min_cell)
    return Statistics(counts, probability, loss_of_mean(probability, rows))


def loss_of_mean(probability: NDArray[np.float64], rows: Whole) -> NDArray[np.float64]:
    """(..., label) the cross-entropy of rows that all have their stratum's mean probability of label 1."""
    mean = np.clip(probability / np.maximum(rows, 1), _LEAST, 1 - _LEAST)
    right = np.stack([1 - mean[..., 0], mean[..., 1]], axis=-1)
    logarithm = np.array([math.log(value) for value in right.ravel()]).reshape(right.shape)
    return np.asarray(-rows * logarithm)


def round_histograms(histograms: Whole, min_cell: int) -> Whole:
    """Histograms (..., bins) of all strata of a known total, those of fewer than ``min_cell`` rows empty.

    Where there are such, the others lose rows of their fullest bins, to multiples of ``min_cell``.

    >>> round_histograms(np.array([[3, 1], [20, 13]]), 10).tolist()
    [[0, 0], [17, 13]]
    """
    rows = histograms.sum(axis=-1)
    small = is_small(rows, min_cell)
    if not small.any():
        return histograms
    rounded = np.array(np.where(small[..., None], 0, histograms), order="C")
    for stratum in rounded.reshape(-1, rounded.shape[-1]):
        for _ in range(stratum.sum() % min_cell):
            stratum[stratum.argmax()] -= 1
    return rounded


def merge_bins(histogram: Whole, min_cell: int) -> Whole:
    """Histograms (..., bins), a power of two, whose bins hold 0 or at least ``min_cell`` rows each.

    A range of bins is halved as long as both halves may be shown. The rows of a half that is too small move
    to the other's nearest bin; where both are, all rows of the range stand in its middle. Fewer rows in all
    than the minimum are not shown.

    >>> merge_bins(np.array([3, 0, 9, 1, 0, 0, 2, 12]), 10).tolist()
    [0, 0, 13, 0, 0, 0, 0, 14]
    """
    if min_cell <= 1:
        return histogram
    merged = np.array(histogram, order="C")  # whose rows are views
    for row in merged.reshape(-1, merged.shape[-1]):
        if row.sum() < min_cell:
            row[:] = 0
        _merge(row, min_cell)
    return merged


def _merge(row: Whole, k: int) -> None:
    """Merge a range of at least k rows, or of none, in place."""
    if len(row) == 1 or not row.any():
        return
    middle = len(row) // 2
    left, right = row[:middle], row[middle:]
    small_left, small_right = 0 < left.sum() < k, 0 < right.sum() < k
    if small_left and small_right:
        total = row.sum()
        row[:] = 0
        row[middle] = total
        return
    if small_left:
        right[0] += left.sum()
        left[:] = 0
    if small_right:
        left[-1] += right.sum()
        right[:] = 0
    _merge(left, k)
    _merge(right, k)
