"""What commands take: the options of the table and others, and one check of both."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fairfate.errors import is_utf8
from fairfate.options import SECTIONS, Execution, Option, Options, options_of

UsageError: Any = typer.BadParameter.__mro__[1]  # of Click, which Typer brings in one form or another
ClickError: Any = typer.BadParameter.__mro__[2]


class Command(TyperCommand):
    """A command whose options count once, unless they are repeatable: the last of several does not win."""

    def make_parser(self, ctx: Any) -> Any:
        """A parser that also refuses what no command can take; a shell that completes gets no messages."""
        parser = super().make_parser(ctx)
        parse = parser.parse_args

        def parse_and_check(args: list[str]) -> Any:
            values, rest, given = parse(args)
            if not ctx.resilient_parsing:
                for param in dict.fromkeys(given):
                    _check_parameter(param, given.count(param), values.get(param.name))
            return values, rest, given

        parser.parse_args = parse_and_check  # type: ignore[method-assign]
        return parser


def _check_parameter(param: Any, times: int, value: Any) -> None:
    is_option = param.param_type_name == "option"
    name = param.opts[0] if is_option else param.name
    if is_option and not param.multiple and times > 1:
        raise UsageError(f"{name} was given {times} times; give it once")
    for text in value if isinstance(value, list | tuple) else [value]:
        if text == "" and _is_path(param):
            raise UsageError(f"{name} must be a path, got ''")  # Path("") is the current folder
        if isinstance(text, str) and not is_utf8(text):  # no table, no TOML and no JSON can hold it
            raise UsageError(f"{name} must be in UTF-8, got {text!r}")


def _is_path(param: Any) -> bool:
    """Whether a parameter takes paths; Typer from 0.29 on has no types of Click."""
    if hasattr(param, "type"):
        return getattr(param.type, "name", "") in ("path", "file", "directory")
    return "Path" in str(getattr(getattr(param, "type_descriptor", None), "annotation", ""))


def whole(text: str) -> int:
    """A whole number, as typed."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, got '{text}'") from None


def number(text: str) -> float:
    """A number, as typed."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number, got '{text}'") from None


def complete(*words: str) -> Callable[[str], list[str]]:
    """For Typer: the words that begin as typed. With none, shells offer files."""

    def matches(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return matches


def complete_strategy(incomplete: str) -> list[str]:
    """The registered strategies that begin as typed."""
    from fairfate.strategies import entries

    return complete(*(entry.name for entry in entries()))(incomplete)


def option(
    text: str,
    parser: Callable[[str], Any] | None = None,
    words: Sequence[str] | Callable[[str], list[str]] = (),
    names: Sequence[str] = (),
    section: str | None = None,
    metavar: str | None = None,
) -> Any:
    """An option with its help, in which its default is.

    Parameters
    ----------
    text : the help
    parser : of a number
    words : that a shell completes, or a function that finds them
    names : if it has several, or another than its parameter
    section : of the help, if the command has some
    metavar : what the help shows as its value
    """
    completion = words if callable(words) else complete(*words) if words else None
    return typer.Option(
        *names,
        help=text,
        show_default=False,
        parser=parser,
        metavar=metavar or ("NUMBER" if parser else None),
        autocompletion=completion,
        rich_help_panel=section,
    )


def flag(name: str, text: str, section: str | None = None) -> Any:
    """An option without a value; Typer alone would add a ``--no-...`` to it."""
    return option(text, names=[name], section=section)


_PARSERS: dict[Any, Callable[[str], Any]] = {int: whole, float: number}


def table_option(item: Option) -> Any:
    """The Typer option for an option of the table."""
    text, default = item.help, item.default_text
    if not default and item.type is not bool and item.default not in (None, ()):
        default = str(item.default)
    remarks = [*(["repeatable"] if item.is_repeatable else []), *([f"default: {default}"] if default else [])]
    words = complete_strategy if item.name == "strategies" else item.choices or item.suggestions
    return option(
        f"{text} ({'; '.join(remarks)})" if remarks else text,
        _PARSERS.get(item.type),
        words,
        [f"--{key}" for key in (item.key, *item.spellings)],
        item.section.capitalize(),
        f"[{'|'.join(item.choices)}]" if item.choices else None,
    )


def by_section(options: Iterable[Option]) -> list[Option]:
    """Options in the order of the help's sections."""
    return sorted(options, key=lambda item: SECTIONS.index(item.section))


Function = Callable[..., None]


def with_options(options: Sequence[Option]) -> Callable[[Function], Function]:
    """Add options of the table to a command, whose first argument gets those that were typed, by name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(**arguments: Any) -> None:
            table = {item.name: arguments.pop(item.name) for item in options}
            given = {name: value for name, value in table.items() if _is_given(value)}
            function(given, **arguments)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [_parameter(item) for item in options] + [
            item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {item.name: item.annotation for item in parameters}
        return command

    return decorate


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], ())


def _parameter(item: Option) -> inspect.Parameter:
    kind: Any = list[str] if item.is_repeatable else item.type if item.type in (int, float, bool) else str
    if item.name == "out":  # a path in any case, where --data may also name a dataset
        kind = Path
    is_flag = item.type is bool
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if is_flag else None,
        annotation=Annotated[kind if is_flag else kind | None, table_option(item)],
    )


Word = str | None
Words = list[str] | None
Whole = int | None

_RUN, _EXECUTION = options_of(Options), options_of(Execution)
DataDir = Annotated[Word, table_option(_RUN["data_dir"])]
Plugins = Annotated[Words, table_option(_RUN["plugins"])]
Sep = Annotated[Word, table_option(_RUN["sep"])]
Decimal = Annotated[Word, table_option(_RUN["decimal"])]
Encoding = Annotated[Word, table_option(_RUN["encoding"])]
Jobs = Annotated[Whole, table_option(_EXECUTION["jobs"])]
Cluster = Annotated[
    Word,
    option(
        "run on a Dask cluster: tls://HOST:PORT of its scheduler, or dask for one on this machine",
        section="Output",
    ),
]
Force = Annotated[bool, flag("--force", "replace a file that exists; never one that is read")]
FairFrom = Annotated[
    float | None,
    option(
        "ratio of groups' rates that counts as enough in the report (default: 0.8, four fifths)",
        number,
        section="Output",
    ),
]
