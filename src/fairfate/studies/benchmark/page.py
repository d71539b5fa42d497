"""The reports of a benchmark: a page, an interactive page, tables, and the leaderboard on a terminal.

The text is in the templates beside this module, which fills them with values.
"""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairfate._version import __version__
from fairfate.fairness.intervals import TEST_TO_TRAIN
from fairfate.fairness.selection import KEEP, TOLERANCE
from fairfate.fairness.thresholds import BINS
from fairfate.report.page import asset, json_script
from fairfate.storage import write_bytes
from fairfate.strategies import TILT, Need, Setup, Spec
from fairfate.strategies.steps import asked_bins, asks_clients, is_distilled
from fairfate.studies.benchmark.baselines import BASELINES, BOOSTING, CLIENT, POOLED, SERVER
from fairfate.studies.benchmark.findings import CELL, DATASETS, LEVEL, ROUNDS, Findings, Part
from fairfate.studies.benchmark.methods import LEADS, METRICS, MOST_SETTINGS, REFERENCE, every
from fairfate.studies.benchmark.pictures import GOALS, write_pictures
from fairfate.studies.pages import render

if TYPE_CHECKING:
    from rich.console import Console

PAGE, HTML, BOARD, CELLS = "benchmark.md", "benchmark.html", "leaderboard.csv", "cells.csv"
IMAGES = "images"
PARAMETERS = 161
"""Of the paper's model on Adult, for the column of bytes."""
GUARDED = "fair_fate:min_mcc=0.05,keep=0.8"
LIFTED = ("fedavg", "prejudice", "fedfb", "fairgrad", "dual_reweighing")
"""Strategies whose gain by a common threshold the page names."""
_ON_PAGE, _ON_SCREEN = 6, 15
_FLOAT, _DOUBLE = 4, 8
_SUMS = 8
"""Numbers for each group that a client reports: of both labels, rows, rows accepted, probability, loss."""
_DIGITS = {"rank": 2, "worst": 3, "consistency": 3, "flip": 3, "collapsed": 2}
_CONSTANTS: dict[str, Any] = {
    **{"BASELINES": BASELINES, "CLIENT": CLIENT, "POOLED": POOLED, "SERVER": SERVER, "BOOSTING": BOOSTING},
    **{"REFERENCE": REFERENCE, "GUARDED": GUARDED, "METRICS": METRICS, "ROUNDS": ROUNDS, "LEVEL": LEVEL},
    **{"TOLERANCE": TOLERANCE, "KEEP": KEEP, "MOST_SETTINGS": MOST_SETTINGS, "PARAMETERS": PARAMETERS},
}


def write_all(folder: Path, findings: Findings) -> Path:
    """Everything into the folder; returns the page to open."""
    write_pictures(folder / IMAGES, findings)
    write_bytes(folder / PAGE, page(findings, IMAGES, HTML).encode())
    write_bytes(folder / BOARD, findings.board.round(4).to_csv(index=False).encode())
    write_bytes(folder / CELLS, findings.cells.round(4).to_csv(index=False).encode())
    write_bytes(folder / HTML, interactive(findings).encode())
    return folder / HTML


def page(findings: Findings, images: str = "images/benchmark", interactive: str = "benchmark.html") -> str:
    """The page to read; pictures are beside it."""
    rows = findings.rows
    views = [View(findings, part) for part in findings.main]
    text = render(
        "benchmark",
        "page.md.j2",
        findings=findings,
        whole=all(view.whole for view in views),
        views=views,
        biased=[View(findings, part) for part in findings.parts if part.biased],
        images=images,
        interactive=interactive,
        coverage=_coverage(findings),
        variants=sum(method.is_published for method in every()),
        baselines=[name for name in BASELINES if name in set(rows["method"])],
        baseline_rows=list(dict.fromkeys(name for view in views for name in view.baselines)),
        datasets=list(dict.fromkeys(rows["dataset"])),
        usual_datasets=set(rows["dataset"]) == set(DATASETS),
        usual_clients=findings.usual and not set(rows["dataset"]) - set(DATASETS),
        now=len(rows) - findings.kept,
        took=duration(findings.minutes),
        encodings=[table for view in views if (table := _encodings(findings, view.part.track))],
        costs=_costs(findings),
        **_CONSTANTS,
    )
    return f"{text}\n"


