"""Federated averaging (McMahan et al. 2017), and FedProx, which holds clients near it (Li et al. 2020)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import CellRows, Cohort, LossTerms, ModelState, Statistics, Strategy, Vector


def average(state: ModelState, cohort: Cohort) -> ModelState:
    """The model after FedAvg's step."""
    return ModelState(state.params + cohort.mean(cohort.num_examples))


AVERAGING = Strategy(ModelState, average)
"""FedAvg, for strategies that change the clients' losses only."""


@register("fedavg", "mean of the clients' updates, weighted by rows", "McMahan et al. 2017")
def fedavg(setup: Setup) -> Strategy:
    r"""Add the clients' mean update, weighted by their rows.

    .. math:: \theta \leftarrow \theta + \sum_k \frac{n_k}{n} \Delta_k

    References
    ----------
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
    from Decentralized Data", AISTATS 2017.

    Examples
    --------
    >>> fedavg().text
    'fedavg'
    """
    return AVERAGING


@register(
    "fedprox", "fedavg; losses that hold clients near the model they were sent", "Li et al., MLSys 2020"
)
def fedprox(
    setup: Setup, *, mu: Annotated[float, Range(0, 1000), "strength of the proximal term"] = 0.1
) -> Strategy:
    r"""FedAvg; clients' losses grow with the distance from the received model.

    .. math:: L_k(\theta) + \tfrac{\mu}{2} \lVert \theta - \theta_t \rVert^2

    Notes
    -----
    Every client does all its epochs; the paper also has clients that stop early.

    References
    ----------
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys
    2020.

    Examples
    --------
    >>> fedprox(mu=0.5).text
    'fedprox:mu=0.5'
    """

    def local_loss(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
        return LossTerms(np.ones(rows.shape), prox=mu)

    return AVERAGING._replace(local_loss=local_loss, group_blind=True)
