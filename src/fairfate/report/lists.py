"""Strategies and datasets on a terminal: quick to start, since nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.data.datasets import SOURCES
from fairfate.strategies import STEPS, entries
from fairfate.strategies.hyperparameters import Setting


def show_strategies(console: Console) -> None:
    """Print every strategy with its hyperparameters, defaults and reference."""
    for entry in entries():
        reference = f" ({entry.reference})" if entry.reference else ""
        _show(console, entry.name, f"{entry.summary}{reference}", entry.settings)
    console.print("\nSteps, after a +:", style="italic")
    for name, step in STEPS.items():
        _show(console, f"+{name}", step.summary, step.settings)


def _show(console: Console, name: str, summary: str, settings: Mapping[str, Setting]) -> None:
    """One of them, with a line for each hyperparameter."""
    console.print(Text(name, "bold") + Text(f"  {summary}"))
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    grid.add_column(width=2)
    for key, setting in settings.items():
        default = "--metric" if setting.default is None else f"{setting.default}"
        grid.add_row("", key, f"{setting.help}; {setting.rule}, default {default}")
    if settings:
        console.print(grid)


def show_sources(console: Console, paths: dict[str, str]) -> None:
    """Print the datasets, and where each was found."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("name", "rows", "clients", "what", "where"):
        right = heading in ("rows", "clients")
        grid.add_column(heading, justify="right" if right else "left", overflow="fold")
    grid.add_row("synthetic", "6000", "10", "generated hiring history, embedded", "always there")
    for name, source in SOURCES.items():
        where = paths.get(name, f"not here: fairfate data fetch {name}")
        grid.add_row(name, str(source.rows), str(source.clients), source.title, where)
    console.print(grid)
