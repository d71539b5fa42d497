"""A table split, encoded and given to clients: all that a run of one seed reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairfate.data import SOURCES, TEST, TRAINING, VALIDATION, Encoder, Table
from fairfate.engine.kernels import count_positives, margins, train_cohort
from fairfate.engine.simd import LANES
from fairfate.engine.training import Training
from fairfate.errors import InputError, check
from fairfate.metrics import Counts
from fairfate.partition import Assignment, Partition, dirichlet, random
from fairfate.streams import Streams


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to score models on: sorted by (group, label) cell, in blocks of sixteen of one cell."""

    blocks: NDArray[np.float32]
    block_cell: NDArray[np.int64]
    mask: NDArray[np.uint16]
    sizes: NDArray[np.int64]
    """(groups * 2,) rows of each cell."""

    @classmethod
    def pack(cls, x: NDArray[np.float32], cell: NDArray[np.int64], groups: int) -> Rows:
        """Arrange encoded rows."""
        sizes = np.bincount(cell, minlength=2 * groups)
        blocks_of = -(-sizes // LANES)
        starts = np.concatenate([[0], np.cumsum(blocks_of)]) * LANES
        order = np.argsort(cell, kind="stable")
        within = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        place = starts[cell[order]] + within
        padded = np.zeros((int(starts[-1]), x.shape[1]), dtype=np.float32)
        padded[place] = x[order]
        real = np.zeros(int(starts[-1]), dtype=bool)
        real[place] = True
        bits = real.reshape(-1, LANES) @ (1 << np.arange(LANES))
        blocks = padded.reshape(-1, LANES, x.shape[1]).transpose(0, 2, 1)
        return cls(
            np.ascontiguousarray(blocks).ravel(),
            np.repeat(np.arange(2 * groups), blocks_of),
            bits.astype(np.uint16),
            sizes.astype(np.int64),
        )

    @classmethod
    def of(cls, table: Table, rows: NDArray[np.int64], encoder: Encoder) -> Rows:
        """Some rows of a table."""
        return cls.pack(encoder.transform(table.features[rows]), table.cell[rows], table.groups)

    def score(self, models: NDArray[np.float32], hidden: int) -> Counts:
        """(models, groups, 2, 2) counts of each model's predictions."""
        counts = np.zeros((len(models), len(self.sizes), 2), dtype=np.int64)
        found = count_positives(models, self.blocks, self.block_cell, self.mask, hidden)
        counts[:, : found.shape[1], 1] = found
        counts[:, :, 0] = self.sizes - counts[:, :, 1]
        return counts.reshape(len(models), len(self.sizes) // 2, 2, 2)

    def margins(self, model: NDArray[np.float32], hidden: int) -> list[NDArray[np.float32]]:
        """For each cell, its rows' scores by one model: the log-odds of label 1."""
        real = ((self.mask[:, None] >> np.arange(LANES)) & 1).astype(bool).ravel()
        scores = margins(model, self.blocks, hidden)[real]
        return np.split(scores, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what, ready for the kernels."""

    x: NDArray[np.float32]
    """Encoded training rows, flat, client by client."""
    y: NDArray[np.float32]
    cell: NDArray[np.int32]
    offsets: NDArray[np.int64]
    """(clients + 1,) where each client's rows begin."""
    client_cells: NDArray[np.int64]
    """(clients, groups, 2) training rows of each client by group and label."""
    client_names: tuple[str, ...]
    validation: Rows
    test: Rows
    encoder: Encoder
    inputs: int

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.offsets) - 1

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) training rows of each client."""
        return np.diff(self.offsets)

    @classmethod
    def site(cls, table: Table, encoder: Encoder, number: int) -> Federation:
        """One client alone, under the number it has among the others; nothing is held out."""
        nothing = Rows.of(table, np.arange(0), encoder)
        cells = np.bincount(table.cell, minlength=2 * table.groups).reshape(table.groups, 2)
        before = np.zeros((number, table.groups, 2), dtype=np.int64)
        return cls(
            x=encoder.transform(table.features).ravel(),
            y=table.label.astype(np.float32),
            cell=table.cell.astype(np.int32),
            offsets=np.array([0] * (number + 1) + [len(table)], dtype=np.int64),
            client_cells=np.concatenate([before, cells[None]]),
            client_names=("",) * number + (table.name,),
            validation=nothing,
            test=nothing,
            encoder=encoder,
            inputs=table.features.shape[1],
        )

    def train(
        self,
        models: NDArray[np.float32],
        clients: NDArray[np.int64],
        weights: NDArray[np.float32],
        training: Training,
        key: np.uint64,
        t: int,
    ) -> NDArray[np.float32]:
        """Train models at clients, all on the same batches.

        Parameters
        ----------
        models : (models, parameters) where each model starts
        clients : (cohort,) clients with at least one row
        weights : (models, cohort, groups * 2) loss weights of each cell
        training : the clients' SGD
        key, t : what the batch order depends on, beside the client

        Returns
        -------
        (models, cohort, parameters)
        """
        trained: NDArray[np.float32] = train_cohort(
            models,
            self.x,
            self.y,
            self.cell,
            self.offsets,
            clients,
            weights,
            training.epochs,
            training.batch_size,
            np.float32(training.learning_rate),
            key,
            t,
            training.hidden,
        )
        return trained


def assign(
    table: Table, train: NDArray[np.int64], partition: Partition, clients: int, streams: Streams
) -> tuple[Assignment, tuple[str, ...]]:
    """The client of each training row, and the clients' names."""
    if partition.kind == "column":
        if table.client is None:
            raise InputError(f"partition must name a column of '{table.name}', got '{partition}'")
        return table.client[train], table.client_names
    check(
        clients <= len(train),
        f"clients must be <= the {len(train)} training rows of '{table.name}'",
        clients,
    )
    names = tuple(f"client {number + 1}" for number in range(clients))
    if partition.sigma is None:
        return random(len(train), clients), names
    source = streams.partition()
    cell = table.cell[train]
    return dirichlet(cell, clients, partition.sigma, source, groups=table.groups), names


def _split(table: Table, streams: Streams) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training, validation and test: as the files say, or by the seed."""
    if table.part is not None:
        train = np.flatnonzero(table.part == TRAINING)
        validation, test = held_out(table, streams)
    else:
        check(len(table) >= 5, f"data must have at least 5 rows in '{table.name}'", len(table))
        train, validation, test = streams.split(len(table))
    for name, part in (("training", train), ("validation", validation), ("test", test)):
        check(len(part) > 0, f"data must leave a {name} row in '{table.name}'", f"{len(table)} rows in all")
    return train, validation, test


def held_out(table: Table, streams: Streams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The server's rows: its two files, or two halves of the one it has."""
    validation, test = np.flatnonzero(table.part == VALIDATION), np.flatnonzero(table.part == TEST)
    if len(test):
        return validation, test
    first, second = streams.halves(len(validation))
    return validation[first], validation[second]


def build(table: Table, partition: Partition, clients: int, streams: Streams) -> Federation:
    """Split, encode and partition a table."""
    train, validation, test = _split(table, streams)
    assignment, names = assign(table, train, partition, clients, streams)
    if table.encoder is not None:
        encoder = table.encoder
    elif streams.published:
        scale = table.source is None or SOURCES[table.source].scaled_in_published_runs
        encoder = Encoder.fit(table.features, scale=scale)
    else:
        encoder = Encoder.fit(table.features[train])
    order = train[np.argsort(assignment, kind="stable")]
    cells = 2 * table.groups
    client_cells = np.bincount(assignment * cells + table.cell[train], minlength=len(names) * cells).reshape(
        len(names), table.groups, 2
    )

    return Federation(
        x=encoder.transform(table.features[order]).ravel(),
        y=table.label[order].astype(np.float32),
        cell=table.cell[order].astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(client_cells.sum(axis=(1, 2)))]).astype(np.int64),
        client_cells=client_cells.astype(np.int64),
        client_names=names,
        validation=Rows.of(table, validation, encoder),
        test=Rows.of(table, test, encoder),
        encoder=encoder,
        inputs=table.features.shape[1],
    )
