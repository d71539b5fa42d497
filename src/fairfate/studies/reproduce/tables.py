"""Tables 1 and 2 in the paper's layout: Markdown, CSV and LaTeX."""

from __future__ import annotations

import pandas as pd

from fairfate.studies.reproduce.grid import METRICS, SPLITS
from fairfate.studies.reproduce.printed import ROWS, TABLES

TITLES = {
    "compas": "COMPAS (race)",
    "adult": "Adult (gender)",
    "law": "Law School (race)",
    "dutch": "Dutch (sex)",
}
LABELS = {
    "fedavg": "FedAvg",
    "fedmom": "FedMom",
    "feddemon": "FedDemon",
    "fedavg_lr": "FedAvg+LR",
    "fedavg_gr": "FedAvg+GR",
    **{f"fedval_{metric}": f"FedVal ({metric.upper()})" for metric in METRICS},
    **{f"fair_fate_{metric}": f"FAIR-FATE ({metric.upper()})" for metric in METRICS},
}
MEASURES = {"accuracy": "ACC", "sp": "SP", "eo": "EO", "eqo": "EQO"}


def _cells(comparison: pd.DataFrame, datasets: tuple[str, ...]) -> pd.DataFrame:
    mine = comparison[comparison["dataset"].isin(datasets)].copy()
    mine["order"] = mine["row"].map({row: i for i, row in enumerate(ROWS)})
    mine["measure_order"] = mine["measure"].map({m: i for i, m in enumerate(MEASURES)})
    return mine.sort_values(["measure_order", "order"])


def _text(cell: pd.Series[float]) -> str:
    """Ours, the printed value in brackets, and a mark where they disagree."""
    mark = "" if cell["agrees"] else " **≠**"
    return (
        f"{cell['ours']:.2f}±{cell['ours_std']:.2f} [{cell['printed']:.2f}±{cell['printed_std']:.2f}]{mark}"
    )


def markdown(comparison: pd.DataFrame, number: int) -> str:
    """One of the two tables: ours [printed], with ≠ where they differ beyond sampling error."""
    datasets = tuple(d for d in TABLES[number] if d in set(comparison["dataset"]))
    splits = [split for split in SPLITS if split in set(comparison["split"])]
    heads = [f"{TITLES[d]} {'RND' if s == 'rnd' else s}" for d in datasets for s in splits]
    lines = [f"| | | {' | '.join(heads)} |", "|" + " --- |" * (len(heads) + 2)]
    for (measure, row), cells in _cells(comparison, datasets).groupby(["measure", "row"], sort=False):
        found = {(c["dataset"], c["split"]): _text(c) for _, c in cells.iterrows()}
        values = [found.get((d, s), "") for d in datasets for s in splits]
        lines.append(f"| {MEASURES[str(measure)]} | {LABELS[str(row)]} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def latex(comparison: pd.DataFrame, number: int) -> str:
    """The same as a LaTeX tabular, ours over printed."""
    datasets = tuple(d for d in TABLES[number] if d in set(comparison["dataset"]))
    splits = [split for split in SPLITS if split in set(comparison["split"])]
    columns = "ll" + "c" * (len(datasets) * len(splits))
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    heads = [rf"\multicolumn{{{len(splits)}}}{{c}}{{{TITLES[d]}}}" for d in datasets]
    names = ["RND" if s == "rnd" else rf"$\sigma={s}$" for s in splits]
    lines += [" & & " + " & ".join(heads) + r" \\", " & & " + " & ".join(names * len(datasets)) + r" \\"]
    previous = None
    for (measure, row), cells in _cells(comparison, datasets).groupby(["measure", "row"], sort=False):
        if measure != previous:
            lines.append(r"\midrule")
        found = {
            (c["dataset"], c["split"]): rf"${c['ours']:.2f}\pm{c['ours_std']:.2f}$ [{c['printed']:.2f}]"
            + ("" if c["agrees"] else r"$^{\neq}$")
            for _, c in cells.iterrows()
        }
        values = [found.get((d, s), "") for d in datasets for s in splits]
        first = MEASURES[str(measure)] if measure != previous else ""
        lines.append(f"{first} & {LABELS[str(row)]} & {' & '.join(values)} " + r"\\")
        previous = measure
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
