"""Any strategy of this library as a Flower strategy."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
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
from fairfate.errors import InputError, check
from fairfate.fairness.metrics import COLLAPSED, Counts, Statistics, Values, mcc
from fairfate.fairness.objective import parse_objective
from fairfate.fairness.thresholds import apply
from fairfate.federation.streams import Streams
from fairfate.flower.evaluation import Evaluation, mean_metrics
from fairfate.flower.history import Round, clients_of, plain_notes, rounds_of
from fairfate.flower.logs import log, one_line
from fairfate.flower.nodes import Client, Roster
from fairfate.flower.records import Layout, MismatchError
from fairfate.flower.replies import BROADCAST, Limits, Replies, read_replies, read_report
from fairfate.flower.steps import ask_histograms, choose_thresholds
from fairfate.flower.validation import Measure
from fairfate.rounds import server as rounds
from fairfate.rounds.checkpoint import read_checkpoint, unpack, write_checkpoint
from fairfate.rounds.record import REFUSED, ClientRound, client_rounds
from fairfate.rounds.server import Server
from fairfate.strategies import AVERAGE, THRESHOLDS, Average, Need, Setup, Spec, parse_spec, weighted_mean
from fairfate.strategies.registry import TWO_GROUPS

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FlowerStrategy(Base):
    """A strategy of this library as a Flower strategy, for any model and any clients.

    Sampling and summing depend on the seed and the clients, never on the order of replies. Every reply is
    checked; a bad one is dropped, named in the log and counted, and a round without a good one keeps the
    model.

    Parameters
    ----------
    strategy : ``name[:key=value,...][+step...]`` as on the command line
    num_rounds : needed by schedules that end with the run; may be left to `start`
    validation : the server's labelled rows, for strategies that look at fairness
    test : other labelled rows to measure the model on after every round
    metric : fairness the strategy looks at, unless its settings say so: an objective such as ``eqo``
    protocol : ``paper``, or ``published`` for the arithmetic of the published runs
    seed : of the sampling of clients
    per_round : clients in a round; without it ``fraction_train`` decides
    fraction_train, fraction_evaluate : shares of the clients to train and evaluate in a round
    min_train_nodes, min_evaluate_nodes, min_available_nodes : as in Flower's FedAvg
    max_wait : seconds to wait for enough clients before the run ends with an error
    max_norm : L2 norm above which an update is dropped; None compares the updates of a round with each
        other, infinity takes all
    max_examples : most examples that a client may count for
    checkpoint : file that holds the run after every round; where it exists, `start` goes on from it
    ask_clients : send each new node a query for its name (see the documentation); the default asks only
        for strategies that need the clients' counts
    query_config : what to send along with that query
    averaged : last parts of the names of arrays that are averaged by example counts and not moved by the
        strategy, as whole-number arrays always are; the default are a batch norm's running figures
    weighted_by_key, arrayrecord_key, configrecord_key : as in Flower's FedAvg
    """

    def __init__(
        self,
        strategy: str,
        *,
        num_rounds: int | None = None,
        validation: Measure | None = None,
        test: Measure | None = None,
        metric: str = "eqo",
        protocol: str = "paper",
        seed: int = 1,
        per_round: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        max_wait: float = 600.0,
        max_norm: float | None = None,
        max_examples: float | None = None,
        checkpoint: str | Path | None = None,
        ask_clients: bool | None = None,
        query_config: ConfigRecord | None = None,
        averaged: Sequence[str] = ("running_mean", "running_var", "num_batches_tracked"),
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
    ) -> None:
        check(num_rounds is None or num_rounds >= 1, "num_rounds must be >= 1", num_rounds)
        parse_objective(metric)
        check(protocol in ("paper", "published"), "protocol must be paper or published", protocol)
        check(per_round is None or per_round >= 1, "per_round must be >= 1", per_round)
        for name, share in (("fraction_train", fraction_train), ("fraction_evaluate", fraction_evaluate)):
            check(0 <= share <= 1, f"{name} must be in [0, 1]", share)
        for name, least in (
            ("min_train_nodes", min_train_nodes),
            ("min_evaluate_nodes", min_evaluate_nodes),
            ("min_available_nodes", min_available_nodes),
        ):
            check(least >= 0, f"{name} must be >= 0", least)
        for name, limit in (("max_norm", max_norm), ("max_examples", max_examples)):
            check(limit is None or limit > 0, f"{name} must be > 0", limit)
        check(max_wait > 0, "max_wait must be > 0", max_wait)
        self.spec: Spec = parse_spec(strategy, metric)
        self.num_rounds = num_rounds
        self.validation, self.test = validation, test
        self.protocol, self.seed = protocol, seed
        self.streams = Streams(seed, protocol == "published")
        self.per_round, self.fraction_train, self.fraction_evaluate = (
            per_round,
            fraction_train,
            fraction_evaluate,
        )
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.limits = Limits(max_norm, max_examples)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.averaged = tuple(averaged)
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        needs = self.spec.build(self._setup(num_rounds or 1)).needs
        for need, why in ((Need.SCORES, "scores models"), (Need.ROWS | Need.REPORTS, "counts groups")):
            if needs & need and validation is None:
                raise InputError(f"validation must be given for {self.spec.name}, which {why}, got none")
        if self.spec.step(THRESHOLDS) is not None and validation is None:
            raise InputError("validation must be given for thresholds, which are measured on it, got none")
        self.needs = needs
        self.told_rows = Need.ROWS in needs
        asks = self.told_rows if ask_clients is None else ask_clients
        if self.told_rows and not asks:
            raise InputError(f"ask_clients must be left out or True for {self.spec.name}, got False")
        question = ConfigRecord({**(query_config or {}), "wants-rows": self.told_rows})
        groups = len(validation.grouping) if self.told_rows and validation is not None else 0
        self.roster = Roster(question if asks else None, groups, max_wait=max_wait)
        self.evaluation = Evaluation(self)
        self.history: list[Round] = []
        """What happened so far."""
        self.thresholds: Values | None = None
        """One for each group, once they have been chosen."""
        self._server: Server | None = None
        self._average: Average | None = None
        self._released: NDArray[Any] | None = None
        self._layout: Layout | None = None
        self._rest: NDArray[Any] = np.empty(0)
        self._measured: tuple[Counts | None, Counts | None] | None = None
        self._asked: list[Message] = []
        self._buffer: NDArray[Any] | None = None
        self._sent: ArrayRecord | None = None
        self._pieces: list[str] = []
        self.late = "no reply in time"

    def _setup(self, num_rounds: int) -> Setup:
        groups = TWO_GROUPS if self.validation is None else self.validation.grouping
        return Setup(num_rounds, self.protocol == "published", groups)

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
        self._begin(initial_arrays, self._agreed_rounds(num_rounds))
        assert self.num_rounds is not None
        self.roster.timeout = min(timeout, self.roster.timeout)
        self.late = f"no reply within {timeout:g} s"
        result, arrays = Result(arrays=initial_arrays), initial_arrays
        log(INFO, "Starting %s for %d rounds", self.spec.text, self.num_rounds)
        self.summary()
        log(INFO, "\t└── A round waits up to %g s for its replies (timeout)", timeout)
        began = time.monotonic()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config

        def evaluate(t: int) -> None:
            """What has not been evaluated yet, at the clients and by the user's function."""
            wanted = t > 0 and t not in result.evaluate_metrics_clientapp
            messages = list(self.configure_evaluate(t, arrays, evaluate_config, grid)) if wanted else []
            if messages:
                replies = grid.send_and_receive(messages, timeout=timeout)
                _keep(result.evaluate_metrics_clientapp, t, self.aggregate_evaluate(t, replies), "Evaluation")
            if evaluate_fn is not None and t not in result.evaluate_metrics_serverapp:
                _keep(result.evaluate_metrics_serverapp, t, evaluate_fn(t, arrays), "Global evaluation")
            if messages or evaluate_fn is not None:
                self._save(t, result)

        first = self._resume(result)
        arrays = result.arrays
        evaluate(first - 1)
        for t in range(first, self.num_rounds + 1):
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", t, self.num_rounds)
            messages = list(self.configure_train(t, arrays, train_config, grid))
            replies = grid.send_and_receive(messages, timeout=timeout) if messages else []
            aggregated, metrics = self.aggregate_train(t, replies)
            if aggregated is not None:
                result.arrays = arrays = aggregated
            _keep(result.train_metrics_clientapp, t, metrics)
            self._save(t, result)  # what follows may fail; the round is safe
            evaluate(t)
        self._finish(grid, result, timeout)
        log(INFO, "")
        log(INFO, "%s finished in %.1f s", self.spec.name, time.monotonic() - began)
        for line in self._account():
            log(INFO, "\t%s", line)
        return result

    def _agreed_rounds(self, given: int | None) -> int:
        """The number of rounds, of which the strategy and `start` may both have been told."""
        check(given is None or given >= 1, "num_rounds must be >= 1", given)
        if given is not None and self.num_rounds not in (None, given):
            raise InputError(
                f"num_rounds must be the same for the strategy and for start, got {self.num_rounds}"
                f" and {given}"
            )
        return given or self.num_rounds or 3

    def _begin(self, arrays: ArrayRecord, num_rounds: int) -> None:
        """Build the strategy, and its state from the first model."""
        self.num_rounds = num_rounds
        self._layout = Layout.of(arrays, self.averaged)
        trained, self._rest = np.split(self._layout.flat(arrays), [self._layout.moved])
        self._server = Server.start(self.spec.build(self._setup(num_rounds)), trained)
        if not hasattr(self._server.state, "_replace"):
            raise InputError(
                f"the state of {self.spec.name} must be a NamedTuple to run on Flower,"
                f" got {type(self._server.state).__name__}"
            )
        step = self.spec.step(AVERAGE)
        self._average = None if step is None else Average(float(step["share"]), num_rounds)
        self._released = self.thresholds = None
        self._measured = self._buffer = self._sent = None
        self.history, self._pieces = [], []
        try:
            self._measure()  # finds out now whether the user's predictions work
        except MismatchError as error:
            raise InputError(f"validation must get numbers for the initial model, got {error}") from None

    @property
    def server(self) -> Server:
        """The server's side of the strategy."""
        assert self._server is not None
        return self._server

    @property
    def layout(self) -> Layout:
        """The names, shapes and types of the model's arrays."""
        assert self._layout is not None
        return self._layout

    def _finish(self, grid: Grid, result: Result, timeout: float) -> None:
        """Release the model: an average, with thresholds, if the strategy takes these steps."""
        result.arrays = self.layout.record(self.released)
        step = self.spec.step(THRESHOLDS)
        if step is None or self.validation is None:
            return
        histogram = None
        if step["from"] == "clients":
            clients = self.roster.clients(grid, max(1, self.min_available_nodes))
            histogram = ask_histograms(
                grid, clients, result.arrays, self.roster.question, len(self.validation.grouping), timeout
            )
        assert self.num_rounds is not None
        fairness = self._setup(self.num_rounds).fairness(str(step["metric"]))
        margins = self.validation.margins(result.arrays)
        self.thresholds = choose_thresholds(step, fairness, margins, histogram)
        after = apply(margins, self.thresholds)
        on_test = None if self.test is None else apply(self.test.margins(result.arrays), self.thresholds)
        self.history[-1] = self.history[-1]._replace(validation=after, test=on_test)
        log(INFO, "Thresholds: %s", ", ".join(f"{value:.4f}" for value in self.thresholds))

    def _account(self) -> list[str]:
        """How the run went, in lines."""
        asked = sum(done.asked for done in self.history)
        dropped = [client for done in self.history for client in done.dropped]
        lines = [f"{len(self.history)} rounds, {asked} requests, {len(dropped)} without a usable reply"]
        for name in sorted({client.name for client in dropped}):
            reasons = [client.reason for client in dropped if client.name == name]
            lines.append(f"{name}: dropped {len(reasons)} times, last for: {reasons[-1]}")
        lines += [f"{name} took no part: {why}" for name, why in self.roster.refused.values()]
        last = self.history[-1].validation
        if last is not None and not mcc(last) >= COLLAPSED:
            told = f"{mcc(last):.3f} on the validation rows"
            lines.append(f"The model hardly tells people apart, with an MCC of {told}")
        return lines

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
        self._follow(arrays)
        clients = self.roster.clients(grid, max(self.min_available_nodes, self._least(self.min_train_nodes)))
        size = self._size(len(clients), self.fraction_train, self.min_train_nodes)
        chosen = self.streams.cohort(server_round, len(clients), size).tolist() if size else []
        sampled = [clients[position] for position in chosen]
        log(INFO, "configure_train: %d of %d clients: %s", size, len(clients), _names(sampled))
        broadcast = self.server.broadcast(self._rows(sampled)) if sampled else None
        self._asked = []
        for client in sampled:
            mine = ConfigRecord({**config, "server-round": server_round, **self._told()})
            if self.roster.question is not None:
                mine["client"] = self.roster.number(client)
            if broadcast is not None:
                mine[BROADCAST] = [float(value) for value in broadcast.ravel()]
            content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: mine})
            self._asked.append(Message(content, client.node, MessageType.TRAIN))
        return self._asked

    def _follow(self, arrays: ArrayRecord) -> None:
        """Make sure that the state holds the model that is sent out, whoever may have changed it."""
        if self._layout is None:
            if self.num_rounds is None:
                raise InputError("num_rounds must be given to the strategy when it is not run by its start")
            if self.checkpoint is not None:
                raise InputError(
                    "checkpoint must be left out when the strategy is not run by its start,"
                    f" got '{self.checkpoint}'"
                )
            self._begin(arrays, self.num_rounds)
        elif arrays is not self._sent and not np.array_equal(sent := self._layout.flat(arrays), self.model):
            trained, self._rest = np.split(sent, [self._layout.moved])
            self.server.state = self.server.state._replace(params=trained)
            self._measured = self._sent = None

    def _least(self, minimum: int) -> int:
        return max(1, minimum if self.per_round is None else self.per_round)

    def _size(self, clients: int, share: float, minimum: int) -> int:
        if self.per_round is not None:
            return min(self.per_round, clients)
        return 0 if share == 0 else min(max(int(clients * share), minimum, 1), clients)

    def _told(self) -> dict[str, Any]:
        """What a client's half of the strategy is built from."""
        assert self.num_rounds is not None
        if self.server.strategy.local_loss is None and Need.REPORTS not in self.needs:
            return {}
        return {"strategy": self.spec.base.text, "num-rounds": self.num_rounds, "protocol": self.protocol}

    def _rows(self, clients: Sequence[Client]) -> NDArray[np.int64] | None:
        """(clients, groups, 2) the rows that they have told of, where the strategy needs them."""
        if not self.told_rows:
            return None
        rows = np.stack([client.rows for client in clients if client.rows is not None])
        totals = rows.sum(axis=(1, 2), keepdims=True)
        most = np.inf if self.limits.max_examples is None else self.limits.max_examples
        return np.asarray(np.rint(rows * np.minimum(1, most / totals)).astype(np.int64))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, score the models, aggregate."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._asked}
        self._asked = []
        good = read_replies(
            asked,
            list(replies),
            self.layout,
            self.model,
            self.limits,
            self.weighted_by_key,
            self.late,
            self._memory(len(asked)),
        )
        self._check_rows(good)
        local = self._reports(good)
        scored = self._score(good)
        names = tuple(self.roster.name(node) for node in good.nodes)
        server, _ = self._measure()
        self.server.counts = np.zeros((0, 2, 2), dtype=np.int64) if server is None else server
        dropped = tuple(rounds.Dropped(self.roster.name(gone.node), gone.reason) for gone in good.dropped)
        moved = self.layout.moved
        sent = rounds.Replies(
            names, good.deltas[:, :moved], good.num_examples, scored, self._told_apart(local, good), dropped
        )
        before = self.server.state, self._rest, self._measured
        with np.errstate(over="ignore", invalid="ignore"):
            outcome = self.server.take(server_round, sent)
        if good.nodes and not outcome.problem:
            outcome = outcome._replace(problem=self._accept(good))
            if outcome.problem:
                self.server.state, self._rest, self._measured = before
                self._sent = None
            self._let_go(self.server.state)
        moved_on = bool(good.nodes) and not outcome.problem
        if moved_on:
            self._release(server_round)
        done = self._record(server_round, len(asked), good, sent, outcome)
        self.history.append(done)
        self._log(done)
        means = mean_metrics(good.metrics, good.num_examples, self.weighted_by_key)
        return self._arrays() if moved_on else None, MetricRecord({**means, **done.numbers()})

    def _reports(self, good: Replies) -> list[Statistics]:
        """What the clients tell of the model on their own rows; those who tell nonsense are dropped."""
        found: list[Statistics] = []
        if Need.REPORTS not in self.needs or self.validation is None:
            return found
        groups = len(self.validation.grouping)
        for metrics in list(good.metrics):
            position = len(found)
            try:
                found.append(read_report(metrics, groups, float(good.num_examples[position])))
            except MismatchError as error:
                good.drop(position, one_line(error))
        return found

    def _told_apart(self, local: list[Statistics], good: Replies) -> Statistics | None:
        if not local:
            return None
        return Statistics(*(np.stack(values) for values in zip(*local, strict=True)))

    def _check_rows(self, good: Replies) -> None:
        """Drop clients that train on other rows than they told, by which everybody's losses are weighed."""
        for position in reversed(range(len(good.nodes) if self.told_rows else 0)):
            rows, claimed = self.roster.known[good.nodes[position]].rows, good.num_examples[position]
            told = min(0 if rows is None else int(rows.sum()), self.limits.max_examples or math.inf)
            if claimed != told:
                good.drop(position, f"{claimed:g} examples where it had told of {told:g} rows")

    def _accept(self, good: Replies) -> str:
        """Take the rest of the new model and measure it; returns what is wrong with it, if anything is."""
        moved = self.layout.moved
        with np.errstate(over="ignore", invalid="ignore"):
            self._rest = self._rest + weighted_mean(good.deltas[:, moved:], good.num_examples)
            finite = np.isfinite(self.model).all()
        self._measured = self._sent = None
        if not finite:
            return "the new model would not be finite"
        try:
            self._measure()
        except Exception as error:  # it has worked with the first model: this one is to blame
            return f"the new model makes {_blame(error)}"
        return ""

    def _release(self, t: int) -> None:
        """Take note of the round's model, for what is released in the end."""
        if self._average is not None:
            self._released = self._average.add(t, self.model)

    def _memory(self, clients: int) -> NDArray[Any]:
        """Room for a round's updates; the same as last time if it suffices, since fresh memory is slow."""
        if self._buffer is None or len(self._buffer) < clients:
            self._buffer = np.empty((clients, self.layout.size), dtype=self.layout.dtype)
        return self._buffer

    def _let_go(self, state: Any) -> None:
        """Leave the room to a state that keeps a view of it."""
        kept = state if isinstance(state, tuple) else [self._buffer]
        arrays = [value for value in kept if isinstance(value, np.ndarray)]
        if self._buffer is not None and any(np.may_share_memory(self._buffer, array) for array in arrays):
            self._buffer = None

    def _score(self, good: Replies) -> Counts:
        """(clients, groups, 2, 2) the clients' models on the validation rows; unusable ones are dropped."""
        if Need.SCORES not in self.needs or self.validation is None:
            return np.zeros((0, 0, 2, 2), dtype=np.int64)
        found: list[Counts] = []
        for record in list(good.records):
            try:
                found.append(self.validation.counts(record))
            except Exception as error:  # it has worked with the first model: this one is to blame
                good.drop(len(found), _blame(error))
        return np.array(found, dtype=np.int64).reshape(len(found), len(self.validation.grouping), 2, 2)

    def _arrays(self) -> ArrayRecord:
        """The server's model as it travels."""
        if self._sent is None:
            self._sent = self.layout.record(self.model)
        return self._sent

    def _measure(self) -> tuple[Counts | None, Counts | None]:
        """The server's model on the validation and on the test rows, where there are some."""
        if self._measured is None:
            model = self._arrays()
            validation = None if self.validation is None else self.validation.counts(model)
            self._measured = validation, None if self.test is None else self.test.counts(model)
        return self._measured

    def _measure_released(self) -> tuple[Counts | None, Counts | None]:
        """The same for what would be released now."""
        if self._released is None:
            return self._measure()
        model = self.layout.record(self._released)
        validation = None if self.validation is None else self.validation.counts(model)
        return validation, None if self.test is None else self.test.counts(model)

    def _record(
        self, number: int, asked: int, good: Replies, sent: rounds.Replies, outcome: rounds.Outcome
    ) -> Round:
        clients = []
        nodes = [*good.nodes, *(gone.node for gone in good.dropped)]
        for client, node in zip(client_rounds(number, sent, outcome), nodes, strict=True):
            cut = "example count cut to the limit" if node in good.capped else ""
            clients.append(client._replace(reason=client.reason or cut, node=node))
        clients += [
            ClientRound(number, name, REFUSED, why, node=node)
            for node, (name, why) in sorted(self.roster.refused.items())
        ]
        problem = outcome.problem if good.nodes else ""
        notes = plain_notes(outcome.notes)
        return Round(number, asked, notes, tuple(clients), *self._measure_released(), problem)

    def _log(self, done: Round) -> None:
        for client in done.clients:
            if client.reason and client.outcome != REFUSED:
                log(WARNING, "\t> %s %s: %s", client.outcome, client.name, client.reason)
        log(INFO, "aggregate_train: %s", done.line())
        if not done.counted:
            log(WARNING, "\t> no usable reply in round %d: the model stays as it was", done.number)

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
    def model(self) -> NDArray[Any]:
        """The global model as one vector: the trained arrays in their order, then the averaged ones."""
        return np.concatenate([self.server.params, self._rest]).astype(self.layout.dtype, copy=False)

    @property
    def released(self) -> NDArray[Any]:
        """The model to measure, save and deploy."""
        return self.model if self._released is None else self._released

    def rounds(self, dataset: str = "flower", partition: str = "sites") -> pd.DataFrame:
        """Every metric of every round so far, as `fairfate run` records it."""
        key = {"dataset": dataset, "partition": partition, "protocol": self.protocol, "seed": self.seed}
        return rounds_of(self.history, self.spec, **key)

    def clients(self) -> pd.DataFrame:
        """One row for each client that was asked in a round: outcome, reason, examples, fairness."""
        return clients_of(self.history)

    def _save(self, t: int, result: Result) -> None:
        """Write the checkpoint; what was written of earlier rounds is not made anew."""
        if self.checkpoint is None:
            return
        kept = [dict(getattr(result, name).get(t, {})) for name in _RESULTS]
        of_round = self.history[t - 1].pack() if t else None
        del self._pieces[t:]
        self._pieces.append(json.dumps([of_round, *kept]))
        average = None if self._average is None else [self._average.total, self._average.count]
        content = [self.server.state, self._rest, average]
        write_checkpoint(self.checkpoint, content, self._identity(), self.roster.names, self._pieces)

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on."""
        return {
            "strategy": self.spec.text,
            "num_rounds": self.num_rounds,
            "protocol": self.protocol,
            "seed": self.seed,
            "arrays": [list(self.layout.names), [list(s) for s in self.layout.shapes]],
            "types": list(self.layout.dtypes),
            "averaged": list(self.averaged),
            "clients": [self.per_round, self.fraction_train, self.min_train_nodes],
            "limits": [self.limits.max_norm, self.limits.max_examples],
            "rows": [rows.checksum for rows in (self.validation, self.test) if rows is not None],
            "version": __version__,
        }

    def _resume(self, result: Result) -> int:
        """Take up an earlier run, if there is one; returns the next round."""
        if self.checkpoint is None:
            return 1
        if not self.checkpoint.exists():
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._save(0, result)  # finds out now whether it can be written
            return 1
        saved = read_checkpoint(self.checkpoint)
        for name, value in self._identity().items():
            if saved.identity.get(name) != value:
                raise InputError(
                    f"checkpoint must be of the same run, got '{self.checkpoint}' with another {name}:"
                    f" {one_line(saved.identity.get(name))} instead of {one_line(value)}"
                )
        state, rest, average = saved.content["list"]
        self.server.state = unpack(state, saved.arrays, self.server.state)
        self._rest, self._pieces = unpack(rest, saved.arrays, None), saved.pieces
        self._measured = self._sent = None
        if self._average is not None:
            self._average.total, self._average.count = unpack(average, saved.arrays, None)
            if self._average.total is not None:
                self._released = (self._average.total / self._average.count).astype(self.layout.dtype)
        self.roster.names = list(saved.names)
        for t, (of_round, *kept) in enumerate(map(json.loads, saved.pieces)):
            self.history += [] if of_round is None else [Round.unpack(of_round)]
            for name, values in zip(_RESULTS, kept, strict=True):
                if values:
                    getattr(result, name)[t] = MetricRecord(values)
        if self.history:
            result.arrays = self._arrays()
            log(INFO, "Going on after round %d of '%s'", len(self.history), self.checkpoint)
        return len(self.history) + 1


_RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def _blame(error: Exception) -> str:
    """What is wrong with a model on which the user's predictions fail."""
    known = isinstance(error, MismatchError)
    return one_line(error if known else f"predictions fail: {type(error).__name__}: {error}")


def _keep(
    records: dict[int, MetricRecord], t: int, found: MetricRecord | None, said: str | None = None
) -> None:
    if found is not None:
        records[t] = found
        if said:
            log(INFO, "%s: %s", said, dict(found))


def _names(clients: Iterable[Client]) -> str:
    names = [client.name for client in clients]
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])} and {len(names) - 12} more"
