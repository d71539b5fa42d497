"""What a look at a file tells its user: what each column could be, and signs that something is wrong."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import (
    LEAST_ROWS,
    Words,
    find_dates,
    find_numbers,
    is_number,
    why_no_number_input,
    why_no_text_input,
    words,
)
from fairfate.data.table import TRAINING, Table
from fairfate.errors import listing

_GROUPS = re.compile(
    r"(?i)(^|[\W_])(sex|gender|race|ethnic\w*|origin|nationality|religion|disab\w*|marital\w*|age|group)($|[\W_])"
)
_SITES = re.compile(
    r"(?i)(^|[\W_])(sites?|hospitals?|clinics?|branch(es)?|regions?|cent(er|re)s?|states?|stores?|shops?|schools?|banks?"
    r"|county|province|canton|country|city|office|ward|practice|facility|institution|provider|location)($|[\W_])"
)
LEFT_OUT = "left out"
MOST_VALUES = 12
MOST_SITES, FEWEST_SITES, EVEN = 50, 3, 2.0
"""Values of a column of clients; one that is not named like sites has at least three, none of them more than
twice as often, or half as often, as the mean."""


class Look(NamedTuple):
    """One column."""

    name: str
    kind: str
    """number, date, text or empty"""
    values: int
    """How many different ones."""
    missing: int
    shown: str
    """Its range, or its most frequent texts."""
    remark: str
    """What it could be."""


def look(frame: pd.DataFrame) -> list[Look]:
    """Every column of a file."""
    return [_look(frame[name]) for name in frame.columns]


def _look(values: pd.Series[Any]) -> Look:
    name, missing = str(values.name), int(values.isna().sum())
    dates = find_dates(values)
    numbers = None
    if dates is None:
        as_number = is_number(values)
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan) if as_number else find_numbers(values)[0]
    found = words(values)
    distinct = len(found.names)
    if not distinct:
        return Look(name, "empty", 0, missing, "", LEFT_OUT)
    if dates is not None:
        first, last = (pd.Timestamp(f(dates[0]), unit="D") for f in (np.nanmin, np.nanmax))
        return Look(name, "date", distinct, missing, f"{first:%Y-%m-%d} ... {last:%Y-%m-%d}", "")
    if numbers is not None:
        low, high = np.nanmin(numbers), np.nanmax(numbers)
        shown = _texts(found) if distinct <= 2 else f"{low:g} ... {high:g}"
        return Look(name, "number", distinct, missing, shown, _remark(name, found, numbers))
    remark = _remark(name, found, None)
    shown = f"{_short(found.names[0])}, ..." if "identifier" in remark else _texts(found)
    return Look(name, "text", distinct, missing, shown, remark)


def _remark(name: str, found: Words, numbers: np.ndarray | None) -> str:
    why = why_no_text_input(found) if numbers is None else why_no_number_input(numbers, name)
    if why:
        return f"{LEFT_OUT}: the same in all rows" if "same" in why else f"{LEFT_OUT}: an identifier?"
    parts = []
    distinct = len(found.names)
    if distinct == 2:
        parts.append("--target?")
    if _GROUPS.search(name) and (distinct <= MOST_VALUES or numbers is not None):
        bands = numbers is not None and distinct > MOST_VALUES
        parts.append("--sensitive, in bands?" if bands else "--sensitive?")
    whole = numbers is None or bool((numbers[~np.isnan(numbers)] % 1 == 0).all())
    if whole and 2 <= distinct <= MOST_SITES and (_SITES.search(name) or (not parts and _is_even(found))):
        parts.append("--client-column?")
    return " ".join(parts)


def _is_even(found: Words) -> bool:
    """Whether a category's values are used about as often as each other, as sites may be."""
    mean = found.rows.mean()
    enough = len(found.names) >= FEWEST_SITES and mean >= LEAST_ROWS
    return bool(enough and found.rows.max() <= EVEN * mean and found.rows.min() >= mean / EVEN)


