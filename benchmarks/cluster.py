"""What a Dask cluster costs: 960 runs by two workers, in processes and folders of their own.

    FAIRFATE_DATA=FOLDER python benchmarks/cluster.py [--rounds N]     # needs the four datasets

The grid is that of `sweep.py`. It is run by one process, by two processes of ours, by two workers, and by two
workers of which one is killed twice. Prints the CPU seconds of all processes, those of the workers from the
moment that they are there, the overhead of two workers over two processes of ours, and whether all four
folders hold the same bytes; exits 1 if they do not, or if the overhead is above 5 %.
"""

from __future__ import annotations

import argparse
import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
from distributed import Client

from fairfate.experiments.cluster import DaskExecutor
from fairfate.experiments.config import Config
from fairfate.experiments.sweep import sweep
from fairfate.studies.reproduce.printed import DATASETS
from fairfate.studies.reproduce.run import configs

MOST_OVERHEAD = 0.05
KILLS = (2, 4)
"""Finished jobs after which a worker is killed."""


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """What some processes have used so far."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def time_used() -> float:
    """What this process and its children that have ended have used."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@contextmanager
def scheduler(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler's address, and its process."""
    file = folder / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    with start("dask_scheduler", words, folder) as process:
        while not file.exists():
            time.sleep(0.1)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            address = client.scheduler.address
        yield address, process


@contextmanager
def start(program: str, words: list[str], folder: Path) -> Iterator[psutil.Process]:
    """One of Dask's programs, until the block is over."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *words]
        process = psutil.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def by_workers(planned: list[Config], out: Path, kills: tuple[int, ...] = ()) -> float:
    """CPU seconds of a sweep by two workers; another takes the place of one that is killed."""
    folder = out.with_name(f"{out.name}-processes")
    with ExitStack() as stack:
        address, server = stack.enter_context(scheduler(folder))
        client = stack.enter_context(Client(address, set_as_default=False))

        def worker(name: str) -> psutil.Process:
            words = [address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1"]
            return stack.enter_context(start("dask_worker", words, folder / name))

        workers, finished = [worker("a"), worker("b")], []
        client.wait_for_workers(2)
        processes = [psutil.Process(), server, *workers]
        before = cpu_seconds(processes)

        def progress(amount: float) -> None:
            finished.append(amount)
            if len(finished) in kills:
                workers[-1].kill()
                workers.append(worker(f"after-{len(finished)}"))

        sweep(planned, out, executor=DaskExecutor(client), progress=progress)
        return 0.0 if kills else cpu_seconds(processes) - before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="What a Dask cluster costs.")
    parser.add_argument("--rounds", type=int, help="fewer than 100, to try it out")
    rounds = parser.parse_args().rounds
    planned = configs(DATASETS, ["0.5", "rnd"], ["published"], "1,")
    planned = planned if rounds is None else [replace(config, rounds=rounds) for config in planned]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds = {}
        for jobs in (1, 2):
            before = time_used()
            runs = sweep(planned, folder / f"{jobs}", jobs=jobs).ran
            seconds[jobs] = time_used() - before
        workers = by_workers(planned, folder / "workers")
        by_workers(planned, folder / "killed", KILLS)
        whole = contents(folder / "1")
        are_equal = [contents(folder / other) == whole for other in ("2", "workers", "killed")]
    overhead = workers / seconds[2] - 1
    print(
        f"{runs} runs: {seconds[1]:.1f} CPU s by one process, {seconds[2]:.1f} by two,"
        f" {workers:.1f} by two workers of Dask and its scheduler"
    )
    print(f"overhead {overhead:.1%} (target {MOST_OVERHEAD:.0%})")
    print(f"the same {len(whole)} files by two processes, by workers, and with one killed twice: {are_equal}")
    return 0 if all(are_equal) and overhead <= MOST_OVERHEAD else 1


if __name__ == "__main__":
    sys.exit(main())
