"""Rows: where they come from, and how they become numbers."""

from fairfate.data.columns import (
    MISSING,
    MISSING_GROUP,
    OTHERS,
    SMALL,
    Columns,
    encode_texts,
    parse_sensitive,
)
from fairfate.data.datasets import SOURCES, fetch_dataset, find_dataset, synthetic
from fairfate.data.encoder import AUTO, ENCODINGS, ONEHOT, ORDINAL, Encoder
from fairfate.data.load import ServerFiles, draft_schema, load, load_server_files
from fairfate.data.readers import FILE, Reading, read_file, read_frame
from fairfate.data.schema import Schema, UnfitError
from fairfate.data.site_summaries import describe_frame, widen_schema
from fairfate.data.table import TEST, TRAINING, VALIDATION, Table, table_from_frame

__all__ = [
    "AUTO",
    "ENCODINGS",
    "FILE",
    "MISSING",
    "MISSING_GROUP",
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
    "Reading",
    "Schema",
    "ServerFiles",
    "Table",
    "UnfitError",
    "describe_frame",
    "draft_schema",
    "encode_texts",
    "fetch_dataset",
    "find_dataset",
    "load",
    "load_server_files",
    "parse_sensitive",
    "read_file",
    "read_frame",
    "synthetic",
    "table_from_frame",
    "widen_schema",
]
