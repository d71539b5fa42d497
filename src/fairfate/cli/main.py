"""The app: every command, and how it ends. User errors are one message, without a traceback."""

from __future__ import annotations

import importlib
import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fairfate._version import __version__
from fairfate.cli import data, flower
from fairfate.cli.models import evaluate, export, predict
from fairfate.cli.parameters import ClickError, Command
from fairfate.cli.privacy import privacy
from fairfate.cli.run import plot, report, run, show, strategies
from fairfate.cli.screen import console, say
from fairfate.cli.studies import benchmark, reproduce, sweep
from fairfate.cli.watch import watch
from fairfate.errors import InputError, ProcessDiedError, is_out_of_memory, shown

PROGRAM = "fairfate"
"""Its name also under ``python -m fairfate``: shells complete that."""
SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class Commands(TyperGroup):
    """All commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual, but for a shell's name after one of Typer's two options."""
        if len(args) == 2 and args[0] in ("--show-completion", "--install-completion"):
            _show_or_install(args[0], args[1])
        return super().parse_args(ctx, args)


def _show_or_install(option: str, shell: str) -> None:
    """``--show-completion bash``: Typer's own options find out the shell, and take no name of one."""
    if shell not in SHELLS:
        raise typer.BadParameter(f"{option} must name one of {', '.join(SHELLS)}, got '{shell}'")
    typers: Any = importlib.import_module("typer.completion")
    variable = f"_{PROGRAM.upper()}_COMPLETE"
    if option == "--show-completion":
        typer.echo(typers.get_completion_script(prog_name=PROGRAM, complete_var=variable, shell=shell))
    else:
        _, path = typers.install(shell=shell, prog_name=PROGRAM, complete_var=variable)
        typer.echo(f"Saved in {path}; new terminals will complete {PROGRAM}.")
    raise typer.Exit


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)
for _command in (
    *(run, show, report, watch, plot),
    *(predict, evaluate, export),
    *(privacy, strategies, sweep, reproduce, benchmark),
):
    app.command(cls=Command)(_command)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")


def _version(asked: bool) -> None:
    if asked:
        console().print(f"fairfate {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train and compare group-fair models in federated learning."""


def run_command() -> int:
    """Do what the arguments say; returns the exit code. User errors are one message, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no ± still gets its numbers
    try:
        return int(app(standalone_mode=False, prog_name=PROGRAM) or 0)
    except ClickError as error:
        text = io.StringIO()
        error.show(text)
        sys.stderr.write(shown(text.getvalue()))
        return int(error.exit_code)
    except InputError as error:
        say(f"Error: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_out_of_memory(error):
            raise
        named = f" '{error.filename}'" if error.filename else ""
        say(f"Error: could not read or write{named}: {error.strerror or error}")
        return 2
    except ProcessDiedError as error:
        say(f"Error: {error}.")
        return 1
