"""Clients whose answers reach the server under masks: a sum over them is opened, or nothing is.

A round has one exchange more than a plain one, in which the sites reveal what opens the sum, and another for
strategies by which sites weigh themselves. Who drops out before answering is left out by another attempt over
the others, under fresh masks; who does so later is in the sum all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fairfate.engine.secure_sums import SecureSums, open_updates
from fairfate.engine.server import Dropped, Replies, Server
from fairfate.errors import InputError, listing
from fairfate.fairness.disclosure import merge_bins, round_counts
from fairfate.fairness.metrics import Counts
from fairfate.fairness.thresholds import BINS
from fairfate.flower.clients import FlowerClients
from fairfate.flower.logs import log, one_line
from fairfate.flower.messages import (
    ASK,
    ATTEMPT,
    COHORT,
    HISTOGRAM,
    MASKED,
    MEMBERS,
    MODEL,
    QUESTION,
    REVEALED,
    ROUND,
    SCORES,
    SHARES,
    SIGNATURES,
    SUM_PART,
    UNMASK,
    MismatchError,
    receive,
)
from fairfate.flower.roster import Client
from fairfate.models.model import Models
from fairfate.privacy.fixed_point import MOST_CLIENTS, ROWS, WEIGHTS, NoSumError, Ring, may_open
from fairfate.privacy.masked_sums import SumError, count_members, open_part

TRAIN = "train"
_SAME = (
    "; sites open a round of a seed, and all counts of a study, over the same sites only: those that were in"
    " an interrupted sum, or in the same round of an earlier run, must be there"
)
_HEX = 2


class MaskedAnswer(NamedTuple):
    """What a site has sent."""

    parts: dict[str, Ring]
    shares: dict[str, str]
    """For each site of the cohort, sealed for it; the server passes them on."""


class OpenAnswer(NamedTuple):
    """What a site has revealed."""

    shares: dict[str, bytes]
    """Of everybody's own mask."""
    members: str = ""
    signature: str = ""


