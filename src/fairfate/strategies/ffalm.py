"""FFALM: an augmented Lagrangian on the gap between two groups' losses (Dunda and Song 2023)."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    CellRows,
    Cohort,
    LossTerms,
    Need,
    Notes,
    Statistics,
    Strategy,
    Vector,
    divide,
)
from fairfate.sums import dot

MOST_PENALTY = 100.0
MOST_GAP = 1e6
"""A client that reports a larger gap counts with this one, so that sums of gaps stay finite."""


class FfalmState(NamedTuple):
    """The model, the multiplier and the penalty."""

    params: Vector
    lam: float
    beta: float
    rate: float
    notes: Notes = NO_NOTES


def loss_gap(statistics: Statistics, labels: slice) -> Vector:
    """(...,) mean loss of group 0 less that of group 1 on rows with some labels; NaN if a group has none."""
    rows = statistics.rows[..., labels].sum(axis=-1)
    means = divide(statistics.loss[..., labels].sum(axis=-1), rows)
    return np.asarray(means[..., 0] - means[..., 1])


@register(
    "ffalm",
    "fedavg; losses with an augmented Lagrangian on the gap between two groups",
    "Dunda and Song 2023",
)
def ffalm(
    setup: Setup,
    *,
    beta: Annotated[float, Range(0, MOST_PENALTY), "penalty at the start"] = 1.0,
    rate: Annotated[float, Range(0, 100), "step of the multiplier at the start"] = 0.2,
    growth: Annotated[float, Range(1, 2), "factor by which the penalty grows each round"] = 1.05,
    labels: Annotated[Literal["all", "favourable"], "rows whose losses are compared"] = "all",
) -> Strategy:
    r"""FedAvg; clients minimise ``BCE + lambda (L_0 - L_1) + beta/2 (L_0 - L_1)^2``.

    L_s is the mean loss of group s.

    The gap is that of the client's own rows, measured again before every epoch. The server moves the
    multiplier by the clients' gaps: ``lambda <- lambda + rate * sum_k n_k/n (L_0 - L_1)_k``; a client
    without one of the groups adds nothing. ``beta`` grows and ``rate`` shrinks by ``growth`` each round.

    Notes
    -----
    In the authors' code L_s are means over each batch, and the gap that moves lambda is the last batch's;
    here both are over all the client's rows. Weights of rows are kept in [0, 10] and the penalty at most 100,
    so that sums stay finite. ``labels`` is not in the paper.

    References
    ----------
    Dunda, Song, "Fairness-aware Federated Minimax Optimization with Convergence Guarantee", arXiv
    2307.04417, 2023.

    Examples
    --------
    >>> ffalm(labels="favourable").text
    'ffalm:labels=favourable'
    """
    setup.check_two_groups("ffalm")
    compared = slice(1, 2) if labels == "favourable" else slice(0, 2)

    def aggregate(state: FfalmState, cohort: Cohort) -> FfalmState:
        gaps = np.nan_to_num(loss_gap(cohort.get(Need.REPORTS), compared), nan=0.0, posinf=0.0, neginf=0.0)
        gaps = np.clip(gaps, -MOST_GAP, MOST_GAP)
        lam = state.lam + state.rate * dot(gaps, cohort.num_examples) / float(cohort.num_examples.sum())
        return FfalmState(
            state.params + cohort.mean(cohort.num_examples),
            lam,
            min(state.beta * growth, MOST_PENALTY),
            state.rate / growth,
            {"lam": lam, "gap": gaps},
        )

    def local_loss(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
        weight, gap = np.ones(rows.shape), float(loss_gap(local, compared))
        if not np.isnan(gap):
            slope = (message[0] + message[1] * gap) * np.array([1.0, -1.0])
            share = rows[:, compared].sum(axis=1) / rows.sum()
            weight[:, compared] = np.clip(1 + slope / share, 0.0, 10.0)[:, None]
        return LossTerms(weight)

    return Strategy(
        lambda params: FfalmState(params, 0.0, beta, rate),
        aggregate,
        broadcast=lambda state, rows: np.array([state.lam, state.beta]),
        local_loss=local_loss,
        needs={Need.LOCAL, Need.REPORTS},
        refresh=1,
    )
