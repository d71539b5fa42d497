"""Score models on packed rows: accepted rows, probabilities, losses, margins.

A model is a flat vector: for each layer its weights ``(inputs x units)`` and then its biases; the last layer
has one unit. The vector lanes are rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import float32, float64, int64, uint16
from numpy.typing import NDArray

from fairfate.models.kernels.batches import Floats, aligned_zeros
from fairfate.models.kernels.compile import inline, inner, kernel, read, write
from fairfate.models.kernels.simd import (
    count_positive,
    fill,
    fma,
    fma_apart,
    fma_chain,
    load,
    masked_sum,
    mul,
    neg,
    softplus,
    spread,
    spread_all,
    store,
    store_all,
    tanh,
    tanh_all,
)
from fairfate.models.rows import LANES, PackedRows

Array = Any  # Numba infers the types of the kernels' arguments
Sums = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""(models, cells) accepted rows, sums of probabilities, sums of cross-entropies."""

_HALF = np.float32(0.5)


@inline
def _hidden_units(a: Any, values: Array, start: int, wide: int, flat: Array, p: int, narrow: int) -> Any:
    """A group of hidden units; ``a`` holds their biases, and their weights begin at ``p``."""
    for j in range(wide):
        a = fma_apart(a, flat, p + j * narrow, 1, load(values, start + j * LANES))
    return tanh_all(a)


@inner
def _margin(flat: Array, base: int, blocks: Array, start: int, inputs: int, hidden: int) -> Any:
    """The score before the sigmoid of sixteen rows, by the model that begins at ``base``."""
    b1 = base + inputs * hidden
    w2 = b1 + hidden
    z = spread(flat, w2 + hidden)
    k = 0
    while k + 5 <= hidden:
        a = _hidden_units(spread_all(flat, b1 + k, 5), blocks, start, inputs, flat, base + k, hidden)
        z = fma_chain(z, a, flat, w2 + k)
        k += 5
    while k < hidden:
        b = _hidden_units(spread_all(flat, b1 + k, 1), blocks, start, inputs, flat, base + k, hidden)
        z = fma_chain(z, b, flat, w2 + k)
        k += 1
    return z


@inner
def _score_layer(
    values: Array, source: int, flat: Array, p: int, wide: int, narrow: int, units: Array, to: int
) -> None:
    """A hidden layer of sixteen rows."""
    bias = p + wide * narrow
    k = 0
    while k + 5 <= narrow:
        a = _hidden_units(spread_all(flat, bias + k, 5), values, source, wide, flat, p + k, narrow)
        store_all(units, to + k * LANES, LANES, a)
        k += 5
    while k < narrow:
        b = _hidden_units(spread_all(flat, bias + k, 1), values, source, wide, flat, p + k, narrow)
        store_all(units, to + k * LANES, LANES, b)
        k += 1


@inner
def _margin_deep(flat: Array, base: int, blocks: Array, start: int, widths: Array, units: Array) -> Any:
    """As `_margin`, for any number of hidden layers."""
    last, half = len(widths) - 2, len(units) // 2
    p = base
    for layer in range(last):
        wide, narrow = widths[layer], widths[layer + 1]
        source, target = layer % 2 * half, (layer + 1) % 2 * half
        if layer == 0:
            _score_layer(blocks, start, flat, p, wide, narrow, units, target)
        else:
            _score_layer(units, source, flat, p, wide, narrow, units, target)
        p += (wide + 1) * narrow
    z = spread(flat, p + widths[last])
    for j in range(widths[last]):
        at = j * LANES
        v = load(units, last % 2 * half + at) if last else load(blocks, start + at)
        z = fma(v, spread(flat, p + j), z)
    return z


@inner
def _add_statistics(
    z: Any, cell: int, mask: Any, positives: Array, probability: Array, loss: Array, m: int
) -> None:
    """Add a block's sums to those of its cell."""
    half = fill(_HALF)
    positives[m, cell] += count_positive(z, mask)
    probability[m, cell] += masked_sum(fma(half, tanh(mul(z, half)), half), mask)
    loss[m, cell] += masked_sum(softplus(neg(z) if cell % 2 else z), mask)


_BLOCKS = read(float32, 1), read(float32, 1), read(int64, 1), read(uint16, 1)
_SUMS = write(int64, 2), write(float64, 2), write(float64, 2)


