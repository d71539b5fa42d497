"""The server's model on Flower: its arrays as one vector, what a round makes of it, how it does on rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.engine import server as rounds
from fairfate.engine.server import Server
from fairfate.errors import InputError
from fairfate.fairness.metrics import Counts
from fairfate.flower.logs import log
from fairfate.flower.receive import ANSWER
from fairfate.flower.records import Layout, MismatchError, blame
from fairfate.flower.replies import Replies
from fairfate.flower.validation import BuiltIn, Measure
from fairfate.strategies import Average, Loss, Need, Strategy, Vector

Measured = tuple[Counts | None, Counts | None]
"""On the validation and on the test rows, where there are some."""


class GlobalModel:
    """What the strategy trains, and the arrays beside it that are averaged only.

    Parameters
    ----------
    arrays : the model at the start
    averaged : last parts of the names of arrays that are averaged and not moved by the strategy
    strategy : what it is trained by
    average : the step of that name, if it is taken
    validation, test : the server's labelled rows
    """

    def __init__(
        self,
        arrays: ArrayRecord,
        averaged: tuple[str, ...],
        strategy: Strategy,
        average: Average | None,
        validation: Measure | None,
        test: Measure | None,
        max_weight: float | None = None,
    ) -> None:
        self.layout = Layout.of(arrays, averaged)
        trained, self.rest = np.split(self.layout.flat(arrays), [self.layout.moved])
        self.server = Server.start(strategy, trained)
        self.average, self.validation, self.test = average, validation, test
        self.max_weight = max_weight
        """The largest weight that clients accept."""
        self.grouping: Groups | None = None if validation is None else validation.grouping
        """What rows are counted by, where they are."""
        if self.server.needs(Need.DESCENT):
            self.server.descend = self._descend
        if self.server.needs(Need.TRIALS):
            self.server.score = self._try
        self._released: NDArray[Any] | None = None
        self._measured: Measured | None = None
        self._record: ArrayRecord | None = None
        self._buffer: NDArray[Any] | None = None
        try:
            self.measure()  # finds out now whether the user's predictions work
        except MismatchError as error:
            raise InputError(f"validation must get numbers for the initial model, got {error}") from None

    @property
    def vector(self) -> NDArray[Any]:
        """The trained arrays in their order, then the averaged ones."""
        return np.concatenate([self.server.params, self.rest]).astype(self.layout.dtype, copy=False)

    @property
    def largest_reply(self) -> int:
        """Bytes that a client's reply may have: its arrays, and room for names and metrics."""
        return 2 * self.vector.size * 8 + ANSWER

    @property
    def released(self) -> NDArray[Any]:
        """The model to measure, save and deploy."""
        return self.vector if self._released is None else self._released

    @property
    def record(self) -> ArrayRecord:
        """The model as it travels."""
        if self._record is None:
            self._record = self.layout.record(self.vector)
        return self._record

    def record_of(self, params: Vector) -> ArrayRecord:
        """Another model as it travels: the trained arrays from these, and the averaged ones as they are."""
        return self.layout.record(np.concatenate([params, self.rest]).astype(self.layout.dtype, copy=False))

    def measure(self) -> Measured:
        """The model on the server's rows."""
        if self._measured is None:
            self._measured = self._counts(self.record)
        return self._measured

    def measure_released(self) -> Measured:
        """The same for what would be released now."""
        return self.measure() if self._released is None else self._counts(self.layout.record(self._released))

    def _counts(self, record: ArrayRecord) -> Measured:
        validation = None if self.validation is None else self.validation.counts(record)
        return validation, None if self.test is None else self.test.counts(record)

    def follow(self, arrays: ArrayRecord) -> None:
        """Make sure that the state holds the model that is sent out, whoever may have changed it."""
        if arrays is not self._record and not np.array_equal(sent := self.layout.flat(arrays), self.vector):
            trained, self.rest = np.split(sent, [self.layout.moved])
            self.restore(self.server.state._replace(params=trained), self.rest)

    def restore(self, state: Any, rest: NDArray[Any]) -> None:
        """Take another state of the strategy, and other averaged arrays."""
        self.server.state, self.rest = state, rest
        self._measured = self._record = None
        if self.average is not None and self.average.total is not None:
            self._released = (self.average.total / self.average.count).astype(self.layout.dtype)

    def memory(self, clients: int) -> NDArray[Any]:
        """Room for a round's updates; the same as last time if it suffices, since fresh memory is slow."""
        if self._buffer is None or len(self._buffer) < clients:
            self._buffer = np.empty((clients, self.layout.size), dtype=self.layout.dtype)
        return self._buffer

    def take(self, t: int, good: Replies, sent: rounds.Replies) -> rounds.Outcome:
        """Aggregate a round; a model that is unusable, or none at all, leaves everything as it was."""
        counts, _ = self.measure()
        self.server.counts = np.zeros((0, 2, 2), dtype=np.int64) if counts is None else counts
        before = self.server.state, self.rest, self._measured, self._record
        with np.errstate(over="ignore", invalid="ignore"):
            outcome = self.server.take(t, sent)
        if outcome.problem:
            return outcome
        outcome = outcome._replace(problem=self._accept(good))
        if outcome.problem:
            self.server.state, self.rest, self._measured, self._record = before
        elif self.average is not None:
            self._released = self.average.add(t, self.vector)
        self._leave_memory()
        return outcome

    def _descend(self, params: Vector, loss: Loss) -> Vector:
        """What a step of training on the validation rows adds to the trained part of a model."""
        assert isinstance(self.validation, BuiltIn)
        added = self.validation.descend(self.record_of(params), loss)
        return self.layout.flat(added)[: self.layout.moved]

    def _try(self, models: NDArray[Any]) -> Counts:
        """Models on the validation rows."""
        return np.stack([self._try_one(params) for params in models])

    def _try_one(self, params: Vector) -> Counts:
        """A model on the validation rows; no rows at all of one that they cannot be predicted with."""
        assert self.validation is not None
        try:
            return self.validation.counts(self.record_of(params))
        except Exception:  # it has worked with the first model: this one is to blame
            return np.zeros((len(self.validation.grouping), 2, 2), dtype=np.int64)

    def _accept(self, good: Replies) -> str:
        """Take the rest of the new model and measure it; returns what is wrong with it, if anything is."""
        with np.errstate(over="ignore", invalid="ignore"):
            beside = good.deltas[:, self.layout.moved :]
            self.rest = self.rest + self.server.strategy.combine(beside, good.num_examples)[0]
            finite = np.isfinite(self.vector).all()
        self._measured = self._record = None
        if not finite:
            return "the new model would not be finite"
        if self.max_weight is not None and np.abs(self.vector).max(initial=0.0) > self.max_weight:
            log(WARNING, "\t> the new model is cut to weights within %g (max-weight)", self.max_weight)
            trained, self.rest = np.split(
                np.clip(self.vector, -self.max_weight, self.max_weight), [self.layout.moved]
            )
            self.server.state = self.server.state._replace(params=trained.astype(self.server.params.dtype))
        try:
            self.measure()
        except Exception as error:  # it has worked with the first model: this one is to blame
            return f"the new model makes {blame(error)}"
        return ""

    def _leave_memory(self) -> None:
        """Leave the room of the updates to a state that keeps a view of it."""
        buffer, kept = self._buffer, _arrays(self.server.state)
        if buffer is not None and any(np.may_share_memory(buffer, array) for array in kept):
            self._buffer = None


def _arrays(state: Any) -> Iterator[NDArray[Any]]:
    """The arrays of a state, those in its dictionaries and tuples too."""
    if isinstance(state, np.ndarray):
        yield state
    elif isinstance(state, Mapping | tuple | list):
        for value in state.values() if isinstance(state, Mapping) else state:
            yield from _arrays(value)
