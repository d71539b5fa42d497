"""One run: strategies compared on one dataset and partition, over several seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate import results
from fairfate.cells import Cell, Store, clear_tables, file_checksum, load_table, run_cell, table_of
from fairfate.config import PROVENANCE, Config, Plan, dump_config, fields_given, from_mapping, resolve
from fairfate.data import Schema, Table
from fairfate.errors import InputError, check
from fairfate.federation import build
from fairfate.files import locked, remove_unfinished, write_bytes
from fairfate.pool import Progress, Report, cores, end_if_imported, run_tasks
from fairfate.results import CELLS, CONFIG, CONFIGS, MODELS, ROUNDS, SUMMARY
from fairfate.strategies import Setup, Spec, labels, load_plugin
from fairfate.streams import Streams


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    plan: Plan
    table: Table
    rounds: pd.DataFrame
    summary: pd.DataFrame
    out: Path | None
    damaged: tuple[str, ...] = ()
    """Files of an earlier attempt that were damaged and have been run again."""


def run(
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda done: None,
    **options: Any,
) -> Run:
    """Train and compare strategies.

    Parameters
    ----------
    config : the options, or give them by name: ``run(data="adult", seeds=(1, 2))``; what is named wins
    out : folder for the results; nothing is written without it
    jobs : processes; all cores if None. The results do not depend on it.
    force : replace the results that the folder may already have
    progress : called now and then with the number of rounds finished, over all seeds

    Examples
    --------
    >>> finished = run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> finished.summary[["strategy", "seeds"]].values.tolist()
    [['fedavg', 1], ['fair_fate', 1]]
    """
    given = from_mapping(options, where="run")
    if config is not None:
        named = {key: getattr(given, key) for key in fields_given(options)}
        given = replace(config, **named)
    plan, table = prepare(given)
    return execute(plan, table, out=out, jobs=jobs, force=force, progress=progress)


def prepare(config: Config) -> tuple[Plan, Table]:
    """Load the data and check every option, without running or writing anything."""
    clear_tables()  # a file may have changed since it was last read
    table = load_table(config)
    plan = resolve(config, table)
    setup = Setup(plan.training.rounds, plan.published)
    for spec in plan.specs:
        _try_build(spec, setup)
    for seed in plan.config.seeds[: None if _may_fail(plan) else 1]:
        build(table, plan.partition, plan.clients, Streams(seed, plan.published))
    return plan, table


def _may_fail(plan: Plan) -> bool:
    """Whether some seed's shares may not be finite: tiny sigmas, with the authors' generator."""
    return plan.published and plan.partition.sigma is not None and plan.partition.sigma < 0.01


def _try_build(spec: Spec, setup: Setup) -> None:
    try:
        spec.build(setup)
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"strategy '{spec.text}' must be buildable, got {reason}") from error


def execute(
    plan: Plan,
    table: Table,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda done: None,
) -> Run:
    """Run a plan; see `run`."""
    check(jobs is None or jobs >= 1, "jobs must be >= 1", jobs)
    end_if_imported()
    if out is None:
        return _execute(plan, table, None, jobs, progress)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out must be a folder, got '{folder}' (a file)")
    with locked(folder):
        _open(folder, dump_config(plan, table), force)
        return _execute(plan, table, folder, jobs, progress)


def _execute(plan: Plan, table: Table, folder: Path | None, jobs: int | None, progress: Progress) -> Run:
    cells = {seed: Cell.of(plan, seed, table) for seed in plan.config.seeds}
    frames: dict[int, pd.DataFrame] = {}
    damaged: list[str] = []
    if folder is not None:
        remove_unfinished(folder, folder / MODELS)
        frames, damaged = _finished(folder, cells)
    rest = [cell for seed, cell in cells.items() if seed not in frames]
    start = len(frames) * plan.training.rounds
    workers = jobs or _jobs(plan, table, len(rest))
    try:
        tasks = run_tasks(_work, folder, rest, workers, lambda done: progress(start + done))
        with closing(tasks) as finished:
            for number, frame in finished:
                frames[rest[number].seed] = frame
    finally:
        if folder is not None:
            remove_unfinished(folder / MODELS, folder / CELLS)
    rounds = pd.concat([frames[seed] for seed in cells], ignore_index=True)
    summary = results.summarise(rounds)
    if folder is not None:
        results.write_rounds(folder / ROUNDS, rounds)
        results.write_summary(folder / SUMMARY, summary)
        Store(folder / CELLS).clear()
    return Run(plan, table, rounds, summary, folder, tuple(damaged))


def _finished(folder: Path, cells: Mapping[int, Cell]) -> tuple[dict[int, pd.DataFrame], list[str]]:
    """The rounds of seeds that an interrupted run has finished, models and all, and the damaged files."""
    store = Store(folder / CELLS)
    damaged = store.repair()
    store.index()
    frames: dict[int, pd.DataFrame] = {}
    for seed, cell in cells.items():
        if store.missing(cell):
            continue
        saved = store.models(cell)
        bad = [name for name, digest in saved.items() if file_checksum(folder / MODELS / name) != digest]
        if bad:
            damaged += [f"{MODELS}/{name}" for name in bad]
            store.remove(cell)
        else:
            frames[seed] = store.read(cell)
    return frames, damaged


def _work(folder: Path | None, cell: Cell, report: Report) -> pd.DataFrame:
    """All strategies of one seed; what is written is written at its end, the cell's file last."""
    plan, table = cell.plan, table_of(cell)
    for plugin in plan.config.plugins:
        load_plugin(plugin)
    outcome = run_cell(plan, table, cell.seed, plan.specs, lambda: report(1))
    if folder is None:
        return outcome.rounds
    saved: dict[str, str] = {}
    for spec, label, trace in zip(plan.specs, labels(plan.specs), outcome.traces, strict=True):
        file = folder / MODELS / results.model_file(label, cell.seed)
        results.write_model(
            file,
            trace.params,
            Schema.of(table, outcome.federation.encoder),
            hidden=plan.training.hidden,
            strategy=spec.text,
            protocol=plan.config.protocol,
            data_checksum=table.checksum,
        )
        saved[file.name] = file_checksum(file) or ""
    Store(folder / CELLS).write(cell, plan.specs, outcome.rounds, saved)
    return outcome.rounds


