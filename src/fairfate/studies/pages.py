"""What the studies have in common: pages from templates, and the time that they took."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jinja2 import Environment

from fairfate.report.page import templates
from fairfate.storage import write_bytes

CLOCK = "seconds.txt"


def render(study: str, template: str, **values: Any) -> str:
    """A page from a study's template and the values that it names."""
    return _environment(study).get_template(template).render(values)


def _environment(study: str) -> Environment:
    environment = templates(f"fairfate.studies.{study}")
    environment.filters |= {"f": format, "known": format_known}
    environment.globals |= {"count": count, "split_name": split_name}
    return environment


def add_time(folder: Path, seconds: float) -> float:
    """Add to the time of all calls that filled a study's folder, also of those that were interrupted."""
    file = folder / CLOCK
    total = seconds + (float(file.read_text()) if file.is_file() else 0.0)
    write_bytes(file, f"{total:.1f}\n".encode())
    return total


def format_known(value: float, spec: str) -> str:
    """A number as `format` has it, with a space before a percent sign; nothing if it is undefined.

    >>> format_known(0.257, ".2f"), format_known(0.257, ".0%"), format_known(math.nan, ".2f")
    ('0.26', '26 %', '')
    """
    return "" if math.isnan(value) else format(value, spec).replace("%", " %")


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1.

    >>> count(1, "seed"), count(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def split_name(partition: str) -> str:
    """The name of a split on a page.

    >>> split_name("random"), split_name("dirichlet:0.5"), split_name("value-biased:0.8")
    ('random split', 'σ = 0.5', 'value-biased 0.8')
    """
    kind, _, number = partition.partition(":")
    named = {"random": "random split", "dirichlet": f"σ = {number}"}
    return named.get(kind, f"{kind} {number}")
