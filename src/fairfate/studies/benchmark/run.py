"""`fairfate benchmark`: all methods on all federations, resumable."""

from __future__ import annotations

import itertools
import json
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairfate.data import ORDINAL, Table
from fairfate.errors import InputError, unknown
from fairfate.experiments.config import Config, parse_seeds
from fairfate.experiments.job import Job
from fairfate.experiments.plan import Plan
from fairfate.experiments.prepare import prepare
from fairfate.experiments.runner import Task, check_request, run_jobs
from fairfate.experiments.store import HEADER, Store
from fairfate.experiments.workers import Progress, Report, cores
from fairfate.storage import locked, remove_unfinished, replacing
from fairfate.strategies import load_plugin
from fairfate.studies.benchmark.baselines import BASELINES
from fairfate.studies.benchmark.findings import DATASETS, PARTITIONS, ROUNDS, SEEDS, Findings
from fairfate.studies.benchmark.measure import COLUMNS, COUNTS, WHERE, WORST, run_methods
from fairfate.studies.benchmark.methods import REFERENCE, Method, every, find
from fairfate.studies.pages import add_time

CELLS, KEPT = "cells", "kept.parquet"
_RATES = (*WORST, "consistency", "flip")


@dataclass(frozen=True, eq=False)
class Benchmark:
    """The results of a benchmark."""

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
    """The methods that were run by name, if any."""

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
    progress: Progress = lambda work: None,
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
    shared: dict[str, Any] = {
        "data_dir": data_dir,
        "strategies": tuple(method.specs[0].text for method in chosen) or ("fedavg",),
        "plugins": tuple(plugins),
        "rounds": rounds,
        "seeds": parse_seeds(seeds),
    }
    prepared = [
        _prepare(Config(data=name, partition=partition, encode=code, **shared))
        for name, partition, code in itertools.product(data, partitions, encode)
    ]
    planned = [
        (Job.from_table(plan, seed, table), table) for plan, table in prepared for seed in plan.config.seeds
    ]
    kept, about = read_kept() if methods else (pd.DataFrame(columns=[*WHERE, *COLUMNS]), {"cells": []})
    compared = {id(job): job for job in select_kept(about, [job for job, _ in planned])}
    start = time.monotonic()
    with locked(folder):
        store = Store(folder / CELLS)
        store.repair()
        store.index()
        texts = {find([text])[0].name: text for text in methods if text not in BASELINES}
        tasks, new = [], []
        for job, table in planned:
            wanted = chosen if id(job) in compared else _with_reference(chosen)
            lacking, single = _missing(store, job, wanted, alone)
            if lacking or single:
                items = [texts.get(method.name, method.name) for method in lacking], single
                settings = sum(len(method.specs) for method in lacking) + len(single)
                tasks.append(Task(job, items, job.plan.visits(len(table)) * settings))
                new.append([*(method.name for method in lacking), *single])
        on_plan(sum(task.work for task in tasks))
        try:
            run_jobs(
                run_task_methods,
                tasks,
                [table for _, table in prepared],
                lambda task, rows: add_rows(store, task.job, rows),
                jobs=jobs,
                executor=executor,
                progress=progress,
            )
        finally:
            remove_unfinished(store.folder)
            seconds = add_time(folder, time.monotonic() - start if tasks else 0.0)
        store.index()
        own = pd.concat(
            [read_rows(store, job).assign(**job_columns(job)) for job, _ in planned], ignore_index=True
        )
    rows = _with_kept(own, kept, tuple(compared.values()))
    return Benchmark(
        folder,
        rows,
        tuple(plan for plan, _ in prepared),
        sum(len(names) for names in new),
        tuple(dict.fromkeys(itertools.chain(*new))),
        len(tasks),
        len(rows) - len(own),
        seconds / 60,
        tuple(method.name for method in chosen) + alone if methods else (),
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


def _prepare(config: Config) -> tuple[Plan, Table]:
    plan, table = prepare(config)
    if table.groups != 2:
        raise InputError(
            f"data must have two groups for the benchmark, got {table.groups} in '{config.data}'"
        )
    return plan, table


def _with_reference(chosen: Sequence[Method]) -> tuple[Method, ...]:
    """Add the reference to methods that have no kept results to be compared with."""
    return tuple(dict.fromkeys((*find([REFERENCE]), *chosen)))


def _missing(
    store: Store, job: Job, wanted: Sequence[Method], alone: Sequence[str]
) -> tuple[list[Method], list[str]]:
    """The methods with a setting that a job lacks, and the baselines that it lacks."""
    rows = read_rows(store, job)
    have = set(zip(rows["method"], rows["setting"], rows["code"], strict=True))
    methods = [
        method
        for method in wanted
        if any((method.name, spec.text, spec.code) not in have for spec in method.specs)
    ]
    return methods, [name for name in alone if name not in set(rows["method"])]


def run_task_methods(task: Task, table: Table, report: Report) -> pd.DataFrame:
    """The rows of a job's methods and baselines."""
    names, alone = task.items
    methods = find(names)
    settings = sum(len(method.specs) for method in methods) + len(alone)
    share = task.work / settings
    job = task.job
    return run_methods(job.plan, table, job.seed, methods, alone, lambda count: report(share * count))


def machine() -> str:
    """The machine that the seconds were measured on."""
    return f"{cores()} cores, {platform.machine()}, Python {platform.python_version()}"


# --- the rows of a job, in the store of its folder


def read_rows(store: Store, job: Job) -> pd.DataFrame:
    """The stored rows of a job."""
    frames: list[pd.DataFrame] = [pq.read_table(path).to_pandas() for path, _ in store.files_of(job)]
    if not frames:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    return rows.drop_duplicates(["method", "setting", "metric", "part", "code"], ignore_index=True)


def add_rows(store: Store, job: Job, rows: pd.DataFrame) -> None:
    """Add rows to a job; those of the same methods are replaced."""
    before = [path for path, _ in store.files_of(job)]
    known = read_rows(store, job)
    known = known[~known["method"].isin(rows["method"].unique())]
    together = rows if known.empty else pd.concat([known, rows], ignore_index=True)
    specs = sorted(together["setting"].unique())
    header = {"cell": job.key, "code": "", "specs": specs, "saved": {}}
    store.add(job, _arrow(together, header))
    if set(store.files) - set(before):  # not the very same file again
        for path in before:
            path.unlink()


def read_jobs(folder: Path) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The rows of each finished job of a folder, and what they depend on."""
    store = Store(folder / CELLS)
    store.index()
    for path, header in store.indexed:
        key = {"encode": ORDINAL, **header["cell"]}
        yield pq.read_table(path).to_pandas().assign(**{name: key[name] for name in WHERE}), key


def _arrow(rows: pd.DataFrame, header: dict[str, Any]) -> pa.Table:
    """The rows in small types, with a header."""
    kinds: dict[str, Any] = dict.fromkeys(COUNTS, np.int32) | dict.fromkeys(_RATES, np.float32)
    typed = rows.astype({**kinds, "part": np.int16, "seconds": np.float32})
    typed[list(_RATES)] = typed[list(_RATES)].round(4)
    typed["seconds"] = typed["seconds"].round(3)
    table = pa.Table.from_pandas(typed, preserve_index=False)
    return table.replace_schema_metadata({HEADER: json.dumps(header, sort_keys=True).encode()})


# --- the results that come with the package


def kept_file() -> Path:
    """The results that come with the package."""
    return Path(str(files("fairfate.studies.benchmark") / KEPT))


def read_kept() -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of all jobs that come with the package, and their description."""
    if not kept_file().is_file():
        return pd.DataFrame(columns=[*WHERE, *COLUMNS]), {"cells": [], "minutes": 0.0, "machine": ""}
    table = pq.read_table(kept_file())
    return table.to_pandas(), json.loads(table.schema.metadata[HEADER])


def write_kept(path: Path, rows: pd.DataFrame, about: dict[str, Any]) -> None:
    """Write the rows of all jobs into one file."""
    with replacing(path) as temporary:
        pq.write_table(_arrow(rows, about), temporary, compression="zstd", compression_level=19)


def job_columns(job: Job) -> dict[str, Any]:
    """The columns that identify a job in a table."""
    plan = job.plan
    values = plan.config.encode, plan.dataset, str(plan.partition), job.seed
    return dict(zip(WHERE, values, strict=True))


def fingerprint(job: Job) -> dict[str, Any]:
    """What kept results depend on, besides methods and the version; a test guards that they still hold."""
    key = {**job.key, "encode": job.plan.config.encode}
    return {name: value for name, value in key.items() if name != "version"}


def select_kept(about: dict[str, Any], jobs: Iterable[Job]) -> list[Job]:
    """The jobs with kept results of the same data and training."""
    known = {json.dumps(key, sort_keys=True) for key in about["cells"]}
    return [job for job in jobs if json.dumps(fingerprint(job), sort_keys=True) in known]


def _with_kept(rows: pd.DataFrame, kept: pd.DataFrame, jobs: Sequence[Job]) -> pd.DataFrame:
    """Add the kept results of the same federations, except those of methods that were run now."""
    if not jobs:
        return rows
    others = kept.merge(pd.DataFrame([job_columns(job) for job in jobs]), on=list(WHERE))
    now = rows[[*WHERE, "method"]].drop_duplicates().assign(now=True)
    others = others.merge(now, on=[*WHERE, "method"], how="left")
    return pd.concat([rows, others[others["now"].isna()].drop(columns="now")], ignore_index=True)
