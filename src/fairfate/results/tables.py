"""The tables of a run: rounds, clients, scores and decisions at clients, each with one schema.

Files are Parquet; equal values give equal bytes. What is read is checked once, against the
schema: what no run has written is an `InputError` that names the file and the column.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.engine.record import OUTCOMES
from fairfate.engine.server import UNTRAINED
from fairfate.errors import InputError, listing
from fairfate.fairness.metrics import METRICS, Counts, Metric, selection_rate
from fairfate.fairness.thresholds import BINS
from fairfate.results.folder import CLIENTS, LOCAL, ROUNDS, SCORES
from fairfate.storage import replacing
from fairfate.strategies import Notes

STRATEGY = ["strategy", "metric", "settings"]
"""What tells the strategies of one config apart."""
KEYS = ["dataset", "partition", "protocol", *STRATEGY]
MOST_ROWS = 10**12
"""That a table may count: sums of many such numbers are still exact."""
MOST_ROUNDS = 10**7
"""As a run may have."""
_ABOUT = b"fairfate"


class Column(NamedTuple):
    """What a column holds."""

    kind: pa.DataType
    is_given: bool = False
    """Whether every row has a value."""
    ends: tuple[int, int] | None = None
    """The least and the largest number."""
    is_finite: bool = False
    """Whether its numbers are finite or NaN."""
    keeps_nan: bool = False
    """Whether NaN is written as such, and not as a missing number."""


_TEXT, _GIVEN_TEXT = Column(pa.string()), Column(pa.string(), is_given=True)
_SEED, _NUMBER = Column(pa.int64(), is_given=True), Column(pa.float64())
_COUNT, _ROUND = Column(pa.int64(), True, (0, MOST_ROWS)), Column(pa.int64(), True, (1, MOST_ROUNDS))
_METRIC = Column(pa.float64(), is_finite=True, keeps_nan=True)
_THRESHOLD = Column(pa.float64(), is_given=True, is_finite=True)
_MODEL = {"strategy": _GIVEN_TEXT, "metric": _TEXT, "settings": _GIVEN_TEXT, "seed": _SEED}


class TableSchema(NamedTuple):
    """The columns of a table; it may have more, which are numbers."""

    columns: Mapping[str, Column]
    counts: int = 0
    """How many numbers name a column of counts: 3 for ``n_GROUP_LABEL_PREDICTION``, 2 without the last."""
    has_thresholds: bool = False
    """Whether there is a column ``cut_GROUP`` for each group."""

    def groups_of(self, frame: pd.DataFrame) -> int:
        """How many groups a table counts."""
        counts = sum(str(name).startswith("n_") for name in frame.columns)
        return counts // {0: 1, 2: 2, 3: 4}[self.counts]

    def for_groups(self, groups: int) -> dict[str, Column]:
        """All columns of a table that counts so many groups."""
        columns = {**self.columns}
        if self.counts:
            columns |= dict.fromkeys(count_columns(groups, self.counts), _COUNT)
        if self.has_thresholds:
            columns |= {f"cut_{g}": _THRESHOLD for g in range(groups)}
        return columns


SCHEMAS = {
    ROUNDS: TableSchema(
        {
            **dict.fromkeys(("dataset", "partition", "protocol"), _GIVEN_TEXT),
            **_MODEL,
            "round": _ROUND,
            "split": _GIVEN_TEXT,
            **dict.fromkeys((*METRICS, "selection_rate"), _METRIC),
            **{"lam": _NUMBER, "beta": _NUMBER, "fair_clients": Column(pa.int64()), "notes": _TEXT},
        },
        counts=3,
    ),
    CLIENTS: TableSchema(
        {"round": _ROUND, "name": _GIVEN_TEXT, "outcome": _GIVEN_TEXT, "reason": _TEXT, **_MODEL}
    ),
    SCORES: TableSchema({**_MODEL, "bin": _COUNT}, counts=2, has_thresholds=True),
    LOCAL: TableSchema({**_MODEL, "name": _GIVEN_TEXT}, counts=3),
}
"""Of each file."""


def count_columns(groups: int, numbers: int = 3) -> list[str]:
    """The columns that hold counts: ``n_GROUP_LABEL_PREDICTION``, or without the prediction."""
    cells = itertools.product(range(groups), *[range(2)] * (numbers - 1))
    return ["_".join(("n", *map(str, cell))) for cell in cells]


def counts_of(rows: pd.DataFrame) -> Counts:
    """(rows, groups, 2, 2) the counts of rounds, or of decisions at clients."""
    groups = SCHEMAS[LOCAL].groups_of(rows)
    if not groups:
        raise InputError("rounds must have counts by group")
    return rows[count_columns(groups)].to_numpy(dtype=np.int64).reshape(len(rows), groups, 2, 2)


def histograms_of(scores: pd.DataFrame) -> NDArray[np.int64]:
    """(models, groups, 2, bins) from the rows of a table of scores."""
    columns = count_columns(SCHEMAS[SCORES].groups_of(scores), 2)
    rows = scores[columns].to_numpy(dtype=np.int64).reshape(-1, BINS, len(columns))
    return rows.transpose(0, 2, 1).reshape(len(rows), -1, 2, BINS)


def is_untrained(rounds: pd.DataFrame) -> NDArray[np.bool_]:
    """(rows,) whether every round so far was discarded: the model is the one that training began with."""
    notes = rounds["notes"] if "notes" in rounds else [None] * len(rounds)
    return np.array([isinstance(text, str) and f'"{UNTRAINED}": ' in text for text in notes], dtype=bool)


# ---------------------------------------------------------------- making


class Named(Protocol):
    """A strategy's names in tables: what a `Spec` has, or what a file says of one."""

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def metric(self) -> str | None: ...  # noqa: D102

    @property
    def settings_json(self) -> str: ...  # noqa: D102


