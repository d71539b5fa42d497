"""What the scikit-learn estimator adds to encoding and simulating the same rows: CPU seconds on Adult."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from fairfate import FairFederatedClassifier
from fairfate.data import ONEHOT, Columns, Table, table_from_frame
from fairfate.engine.recorder import Trace
from fairfate.engine.simulate import simulate
from fairfate.federation.partition import Partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import RowAssignment, assign, encode
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec


def bare(frame: pd.DataFrame, strategy: str, rounds: int) -> Trace:
    """The same rows, encoded and simulated without the estimator."""
    columns = Columns("income", ("gender",), favourable=">50K", drop=("gender",))
    table: Table = table_from_frame(frame, columns, encode=ONEHOT, tidy=True)
    streams = Streams(1)
    train, validation = streams.hold_out(table.cell, 0.2)
    client, names = assign(table, train, Partition("random"), 10, streams)
    federation = encode(table, RowAssignment(train, client, names, validation, np.arange(0)), streams)
    training = Training(rounds, 3, 2, 20, 0.03)
    setup = Setup(rounds, groups=table.grouping)
    (trace,) = simulate(
        federation, [parse_spec(strategy, "eqo")], Mlp(federation.inputs), training, setup, streams
    )
    return trace


def seconds(work: Callable[[], object]) -> float:
    """CPU time."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Both ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", default="fedavg+average+thresholds:metric=eo")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    frame = pd.read_csv(Path(os.environ["FAIRFATE_DATA"]) / "adult.csv", na_values="?")
    x, y, sex = frame.drop(columns=["income", "gender"]), frame["income"], frame["gender"]
    clf = FairFederatedClassifier(options.strategy, max_iter=options.rounds, random_state=1)
    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(frame, options.strategy, options.rounds),
        "estimator": lambda: clf.fit(x, y, sensitive_features=sex),
    }
    for work in ways.values():
        work()
    trace = bare(frame, options.strategy, options.rounds)
    layers = Mlp.from_arrays(dict(clf.model_.arrays)).flat(dict(clf.model_.arrays))
    print("the same model:", np.array_equal(trace.params, layers))
    results: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, work in ways.items():
            results[name].append(seconds(work))
    ratios = [
        with_it / without for with_it, without in zip(results["estimator"], results["bare"], strict=True)
    ]
    print({name: round(median(values), 3) for name, values in results.items()}, "CPU s, medians")
    low, middle, high = (100 * (value - 1) for value in np.quantile(ratios, [0.25, 0.5, 0.75]))
    least = 100 * (min(results["estimator"]) / min(results["bare"]) - 1)
    print(f"overhead {middle:.1f} % (median of {options.repeats} pairs; quartiles {low:.1f}, {high:.1f} %)")
    print(f"overhead {least:.1f} % by the quickest of each")


if __name__ == "__main__":
    main()
