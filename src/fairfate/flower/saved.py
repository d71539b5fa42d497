"""A federation that was interrupted goes on: one file, written after every round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from logging import INFO
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from fairfate.engine.checkpoint import read_checkpoint, unpack, write_checkpoint
from fairfate.errors import InputError
from fairfate.flower.global_model import GlobalModel
from fairfate.flower.history import Round
from fairfate.flower.logs import log, one_line

_RESULTS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


class Saved:
    """The checkpoint of a run; without a path, none.

    Parameters
    ----------
    path : the file
    identity : what must be the same for a run to go on
    """

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity
        self.pieces: list[str] = []
        """A text for each round; what was written of earlier rounds is not made anew."""

    def write(
        self, t: int, model: GlobalModel, history: Sequence[Round], names: list[str], result: Result
    ) -> None:
        """After round ``t``, or after its evaluation."""
        if self.path is None:
            return
        kept = [dict(getattr(result, name).get(t, {})) for name in _RESULTS]
        del self.pieces[t:]
        self.pieces.append(json.dumps([history[t - 1].pack() if t else None, *kept]))
        average = None if model.average is None else [model.average.total, model.average.count]
        content = [model.server.state, model.rest, average]
        write_checkpoint(self.path, content, self.identity, names, self.pieces)

    def resume(self, model: GlobalModel, history: list[Round], names: list[str], result: Result) -> int:
        """Take up an earlier run, if there is one; returns the rounds that are done."""
        if self.path is None:
            return 0
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.write(0, model, history, names, result)  # finds out now whether it can be written
            return 0
        saved = read_checkpoint(self.path)
        for name, value in self.identity.items():
            if saved.identity.get(name) != value:
                raise InputError(
                    f"checkpoint must be of the same run, got '{self.path}' with another {name}:"
                    f" {one_line(saved.identity.get(name))} instead of {one_line(value)}"
                )
        state, rest, average = saved.content["list"]
        if model.average is not None:
            model.average.total, model.average.count = unpack(average, saved.arrays, None)
        model.restore(unpack(state, saved.arrays, model.server.state), unpack(rest, saved.arrays, None))
        self.pieces, names[:] = saved.pieces, saved.names
        groups = model.grouping
        for t, (of_round, *kept) in enumerate(map(json.loads, saved.pieces)):
            history += [] if of_round is None else [Round.unpack(of_round, groups)]
            for name, values in zip(_RESULTS, kept, strict=True):
                if values:
                    getattr(result, name)[t] = MetricRecord(values)
        if history:
            result.arrays = model.record
            log(INFO, "Going on after round %d of '%s'", len(history), self.path)
        return len(history)
