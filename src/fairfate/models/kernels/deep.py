"""Train models with any number of hidden layers, also none.

A model is a flat vector: for each layer its weights ``(inputs x units)`` and then its biases; the last layer
has one unit. Models are trained one after another, so a stack of them gives the same bits as each alone.

During training a model is kept in strips, so that loops read one vector after another: for each sixteen
units of a layer, their weights of every input, and then their biases. Inputs are padded to sixteens too. The
last layer is one row of weights, and then its bias. The padding is never added to a result.

Products are rounded before they are added, and every sum has one order: over a layer's inputs, over the
units that an error comes back from, over the rows of a batch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numba import float32, int32, int64, uint64
from numpy.typing import NDArray

from fairfate.models.kernels.batches import (
    Floats,
    Schedule,
    TermArrays,
    add_prejudice,
    fill_order,
    note_pull,
    odd_sixteens,
    order_space,
    return_space,
    sixteens,
    take_space,
)
from fairfate.models.kernels.compile import inline, inner, kernel, read, write
from fairfate.models.kernels.simd import (
    add,
    add_apart,
    fill,
    load,
    load_all,
    mul,
    repeat,
    spread,
    store,
    store_all,
    sub,
    subtract_all,
    tanh,
    tanh_all,
    transpose,
)
from fairfate.models.rows import LANES, ClientRows

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_ZERO, _ONE, _HALF, _QUARTER = np.float32(0), np.float32(1), np.float32(0.5), np.float32(0.25)
_ROWS = 5  # rows that go through a layer together; ten are no faster here, whatever the registers
_NEAR = 64  # rows whose values stay in the nearest cache


@inner
def padded(count: int) -> int:
    """The next multiple of sixteen."""
    return (count + LANES - 1) // LANES * LANES


@inner
def copy_floats(source: Array, start: int, target: Array, to: int, count: int) -> None:
    """Copy so many floats, and touch no others."""
    while count >= LANES:
        store(target, to, load(source, start))
        start, to, count = start + LANES, to + LANES, count - LANES
    for k in range(count):
        target[to + k] = source[start + k]


@inner
def _copy_strips(model: Array, widths: Array, starts: Array, strips: Array, back: bool) -> None:
    """Copy a model's vector into strips, or ``back``."""
    p, last = 0, len(widths) - 2
    for layer in range(last + 1):
        wide, narrow = widths[layer], widths[layer + 1]
        deep = padded(wide)
        for j in range(wide + 1):
            for k in range(0, narrow, LANES):
                row = deep if j == wide else j
                index = starts[layer] + (row if layer == last else k * (deep + 1) + row * LANES)
                size = min(LANES, narrow - k)
                if back:
                    copy_floats(strips, index, model, p + k, size)
                else:
                    copy_floats(model, p + k, strips, index, size)
            p += narrow


@inline
def _products(a: Any, units: Array, p: int, step: int, strips: Array, strip: int, count: int) -> Any:
    """Add to a group, one for each of so many rows, the products of their values with a strip's vectors."""
    for j in range(count):
        a = add_apart(a, units, p + j, step, load(strips, strip + j * LANES))
    return a


@inner
def _forward(units: Array, strips: Array, widths: Array, layout: Array, layer: int, count: int) -> None:
    """A hidden layer of all rows; the vector lanes are its units. A ragged end is unused."""
    wide, deep = widths[layer], padded(widths[layer])
    source, step = layout[0, layer], layout[1, layer]
    target, stride = layout[0, layer + 1], layout[1, layer + 1]
    for k in range(0, widths[layer + 1], LANES):
        strip = layout[2, layer] + k * (deep + 1)
        bias = repeat(load(strips, strip + deep * LANES), _ROWS)
        for b in range(0, count, _ROWS):
            a = _products(bias, units, source + b * step, step, strips, strip, wide)
            store_all(units, target + b * stride + k, stride, tanh_all(a))


@inner
def _forward_last(
    units: Array, strips: Array, widths: Array, layout: Array, count: int, z: Array, turned: Array
) -> None:
    """Half of the last layer's sum of all rows; the vector lanes are rows."""
    last = len(widths) - 2
    wide, source, step, p = widths[last], layout[0, last], layout[1, last], layout[2, last]
    for b in range(0, count, LANES):
        a = spread(strips, p + padded(wide))
        for start in range(0, wide, LANES):
            transpose(units, source + b * step + start, step, turned, 0)
            for j in range(min(LANES, wide - start)):
                a = add(a, mul(load(turned, j * LANES), spread(strips, p + start + j)))
        store(z, b, mul(a, fill(_HALF)))


