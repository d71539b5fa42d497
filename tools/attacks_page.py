"""The tables of docs/attacks.md, from docs/measurements/attacks.csv.

After ``fairfate sweep examples/attacks.toml --out runs/attacks``, ``python tools/attacks_page.py runs/attacks``
writes the file.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pandas as pd

FILE = Path(__file__).parent.parent / "docs" / "measurements" / "attacks.csv"
TITLES = {"compas": "COMPAS", "adult": "Adult"}
NONE = "none"
STEPS = ("", "clip", "trimmed", "median", "krum", "clip+trimmed")
STRATEGIES = ("fedavg", "fair_fate", "fair_fate, guard", "fedval", "fedval, guard", "thresholds")
"""The last one is fedavg+average+thresholds:from=clients."""
NEAR = 0.05
"""How far MCC and EQO may be from those of the honest run."""


def collect(folders: list[Path]) -> pd.DataFrame:
    """One row for each dataset, attack, strategy and step: means over the seeds after the last round."""
    results = []
    for file in sorted(path for folder in folders for path in (folder / "cells").glob("*.parquet")):
        rounds = pd.read_parquet(file).query("split == 'test'")
        key = ["dataset", "partition", "strategy", "settings", "seed"]
        for (dataset, partition, label, settings, seed), rows in rounds.groupby(key, sort=False):
            last = rows.iloc[-1]
            noted = [json.loads(text) for text in rows["notes"].dropna()]
            fair = rows["fair_clients"].sum()
            base, step = _name(str(label), str(settings))
            results.append(
                {
                    "dataset": dataset,
                    "attack": str(partition).partition(" ")[2] or NONE,
                    "strategy": base,
                    "step": step,
                    "seed": seed,
                    **{name: last[name] for name in ("accuracy", "mcc", "eqo")},
                    "fair_attackers": sum(n.get("fair_attackers", 0) for n in noted) / fair if fair else None,
                }
            )
    frame = pd.DataFrame(results)
    key = ["dataset", "attack", "strategy", "step"]
    means = frame.groupby(key, sort=False).agg(
        seeds=("seed", "nunique"),
        **{name: (name, "mean") for name in ("accuracy", "mcc", "eqo", "fair_attackers")},
        **{f"{name}_std": (name, "std") for name in ("mcc", "eqo")},
    )
    means = means.reset_index().sort_values("attack", key=lambda value: value != NONE, kind="stable")
    return means[means["seeds"] == means["seeds"].max()].round(4)


def _name(label: str, settings: str) -> tuple[str, str]:
    """The strategy's name in the tables, and the steps against attackers."""
    own, *steps = label.split("+")
    base = "thresholds" if "thresholds" in steps else own
    guarded = "min_mcc" in json.loads(settings)
    step = "+".join(item for item in steps if item in ("clip", "trimmed", "median", "krum"))
    return f"{base}, guard" if guarded else base, step


def read() -> pd.DataFrame:
    """The measurements."""
    return pd.read_csv(FILE, keep_default_na=False, na_values=["", "nan"]).fillna({"step": ""})


def attacked(dataset: str) -> str:
    """MCC / EQO of every strategy without a step, under every attack; bold where both are near the honest."""
    frame = read().query(f"dataset == '{dataset}' and step == ''")
    return _table(frame, "strategy", [name for name in STRATEGIES if name in set(frame["strategy"])])


def near() -> str:
    """How many attacks leave a strategy with a step near its honest run, and how near the worst one."""
    frame = read()
    text = "| | " + " | ".join(f"{_title(s)}" for s in STRATEGIES) + " |\n"
    text += "| --- | " + " | ".join(["---"] * len(STRATEGIES)) + " |\n"
    for dataset, title in TITLES.items():
        for step in STEPS:
            cells = []
            for strategy in STRATEGIES:
                indexed = frame.query(
                    f"dataset == '{dataset}' and strategy == '{strategy}' and step == '{step}'"
                ).set_index("attack")
                if NONE not in indexed.index:
                    cells.append("")
                    continue
                loss = (indexed.loc[NONE, "mcc"] - indexed["mcc"]).drop(NONE)
                unfair = (indexed.loc[NONE, "eqo"] - indexed["eqo"]).drop(NONE)
                good = int(((loss <= NEAR) & (unfair <= NEAR)).sum())
                cells.append(f"{good}, {-loss.max():+.2f}")
            text += f"| {title} {_step(step)} | {' | '.join(cells)} |\n"
    return text


def _table(frame: pd.DataFrame, column: str, names: list[str]) -> str:
    shown = [_title(name) if column == "strategy" else _column(name) for name in names]
    text = f"| attack | {' | '.join(shown)} |\n| --- | {' | '.join(['---'] * len(names))} |\n"
    honest = frame[frame["attack"] == NONE].set_index(column)
    for attack in dict.fromkeys(frame["attack"]):
        indexed = frame[frame["attack"] == attack].set_index(column)
        cells = [_cell(indexed.loc[name], honest.loc[name], attack == NONE) for name in names]
        text += f"| {_attack(attack)} | {' | '.join(cells)} |\n"
    return text


def _cell(found: pd.Series, honest: pd.Series, is_honest: bool) -> str:
    shown = f"{_short(found['accuracy'])}/{_short(found['mcc'])}/{_short(found['eqo'])}"
    close = all(honest[name] - found[name] <= NEAR for name in ("mcc", "eqo"))
    return f"**{shown}**" if close and not is_honest else shown


def _short(value: float) -> str:
    return f"{value:.2f}".replace("0.", ".", 1)


def _title(strategy: str) -> str:
    own, _, guard = strategy.partition(", ")
    return f"`{own}`, {guard}" if guard else f"`{own}`"


def _step(step: str) -> str:
    return f"`+{step}`" if step else "no step"


def _column(name: str) -> str:
    dataset, _, step = name.partition(" ")
    return f"{dataset} {_step(step)}"


def _attack(attack: str) -> str:
    """Without the settings that are as usual."""
    name, _, settings = attack.partition(":")
    messages = {"clients=2", "clients=3", "targeted=yes"}
    shown = [pair for pair in settings.split(",") if pair in messages]
    return "nobody" if attack == NONE else f"`{name}{':' if shown else ''}{','.join(shown)}`"


TABLES = {
    **{f"attacked {name}": partial(attacked, name) for name in TITLES},
    "near": near,
}

if __name__ == "__main__":
    collect([Path(folder) for folder in sys.argv[1:]]).to_csv(FILE, index=False)