class View:
    """What the page says of a part."""

    def __init__(self, findings: Findings, part: Part) -> None:
        self.findings, self.part, self.track = findings, part, part.track
        self.cells = findings.select_cells(part)
        self.ranks, self.distance, self.federations = findings.ranks(part)
        self.whole = findings.is_whole(part)
        board = findings.ranked(part)
        self.board: list[Any] = list(board.assign(position=board.index + 1).itertuples())
        asked = {*findings.asked, *findings.own, "fedavg", REFERENCE, "fair_fate", GUARDED, part.lead}
        few = len(self.board) <= _ON_SCREEN
        self.shown = [row for row in self.board if few or row.position <= _ON_PAGE or row.method in asked]
        self.comparison = findings.lead(part)
        self.total = len(self.comparison)
        self.splits = list(dict.fromkeys(self.cells["partition"]))

    def mean(self, method: str, column: str, **where: str) -> float:
        """A method's mean over cells."""
        return self.findings.mean_of(method, column, self.part, **where)

    def kept_in(self, method: str) -> int:
        """In how many cells a method keeps accuracy and skill."""
        return int(self.cells[self.cells["method"] == method]["keeps"].sum())

    @property
    def near(self) -> list[str]:
        """The methods whose rank does not differ significantly from the best."""
        ranks = self.ranks
        return [str(name) for name in ranks.index if ranks[name] <= ranks.iloc[0] + self.distance]

    @property
    def behind(self) -> int:
        """In how many cells another method is significantly fairer than the lead."""
        return int((self.comparison["ahead_of_us"] != "").sum())

    @property
    def sure(self) -> int:
        """In how many cells the lead is significantly fairer than the best other."""
        return int(((self.comparison["p"] < LEVEL) & (self.comparison["ahead"] > 0)).sum())

    @property
    def rank_of_lead(self) -> str:
        """Whether the lead is the best by mean rank, and if not, its rank and the best method."""
        position, best = list(self.ranks.index).index(self.part.lead) + 1, str(self.ranks.index[0])
        if position == 1:
            return "It has the best rank"
        name = f"**`{best}`** (yours)" if best in self.findings.own else f"`{best}`"
        return f"Its rank is number {position}, after {name}'s"

    @property
    def against(self) -> list[dict[str, Any]]:
        """The lead against the others on each dataset, for each metric: its splits together."""
        keys = ["dataset", "goal"]
        return [
            {"dataset": dataset, "goal": goal, "splits": len(here)}
            | self._compare(here, str(dataset), str(goal))
            for (dataset, goal), here in self.comparison.groupby(keys, sort=False)
        ]

    def _compare(self, here: pd.DataFrame, dataset: str, goal: str) -> dict[str, Any]:
        fairer = Counter(method for methods in here["fairer"] for method in methods)
        sure = sorted({name for names in here["ahead_of_us"] for name in names.split(", ") if name})
        cells = self.cells[(self.cells["dataset"] == dataset) & (self.cells["goal"] == goal)]
        rivals = cells[~cells["method"].isin(BASELINES) & ~cells["method"].str.startswith(self.part.lead)]
        means = rivals.groupby("method").agg(
            fairness=("fairness", "mean"), accuracy=("accuracy", "mean"), keeps=("keeps", "all")
        )
        best = means[means["keeps"]].sort_values("fairness", ascending=False).head(1)
        return {
            **{name: here[name].mean() for name in ("fairness", "accuracy", "mcc")},
            "keeps": int(here["keeps"].sum()),
            "best": None if best.empty else (str(best.index[0]), *best.iloc[0][["fairness", "accuracy"]]),
            "beaten": int(here["beaten"].sum()),
            "rivals": int(here["rivals"].sum()),
            "fairer": fairer.most_common(),
            "sure": sure,
        }

    @property
    def fairer(self) -> list[tuple[str, int]]:
        """The methods that are fairer than the lead and keep accuracy and skill, and in how many cells."""
        return self.fairer_on(*dict.fromkeys(self.comparison["dataset"]))

    def fairer_on(self, *datasets: str) -> list[tuple[str, int]]:
        """The same on some datasets."""
        here = self.comparison[self.comparison["dataset"].isin(datasets)]
        return Counter(name for names in here["fairer"] for name in names).most_common()

    @property
    def suited(self) -> list[dict[str, Any]]:
        """For each metric, the fairest methods that keep everywhere, and those that collapse most often."""
        return [_suited(self.cells, goal) for goal in METRICS]

    @property
    def tolerances(self) -> list[dict[str, Any]]:
        """The best methods where more or less accuracy may be given up."""
        return [
            {"tolerance": tolerance, "ranks": self.findings.at_tolerance(self.part, tolerance)}
            for tolerance in (0.01, TOLERANCE, 0.03)
        ]

    @property
    def least(self) -> float:
        """The least difference that the paired test finds significant, in standard deviations over seeds."""
        rivals = int(self.cells.groupby(list(CELL)).size().max()) - 1
        return least_sure_difference(int(self.cells["seeds"].max()), rivals)

    @property
    def baselines(self) -> list[str]:
        """Those that were run, and methods to compare them with."""
        names = (*BASELINES, "fedavg", REFERENCE, self.part.lead)
        return [name for name in names if name in set(self.cells["method"])]

    @property
    def lifted(self) -> list[tuple[str, float, float]]:
        """What a common threshold does for some strategies: fairness without and with it."""
        pairs = [(name, f"{name}+average", f"{name}+average+common_threshold") for name in LIFTED]
        return [
            (name, self.mean(plain, "fairness"), self.mean(step, "fairness")) for name, plain, step in pairs
        ]

    @property
    def fair_fate(self) -> pd.Series[float]:
        """The accuracy that FAIR-FATE loses against FedAvg, in each cell."""
        accuracy = self.cells.pivot_table(index=list(CELL), columns="method", values="accuracy")
        return (accuracy["fedavg"] - accuracy["fair_fate"]).dropna()


