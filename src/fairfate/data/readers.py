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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fairfate.data.columns import is_number
from fairfate.data.numbers import NumericFrame, convert_numbers, without_codes
from fairfate.errors import InputError, check, listing

FILE = "(file)"
"""The column that names a row's file, when the data are a folder of files."""
PARQUET, JSON, EXCEL = {".parquet", ".pq"}, {".json", ".jsonl", ".ndjson"}, {".xlsx"}
ENDINGS = {".csv", ".tsv", ".txt", *PARQUET, *JSON, *EXCEL}
"""Of the files that a folder is searched for; each may have .gz after it."""
SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_ROWS, _SAMPLE_CHARACTERS = 50, 1 << 16
"""What is looked at to find the character that separates the fields."""
_READ_ERRORS = (ValueError, csv.Error, OSError, EOFError, zlib.error, OverflowError, NotImplementedError)
_NUL = "NUL bytes, as in a damaged file or one in UTF-16"


@dataclass(frozen=True)
class Reading:
    """How to read users' files, where they leave doubt; what is None is detected.

    Parameters
    ----------
    sep : what separates the fields of a text file
    decimal : ``.`` or ``,``
    encoding : of a text file
    missing : values that stand for a missing one: ``VALUE`` in all columns, ``COLUMN=VALUE`` in one
    """

    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.sep is not None:
            sep = "\t" if self.sep in ("\\t", "tab") else self.sep
            is_usable = len(sep) == 1 and sep.isascii() and (sep == "\t" or sep.isprintable()) and sep != '"'
            check(is_usable, "sep must be one character, such as ';', or tab", f"'{self.sep}'")
            object.__setattr__(self, "sep", sep)
        for code in self.missing:
            check(code.rpartition("=")[2].strip() != "", "missing must be VALUE or COLUMN=VALUE", f"'{code}'")
        check(self.decimal in (None, ".", ","), "decimal must be '.' or ','", f"'{self.decimal}'")
        try:
            "a".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            raise InputError(
                f"encoding must be one that Python knows, such as utf-8 or cp1252, got '{self.encoding}'"
            ) from None


class FileRows(NamedTuple):
    """A file's rows."""

    frame: pd.DataFrame
    notes: tuple[str, ...]
    """What was done, for the user to read."""
    missing: Mapping[str, int]
    """The rows that hold each of the values that stand for a missing one."""


class _Parsed(NamedTuple):
    """A file as pandas parses it."""

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()
    reread: Callable[[], pd.DataFrame] | None = None
    """Reads the same rows as they are written, where the file is text."""


def read_frame(path: str | Path, reading: Reading = Reading()) -> pd.DataFrame:
    """The rows of a user's file, without the notes; see `read_file`."""
    return read_file(path, reading).frame


def read_file(path: str | Path, reading: Reading = Reading()) -> FileRows:
    r"""Read a user's file, and say what was done to understand it.

    The ending tells the format: .parquet or .pq, .json, .jsonl or .ndjson, .xlsx, and text with separators
    for all others; .gz may follow. Columns that pandas reads as numbers stay, unless the file has decimal
    commas; columns of written numbers, such as 1.234,56 €, become numbers; all else stays text.

    Parameters
    ----------
    path : the file
    reading : what is known of its form

    Returns
    -------
    The rows, notes, and how many rows hold each value that stands for a missing one.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "people.csv"
    ...     _ = file.write_text("age;pay\n30;1.234,50 €\n41;999,00 €\n", encoding="utf-8")
    ...     rows = read_file(file)
    >>> rows.frame["pay"].tolist(), rows.notes[0]
    ([1234.5, 999.0], "pay: read as numbers with a decimal comma, such as '1.234,50 €' = 1234.5")
    """
    numeric, missing = _read(Path(path), reading)
    return FileRows(numeric.frame, numeric.notes, missing)


