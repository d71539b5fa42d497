"""A calibrated step towards fairness at the server, after each round (after EquFL, arXiv 2601.05352)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fairfate.fairness.metrics import Statistics, Values
from fairfate.strategies.hyperparameters import RUN_METRIC, GroupMetric, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Strategy,
    divide,
    over_labels,
)
from fairfate.sums import norm


def unfairness_slope(now: Statistics, metric: str) -> Values:
    """(groups, 2) what P(1) of a row adds to the spread of the groups' mean P(1), as a mean over all rows.

    The spread is the sum of squared distances of each group's mean from the mean of the groups: over all rows
    (``sp``), those of label 1 (``eo``) or those of each label (``eqo``). Groups without rows do not count.
    """
    p, rows = now.probability, now.rows
    if metric == "sp":
        p, rows = over_labels(p), over_labels(rows)
    means, there = divide(p, rows), rows > 0
    middle = np.where(there, means, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
    slope = np.where(there, 2 * (means - middle) * now.rows.sum() / np.maximum(rows, 1), 0.0)
    return np.asarray(slope * (np.array([0.0, 1.0]) if metric == "eo" else 1.0))


@register(
    "server_step",
    "fedavg, and after each round a step towards fairness on the server's rows",
    "after arXiv 2601.05352",
)
def server_step(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    rho: Annotated[float, Range(0, 10), "length of the step, as a share of the round's update"] = 0.3,
    target: Annotated[float, Range(0, 1), "fairness from which on no step is taken"] = 1.0,
) -> Strategy:
    r"""FedAvg, and then a step down the spread of the groups' mean predictions on the validation rows.

    .. math:: \theta \leftarrow \theta + \alpha_N - \rho \lVert \alpha_N \rVert \, g / \lVert g \rVert,
        \quad g = \nabla \textstyle\sum_s (q_s - \bar q)^2 \text{ at } \theta + \alpha_N

    q_s is the mean prediction of group s.

    Notes
    -----
    EquFL takes such a step on generated rows; here the server's validation rows are used.

    References
    ----------
    This project, 2026, after EquFL, arXiv 2601.05352.

    Examples
    --------
    >>> server_step(rho=0.5).text
    'server_step:rho=0.5'
    """
    fairness = setup.fairness(metric)

    def loss(now: Statistics) -> LossTerms:
        return LossTerms(np.zeros(now.rows.shape), unfairness_slope(now, metric))

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        update = cohort.mean(cohort.num_examples)
        params = state.params + update
        fair = bool(fairness(cohort.server_counts) >= target)
        if rho == 0 or fair:
            return ModelState(params, {"stepped": 0.0})
        down = cohort.get(Need.DESCENT)(params, loss)
        lengths = [norm(update), norm(down)]
        if not lengths[1] > 0 or not np.isfinite(lengths[1]):
            return ModelState(params, {"stepped": 0.0})
        step = (rho * lengths[0] / lengths[1] * down).astype(params.dtype)
        return ModelState(params + step, {"stepped": 1.0})

    return Strategy(ModelState, aggregate, needs={Need.DESCENT})
