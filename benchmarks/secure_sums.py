"""CPU time of a round with secure sums against a plain one: ten sites, 100,000 parameters.

    python benchmarks/secure_sums.py              # prints the table, exits 1 if the target is missed
    python benchmarks/secure_sums.py --json FILE  # also writes the numbers, under "sums"

Server and sites run in one process: the ready app with a study, every message signed and sealed as in a
deployment, state and logs on the disk; no network and no TLS. Both kinds of rounds are of the same study
but for the sums. A round is everything from its first message to the next round's: training, sealing,
masks, the sum and what is recorded. The first and the last round are left out, the least of the others is
taken, and runs are taken in turns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "flower"))

import argparse
import json
import logging
import tempfile
import time
from itertools import pairwise
from typing import Any, ClassVar

import pandas as pd

from fairfate.flower.app.init import init
from fairfate.flower.app.make_study import make_key
from fairfate.flower.app.settings import schema_of, settings_of
from fairfate.flower.clients import FlowerClients
from fairfate.flower.secure_clients import SecureClients
from ready_app import StudyApp
from summed_app import SummedApp

PARAMETERS, ROUNDS, TIMES, RATIO = 100_000, 8, 2, 2.0
NAMES = [f"site{number}" for number in range(10)]
FAIR = "fair_fate:metric=accuracy,lam0=0.5,keep=0,min_mcc=0"


class TenSites(SummedApp):
    """The five sites' files, each cut in two."""

    NODES: ClassVar = {name: 10 + number for number, name in enumerate(NAMES)}

    def __init__(self, folder: Path, changes: dict[str, Any]) -> None:
        self.folder = init(folder, secure_sums=True)
        self.name, self.package = folder.name, folder.name.replace("-", "_")
        self.parties = folder.parent / "parties"
        self.parties.mkdir()
        make_key("server", self.parties)
        files = sorted((self.folder / "data" / "sites").glob("*.csv"))
        for number, name in enumerate(NAMES):
            rows = pd.read_csv(files[number // 2])
            file = self.folder / "data" / "sites" / f"{name}.csv"
            rows.iloc[number % 2 :: 2].to_csv(file, index=False)
            node = self.folder / f"{name}.toml"
            node.write_text(f'name = "{name}"\ndata = "{file}"\n')
            make_key(name, self.parties, node)
        schema, _ = schema_of(settings_of(self.folder))
        width = round(PARAMETERS / (schema.encoder.inputs + 2))
        self.parameters = width * (schema.encoder.inputs + 2) + 1
        self.changes = {"min-sites": 10, "hidden": str(width), "rounds": ROUNDS, **changes}
        self.file = self.folder / "study.toml"
        StudyApp.sign_off(self, min_cell=10, runs=20)


def seconds(app: TenSites, number: int) -> float:
    """CPU time of a round, everybody's."""
    began: list[float] = []
    kinds = (FlowerClients, SecureClients)
    shipped = [kind.train for kind in kinds]
    for kind, train in zip(kinds, shipped, strict=True):

        def timed(self: Any, t: int, servers: Any, train: Any = train) -> Any:
            began.append(time.process_time())
            return train(self, t, servers)

        kind.train = timed  # type: ignore[method-assign]
    try:
        config = app.config()
        app.serve(app.grid(config), config, number)
    finally:
        for kind, train in zip(kinds, shipped, strict=True):
            kind.train = train  # type: ignore[method-assign]
    return min(after - before for before, after in pairwise(began[1:]))


def measure(strategy: str, epochs: int) -> tuple[float, float, int]:
    """Of a plain round and of one with sums; the parameters."""
    best: dict[bool, float] = {}
    with tempfile.TemporaryDirectory() as place:
        apps = {}
        for sums in (False, True):
            source = "clients:mode=own" if sums else "server"
            changes = {"strategy": strategy, "epochs": epochs, "validation-from": source, "secure-sums": sums}
            folder = Path(place) / str(sums)
            folder.mkdir()
            apps[sums] = TenSites(folder / "hospitals", changes)
        for number in range(1, TIMES + 1):
            for sums, app in apps.items():
                best[sums] = min(best.get(sums, 1e9), seconds(app, number))
    return best[False], best[True], apps[True].parameters


def main() -> int:
    """Print a line for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    rows = []
    for name, strategy in (("fedavg", "fedavg"), ("fair_fate", FAIR)):
        plain, summed, parameters = measure(strategy, given.epochs)
        ratio = summed / plain
        rows.append({"strategy": name, "plain": plain, "sums": summed, "ratio": ratio})
        print(
            f"{name:>10}: plain {plain * 1e3:.0f} ms, with sums {summed * 1e3:.0f} ms of CPU a round:"
            f" {ratio:.2f} x"
        )
    print(f"10 sites, {parameters:,} parameters, {given.epochs} epochs")
    if given.json is not None:
        kept = json.loads(given.json.read_text()) if given.json.exists() else {}
        about = {"sites": 10, "parameters": parameters, "epochs": given.epochs, "rows": rows}
        given.json.write_text(json.dumps({**kept, "sums": about}, indent=1) + "\n")
    return int(any(row["ratio"] > RATIO for row in rows))


if __name__ == "__main__":
    sys.exit(main())
