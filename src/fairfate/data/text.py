"""Text files as they come: their encoding, their separator, and rows that fit the header."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from fairfate.errors import InputError, listing

SEPARATORS = (",", ";", "\t", "|")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ROWS = 50
"""Rows that show which character separates the fields."""
_START = 1 << 16


class Decoded(NamedTuple):
    """A text and what there is to say about its encoding."""

    text: str
    notes: tuple[str, ...] = ()


def decode(content: bytes, encoding: str | None) -> Decoded:
    """A file's text, without a byte order mark."""
    if encoding is not None:
        try:
            return _whole(content.decode(encoding))
        except (UnicodeError, LookupError) as error:
            raise InputError(f"encoding must be the one of the file, got '{encoding}' ({error})") from None
    for mark, name in _MARKS:
        if content.startswith(mark):
            return _whole(content.decode(name))
    if b"\0" in content:
        name = _without_mark(content)
        return _whole(content.decode(name), f"read as {name.upper()}, as its NUL bytes tell")
    try:
        return Decoded(content.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        raise ValueError("neither UTF-8 nor Windows-1252; name its encoding") from None
    return Decoded(text, ("read as Windows-1252, since it is not UTF-8; name the encoding if it is another",))


def _whole(text: str, *notes: str) -> Decoded:
    if "\0" in text:
        raise ValueError("NUL bytes, as in a damaged file or one in UTF-16")
    return Decoded(text.removeprefix("\ufeff"), notes)


def _without_mark(content: bytes) -> str:
    """UTF-16 has a NUL in most pairs of bytes, always on the same side; anything else is damage."""
    first, second, pairs = content[::2].count(0), content[1::2].count(0), len(content) / 2
    if len(content) % 2 == 0 and max(first, second) > pairs / 2 and min(first, second) < pairs / 20:
        return "utf-16-be" if first > second else "utf-16-le"
    raise ValueError("NUL bytes, as in a damaged file or one in UTF-16")


def separator(text: str, given: str | None) -> str:
    """What separates the fields: in the header, and as often in the first rows."""
    scores = {sep: _consistent(text, sep) for sep in SEPARATORS}
    found = max(SEPARATORS, key=lambda sep: scores[sep])
    if given is None:
        return found
    header = text.lstrip().partition("\n")[0].strip()
    if given not in header and found != given and scores[found] > (0.5, 0):
        raise InputError(f"sep must separate the names of the header, got '{given}' for '{header[:60]}'")
    return given


def _consistent(text: str, sep: str) -> tuple[float, int]:
    """The share of the first rows with as many fields as the header, and how many these are."""
    rows = list(itertools.islice(_first_rows(text, sep), _ROWS))
    width = len(rows[0]) if rows else 1
    if width == 1:
        return -1.0, 0
    fitting = [len(row) == width or (len(row) > width and not any(row[width:])) for row in rows[1:]]
    return (sum(fitting) / len(fitting) if fitting else 0.0), width


def _first_rows(text: str, sep: str) -> Iterator[list[str]]:
    """The rows at the start of a text that are not blank; the last may be cut off, so it is left out."""
    rows = csv.reader(io.StringIO(text[:_START]), delimiter=sep, skipinitialspace=True)
    before: list[str] = []
    try:
        for row in filter(None, rows):
            if before:
                yield before
            before = row
    except csv.Error:
        return
    if before and len(text) <= _START:
        yield before


class Csv(NamedTuple):
    """A text of rows and fields."""

    text: str
    sep: str
    longer: int = 0
    """Rows with empty fields beyond the header's."""

    def frame(self, dtype: type[str] | None = None) -> pd.DataFrame:
        """As pandas reads it; with ``str``, everything as it is written."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            try:
                return pd.read_csv(
                    io.BytesIO(self.text.encode()),
                    sep=self.sep,
                    encoding="utf-8",
                    index_col=False,
                    skipinitialspace=True,
                    low_memory=False,
                    dtype=dtype,
                )
            except pd.errors.ParserWarning:
                raise ValueError("rows have more fields than the header") from None

    def written(self) -> pd.DataFrame:
        """Every cell as it is written, empty ones too; only the names of columns lose their blanks."""
        frame = pd.read_csv(
            io.BytesIO(self.text.encode()),
            sep=self.sep,
            encoding="utf-8",
            index_col=False,
            dtype=str,
            keep_default_na=False,
        )
        return frame.set_axis([str(name).strip() for name in frame.columns], axis=1)


def read_csv(text: str, sep: str | None) -> Csv:
    """Any of the usual separators; every row must have as many fields as the header."""
    found = separator(text, sep)
    return Csv(text, found, _check_fields(text, found))


def _check_fields(text: str, sep: str) -> int:
    """Refuse what pandas would mend in silence: columns of one name, and fields beyond the header's.

    Returns
    -------
    How many rows have more fields that are empty.
    """
    rows = csv.reader(io.StringIO(text), delimiter=sep, skipinitialspace=True)
    header = next((row for row in rows if row), [])
    names_once([name.strip() for name in header if name])
    if '"' in text:  # a field may hold separators and line ends
        suspects = ((rows.line_num, row) for row in rows if len(row) > len(header))
    else:
        usual = len(header) - 1
        lines = enumerate(text.splitlines(), start=1)
        suspects = ((n, line.split(sep)) for n, line in lines if line.count(sep) > usual)
    longer = 0
    for line, row in suspects:
        longer += 1
        if any(field.strip() for field in row[len(header) :]):
            raise ValueError(
                f"a row must have no more fields than the header's {len(header)},"
                f" got {len(row)} in line {line}"
            )
    return longer


def names_once(header: list[str]) -> None:
    """Refuse columns of one name."""
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        odd = any(not any(character.isalpha() for character in name) for name in twice)
        hint = "; is the line with the columns' names missing?" if odd else ""
        raise ValueError(
            f"the header must name each column once, got {listing(twice) or 'spaces'} more than once{hint}"
        )
