"""Figures, readable in print and for colour-blind readers. A strategy has the same colour in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.files import replacing
from fairfate.lazy import pandas as pd
from fairfate.report.lines import (
    Line,
    axis_name,
    heading,
    legend,
    lines_of,
    on_test_rows,
    page,
    say_undefined,
    tidy,
    title,
    undefined_for,
    whole_marker,
    widened,
)
from fairfate.runs.results import counts_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DODGE = 9.0
"""Points between strategies that are measured in the same single round."""


def over_rounds(
    rounds: pd.DataFrame,
    metrics: tuple[str, ...] = ("accuracy", "eqo"),
    groups: Groups | None = None,
) -> Figure:
    """Each metric over the rounds on the test rows: mean over seeds, and a band of one standard deviation.

    A strategy that is measured in one round only is a marker with an error bar. The y axes show what the
    strategies differ in, and not all that a metric could be.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    metrics : one panel for each; objectives too, such as ``worst(sp, eo)``
    groups : what the counts of the rounds are counted by, for objectives
    """
    metrics = tuple(dict.fromkeys(metrics))
    test = on_test_rows(rounds, metrics, groups)
    lines = lines_of(test)
    across = len(metrics) if len(metrics) < 4 else math.ceil(len(metrics) / math.ceil(len(metrics) / 3))
    down = math.ceil(len(metrics) / across)
    figure = page(max(4.4 * across, 5.4), 3.1 * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(metrics) :]:
        panel.remove()
    extra = []
    for panel, metric in zip(panels, metrics, strict=False):
        _panel(panel, metric, lines)
        if metric == "accuracy":
            extra += _majority_line(panel, test)
    heading(figure, title(test, "band"))
    legend(figure, [*(_handle(line) for line in lines), *extra])
    return figure


def _panel(panel: Axes, metric: str, lines: Sequence[Line]) -> None:
    """One metric of all strategies."""
    curves = [(line, line.curve(metric)) for line in lines]
    defined = [(line, curve) for line, curve in curves if curve["mean"].notna().any()]
    panel.set_xlabel("round")
    panel.set_ylabel(axis_name(metric))
    tidy(panel)
    if not defined:
        say_undefined(panel, metric)
        return
    missing = [line.label for line, curve in curves if curve["mean"].isna().all()]
    if missing:
        panel.set_title(undefined_for(missing), fontsize=8, color="#555555")
    single = 0
    for line, curve in defined:
        if len(curve) > 1:
            _draw_curve(panel, line, curve, len(lines))
        else:
            _draw_marker(panel, line, curve, single * _DODGE)
            single += 1
    panel.set_ylim(limits([curve for _, curve in defined], metric))
    first = min(int(curve.index.min()) for _, curve in curves)
    last = max(int(curve.index.max()) for _, curve in curves)
    room = max(last - first, 1) * (0.02 + single * _DODGE / 260)
    panel.set_xlim(first - (room if first == last else 0), last + room)
    locator: Any = panel.xaxis.get_major_locator()
    locator.set_params(integer=True)


def _draw_curve(panel: Axes, line: Line, curve: pd.DataFrame, among: int) -> None:
    """A line with its band; among many strategies, thinner and paler."""
    wide, shade = (1.6, 0.12) if among <= 4 else (1.3, 0.5 / among)
    look: dict[str, Any] = {"linestyle": line.dash, "linewidth": wide}
    panel.plot(curve.index, curve["mean"], color=line.colour, label=line.key, **look)
    low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
    panel.fill_between(curve.index, low, high, color=line.colour, alpha=shade, linewidth=0)


def _draw_marker(panel: Axes, line: Line, curve: pd.DataFrame, shift: float) -> None:
    """A single round; strategies with the same one stand side by side."""
    from matplotlib.transforms import ScaledTranslation

    figure = panel.get_figure()
    assert figure is not None
    move = panel.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    drawn = panel.errorbar(
        curve.index,
        curve["mean"],
        yerr=None if curve["std"].isna().all() else curve["std"],
        fmt=line.marker,
        color=line.colour,
        label=line.key,
        transform=move,
        **_BAR,
    )
    whole_marker(drawn)


_BAR: dict[str, Any] = {
    "markersize": 6.5,
    "markeredgecolor": "white",
    "markeredgewidth": 0.6,
    "elinewidth": 1.1,
    "capsize": 2.5,
    "zorder": 4,
}


def limits(curves: Sequence[pd.DataFrame], metric: str) -> tuple[float, float]:
    """Where a y axis starts and ends: where the strategies are once the first tenth of the rounds is over.

    From the 2nd to the 98th percentile of the means over seeds with their bands; the ends of all strategies
    are inside.
    """
    start = max(curve.index.max() for curve in curves) / 10
    spread = pd.concat([curve[curve.index > start] for curve in curves]).dropna(subset="mean").fillna(0)
    ends = pd.concat([curve.iloc[[-1]] for curve in curves]).fillna({"std": 0})
    ends.loc[[len(curve) > 1 for curve in curves], "std"] = 0
    if spread.empty:
        spread = pd.concat(curves).dropna(subset="mean").fillna(0)
    low = np.percentile(spread["mean"] - spread["std"], 2)
    high = np.percentile(spread["mean"] + spread["std"], 98)
    low = np.nanmin([low, *(ends["mean"] - ends["std"])])
    high = np.nanmax([high, *(ends["mean"] + ends["std"])])
    return widened(float(low), float(high), metric)


def majority(test: pd.DataFrame) -> float:
    """The accuracy of giving everybody the more frequent label, mean over seeds; NaN without counts."""
    try:
        labels = counts_of(test).sum(axis=(1, 3))
    except InputError:
        return math.nan
    share = pd.Series(labels.max(axis=1) / np.maximum(labels.sum(axis=1), 1), index=test.index)
    return float(share.groupby(test["seed"]).mean().mean())


def _majority_line(panel: Axes, test: pd.DataFrame) -> list[Any]:
    """A dotted line for the legend, which also says so if the line is outside the panel."""
    value = majority(test)
    if math.isnan(value):
        return []
    low, high = panel.get_ylim()
    outside = ", below the axis" if value < low else ", above the axis" if value > high else ""
    label = f"majority's label for all ({value:.3f}{outside})"
    line = panel.axhline(value, color="#555555", linestyle=(0, (1, 2)), linewidth=1.2, label=label, zorder=1)
    return [line]


def _handle(line: Line) -> Any:
    """For the legend, whichever panels it is in."""
    from matplotlib.lines import Line2D

    single = line.rows["round"].nunique() == 1
    look: dict[str, Any] = {"linestyle": "", "marker": line.marker} if single else {"linestyle": line.dash}
    return Line2D([], [], color=line.colour, linewidth=1.6, label=line.key, **look)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; the same figure gives the same bytes."""
    import matplotlib as mpl

    file = Path(path)
    kind = file.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"figure must end in .png, .svg or .pdf, got '{file}'")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with mpl.rc_context({"svg.hashsalt": "fairfate"}), replacing(file) as temporary:
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
        if kind == "png":
            _shrink(temporary)
    return file


def _shrink(path: Path) -> None:
    """Store a picture with a palette: 256 colours are enough for a plot, at a third of the size."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(path, format="PNG", optimize=True)
