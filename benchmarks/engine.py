"""How fast the engine is: against the machine's limit, and against plain NumPy and PyTorch loops.

    python benchmarks/engine.py [--json FILE]      # prints the tables, exits 1 if a target is missed

The shapes are those of the paper's datasets: batches of 10, 10 hidden units, 14 inputs (Adult) or 10
(COMPAS). Everything is CPU time on one core, taken in turns, the best of many short passes, since machines
are shared and noisy. It is measured for each instruction set in a process of its own.

The limit of a client-step is the time of its arithmetic at the rate of a loop that does nothing else: for
every row and hidden unit ``2 * inputs + 2`` fused multiply-adds (both layers, forwards and backwards) and
four operations of the derivative, at the rate of fused multiply-adds in registers, and a tanh for every
unit and for the output, at the rate of tanh over an array in the first cache.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fairfate.data import Table
from fairfate.data.groups import Groups
from fairfate.engine.simulate import simulate
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec

ROWS, INPUTS, CLIENTS, PER_ROUND, HIDDEN, BATCH, EPOCHS = 48842, 14, 15, 5, 10, 10, 10
SHAPES = {"adult": 14, "compas": 10}
STACKS = (1, 16, 122)
STREAMS = Streams(1)
MODEL = Mlp(INPUTS, (HIDDEN,))
SETS = {"AVX-512": {}, "AVX2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}}
LEAST_SHARE, LEAST_NUMPY = 0.8, {1: 30.0, 122: 80.0}


def best(tasks: dict[str, Callable[[], object]], passes: int) -> dict[str, float]:
    """CPU seconds of the fastest pass of each task, in turns."""
    times = dict.fromkeys(tasks, math.inf)
    for _ in range(passes):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            times[name] = min(times[name], time.process_time() - start)
    return times


def adult_shape(rows: int = ROWS, inputs: int = INPUTS) -> Table:
    """Random rows of Adult's shape: two groups, a label that can be learned."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, inputs))
    y = x @ rng.normal(size=inputs) + rng.normal(size=rows) > 0
    return Table(
        name="shape",
        features=x,
        label=y.astype(np.int8),
        group=rng.integers(0, 2, rows).astype(np.int16),
        feature_names=tuple(f"x{i}" for i in range(inputs)),
        label_names=("no", "yes"),
        grouping=Groups.single("group", ("a", "b")),
        categories={},
    )


def numpy_client(params, x, y, order):
    """One client's SGD in 32-bit NumPy, batch after batch."""
    rate, order = np.float32(0.01), order.astype(np.intp)
    layers = MODEL.arrays(params)
    w1, b1, w2, b2 = (layers[name].copy() for name in ("w1", "b1", "w2", "b2"))
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        xb = x[rows]
        h = np.tanh(xb @ w1 + b1)
        p = 1 / (1 + np.exp(-(h @ w2 + b2)))
        g = (p - y[rows]) * (rate / np.float32(len(rows)))
        back = g[:, None] * w2 * (1 - h * h)
        w1 -= xb.T @ back
        b1 -= back.sum(axis=0)
        w2 -= h.T @ g
        b2 -= g.sum()
    return np.concatenate([w1.ravel(), b1, w2, b2])


