"""``fairfate flower``: write an app, and the checksum of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.options import flower_app
from fairfate.cli.screen import console
from fairfate.errors import InputError


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="new folder; its name becomes the app's")],
) -> None:
    """Write a small Flower app that trains the built-in model, with invented data to try it on."""
    try:
        from fairfate.flower.app.init import init as write
    except ImportError as error:
        raise InputError(str(error)) from None
    written = write(folder)
    screen = console(soft_wrap=True)
    screen.print(f"Wrote {written}. Its README.md says what each file is; next:")
    screen.print(f"    python {folder}/deploy_here.py")


@flower_app.command()
def checksum(
    app: Annotated[Path, typer.Argument(help="folder of a Flower app that you have looked through")],
) -> None:
    """Print the checksum of an app as Flower sends it, for a site's list of apps that it trusts."""
    try:
        from fairfate.flower.app.guard import app_checksum
    except ImportError as error:
        raise InputError(str(error)) from None
    console(soft_wrap=True).print(f"{app_checksum(app)}  # {app.resolve().name}")
