"""Tables and sentences for the terminal."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.data import SOURCES
from fairfate.engine.record import DROPPED, FAIR, REFUSED, USED
from fairfate.errors import InputError, listing
from fairfate.fairness.metrics import COLLAPSED, mcc
from fairfate.report.data import ReportData
from fairfate.report.recommendation import recommend
from fairfate.report.tables import DIGITS, LEGEND, Cell, caption, methods, remarks, rows_of
from fairfate.results.folder import BEST
from fairfate.results.summary import RATES, rates_of, split_strategies
from fairfate.results.tables import STRATEGY

if TYPE_CHECKING:  # most of it is not for showing a finished run
    from fairfate.data import Table
    from fairfate.data.groups import Groups
    from fairfate.data.inspection import ColumnSummary
    from fairfate.experiments.predict import Evaluated
    from fairfate.federation.split import Federation

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "mcc": "MCC",
    "selection_rate": "selected",
    "sp": "SP",
    "eo": "EO",
    "eqo": "EQO",
}
MOST_COLUMNS, FIRST = 40, 10
"""Columns of a file that are shown; of a wider one the first, and the notable among the others."""
FEW_GROUPS = 6
"""Up to so many are shown without being asked for."""

SIGNS = {FAIR: "F", USED: "o", DROPPED: "x", REFUSED: "-"}
STYLES = {FAIR: "green", USED: "", DROPPED: "bold red", REFUSED: "dim"}
ROUNDS_IN_A_LINE = 60
"""In a line."""


def _grid(*headings: str | Text) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(headings[0], overflow="fold", min_width=8)
    for heading in headings[1:]:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _value(cell: Cell, wide: bool, digits: int | None) -> str:
    """A mean and its spread; in a narrow terminal with two digits and without the leading zero."""
    text = cell.text(digits if digits is not None else DIGITS if wide else 2)
    return text if wide else re.sub(r"\b0\.", ".", text)


def results_table(data: ReportData, width: int, digits: int | None = None) -> Grid:
    """Mean ± std over seeds on the test rows in the last round; the recommended strategy is marked."""
    wide = width >= max(map(len, data.names)) + 14 * len(COLUMNS)
    grid, spread = _grid("strategy", *COLUMNS.values()), width >= 80
    name_width = width - sum(max(len(heading), 13 if wide else 7) + 1 for heading in COLUMNS.values())
    section = ""
    for row in rows_of(data, tuple(COLUMNS)):
        if row.section not in ("", section):
            grid.add_row(Text(f"{row.section}:", "italic"))
        section, style = row.section, "bold" if row.is_recommended else ""
        flaw = f"\n({row.flaw})" if row.flaw else ""
        cells = [Text(_broken(f"{row.name}{' *' if row.is_recommended else ''}", name_width) + flaw, style)]
        for cell in row.cells:
            std = cell.std if spread else math.nan
            cells.append(Text(_value(Cell(cell.mean, std, is_shown=cell.is_shown), wide, digits), style))
        grid.add_row(*cells)
    return grid


def _broken(name: str, width: int) -> str:
    r"""A name in lines of at most this width, broken before a step or a setting rather than in mid-word.

    >>> _broken("fedavg+average+thresholds", 16)
    'fedavg+average\n+thresholds'
    """
    lines = [""]
    for part in re.findall(r"[+(]?[^+(,]+,? ?", name):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def show_evaluation(console: Console, title: str, groups: Groups, columns: Evaluated) -> None:
    """Print how a model does on labelled rows, over all and by group."""
    rows = int(columns.counts.sum())
    console.print(f"\n{title}: {rows:,} rows", style="italic", highlight=False)
    grid = _grid("metric", "value", "95 % interval")
    for row in columns.metrics.to_dict("records"):
        undefined = math.isnan(row["value"])
        interval = "" if undefined else f"{row['low']:.3f} to {row['high']:.3f}"
        grid.add_row(str(row["metric"]), "undefined" if undefined else f"{row['value']:.3f}", interval)
    console.print(grid)
    rates = rates_of(columns.counts[None], groups)
    for attribute, rows_of_attribute in rates.groupby("attribute", sort=False):
        console.print()
        console.print(_rates_grid(str(attribute), rows_of_attribute))
    if mcc(columns.counts) < COLLAPSED:
        console.print("\nThe model has collapsed: it gives nearly everybody the same answer.", style="yellow")
    if columns.warning is not None:
        console.print(f"\nWarning: {columns.warning}.", style="yellow")


def groups_table(data: ReportData, line: int, attribute: str) -> Grid:
    """What one strategy does to each group, with 95 % intervals."""
    rates = data.rates_of_line(line)
    return _rates_grid(attribute, rates[rates["attribute"] == attribute])


def _rates_grid(attribute: str, rates: pd.DataFrame) -> Grid:
    grid = _grid(Text(attribute), "rows", "selected", "TPR", "FPR", "accuracy")
    for row in rates.to_dict("records"):
        cells = [_rate(row[name], row[f"{name}_low"], row[f"{name}_high"]) for name in RATES]
        grid.add_row(Text(str(row["group"])), f"{row['rows']:.0f}", *cells)
    return grid


def _rate(rate: float, low: float, high: float) -> str:
    if math.isnan(rate):
        return "undefined"
    return re.sub(r"\b0\.", ".", f"{rate:.2f} ({low:.2f}-{high:.2f})")


def show_run(
    console: Console,
    data: ReportData,
    every_group: bool = False,
    digits: int | None = None,
    saved_to: Path | None = None,
) -> None:
    """Print a finished run, and where it has just been saved."""
    console.print(f"\n{caption(data)}", style="italic", highlight=False)
    for text in (data.outcome and f"favourable outcome: {data.outcome}", data.title):
        if text:
            console.print(text, style="italic", highlight=False)
    console.print(results_table(data, console.width, digits))
    legend = [LEGEND, "* recommended." if data.recommended is not None else ""]
    if any(row.flaw for row in rows_of(data, ("mcc",))):
        legend.append(
            f"collapsed: nearly one answer for everybody (MCC below {COLLAPSED}), of no use; its fairness is"
            " left blank."
        )
    console.print(" ".join(filter(None, legend)), style="dim", highlight=False)
    for name, summary in methods(data):
        console.print(f"{name}: {summary}", style="dim", highlight=False)
    answer = recommend(data)
    for paragraph in answer.paragraphs:
        console.print(f"\n{paragraph}", highlight=False)
    _show_groups(console, data, every_group)
    notes = remarks(data)
    if notes:
        console.print()
    for line in notes:
        console.print(f"Note: {line}", style="yellow", highlight=False)
    if saved_to is not None:
        console.print(f"\nSaved to {saved_to}/", highlight=False, soft_wrap=True)
        if answer.choice is not None:
            kind = "trained on all rows" if data.is_refitted else f"seed {answer.choice.seed}"
            model = f"{answer.choice.name}, {kind}"
            console.print(
                f"Recommended model: {saved_to}/models/{BEST} ({model})", highlight=False, soft_wrap=True
            )


def _show_groups(console: Console, data: ReportData, every_group: bool) -> None:
    """Rates by group of the first strategy and of the recommended one; of all if asked for."""
    sizes = data.rates.groupby("attribute", sort=False)["group"].nunique()
    attributes = [str(name) for name in sizes[every_group | (sizes <= FEW_GROUPS)].index]
    best = data.recommended
    lines = range(len(data.names)) if every_group else sorted({0} if best is None else {0, best.line})
    for attribute in attributes:
        for line in lines:
            means = f" (means of {data.seed_count} seeds)" if data.seed_count > 1 else ""
            console.print(f"\n{data.names[line]}, by {attribute}{means}", style="italic", highlight=False)
            console.print(groups_table(data, line, attribute))
    if attributes:
        text = "Rates on the test rows; in brackets 95 % intervals over people (not over seeds)."
        console.print(text, style="dim", highlight=False)


def _first_and_notable(columns: Sequence[ColumnSummary]) -> list[ColumnSummary]:
    """All columns of a usual file; of a wide one the first, and some of those that could have a role."""
    from fairfate.data.inspection import LEFT_OUT

    if len(columns) <= MOST_COLUMNS:
        return list(columns)
    roles = [column for column in columns[FIRST:] if column.remark and not column.remark.startswith(LEFT_OUT)]
    stems = Counter(_stem(column) for column in columns)
    # named like groups or sites, then texts, then names that are not one of many: yes-or-no columns are many
    roles.sort(
        key=lambda each: (each.remark == "--target?", each.kind == "number", stems[_stem(each)] > FIRST)
    )
    order = {id(column): number for number, column in enumerate(columns)}
    return [*columns[:FIRST], *sorted(roles[: MOST_COLUMNS - FIRST], key=lambda each: order[id(each)])]


def _stem(column: ColumnSummary) -> str:
    """What the name has in common with those of a series, such as gene_1 and gene_2."""
    return re.sub(r"\d+", "", column.name)


def show_look(
    console: Console, path: Path, columns: Sequence[ColumnSummary], rows: int, notes: Sequence[str]
) -> None:
    """Print a first look at a file: its columns, or a summary of many, and what they could be."""
    from fairfate.data.inspection import LEFT_OUT

    console.print(Text(str(path), "bold") + Text(f": {rows:,} rows, {len(columns):,} columns"))
    shown = _first_and_notable(columns)
    if len(shown) < len(columns):
        kinds = Counter(column.kind for column in columns)
        counts = ", ".join(f"{kinds[kind]:,} {kind}" for kind in kinds)
        dropped = sum(column.remark.startswith(LEFT_OUT) for column in columns)
        console.print(
            f"{counts}; {dropped:,} would be left out. The first {FIRST} and the notable ones:",
            highlight=False,
        )
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("column", "kind", "values", "missing", "range or most frequent", "could be"):
        right = heading in ("values", "missing")
        grid.add_column(heading, justify="right" if right else "left", overflow="fold")
    for column in shown:
        missing = f"{column.missing:,}" if column.missing else ""
        grid.add_row(
            Text(column.name),
            column.kind,
            f"{column.values:,}",
            missing,
            Text(column.shown),
            Text(column.remark, "bold"),
        )
    console.print(grid)
    for note in notes:
        console.print(f"Note: {note}", style="yellow", highlight=False)
    console.print(
        "\nNext: fairfate run --data FILE --target COLUMN --favourable VALUE --sensitive COLUMN", style="dim"
    )


def show_table(console: Console, table: Table) -> None:
    """Print what a table holds: rows, groups, base rates, inputs."""
    console.print(Text(table.name, "bold") + Text(f": {len(table)} rows"))
    if table.source is not None:
        source = SOURCES[table.source]
        console.print(f"{source.title}. Licence: {source.licence}.", highlight=False)
    grid = _grid("group", "rows", Text(f"P({table.label_names[1]})"))
    for number, name in enumerate(table.group_names):
        labels_of = table.label[table.group == number]
        rate = f"{labels_of.mean():.3f}" if len(labels_of) else "undefined"
        grid.add_row(Text(name), str(len(labels_of)), rate)
    console.print(grid)
    inputs = [
        f"{name} ({len(table.categories[name])} categories)" if name in table.categories else name
        for name in table.feature_names
    ]
    console.print(f"{len(inputs):,} inputs: {listing(inputs, MOST_COLUMNS)}", highlight=False)
    for note in table.notes:
        console.print(f"Note: {note}", style="yellow", highlight=False)


def show_partition(console: Console, table: Table, federation: Federation, title: str) -> None:
    """Print the rows of each client by (group, label), and each cell's share of its total."""
    counts = federation.client_cells.reshape(federation.clients, -1)
    grid = Grid(box=None, pad_edge=False, padding=(0, 1), title=Text(title), title_justify="left")
    grid.add_column("client", overflow="fold", min_width=6)
    for heading in (*table.cell_names, "all"):
        grid.add_column(Text(heading), justify="right", overflow="fold")
    totals = counts.sum(axis=0)
    for name, row in zip(federation.client_names, counts, strict=True):
        shares = [
            f"{count} ({count / total:4.0%})" if total else "0"
            for count, total in zip(row, totals, strict=True)
        ]
        grid.add_row(Text(name), *shares, str(row.sum()))
    grid.add_row("all", *map(str, totals), str(totals.sum()), style="bold")
    console.print(grid)


