"""A cell: all strategies of one (data, partition, protocol, seed) in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairfate._version import __version__
from fairfate.data import AUTO, ENCODINGS, ORDINAL, Schema, Table, load
from fairfate.data.groups import Groups
from fairfate.engine.record import clients_frame
from fairfate.engine.simulate import Trace, simulate
from fairfate.errors import InputError, check, is_utf8
from fairfate.experiments.config import Config
from fairfate.experiments.plan import Plan
from fairfate.experiments.pool import Progress, Work, end_if_imported, run_tasks
from fairfate.experiments.results import Line, rounds_frame
from fairfate.fairness.objective import metrics_by
from fairfate.federation.holders import AT_SERVER
from fairfate.federation.split import Federation, build
from fairfate.federation.streams import Streams
from fairfate.models.fitted import FairModel
from fairfate.storage import remove_unfinished, short_name
from fairfate.strategies import Spec

_TABLES: dict[tuple[Any, ...], Table] = {}
"""Tables that this process has loaded, a few at most."""


def load_table(config: Config) -> Table:
    """A config's table, kept for the next cell that needs it."""
    files = (config.data, config.data_dir, config.columns, config.held)
    key = (*files, config.encode, config.protocol, config.reading)
    if key not in _TABLES:
        while len(_TABLES) >= 2:
            _TABLES.pop(next(iter(_TABLES)))
        check(
            config.encode in ENCODINGS, f"encode must be one of {'|'.join(ENCODINGS)}", f"'{config.encode}'"
        )
        encode = ORDINAL if config.encode == AUTO and config.protocol == "published" else config.encode
        _TABLES[key] = load(
            config.data,
            data_dir=config.data_dir,
            columns=config.columns,
            held=config.held,
            encode=encode,
            reading=config.reading,
        )
    return _TABLES[key]


def clear_tables() -> None:
    """Forget the tables."""
    _TABLES.clear()


def table_of(cell: Cell) -> Table:
    """The cell's table, which must still be what it was when the run was planned."""
    table = load_table(cell.plan.config)
    if table.checksum != cell.data_checksum:
        raise InputError(f"data must not change during a run, got another '{cell.plan.config.data}'")
    return table


@dataclass(frozen=True)
class Cell:
    """What a cell's numbers depend on, besides the strategies."""

    plan: Plan
    seed: int
    data_checksum: str
    source: str | None
    """The public dataset it is: the published runs scale some of them, and other files always."""

    @classmethod
    def of(cls, plan: Plan, seed: int, table: Table) -> Cell:
        """The cell of a table."""
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
            **({} if self.plan.holders == AT_SERVER else {"validation-from": str(self.plan.holders)}),
            **({} if self.plan.config.min_cell == 0 else {"min-cell": self.plan.config.min_cell}),
            **({} if self.plan.network is None else {"model": self.plan.network.key}),
        }

    @property
    def slug(self) -> str:
        """For the file's name."""
        partition = self.plan.split.replace(":", "-").replace("/", "-")
        named = short_name(f"{self.plan.dataset}_{partition}_{self.plan.config.protocol}")
        return f"{named}_seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a cell's pass found."""

    rounds: pd.DataFrame
    traces: list[Trace]
    federation: Federation
    clients: pd.DataFrame
    """Who took part in each round; empty unless asked for."""


def run_cell(
    plan: Plan,
    table: Table,
    seed: int,
    specs: Sequence[Spec],
    on_round: Callable[[], None],
    *,
    record_clients: bool = False,
    checkpoint: Path | None = None,
    on_record: Callable[[int, Sequence[Trace]], None] | None = None,
) -> Outcome:
    """Train the strategies side by side, and take their steps; go on from a checkpoint if there is one."""
    streams = Streams(seed, plan.published)
    min_cell = plan.config.min_cell
    federation = build(table, plan.partition, plan.clients, streams, plan.holders, min_cell)
    traces = simulate(
        federation,
        specs,
        plan.model(federation.inputs, Schema.of(table, federation.encoder)),
        plan.training,
        plan.setup(table),
        streams,
        on_round,
        record_clients=record_clients,
        checkpoint=checkpoint,
        on_record=on_record,
        attack=plan.attack,
    )
    lines = [
        Line(trace.spec, trace.rounds, {"validation": trace.validation, "test": trace.test}, trace.notes)
        for trace in traces
    ]
    rounds = rounds_frame(key_of(plan, seed), lines, metrics_by(table.grouping))
    return Outcome(rounds, traces, federation, _clients(traces, seed, table.grouping))


def key_of(plan: Plan, seed: int) -> dict[str, Any]:
    """What every row of a cell's rounds has in common."""
    return {
        "dataset": plan.dataset,
        "partition": plan.split,
        "protocol": plan.config.protocol,
        "seed": seed,
    }


def fitted(plan: Plan, table: Table, seed: int, outcome: Outcome) -> list[FairModel]:
    """The trained models, with all that is needed to use them."""
    schema = Schema.of(table, outcome.federation.encoder)
    model = plan.model(outcome.federation.inputs, schema)
    return [
        FairModel(
            model.arrays(trace.params),
            schema,
            trace.thresholds,
            {
                "strategy": trace.spec.text,
                "protocol": plan.config.protocol,
                "seed": seed,
                "data": table.name,
                "data-checksum": f"sha256:{table.checksum}",
                "rows-checksums": table.rows_checksums,
                "model": model.text,
                "validation": trace.validation[-1].tolist(),
                "test": trace.test[-1].tolist(),
            },
        )
        for trace in outcome.traces
    ]


def ready(out: str | Path | None, jobs: int | None) -> Path | None:
    """Check where the results shall go, and by how many processes, before anything is done."""
    whole = isinstance(jobs, int | np.integer) and not isinstance(jobs, bool)
    check(jobs is None or (whole and jobs >= 1), "jobs must be >= 1", jobs)
    end_if_imported()
    check(out is None or isinstance(out, str | os.PathLike), "out must be a folder's path", repr(out))
    if out is None:
        return None
    check(str(out) != "", "out must be a folder", "an empty text")
    check(is_utf8(str(out)), "out must be in UTF-8", repr(str(out)))
    check("\0" not in str(out), "out must be without NUL characters", repr(str(out)))
    folder = Path(out)
    check(Path(os.path.abspath(folder)).name != "", "out must be a folder with a name", f"'{out}'")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out must be a folder, got '{folder}' (a file)")
    return folder


def perform(
    work: Work,
    payload: Any,
    folder: Path | None,
    tasks: Sequence[Any],
    jobs: int,
    progress: Progress,
    *parts: str,
) -> dict[int, Any]:
    """Do all tasks and return what each found; half-written files in these parts of the folder go."""
    try:
        with closing(run_tasks(work, payload, tasks, jobs, progress)) as finished:
            return dict(finished)
    finally:
        if folder is not None:
            remove_unfinished(*(folder / part for part in parts))


def _clients(traces: Sequence[Trace], seed: int, groups: Groups) -> pd.DataFrame:
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
    found = [frame for frame in frames if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
