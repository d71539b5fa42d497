"""Values as people write them: numbers with commas or currencies, and what stands for a missing one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import is_number, spell
from fairfate.errors import listing, plain, unknown

MARKERS = {"", "?", "-", "--", ".", "n/a", "n.a.", "na", "nan", "none", "null", "unknown", "missing"}
MARKERS |= {"not available", "#n/a"}
"""Words that stand for a missing value among numbers."""
SAMPLE = 1000
"""Rows that show whether a column of texts may be numbers."""
_SPACES = " \u00a0\u2009\u202f"
_SEPARATORS = {".": f",'’{_SPACES}", ",": f".'’{_SPACES}"}
"""What may separate thousands, by the decimal mark."""
_SAME_SEPARATOR = str.maketrans({"’": "'", "\u00a0": " ", "\u2009": " ", "\u202f": " "})
_CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_MONEY = "[$€£¥]|USD|EUR|GBP|CHF"
_PLAIN = re.compile(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")
_BOUND = re.compile(r"(?:<=|>=|=<|=>|[<>≤≥])\s*(.*)")

Mask = NDArray[np.bool_]


class WrittenNumber(NamedTuple):
    """A number and how it was written."""

    value: float
    thousands: str
    """What separates its thousands, if anything does."""
    currency: str
    percent: bool


@cache
def _pattern(decimal: str) -> re.Pattern[str]:
    separated = (
        rf"[1-9][0-9]{{0,2}}(?P<thousands>[{_SEPARATORS[decimal]}])[0-9]{{3}}(?:(?P=thousands)[0-9]{{3}})*"
    )
    point = re.escape(decimal)
    return re.compile(
        rf"(?P<open>\()?(?P<sign>[+\-−])?(?P<before>{_MONEY})?[{_SPACES}]?(?P<inner>[+\-−])?"
        rf"(?P<digits>(?:{separated}|[0-9]+)(?:{point}[0-9]+)?|{point}[0-9]+)(?P<power>[eE][+\-]?[0-9]+)?"
        rf"[{_SPACES}]?(?P<percent>%)?[{_SPACES}]?(?P<after>{_MONEY})?(?P<close>\))?"
    )


def parse_number(text: str, decimal: str = ".") -> WrittenNumber | None:
    """A text as a number, if it is one.

    >>> parse_number("(1.234,56 €)", ",")
    WrittenNumber(value=-1234.56, thousands='.', currency='EUR', percent=False)
    >>> parse_number("01.02.2020", ","), parse_number("1.234").value, parse_number("1.234", ",").value
    (None, 1.234, 1234.0)
    """
    simple = text if decimal == "." else "" if "." in text else text.replace(",", ".")
    if _PLAIN.fullmatch(simple):  # most are; the pattern below takes longer
        return WrittenNumber(float(simple), "", "", False)
    match = _pattern(decimal).fullmatch(text)
    if match is None:
        return None
    part = match.groupdict("")
    signs = [part[name] for name in ("open", "sign", "inner") if part[name]]
    if (
        bool(part["open"]) != bool(part["close"])
        or len(signs) > 1
        or (part["before"] and part["after"])
        or (part["thousands"] and part["power"])
    ):
        return None
    digits = part["digits"].replace(part["thousands"], "") if part["thousands"] else part["digits"]
    size = float(digits.replace(decimal, ".") + part["power"])
    currency = part["before"] or part["after"]
    return WrittenNumber(
        value=size if signs in ([], ["+"]) else -size,
        thousands=part["thousands"].translate(_SAME_SEPARATOR),
        currency=_CURRENCIES.get(currency, currency),
        percent=bool(part["percent"]),
    )


def parse_bound(text: str, decimal: str = ".") -> WrittenNumber | None:
    """The number of a censored one, of which only a bound is known.

    >>> parse_bound("<0,60", ",").value, parse_bound("> 100").value, parse_bound("100")
    (0.6, 100.0, None)
    """
    match = _BOUND.fullmatch(text)
    return None if match is None else parse_number(match[1], decimal)


class Interpretation(NamedTuple):
    """A column's words read with one decimal mark."""

    decimal: str
    numbers: list[WrittenNumber | None]
    """For each word; None for a missing value, too."""
    is_text: Mask
    """Which words are neither a number nor missing."""
    is_bound: Mask
    """Which words are bounds of a number, such as <0.6; they count as numbers."""
    is_consistent: bool
    """Whether the numbers are written in one way: thousands, currency, percent."""

    @property
    def is_numeric(self) -> bool:
        """Whether the column is numbers."""
        return self.is_consistent and not self.is_text.any() and any(self.numbers)


