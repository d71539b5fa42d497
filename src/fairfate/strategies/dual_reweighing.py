"""Dual reweighing: loss weights that follow the groups' rates, as long as the model stays useful (ours)."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from fairfate.fairness.metrics import Counts, Values, balanced_accuracy
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
)

MOST = 3.0
"""Largest multiplier: a weight is at most 20 times, and at least a 20th of, what it was."""
SMOOTH = 0.9
"""Share of the old mean of skill that is kept; a round's clients say little of all."""


class DualState(NamedTuple):
    """The model, the multipliers, and how useful it has been."""

    params: Vector
    multiplier: Vector
    """(groups * 2,) of each group's rate among rows of each label; empty before the first round."""
    skill: float = 0.0
    """Running mean of balanced accuracy above one half, at most 0.5."""
    best: float = 0.0
    """The largest so far."""
    notes: Notes = NO_NOTES


def rates(counts: Counts, metric: str) -> Values:
    """(groups, 2) share of accepted rows among those of each label; with ``sp`` among both; NaN if none."""
    accepted, rows = counts[..., 1], counts.sum(axis=-1)
    if metric == "sp":
        accepted, rows = over_labels(accepted), over_labels(rows)
    return divide(accepted, rows)


def weights(multiplier: Values) -> Values:
    """(groups, 2) of rows: a favoured group counts more with label 0 and less with label 1.

    >>> weights(np.array([[0.5, 0.0], [-0.5, 0.0]])).round(3).tolist()
    [[1.649, 1.0], [0.607, 1.0]]
    """
    return np.exp(multiplier * [1.0, -1.0])


@register(
    "dual_reweighing",
    "fedavg; loss weights that follow the groups' rates, as long as the model stays useful",
    "this project",
)
def dual_reweighing(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    rate: Annotated[float, Range(0, 100), "step of the multipliers"] = 1.0,
    keep: Annotated[
        float, Range(0, 1), "share of the best skill below which they shrink; 0 for no guard"
    ] = 0.8,
) -> Strategy:
    r"""FedAvg; loss weights counteract the differences between the groups' rates.

    .. math::
        \mu_{gy} &\leftarrow \text{clip}(\mu_{gy} + \eta (r_{gy} - \bar r_y), -3, 3), \quad
        w(g, 0) = e^{\mu_{g0}}, \quad w(g, 1) = e^{-\mu_{g1}}

    r are rates of the received model on the rows of all the round's clients: selection rates (``sp``), those
    among label 1 (``eo``, which leaves label 0 alone) or among each label (``eqo``).

    Guard: while the model's balanced accuracy above one half is less than ``keep`` of the best so far (both
    as running means), multipliers shrink and do not grow.

    References
    ----------
    This project, 2026; no paper.

    Examples
    --------
    >>> dual_reweighing(metric="eo").text
    'dual_reweighing:metric=eo'
    """
    labels = np.array([0.0, 1.0]) if metric == "eo" else np.ones(2)

    def aggregate(state: DualState, cohort: Cohort) -> DualState:
        params = state.params + cohort.mean(cohort.num_examples)
        counts = cohort.get(Need.REPORTS).counts.sum(axis=0)
        rate_of = rates(counts, metric)
        step = np.nan_to_num(rate * (rate_of - rate_of.mean(axis=0)) * labels)
        now = np.nan_to_num(float(balanced_accuracy(counts)) - 0.5)
        skill = SMOOTH * state.skill + (1 - SMOOTH) * now
        best = max(state.best, skill)
        before = state.multiplier.reshape(-1, 2) if len(state.multiplier) else np.zeros(rate_of.shape)
        useful = skill >= keep * best
        after = np.clip(before + step, -MOST, MOST) if useful else SMOOTH * before
        notes = {"multiplier": float(np.abs(after).max()), "skill": skill, "guarded": float(not useful)}
        return DualState(params, after.ravel(), skill, best, notes)

    return Strategy(
        lambda params: DualState(params, np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: weights(state.multiplier.reshape(-1, 2)),
        local_loss=broadcast_weights,
        needs={Need.REPORTS},
    )
