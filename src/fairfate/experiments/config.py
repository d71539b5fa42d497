"""What a run is asked to do: every option, read from anywhere and written down."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairfate._version import __version__
from fairfate.data import AUTO, MISSING_GROUP, ONEHOT, SOURCES, Columns, Held, Reading, parse_sensitive
from fairfate.errors import InputError, check, is_utf8, listing, unknown
from fairfate.federation.partition import parse_partition
from fairfate.models.training import Training

PROTOCOLS = ("paper", "published")
PROVENANCE = "provenance"
MOST_SEEDS = 1_000_000
_MOST_DIGITS = 20
USUAL = (
    Training(rounds=100, per_round=1, epochs=10, batch_size=10, learning_rate=0.01),
    Training(rounds=200, per_round=1, epochs=2, batch_size=20, learning_rate=0.03),
)
"""The clients' SGD unless told otherwise: the paper's, and for one-hot inputs."""
HIDDEN = "10"
"""The layers of the built-in model unless told otherwise."""
LEAST_ROWS = 20
"""Training rows for each column: with fewer a file is wide, and a hidden layer learns the rows by heart."""
WIDE_L2 = 0.01
"""For a wide file without a hidden layer."""
MANY_COLUMNS = 15
"""Above so many, one-hot inputs are large together, and a hidden layer needs a smaller learning rate."""
LEAST_RATE = 0.003
"""So that training ends within the usual rounds."""
MOST_STEPS = 200
"""SGD steps of a client in an epoch on one-hot inputs: with more, smaller batches are noise and drift."""


@dataclass(frozen=True)
class Shape:
    """What the default training depends on; docs/own-data.md says what was measured."""

    encode: str
    rows: int = 0
    """Training rows of all clients; 0 where the server does not know."""
    columns: int = 0
    clients: int = 1

    @property
    def is_wide(self) -> bool:
        """Whether there are few rows for so many columns of one-hot inputs."""
        return self.encode == ONEHOT and 0 < self.rows < LEAST_ROWS * self.columns

    @property
    def hidden(self) -> str:
        """No hidden layer for a wide file, where logistic regression is the better model."""
        return "0" if self.is_wide else HIDDEN

    def training(self, *, is_deep: bool) -> Training:
        """What suits the encoding and, on one-hot inputs, the numbers of columns and of rows."""
        usual = USUAL[self.encode == ONEHOT]
        if self.encode != ONEHOT:
            return usual
        rate = usual.learning_rate
        if is_deep and self.columns > MANY_COLUMNS and not self.is_wide:
            rate = max(LEAST_RATE, float(f"{rate * MANY_COLUMNS / self.columns:.2g}"))
        batch = max(usual.batch_size, self.rows // self.clients // MOST_STEPS)
        l2 = WIDE_L2 if self.is_wide and not is_deep else usual.l2
        return replace(usual, learning_rate=rate, batch_size=batch, l2=l2)


@dataclass(frozen=True)
class Config:
    """The options of a run. None stands for a default that depends on the data."""

    data: str = "synthetic"
    data_dir: str | None = None
    validation: str | None = None
    test: str | None = None
    schema: str | None = None
    target: str | None = None
    favourable: str | None = None
    sensitive: tuple[str, ...] = ()
    privileged: tuple[str, ...] = ()
    client_column: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    min_group: int = Columns.min_group
    missing_group: str = Columns.missing_group
    missing: tuple[str, ...] = ()
    encode: str = AUTO
    sep: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    protocol: str = "paper"
    partition: str | None = None
    attack: str | None = None
    clients: int | None = None
    validation_from: str | None = None
    min_cell: int = 0
    strategies: tuple[str, ...] = ()
    """Empty for those of `fairfate.strategies.recommended`."""
    metric: str = "eqo"
    plugins: tuple[str, ...] = ()
    per_round: int | None = None
    rounds: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    l2: float | None = None
    early_stopping: int = 0
    hidden: str | None = None
    model: str | None = None
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)

    def training(self, shape: Shape, per_round: int, *, is_deep: bool = True) -> Training:
        """The clients' SGD: what was asked for, else what suits the data and the model."""
        usual = shape.training(is_deep=is_deep)
        return Training(
            rounds=usual.rounds if self.rounds is None else self.rounds,
            per_round=per_round,
            epochs=usual.epochs if self.epochs is None else self.epochs,
            batch_size=usual.batch_size if self.batch_size is None else self.batch_size,
            learning_rate=usual.learning_rate if self.learning_rate is None else self.learning_rate,
            l2=usual.l2 if self.l2 is None else self.l2,
            early_stopping=self.early_stopping,
        )

    @property
    def held(self) -> Held | None:
        """The server's own files, where it has some."""
        if self.validation is not None:
            return Held(self.validation, self.test, self.schema)
        for key in ("test", "schema"):
            if getattr(self, key) is not None:
                raise InputError(f"{key} must be left out without validation, got '{getattr(self, key)}'")
        return None

    @property
    def reading(self) -> Reading:
        """How files are read."""
        return Reading(self.sep, self.decimal, self.encoding, self.missing)

    @property
    def _sensitive(self) -> tuple[str, ...]:
        """The sensitive columns, a public dataset's own included."""
        name = self.data.partition(":")[0]
        named = tuple(parse_sensitive(text)[0] for text in self.sensitive)
        return named or (SOURCES[name].columns.sensitive if name in SOURCES else ())

    @property
    def columns(self) -> Columns | None:
        """What the columns mean; None for the embedded data."""
        name = self.data.partition(":")[0]
        known = ["target", "favourable"] if name in SOURCES else []
        if name == "synthetic":
            known = [
                "target",
                "favourable",
                "sensitive",
                "privileged",
                "client_column",
                "drop",
                "categorical",
                "missing",
            ]
        elif self.schema is not None:
            known = ["target", "favourable", "sensitive", "privileged", "drop", "categorical"]
            name = self.schema
        for key in known:
            value = getattr(self, key)
            if value:
                option = key.replace("_", "-")
                given = listing(_list(value))
                raise InputError(
                    f"{option} must be left out for '{name}', whose columns are known, got '{given}'"
                )
        if name == "synthetic":
            return None
        client = self.client_column
        if client is None and self.partition is not None:
            client = parse_partition(self.partition).column
        check(
            self.missing_group in MISSING_GROUP,
            f"missing-group must be one of {'|'.join(MISSING_GROUP)}",
            f"'{self.missing_group}'",
        )
        check(self.min_group >= 0, "min-group must be >= 0", self.min_group)
        cut = tuple(parse_sensitive(text) for text in self.sensitive)
        return Columns(
            target=self.target or "",
            favourable=self.favourable,
            sensitive=tuple(name for name, _ in cut),
            bands=tuple(pair for pair in cut if pair[1]),
            privileged=parse_privileged(self.privileged, self._sensitive),
            client=client,
            drop=self.drop,
            categorical=self.categorical,
            keep=self.keep,
            min_group=self.min_group,
            missing_group=self.missing_group,
        )