@dataclass(frozen=True, eq=False)
class WrittenColumn:
    """A column of texts, perhaps with real numbers among them."""

    name: str
    codes: NDArray[np.int64]
    """(rows,) index into ``words``; -1 where a row holds none."""
    words: list[str]
    counts: NDArray[np.int64]
    """How many rows hold each word."""
    is_marker: Mask
    """Which words stand for a missing value."""
    numbers: NDArray[np.float64]
    """(rows,) the real numbers; NaN elsewhere."""

    @cached_property
    def readings(self) -> dict[str, Interpretation]:
        """The words read with either decimal mark."""
        return {decimal: self._interpret(decimal) for decimal in (".", ",")}

    def _interpret(self, decimal: str) -> Interpretation:
        pairs = list(zip(self.words, self.is_marker, strict=True))
        exact = [None if marker else parse_number(word, decimal) for word, marker in pairs]
        bounds = [None if marker else parse_bound(word, decimal) for word, marker in pairs]
        is_exact, is_bound = (np.array([n is not None for n in part], dtype=bool) for part in (exact, bounds))
        real = self.numbers[~np.isnan(self.numbers)]
        rows, values = self.counts[is_exact].sum() + len(real), is_exact.sum() + len(np.unique(real))
        if self.counts[is_bound].sum() >= rows or is_bound.sum() >= values:
            is_bound[:] = False  # names of bands, such as <5 and >=5, and no exceptions among numbers
        numbers = [b if bounded else n for n, b, bounded in zip(exact, bounds, is_bound, strict=True)]
        written = [n for n in numbers if n is not None]
        percents = {n.percent for n in written} | ({False} if len(real) else set())
        styles = {n.thousands for n in written} - {""}, {n.currency for n in written} - {""}, percents
        is_text = ~(self.is_marker | is_exact | is_bound)
        return Interpretation(decimal, numbers, is_text, is_bound, all(len(style) <= 1 for style in styles))

    def is_only(self, decimal: str) -> bool:
        """Whether it is numbers with this decimal mark, and none with the other."""
        other = "." if decimal == "," else ","
        return self.readings[decimal].is_numeric and not self.readings[other].is_numeric

    def select(self, which: Mask) -> list[str]:
        """Some of the words."""
        return [word for word, is_wanted in zip(self.words, which, strict=True) if is_wanted]

    def values(self, reading: Interpretation) -> NDArray[np.float64]:
        """(rows,) the numbers; NaN where there is none."""
        by_word = np.array([np.nan if n is None else n.value for n in reading.numbers] + [np.nan])
        return np.where(np.isnan(self.numbers), by_word[self.codes], self.numbers)


def _written_column(values: pd.Series[Any]) -> WrittenColumn | None:
    """A column's texts, if it has any and they are worth a look as numbers."""
    numbers = np.full(len(values), np.nan)
    if values.dtype == object:
        kinds = {type(value) for value in values[values.notna().to_numpy()]}
        if str not in kinds or not kinds <= {str, int, float}:
            return None
        is_real = np.array([isinstance(value, int | float) for value in values])
        numbers[is_real] = values[is_real].astype(float)
        values = values.mask(is_real)
    elif not isinstance(values.dtype, pd.StringDtype):
        return None
    if not _may_be_numbers(values.dropna()):
        return None
    codes, distinct = pd.factorize(values)
    words = [str(word).strip() for word in distinct]
    is_marker = np.array([word.casefold() in MARKERS for word in words], dtype=bool)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    return WrittenColumn(str(values.name), codes, words, counts, is_marker, numbers)


