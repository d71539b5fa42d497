"""Every reply is checked before it counts; a bad one is dropped, with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fairfate.fairness.disclosure import is_small, loss_of_mean
from fairfate.fairness.metrics import Statistics
from fairfate.flower.logs import one_line
from fairfate.flower.records import Layout, MismatchError
from fairfate.sums import norm

BROADCAST, LOCAL = "broadcast", "local-"
"""In a client's config, what it is told; in its metrics, how the model it was sent does on its own rows."""
LEARNING_RATE = "strategy-learning-rate"
"""In a client's config: that of the clients, as the strategy knows it."""
MOST_LOSS = 1000.0
"""Cross-entropy of a row: that of a model which is surer than any that is of use."""
MOST_EXAMPLES = 2**53
"""Whole numbers up to here can be added."""


@dataclass(frozen=True)
class Limits:
    """What a reply may claim."""

    max_norm: float | None = None
    """Largest L2 norm of an update, whole-number arrays aside; a longer one is dropped. None stands for a
    limit that each round's replies set themselves (`automatic_limit`), infinity for none."""
    max_examples: float | None = None
    """Most examples that a client may count for; a larger number is cut to this."""
    max_weight: float | None = None
    """Largest weight of a model; the server's and the clients' are cut to it. A client's model with a weight
    of more than twice that is dropped: honest training of a model at the limit may pass it."""
    min_cell: int = 0
    """Clients tell of no stratum or bin of fewer rows, but may of none."""
    max_told: float | None = None
    """Largest number that clients are told beside the model; others are cut to it."""


