"""What the columns of a user's file mean, and what each of them is: numbers, dates, texts, or no input."""

from __future__ import annotations

import itertools
import re
import unicodedata
from bisect import bisect
from collections.abc import Container, Iterable, Mapping, Sequence
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
"""A column of more different texts is no input."""
LARGEST = 1e30
"""Numbers beyond it are refused."""
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
    match = re.fullmatch(r"(.+):\s*(-?[\d.]+(?:\s*,\s*-?[\d.]+)*)\s*", text)
    if match is None:
        return text, ()
    name, numbers = match.groups()
    try:
        cuts = tuple(float(part) for part in numbers.split(","))
    except ValueError:
        return text, ()
    is_rising = all(low < high for low, high in itertools.pairwise(cuts))
    check(is_rising, f"sensitive '{name}' must be cut at rising numbers", numbers)
    return name, cuts


class TextCodes(NamedTuple):
    """A column as text: the distinct texts in sorted order, and each row's index (-1 where missing)."""

    codes: NDArray[np.int64]
    names: list[str]

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many rows have each text."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))


def encode_texts(values: pd.Series[Any]) -> TextCodes:
    """A column as text; InputError for lists and records.

    >>> encode_texts(pd.Series([10.0, 2.5, None, 10.0]))
    TextCodes(codes=array([ 0,  1, -1,  0]), names=['10', '2.5'])
    """
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:
        raise InputError(f"column '{values.name}' must hold numbers or texts, got lists or records") from None
    texts = [spell(value) for value in distinct]
    names = sorted(set(texts))
    position = {name: number for number, name in enumerate(names)}
    return TextCodes(np.array([position[text] for text in texts] + [-1])[codes], names)


def encode_complete(values: pd.Series[Any], argument: str) -> TextCodes:
    """A column as text; InputError in the name of an argument unless it has a value in every row."""
    texts = encode_texts(values)
    missing = int((texts.codes < 0).sum())
    rule = f"{argument} must have a value in every row"
    check(missing == 0, rule, f"{missing} missing in column '{values.name}'")
    return texts


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


def is_number(values: pd.Series[Any]) -> bool:
    """Whether the column is held as numbers or truth values."""
    return pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_bool_dtype(values.dtype)


def find_numbers(
    values: pd.Series[Any], texts: TextCodes | None = None
) -> tuple[NDArray[np.float64] | None, list[str]]:
    """Numbers that are stored as texts or decimals.

    Parameters
    ----------
    values : the column
    texts : the same as texts, where these are known already

    Returns
    -------
    (rows,) the numbers, None if the column is text; and the texts that are no numbers.
    """
    codes, names = encode_texts(values) if texts is None else texts
    parsed = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    others = [names[number] for number in np.flatnonzero(np.isnan(parsed))]
    return (None if others or not names else np.append(parsed, np.nan)[codes]), others


