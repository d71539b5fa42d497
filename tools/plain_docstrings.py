"""How the site reads our docstrings: `name : what it is` is a list, and equations are plain text.

A Griffe extension. Types are in annotations only, so what follows a name in a numpydoc section is its
description.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

LISTS = ("Parameters", "Attributes", "Returns")
SIGNS = {
    r"\alpha": "α",
    r"\beta": "β",
    r"\Delta": "Δ",
    r"\epsilon": "ε",
    r"\eta": "η",
    r"\lambda": "λ",
    r"\theta": "θ",
    r"\sum": "Σ",
    r"\leftarrow": "←",
    r"\in": "∈",
    r"\max": "max",
    r"\qquad": "  ",
    r"\quad": "  ",
    r"\,": " ",
    r"\\": "\n",
    "&": "",
}
"""All that the equations of our docstrings need."""


def equation(latex: str) -> str:
    r"""An equation as plain text.

    >>> equation(r"\theta \leftarrow \theta + \sum_k \frac{n_k}{n} \Delta_k")
    'θ ← θ + Σ_k (n_k / n) Δ_k'
    """
    text = re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", r"(\1 / \2)", latex)
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\bar (\w)", r"mean \1", text)
    for sign in sorted(SIGNS, key=len, reverse=True):
        text = text.replace(sign, SIGNS[sign])
    return "\n".join(re.sub(r" {3,}", "   ", line).strip() for line in text.splitlines() if line.strip())


def plain(docstring: str) -> str:
    """The docstring with its lists and equations in Markdown."""
    lines, result, index, examples = docstring.splitlines(), [], 0, False
    while index < len(lines):
        line = lines[index]
        examples |= line == "Examples"  # which Griffe reads by itself
        if line.startswith(">>>") and not examples:
            inside = []
            while index < len(lines) and lines[index].strip():
                inside.append(lines[index])
                index += 1
            result += ["```pycon", *inside, "```", ""]
        elif line.strip().startswith(".. math::"):
            inside = [line.partition("::")[2]]
            index += 1
            while index < len(lines) and (not lines[index].strip() or lines[index].startswith("    ")):
                inside.append(lines[index])
                index += 1
            result += ["```text", *equation("\n".join(inside)).splitlines(), "```", ""]
        elif line in LISTS and index + 1 < len(lines) and set(lines[index + 1]) == {"-"}:
            end = index + 2
            while end < len(lines) and not (end + 1 < len(lines) and set(lines[end + 1].strip()) == {"-"}):
                end += 1
            result += [f"**{line}**", "", *_items(lines[index + 2 : end]), ""]
            index = end
        else:
            result.append(line)
            index += 1
    return "\n".join(result)


def _items(lines: list[str]) -> list[str]:
    """Entries, which begin at the margin and may go on below it."""
    items: list[str] = []
    for line in filter(str.strip, lines):
        if line[0] == " " and items:
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    results = []
    for item in items:
        names, colon, text = item.partition(" : ")
        if colon:
            shown = ", ".join(f"`{name.strip()}`" for name in names.split(","))
            results.append(f"- {shown}: {text}")
        else:
            results.append(f"- {item}")
    return results


class PlainDocstrings(griffe.Extension):
    """Rewrites every docstring before it is read."""

    def on_instance(self, *, obj: griffe.Object, **others: Any) -> None:
        """Called for each function, class, attribute and module."""
        if obj.docstring is not None:
            obj.docstring.value = plain(textwrap.dedent(obj.docstring.value))