@inner
def _learn_last(
    units: Array, strips: Array, widths: Array, layout: Array, count: int, errors: Array, sums: Array
) -> None:
    """Step the last layer, and overwrite its inputs with their errors."""
    last = len(widths) - 2
    wide, source, step, p = widths[last], layout[0, last], layout[1, last], layout[2, last]
    zero, ones = fill(_ZERO), fill(_ONE)
    for j in range(0, wide, LANES):
        w, down = load(strips, p + j), load(sums, p + j)
        for b in range(count):
            q = source + b * step + j
            h, error = load(units, q), spread(errors, b)
            down = add(down, mul(h, error))
            store(units, q, mul(add(zero, mul(error, w)), sub(ones, mul(h, h))))
        store(strips, p + j, sub(w, down))
        store(sums, p + j, zero)
    p += padded(wide)
    for b in range(count):
        sums[p] += errors[b]
    strips[p] -= sums[p]
    sums[p] = _ZERO


@inner
def learn(
    units: Array, errors: Array, strips: Array, widths: Array, layout: Array, layer: int, count: int,
    sums: Array,
) -> None:  # fmt: skip
    """Step a hidden layer, given the errors of its units; the vector lanes are its units.

    ``errors`` may be the units' own array, where they have overwritten these.
    """
    wide, deep = widths[layer], padded(widths[layer])
    source, step = layout[0, layer], layout[1, layer]
    stride = layout[1, layer + 1]
    zero = repeat(fill(_ZERO), 4)
    for k in range(0, widths[layer + 1], LANES):
        at = layout[0, layer + 1] + k
        strip = layout[2, layer] + k * (deep + 1)
        for first in range(0, count, _NEAR):
            end = min(first + _NEAR, count)
            for j in range(0, wide, 4):
                p = strip + j * LANES
                a = load_all(sums, p, LANES, zero)
                for b in range(first, end):
                    a = add_apart(a, units, source + b * step + j, 1, load(errors, at + b * stride))
                if end == count:
                    subtract_all(strips, p, LANES, a)
                    a = zero
                store_all(sums, p, LANES, a)
        p = strip + deep * LANES
        down = load(sums, p)
        for b in range(count):
            down = add(down, load(errors, at + b * stride))
        store(strips, p, sub(load(strips, p), down))
        store(sums, p, fill(_ZERO))


@inner
def turn_layer(strips: Array, widths: Array, layout: Array, layer: int, turned: Array) -> None:
    """A hidden layer's weights the other way: for each sixteen inputs, their weights of every unit."""
    deep, width = padded(widths[layer]), padded(widths[layer + 1])
    for k in range(0, width, LANES):
        for j in range(0, deep, LANES):
            strip = layout[2, layer] + k * (deep + 1)
            transpose(strips, strip + j * LANES, LANES, turned, j * width + k * LANES)


@inner
def back(
    units: Array, errors: Array, widths: Array, layout: Array, layer: int, count: int, turned: Array
) -> None:
    """Write the errors of a hidden layer's inputs, the vector lanes. A ragged end is unused.

    ``errors`` may be the units' own array, as in `learn`; each input is read before it is overwritten.
    """
    narrow = widths[layer + 1]
    source, step = layout[0, layer], layout[1, layer]
    at, stride = layout[0, layer + 1], layout[1, layer + 1]
    ones, zero = fill(_ONE), repeat(fill(_ZERO), _ROWS)
    for j in range(0, widths[layer], LANES):
        strip = j * padded(narrow)
        for b in range(0, count, _ROWS):
            a = _products(zero, errors, at + b * stride, stride, turned, strip, narrow)
            q = source + b * step + j
            for error in a:
                h = load(units, q)
                store(errors, q, mul(error, sub(ones, mul(h, h))))
                q += step


@inner
def predict(
    units: Array, strips: Array, widths: Array, layout: Array, count: int, z: Array, turned: Array
) -> None:
    """Fill ``z`` with 2 P(1) - 1 of the rows whose inputs are in the units."""
    for layer in range(len(widths) - 2):
        _forward(units, strips, widths, layout, layer, count)
    _forward_last(units, strips, widths, layout, count, z, turned)
    for b in range(0, count, LANES):
        store(z, b, tanh(load(z, b)))


@inner
def _descend(
    units: Array, strips: Array, widths: Array, layout: Array, count: int, errors: Array, sums: Array,
    turned: Array,
) -> None:  # fmt: skip
    """Step all layers, from the last on, each after its weights have been used to send errors back."""
    _learn_last(units, strips, widths, layout, count, errors, sums)
    for layer in range(len(widths) - 3, -1, -1):
        if layer > 0:
            turn_layer(strips, widths, layout, layer, turned)
        learn(units, units, strips, widths, layout, layer, count, sums)
        if layer > 0:
            back(units, units, widths, layout, layer, count, turned)


