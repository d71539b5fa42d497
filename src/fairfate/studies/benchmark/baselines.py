"""Baselines that papers omit: no federation at all, and all rows pooled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fairfate.data import Schema, Table
from fairfate.engine.descent import as_client
from fairfate.engine.recorder import Trace
from fairfate.engine.simulate import simulate
from fairfate.errors import InputError
from fairfate.experiments import baselines
from fairfate.experiments.plan import Plan
from fairfate.fairness.metrics import Counts, Values, count
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, RowAssignment
from fairfate.models.model import Models
from fairfate.models.rows import ClientRows
from fairfate.strategies import parse_spec
from fairfate.studies.benchmark.methods import METRICS

SERVER, CLIENT, POOLED = "server_alone", "client_alone", "pooled"
REDUCTION, OPTIMIZER = "pooled_exponentiated_gradient", "pooled_threshold_optimizer"
POOLED_THRESHOLDS = "pooled+thresholds"
LOGISTIC, BOOSTING = "pooled_logistic_regression", "pooled_gradient_boosting"
BASELINES = {
    SERVER: "the server's validation rows alone, without a federation",
    CLIENT: "each client alone with its rows; the mean over clients",
    POOLED: "all clients' rows in one place",
    LOGISTIC: "the same rows, scikit-learn's logistic regression",
    BOOSTING: "the same rows, scikit-learn's gradient boosting",
    POOLED_THRESHOLDS: "`pooled`, with our thresholds from the server's rows",
    OPTIMIZER: "`pooled`, with fairlearn's ThresholdOptimizer (random decisions)",
    REDUCTION: "all clients' rows, logistic regression, fairlearn's ExponentiatedGradient (random decisions)",
}
FAIRLEARN = (OPTIMIZER, REDUCTION)
NEED_GROUP = (POOLED_THRESHOLDS, OPTIMIZER)
"""At decisions: these are in the aware track only."""


class Baseline(NamedTuple):
    """One model of a baseline, measured."""

    setting: str
    metric: str
    """The metric it was tuned for, or empty."""
    part: int
    """Number of the client where there is one model for each; else 0."""
    validation: Counts
    test: Counts
    params: Models | None = None
    thresholds: Values | None = None


def run(
    name: str, plan: Plan, table: Table, federation: Federation, assignment: RowAssignment, seed: int
) -> Iterator[Baseline]:
    """Train a baseline on one seed's rows. Passes over the rows are as many as in the federation."""
    if name == SERVER:
        alone = as_client(federation.validation)
        yield from _trained(name, plan, table, _only(federation, alone), seed, ["fedavg+average"])
    elif name == CLIENT:
        for k in np.flatnonzero(federation.sizes):
            single = _only(federation, _client(federation.rows, int(k)))
            yield from _trained(name, plan, table, single, seed, ["fedavg+average"], int(k) + 1)
    else:
        rows = federation.rows
        pooled = replace(rows, offsets=np.array([0, len(rows)], dtype=np.int64))
        together = _only(federation, pooled)
        if name == POOLED:
            yield from _trained(name, plan, table, together, seed, ["fedavg+average"])
        elif name in _SCIKIT_LEARN:
            yield from _fitted(name, table, federation, assignment)
        elif name == POOLED_THRESHOLDS:
            texts = [f"fedavg+average+thresholds:metric={metric}" for metric in METRICS]
            yield from _trained(name, plan, table, together, seed, texts)
        else:
            for setting, metric, validation, test in _ceiling(name, plan, table, together, seed):
                yield Baseline(setting, metric, 0, validation, test)


_SCIKIT_LEARN = {LOGISTIC: baselines.LOGISTIC, BOOSTING: baselines.BOOSTING}


def _fitted(name: str, table: Table, federation: Federation, assignment: RowAssignment) -> Iterator[Baseline]:
    """A model of scikit-learn on all clients' rows."""
    score = baselines.fit_pooled(_SCIKIT_LEARN[name], table, assignment.train, federation.encoder)
    if score is None:
        return
    validation, test = (
        count(table.label[rows], score(rows) > 0.5, group=table.group[rows], groups=table.groups)
        for rows in (assignment.validation, assignment.test)
    )
    yield Baseline(name, "", 0, validation, test)


def _ceiling(
    name: str, plan: Plan, table: Table, federation: Federation, seed: int
) -> Iterator[tuple[str, str, Counts, Counts]]:
    """Fairlearn's, which is an extra."""
    try:
        from fairfate.studies.benchmark import ceilings
    except ImportError:
        raise InputError(
            f"fairlearn must be installed for {name} (pip install 'fairfate[benchmark]'), got none"
        ) from None
    if name == REDUCTION:
        yield from ceilings.reduced(federation, seed)
        return
    (trace,) = _simulate(plan, table, federation, seed, ["fedavg+average"])
    model = plan.model(federation.inputs, Schema.from_table(table, federation.encoder))
    yield from ceilings.optimized(model, trace.params, federation, seed)


def _client(rows: ClientRows, k: int) -> ClientRows:
    first, last = int(rows.offsets[k]), int(rows.offsets[k + 1])
    inputs = rows.inputs
    return ClientRows(
        rows.x[first * inputs : last * inputs],
        rows.cell[first:last],
        np.array([0, last - first], dtype=np.int64),
    )


def _only(federation: Federation, rows: ClientRows) -> Federation:
    """A federation of one client with these rows."""
    cells = np.bincount(rows.cell, minlength=2 * federation.groups).reshape(1, federation.groups, 2)
    return replace(federation, rows=rows, client_cells=cells.astype(np.int64), client_names=("alone",))


def _simulate(plan: Plan, table: Table, federation: Federation, seed: int, texts: list[str]) -> list[Trace]:
    usual = plan.training
    passes = max(1, round(usual.epochs * usual.per_round / plan.clients))
    training = replace(usual, per_round=1, epochs=passes)
    model = plan.model(federation.inputs, Schema.from_table(table, federation.encoder))
    specs = [parse_spec(text, METRICS[0]) for text in texts]
    return simulate(federation, specs, model, training, plan.setup(table), Streams(seed), last_only=True)


def _trained(
    name: str, plan: Plan, table: Table, federation: Federation, seed: int, texts: list[str], part: int = 0
) -> Iterator[Baseline]:
    for trace in _simulate(plan, table, federation, seed, texts):
        metric = trace.spec.metric or ""
        yield Baseline(
            name if not metric else f"{name}:metric={metric}",
            metric,
            part,
            trace.validation[-1],
            trace.test[-1],
            trace.params,
            trace.thresholds,
        )
