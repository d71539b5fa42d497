"""``fairfate flower``: write an app, its schema and its checksum, and check a site's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.options import flower_app, option
from fairfate.cli.screen import console
from fairfate.errors import InputError


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="new folder; its name becomes the app's")],
) -> None:
    """Write a small Flower app that trains the built-in model, with invented data to try it on."""
    _need_flower()
    from fairfate.flower.app.init import init as write

    written = write(folder)
    screen = console(soft_wrap=True)
    screen.print(f"Wrote {written}. Its README.md says what each file is; next:")
    screen.print(f"    python {folder}/deploy_here.py")


@flower_app.command()
def checksum(
    app: Annotated[Path, typer.Argument(help="folder of a Flower app that you have looked through")],
) -> None:
    """Print the checksum of an app as Flower sends it, for a site's list of apps that it trusts."""
    _need_flower()
    from fairfate.flower.app.guard import app_checksum

    console(soft_wrap=True).print(f"{app_checksum(app)}  # {app.resolve().name}")


@flower_app.command()
def schema(
    app: Annotated[Path, typer.Argument(help="folder of an app that fairfate flower init has written")],
    out: Annotated[Path, option("file to write (default: schema.json)")] = Path("schema.json"),
) -> None:
    """Write the schema that the server will send, for sites to check their files against."""
    from fairfate.flower.app.settings import schema_of

    found, complete = schema_of(app)
    found.write(out)
    screen = console(soft_wrap=True)
    screen.print(f"Saved {out}. It has names and ranges of columns, and no rows; a site can use it:")
    screen.print(f"    fairfate flower check --schema {out.name} --node site.toml")
    if not complete:
        screen.print('With schema = "sites", the sites\' own ranges and categories are added in a run.')


@flower_app.command()
def check(
    schema: Annotated[Path, option("schema.json of the server's")],
    node: Annotated[Path | None, option("the site's node-config, a .toml file")] = None,
    data: Annotated[Path | None, option("the site's table, where there is no node-config")] = None,
) -> None:
    """Check a site's file, on its own machine, as the site's app will read it; says all that does not fit."""
    from fairfate.flower.app.check import check_site

    checked = check_site(schema, node, data)
    screen = console(soft_wrap=True)
    for line in checked.problems or checked.summary:
        screen.print(line)
    if checked.problems:
        count = len(checked.problems)
        raise InputError(
            f"data must fit the schema, got {count} problem{'s' * (count > 1)} in '{checked.file}'"
        )


def _need_flower() -> None:
    from fairfate.flower import need_flower

    try:
        need_flower()
    except ImportError as error:
        raise InputError(str(error)) from None
