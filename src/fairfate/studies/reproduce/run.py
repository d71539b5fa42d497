"""`fairfate reproduce`: the runs that the paper made, their findings, figures and tables, and one page."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fairfate._version import __version__
from fairfate.data import SOURCES, load
from fairfate.errors import unknown
from fairfate.experiments.config import Config, expand, parse_seeds
from fairfate.experiments.store import Store
from fairfate.experiments.sweep import Sweep, sweep
from fairfate.experiments.workers import Progress, cores
from fairfate.fairness.selection import TOLERANCE
from fairfate.report.figures import save
from fairfate.results.folder import CELLS
from fairfate.storage import locked, remove_unfinished, write_bytes
from fairfate.strategies import entries, make_spec
from fairfate.studies.pages import add_time
from fairfate.studies.reproduce import figures, findings
from fairfate.studies.reproduce.findings import REFERENCES, runs_of_sweep
from fairfate.studies.reproduce.page import latex, markdown, page
from fairfate.studies.reproduce.printed import (
    COLUMN,
    DATASETS,
    SPLITS,
    TABLES,
    behind_printed,
    table_rows,
)

PROTOCOLS = ("published", "paper")
BASELINES = ("fedavg", "fedmom", "feddemon", "fedavg_lr", "fedavg_gr", "fedval")

STRATEGIES = (
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedmom:beta=0.8|0.9|0.99",
    "feddemon:beta0=0.8|0.9|0.99",
    "fedval:metric=sp|eo|eqo",
    "fair_fate:metric=sp|eo|eqo,lam0=0.1|0.5,rho=0.04|0.05,max=0.8|0.9|1,beta0=0.8|0.9|0.99",
)
ABLATIONS = ("fair_fate:metric=sp|eo|eqo,momentum=none|constant|decaying,growth=constant|linear|exponential",)
THRESHOLDS = "+thresholds:metric=sp|eo|eqo,tolerance=0.02,keep=0,against=best"
"""Taken by every setting; the rule that the kept results were made with."""


def configs(
    datasets: Sequence[str],
    splits: Sequence[str],
    protocols: Sequence[str],
    seeds: int | str,
    data_dir: str | None = None,
) -> list[Config]:
    """All of it, or a part. The ablations and the thresholds belong to the `paper` protocol only."""
    for names, known, what in (
        (datasets, DATASETS, "dataset"),
        (splits, tuple(SPLITS), "sigma"),
        (protocols, PROTOCOLS, "protocol"),
    ):
        for name in names:
            if name not in known:
                raise unknown(what, name, known)
    chosen = []
    for protocol in protocols:
        trained = [*STRATEGIES, *(ABLATIONS if protocol == "paper" else ())]
        taken = [f"{text}{THRESHOLDS}" for text in trained] if protocol == "paper" else []
        chosen += expand(
            {
                "data": list(datasets),
                "partition": [SPLITS[split] for split in splits],
                "protocol": [protocol],
                "strategy": [*trained, *taken],
                "seeds": list(parse_seeds(seeds)),
                **({} if data_dir is None else {"data-dir": data_dir}),
            },
            where="reproduce",
        )
    return chosen


RESULTS, FIGURES, PAGE = "results", "figures", "reproduction.md"


@dataclass(frozen=True)
class Reproduction:
    """The folder, page, sweep and tables of a reproduction."""

    out: Path
    page: Path
    sweep: Sweep
    tables: dict[str, pd.DataFrame]


def reproduce(
    out: str | Path,
    *,
    datasets: Sequence[str] = DATASETS,
    splits: Sequence[str] = tuple(SPLITS),
    protocols: Sequence[str] = PROTOCOLS,
    seeds: int | str = 10,
    jobs: int | None = None,
    executor: Executor | None = None,
    data_dir: str | None = None,
    tolerance: float = TOLERANCE,
    reference: str = "fedavg",
    progress: Progress = lambda work: None,
    on_plan: Progress = lambda total: None,
) -> Reproduction:
    """Run the paper's experiments (or a part of them) and write the results.

    Jobs that the folder already has are not run again. In the `paper` protocol, settings are tuned among
    those whose validation accuracy is within ``tolerance`` of the ``reference``'s. The other arguments are
    those of `sweep`.
    """
    folder = Path(out)
    if reference not in REFERENCES:
        raise unknown("reference", reference, REFERENCES)
    planned = configs(datasets, splits, protocols, seeds, data_dir)
    start = time.monotonic()
    result = sweep(planned, folder, jobs=jobs, executor=executor, progress=progress, on_plan=on_plan)
    seconds = add_time(folder, time.monotonic() - start if result.ran else 0.0)
    runs = runs_of_sweep(result)
    count = {p: int((_trained(runs)["protocol"] == p).sum()) for p in PROTOCOLS}
    about = {
        "version": __version__,
        "datasets": ", ".join(datasets),
        "splits": ", ".join(splits),
        "seeds": runs["seed"].nunique(),
        "runs": sum(count.values()),
        "published_runs": count["published"],
        "paper_runs": count["paper"],
        "minutes": round(max(seconds / 60, 0.1), 1),
        "cores": jobs or cores(),
        "tolerance": tolerance,
        "reference": reference,
    }
    tables = findings.findings(runs, about, tolerance, reference)
    with locked(folder):
        remove_unfinished(folder, folder / RESULTS, folder / FIGURES)
        findings.write(tables, folder / RESULTS)
        _write_tables(tables, folder / RESULTS)
        _draw(result, runs, tables, folder / FIGURES, datasets, data_dir)
        write_bytes(folder / PAGE, page(findings.read(folder / RESULTS), FIGURES).encode())
    return Reproduction(folder, folder / PAGE, result, tables)


def _trained(runs: pd.DataFrame) -> pd.DataFrame:
    return runs[~runs["strategy"].str.contains("+", regex=False)]


def _write_tables(tables: dict[str, pd.DataFrame], folder: Path) -> None:
    for number, kind in itertools.product(TABLES, ("md", "tex")):
        (folder / f"table{number}.{kind}").unlink(missing_ok=True)  # an earlier call's
    if "comparison" not in tables:
        return
    for number, datasets in TABLES.items():
        comparison = tables["comparison"][tables["comparison"]["dataset"].isin(datasets)]
        if len(comparison):
            write_bytes(folder / f"table{number}.md", markdown(comparison, number).encode())
            write_bytes(folder / f"table{number}.tex", latex(comparison, number).encode())


def _draw(
    result: Sweep,
    runs: pd.DataFrame,
    tables: dict[str, pd.DataFrame],
    folder: Path,
    datasets: Sequence[str],
    data_dir: str | None,
) -> None:
    """Every figure as PNG and SVG."""
    drawn = {}
    paper = runs[runs["protocol"] == "paper"]
    any_protocol = paper if len(paper) else runs
    for dataset in datasets:
        table = load(dataset, data_dir=data_dir)
        drawn[f"figure1-{dataset}"] = figures.distributions(table, SOURCES[dataset].clients)
        drawn[f"figure2-{dataset}"] = figures.over_rounds(dataset, curves(result, runs, dataset))
        drawn[f"figure3-{dataset}"] = figures.max_tradeoff(dataset, any_protocol)
        if "honest" in tables:
            drawn[f"tradeoff-{dataset}"] = figures.tradeoff(dataset, tables["honest"])
    if len(paper):
        drawn["ablation"] = figures.ablation(paper)
    for name, figure in drawn.items():
        for kind in ("png", "svg"):
            save(figure, folder / f"{name}.{kind}")


def curves(result: Sweep, runs: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """For figure 2: mean and spread over seeds of every measure in every round.

    With the settings behind the printed cells and the published metrics where that protocol was run,
    otherwise with the default settings and exact metrics.
    """
    published = "published" in set(runs["protocol"])
    chosen = behind_printed(runs) if published else _defaults(runs)
    wanted = chosen[["dataset", "partition", "row", "strategy", "metric", "settings"]].drop_duplicates()
    columns = COLUMN if published else {name: name for name in COLUMN}
    store = Store(result.out / CELLS)
    store.index()
    parts = []
    for plan in result.plans:
        if plan.dataset != dataset or plan.published != published:
            continue
        frames = [store.read(job) for job in result.jobs if job.plan == plan]
        rounds = pd.concat(frames, ignore_index=True)
        rounds = rounds[rounds["split"] == "test"].assign(metric=lambda f: f["metric"].fillna("").astype(str))
        matching = rounds.merge(wanted, on=["dataset", "partition", "strategy", "metric", "settings"])
        for measure, column in columns.items():
            grouped = (
                matching.groupby(["partition", "row", "round"])[column].agg(["mean", "std"]).reset_index()
            )
            parts.append(grouped.assign(measure=measure))
    return pd.concat(parts, ignore_index=True)


def _defaults(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with each strategy's default settings."""
    usual = {(entry.name, make_spec(entry.name, {}, "eqo").settings_json) for entry in entries()}
    rows = table_rows(runs)
    return rows[[pair in usual for pair in zip(rows["strategy"], rows["settings"], strict=True)]]
