"""Tune every method by the same rule, and compare the results.

Methods are tuned on validation rows and compared at matched accuracy and skill; the page, the tables and the
pictures are made from the findings.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.fairness.intervals import holm, over_seeds, paired
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS, Counts, accuracy, balanced_accuracy, mcc
from fairfate.fairness.selection import KEEP, TOLERANCE, keeps, on_front, select
from fairfate.studies.benchmark.baselines import BASELINES, CLIENT, POOLED
from fairfate.studies.benchmark.measure import CELLS, WHERE
from fairfate.studies.benchmark.methods import LEADS, METRICS, REFERENCE, TRACKS, every

LEVEL = 0.05
DATASETS = ("compas", "adult", "law", "dutch")
PARTITIONS = ("dirichlet:0.5", "dirichlet:1", "random")
BIASED: tuple[str, ...] = ()
"""Partitions in which each client is biased in its own way; they are a part of their own."""
SEEDS, ROUNDS = 5, 100
CELL = ("track", "encode", "dataset", "partition", "goal")
"""The keys of a comparison: a federation in a track, and a metric."""
_SINGLE = ("consistency", "flip")


class Part(NamedTuple):
    """What is ranked together: a track and an encoding, on the usual partitions or on the biased ones."""

    track: str
    encode: str
    biased: bool = False

    @property
    def slug(self) -> str:
        """For the names of files and headings."""
        return "-".join([self.track, self.encode, *(["biased"] if self.biased else [])])

    @property
    def lead(self) -> str:
        """The method that we would deploy."""
        return LEADS[self.track]

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Its rows of a table."""
        is_biased = frame["partition"].isin(BIASED) == self.biased
        return frame[(frame["track"] == self.track) & (frame["encode"] == self.encode) & is_biased]


