"""A site checks itself before a federation starts; works without Flower and without a network."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairfate.data import Schema, Table
from fairfate.data.encoder import ONEHOT
from fairfate.data.readers import stem
from fairfate.errors import InputError, listing
from fairfate.flower.app.node import check_keys, data_file, read_rows


@dataclass(frozen=True, eq=False)
class Checked:
    """What a site's app will find."""

    name: str
    file: Path
    problems: list[str]
    """What does not fit the schema, one line each, with values: for the file's owner only."""
    summary: list[str]
    """Of a file that fits."""


def check_site(schema: str | Path, node: str | Path | None = None, data: str | Path | None = None) -> Checked:
    """Hold a site's file against a schema, reading both exactly as the site's app does.

    Parameters
    ----------
    schema : a schema file of the server's
    node : the site's node-config, a TOML file
    data : the site's table, where there is no node-config
    """
    if (node is None) == (data is None):
        raise InputError(f"check must be given either node or data, got {'both' if node else 'neither'}")
    known = _read_schema(schema)
    config = {"data": str(data)} if node is None else read_node(node)
    check_keys(config)
    file = data_file(config)
    if not file.is_file():
        raise InputError(f"data must be a CSV or Parquet file, got '{file}' (no such file{_where(file)})")
    frame = read_rows(config, file, known)
    name, found = (
        str(config.get("name") or stem(file)),
        list(known.apply(frame, on_unknown="collect").problems),
    )
    notes = [] if file.is_absolute() or node is None else [_relative(file)]
    return Checked(name, file, found, [] if found else [*_summary(known, frame, name), *notes])


def _read_schema(path: str | Path) -> Schema:
    try:
        return Schema.read(Path(path).expanduser())
    except (LookupError, OverflowError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"schema '{path}' must be one that fairfate has written, got {reason}") from None


def read_node(path: str | Path) -> dict[str, Any]:
    """A site's node-config, from a file as ``flower-supernode --node-config`` reads it."""
    file = Path(path).expanduser()
    if file.suffix != ".toml":
        raise InputError(f"node must be a file that ends in .toml, got '{file}'")
    if not file.is_file():
        raise InputError(f"node must be a TOML file, got '{file}' (no such file)")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"node must be a TOML file, got '{file}' ({error})") from None
    return _flat(content)


def _flat(content: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as keys with dots, as Flower makes them."""
    result: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            result |= _flat(value, f"{before}{key}.")
        elif isinstance(value, bool | int | float | str):
            result[f"{before}{key}"] = value
        else:
            raise InputError(f"node must hold texts, numbers, true or false, got {value} for '{before}{key}'")
    return result


def _where(file: Path) -> str:
    """Where a relative path starts."""
    return "" if file.is_absolute() else f" in '{Path.cwd()}'; better give the full path"


def _relative(file: Path) -> str:
    return f"Note: '{file}' starts at the folder in which the SuperNode is started; better give the full path"


def _summary(schema: Schema, frame: pd.DataFrame, name: str) -> list[str]:
    """What of the file takes part."""
    table = schema.table(frame, name)
    others = schema.unused(frame)
    return [
        f"{name}: {len(table)} rows fit the schema.",
        f"Rows by {' and '.join(schema.sensitive)} and {schema.target}: {_cells(table)}",
        f"Missing values: {_missing(schema, frame)}",
        f"Columns of the file that are not used: {listing(others) or 'none'}",
    ]


def _cells(table: Table) -> str:
    counts = np.bincount(table.cell, minlength=2 * table.groups)
    return "; ".join(f"{cell} {count}" for cell, count in zip(table.cell_names, counts, strict=True))


def _missing(schema: Schema, frame: pd.DataFrame) -> str:
    said, usual = [], "mean" if schema.encode == ONEHOT else "median"
    for column in schema.columns:
        count = int(frame[column].isna().sum())
        if count:
            how = "a category of their own" if column in schema.categories else f"the {usual} is taken"
            said.append(f"{column} {count} ({how})")
    return "; ".join(said) or "none"
