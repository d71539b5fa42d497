"""Values that stand for a missing one: those that the user names, and those that look like it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import is_number, spell
from fairfate.data.numerals import number
from fairfate.errors import listing, unknown

SPIKE = 0.01
"""Share of a column's rows that hold the same odd number from which on it is noted."""
FEWEST = 3
"""Rows without which nothing is noted."""
NINES = np.array([sign * (10.0**digits - 1) for digits in range(1, 10) for sign in (1, -1)])
"""9, -9, 99, -99 and so on."""

Hits = Mapping[str, NDArray[np.bool_]]
"""For each code, (rows,) whether a row holds it."""


def split_code(code: str, names: Sequence[str] | pd.Index[Any]) -> tuple[str | None, str]:
    """The column and the value of ``COLUMN=VALUE``; no column where the text before ``=`` is none.

    >>> split_code("age=-1", ["age"]), split_code("a=b", ["age"])
    (('age', '-1'), (None, 'a=b'))
    """
    for position, character in enumerate(code):
        if character == "=" and code[:position].strip() in names:
            return code[:position].strip(), code[position + 1 :].strip()
    return None, code.strip()


def without_codes(
    frame: pd.DataFrame, codes: Sequence[str], among: Iterable[str] | None = None
) -> tuple[pd.DataFrame, Hits]:
    """A frame in which values that stand for a missing one are missing.

    Numbers are compared as numbers, and texts as they are written, without blanks around them.

    Parameters
    ----------
    frame : the rows
    codes : ``VALUE`` for all columns, ``COLUMN=VALUE`` for one
    among : the columns to look at, all if None
    """
    hits = {code: np.zeros(len(frame), dtype=bool) for code in codes}
    if not hits:
        return frame, hits
    known = [(code, *split_code(code, frame.columns)) for code in hits]
    changed = frame.copy(deep=False)
    for name in frame.columns if among is None else among:
        wanted = {code: value for code, column, value in known if column in (None, name)}
        rows = _rows(frame[name], wanted)
        for code, held in rows.items():
            hits[code] |= held
        together = np.logical_or.reduce(list(rows.values())) if rows else np.zeros(len(frame), dtype=bool)
        if together.any():
            changed[name] = frame[name].mask(together)
    return changed, hits


def _rows(values: pd.Series[Any], wanted: Mapping[str, str]) -> dict[str, NDArray[np.bool_]]:
    """(rows,) of each code, whether a column holds its value."""
    if is_number(values) and not pd.api.types.is_bool_dtype(values.dtype):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return {code: numbers == _as_number(value) for code, value in wanted.items()}
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:  # lists or records, which are refused later
        return {}
    words = [spell(value) for value in distinct]
    return {
        code: np.array([*(_is_same(word, value) for word in words), False], dtype=bool)[codes]
        for code, value in wanted.items()
    }


def _as_number(text: str) -> float:
    parsed = number(text) or number(text, ",")
    return np.nan if parsed is None else parsed.value


def _is_same(word: str, value: str) -> bool:
    if word == value:
        return True
    return word[-1:].isdigit() and value[-1:].isdigit() and _as_number(word) == _as_number(value)


def note_codes(counts: Mapping[str, int], names: Sequence[str] | pd.Index[Any] | None) -> list[str]:
    """How many rows hold each code; InputError for ``COLUMN=VALUE`` with a column that is none.

    Parameters
    ----------
    counts : the rows of each code
    names : the columns of the file; nothing is refused if None
    """
    for code, rows in counts.items():
        column, equals, _ = code.partition("=")
        if names is not None and equals and not rows and split_code(code, names)[0] is None:
            raise unknown("column for missing", column.strip(), names)
    used = [f"{code} ({rows:,} row{'' if rows == 1 else 's'})" for code, rows in counts.items() if rows]
    unused = [code for code, rows in counts.items() if not rows]
    notes = [f"values that count as missing (--missing): {listing(used)}"] if used else []
    return [
        *notes,
        *([f"no row holds a value given as missing (--missing): {listing(unused)}"] * bool(unused)),
    ]


def spikes(frame: pd.DataFrame) -> list[str]:
    """A note on numbers such as 999 that many rows hold, far outside of the rest of their column."""
    odd = [
        f"{name}={value:g} ({rows:,} rows)"
        for name in frame.columns
        if is_number(frame[name]) and not pd.api.types.is_bool_dtype(frame[name].dtype)
        for value, rows in _spikes(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
    ]
    if not odd:
        return []
    return [
        f"missing? far outside of the other values of its column: {listing(odd)}; if it stands for a missing"
        " value, use --missing COLUMN=VALUE"
    ]


def _spikes(numbers: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Numbers of nines that stand apart, and how many rows hold them."""
    present = numbers[~np.isnan(numbers)]
    nines = np.isin(present, NINES)
    if not nines.any():
        return []
    rest = present[~nines]
    if not len(rest) or rest.min() == rest.max():
        return []
    low, high = float(rest.min()), float(rest.max())
    apart = (high - low) / 2
    values, rows = np.unique(present[nines], return_counts=True)
    return [
        (value, count)
        for value, count in zip(values.tolist(), rows.tolist(), strict=True)
        if count >= max(FEWEST, SPIKE * len(numbers))
        and (value >= high + apart or value <= low - apart or value < 0 <= low)
    ]
