"""A whole run of one seed in this process: strategies with their steps, side by side, and what they did."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.engine.attack import Attack, Attackers
from fairfate.engine.checkpoint import Checkpoint
from fairfate.engine.loop import Round, run_rounds
from fairfate.engine.private import name_server
from fairfate.engine.record import client_rounds
from fairfate.engine.recorder import Recorder, Trace
from fairfate.engine.secure_sums import SecureSums
from fairfate.engine.server import Server, stack
from fairfate.engine.simulation import Simulation
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.federation.validation_source import AT_SERVER
from fairfate.models.model import Model
from fairfate.models.training import Training
from fairfate.privacy.budget import Budget
from fairfate.privacy.releases import Releases, releases_of
from fairfate.strategies import Setup, Spec, Vector


def simulate(
    federation: Federation,
    specs: Sequence[Spec],
    model: Model,
    training: Training,
    setup: Setup,
    streams: Streams,
    on_round: Callable[[], None] = lambda: None,
    *,
    record_clients: bool = False,
    last_only: bool = False,
    checkpoint: Path | None = None,
    seconds: float = 30.0,
    on_record: Callable[[int, Sequence[Trace]], None] | None = None,
    attack: Attack | None = None,
    secure_sums: SecureSums | None = None,
    budget: Budget | None = None,
) -> list[Trace]:
    """Run several strategies on the same split, clients and batches.

    Strategies that differ in their steps only are trained once.

    Parameters
    ----------
    federation : the data of this seed
    specs : what to compare; each starts from the same initial model
    model : the kind of model
    training : rounds, cohort size and the clients' SGD
    setup : what strategies may know of the run
    streams : the random numbers of this seed
    on_round : called after every round
    record_clients : also keep who took part in each round
    last_only : measure what is released after the last round only
    checkpoint : file for what is needed to go on, written at most every ``seconds``; taken up if it is there
    on_record : called after every round with its number and what the strategies have done so far
    attack : what some clients do to the others
    secure_sums : the rule by which the server sees sums over clients only
    budget : what each client's rows may be told by; None for no differential privacy

    Returns
    -------
    One trace for each strategy, the same whatever the others are.
    """
    if setup.learning_rate is None:
        setup = replace(setup, learning_rate=training.learning_rate)
    clients = Simulation(federation, model, training, streams, attack, secure_sums, budget)
    start = clients.initial()
    keys = [_key_of(spec, setup, budget) for spec in specs]
    servers = {key: _start(*key, setup, start) for key in dict.fromkeys(keys)}
    recorders = [
        Recorder(spec, servers[key], training.rounds, training.early_stopping)
        for spec, key in zip(specs, keys, strict=True)
    ]
    traces = [recorder.trace for recorder in recorders]
    identity = {} if checkpoint is None else _identity(federation, specs, model, training, streams, attack)
    if secure_sums is not None:
        identity["secure-sums"] = list(secure_sums)
    if budget is not None:
        identity["privacy"] = str(budget)
    saved = Checkpoint(checkpoint, identity, seconds)
    first = saved.load([*servers.values()], recorders)[0] + 1
    for _ in range(1, first):
        on_round()
    active = _active([*servers.values()], recorders, first - 1)
    measure = _Measuring(clients, active, recorders, training.rounds, record_clients, last_only)

    def tell(t: int) -> None:
        if on_record is not None:
            on_record(t, traces)
        on_round()

    def save(this_round: Round) -> None:
        saved.save(this_round.number, [*servers.values()], recorders)

    measure.last = first - 1
    run_rounds(
        clients, active, training.rounds, [measure, save, lambda this_round: tell(this_round.number)], first
    )
    for t in range(measure.last + 1, training.rounds + 1):  # all strategies have stopped
        for recorder in recorders:
            if measure.is_counted(t):
                recorder.repeat(t)
        tell(t)
    for recorder in recorders:
        recorder.finish(clients.scored_rows(recorder.server), setup)
        if clients.private is not None:
            trained = recorder.last_trained(training.rounds)
            recorder.trace.ledger = clients.private.entries(recorder.server, trained)
    return traces


def _key_of(spec: Spec, setup: Setup, budget: Budget | None) -> tuple[Spec, Releases, str]:
    """What a strategy shares a server by: strategies that differ in their steps only are trained once."""
    if budget is None:
        return spec.base, Releases(), ""
    releases = releases_of(spec, setup)
    return spec.base, releases, name_server(spec, releases)


def _start(base: Spec, releases: Releases, name: str, setup: Setup, start: Vector) -> Server:
    """The server of a strategy before the first round."""
    server = Server.start(base.build(setup), start)
    server.releases, server.name = releases, name
    return server


def _active(servers: Sequence[Server], recorders: Sequence[Recorder], t: int) -> list[Server]:
    """The servers that train on after round ``t``: those of a recorder that has not stopped."""
    wanted = {id(recorder.server) for recorder in recorders if not recorder.is_stopped(t)}
    return [server for server in servers if id(server) in wanted]


def _identity(
    federation: Federation,
    specs: Sequence[Spec],
    model: Model,
    training: Training,
    streams: Streams,
    attack: Attack | None,
) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    digest = hashlib.sha256(federation.rows.x.data)
    digest.update(federation.rows.y.data)
    return {
        "version": __version__,
        "strategies": [[spec.text, spec.code] for spec in specs],
        "model": model.text,
        "training": asdict(training),
        "streams": asdict(streams),
        "rows": [digest.hexdigest(), federation.rows.offsets.tolist()],
        **({} if attack is None else {"attack": str(attack)}),
        **(
            {}
            if federation.validation_source == AT_SERVER
            else {"validation-from": str(federation.validation_source)}
        ),
        **({} if federation.min_cell == 0 else {"min-cell": federation.min_cell}),
    }


class _Measuring:
    """Records what a round has released, and how it does; takes servers that have stopped from the loop."""

    def __init__(
        self,
        clients: Simulation,
        active: list[Server],
        recorders: Sequence[Recorder],
        rounds: int,
        record_clients: bool,
        last_only: bool,
    ) -> None:
        self.clients, self.active, self.recorders, self.rounds = clients, active, recorders, rounds
        self.record_clients, self.last_only = record_clients, last_only
        self.last = 0

    def is_counted(self, t: int) -> bool:
        """Whether a round is measured."""
        return not self.last_only or t == self.rounds

    def __call__(self, this_round: Round) -> None:
        """After a round."""
        t = self.last = this_round.number
        if self.clients.attackers is not None:
            this_round = _noted(this_round, self.clients.attackers)
        trained = [recorder for recorder in self.recorders if not recorder.is_stopped(t - 1)]
        counted = self.is_counted(t)
        indices = {id(server): index for index, server in enumerate(self.active)}
        for recorder in trained:
            index = indices[id(recorder.server)]
            recorder.release(t, this_round.outcomes[index].notes, counted=counted)
            if self.record_clients:
                recorder.trace.clients.extend(
                    client_rounds(t, this_round.replies[index], this_round.outcomes[index])
                )
        self._choose_best([recorder for recorder in trained if recorder.patience], t)
        if counted:
            self._measure([recorder for recorder in trained if not recorder.is_decided_last], t)
            for recorder in self.recorders:
                if recorder not in trained:
                    recorder.repeat(t)
        self.active[:] = _active(self.active, self.recorders, t)

    def _choose_best(self, recorders: Sequence[Recorder], t: int) -> None:
        """Let those that stop early look at the validation loss of the round's models."""
        if not recorders:
            return
        rows = self.clients.federation.validation
        losses = self.clients.model.statistics(stack([each.released for each in recorders]), rows).loss
        for recorder, loss in zip(recorders, losses, strict=True):
            recorder.choose(t, float(loss.sum()) / max(len(rows), 1))

    def _measure(self, recorders: Sequence[Recorder], t: int) -> None:
        """The released models on the test rows and, unless it is known, on the validation rows."""
        if not recorders:
            return
        test = self.clients.test(stack([recorder.released for recorder in recorders]))
        others = [recorder.released for recorder in recorders if not recorder.is_trained_model]
        validation = iter(self.clients.validate(stack(others)) if others else ())
        for recorder, counts in zip(recorders, test, strict=True):
            known = recorder.is_trained_model
            recorder.measure(t, recorder.server.counts if known else next(validation), counts)


def _noted(this_round: Round, attackers: Attackers) -> Round:
    """A round whose notes say who attacked."""
    outcomes = [
        outcome._replace(notes=attackers.notes(replies.clients, outcome.notes))
        for outcome, replies in zip(this_round.outcomes, this_round.replies, strict=True)
    ]
    return this_round._replace(outcomes=outcomes)
