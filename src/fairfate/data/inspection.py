"""What a look at a file tells its user: what each column could be, and signs that something is wrong."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import (
    LEAST_ROWS,
    TextCodes,
    encode_texts,
    find_dates,
    find_numbers,
    is_number,
    why_no_number_input,
    why_no_text_input,
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
_OUTCOMES = re.compile(
    r"(?i)(^|[\W_])(y|target|label|class|outcome|result|response|answer|decision|status|approv\w*|readmi\w*|hired"
    r"|diagnosis|relapse\w*|recid\w*|default(ed)?|passed|survived|churn\w*|admitted|granted)($|[\W_])"
)
LEFT_OUT = "left out"
MOST_VALUES = 12
MOST_SITES, FEWEST_SITES, EVEN = 50, 3, 2.0
"""Values of a column of clients; one that is not named like sites has at least three, none of them more than
twice as often, or half as often, as the mean."""


class ColumnSummary(NamedTuple):
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


def summarise_columns(frame: pd.DataFrame) -> list[ColumnSummary]:
    """Tell of every column of a file what it holds and what it could be.

    >>> frame = pd.DataFrame({"sex": ["f", "m"] * 20, "age": range(20, 60), "id": range(40)})
    >>> [(column.name, column.shown, column.remark) for column in summarise_columns(frame)][:2]
    [('sex', 'f 50%, m 50%', '--target? --sensitive?'), ('age', '20 ... 59', 'left out: an identifier?')]
    """
    return [_summarise(frame[name]) for name in frame.columns]


def _summarise(values: pd.Series[Any]) -> ColumnSummary:
    name, missing, texts = str(values.name), int(values.isna().sum()), encode_texts(values)
    distinct = len(texts.names)
    if not distinct:
        return ColumnSummary(name, "empty", 0, missing, "", LEFT_OUT)
    dates = find_dates(values)
    if dates is not None:
        first, last = (pd.Timestamp(f(dates[0]), unit="D") for f in (np.nanmin, np.nanmax))
        return ColumnSummary(name, "date", distinct, missing, f"{first:%Y-%m-%d} ... {last:%Y-%m-%d}", "")
    if is_number(values):
        numbers: NDArray[np.float64] | None = values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        numbers, _ = find_numbers(values, texts)
    remark = _remark(name, texts, numbers)
    shown = _most_frequent(texts)
    if numbers is not None and distinct > 2:
        shown = f"{np.nanmin(numbers):g} ... {np.nanmax(numbers):g}"
    elif numbers is None and "identifier" in remark:
        shown = f"{_short(texts.names[0])}, ..."
    return ColumnSummary(name, "text" if numbers is None else "number", distinct, missing, shown, remark)


def _remark(name: str, texts: TextCodes, numbers: NDArray[np.float64] | None) -> str:
    why = why_no_text_input(texts) if numbers is None else why_no_number_input(numbers, name)
    if why:
        return f"{LEFT_OUT}: the same in all rows" if "same" in why else f"{LEFT_OUT}: an identifier?"
    distinct = len(texts.names)
    is_outcome = distinct == 2 or (distinct == 3 and bool(_OUTCOMES.search(name)))  # one is favourable
    parts = ["--target?"] if is_outcome else []
    needs_bands = numbers is not None and distinct > MOST_VALUES
    if _GROUPS.search(name) and (distinct <= MOST_VALUES or needs_bands):
        parts.append("--sensitive, in bands?" if needs_bands else "--sensitive?")
    are_names = numbers is None or bool((numbers[~np.isnan(numbers)] % 1 == 0).all())
    may_be_sites = _SITES.search(name) or (not parts and _is_even(texts))
    if are_names and 2 <= distinct <= MOST_SITES and may_be_sites:
        parts.append("--client-column?")
    return " ".join(parts)


def _is_even(texts: TextCodes) -> bool:
    """Whether a category's values are used about as often as each other, as sites may be."""
    rows, mean = texts.rows, texts.rows.mean()
    is_used = len(rows) >= FEWEST_SITES and mean >= LEAST_ROWS
    return bool(is_used and rows.max() <= EVEN * mean and rows.min() >= mean / EVEN)


def _most_frequent(texts: TextCodes) -> str:
    """The three most frequent texts, with their shares."""
    order = np.argsort(-texts.rows, kind="stable")[:3]
    shares = texts.rows / max(1, int(texts.rows.sum()))
    shown = [f"{_short(texts.names[index])} {shares[index]:.0%}" for index in order]
    return ", ".join(shown) + (", ..." if len(texts.names) > 3 else "")


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:19]}…"


SPIKE = 0.01
"""Share of a column's rows that hold the same odd number from which on it is noted."""
FEWEST_SPIKES = 3
"""Rows without which nothing is noted."""
NINES = np.array([sign * (10.0**digits - 1) for digits in range(1, 10) for sign in (1, -1)])
"""9, -9, 99, -99 and so on."""


