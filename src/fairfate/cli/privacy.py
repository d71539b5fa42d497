"""``fairfate privacy``: what each client of a run, or a site, has released and spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.parameters import Whole, option, whole
from fairfate.cli.screen import console


def privacy(
    run: Annotated[
        Path,
        typer.Argument(help="folder of a finished run under --privacy, or a site's settings (.toml)"),
    ],
    seed: Annotated[Whole, option("of which seed (default: the first)", whole)] = None,
) -> None:
    """Print what each client has released under differential privacy, and the epsilon that it has spent."""
    if run.suffix == ".toml":
        _print_account(run)
        return
    from fairfate.errors import InputError, listing
    from fairfate.experiments.runs import load_run
    from fairfate.privacy.budget import describe_guarantee, parse_budget
    from fairfate.privacy.ledger import spending

    finished = load_run(run)
    budget = parse_budget(finished.config.get("privacy"))
    if budget is None:
        raise InputError(f"'{run}' was run without --privacy, which has no budget")
    chosen = finished.seeds[0] if seed is None else seed
    if chosen not in finished.seeds:
        raise InputError(f"seed must be one of the run's ({listing(finished.seeds)}), got {chosen}")
    spent = spending(finished.ledger[finished.ledger["seed"] == chosen], budget.delta)
    title = f"Spent of epsilon {budget.epsilon:g} at delta {budget.delta:g}, seed {chosen}"
    rows = []
    for line in spent.to_dict("records"):
        epsilon = float(line["epsilon"])
        words = [str(line[name]) for name in ("strategy", "client", "rows", "releases", "noise")]
        rows.append([*words, f"{epsilon:.3f}", f"{max(0.0, budget.epsilon - epsilon):.3f}"])
    _print_table(title, ("strategy", "client"), ("rows", "releases", "noise", "epsilon", "left"), rows)
    screen = console()
    screen.print(_NOISE)
    for sentence in describe_guarantee(budget):
        screen.print(sentence)


_NOISE = "Noise: standard deviation, as a multiple of what one row can change."


def _print_account(node: Path) -> None:
    """Print all that a site has released of its file, in every run, and what is left of its budget."""
    from fairfate.errors import InputError
    from fairfate.flower.app.gate import read_study, state_folder
    from fairfate.flower.app.node import read_node
    from fairfate.flower.app.private_site import open_account
    from fairfate.privacy.ledger import WORDS

    config = read_node(node)
    budget = read_study(config).budget
    if budget is None:
        raise InputError(f"The study of '{node}' has no privacy budget.")
    account = open_account(config, budget, state_folder(config))
    book = account.read()
    rows = [
        [
            line.study,
            line.strategy,
            f"{line.entry.times:,} {WORDS[line.entry.release]}",
            f"{line.entry.noise:.2f}",
        ]
        for line in book.postings
    ]
    title = f"Released of '{account.file.name}', in all runs"
    _print_table(title, ("study", "strategy"), ("releases", "noise"), rows)
    epsilon, delta = account.spent(book)
    console().print(
        f"Spent: epsilon {epsilon:.3f} of {account.most:g} at delta {delta:g}. One run may cost"
        f" {budget.epsilon:g}; epsilon and delta in this site's settings are the most for all runs together."
        f"\n{_NOISE}"
    )


def _print_table(title: str, texts: Sequence[str], numbers: Sequence[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console().print(table)
