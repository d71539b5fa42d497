"""How fast sweeps are: the paper's grid of 120 settings on one seed of each dataset.

    FAIRFATE_DATA=FOLDER python benchmarks/sweep.py      # needs the four datasets

Prints, for each dataset, the time of a cell and the share of it that is not training, aggregating and
scoring (splitting, encoding, metrics, files); then runs a second with two processes, how long the whole of
one protocol (14,400 runs of 100 rounds) takes at that pace, and the peak memory of a process.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import resource
import sys
import tempfile
import time
from pathlib import Path

from fairfate.federation.split import build
from fairfate.federation.streams import Streams
from fairfate.reproduce.grid import DATASETS, configs
from fairfate.rounds.simulate import simulate
from fairfate.runs.job import Cell, run_cell
from fairfate.runs.prepare import prepare
from fairfate.runs.store import Store
from fairfate.runs.sweep import sweep

RUNS, MINUTES, OVERHEAD, MEMORY = 14_400, 30, 0.05, 4.0


def cell_times(dataset: str) -> tuple[float, float]:
    """CPU seconds of a cell from start to file, and of its rounds alone."""
    plan, table = prepare(configs([dataset], ["0.5"], ["published"], "1,")[0])
    streams = Streams(1, plan.published)
    federation = build(table, plan.partition, plan.clients, streams)
    model, setup = plan.model(federation.inputs), plan.setup(table)
    simulate(federation, plan.specs[:1], model, plan.training, setup, streams)  # compiled
    begin = time.process_time()
    simulate(federation, plan.specs, model, plan.training, setup, streams)
    rounds = time.process_time() - begin
    begin = time.process_time()
    outcome = run_cell(plan, table, 1, plan.specs, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        Store(Path(folder)).write(Cell.of(plan, 1, table), plan.specs, outcome.rounds, table.grouping)
    return time.process_time() - begin, rounds


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    shares = []
    for dataset in DATASETS:
        whole, rounds = cell_times(dataset)
        shares.append(max(whole - rounds, 0) / whole)
        print(f"{dataset:8} {whole:6.1f} s a cell of 120 runs, {shares[-1]:5.1%} of it not in the rounds")
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = sweep(configs(DATASETS, ["0.5", "rnd"], ["published"], "1,"), folder, jobs=2)
        seconds = time.perf_counter() - begin
    pace = done.ran / seconds
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    minutes = RUNS / pace / 60
    print(f"\ntwo processes  {pace:6.1f} runs a second ({done.ran} runs in {seconds:.0f} s)")
    print(f"one protocol   {minutes:6.1f} minutes for {RUNS:,} runs (target {MINUTES})")
    print(f"peak memory    {peak:6.2f} GiB a process (target {MEMORY} in all)")
    met = minutes <= MINUTES and sum(shares) / len(shares) < OVERHEAD and 2 * peak < MEMORY
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
