"""Where a run of the ready app leaves its results, and how an interrupted one is found again."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate.data import FILE, Schema
from fairfate.engine.checkpoint import read_checkpoint
from fairfate.engine.record import FAIR, USED
from fairfate.engine.recorder import Trace
from fairfate.experiments.config import Config, config_text
from fairfate.experiments.job import clients_of, fair_model, trace_frame
from fairfate.experiments.live import Writer, clear_live, header, live_file, rounds_since
from fairfate.experiments.runs import Run, write_results
from fairfate.flower.app.server import ServerData
from fairfate.flower.app.settings import Settings
from fairfate.flower.logs import log, one_line
from fairfate.flower.strategy import FlowerStrategy, checkpoints
from fairfate.flower.study import Study
from fairfate.privacy.calibration import Exposure, calibrate
from fairfate.privacy.ledger import LEDGER, Entry, ledger_frame
from fairfate.privacy.releases import releases_of
from fairfate.results.details import Final, Released, score_table
from fairfate.results.folder import CONFIG, MODELS, SUMMARY, model_file
from fairfate.results.summary import write_csv
from fairfate.storage import LOCK, csv_text, locked, remove_unfinished, write_bytes
from fairfate.strategies import labels, parse_spec

CHECKPOINT, CLIENTS, SCHEMA_FILE = "checkpoint.safetensors", "clients.csv", "schema.json"
WAIT_FOR_LOCK = 60.0
"""The server process of a killed SuperLink may live on for some seconds."""


class RunFolder:
    """Where a run's results go, ready to go on where an interrupted run of the same settings ended."""

    def __init__(self, path: Path, provenance: Mapping[str, object]) -> None:
        self.path, self.provenance = path, provenance
        self.checkpoint = path / CHECKPOINT

    @property
    def schema(self) -> Schema | None:
        """The schema that an interrupted run agreed on, if there is one."""
        file = self.path / SCHEMA_FILE
        return Schema.read(file) if file.exists() else None

    def agree(self, schema: Schema) -> None:
        """Write the schema down."""
        schema.write(self.path / SCHEMA_FILE)

    def forget_if_empty(self) -> None:
        """Remove the folder of a run that failed before its first round was done."""
        if (self.path / SUMMARY).exists():
            return
        if self.checkpoint.exists() and read_checkpoint(self.checkpoint).round > 0:
            return
        for name in (CONFIG, SCHEMA_FILE, CHECKPOINT):
            (self.path / name).unlink(missing_ok=True)

    def record(self, settings: Settings, data: ServerData) -> Callable[[int, Sequence[Trace]], None]:
        """Writes every round down as it is done, as `fairfate run` does, for those who watch."""
        spec = parse_spec(settings.strategy, settings.config.metric)
        about = header(_key(settings), settings.training.rounds, [spec], data.schema.grouping)
        writer = Writer(live_file(self.path, settings.seed), about, seconds=0.0)
        return lambda t, traces: writer.add(t, lambda first: rounds_since(traces, first))

    def finish(self, settings: Settings, data: ServerData, strategy: FlowerStrategy) -> None:
        """Write rounds, model, clients and summary as `fairfate run` does; a summary means finished."""
        trace, grouping, seed = strategy.trace, data.schema.grouping, settings.seed
        clients = clients_of([trace], seed, grouping).drop(columns="node", errors="ignore")
        most = max(strategy.asked, default=0) or None
        config = _config(settings, self.path, settings.config.per_round or most)
        sites = sorted(set(clients["name"][clients["outcome"].isin((USED, FAIR))]))
        notes = {"data-notes": [strategy.sampled]} if strategy.sampled else {}
        text = config_text(config, {**self.provenance, "server-sites": sites, **notes})
        study = {key: value for key, value in self.provenance.items() if key.startswith("study")}
        about = {"protocol": settings.config.protocol, "seed": seed, "data": settings.name, **study}
        model = fair_model(data.model, data.schema, data.table, trace, **about)
        name = labels([trace.spec])[0]
        released = [Released(trace.spec, trace.params, trace.rule)]
        run = Run(
            tomllib.loads(text),
            grouping,
            trace_frame(_key(settings), [trace], grouping),
            clients,
            self.path,
            models={(name, seed): model},
            final=Final(score_table(data.model, released, data.test.rows, len(grouping), seed)),
            notes=tuple(notes.get("data-notes", ())),
            outcome=f"{data.schema.target} = {data.schema.labels[1]}",
            ledger=ledger_frame([(name, entry) for entry in _released(settings, clients)], seed),
        )
        model.save(self.path / MODELS / model_file(name, seed))
        plain = clients.drop(columns=["strategy", "metric", "settings", "seed"], errors="ignore")
        write_bytes(self.path / CLIENTS, csv_text(plain).encode())
        write_results(run, self.path)
        if settings.budget is not None:
            write_csv(self.path / LEDGER, run.ledger)
        write_csv(self.path / SUMMARY, run.summary)
        write_bytes(self.path / CONFIG, text.encode())
        for file in checkpoints(self.checkpoint):
            file.unlink(missing_ok=True)
        clear_live(self.path)
        log(INFO, "Saved to %s", self.path)
        if not len(run.rounds):
            return
        try:
            log(INFO, "Report: %s", run.report())
        except Exception as error:  # the run has its results; the report can be written again from them
            log(WARNING, "The report was not written (fairfate report %s): %s", self.path, one_line(error))


