"""The report's files: the page, the same as JSON, the audit and the tests as CSV, and a model card."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.errors import InputError, check
from fairfate.experiments.results import CARD, REPORT
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.report.audit import FOUR_FIFTHS
from fairfate.report.card import card
from fairfate.report.contents import audit_rows, contents
from fairfate.report.material import Material
from fairfate.report.page import page
from fairfate.storage import check_output, spreadsheet_cell, write_bytes


def write_report(
    material: Sequence[Material], out: Path, line: float = FOUR_FIFTHS, *, force: bool = False
) -> Path:
    """Write the page, and beside it what it says as JSON and CSV; returns the page's path.

    Parameters
    ----------
    material : what runs have left
    out : the HTML file; the others have its name and their own endings
    line : the ratio that groups' rates should reach
    force : whether files of these names may be replaced
    """
    check(0 < line <= 1, "fair-from must be in (0, 1]", f"{line:g}")
    check(out.suffix.lower() in (".html", ".htm"), "out must be an HTML file", f"'{out}'")
    if out.is_dir():
        raise InputError(f"out must be an HTML file, got '{out}' (a folder)")
    beside = out.with_suffix("")
    audit, tests = Path(f"{beside}-audit.csv"), Path(f"{beside}-tests.csv")
    for path in (out, f"{beside}.json", audit, tests):
        check_output(path, force=force)
    told = [contents(found, line) for found in material]
    text = json.dumps({"version": __version__, "parts": told}, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(f"{beside}.json", f"{text}\n".encode())
    _write_csv(audit, [row for found in material for row in audit_rows(found)])
    _write_csv(tests, [row for part in told for row in part["tests"]["rows"]])
    write_bytes(out, page(material, told).encode())
    return out


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: spreadsheet_cell(value) for name, value in row.items()} for row in rows)
    write_bytes(path, text.getvalue().encode())


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    line: float = FOUR_FIFTHS,
    min_cell: int = MIN_CELL,
    *,
    force: bool = False,
) -> Path:
    """Write the report of some runs or sweeps: into the folder of the only one, or here for several.

    The report in a run's own folder is written anew; any other file is replaced with ``force`` only.
    """
    path = out or _usual(folders, REPORT)
    own = out is None and len(folders) == 1
    return write_report(Material.read(folders, min_cell), path, line, force=force or own)


def write_card(
    folders: Sequence[Path],
    out: Path | None = None,
    line: float = FOUR_FIFTHS,
    min_cell: int = MIN_CELL,
    *,
    force: bool = False,
) -> Path:
    """Write the model card of a run, as `report` writes its page."""
    path = out or _usual(folders, CARD)
    named = path.suffix.lower() == ".md" or path.is_dir()  # which is refused when it is written
    check(named, "out must be a Markdown file (.md) for a card", f"'{path}'")
    if out is not None or len(folders) > 1:
        check_output(path, force=force)
    material = Material.read(folders, min_cell)
    check(len(material) == 1, "run must be one run, or several on the same data, for a card", len(material))
    write_bytes(path, card(contents(material[0], line)).encode())
    return path


def _usual(folders: Sequence[Path], name: str) -> Path:
    if len(folders) > 1:
        return Path(name)
    return (folders[0] if folders[0].is_dir() else folders[0].parent) / name
