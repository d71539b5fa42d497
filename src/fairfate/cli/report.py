"""``fairfate report``: a page that the person who decides can read, and a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.options import Force, app, number, option, output_option, whole
from fairfate.cli.screen import console

FairFrom = Annotated[
    float | None,
    output_option(
        "ratio of groups' rates that counts as enough in the report (default: 0.8, four fifths)", number
    ),
]


@app.command()
def report(
    run: Annotated[list[Path], typer.Argument(help="folders of runs or sweeps, finished or not")],
    out: Annotated[Path | None, option("HTML file (default: report.html in the run's folder)")] = None,
    fair_from: FairFrom = None,
    min_cell: Annotated[
        int | None, option("least count of people that is shown (default: 10; 0 for all)", whole)
    ] = None,
    card: Annotated[bool, option("write a model card in Markdown instead")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    force: Force = False,
) -> None:
    """Write a page about runs: which model to take, how fair it is, an audit, and charts."""
    from fairfate.fairness.disclosure import MIN_CELL
    from fairfate.report.audit import FOUR_FIFTHS
    from fairfate.report.write import report, write_card

    line = FOUR_FIFTHS if fair_from is None else fair_from
    least = MIN_CELL if min_cell is None else min_cell
    path = (write_card if card else report)(run, out, line, least, force=force)
    console(soft_wrap=True).print(f"{'Card' if card else 'Report'}: {path}")
    if open_page:
        typer.launch(str(path))
