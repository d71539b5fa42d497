"""Users' files as they come: CSV, Parquet, JSON or Excel, one or a folder of them."""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib.util
import io
import itertools
import json
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fairfate.data.columns import is_number
from fairfate.data.numbers import Numbered, numbered, without_codes
from fairfate.errors import InputError, check, listing

SEPARATORS = (",", ";", "\t", "|")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ROWS = 50
"""Rows that show which character separates the fields."""
_START = 1 << 16


class Decoded(NamedTuple):
    """A text and what there is to say about its encoding."""

    text: str
    notes: tuple[str, ...] = ()
    utf8: bytes | None = None
    """The file's own bytes, where they are the text in UTF-8."""


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
        return Decoded(content.decode("utf-8"), utf8=content)
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

    content: bytes
    """In UTF-8."""
    sep: str
    longer: int = 0
    """Rows with empty fields beyond the header's."""

    def frame(self, dtype: type[str] | None = None) -> pd.DataFrame:
        """As pandas reads it; with ``str``, everything as it is written."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            try:
                return pd.read_csv(
                    io.BytesIO(self.content),
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
            io.BytesIO(self.content),
            sep=self.sep,
            encoding="utf-8",
            index_col=False,
            dtype=str,
            keep_default_na=False,
        )
        return frame.set_axis([str(name).strip() for name in frame.columns], axis=1)


def read_csv(decoded: Decoded, sep: str | None) -> Csv:
    """Any of the usual separators; every row must have as many fields as the header."""
    text = decoded.text
    sep = separator(text, sep)
    return Csv(decoded.utf8 or text.encode(), sep, _check_fields(text, sep))


def _check_fields(text: str, sep: str) -> int:
    """Refuse what pandas would mend in silence: columns of one name, and fields beyond the header's.

    Returns
    -------
    How many rows have more fields that are empty.
    """
    rows = csv.reader(io.StringIO(text), delimiter=sep, skipinitialspace=True)
    header = next((row for row in rows if row), [])
    names_once([name.strip() for name in header if name])
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    usual = len(header) - 1
    longer_lines = [number for number, line in enumerate(lines, start=1) if line.count(sep) > usual]
    suspects: Iterable[tuple[int, list[str]]]
    if '"' not in text:
        suspects = ((number, lines[number - 1].split(sep)) for number in longer_lines)
    elif longer_lines or any(
        line.count('"') % 2 for line in lines
    ):  # a field may hold separators and line ends
        suspects = ((rows.line_num, row) for row in rows if len(row) > len(header))
    else:
        suspects = ()
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


FILE = "(file)"
"""The column that names a row's file, when the data are a folder of files."""
PARQUET, JSON, EXCEL = {".parquet", ".pq"}, {".json", ".jsonl", ".ndjson"}, {".xlsx"}
ENDINGS = {".csv", ".tsv", ".txt", *PARQUET, *JSON, *EXCEL}
"""Of the files that a folder is searched for; each may have .gz after it."""
_FAILURES = (csv.Error, OSError, EOFError, zlib.error, OverflowError, NotImplementedError)
_TAB = {"\\t": "\t", "tab": "\t"}


@dataclass(frozen=True)
class Reading:
    """How to read users' files, where they leave doubt."""

    sep: str | None = None
    """What separates the fields of a text file; found out if None."""
    decimal: str | None = None
    """"." or ","; found out if None."""
    encoding: str | None = None
    """Of a text file; found out if None."""
    missing: tuple[str, ...] = ()
    """Values that stand for a missing one: ``VALUE`` in all columns, ``COLUMN=VALUE`` in one."""

    def __post_init__(self) -> None:
        if self.sep is not None:
            sep = _TAB.get(self.sep, self.sep)
            usable = len(sep) == 1 and sep.isascii() and (sep == "\t" or sep.isprintable()) and sep != '"'
            check(usable, "sep must be one character, such as ';', or tab", f"'{self.sep}'")
            object.__setattr__(self, "sep", sep)
        for code in self.missing:
            check(code.rpartition("=")[2].strip() != "", "missing must be VALUE or COLUMN=VALUE", f"'{code}'")
        check(self.decimal in (None, ".", ","), "decimal must be '.' or ','", f"'{self.decimal}'")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
                "a".encode(self.encoding)
            except (LookupError, ValueError):
                raise InputError(
                    f"encoding must be one that Python knows, such as utf-8 or cp1252, got '{self.encoding}'"
                ) from None


AS_FOUND = Reading()
"""Find everything out."""


class Read(NamedTuple):
    """A file's rows."""

    frame: pd.DataFrame
    notes: tuple[str, ...]
    """What was done, for the user to read."""
    missing: Mapping[str, int]
    """The rows that hold each of the values that stand for a missing one."""


