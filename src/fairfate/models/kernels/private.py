"""Train one model by noisy steps of clipped gradients (DP-SGD), with any number of hidden layers.

A step adds up the gradients of its rows, each no longer than ``clip``, adds noise that is given, and divides
by a fixed number. The squared norm of a row's gradient has a closed form, the sum over layers of
``|errors|^2 (|inputs|^2 + 1)``, and all errors of a row are multiples of the last layer's. So a row is
clipped by scaling one number, before any weight moves.

Which rows a step reads, and its noise, are arguments: the loops draw nothing themselves.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import float32, float64, int32, int64
from numpy.typing import NDArray

from fairfate.models.kernels.batches import (
    ROWS,
    Floats,
    apply_pull,
    note_pull,
    odd_sixteens,
    return_space,
    sixteens,
    take_space,
)
from fairfate.models.kernels.compile import inner, kernel, read, write
from fairfate.models.kernels.deep import back, copy_floats, learn, make_layout, padded, predict, turn_layer
from fairfate.models.kernels.shallow import hidden_units, step_inputs
from fairfate.models.kernels.simd import (
    add,
    add_products,
    clip_errors,
    fill,
    fma,
    load,
    mul,
    no_sums,
    repeat,
    slope,
    store,
    store_all,
    store_totals,
    sub,
    tanh,
    transpose,
)
from fairfate.models.rows import LANES

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_ZERO, _ONE, _HALF, _QUARTER = np.float32(0), np.float32(1), np.float32(0.5), np.float32(0.25)
_INFINITE = np.float32(np.inf)
_ROUNDED = 1 - 1e-5
"""Rows are clipped to a little less, so that rounding cannot take them above the limit."""


class Steps(NamedTuple):
    """The noisy steps of one client."""

    order: NDArray[np.int32]
    """The client's rows that the steps read, one step after another."""
    bounds: NDArray[np.int64]
    """(steps + 1,) where each step begins in this order."""
    noise: Floats
    """(steps, parameters) standard normal numbers."""


@inner
def _square_sums(partial: Array, size: int, turned: Array, out: Array) -> None:
    """Of each row, the sum of its sixteen partial sums. A ragged end is unused."""
    for b in range(0, size, LANES):
        transpose(partial, b * LANES, LANES, turned, 0)
        total = load(turned, 0)
        for k in range(1, LANES):
            total = add(total, load(turned, k * LANES))
        store(out, b, total)


@inner
def _row_squares(
    values: Array, start: int, step: int, width: int, size: int, partial: Array, turned: Array, out: Array
) -> None:
    """The squared norm of each row of so many values, a multiple of sixteen."""
    for b in range(size):
        total = fill(_ZERO)
        for k in range(0, width, LANES):
            vector = load(values, start + b * step + k)
            total = fma(vector, vector, total)
        store(partial, b * LANES, total)
    _square_sums(partial, size, turned, out)


@inner
def _clip(z: Array, squares: Array, size: int, limit: Any, step: Any) -> None:
    """Clip the last errors of rows by the squared norms of their gradients for an error of one."""
    for b in range(0, size, LANES):
        store(z, b, mul(clip_errors(load(z, b), load(squares, b), fill(limit)), fill(step)))


@inner
def _last_errors(
    z: Array, cell: Array, weight: Array, target: Array, push: Array, first: int, order: Array, begin: int,
    size: int,
) -> None:  # fmt: skip
    """Overwrite ``2 P(1) - 1`` of each row with the derivative of its weighted loss by the score."""
    for b in range(size):
        stratum = cell[first + order[begin + b]]
        t = z[b]
        error = (_HALF * t + (_HALF - target[stratum])) * weight[stratum]
        if len(push):
            error += (_ONE - t * t) * (push[stratum] * _QUARTER)
        z[b] = error


@inner
def _add_noise(strips: Array, where: Array, noise: Array, deviation: Any) -> None:
    """Add a step's noise to a model in strips."""
    for p in range(len(where)):
        strips[where[p]] -= noise[p] * deviation