def model_key(spec: Named, seed: int) -> dict[str, Any]:
    """The columns that say whose row it is."""
    return {"strategy": spec.label, "metric": spec.metric, "settings": spec.settings_json, "seed": seed}


class Line(NamedTuple):
    """What one strategy, with its steps, did in some rounds."""

    spec: Named
    rounds: Sequence[int]
    splits: Mapping[str, Sequence[Counts]]
    """For each split, (groups, 2, 2) counts of every round."""
    notes: Sequence[Notes]


def rounds_frame(
    key: Mapping[str, object], lines: Sequence[Line], metrics: Mapping[str, Metric]
) -> pd.DataFrame:
    """Rows for lines x splits x rounds.

    Parameters
    ----------
    key : dataset, partition, protocol and seed
    lines : what was measured
    metrics : how to make the columns of metrics from counts
    """
    sizes = [len(line.rounds) * len(line.splits) for line in lines]
    counts = np.concatenate([np.asarray(values) for line in lines for values in line.splits.values()])
    columns: dict[str, Any] = dict(key)
    for name, value in (("strategy", "label"), ("metric", "metric"), ("settings", "settings_json")):
        columns[name] = np.repeat(
            np.array([getattr(line.spec, value) for line in lines], dtype=object), sizes
        )
    columns["round"] = np.concatenate([np.tile(line.rounds, len(line.splits)) for line in lines])
    columns["split"] = [split for line in lines for split in line.splits for _ in line.rounds]
    columns |= {name: metric(counts) for name, metric in metrics.items()}
    columns["selection_rate"] = selection_rate(counts)
    noted = [note for line in lines for note in [*map(_noted, line.notes)] * len(line.splits)]
    columns |= dict(zip(("lam", "beta", "fair_clients", "notes"), zip(*noted, strict=True), strict=True))
    columns |= dict(zip(count_columns(counts.shape[1]), counts.reshape(len(counts), -1).T, strict=True))
    return pd.DataFrame(columns)


_OWN_COLUMN = ("lam", "beta", "fair")


def _noted(notes: Notes) -> tuple[float, float, float, str | None]:
    """A round's notes as columns: those that every strategy of the paper has, and the others as JSON."""
    if not notes:
        return math.nan, math.nan, math.nan, None
    fair = math.nan if "fair" not in notes else float(np.add.reduce(notes["fair"], axis=None))
    others = {key: float(v) for key, v in notes.items() if key not in _OWN_COLUMN and np.ndim(v) == 0}
    return (
        notes.get("lam", math.nan),
        notes.get("beta", math.nan),
        fair,
        json.dumps(others) if others else None,
    )


