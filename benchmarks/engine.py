"""How fast the engine is, against a plain NumPy loop timed in the same run, on one core.

    python benchmarks/engine.py            # prints the table, exits 1 if a target is missed

The shape is that of the Adult dataset: 14 inputs, 10 hidden units, batches of 10, 15 clients, 5 a round.
Machines are shared and noisy, so every figure is the best of several passes, and targets are ratios.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from fairfate.data import Table
from fairfate.data.groups import Groups
from fairfate.federation.partition import parse_partition
from fairfate.federation.split import Federation, build
from fairfate.federation.streams import Streams
from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses
from fairfate.models.shared_kernels import batch_order
from fairfate.models.training import Training
from fairfate.rounds.simulate import simulate
from fairfate.strategies import Setup, parse_spec

ROWS, INPUTS, CLIENTS, PER_ROUND, HIDDEN, BATCH, EPOCHS = 48842, 14, 15, 5, 10, 10, 10
STREAMS = Streams(1)
MODEL = Mlp(INPUTS, (HIDDEN,))


def best(task: Callable[[], object], passes: int = 5) -> float:
    """Seconds of the fastest pass."""
    times = []
    for _ in range(passes):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return min(times)


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


def numpy_predictions(params, x):
    """Labels in 32-bit NumPy."""
    layers = MODEL.arrays(params)
    return np.tanh(x @ layers["w1"] + layers["b1"]) @ layers["w2"] + layers["b2"] > 0


def numpy_round(federation: Federation, x_validation, x_test, params, t, clients):
    """A round of the loop: train each client, score its model, average, score the global model."""
    rows = federation.rows
    x = rows.x.reshape(-1, INPUTS)
    models = []
    for client in clients:
        first, last = rows.offsets[client], rows.offsets[client + 1]
        order = np.concatenate([np.random.default_rng(t).permutation(last - first) for _ in range(EPOCHS)])
        models.append(numpy_client(params, x[first:last], rows.y[first:last], order))
        numpy_predictions(models[-1], x_validation).sum()
    mean = np.average(models, axis=0, weights=federation.sizes[clients]).astype(np.float32)
    numpy_predictions(mean, x_validation).sum()
    numpy_predictions(mean, x_test).sum()
    return mean


def torch_step(x, y, steps: int) -> float | None:
    """Seconds per step of a PyTorch loop over sliced tensors, or None where it is not installed."""
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

    return best(task, 3) / steps


def whole_run(federation: Federation, texts: list[str], rounds: int = 100) -> None:
    """A run with all its scoring."""
    specs = [parse_spec(text, "eqo") for text in texts]
    training = Training(rounds=rounds, per_round=PER_ROUND)
    simulate(federation, specs, MODEL, training, Setup(rounds), STREAMS)


def one_process(barrier, runs: int) -> None:
    """What one of several processes does in the scaling test."""
    federation = build(adult_shape(), parse_partition("dirichlet:1"), CLIENTS, STREAMS)
    whole_run(federation, ["fair_fate"], rounds=2)
    barrier.wait()
    for _ in range(runs):
        whole_run(federation, ["fair_fate"])
    barrier.wait()


def processes(count: int, runs: int = 6) -> float:
    """Runs per second of so many processes, each pinned to a core of its own."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count + 1)
    cores = sorted(os.sched_getaffinity(0))
    workers = []
    for number in range(count):
        os.sched_setaffinity(0, {cores[number % len(cores)]})
        workers.append(context.Process(target=one_process, args=(barrier, runs)))
        workers[-1].start()
    os.sched_setaffinity(0, set(cores))
    barrier.wait()
    start = time.perf_counter()
    barrier.wait()
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.join()
    return count * runs / seconds


def import_seconds() -> float:
    """Seconds that `import fairfate` takes in a fresh interpreter, beyond starting it."""
    empty = best(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), 3)
    full = best(lambda: subprocess.run([sys.executable, "-c", "import fairfate"], check=True), 3)
    return full - empty


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})

    table = adult_shape()
    federation = build(table, parse_partition("dirichlet:1"), CLIENTS, STREAMS)
    start = MODEL.initial(STREAMS.weights(MODEL.num_parameters))
    client = int(np.argsort(federation.sizes)[CLIENTS // 2])
    rows = federation.rows
    first, last = rows.offsets[client], rows.offsets[client + 1]
    order = np.empty((last - first) * EPOCHS, np.int32)
    batch_order(STREAMS.batch_key, 1, client, last - first, EPOCHS, order)
    steps = -(-len(order) // BATCH)
    x, y = rows.x.reshape(-1, INPUTS)[first:last].copy(), rows.y[first:last].copy()

    def ours(models: int) -> float:
        stack, ones = np.stack([start[None]] * models), Losses(np.ones((models, 1, 4), np.float32))
        training, batches = Training(per_round=PER_ROUND), Batches(STREAMS.batch_key, 1)

        def task() -> None:
            MODEL.train(stack, rows, np.array([client]), ones, training, batches)

        task()
        return best(task, 9) / steps / models

    plain = best(lambda: numpy_client(start, x, y, order)) / steps
    one, stacked = ours(1), ours(122)
    print(f"client-step, {INPUTS} inputs, batch {BATCH}, one core")
    print(f"  NumPy loop        {plain * 1e9:9.0f} ns")
    torch_seconds = torch_step(x, y, 2000)
    shown = "not installed" if torch_seconds is None else f"{torch_seconds * 1e9:9.0f} ns"
    print(f"  PyTorch loop      {shown}")
    print(f"  one model         {one * 1e9:9.0f} ns   {plain / one:6.1f} x NumPy   (target 30)")
    print(f"  122 stacked       {stacked * 1e9:9.0f} ns   {plain / stacked:6.1f} x NumPy   (target 80)")

    cohorts = STREAMS.cohorts(100, CLIENTS, PER_ROUND)
    rng = np.random.default_rng(0)
    scored = rng.normal(size=(2, ROWS // 5, INPUTS)).astype(np.float32)
    per_round = []
    for t in range(3):
        begin = time.perf_counter()
        numpy_round(federation, scored[0], scored[1], start, t, cohorts[t])
        work = -(-federation.sizes[cohorts[t]] * EPOCHS // BATCH)
        per_round.append((time.perf_counter() - begin) / work.sum())
    total = sum(int((-(-federation.sizes[cohort] * EPOCHS // BATCH)).sum()) for cohort in cohorts)
    loop = min(per_round) * total
    whole_run(federation, ["fair_fate"], rounds=2)
    run = best(lambda: whole_run(federation, ["fair_fate"]), 3)
    print("\n100 rounds of fair_fate with all scoring, one core")
    print(f"  NumPy loop        {loop:9.2f} s    (3 rounds timed, scaled by client-steps)")
    print(f"  fairfate          {run:9.2f} s    {loop / run:6.1f} x NumPy   (target 25)")

    os.sched_setaffinity(0, set(cores))
    passes = [(processes(1), processes(2)) for _ in range(3)]  # interleaved, against drifting load
    single, double = max(one for one, _ in passes), max(two for _, two in passes)
    print("\nprocesses")
    print(f"  one               {single:9.2f} runs/s")
    print(f"  two               {double:9.2f} runs/s {double / single:5.2f} x one   (target 1.8)")
    seconds = import_seconds()
    print(f"\nimport fairfate     {seconds:9.2f} s    (target 0.5)")
    met = [plain / one >= 30, plain / stacked >= 80, loop / run >= 25, double / single >= 1.8, seconds < 0.5]
    print(f"\n{sum(met)} of {len(met)} targets met")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
