"""The pictures of a report's first screen, as SVG: accuracy against fairness, and rates by group.

They are made of the report's numbers, need no script, and follow the page's colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560, 330
_LEFT, _TOP, _BOTTOM, _RIGHT = 52, 14, 44, 210
_LINE = 17
"""Pixels between two names."""
RATES = {"selection_rate": "selection rate", "tpr": "true positive rate", "fpr": "false positive rate"}
MOST_GROUPS = 8
"""More groups than this are not drawn."""


class PlottedModel(NamedTuple):
    """A model, or the mean of a strategy's."""

    name: str
    fairness: float
    accuracy: float
    kind: str
    """``recommended``, ``first``, ``other`` or ``pooled``."""


def points(report: Mapping[str, Any]) -> list[PlottedModel]:
    """What is compared in a report: its strategies, and models of the pooled rows; no collapsed ones."""
    metric, shown = report["about"]["headline"], []
    for number, row in enumerate(report["strategies"]):
        if row["flaw"]:
            continue
        kind = "recommended" if row["taken"] else "first" if number == 0 else "other"
        shown.append((row["strategy"], row[metric]["value"], row["accuracy"]["value"], kind))
    shown += [
        (row["name"], row.get(metric), row["accuracy"], "pooled")
        for row in report["baselines"]
        if not row["flaw"]
    ]
    return [PlottedModel(*row) for row in shown if row[1] is not None and row[2] is not None]


def tradeoff(report: Mapping[str, Any]) -> Markup:
    """Accuracy against fairness, a point for each strategy and baseline; empty with fewer than two."""
    marks = points(report)
    if len(marks) < 2:
        return Markup()
    metric, majority = str(report["about"]["headline"]), report["about"]["majority"]
    across = _Scale.fit([mark.fairness for mark in marks], _LEFT, WIDTH - _RIGHT)
    levels = [mark.accuracy for mark in marks] + ([] if majority is None else [majority])
    height = max(HEIGHT, _LINE * len(marks) + _TOP + _BOTTOM)
    up = _Scale.fit(levels, height - _BOTTOM, _TOP)
    parts = [_axes(across, up, height, f"{_name(metric)} (1 is equal)", "accuracy")]
    if majority is not None:
        y = up(majority)
        parts.append(
            f'<line class="majority" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="note" x="{_LEFT + 4}" y="{y - 4:.1f}">majority baseline</text>'
        )
    order = sorted(marks, key=lambda mark: -mark.accuracy)
    heights = _spread([up(mark.accuracy) for mark in order], _TOP + 8, height - _BOTTOM)
    for mark, y in zip(order, heights, strict=True):
        parts.append(_mark(mark, across(mark.fairness), up(mark.accuracy), y))
    label = f"Accuracy against {_name(metric)} of {len(marks)} models"
    return _svg(parts, height, label, "tradeoff")


def _mark(mark: PlottedModel, x: float, y: float, label: float) -> str:
    shape = (
        f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>'
        if mark.kind == "pooled"
        else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{8 if mark.kind == "recommended" else 5.5}"/>'
    )
    start = WIDTH - _RIGHT + 12
    numbers = f"accuracy {mark.accuracy:.3f}, fairness {mark.fairness:.3f}"
    return (
        f'<g class="{mark.kind}"><title>{escape(mark.name)}: {numbers}</title>'
        f'<line class="leader" x1="{x:.1f}" y1="{y:.1f}" x2="{start - 3}" y2="{label - 4:.1f}"/>{shape}'
        f'<text x="{start}" y="{label:.1f}">{escape(_short(mark.name, 28))}</text></g>'
    )


