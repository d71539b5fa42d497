"""From what a user names to a table: a public dataset, the embedded one, or her own file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from fairfate.data.sources import SOURCES, find
from fairfate.data.synthetic import synthetic
from fairfate.data.table import Columns, Table, read_frame, table_from_frame
from fairfate.errors import InputError, unknown


def load(data: str, *, data_dir: str | Path | None = None, columns: Columns | None = None) -> Table:
    """Load a table.

    Parameters
    ----------
    data : ``synthetic`` (or ``synthetic:rows=N,seed=S``), adult, compas, law, dutch, or a CSV or Parquet file
    data_dir : folder to look in first for a public dataset
    columns : what the columns mean; needed for a file of your own only

    Examples
    --------
    >>> table = load("synthetic:rows=100")
    >>> len(table), table.group_names
    (100, ('female', 'male'))
    """
    name, _, arguments = data.partition(":")
    if name == "synthetic":
        return synthetic(**_sizes(arguments))
    if name in SOURCES and not arguments:
        return _load_source(name, data_dir)
    file = Path(data)
    if not file.is_file() and not file.suffix and "/" not in data:
        raise unknown("dataset", data, ["synthetic", *SOURCES])
    frame = read_frame(file)
    if columns is None or not columns.target or not columns.sensitive:
        missing = "target" if columns is None or not columns.target else "sensitive"
        raise InputError(f"{missing} must name a column of '{data}' ({', '.join(frame.columns)}), got none")
    return table_from_frame(frame, columns, name=file.stem)


def _load_source(name: str, data_dir: str | Path | None) -> Table:
    source, file = SOURCES[name], find(name, data_dir)
    table = table_from_frame(read_frame(file), source.columns, name=name)
    if hashlib.sha256(file.read_bytes()).hexdigest() == source.sha256:
        return table
    return replace(table, notes=(*table.notes, f"{file} is not the documented file (checksum)"))


def _sizes(arguments: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in filter(None, arguments.split(",")):
        key, _, value = pair.partition("=")
        if key not in ("rows", "seed"):
            raise unknown("argument of synthetic", key, ["rows", "seed"])
        if not value.isdigit():
            raise InputError(f"synthetic {key} must be a whole number >= 0, got '{value}'")
        sizes[key] = int(value)
    return sizes
