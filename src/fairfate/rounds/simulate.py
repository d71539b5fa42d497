"""A whole run of one seed in this process: strategies with their steps, side by side, and what they did."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairfate._version import __version__
from fairfate.fairness.metrics import Values
from fairfate.fairness.thresholds import (
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
)
from fairfate.federation.holders import AT_SERVER
from fairfate.federation.split import Federation
from fairfate.federation.streams import Streams
from fairfate.models.model import Model, Models
from fairfate.models.training import Training
from fairfate.rounds.attack import Attack, Attackers
from fairfate.rounds.loop import Round, play
from fairfate.rounds.record import ClientsRecord, CountsRecord, client_rounds
from fairfate.rounds.resume import Checkpoint
from fairfate.rounds.server import Server, stack
from fairfate.rounds.simulation import Simulation
from fairfate.strategies import AVERAGE, THRESHOLDS, Average, Notes, Setup, Spec, Step


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
    lines = [_Line(spec, places[spec.base], servers, training.rounds) for spec in specs]
    identity = {} if checkpoint is None else _identity(federation, specs, model, training, streams, attack)
    saved = Checkpoint(checkpoint, identity, seconds)
    first = saved.load(servers, lines) + 1
    traces = [line.trace for line in lines]
    for _ in range(1, first):
        on_round()
    for done in play(clients, servers, training.rounds, first):
        done = done if clients.attackers is None else _noted(done, clients.attackers)
        _measure(clients, lines, done, counted=not last_only or done.number == training.rounds)
        for line in lines if record_clients else ():
            s = line.place
            line.trace.clients.extend(client_rounds(done.number, done.replies[s], done.outcomes[s]))
        saved.save(done.number, servers, lines)
        if on_record is not None:
            on_record(done.number, traces)
        on_round()
    for line in lines:
        line.finish(clients, setup)
    return traces


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
        **({} if federation.holders == AT_SERVER else {"validation-from": str(federation.holders)}),
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

    def __init__(self, spec: Spec, place: int, servers: Sequence[Server], rounds: int) -> None:
        self.trace, self.place, self.server, self.rounds = Trace(spec), place, servers[place], rounds
        step = spec.step(AVERAGE)
        self.average = None if step is None else Average(float(step["share"]), rounds)
        self.thresholds: Step | None = spec.step(THRESHOLDS)
        self.released: Models = self.server.released

    def release(self, t: int) -> None:
        """Take note of a round's model."""
        self.released = self.server.released
        if self.average is not None:
            self.released = self.average.add(t, np.asarray(self.released, dtype=np.float32))

    @property
    def is_trained_model(self) -> bool:
        """Whether what is released is what is trained further, which is measured anyway."""
        return self.average is None and self.server.strategy.release is None

    def finish(self, clients: Simulation, setup: Setup) -> None:
        """Choose thresholds, if they are to be chosen."""
        self.trace.params = np.asarray(self.released, dtype=np.float32)
        if self.thresholds is None:
            return
        step, rows = dict(self.thresholds.settings), clients.federation
        fairness = replace(setup, min_cell=0).fairness(str(step["metric"]))
        rule = float(step["tolerance"]), float(step["keep"]), str(step["against"])
        if rows.holders.at_clients:  # who tell how many rows have which score
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


def _measure(clients: Simulation, lines: Sequence[_Line], done: Round, *, counted: bool = True) -> None:
    """Every line's released model on the test rows and, unless it is known, on the validation rows."""
    for line in lines:
        line.release(done.number)
        if counted:
            line.trace.notes.append(done.outcomes[line.place].notes)
    measured = [line for line in lines if counted and line.thresholds is None]
    if not measured:
        return
    test = clients.test(stack([line.released for line in measured]))
    others = [line.released for line in measured if not line.is_trained_model]
    validation = iter(clients.validate(stack(others)) if others else ())
    for line, counts in zip(measured, test, strict=True):
        line.trace.rounds.append(done.number)
        line.trace.test.append(counts)
        line.trace.validation.append(line.server.counts if line.is_trained_model else next(validation))
