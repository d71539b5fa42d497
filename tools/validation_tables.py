"""The tables of docs/validation.md, from docs/measurements/validation.csv.

``python tools/validation_tables.py`` measures what is not in the file yet (about an hour on one core), and
writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data import Table
from fairfate.fairness.metrics import METRICS
from fairfate.fairness.objective import bind
from fairfate.rounds.simulate import Trace
from fairfate.runs.config import from_mapping
from fairfate.runs.job import load_table, run_cell
from fairfate.runs.plan import Plan, resolve

FILE = Path(__file__).parent.parent / "docs" / "measurements" / "validation.csv"
TITLES = {"compas": "COMPAS", "law": "Law School", "adult": "Adult", "dutch": "Dutch"}
SEEDS = {"compas": 10, "law": 10, "adult": 4, "dutch": 4}
METRIC_NAMES = ("sp", "eo", "eqo")
SERVER, CROSS, SECURE, LINE = "server", "clients", "clients:mode=secure", "clients:mode=line"
THRESHOLDS, FROM_CLIENTS = "fedavg+average+thresholds", "fedavg+average+thresholds:from=clients"
ROWS = (50, 100, 300, 1000, 3000)
KEYS = ["dataset", "partition", "per_round", "validation_from", "seed"]


class Task(NamedTuple):
    """One pass: strategies on one split."""

    dataset: str
    partition: str
    per_round: int
    """0 for the paper's."""
    validation_from: str
    seed: int
    strategies: tuple[str, ...]


def tasks() -> Iterator[Task]:
    """What is measured: who holds the rows, and how many the server needs."""
    fair = tuple(f"fair_fate:metric={name}" for name in METRIC_NAMES)
    for dataset, seeds in SEEDS.items():
        sizes = (0, 6) if dataset == "compas" else (0,)  # the paper's 3 clients make no two buckets
        for seed in range(1, seeds + 1):
            for partition in ("random", "dirichlet:0.5"):
                for per_round in sizes:
                    for who in (SERVER, CROSS, SECURE, LINE):
                        more = (THRESHOLDS, FROM_CLIENTS) if who in (SERVER, CROSS) else ()
                        yield Task(dataset, partition, per_round, who, seed, ("fedavg", *fair, *more))
            if dataset != "dutch":
                for rows in ROWS:
                    few = f"server:rows={rows}"
                    chosen = ("fair_fate:metric=eqo", THRESHOLDS)
                    yield Task(dataset, "dirichlet:0.5", 0, few, seed, chosen)


def measure(task: Task) -> list[dict[str, object]]:
    """Every strategy's released model on the test rows."""
    options = {"data": task.dataset, "partition": task.partition, "strategy": list(task.strategies)}
    if task.per_round:
        options["per-round"] = task.per_round
    config = from_mapping({**options, "validation-from": task.validation_from, "seeds": [task.seed]})
    table = load_table(config)
    plan = resolve(config, table)
    outcome = run_cell(plan, table, task.seed, plan.specs, lambda: None, record_clients=True)
    held = int(outcome.federation.validation.sizes.sum())
    return [
        {
            **dict(zip(KEYS, task[:5], strict=True)),
            "strategy": text,
            "rows": held,
            **_found(trace, plan, table),
        }
        for text, trace in zip(task.strategies, outcome.traces, strict=True)
    ]


def _found(trace: Trace, plan: Plan, table: Table) -> dict[str, object]:
    counts = trace.test[-1]
    values = {name: float(METRICS[name](counts)) for name in ("accuracy", "mcc", *METRIC_NAMES)}
    return {**values, "undefined": _undefined(trace, plan, table)}


def _undefined(trace: Trace, plan: Plan, table: Table) -> float:
    """Share of the rounds in which fairness was undefined; NaN where no client's model is judged."""
    metric = bind(trace.spec.metric or "eqo", table.grouping, least=plan.holders.min_cell)
    first = {client.round: client.counts for client in trace.clients if client.counts is not None}
    found = [bool(np.isnan(metric(counts))) for counts in first.values()]
    return float(np.mean(found)) if found else np.nan


def collect() -> None:
    """Measure what is missing; the file is written after every pass."""
    known = pd.read_csv(FILE) if FILE.is_file() else pd.DataFrame(columns=KEYS)
    done = set(known[KEYS].itertuples(index=False, name=None))
    for task in sorted(tasks(), key=lambda task: task.seed):
        if tuple(task[:5]) in done:
            continue
        known = pd.concat([known, pd.DataFrame(measure(task))], ignore_index=True)
        known.round(5).to_csv(FILE, index=False)
        sys.stderr.write(f"{task[:5]}\n")


def read() -> pd.DataFrame:
    """The measurements."""
    return pd.read_csv(FILE)


if __name__ == "__main__":
    collect()
