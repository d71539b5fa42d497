"""Any strategy of this library as a Flower strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as Base
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data.groups import Groups
from fairfate.engine import server as rounds
from fairfate.engine.record import REFUSED, ClientRound, client_rounds
from fairfate.engine.validators import candidates
from fairfate.errors import InputError, check, listing
from fairfate.experiments.prepare import check_individual, check_validation_source
from fairfate.fairness.metrics import Counts, Values
from fairfate.fairness.objective import parse_objective
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import AT_SERVER, describe_sample, parse_validation_source
from fairfate.flower.checks import check_rows, read_reports, rows_told, scale_updates, score
from fairfate.flower.evaluation import Evaluation, mean_metrics
from fairfate.flower.global_model import GlobalModel
from fairfate.flower.history import Round, account, clients_of, plain_notes, rounds_of
from fairfate.flower.logs import log
from fairfate.flower.nodes import Client, Roster
from fairfate.flower.receive import receive
from fairfate.flower.replies import (
    BROADCAST,
    LEARNING_RATE,
    Limits,
    Replies,
    TooFewRepliesError,
    read_replies,
)
from fairfate.flower.saved import Saved
from fairfate.flower.steps import ask_histograms, take_thresholds
from fairfate.flower.validation import BuiltIn, Measure
from fairfate.flower.validators import HELD, HELD_SEED, HELD_SHARE, PART, ask_counts
from fairfate.strategies import AVERAGE, THRESHOLDS, Average, Need, Setup, Spec, StrategyLike, parse_spec
from fairfate.strategies.registry import TWO_GROUPS
from fairfate.strategies.strategy import INDIVIDUAL_NEEDS, ON_VALIDATION, Needs

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FlowerStrategy(Base):
    """A strategy of this library as a Flower strategy, for any model and any clients.

    Sampling and summing depend on the seed and the clients, never on the order of replies. Every reply is
    checked; a bad one is dropped, named in the log and counted, and a round without a good one keeps the
    model.

    Parameters
    ----------
    strategy : ``name[:key=value,...][+step...]`` as on the command line, or an object such as ``fedavg()``
    num_rounds : needed by schedules that end with the run; may be left to `start`
    validation : the server's labelled rows, for strategies that look at fairness
    test : other labelled rows to measure the model on after every round
    metric : fairness the strategy looks at, unless its settings say so: an objective such as ``eqo``
    validation_from : ``server``, or ``clients[:mode=cross|secure,...]`` where the server has no rows for
        this: clients hold some out and count how models do on them (see the documentation); rows are then
        counted by the groups of ``test``
    protocol : ``paper``, or ``published`` for the arithmetic of the published runs
    seed : of the sampling of clients
    per_round : clients in a round; without it ``fraction_train`` decides
    fraction_train, fraction_evaluate : shares of the clients to train and evaluate in a round
    min_train_nodes, min_evaluate_nodes, min_available_nodes : as in Flower's FedAvg
    min_replies : a round in which fewer replies count is repeated, in all ``attempts`` times; then the run
        ends with an error, and goes on from its checkpoint when it is started again
    max_wait : seconds to wait for enough clients before the run ends with an error
    max_norm : L2 norm above which an update is dropped; None compares the updates of a round with each
        other, infinity takes all
    max_examples : most examples that a client may count for
    max_weight : weights of the model are cut to this, and a client's model with one of more than twice that
        is dropped
    min_cell : clients tell of no count of fewer rows, but may of none; one that does is dropped
    max_told : numbers that clients are told beside the model are cut to this
    row_ranges : for clients of these names, how many examples they may claim, at least and at most; a
        reply that claims others is dropped
    learning_rate : of the clients' SGD, for strategies that must know it (``qffl``)
    checkpoint : file that holds the run after every round; where it exists, `start` goes on from it
    ask_clients : send each new node a query for its name (see the documentation); the default asks only
        for strategies that need the clients' counts
    query_config : what to send along with that query
    averaged : last parts of the names of arrays that are averaged by example counts and not moved by the
        strategy, as whole-number arrays always are; the default are a batch norm's running figures
    weighted_by_key, arrayrecord_key, configrecord_key : as in Flower's FedAvg
    study : checksum of what the clients have agreed to; a checkpoint of another one is not gone on from
    on_round : called by `start` after every round with all rounds so far, once the checkpoint is written
    """

    def __init__(
        self,
        strategy: StrategyLike,
        *,
        num_rounds: int | None = None,
        validation: Measure | None = None,
        test: Measure | None = None,
        metric: str = "eqo",
        validation_from: str = "server",
        protocol: str = "paper",
        seed: int = 1,
        per_round: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        min_replies: int = 0,
        attempts: int = 3,
        max_wait: float = 600.0,
        max_norm: float | None = None,
        max_examples: float | None = None,
        max_weight: float | None = None,
        min_cell: int = 0,
        max_told: float | None = None,
        row_ranges: Mapping[str, tuple[int, int]] | None = None,
        learning_rate: float | None = None,
        checkpoint: str | Path | None = None,
        ask_clients: bool | None = None,
        query_config: ConfigRecord | None = None,
        averaged: Sequence[str] = ("running_mean", "running_var", "num_batches_tracked"),
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        study: str = "",
        on_round: Callable[[Sequence[Round]], None] = lambda history: None,
    ) -> None:
        check(num_rounds is None or num_rounds >= 1, "num_rounds must be >= 1", num_rounds)
        parse_objective(metric, counted=True)
        check(protocol in ("paper", "published"), "protocol must be paper or published", protocol)
        check(per_round is None or per_round >= 1, "per_round must be >= 1", per_round)
        for name, share in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            check(0 <= share <= 1, f"{name} must be in [0, 1]", share)
        for name, least in (
            ("min_train_nodes", min_train_nodes),
            ("min_evaluate_nodes", min_evaluate_nodes),
            ("min_available_nodes", min_available_nodes),
            ("min_replies", min_replies),
        ):
            check(least >= 0, f"{name} must be >= 0", least)
        limits = {"max_norm": max_norm, "max_examples": max_examples, "learning_rate": learning_rate}
        limits |= {"max_weight": max_weight, "max_told": max_told}
        for name, limit in limits.items():
            check(limit is None or limit > 0, f"{name} must be > 0", limit)
        check(max_wait > 0, "max_wait must be > 0", max_wait)
        check(attempts >= 1, "attempts must be >= 1", attempts)
        check(min_cell >= 0, "min_cell must be >= 0", min_cell)
        self.spec: Spec = parse_spec(strategy, metric)
        self.num_rounds = num_rounds
        self.validation, self.test = validation, test
        self.validation_source = parse_validation_source(validation_from)
        check(
            self.validation_source.rows is None,
            "validation_from must not limit rows on Flower",
            validation_from,
        )
        if self.validation_source.at_clients:
            self._check_clients_judge()
        self.protocol, self.seed = protocol, seed
        self.streams = Streams(seed, protocol == "published")
        self.per_round, self.fraction_train, self.fraction_evaluate = (
            per_round,
            fraction_train,
            fraction_evaluate,
        )
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.min_replies, self.attempts = min_replies, attempts
        self.row_ranges = row_ranges or {}
        self.limits = Limits(max_norm, max_examples, max_weight, min_cell, max_told)
        self.learning_rate = learning_rate
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.averaged = tuple(averaged)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.study, self.on_round = study, on_round
        check_individual(self.spec, self.validation_source)
        needs = self.spec.build(self._setup(num_rounds or 1)).needs
        check_validation_source(self.spec, needs, self.validation_source)
        if self.validation_source.at_clients and Need.TRIALS in needs and Need.SCORES in needs:
            raise InputError("keep must be 0 where clients judge on Flower, got more")
        counting: Needs = {Need.ROWS, Need.ALL_ROWS, Need.REPORTS}
        for need, why in ((ON_VALIDATION, "scores models"), (counting, "counts groups")):
            if needs & need and self.grouping is None:
                raise InputError(f"validation must be given for {self.spec.name}, which {why}, got none")
        if Need.DESCENT in needs and not isinstance(validation, BuiltIn):
            raise InputError(
                f"{self.spec.name} must be run in the ready app, where the server can train the model,"
                " got predictions only"
            )
        if needs & set(INDIVIDUAL_NEEDS.values()):
            self._check_individual()
        if self.spec.step(THRESHOLDS) is not None and self.grouping is None:
            raise InputError("validation must be given for thresholds, which are measured on it, got none")
        self.needs = needs
        self.told_rows = bool(needs & {Need.ROWS, Need.ALL_ROWS})
        must_ask = self.told_rows or self.validation_source.at_clients
        asks = must_ask if ask_clients is None else ask_clients
        if must_ask and not asks:
            raise InputError(f"ask_clients must be left out or True for {self.spec.name}, got False")
        held = {HELD_SHARE: self.validation_source.share} if self.validation_source.at_clients else {}
        question = ConfigRecord({**(query_config or {}), **held, "wants-rows": self.told_rows})
        groups = len(self.grouping) if self.told_rows and self.grouping is not None else 0
        self.roster = Roster(
            question if asks else None,
            groups,
            max_wait=max_wait,
            most=self._most_rows,
            min_cell=min_cell,
            expected=tuple(self.row_ranges),
        )
        self.evaluation = Evaluation(self)
        self.history: list[Round] = []
        """What happened so far."""
        self.sampled = ""
        """What was said of it, if clients' models are scored on a sample of the validation rows."""
        self.thresholds: Values | None = None
        """One for each group, once they have been chosen."""
        self._model: GlobalModel | None = None
        self._saved = Saved(None, {})
        self._asked: list[Message] = []
        self.late = "no reply in time"
        self._grid: Grid | None = None
        self._timeout = 3600.0

    def _check_clients_judge(self) -> None:
        check(self.validation is None, "validation must be left out where clients judge", "some")
        check(self.test is not None, "test must be given where clients judge, for its groups", "none")

    def _check_individual(self) -> None:
        """Find out whether the server can see how models treat single people."""
        if not isinstance(self.validation, BuiltIn) or self.validation.individual is None:
            raise InputError(
                f"metric '{self.spec.base.metric}' must be run in the ready app, where the server sees rows"
                " themselves, got predictions only"
            )
        self.validation.individual.check(self.spec.individual)

    @property
    def grouping(self) -> Groups | None:
        """What rows are counted by: the server's, or those that clients hold out."""
        known = self.test if self.validation_source.at_clients else self.validation
        return None if known is None else known.grouping

    def _setup(self, num_rounds: int) -> Setup:
        groups = self.grouping or TWO_GROUPS
        published = self.protocol == "published"
        return Setup(num_rounds, published, groups, self.learning_rate, self.validation_source.min_cell)

    def _held(self, client: Client) -> dict[str, Any]:
        """By what a client knows which rows it holds out, if it does."""
        if not self.validation_source.at_clients:
            return {}
        number = self.roster.number(client)
        return {HELD_SHARE: self.validation_source.share, HELD_SEED: self.seed, "client": number}

    def _about_models(self, number: int) -> Callable[[Client], dict[str, Any]]:
        """What a client is told that is asked to judge a round's models, or after the last the released."""
        question = self.roster.question
        return lambda client: {**(question or {}), **self._held(client), "server-round": number}

    # -- the loop ------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds, as Flower's strategies do; go on where a checkpoint ends.

        Parameters
        ----------
        grid : Flower's way to the nodes
        initial_arrays : the model at the start
        num_rounds : how many rounds in all, unless the strategy knows
        timeout : seconds to wait for the replies of a round; whoever is later does not count
        train_config, evaluate_config : sent to the clients
        evaluate_fn : called with the round and the model before the first and after every round
        """
        check(timeout > 0, "timeout must be > 0", timeout)
        model = self._begin(initial_arrays, self._agreed_rounds(num_rounds))
        assert self.num_rounds is not None
        saved = self._saved = Saved(self.checkpoint, self._identity(model))
        self.roster.timeout = min(timeout, self.roster.timeout)
        self.late, self._timeout = f"no reply within {timeout:g} s", timeout
        result, arrays = Result(arrays=initial_arrays), initial_arrays
        log(INFO, "Starting %s for %d rounds", self.spec.text, self.num_rounds)
        self.summary()
        log(INFO, "\t└── A round waits up to %g s for its replies (timeout)", timeout)
        began = time.monotonic()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config

        def keep(t: int) -> None:
            saved.write(t, model, self.history, self.roster.names, result)

        def evaluate(t: int) -> None:
            """What has not been evaluated yet, at the clients and by the user's function."""
            wanted = t > 0 and t not in result.evaluate_metrics_clientapp
            messages = list(self.configure_evaluate(t, arrays, evaluate_config, grid)) if wanted else []
            if messages:
                replies = receive(grid, messages, timeout, model.largest_reply)
                _keep(result.evaluate_metrics_clientapp, t, self.aggregate_evaluate(t, replies), "Evaluation")
            if evaluate_fn is not None and t not in result.evaluate_metrics_serverapp:
                _keep(result.evaluate_metrics_serverapp, t, evaluate_fn(t, arrays), "Global evaluation")
            if messages or evaluate_fn is not None:
                keep(t)

        first = saved.resume(model, self.history, self.roster.names, result) + 1
        arrays = result.arrays
        evaluate(first - 1)
        for t in range(first, self.num_rounds + 1):
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", t, self.num_rounds)
            aggregated, metrics = self._train(t, arrays, train_config, grid, timeout)
            if aggregated is not None:
                result.arrays = arrays = aggregated
            _keep(result.train_metrics_clientapp, t, metrics)
            keep(t)  # what follows may fail; the round is safe
            self.on_round(self.history)
            evaluate(t)
        self._finish(grid, model, result, timeout)
        log(INFO, "")
        log(INFO, "%s finished in %.1f s", self.spec.name, time.monotonic() - began)
        for line in account(self.history, self.roster.refused):
            log(INFO, "\t%s", line)
        return result

    def _train(
        self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A round, repeated while too few replies count, but not too often."""
        for attempt in range(1, self.attempts + 1):
            messages = list(self.configure_train(t, arrays, config, grid))
            try:
                # the replies have no name here: they are gone before the next ones need their room
                return self._aggregate(
                    t, receive(grid, messages, timeout, self.model.largest_reply) if messages else []
                )
            except TooFewRepliesError as error:
                log(WARNING, "\t> attempt %d of %d at round %d: %s", attempt, self.attempts, t, error)
                problem = str(error)
        raise InputError(f"round {t} was given up after {self.attempts} attempts: {problem}")

    def _agreed_rounds(self, given: int | None) -> int:
        """The number of rounds, of which the strategy and `start` may both have been told."""
        check(given is None or given >= 1, "num_rounds must be >= 1", given)
        if given is not None and self.num_rounds not in (None, given):
            raise InputError(
                f"num_rounds must be the same for the strategy and for start, got {self.num_rounds}"
                f" and {given}"
            )
        return given or self.num_rounds or 3

    def _begin(self, arrays: ArrayRecord, num_rounds: int) -> GlobalModel:
        """Build the strategy, and its state from the first model."""
        self.num_rounds = num_rounds
        strategy, step = self.spec.build(self._setup(num_rounds)), self.spec.step(AVERAGE)
        average = None if step is None else Average(float(step["share"]), num_rounds)
        self._model = GlobalModel(
            arrays, self.averaged, strategy, average, self.validation, self.test, self.limits.max_weight
        )
        self._model.grouping = self.grouping
        state = self._model.server.state
        if not hasattr(state, "_replace"):
            raise InputError(
                f"the state of {self.spec.name} must be a NamedTuple to run on Flower,"
                f" got {type(state).__name__}"
            )
        self.history, self.thresholds = [], None
        return self._model

    @property
    def model(self) -> GlobalModel:
        """The server's model, once there is one."""
        if self._model is None:
            raise InputError("the strategy must have been started to have a model")
        return self._model

    def _finish(self, grid: Grid, model: GlobalModel, result: Result, timeout: float) -> None:
        """Release the model: an average, with thresholds, if the strategy takes these steps."""
        result.arrays = model.layout.record(model.released)
        step = self.spec.step(THRESHOLDS)
        if self.grouping is None or (step is None and not self.validation_source.at_clients):
            return
        assert self.num_rounds is not None
        groups, histogram = len(self.grouping), None
        asked = self.validation_source.at_clients or (step is not None and step["from"] == "clients")
        clients = self.roster.clients(grid, max(1, self.min_available_nodes)) if asked else []
        if step is None:
            about = self._about_models(self.num_rounds + 1)
            (held,) = ask_counts(
                grid, clients, [result.arrays], about, groups, self._most_held, timeout, self.limits.min_cell
            )
            self.history[-1] = self.history[-1]._replace(validation=held)
            return
        rows: Measure | NDArray[np.int64] | None = self.validation
        question = self.roster.question

        def ask(most: Callable[[str], float], about: Callable[[Client], dict[str, Any]]) -> NDArray[np.int64]:
            least = self.limits.min_cell
            return ask_histograms(grid, clients, result.arrays, question, groups, timeout, most, about, least)

        if self.validation_source.at_clients:
            rows = ask(self._most_held, lambda client: {**self._held(client), PART: HELD})
        if step["from"] == "clients":
            histogram = ask(self._most, self._held)
        assert rows is not None
        fairness = replace(self._setup(self.num_rounds), min_cell=0).fairness(str(step["metric"]))
        self.thresholds, counts = take_thresholds(step, fairness, histogram, rows, self.test, result.arrays)
        self.history[-1] = self.history[-1]._replace(validation=counts[0], test=counts[1])

    # -- Flower's hooks ------------------------------------------------------------------------------------

    def summary(self) -> None:
        """Log what the strategy is about to do."""
        clients = "all clients" if self.fraction_train == 1 else f"{self.fraction_train:.0%} of the clients"
        clients = clients if self.per_round is None else f"{self.per_round} clients"
        clients += f", once {max(self.min_available_nodes, self._least(self.min_train_nodes))} are there"
        log(INFO, "\t├── %s, protocol %s, seed %d", self.spec.text, self.protocol, self.seed)
        log(INFO, "\t├── A round trains %s", clients)
        longest, most = self.limits.max_norm, self.limits.max_examples
        norm = "automatic" if longest is None else f"{longest:g}"
        examples = "none" if most is None else f"{most:g}"
        log(INFO, "\t├── Limits on replies: max_norm %s, max_examples %s", norm, examples)
        log(INFO, "\t├── Waits up to %g s for enough clients (max_wait)", self.roster.max_wait)
        log(INFO, "\t├── Checkpoint: %s", self.checkpoint or "none")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of a round, and what to send them."""
        model, self._grid = self._follow(arrays), grid
        clients = self.roster.clients(grid, max(self.min_available_nodes, self._least(self.min_train_nodes)))
        size = self._size(len(clients), self.fraction_train, self.min_train_nodes)
        chosen = self.streams.cohort(server_round, len(clients), size).tolist() if size else []
        sampled = [clients[position] for position in chosen]
        names = listing(client.name for client in sampled)
        log(INFO, "configure_train: %d of %d clients: %s", size, len(clients), names)
        telling = [*self.roster.known.values()] if Need.ALL_ROWS in self.needs else sampled
        rows = rows_told(telling, self.limits.max_examples) if self.told_rows and sampled else None
        broadcast = self._within_limit(model.server.broadcast(rows)) if sampled else None
        self._asked = []
        for client in sampled:
            mine = ConfigRecord({**config, "server-round": server_round, **self._told(model)})
            mine.update(self._held(client))
            if self.roster.question is not None:
                mine["client"] = self.roster.number(client)
            if broadcast is not None:
                mine[BROADCAST] = [float(value) for value in broadcast.ravel()]
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: mine})
            self._asked.append(Message(content, client.node, MessageType.TRAIN))
        return self._asked

    def _within_limit(self, told: Values | None) -> Values | None:
        """What clients are told, cut to numbers that they accept."""
        most = self.limits.max_told
        if told is None or most is None or not (np.abs(told) > most).any():
            return told
        log(WARNING, "\t> what clients are told beside the model is cut to numbers within %g", most)
        return np.clip(told, -most, most)

    def _follow(self, arrays: ArrayRecord) -> GlobalModel:
        """Make sure that the model is the one that is sent out, whoever may have changed it."""
        if self._model is not None:
            self._model.follow(arrays)
            return self._model
        if self.num_rounds is None:
            raise InputError("num_rounds must be given to the strategy when it is not run by its start")
        if self.checkpoint is not None:
            raise InputError(
                "checkpoint must be left out when the strategy is not run by its start,"
                f" got '{self.checkpoint}'"
            )
        return self._begin(arrays, self.num_rounds)

    def _row_range(self, node: int) -> tuple[int, float]:
        """How many examples a node may claim."""
        nobody = (1, 0) if self.row_ranges else (0, math.inf)
        return self.row_ranges.get(self.roster.name(node), nobody)

    def _most_rows(self, name: str) -> float:
        """How many rows a client may have."""
        return self.row_ranges.get(name, (0, 0 if self.row_ranges else math.inf))[1]

    def _most(self, name: str) -> float:
        """How many rows a client may count."""
        return min(self._most_rows(name), self.limits.max_examples or math.inf)

    def _most_held(self, name: str) -> float:
        """How many rows a client may hold out beside those that it trains on, rounded up in each stratum."""
        strata = 2 * len(self.grouping) if self.grouping is not None else 0
        share = self.validation_source.share
        return min(self._most(name), share / (1 - share) * self._most_rows(name) + strata)

    def _least(self, minimum: int) -> int:
        return max(1, minimum if self.per_round is None else self.per_round)

    def _size(self, clients: int, share: float, minimum: int) -> int:
        if self.per_round is not None:
            return min(self.per_round, clients)
        return 0 if share == 0 else min(max(int(clients * share), minimum, 1), clients)

    def _told(self, model: GlobalModel) -> dict[str, Any]:
        """What a client's half of the strategy is built from."""
        assert self.num_rounds is not None
        if model.server.strategy.local_loss is None and Need.REPORTS not in self.needs:
            return {}
        told = {"strategy": self.spec.own.text, "num-rounds": self.num_rounds, "protocol": self.protocol}
        return told if self.learning_rate is None else {**told, LEARNING_RATE: self.learning_rate}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, score the models, aggregate; with too few good replies the model stays."""
        try:
            return self._aggregate(server_round, replies)
        except TooFewRepliesError as error:
            log(WARNING, "\t> round %d does not count: %s", server_round, error)
            return None, None

    def _aggregate(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The same; TooFewRepliesError, and nothing has changed, with too few good replies."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._asked}
        self._asked = []
        model = self.model
        good = read_replies(
            asked,
            list(replies),
            model.layout,
            model.vector,
            self.limits,
            self.weighted_by_key,
            self.late,
            model.memory(len(asked)),
            self._row_range,
        )
        del replies  # as soon as a model is of no more use, so is its room
        sent = self._check(server_round, len(asked), good, model)
        outcome = model.take(server_round, good, sent)
        done = self._record(server_round, len(asked), good, sent, outcome)
        self.history.append(done)
        done.log()
        means = mean_metrics(good.metrics, good.num_examples, self.weighted_by_key)
        return None if outcome.problem else model.record, MetricRecord({**means, **done.numbers()})

    def _check(self, number: int, asked: int, good: Replies, model: GlobalModel) -> rounds.Replies:
        """Drop what turns out to be of no use; the rest as the loop over rounds takes it.

        TooFewRepliesError with too few of them, before any client is asked about their models.
        """
        local, individual, own = None, None, None
        scored = np.zeros((0, 0, 2, 2), dtype=np.int64)
        if self.told_rows:
            check_rows(good, self.roster.known, self.limits.max_examples)
        if self.grouping is not None and Need.REPORTS in self.needs:
            local = read_reports(good, len(self.grouping), self.weighted_by_key, self.limits.min_cell)
        scale_updates(good, model.server.strategy.scale, model.layout, model.vector)
        if self.validation is not None and Need.SCORES in self.needs:
            rows = self.validation
            if isinstance(rows, BuiltIn):
                rows = self._scoring_rows(rows, asked)
            scored = score(good, rows)
            own = None if rows is self.validation else rows.counts(model.record)
        if len(good.nodes) < min(self.min_replies, asked):
            raise TooFewRepliesError(good, self.roster.name, self.min_replies)
        if isinstance(self.validation, BuiltIn) and model.server.individual_terms and len(good.nodes):
            individual = self.validation.score_individual(
                model.server.individual_terms, [*good.records, model.record]
            )
        found = rounds.Replies(
            clients=tuple(self.roster.name(node) for node in good.nodes),
            deltas=good.deltas[:, : model.layout.moved],
            num_examples=good.num_examples,
            client_counts=scored,
            local=local,
            dropped=tuple(rounds.Dropped(self.roster.name(gone.node), gone.reason) for gone in good.dropped),
            server_counts=own,
            individual=individual,
        )
        if not self.validation_source.at_clients or not good.nodes:
            return found
        if Need.TRIALS in self.needs:
            found = found._replace(
                score=lambda tried: self._ask(number, good, [*map(model.record_of, tried)])
            )
        return self._judged(number, good, found, model) if Need.SCORES in self.needs else found

    def _ask(self, number: int, good: Replies, models: Sequence[ArrayRecord]) -> Counts:
        """Counts of models on what those who sent the replies hold out, or all clients that are there."""
        assert self.grouping is not None
        assert self._grid is not None
        judges = [self.roster.known[node] for node in good.nodes]
        if self.validation_source.validators == "all":
            online = set(self._grid.get_node_ids())
            judges = [client for node, client in self.roster.known.items() if node in online]
        groups = len(self.grouping)
        about = self._about_models(number)
        return ask_counts(
            self._grid, judges, models, about, groups, self._most_held, self._timeout, self.limits.min_cell
        )

    def _scoring_rows(self, rows: BuiltIn, clients: int) -> BuiltIn:
        """The validation rows that the models of so many clients are scored on."""
        found = rows.judged(clients, self.streams)
        if found is not rows and not self.sampled:
            self.sampled = describe_sample(len(rows.rows), clients) or ""
            log(INFO, "\t> %s", self.sampled)
        return found

    def _judged(
        self, number: int, good: Replies, found: rounds.Replies, model: GlobalModel
    ) -> rounds.Replies:
        """The same with what those who sent the replies count on the rows that they hold out."""
        assert self.grouping is not None
        models = np.stack([model.layout.flat(record) for record in good.records])
        of = candidates(
            self.validation_source, self.streams, number, found.clients, models, good.num_examples
        )
        counts = np.zeros((len(of.models) + 1, len(self.grouping), 2, 2), dtype=np.int64)
        if of.judged:
            counts = self._ask(number, good, [*map(model.layout.record, of.models), model.record])
        deltas = found.deltas
        if len(of.members) < len(good.nodes):
            deltas = (of.models - model.vector)[:, : model.layout.moved]
        return found._replace(
            clients=of.names,
            deltas=deltas,
            num_examples=of.num_examples,
            client_counts=counts[:-1],
            server_counts=counts[-1],
        )

    def _record(
        self, number: int, asked: int, good: Replies, sent: rounds.Replies, outcome: rounds.Outcome
    ) -> Round:
        clients = []
        own = good.nodes if len(sent.clients) == len(good.nodes) else [0] * len(sent.clients)  # of buckets
        nodes = [*own, *(gone.node for gone in good.dropped)]
        for client, node in zip(client_rounds(number, sent, outcome), nodes, strict=True):
            cut = "example count cut to the limit" if node in good.capped else ""
            clients.append(client._replace(reason=client.reason or cut, node=node))
        clients += [
            ClientRound(number, name, REFUSED, why, node=node)
            for node, (name, why) in sorted(self.roster.refused.items())
        ]
        problem = outcome.problem if good.nodes else ""
        notes = plain_notes(outcome.notes)
        measured = self.model.measure_released()
        return Round(number, asked, notes, tuple(clients), *measured, problem, self.grouping)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients that evaluate the model on their own rows."""
        return self.evaluation.configure(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' own metrics, in the order in which they were asked."""
        return self.evaluation.aggregate(replies)

    # -- what is left behind -------------------------------------------------------------------------------

    @property
    def released(self) -> NDArray[Any]:
        """The model to measure, save and deploy, as one vector."""
        return self.model.released

    def rounds(self, dataset: str = "flower", partition: str = "sites") -> pd.DataFrame:
        """Every metric of every round so far, as `fairfate run` records it."""
        key = {"dataset": dataset, "partition": partition, "protocol": self.protocol, "seed": self.seed}
        return rounds_of(self.history, self.spec, **key)

    def clients(self) -> pd.DataFrame:
        """One row for each client that was asked in a round: outcome, reason, examples, fairness."""
        return clients_of(self.history)

    def _identity(self, model: GlobalModel) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "strategy": self.spec.text,
            "num_rounds": self.num_rounds,
            "protocol": self.protocol,
            "seed": self.seed,
            "arrays": [list(model.layout.names), [list(s) for s in model.layout.shapes]],
            "types": list(model.layout.dtypes),
            "averaged": list(self.averaged),
            "clients": [self.per_round, self.fraction_train, self.min_train_nodes],
            "limits": [self.limits.max_norm, self.limits.max_examples],
            **({} if not self.study else {"study": self.study}),
            **({} if self.learning_rate is None else {"learning_rate": self.learning_rate}),
            **(
                {}
                if self.validation_source == AT_SERVER
                else {"validation_from": str(self.validation_source)}
            ),
            "rows": [rows.checksum for rows in (self.validation, self.test) if rows is not None],
            "version": __version__,
        }


def _keep(
    records: dict[int, MetricRecord], t: int, found: MetricRecord | None, said: str | None = None
) -> None:
    if found is not None:
        records[t] = found
        if said:
            log(INFO, "%s: %s", said, dict(found))
