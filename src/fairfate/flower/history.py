"""What happened in each round, and to whom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.flower.checkpoint import pack_notes, unpack_notes
from fairfate.metrics import FAIRNESS, Counts, accuracy, mcc
from fairfate.results import rounds_frame
from fairfate.strategies import Notes, Spec

FAIR, USED, DROPPED, REFUSED = "fair", "used", "dropped", "refused"
SHOWN = {"accuracy": accuracy, "mcc": mcc, **FAIRNESS}
"""What is told of a model in logs and tables of clients."""


class ClientRound(NamedTuple):
    """One client that was asked in a round."""

    name: str
    node: int
    outcome: str
    """``fair`` and ``used`` count in the average; ``dropped`` was asked in vain, ``refused`` not asked."""
    reason: str = ""
    examples: float = math.nan
    counts: Counts | None = None
    """(groups, 2, 2) its model on the validation rows, where the strategy looks at it."""


class Round(NamedTuple):
    """One round."""

    number: int
    asked: int
    """How many clients were asked."""
    notes: Notes
    clients: tuple[ClientRound, ...]
    validation: Counts | None
    """(groups, 2, 2) the global model after the round on the validation rows."""
    test: Counts | None
    problem: str = ""
    """Why the whole round was discarded, if it was."""

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
        found["dropped-nodes"] = [client.node for client in self.dropped]
        if self.notes.is_fair is not None:
            found |= {"fair-clients": len(self.fair), "fair-nodes": [client.node for client in self.fair]}
        for name, value in (("lambda", self.notes.lam), ("beta", self.notes.beta)):
            if not math.isnan(value):
                found[name] = float(value)
        for split, counts in (("validation", self.validation), ("test", self.test)):
            if counts is not None:
                found |= {f"{split}-{name}": float(metric(counts)) for name, metric in SHOWN.items()}
        return found

    def line(self) -> str:
        """The round in a line, for the log."""
        parts = [f"{len(self.counted)} replies count, {len(self.dropped)} dropped"]
        if self.notes.is_fair is not None:
            names = ", ".join(client.name for client in self.fair)
            parts.append(f"{len(self.fair)} fair ({names or 'nobody'})")
        for name, value in self.numbers().items():
            if isinstance(value, float) and not name.startswith("test"):
                parts.append(f"{name} {value:.4f}")
        return "; ".join(parts)

    def pack(self) -> list[Any]:
        """As JSON values."""
        clients = [[*client[:-1], _listed(client.counts)] for client in self.clients]
        counts = [_listed(self.validation), _listed(self.test)]
        return [self.number, self.asked, pack_notes(self.notes), clients, *counts, self.problem]

    @classmethod
    def unpack(cls, values: list[Any]) -> Round:
        """The inverse of `pack`."""
        number, asked, notes, clients, validation, test, problem = values
        replies = tuple(ClientRound._make([*client[:-1], _counts(client[-1])]) for client in clients)
        return cls(number, asked, unpack_notes(notes), replies, _counts(validation), _counts(test), problem)


def _listed(counts: Counts | None) -> list[Any] | None:
    return None if counts is None else counts.tolist()


def _counts(values: list[Any] | None) -> Counts | None:
    return None if values is None else np.array(values, dtype=np.int64)


def rounds_of(history: Sequence[Round], spec: Spec, **key: object) -> pd.DataFrame:
    """The rounds as `fairfate run` records them; ``key`` is the dataset, partition, protocol and seed."""
    splits = {}
    for name in ("validation", "test"):
        counts = [getattr(done, name) for done in history]
        if counts and all(found is not None for found in counts):
            splits[name] = np.stack(counts)[None]
    names = [(spec.name, spec.metric, spec.settings_json)]
    return rounds_frame(
        key, names, [done.number for done in history], splits, [done.notes for done in history]
    )


def clients_of(history: Sequence[Round]) -> pd.DataFrame:
    """One row for each client that was asked in a round: what it sent, how it did, what became of it."""
    rows = []
    for done in history:
        for client in done.clients:
            row: dict[str, Any] = {"round": done.number, **client._asdict()}
            counts = row.pop("counts")
            for name, metric in SHOWN.items():
                row[name] = math.nan if counts is None else float(metric(counts))
            rows.append(row)
    fields = [name for name in ClientRound._fields if name != "counts"]
    return pd.DataFrame(rows, columns=["round", *fields, *SHOWN])
