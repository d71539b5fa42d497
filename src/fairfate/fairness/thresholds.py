"""One decision threshold for each group: the fairest among those that keep what the model can do.

Scores are log-odds; a row is accepted when its score exceeds its group's threshold, and without thresholds
when it exceeds 0. They need the group of each person at prediction time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Metric, Values, accuracy, balanced_accuracy

Margins = list[NDArray[np.float32]]
"""Scores of the rows of each (group, label) cell."""
Picks = NDArray[np.intp]
"""For each group, which of its cuts; perhaps of several combinations."""
Best = Callable[[Picks], Picks]
"""The best one of several combinations."""

COMBINATIONS = 103**2
"""About how many combinations of thresholds are tried: with two groups, 100 cuts and three more each."""
GRID = 3
"""Most groups for which all combinations are tried; with more, each group's cuts are tried in turn."""
BINS = 256
"""Of the score histograms that clients send: equal steps of probability."""
EDGES: NDArray[np.float32] = np.array([math.log(k / (BINS - k)) for k in range(1, BINS)], dtype=np.float32)
"""The scores between the bins."""


def histogram(margins: Margins) -> NDArray[np.int64]:
    """(groups, 2, bins) rows by group, label and score: sums, so that clients' can be added."""
    bins = [np.bincount(np.searchsorted(EDGES, scores, side="left"), minlength=BINS) for scores in margins]
    return np.stack(bins).astype(np.int64).reshape(-1, 2, BINS)


def auc(rows: NDArray[np.int64]) -> Values:
    """The area under the ROC curve from (..., groups, 2, bins) rows by score; equal scores count one half.

    >>> float(auc(np.array([[[3, 1], [0, 4]]])))
    0.875
    """
    negative, positive = (rows[..., label, :].sum(axis=-2) for label in (0, 1))
    below = np.cumsum(negative, axis=-1) - negative
    pairs = negative.sum(axis=-1) * positive.sum(axis=-1)
    won = (positive * (below + 0.5 * negative)).sum(axis=-1)
    return np.asarray(np.divide(won, pairs, out=np.full(np.shape(won), np.nan), where=pairs > 0))


def auc_deviations(rows: NDArray[np.int64]) -> Values:
    """The standard deviation of `auc` over people, by the placements of DeLong et al. (1988).

    >>> float(auc_deviations(np.array([[[3, 1], [0, 4]]])).round(3))
    0.125
    """
    negative, positive = (rows[..., label, :].sum(axis=-2) for label in (0, 1))
    area, variance = auc(rows)[..., None], 0.0
    placed = np.cumsum(negative, axis=-1) - 0.5 * negative
    outdone = positive.sum(axis=-1, keepdims=True) - np.cumsum(positive, axis=-1) + 0.5 * positive
    for people, wins, others in ((positive, placed, negative), (negative, outdone, positive)):
        number, rivals = (part.sum(axis=-1, keepdims=True) for part in (people, others))
        with np.errstate(invalid="ignore", divide="ignore"):
            squares = people * (wins / rivals - area) ** 2
            variance = variance + squares.sum(axis=-1) / ((number - 1) * number)[..., 0]
    return np.asarray(np.sqrt(variance))


def choose_from_scores(
    margins: Margins, fairness: Metric, tolerance: float, keep: float, against: str
) -> Values:
    """(groups,) the thresholds, from rows' own scores."""
    groups = len(margins) // 2
    each = round(COMBINATIONS ** (1 / (groups if groups <= GRID else 2))) - 3
    cuts = [_cuts(np.concatenate(margins[2 * g : 2 * g + 2]), each) for g in range(groups)]
    counts = [_counts(margins[2 * g], margins[2 * g + 1], cuts[g]) for g in range(groups)]
    return _choose(cuts, counts, fairness, tolerance, keep, against)


