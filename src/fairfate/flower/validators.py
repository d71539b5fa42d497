"""Clients that count how models do on rows which they hold out: what they are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairfate.fairness.metrics import Counts
from fairfate.flower.logs import log, one_line
from fairfate.flower.nodes import COUNTS, Client
from fairfate.flower.receive import receive
from fairfate.flower.records import MismatchError
from fairfate.flower.replies import MOST_EXAMPLES, check_cells
from fairfate.flower.steps import ASK

SCORES, MODEL = "scores", "model-"
"""In a query: what is asked for, and the models' names; the answer is a MetricRecord `counts` with `scores`,
rows by (model, group, label, prediction)."""
HELD_SHARE, HELD_SEED = "held-share", "held-seed"
"""In a config: the share of its rows that a client holds out, and the seed by which it chooses them."""
PART, HELD = "part", "held"
"""In a query for a histogram: of the rows that are held out, and not of the others."""

About = Callable[[Client], Mapping[str, Any]]
"""What a client is told beside the models."""


def ask_counts(
    grid: Grid,
    clients: Sequence[Client],
    models: Sequence[ArrayRecord],
    about: About,
    groups: int,
    most: Callable[[str], float],
    timeout: float,
    min_cell: int = 0,
) -> Counts:
    """(models, groups, 2, 2) counts summed over the clients that answer for all models.

    Who is silent or talks nonsense is left out of all, so that models can be compared.
    """
    messages = []
    for client in clients:
        config = ConfigRecord({**about(client), ASK: SCORES, "groups": groups})
        records = {f"{MODEL}{number}": model for number, model in enumerate(models)}
        messages.append(Message(RecordDict({"config": config, **records}), client.node, MessageType.QUERY))
    replies = receive(grid, messages, timeout)  # gives the messages their numbers
    waiting = {
        message.metadata.message_id: client.name for message, client in zip(messages, clients, strict=True)
    }
    total, told = np.zeros((len(models), groups, 2, 2), dtype=np.int64), 0
    for reply in replies:
        name = waiting.pop(reply.metadata.reply_to_message_id, None)
        if name is None:
            log(WARNING, "\t> an answer to nothing that was asked, or a second one, does not count")
            continue
        try:
            total += read_counts(reply, len(models), groups, most(name), min_cell)
            told += 1
        except MismatchError as error:
            log(WARNING, "\t> %s judges nobody in this round: %s", name, one_line(error))
    for name in waiting.values():
        log(WARNING, "\t> %s judges nobody in this round: no answer in time", name)
    log(INFO, "%d of %d clients have judged %d models", told, len(clients), len(models))
    return total


def read_counts(reply: Message, models: int, groups: int, most: float, min_cell: int = 0) -> Counts:
    """A client's counts; MismatchError if they make no sense."""
    if reply.has_error():
        raise MismatchError(f"error {reply.error.code}: {reply.error.reason}")
    record = reply.content.metric_records.get(COUNTS) if reply.has_content() else None
    given = None if record is None else record.get(SCORES)
    size = models * groups * 4
    if not isinstance(given, list) or len(given) != size:
        raise MismatchError(f"'{SCORES}' is not {size} numbers")
    if not all(isinstance(number, int) and 0 <= number < MOST_EXAMPLES for number in given):
        raise MismatchError(f"'{SCORES}' is not whole numbers >= 0")
    counts = np.array(given, dtype=np.int64).reshape(models, groups, 2, 2)
    rows = counts.sum(axis=-1)
    if (rows != rows[0]).any():
        raise MismatchError(f"'{SCORES}' is not of the same rows for all models")
    if rows[0].sum() >= MOST_EXAMPLES or rows[0].sum() > most:
        raise MismatchError(f"'{SCORES}' is of {rows[0].sum()} rows, over the limit")
    check_cells(counts, min_cell, SCORES)
    return counts
