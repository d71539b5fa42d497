"""q-FFL: clients with a larger loss count more (Li et al. 2020)."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from fairfate.errors import InputError
from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import Cohort, ModelState, Need, Strategy, client_losses

LEAST_LOSS = 1e-10


@register("qffl", "clients with a larger loss count more", "Li et al., ICLR 2020")
def qffl(
    setup: Setup,
    *,
    q: Annotated[float, Range(0, 100), "exponent of the losses; with 0 clients count alike"] = 0.1,
) -> Strategy:
    r"""Step along the gradient of :math:`\sum_k L_k^{q+1} / (q + 1)`, by an estimate of its curvature.

    .. math::
        g_k &= -\Delta_k / \eta, \quad D_k = L_k^q g_k, \quad
        h_k = q L_k^{q-1} \lVert g_k \rVert^2 + L_k^q / \eta \\
        \theta &\leftarrow \theta - \sum_k D_k / \sum_k h_k

    eta is the clients' learning rate. With q = 0 it is the mean of the updates, with equal weights. Many
    local steps make the updates long and this step short: the note ``step`` is its length relative to the
    mean update weighted by the losses.

    Notes
    -----
    Fairness between clients, not between groups of people.

    References
    ----------
    Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", ICLR 2020.

    Examples
    --------
    >>> qffl(q=1).text
    'qffl:q=1'
    """
    learning_rate = setup.learning_rate
    if learning_rate is None:
        raise InputError("learning_rate must be given for qffl, which needs the clients' own")

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        loss = client_losses(cohort.get(Need.REPORTS)) + LEAST_LOSS
        weights, length = loss**q, (cohort.deltas.astype(np.float64) ** 2).sum(axis=1)
        curvature = q * loss ** (q - 1) * length / learning_rate
        step = weights.sum() / (weights + curvature).sum()
        update = cohort.mean(weights)
        params = state.params + (step * update).astype(state.params.dtype)
        return ModelState(params, {"step": float(step), "loss": loss})

    return Strategy(ModelState, aggregate, needs={Need.REPORTS}, group_blind=True)
