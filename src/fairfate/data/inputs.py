"""One input column of a file as numbers: numbers, days, or the places of its texts in a list."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import columns as cols
from fairfate.data.columns import MISSING, OTHERS, words
from fairfate.errors import MOST_LISTED, InputError

LARGEST = 1e30


class Input(NamedTuple):
    """One input column as numbers."""

    values: NDArray[np.float64]
    categories: tuple[str, ...] | None = None
    date: str = ""
    left_out: str = ""
    """Why it is no input, if it is none."""
    others: str = ""
    """How many texts in how many rows are one category."""

    def tell(self, column: pd.Series[Any], notes: list[str]) -> None:
        """Note what was done, of one column."""
        many = len(self.categories or ())
        if many > max(20, len(column) / 2):
            notes.append(
                f"{column.name}: {many} different texts in {len(column)} rows, as on an identifier;"
                " --drop it?"
            )
        missing = int(column.isna().sum())
        if missing:
            how = "a category" if self.categories is not None else "imputed by the training median"
            notes.append(f"{column.name}: {missing} missing values, {how}")


def summed_up(inputs: Mapping[str, Input], frame: pd.DataFrame, columns: cols.Columns) -> list[str]:
    """What was done to the columns of a file as it comes, in few lines."""
    used = {name: of for name, of in inputs.items() if not of.left_out}
    out = [f"{name} ({of.left_out})" for name, of in inputs.items() if of.left_out]
    dates = [name for name, of in used.items() if of.date]
    rare = [f"{name} ({of.others})" for name, of in used.items() if of.others]
    gaps = {name: int(frame[name].isna().sum()) for name in used if name not in columns.sensitive}
    texts = [f"{name} ({gaps[name]:,})" for name in gaps if gaps[name] and used[name].categories is not None]
    numbers = [f"{name} ({gaps[name]:,})" for name in gaps if gaps[name] and used[name].categories is None]
    least = cols.least_rows(len(frame))
    lines = {
        "left out": [*_first(out), "--keep NAME takes one in"] if out else [],
        "dates, as days since 1970": _first(dates),
        f"texts that fewer than {least} rows share are {OTHERS}": _first(rare),
        "missing texts are a category of their own": _first(texts),
        "missing numbers are replaced, by the mean or median of the training rows": _first(numbers),
    }
    return [f"{what}: {'; '.join(said)}" for what, said in lines.items() if said]


def _first(names: list[str]) -> list[str]:
    """Some names, and how many more there are."""
    rest = len(names) - MOST_LISTED
    return [*names[:MOST_LISTED], f"and {rest:,} more"] if rest > 0 else names


def _categories(values: pd.Series[Any]) -> Input:
    codes, names = words(values)
    if (codes < 0).any():  # a missing value is a category like any other, in its sorted place
        place = bisect(names, MISSING)
        codes = np.where(codes < 0, place, codes + (codes >= place))
        names.insert(place, MISSING)
    return Input(codes.astype(np.float64), tuple(names))


def plain_input(values: pd.Series[Any], categorical: bool) -> Input:
    """One input column as numbers, and its categories if it is text."""
    if not categorical and cols.is_number(values):
        return Input(finite(values.to_numpy(dtype=np.float64, na_value=np.nan), values.name))
    if not categorical:
        numbers, odd = cols.find_numbers(values)
        if numbers is not None:
            return Input(finite(numbers, values.name))
        _check_odd(values, odd)
    return _categories(values)


def _check_odd(values: pd.Series[Any], odd: list[str]) -> None:
    """A column that is mostly numbers with some text in it is a mistake more often than a category."""
    codes, names = words(values)
    rows = np.flatnonzero(np.isin(codes, [place for place, name in enumerate(names) if name in set(odd)]))
    if 0 < len(rows) < (codes >= 0).sum() / 2:
        raise InputError(
            f"column '{values.name}' must be all numbers or all text, got '{names[codes[rows[0]]]}' in row"
            f" {rows[0] + 1} among numbers; mend the value, or keep the column as text with"
            f" --categorical {values.name}"
        )


def tidy_input(values: pd.Series[Any], categorical: bool, keep: bool) -> Input:
    """An input of a file as it comes."""
    numbers = None
    if not categorical:
        dates = cols.find_dates(values)
        if dates is not None:
            why = "" if keep else _same(dates[0])
            return Input(dates[0], None, dates[1], why)
        if cols.is_number(values):
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            numbers, _ = cols.find_numbers(values)
    if numbers is not None:
        why = "" if keep else cols.why_no_number_input(numbers, str(values.name))
        return Input(finite(numbers, values.name), left_out=why)
    found = words(values)
    why = "" if keep else cols.why_no_text_input(found)
    if why:
        return _categories(values)._replace(left_out=why)
    return _shared(found)


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _same(numbers: NDArray[np.float64]) -> str:
    return "the same in all rows" if len(np.unique(numbers)) == 1 else ""


def _shared(found: cols.Words) -> Input:
    """Texts that enough rows share, each a category; all others are one more, at the end."""
    least = cols.least_rows(len(found.codes))
    kept = [place for place, rows in enumerate(found.rows) if rows >= least]
    names = [found.names[place] for place in kept]
    place_of = np.full(len(found.names) + 1, -1)
    place_of[kept] = np.arange(len(kept))
    rare = np.setdiff1d(np.arange(len(found.names)), kept).tolist()
    if (found.codes < 0).any():
        place_of[-1] = len(names)
        names.append(MISSING)
    place_of[rare] = len(names)
    names.append(OTHERS)
    said = f"{_some(len(rare), 'text')} in {_some(int(found.rows[rare].sum()), 'row')}" if rare else ""
    return Input(place_of[found.codes].astype(np.float64), tuple(names), others=said)


def finite(numbers: NDArray[np.float64], column: object) -> NDArray[np.float64]:
    """The numbers, if they are finite and of a usable size; NaN stands for a missing one."""
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        row = int(infinite[0])
        raise InputError(
            f"column '{column}' must be finite, got {numbers[row]:g} in row {row + 1}"
            f" ({len(infinite)} such values)"
        )
    huge = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(huge):
        row = int(huge[0])
        raise InputError(
            f"column '{column}' must stay within ±{LARGEST:g}, got {numbers[row]:g} in row {row + 1}"
        )
    return numbers
