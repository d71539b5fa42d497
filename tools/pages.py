"""Write the pages and tables that are made from the code and from measurements; ``--check`` only compares.

python tools/pages.py
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import attacks_page
import benchmark_page
import choosing_tables
import cli_page
import individual_table
import methods_page
import needs_table
import options_page
import performance_tables
import privacy_tables
import validation_tables

from fairfate.studies.reproduce.findings import read
from fairfate.studies.reproduce.page import page as reproduction_page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WHOLE: dict[str, Callable[[], str]] = {
    "cli.md": cli_page.page,
    "options.md": options_page.page,
    "methods.md": methods_page.page,
    "benchmark.md": benchmark_page.page,
    "benchmark.html": benchmark_page.interactive,
    "reproduction.md": lambda: reproduction_page(read(ROOT / "reproduce" / "results"), "images/reproduction"),
}
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "privacy.md": {"needs": needs_table.table} | privacy_tables.ATTACK_TABLES,
    "privacy-cost.md": privacy_tables.COST_TABLES,
    "choosing.md": choosing_tables.TABLES,
    "attacks.md": attacks_page.TABLES,
    "validation.md": validation_tables.TABLES,
    "performance.md": performance_tables.TABLES,
    "fairness.md": individual_table.TABLES,
}
"""Tables inside of pages, between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""


def pages() -> dict[Path, str]:
    """What each page should be."""
    results = {DOCS / name: make() for name, make in WHOLE.items()}
    for name, tables in PARTS.items():
        text = (DOCS / name).read_text()
        for key, make in tables.items():
            pattern = rf"(<!-- generated: {key} -->\n).*?(<!-- end -->)"
            text, count = re.subn(pattern, lambda m, make=make: f"{m[1]}{make()}{m[2]}", text, flags=re.S)
            if count != 1:
                raise ValueError(f"{name} must have one place for the table '{key}', got {count}")
        results[DOCS / name] = text
    return results


def main() -> int:
    """Write, or compare; the exit code is 1 if a page is not current."""
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            sys.stderr.write(f"docs/{path.name} is not current: python tools/pages.py\n")
        return int(bool(stale))
    for path, text in pages().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
