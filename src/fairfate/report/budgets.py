"""Accuracy and fairness against the budget of differential privacy, from a sweep's summary."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from fairfate.errors import check
from fairfate.privacy.budget import parse_budget
from fairfate.report.canvas import Canvas, Style, label_axes
from fairfate.report.lines import axis_name
from fairfate.results.summary import row_names

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
_WIDTH, _HEIGHT = 3.4, 2.3
_SPREAD = 0.4
"""How far apart the strategies of one budget stand, of the distance between budgets."""


def over_budgets(
    summary: pd.DataFrame,
    metrics: Sequence[str] = ("accuracy", "mcc", "eqo"),
    style: Style | None = None,
) -> Canvas:
    """Each metric against epsilon: means over seeds, and bars of one standard deviation.

    Parameters
    ----------
    summary : of a sweep whose plans differ in ``privacy``
    metrics : one column of panels for each
    style : the figure's width and font size, and whether it has a title

    Returns
    -------
    a figure with a row of panels for each dataset and split
    """
    from matplotlib.lines import Line2D

    check("privacy" in summary, "summary must be of a sweep over privacy", list(summary.columns[:6]))
    style = Style() if style is None else style
    rows = summary.assign(name=row_names(summary), epsilon=[_epsilon(text) for text in summary["privacy"]])
    budgets = sorted(set(rows["epsilon"]))
    names = list(dict.fromkeys(rows["name"]))
    parts = list(rows.groupby(["dataset", "partition"], sort=False))
    scale = style.scale
    figure = Canvas(_WIDTH * len(metrics) * scale, _HEIGHT * len(parts) * scale, style)
    panels = figure.subplots(len(parts), len(metrics), squeeze=False)
    colours = {name: f"C{number}" for number, name in enumerate(names)}
    for line, ((dataset, partition), part) in zip(panels, parts, strict=True):
        for panel, metric in zip(line, metrics, strict=True):
            for number, name in enumerate(names):
                own = part[part["name"] == name].set_index("epsilon").reindex(budgets)
                shift = _SPREAD * (number / max(len(names) - 1, 1) - 0.5)
                panel.errorbar(
                    np.arange(len(budgets)) + shift,
                    own[f"{metric}_last_mean"],
                    own[f"{metric}_last_std"].fillna(0),
                    color=colours[name],
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=4 * scale,
                    linewidth=1.2 * scale,
                    elinewidth=0.8 * scale,
                )
            panel.set_xticks(range(len(budgets)), [_name(budget) for budget in budgets])
            label_axes(panel, f"epsilon ({dataset}, {partition})", axis_name(metric), _WIDTH, _HEIGHT)
    figure.heading("Means over seeds on the test rows; bars: one standard deviation")
    marks = [
        Line2D([], [], color=colours[name], marker=MARKERS[number % len(MARKERS)], label=name)
        for number, name in enumerate(names)
    ]
    figure.key(marks)
    return figure


def _epsilon(text: str) -> float:
    budget = parse_budget(text)
    return math.inf if budget is None else budget.epsilon


def _name(epsilon: float) -> str:
    return "none" if math.isinf(epsilon) else f"{epsilon:g}"