def _texts(found: Words) -> str:
    """The three most frequent texts, with their shares."""
    order = np.argsort(-found.rows, kind="stable")[:3]
    shares = found.rows / max(1, int(found.rows.sum()))
    shown = [f"{_short(found.names[place])} {shares[place]:.0%}" for place in order]
    return ", ".join(shown) + (", ..." if len(found.names) > 3 else "")


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:19]}…"


SPIKE = 0.01
"""Share of a column's rows that hold the same odd number from which on it is noted."""
FEWEST_SPIKES = 3
"""Rows without which nothing is noted."""
NINES = np.array([sign * (10.0**digits - 1) for digits in range(1, 10) for sign in (1, -1)])
"""9, -9, 99, -99 and so on."""


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
        if count >= max(FEWEST_SPIKES, SPIKE * len(numbers))
        and (value >= high + apart or value <= low - apart or value < 0 <= low)
    ]


TELLS = 0.9
"""Share of the mistakes of one answer for all that an input alone must avoid to be suspected."""
COPIES = 0.01
"""Share of rows that are copies from which on it is said."""
FEWEST_OF_A_LABEL = 10
"""Rows of either label without which nothing is suspected."""


def leaks(table: Table) -> list[str]:
    """What to warn of, with numbers."""
    found = []
    telling = telling_inputs(table)
    if telling:
        found.append(
            f"leak? one column alone tells the label in nearly every row: {listing(telling)}; --drop what is"
            " not known when the model is used"
        )
    copies, rows = _copies(table)
    if table.part is not None and copies:
        found.append(f"leak? {copies:,} of the server's {rows:,} rows are also among the training rows")
    elif table.part is None and copies >= COPIES * rows:
        found.append(
            f"leak? {copies:,} of {rows:,} rows are copies of another row, inputs and label; a copy may be in"
            " the training and in the test rows"
        )
    return found


def telling_inputs(table: Table) -> list[str]:
    """The inputs each of which by itself gives the label away, with the share of rows in which it does."""
    label = table.label.astype(np.int64)
    rarer = int(min(label.sum(), len(label) - label.sum()))
    if rarer < FEWEST_OF_A_LABEL:
        return []
    found = []
    for name, values, slots in zip(table.feature_names, table.features.T, table.slots, strict=True):
        wrong = _wrong_by_category(values, label) if slots else _wrong_by_cut(values, label)
        if wrong <= (1 - TELLS) * rarer:
            found.append(f"{name} ({1 - wrong / len(label):.1%})")
    return found


def _wrong_by_category(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong if each value stands for its more frequent label."""
    codes = values.astype(np.int64) - int(values.min())
    cells = np.bincount(codes * 2 + label, minlength=2 * (int(codes.max()) + 1)).reshape(-1, 2)
    return int(cells.min(axis=1).sum())


def _wrong_by_cut(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong at the best cut; missing values are one side of their own."""
    missing = np.isnan(values)
    aside = int(min(label[missing].sum(), (missing.sum() - label[missing].sum())))
    numbers, mine = values[~missing], label[~missing]
    if not len(numbers):
        return aside
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(numbers[order]) > 0, True))
    ones = np.cumsum(mine[order])[ends]
    zeros = ends + 1 - ones
    low_is_zero = ones + (zeros[-1] - zeros)
    return aside + int(min(low_is_zero.min(), (len(mine) - low_is_zero).min()))


def _copies(table: Table) -> tuple[int, int]:
    """Rows that occur before with the same inputs and label, of how many."""
    digest = pd.util.hash_array(table.label.astype(np.int64))
    for values in table.features.T:
        digest = digest * np.uint64(1_000_003) + pd.util.hash_array(values)
    if table.part is None:
        return len(digest) - len(np.unique(digest)), len(digest)
    training = table.part == TRAINING
    held = digest[~training]
    return int(np.isin(held, digest[training]).sum()), len(held)
