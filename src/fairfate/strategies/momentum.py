"""Server momentum, constant (FedMom) or decaying (FedDemon), as in FAIR-FATE's experiments."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.schedules import Schedule, constant, demon
from fairfate.strategies.strategy import NO_NOTES, Cohort, Notes, Strategy, Vector


class MomentumState(NamedTuple):
    """The model and the momentum it moves with."""

    params: Vector
    momentum: Vector
    notes: Notes = NO_NOTES


def momentum(beta: Schedule, *, bias_correction: bool = False) -> Strategy:
    r"""Move by a running mean of the FedAvg updates.

    .. math:: v \leftarrow \beta_t v + (1 - \beta_t) \alpha_N, \qquad \theta \leftarrow \theta + v

    Parameters
    ----------
    beta : share of the old momentum that is kept, as a schedule
    bias_correction : apply ``v / (1 - beta_t ** t)`` instead of ``v``, as the published runs did

    Returns
    -------
    the strategy

    Examples
    --------
    >>> no_counts = np.zeros((0, 0, 2, 2))
    >>> strategy = momentum(constant(0.5))
    >>> cohort = Cohort(1, np.array([[1.0], [3.0]]), np.array([10.0, 10.0]), no_counts, no_counts)
    >>> strategy.aggregate(strategy.init(np.zeros(1)), cohort).params.tolist()
    [1.0]
    """

    def init(params: Vector) -> MomentumState:
        return MomentumState(params, np.zeros_like(params))

    def aggregate(state: MomentumState, cohort: Cohort) -> MomentumState:
        t, b = cohort.round, beta(cohort.round)
        v = b * state.momentum + (1 - b) * cohort.mean(cohort.num_examples)
        correction = 1 - b**t if bias_correction else 1.0
        return MomentumState(state.params + v / correction, v, {"beta": b})

    return Strategy(init, aggregate)


@register("fedmom", "fedavg with server momentum", "Liu et al. 2020")
def fedmom(
    setup: Setup,
    *,
    beta: Annotated[float, Range(0, 1, below_high=True), "share of the old momentum that is kept"] = 0.9,
) -> Strategy:
    """FedAvg with constant server momentum: `momentum` with the same beta in every round.

    Notes
    -----
    FAIR-FATE's paper, whose baseline this is, cites Liu et al. for it and has momentum at the server. Liu et
    al. themselves have it in the clients' local steps. Under the protocol ``published``, ``v / (1 - beta **
    t)`` is applied, as in the published runs of FAIR-FATE.

    References
    ----------
    Liu, Chen, Chen, Zhang, "Accelerating Federated Learning via Momentum Gradient Descent", IEEE TPDS
    2020.

    Examples
    --------
    >>> fedmom(beta=0.8).text
    'fedmom:beta=0.8'
    """
    return momentum(constant(beta), bias_correction=setup.published)


@register("feddemon", "fedavg with decaying server momentum", "Fernandes et al. 2021")
def feddemon(
    setup: Setup,
    *,
    beta0: Annotated[float, Range(0, 1, below_high=True), "momentum at the start"] = 0.9,
) -> Strategy:
    """FedAvg with decaying server momentum: `momentum` with a beta that falls to 0 in the last round.

    Notes
    -----
    This is the baseline of FAIR-FATE's paper. Under the protocol ``published``, ``v / (1 - beta_t ** t)`` is
    applied, as in its published runs.

    References
    ----------
    Fernandes, Silva, Arrais, Cardoso, Ribeiro, "Decay Momentum for Improving Federated Learning", ESANN
    2021.

    Examples
    --------
    >>> feddemon(beta0=0.8).text
    'feddemon:beta0=0.8'
    """
    return momentum(demon(beta0, setup.num_rounds), bias_correction=setup.published)