@kernel(*_BLOCKS, int64, int64, write(int64, 2))
def _count_positives(
    flat: Array, blocks: Array, cell: Array, mask: Array, inputs: int, hidden: int, out: Array
) -> None:
    """Rows of each cell that each model accepts.

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


@kernel(*_BLOCKS, int64, int64, *_SUMS)
def _sum_statistics(
    flat: Array, blocks: Array, cell: Array, mask: Array, inputs: int, hidden: int,
    positives: Array, probability: Array, loss: Array,
) -> None:  # fmt: skip
    """Rows of each cell that each model accepts, and sums of their probabilities and cross-entropies."""
    parameters = (inputs + 2) * hidden + 1
    for m in range(len(positives)):
        for block in range(len(cell)):
            z = _margin(flat, m * parameters, blocks, block * inputs * LANES, inputs, hidden)
            _add_statistics(z, cell[block], mask[block], positives, probability, loss, m)


@kernel(*_BLOCKS, int64, read(int64, 1), write(float32, 1), *_SUMS)
def _statistics_deep(
    flat: Array, blocks: Array, cell: Array, mask: Array, parameters: int, widths: Array, units: Array,
    positives: Array, probability: Array, loss: Array,
) -> None:  # fmt: skip
    """As `_sum_statistics`."""
    for m in range(len(positives)):
        for block in range(len(cell)):
            z = _margin_deep(flat, m * parameters, blocks, block * widths[0] * LANES, widths, units)
            _add_statistics(z, cell[block], mask[block], positives, probability, loss, m)


@kernel(read(float32, 1), read(float32, 1), int64, int64, write(float32, 1))
def _margins(model: Array, blocks: Array, inputs: int, hidden: int, out: Array) -> None:
    """One model's scores before the sigmoid of all rows, in the order of the blocks."""
    for start in range(0, len(out), LANES):
        store(out, start, _margin(model, 0, blocks, start * inputs, inputs, hidden))


@kernel(read(float32, 1), read(float32, 1), read(int64, 1), write(float32, 1), write(float32, 1))
def _margins_deep(model: Array, blocks: Array, widths: Array, units: Array, out: Array) -> None:
    """As `_margins`."""
    for start in range(0, len(out), LANES):
        store(out, start, _margin_deep(model, 0, blocks, start * widths[0], widths, units))


@kernel(read(float32, 1), read(int64, 1), read(uint16, 1), *_SUMS)
def _sum_scores(
    scores: Array, cell: Array, mask: Array, positives: Array, probability: Array, loss: Array
) -> None:
    """As `_sum_statistics`, from the scores of one model."""
    for block in range(len(cell)):
        _add_statistics(
            load(scores, block * LANES), cell[block], mask[block], positives, probability, loss, 0
        )


def sum_scores(scores: Floats, rows: PackedRows) -> Sums:
    """The sums of one model, from its scores for each slot of the blocks."""
    sums = _sums(1, rows.cells)
    _sum_scores(scores, rows.block_cell, rows.mask, *sums)
    return sums


def count_positives(models: Floats, rows: PackedRows, inputs: int, hidden: int) -> NDArray[np.int64]:
    """(models, cells) the rows of each cell that each model with one hidden layer accepts."""
    out = np.zeros((len(models), rows.cells), np.int64)
    _count_positives(models.reshape(-1), rows.blocks, rows.block_cell, rows.mask, inputs, hidden, out)
    return out


def sum_statistics(models: Floats, rows: PackedRows, inputs: int, hidden: int) -> Sums:
    """The same with sums of probabilities and cross-entropies."""
    sums = _sums(len(models), rows.cells)
    _sum_statistics(models.reshape(-1), rows.blocks, rows.block_cell, rows.mask, inputs, hidden, *sums)
    return sums


def statistics_deep(models: Floats, rows: PackedRows, widths: NDArray[np.int64]) -> Sums:
    """As `sum_statistics`, for any number of hidden layers."""
    sums, units = _sums(len(models), rows.cells), _two_layers(widths)
    packed = rows.blocks, rows.block_cell, rows.mask
    _statistics_deep(models.reshape(-1), *packed, models.shape[1], widths, units, *sums)
    return sums


def margins(model: Floats, rows: PackedRows, inputs: int, hidden: int) -> Floats:
    """One model's scores before the sigmoid, for each slot of the blocks."""
    out = np.zeros(len(rows.blocks) // inputs, np.float32)
    _margins(model, rows.blocks, inputs, hidden, out)
    return out


def margins_deep(model: Floats, rows: PackedRows, widths: NDArray[np.int64]) -> Floats:
    """As `margins`, for any number of hidden layers."""
    out = np.zeros(len(rows.blocks) // int(widths[0]), np.float32)
    _margins_deep(model, rows.blocks, widths, _two_layers(widths), out)
    return out


def _sums(models: int, cells: int) -> Sums:
    return np.zeros((models, cells), np.int64), np.zeros((models, cells)), np.zeros((models, cells))


def _two_layers(widths: NDArray[np.int64]) -> Floats:
    """Scratch memory for sixteen values of each unit of two layers."""
    return aligned_zeros(2 * int(widths.max()) * LANES)
