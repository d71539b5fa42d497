"""The compiled loops for any number of hidden layers, also none. They hold no policy.

A model is a flat vector: for each layer its weights ``(inputs x units)`` and then its biases; the last layer
has one unit. Models are trained one after another, so a stack of them gives the same bits as each alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.compiling import kernel
from fairfate.models.layer_kernels import copy, descend, fill_strips, predict
from fairfate.models.rows import LANES
from fairfate.models.shared_kernels import add_prejudice, batch_order, note_pull
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

_F = np.float32
_ZERO, _ONE, _HALF, _QUARTER = np.float32(0), np.float32(1), np.float32(0.5), np.float32(0.25)


@kernel
def train_deep(
    start: Array, x: Array, cell: Array, offsets: Array, clients: Array, weights: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, widths: Array, order: Array, places: Array,
    space: Array, whole_space: Array, ends: Array, out: Array,
) -> None:  # fmt: skip
    """As `train_cohort`, for the layer widths ``(inputs, ..., 1)``.

    ``places`` : where a batch's inputs to each layer begin, how far rows are apart, where its strips begin.
    """
    settings, inputs = len(start), widths[0]
    units, strips, sums = space[: ends[0]], space[ends[0] : ends[1]], space[ends[1] : ends[2]]
    anchor, turned, z = space[ends[2] : ends[3]], space[ends[3] : ends[4]], space[ends[4] : ends[5]]
    lift, strength, odds = space[ends[5] : ends[6]], space[ends[6] : ends[7]], space[ends[7] : ends[8]]
    group, present = whole_space[: ends[9]], whole_space[ends[9] :]
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        batch_order(key, round_number, clients[c], rows, epochs, order)
        for s in range(settings):
            pushed = len(pushes) > 0
            prejudice = prejudices[s] if len(prejudices) else _ZERO
            strength[:] = rate * proxes[s, c] if len(proxes) else _ZERO
            fill_strips(start[s, c], widths, places[2], strips, False)
            if strength[0] != _ZERO:
                fill_strips(anchors[s, c], widths, places[2], anchor, False)
            for begin in range(0, rows * run, batch):
                count = min(batch, rows * run - begin)
                step = rate / _F(count)
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    copy(x, row * inputs, units, b * places[1, 0], inputs)
                    group[b] = cell[row] // 2
                    lift[b] = pushes[s, c, cell[row]] * (_QUARTER * step) if pushed else _ZERO
                predict(units, strips, widths, places, count, z, turned)
                if prejudice != _ZERO:
                    add_prejudice(z, group, count, prejudice, _QUARTER * step, lift, odds, present)
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    t = z[b]
                    z[b] = (_HALF * t + (_HALF - _F(cell[row] & 1))) * (weights[s, c, cell[row]] * step)
                    if pushed or prejudice != _ZERO:
                        z[b] += (_ONE - t * t) * lift[b]
                if strength[0] != _ZERO:
                    note_pull(strips, anchor, strength, sums)
                descend(units, strips, widths, places, count, z, sums, turned)
            fill_strips(out[s, c], widths, places[2], strips, True)


@kernel
def _score_layer(
    values: Array, source: int, flat: Array, p: int, wide: int, narrow: int, units: Array, to: int
) -> None:
    """A hidden layer of sixteen rows, which are the vector lanes."""
    bias = p + wide * narrow
    k = 0
    while k + 5 <= narrow:
        a0, a1, a2 = spread(flat, bias + k), spread(flat, bias + k + 1), spread(flat, bias + k + 2)
        a3, a4 = spread(flat, bias + k + 3), spread(flat, bias + k + 4)
        for j in range(wide):
            v = load(values, source + j * LANES)
            q = p + j * narrow + k
            a0 = fma(v, spread(flat, q), a0)
            a1 = fma(v, spread(flat, q + 1), a1)
            a2 = fma(v, spread(flat, q + 2), a2)
            a3 = fma(v, spread(flat, q + 3), a3)
            a4 = fma(v, spread(flat, q + 4), a4)
        for a in (a0, a1, a2, a3, a4):
            store(units, to + k * LANES, tanh(a))
            k += 1
    while k < narrow:
        a0 = spread(flat, bias + k)
        for j in range(wide):
            a0 = fma(load(values, source + j * LANES), spread(flat, p + j * narrow + k), a0)
        store(units, to + k * LANES, tanh(a0))
        k += 1


@kernel
def _margin_deep(flat: Array, base: int, blocks: Array, start: int, widths: Array, units: Array) -> Any:
    """The score before the sigmoid of sixteen rows, by the model that begins at ``base``."""
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
        z = fma(
            load(units, last % 2 * half + at) if last else load(blocks, start + at), spread(flat, p + j), z
        )
    return z


@kernel
def statistics_deep(
    flat: Array, blocks: Array, cell: Array, mask: Array, parameters: int, widths: Array, units: Array,
    positives: Array, probability: Array, loss: Array,
) -> None:  # fmt: skip
    """As `sum_statistics`."""
    half = fill(_HALF)
    for m in range(len(positives)):
        for block in range(len(cell)):
            z = _margin_deep(flat, m * parameters, blocks, block * widths[0] * LANES, widths, units)
            at = cell[block]
            positives[m, at] += count_positive(z, mask[block])
            probability[m, at] += masked_sum(fma(half, tanh(mul(z, half)), half), mask[block])
            loss[m, at] += masked_sum(softplus(neg(z) if at % 2 else z), mask[block])


@kernel
def margins_deep(model: Array, blocks: Array, widths: Array, units: Array, out: Array) -> None:
    """As `margins`."""
    for start in range(0, len(out), LANES):
        store(out, start, _margin_deep(model, 0, blocks, start * widths[0], widths, units))
