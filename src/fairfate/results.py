"""What a run leaves behind: rounds, summary, models and config, each file whole or not there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data import Schema
from fairfate.engine import mlp
from fairfate.errors import InputError
from fairfate.files import read_arrays, replacing, write_arrays, write_bytes
from fairfate.metrics import METRICS, Counts, acceptance
from fairfate.strategies import Notes, short_names

CONFIG, ROUNDS, SUMMARY, MODELS, CELLS = (
    "config.toml",
    "rounds.parquet",
    "summary.csv",
    "models",
    "cells",
)
CONFIGS = "configs"
"""Of a sweep."""
LAST = 20
"""How many rounds the summary averages beside the last one."""

KEYS = ["dataset", "partition", "protocol", "strategy", "metric", "settings"]
NOTES = ["lam", "beta", "fair_clients"]
SCHEMA = pa.schema(
    [(key, pa.string()) for key in KEYS]
    + [("seed", pa.int64()), ("round", pa.int64()), ("split", pa.string())]
    + [(name, pa.float64()) for name in METRICS]
    + [("lam", pa.float64()), ("beta", pa.float64()), ("fair_clients", pa.int64())]
)
CELL_SCHEMA = SCHEMA.append(pa.field("acceptance", pa.float64()))
"""A cell's file also says which share of the rows a model accepts."""


def rounds_frame(
    key: Mapping[str, object],
    names: Sequence[tuple[str, str | None, str]],
    rounds: Sequence[int],
    splits: Mapping[str, Counts],
    notes: Sequence[Notes],
) -> pd.DataFrame:
    """Rows for strategies x splits x rounds.

    Parameters
    ----------
    key : dataset, partition, protocol and seed
    names : strategy, metric and settings of each strategy
    rounds : their numbers
    splits : for each split, counts (strategies, rounds, groups, 2, 2)
    notes : strategies x rounds, in that order
    """
    per, frames = len(rounds), []
    noted = np.array([(note.lam, note.beta, note.fair_clients) for note in notes], dtype=np.float64)
    for split, counts in splits.items():
        columns: dict[str, Any] = dict(key)
        for position, name in enumerate(("strategy", "metric", "settings")):
            columns[name] = np.repeat(np.array([of[position] for of in names], dtype=object), per)
        columns |= {"round": np.tile(rounds, len(names)), "split": split}
        columns |= {name: metric(counts).ravel() for name, metric in METRICS.items()}
        columns["acceptance"] = acceptance(counts).ravel()
        columns |= dict(zip(NOTES, noted.T, strict=True))
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True).reindex(columns=CELL_SCHEMA.names)


def rounds_table(frame: pd.DataFrame, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rounds for Parquet; missing numbers of a strategy are nulls, undefined metrics are NaN."""
    columns = {
        field.name: pa.array(
            frame[field.name].to_numpy(),
            type=field.type,
            from_pandas=field.name not in (*METRICS, "acceptance"),
            safe=field.name != "fair_clients",
        )
        for field in schema
    }
    return pa.table(columns, schema=schema)


def write_rounds(path: Path, frame: pd.DataFrame) -> None:
    """Write rounds as Parquet."""
    with replacing(path) as temporary:
        pq.write_table(rounds_table(frame), temporary, compression="zstd")


def read_rounds(path: str | Path) -> pd.DataFrame:
    """Read ``rounds.parquet``, from its path or its run's folder."""
    file = Path(path)
    file = file / ROUNDS if file.is_dir() else file
    if not file.is_file():
        raise InputError(f"run must be the folder of a finished run, got '{path}' (no {ROUNDS})")
    try:
        frame = pd.read_parquet(file)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"run must hold a readable {ROUNDS}, got '{file}' ({reason})") from None
    lacking = [name for name in SCHEMA.names if name not in frame.columns]
    if lacking:
        raise InputError(f"run must hold a {ROUNDS} with column '{lacking[0]}', got '{file}'")
    return frame


def summarise(rounds: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds on the test rows: last round, and mean of the last rounds.

    The standard deviation has n - 1 in its denominator and is NaN for one seed.
    """
    test = rounds[rounds["split"] == "test"]
    names = list(METRICS)
    final = test[test["round"] == test["round"].max()]
    late = test[test["round"] > test["round"].max() - LAST]
    by = test.groupby(KEYS, dropna=False, sort=False)
    last = final.groupby([*KEYS, "seed"], dropna=False, sort=False)[names].mean(**_SKIP)
    mean = late.groupby([*KEYS, "seed"], dropna=False, sort=False)[names].mean(**_SKIP)
    result = by["seed"].nunique().rename("seeds").to_frame()
    for kind, values in (("last", last), ("last20", mean)):
        grouped = values.groupby(KEYS, dropna=False, sort=False)
        for statistic in ("mean", "std"):
            part = grouped.agg(statistic, **_SKIP)
            result = result.join(part.rename(columns=lambda n, s=statistic, k=kind: f"{n}_{k}_{s}"))
    return result.reset_index()


_SKIP: dict[str, Any] = {"skipna": False}
"""An undefined metric makes the mean undefined; nothing is left out in silence."""


def row_names(rows: pd.DataFrame) -> list[str]:
    """Short names for rows with a strategy, a metric and settings: only what tells them apart."""
    named = []
    for row in rows[["strategy", "metric", "settings"]].itertuples(index=False):
        own = {"metric": row.metric} if isinstance(row.metric, str) else {}
        named.append((str(row.strategy), {**own, **json.loads(str(row.settings))}))
    return short_names(named)


def write_summary(path: Path, summary: pd.DataFrame) -> None:
    """Write the summary as CSV."""
    write_bytes(path, summary.to_csv(index=False).encode())


def model_file(label: str, seed: int) -> str:
    """The name of a model's file, from its strategy's label and its seed.

    >>> model_file("fedmom(beta=0.8)", 3)
    'fedmom-beta=0.8-seed-3.safetensors'
    """
    text = re.sub(r"[^A-Za-z0-9.=_]+", "-", label).strip("-")
    return f"{text}-seed-{seed}.safetensors"


def clear_models(folder: Path) -> None:
    """Remove the models of a run, and the folder if that leaves it empty."""
    for path in folder.glob("*.safetensors"):
        if re.search(r"-seed-\d+$", path.stem):
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def write_model(
    path: Path,
    params: NDArray[Any],
    schema: Schema,
    *,
    hidden: int,
    strategy: str,
    protocol: str,
    data_checksum: str,
) -> None:
    """Write a model with all that is needed to use it: layers, encoder, columns, categories."""
    layers = mlp.arrays(params, len(schema.features), hidden)
    encoder = schema.encoder
    tensors = {
        **layers,
        "encoder.low": encoder.low,
        "encoder.span": encoder.span,
        "encoder.median": encoder.median,
    }
    about = {
        "version": __version__,
        "strategy": strategy,
        "protocol": protocol,
        "target": schema.target,
        "sensitive": schema.sensitive,
        "features": schema.features,
        "categories": dict(schema.categories),
        "groups": schema.groups,
        "labels": schema.labels,
        "data-checksum": f"sha256:{data_checksum}",
    }
    write_arrays(path, tensors, about)


def read_model(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The arrays of a saved model, and what is known about it: strategy, columns, categories."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"model must be a .safetensors file, got '{file}' (no such file)")
    try:
        return read_arrays(file)
    except ValueError as error:
        raise InputError(f"model must be a file that a run has written, got '{file}' ({error})") from None
