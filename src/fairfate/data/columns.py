"""What the columns of a user's file mean, and what each of them is: numbers, dates, texts, or no input."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.groups import MISSING as MISSING
from fairfate.data.groups import SMALL as SMALL
from fairfate.errors import InputError, check, listing

OTHERS = "(others)"
LEAST_ROWS = 20
"""A text that fewer rows share is one of the others; in files of fewer than 400 rows, less than 5 %."""
MOST_TEXTS = 1000
FEWEST = 5
"""Rows of either label that a group needs to be in the training, the validation and the test rows."""
MOST_NUMBERS = 12
"""A sensitive column of numbers with more values is cut into bands."""
REPORT, KEEP, DROP, REFUSE = MISSING_GROUP = "report", "keep", "drop", "refuse"
"""What becomes of rows without a value of the sensitive column: they are reported apart, or a group like any
other, or dropped, or an error."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a user's file mean."""

    target: str
    sensitive: tuple[str, ...]
    """One column or several, whose combinations are the groups."""
    favourable: str | None = None
    privileged: tuple[tuple[str, str], ...] = ()
    """For some sensitive columns, the value to set against all others."""
    client: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    bands: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """For some sensitive columns of numbers, where to cut them."""
    keep: tuple[str, ...] = ()
    """Columns that are inputs although they look like identifiers."""
    min_group: int = 50
    """Groups with fewer rows are merged."""
    missing_group: str = REPORT
    """What becomes of rows without a value of a sensitive column; see `MISSING_GROUP`."""


def parse_sensitive(text: str) -> tuple[str, tuple[float, ...]]:
    """A sensitive column, and where to cut it if it holds numbers.

    >>> parse_sensitive("age:25,40,65"), parse_sensitive("sex")
    (('age', (25.0, 40.0, 65.0)), ('sex', ()))
    """
    found = re.fullmatch(r"(.+):\s*(-?[\d.]+(?:\s*,\s*-?[\d.]+)*)\s*", text)
    if found is None:
        return text, ()
    try:
        cuts = tuple(float(part) for part in found.group(2).split(","))
    except ValueError:
        return text, ()
    rising = all(low < high for low, high in itertools.pairwise(cuts))
    check(rising, f"sensitive '{found.group(1)}' must be cut at rising numbers", found.group(2))
    return found.group(1), cuts


class Words(NamedTuple):
    """A column as text: the distinct words in sorted order, and each row's index (-1 where missing)."""

    codes: NDArray[np.int64]
    names: list[str]

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many rows have each word."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))


def words(values: pd.Series[Any]) -> Words:
    """A column as text."""
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:
        raise InputError(f"column '{values.name}' must hold numbers or texts, got lists or records") from None
    spelled = [spell(value) for value in distinct]
    names = sorted(set(spelled))
    place = {name: number for number, name in enumerate(names)}
    index = np.array([place[word] for word in spelled] + [-1])
    return Words(index[codes], names)


def spell(value: object) -> str:
    """A cell as text; whole numbers as people type them, 1 and not 1.0."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def named_missing(values: pd.Series[Any]) -> pd.Series[Any]:
    """A column in which missing values are a word of their own, whatever pandas holds it as."""
    return values.astype(object).where(values.notna(), MISSING)


def complete(values: pd.Series[Any], argument: str) -> Words:
    """A column as text that has a value in every row."""
    found = words(values)
    missing = int((found.codes < 0).sum())
    if missing:
        raise InputError(
            f"{argument} must have a value in every row, got {missing} missing in column '{values.name}'"
        )
    return found


def is_number(values: pd.Series[Any]) -> bool:
    """Whether the column is held as numbers or truth values."""
    return pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_bool_dtype(values.dtype)


def find_numbers(values: pd.Series[Any]) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Numbers that are stored as texts or decimals, None if it is text; and the words that are no numbers."""
    codes, names = words(values)
    parsed = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    odd = [names[place] for place in np.flatnonzero(np.isnan(parsed))]
    if odd or not names:
        return None, odd
    return np.append(parsed, np.nan)[codes], []


