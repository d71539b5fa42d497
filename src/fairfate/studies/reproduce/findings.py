"""From runs to the small files that are kept: every number of the page comes from them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from fairfate.storage import write_bytes
from fairfate.studies.reproduce import honest, printed
from fairfate.studies.reproduce.grid import METRICS, SPLITS
from fairfate.studies.reproduce.runs import by_setting

EXACT = {metric: metric for metric in METRICS}
PUBLISHED = {metric: printed.COLUMN[metric] for metric in METRICS}


def findings(
    runs: pd.DataFrame, about: dict[str, object], tolerance: float, reference: str
) -> dict[str, pd.DataFrame]:
    """All files by name, without their ending."""
    found = {"about": pd.DataFrame([about]), "settings": by_setting(runs)}
    won = [printed.printed_beats().assign(basis="printed")]
    if "published" in set(runs["protocol"]):
        behind, best = printed.behind_printed(runs), printed.best_by_test(runs)
        found["comparison"] = printed.compare(runs)
        found["best_by_test"] = _means(best)
        found["faults"] = faults(behind)
        won.append(printed.beats(behind, PUBLISHED).assign(basis="published, settings behind the print"))
        won.append(printed.beats(best, PUBLISHED).assign(basis="published, best by test"))
        won.append(printed.beats(behind, EXACT).assign(basis="published runs, exact metrics"))
    if "paper" in set(runs["protocol"]):
        tuned = honest.tune(runs, tolerance, reference)
        found["honest"] = honest.table(tuned)
        keep = ["dataset", "partition", "goal", "method", "seed", "settings", "accuracy", "mcc", *METRICS]
        found["tuned_runs"] = tuned[keep].round(4)
        wins = honest.wins(tuned)
        names = {ours: theirs for theirs, ours in SPLITS.items()}
        wins["split"] = wins["partition"].map(names)
        columns = ["dataset", "split", "metric", "fair_fate", "rival", "rival_mean", "wins"]
        won.append(wins[columns].assign(basis="paper, tuned on validation"))
        step = wins.assign(
            rival="fedavg+thresholds", rival_mean=wins["thresholds"], wins=wins["beats_thresholds"]
        )
        won.append(step[columns].assign(basis="paper, against FedAvg with thresholds"))
    found["wins"] = pd.concat(won, ignore_index=True).round(4)
    found["max"] = max_effect(runs)
    found["swings"] = swings(runs)
    found["collapsed"] = collapsed(runs)
    return found


def _means(best: pd.DataFrame) -> pd.DataFrame:
    columns = list(printed.COLUMN.values())
    keys = ["dataset", "split", "row", "settings"]
    return best.groupby(keys, sort=True)[columns].mean().round(4).reset_index()


def faults(behind: pd.DataFrame) -> pd.DataFrame:
    """What the published metrics make of the same models: their mean beside the exact one."""
    found = []
    for (dataset, split, row), mine in behind.groupby(["dataset", "split", "row"], sort=True):
        for metric in METRICS:
            exact, shown = mine[metric].mean(), mine[PUBLISHED[metric]].mean()
            found.append((dataset, split, row, metric, shown, exact, shown - exact))
    columns = ["dataset", "split", "row", "metric", "published", "exact", "difference"]
    return pd.DataFrame(found, columns=columns).round(4)


def _main_fair_fate(runs: pd.DataFrame) -> pd.DataFrame:
    """FAIR-FATE proper, with its settings as columns."""
    mine = runs[runs["strategy"] == "fair_fate"]
    settings = pd.DataFrame(mine["settings"].map(json.loads).tolist(), index=mine.index)
    mine = mine.join(settings)
    return mine[(mine["momentum"] == "decaying") & (mine["growth"] == "exponential")]


def max_effect(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean fairness, accuracy and MCC of FAIR-FATE's settings for each MAX."""
    mine = _main_fair_fate(runs)
    mine = mine.assign(fairness=0.0)
    for metric in METRICS:
        mine.loc[mine["metric"] == metric, "fairness"] = mine[metric]
    keys = ["protocol", "dataset", "partition", "metric", "max"]
    return mine.groupby(keys)[["fairness", "accuracy", "mcc"]].mean().round(4).reset_index()


def swings(runs: pd.DataFrame) -> pd.DataFrame:
    """How much a run moves over its last 20 rounds: mean standard deviation, by strategy."""
    plain = runs[~runs["strategy"].str.contains("+", regex=False)]
    usual = pd.concat([plain[plain["strategy"] != "fair_fate"], _main_fair_fate(plain)[plain.columns]])
    columns = [f"{name}_swing" for name in ("accuracy", *METRICS)]
    keys = ["protocol", "partition", "strategy"]
    return usual.groupby(keys)[columns].mean().round(4).reset_index()


def collapsed(runs: pd.DataFrame) -> pd.DataFrame:
    """How many runs of each strategy ended as models that give nearly everybody one answer."""
    keys = ["protocol", "dataset", "partition", "strategy", "metric"]
    counts = runs.groupby(keys).agg(runs=("collapsed", "size"), collapsed=("collapsed", "sum"))
    return counts[counts["collapsed"] > 0].reset_index()


NAMES = (
    "about",
    "best_by_test",
    "collapsed",
    "comparison",
    "faults",
    "honest",
    "max",
    "settings",
    "swings",
    "tuned_runs",
    "wins",
)
"""All files that there may be."""


def write(found: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write the files as CSV, in the place of an earlier call's."""
    for name in NAMES:
        (folder / f"{name}.csv").unlink(missing_ok=True)
    for name, frame in found.items():
        write_bytes(folder / f"{name}.csv", frame.to_csv(index=False).encode())


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Read them again."""
    text = {"split": str, "row": str, "metric": str, "note": str}
    files = {name: folder / f"{name}.csv" for name in NAMES}
    found = {name: pd.read_csv(file, dtype=text) for name, file in files.items() if file.exists()}
    return {
        name: frame.fillna({key: "" for key in ("metric", "note") if key in frame})
        for name, frame in found.items()
    }
