"""``fairfate data``: list, describe and fetch datasets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.completion import DATASETS, complete
from fairfate.cli.options import (
    DATA,
    Categorical,
    ClientColumn,
    Clients,
    DataDir,
    Decimal,
    Drop,
    Encode,
    Encoding,
    Favourable,
    Keep,
    MinGroup,
    Missing,
    MissingGroup,
    Partition,
    Privileged,
    Protocol,
    Sensitive,
    Sep,
    Target,
    data_app,
    given_options,
    option,
    whole,
)
from fairfate.cli.screen import console
from fairfate.errors import InputError, unknown


@data_app.command("list")
def list_data(
    data_dir: DataDir = None,
) -> None:
    """List the datasets and where they were found."""
    from fairfate.data import SOURCES, find
    from fairfate.data.datasets import folders
    from fairfate.report.lists import show_sources

    folders(data_dir)
    found: dict[str, str] = {}
    for name in SOURCES:
        with suppress(InputError):
            found[name] = str(find(name, data_dir))
    show_sources(console(soft_wrap=True), found)


@data_app.command()
def describe(
    ctx: typer.Context,
    data: Annotated[str, typer.Argument(help=DATA, autocompletion=complete(*DATASETS))],
    target: Target = None,
    favourable: Favourable = None,
    sensitive: Sensitive = None,
    privileged: Privileged = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    keep: Keep = None,
    min_group: MinGroup = None,
    missing_group: MissingGroup = None,
    missing: Missing = None,
    encode: Encode = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    partition: Partition = None,
    clients: Clients = None,
    seed: Annotated[int, option("whose split to show (default: 1)", whole)] = 1,
    protocol: Protocol = None,
    data_dir: DataDir = None,
) -> None:
    """Show a dataset's groups and inputs and, with --partition, the clients' shares of them.

    Of a file without --target and --sensitive: a first look at its columns.
    """
    given = given_options(ctx, "seed")
    from fairfate.data.inspection import look, spikes
    from fairfate.data.numbers import note_codes
    from fairfate.data.readers import read_file, read_folder
    from fairfate.experiments.config import from_mapping
    from fairfate.experiments.prepare import load_table, prepare
    from fairfate.federation.split import build
    from fairfate.federation.streams import Streams
    from fairfate.report.terminal import show_look, show_partition, show_table

    config = from_mapping({**given, "seeds": [seed]}, where="the command line")
    screen = console()
    if target is None and sensitive is None and Path(data).exists():
        path = Path(data)
        found = read_folder(path, config.reading) if path.is_dir() else read_file(path, config.reading)
        notes = [*found.notes, *note_codes(found.missing, found.frame.columns), *spikes(found.frame)]
        show_look(screen, path, look(found.frame), len(found.frame), notes)
        return
    if partition is None and client_column is None and not Path(data).is_dir():
        show_table(screen, load_table(config))
        return
    plan, table = prepare(config)
    show_table(screen, table)
    federation = build(table, plan.partition, plan.clients, Streams(seed, plan.published), plan.holders)
    screen.print()
    title = f"training rows by client, {plan.partition}, seed {seed} (share of the column)"
    show_partition(screen, table, federation, title)


@data_app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(help="adult, compas, law or dutch", autocompletion=complete(*DATASETS[1:]))
    ],
    to: Annotated[Path | None, option("folder (default: the cache)")] = None,
) -> None:
    """Download a dataset from its public home, check it and bring it into the documented form."""
    from fairfate import data

    if name not in data.SOURCES:
        raise unknown("dataset", name, data.SOURCES)
    console(soft_wrap=True).print(f"Saved {data.fetch(name, to)}")
