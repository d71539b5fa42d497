"""One strategy's run at the server: what it asks of clients, and what it makes of their replies.

No network, no files, no clients: these are given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.fairness.metrics import CellRows, Counts, Metric, Statistics, Values
from fairfate.privacy.releases import Releases
from fairfate.strategies import (
    NO_NOTES,
    Cohort,
    Descend,
    Need,
    Notes,
    Score,
    Strategy,
    Summed,
    Vector,
    weighted_means,
)
from fairfate.strategies.strategy import INDIVIDUAL_NEEDS, NO_ROWS, Matrix, with_server

UNTRAINED = "untrained"
"""The note of a round that does not count, where none before it did."""


class Dropped(NamedTuple):
    """A client that was asked and does not count in this round."""

    client: str
    reason: str
    node: int | None = None
    """Its number on Flower."""


class Replies(NamedTuple):
    """What came back from the clients of a round, already found to be usable."""

    clients: tuple[str, ...]
    deltas: NDArray[Any]
    """(clients, parameters)"""
    num_examples: NDArray[Any]
    client_counts: Counts
    """(clients, groups, 2, 2) on the validation rows, or empty."""
    local: Statistics | None = None
    dropped: tuple[Dropped, ...] = ()
    server_counts: Counts | None = None
    """(groups, 2, 2) the server's model on the rows that the others were counted on, where these are not the
    server's own."""
    score: Score | None = None
    """Counts of other models on these rows."""
    individual: Mapping[str, Values] | None = None
    """For each term of individual fairness that is needed, (clients + 1,) its values; the server's last."""
    beside: NDArray[Any] | None = None
    """The mean update of arrays that no strategy moves, where the model has some."""
    nodes: tuple[int, ...] = ()
    """The clients' numbers on Flower."""
    remarks: tuple[str, ...] = ()
    """What to record of each client that counts."""
    summed: Summed | None = None
    """Under secure sums, where all clients are one."""
    cut: int = 0
    """How many of them have cut their updates to the range of a sum."""


class Outcome(NamedTuple):
    """What became of a round."""

    notes: Notes
    problem: str = ""
    """Why the model stays as it was, if it does."""


