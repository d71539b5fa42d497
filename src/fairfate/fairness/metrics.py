"""Fairness and performance of a classifier, from counts by (group, label, prediction).

All functions take ``counts`` of shape ``(..., groups, 2, 2)`` (see `count`) and return one value for each
leading index, so a whole history of models is measured in one call. Nothing is rounded. A rate whose
denominator is empty is undefined, and whatever depends on it is NaN.

Ratios compare the least with the most favoured group: 1 means equal rates, and two rates of 0 are equal.
Differences are most minus least: 0 means equal rates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairfate.errors import check

Counts = NDArray[np.int64]
Values = NDArray[np.float64]
Metric = Callable[[Counts], Values]
CellRows = NDArray[np.int64]
"""(..., groups, 2) rows by group and label."""


class Statistics(NamedTuple):
    """A model's performance on some rows: sums by group and label, which can be added over clients.

    Examples
    --------
    >>> counts = np.array([[[3, 1], [1, 5]], [[4, 0], [2, 4]]])  # by group, label and prediction
    >>> probability, loss = np.array([[1.2, 4.8], [0.7, 3.9]]), np.array([[0.9, 1.1], [0.6, 2.0]])
    >>> statistics = Statistics(counts, probability, loss)
    >>> statistics.rows.tolist()
    [[4, 6], [4, 6]]
    """

    counts: Counts
    """(..., groups, 2, 2) rows by group, label and prediction."""
    probability: Values
    """(..., groups, 2) sum of the predicted P(label = 1)."""
    loss: Values
    """(..., groups, 2) sum of the cross-entropy."""

    @property
    def rows(self) -> CellRows:
        """(..., groups, 2) rows by group and label."""
        return np.asarray(self.counts.sum(axis=-1))

    def total(self) -> Statistics:
        """Sum over all clients.

        Returns
        -------
        the sums, without the clients' axis

        Examples
        --------
        >>> counts, sums = np.ones((3, 2, 2, 2), dtype=int), np.ones((3, 2, 2))
        >>> Statistics(counts, sums, sums).total().loss.tolist()
        [[3.0, 3.0], [3.0, 3.0]]
        """
        return Statistics(self.counts.sum(axis=0), self.probability.sum(axis=0), self.loss.sum(axis=0))


def count(y_true: ArrayLike, y_pred: ArrayLike, *, group: ArrayLike, groups: int | None = None) -> Counts:
    """Count rows by (group, label, prediction).

    Parameters
    ----------
    y_true, y_pred : labels and predictions, 0 or 1
    group : group of each row, 0, 1, ...
    groups : number of groups, where the last ones may have no row

    Returns
    -------
    (groups, 2, 2) counts

    Examples
    --------
    >>> count([1, 1, 0, 0], [1, 0, 0, 1], group=[0, 0, 1, 1]).tolist()
    [[[0, 0], [1, 1]], [[1, 1], [0, 0]]]
    """
    true, predicted, number = np.asarray(y_true), np.asarray(y_pred), np.asarray(group)
    check(
        true.shape == predicted.shape == number.shape and true.ndim == 1,
        "y_true, y_pred and group must have one value for each row",
        f"shapes {true.shape}, {predicted.shape} and {number.shape}",
    )
    for name, values in (("y_true", true), ("y_pred", predicted)):
        invalid = values[~np.isin(values, (0, 1))]
        check(not len(invalid), f"{name} must be 0 or 1", invalid[0] if len(invalid) else "")
    is_number = bool((number >= 0).all() and (number == number.astype(np.int64)).all())
    check(is_number, "group must be 0, 1, ...", number)
    groups = int(number.max(initial=-1)) + 1 if groups is None else groups
    cell = (number.astype(np.int64) * 2 + true.astype(np.int64)) * 2 + predicted.astype(np.int64)
    return np.bincount(cell, minlength=groups * 4).astype(np.int64).reshape(groups, 2, 2)


def measure(y_true: ArrayLike, y_pred: ArrayLike, *, group: ArrayLike) -> dict[str, float]:
    """Every metric of this module for one set of predictions.

    Parameters
    ----------
    y_true : labels, 1 for the favourable outcome and 0 for the other
    y_pred : predictions, 1 or 0
    group : each row's group, as numbers or texts

    Returns
    -------
    the metrics by name; NaN where one is undefined

    Examples
    --------
    >>> scores = measure([1, 1, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1], group=[0, 0, 0, 1, 1, 1])
    >>> round(scores["sp"], 3), round(scores["eo"], 3), round(scores["accuracy"], 3)
    (0.333, 0.5, 0.667)
    """
    number = np.asarray(group)
    if number.ndim == 1 and number.dtype.kind not in "biuf":
        number = np.unique(number.astype(str), return_inverse=True)[1]
    counts = count(y_true, y_pred, group=number)
    return {name: float(metric(counts)) for name, metric in METRICS.items()}


def _share(part: NDArray[Any], whole: NDArray[Any]) -> Values:
    """``part / whole``, NaN where there is nothing to share."""
    share: Values = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return share


def selection_rates(counts: Counts) -> Values:
    """P(prediction = 1 | group), for each group."""
    accepted = counts[..., 0, 1] + counts[..., 1, 1]
    return _share(accepted, accepted + counts[..., 0, 0] + counts[..., 1, 0])


def true_positive_rates(counts: Counts) -> Values:
    """P(prediction = 1 | group, label = 1), for each group."""
    return _share(counts[..., 1, 1], counts[..., 1, 1] + counts[..., 1, 0])


def false_positive_rates(counts: Counts) -> Values:
    """P(prediction = 1 | group, label = 0), for each group."""
    return _share(counts[..., 0, 1], counts[..., 0, 1] + counts[..., 0, 0])


def _extremes(rates: Values) -> tuple[Values, Values]:
    """The least and the largest rate; NaN if any is. Groups are few, so this beats a reduction."""
    low = high = rates[..., 0]
    for group in range(1, rates.shape[-1]):
        low, high = np.minimum(low, rates[..., group]), np.maximum(high, rates[..., group])
    return low, high


def _ratio(rates: Values) -> Values:
    low, high = _extremes(rates)
    ratio: Values = np.divide(low, high, out=np.ones(low.shape), where=high != 0)
    return ratio


def _difference(rates: Values) -> Values:
    low, high = _extremes(rates)
    return high - low


def sp(counts: Counts) -> Values:
    """Statistical parity: ratio of the selection rates. 1 is fair."""
    return _ratio(selection_rates(counts))


def eo(counts: Counts) -> Values:
    """Equality of opportunity: ratio of the true positive rates. 1 is fair."""
    return _ratio(true_positive_rates(counts))


def eqo(counts: Counts) -> Values:
    """Equalized odds: mean of the ratios of true and of false positive rates. 1 is fair."""
    rates = _share(counts[..., 1], counts[..., 0] + counts[..., 1])  # of both labels in one pass
    ratios = _ratio(np.swapaxes(rates, -1, -2))
    mean: Values = (ratios[..., 1] + ratios[..., 0]) / 2
    return mean


def sp_diff(counts: Counts) -> Values:
    """Difference of the selection rates. 0 is fair."""
    return _difference(selection_rates(counts))


def eo_diff(counts: Counts) -> Values:
    """Difference of the true positive rates. 0 is fair."""
    return _difference(true_positive_rates(counts))


def eqo_diff(counts: Counts) -> Values:
    """Mean of the differences of true and of false positive rates. 0 is fair."""
    return (eo_diff(counts) + _difference(false_positive_rates(counts))) / 2


def _confusion(counts: Counts) -> tuple[Values, Values, Values, Values]:
    """True negatives, false positives, false negatives, true positives over all groups."""
    both = counts.sum(axis=-3).astype(np.float64)
    return both[..., 0, 0], both[..., 0, 1], both[..., 1, 0], both[..., 1, 1]


def accuracy(counts: Counts) -> Values:
    """Share of right predictions."""
    tn, fp, fn, tp = _confusion(counts)
    return _share(tn + tp, tn + fp + fn + tp)


def balanced_accuracy(counts: Counts) -> Values:
    """Mean of the shares of right predictions among the two labels."""
    tn, fp, fn, tp = _confusion(counts)
    return (_share(tp, tp + fn) + _share(tn, tn + fp)) / 2


def f1(counts: Counts) -> Values:
    """Harmonic mean of precision and recall; NaN when label 1 neither occurs nor is predicted."""
    _, fp, fn, tp = _confusion(counts)
    return _share(2 * tp, 2 * tp + fp + fn)


def mcc(counts: Counts) -> Values:
    """Matthews correlation coefficient; 0 when only one label occurs or is predicted."""
    tn, fp, fn, tp = _confusion(counts)
    scale = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return np.where(scale > 0, (tp * tn - fp * fn) / np.where(scale > 0, scale, 1), 0.0)


def selection_rate(counts: Counts) -> Values:
    """Share of all rows that are predicted 1; near 0 or 1, the model gives everybody one answer."""
    tn, fp, fn, tp = _confusion(counts)
    return _share(fp + tp, tn + fp + fn + tp)


def _round(values: Values) -> Values:
    return np.round(values, 2).astype(np.float64)


def _published_ratio(part: NDArray[Any], rest: NDArray[Any]) -> Values:
    """Ratio of ``part / (part + rest)`` over the groups, to two decimals; 0 where any count is 0."""
    rates = part.astype(np.float64) / np.maximum(part + rest, 1)
    usable = (part > 0).all(axis=-1) & (rest > 0).all(axis=-1)
    return _round(np.where(usable, _ratio(rates), 0.0))


def sp_published(counts: Counts) -> Values:
    """Statistical parity as in the paper's published runs: rates p / (1 + p), two decimals."""
    accepted = counts[..., 0, 1] + counts[..., 1, 1]
    return _published_ratio(accepted, accepted + counts[..., 0, 0] + counts[..., 1, 0])


