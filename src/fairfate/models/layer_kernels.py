"""The compiled loops that take a batch through the layers of a model and back. They hold no policy.

A model is held in strips, so that loops read one vector after another: for each sixteen units of a layer,
their weights of every input, and then their biases. Inputs are padded to sixteens too. The last layer is one
row of weights, and then its bias. What stands in the padding is never added to anything that counts.

Products are rounded before they are added, and every sum has one order: over a layer's inputs, over the
units that an error comes back from, over the rows of a batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.compiling import kernel
from fairfate.models.kernels import ROWS
from fairfate.models.rows import LANES
from fairfate.models.simd import add, fill, load, mul, spread, store, sub, tanh, turn

Array = Any  # Numba infers the types of the kernels' arguments

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_NEAR = 64  # rows whose values stay in the nearest cache


@kernel
def padded(count: int) -> int:
    """The next multiple of sixteen."""
    return (count + LANES - 1) // LANES * LANES


@kernel
def copy(source: Array, start: int, target: Array, to: int, count: int) -> None:
    """Copy so many floats, and touch no others."""
    while count >= LANES:
        store(target, to, load(source, start))
        start, to, count = start + LANES, to + LANES, count - LANES
    for k in range(count):
        target[to + k] = source[start + k]


@kernel
def fill_strips(model: Array, widths: Array, starts: Array, strips: Array, back: bool) -> None:
    """Copy a model's vector into strips, or ``back``."""
    p, last = 0, len(widths) - 2
    for layer in range(last + 1):
        wide, narrow = widths[layer], widths[layer + 1]
        deep = padded(wide)
        for j in range(wide + 1):
            for k in range(0, narrow, LANES):
                row = deep if j == wide else j
                place = starts[layer] + (row if layer == last else k * (deep + 1) + row * LANES)
                size = min(LANES, narrow - k)
                if back:
                    copy(strips, place, model, p + k, size)
                else:
                    copy(model, p + k, strips, place, size)
            p += narrow


@kernel
def _forward(units: Array, strips: Array, widths: Array, places: Array, layer: int, count: int) -> None:
    """A hidden layer of all rows; the vector lanes are its units. A ragged end is unused."""
    wide, deep = widths[layer], padded(widths[layer])
    source, step = places[0, layer], places[1, layer]
    target, stride = places[0, layer + 1], places[1, layer + 1]
    for k in range(0, widths[layer + 1], LANES):
        strip = places[2, layer] + k * (deep + 1)
        bias = load(strips, strip + deep * LANES)
        for b in range(0, count, ROWS):
            a0 = a1 = a2 = a3 = a4 = bias
            q = source + b * step
            for j in range(wide):
                w = load(strips, strip + j * LANES)
                a0 = add(a0, mul(spread(units, q + j), w))
                a1 = add(a1, mul(spread(units, q + step + j), w))
                a2 = add(a2, mul(spread(units, q + 2 * step + j), w))
                a3 = add(a3, mul(spread(units, q + 3 * step + j), w))
                a4 = add(a4, mul(spread(units, q + 4 * step + j), w))
            q = target + b * stride + k
            store(units, q, tanh(a0))
            store(units, q + stride, tanh(a1))
            store(units, q + 2 * stride, tanh(a2))
            store(units, q + 3 * stride, tanh(a3))
            store(units, q + 4 * stride, tanh(a4))


@kernel
def _forward_last(
    units: Array, strips: Array, widths: Array, places: Array, count: int, z: Array, turned: Array
) -> None:
    """Half of the last layer's sum of all rows; the vector lanes are rows."""
    last = len(widths) - 2
    wide, source, step, p = widths[last], places[0, last], places[1, last], places[2, last]
    for b in range(0, count, LANES):
        a = spread(strips, p + padded(wide))
        for start in range(0, wide, LANES):
            turn(units, source + b * step + start, step, turned, 0)
            for j in range(min(LANES, wide - start)):
                a = add(a, mul(load(turned, j * LANES), spread(strips, p + start + j)))
        store(z, b, mul(a, fill(_HALF)))


@kernel
def _learn_last(
    units: Array, strips: Array, widths: Array, places: Array, count: int, errors: Array, sums: Array
) -> None:
    """Step the last layer, and put their errors in the place of its inputs."""
    last = len(widths) - 2
    wide, source, step, p = widths[last], places[0, last], places[1, last], places[2, last]
    zero, one = fill(_ZERO), fill(_ONE)
    for j in range(0, wide, LANES):
        w, down = load(strips, p + j), load(sums, p + j)
        for b in range(count):
            q = source + b * step + j
            h, error = load(units, q), spread(errors, b)
            down = add(down, mul(h, error))
            store(units, q, mul(add(zero, mul(error, w)), sub(one, mul(h, h))))
        store(strips, p + j, sub(w, down))
        store(sums, p + j, zero)
    p += padded(wide)
    for b in range(count):
        sums[p] += errors[b]
    strips[p] -= sums[p]
    sums[p] = _ZERO


