"""The report's files: one page that needs no other file, the same as JSON, audit and tests as CSV, and a model card."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from fairfate._version import __version__
from fairfate.errors import InputError, check
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.report.audit import FOUR_FIFTHS
from fairfate.report.charts import chart_data
from fairfate.report.contents import audit_rows, contents
from fairfate.report.data import ReportData
from fairfate.report.picture import group_rates, tradeoff
from fairfate.results.folder import CARD, REPORT
from fairfate.storage import check_output, spreadsheet_cell, write_bytes

CARD_NAMES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "mcc": "MCC",
    "auc": "AUC",
    "selection_rate": "Selection rate",
    "sp": "Statistical parity",
    "eo": "Equality of opportunity",
    "eqo": "Equalized odds",
}


def write_report(
    parts: Sequence[ReportData], out: Path, line: float = FOUR_FIFTHS, *, force: bool = False
) -> Path:
    """Write the page, and beside it what it says as JSON and CSV; returns the page's path.

    Parameters
    ----------
    parts : what is known of runs, for each set of data
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
    pages = [contents(data, line) for data in parts]
    text = json.dumps({"version": __version__, "parts": pages}, indent=1, ensure_ascii=False, allow_nan=False)
    write_bytes(f"{beside}.json", f"{text}\n".encode())
    _write_csv(audit, [row for data in parts for row in audit_rows(data)])
    _write_csv(tests, [row for part in pages for row in part["tests"]["rows"]])
    write_bytes(out, page(parts, pages).encode())
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
    return write_report(ReportData.read(folders, min_cell, unfinished=True), path, line, force=force or own)


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
    parts = ReportData.read(folders, min_cell, unfinished=True)
    check(len(parts) == 1, "run must be one run, or several on the same data, for a card", len(parts))
    write_bytes(path, card(contents(parts[0], line)).encode())
    return path


def card(content: Mapping[str, Any]) -> str:
    """A model card in Markdown, of what a report says; what the run cannot know is left to its owner."""
    measures = content["answer"]["measures"]
    results = [
        {"type": name, "value": round(measure["value"], 4)}
        for name, measure in measures.items()
        if measure["value"] is not None
    ]
    options = [
        (name, _plainly(value))
        for settings in content["settings"]
        for key, given in settings.items()
        for name, value in (given.items() if isinstance(given, Mapping) else [(key, given)])
    ]
    return (
        _template("card.md.j2").render(**content, results=results, options=options, names=CARD_NAMES) + "\n"
    )


def _usual(folders: Sequence[Path], name: str) -> Path:
    if len(folders) > 1:
        return Path(name)
    return (folders[0] if folders[0].is_dir() else folders[0].parent) / name


def render(folders: Sequence[Path], *, live: int = 0, line: float = FOUR_FIFTHS) -> str:
    """The page of some runs or sweeps.

    Parameters
    ----------
    folders : their folders
    live : the version of a page that is served and asks for later ones; 0 for a page on its own
    line : the ratio that groups' rates should reach
    """
    parts = ReportData.read(folders, unfinished=True)
    return page(parts, [contents(data, line) for data in parts], live=live)


def page(parts: Sequence[ReportData], pages: Sequence[dict[str, Any]], *, live: int = 0) -> str:
    """The page of what is known of runs, and of what is said about it."""
    sections = [
        {
            "number": number,
            "data": json_script(chart_data(data, content["line"])),
            "pictures": _pictures(content),
            **content,
        }
        for number, (data, content) in enumerate(zip(parts, pages, strict=True))
    ]
    assets = {name: asset(file) for name, file in ASSETS.items()}
    return _template("report.html.j2").render(parts=sections, version=__version__, live=live, **assets)


def _pictures(report: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """The pictures of the first screen, and what they show."""
    shown, audit = report["answer"]["shown"], report["audit"]
    flawed = any(row["flaw"] for row in (*report["strategies"], *report["baselines"]))
    text = "Accuracy against fairness, means over seeds on the test rows"
    pictures = [(f"{text}; collapsed models are left out" if flawed else text, tradeoff(report))]
    if audit:
        model, attribute = f"{shown['strategy']}, seed {shown['seed']}", audit[0]["attribute"]
        text = f"{model}: rates by {attribute}, with 95 % intervals over test rows"
        pictures.append((text, group_rates(audit[0], shown["strategy"])))
    return [(text, picture) for text, picture in pictures if picture]


ASSETS = {"plot": "plot.min.js", "script": "report.js", "style": "report.css"}


@cache
def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("fairfate.report") / "html" / name).read_text("utf-8")


@cache
def templates(package: str) -> Environment:
    """The Jinja templates of a package; values are escaped in those of HTML."""
    return Environment(
        loader=PackageLoader(package, ""),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _template(name: str) -> Template:
    environment = templates("fairfate.report")
    environment.filters |= {
        "number": _number,
        "chance": _chance,
        "range": _range,
        "estimate": _estimate,
        "share": _share,
        "count": _count,
        "plainly": _plainly,
        "quoted": shlex.quote,
        "json": json.dumps,
        "markdown": _markdown,
    }
    return environment.get_template(f"html/{name}")


def json_script(data: Any) -> str:
    """JSON that nothing in it can end: a group may be called ``</script>``."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _number(value: float | None, digits: int = 3) -> str:
    """A number without the sign of a rounded zero.

    >>> _number(-0.0001), _number(-0.25, 2)
    ('0.000', '-0.25')
    """
    return "undefined" if value is None else f"{value:z.{digits}f}"


def _chance(value: float) -> str:
    """A p-value."""
    return "below 0.001" if value < 0.001 else f"{value:.3f}"


def _range(interval: Mapping[str, Any], digits: int = 3) -> str:
    """The ends of an interval, in brackets; nothing where there is none."""
    if interval["low"] is None and interval["high"] is None:
        return ""
    ends = (
        "0" if interval["low"] is None else f"{interval['low']:.{digits}f}",
        "∞" if interval["high"] is None else f"{interval['high']:.{digits}f}",
    )
    return f"({ends[0]} to {ends[1]})"


def _estimate(interval: Mapping[str, Any]) -> str:
    """A number and, where there is one, its interval."""
    if interval["value"] is None:
        return "too few people" if interval.get("hidden") else "undefined"
    if interval["low"] is None or interval["high"] is None or interval["low"] == interval["high"]:
        return _number(interval["value"])
    return f"{_number(interval['value'])} {_range(interval)}"


def _share(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.1f}\u00a0%"


def _count(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _plainly(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _markdown(value: object) -> str:
    """Somebody's words as Markdown shows them: in one line, and none of them a mark."""
    return re.sub(r"([\\`*_~&\[\]<>|])", r"\\\1", " ".join(str(value).split()))
