"""Figures that notebooks show: how large they and their text are, with titles and legends that fit."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import text_to_path

from fairfate.errors import check

FONT_SIZE = 10.0
"""Points, of axis labels and titles; legends are a tenth smaller."""
LEAST_WIDTH = 24.0
"""Of a figure, as a multiple of its font size: below it, axis labels have no room."""
_INCHES = {"": 1.0, "in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
_LENGTH = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(in|cm|mm|)\s*")
TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "fairfate"}
"""Text stays text in SVG and PDF, and equal figures have equal bytes."""
_LEGEND = 0.9
"""The size of a legend's text, as a share of the font size."""
_TICKS = 0.9
_PALE = "#555555"
_MARGIN = 0.97
"""Of a line's width: a renderer rounds the widths of letters."""


@dataclass(frozen=True)
class Style:
    """The size of a figure and of its text."""

    width: float | None = None
    """Inches; None for as wide as the panels need."""
    font_size: float = FONT_SIZE
    """Points."""
    title: bool = True

    def __post_init__(self) -> None:
        """Refuse what leaves no room for a panel."""
        check(4 <= self.font_size <= 40, "font-size must be from 4 to 40 points", f"{self.font_size:g}")
        least = LEAST_WIDTH * self.font_size / 72
        rule = f"width must be from {least:.1f} to 40 inches for a font size of {self.font_size:g}"
        check(self.width is None or least <= self.width <= 40, rule, f"{self.width or 0:g}")

    @property
    def scale(self) -> float:
        """Of lines and markers, which grow with the text."""
        return self.font_size / FONT_SIZE

    @property
    def em(self) -> float:
        """The font size in inches."""
        return self.font_size / 72


def parse_length(text: str) -> float:
    """Inches, of a length with or without a unit.

    >>> [round(parse_length(text), 3) for text in ("3.5in", "8.89 cm", "88.9mm", "3.5")]
    [3.5, 3.5, 3.5, 3.5]
    """
    match = _LENGTH.fullmatch(text)
    length = math.nan if match is None else float(match[1]) * _INCHES[match[2]]
    check(math.isfinite(length), "width must be a length such as 3.5in, 9cm or 90mm", f"'{text}'")
    return length


class Canvas(Figure):
    """A figure that belongs to no window: a notebook shows it once, where it is the value of a cell."""

    def __init__(self, width: float, height: float, style: Style) -> None:
        """Empty; its parts keep a distance."""
        space = ConstrainedLayoutEngine(w_pad=0.6 * style.em, h_pad=0.45 * style.em)
        super().__init__(figsize=(width, height), layout=space)
        self.style = style

    def savefig(self, *args: Any, **options: Any) -> None:
        """As matplotlib's."""
        with mpl.rc_context(TEXT):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        """For notebooks, where matplotlib shows only what pyplot has made."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def grow(self, inches: float) -> None:
        """Make the page higher."""
        width, height = self.get_size_inches()
        self.set_size_inches(width, height + inches)

    def heading(self, text: str) -> None:
        """A title above the panels; the figure grows by its height."""
        if not self.style.title:
            return
        width = self.get_size_inches()[0] - 2 * self.style.em
        lines = [wrap(line, width, self.style.font_size) for line in text.splitlines()]
        drawn = self.suptitle(plain("\n".join(lines)), fontsize=self.style.font_size)
        size = self.style.font_size
        while drawn.get_window_extent().width > width * self.dpi:  # a word that is wider than the page
            drawn.set_fontsize(size := 0.9 * size)
        self.grow(drawn.get_window_extent().height / self.dpi + self.style.em)

    def key(self, handles: Sequence[Any]) -> None:
        """A legend below the panels, in as many columns as fit; the figure grows by its height."""
        size = _LEGEND * self.style.font_size
        width = self.get_size_inches()[0] - self.style.em
        beside = 5 * size / 72  # the line or marker, and the space around it
        half = width / 2 - beside
        label_width = half if half > 28 * size / 72 else width - beside
        for handle in handles:
            handle.set_label(plain(wrap(str(handle.get_label()), label_width, size)))
        for most in range(min(len(handles), 5), 0, -1):
            columns = math.ceil(len(handles) / math.ceil(len(handles) / most))  # of equal heights
            legend = self.legend(
                handles=list(handles),
                loc="outside lower center",
                ncols=columns,
                frameon=False,
                fontsize=size,
                handlelength=3,
                columnspacing=1.5,
                borderaxespad=0.2,
            )
            box = legend.get_window_extent()
            if most == 1 or box.width <= width * self.dpi:
                self.grow(box.height / self.dpi)
                return
            legend.remove()


@cache
def text_width(text: str, size: float) -> float:
    """In inches."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)
    return float(width) / 72


def plain(text: str) -> str:
    """A text in which no dollar sign begins a formula."""
    return text.replace("$", r"\$")


def wrap(text: str, width: float, size: float) -> str:
    """Lines of at most so many inches, broken between words only: a longer word stays whole.

    >>> wrap("fair_fate(lam0=0.5, max=0.8)+average", 1.4, 10).splitlines()
    ['fair_fate(lam0=0.5,', 'max=0.8)+', 'average']
    """
    lines = [""]
    for word in _words(text, width, size):
        if lines[-1] and text_width((lines[-1] + word).rstrip(), size) > width * _MARGIN:
            lines.append(word)
        else:
            lines[-1] += word
    return "\n".join(line.strip() for line in lines)


def _words(text: str, width: float, size: float) -> list[str]:
    """What may stand in a line by itself: parts of names too, where a whole name is too wide."""
    words: list[str] = re.findall(r"[^\s+]*(?:\+|\s+|$)", text)
    parts = []
    for word in filter(None, words):
        fits = text_width(word.rstrip(), size) <= width * _MARGIN
        parts += [word] if fits else list(filter(None, re.findall(r"[^_(,:/-]*(?:[_(,:/-]+\s*|$)", word)))
    return parts


def label_axes(panel: Axes, across: str, up: str, width: float, height: float) -> None:
    """A light grid, two spines, and names of the axes that fit a panel of so many inches."""
    style = style_of(panel)
    panel.grid(alpha=0.3, linewidth=0.6 * style.scale)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_linewidth(0.8 * style.scale)
    panel.tick_params(labelsize=style.font_size * _TICKS, width=0.8 * style.scale, length=3.5 * style.scale)
    panel.set_xlabel(plain(wrap(across, width - 6 * style.em, style.font_size)), fontsize=style.font_size)
    panel.set_ylabel(plain(wrap(up, height - 4 * style.em, style.font_size)), fontsize=style.font_size)


def explain_empty(panel: Axes, text: str, width: float) -> None:
    """Words in an empty panel of so many inches."""
    style = style_of(panel)
    words = plain(wrap(text, min(width - 7 * style.em, 20 * style.em), style.font_size))
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": style.font_size, "color": _PALE}
    panel.text(0.5, 0.5, words, transform=panel.transAxes, **look)
    panel.set_xticks([])
    panel.set_yticks([])


def remark(panel: Axes, text: str, width: float) -> None:
    """A few words above a panel of so many inches."""
    size = 0.8 * style_of(panel).font_size
    panel.set_title(plain(wrap(text, width - 7 * size / 72, size)), fontsize=size, color=_PALE)


def style_of(panel: Axes) -> Style:
    """Of the figure that a panel is in."""
    figure = panel.get_figure()
    assert isinstance(figure, Canvas)
    return figure.style
