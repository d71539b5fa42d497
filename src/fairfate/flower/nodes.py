"""Who takes part: the nodes of a federation, by name, and what they say of themselves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.flower.logs import log, one_line

CLIENT, NAME, PROBLEM, NOTE, COUNTS, ROWS = "client", "name", "problem", "note", "counts", "rows"
"""Names in a reply to a query: a ConfigRecord `client` with `name` (and `problem`, if the client cannot take
part, or a `note` for the log), and a MetricRecord `counts` with `rows`, its training rows by group and
label."""

ATTEMPTS = 3
"""How often a node that does not answer a query is asked."""


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
    wants_rows: bool = False
    groups: int | None = None
    """How many groups the clients' counts must have, if that is known."""
    max_wait: float = 600.0
    timeout: float = 60.0
    """How long to wait for answers."""
    known: dict[int, Client] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

    def name(self, node: int) -> str:
        """What to call a node in the log."""
        return self.known[node].name if node in self.known else f"node {node}"

    def clients(self, grid: Grid, need: int) -> list[Client]:
        """All clients that are online, in a fixed order; waits for ``need`` of them, but not forever."""
        end = time.monotonic() + self.max_wait
        said = -1
        while True:
            nodes = sorted(grid.get_node_ids())
            self._forget([*self.refused, *self.attempts], nodes)
            self._meet(grid, [node for node in nodes if node not in self.known])
            online = [self.known[node] for node in nodes if node in self.known]
            if len(online) >= need:
                return sorted(online, key=lambda client: (client.name, client.node))
            if time.monotonic() >= end:
                raise InputError(self._too_few(len(online), need))
            if len(online) != said:
                said = len(online)
                log(INFO, "Waiting for clients: %d of %d are there (at most %g s)", said, need, self.max_wait)
            time.sleep(min(1.0, max(0.01, end - time.monotonic())))

    def _forget(self, known: Sequence[int], online: Sequence[int]) -> None:
        """Whoever has left and comes back is asked again: its file may have been mended."""
        for node in set(known) - set(online):
            self.refused.pop(node, None)
            self.attempts.pop(node, None)

    def _too_few(self, online: int, need: int) -> str:
        reasons = "".join(f"; node {node} takes no part: {why}" for node, why in self.refused.items())
        return (
            f"clients must be at least {need} within {self.max_wait:g} s (min_available_nodes, max_wait),"
            f" got {online}{reasons}"
        )

    def _meet(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask new nodes who they are."""
        if self.question is None:
            self.known |= {node: Client(node, str(node)) for node in nodes}
            return
        new = [node for node in nodes if node not in self.refused and self.attempts.get(node, 0) < ATTEMPTS]
        if not new:
            return
        content = RecordDict({"config": self.question})
        messages = [Message(content, node, MessageType.QUERY) for node in new]
        replies = list(grid.send_and_receive(messages, timeout=self.timeout))
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        answers = {asked.get(reply.metadata.reply_to_message_id, 0): reply for reply in replies}
        for node in new:
            self._answer(node, answers.get(node))
        self._agree_on_groups()
        for client in self.known.values():
            twins = [other.node for other in self.known.values() if other.name == client.name]
            if client.node in new and len(twins) > 1:
                log(WARNING, "%d nodes call themselves '%s': %s", len(twins), client.name, twins)

    def _agree_on_groups(self) -> None:
        """Where nobody knows how many groups there are, most clients do."""
        sizes = [len(client.rows) for client in self.known.values() if client.rows is not None]
        if self.groups is None and sizes:
            self.groups = statistics.mode(sizes)
        for node, client in list(self.known.items()):
            if client.rows is not None and len(client.rows) != self.groups:
                self._refuse(client, f"it counts rows of {len(client.rows)} groups instead of {self.groups}")
                del self.known[node]

    def _refuse(self, client: Client, problem: str) -> None:
        self.refused[client.node] = f"{client.name}: {problem}"
        log(WARNING, "%s (node %d) takes no part: %s", client.name, client.node, problem)

    def _answer(self, node: int, reply: Message | None) -> None:
        if reply is None or reply.has_error() or not reply.has_content():
            self.attempts[node] = self.attempts.get(node, 0) + 1
            why = f"no answer within {self.timeout:g} s" if reply is None else "an empty answer"
            if reply is not None and reply.has_error():
                why = one_line(f"error {reply.error.code}: {reply.error.reason}")
            again = "" if self.attempts[node] < ATTEMPTS else "; it is not asked again"
            log(WARNING, "node %d could not say who it is: %s%s", node, why, again)
            return
        client, problem = read_answer(node, reply.content, self.wants_rows, self.groups)
        if problem:
            self._refuse(client, problem)
            return
        self.known[node] = client
        note = reply.content.config_records.get(CLIENT, ConfigRecord()).get(NOTE)
        if note:
            log(WARNING, "%s: %s", client.name, one_line(note))
        log(INFO, "%s (node %d) takes part", client.name, node)


def read_answer(node: int, content: RecordDict, wants_rows: bool, groups: int | None) -> tuple[Client, str]:
    """A client from its answer, and what keeps it from taking part, if anything does."""
    about = content.config_records.get(CLIENT, ConfigRecord())
    name = one_line(about.get(NAME) or "", 60) or f"node {node}"
    problem = one_line(about.get(PROBLEM) or "")
    rows = None
    if wants_rows and not problem:
        given = content.metric_records.get(COUNTS, MetricRecord()).get(ROWS)
        counts = [n for n in given if isinstance(n, int) and n >= 0] if isinstance(given, list) else []
        size = max(4, len(counts) // 2 * 2) if groups is None else 2 * groups
        if counts != given or len(counts) != size or not 0 < sum(counts) < 2**53:
            problem = (
                f"'{ROWS}' must be its rows by group and label, whole numbers >= 0, got {one_line(given, 80)}"
            )
        else:
            rows = np.array(counts, dtype=np.int64).reshape(-1, 2)
    return Client(node, name, rows), problem
