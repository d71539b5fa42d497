"""Users' files: CSV or Parquet, one or a folder of them, as they are."""

from __future__ import annotations

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
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, ValueError) as error:
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
    with file.open(encoding="utf-8-sig") as opened:
        header = opened.readline()
    separator = max((",", ";", "\t", "|"), key=header.count)
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


def list_folder(folder: Path) -> list[Path]:
    """The CSV and Parquet files of a folder, by name without the ending."""
    found = [p for p in folder.iterdir() if p.suffix.lower() in {".csv", ".parquet", ".pq"}]
    files = sorted(found, key=lambda path: (path.stem, path.name))
    if not files:
        raise InputError(f"data must be a folder with CSV or Parquet files, got '{folder}' (none)")
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
