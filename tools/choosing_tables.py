"""The tables of docs/choosing.md, from docs/measurements/choosing.csv.

After the commands of that page, ``python tools/choosing_tables.py runs/choosing runs/adult-without-gender
runs/compas-without-race`` writes the file.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pandas as pd

from fairfate.fairness.selection import KEEP, TOLERANCE

FILE = Path(__file__).parent.parent / "docs" / "measurements" / "choosing.csv"
MEASURES = ("accuracy", "balanced_accuracy", "mcc", "selection_rate", "sp", "eo", "eqo")
TITLES = {"compas": "COMPAS", "adult": "Adult", "law": "Law School", "dutch": "Dutch"}
SPLITS = {"skewed": "dirichlet:0.5", "alike": "random"}
GROUP = {"adult": "gender", "compas": "race"}


def collect(folders: list[Path]) -> pd.DataFrame:
    """One row for each folder, dataset, split and strategy; means and standard deviations over the seeds."""
    from fairfate.report.data import ReportData

    results = []
    for folder in folders:
        for item in ReportData.read([folder]):
            means = {
                f"{name}_{kind}": item.summary[f"{name}_last_{kind}"]
                for name in MEASURES
                for kind in ("mean", "std")
            }
            about = {name: item.summary[name] for name in ("dataset", "partition", "seeds")}
            frame = pd.DataFrame(
                {"folder": folder.name, **about, "strategy": item.names, "collapsed": item.collapsed, **means}
            )
            results.append(frame.assign(majority=item.majority))
    return pd.concat(results, ignore_index=True).round(4)


def read() -> pd.DataFrame:
    """The measurements."""
    return pd.read_csv(FILE)


def by_dataset(split: str) -> str:
    """EQO / accuracy / MCC of every strategy on every dataset."""
    frame = read().query(f"folder == 'choosing' and partition == '{SPLITS[split]}'")
    return _cells(frame, "dataset", TITLES)


def without_group() -> str:
    """The same where the group is no input of the model."""
    frame = read().query("folder != 'choosing'")
    titles = {name: f"{TITLES[name]} without {GROUP[name]}" for name in GROUP}
    return _cells(frame, "dataset", titles)


def _cells(frame: pd.DataFrame, key: str, titles: dict[str, str]) -> str:
    parts = {name: frame[frame[key] == name].set_index("strategy") for name in titles}
    best = {name: _to_take(part) for name, part in parts.items()}
    text = f"| strategy | {' | '.join(titles.values())} |\n| --- | {' | '.join(['---'] * len(titles))} |\n"
    for strategy in dict.fromkeys(frame["strategy"]):
        shown = [_cell(part.loc[strategy], strategy == best[name]) for name, part in parts.items()]
        text += f"| {_name(strategy)} | {' | '.join(shown)} |\n"
    same = [_short(part["majority"].iloc[0]) for part in parts.values()]
    return text + f"| majority baseline | {' | '.join(f'/{value}/' for value in same)} |\n"


def _name(strategy: str) -> str:
    """A strategy and its steps, so that a line can be broken between them."""
    first, *steps = strategy.split("+")
    return " ".join([f"`{first}`", *(f"`+{step}`" for step in steps)])


def _to_take(part: pd.DataFrame) -> str:
    """The strategy that the rule of `fairfate.results.recommendation` would take, by these means."""
    whole = part[part["collapsed"] == 0]
    top = whole.loc[whole["accuracy_mean"].idxmax()]
    skill = whole["balanced_accuracy_mean"] - 0.5
    skilled = whole[
        (whole["accuracy_mean"] >= top["accuracy_mean"] - TOLERANCE)
        & (skill >= KEEP * (top["balanced_accuracy_mean"] - 0.5))
    ]
    return str(skilled["eqo_mean"].idxmax())


def _cell(row: pd.Series[float], taken: bool) -> str:
    fair = f"**{_short(row['eqo_mean'])}**" if taken else _short(row["eqo_mean"])
    mark = f" †{row['collapsed']:.0f}" if row["collapsed"] else ""
    return f"{fair}/{_short(row['accuracy_mean'])}/{_short(row['mcc_mean'])}{mark}".replace(
        " ", "\N{NO-BREAK SPACE}"
    )


def _short(value: float) -> str:
    """As in the tables of the terminal."""
    return f"{value:.2f}".removeprefix("0")


def _change(value: float) -> str:
    """A difference with its sign."""
    shown = f"{value:+.2f}".replace("-", "−")
    return "0" if shown in ("+0.00", "−0.00") else shown


def against_fedavg() -> str:
    """What every strategy gains and gives up against FedAvg, in the mean over datasets, by split."""
    frame = read().query("folder == 'choosing'").set_index(["dataset", "partition", "strategy"])
    text = (
        "| | clients differ: EQO | accuracy | MCC | clients alike: EQO | accuracy | MCC | collapsed of 80 |\n"
    )
    text += f"| --- {'| ---: ' * 7}|\n"
    for strategy in dict.fromkeys(frame.index.get_level_values("strategy")):
        shown = []
        for split in SPLITS.values():
            rows = frame.xs((split, strategy), level=("partition", "strategy"))
            base = frame.xs((split, "fedavg"), level=("partition", "strategy"))
            for name in ("eqo_mean", "accuracy_mean", "mcc_mean"):
                shown.append(
                    _change((rows[name] - base[name]).mean())
                    if strategy != "fedavg"
                    else f"{base[name].mean():.2f}"
                )
        collapsed = int(frame.xs(strategy, level="strategy")["collapsed"].sum())
        text += f"| {_name(strategy)} | {' | '.join(shown)} | {collapsed} |\n"
    return text


TABLES = {
    "against-fedavg": against_fedavg,
    "skewed": partial(by_dataset, "skewed"),
    "alike": partial(by_dataset, "alike"),
    "without-group": without_group,
}

if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    collect([Path(folder) for folder in sys.argv[1:]]).to_csv(FILE, index=False)
