"""How fast networks of PyTorch are trained in the simulator, against a plain PyTorch loop, on one core.

    python benchmarks/networks.py          # prints the table, exits 1 if the target is missed

The shape is that of the Adult dataset: 14 inputs, layers of 64 and 32 units, batches of 10, 15 clients,
5 a round. Both train the same models on the same batches; passes are interleaved, and a ratio is the
median of theirs.
"""

from __future__ import annotations

import os
import sys

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

import engine
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.model import Batches, Losses, batch_rows
from fairfate.models.torch import TorchModel
from fairfate.models.training import Training

STREAMS, TARGET = Streams(1), 3.0
TRAINING = Training(per_round=engine.PER_ROUND, epochs=1, batch_size=engine.BATCH)


def network() -> nn.Module:
    """14-64-32-1."""
    layers = nn.Linear(engine.INPUTS, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1)
    return nn.Sequential(*layers)


def dropped() -> nn.Module:
    """The same with dropout: models of one client go side by side."""
    layers = nn.Linear(engine.INPUTS, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 32), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(32, 1))


def normed() -> nn.Module:
    """The same with batch norm, which is trained one after another."""
    layers = nn.Linear(engine.INPUTS, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(32, 1))


KINDS = {network: "14-64-32-1", dropped: "with dropout", normed: "with batch norm"}


def plain(module: nn.Module, start: np.ndarray, rows, clients, weight, batches: Batches, model: TorchModel):
    """What one writes first: for each model and client, load, loop over batches, step."""
    x, y = torch.from_numpy(rows.x.reshape(-1, engine.INPUTS)), torch.from_numpy(rows.y)
    cell = torch.from_numpy(rows.cell.astype(np.int64))
    result = np.empty((len(start), len(clients), start.shape[1]), np.float32)
    loss = nn.BCEWithLogitsLoss(reduction="none")
    for s, c in np.ndindex(*result.shape[:2]):
        named = {name: torch.from_numpy(array.copy()) for name, array in model.arrays(start[s]).items()}
        module.load_state_dict(named, strict=False)
        own = torch.from_numpy(weight[s, c])
        optimizer = torch.optim.SGD(module.parameters(), lr=TRAINING.learning_rate)
        for at in batch_rows(rows, int(clients[c]), TRAINING, batches):
            index = torch.from_numpy(at)
            optimizer.zero_grad()
            (own[cell[index]] * loss(module(x[index])[:, 0], y[index])).mean().backward()
            optimizer.step()
        state = module.state_dict()
        result[s, c] = torch.cat([state[name].reshape(-1) for name in model.names]).numpy()
    return result


def seconds(task: Callable[[], object]) -> float:
    """CPU time of a call."""
    begin = time.process_time()
    task()
    return time.process_time() - begin


def compare(make: Callable[[], nn.Module], strategies: int, passes: int = 3) -> tuple[float, float, str]:
    """Microseconds of a batch of one model in the loop and here, and how it is trained."""
    federation = build(engine.adult_shape(), parse_partition("dirichlet:1"), engine.CLIENTS, STREAMS)
    model, module = TorchModel(make, engine.INPUTS), make()
    clients = STREAMS.cohort(1, engine.CLIENTS, engine.PER_ROUND)
    start = np.stack([model.initial(Streams(s).weights(model.num_parameters)) for s in range(strategies)])
    weight = np.random.default_rng(0).uniform(0.5, 2, (strategies, len(clients), 4)).astype(np.float32)
    stack, batches = np.repeat(start[:, None], len(clients), 1), Batches(STREAMS.batch_key, 1)
    rows = slice(0, 1)  # the loop takes as long for every model, so one of them is timed

    def loop() -> np.ndarray:
        return plain(module, start[rows], federation.rows, clients, weight[rows], batches, model)

    def here() -> np.ndarray:
        return model.train(stack, federation.rows, clients, Losses(weight), TRAINING, batches)

    steps = int((-(-federation.sizes[clients] // engine.BATCH)).sum())
    mode = model.mode.partition(" (")[0]
    if mode == "side by side":
        assert np.abs(here()[0] - loop()[0]).max() < 1e-4
    times = [(seconds(loop) / steps, seconds(here) / steps / strategies) for _ in range(passes)]
    ratio = statistics.median(a / b for a, b in times)
    ours = statistics.median(b for _, b in times)
    return ratio * ours * 1e6, ours * 1e6, mode


def main() -> int:
    """Measure and print; 1 if the target is missed."""
    torch.set_num_threads(1)
    ratio = 0.0
    print("client-step of one model, batch 10, CPU time on one core, µs")
    for make, strategies in ((network, 1), (network, 4), (network, 12), (dropped, 12), (normed, 12)):
        loop, here, mode = compare(make, strategies)
        target = f"(target {TARGET:g})" if (make, strategies) == (network, 12) else ""
        name = f"{KINDS[make]:15} {strategies:3} strategies x {engine.PER_ROUND} clients"
        print(
            f"  {name}   PyTorch loop {loop:6.0f}   here {here:6.0f}   {loop / here:5.1f} x   {mode} {target}"
        )
        ratio = loop / here if target else ratio
    print(f"\ntarget {'met' if ratio >= TARGET else 'missed'}")
    return 0 if ratio >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