_SPACE = write(float32, 1)
_ARGUMENTS = (
    write(float32, 1), read(int64, 1), read(float32, 1), read(float32, 1), read(int32, 1), int64,
    read(int32, 1), read(int64, 1), read(float32, 2), *[read(float32, 1)] * 4, float32, float64, float64,
    float64,
)  # fmt: skip


@kernel(*_ARGUMENTS, int64, int64, *[_SPACE] * 9, write(int64, 1))
def _train_shallow(
    strips: Array, where: Array, x: Array, lengths: Array, cell: Array, first: int, order: Array,
    bounds: Array, noise: Array, weight: Array, target: Array, push: Array, anchor: Array, pull_rate: Any,
    rate: Any, clip: Any, deviation: Any, inputs: int, width: int, pull: Array, strength: Array, h: Array,
    q: Array, z: Array, squares: Array, partial: Array, turned: Array, sums: Array, at: Array,
) -> None:  # fmt: skip
    """Train a model with one hidden layer, which is kept in strips as in `shallow`.

    Parameters
    ----------
    strips : where the client starts; becomes the trained model
    where : (parameters,) where each is in the strips
    x, cell, first : all clients' rows, as `shallow.train` reads them, and the number of the client's first
    lengths : (the client's rows,) squared norms of their inputs
    order, bounds, noise : see `Steps`
    weight, target, push : of each (group, label) cell; ``push`` may be empty
    anchor, pull_rate : what the model is pulled to, in strips, or empty; the strength times the learning rate
    rate : learning rate divided by the expected rows of a batch
    clip, deviation : the limit of a row's gradient, and the noise's standard deviation
    width : hidden units, padded to sixteens
    pull, ... : scratch memory
    """
    stride = (width // LANES | 1) * LANES  # odd, as in `shallow`
    b1, w2, b2 = inputs * LANES, (inputs + 1) * LANES, (inputs + 2) * width
    half, step, limit = fill(_HALF), _F(rate), _F(clip * _ROUNDED)
    strength[:] = pull_rate
    for s in range(len(bounds) - 1):
        begin = bounds[s]
        size = bounds[s + 1] - begin
        if len(anchor):
            note_pull(strips, anchor, strength, pull)
        for b in range(size):
            at[b] = (first + order[begin + b]) * inputs
        for b in range(size, size + ROWS):
            at[b] = at[0]
        for b in range(0, size, ROWS):
            totals = no_sums(ROWS)
            for k in range(0, width, LANES):
                strip = k * (inputs + 2)
                a = repeat(load(strips, strip + b1), ROWS)
                a = hidden_units(a, x, at, b, strips, strip, LANES, inputs)
                store_all(h, b * stride + k, stride, a)
                totals = add_products(totals, a, load(strips, strip + w2))
            store_totals(z, b, totals)
        bias = fill(strips[b2])
        for b in range(0, size, LANES):
            store(z, b, tanh(mul(add(bias, load(z, b)), half)))
        _last_errors(z, cell, weight, target, push, first, order, begin, size)
        for b in range(size):
            outer = inside = fill(_ZERO)
            for k in range(0, width, LANES):
                unit = load(h, b * stride + k)
                error = mul(slope(unit), load(strips, k * (inputs + 2) + w2))
                outer = fma(unit, unit, outer)
                inside = fma(error, error, inside)
                store(q, b * stride + k, error)
            length = _ONE + lengths[order[begin + b]]
            store(partial, b * LANES, fma(inside, fill(length), outer))
        _square_sums(partial, size, turned, squares)
        for b in range(0, size, LANES):
            store(squares, b, add(load(squares, b), fill(_ONE)))
        _clip(z, squares, size, limit, step)
        down = _ZERO
        for b in range(size):
            if not squares[b] < _INFINITE:
                for k in range(0, width, LANES):
                    store(h, b * stride + k, fill(_ZERO))
                    store(q, b * stride + k, fill(_ZERO))
            down += z[b]
        strips[b2] -= down
        if size > 0:
            for k in range(0, width, LANES):
                strip = k * (inputs + 2)
                down_w2 = down_b1 = fill(_ZERO)
                for b in range(size):
                    g = fill(z[b])
                    down_w2 = fma(g, load(h, b * stride + k), down_w2)
                    error = mul(load(q, b * stride + k), g)
                    down_b1 = add(down_b1, error)
                    store(q, b * stride + k, error)
                store(strips, strip + w2, sub(load(strips, strip + w2), down_w2))
                store(strips, strip + b1, sub(load(strips, strip + b1), down_b1))
                step_inputs(x, at, inputs, q, k, stride, size, strips, strip, LANES, sums)
        _add_noise(strips, where, noise[s], _F(deviation * rate))
        if len(anchor):
            apply_pull(strips, pull)


@kernel(*_ARGUMENTS, read(int64, 1), read(int64, 2), *[_SPACE] * 11)
def _train_deep(
    strips: Array, where: Array, x: Array, lengths: Array, cell: Array, first: int, order: Array,
    bounds: Array, noise: Array, weight: Array, target: Array, push: Array, anchor: Array, pull_rate: Any,
    rate: Any, clip: Any, deviation: Any, widths: Array, layout: Array, pull: Array, strength: Array,
    units: Array, errors: Array, z: Array, squares: Array, inside: Array, outer: Array, partial: Array,
    turned: Array, sums: Array,
) -> None:  # fmt: skip
    """The same for the layer widths ``(inputs, ..., 1)``, with strips and a layout as in `deep`."""
    inputs, last, step, limit = widths[0], len(widths) - 2, _F(rate), _F(clip * _ROUNDED)
    strength[:] = pull_rate
    for s in range(len(bounds) - 1):
        begin = bounds[s]
        size = bounds[s + 1] - begin
        if len(anchor):
            note_pull(strips, anchor, strength, pull)
        for b in range(size):
            copy_floats(x, (first + order[begin + b]) * inputs, units, b * layout[1, 0], inputs)
        predict(units, strips, widths, layout, size, z, turned)
        _last_errors(z, cell, weight, target, push, first, order, begin, size)
        _send_back(units, errors, strips, widths, layout, size, turned)
        for b in range(size):
            squares[b] = _ONE + (lengths[order[begin + b]] if last == 0 else _ZERO)
        for layer in range(1, last + 1):
            start, stride, width = layout[0, layer], layout[1, layer], padded(widths[layer])
            _row_squares(errors, start, stride, width, size, partial, turned, inside)
            for b in range(size):
                length = lengths[order[begin + b]] if layer == 1 else outer[b]
                squares[b] += inside[b] * (_ONE + length)
            _row_squares(units, start, stride, width, size, partial, turned, outer)
        for b in range(size if last > 0 else 0):
            squares[b] += outer[b]
        _clip(z, squares, size, limit, step)
        for b in range(size):
            _scale_errors(units, errors, widths, layout, b, z[b], squares[b] < _INFINITE)
        if size > 0:
            _step_last(units, strips, widths, layout, size, z)
            for layer in range(last):
                learn(units, errors, strips, widths, layout, layer, size, sums)
        _add_noise(strips, where, noise[s], _F(deviation * rate))
        if len(anchor):
            apply_pull(strips, pull)


@inner
def _send_back(
    units: Array, errors: Array, strips: Array, widths: Array, layout: Array, size: int, turned: Array
) -> None:
    """The errors of all hidden units where the last layer's error is one."""
    last = len(widths) - 2
    if last == 0:
        return
    source, step = layout[0, last], layout[1, last]
    for k in range(0, widths[last], LANES):
        w = load(strips, layout[2, last] + k)
        for b in range(size):
            p = source + b * step + k
            store(errors, p, mul(slope(load(units, p)), w))
    for layer in range(last - 1, 0, -1):
        turn_layer(strips, widths, layout, layer, turned)
        back(units, errors, widths, layout, layer, size, turned)


@inner
def _scale_errors(
    units: Array, errors: Array, widths: Array, layout: Array, b: int, error: Any, is_finite: bool
) -> None:
    """Multiply the errors of a row's hidden units; all of a row that is not finite becomes 0."""
    for layer in range(1, len(widths) - 1):
        start = layout[0, layer] + b * layout[1, layer]
        for k in range(start, start + padded(widths[layer]), LANES):
            if is_finite:
                store(errors, k, mul(load(errors, k), fill(error)))
            else:
                store(errors, k, fill(_ZERO))
                store(units, k, fill(_ZERO))


@inner
def _step_last(units: Array, strips: Array, widths: Array, layout: Array, size: int, errors: Array) -> None:
    """Step the last layer."""
    last = len(widths) - 2
    source, step, p = layout[0, last], layout[1, last], layout[2, last]
    for k in range(0, widths[last], LANES):
        down = fill(_ZERO)
        for b in range(size):
            down = fma(fill(errors[b]), load(units, source + b * step + k), down)
        store(strips, p + k, sub(load(strips, p + k), down))
    total = _ZERO
    for b in range(size):
        total += errors[b]
    strips[p + padded(widths[last])] -= total


def train(
    start: Floats,
    x: Floats,
    cell: NDArray[np.int32],
    first: int,
    lengths: Floats,
    steps: Steps,
    terms: tuple[Floats, Floats, Floats],
    pull: tuple[Floats, np.float32],
    rate: float,
    clip: float,
    deviation: float,
    widths: NDArray[np.int64],
) -> Floats:
    """Train one model at one client; the arguments are those of `_train_shallow`, with vectors for strips."""
    inputs, hidden = int(widths[0]), tuple(widths[1:-1].tolist())
    where, size = _strips(tuple(widths.tolist()))
    batch = int(np.diff(steps.bounds).max(initial=1))
    strips, anchor = np.zeros(size, np.float32), np.zeros(size if len(pull[0]) else 0, np.float32)
    strips[where] = start
    if len(pull[0]):
        anchor[where] = pull[0]
    common = strips, where, x, lengths, cell, first, *steps, *terms, anchor, pull[1], rate, clip, deviation
    row = sixteens(batch) + LANES
    floats: tuple[int, ...]
    if len(hidden) == 1:
        width = sixteens(hidden[0])
        block = (row + ROWS) * odd_sixteens(hidden[0])
        floats = size, LANES, block, block, row, row, row * LANES, LANES * LANES, inputs * LANES
        space = take_space(floats, (batch + ROWS,))
        _train_shallow(*common, inputs, width, *space.parts)
    else:
        layout = make_layout(widths.tolist(), batch)
        units = int(layout[0, -1])
        floats = size, LANES, units, units, row, row, row, row, row * LANES, max(size, LANES * LANES), size
        space = take_space(floats, ())
        _train_deep(*common, widths, layout, *space.parts)
    return_space(space)
    return strips[where]


@lru_cache(maxsize=64)
def _strips(widths: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
    """(parameters,) where each parameter is in strips, and their length."""
    inputs, hidden = widths[0], widths[1:-1]
    if len(hidden) == 1:
        rows, units = inputs + 2, hidden[0]
        number = np.arange(rows * units)
        row, unit = number // units, number % units
        index = unit // LANES * LANES * rows + row * LANES + unit % LANES
        last = rows * sixteens(units)
        return np.append(index, last), sixteens(last + 1)
    starts, parts = make_layout(list(widths), 1)[2], []
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        deep = sixteens(wide)
        row = np.append(np.arange(wide), deep)[:, None]  # the biases come last
        unit = np.arange(narrow)
        if layer == len(widths) - 2:
            parts.append((starts[layer] + row).ravel())
        else:
            parts.append(
                (starts[layer] + unit // LANES * LANES * (deep + 1) + row * LANES + unit % LANES).ravel()
            )
    return np.concatenate(parts), sixteens(int(starts[-1]))
