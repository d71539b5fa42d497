"""The leaderboard on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fairfate.studies.benchmark.baselines import BASELINES
from fairfate.studies.benchmark.findings import Findings

_BEST = 15


def show(screen: Console, found: Findings) -> None:
    """The best methods and, if some were asked for, these."""
    for encode in found.encodings:
        board = found.board[found.board["encode"] == encode]
        ranked = board[~board["method"].isin(BASELINES)].reset_index(drop=True)
        shown = ranked[(ranked.index < _BEST) | ranked["method"].isin(found.asked)]
        which = "all" if len(shown) == len(ranked) else f"the best {_BEST}"
        screen.print(
            f"\n{len(ranked)} methods, inputs {encode}: {which}, tuned on validation rows", style="italic"
        )
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
        table.add_column("method", overflow="fold")
        for name in ("place", "rank", "fairness", "accuracy", "MCC", "keeps"):
            table.add_column(name, justify="right")
        for place, row in zip(shown.index, shown.to_dict("records"), strict=True):
            style = "bold" if row["method"] in found.asked else None
            table.add_row(
                found.label(str(row["method"])),
                str(place + 1),
                f"{row['rank']:.1f}",
                f"{row['fairness']:.3f}",
                f"{0.0 - row['cost']:+.3f}",
                f"{row['mcc']:.2f}",
                f"{row['keeps']} of {row['cells']}",
                style=style,
            )
        screen.print(table)
    screen.print(
        "Accuracy: against fedavg+average. Keeps: cells in which accuracy and skill are kept; those that keep"
        " neither rank last.",
        soft_wrap=True,
    )
