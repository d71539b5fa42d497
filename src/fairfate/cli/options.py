"""The commands' common ground: the app, options that count once, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from fairfate.cli.completion import complete, show_or_install
from fairfate.errors import is_utf8

UsageError: Any = typer.BadParameter.__mro__[1]  # of Click, which Typer brings in one form or another
ClickError: Any = typer.BadParameter.__mro__[2]


class Command(TyperCommand):
    """A command whose options count once, unless they are repeatable: the last of several does not win."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse what no command can take (a shell that completes is told nothing), then parse."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        values, _, given = self.make_parser(ctx).parse_args(list(args))
        for param in dict.fromkeys(given):
            single = param.param_type_name == "option" and not param.multiple
            if single and given.count(param) > 1:
                raise UsageError(f"{param.opts[0]} must be given once, got it {given.count(param)} times")
            named = param.opts[0] if param.param_type_name == "option" else param.name
            for value in _several(values.get(param.name)):
                if value == "" and _is_path(param):
                    raise UsageError(f"{named} must be a path, got an empty text")  # Path("") is where one is
                if isinstance(value, str) and not is_utf8(value):  # no table, no TOML and no JSON can hold it
                    raise UsageError(f"{named} must be in UTF-8, got {value!r}")
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then options in their sections."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


_PATHS = ("path", "file", "directory")


def _is_path(param: Any) -> bool:
    """Whether a parameter takes paths; Typer from 0.29 on has no types of Click."""
    if hasattr(param, "type"):
        return getattr(param.type, "name", "") in _PATHS
    return "Path" in str(getattr(getattr(param, "type_descriptor", None), "annotation", ""))


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


ORDER = (
    "run",
    "show",
    "report",
    "watch",
    "plot",
    "predict",
    "evaluate",
    "export",
    "strategies",
    "data",
    "sweep",
    "reproduce",
    "benchmark",
    "flower",
)
"""The commands as a newcomer needs them; others follow."""


class Commands(TyperGroup):
    """All commands, wherever they are defined."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In their order."""
        known = super().list_commands(ctx)
        return [name for name in ORDER if name in known] + [name for name in known if name not in ORDER]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as usual, but for a shell's name after one of Typer's two options."""
        if len(args) == 2 and args[0] in ("--show-completion", "--install-completion"):
            show_or_install(args[0], args[1], PROGRAM)
        return super().parse_args(ctx, args)


Function = TypeVar("Function", bound=Callable[..., Any])


class App(typer.Typer):
    """An app of such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As Typer's."""
        return super().command(name, **{"cls": Command, **options})


PROGRAM = "fairfate"
"""Its name also under ``python -m fairfate``: shells complete that."""

app = App(
    cls=Commands,
    help="Train and compare group-fair models in federated learning.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = App(help="The datasets: list, describe, fetch.", no_args_is_help=True)
app.add_typer(data_app, name="data")

flower_app = App(help="Federations on Flower.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


def option(
    text: str,
    parser: Callable[[str], Any] | None = None,
    words: Sequence[str] = (),
    names: Sequence[str] = (),
    section: str | None = None,
) -> Any:
    """An option with its help, in which its default is.

    Parameters
    ----------
    text : the help
    parser : of a number
    words : that a shell completes
    names : if it has several
    section : of the help, if the command has some
    """
    metavar = "NUMBER" if parser else None
    completion = complete(*words) if words else None
    return typer.Option(
        *names,
        help=text,
        show_default=False,
        parser=parser,
        metavar=metavar,
        autocompletion=completion,
        rich_help_panel=section,
    )


data_option = partial(option, section="Data")
federation_option = partial(option, section="Federation")
strategy_option = partial(option, section="Strategies")
training_option = partial(option, section="Training")
output_option = partial(option, section="Output")


def given_options(ctx: typer.Context, *others: str) -> dict[str, Any]:
    """What the user has typed, by the names of a config; ``others`` are options of another kind."""
    typed = {key: value for key, value in ctx.params.items() if key not in others}
    return {key: value for key, value in typed.items() if value is not None and value not in ([], ())}


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


Word = str | None
Words = list[str] | None
Whole = int | None

Target = Annotated[Word, data_option("column of the label, for a file of your own")]
Favourable = Annotated[
    Word,
    data_option("value of the label that is the good outcome", names=("--favourable", "--favorable")),
]
Sensitive = Annotated[
    Words,
    data_option("column of the group, or age:25,40,65 for numbers (repeatable: groups are combinations)"),
]
Privileged = Annotated[Words, data_option("VALUE or COLUMN=VALUE to set against all others (repeatable)")]
ClientColumn = Annotated[Word, federation_option("column that says which client holds a row")]
Drop = Annotated[Words, data_option("column to leave out (repeatable)")]
Categorical = Annotated[Words, data_option("column to read as text (repeatable)")]
Keep = Annotated[Words, data_option("column to use although it looks like an identifier (repeatable)")]
MinGroup = Annotated[
    Whole, data_option("groups with fewer rows are merged (default: 50; 0 for never)", whole)
]
MissingGroup = Annotated[
    Word,
    data_option(
        "rows without a group: report (default: apart)|keep (a group)|drop|refuse",
        words=("report", "keep", "drop", "refuse"),
    ),
]
Missing = Annotated[
    Words, data_option("VALUE or COLUMN=VALUE that stands for a missing one, such as 999 (repeatable)")
]
Encode = Annotated[
    Word,
    data_option(
        "inputs: auto|onehot|ordinal|none (default: auto; ordinal for the paper's datasets)",
        words=("auto", "onehot", "ordinal", "none"),
    ),
]
Sep = Annotated[Word, data_option("separator of CSV files (default: found out)")]
Decimal = Annotated[Word, data_option("decimal mark of numbers in files: . or , (default: found out)")]
Encoding = Annotated[Word, data_option("text encoding of files, such as latin-1 (default: found out)")]
Partition = Annotated[
    Word,
    federation_option(
        "random | dirichlet:SIGMA | column:NAME (default: random; dirichlet:0.5 for public data)",
        words=("random", "dirichlet:0.5", "column:"),
    ),
]
Attack = Annotated[
    Word,
    federation_option(
        "NAME[:clients=1,key=value]: what some clients do to the others",
        words=(
            *("accept_all", "reject_all", "scale", "sign_flip", "label_flip"),
            *("attribute_flip", "lie_n", "lie_counts", "biased_rows", "pf"),
        ),
    ),
]
ValidationFrom = Annotated[
    Word,
    federation_option(
        "who holds validation rows: server[:rows=N] (default) | clients[:mode=cross|secure,...]",
        words=("server", "clients", "clients:mode=secure"),
    ),
]
MinCell = Annotated[
    Whole,
    federation_option(
        "least count that clients tell, as sites do: smaller strata are excluded (default: 0)", whole
    ),
]
Clients = Annotated[Whole, federation_option("number of clients (default: the paper's, else 10)", whole)]
Protocol = Annotated[
    Word,
    strategy_option(
        "paper (exact) or published (as the printed numbers were made)", words=("paper", "published")
    ),
]
DataDir = Annotated[Word, data_option("folder to look in first for adult.csv etc.")]
Plugin = Annotated[Words, strategy_option("Python file that registers strategies of your own (repeatable)")]

Force = Annotated[bool, option("replace a file that exists; never one that is read")]

DATA = "synthetic[:rows=N,seed=S], adult, compas, law, dutch, a file (CSV, Parquet, ...), or a folder of them"
STRATEGY = "NAME[:key=value,...][+STEP...] (repeatable; default: four that the benchmark recommends)"
