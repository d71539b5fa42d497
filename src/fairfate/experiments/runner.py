"""The only scheduler: jobs over processes here, or over any executor elsewhere.

A run is some jobs of one config, a sweep those of several, the benchmark those of its federations. What they
share is here: tables travel once to whoever works, results come back to this process, which alone writes
them, and whatever is interrupted goes on with the jobs that are missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, wait
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairfate.data import Table
from fairfate.errors import InputError, ProcessDiedError, check, is_utf8
from fairfate.experiments.job import Job
from fairfate.experiments.workers import Progress, Report, cores, end_if_imported, run_tasks
from fairfate.strategies import load_plugin

ATTEMPTS = 3
"""How often a job is begun whose worker is lost."""


class Task(NamedTuple):
    """Some strategies of a job, as one worker runs them."""

    job: Job
    items: tuple[Any, ...]
    """What is missing of the job: specs, or the benchmark's methods."""
    work: float
    """Roughly how long it takes, in any unit; the longest begin first."""


Run = Callable[[Task, Table, Report], Any]
"""``(task, table, report) -> result``: a module's own function, so that other processes find it."""


class Shared(NamedTuple):
    """What all workers need, sent to each of them once."""

    run: Run
    tables: Mapping[str, Table]
    """By checksum."""
    plugins: Mapping[str, bytes]
    """Files that register strategies, by their path."""


def run_jobs(
    run: Run,
    tasks: Iterable[Task],
    tables: Iterable[Table],
    on_result: Callable[[Task, Any], None],
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: Progress = lambda amount: None,
) -> None:
    """Run all tasks and hand over each one's result as it ends.

    Parameters
    ----------
    run : what is done for a task, in another process
    tasks : what to do
    tables : the data that the tasks' jobs are on
    on_result : called in this process; what it writes is kept if the rest is interrupted
    jobs : processes on this machine; all cores if None
    executor : where to run instead: a cluster, or any other of `concurrent.futures`
    progress : told how much work is done
    """
    ordered = sorted(tasks, key=lambda task: -task.work)  # so that no long one comes last
    needed = {task.job.data_checksum for task in ordered}
    plugins = dict.fromkeys(plugin for task in ordered for plugin in task.job.plan.config.plugins)
    by_checksum = {table.checksum: table for table in tables if table.checksum in needed}
    shared = Shared(run, by_checksum, {plugin: Path(plugin).read_bytes() for plugin in plugins})
    if executor is None:
        results = run_tasks(run_task, shared, ordered, jobs or cores(), progress)
    else:
        results = _run_elsewhere(executor, shared, ordered, progress)
    with closing(results) as finished:
        for number, result in finished:
            on_result(ordered[number], result)


def run_task(shared: Shared, task: Task, report: Report) -> Any:
    """Do one task, in the process that was chosen for it."""
    for plugin, content in shared.plugins.items():
        load_plugin(plugin, content)
    return shared.run(task, shared.tables[task.job.data_checksum], report)


def _run_elsewhere(executor: Executor, shared: Shared, tasks: Sequence[Task], progress: Progress) -> Any:
    """As `workers.run_tasks`, by an executor. A job whose worker is lost is begun again."""
    share = getattr(executor, "share", lambda value: value)
    sent, finished, failures = share(shared), 0.0, [0] * len(tasks)
    waiting = {executor.submit(_measured, sent, task): number for number, task in enumerate(tasks)}
    try:
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                number = waiting.pop(future)
                try:
                    result = future.result()
                except BrokenExecutor as error:
                    raise ProcessDiedError(
                        f"the executor's workers are gone ({error}). Finished work is kept"
                    ) from error
                except (CancelledError, *getattr(executor, "lost", ())):
                    failures[number] += 1
                    if failures[number] == ATTEMPTS:
                        raise
                    sent = share(shared)
                    waiting[executor.submit(_measured, sent, tasks[number])] = number
                    continue
                finished += tasks[number].work
                progress(finished)
                yield number, result
    finally:
        for future in waiting:
            future.cancel()


def _measured(shared: Shared, task: Task) -> Any:
    return run_task(shared, task, lambda amount: None)


def check_request(out: str | Path | None, jobs: int | None) -> Path | None:
    """Check where results shall go, and by how many processes, before anything is done."""
    is_whole = isinstance(jobs, int | np.integer) and not isinstance(jobs, bool)
    check(jobs is None or (is_whole and jobs >= 1), "jobs must be >= 1", jobs)
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
