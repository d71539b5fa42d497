"""A table of people: inputs, label and group of each row, as numbers, with their names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import (
    DROP,
    KEEP,
    OTHERS,
    Columns,
    InputColumn,
    encode_complete,
    encode_texts,
    find_value,
    note_lookalikes,
    plain_input,
    summarise_inputs,
    tidy_input,
)
from fairfate.data.encoder import ALL_ROWS, BLOCK, ONEHOT, ORDINAL, Encoder, Rows
from fairfate.data.groups import Groups, cross_columns, is_too_small, read_sensitive
from fairfate.errors import InputError, listing, unknown

TRAINING, VALIDATION, TEST = range(3)
MOST_OUTCOMES = 20
"""A target with more values is no outcome."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows ready to be split, encoded and given to clients; made by `fairfate.load` or `fairfate.synthetic`.

    Examples
    --------
    >>> import fairfate
    >>> table = fairfate.synthetic(rows=500)
    >>> len(table), table.group_names, table.label_names
    (500, ('female', 'male'), ('not hired', 'hired'))
    """

    name: str
    """Of the data, in tables and reports."""
    features: NDArray[np.float64]
    """(rows, inputs): numbers as they are (NaN where missing), categories as their index in sorted order."""
    label: NDArray[np.int8]
    """(rows,) 1 is the favourable outcome."""
    group: NDArray[np.int16]
    """(rows,) which of the groups."""
    feature_names: tuple[str, ...]
    """The inputs."""
    label_names: tuple[str, str]
    """The unfavourable and the favourable outcome."""
    grouping: Groups
    """What the groups are: the values of the sensitive columns."""
    categories: Mapping[str, tuple[str, ...]]
    """The values of the inputs that are texts, in sorted order."""
    client: NDArray[np.int64] | None = None
    """(rows,) index into ``client_names``, if the file says who holds a row."""
    client_names: tuple[str, ...] = ()
    """The clients that the file names."""
    notes: tuple[str, ...] = field(default=())
    """What was done to the values, for the user to read."""
    target: str = ""
    """The label's column."""
    source: str | None = None
    """The public dataset that it is, if any; a file of the same name is none."""
    part: NDArray[np.int8] | None = None
    """(rows,) TRAINING, VALIDATION or TEST, if the files say so; otherwise every seed splits anew."""
    encoder: Encoder | None = None
    """How inputs are scaled, if that was agreed on beforehand; otherwise each seed learns it."""
    encode: str = ORDINAL
    """How inputs are encoded: ``ordinal``, ``onehot`` or ``none``."""
    dates: Mapping[str, str] = field(default_factory=dict)
    """The columns that are dates, as days since 1970, and their form."""
    bands: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The sensitive columns that are numbers, and where they are cut."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Values that stand for a missing one, and how many rows held each."""
    stratified: bool = False
    """Whether each seed's split keeps the shares of groups and labels."""
    embedded: bool = False
    """Whether this library generated it."""

    def __len__(self) -> int:
        return len(self.label)

    @property
    def is_own(self) -> bool:
        """Whether it is a user's own data."""
        return self.source is None and not self.embedded

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.grouping)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups' names."""
        return self.grouping.names

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return self.grouping.attributes

    @property
    def slots(self) -> NDArray[np.int64]:
        """(inputs,) how many values a category has; 0 for numbers."""
        values = dict(zip(self.sensitive, self.grouping.values, strict=True)) | dict(self.categories)
        sizes = [0 if n in self.bands else len(values.get(n, ())) for n in self.feature_names]
        return np.array(sizes, dtype=np.int64)

    def fit_encoder(self, rows: Rows = ALL_ROWS, *, scale: bool = True) -> Encoder:
        """Learn from some rows how columns become a model's inputs.

        Parameters
        ----------
        rows : which rows, such as the training rows
        scale : whether numbers are standardised

        Returns
        -------
        the encoder

        Examples
        --------
        >>> import fairfate
        >>> fairfate.synthetic(rows=100).fit_encoder().inputs
        6
        """
        if self.encode == ONEHOT:
            return Encoder.fit_slots(self.features, self.slots, rows)
        return Encoder.fit(self.features, rows, scale=scale and self.encode == ORDINAL)

    @property
    def cell(self) -> NDArray[np.int64]:
        """(rows,) the (group, label) cell: ``2 * group + label``."""
        return self.group.astype(np.int64) * 2 + self.label

    @property
    def cell_names(self) -> list[str]:
        """Names of the cells, for tables."""
        return [f"{group}, {label}" for group in self.group_names for label in self.label_names]

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all values and names."""
        digest = hashlib.sha256()
        categories = [text for name in self.categories for text in (name, *self.categories[name])]
        for names in (self.feature_names, self.label_names, self.group_names, self.client_names, categories):
            digest.update("\0".join(names).encode() + b"\1")
        scale = () if self.encoder is None else (self.encoder.low, self.encoder.span, self.encoder.median)
        if self.encode != ORDINAL or self.bands or self.stratified:
            digest.update(repr((self.encode, dict(self.bands), self.stratified)).encode())
        if self.grouping.missing_counts:
            digest.update(b"missing counts")
        if self.missing:
            digest.update(repr(sorted(self.missing)).encode())
        for array in (self.features, self.label, self.group, self.client, self.part, *scale):
            if array is not None:
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    @cached_property
    def rows_checksums(self) -> list[str]:
        """SHA-256 of the rows that models are trained on or chosen by, as `Schema.table` reads them again.

        One for all rows where every seed splits them; else one for each file's part. Neither clients nor
        scaling count, so that a file of the same rows in the same order is recognised.
        """
        if self.part is None:
            return [self._rows_checksum(np.arange(len(self)))]
        parts = [np.flatnonzero(self.part == part) for part in (TRAINING, VALIDATION)]
        return [self._rows_checksum(rows) for rows in parts if len(rows)]

    def _rows_checksum(self, rows: NDArray[np.int64]) -> str:
        """Of some rows, a block after another: a table of ten million has no room beside it."""
        digest = hashlib.sha256()
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            for values in (self.features, self.label, self.group):
                digest.update(values[block].tobytes())
        return digest.hexdigest()


def table_from_frame(
    frame: pd.DataFrame, columns: Columns, name: str = "data", *, encode: str = ORDINAL, tidy: bool = False
) -> Table:
    """Turn a frame of mixed types into a `Table`.

    Text becomes categories (sorted; a missing value is one more category), numbers stay (a missing one
    is later replaced by the median of the training rows), and the sensitive column stays an input, as the
    group's index.

    Parameters
    ----------
    frame : the rows
    columns : what its columns mean
    name : what to call it
    encode : how each seed shall encode the inputs
    tidy : for files as they come: leave out identifiers and constants, read dates, put texts that few rows
        share together, merge small groups, leave out rows without a label; all of it is said in the notes

    Returns
    -------
    The table.

    Examples
    --------
    >>> frame = pd.DataFrame({"age": [30, 41, 52, 63], "sex": list("fmfm"), "hired": [0, 1, 1, 0]})
    >>> table = table_from_frame(frame, Columns("hired", ("sex",)))
    >>> table.features.tolist(), table.group_names
    ([[30.0, 0.0], [41.0, 1.0], [52.0, 0.0], [63.0, 1.0]], ('f', 'm'))
    """
    _check_columns(frame, columns)
    notes: list[str] = []
    if tidy:
        named = (columns.target, *columns.sensitive, columns.client)
        notes += note_lookalikes(frame, (column for column in named if column is not None))
        frame = _usable_rows(frame, columns, notes)
    label, label_names = _label(frame[columns.target], columns, tidy, notes)
    sensitive = {n: read_sensitive(frame[n], columns, label, tidy, notes) for n in columns.sensitive}
    if sensitive:
        grouping, group = cross_columns(sensitive, missing_counts=columns.missing_group == KEEP)
    else:
        grouping, group = Groups.everybody(), np.zeros(len(frame), dtype=np.int16)
    client: NDArray[np.int64] | None = None
    clients: list[str] = []
    if columns.client is not None:
        client, clients = encode_complete(frame[columns.client], "client-column")
    as_groups = {n: InputColumn(c.codes.astype(np.float64)) for n, c in sensitive.items() if not c.cuts}
    inputs: dict[str, InputColumn] = {}
    for column in frame.columns:
        if column in {columns.target, columns.client, *columns.drop}:
            continue
        is_text, is_kept = column in columns.categorical, column in columns.keep
        if column in as_groups:
            inputs[column] = as_groups[column]
        elif tidy:
            inputs[column] = tidy_input(frame[column], is_text, is_kept)
        else:
            inputs[column] = plain_input(frame[column], is_text, notes)
    if tidy:
        notes += summarise_inputs(inputs, frame, columns.sensitive)
        inputs = {name: column for name, column in inputs.items() if not column.excluded_because}
        notes += note_lookalikes(frame, (n for n, column in inputs.items() if column.categories is not None))
    if not inputs:
        raise InputError(f"data must have a column besides the target, got {listing(frame.columns)}")
    return Table(
        name=name,
        features=np.stack([column.values for column in inputs.values()], axis=1),
        label=label,
        group=group,
        feature_names=tuple(inputs),
        label_names=label_names,
        grouping=grouping,
        categories={n: column.categories for n, column in inputs.items() if column.categories is not None},
        client=client,
        client_names=tuple(clients),
        notes=tuple(notes),
        target=columns.target,
        encode=encode,
        dates={n: column.date for n, column in inputs.items() if column.date},
        bands={n: column.cuts for n, column in sensitive.items() if column.cuts},
        stratified=tidy,
    )


def _usable_rows(frame: pd.DataFrame, columns: Columns, notes: list[str]) -> pd.DataFrame:
    """The rows that have a label and, if so wished, a group."""
    target = frame[columns.target]
    if target.isna().any():
        notes.append(f"{columns.target}: {int(target.isna().sum()):,} rows without a value are left out")
        frame = frame[target.notna()].reset_index(drop=True)
    for name in columns.sensitive if columns.missing_group in (DROP, KEEP) else ():
        missing, target = frame[name].isna(), frame[columns.target]
        is_dropped = columns.missing_group == DROP
        if missing.any() and (is_dropped or is_too_small(target[missing], target)):
            why = "are left out (--missing-group)" if is_dropped else "are too few for a group, and left out"
            notes.append(f"{name}: {int(missing.sum()):,} rows without a value {why}")
            frame = frame[~missing].reset_index(drop=True)
    if frame.empty:
        raise InputError("data must have a row with a label and a group")
    return frame


def _check_columns(frame: pd.DataFrame, columns: Columns) -> None:
    named = {
        "target": [columns.target],
        "sensitive": columns.sensitive,
        "client-column": [] if columns.client is None else [columns.client],
        "drop": columns.drop,
        "categorical": columns.categorical,
        "keep": columns.keep,
    }
    for argument, names in named.items():
        for column in names:
            if column not in frame.columns:
                raise unknown(f"column for {argument}", column, frame.columns)
    for argument in ("sensitive", "client-column", "drop", "categorical"):
        if columns.target in named[argument]:
            raise InputError(f"{argument} must be another column than target, got '{columns.target}'")
    repeated = [name for name in columns.sensitive if columns.sensitive.count(name) > 1]
    if repeated:
        raise InputError(f"sensitive must name each column once, got '{repeated[0]}' twice")
    for column, _ in columns.privileged:
        if column not in columns.sensitive:
            raise unknown("sensitive column for privileged", column, columns.sensitive)


def note_merged_outcomes(values: pd.Series[Any], favourable: str) -> str:
    """Say which outcomes are counted together against the favourable one, with the rows of each."""
    texts = encode_texts(values)
    merged = [
        f"{name} ({rows:,} row{'' if rows == 1 else 's'})"
        for name, rows in zip(texts.names, texts.rows.tolist(), strict=True)
        if name != favourable
    ]
    outcomes = listing(merged, MOST_OUTCOMES)
    return f"{values.name}: '{favourable}' against all other outcomes, counted as {OTHERS}: {outcomes}"


def _label(
    values: pd.Series[Any], columns: Columns, tidy: bool, notes: list[str]
) -> tuple[NDArray[np.int8], tuple[str, str]]:
    """(rows,) 1 for the favourable outcome, and the names of both."""
    codes, names = encode_complete(values, "target")
    is_merged = tidy and columns.favourable is not None and 2 < len(names) <= MOST_OUTCOMES
    if len(names) != 2 and not is_merged:
        raise InputError(
            f"target must have two values, got {len(names)} in column '{values.name}': {listing(names)}"
        )
    if columns.favourable is not None:
        favourable = find_value(columns.favourable, names, "favourable", values.name)
    elif names == ["0", "1"]:
        favourable = 1
    else:
        raise InputError(
            f"favourable must name the good outcome of column '{values.name}' ({listing(names)})"
        )
    other = OTHERS if is_merged else names[1 - favourable]
    if is_merged:
        notes.append(note_merged_outcomes(values, names[favourable]))
    return (codes == favourable).astype(np.int8), (other, names[favourable])
