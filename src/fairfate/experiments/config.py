"""What a run is asked to do: every option, read from anywhere and written down."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.data import ONEHOT, SOURCES, Columns, Reading, ServerFiles, parse_sensitive
from fairfate.errors import InputError, check, listing
from fairfate.federation.partition import parse_partition
from fairfate.models.training import Training
from fairfate.options import Execution, Options, keys_of, options_of, read_options
from fairfate.options import parse_seeds as parse_seeds
from fairfate.strategies import Spec, Strategy, load_plugin, make_spec, parse_spec
from fairfate.strategies.hyperparameters import split_outside
from fairfate.strategies.registry import strategy_texts
from fairfate.strategies.steps import split_steps

PROVENANCE = "provenance"
USUAL = (
    Training(rounds=100, per_round=1, epochs=10, batch_size=10, learning_rate=0.01),
    Training(rounds=200, per_round=1, epochs=2, batch_size=20, learning_rate=0.03),
)
"""The clients' SGD by default: the paper's, and for one-hot inputs."""
PRIVATE = tuple(
    Training(rounds=30, per_round=1, epochs=3, batch_size=128, learning_rate=rate) for rate in (2.0, 0.5)
)
"""The same under differential privacy: few, large steps, since clipping shortens them and each has noise."""
HIDDEN = "10"
"""The layers of the built-in model by default."""
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
    is_private: bool = False

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
        usual = (PRIVATE if self.is_private else USUAL)[self.encode == ONEHOT]
        if self.encode != ONEHOT or self.is_private:
            return usual
        rate = usual.learning_rate
        if is_deep and self.columns > MANY_COLUMNS and not self.is_wide:
            rate = max(LEAST_RATE, float(f"{rate * MANY_COLUMNS / self.columns:.2g}"))
        batch = max(usual.batch_size, self.rows // self.clients // MOST_STEPS)
        l2 = WIDE_L2 if self.is_wide and not is_deep else usual.l2
        return replace(usual, learning_rate=rate, batch_size=batch, l2=l2)


@dataclass(frozen=True)
class Config(Options):
    """The options of a run; docs/options.md lists them, as does `fairfate.run`.

    None stands for a default that depends on the data.

    Examples
    --------
    >>> import fairfate
    >>> config = fairfate.Config(data="synthetic:rows=200", rounds=2, seeds=(1,))
    >>> fairfate.run(config, strategies="fedavg", jobs=1).names
    ['fedavg']
    """

    def training(self, shape: Shape, per_round: int, *, is_deep: bool = True) -> Training:
        """The clients' SGD: what was asked for, else what suits the data and the model.

        Parameters
        ----------
        shape : of the encoded data
        per_round : clients in a round
        is_deep : whether the model has hidden layers

        Returns
        -------
        rounds, epochs, batch size, learning rate and regularisation

        Examples
        --------
        >>> config = Config(data="synthetic", rounds=7)
        >>> config.training(Shape("onehot", rows=1000), per_round=3).rounds
        7
        """
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
    def server_files(self) -> ServerFiles | None:
        """The server's own files, where it has some."""
        if self.validation is not None:
            return ServerFiles(self.validation, self.test, self.schema)
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
                given = listing(value) if isinstance(value, tuple) else value
                raise InputError(
                    f"{options_of(Config)[key].key} must be left out for '{name}', whose columns are known,"
                    f" got '{given}'"
                )
        if name == "synthetic":
            return None
        client = self.client_column
        if client is None and self.partition is not None:
            client = parse_partition(self.partition).column
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
    pairs: list[tuple[str, str]] = []
    for text in given:
        column, equals, value = text.partition("=")
        if equals and column in sensitive:
            pairs.append((column, value))
        elif len(sensitive) == 1:
            pairs.append((sensitive[0], text))
        else:
            raise InputError(
                f"privileged must be COLUMN=VALUE with one of the columns {listing(sensitive)}, got '{text}'"
            )
    if len({column for column, _ in pairs}) < len(pairs):
        raise InputError(f"privileged must be given once for a column, got {listing(given)}")
    return tuple(pairs)


def from_mapping(values: Mapping[str, Any], where: str = "config") -> Config:
    """A config from keys as in files (``per-round``) or in Python (``per_round``)."""
    options = without_provenance(values, where)
    options |= {key: strategy_texts(options[key]) for key in ("strategy", "strategies") if key in options}
    return Config(**read_options(options, where))