def torch_steps(x, y, steps: int) -> Callable[[], None] | None:
    """A PyTorch loop over sliced tensors, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)[:, None]
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.nn.BCEWithLogitsLoss()

    def task() -> None:
        for i in range(steps):
            start = i * BATCH % (len(x) - BATCH)
            optimiser.zero_grad()
            loss(model(tx[start : start + BATCH]), ty[start : start + BATCH]).backward()
            optimiser.step()

    return task


def limit_tasks() -> dict[str, tuple[Callable[[], object], float]]:
    """Loops that do nothing but multiply and add, and nothing but tanh, and how often they do it."""
    import numba

    from fairfate.models.kernels.compile import has_avx512 as uses_avx512
    from fairfate.models.kernels.simd import fill, fma, load, store, tanh
    from fairfate.models.rows import LANES

    kernel = numba.njit(error_model="numpy", boundscheck=False)

    @kernel
    def multiply_add_six(times, out):
        half, first = fill(np.float32(0.5)), fill(np.float32(1))
        a = b = c = d = e = f = first
        for _ in range(times):
            a, b, c = fma(a, half, first), fma(b, half, first), fma(c, half, first)
            d, e, f = fma(d, half, first), fma(e, half, first), fma(f, half, first)
        for number, value in enumerate((a, b, c, d, e, f)):
            store(out, number * LANES, value)  # so that nothing is left out as useless

    @kernel
    def multiply_add_eight(times, out):
        half, first = fill(np.float32(0.5)), fill(np.float32(1))
        a = b = c = d = e = f = g = h = first
        for _ in range(times):
            a, b, c, d = fma(a, half, first), fma(b, half, first), fma(c, half, first), fma(d, half, first)
            e, f, g, h = fma(e, half, first), fma(f, half, first), fma(g, half, first), fma(h, half, first)
        for number, value in enumerate((a, b, c, d, e, f, g, h)):
            store(out, number * LANES, value)

    # four cycles of latency times two pipes; the registers of AVX2 hold six chains
    chains, multiply_add = (8, multiply_add_eight) if uses_avx512() else (6, multiply_add_six)

    @kernel
    def tanh_all(times, values, out):
        for _ in range(times):
            for k in range(0, len(values), LANES):
                store(out, k, tanh(load(values, k)))

    values, out = np.linspace(-3, 3, 1024).astype(np.float32), np.zeros(1024, np.float32)
    multiply_add(1, out)
    tanh_all(1, values, out)
    return {
        "fma": (lambda: multiply_add(200_000, out), 200_000 * chains * LANES),
        "tanh": (lambda: tanh_all(2_000, values, out), 2_000 * 1024),
    }


def limit(inputs: int, fma: float, tanh: float) -> float:
    """Seconds of a client-step's arithmetic, at the rates that were measured."""
    return BATCH * HIDDEN * (2 * inputs + 6) * fma + BATCH * (HIDDEN + 1) * tanh


def training_task(inputs: int, models: int, rows: int = 2_000) -> tuple[Callable[[], object], float]:
    """Training of some models at one client, and how many client-steps that is."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows * inputs).astype(np.float32)
    client_rows = ClientRows(x, rng.integers(0, 4, rows).astype(np.int32), np.array([0, rows]))
    model = Mlp(inputs, (HIDDEN,))
    start = (rng.normal(size=(models, 1, model.num_parameters)) * 0.05).astype(np.float32)
    losses, training = Losses(np.ones((models, 1, 4), np.float32)), Training(1, 1, EPOCHS, BATCH)
    batches = Batches(STREAMS.batch_key, 1)

    def task() -> None:
        model.train(start, client_rows, np.array([0]), losses, training, batches)

    task()
    return task, rows * EPOCHS / BATCH * models


def scoring_task(models: int = 16) -> tuple[Callable[[], object], float]:
    """Scoring of some models on Adult's validation rows, and how many scores that is."""
    federation = build(adult_shape(), parse_partition("dirichlet:1"), CLIENTS, STREAMS)
    start = np.stack([MODEL.initial(STREAMS.weights(MODEL.num_parameters))] * models)
    MODEL.count(start, federation.validation)
    return lambda: MODEL.count(start, federation.validation), models * len(federation.validation)


def measure_kernels(passes: int = 25) -> dict[str, Any]:
    """With this process's instruction set: the rates of the machine and of the engine."""
    tasks = limit_tasks()
    for name, inputs in SHAPES.items():
        tasks |= {f"{name} {models}": training_task(inputs, models) for models in STACKS}
    tasks["scoring"] = scoring_task()
    seconds = best({name: task for name, (task, _) in tasks.items()}, passes)
    each = {name: seconds[name] / tasks[name][1] for name in tasks}
    steps = {
        name: {
            "limit_ns": limit(inputs, each["fma"], each["tanh"]) * 1e9,
            **{f"ns_{models}": each[f"{name} {models}"] * 1e9 for models in STACKS},
        }
        for name, inputs in SHAPES.items()
    }
    scored = HIDDEN * (INPUTS + 1) * each["fma"] + HIDDEN * each["tanh"]
    return {
        "gflops": 2 / each["fma"] / 1e9,
        "tanh_ns": each["tanh"] * 1e9,
        "steps": steps,
        "score_ns": each["scoring"] * 1e9,
        "score_limit_ns": scored * 1e9,
    }


