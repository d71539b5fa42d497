"""What our strategies add to Flower's own FedAvg in a round: 100 clients, a model of a million parameters.

    python benchmarks/flower.py              # prints the table, exits 1 if a target is missed
    python benchmarks/flower.py --json FILE  # also writes the numbers, by name

Everything runs in one process: real ServerApp and ClientApp code, no network, so that nothing but the
strategies differs. CPU time of a round, that of the clients' (cheapest) training included, is the best of
many, taken in turns; predictions on the validation rows are counted apart. Memory is the peak of a process
of its own for each strategy, beyond what it had before the first round: what each of a hundred further
clients adds to it, in models, and the rest in MB, which is the same however many clients there are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import argparse
import json
import logging
import subprocess
import tempfile
import time
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as theirs

from fairfate import flower as ours
from federation_in_process import LocalGrid

CLIENTS, ROUNDS, ROWS, INPUTS, HIDDEN = 100, 6, 200, 499, 1998
BASE, FAIR_FATE = "flower_fedavg", "fairfate"
NAMES = {BASE: "Flower's FedAvg", "fedavg": "FedAvg", FAIR_FATE: "FairFate", "checkpoint": "..., checkpoint"}
RATIO, MODELS = 1.15, 2.05
"""Targets of FairFate: CPU time of a round against Flower's FedAvg, and memory in models a client."""
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Move every weight a little: the cheapest training there is."""
    rng = np.random.default_rng(context.node_id)
    step = np.float32(1e-3 * rng.standard_normal())
    arrays = {name: Array(value.numpy() + step) for name, value in message.content["arrays"].items()}
    metrics = MetricRecord({"num-examples": 10 + context.node_id, "loss": 1.0})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


class Timed(ours.Validation):
    """A validation that adds up the CPU time of its predictions."""

    seconds = 0.0

    def counts(self, model: ArrayRecord) -> np.ndarray:
        """Count, and look at the clock."""
        start = time.process_time()
        group_counts = super().counts(model)
        self.seconds += time.process_time() - start
        return group_counts


def build(name: str, validation: ours.Validation, checkpoint: Path | None = None) -> Any:
    """One of the strategies."""
    if name == BASE:
        return theirs.FedAvg(fraction_evaluate=0.0)
    if name == "fedavg":
        return ours.FedAvg(fraction_evaluate=0.0)
    kept = checkpoint if name == "checkpoint" else None
    return ours.FairFate(validation, fraction_evaluate=0.0, checkpoint=kept)


class Case:
    """The same start for all strategies."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        layers = {
            "w1": rng.normal(0, 0.05, (INPUTS, HIDDEN)).astype(np.float32),
            "b1": np.zeros(HIDDEN, dtype=np.float32),
            "w2": rng.normal(0, 0.05, HIDDEN).astype(np.float32),
            "b2": np.zeros(1, dtype=np.float32),
        }
        self.size = sum(layer.size for layer in layers.values())
        self.initial = ArrayRecord({name: Array(layer) for name, layer in layers.items()})
        self.x = rng.random((ROWS, INPUTS), dtype=np.float32)
        self.label, self.group = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)

    def predict(self, arrays: ArrayRecord) -> np.ndarray:
        """The server's copy of the model."""
        w1, b1, w2, b2 = (arrays[name].numpy() for name in ("w1", "b1", "w2", "b2"))
        return np.tanh(self.x @ w1 + b1) @ w2 + b2 > 0

    def run(self, name: str, rounds: int = ROUNDS, clients: int = CLIENTS) -> list[tuple[float, float]]:
        """CPU seconds of each round but the first, which warms up: without predictions, and of these."""
        validation = Timed(self.predict, self.label, self.group)
        clock: list[tuple[float, float]] = []

        def tick(server_round: int, arrays: ArrayRecord) -> None:
            clock.append((time.process_time(), validation.seconds))

        with tempfile.TemporaryDirectory() as folder:
            strategy = build(name, validation, Path(folder) / "checkpoint.safetensors")
            grid = LocalGrid(app, {node: {} for node in range(1, clients + 1)})
            strategy.start(grid, self.initial, num_rounds=rounds, evaluate_fn=tick)
        spans = np.diff(np.array(clock), axis=0)[1:]
        return [(whole - predicting, predicting) for whole, predicting in spans]


def resident(what: str) -> int:
    """Bytes of this process's memory: VmRSS now, VmHWM at its peak (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{what}:"))


def peak(name: str, clients: int) -> int:
    """Bytes at the peak of a few rounds, in this process."""
    case = Case()
    build(name, ours.Validation(case.predict, case.label, case.group))  # imports what it needs
    case.predict(case.initial)
    before = resident("VmRSS")
    case.run(name, rounds=4, clients=clients)
    return resident("VmHWM") - before


def memory(name: str, model: int) -> tuple[float, float]:
    """Models that a client adds to the peak, and bytes beside them; each peak in a process of its own."""
    peaks = []
    for clients in (CLIENTS, 2 * CLIENTS):
        command = [sys.executable, __file__, "--peak", name, "--clients", str(clients)]
        process = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(process.stdout))
    slope = (peaks[1] - peaks[0]) / CLIENTS
    return slope / model, peaks[0] - CLIENTS * slope


def measure(passes: int) -> dict[str, float]:
    """Every number by its name."""
    case = Case()
    case.run(BASE, rounds=2)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for _ in range(passes):  # in turns, since the machine may be shared
        for name in NAMES:
            times[name] += case.run(name)
    results: dict[str, float] = {"clients": CLIENTS, "parameters": case.size, "rounds": len(times[BASE])}
    for name, each in times.items():
        seconds, predicting = np.min(each, axis=0)
        results[f"{name}_round_ms"] = 1000 * float(seconds)
        results[f"{name}_predictions_ms"] = 1000 * float(predicting)
        results[f"{name}_ratio"] = results[f"{name}_round_ms"] / results[f"{BASE}_round_ms"]
        a_client, beside = memory(name, case.size * 4)
        results[f"{name}_models_a_client"], results[f"{name}_beside_mb"] = a_client, beside / 1e6
    return results


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", metavar="FILE", help="write the numbers into this file")
    parser.add_argument("--passes", type=int, default=5, help="how often every strategy has its turn")
    parser.add_argument("--peak", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, default=CLIENTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if given.peak:
        print(peak(given.peak, given.clients))
        return 0
    measures = measure(given.passes)
    print(
        f"{CLIENTS} clients, {measures['parameters']:,} parameters; best of {measures['rounds']} rounds,"
        " CPU time"
    )
    print(f"{'':18}{'a round':>10}{'':9}{'predictions':>14}{'memory: models a client, and beside':>38}")
    for name, title in NAMES.items():
        print(
            f"{title:18}{measures[f'{name}_round_ms']:7.0f} ms{measures[f'{name}_ratio']:7.2f} x"
            f"{measures[f'{name}_predictions_ms']:11.0f} ms{measures[f'{name}_models_a_client']:28.2f}"
            f"{measures[f'{name}_beside_mb']:7.0f} MB"
        )
    ratio, models = measures[f"{FAIR_FATE}_ratio"], measures[f"{FAIR_FATE}_models_a_client"]
    print(f"\nFairFate {ratio:.2f} x (target {RATIO}), {models:.2f} models a client (target {MODELS})")
    if given.json:
        Path(given.json).write_text(json.dumps(measures, indent=2) + "\n")
    return 0 if ratio <= RATIO and models <= MODELS else 1


if __name__ == "__main__":
    sys.exit(main())
