"""The same bytes as ever: fingerprints of final models and of every metric, written before the rebuild.

A change that moves one of them changes what users get from their seeds.
`python tests/golden/test_golden.py` writes the file anew; do that only if such a change is
meant, and say so in the changelog.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fairfate

FILE = Path(__file__).with_name("golden.json")
DATA = {"synthetic": "synthetic:rows=600", "compas": "compas"}
PROTOCOLS = ("paper", "published")
STRATEGIES = (
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedmom:beta=0.8",
    "feddemon",
    "fedval:metric=sp",
    "fedval:metric=eqo",
    "fair_fate:metric=sp",
    "fair_fate:metric=eo",
    "fair_fate:metric=eqo,lam0=0.5,beta0=0.99",
    "fair_fate:metric=eqo,momentum=none,growth=constant",
    "fair_fate:metric=eqo,momentum=constant,growth=linear",
)
STEPS = (
    "+thresholds:metric=sp,keep=0,against=best",
    "+thresholds:metric=eqo,tolerance=0.05,keep=0,against=best",
)
"""The rule that thresholds were first chosen by."""
METRICS = ("accuracy", "balanced_accuracy", "f1", "mcc", "sp", "eo", "eqo")
LAYERS = ("w1", "b1", "w2", "b2")


def fingerprints(data: str, protocol: str, strategies: tuple[str, ...], folder: Path) -> dict[str, str]:
    """For each strategy, of its final model; for each row of the table, of its metrics in all rounds."""
    run = fairfate.run(
        data=DATA[data],
        data_dir=os.environ.get("FAIRFATE_DATA"),
        protocol=protocol,
        partition="dirichlet:0.5",
        strategies=[*strategies, *(f"{text}{step}" for text in strategies for step in STEPS)],
        rounds=6,
        epochs=3,
        seeds=(7,),
        jobs=1,
        out=folder,
    )
    results: dict[str, str] = {}
    for file in sorted((folder / "models").iterdir()):
        arrays, about = fairfate.read_model(file)
        layers = b"".join(np.ascontiguousarray(arrays[name]).tobytes() for name in LAYERS)
        if "+" not in about["strategy"]:
            results[f"model {about['strategy']}"] = hashlib.sha256(layers).hexdigest()[:16]
    keys = ["strategy", "metric", "settings"]
    for key, rows in run.rounds.fillna({"metric": ""}).groupby(keys, sort=False):
        values = rows.sort_values(["split", "round"])[list(METRICS)].to_numpy(np.float64)
        results[f"metrics {' '.join(key)}"] = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    return results


CASES = [
    pytest.param(data, protocol, marks=[] if data == "synthetic" else pytest.mark.data)
    for data in DATA
    for protocol in PROTOCOLS
]


@pytest.mark.parametrize(("data", "protocol"), CASES)
def test_stacked_strategies_give_the_bytes_they_always_gave(data: str, protocol: str, tmp_path: Path) -> None:
    if data != "synthetic" and not os.environ.get("FAIRFATE_DATA"):
        pytest.skip("FAIRFATE_DATA is not set")
    expected = json.loads(FILE.read_text())[f"{data} {protocol}"]
    assert fingerprints(data, protocol, STRATEGIES, tmp_path) == expected


@pytest.mark.parametrize(("data", "protocol"), CASES)
def test_a_strategy_alone_gives_the_same(data: str, protocol: str, tmp_path: Path) -> None:
    if data != "synthetic" and not os.environ.get("FAIRFATE_DATA"):
        pytest.skip("FAIRFATE_DATA is not set")
    expected = json.loads(FILE.read_text())[f"{data} {protocol}"]
    results: dict[str, str] = {}
    for number, strategy in enumerate(STRATEGIES):
        results |= fingerprints(data, protocol, (strategy,), tmp_path / str(number))
    assert results == expected


def write() -> None:
    """Write the file."""
    results = {}
    for data in DATA:
        for protocol in PROTOCOLS:
            with tempfile.TemporaryDirectory() as folder:
                results[f"{data} {protocol}"] = fingerprints(data, protocol, STRATEGIES, Path(folder))
    FILE.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.write(f"wrote {FILE}\n")


if __name__ == "__main__":
    write()
