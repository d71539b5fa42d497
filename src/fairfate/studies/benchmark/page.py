"""The reports of a benchmark: a page, an interactive page, tables, and the leaderboard on a terminal.

The text is in the templates beside this module, which fills them with values.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from fairfate.studies.benchmark.baselines import BASELINES, CLIENT, POOLED, SERVER
from fairfate.studies.benchmark.findings import CELL, DATASETS, LEVEL, ROUNDS, Findings
from fairfate.studies.benchmark.methods import LEAD, METRICS, MOST_SETTINGS, REFERENCE, every
from fairfate.studies.benchmark.pictures import GOALS, write_pictures
from fairfate.studies.pages import render

if TYPE_CHECKING:
    from rich.console import Console

PAGE, HTML, BOARD, CELLS = "benchmark.md", "benchmark.html", "leaderboard.csv", "cells.csv"
IMAGES = "images"
PARAMETERS = 161
"""Of the paper's model on Adult, for the column of bytes."""
GUARDED = "fair_fate:min_mcc=0.05,keep=0.8"
_ON_SCREEN = 15
_FLOAT, _DOUBLE = 4, 8
_SUMS = 8
"""Numbers for each group that a client reports: of both labels, rows, rows accepted, probability, loss."""
_DIGITS = {"seconds": 3, "rank": 2}
_CONSTANTS: dict[str, Any] = {
    **{"BASELINES": BASELINES, "CLIENT": CLIENT, "POOLED": POOLED, "SERVER": SERVER, "LEAD": LEAD},
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
    encode = findings.encodings[0]
    cells, rows = findings.select_cells(encode), findings.rows
    ranks, distance, federations = findings.ranks(encode)
    board = findings.ranked(encode).assign(position=lambda frame: frame.index + 1)
    lead, whole = findings.lead(encode), findings.is_whole(encode)

    def mean(method: str, column: str, **where: str) -> float:
        return findings.mean_of(method, column, encode, **where)

    def kept_in(method: str) -> int:
        return int(cells[cells["method"] == method]["keeps"].sum())

    text = render(
        "benchmark",
        "page.md.j2",
        findings=findings,
        whole=whole,
        images=images,
        interactive=interactive,
        encode=encode,
        mean=mean,
        kept_in=kept_in,
        parts=_parts(rows, findings.encodings),
        variants=sum(
            not name.endswith("+average") and "+thresholds" not in name for name in findings.methods
        ),
        baselines=[name for name in BASELINES if name in set(rows["method"])],
        baseline_rows=[
            name for name in (*BASELINES, "fedavg", REFERENCE, LEAD) if name in set(cells["method"])
        ],
        datasets=list(dict.fromkeys(rows["dataset"])),
        usual_datasets=set(rows["dataset"]) == set(DATASETS),
        usual_clients=findings.usual and not set(rows["dataset"]) - set(DATASETS),
        now=len(rows) - findings.kept,
        took=duration(findings.minutes),
        splits=list(dict.fromkeys(cells["partition"])),
        board=list(board.itertuples()),
        ranks=ranks,
        distance=distance,
        federations=federations,
        near=[name for name in ranks.index if ranks[name] <= ranks.iloc[0] + distance],
        lead=lead,
        total=len(lead),
        behind=int((lead["ahead_of_us"] != "").sum()) if len(lead) else 0,
        surely=int(((lead["p"] < LEVEL) & (lead["ahead"] > 0)).sum()) if len(lead) else 0,
        suited=[_suited(cells, goal) for goal in METRICS],
        encodings=_encodings(findings),
        costs=_costs(findings, encode),
        **(_conclusions(findings, encode, ranks) if whole else {}),
        **_CONSTANTS,
    )
    return f"{text}\n"


def _parts(rows: pd.DataFrame, encodings: Sequence[str]) -> list[dict[str, Any]]:
    """How many federations and seeds there are of each encoding."""
    parts = []
    for encode in encodings:
        own = rows[rows["encode"] == encode]
        federations = len(own[["dataset", "partition"]].drop_duplicates())
        parts.append({"encode": encode, "federations": federations, "seeds": own["seed"].nunique()})
    return parts


def _conclusions(findings: Findings, encode: str, ranks: pd.Series[float]) -> dict[str, Any]:
    """Conclusions of the whole benchmark: the best methods, and how much they depend on the rule."""
    cells = findings.select_cells(encode)
    rank = cells.groupby("method")["rank"].mean()
    seeds, rivals = int(cells["seeds"].max()), int(cells.groupby(list(CELL)).size().max()) - 1
    areas = findings.ranked(encode).set_index("method")["area"].dropna().sort_values(ascending=False)
    others_lead = len(areas) and areas.index[0] != LEAD and LEAD in areas.index
    tolerances = [
        {"tolerance": tolerance, "ranks": findings.at_tolerance(encode, tolerance)}
        for tolerance in (0.01, TOLERANCE, 0.03)
    ]
    return {
        "rank_of_lead": rank_of_lead(findings, ranks),
        "single": _single_threshold(findings, encode),
        "fair_fate": _fair_fate(findings, encode),
        "average_is_worse": all(
            rank[f"{name}+average"] > rank[name] for name in ("fedadam", "fedyogi", GUARDED)
        ),
        "fronts": list(areas.head(3).items()) if others_lead else [],
        "front_of_lead": areas.get(LEAD, np.nan),
        "tolerances": tolerances,
        "seeds": seeds,
        "rivals": rivals,
        "least": least_sure_difference(seeds, rivals),
    }


def rank_of_lead(findings: Findings, ranks: pd.Series[float]) -> str:
    """Whether the lead is the best by mean rank, and if not, its rank and the best method."""
    position, best = list(ranks.index).index(LEAD) + 1, str(ranks.index[0])
    if position == 1:
        return "It has the best rank"
    return f"Its rank is number {position}, after {f'**`{best}`** (yours)' if best in findings.own else f'`{best}`'}'s"


def _single_threshold(findings: Findings, encode: str) -> dict[str, Any]:
    """The best by rank of the methods with a single threshold, and the fairest that keep nearly always."""
    cells = findings.select_cells(encode)
    own = cells[cells["method"].isin([name for name in findings.methods if "+thresholds" not in name])]
    means = own.groupby("method").agg(
        rank=("rank", "mean"), fairness=("fairness", "mean"), keeps=("keeps", "sum")
    )
    best = means.sort_values("rank")
    often = means[means["keeps"] >= 0.75 * len(findings.lead(encode))].sort_values(
        "fairness", ascending=False
    )
    fairest = None if often.empty else {"method": often.index[0], **often.iloc[0].to_dict()}
    return {"method": str(best.index[0]), "rank": best["rank"].iloc[0], "often": fairest}


def _fair_fate(findings: Findings, encode: str) -> dict[str, Any]:
    """The accuracy that FAIR-FATE loses against FedAvg, and whether it is fairer on each skewed split."""
    cells = findings.select_cells(encode)
    accuracy = {
        name: cells[cells["method"] == name].set_index(list(CELL))["accuracy"]
        for name in ("fedavg", "fair_fate")
    }
    repairs = all(
        findings.mean_of("fair_fate", "fairness", encode, partition=split)
        > findings.mean_of("fedavg", "fairness", encode, partition=split)
        for split in set(cells["partition"]) - {"random"}
    )
    return {"loss": (accuracy["fedavg"] - accuracy["fair_fate"]).dropna(), "repairs": repairs}


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


def _encodings(findings: Findings) -> dict[str, Any] | None:
    """The same methods with each encoding, on the federations that all encodings have."""
    if len(findings.encodings) < 2 or not {"fedavg", "fair_fate"} <= set(findings.methods):
        return None
    cells = findings.cells.assign(federation=findings.cells["dataset"] + "|" + findings.cells["partition"])
    by_encoding = [cells[cells["encode"] == encode] for encode in findings.encodings]
    common = set.intersection(*(set(own["federation"]) for own in by_encoding))
    by_encoding = [own[own["federation"].isin(common)] for own in by_encoding]
    names = ("fedavg", REFERENCE, "fedavg_lr+average", "fair_fate", "fairfed", LEAD)
    rows = []
    for method in [name for name in names if name in findings.methods]:
        parts = [own[own["method"] == method] for own in by_encoding]
        values = [
            {
                "fairness": [part[part["goal"] == goal]["fairness"].mean() for goal in METRICS],
                "accuracy": part["accuracy"].mean(),
            }
            for part in parts
        ]
        rows.append({"method": method, "by_encoding": values})
    gains = {
        name: [own[own["method"] == name]["fairness"].mean() for own in by_encoding[:2]]
        for name in ("fedavg", "fair_fate")
    }
    columns = range(len(findings.encodings) * (len(METRICS) + 1))
    return {"common": len(common), "rows": rows, "columns": columns, **gains}


def _costs(findings: Findings, encode: str) -> list[dict[str, Any]]:
    """Settings, bytes and time of each of our methods."""
    board = findings.board[findings.board["encode"] == encode]
    times = dict(zip(board["method"], board["seconds"].astype(float), strict=True))
    return [
        {
            "method": method.name,
            "settings": max(method.settings(goal) for goal in METRICS),
            "bytes": bytes_sent(method.specs[0], PARAMETERS, ROUNDS),
            "time": times[method.name] / times.get("fedavg", np.nan),
        }
        for method in every()
        if method.name in times and not method.name.endswith("+average")
    ]


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
        f"{findings.rows['seed'].nunique()} seeds",
        f"{len(findings.rows):,} models measured",
        duration(findings.minutes),
        findings.machine,
    ]
    cells = findings.cells.drop(columns=["seeds", "accuracy_low", "accuracy_high", "matched"])
    data = {
        "encodings": findings.encodings,
        "datasets": list(dict.fromkeys(cells["dataset"])),
        "partitions": list(dict.fromkeys(cells["partition"])),
        "baselines": list(BASELINES),
        "own": findings.own,
        "lead": LEAD,
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

    for encode in findings.encodings:
        ranked = findings.ranked(encode)
        shown = ranked[(ranked.index < _ON_SCREEN) | ranked["method"].isin(findings.asked)]
        which = "all" if len(shown) == len(ranked) else f"the best {_ON_SCREEN}"
        screen.print(
            f"\n{len(ranked)} methods, inputs {encode}: {which}, tuned on validation rows", style="italic"
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
