"""Which columns a model relies on: how much its AUC falls when a column's values are permuted."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data import Table
from fairfate.errors import InputError
from fairfate.experiments.plan import Plan
from fairfate.fairness.thresholds import auc, histogram
from fairfate.models.fair_model import FairModel
from fairfate.models.rows import PackedRows
from fairfate.storage import csv_text, write_bytes

IMPORTANCES = "importances.csv"
MOST_COLUMNS, MOST_ROWS, REPEATS = 200, 5000, 3
"""Nothing is measured for more columns; of more test rows, the first."""


class Importance(NamedTuple):
    """A column, and by how much the AUC on test rows falls without it."""

    column: str
    drop: float


def importances(plan: Plan, table: Table, model: FairModel, seed: int) -> tuple[Importance, ...]:
    """The columns of a model by their importance, the largest first; none for very wide tables."""
    if len(table.feature_names) > MOST_COLUMNS:
        return ()
    streams = plan.streams(seed)
    rows, encoder = np.sort(plan.assign(table, streams).test)[:MOST_ROWS], model.schema.encoder
    scored = plan.model(encoder.inputs, model.schema)
    params = np.asarray(scored.flat(dict(model.arrays)), dtype=np.float32)

    def measure(features: np.ndarray) -> float:
        packed = PackedRows.pack(encoder.transform(features), table.cell[rows], table.groups)
        return float(auc(histogram(scored.margins(params, packed))))

    features = table.features[rows]
    whole, drops = measure(features), []
    for column, name in enumerate(table.feature_names):
        without = []
        for repeat in range(REPEATS):
            permuted = features.copy()
            permuted[:, column] = features[streams.permuted(len(rows), column, repeat), column]
            without.append(measure(permuted))
        drops.append(Importance(name, whole - sum(without) / REPEATS))
    return tuple(sorted(drops, key=lambda importance: -importance.drop))


def write_importances(path: Path, drops: tuple[Importance, ...]) -> None:
    """Write them as CSV."""
    write_bytes(path, csv_text(pd.DataFrame(drops, columns=["column", "auc_drop"])).encode())


def read_importances(folder: Path) -> tuple[Importance, ...]:
    """Those of a run's folder; none where there is no recommended model."""
    file = folder / IMPORTANCES
    if not file.is_file():
        return ()
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return tuple(Importance(row["column"], float(row["auc_drop"])) for row in csv.DictReader(lines))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"run must hold an {IMPORTANCES} that a run has written, got '{file}' ({error})"
        ) from None
