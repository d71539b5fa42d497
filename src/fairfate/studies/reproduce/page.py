"""The reproduction's page, made from the files of findings alone, and the paper's two tables.

The text is in the template beside this module, which fills it with values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fairfate.studies.pages import render
from fairfate.studies.reproduce.printed import DATASETS, LEVEL, METRICS, ROWS, SPLITS, TABLES, TITLES

NAMES = {"compas": "COMPAS", "adult": "Adult", "law": "Law School", "dutch": "Dutch"}
CLAIMED = {"compas": "78 %", "adult": "100 %", "law": "78 %", "dutch": "88 %"}
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
MISPRINTS = {
    (
        "dutch",
        "rnd",
        "fedval_eqo",
        "eqo",
    ): "a misprint: the cell repeats the 0.82±0.03 of FedAvg+GR above it; FedVal"
    " hardly differs from FedAvg on a random split, whose printed EQO is 0.58, and the authors' own run files give 0.58",
}
"""Printed cells that are misprints, shown by this comparison."""
Findings = dict[str, pd.DataFrame]


def page(findings: Findings, figures: str | None = None) -> str:
    """The whole page as Markdown.

    Parameters
    ----------
    findings : the findings
    figures : folder of the figures as seen from the page; none are shown without it
    """
    about = dict(findings["about"].iloc[0])
    datasets = [name.strip() for name in str(about["datasets"]).split(",")]
    text = render(
        "reproduce",
        "page.md.j2",
        about=about,
        verdicts=_verdicts(findings),
        thresholds=_thresholds(findings),
        hollow=_hollow(findings) if "honest" in findings else None,
        wins=_wins(findings),
        significant=_significant(findings) if "honest" in findings else [],
        comparison=_comparison(findings) if "comparison" in findings else None,
        honest=_honest(findings) if "honest" in findings else None,
        collapsed=_collapsed(findings),
        figures=figures,
        datasets=datasets,
        shown="adult" if "adult" in datasets else datasets[0],
        NAMES=NAMES,
        LEVEL=LEVEL,
    )
    return text.rstrip("\n") + "\n"


def _split(partition: str) -> str:
    return {"random": "RND", "dirichlet:0.5": "σ 0.5", "dirichlet:1": "σ 1.0"}.get(partition, partition)


def _percent(part: float, whole: float) -> str:
    return f"{part:.0f} of {whole:.0f} ({part / whole:.0%})" if whole else "none"


def _wins(findings: Findings) -> list[list[str]]:
    """Cells won by dataset, as claimed and by where the numbers come from."""
    rows = [["claimed in the paper", *CLAIMED.values(), "", "0"]]
    for basis, own in findings["wins"].groupby("basis", sort=False):
        by_dataset = [own[own["dataset"] == dataset] for dataset in DATASETS]
        won = [f"{cells['wins'].sum()} of {len(cells)}" if len(cells) else "" for cells in by_dataset]
        skewed = own[own["split"] != "rnd"]
        lost = f"{(~skewed['wins'].astype(bool)).sum()} of {len(skewed)}"
        rows.append([str(basis), *won, _percent(own["wins"].sum(), len(own)), lost])
    return rows


def _significant(findings: Findings) -> list[list[str]]:
    """In how many cells FAIR-FATE surely differs from each method."""
    rows = []
    for method, own in findings["honest"].groupby("method", sort=False):
        if method != "fair_fate":
            above, below = (own["fairness_vs_low"] > 0).sum(), (own["fairness_vs_high"] < 0).sum()
            better = (own["accuracy_vs_low"] > 0).sum(), (own["accuracy_vs_high"] < 0).sum()
            rows.append([str(method), *map(str, (above, below, len(own) - above - below, *better))])
    return rows


def _verdicts(findings: Findings) -> list[list[str]]:
    """The claims, each with the verdict of the numbers below."""
    rows = [
        [
            f"fairer than every baseline on {NAMES[dataset]}: {claim} of the cells",
            *(_won(findings, basis, dataset) for basis in _BASES),
        ]
        for dataset, claim in CLAIMED.items()
    ]
    rows.append(["loses only on random splits", *(_lost(findings, basis) for basis in _BASES)])
    rows.append(["MAX trades accuracy for fairness", *(_traded(findings, p) for p in ("published", "paper"))])
    return [
        *rows,
        ["steadier over rounds than FedAvg", *(_steadier(findings, p) for p in ("published", "paper"))],
    ]


_BASES = ("published, settings behind the print", "paper, tuned on validation")


def _won(findings: Findings, basis: str, dataset: str) -> str:
    own = findings["wins"].query("basis == @basis and dataset == @dataset")
    if own.empty:
        return "not run"
    holds = round(100 * own["wins"].mean()) >= int(CLAIMED[dataset].split()[0])
    return f"{'holds' if holds else 'does not hold'}: {_percent(own['wins'].sum(), len(own))}"


def _lost(findings: Findings, basis: str) -> str:
    skewed = findings["wins"].query("basis == @basis and split != 'rnd'")
    if skewed.empty:
        return "not run"
    lost = int((~skewed["wins"].astype(bool)).sum())
    word = "holds" if lost == 0 else "does not hold"
    return f"{word}: lost {lost} of {len(skewed)} cells with σ 0.5 and 1.0"


def _ends(rows: pd.DataFrame) -> tuple[pd.Series[bool], pd.Series[bool]]:
    """In which cells FAIR-FATE is fairer, and less accurate, at the largest MAX than at the smallest."""
    wide = rows.pivot_table(
        index=["dataset", "partition", "metric"], columns="max", values=["fairness", "accuracy"]
    )
    low, high = rows["max"].min(), rows["max"].max()
    fairer: pd.Series[bool] = wide[("fairness", high)] > wide[("fairness", low)]
    worse: pd.Series[bool] = wide[("accuracy", high)] < wide[("accuracy", low)]
    return fairer, worse


def _traded(findings: Findings, protocol: str) -> str:
    own = findings["max"].query("protocol == @protocol")
    if own.empty:
        return "not run"
    fairer, worse = _ends(own)
    both = (fairer & worse).sum()
    word = "holds mostly" if both >= 0.75 * len(fairer) else "holds in part"
    low, high = own["max"].min(), own["max"].max()
    ends = f"fairer and less accurate at MAX {high:g} than at {low:g}"
    return f"{word}: {ends} in {_percent(both, len(fairer))}"


def _steadier(findings: Findings, protocol: str) -> str:
    own = findings["swings"].query("protocol == @protocol")
    if own.empty:
        return "not run"
    means = own.groupby("strategy")[[f"{name}_swing" for name in METRICS]].mean().mean(axis=1)
    word = "holds" if means["fair_fate"] < means["fedavg"] else "does not hold"
    return f"{word}: fairness swings by {means['fair_fate']:.3f}, FedAvg's by {means['fedavg']:.3f}"


def _thresholds(findings: Findings) -> dict[str, Any] | None:
    """FAIR-FATE against FedAvg with thresholds, in the mean over cells."""
    own = findings["wins"].query("basis == 'paper, against FedAvg with thresholds'")
    if own.empty:
        return None
    means = findings["honest"].groupby("method")[["fairness", "accuracy"]].mean()
    return {
        "cells": len(own),
        "fairer": (own["rival_mean"] > own["fair_fate"]).sum(),
        "less_fair": (own["rival_mean"] < own["fair_fate"]).sum(),
        "own": dict(means.loc["fair_fate"]),
        "step": dict(means.loc["fedavg+thresholds"]),
    }


def _hollow(findings: Findings) -> dict[str, Any]:
    """The same counts without the cells in which a collapsed model is perfectly fair."""
    table, keys = findings["honest"], ["dataset", "partition", "metric"]
    own = table[table["method"] == "fair_fate"].set_index(keys)
    step = table[table["method"] == "fedavg+thresholds"].set_index(keys)
    rivals = table[~table["method"].isin(["fair_fate"]) & ~table["method"].str.contains("+", regex=False)]
    won = own["fairness"] > rivals.groupby(keys)["fairness"].max().reindex(own.index)
    collapsed = own["collapsed"] > 0
    clean = ~collapsed & (step["collapsed"].reindex(own.index) == 0)
    fair_fate, thresholds = own[clean], step.reindex(own.index)[clean]
    return {
        "won": won.sum(),
        "won_collapsed": (won & collapsed).sum(),
        "collapsed": own["collapsed"].sum(),
        "step_collapsed": step["collapsed"].sum(),
        "clean": clean.sum(),
        "won_clean": (won & clean).sum(),
        "ahead": (fair_fate["fairness"] > thresholds["fairness"]).sum(),
        "own": dict(fair_fate[["fairness", "accuracy"]].mean()),
        "step": dict(thresholds[["fairness", "accuracy"]].mean()),
    }


def _comparison(findings: Findings) -> dict[str, Any]:
    """The published protocol beside the print: what agrees, and the cells that do not."""
    table = findings["comparison"]
    usual, noted = table[table["note"] == ""], table[table["note"] != ""]
    repeats = noted[noted["note"] == "repeats the random split"]
    misprint = noted[noted["note"] == "misprint"]
    repeated = {
        "agree": _percent(repeats["agrees"].sum(), len(repeats)),
        "gap": (repeats["true_mean"] - repeats["printed"]).abs().mean(),
    }
    present = set(table["dataset"])
    ours = [f"{cell.ours:.2f}±{cell.ours_std:.2f}" for cell in misprint.itertuples()]
    return {
        "agree": _percent(usual["agrees"].sum(), len(usual)),
        "repeated": repeated if len(repeats) else None,
        "misprint": ours[0] if ours else "not run",
        "rows": [
            _disagreement(cell, usual) for cell in usual[~usual["agrees"].astype(bool)].to_dict("records")
        ],
        "faults": _faults(findings["faults"]),
        "tables": [(n, markdown(table, n)) for n, datasets in TABLES.items() if present & set(datasets)],
    }


def _disagreement(cell: Mapping[Any, Any], usual: pd.DataFrame) -> list[str]:
    """A cell that differs beyond sampling error."""
    return [
        f"{NAMES[cell['dataset']]} {'RND' if cell['split'] == 'rnd' else cell['split']}",
        LABELS[cell["row"]],
        MEASURES[cell["measure"]],
        f"{cell['printed']:.2f}±{cell['printed_std']:.2f}",
        f"{cell['ours']:.3f}±{cell['ours_std']:.3f}",
        f"{cell['difference']:+.3f}",
        f"{cell['p']:.4f}",
        _explain(cell, usual),
    ]


def _explain(cell: Mapping[Any, Any], usual: pd.DataFrame) -> str:
    """Why a cell disagrees: a known misprint, or how the other measures of the same runs compare."""
    key = (cell["dataset"], cell["split"], cell["row"], cell["measure"])
    if key in MISPRINTS:
        return MISPRINTS[key]
    same = usual[(usual["dataset"] == key[0]) & (usual["split"] == key[1]) & (usual["row"] == key[2])]
    others = same[same["measure"] != key[3]]
    return (
        f"no fault found; of the other measures of the same runs {others['agrees'].sum()} of {len(others)} agree, and"
        f" at this level {LEVEL * len(usual):.1f} of {len(usual)} cells are expected to differ by chance"
    )


def _faults(table: pd.DataFrame) -> list[list[str]]:
    """Published against exact metrics of the same models, by metric."""
    rows = []
    for metric, own in table.groupby("metric", sort=False):
        largest = own.iloc[own["difference"].abs().argmax()]
        where = f"{NAMES[largest['dataset']]} {largest['split']} {LABELS[largest['row']]}"
        mean, size = f"{own['difference'].mean():+.3f}", f"{own['difference'].abs().mean():.3f}"
        values = f"{largest['published']:.2f} instead of {largest['exact']:.2f}"
        rows.append([str(metric).upper(), mean, size, f"{where}: {values}"])
    return rows


def _honest(findings: Findings) -> dict[str, Any]:
    """The honest protocol: every cell, MAX, and how steady strategies are."""
    table = findings["honest"]
    grids = table.drop_duplicates("method").set_index("method")["grid"]
    return {
        "sizes": ", ".join(f"{method} {size}" for method, size in grids.items() if "+" not in str(method)),
        "rows": _tuned(table),
        "knob": _knob(findings["max"]),
        "stability": _stability(findings["swings"]),
    }


def _tuned(table: pd.DataFrame) -> list[list[str]]:
    rows = []
    order = {name: number for number, name in enumerate((*DATASETS, *SPLITS.values(), *METRICS))}
    cells = list(table.groupby(["dataset", "partition", "metric"], sort=False))
    for (dataset, partition, metric), cell in sorted(cells, key=lambda c: [order[str(k)] for k in c[0]]):
        by_method = cell.set_index("method")
        methods = [m for m in by_method.index if "+" not in m and m not in ("fair_fate", "fedavg")]
        rival = by_method.loc[methods, "fairness"].idxmax()
        shown = [
            _result(dict(by_method.loc[method]), method if method == rival else "")
            for method in ("fedavg", rival, "fair_fate", "fedavg+thresholds")
        ]
        rows.append([f"{NAMES[str(dataset)]} {_split(str(partition))}", str(metric).upper(), *shown])
    return rows


def _result(row: Mapping[Any, Any], name: str) -> str:
    label = f" {name}" if name else ""
    dagger = "†" if row["collapsed"] > 0 else ""
    return f"{row['fairness']:.2f} / {row['accuracy']:.2f}{dagger}{label}"


def _knob(table: pd.DataFrame) -> list[list[str]]:
    rows = []
    for (protocol, metric), own in table.groupby(["protocol", "metric"], sort=False):
        fairer, worse = _ends(own)
        means = own.groupby("max")[["fairness", "accuracy"]].mean()
        shown = ", ".join(f"{m:g}: {r['fairness']:.2f} / {r['accuracy']:.2f}" for m, r in means.iterrows())
        counts = [f"{which.sum()} of {len(fairer)}" for which in (fairer, worse, fairer & worse)]
        rows.append([str(protocol), str(metric).upper(), shown, *counts])
    return rows


def _stability(table: pd.DataFrame) -> dict[str, list[Any]]:
    """How much EQO varies over a run's last rounds: a row for each protocol and split."""
    methods = ("fedavg", "fedmom", "feddemon", "fedavg_lr", "fedavg_gr", "fedval", "fair_fate")
    strategies = [name for name in methods if name in set(table["strategy"])]
    rows = []
    for (protocol, partition), own in table.groupby(["protocol", "partition"], sort=False):
        swings = own.set_index("strategy")["eqo_swing"].reindex(strategies)
        shown = ["" if math.isnan(swing) else f"{swing:.3f}" for swing in swings]
        rows.append([str(protocol), _split(str(partition)), *shown])
    return {"strategies": strategies, "rows": rows}


