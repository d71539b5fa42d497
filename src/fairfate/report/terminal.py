"""Tables and sentences for the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.data import SOURCES
from fairfate.fairness.metrics import COLLAPSED, mcc
from fairfate.report.comparison import Comparison, remarks, sentence
from fairfate.runs.groups import RATES, rates_of
from fairfate.runs.results import BEST
from fairfate.runs.sheet import Sheet

if TYPE_CHECKING:  # most of it is not for showing a finished run
    from fairfate.data import Table
    from fairfate.data.groups import Groups
    from fairfate.data.look import Look
    from fairfate.federation.split import Federation
    from fairfate.runs.use import Evaluated

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "mcc": "MCC",
    "acceptance": "accepted",
    "sp": "SP",
    "eo": "EO",
    "eqo": "EQO",
}
FEW_GROUPS = 6
"""Up to so many are shown without being asked for."""


def _grid(*headings: str | Text) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column(headings[0], overflow="fold", min_width=8)
    for heading in headings[1:]:
        grid.add_column(heading, justify="right", no_wrap=True)
    return grid


def _value(mean: float, std: float, wide: bool) -> str:
    """A mean and its spread; in a narrow terminal with two digits and without the leading zero."""
    if math.isnan(mean):
        return "undefined"
    digits = 3 if wide else 2
    text = f"{mean:.{digits}f}" + ("" if math.isnan(std) else f"±{std:.{digits}f}")
    return text if wide else re.sub(r"\b0\.", ".", text)


def results_table(found: Comparison, width: int) -> Grid:
    """Mean ± std over seeds on the test rows in the last round, the best of each column marked."""
    wide = width >= max(map(len, found.names)) + 14 * len(COLUMNS)
    grid = _grid("strategy", *COLUMNS.values())
    spread = width >= 80
    best = {name: found.best(name) for name in COLUMNS if name != "acceptance"}
    for line, label in enumerate(found.names):
        cells = [Text(f"{label} (no round counted)" if found.untrained[line] else label)]
        for name in COLUMNS:
            std = float(found.summary[f"{name}_last_std"][line]) if spread else math.nan
            text = _value(found.mean(name, line), std, wide)
            is_best = name in best and best[name][line]
            cells.append(Text(f"{text}*" if is_best else f"{text} ", "bold" if is_best else ""))
        grid.add_row(*cells)
    if not math.isnan(found.majority):
        same = _value(found.majority, math.nan, wide)
        grid.add_row(Text("(all alike)", "dim"), Text(f"{same} ", "dim"))
    return grid


def show_evaluation(console: Console, title: str, groups: Groups, found: Evaluated) -> None:
    """Print how a model does on labelled rows, over all and by group."""
    rows = int(found.counts.sum())
    console.print(f"\n{title}: {rows:,} rows", style="italic", highlight=False)
    grid = _grid("metric", "value", "95 % interval")
    for row in found.metrics.to_dict("records"):
        undefined = math.isnan(row["value"])
        interval = "" if undefined else f"{row['low']:.3f} to {row['high']:.3f}"
        grid.add_row(str(row["metric"]), "undefined" if undefined else f"{row['value']:.3f}", interval)
    console.print(grid)
    rates = rates_of(found.counts, groups)
    for attribute in dict.fromkeys(rates["attribute"]):
        console.print()
        console.print(_rates_grid(attribute, rates.where(rates["attribute"] == attribute)))
    if mcc(found.counts) < COLLAPSED:
        console.print("\nThe model hardly tells people apart: it has collapsed.", style="yellow")


def groups_table(found: Comparison, line: int, attribute: str) -> Grid:
    """What one strategy does to each group, with 95 % intervals."""
    assert found.rates is not None
    mine = found.is_line(found.rates, line) & (found.rates["attribute"] == attribute)
    return _rates_grid(attribute, found.rates.where(mine))


def _rates_grid(attribute: str, mine: Sheet) -> Grid:
    grid = _grid(Text(attribute), "rows", "accepted", "TPR", "FPR", "accuracy")
    for row, group in enumerate(mine["group"]):
        rates = [
            _rate(mine[name][row], mine[f"{name}_low"][row], mine[f"{name}_high"][row]) for name in RATES
        ]
        grid.add_row(Text(str(group)), f"{mine['rows'][row]:.0f}", *rates)
    return grid


def _rate(rate: float, low: float, high: float) -> str:
    if math.isnan(rate):
        return "nobody"
    return re.sub(r"\b0\.", ".", f"{rate:.2f} ({low:.2f}-{high:.2f})")


def show_run(console: Console, found: Comparison, every_group: bool = False) -> None:
    """Print a finished run."""
    fewest, most = min(found.summary["seeds"]), max(found.summary["seeds"])
    number = f"{most}" if fewest == most else f"{fewest} to {most}"
    over = (
        f"mean ± std over {number} seeds" if most > 1 else "one seed" if found.seeds == 1 else "one seed each"
    )
    data, partition = found.summary["dataset"][0], found.summary["partition"][0]
    title = f"{data}, {partition}: test rows, round {found.last}, {over}"
    console.print(f"\n{title}", style="italic", highlight=False)
    if found.title:
        console.print(found.title, style="italic", highlight=False)
    console.print(results_table(found, console.width))
    console.print("SP, EO, EQO: 1 is fair. * best with skill. (all alike): one answer for all.", style="dim")
    told = sentence(found)
    if told:
        console.print(f"\n{told}", highlight=False)
    _show_groups(console, found, every_group)
    notes = remarks(found)
    if notes:
        console.print()
    for line in notes:
        console.print(f"Note: {line}", style="yellow", highlight=False)
    if found.out is not None:
        console.print(f"\nSaved to {found.out}/", highlight=False, soft_wrap=True)
        if found.chosen:
            told = f"Model to take, by the validation rows: models/{BEST} ({found.chosen})"
            console.print(told, highlight=False, soft_wrap=True)


def _show_groups(console: Console, found: Comparison, every_group: bool) -> None:
    """Rates by group of the first strategy and of the fairest; of all if asked for."""
    if found.rates is None or found.groups is None:
        return
    attributes = list(dict.fromkeys(found.rates["attribute"]))
    if not every_group:
        sizes = {
            name: len(set(found.rates["group"][found.rates["attribute"] == name])) for name in attributes
        }
        attributes = [name for name in attributes if sizes[name] <= FEW_GROUPS]
    fairest = [line for line, best in enumerate(found.best(found.fairness)) if best]
    lines = range(len(found.names)) if every_group else sorted({0, *fairest[:1]})
    for attribute in attributes:
        for line in lines:
            console.print(f"\n{found.names[line]}, by {attribute}", style="italic", highlight=False)
            console.print(groups_table(found, line, attribute))
    if attributes:
        console.print("Rates on the test rows; in brackets 95 % intervals over people.", style="dim")


def show_look(console: Console, path: Path, found: Sequence[Look], rows: int, notes: Sequence[str]) -> None:
    """Print a first look at a file: its columns, and what they could be."""
    console.print(Text(str(path), "bold") + Text(f": {rows:,} rows, {len(found)} columns"))
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("column", "kind", "values", "missing", "range or most frequent", "could be"):
        right = heading in ("values", "missing")
        grid.add_column(heading, justify="right" if right else "left", overflow="fold")
    for one in found:
        missing = f"{one.missing:,}" if one.missing else ""
        grid.add_row(
            Text(one.name), one.kind, f"{one.values:,}", missing, Text(one.shown), Text(one.remark, "bold")
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
    console.print(f"{len(inputs)} inputs: {', '.join(inputs)}", highlight=False)
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
