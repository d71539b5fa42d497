"""Tables and sentences for the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.data import SOURCES, Table
from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS
from fairfate.fairness.objective import bind, small_groups
from fairfate.federation.split import Federation
from fairfate.runs.config import PROVENANCE, read_config
from fairfate.runs.results import (
    CONFIG,
    KEYS,
    counts_of,
    read_groups,
    read_rounds,
    row_names,
    summarise,
)
from fairfate.runs.run import Run
from fairfate.strategies import STEPS, THRESHOLDS, entries

COLUMNS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "mcc": "MCC",
    "sp": "SP",
    "eo": "EO",
    "eqo": "EQO",
}


def _grid(*headings: str | Text) -> Grid:
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    grid.add_column(headings[0], overflow="fold")
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


class Results(NamedTuple):
    """What the tables are made from; all of it is in a run's folder."""

    rounds: pd.DataFrame
    summary: pd.DataFrame
    metric: str
    """Fairness to speak of where no strategy looks at one."""
    notes: tuple[str, ...]
    out: Path | None

    @classmethod
    def of(cls, run: Run) -> Results:
        """Of a run that has just finished."""
        takes = any(spec.step(THRESHOLDS) for spec in run.plan.specs)
        thresholds = ("thresholds need the group of each person at prediction time",) if takes else ()
        again = tuple(f"{name} was damaged and has been run again" for name in run.damaged)
        objectives = {spec.metric for spec in run.plan.specs if spec.metric}
        crossed = tuple(line for text in sorted(objectives) for line in small_groups(text))
        notes = (*run.table.notes, *again, *thresholds, *crossed)
        rounds, summary = _with_objectives(run.rounds, run.summary, run.table.grouping)
        return cls(rounds, summary, run.plan.config.metric, notes, run.out)

    @classmethod
    def read(cls, folders: Sequence[Path]) -> Results:
        """Of finished runs' folders, side by side."""
        frames = [read_rounds(folder) for folder in folders]
        lasts = [int(frame["round"].max()) for frame in frames]
        if len(set(lasts)) > 1:
            told = (f"{last} in {folder}" for last, folder in zip(lasts, folders, strict=True))
            raise InputError(f"runs must have the same number of rounds, got {listing(told)}")
        frames = _told_apart(frames, folders)
        configs = [read_config(folder / CONFIG) for folder in folders]
        notes = {note: None for c in configs for note in c.get(PROVENANCE, {}).get("data-notes", ())}
        rounds = pd.concat(frames, ignore_index=True)
        rounds, summary = _with_objectives(rounds, summarise(rounds), read_groups(folders[0]))
        return cls(rounds, summary, configs[0].get("metric", "eqo"), tuple(notes), None)

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return int(self.rounds["seed"].nunique())

    @property
    def last(self) -> int:
        """The last round."""
        return int(self.rounds["round"].max())


