"""Names say what they hold: a noun for a value, a verb for a function, in the words of this field."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fairfate"
FILES = sorted(SOURCE.rglob("*.py"))
VAGUE = {
    *("alike", "by", "done", "found", "held", "holders", "judged", "mine", "of", "one"),
    *("place", "places", "said", "seen", "told"),
}
"""Words that name a value by what happened to it, or not at all."""
NO_VERBS = {"able", "alike", "lowered", "perform", "play", "ready", "said"}
"""Words that do not say what a function does."""
ALLOWED = {"_ONE", "HELD"}
"""A number in kernels, and the name of a message."""
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
SHARED_CLASSES = {"Candidates", "Checked", "Entry", "Party", "State", "Terms", "Training"}
"""Classes of the same name in several modules."""
SHARED_FUNCTIONS = {
    *("add", "benchmark", "check", "check_versions", "checked", "compare", "count", "counts_of", "describe"),
    *("export", "file_checksum", "group_rates", "init", "interval", "load", "log", "main", "measured"),
    *("name_of", "open_part", "option", "over_rounds", "pack", "page", "pin", "plain", "predict", "prepare"),
    *("read", "read_config", "read_frame", "read_rows", "render", "report", "reproduce", "run", "say"),
    *("select", "show", "sweep", "tradeoff", "train", "tune", "unpack", "write"),
}
"""Functions of the same name in several modules: most are a command and what it calls."""


def names_of(node: ast.AST) -> list[str]:
    """The names that a node gives to values, arguments, functions, classes or modules."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return [name]
        case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case (
            ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)) | ast.MatchMapping(rest=str(name))
        ):
            return [name]
    return []


def vague_names(text: str) -> set[str]:
    """The names of a module that do not say what they hold or do, whatever their case and underscores."""
    vague = set()
    for node in ast.walk(ast.parse(text)):
        words = VAGUE | NO_VERBS if isinstance(node, FUNCTION) else VAGUE
        vague |= {name for name in names_of(node) if name.strip("_").lower() in words}
    return vague - ALLOWED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "def said(mine):\n    for one, rest in mine:\n        found = one",
            {"said", "mine", "one", "found"},
        ),
        ("lambda of: of", {"of"}),
        ("_told = TOLD = Seen = 1", {"_told", "TOLD", "Seen"}),
        ("async def found(): ...", {"found"}),
        ("def _perform(): ...", {"_perform"}),
        ("try: ...\nexcept OSError as told: ...", {"told"}),
        ("import numpy as mine\nfrom a import b as place", {"mine", "place"}),
        ("match x:\n    case [one, *held]: ...\n    case {**seen}: ...", {"one", "held", "seen"}),
        ("self.found = 1", {"found"}),
        ("able = ready = path = 1", set()),
    ],
)
def test_words_that_say_nothing_are_noticed(text: str, expected: set[str]) -> None:
    assert vague_names(text) == expected


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_names_are_nouns_and_verbs(path: Path) -> None:
    assert not vague_names(path.read_text("utf-8"))


@pytest.mark.parametrize(("kind", "shared"), [(ast.ClassDef, SHARED_CLASSES), (FUNCTION, SHARED_FUNCTIONS)])
def test_public_names_have_one_meaning(kind: type[ast.AST], shared: set[str]) -> None:
    modules = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                modules[node.name].append(str(path.relative_to(SOURCE)))  # type: ignore[attr-defined]
    repeated = {name: paths for name, paths in modules.items() if len(paths) > 1 and name not in shared}
    assert not repeated
