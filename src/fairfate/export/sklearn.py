"""A trained model as a scikit-learn classifier that skops can write and read without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from fairfate.data import Schema
from fairfate.errors import InputError
from fairfate.fairness.tilt import Tilt
from fairfate.fairness.tilt_groups import GroupTilt
from fairfate.models.fair_model import FairModel, Frame, TiltedScore


class FairPipeline(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn carries no types
    """A fitted classifier on raw columns. It holds texts and arrays only.

    Parameters
    ----------
    schema : the model's schema, as JSON
    arrays : its layers by name
    thresholds : the log-odds that each group's score must exceed, or everybody's, or None
    about : where the model comes from, as JSON
    table : by the ranges of the score and of the guessed group, whether the favourable outcome is decided
    group_arrays : the layers of the model that guesses the group, by name; of several groups, of each but the
        first
    prices, form : with several groups, the prices, and the family, ranges and threshold of their rule
    """

    def __init__(
        self,
        schema: str,
        arrays: Mapping[str, NDArray[Any]],
        thresholds: NDArray[np.float64] | None = None,
        about: str = "{}",
        table: NDArray[np.uint8] | None = None,
        group_arrays: Mapping[str, NDArray[Any]] | Sequence[Mapping[str, NDArray[Any]]] | None = None,
        prices: NDArray[np.int64] | None = None,
        form: Sequence[Any] | None = None,
    ) -> None:
        self.schema = schema
        self.arrays = arrays
        self.thresholds = thresholds
        self.about = about
        self.table = table
        self.group_arrays = group_arrays
        self.prices = prices
        self.form = form

    @classmethod
    def from_model(cls, model: FairModel) -> FairPipeline:
        """The classifier of a model; InputError for one with a network of its own."""
        if model.network is not None or "w1" not in model.arrays:
            raise InputError("model must be of the built-in kind to be exported, not a network of your own")
        cuts = None if model.thresholds is None else np.array(model.thresholds, dtype=np.float64)
        arrays = {name: np.array(array) for name, array in model.arrays.items()}
        about, tilt = json.dumps(dict(model.about), ensure_ascii=False), model.tilt
        schema = model.schema.to_json()
        if tilt is None:
            return cls(schema, arrays, cuts, about)
        guesses = [{name: np.array(array) for name, array in each.items()} for each in tilt.models]
        if isinstance(tilt.rule, GroupTilt):
            form = [tilt.rule.family, tilt.rule.bins, tilt.rule.step]
            return cls(schema, arrays, cuts, about, None, guesses, tilt.rule.prices, form)
        return cls(schema, arrays, cuts, about, tilt.rule.table.astype(np.uint8), guesses[0])

    @property
    def model(self) -> FairModel:
        """The model inside."""
        schema = Schema.from_json(self.schema, "the pipeline's schema")
        tilt = None
        if self.table is not None and isinstance(self.group_arrays, Mapping):
            tilt = TiltedScore(Tilt(np.asarray(self.table, dtype=bool)), (self.group_arrays,))
        elif self.form is not None and self.group_arrays is not None:
            family, bins, step = self.form
            rule = GroupTilt(str(family), int(bins), np.asarray(self.prices, dtype=np.int64), int(step))
            tilt = TiltedScore(rule, tuple(each for each in self.group_arrays if isinstance(each, Mapping)))
        return FairModel(self.arrays, schema, self.thresholds, json.loads(self.about), tilt=tilt)

    @property
    def classes_(self) -> NDArray[Any]:
        """The two outcomes; the second is the favourable one."""
        return np.array(self.model.labels, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, frame: Frame, label: Any = None) -> FairPipeline:
        """Nothing to do: it has been trained."""
        return self

    def predict(self, frame: Frame, *, sensitive_features: Any = None) -> NDArray[Any]:
        """(rows,) the outcome that is decided; see `FairModel.predict`.

        Parameters
        ----------
        frame : the rows, with the raw columns
        sensitive_features : each person's group, where it is no column
        """
        return self.model.predict(frame, sensitive_features=sensitive_features)

    def predict_proba(self, frame: Frame) -> NDArray[np.float64]:
        """(rows, 2) the probabilities of ``classes_``."""
        return self.model.predict_proba(frame)
