"""Rows: where they come from, and how they become numbers."""

from fairfate.data.encode import Encoder
from fairfate.data.load import load
from fairfate.data.read import FILE, read_frame
from fairfate.data.sources import SOURCES, Source, fetch, find
from fairfate.data.synthetic import synthetic
from fairfate.data.table import Columns, Table, table_from_frame

__all__ = [
    "FILE",
    "SOURCES",
    "Columns",
    "Encoder",
    "Source",
    "Table",
    "fetch",
    "find",
    "load",
    "read_frame",
    "synthetic",
    "table_from_frame",
]
