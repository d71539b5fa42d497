"""The tables of docs/validation.md, from docs/measurements/validation.csv.

``python tools/validation_tables.py`` measures what is not in the file yet (about an hour on one core), and
writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data import Table
from fairfate.engine.recorder import Trace
from fairfate.experiments.config import from_mapping
from fairfate.experiments.job import run_job
from fairfate.experiments.plan import Plan, resolve
from fairfate.experiments.prepare import load_table
from fairfate.fairness.metrics import METRICS
from fairfate.fairness.objective import bind

FILE = Path(__file__).parent.parent / "docs" / "measurements" / "validation.csv"
PICTURE = FILE.parent.parent / "images" / "validation-rows.svg"
TITLES = {"compas": "COMPAS", "law": "Law School", "adult": "Adult", "dutch": "Dutch"}
SEEDS = {"compas": 10, "law": 10, "adult": 10, "dutch": 10}
METRIC_NAMES = ("sp", "eo", "eqo")
SERVER, CROSS, SECURE = "server", "clients", "clients:mode=secure"
CROSS_ALL, SECURE_ALL = "clients:validators=all", "clients:mode=secure,validators=all"
WHO = {
    CROSS: "`cross`",
    CROSS_ALL: "`cross`, all validate",
    SECURE: "`secure`",
    SECURE_ALL: "`secure`, all validate",
}
SPLITS = {"alike": "random", "skewed": "dirichlet:0.5"}
THRESHOLDS, FROM_CLIENTS = "fedavg+average+thresholds", "fedavg+average+thresholds:from=clients"
ROWS = (50, 100, 300, 1000, 3000)
KEYS = ["dataset", "partition", "per_round", "validation_from", "seed"]


class Task(NamedTuple):
    """One pass: strategies on one split."""

    dataset: str
    partition: str
    per_round: int
    """0 for the paper's."""
    validation_from: str
    seed: int
    strategies: tuple[str, ...]


def tasks() -> Iterator[Task]:
    """What is measured: who holds the rows, and how many the server needs."""
    fair = tuple(f"fair_fate:metric={name}" for name in METRIC_NAMES)
    for dataset, seeds in SEEDS.items():
        sizes = (0, 6) if dataset == "compas" else (0,)  # the paper's 3 clients make no two buckets
        for seed in range(1, seeds + 1):
            for partition in ("random", "dirichlet:0.5"):
                for per_round in sizes:
                    for who in (SERVER, *WHO):
                        more = (THRESHOLDS, FROM_CLIENTS) if who in (SERVER, CROSS) else ()
                        yield Task(dataset, partition, per_round, who, seed, ("fedavg", *fair, *more))
            if dataset != "dutch":
                for rows in ROWS:
                    few = f"server:rows={rows}"
                    chosen = ("fair_fate:metric=eqo", THRESHOLDS)
                    yield Task(dataset, "dirichlet:0.5", 0, few, seed, chosen)


def measure(task: Task) -> list[dict[str, object]]:
    """Every strategy's released model on the test rows."""
    options = {"data": task.dataset, "partition": task.partition, "strategy": list(task.strategies)}
    if task.per_round:
        options["per-round"] = task.per_round
    config = from_mapping({**options, "validation-from": task.validation_from, "seeds": [task.seed]})
    table = load_table(config)
    plan = resolve(config, table)
    outcome = run_job(plan, table, task.seed, plan.specs, lambda: None, record_clients=True)
    kept_rows = int(outcome.federation.validation.sizes.sum())
    return [
        {
            **dict(zip(KEYS, task[:5], strict=True)),
            "strategy": text,
            "rows": kept_rows,
            **_found(trace, plan, table),
        }
        for text, trace in zip(task.strategies, outcome.traces, strict=True)
    ]


def _found(trace: Trace, plan: Plan, table: Table) -> dict[str, object]:
    counts = trace.test[-1]
    values = {name: float(METRICS[name](counts)) for name in ("accuracy", "mcc", *METRIC_NAMES)}
    return {**values, "undefined": _undefined(trace, plan, table)}


