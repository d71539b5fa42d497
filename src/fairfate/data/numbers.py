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
_SPACE = "[ \u00a0\u2009\u202f]"
_GROUPS = {".": ",'’ \u00a0\u2009\u202f", ",": ".'’ \u00a0\u2009\u202f"}
_ALIKE = str.maketrans({"’": "'", "\u00a0": " ", "\u2009": " ", "\u202f": " "})
_CODES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
_MONEY = "[$€£¥]|USD|EUR|GBP|CHF"
_PLAIN = re.compile(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?")
_SAMPLE = 1000
"""Rows to look at before a column is worth more."""


class Number(NamedTuple):
    """A number and how it was written."""

    value: float
    group: str
    """What separates its thousands, if anything does."""
    currency: str
    percent: bool


@cache
def _pattern(decimal: str) -> re.Pattern[str]:
    grouped = rf"[1-9][0-9]{{0,2}}(?P<group>[{_GROUPS[decimal]}])[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*"
    point = re.escape(decimal)
    return re.compile(
        rf"(?P<open>\()?(?P<sign>[+\-−])?(?P<before>{_MONEY})?{_SPACE}?(?P<inner>[+\-−])?"
        rf"(?P<body>(?:{grouped}|[0-9]+)(?:{point}[0-9]+)?|{point}[0-9]+)(?P<power>[eE][+\-]?[0-9]+)?"
        rf"{_SPACE}?(?P<percent>%)?{_SPACE}?(?P<after>{_MONEY})?(?P<close>\))?"
    )


def number(text: str, decimal: str = ".") -> Number | None:
    """A text as a number, if it is one.

    >>> number("(1.234,56 €)", ",")
    Number(value=-1234.56, group='.', currency='EUR', percent=False)
    >>> number("01.02.2020", ","), number("1.234").value, number("1.234", ",").value
    (None, 1.234, 1234.0)
    """
    simple = text if decimal == "." else "" if "." in text else text.replace(",", ".")
    if _PLAIN.fullmatch(simple):  # most are; the pattern below takes longer
        return Number(float(simple), "", "", False)
    found = _pattern(decimal).fullmatch(text)
    if found is None:
        return None
    part = found.groupdict("")
    signs = (part["open"], part["sign"], part["inner"])
    if (
        bool(part["open"]) != bool(part["close"])
        or sum(map(bool, signs)) > 1
        or (part["before"] and part["after"])
        or (part["group"] and part["power"])
    ):
        return None
    body = part["body"].replace(part["group"], "") if part["group"] else part["body"]
    size = float(body.replace(decimal, ".") + part["power"])
    currency = part["before"] or part["after"]
    return Number(
        value=-size if any(sign in ("(", "-", "−") for sign in signs) else size,
        group=part["group"].translate(_ALIKE),
        currency=_CODES.get(currency, currency),
        percent=bool(part["percent"]),
    )


_BOUND = re.compile(r"(?:<=|>=|=<|=>|[<>≤≥])\s*(.*)")


def bound(text: str, decimal: str = ".") -> Number | None:
    """The number of a censored one, of which only a bound is known.

    >>> bound("<0,60", ",").value, bound("> 100").value, bound("100")
    (0.6, 100.0, None)
    """
    behind = _BOUND.fullmatch(text)
    return None if behind is None else number(behind[1], decimal)


class Fit(NamedTuple):
    """A column's words read with one decimal separator."""

    decimal: str
    found: list[Number | None]
    """For each word; None for a missing value, too."""
    wrong: NDArray[np.bool_]
    """Which words are neither a number nor missing."""
    censored: NDArray[np.bool_]
    """Which words are bounds of a number, such as <0.6; they count as numbers."""
    alike: bool
    """Whether the numbers are written in one way: thousands, currency, percent."""

    @property
    def whole(self) -> bool:
        """Whether the column is numbers."""
        return self.alike and not self.wrong.any() and any(n is not None for n in self.found)


@dataclass(frozen=True, eq=False)
class Texts:
    """A column of texts, with real numbers among them perhaps."""

    name: str
    codes: NDArray[np.int64]
    """(rows,) index into ``words``; -1 where a row holds none."""
    words: list[str]
    counts: NDArray[np.int64]
    """How many rows hold each word."""
    marker: NDArray[np.bool_]
    """Which words stand for a missing value."""
    numbers: NDArray[np.float64]
    """(rows,) the real numbers; NaN elsewhere."""

    @property
    def present(self) -> int:
        """Rows with a value."""
        return int(self.counts[~self.marker].sum()) + int((~np.isnan(self.numbers)).sum())

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """The words read with either decimal separator."""
        return {decimal: _fit(self, decimal) for decimal in (".", ",")}

    @property
    def european(self) -> bool:
        """Whether it can only be numbers with a decimal comma, such as 12,5 or 1.234,56."""
        return self.fits[","].whole and not self.fits["."].whole

    @property
    def pointed(self) -> bool:
        """Whether it can only be numbers with a decimal point, such as 1234.56."""
        return self.fits["."].whole and not self.fits[","].whole

    def only(self, which: NDArray[np.bool_]) -> list[str]:
        """Some of the words."""
        return [word for word, wanted in zip(self.words, which, strict=True) if wanted]


def texts_of(values: pd.Series[Any]) -> Texts | None:
    """A column's texts, if it has any and they are worth a look as numbers."""
    numbers = np.full(len(values), np.nan)
    if values.dtype == object:
        kinds = {type(value) for value in values[values.notna().to_numpy()]}
        if str not in kinds or not kinds <= {str, int, float}:
            return None
        real = np.array([isinstance(value, int | float) for value in values])
        numbers[real] = values[real].astype(float)
        values = values.mask(real)
    elif not isinstance(values.dtype, pd.StringDtype):
        return None
    if not _promising(values.dropna()):
        return None
    codes, distinct = pd.factorize(values)
    words = [str(word).strip() for word in distinct]
    marker = np.array([word.casefold() in MARKERS for word in words], dtype=bool)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    return Texts(str(values.name), codes, words, counts, marker, numbers)


def _promising(present: pd.Series[Any]) -> bool:
    """Whether a good part of some rows are numbers or missing: no need to look at every text then."""
    some = Counter(str(word).strip() for word in present.iloc[:: len(present) // _SAMPLE + 1])
    hits = sum(
        times
        for word, times in some.items()
        if word.casefold() in MARKERS or any(read(word, of) for read in (number, bound) for of in ".,")
    )
    return hits > some.total() / 4


def _fit(texts: Texts, decimal: str) -> Fit:
    """A column's words read with one decimal separator."""
    exact = [
        None if marker else number(word, decimal)
        for word, marker in zip(texts.words, texts.marker, strict=True)
    ]
    bounds = [
        bound(word, decimal) if n is None and not marker else None
        for word, marker, n in zip(texts.words, texts.marker, exact, strict=True)
    ]
    censored = np.array([n is not None for n in bounds], dtype=bool)
    if not _is_rare(texts, exact, censored):
        bounds, censored = [None] * len(bounds), np.zeros(len(bounds), dtype=bool)
    found = [of if n is None else n for n, of in zip(exact, bounds, strict=True)]
    numbers = [n for n in found if n is not None]
    groups, currencies = {n.group for n in numbers}, {n.currency for n in numbers}
    bare = bool((~np.isnan(texts.numbers)).any())
    percents = {n.percent for n in numbers} | ({False} if bare else set())
    alike = len(groups - {""}) <= 1 and len(currencies - {""}) <= 1 and len(percents) <= 1
    wrong = ~texts.marker & np.array([n is None for n in found], dtype=bool)
    return Fit(decimal, found, wrong, censored, alike)


def _is_rare(texts: Texts, exact: Sequence[Number | None], censored: NDArray[np.bool_]) -> bool:
    """Whether bounds are the exception among numbers, and not the names of bands such as <5 and >=5."""
    written = np.array([n is not None for n in exact], dtype=bool)
    plain_numbers = texts.numbers[~np.isnan(texts.numbers)]
    rows = int(texts.counts[written].sum()) + len(plain_numbers)
    values = int(written.sum()) + len(np.unique(plain_numbers))
    return int(texts.counts[censored].sum()) < rows and int(censored.sum()) < values


class Numbered(NamedTuple):
    """A frame whose written numbers are numbers."""

    frame: pd.DataFrame
    notes: tuple[str, ...]
    comma: bool
    """Whether the whole file has decimal commas."""


def numbered(
    frame: pd.DataFrame,
    decimal: str | None,
    strings: Callable[[], pd.DataFrame] | None,
    leaning: bool = False,
) -> Numbered:
    """Turn the columns that are written numbers into numbers.

    Parameters
    ----------
    frame : as pandas reads it; its numbers stay, unless the file has decimal commas
    decimal : "." or ","; None to find out
    strings : reads the same file as texts, where numbers were written as text
    leaning : whether files that belong with it have decimal commas, so that this one has unless it cannot
    """
    texts = [column for name in frame.columns if (column := texts_of(frame[name])) is not None]
    if strings is None:  # 007 is a name where numbers have a type of their own
        texts = [column for column in texts if not any(re.match("[+-]?0[0-9]", w) for w in column.words)]
    comma, floats = decimal == ",", []
    if comma or (decimal is None and (leaning or any(column.european for column in texts))):
        floats = _written_floats(frame, strings)
        unfit = any(not column.fits[","].whole for column in floats) or any(c.pointed for c in texts)
        comma = comma or not unfit
    decimals = (",",) if comma else (".",) if decimal == "." else (".", ",")
    changed, notes = frame.copy(deep=False), {}
    for column in texts:
        values, notes[column.name] = _column(column, decimals)
        if values is not None:
            changed[column.name] = values
    for column in floats if comma else []:
        changed[column.name], notes[column.name] = _float(column)
    return Numbered(changed, tuple(notes[name] for name in frame.columns if notes.get(name)), comma)


def _written_floats(frame: pd.DataFrame, strings: Callable[[], pd.DataFrame] | None) -> list[Texts]:
    """The columns that pandas made floats and that hold a point, as written."""
    names = [name for name in frame.columns if frame[name].dtype == np.float64]
    if strings is None or not names:
        return []
    written = strings()
    return [
        texts
        for name in names
        if (texts := texts_of(written[name])) is not None and any("." in word for word in texts.words)
    ]


def _float(texts: Texts) -> tuple[Any, str]:
    """A column that pandas took for numbers with a decimal point, in a file of decimal commas."""
    if texts.fits[","].whole:
        return _values(texts, texts.fits[","]), _told(texts, texts.fits[","])
    wrong = texts.only(texts.fits[","].wrong) or texts.words
    text = pd.array(np.array([*texts.words, None], dtype=object)[texts.codes], "str")
    return text, f"{texts.name}: read as text, since a decimal comma was asked for, got {_two(wrong)}"


def _column(texts: Texts, decimals: Sequence[str]) -> tuple[NDArray[np.float64] | None, str]:
    """A column as numbers or, if it is not numbers, None; and what there is to say about it."""
    fits = [texts.fits[decimal] for decimal in decimals]
    best = next((each for each in fits if each.whole), None)
    if best is None:
        best = min(fits, key=lambda each: int(texts.counts[each.wrong].sum()))
    wrong, present = int(texts.counts[best.wrong].sum()), texts.present
    if wrong * 2 >= present:
        return None, ""
    mend = "mend them to use it as numbers"
    odd = texts.only(best.wrong)
    if wrong and best.alike and _says_nothing(texts, odd, wrong, present):
        told = f"{texts.name}: {wrong} values are no numbers and count as missing"
        return _values(texts, best), f"{told}{_censored(texts, best)}, such as {_two(odd)}"
    if wrong:
        return None, (
            f"{texts.name}: read as text, since {wrong} of {present} values are no numbers, such as"
            f" {_two(odd)}; {mend}"
        )
    if not best.alike:
        return None, (
            f"{texts.name}: read as text, since its numbers are written in different ways, such as"
            f" {_two(_unlike(texts, best))}; {mend}"
        )
    return _values(texts, best), _told(texts, best)


def _says_nothing(texts: Texts, odd: Sequence[str], wrong: int, present: int) -> bool:
    """Whether the few texts among many numbers are words such as 'Exempt', said again and again."""
    plain_words = all(not any(character.isdigit() for character in word) for word in odd)
    return (
        plain_words
        and len(odd) <= 3
        and wrong >= 5 * len(odd)
        and wrong <= present / 5
        and len(texts.words) > 15
    )


def _values(texts: Texts, whole: Fit) -> NDArray[np.float64]:
    words = np.array([np.nan if n is None else n.value for n in whole.found] + [np.nan])
    read = words[texts.codes]
    return np.where(np.isnan(texts.numbers), read, texts.numbers)


def _told(texts: Texts, whole: Fit) -> str:
    """What was done to a column, with its longest number and the words for missing values."""
    numbers = [(word, n) for word, n in zip(texts.words, whole.found, strict=True) if n is not None]
    note = f"{texts.name}: read as numbers"
    if whole.decimal == "," and any("," in word or n.group == "." for word, n in numbers):
        note += " with a decimal comma"
    note += _censored(texts, whole)
    bounds = set(texts.only(whole.censored))
    odd = [pair for pair in numbers if pair[0] in bounds] or [
        pair for pair in numbers if whole.decimal == "," or not _PLAIN.fullmatch(pair[0])
    ]
    if odd:
        word, longest = max(odd, key=lambda pair: len(pair[0]))
        note += f", such as '{word}' = {plain(longest.value)}"
    missing = int(texts.counts[texts.marker].sum())
    if missing:
        words = list(dict.fromkeys(texts.only(texts.marker)))
        note += f", with {missing} missing value{'s' * (missing > 1)} written as {_two(words)}"
    return note


def _censored(texts: Texts, fit: Fit) -> str:
    """What was done to bounds."""
    rows = int(texts.counts[fit.censored].sum())
    if not rows:
        return ""
    return f"; of {rows:,} row{'' if rows == 1 else 's'} only a bound is known, which is taken as the number"


def _two(words: Sequence[str]) -> str:
    """Two examples, cut short where they are long."""
    return " and ".join(f"'{word if len(word) <= 40 else word[:37] + '...'}'" for word in words[:2])


def _unlike(texts: Texts, best: Fit) -> list[str]:
    """Numbers of a column that are written in different ways."""
    found = [(word, n) for word, n in zip(texts.words, best.found, strict=True) if n is not None]
    for kind in ("percent", "currency", "group"):
        kinds: dict[object, str] = {}
        for word, n in found:
            if getattr(n, kind) != "":
                kinds.setdefault(getattr(n, kind), word)
        if len(kinds) > 1:
            return list(kinds.values())
    return [word for word, _ in found]


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
