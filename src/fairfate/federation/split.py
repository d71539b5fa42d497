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
from fairfate.federation.bias import draw_targets
from fairfate.federation.individual import IndividualRows
from fairfate.federation.partition import Partition, biased, dirichlet, random
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import AT_SERVER, ValidationSource
from fairfate.models.rows import ClientRows, PackedRows


@dataclass(frozen=True, eq=False)
class Federation:
    """The rows of every client and of the server, encoded for the kernels."""

    rows: ClientRows
    """The training rows of all clients."""
    client_cells: NDArray[np.int64]
    """(clients, groups, 2) training rows of each client by group and label."""
    client_names: tuple[str, ...]
    validation: PackedRows
    """The server's, or all that clients hold out."""
    test: PackedRows
    encoder: Encoder
    held_out: tuple[PackedRows, ...] = ()
    """What each client holds out, where the server has no validation rows."""
    validation_source: ValidationSource = AT_SERVER
    individual: IndividualRows | None = None
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

    @cached_property
    def all_local(self) -> PackedRows:
        """The rows of all clients together."""
        x = self.rows.x.reshape(len(self.rows), self.inputs)
        return PackedRows.pack(x, self.rows.cell.astype(np.int64), self.groups)

    def guessing(self, group: int) -> Federation:
        """The same training rows where the label is whether a row is in a group, and the group its label."""
        outcome, own_group = self.rows.cell & 1, self.rows.cell >> 1
        cell = (2 * outcome + (own_group == group)).astype(np.int32)
        inside = self.client_cells[:, group]  # (clients, 2) by the old label
        return self._relabelled(cell, np.stack([self.client_cells.sum(axis=1) - inside, inside], axis=-1))

    def deciding(self, decided: NDArray[np.bool_]) -> Federation:
        """The same training rows where the label is what a rule has decided about each."""
        cell = ((self.rows.cell & ~1) + decided).astype(np.int32)
        client = np.repeat(np.arange(self.clients), self.sizes)
        strata = self.clients * self.groups * 2
        cells = np.bincount(client * self.groups * 2 + cell, minlength=strata)
        return self._relabelled(cell, cells.reshape(self.client_cells.shape))

    def _relabelled(self, cell: NDArray[np.int32], cells: NDArray[np.int64]) -> Federation:
        """The same training rows with other labels, and no others."""
        no_rows = PackedRows.pack(np.zeros((0, self.inputs), dtype=np.float32), NO_ROWS, cells.shape[1])
        return Federation(
            rows=ClientRows(self.rows.x, cell, self.rows.offsets),
            client_cells=cells,
            client_names=self.client_names,
            validation=no_rows,
            test=no_rows,
            encoder=self.encoder,
        )

    @classmethod
    def site(
        cls, table: Table, encoder: Encoder, number: int, held_out: NDArray[np.bool_] | None = None
    ) -> Federation:
        """One client alone, under the number it has among the others, without the rows that it holds out."""
        kept = np.arange(len(table)) if held_out is None else np.flatnonzero(~held_out)
        no_rows = pack(table, np.arange(0), encoder)
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
            validation=no_rows,
            test=no_rows,
            encoder=encoder,
        )


def pack(table: Table, rows: NDArray[np.int64], encoder: Encoder) -> PackedRows:
    """Some rows of a table, to score models on."""
    return PackedRows.pack(encoder.transform(table.features, rows), table.cell[rows], table.groups)


