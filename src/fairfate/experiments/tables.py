"""Tables of ours, read again: what no run has written is told at once, by file and column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairfate.errors import InputError
from fairfate.experiments.sheet import Sheet

MOST_ROWS = 10**12
"""That a table may count: sums of many such numbers are still exact."""
MOST_ROUNDS = 10**7
"""As a run may have."""


def read_table(file: Path, name: str) -> pa.Table:
    """A table, whatever its columns are; `InputError` if it is damaged."""
    try:
        with pq.ParquetFile(file.absolute()) as opened:
            table = opened.read()
        table.validate(full=True)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"run must hold a readable {name}, got '{file}' ({reason})") from None
    if len(set(table.column_names)) < table.num_columns:
        raise InputError(f"run must hold a {name} with each column once, got '{file}'")
    return table


def frame_of(table: pa.Table) -> pd.DataFrame:
    """A table as a frame, whatever its header says of pandas."""
    found: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
    return found


def as_kinds(table: pa.Table, kinds: Mapping[str, pa.DataType], given: Sequence[str], file: Path) -> pa.Table:
    """The table with columns of these kinds, some of them without gaps."""
    rule = f"run must hold a {file.name}"
    for name, kind in kinds.items():
        if name not in table.column_names:
            raise InputError(f"{rule} with column '{name}', got '{file}'")
        place = table.column_names.index(name)
        column = table.column(place)
        if column.type != kind:
            alike = _alike(column.type, kind)
            try:
                column = column.cast(kind) if alike else None
            except (ValueError, NotImplementedError):
                column = None
            if column is None:
                raise InputError(
                    f"{rule} with {kind} in column '{name}', got {table.schema.types[place]} in '{file}'"
                )
            table = table.set_column(place, name, column)
        if name in given and column.null_count:
            raise InputError(f"{rule} with a value in every row of column '{name}', got none in '{file}'")
    return table


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one kind may stand for one of another: numbers for numbers, texts for texts."""
    if pa.types.is_null(found):
        return True
    if pa.types.is_string(wanted):
        inner = found.value_type if pa.types.is_dictionary(found) else found
        return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_null(inner))
    return bool(pa.types.is_integer(found) or pa.types.is_floating(found))


def check_settings(frame: pd.DataFrame | Sheet, file: Path) -> None:
    """Settings are JSON objects."""
    for text in set(frame["settings"]):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise InputError(f"run must hold settings that a run has written, got '{text}' in '{file}'")


def check_between(
    frame: pd.DataFrame | Sheet, columns: Sequence[str], ends: tuple[int, int], file: Path
) -> None:
    """Numbers of columns are there and within these ends."""
    for name in columns:
        values = np.asarray(frame[name])
        odd = ~((values >= ends[0]) & (values <= ends[1]))
        if odd.any():
            raise InputError(
                f"column '{name}' must have numbers from {ends[0]} to {ends[1]}, got {values[odd][0]} in"
                f" '{file}'"
            )


def check_finite(frame: pd.DataFrame | Sheet, columns: Sequence[str], file: Path) -> None:
    """Numbers of columns are finite, where there are any."""
    for name in columns:
        if np.isinf(np.asarray(frame[name], dtype=np.float64)).any():
            raise InputError(f"column '{name}' must have finite numbers, got an infinite one in '{file}'")
