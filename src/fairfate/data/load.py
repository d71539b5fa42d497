"""From what a user names to a table: a public dataset, the embedded one, or files of her own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import (
    DROP,
    KEEP,
    OTHERS,
    REFUSE,
    REPORT,
    Columns,
    encode_complete,
    note_lookalikes,
)
from fairfate.data.datasets import SOURCES, dataset_folders, find_dataset, note_checksum, synthetic
from fairfate.data.encoder import AUTO, NONE, ONEHOT, ORDINAL
from fairfate.data.inspection import find_leaks, find_spikes
from fairfate.data.numbers import note_codes, without_codes
from fairfate.data.readers import (
    FILE,
    FileRows,
    Reading,
    list_folder,
    read_file,
    read_folder,
    read_frame,
    stem,
)
from fairfate.data.schema import Schema, UnfitError
from fairfate.data.table import TEST, TRAINING, VALIDATION, Table, note_merged_outcomes, table_from_frame
from fairfate.errors import MOST_LISTED, InputError, check, listing, unknown
from fairfate.storage import sha256_of

DEFAULT_READING = Reading()


@dataclass(frozen=True)
class ServerFiles:
    """Files that the server has: rows that no client trains on, and what the sites agreed on.

    Parameters
    ----------
    validation : rows to choose models by
    test : rows to measure them on; without it, each seed keeps half of the validation rows for testing
    schema : without it, the schema is made from the validation file
    """

    validation: str
    test: str | None = None
    schema: str | None = None


def load(
    data: Any,
    *,
    data_dir: str | Path | None = None,
    columns: Columns | None = None,
    server_files: ServerFiles | None = None,
    encode: str = AUTO,
    reading: Reading = DEFAULT_READING,
) -> Table:
    """Load a table.

    Parameters
    ----------
    data : ``synthetic`` (or ``synthetic:rows=N,seed=S``), adult, compas, law, dutch, acs_income, a
        file (CSV, Parquet, JSON or Excel), a folder with one such file for each client, or a pandas or polars
        DataFrame
    data_dir : folder to look in first for a public dataset
    columns : what the columns mean; for a public dataset, only ``sensitive``, ``privileged``, ``client``,
        ``drop`` and ``categorical`` count
    server_files : the server's own files; then all rows of ``data`` are for training
    encode : how inputs are made: ``onehot`` (texts that 20 rows share have an input each, numbers are
        standardised), ``ordinal`` (as in the paper: places in a sorted list, scaled to [0, 1]), ``none``
        (numbers as they are), or ``auto``: ordinal for the paper's datasets, one-hot for files
    reading : the separator, decimal mark and text encoding of files, where these are not detected, and
        the values that stand for a missing one

    Returns
    -------
    The table; its ``notes`` say what was done to the rows.

    Examples
    --------
    >>> table = load("synthetic:rows=100")
    >>> len(table), table.group_names
    (100, ('female', 'male'))
    """
    if not isinstance(data, str | Path):
        return _load_frame(data, columns, encode, reading.missing)
    name, _, arguments = str(data).partition(":")
    dataset_folders(data_dir)  # a misspelt one is known at once, whether it is needed or not
    if server_files is not None and (name == "synthetic" or name in SOURCES):
        raise InputError(
            f"validation must be left out for '{name}', which is split by the seed, got"
            f" '{server_files.validation}'"
        )
    if name == "synthetic":
        return synthetic(**_parse_sizes(arguments))
    if name in SOURCES and not arguments:
        return _load_source(name, data_dir, columns, encode, reading.missing)
    file = Path(data)
    if not file.exists() and not file.suffix and "/" not in str(data):
        raise unknown("dataset", str(data), ["synthetic", *SOURCES])
    if server_files is not None:
        return _load_beside_server(server_files, file, columns, encode, reading)
    rows = read_folder(file, reading) if file.is_dir() else read_file(file, reading)
    if file.is_dir() and columns is not None:
        if columns.client in (None, FILE):
            columns = replace(columns, client=FILE)
        else:
            rows = rows._replace(frame=rows.frame.drop(columns=FILE))
    return _make_table(rows, _check_named(columns, rows.frame, str(data)), stem(file), encode)


def _make_table(rows: FileRows, columns: Columns, name: str, encode: str) -> Table:
    """A table of rows as they come, with notes on what was done and on what looks odd."""
    coded = note_codes(rows.missing, rows.frame.columns)
    table = table_from_frame(rows.frame, columns, name, encode=_file_encoding(encode), tidy=True)
    signs = [*find_spikes(rows.frame.drop(columns=list(columns.drop))), *find_leaks(table)]
    return replace(table, missing=rows.missing, notes=(*rows.notes, *coded, *table.notes, *signs))


def _load_frame(data: Any, columns: Columns | None, encode: str, codes: Sequence[str]) -> Table:
    """A frame in memory, as files are treated."""
    frame = data.to_pandas() if hasattr(data, "to_pandas") else data
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"data must be a name, a file or a frame, got {type(data).__name__}")
    frame = frame.rename(columns=str).reset_index(drop=True)
    check(not frame.columns.has_duplicates, "data must name each column once", "one twice")
    check(len(frame) > 0, "data must have at least one row")
    columns = _check_named(columns, frame, "the frame")
    frame, hits = without_codes(frame, codes)
    missing = {code: int(rows.sum()) for code, rows in hits.items()}
    return _make_table(FileRows(frame, (), missing), columns, "frame", encode)


def _check_named(columns: Columns | None, frame: pd.DataFrame, data: str) -> Columns:
    """What the columns mean; InputError unless target and sensitive columns are named."""
    if columns is None or not columns.target or not columns.sensitive:
        missing = "target" if columns is None or not columns.target else "sensitive"
        raise InputError(f"{missing} must name a column of '{data}' ({listing(frame.columns, MOST_LISTED)})")
    return columns


def _file_encoding(encode: str) -> str:
    return ONEHOT if encode == AUTO else encode


def draft_schema(
    server_files: ServerFiles, columns: Columns | None, encode: str = AUTO, reading: Reading = DEFAULT_READING
) -> Schema:
    """What can be learned of the columns from the validation file."""
    frame = read_frame(server_files.validation, reading)
    columns = replace(_check_named(columns, frame, server_files.validation), client=None)
    schema = Schema.from_table(table_from_frame(frame, columns, encode=_file_encoding(encode), tidy=True))
    return replace(schema, missing=reading.missing)


def load_server_files(
    server_files: ServerFiles,
    columns: Columns | None = None,
    schema: Schema | None = None,
    encode: str = AUTO,
    reading: Reading = DEFAULT_READING,
) -> tuple[Schema, Table]:
    """Load the server's rows, each marked as VALIDATION or TEST.

    Parameters
    ----------
    server_files : the files
    columns : what their columns mean, where there is no schema
    schema : what the sites agreed on; else it is read from its file or drafted from the validation file
    encode, reading : as for `load`

    Returns
    -------
    The schema, and the rows in it.
    """
    if schema is None and server_files.schema is None:
        schema = draft_schema(server_files, columns, encode, reading)
    elif schema is None:
        schema = Schema.read(str(server_files.schema))
    schema = replace(schema, missing=tuple(dict.fromkeys((*schema.missing, *reading.missing))))
    files = {VALIDATION: server_files.validation, TEST: server_files.test}
    tables = [
        _in_schema(schema, Path(file), part, columns, reading)
        for part, file in files.items()
        if file is not None
    ]
    return schema, _stack(tables)


def _in_schema(schema: Schema, file: Path, part: int, columns: Columns | None, reading: Reading) -> Table:
    """A file's rows, marked with the part they play."""
    rows = _usable_rows(schema, file, part, columns, reading)
    try:
        table = schema.table(rows.frame, stem(file))
    except UnfitError as error:
        raise InputError(f"'{file}' must fit the schema: {error}") from None
    marks = np.full(len(table), part, dtype=np.int8)
    return replace(table, part=marks, notes=rows.notes, missing=rows.missing)