class SecureClients(FlowerClients):
    """The same clients, of whom the server learns sums over ``rule.min_sum`` or more."""

    rule = SecureSums()
    _attempt = 1
    over: Sequence[str] = ()
    """Over whom the next attempt is: those who have answered in the last one."""
    lost: tuple[Dropped, ...] = ()
    """Who has dropped out in earlier attempts."""

    def limit(self, cohort: list[Client]) -> list[Client]:
        """Those who are still to be in the sum."""
        return [client for client in cohort if client.name in self.over] if self.over else cohort

    def about_sum(self, cohort: Sequence[Client]) -> dict[str, Any]:
        """Who else is asked, in order, and how often."""
        return {COHORT: [client.name for client in cohort], ATTEMPT: self._attempt}

    # -- a round -------------------------------------------------------------------------------------------

    def train(self, t: int, servers: Sequence[Server]) -> list[Replies]:
        """A round, repeated while its sum cannot be opened, but not too often."""
        log(INFO, "")
        log(INFO, "[ROUND %s/%s]", t, self.rounds)
        problem, attempts, self.over, self.lost = "", self.cohorts.attempts, (), ()
        for attempt in range(1, attempts + 1):
            self._attempt = attempt
            messages = self.ask(t, self.server.record)
            try:
                return [self._sum_updates(t, messages)]
            except (SumError, NoSumError) as error:
                problem = str(error)
                log(WARNING, "\t> attempt %d of %d at round %d: %s", self._attempt, attempts, t, problem)
        raise InputError(f"round {t} was given up after {attempts} attempts: {problem}{_SAME}")

    def _sum_updates(self, t: int, messages: Sequence[Message]) -> Replies:
        """The opened sums of one attempt."""
        if not self.over:
            self.asked = len(messages)
        self._sent = []
        size, weighs = self.server.layout.size, self.server.strategy.weigh is not None
        sizes = {ROWS: size + 2, **({WEIGHTS: size + 1} if weighs else {})}
        sum_of = _Sum(self, messages, {QUESTION: TRAIN, ROUND: t, ATTEMPT: self._attempt}, sizes)
        answers = sum_of.collect(max(self.rule.least, min(self.cohorts.min_replies, self.asked)))
        by_rows, opened = sum_of.open(ROWS)
        clients = len(answers)
        members: int | None = 0
        by_weight = None
        if weighs:
            members, by_weight = self._open_weights(sum_of, opened)
        layout = self.server.layout
        replies = Replies(
            clients=tuple(answers),
            deltas=np.zeros((0, layout.moved), dtype=layout.dtype),
            num_examples=np.zeros(0),
            client_counts=np.zeros((0, self.rows.groups, 2, 2), dtype=np.int64),
            dropped=self.lost,
        )
        return open_updates(replies, by_rows, by_weight, members, clients)

    def _open_weights(self, sum_of: _Sum, opened: Mapping[str, OpenAnswer]) -> tuple[int | None, Ring | None]:
        """How many sites have given themselves a weight, and the sum over them where it may be opened.

        Where it may and cannot, since somebody dropped out meanwhile, it stays closed.
        """
        cohort, members = list(sum_of.nodes), None
        try:
            masked = {name: int(answer.members, 16) for name, answer in opened.items() if answer.members}
            members = count_members(masked, cohort)
            if not members or not may_open(members, len(cohort), self.rule.min_sum):
                return members, None
            about = {
                MEMBERS: [opened[name].members for name in cohort],
                SIGNATURES: [opened[name].signature for name in cohort],
            }
            return members, sum_of.open(WEIGHTS, about)[0]
        except (SumError, ValueError) as error:
            log(WARNING, "\t> the sum over sites with a weight stays closed: %s", one_line(error))
            return members, None

    # -- counts --------------------------------------------------------------------------------------------

    def validate_released(self, params: Models) -> Counts:
        """(groups, 2, 2) the released model on all rows that clients hold out; small counts are rounded."""
        shape, t = (1, self.rows.groups, 2, 2), self.rounds + 1
        models = {f"{MODEL}0": self.server.layout.record(params)}

        def about(client: Client) -> dict[str, Any]:
            return {**self.about_held(client), ROUND: t, ASK: SCORES, "groups": self.rows.groups}

        total = self._sum_counts(models, about, {QUESTION: SCORES, ROUND: t}, shape)
        return np.asarray(round_counts(total, self.rule.min_cell)[0])

    def _ask_histograms(
        self,
        models: Sequence[Models],
        about: Mapping[str, Any],
        bins: tuple[int, ...] = (BINS,),
        rules: int = 0,
    ) -> NDArray[np.int64]:
        shape, (params,) = (self.rows.groups, 2, *bins), models  # of one model: +tilt is refused
        arrays = {"arrays": self.server.layout.record(params)}

        def ask(client: Client) -> dict[str, Any]:
            return {**self.about_held(client), **about, ASK: HISTOGRAM, "groups": self.rows.groups}

        total = self._sum_counts(arrays, ask, {QUESTION: HISTOGRAM, ROUND: 0, **about}, shape)
        merged = merge_bins(total, self.rule.min_cell)
        empty = np.flatnonzero(merged.sum(axis=(1, 2)) == 0)
        if len(empty):
            raise InputError(
                f"thresholds from clients must have rows of every group, got none of group {empty[0]}"
            )
        return merged

    def _sum_counts(
        self,
        models: Mapping[str, ArrayRecord],
        about: Callable[[Client], dict[str, Any]],
        question: Mapping[str, Any],
        shape: tuple[int, ...],
    ) -> NDArray[np.int64]:
        """The sum of all sites' counts; InputError if it cannot be opened in some attempts."""
        problem, self.over, self.lost = "", (), ()
        for attempt in range(1, self.cohorts.attempts + 1):
            self._attempt = attempt
            clients = self.limit(self._everybody())
            messages = [
                Message(
                    RecordDict(
                        {"config": ConfigRecord({**about(client), **self.about_sum(clients)}), **models}
                    ),
                    client.node,
                    MessageType.QUERY,
                )
                for client in clients
            ]
            size = int(np.prod(shape))
            sum_of = _Sum(self, messages, {**question, ATTEMPT: self._attempt}, {ROWS: size})
            try:
                sum_of.collect(self.rule.least)
                total = sum_of.open(ROWS)[0].view(np.int64).reshape(shape)
                if (total < 0).any() or int(total.max(initial=0)) > MOST_CLIENTS * 2**30:
                    raise SumError("a sum of something else than counts")
                return total
            except SumError as error:
                problem = str(error)
                log(WARNING, "\t> attempt %d at a sum of counts: %s", self._attempt, problem)
        raise InputError(
            f"a sum of counts was given up after {self.cohorts.attempts} attempts: {problem}{_SAME}"
        )


