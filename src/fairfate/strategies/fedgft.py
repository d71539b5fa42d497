"""FedGFT: a price on the difference between two groups over all clients (Wang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fairfate.fairness.metrics import CellRows, Statistics, Values
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.settings import ONE_METRIC, Choice, Number
from fairfate.strategies.strategy import (
    NO_NOTES,
    Cohort,
    LossTerms,
    Need,
    Notes,
    Strategy,
    Vector,
    divide,
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
        p, rows = (np.broadcast_to(of.sum(axis=1, keepdims=True), of.shape) for of in (p, rows))
    means = divide(p, rows)
    return np.asarray(means[0] - means[1])


def price(slope: Values, rows: CellRows | Values, metric: str) -> Values:
    """(2, 2) slope times kappa: 1 / P(group) or, but for ``sp``, 1 / P(group, label); negative in group 1."""
    of = np.broadcast_to(rows.sum(axis=1, keepdims=True), rows.shape) if metric == "sp" else rows
    kappa = np.nan_to_num(divide(np.full(of.shape, float(rows.sum())), of)) * [[1.0], [-1.0]]
    return np.asarray(slope * kappa * (of > 0).all(axis=0))


def fedgft(metric: str, gamma: float, *, sign: bool = False) -> Strategy:
    r"""FedAvg on losses to which the squared difference of the groups is added, linearised each round.

    .. math:: \text{BCE} + \gamma F_t \, \overline{\kappa(s, y) P(1)}, \quad
        \kappa = \pm 1 / P(s) \ (\text{sp}), \quad \pm 1 / P(s, 1) \ (\text{eo; label 1 only})

    F is the difference of the groups' mean P(1) under the model of the round before, over its clients' rows;
    0 in the first round. P is of all clients that have reported so far. With ``eqo`` there is half a term for
    each label.

    Parameters
    ----------
    metric : ``sp``, ``eo`` or ``eqo``
    gamma : strength
    sign : the difference itself is added and not its square: the sign of F in the place of F
    """
    share = {"sp": [1.0, 1.0], "eo": [0.0, 1.0], "eqo": [0.5, 0.5]}[metric]

    def aggregate(state: GftState, cohort: Cohort) -> GftState:
        assert cohort.local is not None
        params = state.params + cohort.mean(cohort.num_examples)
        known, rows = rows_so_far(state.rows, cohort)
        found = soft_gaps(cohort.local.total(), metric)
        gap = np.where(np.isnan(found), state.gap if len(state.gap) else 0.0, found)
        slope = gamma * np.array(share) * (np.sign(gap) if sign else gap)
        notes = {"gap": float(np.abs(gap * share).max())}
        return GftState(params, known, gap, price(slope, rows, metric).ravel(), notes)

    def local_loss(told: Vector | None, rows: CellRows, local: Statistics | None) -> LossTerms:
        push = None if told is None or not len(told) else told.reshape(rows.shape)
        return LossTerms(np.ones(rows.shape), push)

    return Strategy(
        lambda params: GftState(params, {}, np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.push,
        local_loss=local_loss,
        needs=Need.REPORTS,
    )


@register(
    "fedgft",
    "fedavg; losses with a price on the difference between two groups over all clients",
    "Wang et al. 2024",
    metric=ONE_METRIC,
    gamma=Number(1.0, "strength; many local epochs bear less of it", high=1000.0),
    penalty=Choice("square", "of the difference", ("square", "absolute")),
)
def _build(setup: Setup, metric: str, gamma: float, penalty: str) -> Strategy:
    setup.check_two_groups("fedgft")
    return fedgft(metric, gamma, sign=penalty == "absolute")