@dataclass(eq=False)
class Server:
    """The server's side of one strategy."""

    strategy: Strategy
    state: Any
    counts: Counts = field(default_factory=lambda: np.zeros((0, 2, 2), dtype=np.int64))
    """The model on the validation rows, as last measured."""
    descend: Descend | None = None
    """How a model is trained on these rows, where the strategy does that."""
    score: Score | None = None
    """How models are tried out on them, likewise."""
    discarded: int = 0
    """Rounds that left the model as it was."""
    name: str = ""
    """Under differential privacy, what its clients' noise depends on."""
    releases: Releases = field(default_factory=Releases)
    """Under differential privacy, what its clients release beside updates."""

    def __post_init__(self) -> None:
        self._needs = frozenset(self.strategy.needs)
        self.individual_terms = [term for term, need in INDIVIDUAL_NEEDS.items() if self.needs(need)]
        """The terms of individual fairness that the strategy needs."""

    @classmethod
    def start(cls, strategy: Strategy, params: Vector) -> Server:
        """Before the first round."""
        return cls(strategy, strategy.init(params.copy()))

    @property
    def params(self) -> Vector:
        """The model that is trained further."""
        return np.asarray(self.state.params)

    @property
    def released(self) -> Vector:
        """The model to measure, save and deploy."""
        released = self.params if self.strategy.release is None else self.strategy.release(self.state)
        return np.asarray(released, dtype=np.float32)

    def broadcast(self, rows: CellRows | None) -> Vector | None:
        """What the clients of a round are told beside the model."""
        if self.strategy.broadcast is None:
            return None
        message = np.asarray(
            self.strategy.broadcast(self.state, NO_ROWS if rows is None else rows), dtype=np.float64
        )
        if not np.isfinite(message).all():
            raise InputError(f"a strategy must broadcast finite numbers, got {message}")
        return message

    def needs(self, *needs: Need[Any]) -> bool:
        """Whether the strategy needs one of these."""
        return not self._needs.isdisjoint(needs)

    def validation_counts(self, replies: Replies) -> Counts | None:
        """Counts of the clients' models and of the server's, where the strategy looks at them."""
        if not self.needs(Need.SCORES) or not len(replies.clients):
            return None
        return with_server(replies.client_counts, self._counts(replies))

    def _counts(self, replies: Replies) -> Counts:
        return self.counts if replies.server_counts is None else replies.server_counts

    def take(self, t: int, replies: Replies, measure: Callable[[Metric], Values] | None = None) -> Outcome:
        """Aggregate a round; a bad result, or none at all, leaves everything as it was.

        Metrics of the models in the replies may be measured together with those of other servers.
        """
        if not len(replies.clients):
            return self._discard(t, "no usable reply")
        cohort = Cohort(
            round=t,
            deltas=replies.deltas,
            num_examples=replies.num_examples,
            client_counts=replies.client_counts,
            server_counts=self._counts(replies),
            clients=replies.clients,
            measured=self._measured(replies),
            measure=measure,
            summed=replies.summed,
        )
        state = self._aggregate(cohort)
        if np.shape(state.params) != np.shape(self.state.params):
            raise InputError(
                f"a strategy must keep the model's shape {np.shape(self.state.params)}, got"
                f" {np.shape(state.params)}"
            )
        state, problem = self.accept(state, replies)
        if problem:
            return self._discard(t, problem)
        self.state = state
        noted = {} if replies.individual is None else _noted(replies.individual)
        if replies.summed is not None:
            noted |= _noted_sum(replies.summed, replies.cut)
        return Outcome({**state.notes, **noted} if noted else state.notes)

    def _measured(self, replies: Replies) -> dict[Need[Any], Any]:
        """What this round has of the strategy's needs."""
        measured: dict[Need[Any], Any] = {
            Need.REPORTS: replies.local,
            Need.DESCENT: self.descend,
            Need.TRIALS: self.score if replies.score is None else replies.score,
        }
        for term, values in (replies.individual or {}).items():
            measured[INDIVIDUAL_NEEDS[term]] = values
        return {need: value for need, value in measured.items() if value is not None}

    def accept(self, state: Any, replies: Replies) -> tuple[Any, str]:
        """A new state as it is taken, and why it is not, if so."""
        return state, "" if np.isfinite(state.params).all() else "the new model would not be finite"

    def _discard(self, t: int, problem: str) -> Outcome:
        """A round that does not count."""
        self.discarded += 1
        return Outcome({UNTRAINED: 1.0} if self.discarded == t else NO_NOTES, problem)

    def _aggregate(self, cohort: Cohort) -> Any:
        """The state after a round, where the strategy combines updates as its steps say."""
        if self.strategy.combine is weighted_means:
            return self.strategy.aggregate(self.state, cohort)
        calls = []

        def combine(deltas: Matrix, *weights: Vector) -> list[Vector]:
            calls.append(len(weights))
            return self.strategy.combine(deltas, *weights)

        state = self.strategy.aggregate(self.state, cohort._replace(combine=combine))
        if not calls:
            raise InputError(
                "a strategy must combine updates by cohort.mean to take the steps median, trimmed and krum"
            )
        return state


def _noted(individual: Mapping[str, Values]) -> dict[str, Any]:
    """Individual fairness for the record: of each client's model, and of the model that was sent out."""
    noted: dict[str, Any] = {}
    for term, values in individual.items():
        noted |= {term: values[:-1], f"server_{term}": float(values[-1])}
    return noted


def _noted_sum(summed: Summed, cut: int) -> dict[str, Any]:
    """A round's sums for the record."""
    withheld = {"withheld": 1.0} if summed.mean is None else {}
    return {"summed": float(summed.clients), **withheld, **({"cut": float(cut)} if cut else {})}


def stack(vectors: Sequence[Vector]) -> NDArray[np.float32]:
    """(models, parameters) several models, as they are trained and scored."""
    models = np.empty((len(vectors), len(vectors[0])), dtype=np.float32)
    for index, vector in enumerate(vectors):
        models[index] = vector
    return models
