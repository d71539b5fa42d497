"""What a run leaves behind: rounds, summary, models and config, each file whole or not there."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
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
from fairfate.experiments.sheet import Sheet, deviations, means
from fairfate.experiments.tables import (
    MOST_ROUNDS,
    MOST_ROWS,
    as_kinds,
    check_between,
    check_finite,
    check_settings,
    frame_of,
    read_table,
)
from fairfate.fairness.metrics import METRICS, Counts, Metric, acceptance
from fairfate.storage import csv_text, read_arrays, replacing, short_name, write_bytes
from fairfate.strategies import Notes
from fairfate.strategies.registry import short_names

CONFIG, ROUNDS, SUMMARY, MODELS, CELLS = (
    "config.toml",
    "rounds.parquet",
    "summary.csv",
    "models",
    "cells",
)
CLIENTS = "clients.parquet"
REPORT, CARD = "report.html", "model-card.md"
REPORT_FILES = (REPORT, "report.json", "report-audit.csv", "report-tests.csv", CARD)
"""What is made from the other files."""
PARTS = "clients"
"""Folder for the records of finished seeds, until all are."""
DATE = "date.txt"
"""The day of the run."""
BEST = "best.safetensors"
"""The model to take, beside the others."""
CONFIGS = "configs"
"""Of a sweep."""
LAST = 20
"""How many rounds the summary averages beside the last one."""

KEYS = ["dataset", "partition", "protocol", "strategy", "metric", "settings"]
FORMAT = 2
"""Of ``rounds.parquet``: 2 holds counts by group, label and prediction; 1 held metrics only."""
_COLUMNS: dict[str, pa.DataType] = {
    **{key: pa.string() for key in KEYS},
    "seed": pa.int64(),
    "round": pa.int64(),
    "split": pa.string(),
    **{name: pa.float64() for name in METRICS},
    "acceptance": pa.float64(),
    "lam": pa.float64(),
    "beta": pa.float64(),
    "fair_clients": pa.int64(),
    "notes": pa.string(),
}
_ABOUT = b"fairfate"


def today() -> str:
    """The day, or that of SOURCE_DATE_EPOCH, by which others make the same bytes again."""
    now = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(now), UTC) if now.isdigit() else datetime.now(UTC)
    return moment.date().isoformat()


def read_date(folder: Path) -> str:
    """The day of a run; empty where it is not known."""
    file = folder / DATE
    text = file.read_text("utf-8", errors="replace").strip() if file.is_file() else ""
    return text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else ""


def count_columns(groups: int) -> list[str]:
    """The columns that hold counts: ``n_GROUP_LABEL_PREDICTION``."""
    return [f"n_{g}_{y}_{p}" for g in range(groups) for y in range(2) for p in range(2)]


def counts_of(rounds: pd.DataFrame | Sheet) -> Counts:
    """(rows, groups, 2, 2) the counts of rounds that have them."""
    columns = [str(name) for name in rounds.columns if _COUNT.fullmatch(str(name))]
    if not columns:
        raise InputError("run must hold counts, got one of an older version: run it again")
    counts = np.stack([np.asarray(rounds[name], dtype=np.int64) for name in columns], axis=1)
    return counts.reshape(len(rounds), len(columns) // 4, 2, 2)


def is_untrained(rounds: pd.DataFrame | Sheet) -> NDArray[np.bool_]:
    """(rows,) whether every round so far was discarded: the model is the one that training began with."""
    if "notes" not in rounds:
        return np.zeros(len(rounds), dtype=bool)
    return np.array(
        [isinstance(text, str) and f'"{UNTRAINED}": ' in text for text in rounds["notes"]], dtype=bool
    )


class Named(Protocol):
    """A strategy's names in tables: what a `Spec` has, or what a file says of one."""

    @property
    def label(self) -> str: ...  # noqa: D102

    @property
    def metric(self) -> str | None: ...  # noqa: D102

    @property
    def settings_json(self) -> str: ...  # noqa: D102


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
    columns["acceptance"] = acceptance(counts)
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


def rounds_table(frame: pd.DataFrame, about: Mapping[str, Any]) -> pa.Table:
    """Rounds for Parquet; missing numbers of a strategy are nulls, undefined metrics are NaN."""
    fields = {**_COLUMNS, **{name: pa.int64() for name in frame.columns if str(name).startswith("n_")}}
    columns = {
        name: pa.array(
            frame[name].to_numpy(),
            type=kind,
            from_pandas=name not in (*METRICS, "acceptance"),
            safe=name != "fair_clients",
        )
        for name, kind in fields.items()
    }
    text = json.dumps({"format": FORMAT, **about})
    return pa.table(columns, schema=pa.schema(fields)).replace_schema_metadata({_ABOUT: text})