def eo_published(counts: Counts) -> Values:
    """Equality of opportunity as in the published runs: 0 when any count is 0, two decimals."""
    return _published_ratio(counts[..., 1, 1], counts[..., 1, 0])


def eqo_published(counts: Counts) -> Values:
    """Equalized odds as in the published runs: mean of two rounded ratios, rounded."""
    odds = _published_ratio(counts[..., 0, 1], counts[..., 0, 0])
    return _round((eo_published(counts) + odds) / 2)


def _signed(rates: Values) -> Values:
    """The first group's rate less the second's; with more groups, the largest less the smallest."""
    return rates[..., 0] - rates[..., 1] if rates.shape[-1] == 2 else _difference(rates)


def sp_gap(counts: Counts) -> Values:
    """Signed difference of the selection rates. 0 is fair."""
    return _signed(selection_rates(counts))


def eo_gap(counts: Counts) -> Values:
    """Signed difference of the true positive rates. 0 is fair."""
    return _signed(true_positive_rates(counts))


def eqo_gap(counts: Counts) -> Values:
    """Mean of the signed differences of true and of false positive rates. 0 is fair."""
    return (eo_gap(counts) + _signed(false_positive_rates(counts))) / 2


def _shrunk_ratio(part: NDArray[Any], whole: NDArray[Any], shrink: float) -> Values:
    """Ratio of rates that are drawn towards the overall one, the more the fewer rows a group has."""
    overall = _share(part.sum(axis=-1), whole.sum(axis=-1))[..., None]
    return _ratio((part + shrink * overall) / (whole + shrink))