def automatic_limit(norms: Sequence[float], model: float) -> float:
    """The longest update that a round takes, from its updates' norms and that of the model.

    With three replies or more, 50 times their (lower) median, which one liar cannot move, or 10 times the
    model's norm if that is more; with fewer, 100 times the model's. Honest updates were at most 13 times the
    median and 6 times the model, on all datasets and splits.

    >>> automatic_limit([1.0, 2.0, 1e20], 3.0), automatic_limit([1e20], 3.0)
    (100.0, 300.0)
    """
    model = max(1.0, model)
    if len(norms) < 3:
        return 100 * model
    return max(50 * sorted(norms)[(len(norms) - 1) // 2], 10 * model)


@dataclass(frozen=True)
class Dropped:
    """A client that was asked and does not count in this round."""

    node: int
    reason: str


@dataclass(eq=False)
class Replies:
    """The good replies of a round, in the order of the nodes that were asked, and the others."""

    nodes: list[int]
    records: list[ArrayRecord]
    metrics: list[MetricRecord]
    deltas: NDArray[Any]
    """(clients, parameters)"""
    num_examples: NDArray[np.float64]
    capped: set[int]
    """Nodes that claimed more examples than they may count for."""
    dropped: list[Dropped]

    def drop(self, number: int, reason: str) -> None:
        """Take back a reply that turned out to be of no use."""
        self.dropped.append(Dropped(self.nodes.pop(number), reason))
        del self.records[number], self.metrics[number]
        for place in range(number, len(self.deltas) - 1):  # row by row: a copy would be all updates again
            self.deltas[place] = self.deltas[place + 1]
        self.deltas = self.deltas[:-1]
        self.num_examples = np.delete(self.num_examples, number)


class TooFewRepliesError(RuntimeError):
    """A round in which too few replies count."""

    def __init__(self, good: Replies, name: Callable[[int], str], wanted: int) -> None:
        missing = "; ".join(f"{name(gone.node)}: {gone.reason}" for gone in good.dropped)
        super().__init__(f"{len(good.nodes)} replies count, {wanted} must ({missing})")


def read_replies(
    asked: Mapping[str, int],
    messages: Sequence[Message],
    layout: Layout,
    model: NDArray[Any],
    limits: Limits,
    weight_key: str,
    late: str,
    buffer: NDArray[Any],
    row_range: Callable[[int], tuple[int, float]] = lambda node: (0, math.inf),
) -> Replies:
    """Sort a round's replies into good ones and others.

    Parameters
    ----------
    asked : the node behind each message sent, by the message's id, in the order in which they count
    messages : the replies, in any order
    layout, model : the model that was sent
    limits : what a reply may claim
    weight_key : metric that holds the number of examples
    late : what to say of a node that did not reply
    buffer : (nodes asked, parameters) memory for the updates
    row_range : how many examples a node may claim, at least and at most
    """
    by_node: dict[int, Message] = {}
    dropped: list[Dropped] = []
    for message in messages:
        node = asked.get(message.metadata.reply_to_message_id)
        if node is None:
            dropped.append(Dropped(message.metadata.src_node_id, "reply to nothing that was asked"))
        elif node in by_node:
            dropped.append(Dropped(node, "more than one reply"))
        else:
            by_node[node] = message
    counts: list[float] = []
    norms: list[float] = []
    good = Replies([], [], [], buffer[:0], np.empty(0), set(), dropped)
    for node in asked.values():
        if node not in by_node:
            dropped.append(Dropped(node, late))
            continue
        try:
            record, metrics, count, length = _read(
                by_node[node], layout, model, limits, weight_key, buffer[len(counts)]
            )
            low, high = row_range(node)
            if not low <= count <= high:
                raise MismatchError(f"{count:g} examples, where it may have {low} to {high:g}")
        except MismatchError as error:
            dropped.append(Dropped(node, one_line(error)))
            continue
        if limits.max_examples is not None and count > limits.max_examples:
            good.capped.add(node)
            count = limits.max_examples
        good.nodes.append(node)
        good.records.append(record)
        good.metrics.append(metrics)
        counts.append(count)
        norms.append(length)
    good.deltas, good.num_examples = buffer[: len(counts)], np.array(counts, dtype=np.float64)
    if limits.max_norm is None:
        longest = automatic_limit(norms, norm(model[: layout.measured]))
        for position in reversed(range(len(norms))):
            if norms[position] > longest:
                good.drop(position, f"an update of norm {norms[position]:.4g}, far over the round's others'")
    return good


def example_count(metrics: MetricRecord, key: str) -> float:
    """How many examples a client claims; MismatchError if that makes no sense."""
    count = metrics.get(key)
    if not isinstance(count, int | float) or not 0 < count < MOST_EXAMPLES:
        raise MismatchError(f"'{key}' is {one_line(count, 40)} instead of a number > 0 and < 2**53")
    return float(count)


def report_metrics(local: Statistics) -> dict[str, list[int] | list[float]]:
    """How a model does on a client's own rows, as metrics of its reply."""
    return {
        f"{LOCAL}counts": [int(value) for value in local.counts.ravel()],
        f"{LOCAL}probability": [float(value) for value in local.probability.ravel()],
        f"{LOCAL}loss": [float(value) for value in local.loss.ravel()],
    }


def read_report(metrics: MetricRecord, groups: int, examples: float, min_cell: int = 0) -> Statistics:
    """The inverse of `report_metrics`; MismatchError if it makes no sense.

    With a minimum cell count, losses are those of a stratum's mean probability, which say nothing new.
    """
    found = []
    for name, size in (("counts", 4 * groups), ("probability", 2 * groups), ("loss", 2 * groups)):
        given = metrics.get(f"{LOCAL}{name}")
        values = np.array(given if isinstance(given, list) else [], dtype=np.float64)
        if values.shape != (size,) or not np.isfinite(values).all() or (values < 0).any():
            raise MismatchError(f"'{LOCAL}{name}' is not {size} numbers >= 0")
        found.append(values)
    whole = found[0] == np.floor(found[0])
    # Before they are integers, whose sum could wrap around
    if not whole.all() or (found[0] > examples).any() or found[0].sum() != examples or examples < 1:
        raise MismatchError(f"'{LOCAL}counts' are not its {examples:g} rows")
    counts = found[0].astype(np.int64).reshape(groups, 2, 2)
    probability, loss = found[1].reshape(groups, 2), found[2].reshape(groups, 2)
    if (probability > counts.sum(axis=-1) + 1e-6).any():
        raise MismatchError(f"'{LOCAL}probability' is more than its rows")
    check_cells(counts, min_cell, f"{LOCAL}counts")
    rows = counts.sum(axis=-1)
    if min_cell > 1 and not np.allclose(loss, loss_of_mean(probability, rows), rtol=1e-6, atol=1e-6):
        raise MismatchError(f"'{LOCAL}loss' is not that of its '{LOCAL}probability'")
    if (loss > MOST_LOSS * rows + 1e-6).any():
        raise MismatchError(f"'{LOCAL}loss' is more than {MOST_LOSS:.4g} a row")
    return Statistics(counts, probability, loss)


def check_cells(counts: NDArray[np.int64], min_cell: int, name: str) -> None:
    """MismatchError if any count is smaller than an honest client tells."""
    if is_small(counts, min_cell).any():
        raise MismatchError(f"'{name}' has a count below the minimum cell count, {min_cell}")


def _read(
    message: Message,
    layout: Layout,
    model: NDArray[Any],
    limits: Limits,
    weight_key: str,
    delta: NDArray[Any],
) -> tuple[ArrayRecord, MetricRecord, float, float]:
    """One reply, how many examples it claims and the norm of its update, which is written to ``delta``."""
    if message.has_error():
        raise MismatchError(f"error {message.error.code}: {message.error.reason}")
    if not message.has_content():
        raise MismatchError("an empty reply")
    records = list(message.content.values())  # its views by kind are cycles, which would keep the arrays
    arrays = [record for record in records if isinstance(record, ArrayRecord)]
    metrics = [record for record in records if isinstance(record, MetricRecord)]
    if len(arrays) != 1 or len(metrics) != 1:
        raise MismatchError(
            f"{len(arrays)} ArrayRecords and {len(metrics)} MetricRecords instead of one of each"
        )
    count = example_count(metrics[0], weight_key)
    with np.errstate(over="ignore", invalid="ignore"):
        layout.read(arrays[0], delta, minus=model)
        if not np.isfinite(delta).all():
            raise MismatchError("an update with NaN or infinity")
        largest = 0.0 if limits.max_weight is None else float(np.abs(model + delta).max(initial=0.0))
    if limits.max_weight is not None and largest > 2 * limits.max_weight:
        raise MismatchError(
            f"a weight of {largest:.4g}, over twice the limit of {limits.max_weight:g} (max-weight)"
        )
    record = layout.tidy(arrays[0])
    if limits.max_weight is not None and largest > limits.max_weight:  # sites would not score it
        whole = np.clip(model + delta, -limits.max_weight, limits.max_weight)
        record, delta[:] = layout.record(whole), whole - model
    length = norm(delta[: layout.measured])
    if limits.max_norm is not None and length > limits.max_norm:
        raise MismatchError(f"an update of norm {length:.4g}, over the limit of {limits.max_norm:g}")
    return record, metrics[0], count, length
