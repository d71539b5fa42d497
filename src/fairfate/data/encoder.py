"""From a table's features to the numbers a model sees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

AUTO, ONEHOT, ORDINAL, NONE = "auto", "onehot", "ordinal", "none"
ENCODINGS = (AUTO, ONEHOT, ORDINAL, NONE)
BLOCK = 1 << 16
"""Rows that are copied at a time: a table of ten million has no room beside it."""
Rows = NDArray[np.int64] | slice
ALL_ROWS = slice(None)


@dataclass(frozen=True, eq=False)
class Encoder:
    """Fills missing numbers and scales every column, as seen in the rows it was fitted on.

    Without ``slots`` every column is one input, scaled to [0, 1] (other rows may fall outside; a column with
    one value becomes 0), and a category is its index in the list. With them, a category has an input for each
    of its values, and numbers are standardised.
    """

    low: NDArray[np.float64]
    """(columns,) what is taken off a number: the least, or the mean."""
    span: NDArray[np.float64]
    """(columns,) what it is then divided by: the range, or the standard deviation."""
    median: NDArray[np.float64]
    """(columns,) what stands for a missing number: the median, or the mean."""
    slots: NDArray[np.int64] | None = None
    """(columns,) how many values a category has; 0 for numbers."""
    flagged: NDArray[np.bool_] | None = None
    """(columns,) which numbers have one more input that says whether they are missing."""

    @classmethod
    def fit(cls, features: NDArray[np.float64], rows: Rows = ALL_ROWS, *, scale: bool = True) -> Encoder:
        """Learn each column's range and median.

        Parameters
        ----------
        features : (rows, columns)
        rows : those to learn from
        scale : leave the columns' units alone if False
        """
        columns = features.shape[1]
        low, high, median = np.zeros(columns), np.zeros(columns), np.zeros(columns)
        for column in range(columns):
            values = features[rows, column]
            values = values[~np.isnan(values)]
            if len(values):
                low[column], high[column], median[column] = values.min(), values.max(), np.median(values)
        if not scale:
            return cls(np.zeros_like(low), np.ones_like(low), median)
        return cls(low, np.where(high > low, high - low, 1.0), median)

    @classmethod
    def fit_slots(
        cls, features: NDArray[np.float64], slots: NDArray[np.int64], rows: Rows = ALL_ROWS
    ) -> Encoder:
        """Learn each number's mean and standard deviation; categories need nothing.

        >>> encoder = Encoder.fit_slots(np.array([[1.0, 0], [3.0, 1], [np.nan, 1]]), np.array([0, 2]))
        >>> encoder.transform(np.array([[3.0, 1], [np.nan, 0]])).tolist()
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
        """
        number, columns = slots == 0, features.shape[1]
        counts, length = np.zeros(columns, dtype=np.int64), 0
        for block in _blocks(features, rows):
            counts, length = counts + (~np.isnan(block)).sum(axis=0), length + len(block)
        sums = _sum_rows(_blocks(features, rows), columns)
        mean = np.where(number, sums / np.maximum(counts, 1), 0.0)
        squares = _sum_rows(((block - mean) ** 2 for block in _blocks(features, rows)), columns)
        variance = squares / np.maximum(counts, 1)
        return cls(mean, _spans(number, mean, variance, 1e-24), mean, slots, (length > counts) & number)

    @classmethod
    def from_sums(
        cls,
        counts: NDArray[Any],
        sums: NDArray[np.float64],
        squares: NDArray[np.float64],
        flagged: NDArray[np.bool_],
        slots: NDArray[np.int64],
    ) -> Encoder:
        """Learn the same from sums over the rows, which several sites can add up.

        Parameters
        ----------
        counts, sums, squares : (columns,) how many numbers there are, their sum, and that of their squares
        flagged : (columns,) which have missing numbers
        slots : (columns,) how many values a category has; 0 for numbers
        """
        number = slots == 0
        mean = np.where(number & (counts > 0), sums / np.maximum(counts, 1), 0.0)
        variance = squares / np.maximum(counts, 1) - mean * mean  # nothing is left of a tiny one
        return cls(mean, _spans(number, mean, variance, 1e-12), mean, slots, flagged & number)

    @property
    def inputs(self) -> int:
        """How many numbers a model sees of a row."""
        return len(self.low) if self.slots is None else int(self._widths.sum())

    @property
    def _widths(self) -> NDArray[np.int64]:
        assert self.slots is not None
        assert self.flagged is not None
        return np.where(self.slots > 0, self.slots, 1 + self.flagged)

    def transform(self, features: NDArray[np.float64], rows: Rows = ALL_ROWS) -> NDArray[np.float32]:
        """(rows, inputs) 32-bit inputs of the model; an unknown category (-1) is in none of its inputs.

        >>> encoder = Encoder.fit(np.array([[0.0], [10.0], [np.nan]]))
        >>> encoder.transform(np.array([[5.0], [np.nan], [20.0]])).ravel().tolist()
        [0.5, 0.5, 2.0]
        """
        number = len(range(*rows.indices(len(features)))) if isinstance(rows, slice) else len(rows)
        out = np.zeros((number, self.inputs), dtype=np.float32)
        start = 0
        for block in _blocks(features, rows):
            self._write(block, out[start : start + len(block)])
            start += len(block)
        return out

    def _write(self, features: NDArray[np.float64], out: NDArray[np.float32]) -> None:
        """Some rows' inputs, into zeros."""
        if self.slots is None or self.flagged is None:
            filled = np.where(np.isnan(features), self.median, features)
            out[:] = (filled - self.low) / self.span
            return
        starts = np.concatenate([[0], np.cumsum(self._widths)])
        for column, values in enumerate(features.T):
            start = starts[column]
            if self.slots[column]:
                rows = np.flatnonzero((values >= 0) & (values < self.slots[column]))
                out[rows, start + values[rows].astype(np.int64)] = 1.0
                continue
            missing = np.isnan(values)
            filled = np.where(missing, self.median[column], values)
            out[:, start] = (filled - self.low[column]) / self.span[column]
            if self.flagged[column]:
                out[:, start + 1] = missing

    def names(self, columns: tuple[str, ...], values: dict[str, tuple[str, ...]]) -> list[str]:
        """What each input is, from the columns' names and the values of categories."""
        names: list[str] = []
        for number, column in enumerate(columns):
            if self.slots is not None and self.slots[number]:
                names += [f"{column}={value}" for value in values[column]]
            else:
                is_flagged = self.flagged is not None and self.flagged[number]
                names += [column, f"{column} (missing)"] if is_flagged else [column]
        return names


