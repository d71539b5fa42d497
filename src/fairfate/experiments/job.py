"""A job: all strategies of one config and one seed in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairfate._version import __version__
from fairfate.data import ORDINAL, Schema, Table
from fairfate.data.groups import Groups
from fairfate.engine.record import clients_frame
from fairfate.engine.recorder import Trace
from fairfate.engine.simulate import simulate
from fairfate.experiments.plan import Plan
from fairfate.fairness.disclosure import MIN_CELL, round_counts
from fairfate.fairness.metrics import METRICS
from fairfate.fairness.objective import metrics_by
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.federation.validation_source import AT_SERVER
from fairfate.models.fair_model import FairModel, Network, TiltedScore
from fairfate.models.model import Model
from fairfate.privacy.ledger import ledger_frame
from fairfate.results.tables import Line, rounds_frame
from fairfate.storage import short_name
from fairfate.strategies import THRESHOLDS, Spec, labels


@dataclass(frozen=True)
class Job:
    """One config and one seed: all that its numbers depend on, besides the strategies."""

    plan: Plan
    seed: int
    data_checksum: str
    source: str | None
    """The public dataset it is: the published runs scale some of them, and other files always."""

    @classmethod
    def from_table(cls, plan: Plan, seed: int, table: Table) -> Job:
        """The job of a table."""
        return cls(plan, seed, table.checksum, table.source)

    @property
    def key(self) -> dict[str, Any]:
        """For the file's header."""
        return {
            "version": __version__,
            "dataset": self.plan.dataset,
            "data-checksum": self.data_checksum,
            "source": self.source,
            "partition": str(self.plan.partition),
            "protocol": self.plan.config.protocol,
            "clients": self.plan.clients,
            "hidden": list(self.plan.hidden),
            "seed": self.seed,
            **{name: value for name, value in asdict(self.plan.training).items() if value},
            **({} if self.plan.config.encode == ORDINAL else {"encode": self.plan.config.encode}),
            **({} if self.plan.attack is None else {"attack": str(self.plan.attack)}),
            **(
                {}
                if self.plan.validation_source == AT_SERVER
                else {"validation-from": str(self.plan.validation_source)}
            ),
            **({} if self.plan.config.min_cell == 0 else {"min-cell": self.plan.config.min_cell}),
            **({} if self.plan.secure_sums is None else {"secure-sums": self.plan.secure_sums.min_sum}),
            **({} if self.plan.budget is None else {"privacy": str(self.plan.budget)}),
            **({} if self.plan.network is None else {"model": self.plan.network.key}),
        }

    @property
    def slug(self) -> str:
        """For the file's name."""
        partition = self.plan.split.replace(":", "-").replace("/", "-")
        named = short_name(f"{self.plan.dataset}_{partition}_{self.plan.config.protocol}")
        return f"{named}_seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class JobResult:
    """What a job has measured."""

    rounds: pd.DataFrame
    traces: list[Trace]
    federation: Federation
    clients: pd.DataFrame
    """Who took part in each round; empty unless asked for."""
    model: Model
    schema: Schema
    ledger: pd.DataFrame
    """What clients have released under differential privacy."""


def run_job(
    plan: Plan,
    table: Table,
    seed: int,
    specs: Sequence[Spec],
    on_round: Callable[[], None],
    *,
    record_clients: bool = False,
    checkpoint: Path | None = None,
    on_record: Callable[[int, Sequence[Trace]], None] | None = None,
) -> JobResult:
    """Train the strategies side by side, and take their steps; go on from a checkpoint if there is one."""
    streams = Streams(seed, plan.published)
    min_cell = plan.min_cell
    federation = build(table, plan.partition, plan.clients, streams, plan.validation_source, min_cell)
    schema = Schema.from_table(table, federation.encoder)
    model = plan.model(federation.inputs, schema)
    traces = simulate(
        federation,
        specs,
        model,
        plan.training,
        plan.setup(table),
        streams,
        on_round,
        record_clients=record_clients,
        checkpoint=checkpoint,
        on_record=on_record,
        attack=plan.attack,
        secure_sums=plan.secure_sums,
        budget=plan.budget,
    )
    rounds = trace_frame(key_of(plan, seed), traces, table.grouping)
    clients = clients_of(traces, seed, table.grouping)
    names = labels([trace.spec for trace in traces])
    released = [(name, entry) for name, trace in zip(names, traces, strict=True) for entry in trace.ledger]
    return JobResult(rounds, traces, federation, clients, model, schema, ledger_frame(released, seed))