def _usable_rows(
    schema: Schema, file: Path, part: int, columns: Columns | None, reading: Reading
) -> FileRows:
    """A file's rows that have a label and, if so wished, a group; the server's as `table_from_frame` does."""
    frame, _, missing = read_file(file, replace(reading, missing=schema.missing))
    notes = note_lookalikes(frame, (schema.target, *schema.sensitive, *schema.categories))
    if schema.labels[0] == OTHERS and schema.target in frame.columns:
        notes.append(note_merged_outcomes(frame[schema.target], schema.labels[1]))
    treatment = REFUSE if columns is None else columns.missing_group
    needed = list(schema.sensitive) if treatment == DROP else []
    if treatment in (KEEP, REPORT) and part != TRAINING:
        needed = [name for name in schema.sensitive if not schema.takes_missing(name)]
    needed = [name for name in (schema.target, *needed) if name in frame.columns]
    usable = frame[needed].notna().all(axis=1)
    if not usable.all():
        notes.append(f"{int((~usable).sum()):,} rows without {' or '.join(needed)} are left out")
        frame = frame[usable].reset_index(drop=True)
    return FileRows(frame, tuple(f"{file.name}: {note}" for note in notes), missing)


def _stack(tables: Sequence[Table]) -> Table:
    """Tables of one schema under each other."""
    names = ("features", "label", "group", "part")
    columns: dict[str, Any] = {name: np.concatenate([getattr(t, name) for t in tables]) for name in names}
    missing = {code: sum(table.missing[code] for table in tables) for code in tables[0].missing}
    notes = tuple(note for table in tables for note in table.notes)
    return replace(tables[0], **columns, missing=missing, notes=notes)


