"""Every reply is checked before it counts; a bad one is dropped, with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from fairfate.engine.server import Dropped
from fairfate.errors import check
from fairfate.fairness.disclosure import loss_of_mean
from fairfate.fairness.metrics import Counts, Statistics, Values
from fairfate.flower.logs import log, one_line
from fairfate.flower.messages import MOST_EXAMPLES, Layout, MismatchError, blame
from fairfate.flower.roster import Client, check_cells
from fairfate.flower.validation import Measure
from fairfate.strategies.strategy import Matrix
from fairfate.sums import norm

LOCAL = "local-"
"""In a client's metrics: how the model it was sent does on its own rows."""
MOST_LOSS = 1000.0
"""Cross-entropy of a row: that of a model which is surer than any that is of use."""
MUCH_SHORTER = 0.1
"""Of an update's length, that is worth a warning."""


@dataclass(frozen=True)
class ReplyPolicy:
    """What a reply may claim. A reply that claims more is dropped or cut, as each field says.

    Examples
    --------
    >>> ReplyPolicy(max_norm=5.0, max_examples=10_000).max_norm
    5.0
    """

    max_norm: float | None = None
    """Largest L2 norm of an update, not counting whole-number arrays; a longer one is dropped. None: a limit
    from each round's replies (`automatic_limit`); infinity: no limit."""
    max_examples: float | None = None
    """Most examples that a client counts for; a larger claim is cut to this."""
    max_weight: float | None = None
    """Largest weight of a model; the server's and the clients' are cut to it. A client's model with a weight
    of more than twice that is dropped (honest training from a model at the limit may exceed it)."""
    min_cell: int = 0
    """A client that sends a smaller count, other than 0, is dropped."""
    noise: float = 0.0
    """Of counts and sums under differential privacy: the farthest that they may be from what is true."""
    max_told: float | None = None
    """Largest number that is sent to clients beside the model; others are cut to it."""
    row_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The fewest and most examples that clients of these names may claim; a reply that claims others, or is
    of another client, is dropped. Empty: no such rule."""
    averaged: Sequence[str] = ("running_mean", "running_var", "num_batches_tracked")
    """Last parts of the names of arrays that are averaged by example counts and not changed by the strategy,
    as whole-number arrays always are. The default: a batch norm's running statistics."""
    weighted_by_key: str = "num-examples"
    """The metric that holds a client's number of examples, as in Flower's FedAvg."""

    def __post_init__(self) -> None:
        for name in ("max_norm", "max_examples", "max_weight", "max_told"):
            limit = getattr(self, name)
            check(limit is None or limit > 0, f"{name} must be > 0", limit)
        check(self.min_cell >= 0, "min_cell must be >= 0", self.min_cell)

    def row_range(self, name: str) -> tuple[int, float]:
        """How many examples a client may claim.

        Parameters
        ----------
        name : the client's

        Returns
        -------
        the fewest and the most; a client without a range, where others have one, may claim none

        Examples
        --------
        >>> ReplyPolicy(row_ranges={"east": (90, 110)}).row_range("east")
        (90, 110)
        """
        nobody = (1, 0) if self.row_ranges else (0, math.inf)
        return self.row_ranges.get(name, nobody)

    def most_rows(self, name: str) -> float:
        """How many rows a client may report.

        Parameters
        ----------
        name : the client's

        Returns
        -------
        the most examples that it may claim, and the noise of a count

        Examples
        --------
        >>> ReplyPolicy(row_ranges={"east": (90, 110)}, noise=5.0).most_rows("east")
        115.0
        """
        return self.row_range(name)[1] + self.noise

    def most_counted(self, name: str) -> float:
        """How many rows a client may count.

        Parameters
        ----------
        name : the client's

        Returns
        -------
        no more than it counts for in the mean, and the noise of a count

        Examples
        --------
        >>> ReplyPolicy(row_ranges={"east": (90, 110)}, max_examples=50).most_counted("east")
        50.0
        """
        return min(self.most_rows(name), (self.max_examples or math.inf) + self.noise)

    def most_held(self, name: str, share: float, strata: int) -> float:
        """How many rows a client may hold out beside those that it trains on, rounded up in each stratum.

        Parameters
        ----------
        name : the client's
        share : of its rows that it holds out
        strata : groups times labels

        Returns
        -------
        the most rows

        Examples
        --------
        >>> ReplyPolicy(row_ranges={"east": (90, 100)}).most_held("east", share=0.2, strata=4)
        29.0
        """
        return min(self.most_counted(name), share / (1 - share) * self.most_rows(name) + strata)


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