def _counted_ratio(part: NDArray[Any], whole: NDArray[Any], least: float) -> Values:
    """Ratio of the rates of those groups that have ``least`` rows and 2 % of all; NaN without two such."""
    enough = whole >= np.maximum(least, _LEAST_SHARE * whole.sum(axis=-1, keepdims=True))
    rates = np.where(enough, _share(part, whole), np.nan)
    low, high = np.fmin.reduce(rates, axis=-1), np.fmax.reduce(rates, axis=-1)
    ratio = np.divide(low, high, out=np.ones(low.shape), where=high != 0)
    return np.where(enough.sum(axis=-1) < 2, np.nan, ratio)


_LEAST_SHARE = 0.02
_Ratio = Callable[[NDArray[Any], NDArray[Any], float], Values]


def _small(ratio: _Ratio) -> dict[str, Callable[..., Values]]:
    """The three fairness metrics as functions of a number and counts, where some groups are small."""

    def sp_of(number: float, counts: Counts) -> Values:
        accepted = counts[..., 0, 1] + counts[..., 1, 1]
        return ratio(accepted, accepted + counts[..., 0, 0] + counts[..., 1, 0], number)

    def eo_of(number: float, counts: Counts) -> Values:
        return ratio(counts[..., 1, 1], counts[..., 1, 1] + counts[..., 1, 0], number)

    def eqo_of(number: float, counts: Counts) -> Values:
        odds = ratio(counts[..., 0, 1], counts[..., 0, 1] + counts[..., 0, 0], number)
        return (eo_of(number, counts) + odds) / 2

    return {"sp": sp_of, "eo": eo_of, "eqo": eqo_of}


COLLAPSED = 0.05
"""A model with a lower MCC is hardly better than one answer for everybody."""

METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
    "mcc": mcc,
    "sp": sp,
    "eo": eo,
    "eqo": eqo,
    "sp_diff": sp_diff,
    "eo_diff": eo_diff,
    "eqo_diff": eqo_diff,
    "sp_published": sp_published,
    "eo_published": eo_published,
    "eqo_published": eqo_published,
}

FAIRNESS: dict[str, Metric] = {"sp": sp, "eo": eo, "eqo": eqo}
PUBLISHED_FAIRNESS: dict[str, Metric] = {
    "sp": sp_published,
    "eo": eo_published,
    "eqo": eqo_published,
}
SHRUNK, COUNTED = _small(_shrunk_ratio), _small(_counted_ratio)
"""Where groups are small: rates drawn towards the overall one, or small groups left out."""
GAPS: dict[str, Metric] = {"sp": sp_gap, "eo": eo_gap, "eqo": eqo_gap}