def _blocks(features: NDArray[np.float64], rows: Rows) -> Iterator[NDArray[np.float64]]:
    """Some rows, a block after another."""
    if isinstance(rows, slice):
        features, rows = features[rows], np.arange(0)
        yield from (features[start : start + BLOCK] for start in range(0, len(features), BLOCK))
    yield from (features[rows[start : start + BLOCK]] for start in range(0, len(rows), BLOCK))


def _sum_rows(blocks: Iterable[NDArray[np.float64]], columns: int) -> NDArray[np.float64]:
    """Sums of columns, row after row, whatever the blocks; a missing number adds nothing."""
    sums = np.zeros(columns)
    for number, block in enumerate(blocks):
        sums = np.nansum(np.concatenate([sums[None], block]) if number else block, axis=0)
    return sums


def _spans(
    number: NDArray[np.bool_], mean: NDArray[np.float64], variance: NDArray[np.float64], least: float
) -> NDArray[np.float64]:
    """Standard deviations; where there is none to speak of, something that keeps the numbers small."""
    usable = number & (variance > least * mean * mean) & (variance > 0)
    spans = np.where(usable, np.sqrt(np.where(usable, variance, 1.0)), np.maximum(1.0, np.abs(mean)))
    return np.where(number, spans, 1.0)
