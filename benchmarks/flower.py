"""What our strategies add to Flower's own FedAvg in a round: 100 clients, a model of a million parameters.

Everything runs in this process: real ServerApp and ClientApp code, no network, so that nothing but the
strategies differs. Run from the repository's root: python benchmarks/flower.py
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import strategy as theirs

from fairfate import flower as ours

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from federation_in_process import LocalGrid

CLIENTS, ROUNDS, ROWS, INPUTS, HIDDEN = 100, 6, 200, 499, 1998
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
    """A validation that adds up the time of its predictions."""

    seconds = 0.0

    def counts(self, model: ArrayRecord) -> np.ndarray:
        """Count, and look at the clock."""
        start = time.perf_counter()
        found = super().counts(model)
        self.seconds += time.perf_counter() - start
        return found


def main() -> None:
    """Time one strategy after another, in turns, and print the ratios."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rng = np.random.default_rng(0)
    layers = {
        "w1": rng.normal(0, 0.05, (INPUTS, HIDDEN)).astype(np.float32),
        "b1": np.zeros(HIDDEN, dtype=np.float32),
        "w2": rng.normal(0, 0.05, HIDDEN).astype(np.float32),
        "b2": np.zeros(1, dtype=np.float32),
    }
    initial = ArrayRecord({name: Array(layer) for name, layer in layers.items()})
    x = rng.random((ROWS, INPUTS), dtype=np.float32)

    def predict(arrays: ArrayRecord) -> np.ndarray:
        w1, b1, w2, b2 = (arrays[name].numpy() for name in ("w1", "b1", "w2", "b2"))
        return np.tanh(x @ w1 + b1) @ w2 + b2 > 0

    label, group = rng.integers(0, 2, ROWS), rng.integers(0, 2, ROWS)
    checkpoint = Path(tempfile.mkdtemp()) / "checkpoint.safetensors"

    def once(name: str) -> list[tuple[float, float]]:
        validation = Timed(predict, label, group)
        checkpoint.unlink(missing_ok=True)
        strategy = {
            "flwr FedAvg": lambda: theirs.FedAvg(fraction_evaluate=0.0),
            "FedAvg": lambda: ours.FedAvg(fraction_evaluate=0.0),
            "FairFate": lambda: ours.FairFate(validation, fraction_evaluate=0.0),
            "FairFate, checkpoint": lambda: ours.FairFate(
                validation, fraction_evaluate=0.0, checkpoint=checkpoint
            ),
        }[name]()
        grid = LocalGrid(app, {node: {} for node in range(1, CLIENTS + 1)})
        clock: list[tuple[float, float]] = []

        def tick(server_round: int, arrays: ArrayRecord) -> None:
            clock.append((time.perf_counter(), validation.seconds))

        strategy.start(grid, initial, num_rounds=ROUNDS, evaluate_fn=tick)
        spans = np.diff(np.array(clock), axis=0)[1:]  # the first round warms up
        return [(whole - predicting, predicting) for whole, predicting in spans]

    names = ["flwr FedAvg", "FedAvg", "FairFate", "FairFate, checkpoint"]
    once(names[0])
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(4):  # in turns, since the machine may be shared
        for name in names:
            times[name] += once(name)
    base = np.median([seconds for seconds, _ in times[names[0]]])
    size = sum(layer.size for layer in layers.values())
    count = len(times[names[0]])
    print(f"{CLIENTS} clients, {size:,} parameters; seconds a round without predictions, median of {count}")
    for name in names:
        seconds, predictions = np.median(times[name], axis=0)
        print(f"{name:22} {seconds:6.3f}  {seconds / base:5.2f}x   predictions {predictions:6.3f}")


if __name__ == "__main__":
    main()
