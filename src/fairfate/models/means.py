"""Weighted means of clients' updates, with the same bits on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[Any]
Matrix = NDArray[Any]

_BLOCK = 400_000
"""How many products `weighted_means` holds at a time."""
_LARGE = 10_000_000
"""How many numbers are worth a compiled loop: 2.6 times as fast, but it takes a while to load or compile."""


def weighted_mean(deltas: Matrix, weights: Vector) -> Vector:
    """``sum(weights * deltas) / sum(weights)``, zero when the weights sum to zero.

    Clients are added one after another, so the result depends on nothing but the values.

    Parameters
    ----------
    deltas : (clients, parameters) updates
    weights : (clients,) numbers >= 0

    Returns
    -------
    (parameters,) the mean, in the type of the updates

    Examples
    --------
    >>> weighted_mean(np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([1, 3])).tolist()
    [2.5, 5.0]
    """
    return weighted_means(deltas, weights)[0]


def weighted_means(deltas: Matrix, *weights: Vector) -> list[Vector]:
    """Several weighted means of the same updates, in one pass over them.

    Parameters
    ----------
    deltas : (clients, parameters) updates
    weights : (clients,) numbers >= 0, for each mean

    Returns
    -------
    (parameters,) means, one for each of the weights

    Examples
    --------
    >>> first, second = weighted_means(np.array([[1.0], [3.0]]), np.array([1, 0]), np.array([1, 1]))
    >>> first.tolist(), second.tolist()
    ([1.0], [2.0])
    """
    step = max(1, _BLOCK // len(deltas))
    if deltas.shape[1] <= step and deltas.size < _LARGE:  # a sweep comes here a hundred times a round
        return [_mean(deltas, each) for each in weights]
    totals = [float(each.sum()) for each in weights]
    means: list[Vector] = [np.zeros(deltas.shape[1], dtype=deltas.dtype) for _ in weights]
    positive = [k for k, total in enumerate(totals) if total > 0]
    shares = [(weights[k] / totals[k]).astype(deltas.dtype) for k in positive]
    first = 0
    if positive and _is_compiled(deltas, step):
        from fairfate.models.kernels.means import weighted_sums  # which takes a while to load

        for k, total in zip(positive, weighted_sums(deltas, np.stack(shares)), strict=True):
            means[k] = total
        # NumPy adds up a column that is alone in its block in another order, which is kept
        first = deltas.shape[1] - (deltas.shape[1] % step == 1)
    for start in range(first, deltas.shape[1], step):  # piece by piece, so that everything stays in the cache
        block = slice(start, start + step)
        for k, share in zip(positive, shares, strict=True):
            means[k][block] = (share[:, None] * deltas[:, block]).sum(axis=0)
    return means


def _mean(deltas: Matrix, weights: Vector) -> Vector:
    """One mean of updates that stay in the cache."""
    total = float(np.add.reduce(weights))  # half the time of weights.sum()
    if not total > 0:
        return np.zeros(deltas.shape[1], dtype=deltas.dtype)
    shares = (weights / total).astype(deltas.dtype)
    mean: Vector = np.add.reduce(shares[:, None] * deltas, axis=0)
    return mean


def _is_compiled(deltas: Matrix, step: int) -> bool:
    """Whether means are worth a compiled loop, and NumPy would add row by row, as the loop does."""
    if deltas.size < _LARGE or step == 1 or deltas.dtype not in (np.float32, np.float64):
        return False
    width = deltas.shape[1] * deltas.itemsize
    return deltas.shape[1] > 1 and deltas.strides[1] == deltas.itemsize and deltas.strides[0] >= width
