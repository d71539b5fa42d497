"""What else can be wrong with a reply, once it has been read; what is wrong is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Statistics, Values
from fairfate.flower.logs import log, one_line
from fairfate.flower.nodes import Client
from fairfate.flower.records import Layout, MismatchError, blame
from fairfate.flower.replies import Replies, example_count, read_report
from fairfate.flower.validation import Measure
from fairfate.strategies.strategy import Matrix

MUCH_SHORTER = 0.1
"""Of an update's length, that is worth a warning."""


def rows_told(clients: Sequence[Client], max_examples: float | None) -> NDArray[np.int64]:
    """(clients, groups, 2) the rows that clients have told of; no more than they may count for."""
    rows = np.stack([client.rows for client in clients if client.rows is not None])
    totals = rows.sum(axis=(1, 2), keepdims=True)
    most = np.inf if max_examples is None else max_examples
    return np.asarray(np.rint(rows * np.minimum(1, most / totals)).astype(np.int64))


def check_rows(good: Replies, known: Mapping[int, Client], max_examples: float | None) -> None:
    """Drop clients that train on other rows than they told, by which everybody's losses are weighed."""
    for position in reversed(range(len(good.nodes))):
        rows, claimed = known[good.nodes[position]].rows, good.num_examples[position]
        told = min(0 if rows is None else int(rows.sum()), max_examples or math.inf)
        if claimed != told:
            good.drop(position, f"{claimed:g} examples where it had told of {told:g} rows")


def read_reports(good: Replies, groups: int, weight_key: str, min_cell: int = 0) -> Statistics | None:
    """What the clients tell of the model on their own rows; those who tell nonsense are dropped.

    It is of all rows that they claim, also where they count for fewer.
    """
    found: list[Statistics] = []
    for metrics in list(good.metrics):
        position = len(found)
        try:
            found.append(read_report(metrics, groups, example_count(metrics, weight_key), min_cell))
        except MismatchError as error:
            good.drop(position, one_line(error))
    return Statistics(*(np.stack(values) for values in zip(*found, strict=True))) if found else None


def scale_updates(
    good: Replies, scale: Callable[[Matrix], Values] | None, layout: Layout, model: NDArray[Any]
) -> None:
    """Scale updates down where the strategy says so; the changed models are those that are scored.

    Whole-number arrays neither count nor change.
    """
    if scale is None or not len(good.nodes):
        return
    factors = scale(good.deltas[:, : layout.measured])
    if (factors < MUCH_SHORTER).any():
        log(
            WARNING,
            "\t> updates were shortened, to %.2g of their length: is one of the others tiny?",
            factors.min(),
        )
    for place in np.flatnonzero(factors != 1):
        delta = good.deltas[place]
        delta[: layout.measured] *= delta.dtype.type(factors[place])
        good.records[place] = layout.record(model + delta)


def score(good: Replies, validation: Measure) -> Counts:
    """(clients, groups, 2, 2) the clients' models on the validation rows; unusable ones are dropped."""
    found: list[Counts] = []
    for record in list(good.records):
        try:
            found.append(validation.counts(record))
        except Exception as error:  # it has worked with the first model: this one is to blame
            good.drop(len(found), blame(error))
    return np.array(found, dtype=np.int64).reshape(len(found), len(validation.grouping), 2, 2)
