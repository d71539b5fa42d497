"""Clients behind Flower's grid, as the loop over rounds knows them, and their server's model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from logging import INFO, WARNING
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.engine.rules import Labelling
from fairfate.engine.server import Replies, Server
from fairfate.engine.validators import candidates
from fairfate.errors import InputError, check, listing
from fairfate.fairness.metrics import Counts
from fairfate.fairness.thresholds import BINS, Margins
from fairfate.fairness.tilt import joint_histogram
from fairfate.fairness.tilt_groups import Ask, GroupTilt
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import describe_sample
from fairfate.flower.logs import log
from fairfate.flower.messages import (
    ANSWER,
    ASK,
    BROADCAST,
    DECISION,
    GROUP,
    GUESSED,
    HELD,
    HELD_SEED,
    HELD_SHARE,
    HISTOGRAM,
    MODEL,
    PART,
    PRICES,
    ROUND,
    SCORES,
    SPEC,
    SPLIT,
    TABLE,
    TARGET,
    Layout,
    MismatchError,
    blame,
    receive,
)
from fairfate.flower.messages import BINS as JOINT_BINS
from fairfate.flower.replies import (
    Received,
    ReplyPolicy,
    TooFewRepliesError,
    check_rows,
    mean_metrics,
    read_replies,
    read_reports,
    rows_told,
    scale_updates,
    score,
)
from fairfate.flower.roster import Client, Roster, ask_counts, read_counts
from fairfate.flower.validation import BuiltIn, Measured, ServerRows
from fairfate.models.model import Models
from fairfate.privacy.mechanism import PRIVATE_BINS, smooth_histogram
from fairfate.strategies import Loss, Need, Strategy, Vector


@dataclass(frozen=True)
class Cohorts:
    """Which clients take part in a round, and how long the server waits for them.

    Examples
    --------
    >>> Cohorts(per_round=3, max_wait=120).min_available_nodes
    2
    """

    per_round: int | None = None
    """Clients in a round; None: ``fraction_train`` decides."""
    fraction_train: float = 1.0
    """Share of the clients to train in a round, as in Flower's FedAvg."""
    fraction_evaluate: float = 1.0
    """Share of the clients that evaluate the model after a round."""
    min_train_nodes: int = 2
    """The least number of clients to train in a round."""
    min_evaluate_nodes: int = 2
    """The least number of clients that evaluate."""
    min_available_nodes: int = 2
    """Clients to wait for before a round."""
    min_replies: int = 0
    """A round with fewer good replies is repeated, up to ``attempts`` times in all. Then the run ends with an
    error, and continues from its checkpoint when it is started again."""
    attempts: int = 3
    """How often a round is tried."""
    max_wait: float = 600.0
    """Seconds to wait for enough clients before the run ends with an error."""
    ask_clients: bool | None = None
    """Whether each new node is asked for its name; None: only for strategies that need the clients'
    counts."""
    query_config: Mapping[str, Any] | None = None
    """What to send along with that query."""

    def __post_init__(self) -> None:
        check(self.per_round is None or self.per_round >= 1, "per_round must be >= 1", self.per_round)
        for name in ("fraction_train", "fraction_evaluate"):
            share = getattr(self, name)
            check(0 <= share <= 1, f"{name} must be in [0, 1]", share)
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "min_replies"):
            least = getattr(self, name)
            check(least >= 0, f"{name} must be >= 0", least)
        check(self.max_wait > 0, "max_wait must be > 0", self.max_wait)
        check(self.attempts >= 1, "attempts must be >= 1", self.attempts)

    @property
    def least(self) -> int:
        """How many clients must be there for a round."""
        wanted = self.min_train_nodes if self.per_round is None else self.per_round
        return max(1, wanted, self.min_available_nodes)

    @property
    def least_to_evaluate(self) -> int:
        """How many must be there for an evaluation."""
        return max(1, self.min_available_nodes, self.min_evaluate_nodes)

    def size(self, clients: int) -> int:
        """How many of the clients that are there train."""
        if self.per_round is not None:
            return min(self.per_round, clients)
        if self.fraction_train == 0:
            return 0
        return min(max(int(clients * self.fraction_train), self.min_train_nodes, 1), clients)

    def size_to_evaluate(self, clients: int) -> int:
        """How many of them evaluate the model."""
        return min(max(int(clients * self.fraction_evaluate), self.min_evaluate_nodes, 1), clients)


