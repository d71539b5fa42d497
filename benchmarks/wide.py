"""How fast wide and deep models are trained: against a PyTorch loop, and stacked against one at a time.

    python benchmarks/wide.py                      # prints the tables and which targets are missed
    python benchmarks/wide.py --json wide.json     # and writes the numbers

Both sides train the same networks on the same batches, on one thread. Times are CPU times, passes are
interleaved, and a ratio is the median of theirs. The limit of a step is that of `benchmarks/engine.py`: its
arithmetic, at the rate of loops that do nothing else.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import engine
from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses, Models, batch_rows
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training

try:
    import torch
except ImportError:
    sys.exit("benchmarks/wide.py needs PyTorch to compare with: pip install torch")

ONE_LAYER = [Mlp(inputs, (units,)) for inputs in (14, 200) for units in (64, 128, 256, 512)]
OTHERS = [Mlp(14, (32, 16)), Mlp(14, (64, 32)), Mlp(200, (64, 64)), Mlp(14, ()), Mlp(200, ())]
NARROW = [Mlp(inputs, (units,)) for inputs in (14, 200) for units in (10, 32)]
SETTINGS, PASSES = 16, 5
AGAINST_TORCH, AGAINST_ALONE = 4.0, 1.0
NOISE = 0.03
"""How far apart two timings of the same loop may be."""
SHORTEST = 0.02
"""Seconds of work that are timed at once, at least."""


def client(inputs: int, batch: int) -> ClientRows:
    """Random rows of one client, with a label that can be learned; some batches, and a part of one."""
    rng = np.random.default_rng(0)
    count = max(2048, 8 * batch) + batch // 2
    x = rng.normal(size=(count, inputs)).astype(np.float32)
    y = x @ rng.normal(size=inputs) > 0
    cell = 2 * rng.integers(0, 2, count) + y
    return ClientRows(x.ravel(), cell.astype(np.int32), np.array([0, count]))


def network(model: Mlp, start: Models) -> torch.nn.Sequential:
    """The same model for PyTorch."""
    arrays = {name: torch.from_numpy(array.copy()) for name, array in model.arrays(start).items()}
    layers: list[torch.nn.Module] = []
    with torch.no_grad():
        for number, units in enumerate((*model.hidden, 1), start=1):
            weight = arrays[f"w{number}"].reshape(-1, units)
            linear = torch.nn.Linear(*weight.shape)
            linear.weight.copy_(weight.T)
            linear.bias.copy_(arrays[f"b{number}"])
            layers += [linear, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])


def torch_loop(model: Mlp, start: Models, rows: ClientRows, training: Training, batches: Batches) -> Models:
    """What one writes first: a loop over batches."""
    x, y = torch.from_numpy(rows.x.reshape(-1, model.inputs)), torch.from_numpy(rows.y)[:, None]
    module, loss = network(model, start), torch.nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(module.parameters(), lr=training.learning_rate)
    for at in batch_rows(rows, 0, training, batches):
        index = torch.from_numpy(at)
        optimizer.zero_grad()
        loss(module(x[index]), y[index]).backward()
        optimizer.step()
    results = {}
    for number, linear in enumerate(module[::2], start=1):
        results[f"w{number}"] = linear.weight.detach().numpy().T
        results[f"b{number}"] = linear.bias.detach().numpy()
    return model.flat(results)


def seconds(task: Callable[[], object], times: int = 1) -> float:
    """CPU time of a call, over so many."""
    begin = time.process_time()
    for _ in range(times):
        task()
    return (time.process_time() - begin) / times


def ratio(slow: Callable[[], object], fast: Callable[[], object]) -> tuple[float, float]:
    """How often the second fits into the first, and its seconds."""
    slow(), fast()
    times = [max(1, round(SHORTEST / seconds(task))) for task in (slow, fast)]
    passes = [(seconds(slow, times[0]), seconds(fast, times[1])) for _ in range(PASSES)]
    return statistics.median(a / b for a, b in passes), statistics.median(b for _, b in passes)


def measure(model: Mlp, batch: int, settings: int = 0) -> dict[str, Any]:
    """One model against PyTorch; or so many settings, stacked against one at a time."""
    rows = client(model.inputs, batch)
    training = Training(epochs=1, batch_size=batch)
    batches = Batches(np.uint64(1), 1)
    count = max(settings, 1)
    start = model.initial(np.random.default_rng(1).normal(size=model.num_parameters))
    stack = np.repeat(start[None, None], count, axis=0)
    losses = [Losses(np.ones((models, 1, 4), np.float32)) for models in (1, count)]

    def alone() -> Models:
        return model.train(stack[:1], rows, np.array([0]), losses[0], training, batches)

    def together() -> Models:
        return model.train(stack, rows, np.array([0]), losses[1], training, batches)

    def loop() -> Models:
        return torch_loop(model, start, rows, training, batches)

    steps = -(-int(rows.sizes[0]) // batch)
    shape = {"inputs": model.inputs, "hidden": list(model.hidden), "batch": batch}
    if settings:
        assert (together() == alone()).all()
        gain, took = ratio(lambda: [alone() for _ in range(count)], together)
        return {**shape, "settings": settings, "ratio": gain, "microseconds": took / steps / count * 1e6}
    assert np.abs(alone()[0, 0] - loop()).max() < 1e-4
    gain, took = ratio(loop, alone)
    return {**shape, "ratio": gain, "microseconds": took / steps * 1e6}


def limits() -> tuple[float, float]:
    """Seconds of a fused multiply-add and of a tanh, at the machine's best."""
    tasks = engine.limit_tasks()
    fastest = engine.best({name: task for name, (task, _) in tasks.items()}, passes=25)
    fma, tanh = (fastest[name] / tasks[name][1] for name in ("fma", "tanh"))
    return fma, tanh


