"""Minimum cell counts: no count of fewer than k people is shown, but 0 is.

The same rules hold at a site, for what it sends, in the simulator, which imitates that, and in reports. With
a minimum of 0 or 1 everything is left as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Statistics

MIN_CELL = 10
"""The least count that leaves a site or stands in a report, unless its owner says otherwise."""
Whole = NDArray[np.int64]


def large_strata(stratum: NDArray[Any], min_cell: int, strata: int) -> NDArray[np.bool_]:
    """(rows,) which rows are in a stratum of at least ``min_cell`` rows; the others take part in nothing.

    A stratum that took part in one number and not in another could be had by subtraction.

    >>> large_strata(np.array([0, 0, 0, 1]), 2, 4).tolist()
    [True, True, True, False]
    """
    return np.asarray(np.bincount(stratum, minlength=strata)[stratum] >= min_cell)


def round_counts(counts: Counts, min_cell: int) -> Counts:
    """Counts by (..., label, prediction), each prediction's moved to the nearest count that may be shown.

    A stratum keeps its rows, so that nothing is to be had by subtraction: of m rows, 0, k to m - k, or m are
    predicted favourable. A stratum of fewer than k rows has none.

    >>> round_counts(np.array([[[47, 3], [6, 44]], [[12, 7], [3, 4]]]), 10).tolist()
    [[[50, 0], [10, 40]], [[19, 0], [0, 0]]]
    """
    if min_cell <= 1:
        return counts
    k = min_cell
    rows = counts.sum(axis=-1)
    rows = np.where(rows < k, 0, rows)
    positive = np.minimum(counts[..., 1], rows)
    negative = rows - positive
    low, high = (positive > 0) & (positive < k), (negative > 0) & (negative < k)
    moved = np.where(low, np.where(2 * positive >= k, k, 0), positive)
    moved = np.where(high, np.where(2 * negative >= k, rows - k, rows), moved)
    halves = np.where(2 * positive >= rows, rows, 0)
    moved = np.where((low | high) & (rows < 2 * k), halves, moved)
    return np.stack([rows - moved, moved], axis=-1).astype(counts.dtype)


def round_statistics(statistics: Statistics, min_cell: int) -> Statistics:
    """The same for counts with sums of probabilities and losses; a stratum without rows has no sums."""
    if min_cell <= 1:
        return statistics
    counts = round_counts(statistics.counts, min_cell)
    shown = counts.sum(axis=-1) > 0
    return Statistics(counts, statistics.probability * shown, statistics.loss * shown)


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
    found = np.array(histogram)
    for row in found.reshape(-1, found.shape[-1]):
        if row.sum() < min_cell:
            row[:] = 0
        _merge(row, min_cell)
    return found


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
