"""How large a figure and its text are, and whether it has a title: for papers, which have captions."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fairfate.errors import check

FONT_SIZE = 10.0
"""Points, of axis labels and titles; legends are a tenth smaller."""
LEAST_WIDTH = 24.0
"""Of a figure, as a multiple of its font size: below it, axis labels have no room."""
_INCHES = {"": 1.0, "in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}
_LENGTH = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(in|cm|mm|)\s*")


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