class _Sum:
    """One sum: who is asked, what they sent, and what opens it."""

    def __init__(
        self,
        clients: SecureClients,
        messages: Sequence[Message],
        question: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:
        self.clients, self.messages, self.question, self.sizes = clients, messages, question, sizes
        self.nodes = {clients.roster.name(m.metadata.dst_node_id): m.metadata.dst_node_id for m in messages}
        self.dropped: list[Dropped] = []
        """Who has not answered the last question."""
        self.answers: dict[str, MaskedAnswer] = {}
        """In the cohort's order."""

    def collect(self, least: int) -> dict[str, MaskedAnswer]:
        """Ask everybody for masked numbers; SumError unless all answer.

        The next attempt is over those who have, if these are ``least`` or more.
        """
        largest = sum(8 * size for size in self.sizes.values()) * _HEX + (1 << 20)
        read = self._ask(self.messages, largest, self._read_masked)
        self.answers = {name: read[name] for name in self.nodes if name in read}
        if len(self.answers) < least:
            missing = "; ".join(f"{gone.client}: {gone.reason}" for gone in self.dropped)
            raise SumError(
                f"{len(self.answers)} sites have answered, {least} must" + (missing and f" ({missing})")
            )
        if len(self.answers) < len(self.nodes):
            self.clients.over, self.clients.lost = list(self.answers), (*self.clients.lost, *self.dropped)
            raise SumError(f"{listing(gone.client for gone in self.dropped)} left before the sum was whole")
        return self.answers

    def open(self, part: str, about: Mapping[str, Any] | None = None) -> tuple[Ring, dict[str, OpenAnswer]]:
        """A part of the sum, and what sites have revealed of it; SumError if it stays closed."""
        cohort = self.clients.over = list(self.nodes)  # whoever answers now opens it over no others
        messages = []
        for name in cohort:
            config = {ASK: UNMASK, **self.question, SUM_PART: part, **(about or {})}
            config[SHARES] = [self.answers[other].shares.get(name, "") for other in cohort]
            content = RecordDict({"config": ConfigRecord(config)})
            messages.append(Message(content, self.nodes[name], MessageType.QUERY))
        opened = self._ask(messages, 1 << 20, self._read_revealed)
        masked = {name: answer.parts[part] for name, answer in self.answers.items()}
        revealed = {name: answer.shares for name, answer in opened.items()}
        return open_part(part, masked, revealed, cohort, self.clients.rule.least), opened

    def _ask(
        self, messages: Sequence[Message], largest: int, read: Callable[[Message], Any]
    ) -> dict[str, Any]:
        """What sites answer, by name; who is silent or talks nonsense is named in the log."""
        clients, answers, self.dropped = self.clients, {}, []
        replies = receive(clients.grid, messages, clients.timeout, largest)
        names = {node: name for name, node in self.nodes.items()}
        waiting = {m.metadata.message_id: names[m.metadata.dst_node_id] for m in messages}
        for reply in replies:
            name = waiting.pop(reply.metadata.reply_to_message_id, None)
            if name is None:
                continue
            try:
                if reply.has_error() or not reply.has_content():
                    raise MismatchError(reply.error.reason if reply.has_error() else "an empty reply")
                answers[name] = read(reply)
            except (MismatchError, ValueError, LookupError, TypeError, AttributeError) as error:
                self._drop(name, one_line(error))
        for name in waiting.values():
            self._drop(name, clients.late)
        return answers

    def _drop(self, name: str, reason: str) -> None:
        log(WARNING, "\t> %s has dropped out of the sum: %s", name, reason)
        self.dropped.append(Dropped(name, reason, self.nodes[name]))

    def _read_masked(self, reply: Message) -> MaskedAnswer:
        arrays, shares = reply.content[MASKED], reply.content[SHARES]
        if not isinstance(arrays, ArrayRecord) or not isinstance(shares, ConfigRecord):
            raise MismatchError("no masked numbers")
        parts = {}
        for part, size in self.sizes.items():
            values = arrays[part].numpy()
            if values.shape != (size,) or values.dtype != np.int64:
                raise MismatchError(f"'{part}' is not {size} masked numbers")
            parts[part] = values.view(np.uint64)
        return MaskedAnswer(parts, {str(name): str(packet) for name, packet in shares.items()})

    def _read_revealed(self, reply: Message) -> OpenAnswer:
        shares = {name: bytes.fromhex(str(text)) for name, text in dict(reply.content[REVEALED]).items()}
        if set(shares) != set(self.nodes):
            raise MismatchError("shares of others than were asked for")
        if {len(each) for each in shares.values()} - {16}:
            raise MismatchError("shares of another length")
        about = dict(reply.content.get(MEMBERS) or {})
        return OpenAnswer(shares, str(about.get(MEMBERS, "")), str(about.get(SIGNATURES, "")))