def empty_rounds(groups: Groups | None) -> pd.DataFrame:
    """No rounds, with their columns."""
    names = [*_COLUMNS, *count_columns(0 if groups is None else len(groups))]
    found: pd.DataFrame = rounds_table(pd.DataFrame(columns=names), {}).to_pandas()
    return found


def write_rounds(path: Path, frame: pd.DataFrame, groups: Groups) -> None:
    """Write rounds as Parquet, with what the groups are."""
    with replacing(path) as temporary:
        pq.write_table(rounds_table(frame, about_groups(groups)), temporary, compression="zstd")


def about_groups(groups: Groups) -> dict[str, Any]:
    """What the groups are, for a file's header."""
    about = {"attributes": groups.attributes, "values": groups.values, "members": groups.members}
    return {**about, "missing-counts": True} if groups.missing_counts else about


def read_rounds(path: str | Path) -> pd.DataFrame:
    """Read ``rounds.parquet``, from its path or its run's folder."""
    return read_sheet(path).frame


def read_sheet(path: str | Path) -> Sheet:
    """The same without pandas."""
    file = Path(path)
    file = file / ROUNDS if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"run must be the folder of a finished run, got '{path}' (no {ROUNDS})")
    table = read_table(file, ROUNDS)
    kinds = {name: kind for name, kind in _COLUMNS.items() if name in table.column_names}
    kinds |= {name: kind for name, kind in _COLUMNS.items() if name not in ("acceptance", "notes")}
    kinds |= {name: pa.int64() for name in table.column_names if _COUNT.fullmatch(name)}
    given = ("dataset", "partition", "protocol", "strategy", "settings", "seed", "round", "split")
    sheet = Sheet.of_table(as_kinds(table, kinds, given, file))
    counts = [name for name in table.column_names if _COUNT.fullmatch(name)]
    if sorted(counts) != sorted(count_columns(len(counts) // 4)):
        raise InputError(f"run must hold a {ROUNDS} with counts of whole groups, got '{file}'")
    check_settings(sheet, file)
    check_between(sheet, counts, (0, MOST_ROWS), file)
    check_between(sheet, ["round"], (1, MOST_ROUNDS), file)
    check_finite(sheet, [name for name in (*METRICS, "acceptance") if name in kinds], file)
    return sheet


_COUNT = re.compile(r"n_\d+_[01]_[01]")


def read_groups(path: str | Path) -> Groups | None:
    """What the groups of a run are; None for one of an older version."""
    file = Path(path) / ROUNDS if Path(path).is_dir() else Path(path)
    try:
        schema = pq.read_schema(file.absolute())
        about = json.loads((schema.metadata or {}).get(_ABOUT, b"{}"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"run must hold a {ROUNDS} with a header of ours, got '{file}' ({error})") from None
    found = groups_in(about)
    counts = sum(_COUNT.fullmatch(name) is not None for name in schema.names)
    if found is not None and counts != 4 * len(found):
        raise InputError(f"run must hold counts of {len(found)} groups, got {counts} columns in '{file}'")
    return found


def groups_in(about: Mapping[str, Any]) -> Groups | None:
    """The inverse of `about_groups`; None if there is nothing."""
    if not isinstance(about, Mapping):
        raise InputError(f"run must say by name what its groups are, got {about!r}")
    if "members" not in about:
        return None
    try:
        values = tuple(tuple(str(one) for one in of) for of in about["values"])
        members = tuple(tuple(int(one) for one in of) for of in about["members"])
        missing_counts = about.get("missing-counts") is True
        found = Groups(tuple(map(str, about["attributes"])), values, members, missing_counts)
        sizes = [len(of) for of in values]
        right = len(sizes) == len(found.attributes) and len(members) > 0 and len(set(members)) == len(members)
        for member in members:
            inside = all(0 <= one < size for one, size in zip(member, sizes, strict=True))
            right = right and inside
    except (TypeError, ValueError, KeyError):
        right = False
    if not right:
        raise InputError(f"run must say what its groups are, got {listing(map(str, about.items()), 3)}")
    return found


def write_clients(path: Path, frame: pd.DataFrame) -> None:
    """Write who took part in each round, as Parquet; equal values give equal bytes.

    pandas would write down how each column is held, which differs once a part has been read from a file.
    """
    whole, text = pa.int64(), pa.string()
    kinds = dict.fromkeys(("name", "outcome", "reason", "strategy", "metric", "settings"), text)
    kinds |= {"round": whole, "seed": whole}
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in frame.columns])
    table = pa.Table.from_pandas(frame, schema, preserve_index=False).replace_schema_metadata(None)
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def part_file(folder: Path, seed: int) -> Path:
    """The record of the clients of one finished seed, while others are not finished."""
    return folder / PARTS / f"seed-{seed}.parquet"


def read_clients(path: str | Path) -> pd.DataFrame:
    """Read who took part in each round of a run."""
    file = Path(path) / CLIENTS if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"run must hold a record of its clients, got '{path}' (no {CLIENTS})")
    table = read_table(file, CLIENTS)
    texts = ("name", "outcome", "reason", "strategy", "metric", "settings")
    kinds = {**dict.fromkeys(texts, pa.string()), "round": pa.int64(), "seed": pa.int64()}
    given = ("name", "outcome", "strategy", "settings", "round", "seed")
    found = frame_of(as_kinds(table, kinds, given, file))
    check_settings(found, file)
    check_between(found, ["round"], (1, MOST_ROUNDS), file)
    odd = sorted(set(found["outcome"]) - set(OUTCOMES))
    if odd:
        raise InputError(f"each outcome in {CLIENTS} must be one of {'|'.join(OUTCOMES)}, got '{odd[0]}'")
    if not len(found):
        raise InputError(f"run must hold a record of its clients, got '{file}' without rows")
    return found


