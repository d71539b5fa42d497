"""FedGFT: a penalty on the difference between two groups over all clients (Wang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.fairness.metrics import CellRows, Statistics, Values
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
    over_labels,
    rows_so_far,
)


class GftState(NamedTuple):
    """The model, and what predictions cost."""

    params: Vector
    rows: Mapping[str, Vector]
    """(groups, 2) of every client that has reported so far, by name."""
    gap: Vector
    """(2,) difference of the groups for each label, as last seen; empty before the first round."""
    push: Vector
    """(groups * 2,) what P(1) of a row costs; empty before the first round."""
    notes: Notes = NO_NOTES


def soft_gaps(now: Statistics, metric: str) -> Values:
    """(2,) mean P(1) of group 0 less that of group 1, for each label; with ``sp`` over both labels."""
    p, rows = now.probability, now.rows
    if metric == "sp":
        p, rows = over_labels(p), over_labels(rows)
    means = divide(p, rows)
    return np.asarray(means[0] - means[1])


def price(slope: Values, rows: CellRows | Values, metric: str) -> Values:
    """(2, 2) slope times kappa: 1 / P(group) or, but for ``sp``, 1 / P(group, label); negative in group 1."""
    base = over_labels(rows) if metric == "sp" else rows
    kappa = np.nan_to_num(divide(np.full(base.shape, float(rows.sum())), base)) * [[1.0], [-1.0]]
    return np.asarray(slope * kappa * (base > 0).all(axis=0))


@register(
    "fedgft",
    "fedavg; losses with a penalty on the difference between two groups over all clients",
    "Wang et al. 2024",
)
def fedgft(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    gamma: Annotated[float, Range(0, 1000), "penalty weight; use less with many local epochs"] = 1.0,
    penalty: Annotated[
        Literal["square", "absolute"], "of the difference: its square, or its absolute value"
    ] = "square",
) -> Strategy:
    r"""FedAvg; clients' losses have a penalty on the squared difference of the groups, linearised each round.

    .. math:: \text{BCE} + \gamma F_t \, \overline{\kappa(s, y) P(1)}, \quad
        \kappa = \pm 1 / P(s) \ (\text{sp}), \quad \pm 1 / P(s, 1) \ (\text{eo; label 1 only})

    F is the difference of the groups' mean P(1) under the previous round's model, over its clients' rows; 0
    in the first round. P is of all clients that have reported so far. With ``eqo`` there is half a term for
    each label. ``penalty=absolute`` penalises the absolute difference: the sign of F replaces F.

    Notes
    -----
    The paper's gamma of 20 is for one local epoch of small steps; with many steps F overshoots. ``eqo`` is
    not in the paper.

    References
    ----------
    Wang, Payani, Lee, Kompella, "Mitigating Group Bias in Federated Learning: Beyond Local Fairness",
    TMLR 2024.

    Examples
    --------
    >>> fedgft(gamma=0.5).text
    'fedgft:gamma=0.5'
    """
    setup.check_two_groups("fedgft")
    share = {"sp": [1.0, 1.0], "eo": [0.0, 1.0], "eqo": [0.5, 0.5]}[metric]

    def aggregate(state: GftState, cohort: Cohort) -> GftState:
        params = state.params + cohort.mean(cohort.num_examples)
        known, rows = rows_so_far(state.rows, cohort)
        now = soft_gaps(cohort.get(Need.REPORTS).total(), metric)
        gap = np.where(np.isnan(now), state.gap if len(state.gap) else 0.0, now)
        slope = gamma * np.array(share) * (np.sign(gap) if penalty == "absolute" else gap)
        notes = {"gap": float(np.abs(gap * share).max())}
        return GftState(params, known, gap, price(slope, rows, metric).ravel(), notes)

    def local_loss(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
        push = None if not len(message) else message.reshape(rows.shape)
        return LossTerms(np.ones(rows.shape), push)

    return Strategy(
        lambda params: GftState(params, {}, np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.push,
        local_loss=local_loss,
        needs={Need.REPORTS},
    )
