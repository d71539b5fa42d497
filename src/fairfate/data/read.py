"""Users' files: CSV or Parquet, one or a folder of them, as they are."""

from __future__ import annotations

import csv
import io
import itertools
import warnings
from pathlib import Path

import pandas as pd

from fairfate.errors import InputError, listing

FILE = "(file)"
"""The column that names a row's file, when the data are a folder of files."""


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a CSV or Parquet file as it is; text stays text."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"data must be a dataset's name or a file, got '{file}' (no such file)")
    try:
        if file.suffix.lower() in {".parquet", ".pq"}:
            frame = pd.read_parquet(file)
            if any(name is not None for name in frame.index.names):
                frame = frame.reset_index()
        else:
            frame = _read_csv(file)
    except pd.errors.EmptyDataError:
        raise InputError(f"data must have a header and rows, got '{file}' (empty)") from None
    except (pd.errors.ParserError, UnicodeDecodeError, csv.Error, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"data must be a CSV or Parquet file, got '{file}' ({reason})") from None
    if frame.empty:
        raise InputError(f"data must have at least one row, got '{file}' (no rows)")
    frame.columns = frame.columns.map(str)
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"data must name each column once, got '{twice}' twice in '{file}'")
    return frame


def _read_csv(file: Path) -> pd.DataFrame:
    """Any of the usual separators; every row must have as many fields as the header."""
    content = file.read_bytes()
    if b"\0" in content:
        raise ValueError("NUL bytes, as in a damaged file or one in UTF-16")
    text = content.decode("utf-8-sig")
    separator = max((",", ";", "\t", "|"), key=text.partition("\n")[0].count)
    _check_fields(text, separator)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return pd.read_csv(
                file,
                sep=separator,
                encoding="utf-8-sig",
                index_col=False,
                skipinitialspace=True,
                low_memory=False,
            )
        except pd.errors.ParserWarning:
            raise ValueError("rows have more fields than the header") from None


def _check_fields(text: str, separator: str) -> None:
    """Refuse what pandas would mend in silence: columns of one name, and fields beyond the header's."""
    rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    header = next((row for row in rows if row), [])
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise ValueError(f"the header must name each column once, got {listing(twice)} more than once")
    if '"' in text:  # a field may hold separators and line ends
        suspects = ((rows.line_num, row) for row in rows if len(row) > len(header))
    else:
        usual = len(header) - 1
        lines = enumerate(text.splitlines(), start=1)
        suspects = ((n, line.split(separator)) for n, line in lines if line.count(separator) > usual)
    for line, row in suspects:
        if any(field.strip() for field in row[len(header) :]):
            raise ValueError(
                f"a row must have no more fields than the header's {len(header)},"
                f" got {len(row)} in line {line}"
            )


def list_folder(folder: Path) -> list[Path]:
    """The CSV and Parquet files of a folder, by name without the ending."""
    found = [p for p in folder.iterdir() if p.suffix.lower() in {".csv", ".parquet", ".pq"}]
    files = sorted(found, key=lambda path: (path.stem, path.name))
    if not files:
        raise InputError(f"data must be a folder with CSV or Parquet files, got '{folder}' (none)")
    for first, second in itertools.pairwise(files):
        if first.stem == second.stem:
            raise InputError(
                f"the files of '{folder}' must differ in more than their endings, since a file's name is its"
                f" client's, got '{first.name}' and '{second.name}'"
            )
    return files


def read_folder(folder: Path) -> pd.DataFrame:
    """One file for each client: all CSV and Parquet files, with a column that says which."""
    files = list_folder(folder)
    frames: list[pd.DataFrame] = []
    for file in files:
        frame = read_frame(file)
        if frames and set(frame.columns) != set(frames[0].columns):
            odd = sorted(set(frame.columns) ^ set(frames[0].columns))
            raise InputError(
                f"all files of '{folder}' must have the same columns, got a difference in '{file.name}':"
                f" {listing(odd)}"
            )
        frames.append(frame)
    parts = [frame.assign(**{FILE: file.stem}) for frame, file in zip(frames, files, strict=True)]
    return pd.concat(parts, ignore_index=True)
