"""One seed of one federation: every method trained, released and measured.

Beside its counts, a released model is measured at each client and for individual fairness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Schema, Table
from fairfate.engine.rules import Rule, count_decisions, decide_rows
from fairfate.engine.simulate import simulate
from fairfate.experiments.plan import Plan
from fairfate.fairness.metrics import FAIRNESS, Counts, Values
from fairfate.federation.individual import IndividualRows
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, assign_rows, encode
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.studies.benchmark import baselines
from fairfate.studies.benchmark.methods import METRICS, Method

WORST = tuple(f"worst_{metric}" for metric in METRICS)
CELLS = tuple(f"{g}{y}{p}" for g in (0, 1) for y in (0, 1) for p in (0, 1))
COUNTS = tuple(f"{split}_{cell}" for split in ("validation", "test") for cell in CELLS)
"""Rows by group, label and prediction."""
COLUMNS = ("method", "setting", "metric", "part", "code", *COUNTS, *WORST, "consistency", "flip")

WHERE = ("track", "encode", "dataset", "partition", "seed")
"""The columns that identify one seed of a federation in a track."""
LEAST_ROWS = 20
"""Of each group (and label, where the metric asks) that a client must have to be measured."""


def run_methods(
    plan: Plan,
    table: Table,
    seed: int,
    methods: Sequence[Method],
    alone: Sequence[str],
    on_method: Callable[[float], None] = lambda count: None,
) -> pd.DataFrame:
    """A row for each setting of each method, and for each model of the baselines."""
    streams = Streams(seed)
    assignment = assign_rows(table, plan.partition, plan.clients, streams)
    federation = encode(table, assignment, streams)
    model = plan.model(federation.inputs, Schema.from_table(table, federation.encoder))
    probe = Probe(table, assignment.test, federation, model)
    rows: list[dict[str, Any]] = []
    for family in _families(methods):
        specs = list(dict.fromkeys(spec for method in family for spec in method.specs))
        traces = simulate(federation, specs, model, plan.training, plan.setup(table), streams, last_only=True)
        measured = probe.measure(
            np.stack([trace.params for trace in traces]),
            [trace.rule for trace in traces],
            [spec.metric or "" for spec in specs],
        )
        values = {
            spec: {**_counted(trace.validation[-1], trace.test[-1]), **probed}
            for spec, trace, probed in zip(specs, traces, measured, strict=True)
        }
        for method in family:
            for spec in method.specs:
                about = {"method": method.name, "setting": spec.text, "metric": spec.metric or "", "part": 0}
                rows.append({**about, "code": spec.code, **values[spec]})
            on_method(len(method.specs))
    for name in alone:
        for base in baselines.run(name, plan, table, federation, assignment, seed):
            about = {"method": name, "setting": base.setting, "metric": base.metric, "part": base.part}
            probed = (
                [{}]
                if base.params is None
                else probe.measure(base.params[None], [Rule(base.thresholds)], [base.metric])
            )
            rows.append({**about, "code": "", **_counted(base.validation, base.test), **probed[0]})
        on_method(1)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _families(methods: Sequence[Method]) -> list[list[Method]]:
    """Group methods that train the same models."""
    families: dict[str, list[Method]] = {}
    for method in methods:
        families.setdefault(method.specs[0].name, []).append(method)
    return list(families.values())


def _counted(validation: Counts, test: Counts) -> dict[str, int]:
    values = np.concatenate([validation.ravel(), test.ravel()]).tolist()
    return dict(zip(COUNTS, values, strict=True))


class Probe:
    """The rows of one seed, arranged once for all models."""

    def __init__(self, table: Table, test: NDArray[np.int64], federation: Federation, model: Model) -> None:
        self.federation, self.model = federation, model
        self._individual = IndividualRows(table, test, federation.test, federation.encoder)

    def measure(self, models: Models, rules: Sequence[Rule], metrics: Sequence[str]) -> list[dict[str, Any]]:
        """For each model, fairness at the client where it is least fair, and individual fairness.

        A model that is for one metric is measured by that one at clients; "" is for all.
        """
        worst = self.worst(models, rules)
        return [
            {
                **{
                    f"worst_{name}": values[number]
                    for name, values in worst.items()
                    if metrics[number] in ("", name)
                },
                **self.individual(models[number], rules[number]),
            }
            for number in range(len(models))
        ]

    def individual(self, params: Models, rule: Rule) -> dict[str, float]:
        """Individual fairness: consistency, and the share of decisions that flip with the group."""
        decide = partial(decide_rows, self.model, params, rule)
        accepted = self._individual.accepted(decide)
        flip = self._individual.flip_rate(decide, accepted)
        return {"consistency": self._individual.consistency(accepted), "flip": flip}

    def worst(self, models: Models, rules: Sequence[Rule]) -> dict[str, Values]:
        """For each metric, (models,) the fairness of each model at the client where it is least fair.

        On the clients' own training rows; clients with too few of a group are excluded.
        """
        each = [self._at(rows, models, rules) for rows in self.federation.local.values()]
        counts = np.stack(each, axis=1)
        least_fair = {}
        for name, metric in FAIRNESS.items():
            cells = counts.sum(axis=-1)  # by group and label
            rows = {"sp": cells.sum(axis=-1), "eo": cells[..., 1], "eqo": cells.min(axis=-1)}[name]
            enough = rows.min(axis=-1) >= LEAST_ROWS
            values = np.where(enough, metric(counts), np.nan)
            least = np.where(np.isnan(values), np.inf, values).min(axis=1)
            least_fair[name] = np.where(np.isinf(least), np.nan, least)
        return least_fair

    def _at(self, rows: PackedRows, models: Models, rules: Sequence[Rule]) -> Counts:
        counts = self.model.count(models, rows)
        for index, rule in enumerate(rules):
            if rule.thresholds is not None or rule.tilt is not None:
                counts[index] = count_decisions(self.model, models[index], rule, rows)
        return counts