def empty_rounds(groups: Groups) -> pd.DataFrame:
    """No rounds, with their columns."""
    frame = pd.DataFrame(columns=list(SCHEMAS[ROUNDS].for_groups(len(groups))))
    return _frame(rounds_table(frame, {}))


# ---------------------------------------------------------------- writing


def arrow_table(frame: pd.DataFrame, columns: Mapping[str, Column]) -> pa.Table:
    """A frame for Parquet, without what pandas would write down of how it holds the columns."""
    arrays, fields = [], []
    for name in map(str, frame.columns):
        column = columns.get(name, _NUMBER)
        values, has_gaps = frame[name].to_numpy(), not column.keeps_nan
        arrays.append(pa.array(values, column.kind, from_pandas=has_gaps, safe=column.is_given))
        fields.append((name, column.kind))
    return pa.table(arrays, schema=pa.schema(fields))


def rounds_table(frame: pd.DataFrame, about: Mapping[str, Any]) -> pa.Table:
    """Rounds for Parquet; missing numbers of a strategy are nulls, undefined metrics are NaN."""
    columns = SCHEMAS[ROUNDS].for_groups(SCHEMAS[ROUNDS].groups_of(frame))
    table = arrow_table(frame[list(columns)], columns)
    return table.replace_schema_metadata({_ABOUT: json.dumps(dict(about))})


def write_rounds(path: Path, frame: pd.DataFrame, groups: Groups) -> None:
    """Write rounds, with what the groups are."""
    _write(path, rounds_table(frame, about_groups(groups)))


def write_table(path: Path, frame: pd.DataFrame, name: str) -> None:
    """Write a table of clients, of scores, or of decisions at clients: ``name`` is its file's in a run."""
    schema = SCHEMAS[name]
    _write(path, arrow_table(frame, schema.for_groups(schema.groups_of(frame))))


def _write(path: Path, table: pa.Table) -> None:
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def about_groups(groups: Groups) -> dict[str, Any]:
    """What the groups are, for a file's header."""
    about = {"attributes": groups.attributes, "values": groups.values, "members": groups.members}
    return {**about, "missing-counts": True} if groups.missing_counts else about


# ---------------------------------------------------------------- reading


def read_frame(file: Path) -> pd.DataFrame:
    """A table, whatever its columns are; `InputError` if it is damaged."""
    return _frame(_read(file, file.name))


def _frame(table: pa.Table) -> pd.DataFrame:
    """A table as a frame, whatever its header says of pandas."""
    frame: pd.DataFrame = table.replace_schema_metadata(None).to_pandas()
    return frame


def _read(file: Path, name: str) -> pa.Table:
    try:
        with pq.ParquetFile(file.absolute()) as opened:
            table = opened.read()
        table.validate(full=True)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"run must hold a readable {name}, got '{file}' ({reason})") from None
    if len(set(table.column_names)) < table.num_columns:
        raise InputError(f"run must hold a {name} with each column once, got '{file}'")
    return table


def read_rounds(path: str | Path) -> pd.DataFrame:
    """Read a run's ``rounds.parquet``.

    Parameters
    ----------
    path : of the file, or of the run's folder

    Returns
    -------
    a row for each strategy, seed, round and split (validation or test), with every metric

    Examples
    --------
    >>> import fairfate, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = fairfate.run(data="synthetic:rows=300", rounds=2, seeds=1, jobs=1, out=f"{folder}/run")
    >>> rounds = fairfate.read_rounds(f"{folder}/run")
    >>> sorted(rounds["split"].unique()), int(rounds["round"].max())
    (['test', 'validation'], 2)
    """
    return read_counted_rounds(path)[0]


def read_counted_rounds(path: str | Path) -> tuple[pd.DataFrame, Groups]:
    """Rounds, and what the groups are that they are counted by."""
    file = Path(path)
    file = file / ROUNDS if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"run must be the folder of a finished run, got '{path}' (no {ROUNDS})")
    table = _read(file, ROUNDS)
    try:
        groups = groups_in(json.loads((table.schema.metadata or {})[_ABOUT]))
    except (KeyError, ValueError, RecursionError) as error:
        raise InputError(f"run must hold a {ROUNDS} with a header of a run, got '{file}' ({error})") from None
    return _checked(table, ROUNDS, len(groups), file), groups


