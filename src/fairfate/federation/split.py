"""A table split, encoded and given to clients: all that a run of one seed reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fairfate.data import SOURCES, TEST, TRAINING, VALIDATION, Encoder, Table
from fairfate.errors import InputError, check
from fairfate.federation.holders import AT_SERVER, Holders
from fairfate.federation.partition import Assignment, Partition, dirichlet, random
from fairfate.federation.streams import Streams
from fairfate.models.rows import ClientRows, PackedRows


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what, ready for the kernels."""

    rows: ClientRows
    """The training rows of all clients."""
    client_cells: NDArray[np.int64]
    """(clients, groups, 2) training rows of each client by group and label."""
    client_names: tuple[str, ...]
    validation: PackedRows
    """The server's, or all that clients hold out."""
    test: PackedRows
    encoder: Encoder
    held: tuple[PackedRows, ...] = ()
    """What each client holds out, where the server has no validation rows."""
    holders: Holders = AT_SERVER

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.encoder.inputs

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.client_names)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.client_cells.shape[1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) training rows of each client."""
        return self.rows.sizes

    @cached_property
    def local(self) -> dict[int, PackedRows]:
        """The rows of those clients that have some, to score models on."""
        return {k: self.rows.packed(k, self.groups) for k in range(self.clients) if self.sizes[k]}

    @classmethod
    def site(
        cls, table: Table, encoder: Encoder, number: int, held: NDArray[np.bool_] | None = None
    ) -> Federation:
        """One client alone, under the number it has among the others, without the rows that it holds out."""
        kept = np.arange(len(table)) if held is None else np.flatnonzero(~held)
        nothing = pack(table, np.arange(0), encoder)
        cells = np.bincount(table.cell[kept], minlength=2 * table.groups).reshape(table.groups, 2)
        before = np.zeros((number, table.groups, 2), dtype=np.int64)
        rows = ClientRows(
            x=encoder.transform(table.features[kept]).ravel(),
            cell=table.cell[kept].astype(np.int32),
            offsets=np.array([0] * (number + 1) + [len(kept)], dtype=np.int64),
        )
        return cls(
            rows=rows,
            client_cells=np.concatenate([before, cells[None]]),
            client_names=("",) * number + (table.name,),
            validation=nothing,
            test=nothing,
            encoder=encoder,
        )


def pack(table: Table, rows: NDArray[np.int64], encoder: Encoder) -> PackedRows:
    """Some rows of a table, to score models on."""
    return PackedRows.pack(encoder.transform(table.features[rows]), table.cell[rows], table.groups)


def assign(
    table: Table, train: NDArray[np.int64], partition: Partition, clients: int, streams: Streams
) -> tuple[Assignment, tuple[str, ...]]:
    """The client of each training row, and the clients' names."""
    if partition.kind == "column":
        if table.client is None:
            raise InputError(f"partition must name a column of '{table.name}', got '{partition}'")
        return table.client[train], table.client_names
    names = tuple(f"client {number + 1}" for number in range(clients))
    if partition.sigma is None:
        return random(len(train), clients), names
    source = streams.partition()
    cell = table.cell[train]
    return dirichlet(cell, clients, partition.sigma, source, groups=table.groups), names


def split_rows(
    table: Table, streams: Streams
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training, validation and test: as the files say, or by the seed."""
    if table.part is not None:
        train = np.flatnonzero(table.part == TRAINING)
        validation, test = held_out(table, streams)
    else:
        check(len(table) >= 5, f"data must have at least 5 rows in '{table.name}'", len(table))
        by = table.cell if table.stratified else None
        train, validation, test = streams.split(len(table), by)
    for name, part in (("training", train), ("validation", validation), ("test", test)):
        check(len(part) > 0, f"data must leave a {name} row in '{table.name}'", f"{len(table)} rows in all")
    return train, validation, test


def held_out(table: Table, streams: Streams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The server's rows: its two files, or two halves of the one it has."""
    validation, test = np.flatnonzero(table.part == VALIDATION), np.flatnonzero(table.part == TEST)
    if len(test):
        return validation, test
    first, second = streams.halves(len(validation), table.cell[validation] if table.stratified else None)
    return validation[first], validation[second]


def build(
    table: Table, partition: Partition, clients: int, streams: Streams, holders: Holders = AT_SERVER
) -> Federation:
    """Split, encode and partition a table."""
    train, validation, test = split_rows(table, streams)
    if holders.at_clients:
        train = np.concatenate([train, validation]) if table.part is None else train
        validation = validation[:0]
    elif holders.rows is not None:
        validation = streams.few(validation, holders.rows)
    check(
        partition.kind == "column" or clients <= len(train),
        f"clients must be <= the {len(train)} training rows of '{table.name}'",
        clients,
    )
    return arrange(table, (train, validation, test), partition, clients, streams, holders)


def arrange(
    table: Table,
    parts: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    partition: Partition,
    clients: int,
    streams: Streams,
    holders: Holders = AT_SERVER,
) -> Federation:
    """Encode and partition a table whose rows for training, validation and test are known.

    Where clients hold the validation rows, they take them out of those for training.
    """
    train, validation, test = parts
    assignment, names = assign(table, train, partition, clients, streams)
    held: list[NDArray[np.int64]] = []
    if holders.at_clients:
        kept = np.ones(len(train), dtype=bool)
        for client in range(len(names)):
            mine = np.flatnonzero(assignment == client)
            out = mine[streams.held(client, table.cell[train[mine]], holders.share)]
            held.append(train[out])
            kept[out] = False
        train, assignment, validation = train[kept], assignment[kept], np.concatenate(held)
        check(len(validation) > 0, "validation-from clients must leave a row held out", f"{len(train)} rows")
    if table.encoder is not None:
        encoder = table.encoder
    elif streams.published:
        scale = table.source is None or SOURCES[table.source].scaled_in_published_runs
        encoder = table.fit_encoder(scale=scale)
    else:
        encoder = table.fit_encoder(train)
    order = train[np.argsort(assignment, kind="stable")]
    cells = 2 * table.groups
    client_cells = np.bincount(assignment * cells + table.cell[train], minlength=len(names) * cells).reshape(
        len(names), table.groups, 2
    )

    rows = ClientRows(
        x=encoder.transform(table.features[order]).ravel(),
        cell=table.cell[order].astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(client_cells.sum(axis=(1, 2)))]).astype(np.int64),
    )
    return Federation(
        rows=rows,
        client_cells=client_cells.astype(np.int64),
        client_names=names,
        validation=pack(table, validation, encoder),
        test=pack(table, test, encoder),
        encoder=encoder,
        held=tuple(pack(table, mine, encoder) for mine in held),
        holders=holders,
    )