def _released(settings: Settings, clients: pd.DataFrame) -> list[Entry]:
    """What sites have released to this run, by its messages; their own ledgers hold all runs."""
    budget, training = settings.budget, settings.training
    if budget is None:
        return []
    releases = releases_of(parse_spec(settings.strategy, settings.config.metric), settings.setup)
    entries: list[Entry] = []
    for name, rounds in clients[clients["outcome"].isin((USED, FAIR))].groupby("name"):
        rows = int(rounds["examples"].max())
        exposure = Exposure.of_training(rows, training, budget.participations or training.rounds)
        calibration = calibrate(budget, exposure, releases)
        if calibration is not None:  # as at the site itself
            entries += calibration.entries(str(name), len(rounds), releases.once)
    return entries


def _config(settings: Settings, folder: Path, per_round: int | None) -> Config:
    """The options of `fairfate run` that give the same run, where it can see the sites' files."""
    spec = parse_spec(settings.strategy, settings.config.metric)
    known: dict[str, Any] = dict.fromkeys(_COLUMNS, ()) | {"target": None, "favourable": None}
    training = settings.training  # as it is here, whatever suits all sites' rows together
    return replace(
        settings.config,
        **known,
        schema=str(folder / SCHEMA_FILE),
        strategies=(spec.text,),
        per_round=per_round,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        l2=training.l2,
        hidden=settings.hidden if settings.config.model is None else None,
    )


@contextmanager
def open_run(settings: Settings, study: Study | None = None) -> Iterator[RunFolder]:
    """The folder of an interrupted run with the same settings, files and study, or a new one, for us alone.

    Under another version of a study a run begins anew: a site that has left must not be in its model.
    """
    base, provenance = Path(settings.out).expanduser(), _provenance(settings, study)

    def begun(path: Path) -> str:
        return config_text(_config(settings, path, settings.config.per_round), provenance)

    while True:
        path = _choose(base, settings.name, begun)
        with locked(path, seconds=WAIT_FOR_LOCK):
            if not (_is_new(path) or _is_interrupted(path, begun(path))):
                continue  # somebody else was faster
            log(INFO, "%s in %s", "Working" if _is_new(path) else "Continuing", path)
            remove_unfinished(path, path / MODELS)
            write_bytes(path / CONFIG, begun(path).encode())
            folder = RunFolder(path, provenance)
            try:
                yield folder
            except Exception:
                folder.forget_if_empty()
                raise
            return


def _choose(base: Path, name: str, begun: Callable[[Path], str]) -> Path:
    """The latest interrupted run's folder, or the next new one."""
    numbered: list[tuple[int, Path]] = []
    for path in base.iterdir() if base.is_dir() else ():
        before, _, number = path.name.rpartition("-")
        if before == name and number.isascii() and number.isdigit():
            numbered.append((int(number), path))
    numbered.sort()
    for _, path in reversed(numbered):
        if _is_interrupted(path, begun(path)):
            return path
    if numbered and _is_new(numbered[-1][1]):
        return numbered[-1][1]
    return base / f"{name}-{numbered[-1][0] + 1 if numbered else 1}"


def _is_new(path: Path) -> bool:
    return path.is_dir() and not any(file.name != LOCK for file in path.iterdir())


def _is_interrupted(path: Path, begun: str) -> bool:
    config, finished = path / CONFIG, (path / SUMMARY).exists()
    return not finished and config.exists() and config.read_text("utf-8") == begun


def _provenance(settings: Settings, study: Study | None) -> dict[str, object]:
    """What a run depends on besides the options of `fairfate run`: study, other settings, server's files."""
    provenance: dict[str, object] = {}
    if study is not None:
        provenance |= {"study": study.name, "study-version": study.version, "study-sha256": study.checksum}
    for name in _COLUMNS:
        value = getattr(settings.config, name)
        provenance[f"server-{name}"] = ",".join(value) if isinstance(value, tuple) else value or ""
    for name in ("schema", "max_norm", "max_examples"):
        provenance[f"server-{name.replace('_', '-')}"] = getattr(settings, name)
    for name, file in (("validation", settings.config.validation), ("test", settings.config.test)):
        if file:
            provenance[f"server-{name}-sha256"] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return provenance


_COLUMNS = ("target", "favourable", "sensitive", "privileged", "drop", "categorical")
"""What `fairfate run` takes from the schema instead."""


def _key(settings: Settings) -> dict[str, Any]:
    """What every row of the rounds has in common."""
    return {
        "dataset": settings.name,
        "partition": f"column:{FILE}",
        "protocol": settings.config.protocol,
        "seed": settings.seed,
    }