def find_spikes(frame: pd.DataFrame) -> list[str]:
    """Note numbers such as 999 that many rows hold, far outside of the rest of their column.

    >>> find_spikes(pd.DataFrame({"age": [30, 40, 50, 60, 999, 999, 999]}))[0][:66]
    'missing? far outside of the other values of its column: age=999 (3'
    """
    spikes = [
        f"{name}={value:g} ({rows:,} rows)"
        for name in frame.columns
        if is_number(frame[name]) and not pd.api.types.is_bool_dtype(frame[name].dtype)
        for value, rows in _spikes(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
    ]
    note = (
        f"missing? far outside of the other values of its column: {listing(spikes)}; if it stands for a"
        " missing value, use --missing COLUMN=VALUE"
    )
    return [note] if spikes else []


def _spikes(numbers: NDArray[np.float64]) -> list[tuple[float, int]]:
    """Numbers of nines that stand apart, and how many rows hold them."""
    present = numbers[~np.isnan(numbers)]
    nines = np.isin(present, NINES)
    rest = present[~nines]
    if not nines.any() or not len(rest) or rest.min() == rest.max():
        return []
    low, high = float(rest.min()), float(rest.max())
    margin = (high - low) / 2
    values, rows = np.unique(present[nines], return_counts=True)
    return [
        (value, count)
        for value, count in zip(values.tolist(), rows.tolist(), strict=True)
        if count >= max(FEWEST_SPIKES, SPIKE * len(numbers))
        and (value >= high + margin or value <= low - margin or value < 0 <= low)
    ]


TELLS = 0.9
"""Share of the mistakes of one answer for all that an input alone must avoid to be suspected."""
COPIES = 0.01
"""Share of rows that are copies from which on it is said."""
FEWEST_OF_A_LABEL = 10
"""Rows of either label without which nothing is suspected."""


def find_leaks(table: Table) -> list[str]:
    """Note inputs that give the label away, and rows that are copies of others."""
    notes = []
    revealing = find_revealing_inputs(table)
    if revealing:
        notes.append(
            f"leak? one column alone tells the label in nearly every row: {listing(revealing)}; --drop what"
            " is not known when the model is used"
        )
    copies, rows = _count_copies(table)
    if table.part is not None and copies:
        notes.append(f"leak? {copies:,} of the server's {rows:,} rows are also among the training rows")
    elif table.part is None and copies >= COPIES * rows:
        notes.append(
            f"leak? {copies:,} of {rows:,} rows are copies of another row, inputs and label; a copy may be in"
            " the training and in the test rows"
        )
    return notes


def find_revealing_inputs(table: Table) -> list[str]:
    """The inputs each of which by itself gives the label away, with the share of rows in which it does."""
    label = table.label.astype(np.int64)
    rarer = int(min(label.sum(), len(label) - label.sum()))
    if rarer < FEWEST_OF_A_LABEL:
        return []
    revealing = []
    for name, values, slots in zip(table.feature_names, table.features.T, table.slots, strict=True):
        errors = _errors_by_category(values, label) if slots else _errors_by_cut(values, label)
        if errors <= (1 - TELLS) * rarer:
            revealing.append(f"{name} ({1 - errors / len(label):.1%})")
    return revealing


def _errors_by_category(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong if each value stands for its more frequent label."""
    codes = values.astype(np.int64) - int(values.min())
    strata = np.bincount(codes * 2 + label, minlength=2 * (int(codes.max()) + 1)).reshape(-1, 2)
    return int(strata.min(axis=1).sum())


def _errors_by_cut(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong at the best cut; missing values are one side of their own."""
    is_missing = np.isnan(values)
    missing, numbers, labels = label[is_missing], values[~is_missing], label[~is_missing]
    errors = int(min(missing.sum(), len(missing) - missing.sum()))
    if not len(numbers):
        return errors
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(numbers[order]) > 0, True))
    ones = np.cumsum(labels[order])[ends]
    zeros = ends + 1 - ones
    below_is_zero = ones + (zeros[-1] - zeros)
    return errors + int(min(below_is_zero.min(), (len(labels) - below_is_zero).min()))


def _count_copies(table: Table) -> tuple[int, int]:
    """Rows that occur before with the same inputs and label, of how many."""
    digests = pd.util.hash_array(table.label.astype(np.int64))
    for values in table.features.T:
        digests = digests * np.uint64(1_000_003) + pd.util.hash_array(values)
    if table.part is None:
        return len(digests) - len(np.unique(digests)), len(digests)
    is_training = table.part == TRAINING
    server = digests[~is_training]
    return int(np.isin(server, digests[is_training]).sum()), len(server)
