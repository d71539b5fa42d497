"""The steps of a strategy on Flower: thresholds from the server's rows, or from the clients' histograms."""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO, WARNING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.fairness.thresholds import BINS, apply, choose_from_histogram, choose_from_scores
from fairfate.flower.logs import log
from fairfate.flower.nodes import COUNTS, Client
from fairfate.flower.validation import Measure
from fairfate.strategies import Step

ASK, HISTOGRAM = "ask", "histogram"
"""In a query: what is asked for."""


def take_thresholds(
    step: Step,
    fairness: Metric,
    histogram: NDArray[np.int64] | None,
    validation: Measure,
    test: Measure | None,
    arrays: ArrayRecord,
) -> tuple[Values, tuple[Counts, Counts | None]]:
    """One threshold for each group, as the step says; and what the model does with them."""
    rule = float(step["tolerance"]), float(step["keep"]), str(step["against"])
    margins = validation.margins(arrays)
    if histogram is None:
        chosen = choose_from_scores(margins, fairness, *rule)
    else:
        chosen = choose_from_histogram(histogram, fairness, *rule)
    log(INFO, "Thresholds: %s", ", ".join(f"{value:.4f}" for value in chosen))
    return chosen, (apply(margins, chosen), None if test is None else apply(test.margins(arrays), chosen))


def ask_histograms(
    grid: Grid,
    clients: Sequence[Client],
    arrays: ArrayRecord,
    question: ConfigRecord | None,
    groups: int,
    timeout: float,
) -> NDArray[np.int64]:
    """(groups, 2, bins) all clients' rows by group, label and the score that a model gives them: sums."""
    config = ConfigRecord({**(question or {}), ASK: HISTOGRAM, "groups": groups})
    content = RecordDict({"arrays": arrays, "config": config})
    messages = [Message(content, client.node, MessageType.QUERY) for client in clients]
    names = {
        message.metadata.message_id: client.name for message, client in zip(messages, clients, strict=True)
    }
    total, told = np.zeros((groups, 2, BINS), dtype=np.int64), 0
    for reply in grid.send_and_receive(messages, timeout=timeout):
        name = names.get(reply.metadata.reply_to_message_id, "somebody")
        found = _histogram(reply, groups)
        if found is None:
            log(WARNING, "%s sends no usable histogram", name)
            continue
        total += found
        told += 1
    log(INFO, "Histograms of %d of %d clients", told, len(clients))
    empty = [number for number in range(groups) if not total[number].sum()]
    if empty:
        raise InputError(
            f"thresholds from clients must have rows of every group, got none of group {empty[0]}"
        )
    return total


def _histogram(reply: Message, groups: int) -> NDArray[np.int64] | None:
    if reply.has_error() or not reply.has_content():
        return None
    record = reply.content.metric_records.get(COUNTS)
    given = None if record is None else record.get(HISTOGRAM)
    if not isinstance(given, list) or len(given) != groups * 2 * BINS:
        return None
    if not all(isinstance(number, int) and 0 <= number < 2**53 for number in given):
        return None
    return np.array(given, dtype=np.int64).reshape(groups, 2, BINS)
