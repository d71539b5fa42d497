"""One seed of one federation: every method trained, released and measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fairfate.data import Schema, Table
from fairfate.engine.simulate import Trace, simulate
from fairfate.experiments.plan import Plan
from fairfate.fairness.metrics import Counts
from fairfate.federation.seeds import Streams
from fairfate.federation.split import assign_rows, encode
from fairfate.strategies import THRESHOLDS
from fairfate.studies.benchmark import baselines
from fairfate.studies.benchmark.methods import METRICS, Method
from fairfate.studies.benchmark.probe import Individual, Probe

WORST = tuple(f"worst_{metric}" for metric in METRICS)
CELLS = tuple(f"{g}{y}{p}" for g in (0, 1) for y in (0, 1) for p in (0, 1))
COUNTS = tuple(f"{split}_{cell}" for split in ("validation", "test") for cell in CELLS)
"""Rows by group, label and prediction."""
COLUMNS = ("method", "setting", "metric", "part", "code", *COUNTS, *WORST, "consistency", "flip", "seconds")


def run_methods(
    plan: Plan,
    table: Table,
    seed: int,
    methods: Sequence[Method],
    alone: Sequence[str],
    on_method: Callable[[float], None] = lambda done: None,
) -> pd.DataFrame:
    """A row for each setting of each method, and for each model of the baselines."""
    streams = Streams(seed)
    assignment = assign_rows(table, plan.partition, plan.clients, streams)
    federation = encode(table, assignment, streams)
    model = plan.model(federation.inputs, Schema.of(table, federation.encoder))
    probe = Probe(table, assignment.test, federation, model)
    rows: list[dict[str, Any]] = []
    for family in _families(methods):
        specs = list(dict.fromkeys(spec for method in family for spec in method.specs))
        start = time.process_time()
        traces = simulate(federation, specs, model, plan.training, plan.setup(table), streams, last_only=True)
        seconds = (time.process_time() - start) / len({spec.base for spec in specs})
        found = dict(zip(specs, _measured(traces, probe), strict=True))
        for method in family:
            for spec in method.specs:
                about = {"method": method.name, "setting": spec.text, "metric": spec.metric or "", "part": 0}
                rows.append({**about, "code": spec.code, **found[spec], "seconds": seconds})
            on_method(len(method.specs))
    for name in alone:
        start = time.process_time()
        mine = list(baselines.run(name, plan, table, federation, seed))
        seconds = (time.process_time() - start) / max(len(mine), 1)
        for of in mine:
            about = {"method": name, "setting": of.setting, "metric": of.metric, "part": of.part, "code": ""}
            found_of = _of_model(of.params, of.thresholds, probe) if of.params is not None else {}
            rows.append({**about, **_counted(of.validation, of.test), **found_of, "seconds": seconds})
        on_method(1)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _families(methods: Sequence[Method]) -> list[list[Method]]:
    """Methods that train the same models are run together; thresholds take time of their own."""
    found: dict[tuple[str, bool], list[Method]] = {}
    for method in methods:
        first = method.specs[0]
        found.setdefault((first.name, first.step(THRESHOLDS) is not None), []).append(method)
    return list(found.values())


def _measured(traces: Sequence[Trace], probe: Probe) -> list[dict[str, Any]]:
    thresholds = [trace.thresholds for trace in traces]
    worst = probe.worst(np.stack([trace.params for trace in traces]), thresholds)
    found = []
    for place, trace in enumerate(traces):
        single = probe.individual(trace.params, trace.thresholds)
        found.append(
            {
                **_counted(trace.validation[-1], trace.test[-1]),
                **{f"worst_{name}": values[place] for name, values in worst.items()},
                **single._asdict(),
            }
        )
    return found


def _of_model(params: Any, thresholds: Any, probe: Probe) -> dict[str, Any]:
    worst = probe.worst(params[None], [thresholds])
    single: Individual = probe.individual(params, thresholds)
    return {**{f"worst_{name}": values[0] for name, values in worst.items()}, **single._asdict()}


def _counted(validation: Counts, test: Counts) -> dict[str, int]:
    values = np.concatenate([validation.ravel(), test.ravel()]).tolist()
    return dict(zip(COUNTS, values, strict=True))
