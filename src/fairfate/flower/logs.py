"""What Flower's own log says, so that users find everything in one place."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, NamedTuple

import numpy as np

from fairfate.data.groups import Groups
from fairfate.engine.record import DROPPED, FAIR, REFUSED, USED, ClientRound
from fairfate.errors import listing
from fairfate.fairness.metrics import COLLAPSED, Counts, mcc
from fairfate.fairness.objective import metrics_by
from fairfate.strategies import Notes

LOGGER = logging.getLogger("flwr")
SHOWN = ("accuracy", "mcc", "sp", "eo", "eqo")
"""The metrics of a model that logs show."""


def log(level: int, message: str, *values: object, exc_info: BaseException | None = None) -> None:
    """Write a line to Flower's log, with an error's traceback if one is given."""
    LOGGER.log(level, message, *values, exc_info=exc_info)


def one_line(text: object, limit: int = 300) -> str:
    r"""What others say, made fit for a log and a table: one line of printable characters, not too long.

    >>> one_line("a\nfalse\x1b[31m line", 11)
    'a false [3…'
    """
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    words = " ".join(plain.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"


class RoundSummary(NamedTuple):
    """A round for the log, and for Flower's result."""

    number: int
    clients: list[ClientRound]
    notes: Notes
    validation: Counts | None
    """(groups, 2, 2) the released model after the round on the validation rows."""
    test: Counts | None
    groups: Groups | None
    """What the counts are counted by."""

    def having(self, *outcomes: str) -> list[ClientRound]:
        """The clients of which one of these became."""
        return [client for client in self.clients if client.outcome in outcomes]

    @property
    def knows_fair(self) -> bool:
        """Whether it is known which clients were fair, and not only how many."""
        return np.ndim(self.notes.get("fair", 0.0)) > 0

    def numbers(self) -> dict[str, Any]:
        """The round in numbers, for Flower's result."""
        dropped, fair = self.having(DROPPED), self.having(FAIR)
        numbers: dict[str, Any] = {"clients": len(self.having(FAIR, USED)), "dropped": len(dropped)}
        numbers["dropped-nodes"] = [client.node or 0 for client in dropped]
        if self.knows_fair:
            numbers |= {"fair-clients": len(fair), "fair-nodes": [client.node or 0 for client in fair]}
        for name, value in self.notes.items():
            if np.ndim(value) == 0:
                numbers["lambda" if name == "lam" else name] = float(value)
        metrics = metrics_by(self.groups)
        for split, counts in (("validation", self.validation), ("test", self.test)):
            if counts is not None:
                numbers |= {f"{split}-{name}": float(metrics[name](counts)) for name in SHOWN}
        return numbers

    def line(self) -> str:
        """The round in a line."""
        fair = self.having(FAIR)
        parts = [f"{len(self.having(FAIR, USED))} replies count, {len(self.having(DROPPED))} dropped"]
        if "summed" in self.notes:
            parts = [f"a sum over {self.notes['summed']:g} clients, {len(self.having(DROPPED))} dropped"]
        if self.knows_fair:
            parts.append(f"{len(fair)} fair ({listing(client.name for client in fair) or 'nobody'})")
        for name, value in self.numbers().items():
            if isinstance(value, float) and not name.startswith("test"):
                parts.append(f"{name} {value:.4f}")
        return "; ".join(parts)

    def log(self) -> None:
        """Write the round down."""
        for client in self.clients:
            if client.reason and client.outcome != REFUSED:
                log(WARNING, "\t> %s %s: %s", client.outcome, client.name, client.reason)
        log(INFO, "aggregate_train: %s", self.line())
        if not self.having(FAIR, USED):
            log(WARNING, "\t> no usable reply in round %d: the model stays as it was", self.number)


def run_summary(
    asked: list[int],
    clients: Iterable[ClientRound],
    refused: Mapping[int, tuple[str, str]],
    validation: Counts | None,
) -> list[str]:
    """How a run went, in lines.

    Parameters
    ----------
    asked : how many clients each round asked
    clients : who took part in the rounds
    refused : who is excluded, by node, with a name and a reason
    validation : the released model on the validation rows
    """
    dropped = [client for client in clients if client.outcome == DROPPED]
    lines = [f"{len(asked)} rounds, {sum(asked)} requests, {len(dropped)} without a usable reply"]
    for name in sorted({client.name for client in dropped}):
        reasons = [client.reason for client in dropped if client.name == name]
        lines.append(f"{name}: dropped {len(reasons)} times, last for: {reasons[-1]}")
    lines += [f"{name} was excluded: {why}" for name, why in refused.values()]
    if validation is not None and not mcc(validation) >= COLLAPSED:
        lines.append(
            "The model has collapsed: it gives nearly everybody the same answer"
            f" (MCC {mcc(validation):.3f} on the validation rows)"
        )
    return lines
