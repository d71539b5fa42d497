"""Intervals for rates that are counted on a limited number of people."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Values

Z95 = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""


def wilson(part: NDArray[Any], whole: NDArray[Any], z: float = Z95) -> tuple[Values, Values]:
    """Wilson's interval of the rate ``part / whole``; NaN where there is nobody.

    >>> low, high = wilson(np.array([8.0, 0.0]), np.array([10.0, 5.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.49, 0.0], [0.943, 0.434])
    """
    whole = np.asarray(whole, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.asarray(part, dtype=np.float64) / whole
        scale = 1 + z * z / whole
        centre = (rate + z * z / (2 * whole)) / scale
        half = z * np.sqrt(rate * (1 - rate) / whole + z * z / (4 * whole * whole)) / scale
    nobody = whole <= 0
    low = np.where(nobody, np.nan, np.clip(centre - half, 0, 1))
    return low, np.where(nobody, np.nan, np.clip(centre + half, 0, 1))


DRAWS = 2000


def bootstrap(counts: Counts, draws: int = DRAWS, seed: int = 0) -> Counts:
    """(draws, groups, 2, 2) counts of as many people drawn anew, with replacement; the same each time.

    Any metric of counts has its interval from the quantiles of its values on these.
    """
    flat = counts.reshape(-1)
    total = int(flat.sum())
    if not total:
        return np.zeros((draws, *counts.shape), dtype=np.int64)
    drawn = np.random.default_rng(seed).multinomial(total, flat / total, size=draws)
    return drawn.reshape(draws, *counts.shape).astype(np.int64)
