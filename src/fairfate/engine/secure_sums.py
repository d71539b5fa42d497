"""A round under secure sums: what clients contribute, and what the server makes of the opened sums.

The simulator adds up here what sites on Flower add up under masks: the same whole numbers, so the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairfate.engine.server import Dropped, Replies
from fairfate.fairness.metrics import Counts
from fairfate.privacy.fixed_point import (
    MOST_ROWS,
    Ring,
    add,
    contribute,
    may_open,
    open_rows,
    open_weights,
)
from fairfate.strategies import Strategy, Summed


class SecureSums(NamedTuple):
    """The rule of a run."""

    min_sum: int = 3
    """Least number of clients in a sum that is opened."""
    min_cell: int = 0
    """Least count in a sum of counts that is shown."""
    least: int = 0
    """In a federation: number of sites that must be in a sum, and of those that must open it."""


def sum_updates(replies: Replies, weights: Sequence[float] | None, min_sum: int) -> Replies:
    """Replies in which all clients are one; none where there are fewer than ``min_sum``.

    Parameters
    ----------
    replies : the clients' updates
    weights : of each client, where the strategy has them weigh themselves
    min_sum : least number of clients in a sum
    """
    clients = len(replies.clients)
    if clients < min_sum:
        return no_sum(replies, f"fewer than {min_sum} clients are in the sum (min-sum)")
    own = [None] * clients if weights is None else weights
    parts = [
        contribute(delta, min(int(rows), MOST_ROWS), weight)
        for delta, rows, weight in zip(replies.deltas, replies.num_examples, own, strict=True)
    ]
    members = sum(part.is_member for part in parts)
    by_weight = None
    if weights is not None and members and may_open(members, clients, min_sum):
        by_weight = add([part.weights for part in parts if part.weights is not None])
    return open_updates(replies, add([part.rows for part in parts]), by_weight, members, clients)


def open_updates(
    replies: Replies, by_rows: Ring, by_weight: Ring | None, members: int | None, clients: int
) -> Replies:
    """The round as the server sees it, from opened sums; NoSumError where they cannot be those of clients.

    Parameters
    ----------
    replies : what else there is of the round; the type of its updates is that of the mean
    by_rows, by_weight : the opened sums; the second is None where it stays closed, or nobody is a member
    members : how many clients have a weight of more than 0; None where they could not be counted
    clients : how many there are
    """
    opened, kind = open_rows(by_rows, clients), replies.deltas.dtype
    mean = None
    if by_weight is not None:
        mean = open_weights(by_weight, clients).mean.astype(kind)
    elif members == 0:
        mean = np.zeros(len(opened.mean), dtype=kind)
    return replies._replace(
        clients=(f"sum of {clients} clients",),
        deltas=opened.mean.astype(kind)[None],
        num_examples=np.array([opened.total], dtype=np.float64),
        client_counts=replies.client_counts[:0],
        nodes=(),
        remarks=(),
        summed=Summed(clients, members or 0, mean),
        cut=opened.cut,
    )


def no_sum(replies: Replies, reason: str) -> Replies:
    """A round that opens nothing."""
    gone = tuple(Dropped(name, reason) for name in replies.clients)
    return replies._replace(
        clients=(),
        deltas=replies.deltas[:0],
        num_examples=replies.num_examples[:0],
        client_counts=replies.client_counts[:0],
        dropped=(*replies.dropped, *gone),
        nodes=(),
        remarks=(),
    )


def weigh_own(strategy: Strategy, own: Counts, received: Counts) -> float:
    """A client's weight, from its counts of its own model and of the one that it received."""
    assert strategy.weigh is not None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return float(strategy.weigh(own, received))
