"""What a strategy is, and what a round brings it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairfate.metrics import Counts

Vector = NDArray[Any]
Matrix = NDArray[Any]


class Cohort(NamedTuple):
    """What one round brought the server."""

    round: int
    """1-based."""
    deltas: Matrix
    """(clients, parameters): local model minus server model."""
    num_examples: Vector
    """(clients,) training rows behind each delta."""
    client_counts: Counts
    """(clients, groups, 2, 2): each client's model on the validation rows, by (group, label, prediction).
    Empty for strategies with ``scores_clients=False``."""
    server_counts: Counts
    """(groups, 2, 2): the server's model on the same rows."""


class Notes(NamedTuple):
    """What a strategy wants on record about the round; NaN where it has no such thing."""

    lam: float = math.nan
    beta: float = math.nan
    is_fair: tuple[bool, ...] | None = None
    """Of each client, whether it counted as fair."""

    @property
    def fair_clients(self) -> float:
        """How many clients counted as fair."""
        return math.nan if self.is_fair is None else sum(self.is_fair)


class State(Protocol):
    """A strategy's memory: at least the server's model and the notes of the round."""

    @property
    def params(self) -> Vector: ...  # noqa: D102

    @property
    def notes(self) -> Notes: ...  # noqa: D102


class Model(NamedTuple):
    """The state of a strategy that remembers nothing but the model."""

    params: Vector
    notes: Notes = Notes()


class Strategy(NamedTuple):
    """Pure functions; all memory lives in the state they return."""

    init: Callable[[Vector], Any]
    """The state before the first round, from the initial model."""
    aggregate: Callable[[Any, Cohort], Any]
    """The state after a round."""
    loss_weights: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None
    """Rows of the cohort's clients by (client, group, label) -> weight of such a row in the client's loss."""
    scores_clients: bool = True
    """Whether ``aggregate`` reads ``client_counts``; scoring every client's model takes time."""


_BLOCK = 400_000
"""How many products `weighted_means` holds at a time."""


def weighted_mean(deltas: Matrix, weights: Vector) -> Vector:
    """``sum(weights * deltas) / sum(weights)``, zero when the weights sum to zero.

    Clients are added one after another, so the result depends on nothing but the values.

    >>> weighted_mean(np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([1, 3])).tolist()
    [2.5, 5.0]
    """
    return weighted_means(deltas, weights)[0]


def weighted_means(deltas: Matrix, *weights: Vector) -> list[Vector]:
    """Several means of the same deltas, in one pass over them."""
    totals = [float(of.sum()) for of in weights]
    means: list[Vector] = [np.zeros(deltas.shape[1], dtype=deltas.dtype) for _ in weights]
    shares = [
        (of / total).astype(deltas.dtype)[:, None] if total > 0 else None
        for of, total in zip(weights, totals, strict=True)
    ]
    step = max(1, _BLOCK // len(deltas))
    for start in range(0, deltas.shape[1], step):  # piece by piece, so that everything stays in the cache
        block = slice(start, start + step)
        for mean, share in zip(means, shares, strict=True):
            if share is not None:
                mean[block] = (share * deltas[:, block]).sum(axis=0)
    return means
