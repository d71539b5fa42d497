"""Fairlearn's methods on pooled rows. Their decisions are random; the seed fixes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fairlearn import postprocessing, reductions
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from fairfate.fairness.metrics import Counts
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows

BOUND = 0.01
"""Of the difference that ExponentiatedGradient allows."""
RULES = {"sp": "demographic_parity", "eo": "true_positive_rate_parity", "eqo": "equalized_odds"}
MOMENTS = {
    "sp": reductions.DemographicParity,
    "eo": reductions.TruePositiveRateParity,
    "eqo": reductions.EqualizedOdds,
}
Measured = tuple[str, str, Counts, Counts]
"""Setting, metric, counts on the validation and on the test rows."""


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A trained model's scores, as fairlearn asks for them."""

    def __init__(self, score: Callable[[NDArray[np.float32]], NDArray[np.float64]]) -> None:
        self.score = score
        self.classes_ = np.array([0, 1])

    def fit(self, x: Any, y: Any) -> Scores:
        """It is fitted already."""
        return self

    def predict_proba(self, x: Any) -> NDArray[np.float64]:
        """Both labels' probabilities."""
        p = self.score(np.asarray(x, dtype=np.float32))
        return np.stack([1 - p, p], axis=1)


def optimized(model: Model, params: Models, federation: Federation, seed: int) -> Iterator[Measured]:
    """ThresholdOptimizer on a trained model, fitted on the validation rows."""

    def score(x: NDArray[np.float32]) -> NDArray[np.float64]:
        packed = PackedRows.pack(x, np.zeros(len(x), dtype=np.int64), 1)
        margins = model.margins(params, packed)[0].astype(np.float64)
        return np.asarray(1 / (1 + np.exp(-margins)))

    parts = [_rows(rows, federation.inputs) for rows in (federation.validation, federation.test)]
    for metric, rule in RULES.items():
        optimizer = postprocessing.ThresholdOptimizer(
            estimator=Scores(score), prefit=True, predict_method="predict_proba", constraints=rule
        )
        x, y, group = parts[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer.fit(x, y, sensitive_features=group)
        validation, test = (
            _counts(y, g, optimizer.predict(x, sensitive_features=g, random_state=seed), federation.groups)
            for x, y, g in parts
        )
        yield f"pooled_threshold_optimizer:metric={metric}", metric, validation, test


def reduced(federation: Federation, seed: int) -> Iterator[Measured]:
    """ExponentiatedGradient on logistic regression, fitted on all training rows."""
    rows = federation.rows
    x, group = rows.x.reshape(len(rows), -1), rows.cell // 2
    parts = [_rows(packed, federation.inputs) for packed in (federation.validation, federation.test)]
    for metric, moment in MOMENTS.items():
        mitigator = reductions.ExponentiatedGradient(
            LogisticRegression(solver="newton-cholesky", max_iter=100),
            moment(difference_bound=BOUND),
            max_iter=10,
        )
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")  # fairlearn's own, about newer versions of pandas
            mitigator.fit(x, rows.y.astype(np.int64), sensitive_features=group)
        validation, test = (
            _counts(y, g, mitigator.predict(inputs, random_state=seed), federation.groups)
            for inputs, y, g in parts
        )
        yield f"pooled_exponentiated_gradient:metric={metric},bound={BOUND}", metric, validation, test


def _rows(
    packed: PackedRows, inputs: int
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Inputs, labels and groups, cell by cell."""
    cell = np.repeat(np.arange(packed.cells), packed.sizes)
    return packed.plain(inputs), cell % 2, cell // 2


def _counts(
    label: NDArray[np.int64], group: NDArray[np.int64], accepted: NDArray[Any], groups: int
) -> Counts:
    index = (group * 2 + label) * 2 + np.asarray(accepted).astype(np.int64)
    return np.bincount(index, minlength=4 * groups).reshape(groups, 2, 2)
