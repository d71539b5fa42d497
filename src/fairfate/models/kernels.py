"""The compiled loops as Python calls them: each with the arrays that it works in, and that it fills.

What the loops do is in ``*_kernels.py``, which need Numba and are read only to compile them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fairfate.models.cache import Header, Kernel
from fairfate.models.rows import LANES, ClientRows, PackedRows

ROWS = 5
"""Rows of a batch that go through the first layer together: what the registers hold."""
_WIDEST = 32
"""Hidden units from which on sixteen models at once do not fit the caches."""
_FEW_INPUTS, _MANY_INPUTS = 32, 64

Floats = NDArray[np.float32]
Sums = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]
"""(models, cells) accepted rows, sums of probabilities, sums of cross-entropies."""

batch_order = Kernel("shared_kernels", "batch_order")
_train_cohort = Kernel("train_kernels", "train_cohort")
_train_deep = Kernel("deep_kernels", "train_deep")
_count_positives = Kernel("score_kernels", "count_positives")
_sum_statistics = Kernel("score_kernels", "sum_statistics")
_statistics_deep = Kernel("deep_kernels", "statistics_deep")
_margins = Kernel("score_kernels", "margins")
_margins_deep = Kernel("deep_kernels", "margins_deep")
_add_rows = Kernel("mean_kernels", "add_rows")


_ROOMS: dict[tuple[tuple[int, ...], ...], Header] = {}
_MOST_ROOMS = 8


@contextmanager
def _room(*sizes: tuple[int, ...]) -> Iterator[Header]:
    """Space to work in, all zero: floats, whole numbers, and where the parts of both end, floats first.

    It is kept for the next call of the same shape, since a call is short and making it takes a while.
    """
    room = _ROOMS.pop(sizes, None)  # nobody else has it meanwhile
    if room is None:
        floats, wholes = sizes
        ends = np.array([*accumulate(floats), *accumulate(wholes)], np.int64)
        room = Header(_zeros(sum(floats)), np.zeros(sum(wholes), np.int64), ends)
    else:
        for space in room.arrays[:2]:
            space.fill(0)
    try:
        yield room
    finally:
        _ROOMS[sizes] = room
        if len(_ROOMS) > _MOST_ROOMS:
            _ROOMS.pop(next(iter(_ROOMS)), None)


def _zeros(size: int) -> Floats:
    """So many floats from the start of a cache line on: vectors across two lines take twice the time."""
    space = np.zeros(size + LANES, np.float32)
    first = -space.__array_interface__["data"][0] % (4 * LANES) // 4
    return space[first : first + size]


def _sixteens(size: int) -> int:
    return -(-size // LANES) * LANES


def _stride(units: int) -> int:
    """How far rows of so many units are apart: odd sixteens, which do not share cache lines."""
    return (_sixteens(units) // LANES | 1) * LANES


def least_lanes(inputs: int, hidden: int) -> int:
    """From how many models on sixteen at once are faster than one after another (docs/engine.md).

    One model alone is trained a multiple of sixteen hidden units wide, however few of them there are.
    """
    if hidden > _WIDEST:
        return LANES + 1
    most = 8 if inputs <= _FEW_INPUTS and hidden <= LANES else 13 if inputs <= _MANY_INPUTS else 16
    return max(2, most * hidden // _sixteens(hidden))


Given = Floats | Header
Losses = tuple[Floats, Given, Given, Given, Given]
"""Weights, pushes, prejudices, proxes and anchors, empty where nobody wants them."""
Schedule = tuple[int, int, int]
"""Epochs of the round, how many of them are over, and how many are run now."""


def train_cohort(
    start: Floats,
    rows: ClientRows,
    clients: NDArray[np.int64],
    losses: Losses,
    schedule: Schedule,
    batch: int,
    rate: np.float32,
    key: np.uint64,
    round_number: int,
    hidden: int,
) -> Floats:
    """Train (settings, cohort, parameters) models with one hidden layer."""
    settings, _, parameters = start.shape
    inputs, cells = (parameters - 1) // hidden - 2, losses[0].shape[2]
    order, batch = _order(rows, clients, schedule, batch)
    least, model, each, units = least_lanes(inputs, hidden), (inputs + 3) * _sixteens(hidden), 1, hidden
    if min(settings, LANES) >= least:
        model, each, units = max(model, parameters * LANES), LANES, hidden * LANES
    row, odds = (_sixteens(batch) + LANES) * each, ((cells + 1) // 2 + 1) * LANES
    floats = ((batch + ROWS) * _stride(units), row, row, row, row, model, odds, inputs * LANES)
    lanes = model, model, cells * LANES, cells * LANES, LANES, LANES
    out = np.empty_like(start)
    with _room((*floats, *lanes), (batch + ROWS, batch + ROWS, (cells + 1) // 2)) as room:
        _train_cohort(
            start, rows.header, clients, *losses, *schedule, batch, rate, key, round_number, hidden, least,
            order, room, out,
        )  # fmt: skip
    return out


def train_deep(
    start: Floats,
    rows: ClientRows,
    clients: NDArray[np.int64],
    losses: Losses,
    schedule: Schedule,
    batch: int,
    rate: np.float32,
    key: np.uint64,
    round_number: int,
    widths: NDArray[np.int64],
) -> Floats:
    """Train (settings, cohort, parameters) models with any number of hidden layers."""
    order, batch = _order(rows, clients, schedule, batch)
    groups, row = (losses[0].shape[2] + 1) // 2, _sixteens(batch)
    places = _places(widths.tolist(), batch)
    units, size = int(places[0, -1]), int(places[2, -1])
    floats = units, size, size, size, max(size, LANES * LANES), row, row, LANES, groups + LANES
    out = np.empty_like(start)
    with _room(floats, (row, groups)) as room:
        _train_deep(
            start, rows.header, clients, *losses, *schedule, batch, rate, key, round_number, widths,
            order, places, room, out,
        )  # fmt: skip
    return out


def _places(widths: list[int], batch: int) -> NDArray[np.int64]:
    """For each layer: where a batch's inputs to it begin, how far rows are apart, where its strips begin.

    The first and the last of these have one number more, which says how long the whole is.
    """
    places = np.zeros((3, len(widths)), np.int64)
    for layer, (wide, narrow) in enumerate(pairwise(widths)):
        places[0, layer + 1] = places[0, layer] + (_sixteens(batch) + LANES) * _stride(wide)
        places[1, layer] = _stride(wide)
        places[2, layer + 1] = places[2, layer] + (_sixteens(wide) + 1) * _sixteens(narrow)
    return places


def _order(
    rows: ClientRows, clients: NDArray[np.int64], schedule: Schedule, batch: int
) -> tuple[NDArray[np.int32], int]:
    """Space for the order of a client's rows, and the batch size, which is never above their number."""
    longest = int(rows.sizes[clients].max(initial=0))
    return np.empty(longest * schedule[0], np.int32), min(batch, longest * schedule[2])


