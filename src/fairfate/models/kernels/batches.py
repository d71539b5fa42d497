"""What all training loops share: the order of rows, terms of the loss, and their scratch memory."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int32, int64, uint64
from numpy.typing import NDArray

from fairfate.models.kernels.compile import has_avx512, inner, kernel, read, write
from fairfate.models.kernels.simd import add, fill, fma, load, log_odds, mul, prefetch, store, sub
from fairfate.models.rows import LANES, ClientRows

Array = Any  # Numba infers the types of the kernels' arguments
Floats = NDArray[np.float32]
Schedule = tuple[int, int, int]
"""Epochs of the round, how many of them are over, and how many are run now."""

_F = np.float32
_ZERO, _HALF = np.float32(0), np.float32(0.5)
ROWS = 10 if has_avx512() else 5
"""Rows of a batch that go through a layer together: what the registers hold. AVX-512 has 32 of sixteen lanes,
AVX2 only 16 of eight, where ten rows are slower than five."""
FAR = 100_000  # rows from which on they are not in the caches when a batch needs them
_MOST_SPACES = 8


class TermArrays(NamedTuple):
    """Terms of the loss, for each setting; all but the first two are empty where no setting has them."""

    weights: Floats
    """(settings, cohort, cells)"""
    targets: Floats
    """(settings, cohort, cells); a row's label, unless a strategy says otherwise."""
    pushes: Floats
    """(settings, cohort, cells)"""
    prejudices: Floats
    """(settings,)"""
    proxes: Floats
    """(settings, cohort)"""
    anchors: Floats
    """(settings, cohort, parameters)"""


class Space(NamedTuple):
    """A loop's scratch memory: arrays of zeros, each from the start of a cache line on."""

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    floats: Floats
    wholes: NDArray[np.int64]
    parts: tuple[NDArray[Any], ...]


_FREE: dict[tuple[tuple[int, ...], tuple[int, ...]], Space] = {}


def take_space(floats: tuple[int, ...], wholes: tuple[int, ...]) -> Space:
    """Space for so many floats and whole numbers in each part, which no other call uses.

    A call is short and making the space takes a while, so it is kept for the next call (`return_space`).
    """
    space = _FREE.pop((floats, wholes), None)
    if space is None:
        return _make_space(floats, wholes)
    space.floats.fill(0)
    space.wholes.fill(0)
    return space


def return_space(space: Space) -> None:
    """Keep it for the next call."""
    _FREE[space.sizes] = space
    if len(_FREE) > _MOST_SPACES:
        _FREE.pop(next(iter(_FREE)), None)


def _make_space(floats: tuple[int, ...], wholes: tuple[int, ...]) -> Space:
    bounds = [0, *accumulate(map(sixteens, floats))]
    space, whole_space = aligned_zeros(bounds[-1]), np.zeros(sum(wholes), np.int64)
    parts: list[NDArray[Any]] = [space[start:end] for start, end in pairwise(bounds)]
    parts += [whole_space[start:end] for start, end in pairwise([0, *accumulate(wholes)])]
    return Space((floats, wholes), space, whole_space, tuple(parts))


def aligned_zeros(size: int) -> Floats:
    """So many floats from the start of a cache line on: vectors across two lines take twice the time."""
    space = np.zeros(size + LANES, np.float32)
    first = -space.__array_interface__["data"][0] % (4 * LANES) // 4
    return space[first : first + size]