def choose_from_histogram(
    rows: NDArray[np.int64],
    fairness: Metric,
    tolerance: float,
    keep: float,
    against: str,
    bound: float = math.inf,
) -> Values:
    """(groups,) the thresholds, from how many rows of each (group, label) have which score.

    Of those that reach a bound of fairness, the most accurate are taken.
    """
    groups = len(rows)
    each = round((BINS + 1) ** (2 / groups if groups <= GRID else 1)) - 3
    ends = np.concatenate([[-np.inf], EDGES.astype(np.float64), [np.inf]])
    cuts, counts = [], []
    for group_rows in rows:
        below = np.concatenate([np.zeros((2, 1), dtype=np.int64), group_rows.cumsum(axis=1)], axis=1)
        ranks = np.searchsorted(below.sum(axis=0), np.linspace(0, group_rows.sum(), each), side="left")
        indices = np.unique([*ranks, 0, BINS // 2, BINS])
        cuts.append(ends[indices])
        rejected = below[:, indices].T
        counts.append(np.stack([rejected, group_rows.sum(axis=1) - rejected], axis=-1))
    return _choose(cuts, counts, fairness, tolerance, keep, against, bound)


def apply(margins: Margins, thresholds: Values) -> Counts:
    """(groups, 2, 2) counts of the predictions under the thresholds."""
    return np.stack(
        [
            _counts(margins[2 * g], margins[2 * g + 1], thresholds[g : g + 1])[0]
            for g in range(len(thresholds))
        ]
    )


def apply_to_histogram(rows: NDArray[np.int64], thresholds: Values) -> Counts:
    """The same as `apply`, for thresholds that were chosen from a histogram: they are ends of bins."""
    ends = np.concatenate([[-np.inf], EDGES.astype(np.float64), [np.inf]])
    counts = np.zeros((*rows.shape[:2], 2), dtype=np.int64)
    for group, index in enumerate(np.searchsorted(ends, thresholds, side="left")):
        counts[group, :, 0] = rows[group, :, :index].sum(axis=-1)
        counts[group, :, 1] = rows[group, :, index:].sum(axis=-1)
    return counts


def _choose(
    cuts: list[Values],
    counts: list[Counts],
    fairness: Metric,
    tolerance: float,
    keep: float,
    against: str,
    bound: float = math.inf,
) -> Values:
    """The fairest combination whose accuracy and skill suffice; of equally fair ones, the most accurate.

    Accuracy may fall by ``tolerance`` below that of the ``best`` combination or of the model's ``own``
    decisions, and balanced accuracy must keep a share ``keep`` of what its own has above one half.
    """
    groups = range(len(cuts))
    own = np.array([int(np.flatnonzero(cuts[g] == 0.0)[-1]) for g in groups])

    def counted(picks: Picks) -> Counts:
        return np.stack([counts[g][picks[:, g]] for g in groups], axis=1)

    undecided = counted(own[None])[0]
    reference = accuracy(undecided)
    if against == "best":
        most = [int((counts[g][:, 0, 0] + counts[g][:, 1, 1]).argmax()) for g in groups]
        reference = accuracy(counted(np.array([most]))[0])
    skill = balanced_accuracy(undecided) - 0.5

    def best(picks: Picks) -> Picks:
        together = counted(picks)
        accuracies, scores = accuracy(together), np.nan_to_num(fairness(together), nan=-1.0)
        scores = np.minimum(scores, bound)
        good = accuracies >= reference - tolerance
        if keep > 0:
            good &= ~(balanced_accuracy(together) - 0.5 < keep * skill - 1e-12)
        scores = np.where(good, scores, -2.0)
        return np.asarray(picks[np.lexsort((accuracies, scores))[-1]])

    if len(cuts) <= GRID:
        every = np.stack(np.meshgrid(*(np.arange(len(c)) for c in cuts), indexing="ij"), axis=-1)
        chosen = best(every.reshape(-1, len(cuts)))
    else:
        chosen = _one_by_one(own, cuts, counts, best)
    return np.array([cuts[g][chosen[g]] for g in groups])


def _one_by_one(
    own: Picks, cuts: list[Values], counts: list[Counts], best: Callable[[Picks], Picks]
) -> Picks:
    """Begin with the best of equal rates for all groups; then improve one group's cut after another."""
    starts = [own]
    with np.errstate(invalid="ignore", divide="ignore"):
        selection = [group[:, :, 1].sum(axis=1) / group.sum(axis=(1, 2)) for group in counts]
        opportunity = [group[:, 1, 1] / group[:, 1].sum(axis=1) for group in counts]
    for rates in (selection, opportunity):
        for target in np.linspace(0, 1, 101):
            starts.append(np.array([np.abs(np.nan_to_num(rate) - target).argmin() for rate in rates]))
    current = best(np.stack(starts))
    for _ in range(_PASSES):
        before = current
        for g in range(len(cuts)):
            picks = np.repeat(current[None], len(cuts[g]), axis=0)
            picks[:, g] = np.arange(len(cuts[g]))
            current = best(picks)
        if (current == before).all():
            break
    return current


_PASSES = 20


def _cuts(scores: NDArray[np.float32], count: int) -> Values:
    """Thresholds to try: accept everybody, nobody, and cuts between evenly spaced ranks; and 0."""
    if not len(scores):
        return np.zeros(1)
    ordered = np.unique(scores).astype(np.float64)
    cuts = (ordered[1:] + ordered[:-1]) / 2
    kept = cuts[np.linspace(0, len(cuts) - 1, min(count, len(cuts))).round().astype(int)]
    return np.concatenate([[ordered[0] - 1], kept, [ordered[-1] + 1, 0.0]])


def _counts(negatives: NDArray[Any], positives: NDArray[Any], thresholds: Values) -> Counts:
    """(thresholds, 2, 2) counts by label and prediction of one group."""
    rows = []
    for scores in (negatives, positives):
        rejected = np.searchsorted(np.sort(scores).astype(np.float64), thresholds, side="right")
        rows.append(np.stack([rejected, len(scores) - rejected], axis=-1))
    return np.stack(rows, axis=-2).astype(np.int64)
