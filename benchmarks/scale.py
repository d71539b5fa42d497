"""How cost grows: with clients, rows, inputs, strategies, rounds and hidden units, and at the far ends.

    python benchmarks/scale.py [--json FILE] [--only NAME]

Every case runs in a process of its own, on one core, by CPU time. "training" is the compiled loops alone,
on the same clients, rows and rounds. The far ends: 3,000 clients a round with 200,000 validation rows, a
client with a million rows, and ten million rows in memory.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

USUAL = {
    "rows": 40_000,
    "inputs": 14,
    "clients": 20,
    "per_round": 5,
    "strategies": 1,
    "rounds": 20,
    "hidden": 10,
}
GROWTH = {
    "clients": (10, 100, 1_000, 10_000),
    "rows": (10_000, 100_000, 1_000_000),
    "inputs": (7, 14, 28, 56, 112),
    "strategies": (1, 2, 4, 8, 16, 32, 64),
    "rounds": (10, 20, 40, 80),
    "hidden": (8, 16, 32, 64, 128),
}
MOST_SCORING, MOST_MEMORY, MOST_LARGE = 3.0, 2.5, 1.5


def table(rows: int, inputs: int, *, seed: int = 0) -> Any:
    """Random rows: two groups, a label that can be learned."""
    import numpy as np

    from fairfate.data import Table
    from fairfate.data.groups import Groups

    rng = np.random.default_rng(seed)
    x = np.empty((rows, inputs))
    for start in range(0, rows, 100_000):  # leaves nothing behind that a run would not have
        x[start : start + 100_000] = rng.normal(size=x[start : start + 100_000].shape)
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


def best(task: Callable[[], object], passes: int) -> float:
    """CPU seconds of the fastest pass."""
    times = []
    for _ in range(passes):
        start = time.process_time()
        task()
        times.append(time.process_time() - start)
    return min(times)


def run(
    rows: int,
    inputs: int,
    clients: int,
    per_round: int,
    strategies: int,
    rounds: int,
    hidden: int,
    *,
    strategy: str = "fair_fate",
    passes: int = 3,
    epochs: int = 10,
) -> dict[str, float]:
    """CPU seconds of building a federation, of its rounds, and of their training alone; peak memory."""
    import numpy as np

    from fairfate.engine.simulate import simulate
    from fairfate.federation.partition import parse_partition
    from fairfate.federation.seeds import Streams
    from fairfate.federation.split import build
    from fairfate.models.mlp import Mlp
    from fairfate.models.model import Batches, Losses
    from fairfate.models.training import Training
    from fairfate.strategies import Setup, parse_spec

    people, streams = table(rows, inputs), Streams(1)
    training = Training(rounds=rounds, per_round=per_round, epochs=epochs)
    begin = time.process_time()
    federation = build(people, parse_partition("random"), clients, streams)
    built = time.process_time() - begin
    model = Mlp(inputs, (hidden,))
    separator = "," if ":" in strategy else ":"
    named = [f"{strategy}{separator}lam0={0.1 + index / 200}" for index in range(strategies)]
    specs = [parse_spec(text if strategy.startswith("fair_fate") else strategy, "eqo") for text in named]
    short = Training(rounds=1, per_round=per_round, epochs=1)
    simulate(federation, specs[:1], model, short, Setup(1), streams)  # compiled, and memory is there
    whole = best(lambda: simulate(federation, specs, model, training, Setup(rounds), streams), passes)
    start = model.initial(streams.weights(model.num_parameters))
    stacked = np.repeat(np.repeat(start[None, None], strategies, axis=0), per_round, axis=1)
    losses = Losses(np.ones((strategies, per_round, 4), np.float32))
    cohorts = streams.cohorts(rounds, clients, per_round)

    def train() -> None:
        for t, cohort in enumerate(cohorts, start=1):
            model.train(stacked, federation.rows, cohort, losses, training, Batches(streams.batch_key, t))

    trained = best(train, passes)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 * 1.024
    return {"build": built, "rounds": whole, "training": trained, "gigabytes": memory}


def many_clients() -> dict[str, float]:
    """3,000 clients a round with 200 rows each, ten local epochs, and 200,000 validation rows."""
    finished_run = run(1_000_000, 14, 3_000, 3_000, 1, 2, 10, passes=3)
    return {**finished_run, "ratio": finished_run["rounds"] / finished_run["training"]}


def large_client() -> dict[str, float]:
    """CPU nanoseconds of a step at a client with a million rows and at one with 3,000, in turns."""
    import numpy as np

    from fairfate.models.mlp import Mlp
    from fairfate.models.model import Batches, Losses
    from fairfate.models.rows import ClientRows
    from fairfate.models.training import Training

    results: dict[str, float] = {}
    for models in (1, 16):
        tasks = {}
        for rows in (3_000, 1_000_000):
            people = table(rows, 14)
            held = ClientRows(
                people.features.astype(np.float32).ravel(),
                people.cell.astype(np.int32),
                np.array([0, rows], dtype=np.int64),
            )
            epochs = max(1, 300_000 // rows)
            model, training = Mlp(14), Training(1, 1, epochs)
            start = np.zeros((models, 1, model.num_parameters), np.float32)
            losses = Losses(np.ones((models, 1, 4), np.float32))

            def task(
                kept: ClientRows = held,
                model: Mlp = model,
                start: Any = start,
                losses: Losses = losses,
                training: Training = training,
            ) -> None:
                model.train(start, kept, np.array([0]), losses, training, Batches(np.uint64(1), 1))

            tasks[rows] = (task, rows * epochs / 10 * models)
            task()
        times = dict.fromkeys(tasks, math.inf)
        for _ in range(9):
            for rows, (task, steps) in tasks.items():
                times[rows] = min(times[rows], best(task, 1) / steps * 1e9)
        results |= {f"small_ns_{models}": times[3_000], f"large_ns_{models}": times[1_000_000]}
        results[f"ratio_{models}"] = times[1_000_000] / times[3_000]
    return results


def ten_million() -> dict[str, float]:
    """A round on ten million rows of 14 inputs."""
    return run(10_000_000, 14, 100, 10, 1, 1, 10, passes=1, epochs=1)


ENDS: dict[str, Callable[[], dict[str, float]]] = {
    "many_clients": many_clients,
    "large_client": large_client,
    "ten_million": ten_million,
}


def slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """By what power the cost grows, over the last three sizes."""
    last = sizes[-3:], seconds[-3:]
    x, y = ([math.log(value) for value in values] for values in last)
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - middle_x) ** 2 for a in x)


def alone(name: str, arguments: dict[str, int] | None = None) -> dict[str, float]:
    """A case in a process of its own."""
    words = [sys.executable, __file__, "--case", name, json.dumps(arguments or {})]
    process = subprocess.run(words, check=True, capture_output=True, text=True)
    content: dict[str, float] = json.loads(process.stdout)
    return content


def measure(only: str | None) -> dict[str, Any]:
    """All cases, or one, printed as they are done."""
    results: dict[str, Any] = {"growth": {}, "usual": USUAL}
    for name, sizes in GROWTH.items():
        if only not in (None, name):
            continue
        cases = []
        for size in sizes:
            changed = {**USUAL, name: size}
            if name == "rows":
                changed |= {"rounds": 4}
            cases.append(alone("run", changed))
        seconds = [case["rounds"] for case in cases]
        power = slope(sizes, seconds)
        build = slope(sizes, [case["build"] for case in cases])
        results["growth"][name] = {"sizes": sizes, "cases": cases, "slope": power, "build_slope": build}
        shown = ", ".join(f"{size:,}: {second:.2f} s" for size, second in zip(sizes, seconds, strict=True))
        print(f"{name:11} slope {power:5.2f} (building {build:5.2f})   {shown}", flush=True)
    for name in ENDS:
        if only in (None, name):
            results[name] = alone(name)
            print(name, {key: round(value, 3) for key, value in results[name].items()}, flush=True)
    return results


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="How cost grows.")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    parser.add_argument("--only", choices=[*GROWTH, *ENDS])
    parser.add_argument("--case", nargs=2, metavar=("NAME", "ARGUMENTS"))
    options = parser.parse_args()
    if options.case:
        name, arguments = options.case[0], json.loads(options.case[1])
        print(json.dumps(run(**arguments) if name == "run" else ENDS[name]()))
        return 0
    measures = measure(options.only)
    if options.json:
        options.json.write_text(json.dumps(measures, indent=1) + "\n")
    if options.only:
        return 0
    targets = {
        f"3,000 clients x 200,000 rows cost at most {MOST_SCORING:g} x training": measures["many_clients"][
            "ratio"
        ]
        <= MOST_SCORING,
        f"a step at 1,000,000 rows takes at most {MOST_LARGE} x a small client's": measures["large_client"][
            "ratio_1"
        ]
        <= MOST_LARGE,
        f"ten million rows need less than {MOST_MEMORY} GB": measures["ten_million"]["gigabytes"]
        < MOST_MEMORY,
    }
    for text, met in targets.items():
        print(f"{'met   ' if met else 'MISSED'} {text}")
    return 0 if all(targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
