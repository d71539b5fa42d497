"""FairBatch in a federation: shares of (group, label) that follow their losses (Roh et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import numpy as np

from fairfate.fairness.metrics import CellRows, Statistics, Values
from fairfate.strategies.hyperparameters import RUN_METRIC, GroupMetric, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    Cohort,
    Need,
    Notes,
    Strategy,
    Vector,
    broadcast_weights,
    divide,
    over_labels,
    rows_so_far,
)

Moves = Callable[[Statistics], Values]
"""(2,) by how much the share of group 1 among all rows of each label is to grow, from a round's sums."""


class ShareState(NamedTuple):
    """The model, and how much each (group, label) counts."""

    params: Vector
    rows: Mapping[str, Vector]
    """(groups, 2) of every client that has reported so far, by name."""
    moved: Vector
    """How far shares have moved; empty before the first round."""
    weight: Vector
    """(groups * 2,) of a row in its client's loss; empty before the first round."""
    notes: Notes = NO_NOTES


def shares_to_weights(moved: Values, rows: CellRows | Values) -> Values:
    """(2, 2) weights of rows under which ``moved[label]`` of all rows count for group 1 and not for group 0.

    >>> shares_to_weights(np.array([0.0, -0.005]), np.array([[40, 10], [40, 10]])).tolist()
    [[1.0, 1.05], [1.0, 0.95]]
    """
    share = rows / max(rows.sum(), 1)
    return np.where(share > 0, 1 + np.stack([-moved, moved]) / np.where(share > 0, share, 1), 1.0)


def moving_shares(moves: Moves) -> Strategy:
    """FedAvg on losses in which the shares of two groups among the rows of each label move by steps.

    A row weighs its cell's share divided by the cell's part of the rows of all clients that have reported so
    far, which is what drawing batches by these shares would give on average.
    """

    def aggregate(state: ShareState, cohort: Cohort) -> ShareState:
        params = state.params + cohort.mean(cohort.num_examples)
        known, rows = rows_so_far(state.rows, cohort)
        share = rows / max(rows.sum(), 1)
        before = state.moved if len(state.moved) else np.zeros(2)
        moved = np.clip(before + moves(cohort.get(Need.REPORTS).total()), -share[1], share[0])
        notes = {"moved_0": float(moved[0]), "moved_1": float(moved[1])}
        return ShareState(params, known, moved, shares_to_weights(moved, rows).ravel(), notes)

    return Strategy(
        lambda params: ShareState(params, {}, np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.weight,
        local_loss=broadcast_weights,
        needs={Need.REPORTS},
    )


def loss_gaps(sums: Values, rows: CellRows) -> Values:
    """(2,) for each label, the mean of group 1 less that of group 0; 0 where one of them has no rows."""
    means = divide(sums, rows)
    return np.asarray(np.nan_to_num(means[1] - means[0]))


@register(
    "fairbatch",
    "fedavg; loss weights by shares of (group, label) that follow their losses",
    "Roh et al. 2021",
)
def fairbatch(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    alpha: Annotated[float, Range(0, 1), "step of the shares"] = 0.005,
) -> Strategy:
    """FedAvg; in each round one label's share of the group with the larger loss grows by ``alpha``.

    With ``eo`` that is label 1, otherwise the label with the larger gap. With ``sp`` losses are computed as
    if every label were 1, as a sum for each label over all rows of the group, with P(0) instead of its
    logarithm: the less favoured group gets a larger share of label 1, or a smaller one of label 0.

    Notes
    -----
    The paper is not federated, and draws batches by the shares. Here rows are weighted, which is the same on
    average.

    References
    ----------
    Roh, Lee, Whang, Suh, "FairBatch: Batch Selection for Model Fairness", ICLR 2021.

    Examples
    --------
    >>> fairbatch(alpha=0.01).text
    'fairbatch:alpha=0.01'
    """
    setup.check_two_groups("fairbatch")

    def moves(now: Statistics) -> Values:
        if metric == "sp":
            rejected = now.rows - now.probability
            gap = np.nan_to_num(np.subtract(*divide(rejected, over_labels(now.rows))[::-1])) * [-1, 1]
        else:
            gap = loss_gaps(now.loss, now.rows) * (1 if metric == "eqo" else np.array([0, 1]))
        label = 0 if abs(gap[0]) > abs(gap[1]) else 1
        step = np.zeros(2)
        step[label] = alpha * np.sign(gap[label])
        return step

    return moving_shares(moves)
