"""The compiled loops that train clients. They hold no policy.

One model is a flat vector ``[W1 (inputs x hidden), b1 (hidden), w2 (hidden), b2]`` of 32-bit floats for
``sigmoid(w2 . tanh(W1' x + b1) + b2)``. Two kernels train it:

- ``_train_one``: one model; the vector lanes are hidden units;
- ``_train_lanes``: sixteen models on the same batches; the vector lanes are models.

Both take every sum in the same order (inputs, then hidden units in four interleaved partial sums, then
rows of the batch), so they give the same bits and callers may choose by speed alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.compiling import kernel
from fairfate.models.kernels import ROWS
from fairfate.models.rows import LANES
from fairfate.models.shared_kernels import (
    FAR,
    add_prejudice,
    add_prejudice_lanes,
    apply_pull,
    batch_order,
    look_ahead,
    note_pull,
)
from fairfate.models.simd import (
    add,
    add_products,
    fill,
    fma,
    load,
    mul,
    no_sums,
    slope,
    spread,
    store,
    sub,
    tanh,
    total,
)

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_ZERO, _HALF, _QUARTER = np.float32(0), np.float32(0.5), np.float32(0.25)
_NEAR = 64  # rows whose hidden units stay in the nearest cache


def _make_train_one(lifts: bool) -> Any:
    """The kernel with or without prices of predictions, which the other one need not ask for at every row."""

    @kernel
    def train(
        model: Array, x: Array, cell: Array, weight: Array, push: Array, prejudice: Any,
        anchor: Array, strength: Array, first: int, order: Array, visits: int, batch: int, rate: Any,
        inputs: int, width: int, floats: Any, wholes: Any,
    ) -> None:  # fmt: skip
        """SGD for one model, which is held in strips, so that loops read one vector after another.

        For each sixteen of the ``width`` hidden units: W1 of every input, b1, w2. After all of them comes b2.
        ``push`` and ``anchor`` are empty where nobody wants one.
        """
        h, z, lift, offset, scale, pull, odds, sums = floats
        at, group, present = wholes
        stride = (width // LANES | 1) * LANES  # odd, so that rows do not share a few of the cache's places
        for p in range(0, inputs * LANES, LANES):
            store(sums, p, fill(_ZERO))
        b1, w2, b2 = inputs * LANES, (inputs + 1) * LANES, (inputs + 2) * width
        far = len(order) > FAR
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
                offset[b] = _HALF - _F(cell[row] & 1)
                scale[b] = weight[cell[row]] * step
            for b in range(size, size + ROWS):  # a ragged end repeats a row; its results are unused
                at[b] = at[0]

            for b in range(0, size, ROWS):
                p0, p1, p2, p3, p4 = at[b], at[b + 1], at[b + 2], at[b + 3], at[b + 4]
                s0 = s1 = s2 = s3 = s4 = no_sums()
                for k in range(0, width, LANES):
                    strip = k * (inputs + 2)
                    a0 = load(model, strip + b1)
                    a1 = a2 = a3 = a4 = a0
                    for j in range(inputs):
                        w = load(model, strip + j * LANES)
                        a0 = fma(spread(x, p0 + j), w, a0)
                        a1 = fma(spread(x, p1 + j), w, a1)
                        a2 = fma(spread(x, p2 + j), w, a2)
                        a3 = fma(spread(x, p3 + j), w, a3)
                        a4 = fma(spread(x, p4 + j), w, a4)
                    a0, a1, a2, a3, a4 = tanh(a0), tanh(a1), tanh(a2), tanh(a3), tanh(a4)
                    q = b * stride + k
                    store(h, q, a0)
                    store(h, q + stride, a1)
                    store(h, q + 2 * stride, a2)
                    store(h, q + 3 * stride, a3)
                    store(h, q + 4 * stride, a4)
                    w = load(model, strip + w2)
                    s0, s1 = add_products(s0, a0, w), add_products(s1, a1, w)
                    s2, s3 = add_products(s2, a2, w), add_products(s3, a3, w)
                    s4 = add_products(s4, a4, w)
                z[b], z[b + 1], z[b + 2] = total(s0), total(s1), total(s2)
                z[b + 3], z[b + 4] = total(s3), total(s4)

            half = fill(_HALF)
            bias = spread(model, b2)
            if lifts:
                for b in range(0, size, LANES):
                    store(z, b, tanh(mul(add(bias, load(z, b)), half)))
                for b in range(size):
                    row = first + order[start + b]
                    group[b] = cell[row] // 2
                    lift[b] = push[cell[row]] * (_QUARTER * step) if len(push) else _ZERO
                if prejudice != _ZERO:
                    add_prejudice(z, group, size, prejudice, _QUARTER * step, lift, odds, present)
                for b in range(0, size, LANES):
                    t = load(z, b)
                    gradient = mul(fma(half, t, load(offset, b)), load(scale, b))
                    store(z, b, fma(slope(t), load(lift, b), gradient))
            else:
                for b in range(0, size, LANES):  # the loss's gradient, weighted, times the learning rate
                    t = tanh(mul(add(bias, load(z, b)), half))
                    store(z, b, mul(fma(half, t, load(offset, b)), load(scale, b)))

            down = _ZERO
            for b in range(size):
                down += z[b]
            model[b2] -= down

            for k in range(0, width, LANES):
                strip = k * (inputs + 2)
                w = load(model, strip + w2)
                down_w2 = down_b1 = fill(_ZERO)
                for b in range(size):
                    hidden = load(h, b * stride + k)
                    g = spread(z, b)
                    down_w2 = fma(g, hidden, down_w2)
                    q = mul(mul(slope(hidden), w), g)
                    down_b1 = add(down_b1, q)
                    store(h, b * stride + k, q)
                store(model, strip + w2, sub(w, down_w2))
                store(model, strip + b1, sub(load(model, strip + b1), down_b1))
                for near in range(0, size, _NEAR):
                    end = min(near + _NEAR, size)
                    j = 0
                    while j + 5 <= inputs:
                        p = j * LANES
                        a0, a1, a2 = load(sums, p), load(sums, p + 16), load(sums, p + 32)
                        a3, a4 = load(sums, p + 48), load(sums, p + 64)
                        for b in range(near, end):
                            q = load(h, b * stride + k)
                            p = at[b] + j
                            a0 = fma(spread(x, p), q, a0)
                            a1 = fma(spread(x, p + 1), q, a1)
                            a2 = fma(spread(x, p + 2), q, a2)
                            a3 = fma(spread(x, p + 3), q, a3)
                            a4 = fma(spread(x, p + 4), q, a4)
                        if end == size:
                            p = strip + j * LANES
                            store(model, p, sub(load(model, p), a0))
                            store(model, p + 16, sub(load(model, p + 16), a1))
                            store(model, p + 32, sub(load(model, p + 32), a2))
                            store(model, p + 48, sub(load(model, p + 48), a3))
                            store(model, p + 64, sub(load(model, p + 64), a4))
                            a0 = a1 = a2 = a3 = a4 = fill(_ZERO)
                        p = j * LANES
                        store(sums, p, a0)
                        store(sums, p + 16, a1)
                        store(sums, p + 32, a2)
                        store(sums, p + 48, a3)
                        store(sums, p + 64, a4)
                        j += 5
                    while j + 4 <= inputs:
                        p = j * LANES
                        a0, a1, a2 = load(sums, p), load(sums, p + 16), load(sums, p + 32)
                        a3 = load(sums, p + 48)
                        for b in range(near, end):
                            q = load(h, b * stride + k)
                            p = at[b] + j
                            a0 = fma(spread(x, p), q, a0)
                            a1 = fma(spread(x, p + 1), q, a1)
                            a2 = fma(spread(x, p + 2), q, a2)
                            a3 = fma(spread(x, p + 3), q, a3)
                        if end == size:
                            p = strip + j * LANES
                            store(model, p, sub(load(model, p), a0))
                            store(model, p + 16, sub(load(model, p + 16), a1))
                            store(model, p + 32, sub(load(model, p + 32), a2))
                            store(model, p + 48, sub(load(model, p + 48), a3))
                            a0 = a1 = a2 = a3 = fill(_ZERO)
                        p = j * LANES
                        store(sums, p, a0)
                        store(sums, p + 16, a1)
                        store(sums, p + 32, a2)
                        store(sums, p + 48, a3)
                        j += 4
                    while j < inputs:
                        a0 = load(sums, j * LANES)
                        for b in range(near, end):
                            a0 = fma(spread(x, at[b] + j), load(h, b * stride + k), a0)
                        if end == size:
                            p = strip + j * LANES
                            store(model, p, sub(load(model, p), a0))
                            a0 = fill(_ZERO)
                        store(sums, j * LANES, a0)
                        j += 1
            if len(anchor):
                apply_pull(model, pull)

    return train


_train_one, _train_one_lifted = _make_train_one(lifts=False), _make_train_one(lifts=True)


def _make_train_lanes(lifts: bool) -> Any:
    """The kernel with or without prices of predictions, which the other one need not ask for at every row."""

    @kernel
    def train(
        models: Array, x: Array, cell: Array, weight: Array, push: Array, prejudice: Array,
        anchor: Array, strength: Array, first: int, order: Array, visits: int, batch: int, rate: Any,
        inputs: int, hidden: int, floats: Any, wholes: Any,
    ) -> None:  # fmt: skip
        """SGD for sixteen models on the same batches; ``models`` and ``weight`` hold 16 values a parameter.

        ``push``, ``prejudice`` and ``anchor`` are empty where none of the sixteen wants one.
        """
        width = hidden * LANES
        stride = (hidden | 1) * LANES  # odd, as above
        h, g, lift, _, _, pull, odds, _ = floats
        places, group, present = wholes
        b1, w2, b2 = inputs * width, (inputs + 1) * width, (inputs + 2) * width
        half = fill(_HALF)
        far = len(order) > FAR
        for start in range(0, visits, batch):
            size = min(batch, visits - start)
            step = fill(rate / _F(size))
            if far:
                look_ahead(x, cell, inputs, first, order, start + size, min(start + 2 * batch, visits))
            if len(anchor):
                note_pull(models, anchor, strength, pull)
            for b in range(size):
                places[b] = (first + order[start + b]) * inputs
            for b in range(size, size + ROWS):
                places[b] = places[0]

            for b in range(0, size, ROWS):
                p0, p1, p2, p3, p4 = places[b], places[b + 1], places[b + 2], places[b + 3], places[b + 4]
                for k in range(0, width, LANES):
                    a0 = load(models, b1 + k)
                    a1 = a2 = a3 = a4 = a0
                    for j in range(inputs):
                        w = load(models, j * width + k)
                        a0 = fma(spread(x, p0 + j), w, a0)
                        a1 = fma(spread(x, p1 + j), w, a1)
                        a2 = fma(spread(x, p2 + j), w, a2)
                        a3 = fma(spread(x, p3 + j), w, a3)
                        a4 = fma(spread(x, p4 + j), w, a4)
                    q = b * stride + k
                    store(h, q, tanh(a0))
                    store(h, q + stride, tanh(a1))
                    store(h, q + 2 * stride, tanh(a2))
                    store(h, q + 3 * stride, tanh(a3))
                    store(h, q + 4 * stride, tanh(a4))

            bias = load(models, b2)
            down = fill(_ZERO)
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
                row = first + order[start + b]
                t = tanh(mul(add(bias, add(add(s0, s2), add(s1, s3))), half))
                if lifts:
                    store(g, b * LANES, t)
                    continue
                scale = mul(load(weight, np.int64(cell[row]) * LANES), step)
                gradient = mul(fma(half, t, fill(_HALF - _F(cell[row] & 1))), scale)
                store(g, b * LANES, gradient)
                down = add(down, gradient)
            if lifts:
                quarter = _QUARTER * (rate / _F(size))
                for b in range(size):
                    at = np.int64(cell[first + order[start + b]])
                    group[b] = at // 2
                    store(
                        lift,
                        b * LANES,
                        mul(load(push, at * LANES), fill(quarter)) if len(push) else fill(_ZERO),
                    )
                if len(prejudice):
                    add_prejudice_lanes(g, group, size, prejudice, quarter, lift, odds, present)
                for b in range(size):
                    row = first + order[start + b]
                    t = load(g, b * LANES)
                    scale = mul(load(weight, np.int64(cell[row]) * LANES), step)
                    gradient = mul(fma(half, t, fill(_HALF - _F(cell[row] & 1))), scale)
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
                j = 0
                while j + 5 <= inputs:
                    a0 = a1 = a2 = a3 = a4 = fill(_ZERO)
                    for b in range(size):
                        q = load(h, b * stride + k)
                        p = places[b] + j
                        a0 = fma(spread(x, p), q, a0)
                        a1 = fma(spread(x, p + 1), q, a1)
                        a2 = fma(spread(x, p + 2), q, a2)
                        a3 = fma(spread(x, p + 3), q, a3)
                        a4 = fma(spread(x, p + 4), q, a4)
                    p = j * width + k
                    store(models, p, sub(load(models, p), a0))
                    store(models, p + width, sub(load(models, p + width), a1))
                    store(models, p + 2 * width, sub(load(models, p + 2 * width), a2))
                    store(models, p + 3 * width, sub(load(models, p + 3 * width), a3))
                    store(models, p + 4 * width, sub(load(models, p + 4 * width), a4))
                    j += 5
                while j + 4 <= inputs:
                    a0 = a1 = a2 = a3 = fill(_ZERO)
                    for b in range(size):
                        q = load(h, b * stride + k)
                        p = places[b] + j
                        a0 = fma(spread(x, p), q, a0)
                        a1 = fma(spread(x, p + 1), q, a1)
                        a2 = fma(spread(x, p + 2), q, a2)
                        a3 = fma(spread(x, p + 3), q, a3)
                    p = j * width + k
                    store(models, p, sub(load(models, p), a0))
                    store(models, p + width, sub(load(models, p + width), a1))
                    store(models, p + 2 * width, sub(load(models, p + 2 * width), a2))
                    store(models, p + 3 * width, sub(load(models, p + 3 * width), a3))
                    j += 4
                while j < inputs:
                    a0 = fill(_ZERO)
                    for b in range(size):
                        a0 = fma(spread(x, places[b] + j), load(h, b * stride + k), a0)
                    store(models, j * width + k, sub(load(models, j * width + k), a0))
                    j += 1
            if len(anchor):
                apply_pull(models, pull)

    return train


_train_lanes, _train_lanes_lifted = _make_train_lanes(lifts=False), _make_train_lanes(lifts=True)


@kernel
def _to_strips(model: Array, strips: Array, hidden: int, width: int, back: bool) -> None:
    """Put a model's vector where `_train_one` wants it, or ``back``; the padding is zero."""
    if not back:
        strips[:] = _ZERO
    last = len(model) - 1
    rows = last // hidden
    for p in range(last + 1):
        row, unit = p // hidden, p % hidden
        place = unit // LANES * LANES * rows + row * LANES + unit % LANES if p < last else rows * width
        if back:
            model[p] = strips[place]
        else:
            strips[place] = model[p]


