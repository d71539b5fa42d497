"""Train models with one hidden layer.

A model is a flat vector ``[W1 (inputs x hidden), b1 (hidden), w2 (hidden), b2]`` of 32-bit floats for
``sigmoid(w2 . tanh(W1' x + b1) + b2)``. Two kernels train it:

- ``_train_singly``: one model after another; the vector lanes are hidden units;
- ``_train_lanes``: sixteen models on the same batches; the vector lanes are models.

Both take every sum in the same order (inputs, then hidden units in four interleaved partial sums, then
rows of the batch), so they give the same bits and callers may choose by speed alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numba import float32, int32, int64, uint64
from numpy.typing import NDArray

from fairfate.models.kernels.batches import (
    FAR,
    ROWS,
    Floats,
    Schedule,
    TermArrays,
    add_prejudice,
    add_prejudice_lanes,
    apply_pull,
    fill_order,
    has_any,
    look_ahead,
    note_pull,
    odd_sixteens,
    order_space,
    return_space,
    sixteens,
    take_space,
)
from fairfate.models.kernels.compile import has_avx512, inline, inner, kernel, read, write
from fairfate.models.kernels.simd import (
    add,
    add_products,
    fill,
    fma,
    fma_columns,
    fma_rows,
    load,
    load_all,
    mul,
    no_sums,
    repeat,
    slope,
    store,
    store_all,
    store_totals,
    sub,
    subtract_all,
    tanh,
    tanh_all,
)
from fairfate.models.rows import LANES, ClientRows

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_ZERO, _HALF, _QUARTER = np.float32(0), np.float32(0.5), np.float32(0.25)
_NEAR = 64  # rows whose hidden units stay in the nearest cache
_WIDEST = 32
"""Hidden units from which on sixteen models at once do not fit the caches."""
_FEW_INPUTS, _MANY_INPUTS = 32, 64
_HAS_MANY = has_avx512()


@inline
def hidden_units(a: Any, x: Array, at: Array, b: int, model: Array, p: int, step: int, inputs: int) -> Any:
    """Sixteen hidden units of a group of rows, or one of sixteen models; ``a`` holds their biases."""
    for j in range(inputs):
        a = fma_rows(a, x, at, b, j, load(model, p + j * step))
    return tanh_all(a)


@inline
def _step_group(
    a: Any, x: Array, at: Array, j: int, h: Array, k: int, stride: int, begin: int, size: int, model: Array,
    p: int, step: int, sums: Array,
) -> None:  # fmt: skip
    """Step the weights of a group of inputs by a part of a batch that fits the cache; ``h`` has errors."""
    end = min(begin + _NEAR, size)
    if begin > 0:
        a = load_all(sums, j * LANES, LANES, a)
    for b in range(begin, end):
        a = fma_columns(a, x, at, b, j, load(h, b * stride + k))
    if end == size:
        subtract_all(model, p + j * step, step, a)
    else:
        store_all(sums, j * LANES, LANES, a)


@inline
def step_inputs(
    x: Array, at: Array, inputs: int, h: Array, k: int, stride: int, size: int, model: Array, p: int,
    step: int, sums: Array,
) -> None:  # fmt: skip
    """Step the weights of all inputs; of input ``j`` they begin at ``p + j * step``."""
    zero = fill(_ZERO)
    for begin in range(0, size, _NEAR):
        j = 0
        if _HAS_MANY:
            while j + 15 <= inputs or j + 10 == inputs:
                _step_group(repeat(zero, 10), x, at, j, h, k, stride, begin, size, model, p, step, sums)
                j += 10
            while j + 14 <= inputs or j + 7 == inputs:
                _step_group(repeat(zero, 7), x, at, j, h, k, stride, begin, size, model, p, step, sums)
                j += 7
        while j + 5 <= inputs:
            _step_group(repeat(zero, 5), x, at, j, h, k, stride, begin, size, model, p, step, sums)
            j += 5
        while j + 4 <= inputs:
            _step_group(repeat(zero, 4), x, at, j, h, k, stride, begin, size, model, p, step, sums)
            j += 4
        while j < inputs:
            _step_group(repeat(zero, 1), x, at, j, h, k, stride, begin, size, model, p, step, sums)
            j += 1


@inner
def _train_model(
    model: Array, x: Array, cell: Array, weight: Array, target: Array, push: Array, prejudice: Any,
    anchor: Array, strength: Array, first: int, order: Array, visits: int, batch: int, rate: Any,
    inputs: int, width: int, h: Array, z: Array, lift: Array, offset: Array, scale: Array, pull: Array,
    odds: Array, sums: Array, at: Array, group: Array, present: Array,
) -> None:  # fmt: skip
    """SGD for one model, which is kept in strips, so that loops read one vector after another.

    For each sixteen of the ``width`` hidden units: W1 of every input, b1, w2. After all of them comes b2.
    ``push`` and ``anchor`` are empty where the model has none.
    """
    stride = (width // LANES | 1) * LANES  # odd, so that rows do not share a few cache lines
    b1, w2, b2 = inputs * LANES, (inputs + 1) * LANES, (inputs + 2) * width
    half, far = fill(_HALF), len(order) > FAR
    lifted = len(push) > 0 or prejudice != _ZERO
    for start in range(0, visits, batch):
        size = min(batch, visits - start)
        step = rate / _F(size)
        if far:
            look_ahead(x, cell, inputs, first, order, start + size, min(start + 2 * batch, visits))
        if len(anchor):
            note_pull(model, anchor, strength, pull)
        for b in range(size):
            row = first + order[start + b]
            at[b] = row * inputs
            offset[b] = _HALF - target[cell[row]]
            scale[b] = weight[cell[row]] * step
        for b in range(size, size + ROWS):  # a ragged end repeats a row; its results are unused
            at[b] = at[0]

        for b in range(0, size, ROWS):
            s = no_sums(ROWS)
            for k in range(0, width, LANES):
                strip = k * (inputs + 2)
                a = repeat(load(model, strip + b1), ROWS)
                a = hidden_units(a, x, at, b, model, strip, LANES, inputs)
                store_all(h, b * stride + k, stride, a)
                s = add_products(s, a, load(model, strip + w2))
            store_totals(z, b, s)

        bias = fill(model[b2])
        for b in range(0, size, LANES):
            store(z, b, tanh(mul(add(bias, load(z, b)), half)))
        if lifted:
            quarter = _QUARTER * step
            for b in range(size):
                i = cell[first + order[start + b]]
                group[b] = i // 2
                lift[b] = push[i] * quarter if len(push) else _ZERO
            if prejudice != _ZERO:
                add_prejudice(z, group, size, prejudice, quarter, lift, odds, present)
        for b in range(0, size, LANES):  # the loss's gradient, weighted, times the learning rate
            t = load(z, b)
            gradient = mul(fma(half, t, load(offset, b)), load(scale, b))
            if lifted:
                gradient = fma(slope(t), load(lift, b), gradient)
            store(z, b, gradient)

        down = _ZERO
        for b in range(size):
            down += z[b]
        model[b2] -= down
        for k in range(0, width, LANES):
            strip = k * (inputs + 2)
            w = load(model, strip + w2)
            down_w2 = down_b1 = fill(_ZERO)
            for b in range(size):
                unit = load(h, b * stride + k)
                g = fill(z[b])
                down_w2 = fma(g, unit, down_w2)
                q = mul(mul(slope(unit), w), g)
                down_b1 = add(down_b1, q)
                store(h, b * stride + k, q)
            store(model, strip + w2, sub(w, down_w2))
            store(model, strip + b1, sub(load(model, strip + b1), down_b1))
            step_inputs(x, at, inputs, h, k, stride, size, model, strip, LANES, sums)
        if len(anchor):
            apply_pull(model, pull)


@inner
def _train_sixteen(
    models: Array, x: Array, cell: Array, weight: Array, target: Array, push: Array, prejudice: Array,
    anchor: Array, strength: Array, first: int, order: Array, visits: int, batch: int, rate: Any,
    inputs: int, hidden: int, h: Array, g: Array, lift: Array, pull: Array, odds: Array, sums: Array,
    at: Array, group: Array, present: Array,
) -> None:  # fmt: skip
    """SGD for sixteen models on the same batches; ``models``, ``weight`` and ``target`` hold 16 values each.

    ``push``, ``prejudice`` and ``anchor`` are empty where none of the sixteen has one.
    """
    width = hidden * LANES
    stride = (hidden | 1) * LANES  # odd, as above
    b1, w2, b2 = inputs * width, (inputs + 1) * width, (inputs + 2) * width
    half, far = fill(_HALF), len(order) > FAR
    lifted = len(push) > 0 or len(prejudice) > 0
    for start in range(0, visits, batch):
        size = min(batch, visits - start)
        rate_of_row = rate / _F(size)
        step = fill(rate_of_row)
        if far:
            look_ahead(x, cell, inputs, first, order, start + size, min(start + 2 * batch, visits))
        if len(anchor):
            note_pull(models, anchor, strength, pull)
        for b in range(size):
            at[b] = (first + order[start + b]) * inputs
        for b in range(size, size + ROWS):
            at[b] = at[0]

        for b in range(0, size, ROWS):
            for k in range(0, width, LANES):
                a = repeat(load(models, b1 + k), ROWS)
                a = hidden_units(a, x, at, b, models, k, width, inputs)
                store_all(h, b * stride + k, stride, a)

        bias = load(models, b2)
        for b in range(size):
            s0 = s1 = s2 = s3 = fill(_ZERO)
            q = b * stride
            k = 0
            while k + 4 * LANES <= width:
                s0 = fma(load(h, q + k), load(models, w2 + k), s0)
                s1 = fma(load(h, q + k + 16), load(models, w2 + k + 16), s1)
                s2 = fma(load(h, q + k + 32), load(models, w2 + k + 32), s2)
                s3 = fma(load(h, q + k + 48), load(models, w2 + k + 48), s3)
                k += 4 * LANES
            if k < width:
                s0 = fma(load(h, q + k), load(models, w2 + k), s0)
            if k + 16 < width:
                s1 = fma(load(h, q + k + 16), load(models, w2 + k + 16), s1)
            if k + 32 < width:
                s2 = fma(load(h, q + k + 32), load(models, w2 + k + 32), s2)
            store(g, b * LANES, tanh(mul(add(bias, add(add(s0, s2), add(s1, s3))), half)))
        if lifted:
            quarter = fill(_QUARTER * rate_of_row)
            for b in range(size):
                i = np.int64(cell[first + order[start + b]])
                group[b] = i // 2
                store(lift, b * LANES, mul(load(push, i * LANES), quarter) if len(push) else fill(_ZERO))
            if len(prejudice):
                add_prejudice_lanes(g, group, size, prejudice, _QUARTER * rate_of_row, lift, odds, present)
        down = fill(_ZERO)
        for b in range(size):
            i = np.int64(cell[first + order[start + b]])
            t = load(g, b * LANES)
            scale = mul(load(weight, i * LANES), step)
            gradient = mul(fma(half, t, sub(half, load(target, i * LANES))), scale)
            if lifted:
                gradient = fma(slope(t), load(lift, b * LANES), gradient)
            store(g, b * LANES, gradient)
            down = add(down, gradient)
        store(models, b2, sub(bias, down))

        for k in range(0, width, LANES):
            w = load(models, w2 + k)
            down_w2 = down_b1 = fill(_ZERO)
            for b in range(size):
                unit = load(h, b * stride + k)
                gradient = load(g, b * LANES)
                down_w2 = fma(gradient, unit, down_w2)
                q = mul(mul(slope(unit), w), gradient)
                down_b1 = add(down_b1, q)
                store(h, b * stride + k, q)
            store(models, w2 + k, sub(w, down_w2))
            store(models, b1 + k, sub(load(models, b1 + k), down_b1))
            step_inputs(x, at, inputs, h, k, stride, size, models, k, width, sums)
        if len(anchor):
            apply_pull(models, pull)


@inner
def _copy_strips(model: Array, strips: Array, hidden: int, width: int, back: bool) -> None:
    """Copy a model's vector into strips for `_train_model`, or ``back``; the padding is zero."""
    if not back:
        strips[:] = _ZERO
    last = len(model) - 1
    rows = last // hidden
    for p in range(last + 1):
        row, unit = p // hidden, p % hidden
        index = unit // LANES * LANES * rows + row * LANES + unit % LANES if p < last else rows * width
        if back:
            model[p] = strips[index]
        else:
            strips[index] = model[p]