class _Raw(NamedTuple):
    """A file as pandas reads it."""

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    strings: Callable[[], pd.DataFrame] | None = None
    """The same as it is written, where that is text."""


def read_frame(path: str | Path, reading: Reading = AS_FOUND) -> pd.DataFrame:
    """The rows of a user's file; see `read_file`."""
    return read_file(path, reading).frame


def read_file(path: str | Path, reading: Reading = AS_FOUND) -> Read:
    """Read a user's file, and say what was done to understand it.

    The ending tells the format: .parquet or .pq, .json, .jsonl or .ndjson, .xlsx, and text with separators
    for all others; .gz may follow. Columns that pandas reads as numbers stay, unless the file has decimal
    commas; columns of written numbers, such as 1.234,56 €, become numbers; all else stays text.
    """
    found, missing = _read(Path(path), reading)
    return Read(found.frame, found.notes, missing)


def _read(file: Path, reading: Reading, leaning: bool = False) -> tuple[Numbered, dict[str, int]]:
    """A file with its numbers; ``leaning`` says that files beside it have decimal commas."""
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise InputError(f"data must be a dataset's name or a file, got '{file}' ({what})")
    try:
        raw = _raw(file, reading)
        if raw.frame.empty:
            raise InputError(f"data must have at least one row, got '{file}' (no rows)")
        _strip_names(raw.frame)
        raw = _without_second_header(raw)
        texts = [name for name in raw.frame.columns if not is_number(raw.frame[name])]
        masked, of_texts = without_codes(raw.frame, reading.missing, texts)
        found = numbered(masked, reading.decimal, _named_alike(raw), leaning)
        numbers = [name for name in found.frame.columns if is_number(found.frame[name])]
        frame, of_numbers = without_codes(found.frame, reading.missing, numbers)
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"data must have a header and rows, got '{file}' (empty)") from None
    except (*_FAILURES, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"data must be a CSV or Parquet file, JSON or Excel, got '{file}' ({reason})"
        ) from None
    missing = {code: int((of_texts[code] | of_numbers[code]).sum()) for code in of_texts}
    return found._replace(frame=frame, notes=(*raw.notes, *found.notes)), missing


def _without_second_header(raw: _Raw) -> _Raw:
    """Leave the first row out where it holds texts above columns of numbers."""
    frame = raw.frame
    texts = [name for name in frame.columns if frame[name].dtype.kind in "OT"]
    if len(frame) < 3 or len(texts) < 3:
        return raw

    def is_header(name: str, rows: int | None) -> bool:
        head, rest = frame[name].iloc[:1], frame[name].iloc[1:rows].dropna()
        numbers = pd.to_numeric(rest, errors="coerce").notna()
        return bool(pd.to_numeric(head, errors="coerce").isna().all() and len(rest) and numbers.mean() > 0.9)

    found = [name for name in texts if is_header(name, 20)]
    found = [name for name in found if is_header(name, None)] if 2 * len(found) >= len(frame.columns) else []
    if len(found) < 3:
        return raw
    first = listing(str(value) for value in frame[found].iloc[0])
    rest = frame.iloc[1:].reset_index(drop=True)
    rest = rest.assign(**{name: pd.to_numeric(rest[name], errors="coerce") for name in found})
    again = raw.strings
    strings = None if again is None else (lambda: again().iloc[1:].reset_index(drop=True))
    return _Raw(
        rest, (*raw.notes, f"the first row looks like a second header, and is left out: {first}"), strings
    )


def as_written(path: str | Path, reading: Reading = AS_FOUND) -> pd.DataFrame | None:
    """The rows of a text file with every cell as it is written; None for other files."""
    file = Path(path)
    if _ending(file) in (*PARQUET, *EXCEL, *JSON):
        return None
    return read_csv(decode(_content(file), reading.encoding), reading.sep).written()


def _strip_names(frame: pd.DataFrame) -> None:
    """Names as text without spaces around them, each once."""
    frame.columns = pd.Index([str(name).strip() for name in frame.columns])
    names_once(list(frame.columns))


def _named_alike(raw: _Raw) -> Callable[[], pd.DataFrame] | None:
    again = raw.strings
    return None if again is None else lambda: again().set_axis(raw.frame.columns, axis=1)


def _raw(file: Path, reading: Reading) -> _Raw:
    """By the ending."""
    ending = _ending(file)
    if ending in PARQUET:
        return _parquet(file)
    content = _content(file)
    if ending in EXCEL:
        return _excel(content, file)
    decoded = decode(content, reading.encoding)
    notes = decoded.notes
    if ending in JSON:
        return _Raw(_json(decoded.text), notes)
    rows = read_csv(decoded, reading.sep)
    if rows.longer:
        notes = (
            *notes,
            f"{rows.longer:,} rows end with empty fields beyond the header's, which are left out",
        )
    return _Raw(rows.frame(), notes, lambda: rows.frame(str))