def _may_be_numbers(present: pd.Series[Any]) -> bool:
    """Whether a good part of some rows are numbers or missing: else there is no need to read every text."""
    sample = Counter(str(word).strip() for word in present.iloc[:: len(present) // SAMPLE + 1])
    numeric = sum(
        times
        for word, times in sample.items()
        if word.casefold() in MARKERS
        or any(parse(word, d) for parse in (parse_number, parse_bound) for d in ".,")
    )
    return numeric > sample.total() / 4


class NumericFrame(NamedTuple):
    """A frame whose written numbers are numbers."""

    frame: pd.DataFrame
    notes: tuple[str, ...]
    decimal_comma: bool
    """Whether the whole file has decimal commas."""


def convert_numbers(
    frame: pd.DataFrame,
    decimal: str | None,
    reread: Callable[[], pd.DataFrame] | None,
    prefer_comma: bool = False,
) -> NumericFrame:
    """Turn the columns that are written numbers into numbers.

    Parameters
    ----------
    frame : as pandas reads it; its numbers stay, unless the file has decimal commas
    decimal : "." or ","; None to find out
    reread : reads the same file as texts, where numbers were written as text
    prefer_comma : whether files beside it have decimal commas, so that this one has them unless it cannot

    Returns
    -------
    The frame, a note on each column that was changed or looks odd, and whether the file has decimal commas.
    """
    columns = [column for name in frame.columns if (column := _written_column(frame[name])) is not None]
    if reread is None:  # 007 is a name where numbers have a type of their own
        columns = [column for column in columns if not any(re.match("[+-]?0[0-9]", w) for w in column.words)]
    has_comma, floats = decimal == ",", []
    if has_comma or (decimal is None and (prefer_comma or any(column.is_only(",") for column in columns))):
        floats = _reread_floats(frame, reread)
        contradicted = any(not column.readings[","].is_numeric for column in floats)
        has_comma = has_comma or not (contradicted or any(column.is_only(".") for column in columns))
    decimals = "," if has_comma else "." if decimal == "." else ".,"
    changed, notes = frame.copy(deep=False), {}
    for column in columns:
        values, notes[column.name] = _convert(column, decimals)
        if values is not None:
            changed[column.name] = values
    for column in floats if has_comma else []:
        changed[column.name], notes[column.name] = _convert_float(column)
    return NumericFrame(changed, tuple(notes[name] for name in frame.columns if notes.get(name)), has_comma)


def _reread_floats(frame: pd.DataFrame, reread: Callable[[], pd.DataFrame] | None) -> list[WrittenColumn]:
    """The columns that pandas made floats and that hold a point, as written."""
    names = [name for name in frame.columns if frame[name].dtype == np.float64]
    if reread is None or not names:
        return []
    written = reread()
    columns = [_written_column(written[name]) for name in names]
    return [c for c in columns if c is not None and any("." in word for word in c.words)]


def _convert_float(column: WrittenColumn) -> tuple[Any, str]:
    """A column that pandas took for numbers with a decimal point, in a file of decimal commas."""
    reading = column.readings[","]
    if reading.is_numeric:
        return column.values(reading), _describe_conversion(column, reading)
    words = column.select(reading.is_text) or column.words
    text = pd.array(np.array([*column.words, None], dtype=object)[column.codes], "str")
    return text, f"{column.name}: read as text, since a decimal comma was asked for, got {_examples(words)}"


def _convert(column: WrittenColumn, decimals: str) -> tuple[NDArray[np.float64] | None, str]:
    """A column as numbers or, if it is not numbers, None; and a note on it."""
    readings = [column.readings[decimal] for decimal in decimals]
    best = next(
        (reading for reading in readings if reading.is_numeric),
        min(readings, key=lambda reading: int(column.counts[reading.is_text].sum())),
    )
    texts, rows = column.select(best.is_text), int(column.counts[best.is_text].sum())
    present = int(column.counts[~column.is_marker].sum() + (~np.isnan(column.numbers)).sum())
    if rows * 2 >= present:
        return None, ""
    if best.is_consistent and not rows:
        return column.values(best), _describe_conversion(column, best)
    if rows and best.is_consistent and _is_sentinel(column, texts, rows, present):
        note = f"{column.name}: {rows} values are no numbers and count as missing"
        return column.values(best), f"{note}, such as {_examples(texts)}{_describe_bounds(column, best)}"
    if rows:
        why = f"{rows} of {present} values are no numbers, such as {_examples(texts)}"
    else:
        why = f"its numbers are written in different ways, such as {_examples(_differing(column, best))}"
    return None, f"{column.name}: read as text, since {why}; fix them to use it as numbers"


def _is_sentinel(column: WrittenColumn, texts: Sequence[str], rows: int, present: int) -> bool:
    """Whether the few texts among many numbers are words such as 'Exempt', again and again."""
    return (
        len(texts) <= 3
        and 5 * len(texts) <= rows <= present / 5
        and len(column.words) > 15
        and not any(character.isdigit() for word in texts for character in word)
    )


def _describe_conversion(column: WrittenColumn, reading: Interpretation) -> str:
    """What was done to a column, with its longest number and the words for missing values."""
    numbers = {word: n for word, n in zip(column.words, reading.numbers, strict=True) if n is not None}
    note = f"{column.name}: read as numbers"
    is_comma = reading.decimal == ","
    if is_comma and any("," in word or n.thousands == "." for word, n in numbers.items()):
        note += " with a decimal comma"
    note += _describe_bounds(column, reading)
    unusual = column.select(reading.is_bound) or [
        word for word in numbers if is_comma or not _PLAIN.fullmatch(word)
    ]
    if unusual:
        longest = max(unusual, key=len)
        note += f", such as '{longest}' = {plain(numbers[longest].value)}"
    missing = int(column.counts[column.is_marker].sum())
    if missing:
        markers = list(dict.fromkeys(column.select(column.is_marker)))
        note += f", with {missing} missing value{'s' * (missing > 1)} written as {_examples(markers)}"
    return note


def _describe_bounds(column: WrittenColumn, reading: Interpretation) -> str:
    rows = int(column.counts[reading.is_bound].sum())
    if not rows:
        return ""
    return f"; of {rows:,} row{'' if rows == 1 else 's'} only a bound is known, which is taken as the number"


def _differing(column: WrittenColumn, reading: Interpretation) -> list[str]:
    """Numbers of a column that are written in different ways."""
    numbers = {word: n for word, n in zip(column.words, reading.numbers, strict=True) if n is not None}
    for style in ("percent", "currency", "thousands"):
        examples: dict[object, str] = {}
        for word, n in numbers.items():
            if getattr(n, style) != "":
                examples.setdefault(getattr(n, style), word)
        if len(examples) > 1:
            return list(examples.values())
    return list(numbers)


def _examples(words: Sequence[str]) -> str:
    """Two examples, cut short where they are long."""
    return " and ".join(f"'{word if len(word) <= 40 else word[:37] + '...'}'" for word in words[:2])


def split_code(code: str, names: Sequence[str] | pd.Index[Any]) -> tuple[str | None, str]:
    """The column and the value of ``COLUMN=VALUE``; no column where the text before ``=`` is none.

    >>> split_code("age=-1", ["age"]), split_code("a=b", ["age"])
    (('age', '-1'), (None, 'a=b'))
    """
    for match in re.finditer("=", code):
        column = code[: match.start()].strip()
        if column in names:
            return column, code[match.end() :].strip()
    return None, code.strip()


def without_codes(
    frame: pd.DataFrame, codes: Sequence[str], among: Iterable[str] | None = None
) -> tuple[pd.DataFrame, dict[str, Mask]]:
    """A frame in which values that stand for a missing one are missing.

    Numbers are compared as numbers, and texts as they are written, without blanks around them.

    Parameters
    ----------
    frame : the rows
    codes : ``VALUE`` for all columns, ``COLUMN=VALUE`` for one
    among : the columns to look at, all if None

    Returns
    -------
    The frame, and for each code (rows,) whether a row holds it.

    Examples
    --------
    >>> frame, hits = without_codes(pd.DataFrame({"age": [30, -1], "n": [-1, 2]}), ["age=-1"])
    >>> frame["age"].isna().tolist(), frame["n"].tolist(), hits["age=-1"].tolist()
    ([False, True], [-1, 2], [False, True])
    """
    hits = {code: np.zeros(len(frame), dtype=bool) for code in codes}
    if not hits:
        return frame, hits
    parts = {code: split_code(code, frame.columns) for code in hits}
    changed = frame.copy(deep=False)
    for name in frame.columns if among is None else among:
        wanted = {code: value for code, (column, value) in parts.items() if column in (None, name)}
        rows = _matching_rows(frame[name], wanted)
        for code, is_hit in rows.items():
            hits[code] |= is_hit
        if any(is_hit.any() for is_hit in rows.values()):
            changed[name] = frame[name].mask(np.logical_or.reduce(list(rows.values())))
    return changed, hits


def _matching_rows(values: pd.Series[Any], wanted: Mapping[str, str]) -> dict[str, Mask]:
    """For each code, (rows,) whether a column holds its value."""
    if is_number(values) and not pd.api.types.is_bool_dtype(values.dtype):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return {code: numbers == _to_number(value) for code, value in wanted.items()}
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:  # lists or records, which are refused later
        return {}
    words = [spell(value) for value in distinct]
    return {
        code: np.array([*(_is_same_value(word, value) for word in words), False], dtype=bool)[codes]
        for code, value in wanted.items()
    }


def _to_number(text: str) -> float:
    number = parse_number(text) or parse_number(text, ",")
    return np.nan if number is None else number.value


def _is_same_value(word: str, value: str) -> bool:
    are_numbers = word[-1:].isdigit() and value[-1:].isdigit()
    return word == value or (are_numbers and _to_number(word) == _to_number(value))


def note_codes(counts: Mapping[str, int], names: Sequence[str] | pd.Index[Any] | None) -> list[str]:
    """Say how many rows hold each code; InputError for ``COLUMN=VALUE`` with a column that is none.

    Parameters
    ----------
    counts : the rows of each code
    names : the columns of the file; nothing is refused if None

    Returns
    -------
    At most two notes: on the codes that rows hold, and on the others.
    """
    for code, rows in counts.items():
        column, equals, _ = code.partition("=")
        if names is not None and equals and not rows and split_code(code, names)[0] is None:
            raise unknown("column for missing", column.strip(), names)
    used = [f"{code} ({rows:,} row{'' if rows == 1 else 's'})" for code, rows in counts.items() if rows]
    unused = [code for code, rows in counts.items() if not rows]
    notes = [f"values that count as missing (--missing): {listing(used)}"] if used else []
    if unused:
        notes.append(f"no row holds a value given as missing (--missing): {listing(unused)}")
    return notes