def _undefined(trace: Trace, plan: Plan, table: Table) -> float:
    """Share of the rounds in which fairness was undefined; NaN where no client's model is judged."""
    metric = bind(trace.spec.metric or "eqo", table.grouping, least=plan.validation_source.min_cell)
    first = {client.round: client.counts for client in trace.clients if client.counts is not None}
    results = [bool(np.isnan(metric(counts))) for counts in first.values()]
    return float(np.mean(results)) if results else np.nan


def collect() -> None:
    """Measure what is missing; the file is written after every pass."""
    known = pd.read_csv(FILE) if FILE.is_file() else pd.DataFrame(columns=KEYS)
    names = set(known[KEYS].itertuples(index=False, name=None))
    for task in sorted(tasks(), key=lambda task: task.seed):
        if tuple(task[:5]) in names:
            continue
        known = pd.concat([known, pd.DataFrame(measure(task))], ignore_index=True)
        known.round(5).to_csv(FILE, index=False)
        sys.stderr.write(f"{task[:5]}\n")


def read() -> pd.DataFrame:
    """The measurements."""
    return pd.read_csv(FILE)


def _change(value: float) -> str:
    """A difference with its sign, in hundredths."""
    shown = f"{value:+.2f}".replace("-", "−").replace("0.", ".")
    return "0" if shown in ("+.00", "−.00") else shown


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def who_judges(split: str) -> str:
    """FAIR-FATE's fairness and accuracy with the server's rows, and what changes where clients validate."""
    frame = read().query(f"partition == '{SPLITS[split]}'")
    text = f"| | server's rows | {' | '.join(WHO.values())} |\n| --- {'| --- ' * (1 + len(WHO))}|\n"
    for dataset, per_round in (("compas", 0), ("compas", 6), ("law", 0), ("adult", 0), ("dutch", 0)):
        title = TITLES[dataset] + (f", {per_round} a round" if per_round else "")
        for name in METRIC_NAMES:
            rows = frame[
                (frame["dataset"] == dataset)
                & (frame["per_round"] == per_round)
                & (frame["strategy"] == f"fair_fate:metric={name}")
            ]
            means = rows.groupby("validation_from")[[name, "accuracy"]].mean()
            base = means.loc[SERVER]
            cells = [f"{_short(base[name])}/{_short(base['accuracy'])}"]
            for who in WHO:
                if who in means.index:
                    change = means.loc[who] - base
                    cells.append(f"{_change(change[name])}/{_change(change['accuracy'])}")
                else:
                    cells.append("")
            shown = " | ".join(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in cells)
            text += f"| {title}, {name.upper()} | {shown} |\n"
    return text


