"""Whether the engine scales: 10,000 clients, 100 a round, a million rows, against 10 clients.

    python benchmarks/scale.py             # prints the table, exits 1 if a target is missed

Each case runs in a process of its own, which reports its peak memory and its time per client-step: of
training alone, and of whole rounds of fedavg with the scoring of the global model on 400,000 rows.
"""

from __future__ import annotations

import json
import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import resource
import subprocess
import sys
import time

ROWS = 1_000_000
CASES = {"10 clients, 3 a round": (10, 3, 2), "10,000 clients, 100 a round": (10_000, 100, 20)}
MEMORY, SLOWDOWN = 2.0, 1.5


def measure(clients: int, per_round: int, rounds: int) -> dict[str, float]:
    """Time and memory of one case."""
    import numpy as np

    from fairfate.data import synthetic
    from fairfate.federation.partition import parse_partition
    from fairfate.federation.split import build
    from fairfate.federation.streams import Streams
    from fairfate.models.mlp import Mlp
    from fairfate.models.model import Batches, Losses
    from fairfate.models.training import Training
    from fairfate.rounds.simulate import simulate
    from fairfate.strategies import Setup, parse_spec

    streams, training = Streams(1), Training(rounds=rounds, per_round=per_round)
    federation = build(synthetic(rows=ROWS), parse_partition("dirichlet:0.5"), clients, streams)
    cohorts = streams.cohorts(rounds, clients, per_round)
    steps = sum(int((-(-federation.sizes[c] * 10 // 10)).sum()) for c in cohorts)
    model = Mlp(6)
    start = model.initial(streams.weights(model.num_parameters))
    ones = np.ones((1, per_round, 4), np.float32)

    def train() -> float:
        begin = time.perf_counter()
        for t, cohort in enumerate(cohorts, start=1):
            full = cohort[federation.sizes[cohort] > 0]
            models = np.repeat(start[None, None], len(full), axis=1)
            losses = Losses(np.ascontiguousarray(ones[:, : len(full)]))
            model.train(models, federation.rows, full, losses, training, Batches(streams.batch_key, t))
        return time.perf_counter() - begin

    train()
    training_seconds = min(train() for _ in range(3))
    begin = time.perf_counter()
    simulate(federation, [parse_spec("fedavg", "eqo")], model, training, Setup(rounds), streams)
    whole = time.perf_counter() - begin
    return {
        "ns": training_seconds / steps * 1e9,
        "round_ms": whole / rounds * 1e3,
        "training_ms": training_seconds / rounds * 1e3,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def main() -> int:
    """Measure and print; 1 if a target is missed."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(*map(int, sys.argv[1:]))))
        return 0
    found = {}
    print(f"{ROWS:,} synthetic rows, fedavg, one core")
    print(f"{'':30}{'client-step':>12}{'training':>12}{'whole round':>13}{'peak memory':>13}")
    for name, case in CASES.items():
        output = subprocess.run(
            [sys.executable, __file__, *map(str, case)], check=True, capture_output=True, text=True
        )
        found[name] = json.loads(output.stdout)
        values = found[name]
        print(
            f"{name:30}{values['ns']:9.0f} ns{values['training_ms']:9.1f} ms"
            f"{values['round_ms']:10.1f} ms{values['gib']:9.2f} GiB"
        )
    few, many = found.values()
    print(f"\ntime per client-step {many['ns'] / few['ns']:.2f} x that of 10 clients (target {SLOWDOWN})")
    print(f"peak memory {many['gib']:.2f} GiB (target {MEMORY})")
    return 0 if many["ns"] / few["ns"] <= SLOWDOWN and many["gib"] < MEMORY else 1


if __name__ == "__main__":
    sys.exit(main())