_ROWS = read(float32, 1), read(int32, 1), read(int64, 1), read(int64, 1)
_SCHEDULE = int64, int64, int64, int64, float32, uint64, int64, int64
_SPACE = write(float32, 1)
_WHOLE_SPACE = write(int64, 1)


@kernel(
    write(float32, 3), *_ROWS, *[read(float32, 3)] * 3, read(float32, 1), read(float32, 2),
    write(float32, 3), *_SCHEDULE, write(int32, 1), *[_SPACE] * 11, *[_WHOLE_SPACE] * 3,
)  # fmt: skip
def _train_singly(
    models: Array, x: Array, cell: Array, offsets: Array, clients: Array, weights: Array, targets: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, hidden: int, order: Array, strips: Array,
    anchor: Array, strength: Array, h: Array, z: Array, lift: Array, offset: Array, scale: Array,
    pull: Array, odds: Array, sums: Array, at: Array, group: Array, present: Array,
) -> None:  # fmt: skip
    """Train every setting's model at every client of the round, one after another.

    Parameters
    ----------
    models : (settings, cohort, parameters) where each setting's clients start; become the trained models
    x, cell : the training rows of all clients, client by client: flat inputs, and twice the group plus the
        label
    offsets : (all clients + 1,) where each client's rows begin
    clients : (cohort,) the clients of the round; each has at least one row
    weights : (settings, cohort, cells) loss weights
    targets : (settings, cohort, cells) what predicted probabilities are compared with: labels, or shares
    pushes : (settings, cohort, cells) prices of predictions, or (0, 0, 0)
    prejudices : (settings,) strengths of the batch-wise prejudice remover, or (0,)
    proxes : (settings, cohort) strengths of the way back to the anchors, or (0, 0)
    anchors : (settings, cohort, parameters) what models are pulled to, or (0, 0, 0)
    epochs : local epochs of the round, of which ``skip`` are over and ``run`` are run now
    batch, rate : batch size, learning rate
    key, round_number : what the batch order depends on, beside the client
    order, strips, ... : scratch memory
    """
    settings, _, parameters = models.shape
    inputs = (parameters - 1) // hidden - 2
    width = (hidden + LANES - 1) // LANES * LANES
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        fill_order(key, round_number, clients[c], rows, epochs, order)
        for s in range(settings):
            _copy_strips(models[s, c], strips, hidden, width, False)
            pull_to = anchor[:0]
            if len(proxes) and proxes[s, c] != _ZERO:
                pull_to = anchor
                _copy_strips(anchors[s, c], anchor, hidden, width, False)
                strength[:] = rate * proxes[s, c]
            pushed = len(pushes) > 0 and has_any(pushes[s, c])
            _train_model(
                strips, x, cell, weights[s, c], targets[s, c], pushes[s, c] if pushed else weights[s, c][:0],
                prejudices[s] if len(prejudices) else _ZERO, pull_to, strength, first, order[rows * skip :],
                rows * run, batch, rate, inputs, width, h, z, lift, offset, scale, pull, odds, sums, at,
                group, present,
            )  # fmt: skip
            _copy_strips(models[s, c], strips, hidden, width, True)


