"""Values that change with the round: functions of the 1-based round number."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """The same value in every round.

    >>> constant(0.9)(17)
    0.9
    """
    return lambda t: value


def linear(start: float, rate: float, maximum: float) -> Schedule:
    """``min(start + rate * t, maximum)``.

    >>> [round(linear(0.1, 0.2, 0.6)(t), 2) for t in (1, 2, 3)]
    [0.3, 0.5, 0.6]
    """
    return lambda t: min(start + rate * t, maximum)


def exponential(start: float, rate: float, maximum: float) -> Schedule:
    """``min(start * (1 + rate) ** t, maximum)``: the paper's growing weight of fairness.

    >>> [round(exponential(0.1, 0.05, 0.9)(t), 3) for t in (1, 10, 100)]
    [0.105, 0.163, 0.9]
    """
    return lambda t: min(start * math.exp(min(t * math.log1p(rate), 700.0)), maximum)


def demon(start: float, num_rounds: int) -> Schedule:
    """Decaying momentum: falls from nearly ``start`` to 0 in the last round (Chen et al. 2022).

    >>> [round(demon(0.9, 100)(t), 3) for t in (1, 50, 100)]
    [0.899, 0.818, 0.0]
    """

    def value(t: int) -> float:
        remaining = 1 - t / num_rounds
        return start * remaining / ((1 - start) + start * remaining)

    return value
