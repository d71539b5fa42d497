"""One run over several seeds: processes, progress, interruption, resumption."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate import data, results
from fairfate.config import PROVENANCE, Config, Plan, dump_config, resolve
from fairfate.data import Table
from fairfate.errors import InputError, check
from fairfate.federation import build
from fairfate.files import write_bytes
from fairfate.results import CELLS, CONFIG, MODELS, ROUNDS, SUMMARY
from fairfate.simulate import simulate
from fairfate.strategies import Setup, labels
from fairfate.streams import Streams

Progress = Callable[[int], None]
"""Called with the number of rounds finished so far, over all seeds."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    plan: Plan
    table: Table
    rounds: pd.DataFrame
    summary: pd.DataFrame
    out: Path | None


def run(
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda rounds: None,
    **options: Any,
) -> Run:
    """Train and compare strategies.

    Parameters
    ----------
    config : the options, or give them by name: ``run(data="adult", seeds=(1, 2))``
    out : folder for the results; nothing is written without it
    jobs : processes; all cores if None. The results do not depend on it.
    force : replace the results that the folder may already have
    progress : called now and then with the number of rounds finished

    Examples
    --------
    >>> finished = run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> finished.summary[["strategy", "seeds"]].values.tolist()
    [['fedavg', 1], ['fair_fate', 1]]
    """
    plan, table = prepare(Config(**options) if config is None else config)
    return execute(plan, table, out=out, jobs=jobs, force=force, progress=progress)


def prepare(config: Config) -> tuple[Plan, Table]:
    """Load the data and check every option, without running or writing anything."""
    table = data.load(config.data, data_dir=config.data_dir, columns=config.columns)
    plan = resolve(config, table)
    build(table, plan.partition, plan.clients, Streams(plan.config.seeds[0], plan.published))
    return plan, table


def execute(
    plan: Plan,
    table: Table,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda rounds: None,
) -> Run:
    """Run a plan; see `run`."""
    check(jobs is None or jobs >= 1, "jobs must be >= 1", jobs)
    folder = None if out is None else Path(out)
    if folder is not None:
        _open(folder, dump_config(plan, table), force)
    seeds = plan.config.seeds
    done = {seed: _cell(folder, seed) for seed in seeds if _cell(folder, seed) is not None}
    rest = [seed for seed in seeds if seed not in done]
    workers = min(jobs or _jobs(plan, table, len(rest)), max(len(rest), 1))
    start = len(done) * plan.training.rounds
    frames: dict[int, pd.DataFrame] = {
        seed: results.read_rounds(file) for seed, file in done.items() if file is not None
    }
    runner = _in_process if workers == 1 else _in_processes
    for seed, frame in runner(plan, table, folder, rest, workers, lambda n: progress(start + n)):
        frames[seed] = frame
    rounds = pd.concat([frames[seed] for seed in seeds], ignore_index=True)
    summary = results.summarise(rounds)
    if folder is not None:
        results.write_rounds(folder / ROUNDS, rounds)
        results.write_summary(folder / SUMMARY, summary)
        shutil.rmtree(folder / CELLS, ignore_errors=True)
    return Run(plan, table, rounds, summary, folder)


def _jobs(plan: Plan, table: Table, cells: int) -> int:
    """As many processes as there are cores, or one where starting more would take longer than the work."""
    training = plan.training
    rows = 0.6 * len(table) * training.per_round / plan.clients * training.epochs
    seconds = rows * training.rounds * len(plan.specs) * cells * _SECONDS_PER_VISIT
    if seconds < _WORTH_PROCESSES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_SECONDS_PER_VISIT = 4e-8
"""Roughly, for one model and one row."""
_WORTH_PROCESSES = 5.0


