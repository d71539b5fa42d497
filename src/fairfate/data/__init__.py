"""Rows: where they come from, and how they become numbers."""

from fairfate.data.columns import MISSING, MISSING_GROUP, OTHERS, SMALL, Columns, parse_sensitive, words
from fairfate.data.datasets import SOURCES, Source, fetch, find, synthetic
from fairfate.data.encoder import AUTO, ENCODINGS, NONE, ONEHOT, ORDINAL, Encoder
from fairfate.data.load import Held, draft_schema, load, load_held
from fairfate.data.readers import FILE, FileRows, Reading, read_file, read_frame
from fairfate.data.schema import Schema, UnfitError
from fairfate.data.site_summaries import cover, describe_frame
from fairfate.data.table import TEST, TRAINING, VALIDATION, Table, table_from_frame

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
    "FileRows",
    "Held",
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
