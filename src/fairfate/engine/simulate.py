"""A whole run of one seed in this process: strategies with their steps, side by side, and what they did."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairfate._version import __version__
from fairfate.engine.attack import Attack, Attackers
from fairfate.engine.loop import Round, play
from fairfate.engine.record import ClientsRecord, CountsRecord, client_rounds
from fairfate.engine.resume import Best, Checkpoint
from fairfate.engine.server import Server, stack
from fairfate.engine.simulation import Simulation
from fairfate.fairness.metrics import Values
from fairfate.fairness.thresholds import (
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
)
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.federation.validation_source import AT_SERVER
from fairfate.models.model import Model, Models
from fairfate.models.training import Training
from fairfate.strategies import AVERAGE, THRESHOLDS, Average, Notes, Setup, Spec, Step

BEST_ROUND = "best_round"
"""The note that says which round's model early stopping has chosen so far."""


@dataclass(eq=False)
class Trace:
    """What one strategy, with its steps, did over the rounds."""

    spec: Spec
    rounds: list[int] = field(default_factory=list)
    """Those that were measured: all, or the last one where thresholds are chosen after it."""
    validation: CountsRecord = field(default_factory=CountsRecord)
    """(groups, 2, 2) the released model on the validation rows."""
    test: CountsRecord = field(default_factory=CountsRecord)
    """The same on the test rows."""
    notes: list[Notes] = field(default_factory=list)
    clients: ClientsRecord = field(default_factory=ClientsRecord)
    """Who was asked in each round, and what became of it; empty unless asked for."""
    params: Models = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """The released model."""
    thresholds: Values | None = None
    """One for each group, where that step was taken."""


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

    Returns
    -------
    One trace for each strategy, the same whatever the others are.
    """
    if setup.learning_rate is None:
        setup = replace(setup, learning_rate=training.learning_rate)
    bases = list(dict.fromkeys(spec.base for spec in specs))
    clients = Simulation(federation, model, training, streams, attack)
    start = clients.initial()
    servers = [Server.start(base.build(setup), start) for base in bases]
    places = {base: place for place, base in enumerate(bases)}
    lines = [_Line(spec, servers[places[spec.base]], training) for spec in specs]
    identity = {} if checkpoint is None else _identity(federation, specs, model, training, streams, attack)
    saved = Checkpoint(checkpoint, identity, seconds)
    first = saved.load(servers, lines) + 1
    traces = [line.trace for line in lines]
    for line in lines if first > 1 else ():
        line.resume()
    for _ in range(1, first):
        on_round()
    t, active = first - 1, _active(servers, lines, first - 1)
    for done in play(clients, active, training.rounds, first) if active else ():
        t = done.number
        done = done if clients.attackers is None else _noted(done, clients.attackers)
        trained = [line for line in lines if not line.is_stopped(t - 1)]
        counted = not last_only or t == training.rounds
        for line in trained:
            s = active.index(line.server)
            line.release(t, done.outcomes[s].notes, counted=counted)
            if record_clients:
                line.trace.clients.extend(client_rounds(t, done.replies[s], done.outcomes[s]))
        _choose_best(clients, [line for line in trained if line.patience], t)
        _measure(clients, trained, t, counted=counted)
        for line in lines:
            if counted and line not in trained:
                line.repeat(t)
        active[:] = _active(servers, lines, t)  # the loop goes on with these
        saved.save(t, servers, lines)
        if on_record is not None:
            on_record(t, traces)
        on_round()
        if not active:
            break
    for after in range(t + 1, training.rounds + 1):  # all strategies have stopped
        for line in lines:
            if not last_only or after == training.rounds:
                line.repeat(after)
        if on_record is not None:
            on_record(after, traces)
        on_round()
    for line in lines:
        line.finish(clients, setup)
    return traces


def _active(servers: Sequence[Server], lines: Sequence[_Line], t: int) -> list[Server]:
    """The servers that train on after round ``t``: those of a line that has not stopped."""
    wanted = {id(line.server) for line in lines if not line.is_stopped(t)}
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


def _noted(done: Round, attackers: Attackers) -> Round:
    """A round whose notes say who attacked."""
    outcomes = [
        outcome._replace(notes=attackers.notes(replies.clients, outcome.notes))
        for outcome, replies in zip(done.outcomes, done.replies, strict=True)
    ]
    return done._replace(outcomes=outcomes)


class _Line:
    """A strategy with its steps: one line of a table."""

    def __init__(self, spec: Spec, server: Server, training: Training) -> None:
        self.trace, self.server, self.rounds = Trace(spec), server, training.rounds
        step = spec.step(AVERAGE)
        self.average = None if step is None else Average(float(step["share"]), self.rounds)
        self.thresholds: Step | None = spec.step(THRESHOLDS)
        self.released: Models = self.server.released
        self.patience = training.early_stopping
        self.best = Best(math.inf, 0, np.asarray(self.released, dtype=np.float32))

    def release(self, t: int, notes: Notes, *, counted: bool) -> None:
        """Take note of a round's model."""
        self.released = self.server.released
        if self.average is not None:
            self.released = self.average.add(t, np.asarray(self.released, dtype=np.float32))
        if counted:
            self.trace.notes.append(notes)

    def choose(self, t: int, loss: float) -> None:
        """Release the best model so far, given the validation loss of the round's."""
        if loss < self.best.loss:
            self.best = Best(loss, t, np.array(self.released, dtype=np.float32))
        self.released = self.best.params
        if self.trace.notes:
            self.trace.notes[-1] = {**self.trace.notes[-1], BEST_ROUND: float(self.best.round)}

    def is_stopped(self, t: int) -> bool:
        """Whether training was over by round ``t``: no model of the last rounds was better."""
        return self.patience > 0 and t - self.best.round >= self.patience

    def repeat(self, t: int) -> None:
        """Record a round after training was over."""
        self.trace.notes.append(self.trace.notes[-1] if self.trace.notes else {})
        if self.thresholds is None:
            self.trace.rounds.append(t)
            self.trace.test.append(self.trace.test[-1])
            self.trace.validation.append(self.trace.validation[-1])

    def resume(self) -> None:
        """Release what was released when the run was interrupted."""
        self.released = self.server.released
        if self.patience:
            self.released = self.best.params
        elif self.average is not None and self.average.total is not None:
            self.released = self.average.mean.astype(np.float32)

    @property
    def is_trained_model(self) -> bool:
        """Whether what is released is what is trained further, which is measured anyway."""
        return self.average is None and self.server.strategy.release is None and not self.patience

    def finish(self, clients: Simulation, setup: Setup) -> None:
        """Choose thresholds, if they are to be chosen."""
        self.trace.params = np.asarray(self.released, dtype=np.float32)
        if self.thresholds is None:
            return
        step, rows = dict(self.thresholds.settings), clients.federation
        fairness = replace(setup, min_cell=0).fairness(str(step["metric"]))
        rule = float(step["tolerance"]), float(step["keep"]), str(step["against"])
        if rows.validation_source.at_clients:  # who tell how many rows have which score
            held = clients.held_histograms(self.released)
            seen = clients.histograms(self.released) if step["from"] == "clients" else held
            chosen = choose_from_histogram(seen, fairness, *rule)
            self.trace.validation = CountsRecord([apply_to_histogram(held, chosen)])
        else:
            margins = clients.model.margins(self.released, rows.validation)
            if step["from"] == "clients":
                chosen = choose_from_histogram(clients.histograms(self.released), fairness, *rule)
            else:
                chosen = choose_from_scores(margins, fairness, *rule)
            self.trace.validation = CountsRecord([apply(margins, chosen)])
        self.trace.thresholds = chosen
        self.trace.test = CountsRecord([apply(clients.model.margins(self.released, rows.test), chosen)])
        self.trace.rounds, self.trace.notes = [self.rounds], self.trace.notes[-1:]


def _choose_best(clients: Simulation, lines: Sequence[_Line], t: int) -> None:
    """Let lines that stop early look at the validation loss of the round's models."""
    if not lines:
        return
    rows = clients.federation.validation
    losses = clients.model.statistics(stack([line.released for line in lines]), rows).loss
    for line, loss in zip(lines, losses, strict=True):
        line.choose(t, float(loss.sum()) / max(len(rows), 1))


def _measure(clients: Simulation, lines: Sequence[_Line], t: int, *, counted: bool = True) -> None:
    """Every line's released model on the test rows and, unless it is known, on the validation rows."""
    measured = [line for line in lines if counted and line.thresholds is None]
    if not measured:
        return
    test = clients.test(stack([line.released for line in measured]))
    others = [line.released for line in measured if not line.is_trained_model]
    validation = iter(clients.validate(stack(others)) if others else ())
    for line, counts in zip(measured, test, strict=True):
        line.trace.rounds.append(t)
        line.trace.test.append(counts)
        line.trace.validation.append(line.server.counts if line.is_trained_model else next(validation))
