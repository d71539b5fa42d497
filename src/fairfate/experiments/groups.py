"""Who is at a disadvantage: what each strategy's model does to each group of people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.experiments.results import KEYS, counts_of
from fairfate.experiments.sheet import Sheet, join
from fairfate.fairness.intervals import wilson
from fairfate.fairness.metrics import Counts, Values
from fairfate.storage import csv_text, write_bytes

GROUPS = "groups.csv"
RATES = ("acceptance", "tpr", "fpr", "accuracy")


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
    return rates_by_group(Sheet.of_frame(rounds), groups).frame


def rates_by_group(rounds: Sheet, groups: Groups) -> Sheet:
    """The same without pandas."""
    test = rounds.where((rounds["split"] == "test") & (rounds["round"] == rounds["round"].max()))
    line, first = test.numbered(*KEYS)
    found = []
    for number, row in enumerate(first):
        counts = counts_of(test.where(line == number))
        for attributes in _crossings(groups):
            names = _names(groups, attributes)
            about = {key: test[key][row] for key in KEYS} | {"attribute": " x ".join(attributes)}
            same = {key: np.full(len(names), value, dtype=object) for key, value in about.items()}
            named = {"group": np.array(names, dtype=object), "seeds": np.full(len(names), len(counts))}
            found.append(Sheet({**same, **named, **_rates(groups.merge(counts, attributes))}))
    return join(found)


def _crossings(groups: Groups) -> list[tuple[str, ...]]:
    """Each attribute alone and, where there are several, all of them together."""
    alone: list[tuple[str, ...]] = [(name,) for name in groups.attributes]
    return alone if len(alone) == 1 else [*alone, groups.attributes]


def _names(groups: Groups, attributes: tuple[str, ...]) -> list[str]:
    if attributes == groups.attributes:
        return list(groups.names)
    return list(groups.values[groups.attributes.index(attributes[0])])


def _rates(counts: Counts) -> dict[str, Values]:
    """Rates by group from (seeds, groups, 2, 2) counts."""
    tn, fp, fn, tp = (counts[..., y, p].astype(np.float64) for y in (0, 1) for p in (0, 1))
    rows = tn + fp + fn + tp
    parts = {
        "acceptance": (fp + tp, rows),
        "tpr": (tp, tp + fn),
        "fpr": (fp, fp + tn),
        "accuracy": (tp + tn, rows),
    }
    found = {"rows": rows.mean(axis=0), "positives": (tp + fn).mean(axis=0)}
    for name, (part, whole) in parts.items():
        mean_part, mean_whole = part.mean(axis=0), whole.mean(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = mean_part / np.where(mean_whole > 0, mean_whole, np.nan)
        found[f"{name}_low"], found[f"{name}_high"] = wilson(mean_part, mean_whole)
    return found


def rates_of(counts: Counts, groups: Groups) -> Sheet:
    """The same for one set of rows, from (groups, 2, 2) counts."""
    found = []
    for attributes in _crossings(groups):
        names = _names(groups, attributes)
        attribute = np.full(len(names), " x ".join(attributes), dtype=object)
        named = {"attribute": attribute, "group": np.array(names, dtype=object)}
        found.append(Sheet({**named, **_rates(groups.merge(counts[None], attributes))}))
    return join(found)


def write_groups(path: Path, frame: pd.DataFrame) -> None:
    """Write the rates as CSV."""
    write_bytes(path, csv_text(frame).encode())
