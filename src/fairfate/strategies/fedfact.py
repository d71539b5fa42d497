"""FedFACT: costs of predictions that follow the groups' confusion counts (Zhang et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import numpy as np

from fairfate.fairness.metrics import CellRows, Counts, Statistics, Values
from fairfate.strategies.hyperparameters import RUN_METRIC, GroupMetric, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    Cohort,
    LossTerms,
    Need,
    Notes,
    Strategy,
    Vector,
    divide,
    plain_loss,
    project,
    rows_so_far,
)

LEAST_COST = 1e-5
"""Of the entries of M where some would be below 0, as in the authors' code for their later paper."""


class FedFactState(NamedTuple):
    """The model, the multipliers, and what clients receive."""

    params: Vector
    rows: Mapping[str, Vector]
    """(groups, 2) of every client that has reported so far, by name."""
    lam: Vector
    """(2, groups, labels, 2) multipliers of a rate that is too high, and too low; empty before round 1."""
    costs: Vector
    """(groups * 4,) of M by (group, label, prediction); empty before the first round."""
    notes: Notes = NO_NOTES


def by_event(cells: Vector, metric: str) -> Vector:
    """(groups, labels, ...) sums over the rows whose predictions are compared: of each label, or of both."""
    return cells.sum(axis=1, keepdims=True) if metric == "sp" else cells


def rate_gaps(counts: Counts, metric: str) -> Values:
    """(groups, labels, 2) D: how much more often a group gets a prediction than everybody does.

    With ``sp`` labels are one event. NaN where a group has no rows, and for what ``eo`` does not compare.
    """
    events = by_event(counts, metric).astype(np.float64)
    overall = events.sum(axis=0)
    gaps = divide(events, events.sum(axis=-1, keepdims=True)) - divide(
        overall, overall.sum(axis=-1, keepdims=True)
    )
    if metric == "eo":
        gaps[:, 0], gaps[:, 1, 0] = np.nan, np.nan
    return np.asarray(gaps)


def step_multipliers(lam: Values, gaps: Values, rate: float, epsilon: float, bound: float) -> Values:
    """The multipliers after a step: the nearest ones >= 0 whose sum is at most ``bound``."""
    moved = lam + rate * np.nan_to_num(np.stack([gaps, -gaps]) - epsilon)
    kept = np.maximum(moved, 0.0)
    return kept if kept.sum() <= bound else project(moved.ravel(), bound).reshape(lam.shape)


def prediction_costs(lam: Values, rows: CellRows | Values, metric: str) -> Values:
    """(groups, 2, 2) M by (group, label, prediction), from the multipliers and everybody's rows."""
    share = by_event(rows, metric)[..., None] / max(rows.sum(), 1)
    net = lam[0] - lam[1]
    own, everybody = divide(net, share), divide(net.sum(axis=0), share.sum(axis=0))
    costs = np.eye(2) - np.nan_to_num(own - everybody)
    lowest = costs.min()
    return np.asarray(costs + (LEAST_COST - lowest) if lowest < 0 else costs)


def cost_loss(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
    """A client's loss ``-sum_c M[y, c] log P(c)``, as a weight and a target of each (group, label)."""
    if not len(message):
        return plain_loss(rows)
    costs = message.reshape(*rows.shape, 2)
    weight = costs.sum(axis=-1)
    return LossTerms(
        weight, target=np.where(weight > 0, costs[..., 1] / np.where(weight > 0, weight, 1), 0.5)
    )


@register(
    "fedfact", "fedavg; costs of predictions that follow the groups' confusion counts", "Zhang et al. 2025"
)
def fedfact(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    rate: Annotated[float, Range(0, 100), "step of the multipliers"] = 0.2,
    epsilon: Annotated[float, Range(0, 1), "tolerated gap"] = 0.01,
    bound: Annotated[float, Range(0, 1000), "largest sum of the multipliers"] = 5.0,
) -> Strategy:
    r"""FedAvg; clients minimise ``-sum_c M[a, y, c] log P(c)``, whose M follows the groups' rates.

    .. math::
        D_{a,j} &= P(\hat Y = j \mid a) - P(\hat Y = j), \quad
             \lambda^\pm \leftarrow \Pi(\lambda^\pm + \eta (\pm D - \epsilon)) \\
        M_a[y, j] &= 1[y = j] - (\Lambda_{a,j} / P(a) - \textstyle\sum_b \Lambda_{b,j}) + \kappa, \quad
             \Lambda = \lambda^+ - \lambda^-

    The projection keeps multipliers at least 0 and their sum at most ``bound``. With ``eo`` the rate is
    that of prediction 1 among the rows of label 1, with ``eqo`` those of both predictions among the rows of
    each label; P(a) is then P(a, y), and the sum is divided by P(y). Any number of groups.

    Notes
    -----
    This is the global part of the paper's Algorithm 1, for one model that does not read the group: the
    constraints, M, the loss and the step of the multipliers are the paper's, ``epsilon`` and ``bound`` those
    of its experiments. Its local constraints, and the second model that each of its clients keeps, are left
    out. Ours: kappa is 0 while no entry of M is below 0, and otherwise makes the lowest 1e-5, as in the
    authors' code for a later paper; ``eo`` compares label 1 only, the paper all labels; ``epsilon`` is taken
    off once a round, and not by each client; ``rate`` was chosen by measurement, as the paper prints none
    (its theory has bound / sqrt(rounds)). Rates are those of a round's clients, shares of rows those of all
    clients that have reported so far.

    The decision at 0.5 is what is trained: other than with `fedavg`, P(1) is not the chance of label 1.

    References
    ----------
    Zhang, Han, Feng, Zhang, Li, Chen, "FedFACT: A Provable Framework for Controllable Group-Fairness
    Calibration in Federated Learning", NeurIPS 2025, arXiv 2506.03777.

    Examples
    --------
    >>> fedfact(metric="sp", rate=0.5).text
    'fedfact:metric=sp,rate=0.5'
    """

    def aggregate(state: FedFactState, cohort: Cohort) -> FedFactState:
        known, rows = rows_so_far(state.rows, cohort)
        gaps = rate_gaps(cohort.get(Need.REPORTS).counts.sum(axis=0), metric)
        before = state.lam if len(state.lam) else np.zeros((2, *gaps.shape))
        lam = step_multipliers(before, gaps, rate, epsilon, bound)
        costs = prediction_costs(lam, rows, metric).ravel()
        notes = {"gap": float(np.nan_to_num(np.abs(gaps)).max()), "lam": float(lam.sum())}
        return FedFactState(state.params + cohort.mean(cohort.num_examples), known, lam, costs, notes)

    return Strategy(
        lambda params: FedFactState(params, {}, np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.costs,
        local_loss=cost_loss,
        needs={Need.REPORTS},
    )