def parse_privileged(given: Sequence[str], sensitive: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``VALUE``, or ``COLUMN=VALUE`` where there are several sensitive columns."""
    found: list[tuple[str, str]] = []
    for text in given:
        column, equals, value = text.partition("=")
        if equals and column in sensitive:
            found.append((column, value))
        elif len(sensitive) == 1:
            found.append((sensitive[0], text))
        else:
            raise InputError(
                f"privileged must be COLUMN=VALUE with one of the columns {listing(sensitive)}, got '{text}'"
            )
    if len({column for column, _ in found}) < len(found):
        raise InputError(f"privileged must be given once for a column, got {listing(given)}")
    return tuple(found)


def _list(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


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


_KINDS: dict[str, type] = {
    "clients": int,
    "min_cell": int,
    "min_group": int,
    "per_round": int,
    "rounds": int,
    "epochs": int,
    "batch_size": int,
    "learning_rate": float,
    "l2": float,
    "early_stopping": int,
}
LISTS = {
    "strategy": "strategies",
    "strategies": "strategies",
    "plugins": "plugins",
    "plugin": "plugins",
    "drop": "drop",
    "categorical": "categorical",
    "keep": "keep",
    "missing": "missing",
    "sensitive": "sensitive",
    "privileged": "privileged",
}
SPELLINGS = {"favorable": "favourable"}
"""Other spellings of keys."""


def option_key(raw: str) -> str:
    """The name of a field, or of a list's single value, from a key as it is written."""
    key = raw.replace("-", "_")
    return SPELLINGS.get(key, key)


def from_mapping(values: Mapping[str, Any], where: str = "config") -> Config:
    """A config from keys as on the command line (``per-round`` or ``per_round``)."""
    known = {field.name for field in fields(Config)} | set(LISTS)
    given: dict[str, Any] = {}
    for raw, value in values.items():
        if raw == PROVENANCE:
            check(isinstance(value, Mapping), f"{where}: {PROVENANCE} must be a table", repr(value))
            continue
        key = option_key(raw)
        if value is None:
            continue
        if key not in known:
            options = sorted({name.replace("_", "-") for name in known} - {"strategies", "plugins"})
            raise unknown(f"key in {where}", raw, options)
        key = LISTS.get(key, key)
        if key in given:
            raise InputError(f"{where}: each key must be given once, got '{raw}' again")
        given[key] = _typed(key, value, where)
    check(given.get("strategies") != (), f"{where}: strategy must be given at least once", "none")
    if "model" in given and "hidden" in given:
        raise InputError(f"{where}: hidden must be left out with model, got '{given['hidden']}'")
    return Config(**given)


def fields_given(options: Mapping[str, Any]) -> list[str]:
    """The fields of a config that some options name."""
    keys = (option_key(raw) for raw in options)
    return [LISTS.get(key, key) for key in keys]


def _typed(key: str, value: Any, where: str) -> Any:
    value = _plain(value)
    if key == "seeds":
        if not _is_list(value):
            return parse_seeds(value)
        for seed in value:
            if not isinstance(seed, int) or isinstance(seed, bool):
                raise InputError(f"{where}: each seed must be a whole number, got {seed!r}")
        return tuple(value)
    name = f"{where}: {key.replace('_', '-')}"
    if key in LISTS.values():
        return tuple(_text(of, name) for of in (value if _is_list(value) else (value,)))
    if isinstance(value, Path):
        value = str(value)
    if key in ("favourable", "hidden") and value is not None and not isinstance(value, bool):
        return ",".join(_text(of, name) for of in (value if _is_list(value) else (value,)))
    kind = _KINDS.get(key, str)
    right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not right or isinstance(value, bool):
        raise InputError(f"{name} must be {_NAMES[kind]}, got {value!r}")
    if isinstance(value, str):
        _check_text(value, name)
    try:
        return kind(value)
    except OverflowError:
        raise InputError(f"{name} must be {_NAMES[kind]}, got one of {len(str(value))} digits") from None


def _text(value: object, name: str) -> str:
    """A text, or a number or path as one."""
    if value is None or isinstance(value, dict | list | tuple | set):
        raise InputError(f"{name} must be a text or a list of texts, got {value!r}")
    text = str(value)
    _check_text(text, name)
    return text


def _check_text(text: str, name: str) -> None:
    """A text that a file, and a file's name, can hold."""
    check(text != "" or name.rpartition(" ")[2] not in _PLACES, f"{name} must not be empty", "''")
    check(is_utf8(text), f"{name} must be in UTF-8", repr(text))
    check("\0" not in text, f"{name} must be without NUL characters", repr(text))


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays, and ranges, as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range | set | frozenset):
        return (
            list(value) if isinstance(value, range) else sorted(value, key=lambda one: (str(type(one)), one))
        )
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


