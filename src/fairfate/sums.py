"""Sums whose order, and so whose last digit, does not depend on the CPU.

``@``, ``np.dot`` and ``np.linalg.norm`` call a BLAS that adds in an order of its own on each family of CPUs.
NumPy's own reductions always add in the same one; results and comparisons go through these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 4096
"""Rows of a product that are computed at a time, so that they stay in the cache."""


def dot(vector: NDArray[Any], other: NDArray[Any]) -> float:
    """The sum of the products of two vectors' numbers.

    >>> dot(np.array([1.0, 2.0]), np.array([3, 4]))
    11.0
    """
    return float(np.multiply(vector, other, dtype=np.float64).sum())


def squared_norm(vector: NDArray[Any]) -> float:
    """The square of the L2 norm; infinity where it is too large for a number."""
    with np.errstate(over="ignore"):
        return float(np.square(vector, dtype=np.float64).sum())


def norm(vector: NDArray[Any]) -> float:
    """The L2 norm, also where its square is too large for a number.

    >>> norm(np.array([3.0, 4.0])), norm(np.array([0.0, 1e200])), norm(np.array([0.0]))
    (5.0, 1e+200, 0.0)
    """
    square = squared_norm(vector)
    if math.isfinite(square) and square > 0:
        return math.sqrt(square)
    largest = float(np.abs(vector).max(initial=0.0))
    if not 0 < largest < math.inf:
        return largest
    return largest * math.sqrt(squared_norm(np.asarray(vector, dtype=np.float64) / largest))


def product(matrix: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """The matrix product with a vector or a matrix, added up input by input.

    >>> product(np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([10.0, 1.0])).tolist()
    [12.0, 1.0]
    """
    product_of_rows = np.zeros((len(matrix), *other.shape[1:]))
    for start in range(0, len(matrix), _BLOCK):
        rows, total = matrix[start : start + _BLOCK], product_of_rows[start : start + _BLOCK]
        for column, weight in zip(rows.T, other, strict=True):
            total += np.multiply.outer(column, weight)
    return product_of_rows
