"""The honest protocol: exact metrics, settings tuned on the validation rows by one rule, intervals."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from fairfate.fairness.selection import TOLERANCE, keeps, select
from fairfate.studies.reproduce.grid import METRICS
from fairfate.studies.reproduce.runs import interval

REFERENCES = ("fedavg", "fedavg_lr", "fedavg_gr")
"""Strategies without settings, whose accuracy may be what the others are held to."""
METHODS = ["fedavg", "fedmom", "feddemon", "fedavg_lr", "fedavg_gr", "fedval", "fair_fate"]
AFTER = ["fedavg+thresholds", "fair_fate+thresholds"]
_CELL = ["dataset", "partition", "seed"]


def tune(runs: pd.DataFrame, tolerance: float = TOLERANCE, reference: str = "fedavg") -> pd.DataFrame:
    """The run that each method would deploy, for each cell, seed and metric.

    In each seed, among a method's settings whose validation accuracy is within ``tolerance`` of that of the
    ``reference`` (a strategy without settings), the one with the highest validation fairness; without any,
    the one with the highest validation accuracy. The test rows are not looked at. ``grid`` is the
    number of settings chosen from.
    """
    mine = runs[runs["protocol"] == "paper"]
    plain = mine[~mine["strategy"].str.contains("+", regex=False)]
    settings = plain["settings"].map(json.loads)
    ablation = settings.map(
        lambda s: s.get("momentum", "decaying") != "decaying" or s.get("growth") != "exponential"
    )
    plain = plain[~(ablation & (plain["strategy"] == "fair_fate"))]
    base = plain[plain["strategy"] == reference].set_index(_CELL)["validation_accuracy"].rename("base")
    plain = plain.join(base, on=_CELL)
    near = keeps(plain["validation_accuracy"], 0.0, (plain["base"], 0.0), tolerance, keep=0.0)
    chosen = []
    for metric in METRICS:
        own = plain["metric"].isin(["", metric])
        columns = f"validation_{metric}", "validation_accuracy"
        best = select(plain[own], near[own], *columns, by=[*_CELL, "strategy"]).assign(goal=metric)
        chosen += [best, *_after(mine, best, metric)]
    return pd.concat(chosen, ignore_index=True).rename(columns={"strategy": "method"})


def _after(runs: pd.DataFrame, best: pd.DataFrame, metric: str) -> list[pd.DataFrame]:
    """The thresholds on the final models of the chosen FedAvg and FAIR-FATE runs."""
    parts = []
    for method in AFTER:
        name = method.partition("+")[0]
        steps = runs[(runs["strategy"] == method) & (runs["metric"] == metric)]
        settings = steps["settings"].map(json.loads)
        of = settings.map(lambda s: s.get("of", ""))
        plain = settings.map(
            lambda s: json.dumps({k: v for k, v in s.items() if k not in ("of", "tolerance")})
        )
        steps = steps.assign(plain=plain)[of.isin(["", metric])]
        wanted = best[best["strategy"] == name][[*_CELL, "settings", "grid"]].rename(
            columns={"settings": "plain"}
        )
        parts.append(steps.merge(wanted, on=[*_CELL, "plain"]).assign(goal=metric))
    return parts


def table(tuned: pd.DataFrame) -> pd.DataFrame:
    """For each cell, metric and method: accuracy, fairness and MCC with intervals, and paired differences.

    ``late`` columns are means of the last 20 rounds, which do not exist for steps after training.
    ``vs`` columns are FAIR-FATE minus the method on the same seeds: positive means that FAIR-FATE is higher.
    """
    found = []
    for (dataset, partition, goal), cell in tuned.groupby(["dataset", "partition", "goal"], sort=False):
        own = cell[cell["method"] == "fair_fate"].set_index("seed")
        for method in [*METHODS, *AFTER]:
            mine = cell[cell["method"] == method].set_index("seed").sort_index()
            if mine.empty:
                continue
            row = {"dataset": dataset, "partition": partition, "metric": goal, "method": method}
            row |= {"grid": int(mine["grid"].iloc[0]), "collapsed": int(mine["collapsed"].sum())}
            row |= _numbers(mine, own, str(goal), late=method not in AFTER)
            found.append(row)
    return pd.DataFrame(found).round(4)


def _numbers(mine: pd.DataFrame, own: pd.DataFrame, goal: str, *, late: bool) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, column in (("accuracy", "accuracy"), ("fairness", goal), ("mcc", "mcc")):
        values = mine[column].to_numpy(dtype=float)
        numbers[name] = values.mean()
        numbers[f"{name}_low"], numbers[f"{name}_high"] = interval(values)
        difference = (own[column].reindex(mine.index) - mine[column]).to_numpy(dtype=float)
        numbers[f"{name}_vs"] = difference.mean()
        numbers[f"{name}_vs_low"], numbers[f"{name}_vs_high"] = interval(difference)
        numbers[f"{name}_late"] = mine[f"{column}_late"].mean() if late else np.nan
    return numbers


def wins(tuned: pd.DataFrame) -> pd.DataFrame:
    """Whether FAIR-FATE is the fairest of the paper's methods, and with the thresholds among them."""
    found = []
    for (dataset, partition, goal), cell in tuned.groupby(["dataset", "partition", "goal"], sort=False):
        means = cell.groupby("method")[str(goal)].mean()
        ours = means["fair_fate"]
        rivals = means[[m for m in METHODS if m != "fair_fate" and m in means]]
        step = means.get("fedavg+thresholds", np.nan)
        found.append(
            {
                "dataset": dataset,
                "partition": partition,
                "metric": goal,
                "fair_fate": ours,
                "rival": rivals.idxmax(),
                "rival_mean": rivals.max(),
                "wins": bool(ours > rivals.max()),
                "thresholds": step,
                "beats_thresholds": bool(ours > step),
            }
        )
    return pd.DataFrame(found)
