"""The benchmark's pictures: mean ranks with the critical difference, and accuracy against fairness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairfate.report.figures import save
from fairfate.studies.benchmark.baselines import BASELINES, POOLED, SERVER
from fairfate.studies.benchmark.findings import Findings, Part
from fairfate.studies.benchmark.methods import AWARE, BLIND, LEADS, METRICS, REFERENCE
from fairfate.studies.pages import split_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GOALS = {"sp": "statistical parity", "eo": "equality of opportunity", "eqo": "equalized odds"}
NAMED = {
    "fedavg": ("#000000", "o"),
    REFERENCE: ("#56B4E9", "s"),
    "fair_fate": ("#D55E00", "*"),
    "fairfed": ("#CC79A7", "P"),
    "fedavg_lr+average": ("#009E73", "^"),
    "fairgrad+average": ("#8C6D1F", "v"),
    LEADS[AWARE]: ("#0072B2", "D"),
    LEADS[BLIND]: ("#003B5C", "d"),
    POOLED: ("#7F7F7F", "X"),
    SERVER: ("#E69F00", "h"),
}
OWN = ("#B0006D", ">")
"""Of the user's methods."""
_SHOWN = 25
"""Methods on the picture of ranks."""
_OTHER = ("#57606a", "o")


def ranks(findings: Findings, part: Part) -> Figure:
    """Mean ranks, the best on top; a grey line joins those that the test cannot tell from the best."""
    from matplotlib.figure import Figure

    mean, distance, cells = findings.ranks(part)
    shown = mean.iloc[:_SHOWN]
    shown = shown if set(findings.asked) <= set(shown.index) else mean
    figure = Figure(figsize=(7.4, 0.24 * len(shown) + 1.1), layout="constrained")
    panel = figure.subplots()
    positions = np.arange(len(shown))
    own = [name in findings.own for name in shown.index]
    looks = [
        OWN if is_own else NAMED.get(name, _OTHER) for is_own, name in zip(own, shown.index, strict=True)
    ]
    panel.barh(positions, shown, color=[colour for colour, _ in looks], height=0.62)
    title = f"All {len(mean)} methods" if len(shown) == len(mean) else f"The {len(shown)} best of {len(mean)}"
    if np.isfinite(distance):
        panel.axvspan(0, shown.iloc[0] + distance, color="#57606a", alpha=0.12, linewidth=0)
        title += f"; what lies in the shade ({distance:.1f} ranks) may be chance"
    panel.set_yticks(positions, [findings.label(name) for name in shown.index], fontsize=8)
    for label, is_own in zip(panel.get_yticklabels(), own, strict=True):
        label.set_fontweight("bold" if is_own else "normal")
    panel.invert_yaxis()
    for position, value in zip(positions, shown, strict=True):
        panel.annotate(
            f"{value:.1f}", (value, position), (3, 0), textcoords="offset points", va="center", size=7
        )
    federations = f"{cells} federation{'s' if cells > 1 else ''}"
    panel.set_xlabel(f"mean rank over {federations}, three metrics each", fontsize=9)
    panel.set_title(title, fontsize=9, loc="left")
    panel.spines[["top", "right"]].set_visible(False)
    return figure


def tradeoffs(findings: Findings, part: Part, goal: str = "eqo") -> Figure:
    """Every method's tuned model: accuracy against fairness, a panel for each federation."""
    from matplotlib.figure import Figure

    cells = findings.select_cells(part)
    cells = cells[cells["goal"] == goal]
    datasets, splits = list(dict.fromkeys(cells["dataset"])), list(dict.fromkeys(cells["partition"]))
    width = max(3.0 * len(splits) + 0.4, 5.8)  # two columns of the legend
    figure = Figure(figsize=(width, 2.3 * len(datasets) + 0.9), layout="constrained")
    panels = figure.subplots(len(datasets), len(splits), squeeze=False)
    handles = {}
    for row, dataset in zip(panels, datasets, strict=True):
        for panel, split in zip(row, splits, strict=True):
            here = cells[(cells["dataset"] == dataset) & (cells["partition"] == split)]
            if here.empty:
                panel.remove()
                continue
            reference = here[here["method"] == REFERENCE].iloc[0]
            panel.axvspan(
                reference["accuracy"] - 0.02, here["accuracy"].max() + 0.005, color="#0072B2", alpha=0.07
            )
            rest = here[~here["method"].isin([*NAMED, *findings.own, *BASELINES])]
            panel.scatter(rest["accuracy"], rest["fairness"], s=9, color="#a8b1bb", linewidths=0)
            for name, (colour, marker) in (NAMED | dict.fromkeys(findings.own, OWN)).items():
                points = here[here["method"] == name]
                if points.empty:
                    continue
                size = 62 if marker in ("*", OWN[1]) else 34
                edge: dict[str, Any] = {"edgecolors": "black", "zorder": 3} if name in findings.own else {}
                handles[findings.label(name)] = panel.scatter(
                    points["accuracy"], points["fairness"], s=size, color=colour, marker=marker, **edge
                )
            panel.set_title(f"{dataset}, {split_name(str(split))}", fontsize=9)
            panel.grid(alpha=0.3, linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=7)
    for panel in panels[-1]:
        panel.set_xlabel("accuracy (shade: within 0.02 of fedavg+average)", fontsize=7)
    figure.supylabel(GOALS[goal], fontsize=9)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=3 if len(splits) > 2 else 2,
        frameon=False,
        fontsize=8,
    )
    return figure


FIGURES = {"ranks": ranks, "tradeoffs": tradeoffs}
assert set(GOALS) == set(METRICS)


def write_pictures(folder: Path, findings: Findings) -> None:
    """Every picture of the page as SVG."""
    for part in findings.main:
        for name, draw in FIGURES.items():
            save(draw(findings, part), folder / f"{name}-{part.slug}.svg")
