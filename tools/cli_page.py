"""docs/cli.md: every command with its arguments and options, from the app itself."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, get_type_hints

from typer.main import get_command

from fairfate.cli.main import app
from fairfate.options import Execution, Options, options_of

HEAD = """\
# Command line

Generated from the commands; `fairfate COMMAND --help` prints the same. Python can do everything that they do ([reference](api.md)).
An option is given once unless it is *repeatable*. User errors are one message and exit code 2; Ctrl-C keeps finished work, with exit
code 130. An existing file is replaced only with `--force`, and never one that the command reads.

## Common options

"""

LEAST_COMMANDS = 3
"""An option of so many commands is explained once."""
MOST_SHARED = 10
"""A command with more options of the page of options refers to that page."""
SHARED = {option.key for table in (Options, Execution) for option in options_of(table).values()}
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
    commands = sorted(_leaves(get_command(app), "fairfate"), key=lambda named: _rank(named[0]))
    rows = Counter(row for _, command in commands for row in map(_option_row, _options(command)))
    common = {row: row.split("`")[1].split()[0] for row, times in rows.items() if times >= LEAST_COMMANDS}
    return "\n".join(
        [HEAD + "".join(common), *(_command(name, command, common) for name, command in commands)]
    )


def _leaves(command: Any, name: str) -> Any:
    """The commands that do something, in the order in which they are declared."""
    for word, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from _leaves(child, f"{name} {word}")
        else:
            yield f"{name} {word}", child


def _rank(name: str) -> int:
    """The most used commands come first, the others as they are declared."""
    word = name.split()[1]
    return FIRST.index(word) if word in FIRST else len(FIRST)


def _options(command: Any) -> list[Any]:
    """The options that are shown of a command; those on the page of options are on that page alone."""
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and param.help
    ]
    others = [param for param in options if param.opts[0].removeprefix("--") not in SHARED]
    return others if len(options) - len(others) > MOST_SHARED else options


def _command(name: str, command: Any, common: dict[str, str]) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    usage = " ".join([name, *map(_argument, arguments)])
    parts = [f"## {name}\n", *(f"{_escape(part)}\n" for part in _paragraphs(command))]
    if arguments:
        parts += [f"```text\n{usage}\n```\n"]
    if arguments:
        hints = get_type_hints(command.callback, include_extras=True)
        parts += ["".join(_argument_row(item, hints) for item in arguments)]
    rows = [_option_row(param) for param in _options(command)]
    own = [row for row in rows if row not in common]
    also = ", ".join(f"`{common[row]}`" for row in rows if row in common)
    if len(command.params) - len(arguments) - len(rows) > MOST_SHARED:
        also = ", ".join(filter(None, ("[all options of a run](options.md)", also)))
    if own or also:
        parts += ["".join([*own, *([f"- common: {also}\n"] if also else [])])]
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