def read_folder(folder: Path, reading: Reading = Reading()) -> FileRows:
    """Read a folder with one file for each client; the column ``(file)`` says which file a row is from.

    Parameters
    ----------
    folder : all its files that can be read must have the same columns
    reading : what is known of their form

    Returns
    -------
    The rows of all files, by their names.
    """
    files = list_folder(folder)
    parts: list[NumericFrame] = []
    missing: Counter[str] = Counter()
    for file in files:
        part, codes = _read(file, reading)
        parts.append(part)
        missing.update(codes)
        difference = set(part.frame.columns) ^ set(parts[0].frame.columns)
        if difference:
            raise InputError(
                f"all files of '{folder}' must have the same columns; those of '{file.name}' differ:"
                f" {listing(sorted(difference))}"
            )
    if any(part.decimal_comma for part in parts):  # then 1.234 is 1234 in the others, too
        parts = [
            part if part.decimal_comma else _read(file, reading, prefer_comma=True)[0]
            for file, part in zip(files, parts, strict=True)
        ]
    frames = [part.frame.assign(**{FILE: stem(file)}) for file, part in zip(files, parts, strict=True)]
    notes = [f"{file.name}: {note}" for file, part in zip(files, parts, strict=True) for note in part.notes]
    return FileRows(pd.concat(frames, ignore_index=True), tuple(notes), dict(missing))


def read_as_written(path: str | Path, reading: Reading = Reading()) -> pd.DataFrame | None:
    """The rows of a text file with every cell as it is written, empty ones too; None for other files."""
    file = Path(path)
    if _ending(file) in (*PARQUET, *EXCEL, *JSON):
        return None
    text, _ = _decode(_content(file), reading.encoding)
    sep = _separator(text, reading.sep)
    frame = pd.read_csv(io.StringIO(text), sep=sep, index_col=False, dtype=str, keep_default_na=False)
    return frame.set_axis([str(name).strip() for name in frame.columns], axis=1)


def list_folder(folder: Path) -> list[Path]:
    """The files of a folder that can be read, by name without the ending."""
    readable = [path for path in folder.iterdir() if _ending(path) in ENDINGS]
    files = sorted(readable, key=lambda path: (stem(path), path.name))
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


def stem(file: Path) -> str:
    """A file's name without its endings.

    >>> stem(Path("sites/north.csv.gz")), stem(Path("north.v2.csv"))
    ('north', 'north.v2')
    """
    return _unpacked(file).stem


def _ending(file: Path) -> str:
    """In small letters, without .gz."""
    return _unpacked(file).suffix.lower()


def _is_packed(file: Path) -> bool:
    return file.suffix.lower() == ".gz"


def _unpacked(file: Path) -> Path:
    return Path(file.name[:-3]) if _is_packed(file) else Path(file.name)


def _content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if _is_packed(file) else file.read_bytes()


def _read(file: Path, reading: Reading, prefer_comma: bool = False) -> tuple[NumericFrame, dict[str, int]]:
    """A file with its numbers; ``prefer_comma`` says that files beside it have decimal commas."""
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no such file"
        raise InputError(f"data must be a dataset's name or a file, got '{file}' ({what})")
    try:
        parsed = _parse(file, reading)
        if parsed.frame.empty:
            raise InputError(f"data must have at least one row, got '{file}' (no rows)")
        parsed.frame.columns = pd.Index([str(name).strip() for name in parsed.frame.columns])
        _check_unique(parsed.frame.columns)
        parsed = _without_second_header(parsed)
        texts = [name for name in parsed.frame.columns if not is_number(parsed.frame[name])]
        frame, hits_in_texts = without_codes(parsed.frame, reading.missing, texts)
        numeric = convert_numbers(frame, reading.decimal, _with_names(parsed), prefer_comma)
        numbers = [name for name in numeric.frame.columns if is_number(numeric.frame[name])]
        frame, hits_in_numbers = without_codes(numeric.frame, reading.missing, numbers)
    except InputError:
        raise
    except pd.errors.EmptyDataError:
        raise InputError(f"data must have a header and rows, got '{file}' (empty)") from None
    except _READ_ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"data must be a CSV or Parquet file, JSON or Excel, got '{file}' ({reason})"
        ) from None
    missing = {code: int((hits | hits_in_numbers[code]).sum()) for code, hits in hits_in_texts.items()}
    return NumericFrame(frame, (*parsed.notes, *numeric.notes), numeric.decimal_comma), missing


def _with_names(parsed: _Parsed) -> Callable[[], pd.DataFrame] | None:
    """What reads the same rows as texts, under the names that the columns have by now."""
    reread = parsed.reread
    return None if reread is None else lambda: reread().set_axis(parsed.frame.columns, axis=1)


