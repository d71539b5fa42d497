"""Strategies and datasets on a terminal: quick to start, since nothing is computed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.data.datasets import SOURCES
from fairfate.strategies import STEPS, entries


def show_strategies(console: Console) -> None:
    """Print every strategy with its settings, defaults and reference."""
    for entry in entries():
        console.print(Text(entry.name, "bold") + Text(f"  {entry.summary} ({entry.reference})"))
        grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        grid.add_column(width=2)
        for key, setting in entry.settings.items():
            default = "--metric" if setting.default is None else f"{setting.default}"
            grid.add_row("", key, f"{setting.help}; {setting.rule}, default {default}")
        if entry.settings:
            console.print(grid)
    console.print("\nSteps, after a +:", style="italic")
    for name, step in STEPS.items():
        console.print(Text(f"+{name}", "bold") + Text(f"  {step.summary}"))
        grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        grid.add_column(width=2)
        for key, setting in step.settings.items():
            default = "--metric" if setting.default is None else f"{setting.default}"
            grid.add_row("", key, f"{setting.help}; {setting.rule}, default {default}")
        console.print(grid)


def show_sources(console: Console, found: dict[str, str]) -> None:
    """Print the datasets, and where each was found."""
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("name", "rows", "clients", "what", "where"):
        right = heading in ("rows", "clients")
        grid.add_column(heading, justify="right" if right else "left", overflow="fold")
    grid.add_row("synthetic", "6000", "10", "generated hiring history, embedded", "always there")
    for name, source in SOURCES.items():
        where = found.get(name, f"not here: fairfate data fetch {name}")
        grid.add_row(name, str(source.rows), str(source.clients), source.title, where)
    console.print(grid)
