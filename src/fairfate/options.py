"""The options of a run, in one table.

A field of `Options` is one option: its type and default, and in its metadata the help text, the section, and
the range or the choices. The command line, config files, sweep files, `fairfate.run`, the run config of the
ready Flower app and docs/options.md are made from it. To add an option, add a field here, and a keyword to
`fairfate.run`, which a test compares with this table.

Nothing large is imported here: ``fairfate --help`` and shells that complete words read this table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

from fairfate.errors import InputError, check, is_utf8, unknown

SECTIONS = ("data", "federation", "strategy", "training", "output")
"""Of the help and the docs, in this order."""
PROTOCOLS = ("paper", "published")
MOST_SEEDS = 1_000_000
MOST_BATCH = 1_000_000
_MOST_DIGITS = 20


@dataclass(frozen=True)
class Option:
    """One option: a field of a table and what its metadata says."""

    name: str
    """Of the field, and of the keyword in Python."""
    type: Any
    """``str``, ``int``, ``float``, ``bool``, ``tuple[str, ...]`` or ``tuple[int, ...]``."""
    default: Any
    help: str
    section: str = "output"
    key: str = ""
    """In files and on the command line: ``per-round``; of a list that is repeatable there, the singular."""
    spellings: tuple[str, ...] = ()
    """Other keys that mean the same."""
    default_text: str = ""
    """The default in words, where it depends on the data."""
    low: float | None = None
    high: float | None = None
    is_above: bool = False
    """Whether the value must be more than ``low``."""
    choices: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    """Values that a shell offers; others are allowed."""
    is_path: bool = False
    is_joined: bool = False
    """A text that numbers and lists may stand for: ``[32, 16]`` is ``"32,16"``."""
    is_axis: bool = False
    """Whether a sweep file may give a list of values."""
    on_flower: bool = True
    """Whether it is a key of the run config of the ready Flower app."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be given several times on the command line."""
        return bool(self.type == tuple[str, ...])

    def check(self, value: Any) -> None:
        """Raise unless a value of the right type is in the range, or one of the choices."""
        if self.choices:
            check(value in self.choices, f"{self.key} must be one of {'|'.join(self.choices)}", f"'{value}'")
        low, high = self.low, self.high
        if low is None:
            return
        if self.is_above:
            check(low < value < math.inf, f"{self.key} must be > {low:g} and finite", value)
        elif self.type is float:
            rule = f"must be >= {low:g}" if high is None else f"must be in [{low:g}, {high:g}]"
            check(low <= value <= (math.inf if high is None else high), f"{self.key} {rule}", value)
        else:
            check(value >= low, f"{self.key} must be >= {low:g}", value)
            check(high is None or value <= high, f"{self.key} must be <= {high or 0:,}", value)

    def convert(self, value: Any, where: str) -> Any:
        """A value from a file, a command line or Python in the option's type; ``where`` is for messages."""
        name = f"{where}: {self.name.replace('_', '-')}"
        value = _builtin(value)
        values = value if isinstance(value, list) else [value]
        if self.type == tuple[int, ...]:
            return _whole_numbers(values, where) if isinstance(value, list) else parse_seeds(value)
        if self.is_repeatable:
            return tuple(self._text(item, name) for item in values)
        if self.is_joined and not isinstance(value, bool):
            return ",".join(self._text(item, name) for item in values)
        if isinstance(value, Path):
            value = str(value)
        accepted, described = _ACCEPTED[self.type]
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.type is not bool):
            raise InputError(f"{name} must be {described}, got {value!r}")
        if isinstance(value, str):
            return self._text(value, name)
        try:
            return self.type(value)
        except OverflowError:
            raise InputError(f"{name} must be {described}, got one of {len(str(value))} digits") from None

    def _text(self, value: object, name: str) -> str:
        """A text that a file and a file's name can hold; numbers and paths become texts."""
        if value is None or isinstance(value, dict | list):
            raise InputError(f"{name} must be a text or a list of texts, got {value!r}")
        text = str(value)
        check(text != "" or not self.is_path, f"{name} must not be empty", "''")
        check(is_utf8(text), f"{name} must be in UTF-8", repr(text))
        check("\0" not in text, f"{name} must be without NUL characters", repr(text))
        return text