def measured(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy, skill and fairness of every row, on the validation and on the test rows."""
    columns = {}
    for split in ("validation", "test"):
        counts = counts_of(rows, split)
        columns[f"{split}_accuracy"] = accuracy(counts)
        columns[f"{split}_skill"] = balanced_accuracy(counts) - 0.5
        columns[f"{split}_mcc"] = mcc(counts)
        columns |= {f"{split}_{name}": metric(counts) for name, metric in FAIRNESS.items()}
    majority = counts_of(rows, "test").sum(axis=(1, 3))
    columns["majority"] = majority.max(axis=1) / np.maximum(majority.sum(axis=1), 1)
    return rows.assign(**columns)


def counts_of(rows: pd.DataFrame, split: str) -> Counts:
    """(rows, 2, 2, 2) by group, label and prediction."""
    columns = [f"{split}_{cell}" for cell in CELLS]
    return rows[columns].to_numpy(dtype=np.int64).reshape(-1, 2, 2, 2)


def tune(rows: pd.DataFrame, tolerance: float = TOLERANCE, keep: float = KEEP) -> pd.DataFrame:
    """The model that each method would deploy, for each federation, seed and metric (the goal).

    Among its settings whose validation accuracy is within ``tolerance`` of the reference's, and that have
    ``keep`` of its skill there, the one that is fairest on the validation rows; without any, the one with the
    highest validation accuracy. The test rows are not looked at. Of a baseline with a model for each client,
    the mean over the clients.
    """
    where = list(WHERE)
    reference = rows[rows["method"] == REFERENCE].set_index(where)
    least = pd.DataFrame(
        {
            "reference_accuracy": reference["validation_accuracy"],
            "reference_skill": reference["validation_skill"],
        }
    )
    joined = rows.join(least, on=where)
    near = keeps(
        joined["validation_accuracy"],
        joined["validation_skill"],
        (joined["reference_accuracy"], joined["reference_skill"]),
        tolerance,
        keep,
        slack=1e-12,
    )
    chosen = []
    for goal in METRICS:
        own = joined["metric"].isin(["", goal]) & (joined["method"] != CLIENT)
        columns = f"validation_{goal}", "validation_accuracy"
        best = select(joined[own], near[own], *columns, keys=[*where, "method"])
        chosen.append(_reported(best, goal))
        each = joined[joined["method"] == CLIENT]
        if len(each):
            clients = _reported(each.assign(matched=False, grid=1), goal)
            means = clients.groupby([*where, "goal", "method"], as_index=False).mean(numeric_only=True)
            chosen.append(means.assign(setting="", matched=False))
    return pd.concat(chosen, ignore_index=True)


def _reported(rows: pd.DataFrame, goal: str) -> pd.DataFrame:
    kept = rows[[*WHERE, "method", "setting", "grid", "matched", *_SINGLE]]
    return kept.assign(
        goal=goal,
        accuracy=rows["test_accuracy"],
        skill=rows["test_skill"],
        mcc=rows["test_mcc"],
        fairness=rows[f"test_{goal}"],
        worst=rows[f"worst_{goal}"],
    )


def compare(tuned: pd.DataFrame, tolerance: float = TOLERANCE, keep: float = KEEP) -> pd.DataFrame:
    """For each federation, goal and method: means over seeds with intervals, and the test against the lead.

    ``keeps`` is whether the mean accuracy is within the tolerance of the reference's on the test rows too,
    and the skill kept. ``rank`` is by fairness among those that keep; the others come after them.
    ``ahead`` is how much fairer the lead is, with an interval and Holm's p-value over the cell's methods.
    """
    rows = []
    for cell, here in tuned.groupby(list(CELL), sort=True):
        rows += _compare_cell(dict(zip(CELL, cell, strict=True)), here, tolerance, keep)
    return pd.DataFrame(rows)


def _compare_cell(
    about: dict[str, Any], here: pd.DataFrame, tolerance: float, keep: float
) -> list[dict[str, Any]]:
    methods = list(dict.fromkeys(here["method"]))
    values = {
        name: here.pivot(index="method", columns="seed", values=name).reindex(methods).to_numpy(dtype=float)
        for name in ("accuracy", "skill", "mcc", "fairness", "worst", "consistency", "flip")
    }
    matched = here.groupby("method")["matched"].mean().reindex(methods)
    index = methods.index(REFERENCE)
    means = {name: values[name].mean(axis=1) for name in ("accuracy", "skill")}
    reference = means["accuracy"][index], means["skill"][index]
    is_kept = keeps(means["accuracy"], means["skill"], reference, tolerance, keep)
    fairness, low, high = over_seeds(values["fairness"])
    accuracy_mean, accuracy_low, accuracy_high = over_seeds(values["accuracy"])
    rank = _ranks(fairness, is_kept, np.array([name not in BASELINES for name in methods]))
    tests: dict[str, NDArray[Any]] = {}
    lead_name = LEADS[about["track"]]
    if lead_name in methods:
        lead = values["fairness"][methods.index(lead_name)]
        against = paired(np.broadcast_to(lead, values["fairness"].shape), values["fairness"])
        p = np.where([name == lead_name for name in methods], np.nan, against.p)
        tests = {
            "ahead": against.difference,
            "ahead_low": against.low,
            "ahead_high": against.high,
            "p": holm(p),
        }
    with np.errstate(invalid="ignore"):
        means = {name: _mean(values[name]) for name in ("mcc", "worst", "consistency", "flip")}
    rows = []
    for number, method in enumerate(methods):
        row = {
            **about,
            "method": method,
            "seeds": values["fairness"].shape[1],
            "fairness": fairness[number],
            "fairness_low": low[number],
            "fairness_high": high[number],
            "accuracy": accuracy_mean[number],
            "accuracy_low": accuracy_low[number],
            "accuracy_high": accuracy_high[number],
            **{name: column[number] for name, column in means.items()},
            "collapsed": float((values["mcc"][number] < COLLAPSED).mean()),
            "keeps": bool(is_kept[number]),
            "matched": float(matched.iloc[number]),
            "rank": rank[number],
            **{name: column[number] for name, column in tests.items()},
        }
        rows.append(row)
    return rows


def _mean(values: NDArray[Any]) -> NDArray[Any]:
    """The mean over the seeds that have a value."""
    there = ~np.isnan(values)
    counts = np.where(there.any(axis=1), there.sum(axis=1), np.nan)
    return np.asarray(np.where(there, values, 0).sum(axis=1) / counts)


def _ranks(fairness: NDArray[Any], keeps: NDArray[np.bool_], ranked: NDArray[np.bool_]) -> NDArray[Any]:
    """1 for the fairest that keeps accuracy and skill; those that do not come last; baselines have none."""
    from scipy.stats import rankdata

    score = np.where(keeps, np.nan_to_num(fairness, nan=-1.0), -10.0)
    ranks = np.full(len(score), np.nan)
    ranks[ranked] = rankdata(-score[ranked])
    return ranks


def hypervolumes(rows: pd.DataFrame) -> pd.DataFrame:
    """For each federation, seed, goal and method, the area under its front of accuracy and fairness.

    The front is of the settings that none other beats in both on the validation rows; the area is that of
    their values on the test rows, above the majority baseline, as a share of what a
    perfectly fair model with the accuracy of all rows pooled would have.
    """
    where = list(WHERE)
    tops = rows[rows["method"] == POOLED]
    if tops.empty:
        tops = rows[rows["method"] == REFERENCE]
    top = tops.set_index(where)["test_accuracy"].rename("top")
    joined = rows[~rows["method"].isin(BASELINES)].join(top, on=where)
    keys = [*where, "method"]
    parts = []
    for goal in METRICS:
        settings = joined[joined["metric"].isin(["", goal])].sort_values(keys, kind="stable")
        first = ~settings.duplicated(keys).to_numpy()
        known = settings[["validation_accuracy", f"validation_{goal}"]].to_numpy(dtype=float)
        tested = settings[["test_accuracy", f"test_{goal}"]].to_numpy(dtype=float)
        low, span = settings["majority"].to_numpy(), (settings["top"] - settings["majority"]).to_numpy()
        starts = np.flatnonzero(first)
        areas = np.full(len(starts), np.nan)
        for number, (start, end) in enumerate(itertools.pairwise([*starts.tolist(), len(settings)])):
            if span[start] > _LEAST_SPAN:
                points = tested[start:end][on_front(known[start:end])]
                areas[number] = front_area(points, low[start]) / span[start]
        parts.append(settings.loc[first, keys].assign(goal=goal, area=areas))
    return pd.concat(parts, ignore_index=True)


_LEAST_SPAN = 0.01
"""The least accuracy above the majority baseline for which a front is measured."""


def front_area(points: NDArray[Any], low: float) -> float:
    """The area that (accuracy, fairness) points cover above an accuracy of ``low``.

    >>> front_area(np.array([[0.8, 0.5], [0.7, 1.0], [0.75, 0.4]]), 0.6)
    0.15
    """
    area = reached = 0.0
    for accuracy_of, fairness in points[np.argsort(-points[:, 0], kind="stable")]:
        if accuracy_of > low and fairness > reached:
            area += (accuracy_of - low) * (fairness - reached)
            reached = fairness
    return round(float(area), 12)


def leaderboard(cells: pd.DataFrame, areas: pd.DataFrame) -> pd.DataFrame:
    """All cells of a part together, the best mean rank first; baselines after the methods."""
    from_reference = cells.join(
        cells[cells["method"] == REFERENCE].set_index(list(CELL))["accuracy"].rename("reference"),
        on=list(CELL),
    )
    from_reference["cost"] = from_reference["reference"] - from_reference["accuracy"]
    grouped = from_reference.groupby("method", sort=False)
    board = grouped.agg(
        rank=("rank", "mean"),
        cells=("keeps", "size"),
        keeps=("keeps", "sum"),
        fairness=("fairness", "mean"),
        cost=("cost", "mean"),
        mcc=("mcc", "mean"),
        collapsed=("collapsed", "mean"),
        worst=("worst", "mean"),
        consistency=("consistency", "mean"),
        flip=("flip", "mean"),
    )
    board["area"] = areas.groupby("method")["area"].mean()
    return board.reset_index().sort_values(["rank", "fairness"], ascending=[True, False], ignore_index=True)


def critical_difference(methods: int, cells: int) -> float:
    """How far mean ranks must be apart for Nemenyi's test to tell two methods, at 5 % (Demšar 2006).

    >>> round(critical_difference(5, 30), 3)
    1.114
    """
    from scipy.stats import studentized_range

    q = studentized_range.ppf(0.95, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * cells)))


def mean_ranks(cells: pd.DataFrame) -> pd.DataFrame:
    """(dataset and split, method) ranks, the mean over the goals: what the critical difference is about."""
    ranked = cells[~cells["method"].isin(BASELINES)]
    return ranked.pivot_table(index=["dataset", "partition"], columns="method", values="rank", sort=False)


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
        """The model that each method would deploy."""
        return tune(self.measured)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Each method in each federation, for each goal."""
        return compare(self.tuned)

    @cached_property
    def areas(self) -> pd.DataFrame:
        """The area under the front of each method."""
        return hypervolumes(self.measured)

    @cached_property
    def board(self) -> pd.DataFrame:
        """The leaderboards of all parts, one after the other."""
        boards = [
            leaderboard(part.select(self.cells), part.select(self.areas)).assign(**part._asdict())
            for part in self.parts
        ]
        return pd.concat(boards, ignore_index=True)[[*Part._fields, *boards[0].columns.drop([*Part._fields])]]

    def ranked(self, part: Part) -> pd.DataFrame:
        """The leaderboard of a part without the baselines, the best first."""
        board = self.board
        is_own = (board[list(Part._fields)] == list(part)).all(axis=1)
        return board[is_own & ~board["method"].isin(BASELINES)].reset_index(drop=True)

    @cached_property
    def parts(self) -> list[Part]:
        """What is ranked together: ordinal codes first, and usual partitions."""
        keys = zip(self.rows["track"], self.rows["encode"], self.rows["partition"].isin(BIASED), strict=True)
        parts = {Part(track, encode, bool(biased)) for track, encode, biased in keys}
        order = ("ordinal", *sorted({part.encode for part in parts} - {"ordinal"}))
        return sorted(parts, key=lambda p: (p.biased, order.index(p.encode), TRACKS.index(p.track)))

    @property
    def main(self) -> list[Part]:
        """The parts of the first encoding, on the usual partitions if there are such: one for each track."""
        first = self.parts[0]
        return [part for part in self.parts if part[1:] == first[1:]]

    @property
    def encodings(self) -> list[str]:
        """Ordinal codes first."""
        return list(dict.fromkeys(part.encode for part in self.parts))

    @property
    def methods(self) -> list[str]:
        """Without baselines."""
        return [name for name in dict.fromkeys(self.rows["method"]) if name not in BASELINES]

    @property
    def own(self) -> list[str]:
        """The methods of the user's plugins."""
        return list(dict.fromkeys(self.rows["method"][self.rows["code"] != ""]))

    def label(self, method: str) -> str:
        """A method's name, marked if it is the user's."""
        return f"{method} (yours)" if method in self.own else method

    def is_whole(self, part: Part) -> bool:
        """Whether all methods were run on all federations and seeds, so that conclusions may be drawn."""
        rows = part.select(self.rows)
        methods = {method.name for method in every() if method.is_in(part.track)}
        federations = set(itertools.product(DATASETS, BIASED if part.biased else PARTITIONS))
        there = set(zip(rows["dataset"], rows["partition"], strict=True))
        whole = methods <= set(rows["method"]) and federations == there and self.usual
        return whole and rows["seed"].nunique() >= SEEDS

    @property
    def models(self) -> int:
        """How many models were trained: thresholds and averages of the same training count once."""
        alone = self.rows["method"].isin(BASELINES)
        released = self.rows["setting"].str.contains(r"\+(?:average|thresholds)", regex=True)
        return int((alone | ~released).sum())

    def at_tolerance(self, part: Part, tolerance: float) -> pd.DataFrame:
        """Mean ranks and cells kept where another loss of accuracy is allowed, the best first."""
        cells = compare(tune(part.select(self.measured), tolerance), tolerance)
        cells = cells[~cells["method"].isin(BASELINES)]
        means = cells.groupby("method").agg(rank=("rank", "mean"), keeps=("keeps", "sum"))
        return means.sort_values("rank")

    def select_cells(self, part: Part) -> pd.DataFrame:
        """The cells of a part."""
        return part.select(self.cells)

    def ranks(self, part: Part) -> tuple[pd.Series[float], float, int]:
        """Mean ranks, how far they must be apart, and over how many federations."""
        ranks = mean_ranks(self.select_cells(part))
        return ranks.mean().sort_values(), critical_difference(ranks.shape[1], len(ranks)), len(ranks)

    def lead(self, part: Part) -> pd.DataFrame:
        """In each cell, the lead beside the fairest other method that keeps accuracy and skill.

        Without the lead's own variants: another tolerance is no other method.
        """
        rows = []
        for cell, here in self.select_cells(part).groupby(list(CELL), sort=False):
            if part.lead not in set(here["method"]):
                continue
            own = here[here["method"] == part.lead].iloc[0]
            is_other = ~here["method"].str.startswith(part.lead) & ~here["method"].isin(BASELINES)
            rivals = here[here["keeps"] & is_other].sort_values("fairness", ascending=False)
            best = rivals.iloc[0]
            beaten = rivals[(rivals["p"] < LEVEL) & (rivals["ahead"] > 0)]
            ahead_of_us = rivals[(rivals["p"] < LEVEL) & (rivals["ahead"] < 0)]
            rows.append(
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
                    "fairer": tuple(rivals["method"][rivals["ahead"] < 0]),
                    "beaten": len(beaten),
                    "ahead_of_us": ", ".join(ahead_of_us["method"]),
                }
            )
        return pd.DataFrame(rows)

    def mean_of(self, method: str, column: str, part: Part, **where: str) -> float:
        """A method's mean over cells."""
        cells = self.select_cells(part)
        cells = cells[cells["method"] == method]
        for name, value in where.items():
            cells = cells[cells[name] == value]
        return float(cells[column].mean()) if len(cells) else float("nan")

    @cached_property
    def settings(self) -> pd.DataFrame:
        """Each setting's mean accuracy and fairness over the seeds, for the page's fronts."""
        rows = self.measured[~self.measured["method"].isin(BASELINES)]
        keys = ["track", "encode", "dataset", "partition", "method", "setting", "metric"]
        columns = ["test_accuracy", *(f"test_{name}" for name in METRICS)]
        return rows.groupby(keys, sort=False)[columns].mean().reset_index().round(4)
