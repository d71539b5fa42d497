"""The tables of docs/privacy.md and docs/privacy-cost.md, from what was measured and kept.

After ``fairfate sweep examples/privacy-cost.toml --out runs/privacy-cost``, ``python tools/privacy_tables.py
runs/privacy-cost`` writes docs/measurements/privacy-cost.csv and the picture of the page.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from fairfate.privacy.budget import Budget, parse_budget
from fairfate.privacy.calibration import Exposure, calibrate
from fairfate.privacy.releases import Releases
from fairfate.report.budgets import over_budgets
from fairfate.report.canvas import Style
from fairfate.report.figures import save
from fairfate.results.summary import row_names

DOCS = Path(__file__).parent.parent / "docs"
SPEED = DOCS / "measurements" / "privacy-speed.json"
ATTACKS, COSTS = DOCS / "measurements" / "privacy-attacks.json", DOCS / "measurements" / "privacy-cost.csv"
TITLES = {"compas": "COMPAS", "adult": "Adult", "law": "Law School", "dutch": "Dutch"}
KEPT = ("accuracy", "mcc", "eqo")
EPSILONS, ROWS = (1.0, 3.0, 8.0), (30, 100, 300, 1000, 3000, 10_000)


def attacks() -> str:
    """Every attack without protection and with it."""
    content = json.loads(ATTACKS.read_text())
    names = ["no protection" if name == "none" else name.replace("=", " ") for name in content]
    lines = [f"| attack by the server | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for attack in content["none"]:
        values = [f"{modes[attack]:.2f}" for modes in content.values()]
        lines.append(f"| {attack} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def collect(folder: Path) -> pd.DataFrame:
    """Means and standard deviations of a sweep, by what is varied."""
    summary = pd.read_csv(folder / "summary.csv")
    columns = [f"{name}_last_{kind}" for name in KEPT for kind in ("mean", "std")]
    named = summary.assign(strategy=row_names(summary))
    return named[["dataset", "partition", "privacy", "strategy", "seeds", *columns]].round(4)


def read() -> pd.DataFrame:
    """The measurements, with epsilon as a number."""
    frame = pd.read_csv(COSTS)
    budgets = [parse_budget(text) for text in frame["privacy"]]
    return frame.assign(epsilon=[math.inf if budget is None else budget.epsilon for budget in budgets])


def cost(partition: str) -> str:
    """Accuracy / MCC / EQO of every strategy at every epsilon, means over the datasets."""
    frame = read().query(f"partition == '{partition}'")
    epsilons = sorted(set(frame["epsilon"]))
    names = ["none" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in epsilons]
    lines = [f"| strategy | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for strategy in dict.fromkeys(frame["strategy"]):
        cells = []
        for epsilon in epsilons:
            part = frame[(frame["strategy"] == strategy) & (frame["epsilon"] == epsilon)]
            means = [part[f"{name}_last_mean"].mean() for name in KEPT]
            cells.append(" / ".join(f"{value:.2f}".removeprefix("0") for value in means))
        lines.append(f"| {_code(strategy)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_dataset() -> str:
    """What epsilon 3 changes on each dataset and split, mean over the strategies."""
    frame = read()
    lines = ["| data | split | accuracy | MCC | EQO |", "| --- | --- | ---: | ---: | ---: |"]
    for dataset, title in TITLES.items():
        for partition in dict.fromkeys(frame["partition"]):
            own = frame[(frame["dataset"] == dataset) & (frame["partition"] == partition)]
            plain, private = (own[own["epsilon"] == e].set_index("strategy") for e in (math.inf, 3.0))
            cells = [
                f"{plain[c].mean():.3f} → {private[c].mean():.3f}" for c in (f"{n}_last_mean" for n in KEPT)
            ]
            lines.append(f"| {title} | {partition} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def noise() -> str:
    """The noise of a step in the released mean gradient, by a client's rows."""
    lines = [
        f"| rows of a client | {' | '.join(f'ε = {e:g}' for e in EPSILONS)} |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for rows in ROWS:
        exposure, cells = Exposure(rows, 3, 128, 30), []
        for epsilon in EPSILONS:
            calibration = calibrate(Budget(epsilon), exposure, Releases())
            cells.append("–" if calibration is None else f"{calibration.update / min(rows, 128):.3f}")
        lines.append(f"| {rows:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _code(strategy: str) -> str:
    first, *steps = strategy.split("+")
    return " ".join([f"`{first}`", *(f"`+{step}`" for step in steps)])


def _speed(name: str) -> dict[str, Any]:
    part: dict[str, Any] = json.loads(SPEED.read_text())[name]
    return part


def row_speed() -> str:
    """Nanoseconds for each row, plain and with noise."""
    lines = ["| network | plain | with noise | ratio |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| {row['shape']} | {row['plain']:.0f} ns | {row['private']:.0f} ns | {row['ratio']:.2f} |"
        for row in _speed("rows")["rows"]
    ]
    return "\n".join(lines) + "\n"


def sum_speed() -> str:
    """CPU time of a round, plain and with secure sums."""
    lines = ["| strategy | plain | with secure sums | ratio |", "| --- | ---: | ---: | ---: |"]
    lines += [
        f"| `{row['strategy']}` | {1e3 * row['plain']:.0f} ms | {1e3 * row['sums']:.0f} ms |"
        f" {row['ratio']:.2f} |"
        for row in _speed("sums")["rows"]
    ]
    return "\n".join(lines) + "\n"


ATTACK_TABLES = {"attacks": attacks}
COST_TABLES = {
    "alike": partial(cost, "random"),
    "skewed": partial(cost, "dirichlet:0.5"),
    "datasets": by_dataset,
    "noise": noise,
    "row-speed": row_speed,
    "sum-speed": sum_speed,
}


if __name__ == "__main__":
    swept = Path(sys.argv[1])
    collect(swept).to_csv(COSTS, index=False)
    picture = over_budgets(pd.read_csv(swept / "summary.csv"), style=Style(title=False))
    save(picture, DOCS / "images" / "privacy-cost.png")