@kernel
def _learn(
    units: Array, strips: Array, widths: Array, places: Array, layer: int, count: int, sums: Array
) -> None:
    """Step a hidden layer, given the errors of its units; the vector lanes are its units."""
    wide, deep = widths[layer], padded(widths[layer])
    source, step = places[0, layer], places[1, layer]
    stride = places[1, layer + 1]
    for k in range(0, widths[layer + 1], LANES):
        errors = places[0, layer + 1] + k
        strip = places[2, layer] + k * (deep + 1)
        for first in range(0, count, _NEAR):
            end = min(first + _NEAR, count)
            for j in range(0, wide, 4):
                p = strip + j * LANES
                a0, a1, a2, a3 = load(sums, p), load(sums, p + 16), load(sums, p + 32), load(sums, p + 48)
                for b in range(first, end):
                    error = load(units, errors + b * stride)
                    q = source + b * step + j
                    a0 = add(a0, mul(spread(units, q), error))
                    a1 = add(a1, mul(spread(units, q + 1), error))
                    a2 = add(a2, mul(spread(units, q + 2), error))
                    a3 = add(a3, mul(spread(units, q + 3), error))
                if end == count:
                    store(strips, p, sub(load(strips, p), a0))
                    store(strips, p + 16, sub(load(strips, p + 16), a1))
                    store(strips, p + 32, sub(load(strips, p + 32), a2))
                    store(strips, p + 48, sub(load(strips, p + 48), a3))
                    a0 = a1 = a2 = a3 = fill(_ZERO)
                store(sums, p, a0)
                store(sums, p + 16, a1)
                store(sums, p + 32, a2)
                store(sums, p + 48, a3)
        p = strip + deep * LANES
        a0 = load(sums, p)
        for b in range(count):
            a0 = add(a0, load(units, errors + b * stride))
        store(strips, p, sub(load(strips, p), a0))
        store(sums, p, fill(_ZERO))


@kernel
def _turn_layer(strips: Array, widths: Array, places: Array, layer: int, turned: Array) -> None:
    """A hidden layer's weights the other way: for each sixteen inputs, their weights of every unit."""
    deep, width = padded(widths[layer]), padded(widths[layer + 1])
    for k in range(0, width, LANES):
        for j in range(0, deep, LANES):
            strip = places[2, layer] + k * (deep + 1)
            turn(strips, strip + j * LANES, LANES, turned, j * width + k * LANES)


@kernel
def _back(units: Array, widths: Array, places: Array, layer: int, count: int, turned: Array) -> None:
    """Put their errors in the place of a hidden layer's inputs, the vector lanes. A ragged end is unused."""
    narrow = widths[layer + 1]
    source, step = places[0, layer], places[1, layer]
    errors, stride = places[0, layer + 1], places[1, layer + 1]
    one = fill(_ONE)
    for j in range(0, widths[layer], LANES):
        strip = j * padded(narrow)
        for b in range(0, count, ROWS):
            a0 = a1 = a2 = a3 = a4 = fill(_ZERO)
            q = errors + b * stride
            for k in range(narrow):
                w = load(turned, strip + k * LANES)
                a0 = add(a0, mul(spread(units, q + k), w))
                a1 = add(a1, mul(spread(units, q + stride + k), w))
                a2 = add(a2, mul(spread(units, q + 2 * stride + k), w))
                a3 = add(a3, mul(spread(units, q + 3 * stride + k), w))
                a4 = add(a4, mul(spread(units, q + 4 * stride + k), w))
            q = source + b * step + j
            for a in (a0, a1, a2, a3, a4):
                h = load(units, q)
                store(units, q, mul(a, sub(one, mul(h, h))))
                q += step


@kernel
def predict(
    units: Array, strips: Array, widths: Array, places: Array, count: int, z: Array, turned: Array
) -> None:
    """Fill ``z`` with 2 P(1) - 1 of the rows whose inputs stand in the units."""
    for layer in range(len(widths) - 2):
        _forward(units, strips, widths, places, layer, count)
    _forward_last(units, strips, widths, places, count, z, turned)
    for b in range(0, count, LANES):
        store(z, b, tanh(load(z, b)))


@kernel
def descend(
    units: Array, strips: Array, widths: Array, places: Array, count: int, errors: Array, sums: Array,
    turned: Array,
) -> None:  # fmt: skip
    """Step all layers, from the last on, each after its weights have been used to send errors back."""
    _learn_last(units, strips, widths, places, count, errors, sums)
    for layer in range(len(widths) - 3, -1, -1):
        if layer > 0:
            _turn_layer(strips, widths, places, layer, turned)
        _learn(units, strips, widths, places, layer, count, sums)
        if layer > 0:
            _back(units, widths, places, layer, count, turned)
