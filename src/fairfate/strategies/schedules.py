"""Values that change with the round: functions of the 1-based round number."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same value in every round.

    Parameters
    ----------
    value : of every round

    Returns
    -------
    a function of the round

    Examples
    --------
    >>> constant(0.9)(17)
    0.9
    """
    return lambda t: value


def linear(start: float, rate: float, maximum: float) -> Schedule:
    """Linear growth: ``min(start + rate * t, maximum)``.

    Parameters
    ----------
    start, rate, maximum : as above

    Returns
    -------
    a function of the round t

    Examples
    --------
    >>> [round(linear(0.1, 0.2, 0.6)(t), 2) for t in (1, 2, 3)]
    [0.3, 0.5, 0.6]
    """
    return lambda t: min(start + rate * t, maximum)


def exponential(start: float, rate: float, maximum: float) -> Schedule:
    """Exponential growth: ``min(start * (1 + rate) ** t, maximum)``, FAIR-FATE's share of fairness.

    Parameters
    ----------
    start, rate, maximum : as above

    Returns
    -------
    a function of the round t

    References
    ----------
    Salazar, Fernandes, Araújo, Abreu, "FAIR-FATE: Fair Federated Learning with Momentum", ICCS 2023.

    Examples
    --------
    >>> [round(exponential(0.1, 0.05, 0.9)(t), 3) for t in (1, 10, 100)]
    [0.105, 0.163, 0.9]
    """
    return lambda t: min(start * math.exp(min(t * math.log1p(rate), 700.0)), maximum)


def demon(start: float, num_rounds: int) -> Schedule:
    r"""Decaying momentum, from nearly ``start`` to 0 in the last round.

    .. math:: \beta_t = \beta_0 (1 - t/T) / ((1 - \beta_0) + \beta_0 (1 - t/T))

    Parameters
    ----------
    start : the momentum that it falls from
    num_rounds : T, the rounds of the run

    Returns
    -------
    a function of the round t

    References
    ----------
    Chen, Wolfe, Li, Kyrillidis, "Demon: Improved Neural Network Training with Momentum Decay", ICASSP 2022.

    Examples
    --------
    >>> [round(demon(0.9, 100)(t), 3) for t in (1, 50, 100)]
    [0.899, 0.818, 0.0]
    """

    def value(t: int) -> float:
        remaining = 1 - t / num_rounds
        return start * remaining / ((1 - start) + start * remaining)

    return value