def undefined() -> str:
    """In how many rounds too few rows were behind a rate, where clients differ."""
    frame = read().query(f"partition == 'dirichlet:0.5' and validation_from in ['{CROSS}', '{CROSS_ALL}']")
    text = (
        "| | clients a round | SP | EO | EQO | EQO, all validate |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    )
    paper = {"compas": 3, "law": 4, "adult": 5, "dutch": 6}
    for dataset, per_round in (("compas", 0), ("compas", 6), ("law", 0), ("adult", 0), ("dutch", 0)):
        value = frame[(frame["dataset"] == dataset) & (frame["per_round"] == per_round)]
        means = value.groupby(["validation_from", "strategy"])["undefined"].mean()
        wanted = [(CROSS, name) for name in METRIC_NAMES] + [(CROSS_ALL, "eqo")]
        shown = [f"{means[(who, f'fair_fate:metric={name}')]:.0%}" for who, name in wanted]
        text += f"| {TITLES[dataset]} | {per_round or paper[dataset]} | {' | '.join(shown)} |\n"
    return text


ENDS = (
    ("`fair_fate`, the round's clients validate", CROSS, "fair_fate:metric=eqo"),
    ("`fair_fate`, all clients validate", CROSS_ALL, "fair_fate:metric=eqo"),
    ("`thresholds`, from what clients hold out", CROSS, THRESHOLDS),
    ("`thresholds:from=clients`, from what they train on", CROSS, FROM_CLIENTS),
)
PLACES = ("compas", "law", "adult")


def _point(frame: pd.DataFrame, dataset: str, who: str, strategy: str) -> pd.DataFrame:
    """The seeds of one measurement."""
    return frame[
        (frame["dataset"] == dataset)
        & (frame["validation_from"] == who)
        & (frame["strategy"] == strategy)
        & (frame["per_round"] == 0)
    ]


def how_many_rows() -> str:
    """EQO / accuracy by how many rows the server has, and with none."""
    frame = read().query("partition == 'dirichlet:0.5'")
    titles = [f"{TITLES[name]}, {what}" for what in ("`fair_fate`", "`thresholds`") for name in PLACES]
    text = f"| server's rows | {' | '.join(titles)} |\n| ---: {'| --- ' * len(titles)}|\n"
    for rows in (*ROWS, None):
        who, cells = SERVER if rows is None else f"server:rows={rows}", []
        for strategy in ("fair_fate:metric=eqo", THRESHOLDS):
            for dataset in PLACES:
                value = _point(frame, dataset, who, strategy)
                whole = _point(frame, dataset, SERVER, strategy)["rows"].max()
                cells.append(_cell(value) if rows is None or rows < whole else "")
        text += f"| {rows or 'all 20 %'} | {' | '.join(cells)} |\n"
    return text


def no_rows() -> str:
    """The same where the server has none."""
    frame = read().query("partition == 'dirichlet:0.5'")
    text = f"| no rows at the server | {' | '.join(TITLES[name] for name in PLACES)} |\n"
    text += f"| --- {'| --- ' * len(PLACES)}|\n"
    for title, who, strategy in ENDS:
        cells = [_cell(_point(frame, dataset, who, strategy)) for dataset in PLACES]
        text += f"| {title} | {' | '.join(cells)} |\n"
    return text


def _cell(of: pd.DataFrame) -> str:
    return f"{_short(of['eqo'].mean())}/{_short(of['accuracy'].mean())}".replace(" ", "\N{NO-BREAK SPACE}")


def picture() -> None:
    """EQO by how many rows the server has; lines across for none."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ink = "#767676"
    mpl.rcParams |= {"svg.hashsalt": "fairfate", "text.color": ink, "axes.labelcolor": ink, "font.size": 9}
    mpl.rcParams |= {"axes.edgecolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.titlecolor": ink}
    frame = read().query("partition == 'dirichlet:0.5'")
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, len(PLACES), sharey=True)
    colours = {"fair_fate:metric=eqo": "#0072B2", THRESHOLDS: "#D55E00", FROM_CLIENTS: "#009E73"}
    for ax, dataset in zip(axes, PLACES, strict=True):
        for strategy, title in (("fair_fate:metric=eqo", "fair_fate"), (THRESHOLDS, "thresholds")):
            whole = int(_point(frame, dataset, SERVER, strategy)["rows"].max())
            at = [rows for rows in ROWS if rows < whole]
            points = [_point(frame, dataset, f"server:rows={rows}", strategy)["eqo"] for rows in at]
            points.append(_point(frame, dataset, SERVER, strategy)["eqo"])
            means = [values.mean() for values in points]
            errors = [values.std() / len(values) ** 0.5 for values in points]
            ax.errorbar([*at, whole], means, errors, marker="o", color=colours[strategy], label=title)
        for title, who, strategy in ENDS:
            value = _point(frame, dataset, who, strategy)["eqo"].mean()
            style = "--" if who == CROSS else ":"
            ax.axhline(value, color=colours[strategy], linestyle=style, label=title.replace("`", ""))
        ax.set(xscale="log", title=TITLES[dataset], xlabel="validation rows at the server")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("EQO on the test rows")
    axes[0].set_ylim(0.3, 1.02)
    handles, titles = axes[0].get_legend_handles_labels()
    figure.legend(handles, titles, loc="outside lower center", ncols=3, frameon=False, labelcolor=ink)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


TABLES = {
    "alike": partial(who_judges, "alike"),
    "skewed": partial(who_judges, "skewed"),
    "undefined": undefined,
    "rows": how_many_rows,
    "no-rows": no_rows,
}

if __name__ == "__main__":
    collect()
    picture()