def summarise(rounds: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds on the test rows: last round, and mean of the last rounds.

    The standard deviation has n - 1 in its denominator and is NaN for one seed.
    """
    return summary_of(Sheet.of_frame(rounds)).frame


def summary_of(rounds: Sheet, metrics: Sequence[str] = tuple(METRICS)) -> Sheet:
    """The same without pandas. An undefined metric makes its mean undefined; nothing is left out."""
    test = rounds.where(rounds["split"] == "test")
    line, first = test.numbered(*KEYS)
    model, of_model = test.numbered(*KEYS, "seed")
    values = np.stack([np.asarray(test[name], dtype=np.float64) for name in metrics], axis=1)
    number, last = test["round"], test["round"].max(initial=0)
    found: dict[str, Any] = {key: test[key][first] for key in KEYS}
    found["seeds"] = np.bincount(line[of_model], minlength=len(first))
    for kind, rows in (("last", number == last), ("last20", number > last - LAST)):
        each = means(values[rows], model[rows], len(of_model))
        known = np.unique(model[rows])
        for statistic, over in (("mean", means), ("std", deviations)):
            of_line = over(each[known], line[of_model[known]], len(first))
            found |= {f"{name}_{kind}_{statistic}": of_line[:, m] for m, name in enumerate(metrics)}
    return Sheet(found)


def row_names(rows: pd.DataFrame | Sheet) -> list[str]:
    """Short names for rows with a strategy, a metric and settings: only what tells them apart."""
    named = []
    for strategy, metric, settings in zip(rows["strategy"], rows["metric"], rows["settings"], strict=True):
        own = {"metric": metric} if isinstance(metric, str) else {}
        named.append((str(strategy), {**own, **json.loads(str(settings))}))
    return short_names(named)


def summary_text(summary: pd.DataFrame) -> str:
    """The summary as CSV."""
    return csv_text(summary)


def write_summary(path: Path, summary: pd.DataFrame) -> None:
    """Write the summary as CSV."""
    write_bytes(path, summary_text(summary).encode())


def model_file(label: str, seed: int) -> str:
    """The name of a model's file, from its strategy's label and its seed.

    >>> model_file("fedmom(beta=0.8)", 3)
    'fedmom-beta=0.8-seed-3.safetensors'
    """
    text = short_name(re.sub(r"[^A-Za-z0-9.=_]+", "-", label).strip("-"))
    return f"{text}-seed-{seed}.safetensors"


def clear_models(folder: Path) -> None:
    """Remove the models of a run, and the folder if that leaves it empty."""
    for path in folder.glob("*.safetensors"):
        if re.search(r"-seed-\d+$", path.stem) or path.name == BEST:
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def read_model(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays of a saved model, and what is known about it: strategy, columns, categories."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"model must be a .safetensors file, got '{file}' (no such file)")
    try:
        return read_arrays(file)
    except ValueError as error:
        raise InputError(f"model must be a file that a run has written, got '{file}' ({error})") from None
