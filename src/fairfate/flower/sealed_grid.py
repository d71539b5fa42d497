"""Flower's way to the nodes, for a server that seals its messages and knows its sites by their keys."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fairfate.flower.logs import one_line
from fairfate.flower.messages import UNREADABLE, receive
from fairfate.flower.sealing import Envelope, EnvelopeError, Head, PrivateKey, from_records, seal, to_records
from fairfate.flower.study import SERVER, Study

CLIENT, NAME = "client", "name"
"""The record of an answer that says who a site is, and the name in it."""
LARGEST = 256 << 20
"""Bytes of a message."""
PROBLEM, REASON = "problem", "reason"
"""A record of an answer, in the place of all others, that says why a site cannot do what it was asked."""
AT_SITE = 1001
"""The code of the error that stands for it."""


class SealedGrid(Grid):
    """Seals what the server sends, and opens what sites send; whatever is not right is an error in its place.

    Which site is behind a node is known from the signature of its first answer; until then a message is
    sealed for all sites of the study.

    Parameters
    ----------
    grid : Flower's own
    study : the sites and their keys
    key : the server's
    run : Flower's number of the run
    """

    def __init__(self, grid: Grid, study: Study, key: PrivateKey, run: int) -> None:
        self.grid, self.study, self.key, self.run_id = grid, study, key, run
        self.sites: dict[int, str] = {}
        """The site behind each node that has ever answered: nobody else may answer from it later."""
        self._nodes: dict[str, int] = {}
        """The node that each site answers from now."""
        self._sent: dict[str, tuple[Message, str]] = {}
        self._counter = 0

    def set_run(self, run: Run) -> None:
        """As Flower's."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """As Flower's."""
        return self.grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:
        """As Flower's."""
        return self.grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their contents are sealed in place."""
        sending = list(messages)
        checksums = [self._seal(message) for message in sending]
        numbers = list(self.grid.push_messages(sending))
        self._sent = dict(
            zip(numbers, zip(sending, checksums, strict=True), strict=True)
        )  # who is late is late
        return numbers

    def _seal(self, message: Message) -> str:
        node = message.metadata.dst_node_id
        known = self.sites.get(node)
        names = tuple(self.study.sites) if known is None else (known,)
        self._counter = max(self._counter + 1, time.time_ns())  # grows over restarts, too
        head = Head(
            self.study.checksum,
            SERVER,
            names,
            self.run_id,
            node,
            message.metadata.message_type,
            self._counter,
        )
        keys = {name: self.study.sites[name].key for name in names}
        sealed = seal(head, message.content, self.key, keys)
        message.content = to_records(sealed)
        return Envelope.read(sealed).checksum

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers that have come, opened."""
        opened = []
        for reply in self.grid.pull_messages(message_ids):
            sent = self._sent.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                continue  # an answer to nothing that was asked, or a second one
            question, checksum = sent
            if reply.has_error():
                reason = f"unsigned, from Flower: {one_line(reply.error.reason)}"
                reply = Message(Error(reply.error.code, reason), reply_to=question)
            else:
                try:
                    content = self._open(reply, question, checksum)
                except EnvelopeError as error:
                    reply = Message(Error(UNREADABLE, f"an invalid answer: {error}"), reply_to=question)
                else:
                    problem = content.get(PROBLEM)
                    if question.metadata.message_type == MessageType.QUERY:
                        self._put_name(content, self.sites[question.metadata.dst_node_id])
                    reply.content = content
                    if isinstance(problem, ConfigRecord):
                        reply = Message(Error(AT_SITE, one_line(problem.get(REASON))), reply_to=question)
            opened.append(reply)
        return opened

    def _put_name(self, content: RecordDict, name: str) -> None:
        """The name of a site is that of its key, and not what it claims."""
        claimed = content.get(CLIENT)
        about = dict(claimed) if isinstance(claimed, ConfigRecord) else {}
        content[CLIENT] = ConfigRecord({**about, NAME: name})

    def _open(self, reply: Message, question: Message, checksum: str) -> RecordDict:
        if not reply.has_content():
            raise EnvelopeError("nothing in it")
        envelope = Envelope.read(from_records(reply.content, LARGEST))
        head, node = envelope.head, question.metadata.dst_node_id
        member = self.study.sites.get(head.sender)
        if member is None:
            raise EnvelopeError("not signed by a party of the study")
        envelope.verify(member.key)
        expected = (self.study.checksum, (SERVER,), self.run_id, node, checksum)
        if (head.study, head.recipients, head.run, head.node, head.request) != expected:
            raise EnvelopeError("of another run, node or question")
        self._know(node, head.sender)
        return envelope.open(SERVER, self.key)

    def _know(self, node: int, name: str) -> None:
        """Remember which site is behind a node; one site is behind one node at a time."""
        if self.sites.get(node, name) != name:
            raise EnvelopeError(f"signed by {name} from the node of {self.sites[node]}")
        last = self._nodes.get(name, node)
        if last != node and last in self.grid.get_node_ids():
            raise EnvelopeError(f"signed by {name}, which is another node")
        self.sites[node], self._nodes[name] = name, node

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their answers."""
        return receive(self, list(messages), 3600.0 if timeout is None else timeout)
