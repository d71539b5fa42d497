"""Who took part in each round, for the terminal."""

from __future__ import annotations

import pandas as pd
from rich.console import Console
from rich.text import Text

from fairfate.engine.record import DROPPED, FAIR, REFUSED, USED
from fairfate.errors import InputError, listing
from fairfate.experiments.results import row_names

SIGNS = {FAIR: "F", USED: "o", DROPPED: "x", REFUSED: "-"}
STYLES = {FAIR: "green", USED: "", DROPPED: "bold red", REFUSED: "dim"}
MOST_ROUNDS = 60
"""In a line."""


def show_clients(console: Console, clients: pd.DataFrame, seed: int | None = None) -> None:
    """Print, for each strategy, a line for each client with a sign for each round, and why it was dropped."""
    seeds = sorted(set(clients["seed"]))
    chosen = seeds[0] if seed is None else seed
    if chosen not in seeds:
        raise InputError(f"seed must be one of the run's, {listing(seeds)}, got {chosen}")
    mine = clients[clients["seed"] == chosen]
    keys = ["strategy", "metric", "settings"]
    groups = [frame for _, frame in mine.groupby(keys, dropna=False, sort=False)]
    names = row_names(pd.DataFrame([frame.iloc[0] for frame in groups]))
    for name, frame in zip(names, groups, strict=True):
        console.print()
        console.print(Text(name, "bold") + Text(f", seed {chosen}"))
        _show_strategy(console, frame)
    if len(seeds) > 1:
        console.print(f"\n{len(seeds)} seeds were run: {listing(seeds)}; --seed shows another.", style="dim")
    console.print("\nF counted as fair, o counted, x dropped, - took no part.", style="dim")


def _show_strategy(console: Console, frame: pd.DataFrame) -> None:
    rounds = list(range(1, int(frame["round"].max()) + 1))
    width = max(6, *(len(str(name)) for name in set(frame["name"])))
    room = max(10, min(MOST_ROUNDS, console.width - width - 24))
    for start in range(0, len(rounds), room):
        part = rounds[start : start + room]
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
    told = frame[frame["reason"].fillna("") != ""]
    return {(str(name), str(reason)): len(rows) for (name, reason), rows in told.groupby(["name", "reason"])}