_SPACE = write(float32, 1)
_WHOLE_SPACE = write(int64, 1)


@kernel(
    write(float32, 3), read(float32, 1), read(int32, 1), read(int64, 1), read(int64, 1),
    *[read(float32, 3)] * 3, read(float32, 1), read(float32, 2), write(float32, 3), *[int64] * 4,
    float32, uint64, int64, read(int64, 1), write(int32, 1), read(int64, 2), *[_SPACE] * 9,
    *[_WHOLE_SPACE] * 2,
)  # fmt: skip
def _train_deep(
    models: Array, x: Array, cell: Array, offsets: Array, clients: Array, weights: Array, targets: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, widths: Array, order: Array, layout: Array,
    units: Array, strips: Array, sums: Array, anchor: Array, turned: Array, z: Array, lift: Array,
    strength: Array, odds: Array, group: Array, present: Array,
) -> None:  # fmt: skip
    """As `shallow._train_singly`, for the layer widths ``(inputs, ..., 1)``.

    ``layout`` : where a batch's inputs to each layer begin, how far rows are apart, where its strips begin.
    """
    settings, inputs = len(models), widths[0]
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        fill_order(key, round_number, clients[c], rows, epochs, order)
        for s in range(settings):
            pushed = len(pushes) > 0
            prejudice = prejudices[s] if len(prejudices) else _ZERO
            strength[:] = rate * proxes[s, c] if len(proxes) else _ZERO
            _copy_strips(models[s, c], widths, layout[2], strips, False)
            if strength[0] != _ZERO:
                _copy_strips(anchors[s, c], widths, layout[2], anchor, False)
            for begin in range(0, rows * run, batch):
                count = min(batch, rows * run - begin)
                step = rate / _F(count)
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    copy_floats(x, row * inputs, units, b * layout[1, 0], inputs)
                    group[b] = cell[row] // 2
                    lift[b] = pushes[s, c, cell[row]] * (_QUARTER * step) if pushed else _ZERO
                predict(units, strips, widths, layout, count, z, turned)
                if prejudice != _ZERO:
                    add_prejudice(z, group, count, prejudice, _QUARTER * step, lift, odds, present)
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    t = z[b]
                    error = _HALF * t + (_HALF - targets[s, c, cell[row]])
                    z[b] = error * (weights[s, c, cell[row]] * step)
                    if pushed or prejudice != _ZERO:
                        z[b] += (_ONE - t * t) * lift[b]
                if strength[0] != _ZERO:
                    note_pull(strips, anchor, strength, sums)
                _descend(units, strips, widths, layout, count, z, sums, turned)
            _copy_strips(models[s, c], widths, layout[2], strips, True)


def train(
    start: Floats,
    rows: ClientRows,
    clients: NDArray[np.int64],
    terms: TermArrays,
    schedule: Schedule,
    batch: int,
    rate: np.float32,
    key: np.uint64,
    round_number: int,
    widths: NDArray[np.int64],
) -> Floats:
    """Train (settings, cohort, parameters) models with any number of hidden layers."""
    order, batch = order_space(rows, clients, schedule, batch)
    groups, row = (terms.weights.shape[2] + 1) // 2, sixteens(batch)
    layout = make_layout(widths.tolist(), batch)
    units, size = int(layout[0, -1]), int(layout[2, -1])
    floats = units, size, size, size, max(size, LANES * LANES), row, row, LANES, groups + LANES
    models = start.copy()
    space = take_space(floats, (row, groups))
    _train_deep(
        models, rows.x, rows.cell, rows.offsets, clients, *terms, *schedule, batch, rate, key, round_number,
        widths, order, layout, *space.parts,
    )  # fmt: skip
    return_space(space)
    return models


def make_layout(widths: list[int], batch: int) -> NDArray[np.int64]:
    """For each layer: where a batch's inputs to it begin, how far rows are apart, where its strips begin.

    The first and the last of these have one number more, the length of the whole.
    """
    layout = np.zeros((3, len(widths)), np.int64)
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        layout[0, layer + 1] = layout[0, layer] + (sixteens(batch) + LANES) * odd_sixteens(wide)
        layout[1, layer] = odd_sixteens(wide)
        layout[2, layer + 1] = layout[2, layer] + (sixteens(wide) + 1) * sixteens(narrow)
    return layout
