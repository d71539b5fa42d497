"""The table of a comparison: its numbers, as LaTeX, Markdown or CSV too, and what its readers should know."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fairfate.errors import check, listing, shown
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS
from fairfate.fairness.objective import MIN_PEOPLE, individual_terms, small_groups
from fairfate.report.data import FLAWS, ReportData
from fairfate.report.rule import bound_sentence
from fairfate.results.recommendation import decides_by_group
from fairfate.strategies import STEPS, THRESHOLDS, TILT, entries

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
NO_FAIRNESS = ("accuracy", "balanced_accuracy", "f1", "mcc", "auc", "selection_rate")
"""Shown of flawed models too; their fairness says nothing and is left blank, wherever there is a table."""
_BLANK = Cell(math.nan, is_shown=False)


def rows_of(data: ReportData, metrics: Sequence[str]) -> list[Row]:
    """Strategies, those that decide by the group apart from the others, then baselines."""
    by_group = [decides_by_group(str(label)) for label in data.summary["strategy"]]
    apart = any(by_group) and not all(by_group)
    best = {name: data.best(name) for name in metrics if name != "selection_rate"}
    rows = []
    for line in sorted(range(len(data.names)), key=lambda line: by_group[line]):
        cells = []
        for name in metrics:
            if data.flaws[line] and name not in NO_FAIRNESS:
                cells.append(_BLANK)
                continue
            std = float(data.summary[f"{name}_last_std"][line])
            cells.append(Cell(data.mean(name, line), std, name in best and best[name][line]))
        section = "one threshold for each group" if apart and by_group[line] else ""
        is_recommended = data.recommended is not None and data.recommended.line == line
        seeds = int(data.summary["seeds"][line])
        rows.append(Row(data.names[line], tuple(cells), section, data.flaws[line], seeds, is_recommended))
    for baseline in data.baselines:
        flaw = "collapsed" if baseline.metrics["mcc"] < COLLAPSED else ""
        known = {key: value for key, value in baseline.metrics.items() if not flaw or key in NO_FAIRNESS}
        cells = [Cell(known.get(name, math.nan), is_shown=name in known) for name in metrics]
        name = baseline.name.removeprefix("pooled ")
        rows.append(Row(name, tuple(cells), POOLED, flaw, baseline.seeds))
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
    writer.writerow([*about, "title", "strategy", "section", "flaw", "recommended", "seeds", *numbers])
    for data in comparisons:
        where = [*(str(data.summary[name][0]) for name in about), data.title]
        for row in rows_of(data, metrics):
            values = [value for cell in row.cells for value in (cell.mean, cell.std)]
            texts = ["" if math.isnan(value) else repr(float(value)) for value in values]
            named = [*where, row.name, row.section, row.flaw]
            recommended = "yes" if row.is_recommended else ""
            writer.writerow([*map(shown, named), recommended, "" if row.seeds is None else row.seeds, *texts])
    return file.getvalue()


# ------------------------------------------------------------ what a reader of a table should know

TOO_GOOD = 0.95
"""An MCC that real data hardly ever allow."""
LEGEND = (
    "balanced: balanced accuracy, 0.5 is chance. MCC: 1 is perfect, 0 is chance. selected: share predicted"
    " favourable. SP, EO and EQO compare groups: the lowest group's rate divided by the highest's, 1 is"
    " equal. SP (statistical parity) compares selection rates, EO (equality of opportunity) true positive"
    " rates (TPR); EQO (equalized odds) is the mean of the ratios of TPR and of false positive rates (FPR)."
)
"""What the columns of a table are."""
RISING = 0.01
"""A gain of MCC between the last two fifths of the rounds that may show that training was cut short."""
CONSISTENT = 0.8
"""The share of seeds that must show it too."""


def methods(data: ReportData) -> list[tuple[str, str]]:
    """What each strategy and step does, in a few words, where it is one of ours."""
    known = {entry.name: entry.summary for entry in entries()}
    known |= {f"+{name}": step.summary for name, step in STEPS.items()}
    labels = [str(label).partition(" [")[0].split("+") for label in data.summary["strategy"]]
    names = dict.fromkeys(
        name for first, *steps in labels for name in (first, *(f"+{step}" for step in steps))
    )
    return [(name, known[name]) for name in names if name in known]


def remarks(data: ReportData) -> list[str]:
    """What a reader of the table should know: collapsed models, undefined metrics, runs cut short."""
    lines = list(data.notes)
    if any(f"+{THRESHOLDS}" in str(label) for label in data.summary["strategy"]):
        lines.append("strategies with +thresholds need the group of each person at prediction time")
    if any(f"+{TILT}" in str(label) for label in data.summary["strategy"]):
        lines.append(
            "strategies with +tilt decide by a guess of the group or (distil=true) have learned from one;"
            " the law may treat that as a use of it"
        )
    for (name, seed), about in data.rules.items():
        text = bound_sentence(about)
        lines += [f"{name}, seed {seed}: {text}"] if text else []
    objectives = sorted({label for label in data.summary["metric"] if isinstance(label, str)})
    lines += [line for objective in objectives for line in small_groups(objective)]
    terms = sorted({term for objective in objectives for term in individual_terms(objective)})
    if terms:
        lines.append(
            f"{listing(terms)}: in no table, since counts do not tell; on the validation rows, in"
            " clients.parquet and in the notes of rounds.parquet"
        )
    few = _rates_of_few(data)
    if few:
        lines.append(
            f"SP, EO and EQO leave out rates that rest on fewer than {MIN_PEOPLE} test rows: {listing(few)}"
        )
    for what, why in FLAWS.items():
        low = [
            f"{name}{flaw.removeprefix(what)} seeds on the test rows"
            for name, flaw in zip(data.names, data.flaws, strict=True)
            if flaw.startswith(what)
        ]
        lines += [f"{what}: {listing(low)}; {why}"] if low else []
    for number, name in enumerate(data.names):
        undefined = [metric.upper() for metric in FAIRNESS if math.isnan(data.mean(metric, number))]
        if undefined:
            lines.append(
                f"{name}: {', '.join(undefined)} undefined, a group has no such test rows in some seed"
            )
    perfect = [name for line, name in enumerate(data.names) if data.mean("mcc", line) > TOO_GOOD]
    if perfect:
        lines.append(
            f"too good to be true? {listing(perfect)}: look for columns that are known only after the outcome"
        )
    rising = [name for line, name in enumerate(data.names) if _is_rising(data, line)]
    if rising:
        lines.append(f"not converged: {listing(rising)}; more rounds or a larger learning rate may help")
    return lines


def _rates_of_few(data: ReportData) -> list[str]:
    """The groups, and which of their rates have too few test rows behind them to count in SP, EO and EQO."""
    few: dict[str, list[str]] = {}
    for attribute, names in zip(data.groups.attributes, data.groups.values, strict=True):
        rows = data.groups.merge(data.counts[:1], (attribute,)).sum(axis=-1)[0]
        compared = data.groups.compared((attribute,))
        for rate, people in (("selection rate", rows.sum(axis=-1)), ("TPR", rows[:, 1]), ("FPR", rows[:, 0])):
            if (people[compared] >= MIN_PEOPLE).sum() < 2:
                continue  # then all count
            for name, is_small in zip(names, (people < MIN_PEOPLE) & compared, strict=True):
                if is_small:
                    few.setdefault(name, []).append(rate)
    return [f"{name} ({', '.join(rates)})" for name, rates in few.items()]


def _is_rising(data: ReportData, line: int) -> bool:
    """Whether the model was still learning when the rounds ended, by the MCC on the validation rows.

    The last two fifths of the rounds are taken in four parts. The mean over seeds must rise in each of them,
    between the two fifths by more than `RISING` and by more than twice its standard error over seeds, and
    nearly every seed must rise too.
    """
    rounds = data.rounds[(data.lines == line) & (data.rounds["split"] == "validation")]
    size = data.last_round // 10
    if size < 1 or rounds["round"].nunique() < data.last_round:
        return False
    part = (rounds["round"] - data.last_round + 4 * size - 1) // size  # 0 .. 3 in the last two fifths
    late = rounds[part >= 0]
    means = late["mcc"].groupby([late["seed"], part[part >= 0]]).mean(skipna=False).unstack().to_numpy()
    gains = (means[:, 2:] - means[:, :2]).mean(axis=1)
    error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(
        gains.mean() > max(RISING, 2 * error)
        and (gains > 0).mean() >= CONSISTENT
        and (np.diff(means.mean(axis=0)) > 0).all()
    )
