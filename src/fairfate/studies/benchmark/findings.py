"""Everything that the page, the tables and the pictures are made from."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from fairfate.studies.benchmark.baselines import BASELINES
from fairfate.studies.benchmark.methods import LEAD, METRICS, REFERENCE, every
from fairfate.studies.benchmark.rule import (
    CELL,
    compare,
    critical_difference,
    hypervolumes,
    leaderboard,
    mean_ranks,
    measured,
    tune,
)

LEVEL = 0.05
DATASETS = ("compas", "adult", "law", "dutch")
PARTITIONS = ("dirichlet:0.5", "dirichlet:1", "random")
SEEDS, ROUNDS = 10, 100


@dataclass(frozen=True, eq=False)
class Findings:
    """The results, tuned and compared."""

    rows: pd.DataFrame
    """One for each setting of each method on each seed."""
    minutes: float
    machine: str
    asked: tuple[str, ...] = ()
    """The methods that were run by name, if any."""
    kept: int = 0
    """How many of the rows come with the package."""
    usual: bool = True
    """Whether there are as many rounds as in the paper."""

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The rows with their metrics."""
        return measured(self.rows)

    @cached_property
    def tuned(self) -> pd.DataFrame:
        """What each method would deploy."""
        return tune(self.measured)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Each method in each federation, for each goal."""
        return compare(self.tuned)

    @cached_property
    def board(self) -> pd.DataFrame:
        """All cells together."""
        return leaderboard(self.cells, hypervolumes(self.measured))

    @property
    def encodings(self) -> list[str]:
        """Ordinal codes first."""
        return sorted(self.rows["encode"].unique(), key=lambda name: (name != "ordinal", name))

    @property
    def methods(self) -> list[str]:
        """Without baselines."""
        return [name for name in dict.fromkeys(self.rows["method"]) if name not in BASELINES]

    @property
    def own(self) -> list[str]:
        """The methods of the user's plugins."""
        return list(dict.fromkeys(self.rows["method"][self.rows["code"] != ""]))

    def label(self, method: str) -> str:
        """A method's name, which says so if it is the user's."""
        return f"{method} (yours)" if method in self.own else method

    def is_whole(self, encode: str) -> bool:
        """Whether all methods were run on all federations and seeds, so that conclusions may be drawn."""
        rows = self.rows[self.rows["encode"] == encode]
        methods = {method.name for method in every()}
        federations = set(itertools.product(DATASETS, PARTITIONS))
        there = set(zip(rows["dataset"], rows["partition"], strict=True))
        whole = methods <= set(rows["method"]) and federations == there and self.usual
        return whole and rows["seed"].nunique() >= SEEDS

    @property
    def models(self) -> int:
        """How many models were trained: thresholds and averages of the same training count once."""
        alone = self.rows["method"].isin(BASELINES)
        released = self.rows["setting"].str.contains(r"\+(?:average|thresholds)", regex=True)
        return int((alone | ~released).sum())

    def at_tolerance(self, encode: str, tolerance: float) -> pd.DataFrame:
        """Mean ranks and cells kept where another loss of accuracy is allowed, the best first."""
        rows = self.measured[self.measured["encode"] == encode]
        cells = compare(tune(rows, tolerance), tolerance)
        cells = cells[~cells["method"].isin(BASELINES)]
        found = cells.groupby("method").agg(rank=("rank", "mean"), keeps=("keeps", "sum"))
        return found.sort_values("rank")

    def of(self, encode: str) -> pd.DataFrame:
        """The cells of one encoding."""
        return self.cells[self.cells["encode"] == encode]

    def ranks(self, encode: str) -> tuple[pd.Series[float], float, int]:
        """Mean ranks, how far they must be apart, and over how many federations."""
        ranks = mean_ranks(self.cells, encode)
        return ranks.mean().sort_values(), critical_difference(ranks.shape[1], len(ranks)), len(ranks)

    def lead(self, encode: str) -> pd.DataFrame:
        """In each cell, the lead beside the fairest other method that keeps accuracy and skill."""
        found = []
        for cell, here in self.of(encode).groupby(list(CELL), sort=False):
            if LEAD not in set(here["method"]):
                continue
            own = here[here["method"] == LEAD].iloc[0]
            rivals = here[here["keeps"] & ~here["method"].isin([LEAD, *BASELINES])]
            best = rivals.sort_values("fairness", ascending=False).iloc[0]
            beaten = rivals[(rivals["p"] < LEVEL) & (rivals["ahead"] > 0)]
            ahead_of_us = rivals[(rivals["p"] < LEVEL) & (rivals["ahead"] < 0)]
            found.append(
                {
                    **dict(zip(CELL, cell, strict=True)),
                    "fairness": own["fairness"],
                    "accuracy": own["accuracy"],
                    "mcc": own["mcc"],
                    "keeps": own["keeps"],
                    "rank": own["rank"],
                    "rival": best["method"],
                    "rival_fairness": best["fairness"],
                    "rival_accuracy": best["accuracy"],
                    "ahead": best["ahead"],
                    "low": best["ahead_low"],
                    "high": best["ahead_high"],
                    "p": best["p"],
                    "rivals": len(rivals),
                    "beaten": len(beaten),
                    "ahead_of_us": ", ".join(ahead_of_us["method"]),
                }
            )
        return pd.DataFrame(found)

    def mean_of(self, method: str, column: str, encode: str, **where: str) -> float:
        """A method's mean over cells."""
        mine = self.of(encode)
        mine = mine[mine["method"] == method]
        for name, value in where.items():
            mine = mine[mine[name] == value]
        return float(mine[column].mean()) if len(mine) else float("nan")


def settings_of(found: Findings) -> pd.DataFrame:
    """Each setting's mean accuracy and fairness over the seeds, for the fronts of the interactive page."""
    rows = found.measured[~found.measured["method"].isin(BASELINES)]
    keys = ["encode", "dataset", "partition", "method", "setting", "metric"]
    columns = ["test_accuracy", *(f"test_{name}" for name in METRICS)]
    means = rows.groupby(keys, sort=False)[columns].mean().reset_index()
    return means.round(4)


def duration(minutes: float) -> str:
    """A time in words, in the unit that fits.

    >>> duration(0.001), duration(0.2), duration(1.2), duration(89.6)
    ('less than a second', '12 seconds', '72 seconds', '90 minutes')
    """
    seconds = round(60 * minutes)
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return f"{seconds} second{'s' if seconds > 1 else ''}"
    return f"{minutes:.0f} minutes"


def finite(value: float) -> float | None:
    """For JSON, which knows no NaN."""
    return None if not np.isfinite(value) else float(value)


__all__ = ["LEVEL", "REFERENCE", "Findings", "duration", "finite", "settings_of"]