class FlowerServer(Server):
    """What the strategy trains, and the arrays beside it that are averaged only.

    Parameters
    ----------
    strategy : what the model is trained by
    arrays : the model at the start
    rows : on which it is measured
    policy : which arrays are averaged only, and the largest weight that clients accept
    """

    def __init__(
        self, strategy: Strategy, arrays: ArrayRecord, rows: ServerRows, policy: ReplyPolicy
    ) -> None:
        self.layout = Layout.from_record(arrays, policy.averaged)
        trained, self.rest = np.split(self.layout.flat(arrays), [self.layout.moved])
        super().__init__(strategy, strategy.init(trained.copy()))
        self.rows, self.max_weight = rows, policy.max_weight
        self._record: ArrayRecord | None = None
        try:
            self.measured: Measured = rows.measure(self.record)  # finds out now whether predictions work
        except MismatchError as error:
            raise InputError(f"validation must get numbers for the initial model, got {error}") from None

    def join(self, params: Vector) -> NDArray[Any]:
        """The trained arrays in their order, then the averaged ones."""
        return np.concatenate([params, self.rest]).astype(self.layout.dtype, copy=False)

    @property
    def vector(self) -> NDArray[Any]:
        """The whole model."""
        return self.join(self.params)

    @property
    def released(self) -> NDArray[Any]:
        """The whole model to measure, save and deploy."""
        release = self.strategy.release
        return self.join(self.params if release is None else np.asarray(release(self.state)))

    @property
    def record(self) -> ArrayRecord:
        """The model as it travels."""
        if self._record is None:
            self._record = self.layout.record(self.vector)
        return self._record

    def record_of(self, params: Vector) -> ArrayRecord:
        """Another model as it travels: the trained arrays from these, and the averaged ones as they are."""
        return self.layout.record(self.join(params))

    def follow(self, arrays: ArrayRecord) -> None:
        """Make sure that the state holds the model that is sent out, whoever may have changed it."""
        if arrays is not self._record and not np.array_equal(sent := self.layout.flat(arrays), self.vector):
            trained, rest = np.split(sent, [self.layout.moved])
            self.state = self.state._replace(params=trained)
            self.restore(rest)

    def restore(self, rest: NDArray[Any]) -> None:
        """Take other averaged arrays, after another state."""
        self.rest, self._record = rest, None
        self.measured = self.rows.measure(self.record)
        self.counts = _counts(self.measured)

    def accept(self, state: Any, replies: Replies) -> tuple[Any, str]:
        """A new state, if the whole model is finite and can be measured; the rest is averaged."""
        state, problem = super().accept(state, replies)
        if problem:
            return state, problem
        before = self.rest
        self.rest = before if replies.beside is None else before + replies.beside
        vector = self.join(np.asarray(state.params))
        if not np.isfinite(vector).all():
            self.rest = before
            return state, "the new model would not be finite"
        if self.max_weight is not None and np.abs(vector).max(initial=0.0) > self.max_weight:
            log(WARNING, "\t> the new model's weights are cut to at most %g (max-weight)", self.max_weight)
            vector = np.clip(vector, -self.max_weight, self.max_weight)
            trained, self.rest = np.split(vector, [self.layout.moved])
            state = state._replace(params=trained.astype(self.params.dtype))
        record = self.layout.record(vector)
        try:
            self.measured = self.rows.measure(record)
        except Exception as error:  # it has worked with the first model: this one is to blame
            self.rest = before
            return state, f"the new model makes {blame(error)}"
        self._record = record
        return state, ""


def _counts(measured: Measured) -> Counts:
    """On the validation rows; of no groups where there are none."""
    counts, _ = measured
    return np.zeros((0, 2, 2), dtype=np.int64) if counts is None else counts


