"""From runs to the small files that are kept: every number of the page comes from them.

One row for each run; the honest protocol, in which settings are tuned on the validation rows by one rule; and
the results of both protocols for the paper's claims.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from fairfate.experiments.store import Store
from fairfate.experiments.sweep import Sweep
from fairfate.fairness.metrics import COLLAPSED
from fairfate.fairness.selection import TOLERANCE, keeps, select
from fairfate.results.folder import CELLS
from fairfate.results.summary import LAST
from fairfate.results.tables import KEYS
from fairfate.storage import write_bytes
from fairfate.studies.reproduce import printed
from fairfate.studies.reproduce.printed import METRICS, SPLITS

REPORTED = [
    "accuracy",
    "balanced_accuracy",
    "mcc",
    "sp",
    "eo",
    "eqo",
    "sp_published",
    "eo_published",
    "eqo_published",
]
SWINGS = ["accuracy", "sp", "eo", "eqo"]
VALIDATED = ["accuracy", "sp", "eo", "eqo"]
ONE_ANSWER = 0.99


def runs_of(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row for each (strategy, setting, seed) of some rounds.

    Columns: ``accuracy`` ... in the last round on the test rows, ``accuracy_late`` ... their mean over the
    last 20 rounds, ``accuracy_swing`` ... their standard deviation over these rounds, ``validation_accuracy``
    ... in the last round on the validation rows, and ``collapsed``.
    """
    keys = [*KEYS, "seed"]
    rounds = rounds.assign(metric=rounds["metric"].fillna("").astype(str))
    test = rounds[rounds["split"] == "test"].sort_values([*keys, "round"], kind="stable")
    late = test[test["round"] > test["round"].max() - LAST]
    grouped = late.groupby(keys, sort=True)
    last = grouped[[*REPORTED, "selection_rate"]].last()
    mean = grouped[REPORTED].mean().add_suffix("_late")
    swing = grouped[SWINGS].std().add_suffix("_swing")
    validation = rounds[(rounds["split"] == "validation") & (rounds["round"] == rounds["round"].max())]
    scores = validation.groupby(keys, sort=True)[VALIDATED].last().add_prefix("validation_")
    last_runs: pd.DataFrame = pd.concat([last, mean, swing, scores], axis=1)
    one_answer = (last_runs["selection_rate"] > ONE_ANSWER) | (last_runs["selection_rate"] < 1 - ONE_ANSWER)
    last_runs["collapsed"] = (last_runs["mcc"] < COLLAPSED) | one_answer
    return last_runs.reset_index()


def runs_of_sweep(sweep: Sweep) -> pd.DataFrame:
    """The runs of all jobs, read one after another."""
    store = Store(sweep.out / CELLS)
    store.index()
    return pd.concat([runs_of(store.read(job)) for job in sweep.jobs], ignore_index=True)


