"""The only loop over rounds: clients train, servers aggregate, models are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


class MeasuredTogether:
    """Metrics of the models that several servers judge in a round: each is taken once, of all of them.

    A sweep has a hundred servers with a few models each, and most of a metric's time is that of the call.
    """

    def __init__(self, counts: Sequence[Counts | None]) -> None:
        known = [of for of in counts if of is not None]
        self._counts = np.concatenate(known) if known else np.zeros((0, 0, 2, 2), dtype=np.int64)
        ends = np.cumsum([0 if of is None else len(of) for of in counts]).tolist()
        self._places = [
            None if of is None else slice(end - len(of), end) for of, end in zip(counts, ends, strict=True)
        ]
        self._found: dict[Metric, Values] = {}

    def of(self, server: int) -> Callable[[Metric], Values] | None:
        """One server's part of it, if it judges anybody."""
        place = self._places[server]
        return None if place is None else partial(self._measure, place)

    def _measure(self, place: slice, metric: Metric) -> Values:
        if metric not in self._found:
            found = self._found[metric] = np.asarray(metric(self._counts))
            found.setflags(write=False)  # several strategies look at it
        return self._found[metric][place]


def play(clients: Clients, servers: Sequence[Server], rounds: int, first: int = 1) -> Iterator[Round]:
    """Play the rounds ``first`` to ``rounds``; after each, every server holds its next model, measured."""
    _measure(clients, servers)
    for server in servers:
        if server.needs(Need.DESCENT):
            server.descend = clients.descend
        if server.needs(Need.TRIALS):
            server.score = clients.validate
    several = len(servers) > 1
    for t in range(first, rounds + 1):
        replies = clients.train(t, servers)
        with np.errstate(over="ignore", invalid="ignore"):
            counts = [s.judged(own) for s, own in zip(servers, replies, strict=True)] if several else [None]
            together = MeasuredTogether(counts)
            outcomes = [
                server.take(t, own, together.of(place))
                for place, (server, own) in enumerate(zip(servers, replies, strict=True))
            ]
        _measure(clients, servers)
        yield Round(t, replies, outcomes)


def _measure(clients: Clients, servers: Sequence[Server]) -> None:
    found = clients.validate(stack([server.params for server in servers]))
    for server, counts in zip(servers, found, strict=True):
        server.counts = counts
