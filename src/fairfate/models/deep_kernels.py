"""The compiled loops for any number of hidden layers, also none. They hold no policy.

A model is a flat vector: for each layer its weights ``(inputs x units)`` and then its biases; the last layer
has one unit. Models are trained one after another, so a stack of them gives the same bits as each alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.cache import kernel
from fairfate.models.shared_kernels import add_prejudice, batch_order
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
_ZERO, _ONE, _HALF, _QUARTER = np.float32(0), np.float32(1), np.float32(0.5), np.float32(0.25)


@kernel
def _tanh_all(values: Array, count: int) -> None:
    """In place, sixteen at a time; the array is padded."""
    for k in range(0, count, LANES):
        store(values, k, tanh(load(values, k)))


@kernel
def _forward(model: Array, widths: Array, units: Array, at: Array, b: int, size: int) -> Any:
    """The last layer's sum for one row, whose inputs stand at the start of its units."""
    layers = len(widths) - 1
    p = 0
    result = _ZERO
    for layer in range(layers):
        wide, narrow = widths[layer], widths[layer + 1]
        source, target = at[layer] + b * size, at[layer + 1] + b * size
        for k in range(narrow):
            units[target + k] = model[p + wide * narrow + k]
        for j in range(wide):
            value = units[source + j]
            for k in range(narrow):
                units[target + k] += value * model[p + j * narrow + k]
        if layer < layers - 1:
            _tanh_all(units[target:], narrow)
        else:
            result = units[target]
        p += (wide + 1) * narrow
    return result


@kernel
def train_deep(
    start: Array, x: Array, y: Array, cell: Array, offsets: Array, clients: Array, weights: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, widths: Array,
) -> Array:  # fmt: skip
    """As `train_cohort`, for the layer widths ``(inputs, ..., 1)``."""
    settings, _, parameters = start.shape
    inputs, layers = widths[0], len(widths) - 1
    longest = 0
    for client in clients:
        longest = max(longest, offsets[client + 1] - offsets[client])
    batch = min(batch, longest * run)
    order = np.empty(longest * epochs, np.int32)
    at = np.zeros(layers + 1, np.int64)  # where a row's units of each layer begin
    for layer in range(layers):
        at[layer + 1] = at[layer] + (widths[layer] + LANES - 1) // LANES * LANES
    size = at[layers] + LANES
    padded = (batch + LANES - 1) // LANES * LANES + LANES
    units = np.zeros(batch * size + LANES, _F)
    errors = np.zeros(size + LANES, _F)
    z, lift = np.zeros(padded, _F), np.zeros(padded, _F)
    group = np.zeros(padded, np.int64)
    out = np.empty((settings, len(clients), parameters), _F)
    gradient = np.zeros(parameters, _F)
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        batch_order(key, round_number, clients[c], rows, epochs, order)
        for s in range(settings):
            model = out[s, c]
            model[:] = start[s, c]
            pushed = len(pushes) > 0
            prejudice = prejudices[s] if len(prejudices) else _ZERO
            strength = rate * proxes[s, c] if len(proxes) else _ZERO
            for begin in range(0, rows * run, batch):
                count = min(batch, rows * run - begin)
                step = rate / _F(count)
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    for j in range(inputs):
                        units[b * size + j] = x[row * inputs + j]
                    z[b] = _forward(model, widths, units, at, b, size) * _HALF
                    group[b] = cell[row] // 2
                    lift[b] = pushes[s, c, cell[row]] * (_QUARTER * step) if pushed else _ZERO
                _tanh_all(z, count)
                if prejudice != _ZERO:
                    add_prejudice(z, group, count, prejudice, _QUARTER * step, lift)
                gradient[:] = _ZERO
                if strength != _ZERO:
                    for p in range(parameters):
                        gradient[p] = strength * (model[p] - anchors[s, p])
                for b in range(count):
                    row = first + order[rows * skip + begin + b]
                    t = z[b]
                    error = (_HALF * t + (_HALF - y[row])) * (weights[s, c, cell[row]] * step)
                    if pushed or prejudice != _ZERO:
                        error += (_ONE - t * t) * lift[b]
                    errors[at[layers]] = error
                    p = parameters
                    for layer in range(layers - 1, -1, -1):
                        wide, narrow = widths[layer], widths[layer + 1]
                        p -= (wide + 1) * narrow
                        source, target = at[layer], at[layer + 1]
                        for k in range(narrow):
                            gradient[p + wide * narrow + k] += errors[target + k]
                        for j in range(wide):
                            value, back = units[b * size + source + j], _ZERO
                            for k in range(narrow):
                                gradient[p + j * narrow + k] += value * errors[target + k]
                                back += errors[target + k] * model[p + j * narrow + k]
                            errors[source + j] = back * (_ONE - value * value)
                for p in range(parameters):
                    model[p] -= gradient[p]
    return out


@kernel
def _margin_deep(flat: Array, base: int, blocks: Array, start: int, widths: Array, units: Array) -> Any:
    """The score before the sigmoid of sixteen rows, by the model that begins at ``base``."""
    layers, half = len(widths) - 1, len(units) // 2
    p = base
    z = fill(_ZERO)
    for layer in range(layers):
        wide, narrow = widths[layer], widths[layer + 1]
        source, target = layer % 2 * half, (layer + 1) % 2 * half
        for k in range(narrow):
            z = spread(flat, p + wide * narrow + k)
            for j in range(wide):
                value = load(blocks, start + j * LANES) if layer == 0 else load(units, source + j * LANES)
                z = fma(value, spread(flat, p + j * narrow + k), z)
            if layer < layers - 1:
                store(units, target + k * LANES, tanh(z))
        p += (wide + 1) * narrow
    return z


@kernel
def statistics_deep(models: Array, blocks: Array, cell: Array, mask: Array, cells: int, widths: Array) -> Any:
    """As `sum_statistics`."""
    count, parameters = models.shape
    positives = np.zeros((count, cells), np.int64)
    probability, loss = np.zeros((count, cells)), np.zeros((count, cells))
    flat = models.ravel()
    widest = 1
    for width in widths:
        widest = max(widest, width)
    units = np.zeros(2 * widest * LANES, _F)
    half = fill(_HALF)
    for m in range(count):
        for block in range(len(cell)):
            z = _margin_deep(flat, m * parameters, blocks, block * widths[0] * LANES, widths, units)
            at = cell[block]
            positives[m, at] += count_positive(z, mask[block])
            probability[m, at] += masked_sum(fma(half, tanh(mul(z, half)), half), mask[block])
            loss[m, at] += masked_sum(softplus(neg(z) if at % 2 else z), mask[block])
    return positives, probability, loss


@kernel
def margins_deep(model: Array, blocks: Array, widths: Array) -> Array:
    """As `margins`."""
    count = len(blocks) // widths[0]
    out = np.empty(count, _F)
    widest = 1
    for width in widths:
        widest = max(widest, width)
    units = np.zeros(2 * widest * LANES, _F)
    for start in range(0, count, LANES):
        store(out, start, _margin_deep(model, 0, blocks, start * widths[0], widths, units))
    return out
