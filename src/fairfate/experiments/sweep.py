"""Many runs: the product of datasets, partitions, protocols, strategies with lists of settings, and seeds.

All strategies of one config and one seed are one job: one pass, one file. Adding seeds or
settings later runs only what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate.data import Table
from fairfate.errors import InputError, check
from fairfate.experiments.config import Config
from fairfate.experiments.job import Job, run_job
from fairfate.experiments.plan import Plan, dump_config
from fairfate.experiments.prepare import prepare_all
from fairfate.experiments.runner import Task, check_request, run_jobs
from fairfate.experiments.runs import SWEPT
from fairfate.experiments.store import Store
from fairfate.experiments.workers import Progress, Report
from fairfate.results.folder import CELLS, CONFIG, CONFIGS, ROUNDS, SUMMARY
from fairfate.results.summary import summarise, write_csv
from fairfate.storage import locked, remove_unfinished, write_bytes


@dataclass(frozen=True, eq=False)
class Sweep:
    """A finished sweep: its results stay in their files, which may be larger than memory."""

    out: Path
    plans: tuple[Plan, ...]
    jobs: tuple[Job, ...]
    ran: int
    """How many runs (strategy, setting, seed) this call had to do."""
    damaged: tuple[str, ...]
    repeated: int = 0
    """How many configs were the same as another one, once all that depends on the data was decided."""

    def rounds(self, job: Job) -> pd.DataFrame:
        """The rows of one job, as in ``rounds.parquet``."""
        store = Store(self.out / CELLS)
        store.index()
        return store.read(job)


def sweep(
    configs: Iterable[Config],
    out: str | Path,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda amount: None,
    on_plan: Progress = lambda total: None,
) -> Sweep:
    """Run the jobs of several configs that are not yet in the folder.

    Parameters
    ----------
    configs : what to run; see `fairfate.experiments.config.expand`
    out : folder; one file for each finished job under ``cells``, and ``summary.csv``
    jobs : processes; all cores if None. The results do not depend on it.
    executor : where to run instead, any of `concurrent.futures`: see `fairfate.experiments.cluster`
    progress : told how much work is done
    on_plan : told once how much there is to do
    """
    folder = check_request(out, jobs)
    if folder is None:
        raise InputError("out must be a folder")
    prepared = prepare_all(configs)
    check(len(prepared) > 0, "sweep must have at least one job")
    by_config = {dump_config(plan, table): (plan, table) for plan, table in prepared}
    for name in (CONFIG, ROUNDS):
        if (folder / name).exists():
            raise InputError(f"out must be new or the folder of a sweep, got '{folder}' with {name} of a run")
    with locked(folder):
        try:
            repeated = len(prepared) - len(by_config)
            return _sweep(by_config, repeated, folder, jobs, executor, progress, on_plan)
        except InputError:
            if not Store(folder / CELLS).files:
                _clear_configs(folder)  # nothing has come of them
            raise


def _sweep(
    by_config: Mapping[str, tuple[Plan, Table]],
    repeated: int,
    folder: Path,
    jobs: int | None,
    executor: Executor | None,
    progress: Progress,
    on_plan: Progress,
) -> Sweep:
    remove_unfinished(folder, folder / CONFIGS)
    _write_configs(folder, [*by_config])
    prepared = [*by_config.values()]
    store = Store(folder / CELLS)
    damaged = store.repair()
    store.index()
    planned, tasks = [], []
    for plan, table in prepared:
        for seed in plan.config.seeds:
            job = Job.from_table(plan, seed, table)
            planned.append((job, table))
            missing = store.missing(job)
            if missing:
                tasks.append(Task(job, tuple(missing), plan.visits(len(table)) * len(missing)))
    on_plan(sum(task.work for task in tasks))
    groups = {table.checksum: table.grouping for _, table in prepared}

    def keep(task: Task, rounds: pd.DataFrame) -> None:
        store.write(task.job, task.items, rounds, groups[task.job.data_checksum])

    try:
        tables = [table for _, table in prepared]
        run_jobs(run_specs, tasks, tables, keep, jobs=jobs, executor=executor, progress=progress)
    finally:
        remove_unfinished(folder / CELLS)
    finished = Sweep(
        folder,
        tuple(plan for plan, _ in prepared),
        tuple(job for job, _ in planned),
        sum(len(task.items) for task in tasks),
        tuple(damaged),
        repeated,
    )
    _write_summary(finished)
    return finished


def _write_configs(folder: Path, texts: Sequence[str]) -> None:
    for file in (folder / CONFIGS).glob("[0-9][0-9][0-9]*.toml"):
        if file.stem.isdigit() and int(file.stem) > len(texts):
            file.unlink()  # of a longer sweep before this one
    for number, text in enumerate(texts, start=1):
        write_bytes(folder / CONFIGS / f"{number:03}.toml", text.encode())


def _clear_configs(folder: Path) -> None:
    for file in (folder / CONFIGS).glob("[0-9][0-9][0-9]*.toml"):
        file.unlink(missing_ok=True)
    for empty in (folder / CONFIGS, folder / CELLS):
        with suppress(OSError):
            empty.rmdir()


def run_specs(task: Task, table: Table, report: Report) -> pd.DataFrame:
    """The rounds of a job's strategies."""
    job, per_round = task.job, task.work / task.job.plan.training.rounds
    return run_job(job.plan, table, job.seed, task.items, lambda: report(per_round)).rounds


def _write_summary(finished: Sweep) -> None:
    """Mean and standard deviation over seeds, one plan after another so that memory stays small.

    What differs between the plans stands beside the partition.
    """
    store = Store(finished.out / CELLS)
    store.index()
    values = [_swept(plan) for plan in finished.plans]
    varied = [name for name in SWEPT if len({str(each[name]) for each in values}) > 1]
    parts = []
    for plan, own in zip(finished.plans, values, strict=True):
        own_rounds = [store.read(job) for job in finished.jobs if job.plan == plan]
        part = summarise(pd.concat(own_rounds, ignore_index=True))
        for name in reversed(varied):
            part.insert(list(part.columns).index("partition") + 1, name, own[name])
        parts.append(part)
    write_csv(finished.out / SUMMARY, pd.concat(parts, ignore_index=True))


def _swept(plan: Plan) -> dict[str, Any]:
    """What a plan has of all that may differ in a sweep."""
    given = {name: getattr(plan.config, name.replace("-", "_")) for name in SWEPT}
    return {**given, **{name: "none" for name, value in given.items() if value is None}}
