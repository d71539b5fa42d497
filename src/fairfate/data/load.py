"""From what a user names to a table: a public dataset, the embedded one, or her own file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import DROP, KEEP, OTHERS, REFUSE, REPORT, Columns, complete, lookalikes
from fairfate.data.datasets import SOURCES, find, folders, synthetic
from fairfate.data.encoder import AUTO, NONE, ONEHOT, ORDINAL
from fairfate.data.inspection import leaks, spikes
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
from fairfate.data.table import TRAINING, VALIDATION, Table, merged_outcomes, table_from_frame
from fairfate.errors import MOST_LISTED, InputError, check, listing, unknown

AS_IT_COMES = Reading()


@dataclass(frozen=True)
class Held:
    """Files that the server holds: rows that no client trains on, and what the sites agreed on."""

    validation: str
    test: str | None = None
    """Without it, each seed keeps half of the validation rows for testing."""
    schema: str | None = None
    """Without it, the schema is made from the validation file."""


def load(
    data: Any,
    *,
    data_dir: str | Path | None = None,
    columns: Columns | None = None,
    held: Held | None = None,
    encode: str = AUTO,
    reading: Reading = AS_IT_COMES,
) -> Table:
    """Load a table.

    Parameters
    ----------
    data : ``synthetic`` (or ``synthetic:rows=N,seed=S``), adult, compas, law, dutch, a file (CSV, Parquet,
        JSON or Excel), or a folder with one such file for each client
    data_dir : folder to look in first for a public dataset
    columns : what the columns mean; for a public dataset, only ``sensitive``, ``privileged``, ``client``,
        ``drop`` and ``categorical`` count
    held : the server's own files; then all rows of ``data`` are for training
    encode : how inputs are made: ``onehot`` (texts that 20 rows share have an input each, numbers are
        standardised), ``ordinal`` (as in the paper: places in a sorted list, scaled to [0, 1]), ``none``
        (numbers as they are), or ``auto``: ordinal for the paper's datasets, one-hot for files
    reading : the separator, decimal mark and text encoding of files, where these are not found out, and
        the values that stand for a missing one

    Examples
    --------
    >>> table = load("synthetic:rows=100")
    >>> len(table), table.group_names
    (100, ('female', 'male'))
    """
    if not isinstance(data, str | Path):
        return _load_frame(data, columns, encode, reading.missing)
    data = str(data)
    name, _, arguments = data.partition(":")
    folders(data_dir)  # a misspelt one is known at once, whether it is needed or not
    if held is not None and (name == "synthetic" or name in SOURCES):
        raise InputError(
            f"validation must be left out for '{name}', which is split by the seed, got '{held.validation}'"
        )
    if name == "synthetic":
        return synthetic(**_sizes(arguments))
    if name in SOURCES and not arguments:
        return _load_source(name, data_dir, columns, encode, reading.missing)
    file = Path(data)
    if not file.exists() and not file.suffix and "/" not in data:
        raise unknown("dataset", data, ["synthetic", *SOURCES])
    if held is not None:
        return _load_with(held, file, columns, encode, reading)
    frame, read_notes, missing = read_folder(file, reading) if file.is_dir() else read_file(file, reading)
    if file.is_dir() and columns is not None and columns.client in (None, FILE):
        columns = replace(columns, client=FILE)
    elif file.is_dir() and columns is not None:
        frame = frame.drop(columns=FILE)
    named = _named(columns, frame, data)
    return _tidy(frame, named, stem(file), encode, missing, read_notes)


def _tidy(
    frame: pd.DataFrame,
    columns: Columns,
    name: str,
    encode: str,
    missing: Mapping[str, int],
    read_notes: Sequence[str] = (),
) -> Table:
    """A table of rows as they come, with notes on what was done and on what looks odd."""
    coded = note_codes(missing, frame.columns)
    table = table_from_frame(frame, columns, name, encode=_of_file(encode), tidy=True)
    odd = [*spikes(frame.drop(columns=list(columns.drop))), *leaks(table)]
    return replace(table, missing=missing, notes=(*read_notes, *coded, *table.notes, *odd))


def _load_frame(data: Any, columns: Columns | None, encode: str, codes: Sequence[str]) -> Table:
    """A frame in memory, as files are treated."""
    frame = data.to_pandas() if hasattr(data, "to_pandas") else data
    if not isinstance(frame, pd.DataFrame):
        raise InputError(f"data must be a name, a file or a frame, got {type(data).__name__}")
    frame = frame.rename(columns=str).reset_index(drop=True)
    check(not frame.columns.has_duplicates, "data must name each column once", "one twice")
    check(len(frame) > 0, "data must have at least one row", "none")
    named = _named(columns, frame, "the frame")
    frame, hits = without_codes(frame, codes)
    return _tidy(frame, named, "frame", encode, {code: int(rows.sum()) for code, rows in hits.items()})


def _named(columns: Columns | None, frame: pd.DataFrame, data: str | Path) -> Columns:
    if columns is None or not columns.target or not columns.sensitive:
        missing = "target" if columns is None or not columns.target else "sensitive"
        raise InputError(
            f"{missing} must name a column of '{data}' ({listing(frame.columns, MOST_LISTED)}), got none"
        )
    return columns


def _of_file(encode: str) -> str:
    return ONEHOT if encode == AUTO else encode


def draft_schema(
    held: Held, columns: Columns | None, encode: str = AUTO, reading: Reading = AS_IT_COMES
) -> Schema:
    """What can be learned of the columns from the validation file."""
    frame = read_frame(held.validation, reading)
    named = replace(_named(columns, frame, held.validation), client=None)
    schema = Schema.of(table_from_frame(frame, named, encode=_of_file(encode), tidy=True))
    return replace(schema, missing=reading.missing)


def load_held(
    held: Held,
    columns: Columns | None = None,
    schema: Schema | None = None,
    encode: str = AUTO,
    reading: Reading = AS_IT_COMES,
) -> tuple[Schema, Table]:
    """The schema, and the server's rows in it, each marked as VALIDATION or TEST."""
    if schema is None:
        schema = (
            draft_schema(held, columns, encode, reading) if held.schema is None else Schema.read(held.schema)
        )
    codes = tuple(dict.fromkeys((*schema.missing, *reading.missing)))
    schema, reading = replace(schema, missing=codes), replace(reading, missing=codes)
    files = [held.validation] if held.test is None else [held.validation, held.test]
    parts = [
        _in_schema(schema, Path(file), part, columns, reading)
        for part, file in enumerate(files, start=VALIDATION)
    ]
    return schema, _joined(parts)