DATES = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d"),
    *("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y"),
    *("%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
"""The forms in which dates are recognised; where day and month could be either, the day comes first."""


def find_dates(values: pd.Series[Any]) -> tuple[NDArray[np.float64], str] | None:
    """Days since 1970 and the form of the dates, if all values are dates of one form."""
    if values.dtype.kind == "M":
        return read_dates(values, DATES[0]), DATES[0]
    if values.dtype.kind not in "OTU" and not isinstance(values.dtype, pd.StringDtype):
        return None
    codes, names = words(values)
    if not names or not re.search(r"\d", names[0]) or not 6 <= len(names[0]) <= 30:
        return None
    for form in DATES:
        try:
            days = _days(pd.to_datetime(pd.Series(names, dtype=object), format=form))
        except (ValueError, OverflowError):
            continue
        return np.append(days, np.nan)[codes], form
    return None


def read_dates(values: pd.Series[Any], form: str) -> NDArray[np.float64]:
    """Days since 1970 of dates in a known form; NaN where there is none, ValueError where it is another."""
    if values.dtype.kind == "M":
        stamps = values.dt.tz_convert(None) if getattr(values.dtype, "tz", None) else values
        return _days(stamps)
    codes, names = words(values)
    try:
        days = _days(pd.to_datetime(pd.Series(names, dtype=object), format=form))
    except ValueError:
        other = find_dates(values)  # of one other form
        if other is None:
            raise
        return other[0]
    return np.append(days, np.nan)[codes]


def _days(stamps: pd.Series[Any]) -> NDArray[np.float64]:
    try:
        days = (stamps - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    except (ArithmeticError, ValueError):  # years far beyond those that pandas counts with
        raise InputError(f"dates must be in years that people live in, got {stamps.dropna().max()}") from None
    return np.asarray(days.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def least_rows(rows: int) -> int:
    """How many rows must share a text for it to be told apart from the others."""
    return LEAST_ROWS if rows >= 20 * LEAST_ROWS else max(2, rows // 20)


def why_no_text_input(found: Words) -> str:
    """Why a column of texts is no input, if it is none."""
    rows, present = len(found.codes), int((found.codes >= 0).sum())
    distinct = len(found.names)
    if distinct + (present < rows) <= 1:
        return "the same in all rows"
    if distinct > max(20, 0.9 * present):
        return f"{distinct:,} different texts in {present:,} rows, as on an identifier"
    if distinct > MOST_TEXTS:
        return f"{distinct:,} different texts"
    if (found.rows < least_rows(rows)).all():
        return f"{distinct:,} different texts, none of them in {least_rows(rows)} rows"
    return ""


def why_no_number_input(numbers: NDArray[np.float64], name: str) -> str:
    """Why a column of numbers is no input, if it is none."""
    present = numbers[~np.isnan(numbers)]
    if not len(present):
        return "no value in any row"
    if (present == present[0]).all() and len(present) == len(numbers):
        return "the same in all rows"
    if len(present) < 20 or (present != np.floor(present)).any() or len(np.unique(present)) < len(present):
        return ""
    steps = np.diff(present)
    rising = bool((steps > 0).all() or (steps < 0).all())
    dense = present.max() - present.min() < 1.5 * len(present)
    alike = len(np.unique(np.floor(np.log10(np.abs(present) + 0.5)))) == 1
    long = (present.min() >= 1_000_000 and len(present) >= 200) or (
        present.min() >= 10_000 and len(present) >= 1000  # so many incomes would not all differ
    )
    if rising or dense or _NAMED_LIKE_IDS.search(name) or (alike and long):
        return f"{len(present):,} different whole numbers in as many rows, as on an identifier"
    return ""


_NAMED_LIKE_IDS = re.compile(
    r"(?i)(^|[\W_])(id|ids|nr|nbr|no|num|number|key|index|uuid|code|account|iban)$|^Unnamed"
)


def band_names(cuts: tuple[float, ...]) -> list[str]:
    """What the bands between some cuts are called; each begins with its lower cut.

    >>> band_names((25, 40))
    ['below 25', '25 to 40', '40 and over']
    """
    middle = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(cuts)]
    return [f"below {cuts[0]:g}", *middle, f"{cuts[-1]:g} and over"]


def into_bands(numbers: NDArray[np.float64], cuts: tuple[float, ...]) -> pd.Series[Any]:
    """The band of each number, by its name; none where there is no number."""
    names = np.array(band_names(cuts), dtype=object)
    band = np.searchsorted(np.asarray(cuts, dtype=np.float64), numbers, side="right")
    found = names[np.minimum(band, len(cuts))]
    found[np.isnan(numbers)] = None
    return pd.Series(found)


def usual_bands(numbers: NDArray[np.float64]) -> tuple[float, ...]:
    """The quartiles of numbers, to cut them at, as far as they differ."""
    present = numbers[~np.isnan(numbers)]
    cuts = np.unique(np.round(np.quantile(present, [0.25, 0.5, 0.75]), 6))
    return tuple(float(cut) for cut in cuts if cut > present.min())


class Merged(NamedTuple):
    """Groups of which the small ones are one."""

    codes: NDArray[np.int64]
    """(rows,) each row's group."""
    names: list[str]
    merged: list[str]
    """The names that the small ones had."""
    alone: str = ""
    """The only small group, where it stays as it is since there is only one other."""


def merge_small(codes: NDArray[np.int64], names: list[str], label: NDArray[np.int8], least: int) -> Merged:
    """Groups with too few rows, or of one label, as one; two groups at least are left.

    No row is left out. Rows without a value are a group of their own, however few they are.
    """
    cells = np.bincount(codes * 2 + label, minlength=2 * len(names)).reshape(-1, 2)
    known = np.array([name != MISSING for name in names])
    few = (cells.sum(axis=1) < least) | (cells.min(axis=1) < max(1, least // 5))
    if few[known].all():  # a small file: only what cannot be split
        few = cells.min(axis=1) < FEWEST
    few &= known
    large = int((known & ~few).sum())
    if not few.any() or not large:
        return Merged(codes, names, [])
    if large + few.sum() == 2:
        return Merged(codes, names, [], names[int(np.flatnonzero(few)[0])])
    rest = np.flatnonzero(~few)
    index = np.full(len(names), len(rest))
    index[rest] = np.arange(len(rest))
    merged = sorted(names[number] for number in np.flatnonzero(few))
    return Merged(index[codes], [*(names[number] for number in rest), SMALL], merged)


def too_few(labels: pd.Series[Any], every: pd.Series[Any]) -> bool:
    """Whether rows with these labels cannot be a group that is in the training, validation and test rows."""
    return any(int((labels == value).sum()) < FEWEST for value in every.dropna().unique())


def match(wanted: str, names: list[str], argument: str, column: object) -> int:
    """Where a value typed by the user stands among the column's (1.0 finds 1)."""
    wanted = wanted.strip()
    try:
        plain = spell(float(wanted))
    except ValueError:
        plain = wanted
    for word in (wanted, plain):
        if word in names:
            return names.index(word)
    folded = [name.casefold() for name in names]
    if folded.count(wanted.casefold()) == 1:
        return folded.index(wanted.casefold())
    raise InputError(f"{argument} must be a value of column '{column}' ({listing(names)}), got '{wanted}'")
