"""The only loop over rounds: clients train, servers aggregate, models are measured, observers look on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from fairfate.engine.server import Outcome, Replies, Server, stack
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.models.model import Models
from fairfate.strategies import Loss, Need, Vector


class Clients(Protocol):
    """Where the clients are: in this process, or on a real federation."""

    def train(self, t: int, servers: Sequence[Server]) -> Sequence[Replies]:
        """Round ``t``: for each server, what its clients sent back."""
        ...

    def validate(self, models: Models) -> Counts:
        """(models, groups, 2, 2) models on the server's validation rows."""
        ...

    def descend(self, params: Vector, loss: Loss) -> Vector:
        """What a step of training on these rows adds to a model."""
        ...


class Round(NamedTuple):
    """What a round brought, for each server."""

    number: int
    replies: Sequence[Replies]
    outcomes: Sequence[Outcome]


Observer = Callable[[Round], None]
"""Called after every round: records, checkpoints, progress bars."""


def run_rounds(
    clients: Clients, servers: list[Server], rounds: int, observers: Iterable[Observer] = (), first: int = 1
) -> None:
    """Run the rounds ``first`` to ``rounds``; after each, every server holds its next model, measured.

    Observers are called after each round, in their order. They may take servers from the list, which are then
    trained no further; once none is left, the run ends.
    """
    connect(clients, servers)
    for t in range(first, rounds + 1):
        if not servers:
            return
        this_round = aggregate(clients, servers, t, clients.train(t, servers))
        for observe in observers:
            observe(this_round)


def connect(clients: Clients, servers: Sequence[Server]) -> None:
    """Measure the servers' first models, and give their strategies what they need of the clients."""
    _measure(clients, servers)
    for server in servers:
        if server.needs(Need.DESCENT):
            server.descend = clients.descend
        if server.needs(Need.TRIALS):
            server.score = clients.validate


def aggregate(clients: Clients, servers: Sequence[Server], t: int, replies: Sequence[Replies]) -> Round:
    """What each server makes of its replies, and how its new model does."""
    several = len(servers) > 1
    with np.errstate(over="ignore", invalid="ignore"):
        counts = (
            [s.validation_counts(own) for s, own in zip(servers, replies, strict=True)] if several else [None]
        )
        together = MeasuredTogether(counts)
        outcomes = [
            server.take(t, own, together.metrics_of(index))
            for index, (server, own) in enumerate(zip(servers, replies, strict=True))
        ]
    _measure(clients, servers)
    return Round(t, replies, outcomes)


def _measure(clients: Clients, servers: Sequence[Server]) -> None:
    if servers:
        counts = clients.validate(stack([server.params for server in servers]))
        for server, counted in zip(servers, counts, strict=True):
            server.counts = counted


class MeasuredTogether:
    """Metrics of the models that several servers measure in a round: each is computed once, of all of them.

    A sweep has a hundred servers with a few models each, and most of a metric's time is that of the call.
    """

    def __init__(self, counts: Sequence[Counts | None]) -> None:
        known = [each for each in counts if each is not None]
        self._counts = np.concatenate(known) if known else np.zeros((0, 0, 2, 2), dtype=np.int64)
        ends = np.cumsum([0 if each is None else len(each) for each in counts]).tolist()
        self._parts = [
            None if each is None else slice(end - len(each), end)
            for each, end in zip(counts, ends, strict=True)
        ]
        self._values: dict[Metric, Values] = {}

    def metrics_of(self, server: int) -> Callable[[Metric], Values] | None:
        """One server's part of it, if it measures any model."""
        part = self._parts[server]
        return None if part is None else partial(self._measure, part)

    def _measure(self, part: slice, metric: Metric) -> Values:
        if metric not in self._values:
            values = self._values[metric] = np.asarray(metric(self._counts))
            values.setflags(write=False)  # several strategies look at it
        return self._values[metric][part]
