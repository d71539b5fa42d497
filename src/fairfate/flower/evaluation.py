"""Clients evaluate the model on their own rows, as Flower's strategies offer it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from logging import WARNING
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.flower.logs import log, one_line
from fairfate.flower.records import MismatchError
from fairfate.flower.replies import LOCAL, example_count

if TYPE_CHECKING:
    from fairfate.flower.strategy import FlowerStrategy


class Evaluation:
    """Whom to ask, and the means of what they answer."""

    def __init__(self, strategy: FlowerStrategy) -> None:
        self.strategy = strategy
        self._asked: list[Message] = []

    def configure(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients that evaluate the model on their own rows."""
        s = self.strategy
        if s.fraction_evaluate == 0:
            return []
        try:
            clients = s.roster.clients(grid, max(s.min_available_nodes, s.min_evaluate_nodes, 1))
        except InputError as error:
            log(WARNING, "No evaluation: %s", error)
            return []
        size = min(max(int(len(clients) * s.fraction_evaluate), s.min_evaluate_nodes, 1), len(clients))
        chosen = s.streams.evaluators(server_round, len(clients), size)
        content = RecordDict(
            {
                s.arrayrecord_key: arrays,
                s.configrecord_key: ConfigRecord({**config, "server-round": server_round}),
            }
        )
        self._asked = [Message(content, clients[number].node, MessageType.EVALUATE) for number in chosen]
        return self._asked

    def aggregate(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' own metrics, in the order in which they were asked."""
        s = self.strategy
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._asked}
        self._asked = []
        by_node = {asked.get(reply.metadata.reply_to_message_id): reply for reply in replies}
        metrics, weights = [], []
        for node in asked.values():
            try:
                record = _evaluation(by_node.get(node), s.late)
                weight = example_count(record, s.weighted_by_key)
            except MismatchError as error:
                log(WARNING, "\t> %s could not evaluate: %s", s.roster.name(node), one_line(error))
                continue
            metrics.append(record)
            weights.append(min(weight, s.limits.max_examples or math.inf))
        if not metrics:
            return None
        return MetricRecord(mean_metrics(metrics, np.array(weights), s.weighted_by_key))


def _evaluation(reply: Message | None, late: str) -> MetricRecord:
    """The metrics of a client's evaluation; MismatchError if there are none."""
    if reply is None:
        raise MismatchError(late)
    if reply.has_error() or not reply.has_content():
        raise MismatchError(reply.error.reason if reply.has_error() else "an empty reply")
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise MismatchError(f"{len(records)} MetricRecords instead of one")
    return records[0]


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
