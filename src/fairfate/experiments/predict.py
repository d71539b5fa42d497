"""Using what a run has left: its models on new rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairfate.data import Reading, read_file
from fairfate.data.columns import free_name
from fairfate.data.readers import read_as_written
from fairfate.errors import InputError, check, listing
from fairfate.fairness.intervals import bootstrap
from fairfate.fairness.metrics import Counts, Values
from fairfate.fairness.objective import metrics_by
from fairfate.models.fair_model import TRAINED_ON, FairModel, Scored
from fairfate.models.user_network import Network
from fairfate.results.folder import BEST, MODELS, model_file
from fairfate.results.recommendation import find_line
from fairfate.results.tables import read_rounds
from fairfate.storage import check_output, csv_text, replacing, write_bytes
from fairfate.strategies import labels, parse_spec

MEASURED = ("accuracy", "balanced_accuracy", "mcc", "f1", "sp", "eo", "eqo", "sp_diff", "eo_diff", "eqo_diff")


def find_model(
    run: Path, strategy: str | None = None, seed: int | None = None, network: str | None = None
) -> tuple[FairModel, Path]:
    """A model of a run's folder, or the model file itself; without a strategy and a seed, the one to take.

    A network of the user's own is named as for the run, ``FILE.py:FUNCTION``; no file brings its code along.
    """
    model, path = _find_model(run, strategy, seed)
    if network is None:
        check("w1" in model.arrays, f"model must be given, as for the run ({model.about.get('model')})")
        return model, path
    own = Network.read(network).model(model.schema)
    return replace(model, network=own.scores), path


def _find_model(run: Path, strategy: str | None, seed: int | None) -> tuple[FairModel, Path]:
    if run.suffix == ".safetensors" or not run.is_dir():
        given = strategy is not None or seed is not None
        check(not given, "strategy and seed must be left out for a model's file", f"'{run}'")
        return FairModel.load(run), run
    folder = run / MODELS
    files = {path.name: path for path in sorted(folder.glob("*.safetensors"))} if folder.is_dir() else {}
    if not files:
        raise InputError(f"run must be the folder of a run with models, got '{run}' (none in {MODELS})")
    if strategy is None and seed is None and len(files) > 1:
        if BEST not in files:
            raise InputError(
                f"strategy must be given, since no model of '{run}' can be recommended (all collapsed, no"
                " round counted, or fairness is undefined)"
            )
        return FairModel.load(files[BEST]), files[BEST]
    named = [path for name, path in files.items() if name != BEST]
    texts = list(dict.fromkeys(str(FairModel.load(path).about["strategy"]) for path in named))
    names = labels([parse_spec(text, "eqo") for text in texts])
    line = find_line(names, texts, strategy)
    seeds = sorted(set(read_rounds(run)["seed"].tolist()))
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise InputError(f"seed must be one of the run's ({listing(seeds)}), got {chosen}")
    path = folder / model_file(names[line], chosen)
    return FairModel.load(path), path


def predict_file(
    model: FairModel,
    data: Path,
    out: Path,
    *,
    strict: bool = False,
    reading: Reading | None = None,
    force: bool = False,
) -> tuple[Scored, tuple[str, ...]]:
    """Score a file's rows and write them with two more columns: the probability, and what is decided.

    An existing file is replaced with ``force`` only, and ``data`` never.
    """
    check(out.suffix.lower() in (".csv", ".parquet"), "out must end with .csv or .parquet", f"'{out}'")
    check_output(out, data, force=force)
    reading = replace(reading or Reading(), missing=model.schema.missing)
    frame, read_notes, _ = read_file(data, reading)
    scored_rows = model.score(frame, strict=strict)
    names = [free_name(name, frame.columns) for name in ("probability", "prediction")]
    decided = np.array(model.labels, dtype=object)[scored_rows.decision]
    written = read_as_written(data, reading)
    kept = frame if written is None or len(written) != len(frame) else written
    scored = kept.assign(**{names[0]: scored_rows.probability, names[1]: decided})
    if out.suffix.lower() == ".csv":
        write_bytes(out, csv_text(scored).encode())
    else:
        with replacing(out) as temporary:
            pq.write_table(_arrow_table(scored), temporary)
    return scored_rows, (*read_notes, *scored_rows.notes)


def _arrow_table(frame: pd.DataFrame) -> pa.Table:
    """The frame for Parquet, where a column of several types (JSON Lines may have one) becomes text."""
    columns = []
    for name in frame.columns:
        column = frame[name]
        try:
            columns.append(pa.array(column, from_pandas=True))
        except (pa.ArrowTypeError, pa.ArrowInvalid):
            columns.append(
                pa.array([None if value is None or value != value else str(value) for value in column])
            )
    return pa.table(columns, names=[str(name) for name in frame.columns])


class Evaluated(NamedTuple):
    """How a model does on labelled rows."""

    counts: Counts
    metrics: pd.DataFrame
    """One row for each metric: its value, and a 95 % interval over people."""
    notes: tuple[str, ...]
    warning: str | None = None
    """Why the numbers should not be believed."""


def evaluate_file(model: FairModel, data: Path, reading: Reading | None = None) -> Evaluated:
    """Every metric on a file's labelled rows, with intervals."""
    reading = replace(reading or Reading(), missing=model.schema.missing)
    frame, read_notes, _ = read_file(data, reading)
    counts, scored = model.evaluate(frame)
    notes = tuple(note for note in (*read_notes, *scored.notes) if note != TRAINED_ON)
    warning = TRAINED_ON if TRAINED_ON in scored.notes else None
    return Evaluated(counts, metrics_with_intervals(model, counts), notes, warning)


def metrics_with_intervals(model: FairModel, counts: Counts) -> pd.DataFrame:
    """Metrics from counts, with percentile intervals over people drawn anew from them."""
    known = {name: metric for name, metric in metrics_by(model.schema.grouping).items() if name in MEASURED}
    drawn = bootstrap(counts)
    rows: list[dict[str, Any]] = []
    for name in MEASURED:
        values: Values = known[name](drawn)
        defined = values[~np.isnan(values)]
        low, high = np.quantile(defined, [0.025, 0.975]) if len(defined) else (np.nan, np.nan)
        rows.append({"metric": name, "value": float(known[name](counts)), "low": low, "high": high})
    return pd.DataFrame(rows)