@kernel(
    write(float32, 3), *_ROWS, *[read(float32, 3)] * 3, read(float32, 2), read(float32, 3),
    read(float32, 3), *_SCHEDULE, int64, write(int32, 1), *[_SPACE] * 6, *[_WHOLE_SPACE] * 3,
)  # fmt: skip
def _train_lanes(
    models: Array, x: Array, cell: Array, offsets: Array, clients: Array, weights: Array, targets: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, hidden: int, inputs: int, order: Array, h: Array,
    g: Array, lift: Array, pull: Array, odds: Array, sums: Array, at: Array, group: Array, present: Array,
) -> None:  # fmt: skip
    """The same for groups of sixteen settings, with sixteen values in place of each number (`_stack`).

    ``models`` are (groups, cohort, parameters * 16), and so on; ``proxes`` are times the learning rate.
    """
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        fill_order(key, round_number, clients[c], rows, epochs, order)
        for s in range(len(models)):
            weight = weights[s, c]
            none = weight[:0]
            pulled = len(proxes) > 0 and has_any(proxes[s, c])
            _train_sixteen(
                models[s, c], x, cell, weight, targets[s, c],
                pushes[s, c] if len(pushes) > 0 and has_any(pushes[s, c]) else none,
                prejudices[s] if len(prejudices) > 0 and has_any(prejudices[s]) else none,
                anchors[s, c] if pulled else none, proxes[s, c] if pulled else none, first,
                order[rows * skip :], rows * run, batch, rate, inputs, hidden, h, g, lift, pull, odds, sums,
                at, group, present,
            )  # fmt: skip