_PLACES = ("data", "data-dir", "validation", "test", "schema", "plugins", "model", "out")
"""What names a file or a folder: an empty text would stand for the folder that one is in."""
_NAMES = {int: "a whole number", float: "a number", str: "a text"}


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"config must be a TOML file, got '{file}' (no such file)")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # also of a number with thousands of digits
        raise InputError(f"config must be a TOML file, got '{file}' ({error})") from None
    except RecursionError:
        values = {"": _too_deep()}
    if _is_deep(values):
        raise InputError(f"config must be a TOML file, got '{file}' (values within values, too many)")
    about = values.get(PROVENANCE, {})
    if not isinstance(about, dict):
        raise InputError(f"{file}: {PROVENANCE} must be a table, got {about!r}")
    return values


MOST_LEVELS = 20
"""Of lists and tables in a config."""


def _too_deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(MOST_LEVELS + 1):
        found = [found]
    return found


def _is_deep(values: dict[str, Any]) -> bool:
    """Whether lists and tables are nested as nobody needs them."""
    level: list[Any] = [values]
    for _ in range(MOST_LEVELS):
        inner = [of for one in level for of in (one.values() if isinstance(one, dict) else one)]
        level = [of for of in inner if isinstance(of, dict | list)]
    return bool(level)


def read_written(path: str | Path) -> dict[str, Any]:
    """The config of a run's folder, in which every key that is known has a value of its kind.

    Others, of other versions, are left as they are.
    """
    values = read_config(path)
    names = {field.name for field in fields(Config)} | set(LISTS)
    for raw, value in values.items():
        key = option_key(raw)
        if key in names:
            typed = _typed(LISTS.get(key, key), value, str(path))
            values[raw] = list(typed) if isinstance(typed, tuple) else typed
    about = values.get(PROVENANCE, {})
    for key, kind, name in (("data-notes", list, "a list"), ("data-rows", int, _NAMES[int])):
        if key in about:
            check(isinstance(about[key], kind), f"{path}: {key} must be {name}", repr(about[key]))
    try:
        json.dumps(values, allow_nan=False)  # as reports say them
    except (TypeError, ValueError) as error:
        raise InputError(f"config must hold values that a run writes, got '{path}' ({error})") from None
    return values


