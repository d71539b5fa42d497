"""What is imported is what is asked for: other packages may bring it today and not tomorrow."""

from __future__ import annotations

import ast
from pathlib import Path

import fairfate

SOURCE = Path(fairfate.__file__).parent


def test_click_is_not_imported_since_newer_versions_of_typer_do_not_bring_it() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert "click" not in names, path
