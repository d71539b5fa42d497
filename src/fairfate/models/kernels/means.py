"""Add up many large vectors by weights, in one pass over them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int64
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fairfate.models.kernels.compile import inner, kernel, read, write

Array = Any  # Numba infers the types of the kernels' arguments

_WIDTH = 16_384
"""Columns at a time, so that their sums stay in the cache while all rows are added."""


@inner
def _add_rows(flat: Array, step: int, weights: Array, sums: Array) -> None:
    """Add rows that start ``step`` apart to the sums: four in a go, which asks less of the memory.

    Every product is rounded and then added, to one row's after another, as NumPy does it.
    """
    count, columns = weights.shape[1], sums.shape[1]
    fours = count - count % 4
    for start in range(0, columns, _WIDTH):
        width = min(_WIDTH, columns - start)
        for row in range(0, fours, 4):
            first = row * step + start
            a = flat[first : first + width]
            b = flat[first + step : first + step + width]
            c = flat[first + 2 * step : first + 2 * step + width]
            d = flat[first + 3 * step : first + 3 * step + width]
            for k in range(len(sums)):
                shares, into = weights[k, row : row + 4], sums[k, start : start + width]
                wa, wb, wc, wd = shares[0], shares[1], shares[2], shares[3]
                for i in range(width):
                    into[i] = (((into[i] + wa * a[i]) + wb * b[i]) + wc * c[i]) + wd * d[i]
        for row in range(fours, count):
            a = flat[row * step + start : row * step + start + width]
            for k in range(len(sums)):
                weight, into = weights[k, row], sums[k, start : start + width]
                for i in range(width):
                    into[i] += weight * a[i]


def _make_kernel(dtype: Any) -> Any:
    @kernel(read(dtype, 1), int64, read(dtype, 2), write(dtype, 2))
    def add_rows(flat: Array, step: int, weights: Array, sums: Array) -> None:
        _add_rows(flat, step, weights, sums)

    return add_rows


_KERNELS = {np.dtype(dtype.name): _make_kernel(dtype) for dtype in (float32, float64)}


def weighted_sums(rows: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """(sums, columns) rows added one after another, each times its weight, for each row of weights.

    The same bits as ``(weights[k][:, None] * rows).sum(axis=0)``, where there is more than one column.

    Parameters
    ----------
    rows : (rows, columns) whose columns lie side by side in memory; rows may lie further apart
    weights : (sums, rows) of the same type
    """
    step = rows.strides[0] // rows.itemsize
    flat = as_strided(rows, ((len(rows) - 1) * step + rows.shape[1],), (rows.itemsize,), writeable=False)
    sums = np.zeros((len(weights), rows.shape[1]), dtype=rows.dtype)
    _KERNELS[rows.dtype](flat, step, weights, sums)
    return sums
