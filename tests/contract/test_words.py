"""Names say what they hold: a noun for a value, in the words of this field."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fairfate"
VAGUE = {
    *("alike", "by", "done", "found", "held", "holders", "judged", "mine", "of", "one"),
    *("place", "places", "said", "seen", "told"),
}
"""Words that name a value by what happened to it, or not at all."""


def names_in(text: str) -> set[str]:
    """The names that a module gives to values, arguments, functions and classes."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
    return names


def test_words_that_say_nothing_are_noticed() -> None:
    text = "def said(mine):\n    for one, rest in mine:\n        found = one\n    return lambda of: of"
    assert names_in(text) & VAGUE == {"said", "mine", "one", "found", "of"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_names_are_nouns_and_verbs(path: Path) -> None:
    assert not names_in(path.read_text("utf-8")) & VAGUE