def assign(
    table: Table, train: NDArray[np.int64], partition: Partition, clients: int, streams: Streams
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The client of each training row, and the clients' names."""
    if partition.kind == "column":
        if table.client is None:
            raise InputError(f"partition must name a column of '{table.name}', got '{partition}'")
        return table.client[train], table.client_names
    names = tuple(f"client {number + 1}" for number in range(clients))
    cell = table.cell[train]
    if partition.strength is not None:
        chosen = draw_targets(table, train, partition, clients, streams)
        against = np.stack([target.groups for target in chosen])
        names = tuple(f"{name} (against {target.name})" for name, target in zip(names, chosen, strict=True))
        return biased(cell, against, partition.strength), names
    if partition.sigma is None:
        return random(len(train), clients), names
    return dirichlet(cell, clients, partition.sigma, streams.partition(), groups=table.groups), names


def split_rows(
    table: Table, streams: Streams
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training, validation and test: as the files say, or by the seed."""
    if table.part is not None:
        train = np.flatnonzero(table.part == TRAINING)
        validation, test = held_out(table, streams)
    else:
        check(len(table) >= 5, f"data must have at least 5 rows in '{table.name}'", len(table))
        strata = table.cell if table.stratified else None
        train, validation, test = streams.split(len(table), strata, same_test=table.is_own)
    for name, part in (("training", train), ("validation", validation), ("test", test)):
        check(len(part) > 0, f"data must leave a {name} row in '{table.name}'", f"{len(table)} rows in all")
    return train, validation, test


def held_out(table: Table, streams: Streams) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The server's rows: its two files, or two halves of the one it has."""
    validation, test = np.flatnonzero(table.part == VALIDATION), np.flatnonzero(table.part == TEST)
    if len(test):
        return validation, test
    strata = table.cell[validation] if table.stratified else None
    first, second = streams.halves(len(validation), strata, same_test=table.is_own)
    return validation[first], validation[second]


NO_ROWS = np.zeros(0, dtype=np.int64)


class RowAssignment(NamedTuple):
    """Which rows of a table each client and the server have, by their numbers."""

    train: NDArray[np.int64]
    client: NDArray[np.int64]
    """(training rows,) the client of each."""
    names: tuple[str, ...]
    """Of the clients."""
    validation: NDArray[np.int64]
    """The server's, or all that clients hold out."""
    test: NDArray[np.int64]
    held_out: tuple[NDArray[np.int64], ...] = ()
    """What each client holds out, where the server has no validation rows."""
    excluded: NDArray[np.int64] = NO_ROWS
    """(clients,) rows of each that are in none of these, since their stratum has too few."""

    def client_cells(self, table: Table) -> CellRows:
        """(clients, groups, 2) training rows of each client by group and label."""
        strata = 2 * table.groups
        stratum = self.client * strata + table.cell[self.train]
        rows = np.bincount(stratum, minlength=len(self.names) * strata)
        return rows.reshape(len(self.names), table.groups, 2).astype(np.int64)


def assign_rows(
    table: Table,
    partition: Partition,
    clients: int,
    streams: Streams,
    validation_source: ValidationSource = AT_SERVER,
    min_cell: int = 0,
) -> RowAssignment:
    """Split a table, and give its training rows to clients; small strata of theirs are excluded."""
    train, validation, test = split_rows(table, streams)
    if validation_source.at_clients:
        train = np.concatenate([train, validation]) if table.part is None else train
        validation = validation[:0]
    elif validation_source.rows is not None:
        validation = streams.few(validation, validation_source.rows)
    check(
        partition.kind == "column" or clients <= len(train),
        f"clients must be <= the {len(train)} training rows of '{table.name}'",
        clients,
    )
    client, names = assign(table, train, partition, clients, streams)
    assignment = RowAssignment(train, client, names, validation, test)
    if validation_source.at_clients:
        assignment = _hold_out(table, assignment, validation_source.share, streams)
    return _exclude_small(table, assignment, min_cell) if min_cell > 1 else assignment


def assign_all(
    table: Table,
    partition: Partition,
    clients: int,
    streams: Streams,
    validation: NDArray[np.int64],
    min_cell: int = 0,
) -> RowAssignment:
    """All rows of a table for training, those for validation too; none are left for the test."""
    client, names = assign(table, np.arange(len(table)), partition, clients, streams)
    assignment = RowAssignment(np.arange(len(table)), client, names, validation, NO_ROWS)
    return _exclude_small(table, assignment, min_cell) if min_cell > 1 else assignment


def _hold_out(table: Table, assignment: RowAssignment, share: float, streams: Streams) -> RowAssignment:
    """The same where each client takes validation rows out of those for training."""
    train, client = assignment.train, assignment.client
    held_out: list[NDArray[np.int64]] = []
    kept = np.ones(len(train), dtype=bool)
    for number in range(len(assignment.names)):
        rows = np.flatnonzero(client == number)
        chosen = rows[streams.held_out(number, table.cell[train[rows]], share)]
        held_out.append(train[chosen])
        kept[chosen] = False
    validation = np.concatenate(held_out)
    check(len(validation) > 0, "validation-from clients must leave a row held out", f"{kept.sum()} rows")
    return assignment._replace(
        train=train[kept], client=client[kept], validation=validation, held_out=tuple(held_out)
    )


def _exclude_small(table: Table, assignment: RowAssignment, min_cell: int) -> RowAssignment:
    """The same without rows of strata of which a client trains on, or holds out, fewer than ``min_cell``."""
    train, client, held_out = assignment.train, assignment.client, assignment.held_out
    strata, clients = 2 * table.groups, len(assignment.names)
    kept = large_strata(client * strata + table.cell[train], min_cell, clients * strata)
    excluded = np.bincount(client[~kept], minlength=clients)
    check(bool(kept.any()), f"min-cell must leave a client training rows of '{table.name}'", min_cell)
    assignment = assignment._replace(train=train[kept], client=client[kept])
    if held_out:
        large = tuple(rows[large_strata(table.cell[rows], min_cell, strata)] for rows in held_out)
        excluded += [len(before) - len(rows) for before, rows in zip(held_out, large, strict=True)]
        assignment = assignment._replace(held_out=large, validation=np.concatenate(large))
        is_left = len(assignment.validation) > 0
        check(is_left, f"min-cell must leave a client rows held out of '{table.name}'", min_cell)
    return assignment._replace(excluded=excluded)


def build(
    table: Table,
    partition: Partition,
    clients: int,
    streams: Streams,
    validation_source: ValidationSource = AT_SERVER,
    min_cell: int = 0,
) -> Federation:
    """Split, encode and partition a table."""
    assignment = assign_rows(table, partition, clients, streams, validation_source, min_cell)
    return encode(table, assignment, streams, validation_source, min_cell)


def fit_encoder(table: Table, train: NDArray[np.int64], streams: Streams) -> Encoder:
    """How columns become inputs: agreed on beforehand, or learned from the training rows."""
    if table.encoder is not None:
        return table.encoder
    if streams.published:
        scale = table.source is None or SOURCES[table.source].scaled_in_published_runs
        return table.fit_encoder(scale=scale)
    return table.fit_encoder(train)


def encode(
    table: Table,
    assignment: RowAssignment,
    streams: Streams,
    validation_source: ValidationSource = AT_SERVER,
    min_cell: int = 0,
) -> Federation:
    """Encode the rows of every client and of the server."""
    encoder = fit_encoder(table, assignment.train, streams)
    order = assignment.train[np.argsort(assignment.client, kind="stable")]
    client_cells = assignment.client_cells(table)
    rows = ClientRows(
        x=encoder.transform(table.features, order).ravel(),
        cell=table.cell[order].astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(client_cells.sum(axis=(1, 2)))]).astype(np.int64),
    )
    validation = pack(table, assignment.validation, encoder)
    at_clients = validation_source.at_clients
    return Federation(
        rows=rows,
        client_cells=client_cells,
        client_names=assignment.names,
        validation=validation,
        test=pack(table, assignment.test, encoder),
        encoder=encoder,
        held_out=tuple(pack(table, rows, encoder) for rows in assignment.held_out),
        validation_source=validation_source,
        individual=None if at_clients else IndividualRows(table, assignment.validation, validation, encoder),
        min_cell=min_cell,
    )
