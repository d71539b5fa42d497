"""The only loop over rounds: clients train, servers aggregate, models are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fairfate.fairness.metrics import Counts
from fairfate.models.model import Models
from fairfate.rounds.server import Outcome, Replies, Server, stack
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


def play(clients: Clients, servers: Sequence[Server], rounds: int, first: int = 1) -> Iterator[Round]:
    """Play the rounds ``first`` to ``rounds``; after each, every server holds its next model, measured."""
    _measure(clients, servers)
    for server in servers:
        if server.needs(Need.DESCENT):
            server.descend = clients.descend
        if server.needs(Need.TRIALS):
            server.score = clients.validate
    for t in range(first, rounds + 1):
        replies = clients.train(t, servers)
        with np.errstate(over="ignore", invalid="ignore"):
            outcomes = [server.take(t, own) for server, own in zip(servers, replies, strict=True)]
        _measure(clients, servers)
        yield Round(t, replies, outcomes)


def _measure(clients: Clients, servers: Sequence[Server]) -> None:
    found = clients.validate(stack([server.params for server in servers]))
    for server, counts in zip(servers, found, strict=True):
        server.counts = counts