def sixteens(size: int) -> int:
    """The next multiple of sixteen."""
    return -(-size // LANES) * LANES


def odd_sixteens(units: int) -> int:
    """How far rows of so many units are apart: odd sixteens, which do not share cache lines."""
    return (sixteens(units) // LANES | 1) * LANES


def order_space(
    rows: ClientRows, clients: NDArray[np.int64], schedule: Schedule, batch: int
) -> tuple[NDArray[np.int32], int]:
    """Space for the order of a client's rows, and the batch size, which is never above their number."""
    longest = max(rows.sizes[clients].tolist(), default=0)
    return np.empty(longest * schedule[0], np.int32), min(batch, longest * schedule[2])


@inner
def mix(z: Any) -> Any:
    """Finish a SplitMix64 step: every bit of the result depends on every bit of ``z``."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner
def fill_order(key: Any, round_number: int, client: int, rows: int, epochs: int, out: Array) -> None:
    """Fill ``out`` with the rows ``0 .. rows-1`` in visiting order: ``epochs`` fresh shuffles.

    The order depends on ``(key, round_number, client)`` only. Batches are cut from the whole sequence,
    across the borders of epochs.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    state = mix(np.uint64(key) + step)
    state = mix(state ^ (np.uint64(round_number) * step))
    state = mix(state ^ (np.uint64(client) * step))
    for epoch in range(epochs):
        start = epoch * rows
        for i in range(rows):
            state += step
            draw = mix(state) >> np.uint64(32)
            j = np.int64((draw * np.uint64(i + 1)) >> np.uint64(32))
            out[start + i] = out[start + j]
            out[start + j] = i


@kernel(read(float64, 1), float64, int64, int64, write(int32, 1), write(int64, 1), write(int64, 1))
def join_batches(
    draws: Array, mean: Any, rows: int, steps: int, order: Array, bounds: Array, state: Array
) -> None:
    """Draw batches by Poisson sampling: each row joins each batch by itself, with the same chance.

    From a row that joins, the next is a draw (of an exponential distribution) times the mean, rounded up, on.

    ``state`` : the step and the row of the last that joined, -1 before the first, and how many have.
    ``bounds`` gets the ends of steps that are over, from its second number on.
    """
    step, row, count = state[0], state[1], state[2]
    for draw in draws:
        row += np.int64(np.floor(draw * mean)) + 1
        while row >= rows and step < steps:
            row -= rows
            step += 1
            bounds[step] = count
        if step == steps:
            break
        order[count] = row
        count += 1
    state[0], state[1], state[2] = step, row, count


@kernel(uint64, int64, int64, int64, int64, write(int32, 1))
def batch_order(key: Any, round_number: int, client: int, rows: int, epochs: int, out: Array) -> None:
    """`fill_order`, for models that other loops train."""
    fill_order(key, round_number, client, rows, epochs, out)


@inner
def look_ahead(x: Array, cell: Array, inputs: int, first: int, order: Array, begin: int, end: int) -> None:
    """Have rows fetched that the next batch will read: they lie anywhere in a large client's memory."""
    for index in range(begin, end):
        row = first + order[index]
        for j in range(0, inputs, LANES):
            prefetch(x, row * inputs + j)
        prefetch(x, row * inputs + inputs - 1)
        prefetch(cell, row)


@inner
def add_prejudice(
    t: Array, group: Array, size: int, strength: Any, step: Any, lift: Array, sums: Array, rows: Array
) -> None:
    """Add to each row's ``lift`` what its group's odds in the batch cost; ``t`` is 2 P(1) - 1 of each row.

    ``rows`` is scratch memory for a number of each group, ``sums`` for these and for a vector of sixteen
    probabilities or log-odds.
    """
    groups = 0
    for b in range(size):
        groups = max(groups, group[b] + 1)
    for g in range(groups):
        sums[g] = _ZERO
        rows[g] = 0
    scratch = sums[groups:]
    total = _ZERO
    for b in range(size):
        store(scratch, 0, fma(fill(_HALF), fill(t[b]), fill(_HALF)))
        sums[group[b]] += scratch[0]
        total += scratch[0]
        rows[group[b]] += 1
    present = 0
    for g in range(groups):
        present += rows[g] > 0
    if present < 2:
        return
    store(scratch, 0, log_odds(fill(total * (_F(1) / _F(size)))))
    overall = scratch[0]
    for g in range(groups):
        if rows[g] > 0:
            store(scratch, 0, log_odds(fill(sums[g] * (_F(1) / _F(rows[g])))))
            sums[g] = strength * (scratch[0] - overall) * step
    for b in range(size):
        lift[b] += sums[group[b]]


@inner
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


@inner
def note_pull(model: Array, anchor: Array, strength: Array, pull: Array) -> None:
    """Note how far a step takes each parameter back to the anchor; arrays of sixteens, as the strength is.

    It is subtracted after the step, since the loss's gradient is that of the same model.
    """
    for k in range(0, len(model), LANES):
        store(pull, k, mul(load(strength, 0), sub(load(model, k), load(anchor, k))))


@inner
def apply_pull(model: Array, pull: Array) -> None:
    """Subtract the pull."""
    for k in range(0, len(model), LANES):
        store(model, k, sub(load(model, k), load(pull, k)))


@inner
def has_any(values: Array) -> Any:
    """Whether any number is not 0."""
    some = False
    for value in values:
        some |= value != _ZERO
    return some
