"""A simulation that was killed goes on: what its servers and records hold, in one file, now and then."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from fairfate.engine.checkpoint import Saved, read_checkpoint, unpack, write_checkpoint
from fairfate.engine.record import ClientRound, ClientsRecord, CountsRecord
from fairfate.engine.server import Server
from fairfate.errors import InputError
from fairfate.models.model import Models
from fairfate.strategies import Average

COUNTED_BY = ("round", "group", "label", "prediction")


class Best(NamedTuple):
    """The model with the lowest validation loss so far."""

    loss: float
    round: int
    params: Models


class Recorded(Protocol):
    """A strategy's record: what `Trace` and its average hold."""

    average: Average | None
    patience: int
    best: Best
    trace: Any


class Checkpoint:
    """Writes the file at most every ``seconds``; without a path, never."""

    def __init__(self, path: Path | None, identity: dict[str, Any], seconds: float = 30.0) -> None:
        self.path, self.identity, self.seconds = path, identity, seconds
        self._last = time.monotonic()

    def save(self, t: int, servers: Sequence[Server], lines: Sequence[Recorded]) -> None:
        """After a round."""
        if self.path is None or time.monotonic() - self._last < self.seconds:
            return
        content = {
            "states": [server.state for server in servers],
            "discarded": [server.discarded for server in servers],
            "lines": [_line(line) for line in lines],
        }
        pieces = [str(t), *(_texts(line) for line in lines)]
        write_checkpoint(self.path, content, self.identity, [], pieces)
        self._last = time.monotonic()

    def load(self, servers: Sequence[Server], lines: Sequence[Recorded]) -> int:
        """Take up what was saved, if it is of this run; returns the rounds that are done."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            saved = read_checkpoint(self.path)
        except InputError:
            return 0  # damaged: begin again
        if saved.identity != json.loads(json.dumps(self.identity)):
            return 0
        try:
            return _take_up(saved, servers, lines)
        except (InputError, LookupError, ValueError, TypeError, AttributeError):
            return 0  # no state of these servers

    def remove(self) -> None:
        """The run is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()


def _take_up(saved: Saved, servers: Sequence[Server], lines: Sequence[Recorded]) -> int:
    """All of a checkpoint, or nothing of it; returns the rounds that are done."""
    content = saved.content["dict"]
    packed = zip(servers, content["states"]["list"], strict=True)
    states = [unpack(state, saved.arrays, server.state) for server, state in packed]
    done = int(saved.pieces[0])
    for server, state in zip(servers, states, strict=True):
        if np.shape(state.params) != np.shape(server.params) or not np.isfinite(state.params).all():
            raise InputError("checkpoint must hold models of the run's shape, got others")
    discarded = [int(rounds) for rounds in content["discarded"]["list"]]
    held = [unpack(of, saved.arrays, None) for of in content["lines"]["list"]]
    texts = [json.loads(text) for text in saved.pieces[1:]]
    for _, of, text in zip(lines, held, texts, strict=True):
        numbers, notes, clients = text
        _check_line(of, len(numbers), np.shape(servers[0].params))
        if not all(isinstance(note, dict) for note in notes):
            raise InputError("checkpoint must hold notes by name, got others")
        [ClientRound._make([*c[:5], None, c[6], None]) for c in clients]
    for server, state, rounds in zip(servers, states, discarded, strict=True):
        server.state, server.discarded = state, rounds
    for line, of, text in zip(lines, held, texts, strict=True):
        _restore(line, of, text)
    return done


def _check_line(held: dict[str, Any], rounds: int, model: tuple[int, ...]) -> None:
    """What `_line` has saved, of so many rounds and such a model."""
    validation, test = np.shape(held["validation"]), np.shape(held["test"])
    if validation != test or validation[0] != rounds or (rounds and len(test) != len(COUNTED_BY)):
        raise InputError(f"checkpoint must hold counts by {COUNTED_BY}, got {validation} and {test}")
    if held["total"] is not None and np.shape(held["total"]) != model:
        raise InputError(f"checkpoint must hold a sum of models {model}, got {np.shape(held['total'])}")
    if not isinstance(held["count"], int):
        raise InputError(f"checkpoint must hold how many models were added, got {held['count']!r}")
    if held["best"] is not None:
        loss, number, params = held["best"]
        if not isinstance(loss, float) or not isinstance(number, int) or np.shape(params) != model:
            raise InputError(f"checkpoint must hold the best model {model}, got {np.shape(params)}")


def _line(line: Recorded) -> dict[str, Any]:
    trace, average = line.trace, line.average
    return {
        "validation": np.array(trace.validation, dtype=np.int64),
        "test": np.array(trace.test, dtype=np.int64),
        "total": None if average is None else average.total,
        "count": 0 if average is None else average.count,
        "best": [line.best.loss, line.best.round, line.best.params] if line.patience else None,
    }


def _texts(line: Recorded) -> str:
    """What is no array, as a line of JSON."""
    trace = line.trace
    notes = ({key: np.asarray(value).tolist() for key, value in note.items()} for note in trace.notes)
    clients = (
        [*c[:5], None if c.counts is None else c.counts.tolist(), dict(c.notes)] for c in trace.clients
    )
    parts = (", ".join(map(json.dumps, values)) for values in (trace.rounds, notes, clients))  # little memory
    return "[{}]".format(", ".join(f"[{part}]" for part in parts))


def _restore(line: Recorded, held: dict[str, Any], texts: list[Any]) -> None:
    trace = line.trace
    trace.validation, trace.test = CountsRecord(held["validation"]), CountsRecord(held["test"])
    if line.average is not None:
        line.average.total, line.average.count = held["total"], held["count"]
    if line.patience:
        loss, number, params = held["best"]
        line.best = Best(float(loss), int(number), np.asarray(params, dtype=np.float32))
    trace.rounds, trace.notes, clients = texts
    trace.clients = ClientsRecord(
        ClientRound._make([*c[:5], None if c[5] is None else np.array(c[5], dtype=np.int64), c[6], None])
        for c in clients
    )
