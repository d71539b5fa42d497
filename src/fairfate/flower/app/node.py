"""A site's settings, its node-config, and the rows that they lead to; works without Flower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate.data import Reading, Schema, read_frame
from fairfate.data.numbers import split_code
from fairfate.data.readers import stem
from fairfate.errors import InputError, unknown

KEYS = (
    *("data", "name", "target", "sensitive", "rename", "sep", "decimal", "encoding"),
    *("study", "study-sha256", "key", "state"),
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
        raise NodeError("node-config must name the site's file, as in data='/path/to/file.csv', got none")
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
