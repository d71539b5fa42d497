"""What a shell is told when the user presses Tab: quickly, so nothing large is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import typer

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
DATASETS = ("synthetic", "adult", "compas", "law", "dutch")
STRATEGIES = (
    "fedavg",
    "fair_fate",
    "fairfed",
    "afl",
    "dual_reweighing",
    "fair_acc_avg",
    "fair_avg",
    "fair_best",
    "fairbatch",
    "fairgrad",
    "fedadam",
    "fedavg_gr",
    "fedavg_lr",
    "feddemon",
    "fedfb",
    "fedgft",
    "fedminmax",
    "fedmom",
    "fedprox",
    "fedval",
    "fedyogi",
    "ffalm",
    "prejudice",
    "qffl",
    "server_step",
)
"""Those that need no plugin; a test holds them against the registry, which takes a second to import."""
METRICS = ("sp", "eo", "eqo")


def complete(*words: str) -> Callable[[str], list[str]]:
    """For Typer: the words that begin as typed. With none, shells offer files."""

    def found(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return found


def show_or_install(option: str, shell: str, program: str) -> None:
    """``--show-completion bash``: Typer's own options find out the shell, and take no name of one."""
    if shell not in SHELLS:
        raise typer.BadParameter(f"{option} must name one of {', '.join(SHELLS)}, got '{shell}'")
    typers: Any = importlib.import_module("typer.completion")
    variable = f"_{program.upper()}_COMPLETE"
    if option == "--show-completion":
        typer.echo(typers.get_completion_script(prog_name=program, complete_var=variable, shell=shell))
    else:
        _, path = typers.install(shell=shell, prog_name=program, complete_var=variable)
        typer.echo(f"Saved in {path}; new terminals will complete {program}.")
    raise typer.Exit
