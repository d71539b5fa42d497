"""Steps after training: one decision threshold for each group, chosen on the validation rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError, check, plain, unknown
from fairfate.federation import Rows
from fairfate.metrics import Counts, Metric, accuracy
from fairfate.strategies.registry import METRIC, Number

Margins = list[NDArray[np.float32]]
"""Scores of the rows of each (group, label) cell."""

COMBINATIONS = 103**2
"""About how many combinations of thresholds are tried: with two groups, 100 cuts and three more each."""
MOST_GROUPS = 6
_TOLERANCE = Number(0.02, "validation accuracy that may be given up")


@dataclass(frozen=True)
class Thresholds:
    """Accept a row of group g when its score exceeds the group's threshold.

    Among the combinations whose validation accuracy is within ``tolerance`` of the best one's, the fairest
    on the validation rows; of equally fair ones, the most accurate. It needs the group at prediction time.
    """

    metric: str
    tolerance: float

    name = "thresholds"

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"thresholds:metric={self.metric},tolerance={plain(self.tolerance)}"


def parse_post(text: str, metric: str) -> Thresholds:
    """Read ``thresholds[:metric=...,tolerance=...]``.

    >>> parse_post("thresholds:tolerance=0.05", "eo").text
    'thresholds:metric=eo,tolerance=0.05'
    """
    name, _, rest = text.partition(":")
    if name != "thresholds":
        raise unknown("post step", name, ["thresholds"])
    given: dict[str, str] = {"metric": metric, "tolerance": str(_TOLERANCE.default)}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"post '{text}' must be thresholds:key=value,..., got '{pair}'")
        if key not in given:
            raise unknown("setting of thresholds", key, given)
        given[key] = value
    return Thresholds(
        METRIC.parse(given["metric"], "thresholds: metric"),
        _TOLERANCE.parse(given["tolerance"], "thresholds: tolerance"),
    )


def choose(margins: Margins, fairness: Metric, tolerance: float) -> NDArray[np.float64]:
    """(groups,) the thresholds."""
    groups = len(margins) // 2
    check(groups <= MOST_GROUPS, f"thresholds must be for at most {MOST_GROUPS} groups", groups)
    each = max(2, round(COMBINATIONS ** (1 / groups)) - 3)
    candidates = [_candidates(np.concatenate(margins[2 * g : 2 * g + 2]), each) for g in range(groups)]
    counts = [_counts(margins[2 * g], margins[2 * g + 1], candidates[g]) for g in range(groups)]
    picks = np.stack(np.meshgrid(*(np.arange(len(c)) for c in candidates), indexing="ij"), axis=-1)
    picks = picks.reshape(-1, groups)
    together = np.stack([counts[g][picks[:, g]] for g in range(groups)], axis=1)
    accuracies, scores = accuracy(together), np.nan_to_num(fairness(together), nan=-1.0)
    scores = np.where(accuracies >= accuracies.max() - tolerance, scores, -2.0)
    best = np.lexsort((accuracies, scores))[-1]
    return np.array([candidates[g][picks[best, g]] for g in range(groups)])


def apply(margins: Margins, thresholds: NDArray[np.float64]) -> Counts:
    """(groups, 2, 2) counts of the predictions under the thresholds."""
    return np.stack(
        [
            _counts(margins[2 * g], margins[2 * g + 1], thresholds[g : g + 1])[0]
            for g in range(len(thresholds))
        ]
    )


def post_counts(
    step: Thresholds,
    fairness: Metric,
    model: NDArray[np.float32],
    validation: Rows,
    test: Rows,
    hidden: int,
) -> tuple[Counts, Counts]:
    """Counts of a model on the validation and test rows after the step."""
    seen = validation.margins(model, hidden)
    thresholds = choose(seen, fairness, step.tolerance)
    return apply(seen, thresholds), apply(test.margins(model, hidden), thresholds)


def _candidates(scores: NDArray[np.float32], count: int) -> NDArray[np.float64]:
    """Thresholds to try: accept everybody, nobody, and cuts between evenly spaced ranks; and 0."""
    if not len(scores):
        return np.zeros(1)
    ordered = np.unique(scores).astype(np.float64)
    cuts = (ordered[1:] + ordered[:-1]) / 2
    kept = cuts[np.linspace(0, len(cuts) - 1, min(count, len(cuts))).round().astype(int)]
    return np.concatenate([[ordered[0] - 1], kept, [ordered[-1] + 1, 0.0]])


def _counts(
    negatives: NDArray[np.float32], positives: NDArray[np.float32], thresholds: NDArray[np.float64]
) -> Counts:
    """(thresholds, 2, 2) counts by label and prediction of one group."""
    rows = []
    for scores in (negatives, positives):
        rejected = np.searchsorted(np.sort(scores).astype(np.float64), thresholds, side="right")
        rows.append(np.stack([rejected, len(scores) - rejected], axis=-1))
    return np.stack(rows, axis=-2).astype(np.int64)
