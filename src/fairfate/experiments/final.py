"""The released models in detail: which scores they give to whom, and what they do at each client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.experiments.results import count_columns
from fairfate.experiments.tables import MOST_ROWS, as_kinds, check_between, check_finite, frame_of, read_table
from fairfate.fairness.metrics import Counts, Values
from fairfate.fairness.thresholds import BINS, apply, histogram
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.storage import replacing
from fairfate.strategies import Spec

SCORES, LOCAL = "scores.parquet", "local.parquet"
LINE = ["strategy", "metric", "settings", "seed"]


class Released(NamedTuple):
    """A strategy's model, ready to be used."""

    spec: Spec
    params: Models
    thresholds: Values | None


class Final(NamedTuple):
    """What is known of the released models of one seed, or of all."""

    scores: pd.DataFrame
    """A row for each model and bin: test rows by group and label with such a score, ``n_GROUP_LABEL``, and
    the models' decision thresholds, ``cut_GROUP``, as probabilities."""
    local: pd.DataFrame | None = None
    """A row for each model and client: its own rows, which it trained on, by group, label and decision.
    None where clients tell nobody of their rows."""

    @classmethod
    def together(cls, each: Sequence[Final]) -> Final:
        """Of all seeds."""
        local = [one.local for one in each if one.local is not None]
        scores = pd.concat([one.scores for one in each], ignore_index=True)
        return cls(scores, pd.concat(local, ignore_index=True) if local else None)


def describe(model: Model, released: Sequence[Released], federation: Federation, seed: int) -> Final:
    """Score the released models on the test rows, and on the rows of each client."""
    scores = score_table(model, released, federation.test, federation.groups, seed)
    return Final(scores, _local(model, released, federation, seed))


def score_table(
    model: Model, released: Sequence[Released], rows: PackedRows, groups: int, seed: int
) -> pd.DataFrame:
    """How many rows of each group and label get which score."""
    frames = []
    for one in released:
        found = histogram(model.margins(one.params, rows)).reshape(2 * groups, BINS)
        cuts = np.zeros(groups) if one.thresholds is None else one.thresholds
        columns: dict[str, Any] = {**_about(one.spec, seed), "bin": np.arange(BINS)}
        columns |= {f"n_{g}_{y}": found[2 * g + y] for g in range(groups) for y in range(2)}
        columns |= {f"cut_{g}": _probability(cuts[g]) for g in range(groups)}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def _probability(margin: float) -> float:
    return float(1 / (1 + np.exp(-np.clip(margin, -700, 700))))


def _local(model: Model, released: Sequence[Released], federation: Federation, seed: int) -> pd.DataFrame:
    names, counts = [], []
    for name, rows in _clients(federation):
        names.append(name)
        counts.append(_decide(model, released, rows))
    held = np.stack(counts, axis=1)  # (models, clients, groups, 2, 2)
    frames = []
    for one, of in zip(released, held, strict=True):
        cells = dict(zip(count_columns(federation.groups), of.reshape(len(names), -1).T, strict=True))
        frames.append(pd.DataFrame({**_about(one.spec, seed), "name": names, **cells}))
    return pd.concat(frames, ignore_index=True)


def _clients(federation: Federation) -> Iterator[tuple[str, PackedRows]]:
    """Those that have rows, packed one after another so that memory stays small."""
    for k, name in enumerate(federation.client_names):
        if federation.sizes[k]:
            yield name, federation.rows.packed(k, federation.groups)


def _decide(model: Model, released: Sequence[Released], rows: PackedRows) -> Counts:
    """(models, groups, 2, 2) the models' decisions."""
    counts = model.count(np.stack([one.params for one in released]), rows)
    for number, one in enumerate(released):
        if one.thresholds is not None:
            counts[number] = apply(model.margins(one.params, rows), one.thresholds)
    return counts


def _about(spec: Spec, seed: int) -> dict[str, object]:
    return {"strategy": spec.label, "metric": spec.metric, "settings": spec.settings_json, "seed": seed}


def write_final(folder: Path, final: Final, names: tuple[str, str] = (SCORES, LOCAL)) -> list[Path]:
    """Write both tables as Parquet; equal values give equal bytes."""
    paths = []
    for name, frame in zip(names, final, strict=True):
        if frame is None:
            continue
        kinds = dict.fromkeys(("strategy", "metric", "settings", "name"), pa.string())
        schema = pa.schema([(column, kinds.get(column) or _kind(str(column))) for column in frame.columns])
        table = pa.Table.from_pandas(frame, schema, preserve_index=False).replace_schema_metadata(None)
        with replacing(folder / name) as temporary:
            pq.write_table(table, temporary, compression="zstd")
        paths.append(folder / name)
    return paths


def _kind(column: str) -> pa.DataType:
    return pa.float64() if column.startswith("cut_") else pa.int64()


def read_final(
    folder: Path, names: tuple[str, str] = (SCORES, LOCAL), groups: int | None = None
) -> Final | None:
    """Both tables; None for runs of older versions. A run on Flower has scores only.

    Parameters
    ----------
    folder : where they are
    names : their files'
    groups : how many groups they must count; as many as they do if None
    """
    scores, local = (folder / name for name in names)
    if not scores.is_file():
        return None
    return Final(_read_scores(scores, groups), _read_local(local, groups) if local.is_file() else None)


def _read_scores(file: Path, groups: int | None) -> pd.DataFrame:
    table = read_table(file, file.name)
    groups = _held(table, 2) if groups is None else groups
    counts = [f"n_{g}_{y}" for g in range(groups) for y in range(2)]
    found = _checked(
        table, ["strategy", "settings"], ["bin", *counts], file, [f"cut_{g}" for g in range(groups)]
    )
    if len(found) % BINS or (found["bin"].to_numpy().reshape(-1, BINS) != np.arange(BINS)).any():
        raise InputError(f"run must hold scores in {BINS} bins for each model, got others in '{file}'")
    return found


def _read_local(file: Path, groups: int | None) -> pd.DataFrame:
    table = read_table(file, file.name)
    counts = count_columns(_held(table, 4) if groups is None else groups)
    return _checked(table, ["strategy", "settings", "name"], counts, file)


def _held(table: pa.Table, cells: int) -> int:
    """How many groups a table counts."""
    return len([name for name in table.column_names if name.startswith("n_")]) // cells


def _checked(
    table: pa.Table, texts: Sequence[str], whole: Sequence[str], file: Path, shares: Sequence[str] = ()
) -> pd.DataFrame:
    """A table of models with these columns, and no others of counts."""
    kinds = dict.fromkeys(texts, pa.string()) | dict.fromkeys(("seed", *whole), pa.int64())
    kinds |= dict.fromkeys(shares, pa.float64())
    odd = [name for name in table.column_names if name.startswith(("n_", "cut_")) and name not in kinds]
    if odd:
        raise InputError(f"run must hold a {file.name} with counts of its groups, got '{odd[0]}' in '{file}'")
    found = frame_of(as_kinds(table, {**kinds, "metric": pa.string()}, list(kinds), file))
    check_between(found, whole, (0, MOST_ROWS), file)
    check_finite(found, shares, file)
    return found


def histograms_of(scores: pd.DataFrame) -> NDArray[np.int64]:
    """(models, groups, 2, bins) from the rows of `Final.scores`."""
    columns = [name for name in scores.columns if str(name).startswith("n_")]
    rows = scores[columns].to_numpy(dtype=np.int64).reshape(-1, BINS, len(columns))
    return rows.transpose(0, 2, 1).reshape(len(rows), -1, 2, BINS)
