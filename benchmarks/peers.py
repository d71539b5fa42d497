"""What a round of FedAvg costs in other libraries, for the same job: CPU time, on one thread.

    python benchmarks/peers.py                          # peers that are not installed are left out
    python benchmarks/peers.py --only fairfate --only jax --json peers.json
    python benchmarks/peers.py --python jax=OTHER/bin/python

The job has the shape of the Adult dataset: 48,842 rows of 14 inputs, 60 % for training, 15 clients by
dirichlet:1, 5 of them a round, 10 local epochs, batches of 10, SGD at 0.01, a network 14-10-1 (tanh, sigmoid)
and binary cross-entropy. Everybody trains the same clients of the same rows from the same initial model.
The loops (NumPy, PyTorch, JAX, Flower's clients) are given the batches that fairfate draws for itself, ready
made, and end with its model but for rounding; fluke and declearn draw their own. fairfate also scores its
model on the validation and test rows in every round; no other peer scores anything.

Every peer runs in a process of its own, peers in turns. A first round warms up and compiles; a figure is the
mean of the rounds after it, in the best pass. Needed: fairfate (`pip install -e .`) where this script runs
and for the peers fairfate, numpy and flower; `pip install torch jax flwr fluke-fl "declearn[websockets]"` for
the others, of which each may live in an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
os.environ.update(NUMBA_NUM_THREADS="1", JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")

import numpy as np
import peer_libraries
import peer_loops
from peer_loops import Clock, Done, Job

CLOSE = 0.03
"""Accuracies that differ by no more are about the same."""
ENOUGH, MOST = 1.0, 20
"""A quick peer does the job again until it has used so many seconds, at most so often."""


@dataclass(frozen=True)
class Peer:
    """A way to do the job."""

    label: str
    run: Callable[[Job, Clock], Done]
    needs: dict[str, str]
    """Modules, and what to install for them."""
    fedavg: bool = True
    """Whether it does exactly this job, so that its steps and its accuracy are held against ours."""


OURS, TORCH = {"fairfate": "fairfate", "numba": "numba"}, {"torch": "torch"}
FLOWER = {"flwr": "flwr", **OURS}
FLUKE, DECLEARN = (
    {"fluke": "fluke-fl", **TORCH},
    {"declearn": "declearn[websockets]", "websockets": "websockets", **TORCH},
)
PEERS = {
    "fairfate": Peer("fairfate, one run, all scoring", peer_loops.fairfate, OURS),
    "fairfate-16": Peer(
        "fairfate, one of 16 settings of FAIR-FATE", peer_loops.fairfate_stacked, OURS, fedavg=False
    ),
    "jax": Peer("JAX, vmap and scan", peer_loops.jax_loop, {"jax": "jax"}),
    "numpy": Peer("NumPy loop", peer_loops.numpy_loop, OURS),
    "flower": Peer("Flower, clients in NumPy", peer_libraries.flower, FLOWER),
    "flower-idle": Peer("Flower, clients that do nothing", peer_libraries.flower_idle, FLOWER, fedavg=False),
    "torch": Peer("PyTorch loop", peer_loops.torch_loop, TORCH),
    "fluke": Peer("fluke", peer_libraries.fluke, FLUKE),
    "declearn": Peer("declearn", peer_libraries.declearn, DECLEARN),
    "declearn-fairfed": Peer(
        "declearn with FairFed", peer_libraries.declearn_fairfed, DECLEARN, fedavg=False
    ),
}


def measure(name: str, job: Job) -> dict[str, Any]:
    """Do the job in this process; or say what is missing."""
    peer = PEERS[name]
    missing = [package for module, package in peer.needs.items() if importlib.util.find_spec(module) is None]
    if missing:
        return {"missing": f"pip install '{missing[0]}'"}
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rounds, first = [], []
    begin = time.process_time()
    while not rounds or (time.process_time() - begin < ENOUGH and len(rounds) < MOST):
        clock = Clock()
        run = peer.run(job, clock)
        spent = np.diff(clock.times) * 1000 / run.settings
        first.append(float(spent[0]))
        rounds.append(float(spent[1:].mean()))
    return {
        "cpu_ms": float(np.mean(rounds)),
        "first_round_cpu_ms": first[0],
        "client_steps": run.steps,
        "accuracy": job.accuracy(run.params),
        "params": [float(value) for value in run.params],
        "versions": {"python": platform.python_version(), **_versions({"numpy": "numpy", **peer.needs})},
    }


def _versions(needs: dict[str, str]) -> dict[str, str]:
    results = {}
    for package in (text.split("[")[0] for text in needs.values()):
        try:
            results[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            results[package] = getattr(__import__(package), "__version__", "unknown")
    return results


def in_process(name: str, job: Path, python: str) -> dict[str, Any]:
    """Have another process do the job."""
    command = [python, __file__, "--peer", name, "--job", str(job)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        return {"failed": (process.stderr.strip() or "no message").splitlines()[-1]}
    return dict(json.loads(process.stdout.splitlines()[-1]))


def all_passes(names: list[str], job: Path, passes: int, pythons: dict[str, str]) -> dict[str, list[Any]]:
    """Peers in turns, so that a busy machine is busy for all of them."""
    results: dict[str, list[Any]] = {name: [] for name in names}
    for number in range(passes):
        for name in names:
            if all("cpu_ms" in first for first in results[name]):
                results[name].append(in_process(name, job, pythons.get(name, sys.executable)))
                first = results[name][-1]
                print(f"pass {number + 1} of {passes}: {name} {first.get('cpu_ms', first)}", file=sys.stderr)
    return results


def summary(name: str, passes: list[dict[str, Any]], ours: dict[str, Any] | None, job: Job) -> dict[str, Any]:
    """Plain numbers of a peer's passes, the best of them, and whether it did the same job."""
    if "cpu_ms" not in passes[-1]:
        return passes[-1]
    best = min(passes, key=lambda item: float(item["cpu_ms"]))
    shown = {key: value for key, value in best.items() if key != "params"}
    shown |= {"label": PEERS[name].label, "passes_cpu_ms": [one["cpu_ms"] for one in passes]}
    shown["same_job"] = None
    if ours is not None:
        shown["times_fairfate"] = best["cpu_ms"] / ours["cpu_ms"]
        if PEERS[name].fedavg:
            steps = best["client_steps"] in (job.steps(False), job.steps(True))
            shown["same_job"] = bool(steps and abs(best["accuracy"] - ours["accuracy"]) <= CLOSE)
            shown["largest_difference_of_weights"] = float(
                np.abs(np.subtract(best["params"], ours["params"])).max()
            )
    return shown