def read_clients(path: str | Path) -> pd.DataFrame:
    """Read who took part in each round of a run."""
    file = Path(path) / CLIENTS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"run must hold a record of its clients, got '{path}' (no {CLIENTS})")
    clients = _checked(_read(file, CLIENTS), CLIENTS, 0, file)
    odd = sorted(set(clients["outcome"]) - set(OUTCOMES))
    if odd:
        raise InputError(f"each outcome in {CLIENTS} must be one of {'|'.join(OUTCOMES)}, got '{odd[0]}'")
    if not len(clients):
        raise InputError(f"run must hold a record of its clients, got '{file}' without rows")
    return clients


def read_scores(file: Path, groups: int) -> pd.DataFrame:
    """Read the scores of the released models on the test rows."""
    scores = _checked(_read(file, file.name), SCORES, groups, file)
    if len(scores) % BINS or (scores["bin"].to_numpy().reshape(-1, BINS) != np.arange(BINS)).any():
        raise InputError(f"'{file}' does not hold scores in {BINS} bins for each model")
    return scores


def read_local(file: Path, groups: int) -> pd.DataFrame:
    """Read the released models' decisions at each client."""
    return _checked(_read(file, file.name), LOCAL, groups, file)


def _checked(table: pa.Table, name: str, groups: int, file: Path) -> pd.DataFrame:
    """The table as a frame, if it fits its schema."""
    columns = SCHEMAS[name].for_groups(groups)
    prefixes = ("n_", "cut_") if SCHEMAS[name].counts else ()
    odd = [column for column in table.column_names if column.startswith(prefixes) and column not in columns]
    if odd:
        raise InputError(f"run must hold a {name} with counts of its groups, got '{odd[0]}' in '{file}'")
    for key, column in columns.items():
        if key not in table.column_names:
            raise InputError(f"run must hold a {name} with column '{key}', got '{file}'")
        index = table.column_names.index(key)
        table = table.set_column(index, key, _column(table.column(index), key, column, file))
    for text in table.column("settings").unique().to_pylist():
        if not _is_json_object(text):
            raise InputError(f"run must hold settings that a run has written, got '{text}' in '{file}'")
    return _frame(table)


def _column(values: pa.ChunkedArray, name: str, column: Column, file: Path) -> pa.ChunkedArray:
    """A column of its kind, if its values are what a run writes."""
    rule = f"run must hold a {file.name}"
    try:
        typed = values.cast(column.kind) if _is_similar(values.type, column.kind) else None
    except (ValueError, NotImplementedError):
        typed = None
    if typed is None:
        raise InputError(f"{rule} with {column.kind} in column '{name}', got {values.type} in '{file}'")
    if column.is_given and typed.null_count:
        raise InputError(f"{rule} with a value in every row of column '{name}'; '{file}' lacks some")
    if column.ends is not None or column.is_finite:
        numbers = np.asarray(typed.to_numpy(), dtype=np.float64)
        low, high = column.ends or (-np.finfo(np.float64).max, np.finfo(np.float64).max)
        odd = numbers[(numbers < low) | (numbers > high)]
        if len(odd):
            between = f"numbers from {low} to {high}" if column.ends else "finite numbers"
            raise InputError(f"column '{name}' must have {between}, got {odd[0]:g} in '{file}'")
    return typed


def _is_similar(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one kind may stand for one of another: numbers for numbers, texts for texts."""
    if pa.types.is_null(kind):
        return True
    if pa.types.is_string(wanted):
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner) or pa.types.is_null(inner))
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def groups_in(about: Mapping[str, Any]) -> Groups:
    """The inverse of `about_groups`."""
    try:
        values = tuple(tuple(str(value) for value in names) for names in about["values"])
        members = tuple(tuple(int(index) for index in member) for member in about["members"])
        attributes, missing_counts = tuple(map(str, about["attributes"])), about.get("missing-counts") is True
        sizes = [len(names) for names in values]
        is_right = len(sizes) == len(attributes) and 0 < len(set(members)) == len(members)
        for member in members:
            inside = all(0 <= index < size for index, size in zip(member, sizes, strict=True))
            is_right = is_right and inside
    except (AttributeError, TypeError, ValueError, KeyError):
        is_right = False
    if not is_right:
        items = about.items() if isinstance(about, Mapping) else [about]
        raise InputError(f"run must say what its groups are, got {listing(map(str, items), 3)}")
    return Groups(attributes, values, members, missing_counts)