def _coverage(findings: Findings) -> list[dict[str, Any]]:
    """How many federations and seeds there are of each part."""
    parts = []
    for part in findings.parts:
        rows = part.select(findings.rows)
        federations = len(rows[["dataset", "partition"]].drop_duplicates())
        parts.append({"part": part, "federations": federations, "seeds": rows["seed"].nunique()})
    return parts


def least_sure_difference(seeds: int, rivals: int) -> float:
    """The least difference that the paired test finds significant, in standard deviations over seeds."""
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, 1 - LEVEL / 2 / rivals) * np.sqrt(1 / seeds + TEST_TO_TRAIN))


def _suited(cells: pd.DataFrame, goal: str) -> dict[str, Any]:
    """The fairest methods that keep in every federation, and those that collapse most often."""
    own = cells[(cells["goal"] == goal) & ~cells["method"].isin(BASELINES)]
    means = own[own["keeps"]].groupby("method")["fairness"].agg(["mean", "size"])
    everywhere = means[means["size"] == own.groupby("method").size().max()]["mean"]
    collapsed = own.groupby("method")["collapsed"].mean().sort_values(ascending=False).head(3)
    return {
        "metric": GOALS[goal],
        "fairest": list(everywhere.sort_values(ascending=False).head(4).items()),
        "collapsed": list(collapsed[collapsed > 0].items()),
    }


def _encodings(findings: Findings, track: str) -> dict[str, Any] | None:
    """The same methods with each encoding, on the federations that all encodings have."""
    parts = [part for part in findings.parts if part.track == track and not part.biased]
    if len(parts) < 2:
        return None
    by_encoding = [findings.select_cells(part) for part in parts]
    by_encoding = [own.assign(federation=own["dataset"] + "|" + own["partition"]) for own in by_encoding]
    common = set.intersection(*(set(own["federation"]) for own in by_encoding))
    by_encoding = [own[own["federation"].isin(common)] for own in by_encoding]
    everywhere = set.intersection(*(set(own["method"]) for own in by_encoding))
    best = by_encoding[-1].groupby("method")["rank"].mean().sort_values().index
    names = dict.fromkeys(("fedavg", REFERENCE, "fair_fate", LEADS[track], *best[:2]))
    rows = []
    for method in [name for name in names if name in everywhere]:
        own_cells = [own[own["method"] == method] for own in by_encoding]
        values = [
            {
                "fairness": [own[own["goal"] == goal]["fairness"].mean() for goal in METRICS],
                "accuracy": own["accuracy"].mean(),
            }
            for own in own_cells
        ]
        rows.append({"method": method, "by_encoding": values})
    return {"track": track, "common": len(common), "encodings": [part.encode for part in parts], "rows": rows}


def _costs(findings: Findings) -> list[dict[str, Any]]:
    """Settings and bytes of each of our methods, one by one, and of the steps."""
    there = set(findings.methods)
    return [
        {
            "method": method.name,
            "settings": max(method.settings(goal) for goal in METRICS),
            "bytes": bytes_sent(method.specs[0], PARAMETERS, ROUNDS),
        }
        for method in every()
        if method.name in there and (method.is_published or method.name in _STEPS)
    ]


_STEPS = (*LEADS.values(), "fedavg+average+common_threshold")
"""Methods whose rules cost bytes."""


