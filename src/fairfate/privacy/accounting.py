"""What releases cost together, by Google's ``dp-accounting``, and the noise that a budget asks for.

Everything that leaves a client is a Gaussian mechanism, perhaps on rows that join by chance (Poisson
sampling). Costs are added up as Rényi differential privacy. Neighbours are tables in which one row is an
empty one instead (``REPLACE_SPECIAL``), so that the number of rows is no secret.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError

ORDERS = (
    *(1 + k / 4 for k in range(1, 9)),
    *(3 + k / 2 for k in range(1, 11)),
    *range(9, 21),
    *range(22, 33, 2),
    *range(36, 65, 4),
    *(80, 96, 128, 192, 256, 512),
)
"""Of Rényi differential privacy; fewer would cost epsilon, and more time."""
_SPARSE, _NEAR = slice(0, None, 6), 5
_LEAST_NOISE = 0.4
_PRECISION = 1e-3
"""Of a noise multiplier, relative; it is rounded up."""


class Cost(NamedTuple):
    """A number of releases of a kind: the Gaussian mechanism on rows that join with some probability."""

    rate: float
    """The probability; 1 for all rows."""
    noise: float
    """Standard deviation of the noise, in units of the L2 sensitivity to one row."""
    times: int


def epsilon_of(costs: Iterable[Cost], delta: float) -> float:
    """The epsilon of releases together, for a delta."""
    return _epsilon_of(costs, delta, ORDERS)[0]


def _epsilon_of(costs: Iterable[Cost], delta: float, orders: Sequence[float]) -> tuple[float, float]:
    """The same by some orders, and the one that it is of: no fewer than by all of them."""
    spent = np.zeros(len(orders))
    for cost in costs:
        if cost.times:
            spent = spent + cost.times * _curve(cost.rate, cost.noise, tuple(orders))
    if not spent.any():
        return 0.0, orders[0]
    epsilon, order = _rdp().compute_epsilon(orders, spent, delta)
    return float(epsilon), float(order)


@lru_cache(maxsize=1024)
def _curve(rate: float, noise: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """The Rényi divergence of one release, for each order."""
    rdp = _rdp()
    import dp_accounting as dp

    accountant = rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_SPECIAL)
    event = dp.GaussianDpEvent(noise)
    log = logging.getLogger("absl")  # which warns of orders that are of no use
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        accountant.compose(event if rate >= 1 else dp.PoissonSampledDpEvent(rate, event))
    finally:
        log.setLevel(level)
    return np.asarray(accountant._rdp)


def _rdp() -> Any:
    """The accountant's module, which takes a second to import."""
    try:
        from dp_accounting import rdp
    except ImportError:
        raise InputError('privacy needs dp-accounting: pip install "fairfate[privacy]"') from None
    return rdp


def least_noise(
    costs: Callable[[float], Sequence[Cost]], epsilon: float, delta: float, most: float
) -> float | None:
    """The least noise multiplier at which releases cost no more than ``epsilon``; None if above ``most``.

    It is looked for by a few orders, and then by those next to the one that decides.
    """
    if epsilon_of(costs(most), delta) > epsilon:
        return None
    noise = _solve(costs, epsilon, delta, most, ORDERS[_SPARSE])
    index = ORDERS.index(_epsilon_of(costs(noise), delta, ORDERS[_SPARSE])[1])
    return _solve(costs, epsilon, delta, most, ORDERS[max(0, index - _NEAR) : index + _NEAR + 1])


def _solve(
    costs: Callable[[float], Sequence[Cost]],
    epsilon: float,
    delta: float,
    most: float,
    orders: Sequence[float],
) -> float:
    """A noise multiplier that suffices by some orders, and hardly less would; the most if none below does.

    Epsilon falls about as a power of the noise: the next guess is on the line between the logarithms of the
    bracket's ends (regula falsi, with Illinois' change).
    """

    def excess(at: float) -> float:
        return math.log(max(_epsilon_of(costs(math.exp(at)), delta, orders)[0], 1e-12) / epsilon)

    low, high = math.log(_LEAST_NOISE), math.log(most)
    above, below = excess(low), excess(high)
    if above <= 0:
        return _LEAST_NOISE
    if below > 0:
        return most
    side = 0
    while high - low > _PRECISION:
        at = (low * below - high * above) / (below - above) if math.isfinite(above) else (low + high) / 2
        at = min(max(at, low + _PRECISION / 4), high - _PRECISION / 4)
        value = excess(at)
        if value > 0:
            low, above = at, value
            below = below / 2 if side == 1 else below
            side = 1
        else:
            high, below = at, value
            above = above / 2 if side == -1 else above
            side = -1
        if value <= 0 and -value < _PRECISION / 2:
            break
    return math.exp(high)
