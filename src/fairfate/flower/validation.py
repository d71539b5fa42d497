"""How the server measures a model: its predictions on labelled rows, counted by group."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import ArrayLike, NDArray

from fairfate.data.groups import Groups
from fairfate.engine.descent import descend
from fairfate.errors import InputError, check
from fairfate.fairness.metrics import Counts, Values, count
from fairfate.fairness.thresholds import Margins
from fairfate.federation.individual import IndividualRows
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import ValidationSource, scoring_rows
from fairfate.flower.messages import MismatchError
from fairfate.models.model import Model
from fairfate.models.rows import PackedRows
from fairfate.strategies import Loss

THRESHOLD = 0.5


class Measure(Protocol):
    """Anything that can count a model's predictions."""

    @property
    def grouping(self) -> Groups: ...  # noqa: D102

    @property
    def checksum(self) -> str: ...  # noqa: D102

    def counts(self, model: ArrayRecord) -> Counts: ...  # noqa: D102

    def margins(self, model: ArrayRecord) -> Margins: ...  # noqa: D102


class Validation:
    """Labelled rows at the server, and how the server's copy of the model predicts on them.

    Parameters
    ----------
    predict : takes a model's arrays and returns a prediction for each row: 1 for the favourable outcome and
        0 for the other, or its probability, which is cut at 0.5
    label : 1 for the favourable outcome, 0 for the other
    group : the group of each row: any values, at least two different ones

    Examples
    --------
    >>> from flwr.app import Array
    >>> rows = Validation(lambda arrays: arrays["w"].numpy() > 0, label=[1, 0, 1], group=["a", "a", "b"])
    >>> rows.counts(ArrayRecord({"w": Array(np.array([1.0, -1.0, -1.0]))})).tolist()
    [[[1, 0], [0, 1]], [[0, 0], [1, 0]]]
    """

    def __init__(self, predict: Callable[[ArrayRecord], Any], label: ArrayLike, group: ArrayLike) -> None:
        check(callable(predict), "predict must be a function of a model's arrays", type(predict).__name__)
        self.predict = predict
        self.label = np.asarray(label).ravel()
        names, self.group = np.unique(np.asarray(group).ravel(), return_inverse=True)
        self.grouping = Groups.single("group", tuple(map(str, names)))
        check(len(names) >= 2, "group must have at least two different values", len(names))
        count(self.label, self.label, group=self.group)  # one label for each group, 0 or 1

    @property
    def checksum(self) -> str:
        """Of the labels and groups, by which a run that goes on knows its rows again."""
        return _checksum(self.label.astype(np.int8), self.group.astype(np.int64))

    def counts(self, model: ArrayRecord) -> Counts:
        """Rows by (group, label, prediction)."""
        predicted = self._predicted(model)
        return count(
            self.label, (predicted > THRESHOLD).astype(int), group=self.group, groups=len(self.grouping)
        )

    def margins(self, model: ArrayRecord) -> Margins:
        """The rows' log-odds, for each (group, label)."""
        p = np.clip(self._predicted(model), 1e-9, 1 - 1e-9)
        scores = np.log(p / (1 - p)).astype(np.float32)
        cell = 2 * self.group + self.label.astype(np.int64)
        return [scores[cell == number] for number in range(2 * len(self.grouping))]

    def _predicted(self, model: ArrayRecord) -> NDArray[np.float64]:
        predicted = _plain(self.predict(model))
        check(
            predicted.shape == self.label.shape,
            f"predict must return one value for each of the {len(self.label)} rows",
            f"shape {predicted.shape}",
        )
        if np.isnan(predicted).any():
            raise MismatchError("predictions that are NaN")
        if ((predicted < 0) | (predicted > 1)).any():
            odd = predicted[(predicted < 0) | (predicted > 1)][0]
            raise InputError(f"predict must return 0 or 1, or probabilities, got {odd:g}")
        return predicted


def _checksum(*arrays: NDArray[Any]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def _plain(values: Any) -> NDArray[np.float64]:
    """Predictions as a flat array; a tensor that carries a gradient is taken off its graph."""
    detached = values.detach().cpu() if hasattr(values, "detach") else values
    array = np.asarray(detached, dtype=np.float64)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


class BuiltIn:
    """The same for a model of the engine: the built-in one, or a network of the user's."""

    def __init__(
        self, rows: PackedRows, model: Model, grouping: Groups, individual: IndividualRows | None = None
    ) -> None:
        self.rows, self.model, self.grouping, self.individual = rows, model, grouping, individual
        self._sampled: tuple[int, BuiltIn] | None = None

    @property
    def checksum(self) -> str:
        """Of the rows."""
        return _checksum(self.rows.blocks, self.rows.sizes)

    def counts(self, model: ArrayRecord) -> Counts:
        """Rows by (group, label, prediction)."""
        return np.asarray(self.model.count(self._vector(model)[None], self.rows)[0])

    def scoring_rows(self, clients: int, streams: Streams) -> BuiltIn:
        """The same on those rows that the models of so many clients are scored on; itself where all are."""
        if self._sampled is None or self._sampled[0] != clients:
            rows = scoring_rows(self.rows, clients, streams)
            sample = self if rows is self.rows else BuiltIn(rows, self.model, self.grouping)
            self._sampled = clients, sample
        return self._sampled[1]

    def margins(self, model: ArrayRecord) -> Margins:
        """The rows' log-odds, for each (group, label)."""
        return self.model.margins(self._vector(model), self.rows)

    def score_individual(self, terms: Collection[str], models: Sequence[ArrayRecord]) -> dict[str, Values]:
        """For each term of individual fairness, (models,) its values."""
        assert self.individual is not None
        return self.individual.fairness(
            terms, self.model, np.stack([self._vector(model) for model in models])
        )

    def descend(self, model: ArrayRecord, loss: Loss) -> ArrayRecord:
        """What a step of training on the rows adds to each array."""
        added = built_in_arrays(descend(self.model, self.rows, self._vector(model), loss), self.model)
        return ArrayRecord({name: Array(layer) for name, layer in added.items()})

    def _vector(self, model: ArrayRecord) -> NDArray[np.float32]:
        flat = self.model.flat({name: array.numpy() for name, array in model.items()})
        return np.asarray(flat, dtype=np.float32)


def built_in_arrays(params: NDArray[Any], model: Model) -> dict[str, NDArray[Any]]:
    """A model's arrays, as they travel."""
    return {name: np.ascontiguousarray(layer) for name, layer in model.arrays(params).items()}


Measured = tuple[Counts | None, Counts | None]
"""Of a model, on the validation and on the test rows, where there are some."""


@dataclass(frozen=True, eq=False)
class ServerRows:
    """The server's labelled rows, and whether models are judged on them or on those that clients hold out."""

    validation: Measure | None
    test: Measure | None
    source: ValidationSource

    @property
    def grouping(self) -> Groups | None:
        """What rows are counted by: the server's, or those that clients hold out."""
        known = self.test if self.source.at_clients else self.validation
        return None if known is None else known.grouping

    @property
    def groups(self) -> int:
        """How many there are."""
        return 0 if self.grouping is None else len(self.grouping)

    @property
    def given(self) -> list[Measure]:
        """The server's."""
        return [rows for rows in (self.validation, self.test) if rows is not None]

    def measure(self, model: ArrayRecord) -> Measured:
        """A model on both."""
        validation = None if self.validation is None else self.validation.counts(model)
        return validation, None if self.test is None else self.test.counts(model)
