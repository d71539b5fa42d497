"""Tables of runs as LaTeX, Markdown and CSV: the terminal's numbers, in files that other programs read."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from command import Outcome
from fairfate.experiments.run import run
from fairfate.report.data import ReportData
from fairfate.report.tables import Cell, escape_latex, format_tables, rows_of
from fairfate.report.terminal import COLUMNS, results_table

STRATEGIES = ("fedavg", "fair_fate", "fedavg+average+thresholds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tables") / "run"
    data = {"data": "synthetic:rows=600", "rounds": 10, "learning_rate": 0.1}
    run(**data, seeds=(1, 2), strategies=STRATEGIES, jobs=1, out=out)
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> ReportData:
    return ReportData.read([folder])[0]


def test_rows_have_the_means_and_deviations_of_the_summary(found: ReportData) -> None:
    rows = {row.name: row for row in rows_of(found, ("accuracy", "selection_rate", "eqo"))}
    assert {"fedavg", "fair_fate", "fedavg+average+thresholds", "majority baseline"} <= set(rows)
    for line, name in enumerate(found.names):
        for number, metric in enumerate(("accuracy", "selection_rate", "eqo")):
            cell = rows[name].cells[number]
            assert cell.mean == found.summary[f"{metric}_last_mean"][line]
            assert cell.std == found.summary[f"{metric}_last_std"][line]
            assert cell.is_best == (metric != "selection_rate" and found.best(metric)[line])
    assert rows["fedavg+average+thresholds"].section == "one threshold for each group"


def test_the_terminal_and_the_files_show_the_same_numbers(found: ReportData) -> None:
    grid = results_table(found, 400)
    shown = [[str(cell) for cell in column.cells] for column in grid.columns]
    markdown = format_tables([found], "markdown", COLUMNS)
    latex = format_tables([found], "latex", COLUMNS).replace(" $\\pm$ ", "±")
    for cells in shown[1:]:
        for text in filter(None, cells):
            assert text in markdown
            assert text in latex


def test_csv_is_not_rounded_and_has_one_header_for_all_tables(found: ReportData) -> None:
    text = format_tables([found, found], "csv", COLUMNS)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 * len(rows_of(found, tuple(COLUMNS)))
    first = rows[found.names.index("fedavg")]
    assert first["strategy"] == "fedavg"
    assert float(first["eqo_mean"]) == found.mean("eqo", 0)
    assert float(first["eqo_std"]) == found.summary["eqo_last_std"][0]
    assert first["seeds"] == "2"
    last = rows[-1]
    assert (last["strategy"], last["sp_mean"], last["accuracy_std"]) == ("majority baseline", "", "")


def test_latex_escapes_names_and_marks_the_best(found: ReportData) -> None:
    text = format_tables([found], "latex", COLUMNS)
    assert "fair\\_fate" in text
    table = text[text.index("\\toprule") : text.index("\\bottomrule")]
    assert all(line.count("&") == len(COLUMNS) for line in table.splitlines() if "&" in line)
    for number, name in enumerate(COLUMNS):
        bold = [line for line in table.splitlines() if "textbf" in (line.split("&") + [""] * 9)[number + 1]]
        assert len(bold) == (0 if name == "selection_rate" else sum(found.best(name)))
    assert escape_latex("a_b & 5% {x}\\") == r"a\_b \& 5\% \{x\}\textbackslash{}"
    assert "\x1b" not in escape_latex("a\x1b[31mb")


@pytest.mark.parametrize(("digits", "text"), [(2, "0.81±0.01"), (4, "0.8123±0.0100")])
def test_digits_are_those_asked_for(digits: int, text: str) -> None:
    assert Cell(0.8123, 0.01).text(digits) == text
    assert Cell(0.8123).text(2) == "0.81"
    assert Cell(math.nan).text(digits) == "undefined"
    assert Cell(math.nan, is_shown=False).text(digits) == ""


def test_the_command_prints_tables_without_colours(folder: Path, fairfate: Callable[..., Outcome]) -> None:
    for kind, begin in (("latex", "%"), ("markdown", "synthetic"), ("csv", "dataset,")):
        outcome = fairfate("show", str(folder), "--format", kind)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.startswith(begin)
        assert "\x1b" not in outcome.out
    for kind in ("latex", "markdown", "terminal"):
        outcome = fairfate("show", str(folder), "--format", kind, "--digits", "4")
        table = outcome.out[: outcome.out.index("majority")]
        assert re.search(r"\.\d{4}\b", table)
        assert not re.search(r"\.\d{3}\b", table.replace("0.5", ""))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "html"], "format must be one of terminal|latex|markdown|csv, got 'html'"),
        (["--format", "latex", "--digits", "0"], "digits must be from 1 to 15, got 0"),
        (["--format", "csv", "--digits", "2"], "digits must be left out for csv"),
        (["--format", "csv", "--clients"], "format must be terminal for --clients and --groups"),
        (["--format", "latex", "--groups"], "format must be terminal for --clients and --groups"),
    ],
)
def test_other_formats_and_digits_are_refused(
    folder: Path, fairfate: Callable[..., Outcome], words: list[str], message: str
) -> None:
    outcome = fairfate("show", str(folder), *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