def count_positives(models: Floats, rows: PackedRows, inputs: int, hidden: int) -> NDArray[np.int64]:
    """(models, cells) the rows of each cell that each model with one hidden layer accepts."""
    out = np.zeros((len(models), rows.cells), np.int64)
    _count_positives(models.reshape(-1), rows.header, inputs, hidden, out)
    return out


def sum_statistics(models: Floats, rows: PackedRows, inputs: int, hidden: int) -> Sums:
    """The same with sums of probabilities and cross-entropies."""
    sums = _sums(len(models), rows.cells)
    _sum_statistics(models.reshape(-1), rows.header, inputs, hidden, *sums)
    return sums


def statistics_deep(models: Floats, rows: PackedRows, widths: NDArray[np.int64]) -> Sums:
    """As `sum_statistics`, for any number of hidden layers."""
    sums, units = _sums(len(models), rows.cells), _two_layers(widths)
    _statistics_deep(models.reshape(-1), rows.header, models.shape[1], widths, units, *sums)
    return sums


def margins(model: Floats, rows: PackedRows, inputs: int, hidden: int) -> Floats:
    """One model's scores before the sigmoid, for each place of the blocks."""
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
    """Space for sixteen values of each unit of two layers."""
    return _zeros(2 * int(widths.max()) * LANES)


def weighted_sums(rows: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    """(sums, columns) rows added one after another, each times its weight, for each row of weights.

    The same bits as ``(weights[k][:, None] * rows).sum(axis=0)``, where there is more than one column.

    Parameters
    ----------
    rows : (rows, columns) whose columns lie side by side in memory; rows may lie further apart
    weights : (sums, rows) of the same type
    """
    step = rows.strides[0] // rows.itemsize
    flat = as_strided(rows, ((len(rows) - 1) * step + rows.shape[1],), (rows.itemsize,), writeable=False)
    sums = np.zeros((len(weights), rows.shape[1]), dtype=rows.dtype)
    _add_rows(flat, step, weights, sums)
    return sums
