"""docs/cli.md: every command with its arguments and options, from the app itself."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

from typer.main import get_command

from fairfate.cli.main import app
from fairfate.options import Execution, Options, options_of

HEAD = """\
# Command line

Generated from the commands; `fairfate COMMAND --help` prints the same. Python can do everything that they do ([reference](api.md)).
An option is given once unless it is *repeatable*. User errors are one message and exit code 2; Ctrl-C keeps finished work, with exit
code 130. An existing file is replaced only with `--force`, and never one that the command reads.
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
    result = sorted(_leaves(get_command(app), "fairfate"), key=lambda one: _place(one[0]))
    return "\n".join([HEAD, *(_command(name, one) for name, one in result)])


def _leaves(command: Any, name: str) -> Any:
    """The commands that do something, in the order in which they are declared."""
    for word, first in command.commands.items():
        if hasattr(first, "commands"):
            yield from _leaves(first, f"{name} {word}")
        else:
            yield f"{name} {word}", first


def _place(name: str) -> int:
    """The most used commands come first, the others as they are declared."""
    word = name.split()[1]
    return FIRST.index(word) if word in FIRST else len(FIRST)


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
        parts += ["".join(_argument_row(item, hints) for item in arguments)]
    shared = {option.key for table in (Options, Execution) for option in options_of(table).values()}
    others = [param for param in options if param.opts[0].removeprefix("--") not in shared]
    if len(options) - len(others) > 10:
        parts += ["Takes every option on [Options](options.md), and:\n"]
        options = others
    if options:
        parts += ["".join(map(_option_row, options))]
    return "\n".join(parts)


def _paragraphs(command: Any) -> list[str]:
    return [part.replace("\n", " ") for part in str(command.help).split("\n\n")]


def _argument(param: Any) -> str:
    many = "..." if param.nargs == -1 else ""
    return f"{param.name.upper()}{many}"


def _argument_row(param: Any, hints: dict[str, Any]) -> str:
    """Its help is read where it is declared: some versions of Click and Typer lose it."""
    return f"- `{_argument(param)}`: {_escape(hints[param.name].__metadata__[0].help)}\n"


def _option_row(param: Any) -> str:
    value = "" if param.is_flag else f" {_value(param)}"
    need = " (needed)" if param.required else ""
    names = ", ".join(param.opts)
    return f"- `{names}{value}`: {_escape(param.help)}{need}\n"


def _value(param: Any) -> str:
    """What follows an option."""
    if param.metavar and param.metavar.startswith("["):
        return str(param.metavar)
    annotation = {"INTEGER": "N", "WHOLE": "N", "FLOAT": "X", "NUMBER": "X", "PATH": "PATH"}
    return annotation.get(str(param.type.name).upper(), "TEXT")


def _escape(text: str) -> str:
    """Signs that Markdown would read."""
    text = re.sub(r"([|*_<>\[\]])", r"\\\1", text.strip())
    return re.sub(r"\btls://[\w:]+", r"`\g<0>`", text)
