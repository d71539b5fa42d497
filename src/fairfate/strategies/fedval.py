"""Averaging by validation fairness (FedVal, Mehrabi et al. 2022)."""

from __future__ import annotations

import numpy as np

from fairfate.fairness.metrics import Metric
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.settings import METRIC
from fairfate.strategies.strategy import Cohort, ModelState, Need, Strategy, weighted_mean

FLOOR = 0.001
"""Added to every score, so that a round of unfair clients still has a mean."""


def fedval(fairness: Metric) -> Strategy:
    r"""Average the clients' models by their fairness on the validation rows.

    .. math:: \theta \leftarrow \sum_k (F_k + 0.001) \theta_k \, / \, \sum_k (F_k + 0.001)

    An undefined score counts as 0.
    """

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        scores = np.nan_to_num(fairness(cohort.client_counts), nan=0.0)
        return ModelState(state.params + weighted_mean(cohort.deltas, scores + FLOOR))

    return Strategy(ModelState, aggregate, needs=Need.SCORES)


@register(
    "fedval",
    "mean of the clients' models, weighted by validation fairness",
    "Mehrabi et al. 2022",
    metric=METRIC,
)
def _build(setup: Setup, metric: str) -> Strategy:
    return fedval(setup.fairness(metric))
