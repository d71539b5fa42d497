"""What models of scikit-learn reach on the pooled rows of all clients, for comparison with federated ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Encoder, Table
from fairfate.errors import InputError
from fairfate.experiments.plan import Plan
from fairfate.fairness.metrics import count, selection_rate
from fairfate.fairness.objective import metrics_by, reported_fairness
from fairfate.federation.split import fit_encoder
from fairfate.storage import csv_text, write_bytes

BASELINES = "baselines.csv"
LOGISTIC, BOOSTING = "pooled logistic regression", "pooled gradient boosting"
MAJORITY = "majority baseline"
"""The same answer for everybody, the more frequent one of the test rows; its fairness says nothing."""
COLUMNS = ("accuracy", "balanced_accuracy", "mcc", "auc", "selection_rate", "sp", "eo", "eqo")
_MOST_SEEDS, _MOST_ROWS = 3, 100_000
"""Seeds that are averaged, as long as they have so many training rows together; one at least."""
_MOST_CATEGORIES = 255
"""That gradient boosting takes as such."""
Score = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""The probability of label 1 of some rows."""


class PooledBaseline(NamedTuple):
    """A model of the pooled rows: means over some seeds, on their test rows."""

    name: str
    seeds: int
    metrics: Mapping[str, float]
    """Rounded to three digits: scikit-learn's sums depend on the CPU."""


def pooled_baselines(plan: Plan, table: Table) -> tuple[PooledBaseline, ...]:
    """Logistic regression and gradient boosting on the training rows of all clients, as seeds split them."""
    measured: dict[str, list[dict[str, float]]] = {LOGISTIC: [], BOOSTING: [], MAJORITY: []}
    for seed in _seeds(plan, table):
        streams = plan.streams(seed)
        rows = plan.assign(table, streams)
        encoder = fit_encoder(table, rows.train, streams)
        measured[MAJORITY].append(_answer_alike(table.label[rows.test]))
        for name in (LOGISTIC, BOOSTING):
            score = fit_pooled(name, table, rows.train, encoder)
            if score is not None:
                measured[name].append(_measure(score(rows.test), table, rows.test))
    return tuple(
        PooledBaseline(name, len(seeds), _means(seeds, COLUMNS)) for name, seeds in measured.items() if seeds
    )


def fit_pooled(name: str, table: Table, train: NDArray[np.int64], encoder: Encoder) -> Score | None:
    """Fit logistic regression or gradient boosting on some rows; None where they have one label only.

    Returns
    -------
    What gives the probability of label 1 of some rows of the table.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits

    label = table.label[train]
    if len(np.unique(label)) < 2:
        return None
    model: Any = LogisticRegression(max_iter=300)
    if name == BOOSTING:
        category = [0 < slots <= _MOST_CATEGORIES for slots in table.slots]
        model = HistGradientBoostingClassifier(categorical_features=category, random_state=0)

    def inputs(rows: NDArray[np.int64]) -> NDArray[Any]:
        return table.features[rows] if name == BOOSTING else encoder.transform(table.features, rows)

    def score(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        with threadpool_limits(1):
            return np.asarray(model.predict_proba(inputs(rows))[:, 1])

    with threadpool_limits(1):  # threads that wait for each other cost more than they save
        model.fit(inputs(train), label)
    return score


def _seeds(plan: Plan, table: Table) -> tuple[int, ...]:
    number = min(_MOST_SEEDS, max(1, _MOST_ROWS // len(table)))
    return plan.config.seeds[:number]


def _measure(probability: NDArray[np.float64], table: Table, rows: NDArray[np.int64]) -> dict[str, float]:
    label = table.label[rows]
    counts = count(label, probability > 0.5, group=table.group[rows], groups=table.groups)
    known = metrics_by(table.grouping)
    values = {name: float(known[name](counts)) for name in COLUMNS if name in known}
    values |= {name: float(value) for name, value in reported_fairness(counts, table.grouping).items()}
    return {**values, "selection_rate": float(selection_rate(counts)), "auc": _auc(probability, label)}


def _answer_alike(label: NDArray[np.int8]) -> dict[str, float]:
    share = float(label.mean())
    known = {"accuracy": max(share, 1 - share), "balanced_accuracy": 0.5, "mcc": 0.0, "auc": 0.5}
    return dict.fromkeys(COLUMNS, math.nan) | known | {"selection_rate": float(share >= 0.5)}


def _auc(score: NDArray[np.float64], label: NDArray[np.int8]) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(label, score)) if len(np.unique(label)) == 2 else math.nan


def _means(measured: Iterable[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    rows = list(measured)
    means = {name: round(math.fsum(row[name] for row in rows) / len(rows), 3) for name in names}
    return {name: math.nan if math.isnan(mean) else mean for name, mean in means.items()}  # equal when read


def write_baselines(path: Path, baselines: Iterable[PooledBaseline]) -> None:
    """Write them as CSV."""
    rows: list[dict[str, Any]] = [
        {"baseline": baseline.name, "seeds": baseline.seeds, **baseline.metrics} for baseline in baselines
    ]
    frame = pd.DataFrame(rows, columns=["baseline", "seeds", *COLUMNS])
    write_bytes(path, csv_text(frame).encode())


def read_baselines(folder: Path) -> tuple[PooledBaseline, ...]:
    """Those of a run's folder; none where it was run without."""
    import csv

    file = folder / BASELINES
    if not file.is_file():
        return ()
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            return tuple(
                PooledBaseline(
                    row["baseline"],
                    int(row["seeds"]),
                    {name: float(row[name]) if row[name] else math.nan for name in COLUMNS},
                )
                for row in csv.DictReader(lines)
            )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"run must hold a {BASELINES} that a run has written, got '{file}' ({error})"
        ) from None
