"""The paper's figures 1, 2 and 3 for any dataset, the trade-off and the ablation grid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fairfate.data import Table
from fairfate.fairness.selection import pareto_front
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.report.lines import COLOURS, NAMES
from fairfate.studies.pages import split_name
from fairfate.studies.reproduce.printed import METRICS, SPLITS, TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = {
    "fedavg": "o",
    "fedmom": "s",
    "feddemon": "D",
    "fedavg_lr": "^",
    "fedavg_gr": "v",
    "fedval": "P",
    "fair_fate": "*",
    "fedavg+thresholds": "X",
    "fair_fate+thresholds": "h",
}
_COLOURS = {**COLOURS, "fedavg+thresholds": "#777777", "fair_fate+thresholds": "#CC79A7"}
_MAX_COLOURS = {0.8: "#0072B2", 0.9: "#009E73", 1.0: "#D55E00"}
_CELL_COLOURS = ("#E69F00", "#F5D08A", "#0072B2", "#8CC3E6")


def _figure(rows: int, columns: int, width: float = 3.1, height: float = 2.6) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _tidy(panel: Any) -> None:
    panel.grid(alpha=0.3, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def _legend(figure: Figure, panels: Any, columns: int = 5) -> None:
    handles: dict[str, Any] = {}
    for panel in np.ravel(panels):
        for handle, text in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False)


def distributions(table: Table, clients: int, published: bool = True, seed: int = 1) -> Figure:
    """Figure 1: each client's rows by (group, label), for sigma 0.5 and for a random split."""
    figure, panels = _figure(1, 2, 4.2, 3.0)
    for panel, partition in zip(panels[0], ("dirichlet:0.5", "random"), strict=True):
        federation = build(table, parse_partition(partition), clients, Streams(seed, published))
        counts = federation.client_cells.reshape(clients, -1)
        left = np.zeros(clients)
        for name, column, colour in zip(table.cell_names, counts.T, _CELL_COLOURS, strict=False):
            panel.barh(np.arange(1, clients + 1), column, left=left, color=colour, label=name)
            left += column
        panel.set_title(f"{TITLES.get(table.name, table.name)}, {split_name(partition)}", fontsize=10)
        panel.set_xlabel("training rows")
        panel.set_ylabel("client")
        panel.set_yticks(np.arange(1, clients + 1))
        panel.invert_yaxis()
        _tidy(panel)
    _legend(figure, panels, 2)
    return figure


def over_rounds(dataset: str, curves: pd.DataFrame) -> Figure:
    """Figure 2: accuracy and each fairness metric over the rounds, all strategies, one row for each split.

    Parameters
    ----------
    dataset : its name
    curves : columns partition, row, measure, round, mean, std; ``row`` as in the paper's tables
    """
    splits = [p for p in SPLITS.values() if p in set(curves["partition"])]
    measures = ["accuracy", *METRICS]
    figure, panels = _figure(len(splits), 4)
    for row_panels, partition in zip(panels, splits, strict=True):
        for panel, measure in zip(row_panels, measures, strict=True):
            goal = "eqo" if measure == "accuracy" else measure
            selected = curves[(curves["partition"] == partition) & (curves["measure"] == measure)]
            for name in ("fedavg", "fedmom", "feddemon", "fedavg_lr", "fedavg_gr", "fedval", "fair_fate"):
                row = f"{name}_{goal}" if name in ("fedval", "fair_fate") else name
                curve = selected[selected["row"] == row].sort_values("round")
                if curve.empty:
                    continue
                front = name == "fair_fate"
                panel.plot(
                    curve["round"],
                    curve["mean"],
                    color=_COLOURS[name],
                    linewidth=1.6 if front else 0.9,
                    zorder=3 if front else 2,
                    label=f"{name}",
                )
                low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
                panel.fill_between(curve["round"], low, high, color=_COLOURS[name], alpha=0.07, linewidth=0)
            panel.set_ylim(0, 1.02)
            panel.set_xlabel("round")
            panel.set_ylabel(NAMES[measure])
            panel.set_title(split_name(partition), fontsize=9)
            _tidy(panel)
    figure.suptitle(
        f"{TITLES[dataset]}: test rows, mean over seeds, band of one standard deviation", fontsize=10
    )
    _legend(figure, panels, 7)
    return figure


def max_tradeoff(dataset: str, runs: pd.DataFrame) -> Figure:
    """Figure 3: fairness against accuracy for each MAX; a point is one setting's mean over seeds."""
    selected = runs[(runs["dataset"] == dataset)]
    splits = [p for p in SPLITS.values() if p in set(selected["partition"])]
    figure, panels = _figure(len(METRICS), len(splits), 3.4, 2.6)
    for row_panels, metric in zip(panels, METRICS, strict=True):
        for panel, partition in zip(row_panels, splits, strict=True):
            here = selected[selected["partition"] == partition]
            own = here[(here["strategy"] == "fair_fate") & (here["metric"] == metric)]
            settings = own["settings"].map(json.loads)
            main = settings.map(lambda s: s["momentum"] == "decaying" and s["growth"] == "exponential")
            own = own[main].assign(maximum=settings[main].map(lambda s: s["max"]))
            for maximum, group in own.groupby("maximum"):
                means = group.groupby("settings")[["accuracy", metric]].mean()
                colour = _MAX_COLOURS.get(float(str(maximum)), "#CC79A7")
                panel.scatter(
                    means["accuracy"], means[metric], s=16, color=colour, label=f"MAX = {maximum:g}"
                )
                centre = means.mean()
                panel.scatter(centre["accuracy"], centre[metric], s=90, marker="+", linewidth=2, color=colour)
            base = here[here["strategy"] == "fedavg"][["accuracy", metric]].mean()
            panel.scatter(base["accuracy"], base[metric], s=40, color="black", marker="o", label="fedavg")
            panel.set_xlabel("accuracy")
            panel.set_ylabel(NAMES[metric])
            panel.set_title(split_name(partition), fontsize=9)
            _tidy(panel)
    figure.suptitle(f"{TITLES[dataset]}: FAIR-FATE's settings by MAX (+ their mean)", fontsize=10)
    _legend(figure, panels, 4)
    return figure