def file_options(values: dict[str, Any], where: str) -> tuple[int | None, str | None, bool]:
    """Take out of a config file what is about carrying it out: jobs, out and force."""
    kinds: dict[str, tuple[type, str]] = {
        "jobs": (int, "a whole number"),
        "out": (str, "a text"),
        "force": (bool, "true or false"),
    }
    found: dict[str, Any] = {}
    for key, (kind, name) in kinds.items():
        value = found[key] = values.pop(key, None)
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if value is not None and not right:
            raise InputError(f"{where}: {key} must be {name}, got {value!r}")
        if isinstance(value, str):
            _check_text(value, f"{where}: {key}")
    return found["jobs"], found["out"], bool(found["force"])


def config_text(config: Config, provenance: Mapping[str, object]) -> str:
    """A config as TOML, and where its numbers come from."""
    names = {"strategies": "strategy", "plugins": "plugin"}
    given = {field.name: getattr(config, field.name) for field in fields(Config)}
    lines = [
        _toml(names.get(name, name).replace("_", "-"), value)
        for name, value in given.items()
        if value is not None and not (name == "hidden" and config.model is not None)
    ]
    lines += ["", f"[{PROVENANCE}]", _toml("version", __version__)]
    lines += [_toml(key, value) for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _toml(key: str, value: object) -> str:
    bare = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
    text = json.dumps(value, ensure_ascii=False)
    return f"{bare} = {text}".replace("\x7f", "\\u007f")  # which TOML does not have as it is
