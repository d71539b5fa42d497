"""What follows from the rounds: means over seeds for each strategy, and what its model does to each group."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.fairness.intervals import wilson
from fairfate.fairness.metrics import METRICS, Counts, Values
from fairfate.results.tables import KEYS, counts_of
from fairfate.storage import csv_text, write_bytes
from fairfate.strategies.registry import short_names

LAST = 20
"""How many rounds the summary averages beside the last one."""
RATES = ("selection_rate", "tpr", "fpr", "accuracy")


def summarise(rounds: pd.DataFrame, metrics: Sequence[str] = tuple(METRICS)) -> pd.DataFrame:
    """Mean and standard deviation over seeds on the test rows: last round, and mean of the last rounds.

    The standard deviation has n - 1 in its denominator and is NaN for one seed. An undefined metric makes its
    mean undefined; nothing is left out.
    """
    test = rounds[rounds["split"] == "test"]
    test = test.assign(line=line_numbers(test))
    lines, last = test.groupby("line"), test["round"].max()
    parts = [lines[KEYS].first(skipna=False), lines["seed"].nunique().rename("seeds")]
    for kind, start in (("last", last), ("last20", last - LAST + 1)):
        late = test[test["round"] >= start]
        by_line = late.groupby(["line", "seed"])[list(metrics)].mean(skipna=False).groupby("line")
        parts.append(by_line.mean(skipna=False).add_suffix(f"_{kind}_mean"))
        parts.append(by_line.std(skipna=False).add_suffix(f"_{kind}_std"))
    return pd.concat(parts, axis=1).reset_index(drop=True)


def line_numbers(rows: pd.DataFrame, keys: Sequence[str] = KEYS) -> pd.Series[int]:
    """Which strategy each row is about: they are numbered as they come."""
    return rows.groupby(list(keys), dropna=False, sort=False).ngroup()


def row_names(rows: pd.DataFrame) -> list[str]:
    """Short names for rows with a strategy, a metric and settings: only what tells them apart."""
    named = []
    for strategy, metric, settings in zip(rows["strategy"], rows["metric"], rows["settings"], strict=True):
        own = {"metric": metric} if isinstance(metric, str) else {}
        named.append((str(strategy), {**own, **json.loads(str(settings))}))
    return short_names(named)


def split_strategies(rows: pd.DataFrame, keys: Sequence[str] = KEYS) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each strategy, in the order in which they come, behind its short name."""
    frames = [frame for _, frame in rows.groupby(list(keys), dropna=False, sort=False)]
    names = row_names(pd.DataFrame([frame.iloc[0] for frame in frames])) if frames else []
    return list(zip(names, frames, strict=True))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    """Write a summary, or rates by group, as CSV."""
    write_bytes(path, csv_text(frame).encode())


def group_rates(rounds: pd.DataFrame, groups: Groups) -> pd.DataFrame:
    """One row for each strategy and group: rows, and rates on the test rows with 95 % intervals.

    Rates and rows are means over the seeds' test rows, in the last round. The intervals are Wilson's for so
    many people as one seed has test rows; they say nothing of the differences between seeds. With several
    attributes there are rows for each attribute alone and for their combinations.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    groups : what its counts are counted by
    """
    last = rounds[(rounds["split"] == "test") & (rounds["round"] == rounds["round"].max())]
    frames = []
    for _, rows in last.groupby(KEYS, dropna=False, sort=False):
        rates = rates_of(counts_of(rows), groups)
        rates.insert(2, "seeds", len(rows))
        for index, key in enumerate(KEYS):
            rates.insert(index, key, rows[key].iloc[0])
        frames.append(rates)
    return pd.concat(frames, ignore_index=True)


def rates_of(counts: Counts, groups: Groups) -> pd.DataFrame:
    """The same for (seeds, groups, 2, 2) counts of one model."""
    frames = []
    for attributes in crossings(groups):
        index = groups.attributes.index(attributes[0])
        names = groups.names if attributes == groups.attributes else groups.values[index]
        named = {"attribute": " x ".join(attributes), "group": list(names)}
        frames.append(pd.DataFrame({**named, **_rates(groups.merge(counts, attributes))}))
    return pd.concat(frames, ignore_index=True)


def crossings(groups: Groups) -> list[tuple[str, ...]]:
    """Each attribute alone and, where there are several, all of them together."""
    alone: list[tuple[str, ...]] = [(name,) for name in groups.attributes]
    return alone if len(alone) < 2 else [*alone, groups.attributes]


def _rates(counts: Counts) -> dict[str, Values]:
    """Rates by group from (seeds, groups, 2, 2) counts."""
    tn, fp, fn, tp = (counts[..., y, p].astype(np.float64) for y in (0, 1) for p in (0, 1))
    rows = tn + fp + fn + tp
    parts = {
        "selection_rate": (fp + tp, rows),
        "tpr": (tp, tp + fn),
        "fpr": (fp, fp + tn),
        "accuracy": (tp + tn, rows),
    }
    rates = {"rows": rows.mean(axis=0), "positives": (tp + fn).mean(axis=0)}
    for name, (part, whole) in parts.items():
        mean_part, mean_whole = part.mean(axis=0), whole.mean(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            rates[name] = mean_part / np.where(mean_whole > 0, mean_whole, np.nan)
        rates[f"{name}_low"], rates[f"{name}_high"] = wilson(mean_part, mean_whole)
    return rates
