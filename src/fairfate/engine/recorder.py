"""What a strategy, with its steps, releases and leaves behind: round by round, and after the last one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fairfate.engine.record import ClientsRecord, CountsRecord
from fairfate.engine.rules import PLAIN, Rule, ScoredRows, choose_rule
from fairfate.engine.server import Server
from fairfate.fairness.metrics import Counts, Values
from fairfate.models.model import Models
from fairfate.privacy.ledger import Entry
from fairfate.strategies import AVERAGE, Average, Notes, Setup, Spec
from fairfate.strategies.steps import AVERAGE_SHARE

BEST_ROUND = "best_round"
"""The note that says which round's model early stopping has chosen so far."""


@dataclass(eq=False)
class Trace:
    """What one strategy, with its steps, did over the rounds."""

    spec: Spec
    rounds: list[int] = field(default_factory=list)
    """Those that were measured: all, or the last one where a rule is chosen after it."""
    validation: CountsRecord = field(default_factory=CountsRecord)
    """(groups, 2, 2) the released model on the validation rows: of all these rounds, of the last, or none."""
    test: CountsRecord = field(default_factory=CountsRecord)
    """The same on the test rows."""
    notes: list[Notes] = field(default_factory=list)
    clients: ClientsRecord = field(default_factory=ClientsRecord)
    """Who was asked in each round, and what became of it; empty unless asked for."""
    params: Models = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    """The released model."""
    rule: Rule = PLAIN
    """How the released model decides."""
    ledger: list[Entry] = field(default_factory=list)
    """What each client has released, under differential privacy."""

    @property
    def thresholds(self) -> Values | None:
        """(groups,) one for each group, where the rule is of that kind."""
        return self.rule.thresholds


class Best(NamedTuple):
    """The model with the lowest validation loss so far."""

    loss: float
    round: int
    params: Models


class Packed(NamedTuple):
    """What a checkpoint holds of a recorder."""

    rounds: list[int]
    notes: list[Notes]
    validation: CountsRecord
    test: CountsRecord
    clients: ClientsRecord
    total: Any
    averaged: int
    """How many models are in the total."""
    best: Best | None


class Recorder:
    """A strategy with its steps: what it releases after each round, and the record of it."""

    def __init__(self, spec: Spec, server: Server, rounds: int, early_stopping: int = 0) -> None:
        self.trace, self.server, self.rounds = Trace(spec), server, rounds
        step = spec.step(AVERAGE)
        self.average = None if step is None else Average(float(step["share"]), rounds)
        self.share = AVERAGE_SHARE if step is None else float(step["share"])
        self.released = self.server.released
        self.patience = early_stopping
        self.best = Best(math.inf, 0, self.released)

    def release(self, t: int, notes: Notes, *, counted: bool = True) -> None:
        """Take note of a round's model."""
        self.released = self.server.released
        if self.average is not None:
            self.released = self.average.add(t, self.released)
        if counted:
            self.trace.notes.append(notes)

    def choose(self, t: int, loss: float) -> None:
        """Release the best model so far, given the validation loss of the round's."""
        if loss < self.best.loss:
            self.best = Best(loss, t, self.released.copy())
        self.released = self.best.params
        if self.trace.notes:
            self.trace.notes[-1] = {**self.trace.notes[-1], BEST_ROUND: float(self.best.round)}

    def is_stopped(self, t: int) -> bool:
        """Whether training was over by round ``t``: no model of the last rounds was better."""
        return self.patience > 0 and t - self.best.round >= self.patience

    def last_trained(self, rounds: int) -> int:
        """The last round of training, of so many."""
        return min(rounds, self.best.round + self.patience) if self.patience else rounds

    def measure(self, t: int, validation: Counts | None, test: Counts | None) -> None:
        """Record how a round's released model does."""
        self.trace.rounds.append(t)
        if validation is not None:
            self.trace.validation.append(validation)
        if test is not None:
            self.trace.test.append(test)

    def repeat(self, t: int) -> None:
        """Record a round after training was over."""
        self.trace.notes.append(self.trace.notes[-1] if self.trace.notes else {})
        if not self.is_decided_last:
            self.measure(t, self.trace.validation[-1], self.trace.test[-1])

    @property
    def is_decided_last(self) -> bool:
        """Whether how is decided is chosen after the last round, so that no other one is measured."""
        return self.trace.spec.rule is not None

    @property
    def is_trained_model(self) -> bool:
        """Whether what is released is what is trained further, which is measured anyway."""
        return self.average is None and self.server.strategy.release is None and not self.patience

    def finish(self, rows: ScoredRows, setup: Setup) -> None:
        """Choose the rule, if one is to be chosen; then only the model with it is measured."""
        trace, step = self.trace, self.trace.spec.rule
        trace.params = self.released
        if step is None:
            return
        trace.rule, validation, test, other = choose_rule(step, setup, rows, self.released, self.share)
        if other is not None:
            self.released = trace.params = other
        trace.validation = CountsRecord([validation])
        trace.test = CountsRecord([] if test is None else [test])
        trace.rounds, trace.notes = [self.rounds], trace.notes[-1:]

    # -- checkpoints ---------------------------------------------------------------------------------------

    def pack(self) -> tuple[dict[str, Any], str]:
        """Numbers, as `pack` of a checkpoint takes them, and a line of JSON."""
        trace, average = self.trace, self.average
        kinds, clients = trace.clients.pack()
        numbers = {
            "validation": np.asarray(trace.validation),
            "test": np.asarray(trace.test),
            "clients": clients,
            "total": None if average is None else average.total,
            "count": 0 if average is None else average.count,
            "best": [self.best.loss, self.best.round, self.best.params] if self.patience else None,
        }
        notes = [{key: np.asarray(value).tolist() for key, value in note.items()} for note in trace.notes]
        return numbers, json.dumps([trace.rounds, notes, kinds])

    @staticmethod
    def unpack(numbers: dict[str, Any], text: str) -> Packed:
        """The inverse of `pack`; nothing is taken up yet."""
        rounds, notes, kinds = json.loads(text)
        best = numbers["best"]
        return Packed(
            rounds,
            notes,
            CountsRecord(numbers["validation"]),
            CountsRecord(numbers["test"]),
            ClientsRecord.unpack(kinds, numbers["clients"]),
            numbers["total"],
            int(numbers["count"]),
            None if best is None else Best(*best),
        )

    def restore(self, packed: Packed) -> None:
        """Go on from what was packed, once the server has its state again."""
        trace = self.trace
        trace.rounds, trace.notes = packed.rounds, packed.notes
        trace.validation, trace.test, trace.clients = packed.validation, packed.test, packed.clients
        if self.average is not None:
            self.average.total, self.average.count = packed.total, packed.averaged
        if packed.best is not None:
            self.best = packed.best
        self.resume()

    def resume(self) -> None:
        """Release what was released when the run was interrupted."""
        self.released = self.server.released
        if self.patience:
            self.released = self.best.params
        elif self.average is not None and self.average.total is not None:
            self.released = self.average.mean.astype(self.released.dtype)