def group_rates(audit: Mapping[str, Any], shown: str) -> Markup:
    """Selection and error rates of each group under one model, with intervals; empty with many groups."""
    rows = [row for row in audit["rows"] if row["selection_rate"]["value"] is not None]
    if not 1 < len(rows) <= MOST_GROUPS:
        return Markup()
    left, right, step = 170, WIDTH - 24, _LINE + 3
    top = _TOP + 4
    height = top + len(RATES) * (len(rows) * step + 30) + 22
    parts, y = [], top
    for number in range(6):
        x = left + (right - left) * number / 5
        parts.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 24}"/>'
            f'<text class="tick" x="{x:.1f}" y="{height - 8}" text-anchor="middle">{number * 20} %</text>'
        )
    for rate, name in RATES.items():
        parts.append(f'<text class="heading" x="4" y="{y + 12}">{name}</text>')
        y += 20
        for row in rows:
            parts.append(_whisker(row["group"], row[rate], left, right, y + step / 2))
            y += step
        y += 10
    return _svg(parts, height, f"Rates by {audit['attribute']} under {shown}", "rates")


def _whisker(group: str, rate: Mapping[str, Any], left: float, right: float, y: float) -> str:
    name = f'<text x="162" y="{y + 4:.1f}" text-anchor="end">{escape(_short(group, 22))}</text>'
    if rate["value"] is None:
        return f'{name}<text class="note" x="{left + 4}" y="{y + 4:.1f}">too few people</text>'
    if not rate["enough"]:
        share = f"{100 * rate['value']:.1f} %, too few people to interpret"
        return f'{name}<text class="note" x="{left + 4}" y="{y + 4:.1f}">{share}</text>'
    at = {key: left + (right - left) * float(rate[key]) for key in ("value", "low", "high")}
    text = f"{100 * rate['value']:.1f} % ({100 * rate['low']:.1f} to {100 * rate['high']:.1f})"
    return (
        f"<g><title>{escape(group)}: {text}</title>{name}"
        f'<line class="interval" x1="{at["low"]:.1f}" x2="{at["high"]:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle cx="{at["value"]:.1f}" cy="{y:.1f}" r="4.5"/></g>'
    )


class _Scale(NamedTuple):
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    step: float

    @classmethod
    def fit(cls, values: Sequence[float], start: float, end: float) -> _Scale:
        low, high = min(values), max(values)
        pad = max(0.02, 0.12 * (high - low))
        low, high = max(0.0, low - pad), min(1.0, high + pad)
        step = next(size for size in (0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / size <= 6)
        return cls(low, high, start, end, step)

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return [round(number * self.step, 2) for number in range(first, last + 1)]


def _axes(across: _Scale, up: _Scale, height: int, x_name: str, y_name: str) -> str:
    bottom, right = height - _BOTTOM, WIDTH - _RIGHT
    lines = [f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{right - _LEFT}" height="{bottom - _TOP}"/>']
    for tick in across.ticks:
        x = f"{across(tick):.1f}"
        lines.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>'
            f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{tick:.2f}</text>'
        )
    for tick in up.ticks:
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:.2f}</text>'
        )
    middle = (_LEFT + right) / 2
    lines.append(f'<text x="{middle:.1f}" y="{height - 8}" text-anchor="middle">{escape(x_name)}</text>')
    level = (_TOP + bottom) / 2
    lines.append(
        f'<text x="14" y="{level:.1f}" text-anchor="middle" transform="rotate(-90 14 {level:.1f})">'
        f"{escape(y_name)}</text>"
    )
    return "".join(lines)


def _spread(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights in order, moved apart so that names do not overlap.

    >>> _spread([10, 12, 60], 0, 100)
    [10, 27, 60]
    """
    positions = list(heights)
    for number in range(1, len(positions)):
        positions[number] = max(positions[number], positions[number - 1] + _LINE)
    positions[-1] = min(positions[-1], bottom)
    for number in range(len(positions) - 2, -1, -1):
        positions[number] = min(positions[number], positions[number + 1] - _LINE)
    shift = max(0.0, top - positions[0])
    return [position + shift for position in positions] if shift else positions


def _svg(parts: Sequence[str], height: float, label: str, kind: str) -> Markup:
    inside = "".join(parts)
    return Markup(  # names in it are escaped above
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{inside}</svg>"
    )


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


def _name(metric: str) -> str:
    names = {"sp": "statistical parity", "eo": "equal opportunity", "eqo": "equalized odds"}
    return names.get(metric, metric)
