"""How much means over seeds owe to the people in the test rows, where all seeds have the same ones."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.errors import InputError
from fairfate.experiments.plan import Plan
from fairfate.fairness.intervals import resample_people
from fairfate.fairness.metrics import METRICS, Counts, Values
from fairfate.fairness.objective import bind, reported_fairness
from fairfate.models.fair_model import FairModel
from fairfate.results.recommendation import headline_metric
from fairfate.storage import csv_text, write_bytes
from fairfate.strategies import labels

PEOPLE = "people.csv"
BLOCK = 1 << 16
"""Rows that are encoded at a time."""
_DRAWS, _FEW_DRAWS, _MOST_SUMS = 1000, 200, 2 * 10**5
Covariances = Mapping[str, Values]
"""By metric, (strategies, strategies) over people, of the strategies' means over seeds."""


def people_covariances(
    plan: Plan, table: Table, models: Mapping[tuple[str, int], FairModel]
) -> Covariances | None:
    """The covariances of means over seeds, by drawing people anew; None where seeds have other test rows.

    All models decide about the same people, whose draws are the same for all of them.
    """
    if not table.is_own and table.part is None:
        return None
    tests = {seed: np.sort(plan.assign(table, plan.streams(seed)).test) for seed in plan.config.seeds}
    rows = tests[plan.config.seeds[0]]
    if any(not np.array_equal(rows, test) for test in tests.values()):
        return None
    names, seeds = labels(plan.specs), plan.config.seeds
    decisions = np.stack([_decide(models[name, seed], table, rows) for name in names for seed in seeds])
    draws = _DRAWS if len(rows) * len(decisions) <= _MOST_SUMS else _FEW_DRAWS
    counts = resample_people(decisions, table.cell[rows].astype(np.int64), table.groups, draws)
    flat = counts.reshape(-1, *counts.shape[2:])
    objective = headline_metric([spec.metric for spec in plan.specs], plan.config.metric)
    covariances = {}
    for metric in dict.fromkeys((objective, "eqo", "accuracy", "mcc")):
        values = _measure(metric, flat, table).reshape(draws, len(names), len(seeds)).mean(axis=2)
        covariances[metric] = _covariance(values)
    return covariances


def _measure(metric: str, counts: Counts, table: Table) -> Values:
    reported = reported_fairness(counts, table.grouping)
    if metric in reported:
        return reported[metric]
    return np.asarray(METRICS[metric](counts) if metric in METRICS else bind(metric, table.grouping)(counts))


def _covariance(values: Values) -> Values:
    """(columns, columns) of (draws, columns); NaN where too many draws are undefined."""
    known = values[np.isfinite(values).all(axis=1)]
    if 2 * len(known) < len(values):
        return np.full((values.shape[1],) * 2, np.nan)
    gaps = known - known.mean(axis=0)
    return np.asarray((gaps[:, :, None] * gaps[:, None, :]).mean(axis=0))


def _decide(model: FairModel, table: Table, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(rows,) what a model decides about rows of the table."""
    encoder, cuts = model.schema.encoder, 0.0 if model.thresholds is None else model.thresholds
    decided = []
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        x = encoder.transform(table.features, block)
        margins = model.margins(x)
        if model.tilt is not None:
            guesses = [replace(model, arrays=arrays, tilt=None).margins(x) for arrays in model.tilt.models]
            decided.append(model.tilt.excess(margins, guesses) > 0)
        elif np.ndim(cuts) and len(np.atleast_1d(cuts)) > 1:
            decided.append(margins > np.asarray(cuts)[table.group[block]])
        else:
            decided.append(margins > float(np.max(cuts)))
    return np.concatenate(decided)


def write_people(path: Path, covariances: Covariances) -> None:
    """Write them as CSV: a row for each metric and pair of strategies, by their numbers."""
    rows: list[dict[str, Any]] = [
        {"metric": metric, "strategy": line, "other": other, "covariance": float(values[line, other])}
        for metric, values in covariances.items()
        for line in range(len(values))
        for other in range(line + 1)
    ]
    frame = pd.DataFrame(rows, columns=["metric", "strategy", "other", "covariance"])
    write_bytes(path, csv_text(frame).encode())


def read_people(folder: Path, strategies: int) -> Covariances | None:
    """Those of a run's folder; None where seeds have test rows of their own, or it is not known."""
    file = folder / PEOPLE
    if not file.is_file():
        return None
    covariances: dict[str, Values] = {}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                values = covariances.setdefault(row["metric"], np.full((strategies, strategies), np.nan))
                line, other = int(row["strategy"]), int(row["other"])
                if not 0 <= other <= line:
                    raise ValueError(f"strategies {line} and {other}")
                values[line, other] = values[other, line] = float(row["covariance"] or "nan")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"run must hold a {PEOPLE} that a run has written, got '{file}' ({error})") from None
    return covariances
