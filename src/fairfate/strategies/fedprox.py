"""FedProx: clients that are held near the model they were sent (Li et al. 2020)."""

from __future__ import annotations

import numpy as np

from fairfate.strategies.fedavg import fedavg
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.settings import Number
from fairfate.strategies.strategy import CellRows, LossTerms, Statistics, Strategy, Vector


def fedprox(mu: float) -> Strategy:
    r"""FedAvg on losses that grow with the distance from the model that was sent out.

    .. math:: L_k(\theta) + \tfrac{\mu}{2} \lVert \theta - \theta_t \rVert^2
    """

    def local_loss(told: Vector | None, rows: CellRows, local: Statistics | None) -> LossTerms:
        return LossTerms(np.ones(rows.shape), prox=mu)

    return fedavg()._replace(local_loss=local_loss, group_blind=True)


@register(
    "fedprox",
    "fedavg; losses that hold clients near the model they were sent",
    "Li et al., MLSys 2020",
    mu=Number(0.1, "how strongly", high=1000.0),
)
def _build(setup: Setup, mu: float) -> Strategy:
    return fedprox(mu)
