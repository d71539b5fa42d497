"""How fast sweeps are: the paper's grid of 120 settings on one seed of each dataset, under two splits.

    FAIRFATE_DATA=FOLDER python benchmarks/sweep.py [--json FILE]      # needs the four datasets

Prints, for each dataset, the CPU time of a cell and the share of it that is not in its rounds (splitting,
encoding, metrics, files); then the CPU seconds of 960 runs with two processes, all that they do included,
how long the whole of one protocol (14,400 runs of 100 rounds) takes at that pace on two free cores, and the
peak memory of a process.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import resource
import sys
import tempfile
import time
from pathlib import Path

from fairfate.engine.simulate import simulate
from fairfate.experiments.job import Job, run_job
from fairfate.experiments.prepare import prepare
from fairfate.experiments.store import Store
from fairfate.experiments.sweep import sweep
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.studies.reproduce.printed import DATASETS
from fairfate.studies.reproduce.run import configs

RUNS, CPU_SECONDS, MINUTES, OVERHEAD, MEMORY = 14_400, 75, 10, 0.05, 4.0


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
    outcome = run_job(plan, table, 1, plan.specs, lambda: None)
    with tempfile.TemporaryDirectory() as folder:
        Store(Path(folder)).write(Job.from_table(plan, 1, table), plan.specs, outcome.rounds, table.grouping)
    return time.process_time() - begin, rounds


def used(who: int) -> float:
    """CPU seconds that this process, or its children, have used."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="How fast sweeps are.")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    cells = {}
    for dataset in DATASETS:
        whole, rounds = cell_times(dataset)
        cells[dataset] = {"seconds": whole, "outside": max(whole - rounds, 0) / whole}
        outside = cells[dataset]["outside"]
        print(f"{dataset:8} {whole:6.1f} CPU s a cell of 120 runs, {outside:5.1%} of it not in the rounds")
    before = used(resource.RUSAGE_SELF)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        runs = sweep(configs(DATASETS, ["0.5", "rnd"], ["published"], "1,"), folder, jobs=2)
        wall = time.perf_counter() - begin
    seconds = used(resource.RUSAGE_SELF) - before + used(resource.RUSAGE_CHILDREN)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    minutes = RUNS / runs.ran * seconds / 2 / 60
    outside = sum(cell["outside"] for cell in cells.values()) / len(cells)
    print(
        f"\n{runs.ran} runs        {seconds:6.1f} CPU s by two processes (target {CPU_SECONDS}), {wall:.0f} s"
    )
    print(f"one protocol    {minutes:6.1f} minutes for {RUNS:,} runs on two free cores (target {MINUTES})")
    print(f"peak memory     {peak:6.2f} GiB a process (target {MEMORY} in all)")
    if options.json:
        kept = {"cells": cells, "runs": runs.ran, "cpu": seconds, "minutes": minutes, "peak": peak}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    met = seconds <= CPU_SECONDS and minutes <= MINUTES and outside < OVERHEAD and 2 * peak < MEMORY
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