def summarize_settings(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean and standard deviation over seeds of each setting, rounded to four decimals, for the record."""
    kept = runs[~_foreign_post(runs)]
    columns = [*REPORTED[:6], *(f"{name}_late" for name in REPORTED[:6])]
    grouped = kept.groupby(KEYS, sort=True)
    means = grouped[columns].mean().add_suffix("_mean")
    stds = grouped[columns[:6]].std().add_suffix("_std")
    extra = grouped.agg(seeds=("seed", "nunique"), collapsed=("collapsed", "sum"))
    return pd.concat([means, stds, extra], axis=1).round(4).reset_index()


def _foreign_post(runs: pd.DataFrame) -> pd.Series[bool]:
    """Thresholds for one metric on a model that was trained for another: run, but not of interest."""
    post = runs["strategy"].str.contains("+", regex=False)
    trained_for = runs["settings"].str.extract(r'"of": "(\w+)"', expand=False)
    named = runs["strategy"].str.startswith(("fedavg+", "fair_fate+"))
    foreign: pd.Series[bool] = post & (~named | (trained_for.notna() & (trained_for != runs["metric"])))
    return foreign


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """A 95 % interval for the mean: percentiles of means of seeds drawn with replacement."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


# --- the honest protocol

REFERENCES = ("fedavg", "fedavg_lr", "fedavg_gr")
"""Strategies without settings, whose accuracy may be the reference for the others."""
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
    paper_runs = runs[runs["protocol"] == "paper"]
    plain = paper_runs[~paper_runs["strategy"].str.contains("+", regex=False)]
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
        best = select(plain[own], near[own], *columns, keys=[*_CELL, "strategy"]).assign(goal=metric)
        chosen += [best, *_after(paper_runs, best, metric)]
    return pd.concat(chosen, ignore_index=True).rename(columns={"strategy": "method"})


def _after(runs: pd.DataFrame, best: pd.DataFrame, metric: str) -> list[pd.DataFrame]:
    """The thresholds on the final models of the chosen FedAvg and FAIR-FATE runs."""
    parts = []
    for method in AFTER:
        name = method.partition("+")[0]
        steps = runs[(runs["strategy"] == method) & (runs["metric"] == metric)]
        settings = steps["settings"].map(json.loads)
        trained_for = settings.map(lambda s: s.get("of", ""))
        plain = settings.map(
            lambda s: json.dumps({k: v for k, v in s.items() if k not in ("of", "tolerance")})
        )
        steps = steps.assign(plain=plain)[trained_for.isin(["", metric])]
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
    rows = []
    for (dataset, partition, goal), cell in tuned.groupby(["dataset", "partition", "goal"], sort=False):
        own = cell[cell["method"] == "fair_fate"].set_index("seed")
        for method in [*METHODS, *AFTER]:
            method_runs = cell[cell["method"] == method].set_index("seed").sort_index()
            if method_runs.empty:
                continue
            row = {"dataset": dataset, "partition": partition, "metric": goal, "method": method}
            row |= {
                "grid": int(method_runs["grid"].iloc[0]),
                "collapsed": int(method_runs["collapsed"].sum()),
            }
            row |= _numbers(method_runs, own, str(goal), late=method not in AFTER)
            rows.append(row)
    return pd.DataFrame(rows).round(4)


def _numbers(runs: pd.DataFrame, own: pd.DataFrame, goal: str, *, late: bool) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, column in (("accuracy", "accuracy"), ("fairness", goal), ("mcc", "mcc")):
        values = runs[column].to_numpy(dtype=float)
        numbers[name] = values.mean()
        numbers[f"{name}_low"], numbers[f"{name}_high"] = interval(values)
        difference = (own[column].reindex(runs.index) - runs[column]).to_numpy(dtype=float)
        numbers[f"{name}_vs"] = difference.mean()
        numbers[f"{name}_vs_low"], numbers[f"{name}_vs_high"] = interval(difference)
        numbers[f"{name}_late"] = runs[f"{column}_late"].mean() if late else np.nan
    return numbers


def won_cells(tuned: pd.DataFrame) -> pd.DataFrame:
    """Whether FAIR-FATE is the fairest of the paper's methods, and with the thresholds among them."""
    rows = []
    for (dataset, partition, goal), cell in tuned.groupby(["dataset", "partition", "goal"], sort=False):
        means = cell.groupby("method")[str(goal)].mean()
        ours = means["fair_fate"]
        rivals = means[[m for m in METHODS if m != "fair_fate" and m in means]]
        step = means.get("fedavg+thresholds", np.nan)
        rows.append(
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
    return pd.DataFrame(rows)


# --- the files that are kept

EXACT = {metric: metric for metric in METRICS}
PUBLISHED = {metric: printed.COLUMN[metric] for metric in METRICS}


def findings(
    runs: pd.DataFrame, about: dict[str, object], tolerance: float, reference: str
) -> dict[str, pd.DataFrame]:
    """All files by name, without their ending."""
    tables = {"about": pd.DataFrame([about]), "settings": summarize_settings(runs)}
    won = [printed.printed_beats().assign(basis="printed")]
    if "published" in set(runs["protocol"]):
        behind, best = printed.behind_printed(runs), printed.best_by_test(runs)
        tables["comparison"] = printed.compare(runs)
        tables["best_by_test"] = _means(best)
        tables["faults"] = faults(behind)
        won.append(printed.beats(behind, PUBLISHED).assign(basis="published, settings behind the print"))
        won.append(printed.beats(best, PUBLISHED).assign(basis="published, best by test"))
        won.append(printed.beats(behind, EXACT).assign(basis="published runs, exact metrics"))
    if "paper" in set(runs["protocol"]):
        tuned = tune(runs, tolerance, reference)
        tables["honest"] = table(tuned)
        keep = ["dataset", "partition", "goal", "method", "seed", "settings", "accuracy", "mcc", *METRICS]
        tables["tuned_runs"] = tuned[keep].round(4)
        wins = won_cells(tuned)
        names = {partition: split for split, partition in SPLITS.items()}
        wins["split"] = wins["partition"].map(names)
        columns = ["dataset", "split", "metric", "fair_fate", "rival", "rival_mean", "wins"]
        won.append(wins[columns].assign(basis="paper, tuned on validation"))
        step = wins.assign(
            rival="fedavg+thresholds", rival_mean=wins["thresholds"], wins=wins["beats_thresholds"]
        )
        won.append(step[columns].assign(basis="paper, against FedAvg with thresholds"))
    tables["wins"] = pd.concat(won, ignore_index=True).round(4)
    tables["max"] = max_effect(runs)
    tables["swings"] = swings(runs)
    tables["collapsed"] = collapsed(runs)
    return tables


def _means(best: pd.DataFrame) -> pd.DataFrame:
    columns = list(printed.COLUMN.values())
    keys = ["dataset", "split", "row", "settings"]
    return best.groupby(keys, sort=True)[columns].mean().round(4).reset_index()


def faults(behind: pd.DataFrame) -> pd.DataFrame:
    """The mean of the published metrics beside the exact ones, of the same models."""
    rows = []
    for (dataset, split, row), group in behind.groupby(["dataset", "split", "row"], sort=True):
        for metric in METRICS:
            exact, shown = group[metric].mean(), group[PUBLISHED[metric]].mean()
            rows.append((dataset, split, row, metric, shown, exact, shown - exact))
    columns = ["dataset", "split", "row", "metric", "published", "exact", "difference"]
    return pd.DataFrame(rows, columns=columns).round(4)


def _main_fair_fate(runs: pd.DataFrame) -> pd.DataFrame:
    """FAIR-FATE proper, with its settings as columns."""
    main_runs = runs[runs["strategy"] == "fair_fate"]
    settings = pd.DataFrame(main_runs["settings"].map(json.loads).tolist(), index=main_runs.index)
    main_runs = main_runs.join(settings)
    return main_runs[(main_runs["momentum"] == "decaying") & (main_runs["growth"] == "exponential")]


def max_effect(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean fairness, accuracy and MCC of FAIR-FATE's settings for each MAX."""
    main_runs = _main_fair_fate(runs)
    main_runs = main_runs.assign(fairness=0.0)
    for metric in METRICS:
        main_runs.loc[main_runs["metric"] == metric, "fairness"] = main_runs[metric]
    keys = ["protocol", "dataset", "partition", "metric", "max"]
    return main_runs.groupby(keys)[["fairness", "accuracy", "mcc"]].mean().round(4).reset_index()


def swings(runs: pd.DataFrame) -> pd.DataFrame:
    """How much a run moves over its last 20 rounds: mean standard deviation, by strategy."""
    plain = runs[~runs["strategy"].str.contains("+", regex=False)]
    usual = pd.concat([plain[plain["strategy"] != "fair_fate"], _main_fair_fate(plain)[plain.columns]])
    columns = [f"{name}_swing" for name in ("accuracy", *METRICS)]
    keys = ["protocol", "partition", "strategy"]
    return usual.groupby(keys)[columns].mean().round(4).reset_index()


def collapsed(runs: pd.DataFrame) -> pd.DataFrame:
    """How many runs of each strategy ended in a collapsed model."""
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


def write(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write the files as CSV, in the place of an earlier call's."""
    for name in NAMES:
        (folder / f"{name}.csv").unlink(missing_ok=True)
    for name, frame in tables.items():
        write_bytes(folder / f"{name}.csv", frame.to_csv(index=False).encode())


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Read them again."""
    text = {"split": str, "row": str, "metric": str, "note": str}
    files = {name: folder / f"{name}.csv" for name in NAMES}
    tables = {name: pd.read_csv(file, dtype=text) for name, file in files.items() if file.exists()}
    return {
        name: frame.fillna({key: "" for key in ("metric", "note") if key in frame})
        for name, frame in tables.items()
    }