def _in_schema(schema: Schema, file: Path, part: int, columns: Columns | None, reading: Reading) -> Table:
    """A file's rows, marked with the part they play."""
    frame, notes, missing = _usable(schema, file, part, columns, reading)
    try:
        table = schema.table(frame, stem(file))
        part_of = np.full(len(frame), part, dtype=np.int8)
        return replace(table, part=part_of, notes=notes, missing=missing)
    except UnfitError as error:
        raise InputError(f"'{file}' must fit the schema: {error}") from None


def _usable(schema: Schema, file: Path, part: int, columns: Columns | None, reading: Reading) -> FileRows:
    """A file's rows that have a label and, if so wished, a group; the server's as `table_from_frame` does."""
    frame, _, missing = read_file(file, replace(reading, missing=schema.missing))
    how = REFUSE if columns is None else columns.missing_group
    no_place = [name for name in schema.sensitive if not schema.takes_missing(name)]
    dropped = (
        schema.sensitive if how == DROP else no_place if how in (KEEP, REPORT) and part != TRAINING else ()
    )
    named = [name for name in (schema.target, *dropped) if name in frame.columns]
    notes = [
        f"{file.name}: {note}"
        for note in lookalikes(frame, (schema.target, *schema.sensitive, *schema.categories))
    ]
    if schema.labels[0] == OTHERS and schema.target in frame.columns:
        notes.append(f"{file.name}: {merged_outcomes(frame[schema.target], schema.labels[1])}")
    usable = frame[named].notna().all(axis=1)
    left_out = int((~usable).sum())
    if not left_out:
        return FileRows(frame, tuple(notes), missing)
    notes.append(f"{file.name}: {left_out:,} rows without {' or '.join(named)} are left out")
    return FileRows(frame[usable].reset_index(drop=True), tuple(notes), missing)


