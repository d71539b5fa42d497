"""FedMinMax: weights of groups follow their risks (Papadaki et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.strategies.hyperparameters import Range
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
    project,
    rows_so_far,
)


class MinMaxState(NamedTuple):
    """The model, and how much each group counts."""

    params: Vector
    rows: Mapping[str, Vector]
    """(groups, 2) of every client that has reported so far, by name."""
    risk: Vector
    """Mean loss of each group when it was last seen; empty before the first round."""
    moved: Vector
    """How far each group's share has moved from its share of the rows."""
    weight: Vector
    """(groups * 2,) of a row in its client's loss; empty before the first round."""
    notes: Notes = NO_NOTES


@register("fedminmax", "fedavg; loss weights of groups that follow their losses", "Papadaki et al. 2022")
def fedminmax(
    setup: Setup,
    *,
    rate: Annotated[float, Range(0, 100), "step size of the weights"] = 0.01,
    risks: Annotated[Literal["groups", "cells"], "risks of groups, or of groups by label"] = "groups",
) -> Strategy:
    r"""FedAvg; clients' losses weigh the groups on which the model performs worse more.

    .. math:: \mu \leftarrow \text{project}(\mu + \eta r), \quad \mu^0_g = \rho_g = m_g / n,
        \quad w_g = \mu_g / \rho_g

    r are the groups' mean losses under the received model, on the clients' own rows; rho is of all clients
    that have reported so far. A group without rows in a round keeps its risk.

    Notes
    -----
    The paper releases the mean of all rounds' models: ``fedminmax+average:share=1``. There all clients take
    one full-batch step in each round; here the round's clients train for epochs. ``risks="cells"`` is not in
    the paper.

    References
    ----------
    Papadaki, Martinez, Bertran, Sapiro, Rodrigues, "Minimax Demographic Group Fairness in Federated
    Learning", FAccT 2022.

    Examples
    --------
    >>> (fedminmax(rate=0.1) + "average:share=1").text
    'fedminmax:rate=0.1+average:share=1'
    """
    cells = risks == "cells"

    def aggregate(state: MinMaxState, cohort: Cohort) -> MinMaxState:
        params = state.params + cohort.mean(cohort.num_examples)
        known, rows = rows_so_far(state.rows, cohort)
        now = cohort.get(Need.REPORTS).total()
        over: tuple[int, ...] = () if cells else (-1,)
        risk = divide(now.loss.sum(axis=over), now.rows.sum(axis=over)).ravel()
        last, moved = (each if len(each) else np.zeros(len(risk)) for each in (state.risk, state.moved))
        risk = np.where(np.isfinite(risk), risk, last)
        rho = rows.sum(axis=over).ravel() / max(rows.sum(), 1.0)
        mu = project(rho + moved + rate * (risk - risk.mean()), float(rho.sum()))
        weight = np.where(rho > 0, mu / np.where(rho > 0, rho, 1.0), 1.0)
        notes = {"risk_gap": float(risk.max() - risk.min())}
        weight = weight if cells else np.repeat(weight, 2)
        return MinMaxState(params, known, risk, mu - rho, weight, notes)

    return Strategy(
        lambda params: MinMaxState(params, {}, np.empty(0), np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.weight,
        local_loss=broadcast_weights,
        needs={Need.REPORTS},
    )
