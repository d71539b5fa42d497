"""The figures of a run or a sweep, as files: metrics over the rounds, and what is gained and given up.

They are readable in print and for colour-blind readers; a strategy has the same colour in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check
from fairfate.experiments.runs import Run, read_runs
from fairfate.report.canvas import (
    LEAST_WIDTH,
    TEXT,
    Canvas,
    Style,
    explain_empty,
    label_axes,
    remark,
    style_of,
)
from fairfate.report.lines import (
    FEW_LINES,
    PERFORMANCE,
    Curve,
    axis_name,
    lines_of,
    on_test_rows,
    title,
    undefined_for,
    undefined_text,
    whole_marker,
    widened,
)
from fairfate.report.tradeoff import trade_off
from fairfate.results.folder import is_sweep
from fairfate.results.tables import counts_of
from fairfate.storage import check_output, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("rounds", "tradeoff", "both")
PANELS = ("accuracy", "sp", "eo", "eqo")
_DODGE = 9.0
"""Points between strategies that are measured in the same single round."""
_MARKS = 6
"""Markers on a curve among many."""


class Size(NamedTuple):
    """Of a panel with its labels, in inches."""

    width: float
    height: float


def over_rounds(
    rounds: pd.DataFrame,
    metrics: Sequence[str] = ("accuracy", "eqo"),
    groups: Groups | None = None,
    style: Style | None = None,
) -> Canvas:
    """Each metric over the rounds on the test rows: mean over seeds, and a band of one standard deviation.

    A strategy that is measured in one round only is a marker with an error bar. The y axes show what the
    strategies differ in, and not all that a metric could be. More than eight strategies have markers on their
    curves, and no bands.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    metrics : one panel for each; objectives too, such as ``worst(sp, eo)``
    groups : what the counts of the rounds are counted by, for objectives
    style : the figure's width and font size, and whether it has a title
    """
    style = Style() if style is None else style
    metrics = tuple(dict.fromkeys(metrics))
    test = on_test_rows(rounds, metrics, groups)
    lines = lines_of(test)
    many = len(lines) > FEW_LINES
    across, size = _layout(len(metrics), many, style)
    down = math.ceil(len(metrics) / across)
    figure = Canvas(size.width * across, size.height * down, style)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel in panels[len(metrics) :]:
        panel.remove()
    extra = []
    for panel, metric in zip(panels, metrics, strict=False):
        _panel(panel, metric, lines, size)
        if metric == "accuracy":
            extra += _majority_line(panel, test)
    figure.heading(title(test, "" if many else "band"))
    figure.key([*(_handle(line, many, style) for line in lines), *extra])
    return figure


def _layout(panels: int, many: bool, style: Style) -> tuple[int, Size]:
    """How many panels stand side by side, and the size of each."""
    widest, highest, ratio = (5.0, 4.0, 0.85) if many else (4.4, 3.1, 0.7)
    if style.width is None:
        fitting = 3 if panels != 4 else 2
        width = max(widest * fitting, 5.4) * style.scale
    else:
        width = style.width
        fitting = max(1, int(width / (LEAST_WIDTH * style.em)))
    across = math.ceil(panels / math.ceil(panels / fitting))
    each = width / across if style.width is not None else max(widest, 5.4 / across) * style.scale
    return across, Size(each, min(ratio * each, highest * style.scale))


def _panel(panel: Axes, metric: str, lines: Sequence[Curve], size: Size) -> None:
    """One metric of all strategies."""
    curves = [(line, line.curve(metric)) for line in lines]
    defined = [(line, curve) for line, curve in curves if curve["mean"].notna().any()]
    label_axes(panel, "round", axis_name(metric), *size)
    if not defined:
        explain_empty(panel, undefined_text(metric), size.width)
        return
    missing = [line.label for line, curve in curves if curve["mean"].isna().all()]
    if missing:
        remark(panel, undefined_for(missing), size.width)
    single = [(line, curve) for line, curve in defined if len(curve) == 1]
    inside = 72 * size.width - 6 * style_of(panel).font_size
    dodge = min(_DODGE * style_of(panel).scale, 0.4 * inside / max(len(single), 1))
    for number, (line, curve) in enumerate(defined):
        if len(curve) > 1:
            _draw_curve(panel, line, curve, number, len(lines))
    for number, (line, curve) in enumerate(single):
        _draw_marker(panel, line, curve, number * dodge)
    panel.set_ylim(limits([curve for _, curve in defined], metric))
    first = min(int(curve.index.min()) for _, curve in curves)
    last = max(int(curve.index.max()) for _, curve in curves)
    beside = len(single) * dodge
    margin = max(last - first, 1) * (0.02 + beside / (inside - beside))
    panel.set_xlim(first - (margin if first == last else 0), last + margin)
    locator: Any = panel.xaxis.get_major_locator()
    locator.set_params(integer=True)


def _draw_curve(panel: Axes, line: Curve, curve: pd.DataFrame, number: int, among: int) -> None:
    """A line with its band; among many strategies, a thinner one with markers."""
    scale = style_of(panel).scale
    look: dict[str, Any] = {"color": line.colour, "linestyle": line.dash, "label": line.key}
    look["linewidth"] = (1.6 if among <= 4 else 1.3 if among <= FEW_LINES else 1.0) * scale
    if among > FEW_LINES:
        step = max(1, len(curve) // _MARKS)
        look |= {**_marker(line, scale), "markevery": (number % step, step)}
    panel.plot(curve.index, curve["mean"], **look)
    if among <= FEW_LINES:
        low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
        alpha = 0.12 if among <= 4 else 0.5 / among
        panel.fill_between(curve.index, low, high, color=line.colour, alpha=alpha, linewidth=0)


def _marker(line: Curve, scale: float) -> dict[str, Any]:
    """Of a curve among many."""
    look = {"markersize": 4.5 * scale, "markeredgecolor": "white", "markeredgewidth": 0.4 * scale}
    return {"marker": line.marker, **look}


def _draw_marker(panel: Axes, line: Curve, curve: pd.DataFrame, shift: float) -> None:
    """A single round; strategies with the same one stand side by side."""
    from matplotlib.transforms import ScaledTranslation

    figure = panel.get_figure()
    assert figure is not None
    scale = style_of(panel).scale
    move = panel.transData + ScaledTranslation(shift / 72, 0, figure.dpi_scale_trans)
    drawn = panel.errorbar(
        curve.index,
        curve["mean"],
        yerr=None if curve["std"].isna().all() else curve["std"],
        fmt=line.marker,
        color=line.colour,
        label=line.key,
        transform=move,
        markersize=6.5 * scale,
        markeredgecolor="white",
        markeredgewidth=0.6 * scale,
        elinewidth=1.1 * scale,
        capsize=2.5 * scale,
        zorder=4,
    )
    whole_marker(drawn)


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
    look: dict[str, Any] = {"color": "#555555", "linestyle": (0, (1, 2)), "zorder": 1}
    look["linewidth"] = 1.2 * style_of(panel).scale
    return [panel.axhline(value, label=f"majority baseline ({value:.3f}{outside})", **look)]


def _handle(line: Curve, many: bool, style: Style) -> Any:
    """For the legend, whichever panels it is in."""
    from matplotlib.lines import Line2D

    single = line.rows["round"].nunique() == 1
    look: dict[str, Any] = {"linestyle": "", "marker": line.marker} if single else {"linestyle": line.dash}
    if many and not single:
        look |= _marker(line, style.scale)
    if single:
        look["markersize"] = 6.5 * style.scale
    return Line2D([], [], color=line.colour, linewidth=1.4 * style.scale, label=line.key, **look)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; the same figure gives the same bytes."""
    import matplotlib as mpl

    file = Path(path)
    kind = file.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"figure must end in .png, .svg or .pdf, got '{file}'")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with mpl.rc_context(TEXT), replacing(file) as temporary:
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