_ACCEPTED: dict[type, tuple[Any, str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a text"),
    bool: (bool, "true or false"),
}


def _builtin(value: Any) -> Any:
    """NumPy's numbers and arrays, ranges and sets as Python's own numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (str(type(item)), item))
    return [_builtin(item) for item in value] if isinstance(value, list | tuple | range) else value


def _whole_numbers(values: list[Any], where: str) -> tuple[int, ...]:
    for seed in values:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise InputError(f"{where}: each seed must be a whole number, got {seed!r}")
    return tuple(values)


def parse_seeds(text: str | int) -> tuple[int, ...]:
    """Read ``N`` as the seeds 1 .. N, or a list ``3,5,8``.

    >>> parse_seeds("3"), parse_seeds("7,9"), parse_seeds("7,")
    ((1, 2, 3), (7, 9), (7,))
    """
    parts = [part.strip() for part in str(text).split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts if part) or not any(parts):
        raise InputError(f"seeds must be a number >= 1 or a list such as 3,5,8, got '{text}'")
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise InputError(f"seeds must have at most {_MOST_DIGITS} digits, got '{text}'")
    if len(parts) == 1:
        count = int(parts[0])
        check(count >= 1, "seeds must be >= 1", text)
        check(count <= MOST_SEEDS, f"seeds must be at most {MOST_SEEDS:,} in number", text)
        return tuple(range(1, count + 1))
    return tuple(int(part) for part in parts if part)


def option(default: Any, text: str, section: str = "output", **details: Any) -> Any:
    """A field of a table; the details are those of `Option`."""
    return field(default=default, metadata={"help": text, "section": section, **details})


def options_of(table: Any) -> dict[str, Option]:
    """The options that are the fields of a dataclass, by name.

    >>> rounds = options_of(Options)["rounds"]
    >>> rounds.type, rounds.low, rounds.section
    (<class 'int'>, 1, 'training')
    """
    return _read_table(table)


@cache
def _read_table(table: Any) -> dict[str, Option]:
    hints = get_type_hints(table)
    return {
        item.name: Option(
            item.name,
            _without_none(hints[item.name]),
            item.default,
            **{"key": item.name.replace("_", "-"), **item.metadata},
        )
        for item in fields(table)
        if "help" in item.metadata
    }


def _without_none(hint: Any) -> Any:
    """``int`` of ``int | None``."""
    if not isinstance(hint, UnionType):
        return hint
    return next(kind for kind in get_args(hint) if kind is not NoneType)


def keys_of(options: Iterable[Option]) -> dict[str, Option]:
    """Every key that may be written for some options."""
    return {key: option for option in options for key in (option.key, option.name, *option.spellings)}


def read_options(
    values: Mapping[str, Any], where: str, options: Iterable[Option] | None = None
) -> dict[str, Any]:
    """Typed values by field, from keys as in files (``per-round``) or in Python (``per_round``).

    Parameters
    ----------
    values : by key; None stands for the default
    where : what messages name
    options : those that may be given; all of `Options` if None
    """
    known = list(options_of(Options).values() if options is None else options)
    keys = {key.replace("-", "_"): option for key, option in keys_of(known).items()}
    given: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        chosen = keys.get(key.replace("-", "_"))
        if chosen is None:
            raise unknown(f"key in {where}", key, sorted(option.key for option in known))
        if chosen.name in given:
            raise InputError(f"{where}: each key must be given once, got '{key}' again")
        given[chosen.name] = chosen.convert(value, where)
    check(given.get("strategies") != (), f"{where}: strategy must be given at least once")
    if "model" in given and "hidden" in given:
        raise InputError(f"{where}: hidden must be left out with model, got '{given['hidden']}'")
    return given


@dataclass(frozen=True)
class Checked:
    """A table whose values are in their ranges, however it was made."""

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                option.check(value)


_READ = "detected"


@dataclass(frozen=True)
class Options(Checked):
    """What the numbers of a run depend on. None stands for a default that depends on the data."""

    data: str = option(
        "synthetic",
        "synthetic[:rows=N,seed=S], adult, compas, law, dutch, acs_income, a file (CSV, Parquet...), or a"
        " folder of them",
        "data",
        suggestions=("synthetic", "adult", "compas", "law", "dutch", "acs_income"),
        is_path=True,
        is_axis=True,
        on_flower=False,
    )
    data_dir: str | None = option(
        None, "folder to look in first for adult.csv etc.", "data", is_path=True, on_flower=False
    )
    validation: str | None = option(
        None, "file with the server's rows; then all of --data is for training", "data", is_path=True
    )
    test: str | None = option(
        None, "file with test rows", "data", default_text="half of the validation file", is_path=True
    )
    schema: str | None = option(
        None, "what the sites agreed on", "data", default_text="made from --validation", is_path=True
    )
    target: str | None = option(None, "column of the label, for a file of your own", "data")
    favourable: str | None = option(
        None,
        "value of the label that is the good outcome",
        "data",
        spellings=("favorable",),
        is_joined=True,
    )
    sensitive: tuple[str, ...] = option(
        (), "column of the group, or age:25,40,65 for numbers; several make combinations", "data"
    )
    privileged: tuple[str, ...] = option((), "VALUE or COLUMN=VALUE to set against all others", "data")
    client_column: str | None = option(
        None, "column that says which client holds a row", "federation", on_flower=False
    )
    drop: tuple[str, ...] = option((), "column to leave out", "data")
    categorical: tuple[str, ...] = option((), "column to read as text", "data")
    keep: tuple[str, ...] = option((), "column to use although it looks like an identifier", "data")
    min_group: int = option(
        50, "groups with fewer rows are merged", "data", default_text="50; 0 for never", low=0
    )
    missing_group: str = option(
        "report",
        "rows without a group: reported apart, kept as a group, dropped or refused",
        "data",
        choices=("report", "keep", "drop", "refuse"),
    )
    missing: tuple[str, ...] = option(
        (), "VALUE or COLUMN=VALUE that stands for a missing one, such as 999", "data"
    )
    encode: str = option(
        "auto",
        "how columns become inputs",
        "data",
        default_text="auto: onehot, and ordinal for the paper's datasets",
        choices=("auto", "onehot", "ordinal", "none"),
        is_axis=True,
    )
    sep: str | None = option(None, "separator of CSV files", "data", default_text=_READ)
    decimal: str | None = option(None, "decimal mark of numbers in files: . or ,", "data", default_text=_READ)
    encoding: str | None = option(None, "text encoding of files, such as latin-1", "data", default_text=_READ)
    protocol: str = option(
        "paper",
        "exact, or as the printed numbers were made",
        "strategy",
        choices=PROTOCOLS,
        is_axis=True,
    )
    partition: str | None = option(
        None,
        "random | dirichlet:SIGMA | value-biased:STRENGTH | attribute-biased:STRENGTH | column:NAME",
        "federation",
        default_text="random; dirichlet:0.5 for public data",
        suggestions=("random", "dirichlet:0.5", "value-biased:0.5", "attribute-biased:0.5", "column:"),
        is_axis=True,
        on_flower=False,
    )
    attack: str | None = option(
        None,
        "NAME[:clients=1,key=value]: what some clients do to the others",
        "federation",
        suggestions=(
            *("accept_all", "reject_all", "scale", "sign_flip", "label_flip"),
            *("attribute_flip", "lie_n", "lie_counts", "biased_rows", "pf"),
        ),
        is_axis=True,
        on_flower=False,
    )
    clients: int | None = option(
        None,
        "number of clients",
        "federation",
        default_text="the paper's, else 10",
        low=1,
        is_axis=True,
        on_flower=False,
    )
    validation_from: str | None = option(
        None,
        "who holds validation rows: server[:rows=N] | clients[:mode=cross|secure|own|public,...]",
        "federation",
        default_text="server",
        suggestions=("server", "clients", "clients:mode=secure"),
        is_axis=True,
    )
    min_cell: int = option(
        0,
        "smallest count a client reports, as sites do: smaller strata are excluded",
        "federation",
        low=0,
        is_axis=True,
    )
    secure_sums: bool = option(
        False,
        "clients' updates are summed under masks: the server sees sums only",
        "federation",
        is_axis=True,
    )
    min_sum: int = option(
        3,
        "with --secure-sums: least number of clients in a sum that is opened",
        "federation",
        low=3,
        is_axis=True,
    )
    privacy: str | None = option(
        None,
        "epsilon=E[,delta=1e-5,clip=1,...]: differential privacy of each client's rows",
        "federation",
        default_text="none",
        suggestions=("epsilon=1", "epsilon=3", "epsilon=8"),
        is_joined=True,
        is_axis=True,
    )
    strategies: tuple[str, ...] = option(
        (),
        "NAME[:key=value,...][+STEP...]",
        "strategy",
        key="strategy",
        default_text="four that the benchmark recommends",
    )
    metric: str = option(
        "eqo",
        "fairness strategies look at: sp|eo|eqo|0.5*sp+0.5*eo|...",
        "strategy",
        suggestions=("sp", "eo", "eqo"),
    )
    plugins: tuple[str, ...] = option(
        (),
        "Python file that registers strategies of your own",
        "strategy",
        key="plugin",
        is_path=True,
        on_flower=False,
    )
    per_round: int | None = option(
        None,
        "clients in a round",
        "federation",
        default_text="the paper's; all of up to 20 sites; a third",
        low=1,
        high=10_000_000,
        is_axis=True,
    )
    rounds: int | None = option(
        None,
        "rounds",
        "training",
        default_text="100; 200 for files; 30 with privacy",
        low=1,
        high=10_000_000,
        is_axis=True,
    )
    epochs: int | None = option(
        None,
        "local epochs",
        "training",
        default_text="10; 2 for files; 3 with privacy",
        low=1,
        high=10_000,
        is_axis=True,
    )
    batch_size: int | None = option(
        None,
        "rows in a batch",
        "training",
        default_text="10; 20 or more for files; 128 with privacy",
        low=1,
        high=MOST_BATCH,
        is_axis=True,
    )
    learning_rate: float | None = option(
        None,
        "of the clients' SGD",
        "training",
        default_text="0.01; 0.03 for files; 2 or 0.5 with privacy",
        low=0,
        is_above=True,
        is_axis=True,
    )
    l2: float | None = option(
        None,
        "weight decay of the clients' SGD",
        "training",
        default_text="0; 0.01 for wide files",
        low=0,
        high=100,
        is_axis=True,
    )
    early_stopping: int = option(
        0,
        "stop after N rounds without a lower validation loss, keep the best",
        "training",
        default_text="off",
        low=0,
        is_axis=True,
    )
    hidden: str | None = option(
        None,
        "hidden units: 32,16 for two layers, 0 for none",
        "training",
        default_text="10; 0 for wide files",
        is_joined=True,
        is_axis=True,
    )
    model: str | None = option(
        None,
        "your own network: FILE.py:FUNCTION that makes a torch.nn.Module",
        "training",
        is_path=True,
        is_axis=True,
    )
    seeds: tuple[int, ...] = option(
        (1, 2, 3, 4, 5),
        "N for the seeds 1..N, or a list such as 3,5,8",
        "training",
        default_text="5",
        on_flower=False,
    )


@dataclass(frozen=True)
class Execution(Checked):
    """Where results go and how many processes compute them: no number depends on it."""

    out: str | None = option(None, "folder for the results", default_text="new, under runs/", is_path=True)
    jobs: int | None = option(None, "processes; results do not depend on it", default_text="all cores", low=1)
    force: bool = option(False, "replace the results that the folder already has")
