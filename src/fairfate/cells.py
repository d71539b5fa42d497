"""A cell: all strategies of one (data, partition, protocol, seed) in one pass, and its file.

A cell's file carries the SHA-256 of its content in its name, so that a damaged one is found, and what it
holds in its header, so that only what is missing is run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from fairfate._version import __version__
from fairfate.config import Config, Plan
from fairfate.data import Table, load
from fairfate.errors import InputError
from fairfate.federation import Federation, build
from fairfate.files import remove_unfinished, replacing
from fairfate.post import Thresholds, post_counts
from fairfate.results import CELL_SCHEMA, rounds_frame, rounds_table
from fairfate.simulate import Trace, simulate
from fairfate.strategies import Notes, Setup, Spec
from fairfate.streams import Streams

_HEADER = b"fairfate"
_TABLES: dict[tuple[Any, ...], Table] = {}
"""Tables that this process has loaded, a few at most."""


def load_table(config: Config) -> Table:
    """A config's table, kept for the next cell that needs it."""
    key = (config.data, config.data_dir, config.columns, config.held)
    if key not in _TABLES:
        while len(_TABLES) >= 2:
            _TABLES.pop(next(iter(_TABLES)))
        _TABLES[key] = load(config.data, data_dir=config.data_dir, columns=config.columns, held=config.held)
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
            "post": [step.text for step in self.plan.post],
            "seed": self.seed,
            **asdict(self.plan.training),
        }

    @property
    def slug(self) -> str:
        """For the file's name."""
        partition = str(self.plan.partition).replace(":", "-").replace("/", "-")
        return f"{self.plan.dataset}_{partition}_{self.plan.config.protocol}_seed-{self.seed}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a cell's pass found."""

    rounds: pd.DataFrame
    traces: list[Trace]
    federation: Federation


def run_cell(
    plan: Plan, table: Table, seed: int, specs: Sequence[Spec], on_round: Callable[[], None]
) -> Outcome:
    """Train the strategies side by side, and take the post steps."""
    streams = Streams(seed, plan.published)
    federation = build(table, plan.partition, plan.clients, streams)
    setup = Setup(plan.training.rounds, plan.published)
    traces = simulate(federation, [spec.build(setup) for spec in specs], plan.training, streams, on_round)
    frames = [_rounds(plan, seed, specs, traces)]
    frames += [_after(plan, seed, specs, traces, step, federation, setup) for step in plan.post]
    return Outcome(pd.concat(frames, ignore_index=True), traces, federation)


def _rounds(plan: Plan, seed: int, specs: Sequence[Spec], traces: Sequence[Trace]) -> pd.DataFrame:
    names = [(spec.name, spec.metric, spec.settings_json) for spec in specs]
    splits = {
        "validation": np.stack([trace.validation for trace in traces]),
        "test": np.stack([trace.test for trace in traces]),
    }
    notes = [note for trace in traces for note in trace.notes]
    return rounds_frame(_key(plan, seed), names, range(1, plan.training.rounds + 1), splits, notes)


def _after(
    plan: Plan,
    seed: int,
    specs: Sequence[Spec],
    traces: Sequence[Trace],
    step: Thresholds,
    federation: Federation,
    setup: Setup,
) -> pd.DataFrame:
    """A post step's own rows, for the last round: strategy ``NAME+thresholds``, the step's metric."""
    names, found = [], []
    for spec, trace in zip(specs, traces, strict=True):
        of = {} if spec.metric is None else {"of": spec.metric}
        settings = {**of, **json.loads(spec.settings_json), "tolerance": step.tolerance}
        names.append((f"{spec.name}+{step.name}", step.metric, json.dumps(settings)))
        found.append(
            post_counts(
                step,
                setup.fairness(step.metric),
                trace.params,
                federation.validation,
                federation.test,
                plan.training.hidden,
            )
        )
    splits = {
        "validation": np.stack([validation for validation, _ in found])[:, None],
        "test": np.stack([test for _, test in found])[:, None],
    }
    notes = [Notes()] * len(names)
    return rounds_frame(_key(plan, seed), names, [plan.training.rounds], splits, notes)