def limit(model: Mlp, batch: int, fma: float, tanh: float) -> float:
    """Seconds of a step's arithmetic: forwards, gradients of weights and, but for the first layer, of inputs.

    Four operations more for the derivative of each unit, as for one hidden layer.
    """
    widths = model.widths.tolist()
    products = sum(
        wide * narrow * (3 if layer else 2) for layer, (wide, narrow) in enumerate(pairwise(widths))
    )
    units = sum(model.hidden)
    return batch * ((products + 4 * units) * fma + (units + 1) * tanh)


def show(found: dict[str, Any], target: float) -> bool:
    """Print a line; whether the target is met."""
    name = "-".join(map(str, (found["inputs"], *found["hidden"], 1)))
    took, gain = found["microseconds"], found["ratio"]
    met = bool(gain >= target)
    line = f"  {name:12} batch {found['batch']:3}  {took:9.2f} µs a step  {gain:6.2f} x"
    if "limit_microseconds" in found:
        line += f"  {found['limit_microseconds'] / took:4.0%} of the limit"
    print(line if met else f"{line}  missed")
    sys.stdout.flush()
    return met


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there")
    file = parser.parse_args().json
    torch.set_num_threads(1)
    missed, rates = 0, limits()
    print(f"one model against a PyTorch {torch.__version__} loop; target {AGAINST_TORCH:g} x")
    against_torch = []
    for model in ONE_LAYER + OTHERS:
        for batch in (32, 64, 128, 256):
            least = limit(model, batch, *rates) * 1e6
            against_torch.append({**measure(model, batch), "limit_microseconds": least})
            missed += not show(against_torch[-1], AGAINST_TORCH)
    less = f"{AGAINST_ALONE:g} x, less {NOISE:.0%} for noise"
    print(f"\n{SETTINGS} settings stacked against one at a time; target {less}")
    stacked = []
    for model in NARROW + ONE_LAYER + OTHERS:
        for batch in (10, 32, 256):
            stacked.append(measure(model, batch, SETTINGS))
            missed += not show(stacked[-1], AGAINST_ALONE - NOISE)
    print(f"\n{missed} of {len(against_torch) + len(stacked)} targets missed")
    if file is not None:
        numbers = {"torch": torch.__version__, "against_torch": against_torch, "stacked": stacked}
        file.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
