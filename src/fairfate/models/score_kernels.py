"""The compiled loops that score models with one hidden layer on packed rows. They hold no policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.compiling import kernel
from fairfate.models.rows import LANES
from fairfate.models.simd import (
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

_HALF = np.float32(0.5)


@kernel
def _margin(flat: Array, base: int, blocks: Array, start: int, inputs: int, hidden: int) -> Any:
    """The score before the sigmoid of sixteen rows, by the model that begins at ``base``."""
    b1 = base + inputs * hidden
    w2 = b1 + hidden
    z = spread(flat, w2 + hidden)
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
        z = fma(tanh(a0), spread(flat, w2 + k), z)
        z = fma(tanh(a1), spread(flat, w2 + k + 1), z)
        z = fma(tanh(a2), spread(flat, w2 + k + 2), z)
        z = fma(tanh(a3), spread(flat, w2 + k + 3), z)
        z = fma(tanh(a4), spread(flat, w2 + k + 4), z)
        k += 5
    while k < hidden:
        a0 = spread(flat, b1 + k)
        for j in range(inputs):
            a0 = fma(load(blocks, start + j * LANES), spread(flat, base + j * hidden + k), a0)
        z = fma(tanh(a0), spread(flat, w2 + k), z)
        k += 1
    return z


@kernel
def count_positives(
    flat: Array, blocks: Array, cell: Array, mask: Array, inputs: int, hidden: int, out: Array
) -> None:
    """Count the rows of each cell that each model accepts.

    Parameters
    ----------
    flat : the models, one after another
    blocks : flat; for each block of sixteen rows of one cell, each input's sixteen values
    cell, mask : (blocks,) the block's cell, and which of its rows exist, as bits
    out : (models, cells) zeros become rows with a score above zero, i.e. a probability above one half
    """
    parameters = (inputs + 2) * hidden + 1
    for m in range(len(out)):
        for block in range(len(cell)):
            z = _margin(flat, m * parameters, blocks, block * inputs * LANES, inputs, hidden)
            out[m, cell[block]] += count_positive(z, mask[block])


@kernel
def sum_statistics(
    flat: Array, blocks: Array, cell: Array, mask: Array, inputs: int, hidden: int,
    positives: Array, probability: Array, loss: Array,
) -> None:  # fmt: skip
    """Rows of each cell that each model accepts, and sums of their probabilities and cross-entropies."""
    parameters = (inputs + 2) * hidden + 1
    half = fill(_HALF)
    for m in range(len(positives)):
        for block in range(len(cell)):
            z = _margin(flat, m * parameters, blocks, block * inputs * LANES, inputs, hidden)
            at = cell[block]
            positives[m, at] += count_positive(z, mask[block])
            probability[m, at] += masked_sum(fma(half, tanh(mul(z, half)), half), mask[block])
            loss[m, at] += masked_sum(softplus(neg(z) if at % 2 else z), mask[block])


@kernel
def margins(model: Array, blocks: Array, inputs: int, hidden: int, out: Array) -> None:
    """One model's scores before the sigmoid of all rows, in the order of the blocks."""
    for start in range(0, len(out), LANES):
        store(out, start, _margin(model, 0, blocks, start * inputs, inputs, hidden))