def bytes_sent(spec: Spec, parameters: int, rounds: int, groups: int = 2) -> float:
    """Bytes that a client sends and receives in a round, counted and not measured: no headers, no encryption.

    What is sent once is spread over the rounds.
    """
    strategy = spec.build(Setup(rounds, learning_rate=0.01))
    sent = 2.0 * _FLOAT * parameters + _DOUBLE
    if strategy.broadcast is not None:
        sent += 2 * groups * _DOUBLE
    if Need.REPORTS in strategy.needs:
        sent += _SUMS * groups * _DOUBLE
    once = 2 * groups * _DOUBLE if strategy.needs & {Need.ROWS, Need.ALL_ROWS} else 0
    if spec.rule is not None and spec.rule.name == TILT:
        sent *= groups  # the models that guess a group
        once += 2 * groups * asked_bins(spec.rule) ** 2 * _DOUBLE  # of two groups
        if is_distilled(spec.rule):  # one more, and both others with a table, to label rows by
            sent += 4.0 * _FLOAT * parameters + _DOUBLE + asked_bins(spec.rule) ** 2 / 4
            once += 4 * groups * BINS * _DOUBLE
    elif spec.rule is not None and asks_clients(spec.rule):
        once += 2 * groups * BINS * _DOUBLE
    return sent + once / rounds


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


def interactive(findings: Findings) -> str:
    """One HTML file that needs nothing else."""
    facts = [
        f"{len(findings.methods)} methods",
        f"{len(findings.rows[['dataset', 'partition', 'encode']].drop_duplicates())} federations",
        f"tracks: {', '.join(dict.fromkeys(part.track for part in findings.parts))}",
        f"{findings.rows['seed'].nunique()} seeds",
        f"{len(findings.rows):,} models measured",
        duration(findings.minutes),
        findings.machine,
    ]
    cells = findings.cells.drop(columns=["seeds", "accuracy_low", "accuracy_high", "matched"])
    data = {
        "tracks": list(dict.fromkeys(part.track for part in findings.parts)),
        "encodings": findings.encodings,
        "datasets": list(dict.fromkeys(cells["dataset"])),
        "partitions": list(dict.fromkeys(cells["partition"])),
        "baselines": list(BASELINES),
        "own": findings.own,
        "leads": LEADS,
        "reference": REFERENCE,
        "cells": _columns(cells),
        "settings": _columns(findings.settings),
    }
    return render(
        "benchmark",
        "html/benchmark.html.j2",
        version=__version__,
        facts=[fact for fact in facts if fact],
        tolerance=TOLERANCE,
        keep=f"{KEEP:.0%}",
        reference=REFERENCE,
        style=asset("report.css"),
        plot=asset("plot.min.js"),
        script=(files(__package__) / "html" / "benchmark.js").read_text("utf-8"),
        data=json_script(data),
    )


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """A frame for JSON, which knows no NaN; texts as numbers, each text once."""
    columns: dict[str, Any] = {}
    for name, column in frame.items():
        if pd.api.types.is_float_dtype(column):
            digits = _DIGITS.get(str(name), 4)
            columns[str(name)] = [round(x, digits) if np.isfinite(x) else None for x in column.tolist()]
        elif pd.api.types.is_bool_dtype(column) or pd.api.types.is_integer_dtype(column):
            columns[str(name)] = column.tolist()
        else:
            codes, texts = pd.factorize(column)
            columns[str(name)] = {"texts": list(texts), "places": codes.tolist()}
    return columns


def show(screen: Console, findings: Findings) -> None:
    """Print the best methods, and those named by the user, on a terminal."""
    from rich.table import Table

    for part in findings.parts:
        ranked = findings.ranked(part)
        shown = ranked[(ranked.index < _ON_SCREEN) | ranked["method"].isin(findings.asked)]
        which = "all" if len(shown) == len(ranked) else f"the best {_ON_SCREEN}"
        screen.print(
            f"\nTrack {part.track}, inputs {part.encode}{', biased partitions' if part.biased else ''}:"
            f" {which} of {len(ranked)} methods, tuned on validation rows",
            style="italic",
        )
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        table.add_column("method", overflow="fold")
        for name in ("place", "rank", "fairness", "accuracy", "MCC", "keeps"):
            table.add_column(name, justify="right")
        records: list[Any] = list(shown.itertuples())
        for row in records:
            table.add_row(
                findings.label(str(row.method)),
                str(row.Index + 1),
                f"{row.rank:.1f}",
                f"{row.fairness:.3f}",
                f"{0.0 - row.cost:+.3f}",
                f"{row.mcc:.2f}",
                f"{row.keeps} of {row.cells}",
                style="bold" if row.method in findings.asked else None,
            )
        screen.print(table)
    screen.print(
        "Accuracy: against fedavg+average. Keeps: cells in which accuracy and skill are kept; those that keep"
        " neither rank last.",
        soft_wrap=True,
    )
