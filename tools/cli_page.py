"""docs/cli.md: every command with its arguments and options, from the app itself."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

from typer.main import get_command

from fairfate.cli.main import app

HEAD = """\
# Command line

Written by `python tools/pages.py` from the commands themselves; `fairfate COMMAND --help` prints the same. Every command is
one call that Python can make too ([reference](api.md)). An option is given once unless it is *repeatable*. User
errors are one message and the exit code 2; Ctrl-C keeps finished work, and its exit code is 130. A file that exists is
replaced only with `--force`, and a file that the command reads never.
"""

FIRST = (
    "run",
    "report",
    "watch",
    "show",
    "plot",
    "predict",
    "evaluate",
    "export",
    "strategies",
    "sweep",
    "data",
)


def page() -> str:
    """The whole page."""
    found = sorted(_leaves(get_command(app), "fairfate"), key=lambda one: _place(one[0]))
    rows = "\n".join(f"| [`{name}`](#{_anchor(name)}) | {_escape(_summary(one))} |" for name, one in found)
    index = f"| command | what it does |\n| --- | --- |\n{rows}\n"
    return "\n".join([HEAD, index, *(_command(name, one) for name, one in found)])


def _leaves(command: Any, name: str) -> Any:
    """The commands that do something, in the order in which they are declared."""
    for word, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from _leaves(one, f"{name} {word}")
        else:
            yield f"{name} {word}", one


def _place(name: str) -> int:
    """The most used commands come first, the others as they are declared."""
    word = name.split()[1]
    return FIRST.index(word) if word in FIRST else len(FIRST)


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _summary(command: Any) -> str:
    return str(command.help).partition("\n\n")[0].replace("\n", " ")


def _command(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and param.help
    ]
    usage = " ".join([name, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [
        f"## {name}\n",
        *(f"{_escape(part)}\n" for part in _paragraphs(command)),
        f"```text\n{usage}\n```\n",
    ]
    if arguments:
        hints = get_type_hints(command.callback, include_extras=True)
        parts += ["| argument | |\n| --- | --- |\n" + "".join(_argument_row(one, hints) for one in arguments)]
    if options:
        parts += ["| option | |\n| --- | --- |\n" + "".join(map(_option_row, options))]
    return "\n".join(parts)


def _paragraphs(command: Any) -> list[str]:
    return [part.replace("\n", " ") for part in str(command.help).split("\n\n")]


def _argument(param: Any) -> str:
    many = "..." if param.nargs == -1 else ""
    return f"{param.name.upper()}{many}"


def _argument_row(param: Any, hints: dict[str, Any]) -> str:
    """Its help is read where it is declared: some versions of Click and Typer lose it."""
    return f"| `{_argument(param)}` | {_escape(hints[param.name].__metadata__[0].help)} |\n"


def _option_row(param: Any) -> str:
    value = "" if param.is_flag else f" {_value(param)}"
    need = " (needed)" if param.required else ""
    names = ", ".join(param.opts)
    return f"| `{names}{value}` | {_escape(param.help)}{need} |\n"


def _value(param: Any) -> str:
    """What follows an option."""
    if param.metavar and param.metavar.startswith("["):
        return str(param.metavar).replace("|", "\\|")
    annotation = {"INTEGER": "N", "WHOLE": "N", "FLOAT": "X", "NUMBER": "X", "PATH": "PATH"}
    return annotation.get(str(param.type.name).upper(), "TEXT")


def _escape(text: str) -> str:
    """Signs that Markdown would read."""
    return re.sub(r"([|*_<>\[\]])", r"\\\1", text.strip())
