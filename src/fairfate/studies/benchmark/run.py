"""`fairfate benchmark`: all methods on all federations, resumable."""

from __future__ import annotations

import itertools
import json
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairfate.data import ORDINAL, Table
from fairfate.errors import InputError, check, unknown
from fairfate.experiments.config import Config, parse_seeds
from fairfate.experiments.job import Job
from fairfate.experiments.plan import Plan
from fairfate.experiments.prepare import checked, prepare
from fairfate.experiments.runner import Task, check_request, run_jobs
from fairfate.experiments.store import HEADER, Store
from fairfate.experiments.workers import Progress, Report, cores
from fairfate.federation.individual import insensitive
from fairfate.storage import locked, remove_unfinished, replacing
from fairfate.strategies import load_plugin
from fairfate.studies.benchmark.baselines import BASELINES, NEED_GROUP
from fairfate.studies.benchmark.findings import BIASED, DATASETS, PARTITIONS, ROUNDS, SEEDS, Findings
from fairfate.studies.benchmark.measure import COLUMNS, COUNTS, WHERE, WORST, run_methods
from fairfate.studies.benchmark.methods import AWARE, BLIND, REFERENCE, TRACKS, Method, every, find
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
    """How many methods this call had to run, counted in each job: federation, track and seed."""
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


@dataclass(frozen=True, eq=False)
class Planned:
    """A job of the benchmark: its table has the group among its inputs, or does not."""

    job: Job
    table: Table
    track: str

    @property
    def columns(self) -> dict[str, Any]:
        """The columns that identify it in a table of results."""
        plan = self.job.plan
        values = self.track, plan.config.encode, plan.dataset, str(plan.partition), self.job.seed
        return dict(zip(WHERE, values, strict=True))


