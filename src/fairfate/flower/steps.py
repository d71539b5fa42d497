"""The steps of a strategy on Flower: thresholds from the server's rows, or from the clients' histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.fairness.disclosure import is_small
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.fairness.thresholds import (
    BINS,
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
)
from fairfate.flower.logs import log
from fairfate.flower.nodes import COUNTS, Client
from fairfate.flower.receive import receive
from fairfate.flower.replies import MOST_EXAMPLES
from fairfate.flower.validation import Measure
from fairfate.strategies import Step

ASK, HISTOGRAM = "ask", "histogram"
"""In a query: what is asked for."""


def take_thresholds(
    step: Step,
    fairness: Metric,
    histogram: NDArray[np.int64] | None,
    validation: Measure | NDArray[np.int64],
    test: Measure | None,
    arrays: ArrayRecord,
) -> tuple[Values, tuple[Counts, Counts | None]]:
    """One threshold for each group, as the step says; and what the model does with them.

    ``histogram`` is of the rows to choose by, unless these are the validation rows: the server's, or the
    histogram of all that clients hold out.
    """
    rule = float(step["tolerance"]), float(step["keep"]), str(step["against"])
    measured = None if test is None else test.margins(arrays)
    if isinstance(validation, np.ndarray):
        rows = validation if histogram is None else histogram
        chosen = choose_from_histogram(rows, fairness, *rule)
        _tell(chosen)
        return chosen, (
            apply_to_histogram(validation, chosen),
            None if measured is None else apply(measured, chosen),
        )
    margins = validation.margins(arrays)
    if histogram is None:
        chosen = choose_from_scores(margins, fairness, *rule)
    else:
        chosen = choose_from_histogram(histogram, fairness, *rule)
    _tell(chosen)
    return chosen, (apply(margins, chosen), None if measured is None else apply(measured, chosen))


def _tell(thresholds: Values) -> None:
    log(INFO, "Thresholds: %s", ", ".join(f"{value:.4f}" for value in thresholds))


def ask_histograms(
    grid: Grid,
    clients: Sequence[Client],
    arrays: ArrayRecord,
    question: ConfigRecord | None,
    groups: int,
    timeout: float,
    most: Callable[[str], float] = lambda name: math.inf,
    about: Callable[[Client], Mapping[str, Any]] = lambda client: {},
    min_cell: int = 0,
) -> NDArray[np.int64]:
    """(groups, 2, bins) all clients' rows by group, label and the score that a model gives them: sums."""
    messages = []
    for client in clients:
        config = ConfigRecord({**(question or {}), **about(client), ASK: HISTOGRAM, "groups": groups})
        content = RecordDict({"arrays": arrays, "config": config})
        messages.append(Message(content, client.node, MessageType.QUERY))
    replies = receive(grid, messages, timeout)  # gives the messages their numbers
    names = {
        message.metadata.message_id: client.name for message, client in zip(messages, clients, strict=True)
    }
    total, told = np.zeros((groups, 2, BINS), dtype=np.int64), 0
    for reply in replies:
        name = names.get(reply.metadata.reply_to_message_id, "somebody")
        found = _histogram(reply, groups, most(name), min_cell)
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


def _histogram(reply: Message, groups: int, most: float, min_cell: int) -> NDArray[np.int64] | None:
    """A reply's counts; None if they are none, or are of more than ``most`` rows."""
    if reply.has_error() or not reply.has_content():
        return None
    record = reply.content.metric_records.get(COUNTS)
    given = None if record is None else record.get(HISTOGRAM)
    if not isinstance(given, list) or len(given) != groups * 2 * BINS:
        return None
    if not all(isinstance(number, int) and number >= 0 for number in given):
        return None
    if sum(given) > min(most, MOST_EXAMPLES):  # Python's integers: those of NumPy could wrap around
        return None
    counts = np.array(given, dtype=np.int64).reshape(groups, 2, BINS)
    return None if is_small(counts, min_cell).any() else counts
