"""Compiled loops that models of any depth share: the order of rows, and terms of the loss beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from fairfate.models.compiling import kernel
from fairfate.models.rows import LANES
from fairfate.models.simd import add, fill, fma, load, log_odds, mul, prefetch, store, sub

Array = Any  # Numba infers the types of the kernels' arguments

_F = np.float32
_ZERO, _HALF = np.float32(0), np.float32(0.5)
FAR = 100_000  # rows from which on they are not in the caches when a batch needs them


@kernel
def _mix(z: Any) -> Any:
    """Finish a SplitMix64 step: every bit of the result depends on every bit of ``z``."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def batch_order(key: Any, round_number: int, client: int, rows: int, epochs: int, out: Array) -> None:
    """Fill ``out`` with the rows ``0 .. rows-1`` in visiting order: ``epochs`` fresh shuffles.

    The order depends on ``(key, round_number, client)`` only. Batches are cut from the whole sequence,
    across the borders of epochs.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    state = _mix(np.uint64(key) + step)
    state = _mix(state ^ (np.uint64(round_number) * step))
    state = _mix(state ^ (np.uint64(client) * step))
    for epoch in range(epochs):
        start = epoch * rows
        for i in range(rows):
            state += step
            draw = _mix(state) >> np.uint64(32)
            j = np.int64((draw * np.uint64(i + 1)) >> np.uint64(32))
            out[start + i] = out[start + j]
            out[start + j] = i


@kernel
def look_ahead(x: Array, cell: Array, inputs: int, first: int, order: Array, begin: int, end: int) -> None:
    """Have rows fetched that the next batch will read: they lie anywhere in a large client's memory."""
    for place in range(begin, end):
        row = first + order[place]
        for j in range(0, inputs, LANES):
            prefetch(x, row * inputs + j)
        prefetch(x, row * inputs + inputs - 1)
        prefetch(cell, row)


@kernel
def add_prejudice(
    t: Array, group: Array, size: int, strength: Any, step: Any, lift: Array, sums: Array, rows: Array
) -> None:
    """Add to each row's ``lift`` what its group's odds in the batch cost; ``t`` is 2 P(1) - 1 of each row.

    ``rows`` has room for a number of each group, ``sums`` for sixteen and for sixteen more.
    """
    groups = 0
    for b in range(size):
        groups = max(groups, group[b] + 1)
    for g in range(groups):
        sums[g] = _ZERO
        rows[g] = 0
    odds = sums[groups:]
    total = _ZERO
    for b in range(size):
        store(odds, 0, fma(fill(_HALF), fill(t[b]), fill(_HALF)))
        sums[group[b]] += odds[0]
        total += odds[0]
        rows[group[b]] += 1
    present = 0
    for g in range(groups):
        present += rows[g] > 0
    if present < 2:
        return
    store(odds, 0, log_odds(fill(total * (_F(1) / _F(size)))))
    overall = odds[0]
    for g in range(groups):
        if rows[g] > 0:
            store(odds, 0, log_odds(fill(sums[g] * (_F(1) / _F(rows[g])))))
            sums[g] = strength * (odds[0] - overall) * step
    for b in range(size):
        lift[b] += sums[group[b]]


@kernel
def add_prejudice_lanes(
    t: Array, group: Array, size: int, strength: Array, step: Any, lift: Array, sums: Array, rows: Array
) -> None:
    """The same for sixteen models, with sixteen values of each number."""
    groups = 0
    for b in range(size):
        groups = max(groups, group[b] + 1)
    for g in range(groups):
        store(sums, g * LANES, fill(_ZERO))
        rows[g] = 0
    total = fill(_ZERO)
    half = fill(_HALF)
    for b in range(size):
        p = fma(half, load(t, b * LANES), half)
        store(sums, group[b] * LANES, add(load(sums, group[b] * LANES), p))
        total = add(total, p)
        rows[group[b]] += 1
    present = 0
    for g in range(groups):
        present += rows[g] > 0
    if present < 2:
        return
    overall = log_odds(mul(total, fill(_F(1) / _F(size))))
    for g in range(groups):
        if rows[g] > 0:
            own = log_odds(mul(load(sums, g * LANES), fill(_F(1) / _F(rows[g]))))
            store(sums, g * LANES, mul(mul(load(strength, 0), sub(own, overall)), fill(step)))
    for b in range(size):
        store(lift, b * LANES, add(load(lift, b * LANES), load(sums, group[b] * LANES)))


@kernel
def note_pull(model: Array, anchor: Array, strength: Array, pull: Array) -> None:
    """Note how far a step takes each parameter back to the anchor; arrays of sixteens, as the strength is.

    It is taken off after the step, since the loss's gradient is that of the same model.
    """
    for k in range(0, len(model), LANES):
        store(pull, k, mul(load(strength, 0), sub(load(model, k), load(anchor, k))))


@kernel
def apply_pull(model: Array, pull: Array) -> None:
    """Take it off."""
    for k in range(0, len(model), LANES):
        store(model, k, sub(load(model, k), load(pull, k)))
