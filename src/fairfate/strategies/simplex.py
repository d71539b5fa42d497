"""The projection of numbers onto shares that add up."""

from __future__ import annotations

import numpy as np

from fairfate.fairness.metrics import Values


def project(values: Values, total: float = 1.0) -> Values:
    """The nearest numbers >= 0 that add up to a total; themselves if they do.

    >>> project(np.array([0.9, 0.9, -0.5])).tolist()
    [0.5, 0.5, 0.0]
    >>> project(np.array([0.25, 0.75])).tolist()
    [0.25, 0.75]
    """
    if (values >= 0).all() and abs(values.sum() - total) <= 1e-12 * max(1.0, total):
        return values
    falling = np.sort(values)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(falling > over)
    return np.asarray(np.maximum(values - over[last[-1] if len(last) else 0], 0.0))
