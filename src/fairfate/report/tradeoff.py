"""What each strategy gains in fairness and gives up in accuracy, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairfate.data.groups import Groups
from fairfate.lazy import pandas as pd
from fairfate.report.lines import (
    GREY,
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


class Point(NamedTuple):
    """Where a strategy is in the last round."""

    line: Line
    seeds: pd.DataFrame
    """(seeds, 2) accuracy and fairness."""
    mean: tuple[float, float]
    std: tuple[float, float]
    """NaN for one seed."""

    @classmethod
    def of(cls, line: Line, metric: str, last: int) -> Point:
        """Of the rows of the last round."""
        final = line.rows[line.rows["round"] == last]
        seeds = pd.DataFrame({"accuracy": final["accuracy"], "fairness": final[metric]})
        mean, std = seeds.mean(skipna=False), seeds.std(skipna=False)
        return cls(line, seeds, (mean.iloc[0], mean.iloc[1]), (std.iloc[0], std.iloc[1]))


def trade_off(rounds: pd.DataFrame, metric: str = "eqo", groups: Groups | None = None) -> Figure:
    """Accuracy against fairness on the test rows in the last round, and the front that no strategy beats.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    metric : the fairness metric, or an objective such as ``worst(sp, eo)``
    groups : what the counts of the rounds are counted by, for objectives
    """
    test = on_test_rows(rounds, [metric], groups)
    points = [Point.of(line, metric, int(test["round"].max())) for line in lines_of(test)]
    defined = [point for point in points if point.mean[1] == point.mean[1]]
    figure = page(6.6, 5.2)
    panel = figure.subplots()
    panel.set_xlabel("accuracy")
    panel.set_ylabel(axis_name(metric))
    tidy(panel)
    last = int(test["round"].max())
    heading(figure, title(test, "bars", f"test rows, round {last}"))
    best = front(defined, metric)
    legend(figure, [*(_handle(point.line) for point in points), *_front_line(panel, best)])
    if not defined:
        say_undefined(panel, metric)
        return figure
    missing = [point.line.label for point in points if point not in defined]
    if missing:
        panel.set_title(undefined_for(missing), fontsize=8, color="#555555")
    _draw(panel, defined, best, metric)
    return figure


def front(points: Sequence[Point], metric: str) -> list[Point]:
    """The strategies that no other one beats in accuracy and in fairness, from left to right.

    Flawed ones are left out: one answer for everybody is fair, and of no use.
    """
    alive = [point for point in points if not point.line.flaw]
    sign = -1 if metric.endswith("_diff") else 1
    return [alive[i] for i in pareto((x, sign * y) for x, y in (point.mean for point in alive))]


def pareto(points: Iterable[tuple[float, float]]) -> list[int]:
    """The points that no other one beats in both coordinates, from left to right.

    >>> pareto([(0.5, 0.9), (0.7, 0.8), (0.6, 0.7), (0.8, 0.1)])
    [0, 1, 3]
    """
    listed = list(points)
    kept = [
        i
        for i, (x, y) in enumerate(listed)
        if not any((a >= x and b >= y) and (a > x or b > y) for a, b in listed)
    ]
    return sorted(kept, key=lambda i: listed[i])


def _draw(panel: Axes, points: Sequence[Point], best: Sequence[Point], metric: str) -> None:
    for point in points:
        _draw_point(panel, point)
    panel.set_xlim(_span(points, 0, "accuracy"))
    panel.set_ylim(_span(points, 1, metric))
    words = [(point, point.line.label) for point in best]
    words += [(point, point.line.flaw) for point in points if point.line.flaw]
    _label(panel, points, words)


def _front_line(panel: Axes, best: Sequence[Point]) -> list[Any]:
    """Steps from one strategy of the front to the next; nothing to join for a single one."""
    if len(best) < 2:
        return []
    x, y = zip(*(point.mean for point in best), strict=True)
    words = "front: no other is better in both"
    look: dict[str, Any] = {"drawstyle": "steps-pre", "color": "#BBBBBB", "linewidth": 3, "zorder": 1}
    return panel.plot(x, y, label=words, **look)


def _draw_point(panel: Axes, point: Point) -> None:
    line = point.line
    panel.plot(
        point.seeds["accuracy"],
        point.seeds["fairness"],
        linestyle="",
        marker=line.marker,
        markersize=3.5,
        markeredgewidth=0,
        clip_on=False,
        color=line.colour,
        alpha=0.35,
        zorder=2,
    )
    bars = [None if std != std else std for std in point.std]
    drawn = panel.errorbar(
        [point.mean[0]],
        [point.mean[1]],
        xerr=bars[0],
        yerr=bars[1],
        fmt=line.marker,
        color=line.colour,
        markersize=8,
        markerfacecolor="white" if line.flaw else line.colour,
        markeredgecolor=line.colour if line.flaw else "white",
        elinewidth=0.8,
        capsize=2,
        label=line.key,
        zorder=3,
    )
    whole_marker(drawn)


def _handle(line: Line) -> Any:
    from matplotlib.lines import Line2D

    inside = "white" if line.flaw else line.colour
    look: dict[str, Any] = {"marker": line.marker, "markersize": 7, "markerfacecolor": inside}
    return Line2D([], [], linestyle="", color=line.colour, label=line.key, **look)


def _span(points: Sequence[Point], axis: int, metric: str) -> tuple[float, float]:
    """From the lowest to the highest seed or bar, with room for labels."""
    values = []
    for point in points:
        std = 0.0 if point.std[axis] != point.std[axis] else point.std[axis]
        values += [point.mean[axis] - std, point.mean[axis] + std, *point.seeds.iloc[:, axis]]
    return widened(min(values), max(values), metric, 0.1)


_PLACES = [
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
    """Names beside their points, where they cover neither points and bars nor each other."""
    figure: Any = panel.get_figure()
    figure.draw_without_rendering()  # settles where the panel is
    hard, soft = _obstacles(panel, points)
    for point, word in words:
        tried = [_annotate(panel, point, word, place) for place in _PLACES]
        boxes = [_extent(text) for text in tried]
        near = [0.1 * (abs(right) + abs(up)) for right, up in _PLACES]
        costs = [_cost(box, panel.bbox, hard, soft) + far for box, far in zip(boxes, near, strict=True)]
        chosen = costs.index(min(costs))
        hard.append(boxes[chosen].padded(2))
        for place, text in enumerate(tried):
            if place != chosen:
                text.remove()


def _annotate(panel: Axes, point: Point, word: str, place: tuple[float, float]) -> Annotation:
    """A label; a far one has a line to its point."""
    from matplotlib.patheffects import withStroke

    right, up = place
    text = panel.annotate(
        word,
        point.mean,
        place,
        textcoords="offset points",
        ha="left" if right > 0 else "right" if right < 0 else "center",
        va="bottom" if up > 0 else "top",
        fontsize=9,
        color=GREY if point.line.flaw else "black",
        arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "#555555"} if abs(up) > 12 else None,
        path_effects=[withStroke(linewidth=2.5, foreground="white")],
        zorder=5,
    )
    text.set_in_layout(False)
    return text


def _extent(text: Annotation) -> Bbox:
    """Where the words are, without the line to their point."""
    from matplotlib.text import Text

    text.get_window_extent()  # settles where they are
    return Text.get_window_extent(text)


def _obstacles(panel: Axes, points: Sequence[Point]) -> tuple[list[Bbox], list[Bbox]]:
    """What a label must not cover: points; and should not: bars and single seeds."""
    hard = [_box(panel, point.mean, point.mean, 6) for point in points]
    soft = []
    for point in points:
        (x, y), (wide, high) = point.mean, (0.0 if std != std else std for std in point.std)
        soft += [_box(panel, (x - wide, y), (x + wide, y), 1), _box(panel, (x, y - high), (x, y + high), 1)]
        soft += [_box(panel, (x, y), (x, y), 2) for x, y in point.seeds.to_numpy()]
    return hard, soft


def _box(panel: Axes, low: tuple[float, float], high: tuple[float, float], room: float) -> Bbox:
    """A box on the page around two points, with some room."""
    from matplotlib.transforms import Bbox

    figure: Any = panel.get_figure()
    return Bbox(panel.transData.transform([low, high])).padded(room * figure.dpi / 72)


def _cost(box: Bbox, panel: Bbox, hard: Sequence[Bbox], soft: Sequence[Bbox]) -> float:
    """How badly a label would stand."""
    inside = panel.x0 <= box.x0 and box.x1 <= panel.x1 and panel.y0 <= box.y0 and box.y1 <= panel.y1
    return (not inside) * 1000.0 + box.count_overlaps(hard) * 20.0 + box.count_overlaps(soft)
