"""Any strategy of this library as a Flower strategy."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
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
from fairfate.engine.checkpoint import Checkpoint
from fairfate.engine.loop import Round, aggregate, connect, run_rounds
from fairfate.engine.record import CountsRecord, client_rounds, clients_frame
from fairfate.engine.recorder import Recorder, Trace
from fairfate.engine.secure_sums import SecureSums
from fairfate.errors import InputError, check, plain
from fairfate.experiments.job import trace_frame
from fairfate.experiments.prepare import (
    check_bound,
    check_individual,
    check_secure_sums,
    check_validation_source,
)
from fairfate.fairness.objective import parse_objective
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import AT_SERVER, parse_validation_source
from fairfate.flower.clients import Cohorts, FlowerClients, FlowerServer
from fairfate.flower.logs import RoundSummary, log, one_line, run_summary
from fairfate.flower.messages import (
    DECISION,
    GROUP,
    GUESSED,
    HELD_SHARE,
    LEARNING_RATE,
    MODEL,
    ROUND,
    SPEC,
    TARGET,
    MismatchError,
)
from fairfate.flower.replies import ReplyPolicy, TooFewRepliesError, example_count, mean_metrics
from fairfate.flower.roster import Roster
from fairfate.flower.validation import BuiltIn, Measure, ServerRows
from fairfate.models.model import Models
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import other_noise
from fairfate.privacy.releases import HISTOGRAM, releases_of, sensitivity
from fairfate.strategies import Need, Setup, Spec, StrategyLike, parse_spec
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.registry import TWO_GROUPS
from fairfate.strategies.strategy import INDIVIDUAL_NEEDS, ON_VALIDATION, Needs

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
_RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class FlowerStrategy(Base):
    """A strategy of this library as a Flower strategy, for any model and any clients.

    Sampling and summing depend on the seed and the clients, never on the order of replies. Every reply is
    checked; a bad one is dropped, logged and counted. A round without a good reply keeps the model.

    Parameters
    ----------
    strategy : ``name[:key=value,...][+step...]`` as on the command line, or an object such as ``fedavg()``
    num_rounds : for schedules that end with the run; by default those of `start`
    validation : the server's labelled rows, for strategies that measure fairness
    test : other labelled rows on which the model is measured after every round
    metric : the objective of a strategy that names none, such as ``eqo``
    validation_from : ``server``, or ``clients[:mode=cross|secure,...]`` if the server has no validation rows:
        clients hold some rows out and count how models perform on them, by the groups of ``test``
    protocol : ``paper``, or ``published`` for the arithmetic of the published runs
    seed : of the sampling of clients
    learning_rate : of the clients' SGD, for strategies that need it (``qffl``)
    cohorts : which clients take part in a round, and how long the server waits for them
    replies : what a reply may claim; one that claims more is dropped
    checkpoint : file with the state after every round; if it exists, `start` continues from it
    arrayrecord_key, configrecord_key : as in Flower's FedAvg
    study : checksum of what the clients have agreed to; a checkpoint of another study is not continued
    secure_sums : the rule by which clients' answers are summed under masks, in the ready app only
    privacy : the budget of differential privacy that clients keep to, in the ready app only
    on_record : called by `start` after every round, once the checkpoint is written, with the round's number
        and the record so far

    Examples
    --------
    >>> strategy = FlowerStrategy("fedavg_lr+average", num_rounds=20, cohorts=Cohorts(per_round=3))
    >>> strategy.spec.text
    'fedavg_lr+average:share=0.5'
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
        learning_rate: float | None = None,
        cohorts: Cohorts | None = None,
        replies: ReplyPolicy | None = None,
        checkpoint: str | Path | None = None,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        study: str = "",
        secure_sums: SecureSums | None = None,
        privacy: Budget | None = None,
        on_record: Callable[[int, Sequence[Trace]], None] = lambda t, traces: None,
    ) -> None:
        check(num_rounds is None or num_rounds >= 1, "num_rounds must be >= 1", num_rounds)
        parse_objective(metric, counted=True)
        check(protocol in ("paper", "published"), "protocol must be paper or published", protocol)
        check(learning_rate is None or learning_rate > 0, "learning_rate must be > 0", learning_rate)
        self.spec: Spec = parse_spec(strategy, metric)
        self.num_rounds, self.protocol, self.learning_rate = num_rounds, protocol, learning_rate
        self.rows = ServerRows(validation, test, parse_validation_source(validation_from))
        self.streams = Streams(seed, protocol == "published")
        self.cohorts, self.policy = cohorts or Cohorts(), replies or ReplyPolicy()
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.keys = arrayrecord_key, configrecord_key
        self.study, self.on_record, self.secure_sums, self.privacy = study, on_record, secure_sums, privacy
        self.needs = _check_rows(self.spec, self.rows, self._setup(num_rounds or 1), secure_sums)
        self.roster = self._make_roster()
        self.trace = Trace(self.spec)
        """What happened so far."""
        self.asked: list[int] = []
        """How many clients each round has asked."""
        self._clients: FlowerClients | None = None
        self._recorder: Recorder
        self._numbers = MetricRecord()
        self._evaluating: list[Message] = []

    def _make_roster(self) -> Roster:
        """Who takes part; new nodes are asked for what the strategy must know of them."""
        told_rows, source = bool(self.needs & {Need.ROWS, Need.ALL_ROWS}), self.rows.source
        must_ask = told_rows or source.at_clients
        asks = must_ask if self.cohorts.ask_clients is None else self.cohorts.ask_clients
        if must_ask and not asks:
            raise InputError(f"ask_clients must be left out or True for {self.spec.name}, got False")
        about: dict[str, Any] = {HELD_SHARE: source.share} if source.at_clients else {}
        about |= {} if self.privacy is None else {SPEC: self.spec.text}
        question = ConfigRecord({**(self.cohorts.query_config or {}), **about, "wants-rows": told_rows})
        return Roster(
            question if asks else None,
            self.rows.groups if told_rows else 0,
            max_wait=self.cohorts.max_wait,
            most=self.policy.most_rows,
            min_cell=self.policy.min_cell,
            expected=tuple(self.policy.row_ranges),
        )

    def _setup(self, num_rounds: int) -> Setup:
        groups, published = self.rows.grouping or TWO_GROUPS, self.protocol == "published"
        return Setup(num_rounds, published, groups, self.learning_rate, self.rows.source.min_cell)

    # -- a run ---------------------------------------------------------------------------------------------

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

        Returns
        -------
        Flower's result: the last model, and metrics by round

        Examples
        --------
        >>> result = strategy.start(grid, initial_arrays, num_rounds=10)  # doctest: +SKIP
        """
        check(timeout > 0, "timeout must be > 0", timeout)
        rounds = self._agree_on_rounds(num_rounds)
        clients = self._begin(initial_arrays, rounds)
        clients.retrain = partial(self._retrain, clients, initial_arrays)
        clients.grid, clients.config = grid, train_config or ConfigRecord()
        clients.timeout, clients.late = timeout, f"no reply within {timeout:g} s"
        self.roster.timeout = min(timeout, self.roster.timeout)
        saved = Checkpoint(self.checkpoint, self._identity(), 0.0, strict=True)
        result = Result(arrays=initial_arrays)
        log(INFO, "Starting %s for %d rounds", self.spec.text, rounds)
        self.summary()
        log(INFO, "\t└── A round waits up to %g s for its replies (timeout)", timeout)
        began = time.monotonic()

        def save(t: int) -> None:
            saved.save(t, [clients.server], [self._recorder], self._pack(result))

        def keep(this_round: Round) -> None:
            """What follows may fail; the round is safe."""
            result.train_metrics_clientapp[this_round.number] = self._numbers
            if not this_round.outcomes[0].problem:
                result.arrays = clients.server.record
            save(this_round.number)
            self.on_record(this_round.number, [self.trace])

        def evaluate(t: int) -> None:
            """What has not been evaluated yet, at the clients and by the user's function."""
            wanted = t > 0 and t not in result.evaluate_metrics_clientapp
            config = evaluate_config or ConfigRecord()
            messages = list(self.configure_evaluate(t, result.arrays, config, grid)) if wanted else []
            if messages:
                metrics = self.aggregate_evaluate(t, clients.receive(messages))
                _keep(result.evaluate_metrics_clientapp, t, metrics, "Evaluation")
            if evaluate_fn is not None and t not in result.evaluate_metrics_serverapp:
                metrics = evaluate_fn(t, result.arrays)
                _keep(result.evaluate_metrics_serverapp, t, metrics, "Global evaluation")
            if messages or evaluate_fn is not None:
                save(t)

        last = self._resume(saved, result, save)
        evaluate(last)
        observers = [self._record, keep, lambda this_round: evaluate(this_round.number)]
        run_rounds(clients, [clients.server], rounds, observers, last + 1)
        self._finish(clients, result)
        log(INFO, "")
        log(INFO, "%s finished in %.1f s", self.spec.name, time.monotonic() - began)
        validation = self.trace.validation
        counts = validation[-1] if len(validation) else None
        for line in run_summary(self.asked, self.trace.clients, self.roster.refused, counts):
            log(INFO, "\t%s", line)
        return result

    def _agree_on_rounds(self, given: int | None) -> int:
        """The number of rounds, of which the strategy and `start` may both have been told."""
        check(given is None or given >= 1, "num_rounds must be >= 1", given)
        if given is not None and self.num_rounds not in (None, given):
            raise InputError(
                f"num_rounds must be the same for the strategy and for start, got {self.num_rounds}"
                f" and {given}"
            )
        return given or self.num_rounds or 3

    def _begin(self, arrays: ArrayRecord, rounds: int) -> FlowerClients:
        """Build the strategy, and its state from the first model."""
        self.num_rounds = rounds
        server = FlowerServer(self.spec.build(self._setup(rounds)), arrays, self.rows, self.policy)
        if not hasattr(server.state, "_replace"):
            raise InputError(
                f"the state of {self.spec.name} must be a NamedTuple to run on Flower,"
                f" got {type(server.state).__name__}"
            )
        local_half: dict[str, Any] = {}
        has_half = server.strategy.local_loss is not None or server.needs(Need.REPORTS)
        if has_half or (self.secure_sums is not None and server.strategy.weigh is not None):
            local_half = {"strategy": self.spec.own.text, "num-rounds": rounds, "protocol": self.protocol}
            local_half |= {} if self.learning_rate is None else {LEARNING_RATE: self.learning_rate}
        self._recorder = Recorder(self.spec, server, rounds)
        self.trace, self.asked = self._recorder.trace, []
        about = self.cohorts, self.policy, self.streams, self.roster, local_half, self.keys
        if self.secure_sums is None:
            self._clients = FlowerClients(server, rounds, *about)
            if self.privacy is not None:
                self._clients.spec = self.spec.text
                self._clients.deviation = self._histogram_deviation(self.privacy, rounds)
            return self._clients
        from fairfate.flower.secure_clients import SecureClients  # needs cryptography

        self._clients = SecureClients(server, rounds, *about)
        self._clients.rule = self.secure_sums
        return self._clients

    def _histogram_deviation(self, budget: Budget, rounds: int) -> float:
        """The standard deviation of the noise in each count of a client's histogram, if it sends one."""
        releases = releases_of(self.spec, self._setup(rounds))
        noise = other_noise(budget, releases.times(budget.participations or rounds)) or 0.0
        return noise * sensitivity(HISTOGRAM, budget)

    def _record(self, this_round: Round) -> None:
        """Write a round down: in the record, in the log, and in numbers for Flower's result."""
        t, (replies,), (outcome,) = this_round
        server, recorder, clients = self.server, self._recorder, self._running
        recorder.release(t, outcome.notes)
        rows = [*client_rounds(t, replies, outcome), *self.roster.refusals(t)]
        self.trace.clients.extend(rows)
        self.asked.append(clients.asked)
        measured = server.measured
        if not recorder.is_trained_model:
            measured = self.rows.measure(server.layout.record(recorder.released))
        if not recorder.is_decided_last:
            recorder.measure(t, *measured)
        summary = RoundSummary(t, rows, outcome.notes, *measured, self.rows.grouping)
        summary.log()
        self._numbers = MetricRecord({**clients.metrics, **summary.numbers()})

    def _finish(self, clients: FlowerClients, result: Result) -> None:
        """Release the model: an average, with thresholds, if the strategy takes these steps."""
        recorder, trace = self._recorder, self.trace
        result.arrays = clients.server.layout.record(recorder.released)
        recorder.finish(clients, self._setup(clients.rounds))
        result.arrays = clients.server.layout.record(recorder.released)  # which a rule may bring another of
        if trace.thresholds is not None:
            log(INFO, "Thresholds: %s", ", ".join(f"{value:.4f}" for value in trace.thresholds))
        elif trace.rule.tilt is not None:
            prices = np.ravel(trace.rule.about["prices"])
            log(INFO, "One rule for everybody: prices %s", " and ".join(f"{price:.4f}" for price in prices))
        elif clients.at_clients:
            trace.validation = CountsRecord([clients.validate_released(recorder.released)])

    def _retrain(
        self,
        clients: FlowerClients,
        initial_arrays: ArrayRecord,
        about: Mapping[str, Any],
        models: Sequence[Models],
        share: float,
    ) -> Models:
        """Train a model of something else than the label, by the same cohorts; go on where a checkpoint ends.

        Parameters
        ----------
        clients : of the run
        initial_arrays : the model at the start
        about, models : what clients are told of it, and the models that they need for it
        share : of the rounds whose models are averaged
        """
        target = str(about[TARGET])
        name = f"{target}-{about[GUESSED]}" if GUESSED in about else target
        log(INFO, "")
        log(INFO, "%s, by as many rounds again", _TARGETS[target])
        if GUESSED in about and self.rows.grouping is not None:
            log(INFO, "The group: %s", self.rows.grouping.names[int(about[GUESSED])])
        rows = ServerRows(None, None, self.rows.source)
        server = FlowerServer(AVERAGING, initial_arrays, rows, self.policy)
        parts = self.cohorts, self.policy, self.streams, self.roster, dict(about), self.keys
        retraining = FlowerClients(server, clients.rounds, *parts)
        retraining.grid, retraining.config = clients.grid, clients.config
        retraining.timeout, retraining.late = clients.timeout, clients.late
        records = [clients.server.layout.record(params) for params in models]
        retraining.beside = {f"{MODEL}{number}": record for number, record in enumerate(records)}
        recorder = Recorder(parse_spec(f"fedavg+average:share={plain(share)}", "eqo"), server, clients.rounds)
        file = None if self.checkpoint is None else target_checkpoint(self.checkpoint, name)
        digest = hashlib.sha256(b"".join(params.tobytes() for params in models)).hexdigest()
        identity = {**self._identity(), **about, **({"models": digest} if models else {})}
        saved = Checkpoint(file, identity, 0.0, strict=True)

        def keep(this_round: Round) -> None:
            recorder.release(this_round.number, {})
            saved.save(this_round.number, [server], [recorder], server.rest)

        last, rest = saved.load([server], [recorder])
        if last:
            server.restore(rest)
            recorder.resume()
        run_rounds(retraining, [server], clients.rounds, [keep], last + 1)
        return np.asarray(recorder.released)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _pack(self, result: Result) -> dict[str, Any]:
        """What a checkpoint holds beside the strategy's state and its record."""
        metrics = {
            name: {t: dict(values) for t, values in getattr(result, name).items()} for name in _RESULTS
        }
        rest, names = self.server.rest, self.roster.names
        return {"rest": rest, "names": names, "asked": self.asked, "metrics": json.dumps(metrics)}

    def _resume(self, saved: Checkpoint, result: Result, save: Callable[[int], None]) -> int:
        """Take up an earlier run, if there is one; returns the rounds that are done."""
        if saved.path is None:
            return 0
        if not saved.path.exists():
            saved.path.parent.mkdir(parents=True, exist_ok=True)
            save(0)  # finds out now whether it can be written
            return 0
        rounds_done, more = saved.load([self.server], [self._recorder])
        self.server.restore(more["rest"])
        self._recorder.resume()
        self.roster.names[:], self.asked = more["names"], more["asked"]
        for name, rounds in json.loads(more["metrics"]).items():
            getattr(result, name).update({int(t): MetricRecord(values) for t, values in rounds.items()})
        if rounds_done:
            result.arrays = self.server.record
            log(INFO, "Continuing after round %d of '%s'", rounds_done, saved.path)
        return rounds_done

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        layout, cohorts = self.server.layout, self.cohorts
        return {
            "strategy": self.spec.text,
            "num_rounds": self.num_rounds,
            "protocol": self.protocol,
            "seed": self.streams.seed,
            "arrays": [list(layout.names), [list(shape) for shape in layout.shapes]],
            "types": list(layout.dtypes),
            "averaged": list(self.policy.averaged),
            "clients": [cohorts.per_round, cohorts.fraction_train, cohorts.min_train_nodes],
            "limits": [self.policy.max_norm, self.policy.max_examples],
            **({} if not self.study else {"study": self.study}),
            **({} if self.secure_sums is None else {"secure_sums": list(self.secure_sums)}),
            **({} if self.privacy is None else {"privacy": str(self.privacy)}),
            **({} if self.learning_rate is None else {"learning_rate": self.learning_rate}),
            **({} if self.rows.source == AT_SERVER else {"validation_from": str(self.rows.source)}),
            "rows": [rows.checksum for rows in self.rows.given],
            "version": __version__,
        }

    # -- Flower's hooks, for wrappers that have a loop of their own ------------------------------------------

    def summary(self) -> None:
        """Log what the strategy is about to do.

        Examples
        --------
        >>> strategy.summary()  # doctest: +SKIP
        """
        cohorts, policy = self.cohorts, self.policy
        share = cohorts.fraction_train
        clients = "all clients" if share == 1 else f"{share:.0%} of the clients"
        clients = clients if cohorts.per_round is None else f"{cohorts.per_round} clients"
        norm = "automatic" if policy.max_norm is None else f"{policy.max_norm:g}"
        examples = "none" if policy.max_examples is None else f"{policy.max_examples:g}"
        log(INFO, "\t├── %s, protocol %s, seed %d", self.spec.text, self.protocol, self.streams.seed)
        log(INFO, "\t├── A round trains %s, when at least %d are connected", clients, cohorts.least)
        log(INFO, "\t├── Limits on replies: max_norm %s, max_examples %s", norm, examples)
        log(INFO, "\t├── Waits up to %g s for enough clients (max_wait)", self.roster.max_wait)
        log(INFO, "\t├── Checkpoint: %s", self.checkpoint or "none")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of a round, and what to send them.

        Parameters
        ----------
        server_round : the round's number, from 1
        arrays : the global model
        config : sent to the clients
        grid : Flower's way to the nodes

        Returns
        -------
        one message for each client of the round

        Examples
        --------
        >>> messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)  # doctest: +SKIP
        """
        clients = self._clients
        if clients is None:
            clients = self._begin_for_wrapper(arrays)
        clients.server.follow(arrays)
        clients.grid, clients.config = grid, config
        return clients.ask(server_round, arrays)

    def _begin_for_wrapper(self, arrays: ArrayRecord) -> FlowerClients:
        if self.num_rounds is None:
            raise InputError("num_rounds must be given to the strategy when it is not run by its start")
        if self.checkpoint is not None:
            raise InputError(
                "checkpoint must be left out when the strategy is not run by its start,"
                f" got '{self.checkpoint}'"
            )
        clients = self._begin(arrays, self.num_rounds)
        connect(clients, [clients.server])
        return clients

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, score the models, aggregate; with too few good replies the model stays.

        Parameters
        ----------
        server_round : the round's number, from 1
        replies : the clients' messages

        Returns
        -------
        the next model, None if the round is discarded; and its metrics

        Examples
        --------
        >>> arrays, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))  # doctest: +SKIP
        """
        clients = self._running
        try:
            usable = clients.read(server_round, replies)
        except TooFewRepliesError as error:
            log(WARNING, "\t> round %d does not count: %s", server_round, error)
            return None, None
        this_round = aggregate(clients, [clients.server], server_round, [usable])
        self._record(this_round)
        return None if this_round.outcomes[0].problem else clients.server.record, self._numbers

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients that evaluate the model on their own rows.

        Parameters
        ----------
        server_round : the round's number, from 1
        arrays : the global model
        config : sent to the clients
        grid : Flower's way to the nodes

        Returns
        -------
        one message for each client that evaluates

        Examples
        --------
        >>> messages = strategy.configure_evaluate(1, arrays, ConfigRecord(), grid)  # doctest: +SKIP
        """
        if self.cohorts.fraction_evaluate == 0:
            return []
        try:
            clients = self.roster.clients(grid, self.cohorts.least_to_evaluate)
        except InputError as error:
            log(WARNING, "No evaluation: %s", error)
            return []
        size = self.cohorts.size_to_evaluate(len(clients))
        chosen = self.streams.evaluators(server_round, len(clients), size)
        records = arrays, ConfigRecord({**config, ROUND: server_round})
        content = RecordDict(dict(zip(self.keys, records, strict=True)))
        self._evaluating = [Message(content, clients[number].node, MessageType.EVALUATE) for number in chosen]
        return self._evaluating

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' own metrics, in the order in which they were asked.

        Parameters
        ----------
        server_round : the round's number, from 1
        replies : the clients' messages

        Returns
        -------
        the metrics' means by examples; None without replies

        Examples
        --------
        >>> metrics = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))  # doctest: +SKIP
        """
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._evaluating}
        self._evaluating = []
        by_node = {asked.get(reply.metadata.reply_to_message_id): reply for reply in replies}
        late = "no reply in time" if self._clients is None else self._clients.late
        metrics, weights = [], []
        for node in asked.values():
            try:
                record = _read_evaluation(by_node.get(node), late)
                weight = example_count(record, self.policy.weighted_by_key)
            except MismatchError as error:
                log(WARNING, "\t> %s could not evaluate: %s", self.roster.name(node), one_line(error))
                continue
            metrics.append(record)
            weights.append(min(weight, self.policy.max_examples or math.inf))
        if not metrics:
            return None
        return MetricRecord(mean_metrics(metrics, np.array(weights), self.policy.weighted_by_key))

    # -- what is left behind -------------------------------------------------------------------------------

    @property
    def _running(self) -> FlowerClients:
        if self._clients is None:
            raise InputError("the strategy must have been started to have a model")
        return self._clients

    @property
    def server(self) -> FlowerServer:
        """The server's model and the strategy's state, once there is one."""
        return self._running.server

    @property
    def sampled(self) -> str:
        """What is said of it, if clients' models were scored on a sample of the validation rows."""
        return self._running.sampled

    @property
    def released(self) -> NDArray[Any]:
        """The model to measure, save and deploy, as one vector."""
        return self._recorder.released

    def rounds(self, dataset: str = "flower", partition: str = "sites") -> pd.DataFrame:
        """Every metric of every round so far, as `fairfate run` records it; empty if nothing was measured.

        Parameters
        ----------
        dataset, partition : names for the columns of the table

        Returns
        -------
        a row for each round and split

        Examples
        --------
        >>> strategy.rounds()[["round", "accuracy", "eqo"]]  # doctest: +SKIP
        """
        key = {"dataset": dataset, "partition": partition, "protocol": self.protocol}
        return trace_frame({**key, "seed": self.streams.seed}, [self.trace], self.rows.grouping)

    def clients(self) -> pd.DataFrame:
        """What became of each client that was asked in a round.

        Returns
        -------
        a row for each client and round: outcome, reason, examples, fairness

        Examples
        --------
        >>> strategy.clients()[["round", "name", "outcome"]]  # doctest: +SKIP
        """
        return clients_frame(self.trace.clients, self.rows.grouping)