def _without_second_header(parsed: _Parsed) -> _Parsed:
    """Leave the first row out where it holds texts above columns of numbers."""
    frame, reread = parsed.frame, parsed.reread
    texts = [name for name in frame.columns if frame[name].dtype.kind in "OT"]
    if len(frame) < 3 or len(texts) < 3:
        return parsed

    def is_header(name: str, rows: int | None) -> bool:
        head, rest = frame[name].iloc[:1], frame[name].iloc[1:rows].dropna()
        numbers = pd.to_numeric(rest, errors="coerce").notna()
        return bool(pd.to_numeric(head, errors="coerce").isna().all() and len(rest) and numbers.mean() > 0.9)

    headed = [name for name in texts if is_header(name, 20)]
    if 2 * len(headed) < len(frame.columns):
        return parsed
    headed = [name for name in headed if is_header(name, None)]
    if len(headed) < 3:
        return parsed
    rest = frame.iloc[1:].reset_index(drop=True)
    rest = rest.assign(**{name: pd.to_numeric(rest[name], errors="coerce") for name in headed})
    header = listing(str(value) for value in frame[headed].iloc[0])
    note = f"the first row looks like a second header, and is left out: {header}"
    return _Parsed(
        rest,
        (*parsed.notes, note),
        None if reread is None else lambda: reread().iloc[1:].reset_index(drop=True),
    )


def _parse(file: Path, reading: Reading) -> _Parsed:
    """A file by its ending."""
    ending = _ending(file)
    if ending in PARQUET:
        return _parse_parquet(file)
    if ending in EXCEL:
        return _parse_excel(file)
    text, note = _decode(_content(file), reading.encoding)
    notes = (note,) if note else ()
    if ending in JSON:
        return _Parsed(_parse_json(text), notes)
    sep = _separator(text, reading.sep)
    longer = _count_longer_rows(text, sep)
    if longer:
        note = f"{longer:,} rows end with empty fields beyond the header's, which are left out"
        notes = (*notes, note)
    return _Parsed(_parse_csv(text, sep), notes, lambda: _parse_csv(text, sep, str))


def _decode(content: bytes, encoding: str | None) -> tuple[str, str]:
    """A file's text without a byte order mark, and a note where its encoding is a guess."""
    note = ""
    if encoding is None:
        encoding, note = _guess_encoding(content)
        text = content.decode(encoding)
    else:
        try:
            text = content.decode(encoding)
        except (UnicodeError, LookupError) as error:
            raise InputError(f"encoding must be the one of the file, got '{encoding}' ({error})") from None
    if "\0" in text:
        raise ValueError(_NUL)
    return text.removeprefix("\ufeff"), note


def _guess_encoding(content: bytes) -> tuple[str, str]:
    """UTF-16 by its mark or its NUL bytes, UTF-8, or Windows-1252; with a note where there is doubt."""
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if content.startswith(mark):
            return name, ""
    if b"\0" in content:  # UTF-16 has one in most pairs of bytes, on the same side; anything else is damage
        first, second, pairs = content[::2].count(0), content[1::2].count(0), len(content) / 2
        if len(content) % 2 or max(first, second) <= pairs / 2 or min(first, second) >= pairs / 20:
            raise ValueError(_NUL)
        name = "utf-16-be" if first > second else "utf-16-le"
        return name, f"read as {name.upper()}, as its NUL bytes tell"
    note = "read as Windows-1252, since it is not UTF-8; name the encoding if it is another"
    for name, doubt in (("utf-8", ""), ("cp1252", note)):
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        return name, doubt
    raise ValueError("neither UTF-8 nor Windows-1252; name its encoding")


def _separator(text: str, given: str | None) -> str:
    """What separates the fields: in the header, and as often in the first rows."""
    scores = {sep: _consistency(text, sep) for sep in SEPARATORS}
    best = max(SEPARATORS, key=lambda sep: scores[sep])
    if given is None:
        return best
    header = text.lstrip().partition("\n")[0].strip()
    if given not in header and best != given and scores[best] > (0.5, 0):
        raise InputError(f"sep must separate the names of the header, got '{given}' for '{header[:60]}'")
    return given


