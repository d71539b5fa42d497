"""``fairfate privacy``: what each client of a run, or a site, has released and spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairfate.cli.parameters import Whole, option, whole
from fairfate.cli.screen import console

if TYPE_CHECKING:
    from fairfate.experiments.runs import Run
    from fairfate.privacy.budget import Budget


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
    from fairfate.errors import InputError
    from fairfate.experiments.runs import load_run
    from fairfate.privacy.budget import describe_guarantee, parse_budget
    from fairfate.results.folder import is_sweep

    if is_sweep(run):
        raise InputError(
            f"run must be a run by itself, got '{run}', a sweep, which keeps no ledgers: a run of one of its"
            f" configs has the same numbers (fairfate run --config {run}/configs/NAME.toml --out FOLDER)"
        )
    finished = load_run(run)
    budget = parse_budget(finished.config.get("privacy"))
    if budget is None:
        raise InputError(f"'{run}' was run without --privacy, which has no budget")
    _print_run(finished, budget, seed)
    screen = console()
    screen.print(_NOISE)
    for sentence in describe_guarantee(budget):
        screen.print(sentence)


def _print_run(finished: Run, budget: Budget, seed: int | None) -> None:
    """Print the ledger of one seed, and what a client's rows have spent in all strategies."""
    from fairfate.errors import InputError, listing
    from fairfate.federation.partition import parse_partition
    from fairfate.privacy.ledger import spending, spent_together

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
    partition = finished.config.get("partition")
    same_rows = partition is not None and parse_partition(partition).column is not None
    known = finished.ledger if same_rows else finished.ledger[finished.ledger["seed"] == chosen]
    if not known.groupby(["seed", "strategy"]).ngroups > 1:
        return
    together = spent_together(known, budget.delta, same_rows=same_rows)
    what = "all strategies and seeds" if same_rows else f"all strategies of seed {chosen}"
    rows = [[str(client), f"{epsilon:.3f}"] for client, epsilon in together[["client", "epsilon"]].to_numpy()]
    _print_table(f"Spent of a client's rows by {what}, if all were released", ("client",), ("epsilon",), rows)


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