def draw(
    run: Path,
    metrics: Sequence[str] = (),
    out: Path | None = None,
    kind: str | None = None,
    style: Style | None = None,
    *,
    force: bool = False,
) -> Iterator[Path]:
    """Draw a run, or each dataset, partition and protocol of a sweep; gives each file once it is saved.

    Parameters
    ----------
    run : folder
    metrics : panels over the rounds; the first that is about fairness is the trade-off's
    out : file of a run's figure; without it, both figures are saved in the folder
    kind : rounds, tradeoff or both; both if None, or rounds with ``out``
    style : the figures' width and font size, and whether they have titles
    force : whether ``out`` may exist, and is replaced
    """
    chosen = kind if kind is not None else "both" if out is None else "rounds"
    check(chosen in KINDS, f"kind must be one of {'|'.join(KINDS)}", f"'{chosen}'")
    if out is not None and is_sweep(run):
        raise InputError(f"out must be left out for a sweep, which has files of its own, got '{out}'")
    for path in () if out is None else (out, _beside(out)) if chosen == "both" else (out,):
        check_output(path, force=force)
    for part in read_runs(run):
        for drawn in ("rounds", "tradeoff") if chosen == "both" else (chosen,):
            beside = drawn == "tradeoff" and chosen == "both"
            path = _file(run, part.name, drawn) if out is None else _beside(out) if beside else out
            yield _save(part, tuple(metrics), drawn, path, style)


def _file(run: Path, name: str, kind: str) -> Path:
    folder = run if run.is_dir() else run.parent
    return folder / (f"{name}-{kind}.png" if name else f"{kind}.png")


def _beside(out: Path) -> Path:
    return out.with_name(f"{out.stem}-tradeoff{out.suffix}")


def _save(part: Run, metrics: tuple[str, ...], kind: str, path: Path, style: Style | None) -> Path:
    """Draw and save one figure."""
    fair = next((metric for metric in metrics if metric not in PERFORMANCE), part.metric)
    shown = (metrics or PANELS) if kind == "rounds" else (fair,)
    rounds, groups = part.rounds, part.grouping
    if kind == "rounds":
        return save(over_rounds(rounds, shown, groups, style), path)
    return save(trade_off(rounds, fair, groups, style), path)
