"""Rows: where they come from, and how they become numbers.

Names are imported when they are first used: what needs no table does not wait for pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairfate.data.columns import MISSING, MISSING_GROUP, OTHERS, SMALL, Columns, parse_sensitive, words
    from fairfate.data.describe import cover, describe_frame
    from fairfate.data.encode import AUTO, ENCODINGS, NONE, ONEHOT, ORDINAL, Encoder
    from fairfate.data.loading import Held, draft_schema, load, load_held
    from fairfate.data.made_up import synthetic
    from fairfate.data.read import FILE, Read, Reading, read_file, read_frame
    from fairfate.data.schema import Schema, UnfitError
    from fairfate.data.sources import SOURCES, Source, fetch, find
    from fairfate.data.table import TEST, TRAINING, VALIDATION, Table, table_from_frame

_HOMES = {
    "AUTO": "encode",
    "Columns": "columns",
    "ENCODINGS": "encode",
    "Encoder": "encode",
    "FILE": "read",
    "Held": "loading",
    "MISSING": "columns",
    "MISSING_GROUP": "columns",
    "NONE": "encode",
    "ONEHOT": "encode",
    "ORDINAL": "encode",
    "OTHERS": "columns",
    "Read": "read",
    "Reading": "read",
    "SMALL": "columns",
    "SOURCES": "sources",
    "Schema": "schema",
    "Source": "sources",
    "TEST": "table",
    "TRAINING": "table",
    "Table": "table",
    "UnfitError": "schema",
    "VALIDATION": "table",
    "cover": "describe",
    "describe_frame": "describe",
    "draft_schema": "loading",
    "fetch": "sources",
    "find": "sources",
    "load": "loading",
    "load_held": "loading",
    "parse_sensitive": "columns",
    "read_file": "read",
    "read_frame": "read",
    "synthetic": "made_up",
    "table_from_frame": "table",
    "words": "columns",
}

__all__ = [
    "AUTO",
    "ENCODINGS",
    "FILE",
    "MISSING",
    "MISSING_GROUP",
    "NONE",
    "ONEHOT",
    "ORDINAL",
    "OTHERS",
    "SMALL",
    "SOURCES",
    "TEST",
    "TRAINING",
    "VALIDATION",
    "Columns",
    "Encoder",
    "Held",
    "Read",
    "Reading",
    "Schema",
    "Source",
    "Table",
    "UnfitError",
    "cover",
    "describe_frame",
    "draft_schema",
    "fetch",
    "find",
    "load",
    "load_held",
    "parse_sensitive",
    "read_file",
    "read_frame",
    "synthetic",
    "table_from_frame",
    "words",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairfate.data' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fairfate.data.{_HOMES[name]}"), name)