def benchmark(
    out: str | Path,
    *,
    methods: Sequence[str] = (),
    plugins: Sequence[str] = (),
    data: Sequence[str] = DATASETS,
    partitions: Sequence[str] = PARTITIONS + BIASED,
    tracks: Sequence[str] = TRACKS,
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
    tracks : whether the group is an input and may be used at decisions (aware), or is neither (blind)
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
    for track in tracks:
        if track not in TRACKS:
            raise unknown("track", track, TRACKS)
    asked: list[Method | str] = [*chosen, *alone]
    check(any(_fits(each, track) for track in tracks for each in asked), _RULE, ", ".join(methods))
    prepared = [
        (plan, table, track)
        for name, partition, code in itertools.product(data, partitions, encode)
        for plan, table, track in _prepare(
            Config(data=name, partition=partition, encode=code, **shared), tracks
        )
    ]
    planned = [
        Planned(Job.from_table(plan, seed, table), table, track)
        for plan, table, track in prepared
        for seed in plan.config.seeds
    ]
    kept, about = read_kept() if methods else (pd.DataFrame(columns=[*WHERE, *COLUMNS]), {"cells": []})
    compared = select_kept(about, planned)
    start = time.monotonic()
    with locked(folder):
        store = Store(folder / CELLS)
        store.repair()
        store.index()
        texts = {find([text])[0].name: text for text in methods if text not in BASELINES}
        tasks, new = [], []
        for entry in planned:
            wanted = chosen if entry in compared else _with_reference(chosen)
            lacking, single = _missing(store, entry, wanted, alone)
            if lacking or single:
                items = [texts.get(method.name, method.name) for method in lacking], single, entry.track
                settings = sum(len(method.specs) for method in lacking) + len(single)
                tasks.append(Task(entry.job, items, entry.job.plan.visits(len(entry.table)) * settings))
                new.append([*(method.name for method in lacking), *single])
        on_plan(sum(task.work for task in tasks))
        try:
            run_jobs(
                run_task_methods,
                tasks,
                [table for _, table, _ in prepared],
                lambda task, rows: add_rows(store, task.job, rows, task.items[-1]),
                jobs=jobs,
                executor=executor,
                progress=progress,
            )
        finally:
            remove_unfinished(store.folder)
            seconds = add_time(folder, time.monotonic() - start if tasks else 0.0)
        store.index()
        own = pd.concat(
            [read_rows(store, entry.job).assign(**entry.columns) for entry in planned], ignore_index=True
        )
    rows = _with_kept(own, kept, compared)
    return Benchmark(
        folder,
        rows,
        tuple(plan for plan, _, _ in prepared),
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


_RULE = "methods must have one that a track allows (a threshold for each group is for the aware one)"


def _prepare(config: Config, tracks: Sequence[str]) -> Iterator[tuple[Plan, Table, str]]:
    """A federation in each track."""
    plan, table = prepare(config)
    if table.groups != 2:
        raise InputError(
            f"data must have two groups for the benchmark, got {table.groups} in '{config.data}'"
        )
    for track in tracks:
        if track == AWARE:
            yield plan, table, track
        else:
            blind = drop_sensitive(table)
            yield checked(config, blind), blind, track


def drop_sensitive(table: Table) -> Table:
    """The same rows without the sensitive columns among the inputs."""
    inputs = insensitive(table)
    check(len(inputs) > 0, f"data must have an input that is not sensitive in track {BLIND}", table.name)
    names = tuple(table.feature_names[index] for index in inputs)
    return replace(table, features=table.features[:, inputs], feature_names=names)


def _with_reference(chosen: Sequence[Method]) -> tuple[Method, ...]:
    """Add the reference to methods that have no kept results to be compared with."""
    return tuple(dict.fromkeys((*find([REFERENCE]), *chosen)))


def _fits(method: Method | str, track: str) -> bool:
    """Whether a method, or a baseline by its name, takes part in a track."""
    return method.is_in(track) if isinstance(method, Method) else track == AWARE or method not in NEED_GROUP


def _missing(
    store: Store, entry: Planned, wanted: Sequence[Method], alone: Sequence[str]
) -> tuple[list[Method], list[str]]:
    """The methods with a setting that a job lacks, and the baselines that it lacks."""
    rows = read_rows(store, entry.job)
    have = set(zip(rows["method"], rows["setting"], rows["code"], strict=True))
    methods = [
        method
        for method in wanted
        if _fits(method, entry.track)
        and any((method.name, spec.text, spec.code) not in have for spec in method.specs)
    ]
    there = set(rows["method"])
    return methods, [name for name in alone if _fits(name, entry.track) and name not in there]


def run_task_methods(task: Task, table: Table, report: Report) -> pd.DataFrame:
    """The rows of a job's methods and baselines."""
    names, alone, _ = task.items
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
    frames = [_frame(pq.read_table(path)) for path, _ in store.files_of(job)]
    if not frames:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    return rows.drop_duplicates(["method", "setting", "metric", "part", "code"], ignore_index=True)


def add_rows(store: Store, job: Job, rows: pd.DataFrame, track: str) -> None:
    """Add rows to a job; those of the same methods are replaced."""
    before = [path for path, _ in store.files_of(job)]
    known = read_rows(store, job)
    known = known[~known["method"].isin(rows["method"].unique())]
    together = rows if known.empty else pd.concat([known, rows], ignore_index=True)
    specs = sorted(together["setting"].unique())
    header = {"cell": job.key, "track": track, "code": "", "specs": specs, "saved": {}}
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
        columns = {"track": header["track"]} | key
        yield _frame(pq.read_table(path)).assign(**{name: columns[name] for name in WHERE}), key


def _arrow(rows: pd.DataFrame, header: dict[str, Any]) -> pa.Table:
    """The rows in small types, with a header.

    In the place of rejected rows are all rows of a group and label, which are the same for all models of a
    job and take no space.
    """
    kinds: dict[str, Any] = dict.fromkeys(COUNTS, np.int32) | dict.fromkeys(_RATES, np.float32)
    typed = rows.astype({**kinds, "part": np.int16})
    typed[list(_RATES)] = typed[list(_RATES)].round(3)
    for rejected, accepted in _PAIRS:
        typed[rejected] += typed[accepted]
    table = pa.Table.from_pandas(typed, preserve_index=False)
    return table.replace_schema_metadata({HEADER: json.dumps(header, sort_keys=True).encode()})


def _frame(table: pa.Table) -> pd.DataFrame:
    """The inverse of `_arrow`."""
    rows: pd.DataFrame = table.to_pandas()
    for rejected, accepted in _PAIRS:
        rows[rejected] -= rows[accepted]
    return rows


_PAIRS = tuple(zip(COUNTS[::2], COUNTS[1::2], strict=True))


# --- the results that come with the package


def kept_file() -> Path:
    """The results that come with the package."""
    return Path(str(files("fairfate.studies.benchmark") / KEPT))


def read_kept() -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of all jobs that come with the package, and their description."""
    if not kept_file().is_file():
        return pd.DataFrame(columns=[*WHERE, *COLUMNS]), {"cells": [], "minutes": 0.0, "machine": ""}
    table = pq.read_table(kept_file())
    return _frame(table), json.loads(table.schema.metadata[HEADER])


def write_kept(path: Path, rows: pd.DataFrame, about: dict[str, Any]) -> None:
    """Write the rows of all jobs into one file."""
    table = _arrow(rows, about)
    accepted = [name for _, name in _PAIRS]  # too many values for a dictionary; their high bytes repeat
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=[name for name in table.column_names if name not in accepted],
            column_encoding=dict.fromkeys(accepted, "BYTE_STREAM_SPLIT"),
        )


def fingerprint(job: Job) -> dict[str, Any]:
    """What kept results depend on, besides methods and the version; a test guards that they still hold."""
    key = {**job.key, "encode": job.plan.config.encode}
    return {name: value for name, value in key.items() if name != "version"}


def select_kept(about: dict[str, Any], planned: Iterable[Planned]) -> list[Planned]:
    """The jobs with kept results of the same data and training."""
    known = {json.dumps(key, sort_keys=True) for key in about["cells"]}
    return [entry for entry in planned if json.dumps(fingerprint(entry.job), sort_keys=True) in known]


def _with_kept(rows: pd.DataFrame, kept: pd.DataFrame, compared: Sequence[Planned]) -> pd.DataFrame:
    """Add the kept results of the same federations, except those of methods that were run now."""
    if not compared:
        return rows
    others = kept.merge(pd.DataFrame([entry.columns for entry in compared]), on=list(WHERE))
    now = rows[[*WHERE, "method"]].drop_duplicates().assign(now=True)
    others = others.merge(now, on=[*WHERE, "method"], how="left")
    return pd.concat([rows, others[others["now"].isna()].drop(columns="now")], ignore_index=True)