@kernel
def _some(values: Array) -> Any:
    """Whether any number is not 0."""
    found = False
    for value in values:
        found |= value != _ZERO
    return found


@kernel
def train_cohort(
    start: Array, x: Array, cell: Array, offsets: Array, clients: Array, weights: Array,
    pushes: Array, prejudices: Array, proxes: Array, anchors: Array, epochs: int, skip: int, run: int,
    batch: int, rate: Any, key: Any, round_number: int, hidden: int, least: int, order: Array,
    space: Array, whole_space: Array, ends: Array, out: Array,
) -> None:  # fmt: skip
    """Train every setting's model at every client of the round.

    Parameters
    ----------
    start : (settings, cohort, parameters) where each setting's clients start
    x, cell : the training rows of all clients, client by client: flat inputs, and twice the group plus the
        label
    offsets : (all clients + 1,) where each client's rows begin
    clients : (cohort,) the clients of the round; each has at least one row
    weights : (settings, cohort, cells) loss weights
    pushes : (settings, cohort, cells) prices of predictions, or (0, 0, 0)
    prejudices : (settings,) strengths of the batch-wise prejudice remover, or (0,)
    proxes : (settings, cohort) strengths of the way back to the anchors, or (0, 0)
    anchors : (settings, cohort, parameters) what models are pulled to, or (0, 0, 0)
    epochs : local epochs of the round, of which ``skip`` are over and ``run`` are run now
    batch, rate : batch size, learning rate
    key, round_number : what the batch order depends on, beside the client
    least : from how many models on sixteen are trained at once
    order, space, whole_space, ends : space to work in, and where its parts end (`kernels.train_cohort`)
    out : (settings, cohort, parameters) becomes the trained models
    """
    settings, _, parameters = start.shape
    cells = weights.shape[2]
    inputs = (parameters - 1) // hidden - 2
    width = (hidden + LANES - 1) // LANES * LANES
    floats = (
        space[: ends[0]], space[ends[0] : ends[1]], space[ends[1] : ends[2]], space[ends[2] : ends[3]],
        space[ends[3] : ends[4]], space[ends[4] : ends[5]], space[ends[5] : ends[6]],
        space[ends[6] : ends[7]],
    )  # fmt: skip
    models, lane_anchor = space[ends[7] : ends[8]], space[ends[8] : ends[9]]
    lane_weight, lane_push = space[ends[9] : ends[10]], space[ends[10] : ends[11]]
    lane_prejudice, strength = space[ends[11] : ends[12]], space[ends[12] : ends[13]]
    wholes = whole_space[: ends[14]], whole_space[ends[14] : ends[15]], whole_space[ends[15] :]
    padded = (inputs + 3) * width
    lanes, one, one_anchor, none = (
        models[: parameters * LANES], models[:padded], lane_anchor[:padded], models[:0],
    )  # fmt: skip
    for c in range(len(clients)):
        first = offsets[clients[c]]
        rows = offsets[clients[c] + 1] - first
        batch_order(key, round_number, clients[c], rows, epochs, order)
        visits = rows * run
        mine = order[rows * skip :]
        s = 0
        while s < settings:
            filled = min(LANES, settings - s)
            if filled >= least:
                pushed = removes = held = False
                for lane in range(LANES):
                    model = s + min(lane, filled - 1)
                    for p in range(parameters):
                        lanes[p * LANES + lane] = start[model, c, p]
                    for i in range(cells):
                        lane_weight[i * LANES + lane] = weights[model, c, i]
                    if len(pushes):
                        for i in range(cells):
                            lane_push[i * LANES + lane] = pushes[model, c, i]
                            pushed |= pushes[model, c, i] != _ZERO
                    if len(prejudices):
                        lane_prejudice[lane] = prejudices[model]
                        removes |= prejudices[model] != _ZERO
                    if len(proxes):
                        strength[lane] = rate * proxes[model, c]
                        held |= proxes[model, c] != _ZERO
                        for p in range(parameters):
                            lane_anchor[p * LANES + lane] = anchors[model, c, p]
                anchor = lane_anchor if held else none
                if pushed or removes:
                    _train_lanes_lifted(
                        lanes, x, cell, lane_weight, lane_push if pushed else none,
                        lane_prejudice if removes else none, anchor, strength, first, mine, visits, batch,
                        rate, inputs, hidden, floats, wholes,
                    )  # fmt: skip
                else:
                    _train_lanes(
                        lanes, x, cell, lane_weight, none, none, anchor, strength, first, mine, visits,
                        batch, rate, inputs, hidden, floats, wholes,
                    )  # fmt: skip
                for lane in range(filled):
                    for p in range(parameters):
                        out[s + lane, c, p] = lanes[p * LANES + lane]
                s += filled
            else:
                _to_strips(start[s, c], one, hidden, width, False)
                push = pushes[s, c] if len(pushes) and _some(pushes[s, c]) else none
                prejudice = prejudices[s] if len(prejudices) else _ZERO
                anchor = none
                if len(proxes) and proxes[s, c] != _ZERO:
                    anchor = one_anchor
                    _to_strips(anchors[s, c], anchor, hidden, width, False)
                    strength[:] = rate * proxes[s, c]
                if len(push) or prejudice != _ZERO:
                    _train_one_lifted(
                        one, x, cell, weights[s, c], push, prejudice, anchor, strength, first, mine,
                        visits, batch, rate, inputs, width, floats, wholes,
                    )  # fmt: skip
                else:
                    _train_one(
                        one, x, cell, weights[s, c], none, _ZERO, anchor, strength, first, mine, visits,
                        batch, rate, inputs, width, floats, wholes,
                    )  # fmt: skip
                _to_strips(out[s, c], one, hidden, width, True)
                s += 1