def _with_objectives(
    rounds: pd.DataFrame, summary: pd.DataFrame, groups: Groups | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """With a column for each objective that is no metric by itself, made from the counts."""
    texts = [text for text in dict.fromkeys(summary["metric"].dropna()) if text not in rounds.columns]
    if not texts or groups is None:
        return rounds, summary
    counts = counts_of(rounds)
    rounds = rounds.assign(**{text: bind(text, groups)(counts) for text in texts})
    test = rounds[(rounds["split"] == "test") & (rounds["round"] == rounds["round"].max())]
    means = test.groupby(KEYS, dropna=False, sort=False)[texts].mean(skipna=False).add_suffix("_last_mean")
    return rounds, summary.merge(means.reset_index(), on=KEYS, how="left")


def _said(metric: str) -> str:
    return metric.upper() if metric in FAIRNESS else metric


def _told_apart(frames: list[pd.DataFrame], folders: Sequence[Path]) -> list[pd.DataFrame]:
    """Runs under one heading; a strategy that folders have with the same seed is called by its folder too."""
    key = ["strategy", "metric", "settings", "seed"]
    found = [frame[key].drop_duplicates() for frame in frames]
    repeated = pd.concat(found).duplicated(key).any()
    named = []
    for frame, folder in zip(frames, folders, strict=True):
        strategy = frame["strategy"] + f" [{folder.name}]" if repeated else frame["strategy"]
        heading = {name: frames[0][name].iloc[0] for name in ("dataset", "partition", "protocol")}
        named.append(frame.assign(strategy=strategy, **heading))
    return named


def results_table(run: Results, width: int) -> Grid:
    """Mean ± std over seeds on the test rows in the last round, the best of each column marked."""
    wide = width >= 100
    grid = _grid("strategy", *COLUMNS.values())
    means = run.summary[[f"{name}_last_mean" for name in COLUMNS]].to_numpy(dtype=float)
    best = np.nanmax(np.where(np.isnan(means), -np.inf, means), axis=0)
    for label, (_, row), values in zip(row_names(run.summary), run.summary.iterrows(), means, strict=True):
        cells = [Text(label)]
        for name, value, highest in zip(COLUMNS, values, best, strict=True):
            text = _value(value, row[f"{name}_last_std"], wide)
            is_best = len(means) > 1 and value == highest
            cells.append(Text(f"{text}*" if is_best else f"{text} ", "bold" if is_best else ""))
        grid.add_row(*cells)
    return grid


def verdict(run: Results) -> str:
    """One sentence on what the fairest strategy gained and gave up against the first one."""
    metric = next((name for name in run.summary["metric"] if isinstance(name, str)), run.metric)
    fairness, names = f"{metric}_last_mean", row_names(run.summary)
    rest = run.summary.iloc[1:]
    if rest.empty or rest[fairness].isna().all():
        return ""
    best = int(rest[fairness].argmax()) + 1
    base, other, name = run.summary.iloc[0], run.summary.iloc[best], names[best]
    gained = other[fairness] - base[fairness]
    gave = base["accuracy_last_mean"] - other["accuracy_last_mean"]
    wins = int((_per_seed(run, metric, best) > _per_seed(run, metric, 0)).sum())
    fairer = f"{'gained' if gained >= 0 else 'lost'} {abs(gained):.3f} {_said(metric)}"
    better = f"{'gave up' if gave >= 0 else 'gained'} {abs(gave):.3f} accuracy"
    return (
        f"Against {names[0]}, {name} {fairer} ({base[fairness]:.3f} to {other[fairness]:.3f}) and"
        f" {better} ({base['accuracy_last_mean']:.3f} to {other['accuracy_last_mean']:.3f});"
        f" it was fairer in {wins} of {run.seeds} seeds."
    )


def _per_seed(run: Results, metric: str, row: int, split: str = "test") -> pd.Series[float]:
    """The metric of one line of the table in each seed, in the last round."""
    rounds, key = run.rounds, run.summary.iloc[row]
    last = rounds[(rounds["split"] == split) & (rounds["round"] == run.last)]
    mine = last[(last["strategy"] == key["strategy"]) & (last["settings"] == key["settings"])]
    mine = mine[mine["metric"].fillna("") == ("" if pd.isna(key["metric"]) else key["metric"])]
    values: pd.Series[float] = mine.sort_values("seed")[metric].reset_index(drop=True)
    return values


def warnings(run: Results) -> list[str]:
    """What a reader of the table should know: collapsed models, undefined metrics, imputed values."""
    lines, seeds = list(run.notes), run.seeds
    for number, label in enumerate(row_names(run.summary)):
        low = int((_per_seed(run, "mcc", number) < COLLAPSED).sum())
        if low:
            lines.append(
                f"{label} collapsed in {low} of {seeds} seeds: an MCC below {COLLAPSED} means that it hardly"
                " tells people apart, whatever its fairness says"
            )
        row = run.summary.iloc[number]
        undefined = [name.upper() for name in FAIRNESS if math.isnan(row[f"{name}_last_mean"])]
        if undefined:
            lines.append(
                f"{label}: {', '.join(undefined)} undefined, a group has no such test rows in some seed"
            )
        metric = row["metric"]
        if isinstance(metric, str) and "+" not in row["strategy"]:
            blind = int(_per_seed(run, metric, number, "validation").isna().sum())
            if blind:
                lines.append(
                    f"{label} looked at an undefined {_said(metric)} in {blind} of {seeds} seeds: a group"
                    " has no such validation rows, so no client counted as fair"
                )
    return lines


def show_run(console: Console, run: Results) -> None:
    """Print a finished run."""
    over = f"mean ± std over {run.seeds} seeds" if run.seeds > 1 else "one seed"
    first = run.summary.iloc[0]
    title = f"{first['dataset']}, {first['partition']}: test rows, round {run.last}, {over}"
    console.print(f"\n{title}", style="italic")
    console.print(results_table(run, console.width))
    console.print("SP, EO, EQO: 1 is fair. * best of the column.", style="dim")
    sentence = verdict(run)
    if sentence:
        console.print(f"\n{sentence}", highlight=False)
    for line in warnings(run):
        console.print(f"Note: {line}", style="yellow", highlight=False)
    if run.out is not None:
        console.print(f"\nSaved to {run.out}/", highlight=False, soft_wrap=True)


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