def measure_loops(passes: int = 5) -> dict[str, float | None]:
    """CPU nanoseconds of a client-step in plain loops."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2_000, INPUTS)).astype(np.float32), rng.integers(0, 2, 2_000).astype(np.float32)
    start = MODEL.initial(STREAMS.weights(MODEL.num_parameters))
    tasks: dict[str, Callable[[], object]] = {
        "numpy": lambda: numpy_client(start, x, y, rng.permutation(2_000))
    }
    torch_task = torch_steps(x, y, 200)
    if torch_task is not None:
        tasks["torch"] = torch_task
    fastest = best(tasks, passes)
    return {name: fastest[name] / 200 * 1e9 if name in fastest else None for name in ("numpy", "torch")}


def whole_run(federation: Federation, texts: list[str], rounds: int = 100) -> None:
    """A run with all its scoring."""
    specs = [parse_spec(text, "eqo") for text in texts]
    training = Training(rounds=rounds, per_round=PER_ROUND)
    simulate(federation, specs, MODEL, training, Setup(rounds), STREAMS)


def measure_runs() -> dict[str, float]:
    """CPU seconds of 100 rounds with all scoring."""
    federation = build(adult_shape(), parse_partition("dirichlet:1"), CLIENTS, STREAMS)
    whole_run(federation, ["fair_fate"], 2)
    tasks = {"fair_fate": lambda: whole_run(federation, ["fair_fate"])}
    tasks["fedavg"] = lambda: whole_run(federation, ["fedavg"])
    return best(tasks, 3)


CASES: dict[str, Callable[[], Any]] = {
    "kernels": measure_kernels,
    "loops": measure_loops,
    "runs": measure_runs,
}


def alone(case: str, environment: dict[str, str]) -> Any:
    """A case in a process of its own."""
    words = [sys.executable, __file__, "--case", case]
    process = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    return json.loads(process.stdout)


def has_avx512() -> bool:
    """Whether this machine has it."""
    return "avx512f" in Path("/proc/cpuinfo").read_text()


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="How fast the engine is.")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(CASES[options.case]()))
        return 0
    known = [name for name in SETS if name != "AVX-512" or has_avx512()]
    results: dict[str, Any] = {"kernels": {name: alone("kernels", SETS[name]) for name in known}}
    results |= {name: alone(name, {}) for name in ("loops", "runs")}
    met = []
    for name, value in results["kernels"].items():
        print(f"{name}: {value['gflops']:.0f} GFLOP/s of fused multiply-adds, tanh {value['tanh_ns']:.2f} ns")
        for shape, steps in value["steps"].items():
            messages = [
                f"{n}: {steps[f'ns_{n}']:.0f} ns, {steps['limit_ns'] / steps[f'ns_{n}']:.0%}" for n in STACKS
            ]
            print(f"  client-step, {shape:7} limit {steps['limit_ns']:.0f} ns   {'   '.join(messages)}")
            met += [steps["limit_ns"] / steps[f"ns_{n}"] >= LEAST_SHARE for n in STACKS if n > 1]
        share = value["score_limit_ns"] / value["score_ns"]
        print(
            f"  a row scored    limit {value['score_limit_ns']:.1f} ns   {value['score_ns']:.1f} ns,"
            f" {share:.0%}"
        )
    first = next(iter(results["kernels"].values()))["steps"]["adult"]
    for name, ns in results["loops"].items():
        shown = (
            "not installed"
            if ns is None
            else f"{ns:,.0f} ns a client-step, {ns / first['ns_1']:,.0f} x one model"
        )
        print(f"{name} loop: {shown}")
    for models, least in LEAST_NUMPY.items():
        met.append(results["loops"]["numpy"] / first[f"ns_{models}"] >= least)
    print({name: f"{seconds:.2f} CPU s for 100 rounds" for name, seconds in results["runs"].items()})
    print(f"{sum(met)} of {len(met)} targets met")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
