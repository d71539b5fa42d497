"""``fairfate privacy``: what each client of a run has released and spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.parameters import Whole, option, whole
from fairfate.cli.screen import console


def privacy(
    run: Annotated[Path, typer.Argument(help="folder of a finished run under --privacy")],
    seed: Annotated[Whole, option("of which seed (default: the first)", whole)] = None,
) -> None:
    """Print what each client has released under differential privacy, and the epsilon that it has spent."""
    from rich.table import Table

    from fairfate.errors import InputError, listing
    from fairfate.experiments.runs import load_run
    from fairfate.privacy.budget import describe_guarantee, parse_budget
    from fairfate.privacy.ledger import spending

    finished = load_run(run)
    budget = parse_budget(finished.config.get("privacy"))
    if budget is None:
        raise InputError(f"run must be one under --privacy, got '{run}', which has no budget")
    chosen = finished.seeds[0] if seed is None else seed
    if chosen not in finished.seeds:
        raise InputError(f"seed must be one of the run's ({listing(finished.seeds)}), got {chosen}")
    spent = spending(finished.ledger[finished.ledger["seed"] == chosen], budget.delta)
    screen = console()
    title = f"Spent of epsilon {budget.epsilon:g} at delta {budget.delta:g}, seed {chosen}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("strategy", "client"):
        table.add_column(name)
    for name in ("rows", "releases", "noise", "epsilon", "left"):
        table.add_column(name, justify="right")
    for line in spent.to_dict("records"):
        epsilon = float(line["epsilon"])
        left = max(0.0, budget.epsilon - epsilon)
        words = [str(line[name]) for name in ("strategy", "client", "rows", "releases", "noise")]
        table.add_row(*words, f"{epsilon:.3f}", f"{left:.3f}")
    screen.print(table)
    screen.print("Noise: standard deviation, as a multiple of what one row can change.")
    for sentence in describe_guarantee(budget):
        screen.print(sentence)