def _collapsed(findings: Findings) -> list[list[str]]:
    table = findings["collapsed"]
    plain = table[~table["strategy"].str.contains("+", regex=False)]
    rows = []
    for (protocol, strategy, metric), own in plain.groupby(["protocol", "strategy", "metric"], sort=True):
        where = ", ".join(
            f"{NAMES[row['dataset']]} {_split(row['partition'])} {row['collapsed']} of {row['runs']}"
            for row in own.sort_values("collapsed", ascending=False).head(1).to_dict("records")
        )
        name = f"{strategy}({metric})" if metric else str(strategy)
        rows.append([str(protocol), name, f"{own['collapsed'].sum()}", where])
    return rows


def _cells(comparison: pd.DataFrame, datasets: tuple[str, ...]) -> pd.DataFrame:
    cells = comparison[comparison["dataset"].isin(datasets)].copy()
    cells["order"] = cells["row"].map({row: i for i, row in enumerate(ROWS)})
    cells["measure_order"] = cells["measure"].map({m: i for i, m in enumerate(MEASURES)})
    return cells.sort_values(["measure_order", "order"])


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
        texts = {(c["dataset"], c["split"]): _text(c) for _, c in cells.iterrows()}
        values = [texts.get((d, s), "") for d in datasets for s in splits]
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
        texts = {
            (c["dataset"], c["split"]): rf"${c['ours']:.2f}\pm{c['ours_std']:.2f}$ [{c['printed']:.2f}]"
            + ("" if c["agrees"] else r"$^{\neq}$")
            for _, c in cells.iterrows()
        }
        values = [texts.get((d, s), "") for d in datasets for s in splits]
        first = MEASURES[str(measure)] if measure != previous else ""
        lines.append(f"{first} & {LABELS[str(row)]} & {' & '.join(values)} " + r"\\")
        previous = measure
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"
