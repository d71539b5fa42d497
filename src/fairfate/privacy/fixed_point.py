"""Updates as whole numbers modulo 2**64, so that their sum has the same bits in any order and under any mask.

An update's numbers are cut to `RANGE` and rounded to multiples of ``RANGE / STEPS``, 2**-20. Each client
multiplies them by its number of rows and, where the strategy has clients weigh themselves, by a weight in
[0, 1] as a multiple of 2**-24. A sum of whole numbers below 2**63 is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError

RANGE = 16.0
"""The largest change of a weight in a round; a client cuts a larger one to this."""
STEPS = 2**24
"""Into which the range is divided, and so is a weight's."""
MOST_ROWS = 2**30
"""Of one client."""
MOST_CLIENTS = 256
"""In a sum: 2**24 steps times 2**30 rows times 2**8 clients is below 2**63."""
ROWS, WEIGHTS = "rows", "weights"
"""The parts of a client's contribution: its update by its rows, and by the weight it gives itself."""
Ring = NDArray[np.uint64]


class NoSumError(ValueError):
    """An opened sum that cannot be one: somebody has masked something else."""


class Contribution(NamedTuple):
    """What one client adds to the sums of a round."""

    rows: Ring
    """Its rows, whether it has cut its update, and the update times its rows."""
    weights: Ring | None = None
    """Its weight, and the update times the weight, where the strategy asks for one."""
    is_member: bool = False
    """Whether that weight is more than 0."""

    @property
    def parts(self) -> dict[str, Ring]:
        """By name, those that there are."""
        return {ROWS: self.rows, **({} if self.weights is None else {WEIGHTS: self.weights})}


class Opened(NamedTuple):
    """What a sum says of a part."""

    total: int
    """The clients' rows, or their weights as multiples of 2**-24."""
    cut: int
    """How many clients have cut their updates; 0 for weights."""
    mean: NDArray[np.float64]
    """The clients' updates, averaged by their rows or weights; zero where the total is."""


def contribute(delta: NDArray[Any], rows: int, weight: float | None = None) -> Contribution:
    """A client's update, as it is summed.

    Parameters
    ----------
    delta : (parameters,) finite numbers
    rows : training rows behind it
    weight : in [0, 1], where the strategy has clients weigh themselves

    Examples
    --------
    >>> part = contribute(np.array([0.5, -40.0]), 10)
    >>> part.rows.view(np.int64).tolist() == [10, 1, 10 * 2**19, -10 * 2**24]
    True
    """
    if not 1 <= rows <= MOST_ROWS:
        raise InputError(f"rows of a client in a secure sum must be 1 to 2**30, got {rows}")
    scaled = np.asarray(delta, dtype=np.float64) * (STEPS / RANGE)
    if not np.isfinite(scaled).all():
        raise InputError("an update in a secure sum must be finite, got NaN or infinity")
    steps = np.rint(np.clip(scaled, -STEPS, STEPS)).astype(np.int64)
    is_cut = bool((np.abs(scaled) > STEPS).any())
    by_rows = np.concatenate([[rows, int(is_cut)], steps * rows]).astype(np.int64).view(np.uint64)
    if weight is None:
        return Contribution(by_rows)
    own = round(min(max(weight, 0.0), 1.0) * STEPS) if math.isfinite(weight) else 0
    by_weight = np.concatenate([[own], steps * own]).astype(np.int64).view(np.uint64)
    return Contribution(by_rows, by_weight, own > 0)


def add(vectors: Sequence[Ring]) -> Ring:
    """The sum modulo 2**64."""
    return np.asarray(np.add.reduce(np.stack(vectors), axis=0, dtype=np.uint64))


def open_rows(total: Ring, clients: int) -> Opened:
    """The mean by rows from the sum of ``rows`` over so many clients; NoSumError if it cannot be one."""
    signed = total.view(np.int64)
    rows, cut = int(signed[0]), int(signed[1])
    if not clients <= rows <= clients * MOST_ROWS or not 0 <= cut <= clients:
        raise NoSumError(f"{rows} rows of {clients} clients")
    return Opened(rows, cut, _mean(signed[2:], rows))


def open_weights(total: Ring, clients: int) -> Opened:
    """The same from the sum of ``weights``."""
    signed = total.view(np.int64)
    weight = int(signed[0])
    if not 0 <= weight <= clients * STEPS:
        raise NoSumError(f"a weight of {weight / STEPS:g} of {clients} clients")
    return Opened(weight, 0, _mean(signed[1:], weight))


def _mean(sums: NDArray[np.int64], total: int) -> NDArray[np.float64]:
    if total == 0:
        return np.zeros(len(sums))
    mean = sums / float(total) * (RANGE / STEPS)
    if (np.abs(mean) > RANGE * (1 + 1e-9)).any():
        raise NoSumError("a mean beyond the range of its numbers")
    return np.asarray(mean)


def may_open(members: int, clients: int, min_sum: int) -> bool:
    """Whether a sum over those whose weight is not 0 may be opened, beside the sum over all clients.

    So many members are hidden among each other, or so many others, whose sum is the difference of both.

    >>> [may_open(members, 7, 3) for members in range(8)]
    [True, False, False, True, True, False, False, True]
    """
    return members in (0, clients) or min_sum <= members <= clients - min_sum
