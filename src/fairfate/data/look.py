"""A first look at a file of which nothing is known yet: what each column is, and what it could be."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data import columns as cols

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
    dates = cols.find_dates(values)
    numbers = None
    if dates is None:
        as_number = cols.is_number(values)
        numbers = (
            values.to_numpy(dtype=np.float64, na_value=np.nan) if as_number else cols.find_numbers(values)[0]
        )
    found = cols.words(values)
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


def _remark(name: str, found: cols.Words, numbers: np.ndarray | None) -> str:
    why = cols.why_no_text_input(found) if numbers is None else cols.why_no_number_input(numbers, name)
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


def _is_even(found: cols.Words) -> bool:
    """Whether a category's values are used about as often as each other, as sites may be."""
    mean = found.rows.mean()
    enough = len(found.names) >= FEWEST_SITES and mean >= cols.LEAST_ROWS
    return bool(enough and found.rows.max() <= EVEN * mean and found.rows.min() >= mean / EVEN)


def _texts(found: cols.Words) -> str:
    """The three most frequent texts, with their shares."""
    order = np.argsort(-found.rows, kind="stable")[:3]
    shares = found.rows / max(1, int(found.rows.sum()))
    shown = [f"{_short(found.names[place])} {shares[place]:.0%}" for place in order]
    return ", ".join(shown) + (", ..." if len(found.names) > 3 else "")


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:19]}…"
