"""``fairfate data``: list, describe and fetch datasets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as Grid

from fairfate.cli.parameters import Command, DataDir, by_section, complete, option, whole, with_options
from fairfate.cli.screen import console
from fairfate.errors import InputError, unknown
from fairfate.options import Options, options_of

app = typer.Typer(help="The datasets: list, describe, fetch.", no_args_is_help=True)

_OPTIONS = options_of(Options)
_DATASETS = _OPTIONS["data"].suggestions
_OF_A_TABLE = [
    item
    for item in by_section(_OPTIONS.values())
    if (item.section == "data" and item.name not in ("data", "validation", "test", "schema"))
    or item.name in ("client_column", "partition", "clients", "protocol")
]
"""The options that say how a table is read and shared out."""


@app.command("list", cls=Command)
def list_data(
    data_dir: DataDir = None,
) -> None:
    """List the datasets and where they were found."""
    from fairfate.data import SOURCES, find_dataset
    from fairfate.data.datasets import dataset_folders

    dataset_folders(data_dir)
    paths: dict[str, str] = {}
    for name in SOURCES:
        with suppress(InputError):
            paths[name] = str(find_dataset(name, data_dir))
    grid = Grid(box=None, pad_edge=False, padding=(0, 1))
    for heading in ("name", "rows", "clients", "what", "where"):
        right = heading in ("rows", "clients")
        grid.add_column(heading, justify="right" if right else "left", overflow="fold")
    grid.add_row("synthetic", "6000", "10", "generated hiring history, embedded", "always there")
    for name, source in SOURCES.items():
        where = paths.get(name, f"not here: fairfate data fetch {name}")
        grid.add_row(name, str(source.rows), str(source.clients), source.title, where)
    console(soft_wrap=True).print(grid)


@app.command(cls=Command)
@with_options(_OF_A_TABLE)
def describe(
    given: dict[str, Any],
    data: Annotated[str, typer.Argument(help=_OPTIONS["data"].help, autocompletion=complete(*_DATASETS))],
    seed: Annotated[int, option("whose split to show (default: 1)", whole)] = 1,
) -> None:
    """Show a dataset's groups and inputs and, with --partition, the clients' shares of them.

    Of a file without --target and --sensitive: a first look at its columns.
    """
    from fairfate.data.inspection import find_spikes, summarise_columns
    from fairfate.data.numbers import note_codes
    from fairfate.data.readers import read_file, read_folder
    from fairfate.experiments.config import from_mapping
    from fairfate.experiments.prepare import load_table, prepare
    from fairfate.federation.seeds import Streams
    from fairfate.federation.split import build
    from fairfate.report.terminal import show_look, show_partition, show_table

    config = from_mapping({**given, "data": data, "seeds": [seed]}, where="the command line")
    screen = console()
    path = Path(data)
    if config.target is None and not config.sensitive and path.exists():
        file = read_folder(path, config.reading) if path.is_dir() else read_file(path, config.reading)
        notes = [*file.notes, *note_codes(file.missing, file.frame.columns), *find_spikes(file.frame)]
        show_look(screen, path, summarise_columns(file.frame), len(file.frame), notes)
        return
    if config.partition is None and config.client_column is None and not path.is_dir():
        show_table(screen, load_table(config))
        return
    plan, table = prepare(config)
    show_table(screen, table)
    federation = build(
        table, plan.partition, plan.clients, Streams(seed, plan.published), plan.validation_source
    )
    screen.print()
    title = f"training rows by client, {plan.partition}, seed {seed} (share of the column)"
    show_partition(screen, table, federation, title)


@app.command(cls=Command)
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            help="adult, compas, law, dutch or acs_income", autocompletion=complete(*_DATASETS[1:])
        ),
    ],
    to: Annotated[Path | None, option("folder (default: the cache)")] = None,
    states: Annotated[str | None, option("of acs_income, such as CA,TX (default: all)")] = None,
    year: Annotated[int | None, option("of acs_income, 2014 to 2018 (default: 2018)", whole)] = None,
) -> None:
    """Download a dataset from its public home, check it and bring it into the documented form.

    No checksums of acs_income are published: those of the files that came are shown and kept, and later
    downloads are compared with them.
    """
    from fairfate import data
    from fairfate.data.acs import checksum_file, read_checksums

    if name not in data.SOURCES:
        raise unknown("dataset", name, data.SOURCES)
    file = data.fetch_dataset(name, to, states=states, year=year)
    screen = console(soft_wrap=True)
    if data.SOURCES[name].sha256 is None:
        for raw, digest in read_checksums(file).items():
            screen.print(f"{digest}  {raw}", highlight=False)
        screen.print(
            "No checksums of these files are published, so they were trusted as they came. Theirs are kept in"
            f" {checksum_file(file)}, and later downloads are compared with them.",
            highlight=False,
        )
    screen.print(f"Saved {file}")