def _open(folder: Path, config: str, force: bool) -> None:
    """Make the folder ready: new, or an interrupted run of the same config, or by force."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out must be a folder, got '{folder}' (a file)")
    ours = [name for name in (CONFIG, ROUNDS, SUMMARY, MODELS, CELLS) if (folder / name).exists()]
    if ours and not force:
        if (folder / SUMMARY).exists() or not (folder / CONFIG).exists():
            raise InputError(
                f"out must be a folder without results (or give --force), got '{folder}'"
                f" with {', '.join(ours)}"
            )
        differing = _differences((folder / CONFIG).read_text(), config)
        if differing:
            raise InputError(
                f"out must be new or hold the same run unfinished (or give --force), got '{folder}'"
                f" with another {', '.join(differing)}"
            )
        return
    for name in ours:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_bytes(folder / CONFIG, config.encode())


def _differences(old: str, new: str) -> list[str]:
    """The keys in which two configs differ."""

    def keys(text: str) -> dict[str, Any]:
        values = tomllib.loads(text)
        return {**values.pop(PROVENANCE, {}), **values}

    before, after = keys(old), keys(new)
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]


def _cell(folder: Path | None, seed: int) -> Path | None:
    file = None if folder is None else folder / CELLS / f"seed-{seed}.parquet"
    return file if file is not None and file.is_file() else None


def _run_seed(
    plan: Plan, table: Table, folder: Path | None, seed: int, on_round: Callable[[], None]
) -> pd.DataFrame:
    """All strategies of one seed; what is written is written at its end, the cell's file last."""
    streams = Streams(seed, plan.published)
    federation = build(table, plan.partition, plan.clients, streams)
    setup = Setup(plan.training.rounds, plan.published)
    strategies = [spec.build(setup) for spec in plan.specs]
    traces = simulate(federation, strategies, plan.training, streams, on_round)
    frame = results.rounds_frame(plan, table, seed, traces)
    if folder is not None:
        for spec, label, trace in zip(plan.specs, labels(plan.specs), traces, strict=True):
            file = folder / MODELS / results.model_file(label, seed)
            results.write_model(file, trace.params, table, federation, plan, spec)
        results.write_rounds(folder / CELLS / f"seed-{seed}.parquet", frame)
    return frame


Finished = Iterator[tuple[int, pd.DataFrame]]


def _in_process(
    plan: Plan,
    table: Table,
    folder: Path | None,
    seeds: list[int],
    workers: int,
    progress: Progress,
) -> Finished:
    rounds = 0

    def on_round() -> None:
        nonlocal rounds
        rounds += 1
        progress(rounds)

    for seed in seeds:
        yield seed, _run_seed(plan, table, folder, seed, on_round)


_WORKER: dict[str, Any] = {}


def _start_worker(plan: Plan, table: Table, folder: Path | None, counter: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from fairfate.strategies import load_plugin

    for plugin in plan.config.plugins:
        load_plugin(plugin)
    _WORKER.update(plan=plan, table=table, folder=folder, counter=counter)


def _work(seed: int) -> pd.DataFrame:
    counter = _WORKER["counter"]

    def on_round() -> None:
        with counter.get_lock():
            counter.value += 1

    return _run_seed(_WORKER["plan"], _WORKER["table"], _WORKER["folder"], seed, on_round)


def _in_processes(
    plan: Plan,
    table: Table,
    folder: Path | None,
    seeds: list[int],
    workers: int,
    progress: Progress,
) -> Finished:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with _pool(workers, context, (plan, table, folder, counter)) as pool:
        with _no_interrupt():  # half-started processes would die with a traceback
            waiting: dict[Future[pd.DataFrame], int] = {pool.submit(_work, s): s for s in seeds}
        while waiting:
            finished, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            progress(counter.value)
            for future in finished:
                yield waiting.pop(future), future.result()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the block is over. Processes started in it never see it: the parent decides.

    They inherit this thread's mask; the handler is for the parent's other threads, which may be the ones
    to receive the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if seen:
        raise KeyboardInterrupt


@contextmanager
def _pool(workers: int, context: Any, arguments: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes do not outlive an interruption or an error."""
    pool = ProcessPoolExecutor(workers, context, _start_worker, arguments)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
