"""Who takes part: the nodes of a federation, by name, and what they answer to questions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.engine.record import REFUSED, ClientRound
from fairfate.errors import InputError, listing
from fairfate.fairness.disclosure import is_small
from fairfate.flower.logs import log, one_line
from fairfate.flower.messages import (
    CLIENT,
    COUNTS,
    MOST_EXAMPLES,
    NAME,
    NOTE,
    PROBLEM,
    ROWS,
    SCORES,
    MismatchError,
    receive,
)

PAUSE, LONGEST_PAUSE = 5.0, 600.0
"""Seconds before a node that could not answer a query is asked again: at first, and after many times."""


@dataclass(frozen=True, eq=False)
class Client:
    """A node that takes part."""

    node: int
    name: str
    rows: NDArray[np.int64] | None = None
    """(groups, 2) training rows by group and label, where the strategy needs them."""


@dataclass
class Roster:
    """Finds the clients, and asks new ones who they are if there is a question."""

    question: ConfigRecord | None = None
    """Sent to each new node; None asks nothing, and nodes are known by their numbers."""
    groups: int = 0
    """How many groups the clients must count their rows of; 0 wants no counts."""
    max_wait: float = 600.0
    most: Callable[[str], float] = lambda name: math.inf
    """How many rows a client of this name may tell of."""
    min_cell: int = 0
    """Clients tell of no stratum of fewer rows, but may of none."""
    expected: Sequence[str] = ()
    """Names of clients that should come, where they are known."""
    timeout: float = 60.0
    """How long to wait for answers."""
    interval: float = 30.0
    """Seconds between lines in the log that say for whom the server waits."""
    known: dict[int, Client] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    """Of all clients that ever took part, also before the run was interrupted, in the order of their numbers:
    who comes later does not change those of the others."""
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Who is excluded, by name, and why."""
    failed: dict[int, tuple[int, float]] = field(default_factory=dict)
    """How often a node was asked in vain, and when to ask it again."""

    def name(self, node: int) -> str:
        """What to call a node in the log."""
        return self.known[node].name if node in self.known else f"node {node}"

    def number(self, client: Client) -> int:
        """A client's number among all that ever took part, whoever is there at the moment."""
        return self.names.index(client.name)

    def refusals(self, t: int) -> list[ClientRound]:
        """Who is excluded in a round, for its record."""
        return [
            ClientRound(t, name, REFUSED, why, node=node)
            for node, (name, why) in sorted(self.refused.items())
        ]

    def clients(self, grid: Grid, need: int) -> list[Client]:
        """All clients that are online, in a fixed order; waits for ``need`` of them, but not forever."""
        end = time.monotonic() + self.max_wait
        last_count, again, waiting = -1, 0.0, False
        while True:
            nodes = sorted(grid.get_node_ids())
            self._forget(nodes)
            self._meet(grid, [n for n in nodes if n not in self.known and (waiting or n not in self.refused)])
            online = [self.known[node] for node in nodes if node in self.known]
            if len(online) >= need:
                self.names += sorted({client.name for client in online} - set(self.names))
                return sorted(online, key=lambda client: (client.name, client.node))
            if time.monotonic() >= end:
                raise InputError(self._too_few(nodes, need))
            now = time.monotonic()
            if len(online) != last_count or now >= again:
                last_count, again = len(online), now + self.interval
                log(INFO, "%s", self._waiting(nodes, need, end - now))
            time.sleep(min(1.0, self.interval, max(0.01, end - now)))
            waiting = True  # then those who were refused are asked again: a file may have been mended

    def _forget(self, online: Sequence[int]) -> None:
        """Whoever has left and comes back is asked again as well."""
        for node in set(self.refused) - set(online):
            del self.refused[node], self.failed[node]

    def _waiting(self, nodes: Sequence[int], need: int, left: float) -> str:
        """For how many the server waits, who is there, who is not, and why."""
        there = sorted(self.known[node].name for node in nodes if node in self.known)
        silent = [n for n in nodes if n in self.failed and n not in self.known and n not in self.refused]
        parts = [f"{len(there)} of {need} are there{': ' if there else ''}{listing(there)}"]
        if self.refused:
            reasons = [f"{name}: {why}" for name, why in sorted(self.refused.values())]
            parts.append(f"refused: {listing(reasons, 5)}")
        parts += self._missing(silent, there)
        more = need - len(there)
        problem = "; ".join([*parts, f"{max(0.0, left):.0f} s left"])
        return f"Waiting for {more} more site{'' if more == 1 else 's'} ({problem})"

    def _missing(self, silent: Sequence[int], there: Sequence[str]) -> list[str]:
        """Who has not been heard of, by name and by number."""
        known = {*there, *(name for name, _ in self.refused.values())}
        absent = [name for name in self.expected if name not in known]
        parts = [f"no contact yet: {listing(absent)}"] if absent else []
        if silent:
            names = listing([self.name(node) for node in silent])
            hint = "; perhaps another version of the study is pinned there" if self.expected else ""
            parts.append(f"no answer: {names}{hint}")
        return parts

    def _too_few(self, nodes: Sequence[int], need: int) -> str:
        there = [self.known[node].name for node in nodes if node in self.known]
        silent = [node for node in nodes if node not in self.known and node not in self.refused]
        reasons = [f"{name} is excluded: {why}" for name, why in self.refused.values()]
        problem = "".join(f"; {reason}" for reason in [*reasons, *self._missing(silent, there)])
        return f"only {len(there)} of {need} clients came within {self.max_wait:g} s{problem}"

    def _meet(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask new nodes who they are."""
        if self.question is None:
            self.known |= {node: Client(node, str(node)) for node in nodes}
            return
        now = time.monotonic()
        new = [node for node in nodes if self.failed.get(node, (0, 0.0))[1] <= now]
        if not new:
            return
        content = RecordDict({"config": self.question})
        messages = [Message(content, node, MessageType.QUERY) for node in new]
        replies = receive(grid, messages, self.timeout)
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answers = {asked.get(reply.metadata.reply_to_message_id, 0): reply for reply in replies}
        for node in new:
            self._answer(node, answers.get(node))
        for client in self.known.values():
            twins = [other.node for other in self.known.values() if other.name == client.name]
            if client.node in new and len(twins) > 1:
                log(WARNING, "%d nodes have the name '%s': %s", len(twins), client.name, twins)

    def _answer(self, node: int, reply: Message | None) -> None:
        if reply is None or reply.has_error() or not reply.has_content():
            pause = self._postpone(node, dear=reply is None)
            why = f"no answer within {self.timeout:g} s" if reply is None else "an empty answer"
            if reply is not None and reply.has_error():
                why = one_line(f"error {reply.error.code}: {reply.error.reason}")
            log(WARNING, "node %d did not give its name (next try in %g s): %s", node, pause, why)
            return
        client, problem = read_answer(node, reply.content, self.groups)
        if client.rows is not None and not problem and client.rows.sum() > self.most(client.name):
            problem = f"it reports {int(client.rows.sum())} rows, more than it may have"
        if client.rows is not None and not problem and is_small(client.rows, self.min_cell).any():
            problem = f"it reports a count below the minimum cell count, {self.min_cell}"
        if problem:
            self._postpone(node)
            self.refused[node] = client.name, problem
            log(WARNING, "%s (node %d) is excluded: %s", client.name, node, problem)
            return
        self.refused.pop(node, None)
        self.known[node] = client
        note = reply.content.config_records.get(CLIENT, ConfigRecord()).get(NOTE)
        if note:
            log(WARNING, "%s: %s", client.name, one_line(note))
        log(INFO, "%s (node %d) takes part", client.name, node)

    def _postpone(self, node: int, *, dear: bool = False) -> float:
        """Ask a node again later, each time twice as late; a silent one costs everybody time."""
        times = self.failed.get(node, (0, 0.0))[0] + 1
        pause = min(PAUSE * (10 if dear else 1) * 2.0 ** min(times - 1, 20), LONGEST_PAUSE)
        self.failed[node] = times, time.monotonic() + pause
        return pause


def read_answer(node: int, content: RecordDict, groups: int) -> tuple[Client, str]:
    """A client from its answer, and what keeps it from taking part, if anything does."""
    about = content.config_records.get(CLIENT, ConfigRecord())
    name = one_line(about.get(NAME) or "", 60) or f"node {node}"
    problem = one_line(about.get(PROBLEM) or "")
    if not groups or problem:
        return Client(node, name), problem
    given = content.metric_records.get(COUNTS, MetricRecord()).get(ROWS)
    counts = [n for n in given if isinstance(n, int) and n >= 0] if isinstance(given, list) else []
    if counts != given or len(counts) != 2 * groups or not 0 < sum(counts) < MOST_EXAMPLES:
        shown = one_line(given, 80)
        problem = f"'{ROWS}' must be its rows by label in each of {groups} groups, got {shown}"
        return Client(node, name), problem
    return Client(node, name, np.array(counts, dtype=np.int64).reshape(-1, 2)), ""


def ask_counts(
    grid: Grid,
    clients: Sequence[Client],
    content: Callable[[Client], RecordDict],
    read: Callable[[Message, str], NDArray[np.int64]],
    timeout: float,
) -> list[NDArray[np.int64]]:
    """What clients count of their rows; who is silent or talks nonsense is left out, and named in the log.

    Parameters
    ----------
    grid : Flower's way to the nodes
    clients : whom to ask
    content : the question to each
    read : takes a reply and its sender's name; MismatchError if it makes no sense
    timeout : seconds to wait
    """
    messages = [Message(content(client), client.node, MessageType.QUERY) for client in clients]
    replies = receive(grid, messages, timeout)  # gives the messages their numbers
    waiting = {
        message.metadata.message_id: client.name for message, client in zip(messages, clients, strict=True)
    }
    counts = []
    for reply in replies:
        name = waiting.pop(reply.metadata.reply_to_message_id, None)
        if name is None:
            log(WARNING, "\t> ignored an answer that nobody asked for, or a second one")
            continue
        try:
            counts.append(read(reply, name))
        except MismatchError as error:
            log(WARNING, "\t> ignored the answer of %s: %s", name, one_line(error))
    for name in waiting.values():
        log(WARNING, "\t> no answer in time from %s", name)
    log(INFO, "received counts from %d of %d clients", len(counts), len(clients))
    return counts


def read_counts(
    reply: Message,
    kind: str,
    shape: tuple[int, ...],
    most: float,
    min_cell: int = 0,
    noise: float = 0.0,
    histograms: int = 1,
) -> NDArray[np.int64]:
    """Counts of rows in a reply; MismatchError if they make no sense.

    Parameters
    ----------
    reply : a client's
    kind : what was asked for, `SCORES` or `HISTOGRAM`
    shape : of the counts; scores are of the same rows for each model
    most : how many rows the client may have
    min_cell : clients tell of no fewer rows, but may of none
    noise : how far below 0 a count may be
    histograms : how many there are, all of the same rows
    """
    if reply.has_error():
        raise MismatchError(f"error {reply.error.code}: {reply.error.reason}")
    record = reply.content.metric_records.get(COUNTS) if reply.has_content() else None
    given, size = None if record is None else record.get(kind), math.prod(shape)
    if not isinstance(given, list) or len(given) != size:
        raise MismatchError(f"'{kind}' is not {size} numbers")
    if not all(isinstance(number, int) and -noise <= number < MOST_EXAMPLES for number in given):
        raise MismatchError(f"'{kind}' is not whole numbers >= {0 - noise:g}")
    counts = np.array(given, dtype=np.int64).reshape(shape)
    models = shape[0] if kind == SCORES else histograms
    if kind == SCORES and (counts.sum(axis=-1) != counts[0].sum(axis=-1)).any():
        raise MismatchError(f"'{kind}' is not of the same rows for all models")
    if histograms > 1:
        rows = counts.reshape(histograms, shape[1] * shape[2], -1).sum(axis=-1)
        if (rows != rows[0]).any():
            raise MismatchError(f"'{kind}' is not of the same rows for all rules")
    total = sum(given[: size // models])  # Python's integers: those of NumPy could wrap around
    if total >= MOST_EXAMPLES or total > most:
        raise MismatchError(f"'{kind}' is of {total} rows, over the limit")
    check_cells(counts, min_cell, kind)
    return counts


def check_cells(counts: NDArray[np.int64], min_cell: int, name: str) -> None:
    """MismatchError if any count is smaller than an honest client tells."""
    if is_small(counts, min_cell).any():
        raise MismatchError(f"'{name}' has a count below the minimum cell count, {min_cell}")
