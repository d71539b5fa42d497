"""Averaging by validation fairness (FedVal, Mehrabi et al. 2022)."""

from __future__ import annotations

import numpy as np

from fairfate.fairness.individual import Fairness
from fairfate.strategies.guard import MIN_MCC, able
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.settings import METRIC, Number
from fairfate.strategies.strategy import Cohort, ModelState, Strategy, needs_of, scores

FLOOR = 0.001
"""Added to every score, so that a round of unfair clients still has a mean."""


def fedval(
    fairness: Fairness, *, floor: float = FLOOR, sharpness: float = 1.0, min_mcc: float = 0.0
) -> Strategy:
    r"""Average the clients' models by their fairness on the validation rows.

    .. math:: \theta \leftarrow \sum_k (F_k + c)^\kappa \theta_k \, / \, \sum_k (F_k + c)^\kappa

    An undefined score counts as 0.

    Parameters
    ----------
    fairness : F; of several metrics, their weighted mean. A sum of M metrics, as in the
        published runs, is their mean with a floor of c / M
    floor : c
    sharpness : kappa; the larger, the more the fairest client counts
    min_mcc : clients whose model has a lower MCC do not count; if none has more, all count by their rows
    """

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        fairness_of = np.nan_to_num(scores(fairness, cohort)[0], nan=0.0)
        weights = (fairness_of + floor) ** sharpness * able(cohort.client_counts, min_mcc)
        used = weights if weights.sum() > 0 else cohort.num_examples
        return ModelState(state.params + cohort.mean(used))

    return Strategy(ModelState, aggregate, needs=needs_of(fairness))


@register(
    "fedval",
    "mean of the clients' models, weighted by validation fairness",
    "Mehrabi et al. 2022",
    metric=METRIC,
    floor=Number(FLOOR, "added to every score", later=True),
    sharpness=Number(1.0, "power of a score", high=100.0, later=True),
    min_mcc=MIN_MCC,
)
def _build(
    setup: Setup, metric: str, floor: float = FLOOR, sharpness: float = 1.0, min_mcc: float = 0.0
) -> Strategy:
    return fedval(setup.objective(metric, min_mcc), floor=floor, sharpness=sharpness, min_mcc=min_mcc)
