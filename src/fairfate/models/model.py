"""What a model is: a vector of numbers that can be trained at clients and scored on rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Statistics
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.training import Training

Models = NDArray[np.float32]


class Losses(NamedTuple):
    """The clients' losses, by (group, label) cell of a row."""

    weight: NDArray[np.float32]
    """(models, clients, cells)"""
    push: NDArray[np.float32] | None = None
    """(models, clients, cells), or None if no model has one."""
    prejudice: NDArray[np.float32] | None = None
    """(models,), likewise."""
    prox: NDArray[np.float32] | None = None
    """(models, clients) times half the squared distance from the anchor, likewise."""
    anchor: NDArray[np.float32] | None = None
    """(models, clients, parameters) what models are pulled to; with ``prox``."""
    target: NDArray[np.float32] | None = None
    """(models, clients, cells) what predicted probabilities are compared with, or None for the labels."""

    @property
    def targets(self) -> NDArray[np.float32]:
        """(models, clients, cells) the same with the labels written out."""
        if self.target is not None:
            return self.target
        return np.broadcast_to(labels_of(self.weight.shape[-1]), self.weight.shape)


def labels_of(cells: int) -> NDArray[np.float32]:
    """(cells,) the labels of (group, label) cells.

    >>> labels_of(4).tolist()
    [0.0, 1.0, 0.0, 1.0]
    """
    return (np.arange(cells) % 2).astype(np.float32)


class Batches(NamedTuple):
    """Which rows a client visits: the batches of a round depend on these and on the client's number."""

    key: np.uint64
    round: int
    skip: int = 0
    """Epochs of the round that are over."""
    run: int | None = None
    """Epochs to run now; all if None."""


class Model(Protocol):
    """A kind of model, for a number of inputs. Every model of it is one vector."""

    @property
    def num_parameters(self) -> int:
        """Length of the vector."""
        ...

    @property
    def text(self) -> str:
        """What it is, for files and messages."""
        ...

    @property
    def is_bias(self) -> NDArray[np.bool_]:
        """(parameters,) which of them L2 leaves alone."""
        ...

    def initial(self, normals: NDArray[np.float64]) -> Models:
        """The vector at the start, from as many standard normal numbers."""
        ...

    def train(
        self,
        models: Models,
        rows: ClientRows,
        clients: NDArray[np.int64],
        losses: Losses,
        training: Training,
        batches: Batches,
    ) -> Models:
        """Train (models, clients, parameters), each at its client, all on the same batches."""
        ...

    def count(self, models: Models, rows: PackedRows) -> Counts:
        """(models, groups, 2, 2) counts of each model's predictions."""
        ...

    def statistics(self, models: Models, rows: PackedRows) -> Statistics:
        """The same with sums of probabilities and losses."""
        ...

    def margins(self, model: Models, rows: PackedRows) -> list[NDArray[np.float32]]:
        """For each cell, its rows' scores by one model: the log-odds of label 1."""
        ...

    def arrays(self, params: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The vector as named arrays."""
        ...

    def flat(self, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
        """The vector of named arrays; the inverse of `arrays`."""
        ...


def counts_of(positives: NDArray[np.int64], sizes: NDArray[np.int64]) -> Counts:
    """(models, groups, 2, 2) counts from the accepted rows of each cell; the last cells may be missing."""
    counts = np.zeros((len(positives), len(sizes), 2), dtype=np.int64)
    counts[:, : positives.shape[1], 1] = positives
    counts[:, :, 0] = sizes - counts[:, :, 1]
    return counts.reshape(len(positives), len(sizes) // 2, 2, 2)


def batch_rows(
    rows: ClientRows, client: int, training: Training, batches: Batches
) -> Iterator[NDArray[np.int64]]:
    """The row numbers of each batch that a client visits, for models trained outside the kernels."""
    from fairfate.models.kernels.batches import batch_order  # which loads Numba

    first, size = int(rows.offsets[client]), int(rows.sizes[client])
    order = np.empty(size * training.epochs, dtype=np.int32)
    batch_order(batches.key, batches.round, client, size, training.epochs, order)
    run = training.epochs if batches.run is None else batches.run
    visited = order[size * batches.skip : size * (batches.skip + run)].astype(np.int64)
    for start in range(0, len(visited), training.batch_size):
        yield first + visited[start : start + training.batch_size]


def statistics_of(margins: Sequence[NDArray[Any]]) -> Statistics:
    """One model's statistics from the scores of each (group, label) cell's rows."""
    positives = np.array([(scores > 0).sum() for scores in margins], dtype=np.int64)
    sizes = np.array([len(scores) for scores in margins], dtype=np.int64)
    probability = np.array([(1 / (1 + np.exp(-np.float64(scores)))).sum() for scores in margins])
    signs = np.resize([1.0, -1.0], len(margins))  # label 0 loses log(1 + exp(z)), label 1 log(1 + exp(-z))
    loss = np.array(
        [np.logaddexp(0, sign * scores).sum() for sign, scores in zip(signs, margins, strict=True)]
    )
    counts = counts_of(positives[None], sizes)
    return Statistics(counts, probability.reshape(1, -1, 2), loss.reshape(1, -1, 2))