def _key(plan: Plan, seed: int) -> dict[str, object]:
    """What all rows of a cell share."""
    return {
        "dataset": plan.dataset,
        "partition": str(plan.partition),
        "protocol": plan.config.protocol,
        "seed": seed,
    }


class Store:
    """The finished cells in a folder. Files that are not cells are left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[tuple[Path, dict[str, Any]]]] = {}

    @property
    def files(self) -> list[Path]:
        """The cells' files, damaged ones included, by name."""
        found = self.folder.glob("*.parquet")
        return sorted(path for path in found if re.fullmatch(r".+_seed-\d+_[0-9a-f]{32}", path.stem))

    def repair(self) -> list[str]:
        """Remove damaged files, and what a killed process was writing; returns the damaged ones' names."""
        remove_unfinished(self.folder)
        damaged = [path for path in self.files if path.stem.rpartition("_")[2] != _digest(path)]
        for path in damaged:
            path.unlink()
        return [path.name for path in damaged]

    def index(self) -> None:
        """Read what the files hold."""
        self._files = {}
        for path in self.files:
            header = json.loads(pq.read_schema(path).metadata[_HEADER])
            self._files.setdefault(_text(header["cell"]), []).append((path, header))

    def missing(self, cell: Cell) -> list[Spec]:
        """The cell's strategies that no file holds."""
        held = {(header["code"], text) for _, header in self._of(cell) for text in header["specs"]}
        return [spec for spec in cell.plan.specs if (spec.code, spec.text) not in held]

    def read(self, cell: Cell) -> pd.DataFrame:
        """The rounds of a finished cell."""
        return pd.concat([pd.read_parquet(path) for path, _ in self._of(cell)], ignore_index=True)

    def _of(self, cell: Cell) -> list[tuple[Path, dict[str, Any]]]:
        """A cell's files, but for those that an older version of a plugin made."""
        codes = {"", *(spec.code for spec in cell.plan.specs)}
        return [found for found in self._files.get(_text(cell.key), []) if found[1]["code"] in codes]

    def models(self, cell: Cell) -> dict[str, str]:
        """The models that were saved with a cell: their files' names, and the SHA-256 of each."""
        return {name: digest for _, header in self._of(cell) for name, digest in header["models"].items()}

    def remove(self, cell: Cell) -> list[str]:
        """Forget a cell; returns its files' names."""
        paths = [path for path, _ in self._files.pop(_text(cell.key), [])]
        for path in paths:
            path.unlink()
        return [path.name for path in paths]

    def clear(self) -> None:
        """Remove all cells, and the folder if that leaves it empty."""
        for path in self.files:
            path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def write(
        self,
        cell: Cell,
        specs: Sequence[Spec],
        rounds: pd.DataFrame,
        models: Mapping[str, str] | None = None,
    ) -> None:
        """Add its file, whole or not there. It may name the models that were saved with it.

        What a plugin's strategies found goes into a file of its own.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        unnamed = self.folder / f"{cell.slug}.parquet"
        strategy = rounds["strategy"].str.partition("+")[0]
        for code in sorted({spec.code for spec in specs}, reverse=True):
            texts = [spec.text for spec in specs if spec.code == code]
            header = {"cell": cell.key, "code": code, "specs": texts, "models": dict(models or {})}
            mine = rounds[strategy.isin([spec.name for spec in specs if spec.code == code])]
            content = rounds_table(mine, CELL_SCHEMA).replace_schema_metadata({_HEADER: json.dumps(header)})
            with replacing(unnamed, lambda file: f"{cell.slug}_{_digest(file)}.parquet") as temporary:
                pq.write_table(content, temporary, compression="zstd")


def _text(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def file_checksum(path: Path) -> str | None:
    """The SHA-256 of a file's content; None if there is no such file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]
