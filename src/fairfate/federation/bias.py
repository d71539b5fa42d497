"""Whom each client is biased against, in the partitions of biased clients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.errors import check, listing
from fairfate.federation.partition import ATTRIBUTE_BIASED, Partition
from fairfate.federation.seeds import Streams


class BiasTarget(NamedTuple):
    """Whom a client can be biased against."""

    name: str
    groups: NDArray[np.bool_]
    """(groups,) which of the table's groups are meant."""


def check_biased(table: Table, partition: Partition, clients: int) -> None:
    """InputError where a table cannot be dealt out to biased clients."""
    kind = partition.kind
    check(clients >= 2, f"clients must be >= 2 with partition {kind}", clients)
    check(
        table.groups >= 2, f"partition {kind} must have groups in '{table.name}'", listing(table.group_names)
    )
    check(
        kind != ATTRIBUTE_BIASED or len(table.sensitive) >= 2,
        f"partition {kind} must have two or more sensitive columns in '{table.name}'",
        listing(table.sensitive),
    )


def bias_targets(table: Table, train: NDArray[np.int64], kind: str) -> list[BiasTarget]:
    """The groups that clients can be biased against or, of each attribute, the value favoured least.

    Those with training rows of both labels count, and neither merged small groups nor missing values.
    """
    grouping = table.grouping
    counts = np.bincount(table.cell[train], minlength=2 * table.groups).reshape(table.groups, 2)
    by_attribute = kind == ATTRIBUTE_BIASED
    targets = []
    for attributes in [(name,) for name in table.sensitive] if by_attribute else [table.sensitive]:
        index = grouping.index_of(attributes)
        combinations = np.zeros((int(index.max()) + 1, 2), dtype=np.int64)
        np.add.at(combinations, index, counts)
        usable = np.flatnonzero(grouping.compared(attributes) & (combinations.min(axis=1) > 0))
        if by_attribute and len(usable):
            rates = combinations[usable, 1] / combinations[usable].sum(axis=1)
            usable = usable[[int(np.argmin(rates))]]
        for number in usable:
            value = ", ".join(grouping.categories(attributes)[number])
            name = f"{attributes[0]} = {value}" if by_attribute else value
            targets.append(BiasTarget(name, index == number))
    return targets


def draw_targets(
    table: Table, train: NDArray[np.int64], partition: Partition, clients: int, streams: Streams
) -> list[BiasTarget]:
    """Whom each client is biased against, by the seed."""
    check_biased(table, partition, clients)
    targets = bias_targets(table, train, partition.kind)
    what = "sensitive columns" if partition.kind == ATTRIBUTE_BIASED else "groups"
    rule = f"partition {partition.kind} must have two or more {what} with training rows of both labels"
    names = listing(target.name for target in targets) or "none"
    check(len(targets) >= 2, f"{rule} in '{table.name}'", names)
    return [targets[number] for number in streams.against(len(targets), clients)]