def show_clients(console: Console, clients: pd.DataFrame, seed: int | None = None) -> None:
    """Print, for each strategy, a line for each client with a sign for each round, and why it was dropped."""
    seeds = sorted(set(clients["seed"]))
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise InputError(f"seed must be one of the run's, {listing(seeds)}, got {chosen}")
    for name, frame in split_strategies(clients[clients["seed"] == chosen], STRATEGY):
        console.print()
        console.print(Text(name, "bold") + Text(f", seed {chosen}"))
        _show_strategy(console, frame)
    if len(seeds) > 1:
        console.print(f"\n{len(seeds)} seeds were run: {listing(seeds)}; --seed shows another.", style="dim")
    console.print("\nF counted as fair, o counted, x dropped, - took no part.", style="dim")


def _show_strategy(console: Console, frame: pd.DataFrame) -> None:
    rounds = list(range(1, int(frame["round"].max()) + 1))
    width = max(6, *(len(str(name)) for name in set(frame["name"])))
    rounds_per_line = max(10, min(ROUNDS_IN_A_LINE, console.width - width - 24))
    for start in range(0, len(rounds), rounds_per_line):
        part = rounds[start : start + rounds_per_line]
        ends = f"{part[0]}{str(part[-1]).rjust(max(1, len(part) - len(str(part[0]))))}"
        heading = f"{'client':{width}}  {ends:{len(part)}}"
        console.print(heading + ("  rounds fair drop" if part[-1] == rounds[-1] else ""), style="dim")
        for name, own in frame.groupby("name", sort=True):
            console.print(_line(str(name), own, part, width, last=part[-1] == rounds[-1]))
    for (name, reason), times in _reasons(frame).items():
        console.print(f"{name}: {reason} ({times} times)", style="yellow")


def _line(name: str, own: pd.DataFrame, rounds: list[int], width: int, *, last: bool) -> Text:
    """A client's rounds as signs and, at the end, in numbers."""
    outcome = dict(zip(own["round"], own["outcome"], strict=True))
    text = Text(f"{name:{width}}  ")
    for number in rounds:
        became = outcome.get(number)
        text.append(" " if became is None else SIGNS[became], "" if became is None else STYLES[became])
    if last:
        counted = own["outcome"].value_counts()
        asked = len(own) - int(counted.get(REFUSED, 0))
        text.append(f"  {asked:6} {int(counted.get(FAIR, 0)):4} {int(counted.get(DROPPED, 0)):4}")
    return text


def _reasons(frame: pd.DataFrame) -> dict[tuple[str, str], int]:
    reasons = frame[frame["reason"].fillna("") != ""]
    return {
        (str(name), str(reason)): len(rows) for (name, reason), rows in reasons.groupby(["name", "reason"])
    }
