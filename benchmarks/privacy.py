"""How much longer a row takes under differential privacy.

    python benchmarks/privacy.py [BATCH]      # prints the table, exits 1 if the target is missed
    python benchmarks/privacy.py --json FILE  # also writes the numbers, under "rows"

The built-in model of one strategy on one client's rows, in nanoseconds for each row that is
expected to be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses
from fairfate.models.private import NoisySteps, train_private
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.privacy.mechanism import Seeded

ROWS, EPOCHS, REPEATS, RATIO = 2000, 10, 15, 2.5


def nanoseconds(train: Callable[[], object]) -> float:
    """The least time of several, for each row."""
    train()  # compiles
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        train()
        times.append(time.perf_counter() - start)
    return min(times) / (ROWS * EPOCHS) * 1e9


def measure(batch: int) -> list[dict[str, Any]]:
    """Print a line for each shape of a model."""
    lines = []
    print(f"batch {batch}, {ROWS} rows, {EPOCHS} epochs: nanoseconds for each row")
    print(f"{'inputs':>8}{'hidden':>10}{'plain':>8}{'private':>9}{'ratio':>7}")
    for inputs, hidden in ((14, (10,)), (100, (10,)), (14, ()), (14, (32, 16))):
        rng = np.random.default_rng(0)
        x = rng.standard_normal(ROWS * inputs).astype(np.float32)
        rows = ClientRows(x, rng.integers(0, 4, ROWS).astype(np.int32), np.array([0, ROWS]))
        model = Mlp(inputs, hidden)
        start = model.initial(rng.standard_normal(model.num_parameters))
        losses, training = Losses(np.ones((1, 1, 4), np.float32)), Training(1, 1, EPOCHS, batch, 0.01)

        first, batches = start[None, None], Batches(np.uint64(1), 1)
        plain = partial(model.train, first, rows, np.array([0]), losses, training, batches)
        noisy = NoisySteps(1.0, 1.0, Seeded(1, "benchmark"))
        private = partial(train_private, model, start, rows, 0, losses, training, EPOCHS, noisy)
        times = nanoseconds(plain), nanoseconds(private)
        shape = ",".join(map(str, hidden)) or "0"
        ratio = times[1] / times[0]
        print(f"{inputs:>8}{shape:>10}{times[0]:>8.0f}{times[1]:>9.0f}{ratio:>7.2f}")
        lines.append({"shape": f"{inputs}-{shape}", "plain": times[0], "private": times[1], "ratio": ratio})
    return lines


def main() -> int:
    """Measure, and keep the numbers if a file is given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("batch", type=int, nargs="?", default=64)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = measure(given.batch)
    if given.json is not None:
        kept = json.loads(given.json.read_text()) if given.json.exists() else {}
        given.json.write_text(
            json.dumps({**kept, "rows": {"batch": given.batch, "rows": rows}}, indent=1) + "\n"
        )
    return int(any(row["ratio"] > RATIO for row in rows))


if __name__ == "__main__":
    sys.exit(main())