def _consistency(text: str, sep: str) -> tuple[float, int]:
    """The share of the first rows with as many fields as the header, and how many these are."""
    start = io.StringIO(text[:_SAMPLE_CHARACTERS])
    rows: list[list[str]] = []
    try:
        for row in csv.reader(start, delimiter=sep, skipinitialspace=True):
            if row:
                rows.append(row)
            if len(rows) > _SAMPLE_ROWS:
                break
        is_cut = len(rows) > _SAMPLE_ROWS or len(text) > _SAMPLE_CHARACTERS
    except csv.Error:
        is_cut = True
    rows = rows[:-1] if is_cut else rows
    width = len(rows[0]) if rows else 1
    if width == 1:
        return -1.0, 0
    fitting = [len(row) == width or (len(row) > width and not any(row[width:])) for row in rows[1:]]
    return (sum(fitting) / len(fitting) if fitting else 0.0), width


def _parse_csv(text: str, sep: str, dtype: type[str] | None = None) -> pd.DataFrame:
    """Rows and fields as pandas reads them; with ``str``, everything as it is written."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                io.StringIO(text),
                sep=sep,
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
                dtype=dtype,
            )
        except pd.errors.ParserWarning:
            raise ValueError("rows have more fields than the header") from None


def _count_longer_rows(text: str, sep: str) -> int:
    """How many rows have empty fields beyond the header's.

    ValueError for what pandas would pass over in silence: columns of one name, and such fields with values.
    """
    reader = csv.reader(io.StringIO(text), delimiter=sep, skipinitialspace=True)
    header = next((row for row in reader if row), [])
    _check_unique([name.strip() for name in header if name])
    rows: Iterable[tuple[int, list[str]]]
    if '"' in text:  # a field may hold separators and line ends
        rows = ((reader.line_num, row) for row in reader)
    else:
        lines = enumerate(io.StringIO(text, newline=None), start=1)
        rows = ((n, line.rstrip("\n").split(sep)) for n, line in lines if line.count(sep) >= len(header))
    longer = 0
    for number, row in rows:
        if len(row) <= len(header):
            continue
        longer += 1
        if any(field.strip() for field in row[len(header) :]):
            raise ValueError(
                f"a row must have no more fields than the header's {len(header)},"
                f" got {len(row)} in line {number}"
            )
    return longer


def _check_unique(header: Iterable[str]) -> None:
    """ValueError for columns of one name."""
    repeated = sorted(name for name, times in Counter(header).items() if times > 1)
    if repeated:
        is_odd = any(not any(character.isalpha() for character in name) for name in repeated)
        hint = "; is the line with the columns' names missing?" if is_odd else ""
        names = listing(repeated) or "spaces"
        raise ValueError(f"the header must name each column once, got {names} more than once{hint}")


def _parse_parquet(file: Path) -> _Parsed:
    """With its index as columns, if that has names."""
    try:
        frame = pd.read_parquet(io.BytesIO(_content(file)) if _is_packed(file) else file.absolute())
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"no Parquet file, or a damaged one: {error}") from None
    return _Parsed(frame.reset_index() if any(name is not None for name in frame.index.names) else frame)


def _parse_json(text: str) -> pd.DataFrame:
    """A list of records, or one record in each line."""
    if not text.strip():
        raise pd.errors.EmptyDataError
    records: Any
    try:
        if text.lstrip().startswith("["):
            records = json.loads(text, object_pairs_hook=_make_record)
        else:
            lines = enumerate(text.split("\n"), start=1)
            records = [_parse_record(line, number) for number, line in lines if line.strip()]
    except RecursionError:
        raise ValueError("values within values within values, too many for a table") from None
    if not all(isinstance(record, dict) for record in records):
        raise ValueError('a list or lines of records are wanted, such as {"age": 30, "sex": "f"}')
    return pd.DataFrame.from_records(records)


def _parse_record(line: str, number: int) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_make_record)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"a list of records or a record in each line is wanted, line {number}: {error.msg}"
        ) from None


def _make_record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _check_unique(name for name, _ in pairs)
    return dict(pairs)


def _parse_excel(file: Path) -> _Parsed:
    """The first sheet of a workbook; its first row is the header."""
    content = _content(file)
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
    _check_unique(str(name).strip() for name in header.to_numpy().ravel() if pd.notna(name))
    notes = (f"read the first sheet, '{sheets[0]}', of {len(sheets)}",) if len(sheets) > 1 else ()
    return _Parsed(frame.dropna(how="all").reset_index(drop=True).infer_objects(), notes)
