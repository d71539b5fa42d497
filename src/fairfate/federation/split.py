"""A table split, encoded and given to clients: all that a run of one seed reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import SOURCES, TEST, TRAINING, VALIDATION, Encoder, Table
from fairfate.errors import InputError, check
from fairfate.fairness.disclosure import large_strata
from fairfate.fairness.metrics import CellRows
from fairfate.federation.holders import AT_SERVER, Holders
from fairfate.federation.partition import Assignment, Partition, dirichlet, random
from fairfate.federation.people import People
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
    people: People | None = None
    """The server's validation rows once more, to see how models treat single people."""
    min_cell: int = 0
    """The least count that clients tell the server; smaller strata of theirs are excluded already."""

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
            x=encoder.transform(table.features, kept).ravel(),
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
    return PackedRows.pack(encoder.transform(table.features, rows), table.cell[rows], table.groups)


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
        train, validation, test = streams.split(len(table), by, same_test=table.is_own)
    for name, part in (("training", train), ("validation", validation), ("test", test)):
        check(len(part) > 0, f"data must leave a {name} row in '{table.name}'", f"{len(table)} rows in all")
    return train, validation, test


def held_out(table: Table, streams: Streams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The server's rows: its two files, or two halves of the one it has."""
    validation, test = np.flatnonzero(table.part == VALIDATION), np.flatnonzero(table.part == TEST)
    if len(test):
        return validation, test
    by = table.cell[validation] if table.stratified else None
    first, second = streams.halves(len(validation), by, same_test=table.is_own)
    return validation[first], validation[second]


NO_ROWS = np.zeros(0, dtype=np.int64)


class Holdings(NamedTuple):
    """Who holds which rows of a table, by their numbers."""

    train: NDArray[np.int64]
    client: Assignment
    """(training rows,) who holds each."""
    names: tuple[str, ...]
    """Of the clients."""
    validation: NDArray[np.int64]
    """The server's, or all that clients hold out."""
    test: NDArray[np.int64]
    held: tuple[NDArray[np.int64], ...] = ()
    """What each client holds out, where the server has no validation rows."""
    excluded: NDArray[np.int64] = NO_ROWS
    """(clients,) rows of each that are in none of these, since their stratum has too few."""

    def client_cells(self, table: Table) -> CellRows:
        """(clients, groups, 2) training rows of each client by group and label."""
        cells = 2 * table.groups
        found = np.bincount(self.client * cells + table.cell[self.train], minlength=len(self.names) * cells)
        return found.reshape(len(self.names), table.groups, 2).astype(np.int64)


def share_out(
    table: Table,
    partition: Partition,
    clients: int,
    streams: Streams,
    holders: Holders = AT_SERVER,
    min_cell: int = 0,
) -> Holdings:
    """Split a table, and give its training rows to clients; small strata of theirs are excluded."""
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
    client, names = assign(table, train, partition, clients, streams)
    holdings = Holdings(train, client, names, validation, test)
    if holders.at_clients:
        holdings = _hold_out(table, holdings, holders.share, streams)
    return _exclude_small(table, holdings, min_cell) if min_cell > 1 else holdings


def _hold_out(table: Table, of: Holdings, share: float, streams: Streams) -> Holdings:
    """The same where each client takes validation rows out of those for training."""
    held: list[NDArray[np.int64]] = []
    kept = np.ones(len(of.train), dtype=bool)
    for client in range(len(of.names)):
        mine = np.flatnonzero(of.client == client)
        out = mine[streams.held(client, table.cell[of.train[mine]], share)]
        held.append(of.train[out])
        kept[out] = False
    train, validation = of.train[kept], np.concatenate(held)
    check(len(validation) > 0, "validation-from clients must leave a row held out", f"{len(train)} rows")
    return of._replace(train=train, client=of.client[kept], validation=validation, held=tuple(held))


def _exclude_small(table: Table, of: Holdings, min_cell: int) -> Holdings:
    """The same without rows of strata of which a client trains on, or holds out, fewer than ``min_cell``."""
    strata, clients = 2 * table.groups, len(of.names)
    kept = large_strata(of.client * strata + table.cell[of.train], min_cell, clients * strata)
    excluded = np.bincount(of.client[~kept], minlength=clients)
    check(bool(kept.any()), f"min-cell must leave a client training rows of '{table.name}'", min_cell)
    of = of._replace(train=of.train[kept], client=of.client[kept])
    if of.held:
        held = tuple(rows[large_strata(table.cell[rows], min_cell, strata)] for rows in of.held)
        excluded += [len(before) - len(rows) for before, rows in zip(of.held, held, strict=True)]
        of = of._replace(held=held, validation=np.concatenate(held))
        left = len(of.validation) > 0
        check(left, f"min-cell must leave a client rows held out of '{table.name}'", min_cell)
    return of._replace(excluded=excluded)


def build(
    table: Table,
    partition: Partition,
    clients: int,
    streams: Streams,
    holders: Holders = AT_SERVER,
    min_cell: int = 0,
) -> Federation:
    """Split, encode and partition a table."""
    holdings = share_out(table, partition, clients, streams, holders, min_cell)
    return encode(table, holdings, streams, holders, min_cell)


def fit_encoder(table: Table, train: NDArray[np.int64], streams: Streams) -> Encoder:
    """How columns become inputs: agreed on beforehand, or learned from the training rows."""
    if table.encoder is not None:
        return table.encoder
    if streams.published:
        scale = table.source is None or SOURCES[table.source].scaled_in_published_runs
        return table.fit_encoder(scale=scale)
    return table.fit_encoder(train)


def encode(
    table: Table, of: Holdings, streams: Streams, holders: Holders = AT_SERVER, min_cell: int = 0
) -> Federation:
    """Encode what everybody holds."""
    encoder = fit_encoder(table, of.train, streams)
    order = of.train[np.argsort(of.client, kind="stable")]
    client_cells = of.client_cells(table)
    rows = ClientRows(
        x=encoder.transform(table.features, order).ravel(),
        cell=table.cell[order].astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(client_cells.sum(axis=(1, 2)))]).astype(np.int64),
    )
    validation = pack(table, of.validation, encoder)
    return Federation(
        rows=rows,
        client_cells=client_cells,
        client_names=of.names,
        validation=validation,
        test=pack(table, of.test, encoder),
        encoder=encoder,
        held=tuple(pack(table, mine, encoder) for mine in of.held),
        holders=holders,
        people=None if holders.at_clients else People(table, of.validation, validation, encoder),
        min_cell=min_cell,
    )