def least_lanes(inputs: int, hidden: int) -> int:
    """From how many models on sixteen at once are faster than one after another (docs/engine.md).

    One model alone is trained a multiple of sixteen hidden units wide, however few of them there are.
    """
    if hidden > _WIDEST or (hidden > LANES and inputs > _MANY_INPUTS):
        return LANES + 1
    most = 12 if inputs > _FEW_INPUTS else 9 if _HAS_MANY else 11
    return max(2, -(-most * hidden // sixteens(hidden)))


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
    hidden: int,
) -> Floats:
    """Train (settings, cohort, parameters) models with one hidden layer."""
    settings, _, parameters = start.shape
    inputs, cells = (parameters - 1) // hidden - 2, terms.weights.shape[2]
    order, batch = order_space(rows, clients, schedule, batch)
    data = rows.x, rows.cell, rows.offsets, clients
    common = *schedule, batch, rate, key, round_number, hidden
    models = start.copy()
    together = _together(settings, least_lanes(inputs, hidden))
    if together:
        index = np.minimum(np.arange(sixteens(together)), together - 1).reshape(-1, LANES)
        stacked = _stack(models, index)
        pulls = _stack(terms.proxes[..., None] * rate, index)
        others = (
            _stack(terms.weights, index),
            _stack(terms.targets, index),
            _stack(terms.pushes, index),
            _stack_flat(terms.prejudices, index),
        )
        space = take_space(*_lane_sizes(inputs, hidden, cells, batch))
        _train_lanes(
            stacked, *data, *others, pulls, _stack(terms.anchors, index), *common, inputs, order, *space.parts
        )
        return_space(space)
        lanes = stacked.reshape(*stacked.shape[:2], parameters, LANES).transpose(0, 3, 1, 2)
        models[:together] = lanes.reshape(-1, *models.shape[1:])[:together]
    if together < settings:
        rest = terms if together == 0 else TermArrays(*(term[together:] for term in terms))
        space = take_space(*_single_sizes(inputs, hidden, cells, batch))
        _train_singly(models[together:], *data, *rest, *common, order, *space.parts)
        return_space(space)
    return models


def _together(settings: int, least: int) -> int:
    """How many models are trained sixteen at once."""
    if least > LANES:
        return 0
    rest = settings % LANES
    return settings if rest >= least else settings - rest


def _stack(values: Floats, index: NDArray[np.int64]) -> Floats:
    """(settings, cohort, n) as (groups, cohort, n * 16), with the settings of each group side by side."""
    if not len(values):
        return values
    stacked = np.ascontiguousarray(values[index].transpose(0, 2, 3, 1))
    return stacked.reshape(*stacked.shape[:2], -1)


def _stack_flat(values: Floats, index: NDArray[np.int64]) -> Floats:
    """(settings,) as (groups, 16)."""
    return values[index] if len(values) else values.reshape(0, 0)


@lru_cache(maxsize=64)
def _lane_sizes(inputs: int, hidden: int, cells: int, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Floats and whole numbers of each part of the space that `_train_lanes` works in."""
    groups, row = (cells + 1) // 2, (sixteens(batch) + LANES) * LANES
    h = (batch + ROWS) * odd_sixteens(hidden * LANES)
    model = ((inputs + 2) * hidden + 1) * LANES
    return (h, row, row, model, (groups + 1) * LANES, inputs * LANES), (batch + ROWS, batch + ROWS, groups)


@lru_cache(maxsize=64)
def _single_sizes(
    inputs: int, hidden: int, cells: int, batch: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same for `_train_singly`."""
    groups, row = (cells + 1) // 2, sixteens(batch) + LANES
    h = (batch + ROWS) * odd_sixteens(hidden)
    model = (inputs + 3) * sixteens(hidden)
    floats = model, model, LANES, h, row, row, row, row, model, (groups + 1) * LANES, inputs * LANES
    return floats, (batch + ROWS, batch + ROWS, groups)
