"""Server optimisers with a step of its own for each parameter: FedAdam and FedYogi (Reddi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import NO_NOTES, Cohort, Notes, Strategy, Vector


class AdaptiveState(NamedTuple):
    """The model, and running means of its updates and of their squares."""

    params: Vector
    momentum: Vector
    squares: Vector
    notes: Notes = NO_NOTES


def adam(squares: Vector, update: Vector, beta: float) -> Vector:
    """``beta v + (1 - beta) u^2``."""
    return np.asarray(beta * squares + (1 - beta) * update**2)


def yogi(squares: Vector, update: Vector, beta: float) -> Vector:
    """``v - (1 - beta) u^2 sign(v - u^2)``."""
    return np.asarray(squares - (1 - beta) * update**2 * np.sign(squares - update**2))


def adaptive(
    squares_of: Callable[[Vector, Vector, float], Vector],
    rate: float,
    beta1: float,
    beta2: float,
    tau: float,
    *,
    bias_correction: bool = False,
) -> Strategy:
    r"""Move each parameter by the mean of its updates, relative to their size.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1) \alpha_N, \qquad
        v \leftarrow \beta_2 v + (1 - \beta_2) \alpha_N^2 \quad (\text{or Yogi's}) \\
        \theta &\leftarrow \theta + \eta \, m / (\sqrt v + \tau)

    Parameters
    ----------
    squares_of : `adam` or `yogi`
    rate : eta, the server's learning rate
    beta1, beta2, tau : as above; m and v start at 0
    bias_correction : scale the rate by ``sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1))``, as in Flower

    Returns
    -------
    the strategy
    """

    def init(params: Vector) -> AdaptiveState:
        return AdaptiveState(params, np.zeros_like(params), np.zeros_like(params))

    def aggregate(state: AdaptiveState, cohort: Cohort) -> AdaptiveState:
        update = cohort.mean(cohort.num_examples)
        m = beta1 * state.momentum + (1 - beta1) * update
        v = squares_of(state.squares, update, beta2)
        t = cohort.round + 1
        scale = (1 - beta2**t) ** 0.5 / (1 - beta1**t) if bias_correction else 1.0
        return AdaptiveState(state.params + rate * scale * m / (np.sqrt(v) + tau), m, v)

    return Strategy(init, aggregate)


Rate = Annotated[float, Range(0, 1000), "the server's learning rate"]
Beta1 = Annotated[float, Range(0, 1, below_high=True), "share of the old mean of updates that is kept"]
Beta2 = Annotated[float, Range(0, 1, below_high=True), "share of the old mean of squares that is kept"]
Tau = Annotated[
    float,
    Range(0, 1000, above_low=True),
    "added to the root of the mean square; the larger, the less adaptive",
]


@register("fedadam", "fedavg with Adam at the server", "Reddi et al. 2021")
def fedadam(
    setup: Setup,
    *,
    rate: Rate = 0.1,
    beta1: Beta1 = 0.9,
    beta2: Beta2 = 0.99,
    tau: Tau = 1e-3,
    correction: Annotated[
        Literal["none", "flower"], "bias correction of the rate in the first rounds"
    ] = "none",
) -> Strategy:
    """FedAvg with Adam at the server: `adaptive` with the squares of `adam`.

    Notes
    -----
    ``correction="flower"`` corrects the bias of the first rounds as Flower does; the paper does not. v starts
    at 0, as in Flower; the paper starts it at ``tau ** 2`` or above.

    References
    ----------
    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
    ICLR 2021.

    Examples
    --------
    >>> fedadam(rate=0.05).text
    'fedadam:rate=0.05'
    """
    return adaptive(adam, rate, beta1, beta2, tau, bias_correction=correction == "flower")


@register("fedyogi", "fedavg with Yogi at the server", "Reddi et al. 2021")
def fedyogi(
    setup: Setup, *, rate: Rate = 0.01, beta1: Beta1 = 0.9, beta2: Beta2 = 0.99, tau: Tau = 1e-3
) -> Strategy:
    """FedAvg with Yogi at the server: `adaptive` with the squares of `yogi`.

    Notes
    -----
    v starts at 0, as in Flower; the paper starts it at ``tau ** 2`` or above.

    References
    ----------
    Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan, "Adaptive Federated Optimization",
    ICLR 2021.

    Examples
    --------
    >>> fedyogi(rate=0.05).text
    'fedyogi:rate=0.05'
    """
    return adaptive(yogi, rate, beta1, beta2, tau)