DATES = (
    *("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d"),
    *("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y"),
    *("%d/%m/%Y", "%m/%d/%Y", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
"""The forms in which dates are recognised; where day and month could be either, the day comes first."""


def find_dates(
    values: pd.Series[Any], texts: TextCodes | None = None
) -> tuple[NDArray[np.float64], str] | None:
    """Days since 1970 and the form of the dates, if all values are dates of one form.

    Parameters
    ----------
    values : the column
    texts : the same as texts, where these are known already

    Returns
    -------
    (rows,) the days, NaN where there is none, and their form; None if the column is no dates.
    """
    if values.dtype.kind == "M":
        return read_dates(values, DATES[0]), DATES[0]
    if values.dtype.kind not in "OTU" and not isinstance(values.dtype, pd.StringDtype):
        return None
    texts = encode_texts(values) if texts is None else texts
    first = texts.names[0] if texts.names else ""
    for form in DATES if 6 <= len(first) <= 30 and re.search(r"\d", first) else ():
        try:
            return _parse_dates(texts, form), form
        except (ValueError, OverflowError):
            continue
    return None


def read_dates(values: pd.Series[Any], form: str) -> NDArray[np.float64]:
    """Days since 1970 of dates in a known form.

    Parameters
    ----------
    values : the column
    form : as in `DATES`; if not all dates are of this form, all may be of one other

    Returns
    -------
    (rows,) the days, NaN where there is no date; ValueError where there is something else.
    """
    if values.dtype.kind == "M":
        return _count_days(values.dt.tz_convert(None) if getattr(values.dtype, "tz", None) else values)
    texts = encode_texts(values)
    try:
        return _parse_dates(texts, form)
    except ValueError:
        dates = find_dates(values, texts)
        if dates is None:
            raise
        return dates[0]


def _parse_dates(texts: TextCodes, form: str) -> NDArray[np.float64]:
    days = _count_days(pd.to_datetime(pd.Series(texts.names, dtype=object), format=form))
    return np.append(days, np.nan)[texts.codes]


def _count_days(dates: pd.Series[Any]) -> NDArray[np.float64]:
    try:
        days = (dates - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    except (ArithmeticError, ValueError):  # years far beyond those that pandas counts with
        raise InputError(f"date out of range: {dates.dropna().max()}") from None
    return np.asarray(days.to_numpy(dtype=np.float64, na_value=np.nan), dtype=np.float64)


def least_rows(rows: int) -> int:
    """How many of so many rows must share a text for it to be told apart from the others."""
    return LEAST_ROWS if rows >= 20 * LEAST_ROWS else max(2, rows // 20)


def why_no_text_input(texts: TextCodes) -> str:
    """Why a column of texts is no input, if it is none."""
    rows, present, distinct = len(texts.codes), int((texts.codes >= 0).sum()), len(texts.names)
    if distinct + (present < rows) <= 1:
        return "the same in all rows"
    if distinct > max(20, 0.9 * present):
        return f"{distinct:,} different texts in {present:,} rows, as on an identifier"
    if distinct > MOST_TEXTS:
        return f"{distinct:,} different texts"
    if (texts.rows < least_rows(rows)).all():
        return f"{distinct:,} different texts, none of them in {least_rows(rows)} rows"
    return ""


_NAMED_LIKE_IDS = re.compile(
    r"(?i)(^|[\W_])(id|ids|nr|nbr|no|num|number|key|index|uuid|code|account|iban)$|^Unnamed"
)


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
    is_sorted = bool((steps > 0).all() or (steps < 0).all())
    is_dense = present.max() - present.min() < 1.5 * len(present)
    has_same_length = len(np.unique(np.floor(np.log10(np.abs(present) + 0.5)))) == 1
    is_long = (present.min() >= 1_000_000 and len(present) >= 200) or (
        present.min() >= 10_000 and len(present) >= 1000  # so many incomes would not all differ
    )
    if is_sorted or is_dense or _NAMED_LIKE_IDS.search(name) or (has_same_length and is_long):
        return f"{len(present):,} different whole numbers in as many rows, as on an identifier"
    return ""


def find_value(wanted: str, names: Sequence[str], argument: str, column: object) -> int:
    """The index of a value that a user typed, among a column's values.

    >>> find_value("1.0", ["0", "1"], "favourable", "hired"), find_value("YES", ["no", "yes"], "target", "y")
    (1, 1)
    """
    wanted = wanted.strip()
    names = list(names)
    try:
        as_number = spell(float(wanted))
    except ValueError:
        as_number = wanted
    for text in (wanted, as_number):
        if text in names:
            return names.index(text)
    folded = [name.casefold() for name in names]
    if folded.count(wanted.casefold()) == 1:
        return folded.index(wanted.casefold())
    raise InputError(f"{argument} must be a value of column '{column}' ({listing(names)}), got '{wanted}'")


class InputColumn(NamedTuple):
    """One input column as numbers."""

    values: NDArray[np.float64]
    categories: tuple[str, ...] | None = None
    date: str = ""
    """The form of dates."""
    excluded_because: str = ""
    """Why it is no input, if it is none."""
    rare: str = ""
    """How many texts in how many rows are one category."""


def plain_input(values: pd.Series[Any], categorical: bool, notes: list[str]) -> InputColumn:
    """One input column as numbers, or as categories if it is text; every value counts."""
    column = _read_plain(values, categorical)
    many = len(column.categories or ())
    if many > max(20, len(values) / 2):
        notes.append(
            f"{values.name}: {many} different texts in {len(values)} rows, as on an identifier; --drop it?"
        )
    missing = int(values.isna().sum())
    if missing:
        how = "a category" if column.categories is not None else "imputed by the training median"
        notes.append(f"{values.name}: {missing} missing values, {how}")
    return column


def _read_plain(values: pd.Series[Any], categorical: bool) -> InputColumn:
    if not categorical and is_number(values):
        return InputColumn(check_finite(values.to_numpy(dtype=np.float64, na_value=np.nan), values.name))
    texts = encode_texts(values)
    if not categorical:
        numbers, others = find_numbers(values, texts)
        if numbers is not None:
            return InputColumn(check_finite(numbers, values.name))
        _check_kinds(values, texts, others)
    return _categories(texts)


def _check_kinds(values: pd.Series[Any], texts: TextCodes, others: list[str]) -> None:
    """A column that is mostly numbers with some text in it is a mistake more often than a category."""
    is_other = np.isin(texts.names, others)
    rows = np.flatnonzero(np.append(is_other, False)[texts.codes])
    if 0 < len(rows) < (texts.codes >= 0).sum() / 2:
        raise InputError(
            f"column '{values.name}' must be all numbers or all text, got"
            f" '{texts.names[texts.codes[rows[0]]]}' in row {rows[0] + 1} among numbers; fix the value, or"
            f" keep the column as text with --categorical {values.name}"
        )


def tidy_input(values: pd.Series[Any], categorical: bool, keep: bool) -> InputColumn:
    """An input of a file as it comes: dates are read, rare texts put together, identifiers excluded.

    Parameters
    ----------
    values : the column
    categorical : whether it is text, whatever it looks like
    keep : whether it is an input, whatever it looks like
    """
    needs_no_text = is_number(values) or values.dtype.kind == "M"
    texts = encode_texts(values) if categorical or not needs_no_text else None
    numbers = None
    if not categorical:
        dates = find_dates(values, texts)
        if dates is not None:
            is_constant = len(np.unique(dates[0])) == 1 and not keep
            return InputColumn(dates[0], None, dates[1], "the same in all rows" if is_constant else "")
        if texts is None:
            numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            numbers, _ = find_numbers(values, texts)
    if numbers is not None:
        why = "" if keep else why_no_number_input(numbers, str(values.name))
        return InputColumn(check_finite(numbers, values.name), excluded_because=why)
    assert texts is not None
    why = "" if keep else why_no_text_input(texts)
    return _categories(texts)._replace(excluded_because=why) if why else _shared_categories(texts)


def _categories(texts: TextCodes) -> InputColumn:
    """Each text is a category; a missing value is one like any other, in its sorted position."""
    codes, names = texts
    if (codes < 0).any():
        position = bisect(names, MISSING)
        codes = np.where(codes < 0, position, codes + (codes >= position))
        names = [*names[:position], MISSING, *names[position:]]
    return InputColumn(codes.astype(np.float64), tuple(names))


def _shared_categories(texts: TextCodes) -> InputColumn:
    """Texts that enough rows share, each a category; all others are one more, at the end."""
    is_shared = texts.rows >= least_rows(len(texts.codes))
    names = [name for name, shared in zip(texts.names, is_shared, strict=True) if shared]
    names += [MISSING] if (texts.codes < 0).any() else []
    index = np.append(np.where(is_shared, np.cumsum(is_shared) - 1, len(names)), len(names) - 1)
    rare, rows = int((~is_shared).sum()), int(texts.rows[~is_shared].sum())
    counted = f"{rare:,} text{'' if rare == 1 else 's'} in {rows:,} row{'' if rows == 1 else 's'}"
    return InputColumn(index[texts.codes].astype(np.float64), (*names, OTHERS), rare=counted if rare else "")


def check_finite(numbers: NDArray[np.float64], column: object) -> NDArray[np.float64]:
    """The numbers; InputError unless they are finite and of a usable size. NaN stands for a missing one."""
    is_wrong = {"be finite": np.isinf(numbers), f"stay within ±{LARGEST:g}": np.abs(numbers) > LARGEST}
    for rule, mask in is_wrong.items():
        rows = np.flatnonzero(mask)
        if len(rows):
            example = f"{numbers[rows[0]]:g} in row {rows[0] + 1} ({len(rows)} such values)"
            raise InputError(f"column '{column}' must {rule}, got {example}")
    return numbers


def summarise_inputs(
    inputs: Mapping[str, InputColumn], frame: pd.DataFrame, sensitive: Sequence[str]
) -> list[str]:
    """Notes on what was done to the columns of a file as it comes, in few lines."""
    used = {name: column for name, column in inputs.items() if not column.excluded_because}
    gaps = {name: int(frame[name].isna().sum()) for name in used if name not in sensitive}
    gappy: dict[bool, list[str]] = {True: [], False: []}
    for name, missing in gaps.items():
        if missing:
            gappy[used[name].categories is not None].append(f"{name} ({missing:,})")
    excluded = [f"{n} ({c.excluded_because})" for n, c in inputs.items() if c.excluded_because]
    shared = f"texts that fewer than {least_rows(len(frame))} rows share are {OTHERS}"
    lines = {
        "left out": excluded,
        "dates, as days since 1970": [name for name, column in used.items() if column.date],
        shared: [f"{name} ({column.rare})" for name, column in used.items() if column.rare],
        "missing texts are a category of their own": gappy[True],
        "missing numbers are replaced, by the mean or median of the training rows": gappy[False],
    }
    notes = []
    for what, names in lines.items():
        rest = len(names) - MOST_LISTED
        shown = [*names[:MOST_LISTED], f"and {rest:,} more"] if rest > 0 else names
        shown = [*shown, "--keep NAME takes one in"] if names is excluded else shown
        notes += [f"{what}: {'; '.join(shown)}"] if names else []
    return notes


def note_lookalikes(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """A note for each of some columns that holds texts which hardly differ; nothing is done to them."""
    notes = []
    for name in dict.fromkeys(names):
        if name not in frame.columns or is_number(frame[name]):
            continue
        texts = encode_texts(frame[name])
        classes: dict[str, list[int]] = {}
        for index, text in enumerate(texts.names):
            classes.setdefault(fold(text), []).append(index)
        several = [indices for indices in classes.values() if len(indices) > 1]
        several.sort(key=lambda indices: -int(texts.rows[indices].sum()))
        if several:
            examples = listing((_quote(texts, indices) for indices in several), limit=3)
            notes.append(
                f"{name}: kept apart, though they differ only in capital letters, blanks, invisible"
                f" characters or the encoding of accents: {examples}"
            )
    return notes


def fold(text: str) -> str:
    r"""A text without what people overlook.

    >>> fold(" Yes\u200b") == fold("yes"), fold("Z\u00fcrich") == fold("Zu\u0308rich")
    (True, True)
    """
    return unicodedata.normalize("NFC", _visible(" ".join(_visible(text).split())).casefold())


def _visible(text: str) -> str:
    """Without format characters and others that have no look of their own."""
    characters = (c for c in text if unicodedata.category(c) != "Cf" and not "\ufe00" <= c <= "\ufe0f")
    return unicodedata.normalize("NFC", "".join(characters).replace("\u034f", ""))


def _quote(texts: TextCodes, indices: list[int]) -> str:
    """Texts with their rows; escaped where they would look the same."""
    names = [texts.names[index] for index in indices]
    if len({_visible(name) for name in names}) < len(names):
        names = [ascii(name)[1:-1] for name in names]
    rows = texts.rows[indices].tolist()
    return " and ".join(f"'{name}' ({count:,})" for name, count in zip(names, rows, strict=True))