def tradeoff(dataset: str, table: pd.DataFrame) -> Figure:
    """Accuracy against each metric: every method as tuned on the validation rows, and the Pareto front.

    Parameters
    ----------
    dataset : its name
    table : of the honest protocol
    """
    selected = table[table["dataset"] == dataset]
    splits = [p for p in SPLITS.values() if p in set(selected["partition"])]
    figure, panels = _figure(len(splits), len(METRICS), 3.4, 2.7)
    for row_panels, partition in zip(panels, splits, strict=True):
        for panel, metric in zip(row_panels, METRICS, strict=True):
            methods = selected[(selected["partition"] == partition) & (selected["metric"] == metric)]
            for row in methods.to_dict("records"):
                method = row["method"]
                panel.errorbar(
                    row["accuracy"],
                    row["fairness"],
                    xerr=[[row["accuracy"] - row["accuracy_low"]], [row["accuracy_high"] - row["accuracy"]]],
                    yerr=[[row["fairness"] - row["fairness_low"]], [row["fairness_high"] - row["fairness"]]],
                    marker=MARKERS[method],
                    markersize=10 if method == "fair_fate" else 6,
                    color=_COLOURS[method],
                    markeredgecolor="black",
                    markeredgewidth=0.4,
                    elinewidth=0.7,
                    linestyle="none",
                    label=method,
                )
            front = pareto_front(zip(methods["accuracy"], methods["fairness"], strict=True))
            best = methods.iloc[front]
            panel.plot(
                best["accuracy"], best["fairness"], color="black", linewidth=0.8, linestyle=":", zorder=1
            )
            panel.set_xlabel("accuracy")
            panel.locator_params(axis="x", nbins=4)
            panel.set_ylabel(NAMES[metric])
            panel.set_title(split_name(partition), fontsize=9)
            _tidy(panel)
    figure.suptitle(
        f"{TITLES[dataset]}: tuned on validation rows, 95 % intervals, Pareto front dotted", fontsize=10
    )
    _legend(figure, panels, 5)
    return figure


def ablation(runs: pd.DataFrame, metric: str = "eqo") -> Figure:
    """The 3 x 3 grid of momentum and growth: fairness (colour, upper number) and accuracy, by dataset."""
    selected = runs[(runs["strategy"] == "fair_fate") & (runs["metric"] == metric)]
    settings = selected["settings"].map(json.loads)
    usual = settings.map(lambda s: (s["lam0"], s["rho"], s["max"], s["beta0"]) == (0.1, 0.05, 0.9, 0.9))
    selected = selected[usual].assign(
        momentum=settings[usual].map(lambda s: s["momentum"]),
        growth=settings[usual].map(lambda s: s["growth"]),
    )
    datasets = [d for d in TITLES if d in set(selected["dataset"])]
    splits = [p for p in SPLITS.values() if p in set(selected["partition"])]
    figure, panels = _figure(len(splits), len(datasets), 2.7, 2.4)
    momenta, growths = ("none", "constant", "decaying"), ("constant", "linear", "exponential")
    for row_panels, partition in zip(panels, splits, strict=True):
        for panel, dataset in zip(row_panels, datasets, strict=True):
            combinations = selected[(selected["partition"] == partition) & (selected["dataset"] == dataset)]
            means = combinations.groupby(["momentum", "growth"])[[metric, "accuracy"]].mean()
            values = np.array([[means[metric].get((m, g), np.nan) for g in growths] for m in momenta])
            panel.imshow(values, vmin=0, vmax=1, cmap="cividis", aspect="auto")
            for i, m in enumerate(momenta):
                for j, g in enumerate(growths):
                    if (m, g) in means.index:
                        text = f"{values[i, j]:.2f}\n{means['accuracy'][(m, g)]:.2f}"
                        colour = "white" if values[i, j] < 0.55 else "black"
                        panel.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
            panel.set_xticks(range(3), growths, fontsize=8)
            panel.set_yticks(range(3), momenta, fontsize=8)
            panel.set_xlabel("growth of λ", fontsize=8)
            panel.set_ylabel("momentum", fontsize=8)
            panel.set_title(f"{TITLES[dataset]}, {split_name(partition)}", fontsize=8)
    figure.suptitle(
        f"Ablation, F = {metric.upper()}: {metric.upper()} (upper) and accuracy (lower)", fontsize=10
    )
    return figure
