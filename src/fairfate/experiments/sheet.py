"""A table as arrays by column: enough for means over a run's seeds, without waiting for pandas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from fairfate.fairness.metrics import Values

Column = NDArray[Any]


class Sheet:
    """Columns of the same length, each made when it is first looked at.

    A missing text is None, a missing number NaN.

    >>> sheet = Sheet({"name": np.array(["a", "a", "b"], dtype=object), "value": np.array([1, 2, 4])})
    >>> sheet.where(sheet["name"] == "a")["value"].tolist()
    [1, 2]
    """

    def __init__(self, columns: Mapping[str, Column | Callable[[], Column]]) -> None:
        self._columns = dict(columns)

    @classmethod
    def of_table(cls, table: pa.Table) -> Sheet:
        """Of a table of Arrow's: its numbers and texts. The frame has the other columns, too."""
        makers = {name: _maker(table.column(name)) for name in table.column_names}
        found = cls({name: maker for name, maker in makers.items() if maker is not None})
        found._table = table
        return found

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Sheet:
        """Of a frame of pandas'."""
        found = cls({str(name): partial(_array, frame[name]) for name in frame.columns})
        found.frame = frame
        return found

    _table: pa.Table | None = None

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The same for pandas, with its types."""
        if self._table is not None:
            found: pd.DataFrame = self._table.replace_schema_metadata(None).to_pandas()
            return found
        return pd.DataFrame({name: self[name] for name in self.columns})

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(self[self.columns[0]]) if self._columns else 0

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> Column:
        found = self._columns[name]
        if not isinstance(found, np.ndarray):
            found = self._columns[name] = found()
        return found

    def where(self, rows: NDArray[Any]) -> Sheet:
        """Some rows, by a mask or by their numbers."""
        return Sheet({name: partial(self._some, name, rows) for name in self.columns})

    def _some(self, name: str, rows: NDArray[Any]) -> Column:
        return np.asarray(self[name][rows])

    def assign(self, **columns: Column) -> Sheet:
        """The same with columns added or exchanged."""
        return Sheet({**self._columns, **columns})

    def numbered(self, *names: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows,) which group of equal values each row is in, and (groups,) the first row of each.

        Groups are numbered as they come.

        >>> number, first = Sheet({"name": np.array(["b", "b", "a", "b"], dtype=object)}).numbered("name")
        >>> number.tolist(), first.tolist()
        ([0, 0, 1, 0], [0, 2])
        """
        begins = np.ones(len(self), dtype=bool)  # where rows differ from those before them: few, so quick
        if len(self):
            begins[1:] = False
        for name in names:
            begins[1:] |= np.asarray(self[name][1:] != self[name][:-1], dtype=bool)
        starts = np.flatnonzero(begins)
        known: dict[tuple[Any, ...], int] = {}
        keys = zip(*(self[name][starts].tolist() for name in names), strict=True)
        numbers = [known.setdefault(key, len(known)) for key in keys]
        first = starts[np.unique(numbers, return_index=True)[1]] if numbers else starts
        lengths = np.diff([*starts.tolist(), len(self)])
        return np.repeat(np.array(numbers, dtype=np.int64), lengths), first


def join(sheets: list[Sheet]) -> Sheet:
    """Sheets one after another; a column that one of them lacks is missing there."""
    if len(sheets) == 1:
        return sheets[0]
    names = dict.fromkeys(name for sheet in sheets for name in sheet.columns)
    return Sheet({name: partial(_joined, sheets, name) for name in names})


def _joined(sheets: list[Sheet], name: str) -> Column:
    texts = any(name in sheet and sheet[name].dtype == object for sheet in sheets)
    nothing = np.array([None] if texts else [np.nan])
    return np.concatenate([sheet[name] if name in sheet else nothing.repeat(len(sheet)) for sheet in sheets])


MANY = 20_000
"""Texts, of which there are few different ones, that are worth Arrow's way to find these."""


def _maker(column: pa.ChunkedArray) -> Callable[[], Column] | None:
    """What makes an array of a column of Arrow's, if it can: Arrow's own way to NumPy is by pandas."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return partial(_numbers, column)
    return partial(_texts, column) if pa.types.is_string(column.type) else None


def _numbers(column: pa.ChunkedArray) -> Column:
    if column.null_count:
        return np.array(column.to_pylist(), dtype=np.float64)
    chunks = column.chunks or [pa.array([], column.type)]
    return np.concatenate([np.from_dlpack(chunk) for chunk in chunks])


def _texts(column: pa.ChunkedArray) -> Column:
    if len(column) < MANY or column.null_count:
        return np.array(column.to_pylist(), dtype=object)
    parts = column.dictionary_encode().chunks
    return np.concatenate(
        [np.array(part.dictionary.to_pylist(), dtype=object)[np.from_dlpack(part.indices)] for part in parts]
    )


def _array(column: pd.Series[Any]) -> Column:
    values: Column = np.asarray(column)
    if values.dtype.kind not in "biuf":
        values = values.astype(object)
        values[np.asarray(column.isna())] = None
    return values


def means(values: Values, group: NDArray[np.int64], groups: int) -> Values:
    """(groups, columns) means of (rows, columns) by group, NaN of nothing; NaN makes a mean NaN.

    Rows are added one after another with Kahan's compensation, so the bits depend on nothing but the values
    and their order; those of pandas' means depend on its version.
    """
    sums, lost = np.zeros((groups, values.shape[1])), np.zeros((groups, values.shape[1]))
    for rows in _in_turn(group):
        of = group[rows]
        value = values[rows] - lost[of]
        total = sums[of] + value
        lost[of] = total - sums[of] - value
        sums[of] = total
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / np.bincount(group, minlength=groups)[:, None])


def deviations(values: Values, group: NDArray[np.int64], groups: int) -> Values:
    """(groups, columns) standard deviations, with n - 1 in the denominator; NaN of fewer than two values.

    By Welford's updates: 0 where all values are equal.
    """
    mean, squares = np.zeros((groups, values.shape[1])), np.zeros((groups, values.shape[1]))
    for number, rows in enumerate(_in_turn(group), start=1):
        of, value = group[rows], values[rows]
        old = mean[of]
        mean[of] = old + (value - old) / number
        squares[of] += (value - mean[of]) * (value - old)
    degrees = np.bincount(group, minlength=groups)[:, None] - 1.0
    squares = np.divide(squares, degrees, out=np.full(squares.shape, np.nan), where=degrees > 0)
    return np.asarray(np.sqrt(squares))


def _in_turn(group: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """The first row of every group, then the second of those that have one, and so on."""
    order = np.argsort(group, kind="stable")
    sizes = np.bincount(group)
    place = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    for turn in range(int(sizes.max(initial=0))):
        yield order[place == turn]