_TARGETS = {
    GROUP: "A model that guesses the group",
    DECISION: "One plain network, of what the rule decides",
}
"""What is trained after the strategy's own model."""


def target_checkpoint(path: Path, target: str) -> Path:
    """Where a run keeps the rounds of a model of something else than the label."""
    return path.with_name(f"{path.stem}-{target}{path.suffix}")


def checkpoints(path: Path) -> list[Path]:
    """All files in which a run keeps its rounds."""
    return [path, *(other for target in _TARGETS for other in path.parent.glob(f"{path.stem}-{target}*"))]


def _check_rows(spec: Spec, rows: ServerRows, setup: Setup, secure_sums: SecureSums | None) -> Needs:
    """Find out whether the server has the rows that a strategy needs; returns all that it needs."""
    source, validation = rows.source, rows.validation
    check(source.rows is None, "validation_from must not limit rows on Flower", source)
    if source.at_clients:
        check(validation is None, "validation must be left out where clients judge", "some")
        check(rows.test is not None, "test must be given where clients judge, for its groups", "none")
    check_individual(spec, source)
    strategy = spec.build(setup)
    needs = strategy.needs
    check_validation_source(spec, needs, source)
    check_bound(spec, needs)
    if secure_sums is not None:
        check_secure_sums(spec, strategy, source)
    elif source.is_local:
        raise InputError(f"secure_sums must be given with validation_from '{source}', got none")
    if source.at_clients and Need.TRIALS in needs and Need.SCORES in needs:
        raise InputError("keep must be 0 where clients judge on Flower, got more")
    counting: Needs = {Need.ROWS, Need.ALL_ROWS, Need.REPORTS}
    for need, why in ((ON_VALIDATION, "scores models"), (counting, "counts groups")):
        if needs & need and rows.grouping is None:
            raise InputError(f"validation must be given for {spec.name}, which {why}, got none")
    if Need.DESCENT in needs and not isinstance(validation, BuiltIn):
        raise InputError(
            f"{spec.name} must be run in the ready app, where the server can train the model,"
            " got predictions only"
        )
    if needs & set(INDIVIDUAL_NEEDS.values()):
        if not isinstance(validation, BuiltIn) or validation.individual is None:
            raise InputError(
                f"metric '{spec.base.metric}' must be run in the ready app, where the server sees rows"
                " themselves, got predictions only"
            )
        validation.individual.check(spec.individual)
    if spec.rule is not None and rows.grouping is None:
        raise InputError(f"validation must be given for {spec.rule.name}, which is measured on it, got none")
    return needs


def _read_evaluation(reply: Message | None, late: str) -> MetricRecord:
    """The metrics of a client's evaluation; MismatchError if there are none."""
    if reply is None:
        raise MismatchError(late)
    if reply.has_error() or not reply.has_content():
        raise MismatchError(reply.error.reason if reply.has_error() else "an empty reply")
    records = list(reply.content.metric_records.values())
    if len(records) != 1:
        raise MismatchError(f"{len(records)} MetricRecords instead of one")
    return records[0]


def _keep(records: dict[int, MetricRecord], t: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        records[t] = metrics
        log(INFO, "%s: %s", title, dict(metrics))
