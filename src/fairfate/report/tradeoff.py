"""What each strategy gains in fairness and gives up in accuracy, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fairfate.data.groups import Groups
from fairfate.fairness.selection import pareto_front
from fairfate.report.canvas import (
    Canvas,
    Style,
    explain_empty,
    label_axes,
    plain,
    remark,
    style_of,
    wrap,
)
from fairfate.report.lines import (
    FEW_LINES,
    GREY,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


class Point(NamedTuple):
    """Where a strategy is in the last round."""

    line: Curve
    seeds: pd.DataFrame
    """(seeds, 2) accuracy and fairness."""
    mean: tuple[float, float]
    std: tuple[float, float]
    """NaN for one seed."""

    @classmethod
    def from_line(cls, line: Curve, metric: str, last: int) -> Point:
        """Of the rows of the last round."""
        final = line.rows[line.rows["round"] == last]
        seeds = pd.DataFrame({"accuracy": final["accuracy"], "fairness": final[metric]})
        mean, std = seeds.mean(skipna=False), seeds.std(skipna=False)
        return cls(line, seeds, (mean.iloc[0], mean.iloc[1]), (std.iloc[0], std.iloc[1]))


def trade_off(
    rounds: pd.DataFrame, metric: str = "eqo", groups: Groups | None = None, style: Style | None = None
) -> Canvas:
    """Accuracy against fairness on the test rows in the last round, and the front that no strategy beats.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    metric : the fairness metric, or an objective such as ``worst(sp, eo)``
    groups : what the counts of the rounds are counted by, for objectives
    style : the figure's width and font size, and whether it has a title
    """
    style = Style() if style is None else style
    test = on_test_rows(rounds, [metric], groups)
    points = [Point.from_line(line, metric, int(test["round"].max())) for line in lines_of(test)]
    defined = [point for point in points if point.mean[1] == point.mean[1]]
    widest, highest = (7.4, 5.6) if len(points) > FEW_LINES else (6.6, 4.7)
    width = widest * style.scale if style.width is None else style.width
    height = min(0.8 * width, highest * style.scale)
    figure = Canvas(width, height, style)
    panel = figure.subplots()
    label_axes(panel, "accuracy", axis_name(metric), width, height)
    last = int(test["round"].max())
    figure.heading(title(test, "bars", f"test rows, round {last}"))
    best = front(defined, metric)
    many = sum(bool(point.line.flaw) for point in points) > _FEW_FLAWED
    shown = [_handle(point.line, style, point.line.label if many else "") for point in points]
    figure.key([*shown, *(_flaw_handles(points, style) if many else ()), *_front_line(panel, best)])
    if not defined:
        explain_empty(panel, undefined_text(metric), width)
        return figure
    missing = [point.line.label for point in points if point not in defined]
    if missing:
        remark(panel, undefined_for(missing), width)
    _draw(panel, defined, best, metric)
    return figure


def front(points: Sequence[Point], metric: str) -> list[Point]:
    """The strategies that no other one beats in accuracy and in fairness, from left to right.

    Flawed ones are left out: one answer for everybody is fair, and of no use.
    """
    alive = [point for point in points if not point.line.flaw]
    sign = -1 if metric.endswith("_diff") else 1
    return [alive[i] for i in pareto_front((x, sign * y) for x, y in (point.mean for point in alive))]


def _draw(panel: Axes, points: Sequence[Point], best: Sequence[Point], metric: str) -> None:
    for point in points:
        _draw_point(panel, point, len(points) > FEW_LINES)
    panel.set_xlim(_span(points, 0, "accuracy"))
    panel.set_ylim(_span(points, 1, metric))
    words = [(point, point.line.label) for point in best]
    flawed = [(point, point.line.flaw) for point in points if point.line.flaw]
    words += flawed if len(flawed) <= _FEW_FLAWED else []  # more are marked once, in the legend
    _label(panel, points, words)


def _flaw_handles(points: Sequence[Point], style: Style) -> list[Any]:
    """What a hollow marker means, once for each flaw."""
    lines = {point.line.flaw: point.line for point in points if point.line.flaw}
    return [_handle(line, style, f"hollow: {flaw}") for flaw, line in lines.items()]


def _front_line(panel: Axes, best: Sequence[Point]) -> list[Any]:
    """Steps from one strategy of the front to the next; nothing to join for a single one."""
    if len(best) < 2:
        return []
    x, y = zip(*(point.mean for point in best), strict=True)
    words = "front: no other is better in both"
    look: dict[str, Any] = {"drawstyle": "steps-pre", "color": "#BBBBBB", "zorder": 1}
    return panel.plot(x, y, label=words, linewidth=3 * style_of(panel).scale, **look)


def _draw_point(panel: Axes, point: Point, many: bool) -> None:
    """The mean with its bars, and each seed; among many strategies, paler bars and no seeds."""
    line, scale = point.line, style_of(panel).scale
    if not many:
        panel.plot(
            point.seeds["accuracy"],
            point.seeds["fairness"],
            linestyle="",
            marker=line.marker,
            markersize=3.5 * scale,
            markeredgewidth=0,
            clip_on=False,
            color=line.colour,
            alpha=0.35,
            zorder=2,
        )
    x, y = point.mean
    bars = [None if std != std else std for std in point.std]
    drawn = panel.errorbar(
        [x],
        [y],
        xerr=bars[0],
        yerr=bars[1],
        fmt=line.marker,
        color=line.colour,
        markersize=(7 if many else 8) * scale,
        markerfacecolor="white" if line.flaw else line.colour,
        markeredgecolor=line.colour if line.flaw else "white",
        markeredgewidth=(1 if line.flaw else 0.5 if many else 0.8) * scale,
        elinewidth=(0.6 if many else 0.8) * scale,
        capsize=2 * scale,
        label=line.key,
        zorder=3,
    )
    whole_marker(drawn)
    for bar in (*drawn.lines[1], *drawn.lines[2]) if many else ():
        bar.set_alpha(0.45)
        bar.set_zorder(2)


def _handle(line: Curve, style: Style, name: str = "") -> Any:
    from matplotlib.lines import Line2D

    inside = "white" if line.flaw else line.colour
    look: dict[str, Any] = {"marker": line.marker, "markersize": 7 * style.scale, "markerfacecolor": inside}
    return Line2D([], [], linestyle="", color=line.colour, label=name or line.key, **look)


def _span(points: Sequence[Point], axis: int, metric: str) -> tuple[float, float]:
    """From the lowest to the highest seed or bar, with room for labels."""
    values = []
    for point in points:
        std = 0.0 if point.std[axis] != point.std[axis] else point.std[axis]
        values += [point.mean[axis] - std, point.mean[axis] + std, *point.seeds.iloc[:, axis]]
    return widened(min(values), max(values), metric, 0.1)


_FEW_FLAWED = 3
"""Flawed strategies that are named as such beside their points."""
_NAME = 0.9
"""The size of a name beside its point, as a share of the font size."""
_FAR = 12
"""Points above or below its strategy from which a name has a line to it."""
_LABEL_OFFSETS = [
    (side * distance, height * distance)
    for distance in (8, 14, 22, 32, 44, 58, 74, 92, 112)
    for side, height in (
        (1, 0.7),
        (-1, 0.7),
        (1, -0.7),
        (-1, -0.7),
        (0, 1.2),
        (0, -1.2),
        (0.4, 1),
        (-0.4, -1),
    )
]
"""Where a label may stand, in points from its strategy; the first of the best is taken."""


def _label(panel: Axes, points: Sequence[Point], words: Sequence[tuple[Point, str]]) -> None:
    """Names beside their points, where they cover neither points nor each other, and few bars.

    A name that would is left to the legend.
    """
    figure: Any = panel.get_figure()
    figure.draw_without_rendering()  # settles where the panel is
    style, point_size = style_of(panel), figure.dpi / 72
    hard, soft = _obstacles(panel, points)
    for point, word in words:
        name = plain(wrap(word, 0.45 * panel.bbox.width / figure.dpi, _NAME * style.font_size))
        text = _annotate(panel, point, name)
        x, y = panel.transData.transform(point.mean)
        free = []
        extent = _extent(text)
        for right, up in _LABEL_OFFSETS:
            offset = right * style.scale * point_size, up * style.scale * point_size
            box = _moved(extent, x + offset[0], y + offset[1], right, up)
            if _is_inside(box, panel.bbox) and not box.count_overlaps(hard):
                free.append((box.count_overlaps(soft) + 0.1 * (abs(right) + abs(up)), (right, up), box))
        if not free:
            text.remove()
            continue
        _, position, box = min(free, key=lambda option: option[0])
        _put(text, position, style.scale)
        hard.append(box.padded(2 * point_size))


def _annotate(panel: Axes, point: Point, word: str) -> Annotation:
    """A name, which has yet to be put beside its point."""
    style = style_of(panel)
    text = panel.annotate(
        word,
        point.mean,
        (0, 0),
        textcoords="offset points",
        fontsize=_NAME * style.font_size,
        color=GREY if point.line.flaw else "black",
        arrowprops={"arrowstyle": "-", "linewidth": 0.6 * style.scale, "color": "#555555"},
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        zorder=5,
    )
    text.set_in_layout(False)
    return text


def _put(text: Annotation, position: tuple[float, float], scale: float) -> None:
    """Move a name to its place; one that is far from its point keeps the line to it."""
    right, up = position
    text.set_position((right * scale, up * scale))
    text.set_horizontalalignment("left" if right > 0 else "right" if right < 0 else "center")
    text.set_verticalalignment("bottom" if up > 0 else "top")
    if abs(up) <= _FAR and text.arrow_patch is not None:
        text.arrow_patch.set_visible(False)


def _extent(text: Annotation) -> Bbox:
    """How large a name is, without the line to its point."""
    from matplotlib.text import Text

    return Text.get_window_extent(text)


def _moved(box: Bbox, x: float, y: float, right: float, up: float) -> Bbox:
    """A name's box once it is put at (x, y)."""
    from matplotlib.transforms import Bbox

    left = x if right > 0 else x - box.width if right < 0 else x - box.width / 2
    return Bbox.from_bounds(left, y if up > 0 else y - box.height, box.width, box.height)


def _obstacles(panel: Axes, points: Sequence[Point]) -> tuple[list[Bbox], list[Bbox]]:
    """What a label must not cover: points; and should not: bars and single seeds."""
    hard = [_box(panel, point.mean, point.mean, 6 * style_of(panel).scale) for point in points]
    soft = []
    for point in points:
        (x, y), (wide, high) = point.mean, (0.0 if std != std else std for std in point.std)
        soft += [_box(panel, (x - wide, y), (x + wide, y), 1), _box(panel, (x, y - high), (x, y + high), 1)]
        soft += [_box(panel, (x, y), (x, y), 2) for x, y in point.seeds.to_numpy()]
    return hard, soft


def _box(panel: Axes, low: tuple[float, float], high: tuple[float, float], padding: float) -> Bbox:
    """A box on the page around two points, with some padding."""
    from matplotlib.transforms import Bbox

    figure: Any = panel.get_figure()
    return Bbox(panel.transData.transform([low, high])).padded(padding * figure.dpi / 72)


def _is_inside(box: Bbox, panel: Bbox) -> bool:
    return bool(panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0 and box.y1 <= panel.y1)
