"""Train the built-in model under differential privacy: noisy steps on batches that rows join by chance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairfate.models.mlp import Mlp
from fairfate.models.model import Losses, Models
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training

_MOST_NOISE = 4_000_000
"""Numbers of noise that are drawn at a time."""


class Randomness(Protocol):
    """Where a client's chance comes from: a seed in experiments, the system's secure source at a site."""

    def normals(self, count: int) -> NDArray[np.float32]:
        """Standard normal numbers."""
        ...

    def exponentials(self, count: int) -> NDArray[np.float64]:
        """Standard exponential numbers."""
        ...


class NoisySteps(NamedTuple):
    """How one client's steps are made private."""

    clip: float
    """The limit of the norm of a row's gradient."""
    noise: float
    """Standard deviation of the noise, in units of the limit."""
    randomness: Randomness


def batch_of(rows: int, batch: int) -> int:
    """The rows that are expected in a batch of a client."""
    return min(batch, rows)


def steps_of(rows: int, epochs: int, batch: int) -> int:
    """How many steps a client takes: as many as without privacy."""
    return math.ceil(rows * epochs / batch_of(rows, batch))


def train_private(
    model: Mlp,
    start: Models,
    rows: ClientRows,
    client: int,
    losses: Losses,
    training: Training,
    epochs: int,
    noisy: NoisySteps,
) -> Models:
    """Train (parameters,) one model at one client; ``losses`` are of this model and client only."""
    from fairfate.models.kernels import private  # which loads Numba

    first, size = int(rows.offsets[client]), int(rows.sizes[client])
    batch = batch_of(size, training.batch_size)
    span = rows.x[first * rows.inputs : (first + size) * rows.inputs].reshape(size, -1)
    with np.errstate(over="ignore"):  # such a row counts as none
        lengths = np.add.reduce(span * span, axis=1)
    no_floats = np.zeros(0, np.float32)
    push = no_floats if losses.push is None else np.ascontiguousarray(losses.push[0, 0])
    weight, target = (np.ascontiguousarray(array[0, 0]) for array in (losses.weight, losses.targets))
    pull = no_floats, np.float32(0)
    if losses.prox is not None and losses.anchor is not None and losses.prox[0, 0] != 0:
        anchor = np.ascontiguousarray(losses.anchor[0, 0], dtype=np.float32)
        pull = anchor, np.float32(np.float32(training.learning_rate) * losses.prox[0, 0])
    for steps in _chunks(noisy.randomness, size, batch, steps_of(size, epochs, batch), model.num_parameters):
        start = private.train(
            start,
            rows.x,
            rows.cell,
            first,
            lengths,
            private.Steps(*steps),
            (weight, target, push),
            pull,
            training.learning_rate / batch,
            noisy.clip,
            noisy.noise * noisy.clip,
            model.widths,
        )
    return start


def _chunks(
    randomness: Randomness, rows: int, batch: int, steps: int, parameters: int
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]]]:
    """The rows and the noise of so many steps, some steps at a time."""
    most = max(1, _MOST_NOISE // parameters)
    for start in range(0, steps, most):
        count = min(most, steps - start)
        order, bounds = draw_batches(randomness, rows, batch / rows, count)
        yield order, bounds, randomness.normals(count * parameters).reshape(count, parameters)


def draw_batches(
    randomness: Randomness, rows: int, rate: float, steps: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Batches that every row joins independently with probability ``rate`` (Poisson sampling).

    From one row to the next that joins it is a geometrically distributed number of rows, over the borders of
    steps: one draw for each row that joins, and not for each that might.

    Returns
    -------
    The rows that join, one step after another, and (steps + 1,) where each step begins.
    """
    trials = rows * steps
    if rate >= 1:
        return np.tile(np.arange(rows, dtype=np.int32), steps), np.arange(steps + 1, dtype=np.int64) * rows
    from fairfate.models.kernels.batches import join_batches  # which loads Numba

    mean, expected = -1 / math.log1p(-rate), trials * rate
    order, bounds = np.empty(0, dtype=np.int32), np.zeros(steps + 1, dtype=np.int64)
    state = np.array([0, -1, 0])
    while state[0] < steps:
        missing = max(expected - state[2], 1)
        draws = randomness.exponentials(int(missing + 4 * math.sqrt(missing)) + 8)
        order = np.concatenate([order, np.empty(len(draws), dtype=np.int32)])
        join_batches(draws, mean, rows, steps, order, bounds, state)
    return order[: state[2]], bounds