def trace_frame(key: Mapping[str, Any], traces: Sequence[Trace], groups: Groups | None) -> pd.DataFrame:
    """Every metric of every round that was measured; ``key`` is what all rows have in common."""
    lines = []
    for trace in traces:
        for split, counts in (("validation", trace.validation), ("test", trace.test)):
            first = len(trace.rounds) - len(counts)  # rows that clients hold out may be counted once only
            if len(counts):
                lines.append(Line(trace.spec, trace.rounds[first:], {split: counts}, trace.notes[first:]))
    if not lines:
        return pd.DataFrame(columns=[*key, "strategy", "metric", "settings", "round", "split", *METRICS])
    return rounds_frame(key, lines, metrics_by(groups))


def key_of(plan: Plan, seed: int) -> dict[str, Any]:
    """What every row of a job's rounds has in common."""
    return {
        "dataset": plan.dataset,
        "partition": plan.split,
        "protocol": plan.config.protocol,
        "seed": seed,
    }


def fitted(plan: Plan, table: Table, seed: int, outcome: JobResult) -> list[FairModel]:
    """The trained models, with all that is needed to use them."""
    about = {"protocol": plan.config.protocol, "seed": seed, "data": table.name}
    return [fair_model(outcome.model, outcome.schema, table, trace, **about) for trace in outcome.traces]


def fair_model(model: Model, schema: Schema, table: Table, trace: Trace, **about: Any) -> FairModel:
    """What a strategy has released, with all that is needed to use it, and where it comes from."""
    counts = {"validation": trace.validation, "test": trace.test}
    provenance = {
        "strategy": trace.spec.text,
        **about,
        "data-checksum": f"sha256:{table.checksum}",
        "rows-checksums": table.rows_checksums,
        "model": model.text,
        **{split: each[-1].tolist() if len(each) else None for split, each in counts.items()},
    }
    return model_of_trace(model, schema, trace, provenance)


def model_of_trace(
    model: Model, schema: Schema, trace: Trace, about: Mapping[str, Any], network: Network | None = None
) -> FairModel:
    """What was released, with the rule that it decides by."""
    rule = trace.rule
    thresholds = rule.thresholds
    if thresholds is not None and trace.spec.step(THRESHOLDS) is None:
        thresholds = thresholds[:1]  # everybody's
    tilt = None
    if rule.tilt is not None and rule.group_params is not None:
        models = [model.arrays(params) for params in np.atleast_2d(rule.group_params)]
        tilt = TiltedScore(rule.tilt, tuple(models))
    if rule.about:
        counts = {key: round_counts(np.array(rule.about[key]), MIN_CELL).tolist() for key in rule.counts}
        inputs = [name for name in schema.sensitive if name in schema.features]
        about = {**about, "rule": {**rule.about, **counts, "group-inputs": inputs}}
    return FairModel(model.arrays(trace.params), schema, thresholds, about, network, tilt)


def clients_of(traces: Sequence[Trace], seed: int, groups: Groups) -> pd.DataFrame:
    """Who took part, for each strategy."""
    if not any(trace.clients for trace in traces):
        return pd.DataFrame()
    frames = []
    for trace in traces:
        about = {
            "strategy": trace.spec.label,
            "metric": trace.spec.metric,
            "settings": trace.spec.settings_json,
        }
        frames.append(clients_frame(trace.clients, groups).assign(**about, seed=seed))
    present = [frame for frame in frames if len(frame)]
    return pd.concat(present, ignore_index=True) if present else pd.DataFrame()
