"""Fed-FairGrad: loss weights that follow the groups' error rates (Maheshwari and Perrot 2023)."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from fairfate.fairness.metrics import Values
from fairfate.strategies.hyperparameters import RUN_METRIC, GroupMetric, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    CellRows,
    Cohort,
    Need,
    Notes,
    Strategy,
    Vector,
    broadcast_weights,
)
from fairfate.sums import product


class FairGradState(NamedTuple):
    """The model, and the multipliers of each (group, label)."""

    params: Vector
    up: Vector
    low: Vector
    better: Vector
    """How much better off each (group, label) was when it was last seen."""
    weight: Vector
    """(groups * 2,) of a row in its client's loss; empty before the first round."""
    notes: Notes = NO_NOTES


def constraints(metric: str, rows: CellRows) -> tuple[Values, Values]:
    """``C`` and ``c`` of ``f = c + C err``: how much better off each (group, label) is than it should be."""
    groups = len(rows)
    m = rows.astype(np.float64)
    n, of_group, of_label = m.sum(), m.sum(axis=1), np.maximum(m.sum(axis=0), 1)
    matrix, constant = np.zeros((groups, 2, groups, 2)), np.zeros((groups, 2))
    for g in range(groups):
        for y in range(2):
            if metric == "sp":
                share = m / n
                share[g] -= m[g] / max(of_group[g], 1)
                matrix[g, y, :, y], matrix[g, y, :, 1 - y] = share[:, y], -share[:, 1 - y]
                constant[g, y] = m[g, y] / max(of_group[g], 1) - m.sum(axis=0)[y] / n
            elif metric == "eqo" or y == 1:
                matrix[g, y, :, y] = m[:, y] / of_label[y]
                matrix[g, y, g, y] -= 1
    return matrix.reshape(2 * groups, -1), constant.ravel()


@register(
    "fairgrad", "fedavg; loss weights that follow the groups' error rates", "Maheshwari and Perrot 2023"
)
def fairgrad(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    rate: Annotated[float, Range(0, 10), "step of the multipliers"] = 0.01,
    epsilon: Annotated[float, Range(0, 1), "tolerated gap"] = 0.0,
    floor: Annotated[float, Range(-100, 1), "least weight of a row; below 0 its loss is raised"] = -1.0,
) -> Strategy:
    r"""FedAvg; loss weights rise for the (group, label) strata that are worse off.

    .. math::
        f &= c + C \,\text{err}, \quad u \leftarrow \max(0, u + \eta (f - \epsilon)), \quad
             l \leftarrow \max(0, l - \eta (f + \epsilon)) \\
        w_k &= (P_k + ((u - l)^T C)_k) / P_k

    Notes
    -----
    The paper is not federated: it moves the multipliers after every batch. Here the server does so after
    every round. ``floor`` is not in the paper.

    References
    ----------
    Maheshwari, Perrot, "FairGrad: Fairness Aware Gradient Descent", TMLR 2023.

    Examples
    --------
    >>> fairgrad(rate=0.02).text
    'fairgrad:rate=0.02'
    """

    def init(params: Vector) -> FairGradState:
        return FairGradState(params, np.empty(0), np.empty(0), np.empty(0), np.empty(0))

    def aggregate(state: FairGradState, cohort: Cohort) -> FairGradState:
        counts = cohort.get(Need.REPORTS).counts.sum(axis=0)
        rows = counts.sum(axis=-1)
        up, low, better, weight = step(counts, state.up, state.low, state.better)
        params = state.params + cohort.mean(cohort.num_examples)
        gap = float(better.max() - better.min())
        return FairGradState(params, up, low, better, weight.ravel(), {"gap": gap, "rows": float(rows.sum())})

    def step(
        counts: Vector, up: Vector, low: Vector, better: Vector
    ) -> tuple[Vector, Vector, Vector, Vector]:
        rows = counts.sum(axis=-1)
        wrong = np.stack([counts[:, 0, 1], counts[:, 1, 0]], axis=1)
        error = (wrong / np.maximum(rows, 1)).ravel()
        matrix, constant = constraints(metric, rows)
        if not len(up):
            up = low = better = np.zeros(rows.size)
        better = np.where(rows.ravel() > 0, constant + product(matrix, error), better)
        up = np.maximum(0, up + rate * (better - epsilon))
        low = np.maximum(0, low - rate * (better + epsilon))
        share = rows.ravel() / rows.sum()
        weight = np.where(share > 0, 1 + product(matrix.T, up - low) / np.where(share > 0, share, 1), 1.0)
        return up, low, better, np.maximum(weight, floor)

    return Strategy(
        init,
        aggregate,
        broadcast=lambda state, rows: state.weight,
        local_loss=broadcast_weights,
        needs={Need.REPORTS},
    )