@dataclass(eq=False)
class Received:
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
    name: Callable[[int], str] = str
    """What to call a node."""

    def drop(self, number: int, reason: str) -> None:
        """Take back a reply that turned out to be of no use."""
        node = self.nodes.pop(number)
        self.dropped.append(Dropped(self.name(node), reason, node))
        del self.records[number], self.metrics[number]
        for position in range(number, len(self.deltas) - 1):  # row by row: a copy would be all updates again
            self.deltas[position] = self.deltas[position + 1]
        self.deltas = self.deltas[:-1]
        self.num_examples = np.delete(self.num_examples, number)


class TooFewRepliesError(RuntimeError):
    """A round in which too few replies count."""

    def __init__(self, good: Received, wanted: int) -> None:
        missing = "; ".join(f"{gone.client}: {gone.reason}" for gone in good.dropped)
        super().__init__(f"{len(good.nodes)} usable replies, {wanted} are needed ({missing})")


def read_replies(
    asked: Mapping[str, int],
    messages: Sequence[Message],
    layout: Layout,
    model: NDArray[Any],
    policy: ReplyPolicy,
    late: str,
    buffer: NDArray[Any],
    name: Callable[[int], str] = str,
) -> Received:
    """Sort a round's replies into good ones and others.

    Parameters
    ----------
    asked : the node behind each message sent, by the message's id, in the order in which they count
    messages : the replies, in any order
    layout, model : the model that was sent
    policy : what a reply may claim
    late : what to say of a node that did not reply
    buffer : (nodes asked, parameters) memory for the updates
    name : what to call a node
    """
    by_node: dict[int, Message] = {}
    good = Received([], [], [], buffer[:0], np.empty(0), set(), [], name)

    def drop(node: int, reason: str) -> None:
        good.dropped.append(Dropped(name(node), reason, node))

    for message in messages:
        node = asked.get(message.metadata.reply_to_message_id)
        if node is None:
            drop(message.metadata.src_node_id, "reply to nothing that was asked")
        elif node in by_node:
            drop(node, "more than one reply")
        else:
            by_node[node] = message
    counts: list[float] = []
    norms: list[float] = []
    for node in asked.values():
        if node not in by_node:
            drop(node, late)
            continue
        try:
            record, metrics, count, length = _read(by_node[node], layout, model, policy, buffer[len(counts)])
            low, high = policy.row_range(name(node))
            if not low <= count <= high:
                raise MismatchError(f"{count:g} examples, where it may have {low} to {high:g}")
        except MismatchError as error:
            drop(node, one_line(error))
            continue
        if policy.max_examples is not None and count > policy.max_examples:
            good.capped.add(node)
            count = policy.max_examples
        good.nodes.append(node)
        good.records.append(record)
        good.metrics.append(metrics)
        counts.append(count)
        norms.append(length)
    good.deltas, good.num_examples = buffer[: len(counts)], np.array(counts, dtype=np.float64)
    if policy.max_norm is None:
        longest = automatic_limit(norms, norm(model[: layout.measured]))
        for position in reversed(range(len(norms))):
            if norms[position] > longest:
                good.drop(
                    position, f"an update of norm {norms[position]:.4g}, far above the others of the round"
                )
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


def read_report(
    metrics: MetricRecord, groups: int, examples: float, min_cell: int = 0, noise: float = 0.0
) -> Statistics:
    """The inverse of `report_metrics`; MismatchError if it makes no sense.

    With a minimum cell count, losses are those of a stratum's mean probability, which say nothing new. With
    noise, all may be so far from what is true.
    """
    reports = []
    for name, size in (("counts", 4 * groups), ("probability", 2 * groups), ("loss", 2 * groups)):
        given = metrics.get(f"{LOCAL}{name}")
        values = np.array(given if isinstance(given, list) else [], dtype=np.float64)
        if values.shape != (size,) or not np.isfinite(values).all() or (values < 0).any():
            raise MismatchError(f"'{LOCAL}{name}' is not {size} numbers >= 0")
        reports.append(values)
    whole = reports[0] == np.floor(reports[0])
    # Before they are integers, whose sum could wrap around
    is_other = abs(reports[0].sum() - examples) > noise
    if not whole.all() or (reports[0] > examples + noise).any() or is_other or examples < 1:
        raise MismatchError(f"'{LOCAL}counts' are not its {examples:g} rows")
    counts = reports[0].astype(np.int64).reshape(groups, 2, 2)
    probability, loss = reports[1].reshape(groups, 2), reports[2].reshape(groups, 2)
    if (probability > counts.sum(axis=-1) + 1e-6).any():
        raise MismatchError(f"'{LOCAL}probability' is more than its rows")
    check_cells(counts, min_cell, f"{LOCAL}counts")
    rows = counts.sum(axis=-1)
    if min_cell > 1 and not np.allclose(loss, loss_of_mean(probability, rows), rtol=1e-6, atol=1e-6):
        raise MismatchError(f"'{LOCAL}loss' is not that of its '{LOCAL}probability'")
    if (loss > MOST_LOSS * rows + noise + 1e-6).any():
        raise MismatchError(f"'{LOCAL}loss' is more than {MOST_LOSS:.4g} a row")
    return Statistics(counts, probability, loss)


