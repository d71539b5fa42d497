"""The table of a comparison: its numbers, and the same as LaTeX, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fairfate.errors import check, shown
from fairfate.report.data import ReportData
from fairfate.results.recommendation import decides_by_group

FORMATS = ("terminal", "latex", "markdown", "csv")
DIGITS = 3


class Cell(NamedTuple):
    """A metric of a strategy in the last round, over the seeds."""

    mean: float
    std: float = math.nan
    """NaN for one seed."""
    is_best: bool = False
    is_shown: bool = True

    def text(self, digits: int, pm: str = "±") -> str:
        """The mean and its spread, rounded.

        >>> Cell(0.81234, 0.01).text(3), Cell(math.nan, math.nan).text(3)
        ('0.812±0.010', 'undefined')
        """
        if math.isnan(self.mean):
            return "undefined" if self.is_shown else ""
        return f"{self.mean:.{digits}f}" + ("" if math.isnan(self.std) else f"{pm}{self.std:.{digits}f}")


class Row(NamedTuple):
    """A strategy or a baseline."""

    name: str
    cells: tuple[Cell, ...]
    section: str = ""
    """What is said above the first of several such rows."""
    flaw: str = ""
    """Why it is out of the comparison, if it is."""
    seeds: int | None = None
    is_recommended: bool = False


POOLED = "on pooled rows"


def rows_of(data: ReportData, metrics: Sequence[str]) -> list[Row]:
    """Strategies, those that decide by the group apart from the others, then baselines."""
    by_group = [decides_by_group(str(label)) for label in data.summary["strategy"]]
    apart = any(by_group) and not all(by_group)
    best = {name: data.best(name) for name in metrics if name != "acceptance"}
    rows = []
    for line in sorted(range(len(data.names)), key=lambda line: by_group[line]):
        cells = []
        for name in metrics:
            std = float(data.summary[f"{name}_last_std"][line])
            cells.append(Cell(data.mean(name, line), std, name in best and best[name][line]))
        section = "one threshold for each group" if apart and by_group[line] else ""
        is_recommended = data.recommended is not None and data.recommended.line == line
        seeds = int(data.summary["seeds"][line])
        rows.append(Row(data.names[line], tuple(cells), section, data.flaws[line], seeds, is_recommended))
    for baseline in data.baselines:
        cells = [Cell(baseline.metrics[name]) for name in metrics]
        name = baseline.name.removeprefix("pooled ")
        rows.append(Row(name, tuple(cells), POOLED, seeds=baseline.seeds))
    if not math.isnan(data.majority):
        known = {"accuracy": data.majority, "balanced_accuracy": 0.5, "mcc": 0.0}
        cells = [Cell(known.get(name, math.nan), is_shown=name in known) for name in metrics]
        rows.append(Row("majority baseline", tuple(cells)))
    return rows


def format_tables(
    comparisons: Sequence[ReportData], kind: str, columns: Mapping[str, str], digits: int | None = None
) -> str:
    """Comparisons as text for a file.

    Parameters
    ----------
    comparisons : one table for each; CSV has all in one
    kind : latex, markdown or csv
    columns : metrics and their headings
    digits : after the point; 3 if None. CSV is not rounded
    """
    if kind == "csv":
        check(digits is None, "digits must be left out for csv, which is not rounded", digits)
        return _csv(comparisons, tuple(columns))
    table = {"latex": _latex, "markdown": _markdown}[kind]
    return "\n".join(table(data, columns, DIGITS if digits is None else digits) for data in comparisons)


def caption(data: ReportData) -> str:
    """What a table is about: the data, the rows, the round and the seeds."""
    fewest, most = min(data.summary["seeds"]), max(data.summary["seeds"])
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    single = "one seed" if data.seed_count == 1 else "one seed each"
    over = f"mean ± std over {number} seeds" if most > 1 else single
    dataset, partition = data.summary["dataset"][0], data.summary["partition"][0]
    return f"{dataset}, split {partition}: test rows, round {data.last_round}, {over}"


def _captions(data: ReportData) -> list[str]:
    return [shown(text).replace("\n", " ") for text in (caption(data), data.title) if text]


def _latex(data: ReportData, columns: Mapping[str, str], digits: int) -> str:
    lines = [f"% {text}" for text in _captions(data)]
    lines += [r"% bold: the best of a column; *: recommended", r"% \usepackage{booktabs}"]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule"]
    lines += [_latex_row(["strategy", *columns.values()]), r"\midrule"]
    for section, row in _sections(rows_of(data, tuple(columns))):
        if section:
            lines.append(rf"\multicolumn{{{len(columns) + 1}}}{{l}}{{\emph{{{section}:}}}} \\")
        cells = [(cell.text(digits, r" $\pm$ "), cell.is_best) for cell in row.cells]
        marked = [rf"\textbf{{{text}}}" if is_best else text for text, is_best in cells]
        lines.append(_latex_row([escape_latex(_name(row)), *marked]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _sections(rows: Sequence[Row]) -> Iterator[tuple[str, Row]]:
    """Each row, with its section's name if it is the first of it."""
    before = ""
    for row in rows:
        yield row.section if row.section != before else "", row
        before = row.section


def _name(row: Row) -> str:
    flaw = f" ({row.flaw})" if row.flaw else ""
    return f"{row.name}{flaw}{' *' if row.is_recommended else ''}"


def _latex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def escape_latex(text: str) -> str:
    r"""A name in which nothing is a command.

    >>> print(escape_latex("50% of_it\\x"))
    50\% of\_it\textbackslash{}x
    """
    return "".join(_LATEX.get(mark, mark) for mark in shown(text).replace("\n", " "))


def _markdown(data: ReportData, columns: Mapping[str, str], digits: int) -> str:
    lines = [*(f"{_escape_markdown(text)}\n" for text in _captions(data))]
    lines += [_markdown_row(["strategy", *columns.values()]), f"| --- |{' ---: |' * len(columns)}"]
    for section, row in _sections(rows_of(data, tuple(columns))):
        if section:
            lines.append(_markdown_row([f"*{section}:*", *[""] * len(columns)]))
        cells = [(cell.text(digits), cell.is_best) for cell in row.cells]
        marked = [f"**{text}**" if is_best else text for text, is_best in cells]
        lines.append(_markdown_row([_escape_markdown(_name(row)), *marked]))
    return "\n".join([*lines, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~$&])", r"\\\1", shown(text).replace("\n", " "))


def _csv(comparisons: Sequence[ReportData], metrics: Sequence[str]) -> str:
    about = ("dataset", "partition", "protocol")
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    numbers = [f"{name}_{statistic}" for name in metrics for statistic in ("mean", "std")]
    writer.writerow([*about, "title", "strategy", "section", "flaw", "seeds", *numbers])
    for data in comparisons:
        where = [*(str(data.summary[name][0]) for name in about), data.title]
        for row in rows_of(data, metrics):
            values = [value for cell in row.cells for value in (cell.mean, cell.std)]
            texts = ["" if math.isnan(value) else repr(float(value)) for value in values]
            named = [*where, row.name, row.section, row.flaw]
            writer.writerow([*map(shown, named), "" if row.seeds is None else row.seeds, *texts])
    return file.getvalue()
