"""A site's settings, its node-config, the rows that they lead to, and a check of both.

It works without Flower and without a network.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairfate.data import Reading, Schema, Table, read_frame
from fairfate.data.encoder import ONEHOT
from fairfate.data.numbers import split_code
from fairfate.data.readers import stem
from fairfate.errors import InputError, listing, unknown

KEYS = (
    *("data", "name", "target", "sensitive", "rename", "sep", "decimal", "encoding"),
    *("study", "study-sha256", "key", "state", "public", "epsilon", "delta", "ledger"),
    *("partition-id", "num-partitions"),
)
"""Of a site's node-config."""
NodeConfig = Mapping[str, Any]


class NodeError(InputError):
    """Settings or a file of a site that cannot be used.

    The message is for the site's owner; ``public`` shows nothing of the site's own, for others to read.
    """

    def __init__(self, public: str, own: str = "") -> None:
        super().__init__(own or public)
        self.public = public


def check_keys(config: NodeConfig) -> None:
    """A misspelt key would be a setting that is silently ignored."""
    strange = [key for key in config if key not in KEYS]
    if strange:
        public = f"node-config must hold known keys only, got {len(strange)} other"
        raise NodeError(public, str(unknown("key in the node-config", strange[0], KEYS)))


def data_file(config: NodeConfig) -> Path:
    """The file that the node-config names; a relative path starts where the site's program was started."""
    if not config.get("data"):
        raise NodeError("node-config must name the site's file, such as data='/path/to/file.csv', got none")
    return Path(str(config["data"])).expanduser()


def name_of(config: NodeConfig) -> str:
    """What the site calls itself."""
    return str(config.get("name") or stem(data_file(config)))


def reading_of(config: NodeConfig, missing: tuple[str, ...] = ()) -> Reading:
    """How the site's file is read."""
    sep, decimal, encoding = (
        str(config[key]) if config.get(key) else None for key in ("sep", "decimal", "encoding")
    )
    return Reading(sep, decimal, encoding, missing)


def read_rows(config: NodeConfig, file: Path, schema: Schema) -> pd.DataFrame:
    """The site's rows, with its own column names replaced by the schema's."""
    renamed = _renamed(config, schema)
    try:
        frame = read_frame(file, reading_of(config, _own_codes(schema.missing, renamed)))
    except InputError as error:
        raise NodeError("the site's file cannot be read; its own log says why", str(error)) from None
    for own, name in renamed.items():
        if own not in frame.columns:
            public = f"node-config must name a column of the site's file for '{name}'"
            what = f"column for '{name}' in the node-config"
            raise NodeError(public, str(unknown(what, own, frame.columns)))
        if name != own and name in frame.columns:
            public = f"node-config must rename to a name that is free in the file, got '{name}'"
            raise NodeError(public, f"{public} for '{own}', and the file has both")
    return frame.rename(columns=renamed)


def _own_codes(codes: Sequence[str], renamed: Mapping[str, str]) -> tuple[str, ...]:
    """The values that stand for a missing one, with the site's own names of columns."""
    own = {name: column for column, name in renamed.items()}
    pairs = ((code, *split_code(code, list(own))) for code in codes)
    return tuple(code if column is None else f"{own[column]}={value}" for code, column, value in pairs)


def _renamed(config: NodeConfig, schema: Schema) -> dict[str, str]:
    """The schema's names of the site's own columns."""
    pairs: list[tuple[str, str]] = []
    own_groups = [part.strip() for part in str(config.get("sensitive", "")).split(",") if part.strip()]
    if own_groups and len(own_groups) != len(schema.sensitive):
        public = f"node-config sensitive must name {len(schema.sensitive)} columns, got others"
        raise NodeError(public, f"{public} ({len(own_groups)} of them)")
    pairs += zip(own_groups, schema.sensitive, strict=False)
    if config.get("target"):
        pairs.append((str(config["target"]), schema.target))
    for pair in filter(None, str(config.get("rename", "")).split(",")):
        own, equals, name = pair.partition("=")
        if not equals:
            public = "node-config rename must be like 'own=schema,own=schema', got something else"
            raise NodeError(public, f"{public} ('{pair.strip()}')")
        pairs.append((own.strip(), name.strip()))
    renamed = dict(pairs)
    twice = [name for name in renamed.values() if list(renamed.values()).count(name) > 1]
    if twice:
        raise NodeError(f"node-config must give a column's name once, got '{twice[0]}' for several columns")
    return renamed


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
    name, problems = (
        str(config.get("name") or stem(file)),
        list(known.apply(frame, on_unknown="collect").problems),
    )
    notes = [] if file.is_absolute() or node is None else [_relative(file)]
    return Checked(name, file, problems, [] if problems else [*_summary(known, frame, name), *notes])


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
    sentences, usual = [], "mean" if schema.encode == ONEHOT else "median"
    for column in schema.columns:
        count = int(frame[column].isna().sum())
        if count:
            how = "a category of their own" if column in schema.categories else f"the {usual} is taken"
            sentences.append(f"{column} {count} ({how})")
    return "; ".join(sentences) or "none"