def _load_beside_server(
    server_files: ServerFiles, data: Path, columns: Columns | None, encode: str, reading: Reading
) -> Table:
    """All rows of ``data`` for training, the server's beside them."""
    files = list_folder(data) if data.is_dir() else [data]
    _check_different(files, {"validation": server_files.validation, "test": server_files.test})
    schema, server = load_server_files(server_files, columns, None, encode, reading)
    sites = [_in_schema(schema, file, TRAINING, columns, reading) for file in files]
    client: NDArray[np.int64] | None = None
    names: Sequence[str] = ()
    if data.is_dir():
        client = np.repeat(np.arange(len(sites)), [len(site) for site in sites])
        names = [stem(file) for file in files]
    elif columns is not None and columns.client is not None:
        frame = _usable_rows(schema, data, TRAINING, columns, reading).frame
        if columns.client not in frame.columns:
            raise unknown("column for client-column", columns.client, frame.columns)
        client, names = encode_complete(frame[columns.client], "client-column")
    if client is not None:
        client = np.append(client, np.full(len(server), -1, dtype=np.int64))
    table = replace(_stack([*sites, server]), name=stem(data), client=client, client_names=tuple(names))
    halved = () if server_files.test else ("half of the validation rows are kept apart as test rows",)
    coded = note_codes(table.missing, None)
    return replace(table, notes=(*coded, *table.notes, *halved, *find_leaks(table)))


def _check_different(files: Sequence[Path], server_files: Mapping[str, str | None]) -> None:
    """Refuse to measure a model on the file that it is trained on."""
    known = {sha256_of(file): str(file) for file in files if file.is_file()}
    for argument, file in server_files.items():
        if file is not None and Path(file).is_file():
            digest = sha256_of(Path(file))
            rule = f"{argument} must be another file than '{known.get(digest)}'"
            check(digest not in known, rule, "the same content")
            known[digest] = file


def _load_source(
    name: str, data_dir: str | Path | None, extra: Columns | None, encode: str, codes: tuple[str, ...]
) -> Table:
    source, file = SOURCES[name], find_dataset(name, data_dir)
    columns = source.columns
    if extra is not None:
        sensitive = extra.sensitive or columns.sensitive
        columns = replace(
            extra,
            target=columns.target,
            favourable=columns.favourable,
            sensitive=sensitive,
            privileged=extra.privileged or tuple(pair for pair in columns.privileged if pair[0] in sensitive),
            drop=(*columns.drop, *extra.drop),
            categorical=(*columns.categorical, *extra.categorical),
        )
    tidy = encode in (ONEHOT, NONE)
    frame, _, missing = read_file(file, Reading(missing=codes))
    coded = note_codes(missing, frame.columns)
    table = table_from_frame(frame, columns, name, encode=encode if tidy else ORDINAL, tidy=tidy)
    notes = (*coded, *table.notes, *note_checksum(source, file))
    return replace(table, source=name, missing=missing, notes=notes)


def _parse_sizes(arguments: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for pair in filter(None, arguments.split(",")):
        key, _, value = pair.partition("=")
        if key not in ("rows", "seed"):
            raise unknown("argument of synthetic", key, ["rows", "seed"])
        check(key not in sizes, f"synthetic {key} must be given once", f"'{arguments}'")
        is_whole = value.isascii() and value.isdigit()
        check(is_whole, f"synthetic {key} must be a whole number >= 0", f"'{value}'")
        sizes[key] = int(value)
    return sizes