def _ending(file: Path) -> str:
    """In small letters, without .gz."""
    return Path(_unpacked(file)).suffix.lower()


def stem(file: Path) -> str:
    """A file's name without its endings.

    >>> stem(Path("sites/north.csv.gz")), stem(Path("north.v2.csv"))
    ('north', 'north.v2')
    """
    return Path(_unpacked(file)).stem


def _unpacked(file: Path) -> str:
    return file.name[:-3] if file.suffix.lower() == ".gz" else file.name


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    return gzip.decompress(content) if file.suffix.lower() == ".gz" else content


def _parquet(file: Path) -> _Raw:
    """With its index as columns, if that has names."""
    packed = file.suffix.lower() == ".gz"
    try:
        frame = pd.read_parquet(io.BytesIO(_content(file)) if packed else file.absolute())
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"no Parquet file, or a damaged one: {error}") from None
    return _Raw(frame.reset_index() if any(name is not None for name in frame.index.names) else frame)


def _json(text: str) -> pd.DataFrame:
    """A list of records, or one record in each line."""
    if not text.strip():
        raise pd.errors.EmptyDataError
    try:
        if text.lstrip().startswith("["):
            records = json.loads(text, object_pairs_hook=_record)
        else:
            lines = enumerate(text.split("\n"), start=1)
            records = [_line(line, number) for number, line in lines if line.strip()]
    except RecursionError:
        raise ValueError("values within values within values, too many for a table") from None
    if not all(isinstance(record, dict) for record in records):
        raise ValueError('a list or lines of records are wanted, such as {"age": 30, "sex": "f"}')
    return pd.DataFrame.from_records(records)


def _line(line: str, number: int) -> object:
    try:
        return json.loads(line, object_pairs_hook=_record)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"a list of records or a record in each line is wanted, line {number}: {error.msg}"
        ) from None


def _record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names_once([name for name, _ in pairs])
    return record


def _excel(content: bytes, file: Path) -> _Raw:
    """The first sheet of a workbook; its first row is the header."""
    if importlib.util.find_spec("openpyxl") is None:
        raise InputError(
            f"data must be CSV, Parquet or JSON unless openpyxl is there to read Excel's files, got '{file}';"
            ' pip install "fairfate[excel]"'
        )
    if not content:
        raise pd.errors.EmptyDataError
    try:
        with warnings.catch_warnings(), pd.ExcelFile(io.BytesIO(content), engine="openpyxl") as book:
            warnings.simplefilter("ignore")  # about styles and forms
            sheets = [str(name) for name in book.sheet_names]
            header = book.parse(0, header=None, nrows=1)
            frame = book.parse(0)
    except Exception as error:  # a damaged workbook fails in many ways
        raise ValueError(f"no Excel workbook, or a damaged one: {error}") from None
    names_once([str(name).strip() for name in header.to_numpy().ravel() if pd.notna(name)])
    notes = (f"read the first sheet, '{sheets[0]}', of {len(sheets)}",) if len(sheets) > 1 else ()
    return _Raw(frame.dropna(how="all").reset_index(drop=True).infer_objects(), notes)


def list_folder(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name without the ending."""
    found = [path for path in folder.iterdir() if _ending(path) in ENDINGS]
    files = sorted(found, key=lambda path: (stem(path), path.name))
    if not files:
        raise InputError(
            f"data must be a folder with CSV, Parquet, JSON or Excel files, got '{folder}' (none)"
        )
    for first, second in itertools.pairwise(files):
        if stem(first) == stem(second):
            raise InputError(
                f"the files of '{folder}' must differ in more than their endings, since a file's name is its"
                f" client's, got '{first.name}' and '{second.name}'"
            )
    return files


def read_folder(folder: Path, reading: Reading = AS_FOUND) -> Read:
    """One file for each client: all files that can be read, with a column that says which."""
    files = list_folder(folder)
    found: list[Numbered] = []
    missing: Counter[str] = Counter()
    for file in files:
        rows, held = _read(file, reading)
        found.append(rows)
        missing.update(held)
        names, first = set(found[-1].frame.columns), set(found[0].frame.columns)
        if names != first:
            raise InputError(
                f"all files of '{folder}' must have the same columns, got a difference in '{file.name}':"
                f" {listing(sorted(names ^ first))}"
            )
    if any(one.comma for one in found):  # then 1.234 is 1234 in the others, too
        found = [
            one if one.comma else _read(file, reading, leaning=True)[0]
            for file, one in zip(files, found, strict=True)
        ]
    parts = [one.frame.assign(**{FILE: stem(file)}) for one, file in zip(found, files, strict=True)]
    notes = [f"{file.name}: {note}" for one, file in zip(found, files, strict=True) for note in one.notes]
    return Read(pd.concat(parts, ignore_index=True), tuple(notes), dict(missing))