class FlowerClients:
    """Clients on a federation: a round is a message to each of its cohort, and their replies, all checked.

    Parameters
    ----------
    server : the only one
    rounds : how many there are
    cohorts : which clients take part
    policy : what a reply may claim
    streams : by which clients are sampled
    roster : who is there
    local_half : from which a client builds its half of the strategy
    keys : of the ArrayRecord and the ConfigRecord of a message
    """

    grid: Grid
    """Flower's way to the nodes, set before the first round."""
    spec: str | None = None
    """Under differential privacy, the strategy with its steps."""
    deviation: float = 0.0
    """Under differential privacy, of the noise in each count of a client's histogram."""
    retrain: Callable[[Mapping[str, Any], Sequence[Models], float], Models]
    """Trains a model of something else than the label, given what clients are told of that, the models that
    they need for it, and the share of rounds whose models are averaged."""
    beside: Mapping[str, ArrayRecord] = MappingProxyType({})
    """What clients are sent beside the model to train."""

    def __init__(
        self,
        server: FlowerServer,
        rounds: int,
        cohorts: Cohorts,
        policy: ReplyPolicy,
        streams: Streams,
        roster: Roster,
        local_half: Mapping[str, Any],
        keys: tuple[str, str],
    ) -> None:
        self.server, self.rounds, self.cohorts, self.policy = server, rounds, cohorts, policy
        self.streams, self.roster, self.local_half, self.keys = streams, roster, local_half, keys
        self.rows, self.config = server.rows, ConfigRecord()
        self.timeout, self.late = 3600.0, "no reply in time"
        self.metrics: dict[str, Any] = {}
        """The means of the clients' own metrics in the last round."""
        self.asked = 0
        """How many clients that has asked."""
        self.sampled = ""
        """What is said of it, if clients' models are scored on a sample of the validation rows."""
        self._answers = 0
        """How many clients have answered the last question for a histogram."""
        self._sent: list[Message] = []
        self._buffer: NDArray[Any] | None = None

    # -- what the loop over rounds asks for ------------------------------------------------------------------

    def train(self, t: int, servers: Sequence[Server]) -> list[Replies]:
        """A round, repeated while too few replies count, but not too often."""
        log(INFO, "")
        log(INFO, "[ROUND %s/%s]", t, self.rounds)
        for attempt in range(1, self.cohorts.attempts + 1):
            messages = self.ask(t, self.server.record)
            try:
                # the replies have no name here: they are gone before the next ones need their room
                return [self.read(t, self.receive(messages))]
            except TooFewRepliesError as error:
                log(WARNING, "\t> attempt %d of %d at round %d: %s", attempt, self.cohorts.attempts, t, error)
                problem = str(error)
        raise InputError(f"round {t} failed after {self.cohorts.attempts} attempts: {problem}")

    def validate(self, models: Models) -> Counts:
        """(models, groups, 2, 2) on the server's validation rows; none of a model that does not predict."""
        if len(models) == 1 and np.array_equal(models[0], np.asarray(self.server.params, models.dtype)):
            return _counts(self.server.measured)[None]
        return np.stack([self._try(params) for params in models])

    def descend(self, params: Vector, loss: Loss) -> Vector:
        """What a step of training on the validation rows adds to the trained part of a model."""
        assert isinstance(self.rows.validation, BuiltIn)
        added = self.rows.validation.descend(self.server.record_of(params), loss)
        return self.server.layout.flat(added)[: self.server.layout.moved]

    def _try(self, params: Vector) -> Counts:
        assert self.rows.validation is not None
        try:
            return self.rows.validation.counts(self.server.record_of(params))
        except Exception:  # it has worked with the first model: this one is to blame
            return np.zeros((self.rows.groups, 2, 2), dtype=np.int64)

    # -- a round -------------------------------------------------------------------------------------------

    def ask(self, t: int, arrays: ArrayRecord) -> list[Message]:
        """Choose the clients of a round; what to send them."""
        clients = self.roster.clients(self.grid, self.cohorts.least)
        size = self.cohorts.size(len(clients))
        chosen = self.streams.cohort(t, len(clients), size).tolist() if size else []
        cohort = self.limit([clients[position] for position in chosen])
        names = listing(client.name for client in cohort)
        log(INFO, "configure_train: %d of %d clients: %s", len(cohort), len(clients), names)
        common = {**self.config, ROUND: t, **self.local_half, **self.about_noise, **self.about_sum(cohort)}
        broadcast = self._broadcast(cohort) if cohort else None
        self._sent = []
        for client in cohort:
            config = ConfigRecord({**common, **self.about_held(client)})
            if self.roster.question is not None:
                config["client"] = self.roster.number(client)
            if broadcast is not None:
                config[BROADCAST] = broadcast.ravel().tolist()
            content = RecordDict({**dict(zip(self.keys, (arrays, config), strict=True)), **self.beside})
            self._sent.append(Message(content, client.node, MessageType.TRAIN))
        return self._sent

    @property
    def about_noise(self) -> dict[str, str]:
        """What clients' noise depends on, under differential privacy."""
        return {} if self.spec is None else {SPEC: self.spec}

    def limit(self, cohort: list[Client]) -> list[Client]:
        """Those of a cohort who are asked."""
        return cohort

    def about_sum(self, cohort: Sequence[Client]) -> dict[str, Any]:
        """What clients must know of the others, where their answers are summed under masks."""
        return {}

    def _broadcast(self, cohort: Sequence[Client]) -> Vector | None:
        """What clients are told beside the model, cut to numbers that they accept."""
        rows = None
        if self.roster.groups:
            telling = [*self.roster.known.values()] if self.server.needs(Need.ALL_ROWS) else cohort
            rows = rows_told(telling, self.policy.max_examples)
        return limit_broadcast(self.server.broadcast(rows), self.policy.max_told)

    def receive(self, messages: Sequence[Message]) -> list[Message]:
        """Send messages; the replies that come in time."""
        largest = 2 * self.server.layout.size * 8 + ANSWER  # arrays, and room for names and metrics
        return receive(self.grid, messages, self.timeout, largest) if messages else []

    def read(self, t: int, messages: Iterable[Message]) -> Replies:
        """The replies to what was asked last, as far as they are usable.

        TooFewRepliesError with too few of them, before any client is asked about their models.
        """
        server, policy = self.server, self.policy
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._sent}
        self._sent, self.asked = [], len(asked)
        layout, model = server.layout, server.vector
        buffer = self._memory(len(asked))
        good = read_replies(asked, list(messages), layout, model, policy, self.late, buffer, self.roster.name)
        del messages  # as soon as a model is of no more use, so is its room
        if self.roster.groups and not policy.noise:
            check_rows(good, self.roster.known, policy.max_examples)
        local = None
        if self.rows.grouping is not None and server.needs(Need.REPORTS):
            local = read_reports(good, self.rows.groups, policy)
        scale_updates(good, server.strategy.scale, layout, model)
        scored, own = self._score(good, len(asked))
        if len(good.nodes) < min(self.cohorts.min_replies, len(asked)):
            raise TooFewRepliesError(good, self.cohorts.min_replies)
        individual = None
        if server.individual_terms and good.nodes:
            assert isinstance(self.rows.validation, BuiltIn)
            records = [*good.records, server.record]
            individual = self.rows.validation.score_individual(server.individual_terms, records)
        self.metrics = mean_metrics(good.metrics, good.num_examples, policy.weighted_by_key)
        replies = Replies(
            clients=tuple(self.roster.name(node) for node in good.nodes),
            deltas=good.deltas[:, : layout.moved],
            num_examples=good.num_examples,
            client_counts=scored,
            local=local,
            dropped=tuple(good.dropped),
            server_counts=own,
            individual=individual,
            beside=self._combine_rest(good),
            nodes=tuple(good.nodes),
            remarks=tuple("example count cut to the limit" if n in good.capped else "" for n in good.nodes),
        )
        if not self.at_clients or not good.nodes:
            return replies
        if server.needs(Need.TRIALS):
            judge = partial(self._ask_scores, t, self._validators(good))
            replies = replies._replace(score=lambda tried: judge([*map(server.record_of, tried)]))
        return self._judge(t, good, replies) if server.needs(Need.SCORES) else replies

    def _combine_rest(self, good: Received) -> Vector | None:
        """The mean update of the arrays that no strategy moves, where the model has some."""
        beside = good.deltas[:, self.server.layout.moved :]
        if not beside.size:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            return self.server.strategy.combine(beside, good.num_examples)[0]

    def _memory(self, clients: int) -> NDArray[Any]:
        """Room for a round's updates; the same as last time if it suffices, since fresh memory is slow.

        A state that keeps a view of it has it to itself.
        """
        buffer, kept = self._buffer, _arrays(self.server.state)
        if buffer is not None and any(np.may_share_memory(buffer, array) for array in kept):
            buffer = None
        if buffer is None or len(buffer) < clients:
            buffer = np.empty((clients, self.server.layout.size), dtype=self.server.layout.dtype)
        self._buffer = buffer
        return buffer

    def _score(self, good: Received, asked: int) -> tuple[Counts, Counts | None]:
        """The clients' models on the validation rows; and the server's, where these are a sample."""
        rows = self.rows.validation
        if rows is None or not self.server.needs(Need.SCORES):
            return np.zeros((0, 0, 2, 2), dtype=np.int64), None
        if isinstance(rows, BuiltIn):
            sample = rows.scoring_rows(asked, self.streams)
            if sample is not rows and not self.sampled:
                self.sampled = describe_sample(len(rows.rows), asked) or ""
                log(INFO, "\t> %s", self.sampled)
            if sample is not rows:
                return score(good, sample), sample.counts(self.server.record)
        return score(good, rows), None

    # -- clients that judge --------------------------------------------------------------------------------

    @property
    def at_clients(self) -> bool:
        """Whether the validation rows are those that clients hold out."""
        return self.rows.source.at_clients

    def about_held(self, client: Client) -> dict[str, Any]:
        """By what a client knows which rows it holds out, if it does."""
        if not self.at_clients:
            return {}
        number = self.roster.number(client)
        return {HELD_SHARE: self.rows.source.share, HELD_SEED: self.streams.seed, "client": number}

    def _most_held(self, name: str) -> float:
        return self.policy.most_held(name, self.rows.source.share, 2 * self.rows.groups)

    def _validators(self, good: Received) -> list[Client]:
        """Those who sent the replies, or all clients that are there."""
        if self.rows.source.validators == "all":
            online = set(self.grid.get_node_ids())
            return [client for node, client in self.roster.known.items() if node in online]
        return [self.roster.known[node] for node in good.nodes]

    def _judge(self, t: int, good: Received, replies: Replies) -> Replies:
        """The same with what the validators count on the rows that they hold out."""
        layout, source = self.server.layout, self.rows.source
        models = np.stack([layout.flat(record) for record in good.records])
        chosen = candidates(source, self.streams, t, replies.clients, models, good.num_examples)
        counts = np.zeros((len(chosen.models) + 1, self.rows.groups, 2, 2), dtype=np.int64)
        if chosen.is_scored:
            records = [*map(layout.record, chosen.models), self.server.record]
            counts = self._ask_scores(t, self._validators(good), records)
        if len(chosen.members) < len(good.nodes):
            deltas = (chosen.models - self.server.vector)[:, : layout.moved]
            replies = replies._replace(deltas=deltas, nodes=(), remarks=())
        return replies._replace(
            clients=chosen.names,
            num_examples=chosen.num_examples,
            client_counts=counts[:-1],
            server_counts=counts[-1],
        )

    def validate_released(self, params: Models) -> Counts:
        """(groups, 2, 2) the released model on all rows that clients hold out."""
        record = self.server.layout.record(params)
        return np.asarray(self._ask_scores(self.rounds + 1, self._everybody(), [record])[0])

    def _ask_scores(self, t: int, clients: Sequence[Client], models: Sequence[ArrayRecord]) -> Counts:
        """(models, groups, 2, 2) counts summed over the clients that answer for all models."""
        shape = (len(models), self.rows.groups, 2, 2)
        records = {f"{MODEL}{number}": model for number, model in enumerate(models)}

        def question(client: Client) -> RecordDict:
            about = {**self.about_held(client), ROUND: t, ASK: SCORES, "groups": self.rows.groups}
            return RecordDict({"config": ConfigRecord(about), **records})

        def read(reply: Message, name: str) -> Counts:
            return read_counts(reply, SCORES, shape, self._most_held(name), self.policy.min_cell)

        counts = ask_counts(self.grid, clients, question, read, self.timeout)
        return np.asarray(sum(counts, np.zeros(shape, dtype=np.int64)))

    # -- rows by the score of a released model ---------------------------------------------------------------

    def margins(self, params: Models, split: str) -> Margins | None:
        """The server's rows of a split by the score that a model gives them; None where it has none."""
        rows = self.rows.test if split == "test" else self.rows.validation
        return None if rows is None else rows.margins(self.server.layout.record(params))

    def histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the clients' training rows by score: sums."""
        if self.spec is None:
            return self._ask_histograms([params], {})
        return smooth_histogram(self._ask_histograms([params], {}, (PRIVATE_BINS,)))

    @property
    def histogram_noise(self) -> float:
        """The standard deviation of the noise in each count of the last histogram."""
        return math.sqrt(self._answers) * self.deviation

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the rows that clients hold out by score: sums."""
        return self._ask_histograms([params], {PART: HELD})

    def guess_groups(self, share: float, group: int = 1) -> Models:
        """A model of who is in a group, trained by as many rounds again."""
        more = {} if self.rows.groups == 2 else {GUESSED: group}
        return self.retrain({TARGET: GROUP, **more}, [], share)

    def distil(self, labelling: Labelling, share: float) -> Models:
        """A model of what a rule decides, trained by as many rounds again on labels that clients make."""
        about = {TARGET: DECISION, TABLE: labelling.tilt.text}
        return self.retrain(about, [labelling.params, *np.atleast_2d(labelling.group_params)], share)

    def priced(self, params: Models, group_params: Models, *, held_out: bool = False) -> Ask:
        """A way to ask clients about prices on several guessed groups."""
        number = 0

        def ask(rules: Sequence[GroupTilt]) -> NDArray[np.int64]:
            nonlocal number
            number += 1
            about: dict[str, Any] = {PART: HELD} if held_out else {}
            about |= {PRICES: [rule.text for rule in rules], ROUND: number}
            return self._ask_histograms([params, *group_params], about, (2, BINS), len(rules))

        return ask

    def joint_rows(
        self, params: Models, group_params: Models, bins: int, split: str
    ) -> NDArray[np.int64] | None:
        """(groups, 2, bins, bins) the server's rows of a split by both scores; None where it has none."""
        own, guessed = self.margins(params, split), self.margins(group_params, split)
        return None if own is None or guessed is None else joint_histogram(own, guessed, bins)

    def joint_histograms(
        self, params: Models, group_params: Models, bins: int, *, held_out: bool = False
    ) -> NDArray[np.int64]:
        """The same of the rows that clients train on or, with ``held_out``, hold out: sums."""
        part = {PART: HELD} if held_out else {}
        return self._ask_histograms([params, group_params], {**part, JOINT_BINS: bins}, (bins, bins))

    def split_histograms(self, params: Models, other: Models, *, held_out: bool = False) -> NDArray[np.int64]:
        """(groups, 2, 2, bins) the clients' rows by a model's decision and another one's score: sums."""
        part = {PART: HELD} if held_out else {}
        return self._ask_histograms([params, other], {**part, SPLIT: True}, (2, BINS))

    def _ask_histograms(
        self,
        models: Sequence[Models],
        about: Mapping[str, Any],
        bins: tuple[int, ...] = (BINS,),
        rules: int = 0,
    ) -> NDArray[np.int64]:
        """The clients' rows by group, label and the ranges of models' scores: sums; for each rule, if any."""
        strata = (self.rows.groups, 2, *bins)
        shape, records = (rules, *strata) if rules else strata, [*map(self.server.layout.record, models)]
        arrays = {f"{MODEL}{number}": record for number, record in enumerate(records)}
        arrays = arrays if len(records) > 1 else {"arrays": records[0]}
        most = self._most_held if PART in about else self.policy.most_counted

        def question(client: Client) -> RecordDict:
            asked = {**self.about_held(client), **about, ASK: HISTOGRAM, "groups": self.rows.groups}
            asked |= self.about_noise
            return RecordDict({**arrays, "config": ConfigRecord(asked)})

        def read(reply: Message, name: str) -> NDArray[np.int64]:
            least = self.policy.min_cell
            return read_counts(reply, HISTOGRAM, shape, most(name), least, self.policy.noise, max(rules, 1))

        counts = ask_counts(self.grid, self._everybody(), question, read, self.timeout)
        self._answers = len(counts)
        total = np.asarray(sum(counts, np.zeros(shape, dtype=np.int64)))
        first = total[0] if rules else total
        empty = np.flatnonzero(first.sum(axis=tuple(range(1, first.ndim))) <= 0)
        if len(empty):
            raise InputError(
                f"thresholds from clients must have rows of every group, got none of group {empty[0]}"
            )
        return total

    def _everybody(self) -> list[Client]:
        return self.roster.clients(self.grid, max(1, self.cohorts.min_available_nodes))


def limit_broadcast(broadcast: Vector | None, most: float | None) -> Vector | None:
    """What clients are told beside the model, cut to numbers that they accept."""
    if broadcast is None or most is None or not (np.abs(broadcast) > most).any():
        return broadcast
    log(WARNING, "\t> numbers sent to clients beside the model are cut to at most %g", most)
    return np.clip(broadcast, -most, most)


def _arrays(state: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a state, those in its dictionaries and tuples too."""
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, Mapping | tuple | list):
        for value in state.values() if isinstance(state, Mapping) else state:
            yield from _arrays(value)