def without_provenance(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options among the keys of a file that a run has written."""
    options = dict(values)
    provenance = options.pop(PROVENANCE, {})
    check(isinstance(provenance, Mapping), f"{where}: {PROVENANCE} must be a table", repr(provenance))
    return options


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"config must be a TOML file, got '{file}' (no such file)")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        is_too_deep = _is_deeper(values, MOST_LEVELS)
    except RecursionError:
        is_too_deep = True
    except ValueError as error:  # also of a number with thousands of digits
        raise InputError(f"config must be a TOML file, got '{file}' ({error})") from None
    if is_too_deep:
        raise InputError(f"config must be a TOML file, got '{file}' (values within values, too many)")
    without_provenance(values, str(file))
    return values


MOST_LEVELS = 20
"""Of lists and tables in a config."""


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and tables are nested in more than so many levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return items is not None and (levels == 0 or any(_is_deeper(item, levels - 1) for item in items))


def read_written(path: str | Path) -> dict[str, Any]:
    """The config of a run's folder, in which every known key has a value of its type.

    Keys of other versions are left as they are.
    """
    values = read_config(path)
    keys = keys_of(options_of(Config).values())
    for key, value in values.items():
        if key in keys:
            typed = keys[key].convert(value, str(path))
            values[key] = list(typed) if isinstance(typed, tuple) else typed
    provenance = values.get(PROVENANCE, {})
    for key, kind, name in (("data-notes", list, "a list"), ("data-rows", int, "a whole number")):
        if key in provenance:
            check(isinstance(provenance[key], kind), f"{path}: {key} must be {name}", repr(provenance[key]))
    try:
        json.dumps(values, allow_nan=False)  # as reports write them
    except (TypeError, ValueError) as error:
        raise InputError(f"config must hold values that a run writes, got '{path}' ({error})") from None
    return values


def file_options(values: dict[str, Any], where: str) -> tuple[int | None, str | None, bool]:
    """Take jobs, out and force, which do not change the numbers, out of the keys of a config file."""
    options = options_of(Execution)
    execution = {key: values.pop(key) for key in options if key in values}
    given = Execution(**read_options(execution, where, options.values()))
    return given.jobs, given.out, given.force


def expand(values: Mapping[str, Any], where: str = "sweep") -> list[Config]:
    """The configs of a sweep file: keys as for a run, of which some take lists (docs/options.md says which).

    Widths of several layers are a text, ``"32,16"``, and ``"none"`` is no attack. ``strategy`` takes a list
    of texts (``"fedmom:beta=0.8|0.9"``) or of tables (``{name = "fedmom", beta = [0.8, 0.9]}``).

    Examples
    --------
    >>> configs = expand({"partition": ["random", "dirichlet:1"], "strategy": ["fedmom:beta=0.8|0.9"]})
    >>> [(config.partition, len(config.strategies)) for config in configs]
    [('random', 2), ('dirichlet:1', 2)]
    """
    keys = {key.replace("-", "_"): option for key, option in keys_of(options_of(Config).values()).items()}
    lists: dict[str, list[Any]] = {}
    others: dict[str, Any] = {}
    for key, value in without_provenance(values, where).items():
        option = keys.get(key.replace("-", "_"))
        if option is None or not (option.is_axis or option.name == "strategies"):
            others[key] = value
            continue
        if option.name in lists:
            raise InputError(f"{where}: each key must be given once, got '{key}' again")
        lists[option.name] = _listed(value)
        if not lists[option.name]:
            raise InputError(f"{where}: {key} must have a value, got an empty list")
    shared = from_mapping(others, where)
    for plugin in shared.plugins:
        load_plugin(plugin)
    if "strategies" in lists:
        specs = [spec for entry in lists["strategies"] for spec in read_specs(entry, shared.metric, where)]
        others["strategies"] = [spec.text for spec in specs]
    axes = {
        name: lists[name] for name, option in options_of(Config).items() if option.is_axis and name in lists
    }
    points = itertools.product(*axes.values())
    return [from_mapping({**others, **dict(zip(axes, point, strict=True))}, where) for point in points]


def _listed(value: Any) -> list[Any]:
    is_list = isinstance(value, list | tuple) and not isinstance(value, Spec | Strategy)
    return list(value) if is_list else [value]


def read_specs(entry: Any, metric: str, where: str = "sweep") -> list[Spec]:
    """Every combination of hyperparameters that one entry of the strategy list stands for."""
    if isinstance(entry, str):
        strategy, steps = split_steps(entry)
        texts = itertools.product(*map(_combinations, (strategy, *steps)))
        return [parse_spec("+".join(parts), metric) for parts in texts]
    if isinstance(entry, Spec | Strategy) or callable(entry):
        return [parse_spec(entry, metric)]
    if not isinstance(entry, dict) or "name" not in entry:
        raise InputError(f"{where}: strategy must be a text or a table with a name, got {entry!r}")
    grid = {key: _listed(value) for key, value in entry.items() if key != "name"}
    points = itertools.product(*grid.values())
    return [make_spec(str(entry["name"]), dict(zip(grid, point, strict=True)), metric) for point in points]


def _combinations(text: str) -> list[str]:
    """``name:key=a|b`` as a text for each combination of values."""
    name, _, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in filter(None, split_outside(rest, ","))]
    grid = [[f"{key}{equals}{value}" for value in values.split("|")] for key, equals, values in pairs]
    return [f"{name}:{','.join(point)}" if point else name for point in itertools.product(*grid)]


def config_text(config: Config, provenance: Mapping[str, object]) -> str:
    """A config as TOML, and where its numbers come from."""
    given = {option.key: getattr(config, name) for name, option in options_of(Config).items()}
    if config.model is not None:
        given["hidden"] = None
    lines = [_toml(key, value) for key, value in given.items() if value is not None]
    lines += ["", f"[{PROVENANCE}]", _toml("version", __version__)]
    lines += [_toml(key, value) for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _toml(key: str, value: object) -> str:
    bare = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
    text = json.dumps(value, ensure_ascii=False)
    return f"{bare} = {text}".replace("\x7f", "\\u007f")  # which TOML does not have as it is