def _jobs(plan: Plan, table: Table, cells: int) -> int:
    """As many processes as there are cores, or one where starting more would take longer than the work."""
    visits = plan.visits(len(table)) * len(plan.specs) * cells
    return 1 if visits * _SECONDS_PER_VISIT < _WORTH_PROCESSES else cores()


_SECONDS_PER_VISIT = 4e-8
"""Roughly, for one model and one row."""
_WORTH_PROCESSES = 5.0


def _open(folder: Path, config: str, force: bool) -> None:
    """Make the folder ready: new, or an interrupted run of the same config, or by force."""
    if (folder / CONFIGS).exists():
        raise InputError(f"out must not be the folder of a sweep, got '{folder}' with {CONFIGS}")
    ours = [name for name in (CONFIG, ROUNDS, SUMMARY, MODELS, CELLS) if (folder / name).exists()]
    unfinished = (folder / CONFIG).exists() and not (folder / SUMMARY).exists()
    if unfinished and (folder / CONFIG).read_text(encoding="utf-8") == config:
        return  # the same run, interrupted: it goes on, also when it was begun with --force
    if ours and not force:
        if (folder / SUMMARY).exists() or not (folder / CONFIG).exists():
            raise InputError(
                f"out must be a folder without results (or give --force), got '{folder}'"
                f" with {', '.join(ours)}"
            )
        differing = _differences((folder / CONFIG).read_text(encoding="utf-8"), config)
        raise InputError(
            f"out must be new or hold the same run unfinished (or give --force), got '{folder}'"
            f" with another {', '.join(differing)}"
        )
    _remove_results(folder)
    write_bytes(folder / CONFIG, config.encode())


def _remove_results(folder: Path) -> None:
    """Remove what an earlier run wrote, and nothing else."""
    for name in (CONFIG, ROUNDS, SUMMARY):
        (folder / name).unlink(missing_ok=True)
    Store(folder / CELLS).clear()
    results.clear_models(folder / MODELS)


def _differences(old: str, new: str) -> list[str]:
    """The keys in which two configs differ."""

    def keys(text: str) -> dict[str, Any]:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return {"config.toml": text}
        return {**values.pop(PROVENANCE, {}), **values}

    before, after = keys(old), keys(new)
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
