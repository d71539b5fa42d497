"""One row for each run: its last round, the mean and the swing of its last rounds, its validation scores."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fairfate.experiments.results import CELLS, KEYS, LAST
from fairfate.experiments.store import Store
from fairfate.experiments.sweep import Sweep
from fairfate.fairness.metrics import COLLAPSED

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
    last = grouped[[*REPORTED, "acceptance"]].last()
    mean = grouped[REPORTED].mean().add_suffix("_late")
    swing = grouped[SWINGS].std().add_suffix("_swing")
    validation = rounds[(rounds["split"] == "validation") & (rounds["round"] == rounds["round"].max())]
    scores = validation.groupby(keys, sort=True)[VALIDATED].last().add_prefix("validation_")
    found: pd.DataFrame = pd.concat([last, mean, swing, scores], axis=1)
    one_answer = (found["acceptance"] > ONE_ANSWER) | (found["acceptance"] < 1 - ONE_ANSWER)
    found["collapsed"] = (found["mcc"] < COLLAPSED) | one_answer
    return found.reset_index()


def runs_of_sweep(done: Sweep) -> pd.DataFrame:
    """The runs of all jobs, read one after another."""
    store = Store(done.out / CELLS)
    store.index()
    return pd.concat([runs_of(store.read(job)) for job in done.jobs], ignore_index=True)


def by_setting(runs: pd.DataFrame) -> pd.DataFrame:
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
    of = runs["settings"].str.extract(r'"of": "(\w+)"', expand=False)
    named = runs["strategy"].str.startswith(("fedavg+", "fair_fate+"))
    foreign: pd.Series[bool] = post & (~named | (of.notna() & (of != runs["metric"])))
    return foreign


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """A 95 % interval for the mean: percentiles of means of seeds drawn with replacement."""
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (draws, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
