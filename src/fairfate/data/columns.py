"""What the columns of a user's file mean, and what each of them is: numbers, dates, texts, or no input."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.errors import MOST_LISTED, InputError, check, listing

MISSING, SMALL, OTHERS = "(missing)", "(small groups)", "(others)"
"""The values of people whose own is not known, is that of too few, or is not told apart."""
LEAST_ROWS = 20
"""A text that fewer rows share is one of the others; in files of fewer than 400 rows, less than 5 %."""
MOST_TEXTS = 1000
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


def free_name(wanted: str, taken: Container[str]) -> str:
    """A column's name that is not taken.

    >>> free_name("sex", ["age"]), free_name("sex", ["age", "sex"])
    ('sex', 'sex_')
    """
    while wanted in taken:
        wanted += "_"
    return wanted


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


def find_numbers(
    values: pd.Series[Any], texts: Words | None = None
) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Numbers that are stored as texts or decimals, None if it is text; and the words that are no numbers.

    Parameters
    ----------
    values : the column
    texts : its words, where they are known already
    """
    codes, names = words(values) if texts is None else texts
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


def find_dates(values: pd.Series[Any], texts: Words | None = None) -> tuple[NDArray[np.float64], str] | None:
    """Days since 1970 and the form of the dates, if all values are dates of one form.

    Parameters
    ----------
    values : the column
    texts : its words, where they are known already
    """
    if values.dtype.kind == "M":
        return read_dates(values, DATES[0]), DATES[0]
    if values.dtype.kind not in "OTU" and not isinstance(values.dtype, pd.StringDtype):
        return None
    codes, names = words(values) if texts is None else texts
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


def summed_up(inputs: Mapping[str, Input], frame: pd.DataFrame, columns: Columns) -> list[str]:
    """What was done to the columns of a file as it comes, in few lines."""
    used = {name: of for name, of in inputs.items() if not of.left_out}
    out = [f"{name} ({of.left_out})" for name, of in inputs.items() if of.left_out]
    dates = [name for name, of in used.items() if of.date]
    rare = [f"{name} ({of.others})" for name, of in used.items() if of.others]
    gaps = {name: int(frame[name].isna().sum()) for name in used if name not in columns.sensitive}
    texts = [f"{name} ({gaps[name]:,})" for name in gaps if gaps[name] and used[name].categories is not None]
    numbers = [f"{name} ({gaps[name]:,})" for name in gaps if gaps[name] and used[name].categories is None]
    least = least_rows(len(frame))
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


def _categories(texts: Words) -> Input:
    codes, names = texts.codes, list(texts.names)
    if (codes < 0).any():  # a missing value is a category like any other, in its sorted place
        place = bisect(names, MISSING)
        codes = np.where(codes < 0, place, codes + (codes >= place))
        names.insert(place, MISSING)
    return Input(codes.astype(np.float64), tuple(names))


def plain_input(values: pd.Series[Any], categorical: bool) -> Input:
    """One input column as numbers, and its categories if it is text."""
    if not categorical and is_number(values):
        return Input(finite(values.to_numpy(dtype=np.float64, na_value=np.nan), values.name))
    if not categorical:
        texts = words(values)
        numbers, odd = find_numbers(values, texts)
        if numbers is not None:
            return Input(finite(numbers, values.name))
        _check_odd(values, texts, odd)
        return _categories(texts)
    return _categories(words(values))


def _check_odd(values: pd.Series[Any], texts: Words, odd: list[str]) -> None:
    """A column that is mostly numbers with some text in it is a mistake more often than a category."""
    codes, names = texts
    rows = np.flatnonzero(np.isin(codes, [place for place, name in enumerate(names) if name in set(odd)]))
    if 0 < len(rows) < (codes >= 0).sum() / 2:
        raise InputError(
            f"column '{values.name}' must be all numbers or all text, got '{names[codes[rows[0]]]}' in row"
            f" {rows[0] + 1} among numbers; mend the value, or keep the column as text with"
            f" --categorical {values.name}"
        )


def tidy_input(values: pd.Series[Any], categorical: bool, keep: bool) -> Input:
    """An input of a file as it comes."""
    is_plain = is_number(values) or values.dtype.kind == "M"
    texts = words(values) if categorical or not is_plain else None
    numbers = None
    if not categorical:
        dates = find_dates(values, texts)
        if dates is not None:
            return Input(dates[0], None, dates[1], "" if keep else _same(dates[0]))
        if texts is None:
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            numbers, _ = find_numbers(values, texts)
    if numbers is not None:
        why = "" if keep else why_no_number_input(numbers, str(values.name))
        return Input(finite(numbers, values.name), left_out=why)
    assert texts is not None
    why = "" if keep else why_no_text_input(texts)
    return _categories(texts)._replace(left_out=why) if why else _shared(texts)


def _some(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _same(numbers: NDArray[np.float64]) -> str:
    return "the same in all rows" if len(np.unique(numbers)) == 1 else ""


def _shared(found: Words) -> Input:
    """Texts that enough rows share, each a category; all others are one more, at the end."""
    least = least_rows(len(found.codes))
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


_INVISIBLE = {0x034F, *range(0xFE00, 0xFE10)}
"""Characters without a look of their own, beside those that Unicode calls format characters."""


def lookalikes(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """A note for each of some columns that holds texts which hardly differ; nothing is done to them."""
    notes = []
    for name in dict.fromkeys(names):
        if name not in frame.columns or is_number(frame[name]):
            continue
        found = words(frame[name])
        alike: dict[str, list[int]] = {}
        for index, text in enumerate(found.names):
            alike.setdefault(fold(text), []).append(index)
        rows = found.rows
        several = [indices for indices in alike.values() if len(indices) > 1]
        several.sort(key=lambda indices: -int(rows[indices].sum()))
        if several:
            told = listing((_listed([found.names[i] for i in of], rows[of]) for of in several), limit=3)
            notes.append(
                f"{name}: kept apart, though they differ only in capital letters, blanks, invisible"
                f" characters or the encoding of accents: {told}"
            )
    return notes


def fold(text: str) -> str:
    r"""A text without what people overlook.

    >>> fold(" Yes\u200b") == fold("yes"), fold("Z\u00fcrich") == fold("Zu\u0308rich")
    (True, True)
    """
    visible = "".join(character for character in text if not _is_invisible(character))
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", " ".join(visible.split())).casefold())


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) == "Cf" or ord(character) in _INVISIBLE


def _listed(texts: list[str], rows: np.ndarray[Any, Any]) -> str:
    """Texts with their rows; escaped where they would look the same."""
    seen = {unicodedata.normalize("NFC", "".join(c for c in text if not _is_invisible(c))) for text in texts}
    spelled = texts if len(seen) == len(texts) else [ascii(text)[1:-1] for text in texts]
    parts = [f"'{text}' ({count:,})" for text, count in zip(spelled, rows.tolist(), strict=True)]
    return " and ".join(parts)
