"""The compiled loops that score models with one hidden layer on packed rows. They hold no policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.cache import kernel
from fairfate.models.simd import (
    LANES,
    count_positive,
    fill,
    fma,
    load,
    masked_sum,
    mul,
    neg,
    softplus,
    spread,
    store,
    tanh,
)

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_HALF = np.float32(0.5)


@kernel
def _margin(flat: Array, base: int, blocks: Array, start: int, inputs: int, hidden: int, units: Array) -> Any:
    """The score before the sigmoid of sixteen rows, by the model that begins at ``base``."""
    b1 = base + inputs * hidden
    w2 = b1 + hidden
    k = 0
    while k + 5 <= hidden:
        a0, a1, a2 = spread(flat, b1 + k), spread(flat, b1 + k + 1), spread(flat, b1 + k + 2)
        a3, a4 = spread(flat, b1 + k + 3), spread(flat, b1 + k + 4)
        for j in range(inputs):
            v = load(blocks, start + j * LANES)
            q = base + j * hidden + k
            a0 = fma(v, spread(flat, q), a0)
            a1 = fma(v, spread(flat, q + 1), a1)
            a2 = fma(v, spread(flat, q + 2), a2)
            a3 = fma(v, spread(flat, q + 3), a3)
            a4 = fma(v, spread(flat, q + 4), a4)
        store(units, k * LANES, tanh(a0))
        store(units, (k + 1) * LANES, tanh(a1))
        store(units, (k + 2) * LANES, tanh(a2))
        store(units, (k + 3) * LANES, tanh(a3))
        store(units, (k + 4) * LANES, tanh(a4))
        k += 5
    while k < hidden:
        a0 = spread(flat, b1 + k)
        for j in range(inputs):
            a0 = fma(load(blocks, start + j * LANES), spread(flat, base + j * hidden + k), a0)
        store(units, k * LANES, tanh(a0))
        k += 1
    z = spread(flat, w2 + hidden)
    for k in range(hidden):
        z = fma(load(units, k * LANES), spread(flat, w2 + k), z)
    return z


@kernel
def count_positives(models: Array, blocks: Array, cell: Array, mask: Array, hidden: int) -> Array:
    """Count the rows of each cell that each model accepts.

    Parameters
    ----------
    models : (models, parameters)
    blocks : flat; for each block of sixteen rows of one cell, each input's sixteen values
    cell, mask : (blocks,) the block's cell, and which of its rows exist, as bits

    Returns
    -------
    (models, cells) rows with a score above zero, i.e. a probability above one half
    """
    count, parameters = models.shape
    inputs = (parameters - 1) // hidden - 2
    cells = 0
    for block in range(len(cell)):
        cells = max(cells, cell[block] + 1)
    positives = np.zeros((count, cells), np.int64)
    flat = models.ravel()
    units = np.zeros(hidden * LANES, _F)
    for m in range(count):
        for block in range(len(cell)):
            z = _margin(flat, m * parameters, blocks, block * inputs * LANES, inputs, hidden, units)
            positives[m, cell[block]] += count_positive(z, mask[block])
    return positives


@kernel
def sum_statistics(models: Array, blocks: Array, cell: Array, mask: Array, cells: int, hidden: int) -> Any:
    """Rows of each cell that each model accepts, and sums of their probabilities and cross-entropies."""
    count, parameters = models.shape
    inputs = (parameters - 1) // hidden - 2
    positives = np.zeros((count, cells), np.int64)
    probability = np.zeros((count, cells))
    loss = np.zeros((count, cells))
    flat = models.ravel()
    units = np.zeros(hidden * LANES, _F)
    half = fill(_HALF)
    for m in range(count):
        for block in range(len(cell)):
            z = _margin(flat, m * parameters, blocks, block * inputs * LANES, inputs, hidden, units)
            at = cell[block]
            positives[m, at] += count_positive(z, mask[block])
            probability[m, at] += masked_sum(fma(half, tanh(mul(z, half)), half), mask[block])
            loss[m, at] += masked_sum(softplus(neg(z) if at % 2 else z), mask[block])
    return positives, probability, loss


@kernel
def margins(model: Array, blocks: Array, hidden: int) -> Array:
    """One model's scores before the sigmoid of all rows, in the order of the blocks."""
    inputs = (len(model) - 1) // hidden - 2
    count = len(blocks) // inputs
    out = np.empty(count, _F)
    units = np.zeros(hidden * LANES, _F)
    for start in range(0, count, LANES):
        store(out, start, _margin(model, 0, blocks, start * inputs, inputs, hidden, units))
    return out