def _joined(tables: Sequence[Table]) -> Table:
    """Tables of one schema under each other."""
    names = ("features", "label", "group", "part")
    columns: dict[str, Any] = {name: np.concatenate([getattr(t, name) for t in tables]) for name in names}
    missing = {code: sum(table.missing[code] for table in tables) for code in tables[0].missing}
    notes = tuple(note for table in tables for note in table.notes)
    return replace(tables[0], **columns, missing=missing, notes=notes)


def _load_with(held: Held, data: Path, columns: Columns | None, encode: str, reading: Reading) -> Table:
    """All rows of ``data`` for training, the server's beside them."""
    files = list_folder(data) if data.is_dir() else [data]
    _check_different(files, held)
    schema, server = load_held(held, columns, None, encode, reading)
    sites = [_in_schema(schema, file, TRAINING, columns, reading) for file in files]
    client: NDArray[np.int64] | None = None
    names: tuple[str, ...] = ()
    if data.is_dir():
        client = np.repeat(np.arange(len(sites)), [len(site) for site in sites])
        names = tuple(stem(file) for file in files)
    elif columns is not None and columns.client is not None:
        frame, _, _ = _usable(schema, data, TRAINING, columns, reading)
        if columns.client not in frame.columns:
            raise unknown("column for client-column", columns.client, frame.columns)
        client, found = complete(frame[columns.client], "client-column")
        names = tuple(found)
    nobody = np.full(len(server), -1, dtype=np.int64)
    table = replace(
        _joined([*sites, server]),
        name=stem(data),
        client=None if client is None else np.concatenate([client, nobody]),
        client_names=names,
    )
    halved = () if held.test else ("half of the validation rows are kept apart as test rows",)
    coded = note_codes(table.missing, None)
    return replace(table, notes=(*coded, *table.notes, *halved, *leaks(table)))


def _check_different(files: Sequence[Path], held: Held) -> None:
    """Refuse to measure a model on the file that it is trained on."""
    seen = {_digest(file): str(file) for file in files if file.is_file()}
    for argument, given in (("validation", held.validation), ("test", held.test)):
        if given is None or not Path(given).is_file():
            continue
        digest = _digest(Path(given))
        if digest in seen:
            raise InputError(f"{argument} must be another file than '{seen[digest]}', got the same content")
        seen[digest] = given


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _load_source(
    name: str, data_dir: str | Path | None, extra: Columns | None, encode: str, codes: tuple[str, ...]
) -> Table:
    source, file = SOURCES[name], find(name, data_dir)
    columns = source.columns
    if extra is not None:
        sensitive = extra.sensitive or columns.sensitive
        usual = tuple(pair for pair in columns.privileged if pair[0] in sensitive)
        columns = replace(
            columns,
            sensitive=sensitive,
            privileged=extra.privileged or usual,
            client=extra.client,
            drop=(*columns.drop, *extra.drop),
            categorical=extra.categorical,
            bands=extra.bands,
            keep=extra.keep,
            min_group=extra.min_group,
            missing_group=extra.missing_group,
        )
    tidy = encode in (ONEHOT, NONE)
    frame, _, missing = read_file(file, Reading(missing=codes))
    coded = note_codes(missing, frame.columns)
    found = table_from_frame(frame, columns, name, encode=encode if tidy else ORDINAL, tidy=tidy)
    table = replace(found, source=name, missing=missing, notes=(*coded, *found.notes))
    if _digest(file) == source.sha256:
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
