"""Averaging by validation fairness (FedVal, Mehrabi et al. 2022)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fairfate.fairness.metrics import Counts
from fairfate.strategies.guards import MinMcc, guard
from fairfate.strategies.hyperparameters import EXTENSION, RUN_METRIC, Objective, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import Cohort, ModelState, Strategy, needs_of, score_own, scores


@register("fedval", "mean of the clients' models, weighted by validation fairness", "Mehrabi et al. 2022")
def fedval(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    floor: Annotated[float, Range(0, 1), EXTENSION, "added to every score"] = 0.001,
    sharpness: Annotated[float, Range(0, 100), EXTENSION, "power of a score"] = 1.0,
    min_mcc: MinMcc = 0.0,
) -> Strategy:
    r"""Average the clients' models by their fairness on the validation rows.

    .. math:: \theta \leftarrow \sum_k (F_k + c)^\kappa \theta_k \, / \, \sum_k (F_k + c)^\kappa

    c is the ``floor``, kappa the ``sharpness``. An undefined score counts as 0. If no client has a weight,
    all count by their rows. Of several metrics F is the weighted mean.

    Notes
    -----
    Under secure sums each client scores its own model. If too few clients have a weight for their sum to be
    opened, or too few have none, all count by their rows.

    The rule is that of FAIR-FATE's experiments, which add 0.001 to each score and sum several metrics (a sum
    of M is their mean with a floor of c / M). It was not compared with the score of Mehrabi et al., whose
    full text was not at hand. ``sharpness`` and ``min_mcc`` are ours.

    References
    ----------
    Mehrabi, de Lichy, McKay, He, Campbell, "Towards Multi-Objective Statistically Fair Federated
    Learning", arXiv 2201.09917, 2022.

    Examples
    --------
    >>> fedval(metric="0.5*sp+0.5*accuracy").text
    'fedval:metric=0.5*sp+0.5*accuracy'
    """
    fairness = setup.objective(metric, min_mcc)

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        if cohort.summed is not None:
            is_weighted = cohort.summed.members > 0 and cohort.summed.mean is not None
            mean = cohort.summed.mean if is_weighted else cohort.mean(cohort.num_examples)
            return ModelState(state.params + mean)
        fairness_of = np.nan_to_num(scores(fairness, cohort)[0], nan=0.0)
        weights = (fairness_of + floor) ** sharpness * cohort.eligible
        used = weights if weights.sum() > 0 else cohort.num_examples
        return ModelState(state.params + cohort.mean(used))

    def weigh(own: Counts, received: Counts) -> float:
        score = float(np.nan_to_num(score_own(fairness, own, received)[0], nan=0.0)[0])
        return float(max(0.0, (score + floor) / (1 + floor)) ** sharpness)  # a share of the largest one

    strategy = Strategy(ModelState, aggregate, needs=needs_of(fairness), weigh=weigh)
    return guard(strategy, min_mcc=min_mcc or None)
