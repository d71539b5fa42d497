"""From a table's features to the numbers a model sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Encoder:
    """Fills missing numbers and scales every column to [0, 1], as seen in the rows it was fitted on.

    Other rows may fall outside [0, 1]. A column with one value becomes 0.
    """

    low: NDArray[np.float64]
    span: NDArray[np.float64]
    median: NDArray[np.float64]

    @classmethod
    def fit(cls, features: NDArray[np.float64], *, scale: bool = True) -> Encoder:
        """Learn each column's range and median.

        Parameters
        ----------
        features : (rows, inputs)
        scale : leave the columns' units alone if False
        """
        present = ~np.isnan(features)
        empty = ~present.any(axis=0)
        filled = np.where(empty, 0.0, features)
        median = np.nanmedian(filled, axis=0)
        low, high = np.nanmin(filled, axis=0), np.nanmax(filled, axis=0)
        if not scale:
            return cls(np.zeros_like(low), np.ones_like(low), median)
        return cls(low, np.where(high > low, high - low, 1.0), median)

    def transform(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """(rows, inputs) 32-bit inputs of the model.

        >>> encoder = Encoder.fit(np.array([[0.0], [10.0], [np.nan]]))
        >>> encoder.transform(np.array([[5.0], [np.nan], [20.0]])).ravel().tolist()
        [0.5, 0.5, 2.0]
        """
        filled = np.where(np.isnan(features), self.median, features)
        return ((filled - self.low) / self.span).astype(np.float32)
