"""What happened in each round of a federation on Flower, and to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.engine.record import DROPPED, FAIR, REFUSED, USED, ClientRound, clients_frame
from fairfate.errors import listing
from fairfate.experiments.results import Line, rounds_frame
from fairfate.fairness.metrics import COLLAPSED, METRICS, Counts, mcc
from fairfate.fairness.objective import metrics_by
from fairfate.flower.logs import log
from fairfate.strategies import THRESHOLDS, Notes, Spec

SHOWN = ("accuracy", "mcc", "sp", "eo", "eqo")
"""What is told of a model in logs."""


class Round(NamedTuple):
    """One round."""

    number: int
    asked: int
    """How many clients were asked."""
    notes: dict[str, Any]
    clients: tuple[ClientRound, ...]
    validation: Counts | None
    """(groups, 2, 2) the released model after the round on the validation rows."""
    test: Counts | None
    problem: str = ""
    """Why the whole round was discarded, if it was."""
    groups: Groups | None = None
    """What the counts are counted by."""

    @property
    def dropped(self) -> list[ClientRound]:
        """The clients that were asked in vain."""
        return [client for client in self.clients if client.outcome == DROPPED]

    @property
    def counted(self) -> list[ClientRound]:
        """The clients whose replies count."""
        return [client for client in self.clients if client.outcome in (FAIR, USED)]

    @property
    def fair(self) -> list[ClientRound]:
        """Those of them that counted as fair."""
        return [client for client in self.clients if client.outcome == FAIR]

    def numbers(self) -> dict[str, Any]:
        """The round in numbers, for Flower's result."""
        found: dict[str, Any] = {"clients": len(self.counted), "dropped": len(self.dropped)}
        found["dropped-nodes"] = [client.node or 0 for client in self.dropped]
        if "fair" in self.notes:
            found |= {
                "fair-clients": len(self.fair),
                "fair-nodes": [client.node or 0 for client in self.fair],
            }
        for name, value in self.notes.items():
            if isinstance(value, float):
                found["lambda" if name == "lam" else name] = value
        metrics = metrics_by(self.groups)
        for split, counts in (("validation", self.validation), ("test", self.test)):
            if counts is not None:
                found |= {f"{split}-{name}": float(metrics[name](counts)) for name in SHOWN}
        return found

    def line(self) -> str:
        """The round in a line, for the log."""
        parts = [f"{len(self.counted)} replies count, {len(self.dropped)} dropped"]
        if "fair" in self.notes:
            names = listing(client.name for client in self.fair)
            parts.append(f"{len(self.fair)} fair ({names or 'nobody'})")
        for name, value in self.numbers().items():
            if isinstance(value, float) and not name.startswith("test"):
                parts.append(f"{name} {value:.4f}")
        return "; ".join(parts)

    def log(self) -> None:
        """Tell of the round."""
        for client in self.clients:
            if client.reason and client.outcome != REFUSED:
                log(WARNING, "\t> %s %s: %s", client.outcome, client.name, client.reason)
        log(INFO, "aggregate_train: %s", self.line())
        if not self.counted:
            log(WARNING, "\t> no usable reply in round %d: the model stays as it was", self.number)

    def pack(self) -> list[Any]:
        """As JSON values."""
        clients = [
            [*client[:5], _listed(client.counts), dict(client.notes), client.node] for client in self.clients
        ]
        counts = [_listed(self.validation), _listed(self.test)]
        return [self.number, self.asked, self.notes, clients, *counts, self.problem]

    @classmethod
    def unpack(cls, values: list[Any], groups: Groups | None) -> Round:
        """The inverse of `pack`."""
        number, asked, notes, clients, validation, test, problem = values
        replies = tuple(
            ClientRound._make([*client[:5], _counts(client[5]), *client[6:]]) for client in clients
        )
        return cls(number, asked, notes, replies, _counts(validation), _counts(test), problem, groups)


def account(history: Sequence[Round], refused: Mapping[int, tuple[str, str]]) -> list[str]:
    """How a run went, in lines; who was refused is given by node, with a name and a reason."""
    asked = sum(done.asked for done in history)
    dropped = [client for done in history for client in done.dropped]
    lines = [f"{len(history)} rounds, {asked} requests, {len(dropped)} without a usable reply"]
    for name in sorted({client.name for client in dropped}):
        reasons = [client.reason for client in dropped if client.name == name]
        lines.append(f"{name}: dropped {len(reasons)} times, last for: {reasons[-1]}")
    lines += [f"{name} took no part: {why}" for name, why in refused.values()]
    last = history[-1].validation
    if last is not None and not mcc(last) >= COLLAPSED:
        told = f"{mcc(last):.3f} on the validation rows"
        lines.append(f"The model hardly tells people apart, with an MCC of {told}")
    return lines


def plain_notes(notes: Notes) -> dict[str, Any]:
    """Notes as JSON values: numbers, and lists of one number for each client."""
    return {key: np.asarray(value, dtype=np.float64).tolist() for key, value in notes.items()}


def _listed(counts: Counts | None) -> list[Any] | None:
    return None if counts is None else counts.tolist()


def _counts(values: list[Any] | None) -> Counts | None:
    return None if values is None else np.array(values, dtype=np.int64)


def rounds_of(history: Sequence[Round], spec: Spec, **key: object) -> pd.DataFrame:
    """The rounds as `fairfate run` records them; ``key`` is the dataset, partition, protocol and seed.

    Empty for a run that was measured on no rows. Thresholds are chosen, and measured, after the last round.
    """
    history = history[-1:] if spec.step(THRESHOLDS) is not None else history
    lines = []
    for name in ("validation", "test"):
        measured = [done for done in history if getattr(done, name) is not None]
        if measured and measured[-1] is history[-1]:  # rows that clients hold out are asked for at the end
            counts, notes = [getattr(done, name) for done in measured], [done.notes for done in measured]
            lines.append(Line(spec, [done.number for done in measured], {name: counts}, notes))
    if not lines:
        return pd.DataFrame(columns=[*key, "strategy", "metric", "settings", "round", "split", *METRICS])
    return rounds_frame(key, lines, metrics_by(history[0].groups))


def clients_of(history: Sequence[Round]) -> pd.DataFrame:
    """One row for each client that was asked in a round: what it sent, how it did, what became of it."""
    groups = history[0].groups if history else None
    return clients_frame([client for done in history for client in done.clients], groups)
