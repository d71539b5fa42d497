"""From what a user names to a table: a public dataset, the embedded one, or her own file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from fairfate.data.read import FILE, read_folder, read_frame
from fairfate.data.sources import SOURCES, find
from fairfate.data.synthetic import synthetic
from fairfate.data.table import Columns, Table, table_from_frame
from fairfate.errors import InputError, unknown


def load(data: str, *, data_dir: str | Path | None = None, columns: Columns | None = None) -> Table:
    """Load a table.

    Parameters
    ----------
    data : ``synthetic`` (or ``synthetic:rows=N,seed=S``), adult, compas, law, dutch, a CSV or Parquet file,
        or a folder with one such file for each client
    data_dir : folder to look in first for a public dataset
    columns : what the columns mean; for a public dataset, only ``client``, ``drop`` and ``categorical`` count

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
        return _load_source(name, data_dir, columns)
    file = Path(data)
    if not file.exists() and not file.suffix and "/" not in data:
        raise unknown("dataset", data, ["synthetic", *SOURCES])
    if file.is_dir():
        frame = read_folder(file)
        if columns is not None and columns.client in (None, FILE):
            columns = replace(columns, client=FILE)
        elif columns is not None:
            frame = frame.drop(columns=FILE)
    else:
        frame = read_frame(file)
    if columns is None or not columns.target or not columns.sensitive:
        missing = "target" if columns is None or not columns.target else "sensitive"
        raise InputError(f"{missing} must name a column of '{data}' ({', '.join(frame.columns)}), got none")
    return table_from_frame(frame, columns, name=file.stem)


def _load_source(name: str, data_dir: str | Path | None, extra: Columns | None) -> Table:
    source, file = SOURCES[name], find(name, data_dir)
    columns = source.columns
    if extra is not None:
        columns = replace(
            columns, client=extra.client, drop=(*columns.drop, *extra.drop), categorical=extra.categorical
        )
    table = replace(table_from_frame(read_frame(file), columns, name=name), source=name)
    if hashlib.sha256(file.read_bytes()).hexdigest() == source.sha256:
        return table
    return replace(table, notes=(*table.notes, f"{file} is not the documented file (checksum)"))


def _sizes(arguments: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in filter(None, arguments.split(",")):
        key, _, value = pair.partition("=")
        if key not in ("rows", "seed"):
            raise unknown("argument of synthetic", key, ["rows", "seed"])
        if key in sizes:
            raise InputError(f"synthetic {key} must be given once, got '{arguments}'")
        if not (value.isascii() and value.isdigit()):
            raise InputError(f"synthetic {key} must be a whole number >= 0, got '{value}'")
        sizes[key] = int(value)
    return sizes