def machine() -> dict[str, Any]:
    """What it was measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.platform(terse=True)}


def table(result: dict[str, dict[str, Any]], job: Job) -> str:
    """The figures for people."""
    lines = [
        f"{'':42} {'CPU ms a round':>14} {'x fairfate':>10} {'first round':>11} {'steps':>7} {'accuracy':>8}"
    ]
    for name, first in result.items():
        label = PEERS[name].label
        if "missing" in first:
            lines.append(f"{label:42} not installed: {first['missing']}")
        elif "failed" in first:
            lines.append(f"{label:42} failed: {first['failed']}")
        else:
            ratio = f"{first['times_fairfate']:10.1f}" if "times_fairfate" in first else " " * 10
            verdict = {None: "", True: "  same job", False: "  NOT THE SAME JOB"}[first["same_job"]]
            lines.append(
                f"{label:42} {first['cpu_ms']:14.1f} {ratio} {first['first_round_cpu_ms']:11.0f}"
                f" {first['client_steps']:7} {first['accuracy']:8.3f}{verdict}"
            )
    either = f"{job.steps(False):,} or {job.steps(True):,}"
    lines.append(f"\nsame job: {either} client-steps in {job.rounds} rounds, accuracy within {CLOSE} of ours")
    return "\n".join(lines)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got '{text}'")
        return int(text)

    return number


def _named(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if name not in PEERS or not equals or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=PATH with one of {', '.join(PEERS)}, got '{text}'")
    return name, path


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=PEERS, help="this peer; may be repeated")
    parser.add_argument("--peer", choices=PEERS, help="do the job in this process and print JSON")
    parser.add_argument("--job", type=Path, help="file with the job, for --peer")
    parser.add_argument("--rows", type=_at_least(600), default=48_842, help="rows of the whole table")
    parser.add_argument("--rounds", type=_at_least(1), default=3, help="rounds after the one that warms up")
    parser.add_argument("--passes", type=_at_least(1), default=3, help="turns of all peers")
    parser.add_argument(
        "--python", type=_named, action="append", default=[], metavar="NAME=PATH", help="runs that peer"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    return parser.parse_args()


def main() -> int:
    """Measure and print; 1 if a peer failed or did something else."""
    options = _options()
    if options.peer:
        job = Job.load(options.job) if options.job else peer_loops.make_job(options.rows, options.rounds + 1)
        print(json.dumps(measure(options.peer, job)))
        return 0
    names = [name for name in PEERS if options.only is None or name in options.only]
    job = peer_loops.make_job(options.rows, options.rounds + 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.npz"
        job.save(path)
        passes = all_passes(names, path, options.passes, dict(options.python))
    own = [one for one in passes.get("fairfate", []) if "cpu_ms" in one]
    ours = min(own, key=lambda item: float(item["cpu_ms"]), default=None)
    results = {name: summary(name, passes[name], ours, job) for name in names}
    print(table(results, job))
    if options.json:
        shape = {"rows": options.rows, "rounds": options.rounds, "passes": options.passes}
        shape |= {name.lower(): getattr(peer_loops, name) for name in peer_loops.SHAPE}
        shape |= {"partition": "dirichlet:1", "client_steps": job.steps(False)}
        plain = {"job": shape, "machine": machine(), "peers": results}
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    return int(any("failed" in one or one.get("same_job") is False for one in results.values()))


if __name__ == "__main__":
    sys.exit(main())
