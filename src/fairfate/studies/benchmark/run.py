"""`fairfate benchmark`: all methods on all federations, resumable, and what came of it."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate.data import Table
from fairfate.errors import InputError, unknown
from fairfate.experiments.config import Config, parse_seeds
from fairfate.experiments.job import Job
from fairfate.experiments.plan import Plan
from fairfate.experiments.prepare import prepare
from fairfate.experiments.runner import Task, check_request, run_jobs
from fairfate.experiments.workers import Progress, Report, cores
from fairfate.storage import locked, write_bytes
from fairfate.strategies import load_plugin
from fairfate.studies.benchmark import kept as keeping
from fairfate.studies.benchmark.baselines import BASELINES
from fairfate.studies.benchmark.findings import DATASETS, PARTITIONS, ROUNDS, SEEDS, Findings
from fairfate.studies.benchmark.kept import Results
from fairfate.studies.benchmark.measure import run_methods
from fairfate.studies.benchmark.methods import REFERENCE, Method, every, find

CELLS, CLOCK = "cells", "seconds.txt"


@dataclass(frozen=True, eq=False)
class Benchmark:
    """What was found."""

    out: Path
    rows: pd.DataFrame
    """One for each setting of each method on each seed."""
    plans: tuple[Plan, ...]
    ran: int
    """How many methods this call had to run, counted in each job: federation and seed."""
    new: tuple[str, ...]
    """The methods and baselines that this call had to run."""
    jobs: int
    """In how many jobs."""
    kept: int
    """How many rows come with the package."""
    minutes: float
    """How long all calls took that filled the folder."""
    asked: tuple[str, ...]
    """The methods that were asked for by name, if any."""

    @property
    def findings(self) -> Findings:
        """The results, tuned and compared."""
        usual = all(plan.training.rounds == ROUNDS for plan in self.plans)
        return Findings(self.rows, self.minutes, machine(), self.asked, self.kept, usual)


def benchmark(
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    plugins: Sequence[str] = (),
    data: Sequence[str] = DATASETS,
    partitions: Sequence[str] = PARTITIONS,
    encode: Sequence[str] = ("ordinal",),
    seeds: int | str = SEEDS,
    rounds: int | None = None,
    data_dir: str | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda done: None,
    on_plan: Progress = lambda total: None,
) -> Benchmark:
    """Run what is not in the folder yet.

    Parameters
    ----------
    out : folder for the results
    methods : names of methods or baselines, or texts with settings (``mine:strength=0.1|1``); all if none. If
        some are named, only these are run, and the others' results are those that come with the package
    plugins : Python files that register strategies
    data, partitions, encode : federations; all combinations
    seeds : how many, or which
    rounds : other than usual, to try something out
    """
    folder = check_request(out, jobs)
    if folder is None:
        raise InputError("out must be a folder, got none")
    for plugin in plugins:
        load_plugin(plugin)
    chosen, alone = _chosen(methods)
    kept, about = keeping.read_kept() if methods else (None, {"cells": []})
    texts = [method.specs[0].text for method in chosen] or ["fedavg"]
    prepared: list[tuple[Plan, Table]] = []
    for name, partition, code in itertools.product(data, partitions, encode):
        config = Config(
            data=name,
            data_dir=data_dir,
            partition=partition,
            encode=code,
            strategies=tuple(texts),
            plugins=tuple(plugins),
            rounds=rounds,
            seeds=parse_seeds(seeds),
        )
        plan, table = prepare(config)
        if table.groups != 2:
            raise InputError(f"data must have two groups for the benchmark, got {table.groups} in '{name}'")
        prepared.append((plan, table))
    started = time.monotonic()
    with locked(folder):
        return _run(
            folder,
            prepared,
            chosen,
            alone,
            (kept, about),
            tuple(methods),
            jobs,
            executor,
            progress,
            on_plan,
            started,
        )


def _chosen(texts: Sequence[str]) -> tuple[tuple[Method, ...], tuple[str, ...]]:
    """The methods to run, and the baselines."""
    if not texts:
        return every(), tuple(BASELINES)
    alone = tuple(text for text in texts if text in BASELINES)
    try:
        return find([text for text in texts if text not in BASELINES]), alone
    except InputError as error:
        if "unknown method" in str(error):
            known = [*(method.name for method in every()), *BASELINES]
            wrong = next(text for text in texts if text not in known)
            raise unknown("method", wrong, known) from None
        raise


def _run(
    folder: Path,
    prepared: Sequence[tuple[Plan, Table]],
    chosen: tuple[Method, ...],
    alone: tuple[str, ...],
    kept: tuple[pd.DataFrame | None, dict[str, Any]],
    asked: tuple[str, ...],
    jobs: int | None,
    executor: Executor | None,
    progress: Progress,
    on_plan: Progress,
    started: float,
) -> Benchmark:
    results = Results(folder / CELLS)
    results.repair()
    cells = [Job.of(plan, seed, table) for plan, table in prepared for seed in plan.config.seeds]
    others = {id(cell) for cell in keeping.same(kept[1], cells)}
    rows_of = {id(plan): len(table) for plan, table in prepared}
    reference = find([REFERENCE])
    texts = {find([text])[0].name: text for text in asked if text not in BASELINES}
    tasks, lacking_in = [], []
    for cell in cells:
        held = results.read(cell)
        wanted = chosen if id(cell) in others else tuple(dict.fromkeys((*reference, *chosen)))
        lacking = keeping.missing(held, wanted)
        single = [name for name in alone if name not in set(held["method"])]
        if lacking or single:
            found_by = [texts.get(method.name, method.name) for method in lacking]
            visits = cell.plan.visits(rows_of[id(cell.plan)])
            settings = sum(len(method.specs) for method in lacking) + len(single)
            tasks.append(Task(cell, (found_by, single), visits * settings))
            lacking_in.append([*(method.name for method in lacking), *single])
    on_plan(sum(task.work for task in tasks))
    tables = [table for _, table in prepared]
    try:
        run_jobs(
            run_task_methods,
            tasks,
            tables,
            lambda task, rows: results.add(task.job, rows),
            jobs=jobs,
            executor=executor,
            progress=progress,
        )
    finally:
        results.repair()
        seconds = _add_time(folder / CLOCK, time.monotonic() - started if tasks else 0.0)
    found = [results.read(cell).assign(**keeping.where(cell)) for cell in cells]
    rows = pd.concat(found, ignore_index=True)
    computed = len(rows)
    if kept[0] is not None:
        rows = _with_kept(rows, kept[0], [cell for cell in cells if id(cell) in others])
    plans = tuple(plan for plan, _ in prepared)
    ran = sum(len(names) for names in lacking_in)
    names = tuple(method.name for method in chosen) + alone if asked else ()
    new = tuple(dict.fromkeys(name for lacking in lacking_in for name in lacking))
    return Benchmark(folder, rows, plans, ran, new, len(tasks), len(rows) - computed, seconds / 60, names)


def _add_time(clock: Path, seconds: float) -> float:
    """Add up how long all calls took that filled a folder, also those that were interrupted."""
    known = float(clock.read_text()) if clock.is_file() else 0.0
    if seconds:
        write_bytes(clock, f"{known + seconds:.1f}\n".encode())
    return known + seconds


def _with_kept(rows: pd.DataFrame, kept: pd.DataFrame, cells: Sequence[Job]) -> pd.DataFrame:
    """The kept results of the same federations, but for methods that were run now."""
    places = pd.DataFrame([keeping.where(cell) for cell in cells])
    if places.empty:
        return rows
    same = kept.merge(places, on=list(keeping.WHERE))
    now = rows[[*keeping.WHERE, "method"]].drop_duplicates().assign(now=True)
    same = same.merge(now, on=[*keeping.WHERE, "method"], how="left")
    return pd.concat([rows, same[same["now"].isna()].drop(columns="now")], ignore_index=True)


def run_task_methods(task: Task, table: Table, report: Report) -> pd.DataFrame:
    """The rows of a job's methods and baselines."""
    names, alone = task.items
    methods = find(names)
    settings = sum(len(method.specs) for method in methods) + len(alone)
    share = task.work / settings
    job = task.job
    return run_methods(job.plan, table, job.seed, methods, alone, lambda done: report(share * done))


def machine() -> str:
    """What the numbers of seconds were measured on."""
    return f"{cores()} cores, {platform.machine()}, Python {platform.python_version()}"