def _read(
    message: Message,
    layout: Layout,
    model: NDArray[Any],
    policy: ReplyPolicy,
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
    count = example_count(metrics[0], policy.weighted_by_key)
    with np.errstate(over="ignore", invalid="ignore"):
        layout.read(arrays[0], delta, minus=model)
        if not np.isfinite(delta).all():
            raise MismatchError("an update with NaN or infinity")
        largest = 0.0 if policy.max_weight is None else float(np.abs(model + delta).max(initial=0.0))
    if policy.max_weight is not None and largest > 2 * policy.max_weight:
        raise MismatchError(
            f"a weight of {largest:.4g}, over twice the limit of {policy.max_weight:g} (max-weight)"
        )
    record = layout.tidy(arrays[0])
    if policy.max_weight is not None and largest > policy.max_weight:  # sites would not score it
        whole = np.clip(model + delta, -policy.max_weight, policy.max_weight)
        record, delta[:] = layout.record(whole), whole - model
    length = norm(delta[: layout.measured])
    if policy.max_norm is not None and length > policy.max_norm:
        raise MismatchError(f"an update of norm {length:.4g}, over the limit of {policy.max_norm:g}")
    return record, metrics[0], count, length


# -- what else can be wrong with a reply, once it has been read -------------------------------------------


def rows_told(clients: Sequence[Client], max_examples: float | None) -> NDArray[np.int64]:
    """(clients, groups, 2) the rows that clients have told of; no more than they may count for."""
    rows = np.stack([client.rows for client in clients if client.rows is not None])
    totals = rows.sum(axis=(1, 2), keepdims=True)
    most = np.inf if max_examples is None else max_examples
    return np.asarray(np.rint(rows * np.minimum(1, most / totals)).astype(np.int64))


def check_rows(good: Received, known: Mapping[int, Client], max_examples: float | None) -> None:
    """Drop clients that train on other rows than they told, by which everybody's losses are weighed."""
    for position in reversed(range(len(good.nodes))):
        rows, claimed = known[good.nodes[position]].rows, good.num_examples[position]
        reported = min(0 if rows is None else int(rows.sum()), max_examples or math.inf)
        if claimed != reported:
            good.drop(position, f"{claimed:g} examples, but it had reported {reported:g} rows")


def read_reports(good: Received, groups: int, policy: ReplyPolicy) -> Statistics | None:
    """What the clients tell of the model on their own rows; those who tell nonsense are dropped.

    It is of all rows that they claim, also where they count for fewer.
    """
    reports: list[Statistics] = []
    for metrics in list(good.metrics):
        position = len(reports)
        try:
            examples = example_count(metrics, policy.weighted_by_key)
            reports.append(read_report(metrics, groups, examples, policy.min_cell, policy.noise))
        except MismatchError as error:
            good.drop(position, one_line(error))
    return Statistics(*(np.stack(values) for values in zip(*reports, strict=True))) if reports else None


def scale_updates(
    good: Received, scale: Callable[[Matrix], Values] | None, layout: Layout, model: NDArray[Any]
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
    for position in np.flatnonzero(factors != 1):
        delta = good.deltas[position]
        delta[: layout.measured] *= delta.dtype.type(factors[position])
        good.records[position] = layout.record(model + delta)


def score(good: Received, validation: Measure) -> Counts:
    """(clients, groups, 2, 2) the clients' models on the validation rows; unusable ones are dropped."""
    counts: list[Counts] = []
    for record in list(good.records):
        try:
            counts.append(validation.counts(record))
        except Exception as error:  # it has worked with the first model: this one is to blame
            good.drop(len(counts), blame(error))
    return np.array(counts, dtype=np.int64).reshape(len(counts), len(validation.grouping), 2, 2)


def mean_metrics(
    records: Sequence[MetricRecord], weights: NDArray[np.float64], leave_out: str
) -> dict[str, Any]:
    """Weighted means of the metrics that all records have, number by number.

    >>> records = [MetricRecord({"loss": 1.0, "n": 1}), MetricRecord({"loss": 4.0, "extra": 1.0, "n": 2})]
    >>> mean_metrics(records, np.array([1.0, 2.0]), "n")
    {'loss': 3.0}
    """
    means: dict[str, Any] = {}
    for name in records[0] if records else ():
        if name == leave_out or name.startswith(LOCAL) or not all(name in record for record in records):
            continue
        values = [np.asarray(record[name], dtype=np.float64) for record in records]
        if len({value.shape for value in values}) == 1:
            mean = sum(w * value for w, value in zip(weights / weights.sum(), values, strict=True))
            means[name] = np.asarray(mean).tolist()
    return means
