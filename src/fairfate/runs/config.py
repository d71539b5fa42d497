"""What a run is asked to do: every option, checked, resolved and written down."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.data import FILE, SOURCES, TRAINING, Columns, Held, Table
from fairfate.errors import InputError, check, listing, unknown
from fairfate.fairness.objective import parse_objective
from fairfate.federation.partition import Partition, parse_partition
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Model
from fairfate.models.training import Training
from fairfate.strategies import Setup, Spec, load_plugin, parse_spec

PROTOCOLS = ("paper", "published")
PROVENANCE = "provenance"
MOST_SEEDS = 1_000_000
DEFAULT_CLIENTS = 10


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
    protocol: str = "paper"
    partition: str | None = None
    clients: int | None = None
    strategies: tuple[str, ...] = ("fedavg", "fair_fate")
    metric: str = "eqo"
    plugins: tuple[str, ...] = ()
    per_round: int | None = None
    rounds: int = 100
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 0.01
    hidden: str = "10"
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)

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
    def _sensitive(self) -> tuple[str, ...]:
        """The sensitive columns, a public dataset's own included."""
        name = self.data.partition(":")[0]
        return self.sensitive or (SOURCES[name].columns.sensitive if name in SOURCES else ())

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
        return Columns(
            target=self.target or "",
            favourable=self.favourable,
            sensitive=self.sensitive,
            privileged=parse_privileged(self.privileged, self._sensitive),
            client=client,
            drop=self.drop,
            categorical=self.categorical,
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


@dataclass(frozen=True)
class Plan:
    """A config with everything decided: what is run, for each seed alike."""

    config: Config
    dataset: str
    partition: Partition
    clients: int
    training: Training
    specs: tuple[Spec, ...]
    hidden: tuple[int, ...]
    """Widths of the built-in model's layers."""

    def model(self, inputs: int) -> Model:
        """The kind of model that is trained."""
        return Mlp(inputs, self.hidden)

    def setup(self, table: Table) -> Setup:
        """What strategies may know of the run."""
        return Setup(self.training.rounds, self.published, table.grouping)

    def visits(self, rows: int) -> float:
        """How many rows one strategy's models see in training, expected for a table of so many rows."""
        training = self.training
        return 0.6 * rows * training.per_round / self.clients * training.epochs * training.rounds

    @property
    def published(self) -> bool:
        """Whether the protocol is that of the published runs."""
        return self.config.protocol == "published"


def resolve(config: Config, table: Table) -> Plan:
    """Decide what depends on the data, and check everything that can be checked before running."""
    check(
        config.protocol in PROTOCOLS,
        f"protocol must be one of {'|'.join(PROTOCOLS)}",
        f"'{config.protocol}'",
    )
    metric = str(parse_objective(config.metric))
    source = None if table.source is None else SOURCES[table.source]
    partition = _partition(config, table)
    if partition.kind == "column":
        clients = len(table.client_names)
        if config.clients not in (None, clients):
            raise InputError(
                f"clients must be left out or {clients}, the values of '{partition.column}',"
                f" got {config.clients}"
            )
        per_round = config.per_round if config.per_round is not None else _third(clients)
    else:
        known = (source.clients, source.per_round) if source else (DEFAULT_CLIENTS, None)
        clients = known[0] if config.clients is None else config.clients
        check(clients >= 1, "clients must be >= 1", clients)
        usual = known[1] if known[1] is not None and config.clients is None else None
        per_round = config.per_round if config.per_round is not None else usual or _third(clients)
    check(per_round <= clients, f"per-round must be <= the {clients} clients", per_round)
    train_rows = round(0.6 * len(table)) if table.part is None else int((table.part == TRAINING).sum())
    check(
        partition.kind == "column" or clients <= train_rows,
        f"clients must be <= the {train_rows} training rows of '{table.name}'",
        clients,
    )
    _check_seeds(config.seeds, config.protocol == "published")
    for plugin in config.plugins:
        load_plugin(plugin)
    check(len(config.strategies) > 0, "strategy must be given at least once", "none")
    specs = tuple(dict.fromkeys(parse_spec(text, metric) for text in config.strategies))
    training = Training(
        rounds=config.rounds,
        per_round=per_round,
        epochs=config.epochs,
        batch_size=config.batch_size,
        learning_rate=config.learning_rate,
    )
    hidden = parse_hidden(config.hidden)
    resolved = replace(
        config,
        partition=str(partition),
        clients=clients,
        per_round=per_round,
        strategies=tuple(spec.text for spec in specs),
        metric=metric,
        hidden=",".join(map(str, hidden)) or "0",
    )
    return Plan(resolved, table.name, partition, clients, training, specs, hidden)


def _third(clients: int) -> int:
    return max(1, round(clients / 3))


def _check_seeds(seeds: tuple[int, ...], published: bool) -> None:
    check(len(seeds) > 0, "seeds must be a number >= 1 or a list", "none")
    end, shown = (2**32 // 10, "2**32 / 10") if published else (2**32, "2**32")
    for seed in seeds:
        check(0 <= seed < end, f"each seed must be in [0, {shown})", seed)
    check(len(set(seeds)) == len(seeds), "seeds must differ", ",".join(map(str, seeds)))


def _partition(config: Config, table: Table) -> Partition:
    if config.client_column is not None:
        if config.partition not in (None, f"column:{config.client_column}"):
            raise InputError(f"partition must be left out with client-column, got '{config.partition}'")
        return Partition("column", column=config.client_column)
    if config.partition is None:
        column = FILE if table.client is not None else None
        return Partition("column", column=column) if column else parse_partition("dirichlet:0.5")
    partition = parse_partition(config.partition)
    if partition.kind == "column" and table.client is None:
        raise InputError(f"partition must be random or dirichlet:SIGMA for '{table.name}', got '{partition}'")
    return partition


def parse_seeds(text: str | int) -> tuple[int, ...]:
    """Read ``N`` as the seeds 1 .. N, or a list ``3,5,8``.

    >>> parse_seeds("3"), parse_seeds("7,9"), parse_seeds("7,")
    ((1, 2, 3), (7, 9), (7,))
    """
    parts = [part.strip() for part in str(text).split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts if part) or not any(parts):
        raise InputError(f"seeds must be a number >= 1 or a list such as 3,5,8, got '{text}'")
    if len(parts) == 1:
        count = int(parts[0])
        check(count >= 1, "seeds must be >= 1", text)
        check(count <= MOST_SEEDS, f"seeds must be at most {MOST_SEEDS:,} in number", text)
        return tuple(range(1, count + 1))
    return tuple(int(part) for part in parts if part)


_KINDS: dict[str, type] = {
    "clients": int,
    "per_round": int,
    "rounds": int,
    "epochs": int,
    "batch_size": int,
    "learning_rate": float,
}
_LISTS = {
    "strategy": "strategies",
    "plugin": "plugins",
    "drop": "drop",
    "categorical": "categorical",
    "sensitive": "sensitive",
    "privileged": "privileged",
}


def from_mapping(values: Mapping[str, Any], where: str = "config") -> Config:
    """A config from keys as on the command line (``per-round`` or ``per_round``)."""
    known = {field.name for field in fields(Config)} | set(_LISTS)
    given: dict[str, Any] = {}
    for raw, value in values.items():
        if raw == PROVENANCE:
            continue
        key = raw.replace("-", "_")
        if value is None or (key == "post" and not value):
            continue
        if key == "post":
            steps = "+".join(map(str, _list(value)))
            raise InputError(
                f"{where}: post has become a step of a strategy, as in strategy 'fedavg+{steps}',"
                f" got {value!r}"
            )
        if key not in known:
            options = sorted({name.replace("_", "-") for name in known} - {"strategies", "plugins"})
            raise unknown(f"key in {where}", raw, options)
        key = _LISTS.get(key, key)
        if key in given:
            raise InputError(f"{where}: each key must be given once, got '{raw}' again")
        given[key] = _typed(key, value, where)
    return Config(**given)


def fields_given(options: Mapping[str, Any]) -> list[str]:
    """The fields of a config that some options name."""
    keys = (raw.replace("-", "_") for raw in options)
    return [_LISTS.get(key, key) for key in keys]


def _typed(key: str, value: Any, where: str) -> Any:
    if key == "seeds":
        if not _is_list(value):
            return parse_seeds(value)
        for seed in value:
            if not isinstance(seed, int) or isinstance(seed, bool):
                raise InputError(f"{where}: each seed must be a whole number, got {seed!r}")
        return tuple(value)
    if key in _LISTS.values():
        return tuple(map(str, value)) if _is_list(value) else (str(value),)
    if isinstance(value, Path):
        value = str(value)
    if key in ("favourable", "hidden") and value is not None and not isinstance(value, bool):
        return ",".join(map(str, value)) if _is_list(value) else str(value)
    kind = _KINDS.get(key, str)
    right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not right or isinstance(value, bool):
        raise InputError(f"{where}: {key.replace('_', '-')} must be {_NAMES[kind]}, got {value!r}")
    return kind(value)


_NAMES = {int: "a whole number", float: "a number", str: "a text"}


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)


def read_config(path: str | Path) -> dict[str, Any]:
    """The keys of a TOML file."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"config must be a TOML file, got '{file}' (no such file)")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"config must be a TOML file, got '{file}' ({error})") from None


def dump_config(plan: Plan, table: Table) -> str:
    """The resolved config as TOML, with the version and the data's checksum; `read_config` reads it."""
    provenance: dict[str, object] = {"data-checksum": f"sha256:{table.checksum}", "data-rows": len(table)}
    for plugin in plan.config.plugins:
        digest = hashlib.sha256(Path(plugin).read_bytes()).hexdigest()
        name = f"plugin {Path(plugin).name}"
        provenance[f"plugin {plugin}" if name in provenance else name] = f"sha256:{digest}"
    return config_text(plan.config, {**provenance, "data-notes": table.notes})


def config_text(config: Config, provenance: Mapping[str, object]) -> str:
    """A config as TOML, and where its numbers come from."""
    names = {"strategies": "strategy", "plugins": "plugin"}
    given = {field.name: getattr(config, field.name) for field in fields(Config)}
    lines = [
        _toml(names.get(name, name).replace("_", "-"), value)
        for name, value in given.items()
        if value is not None
    ]
    lines += ["", f"[{PROVENANCE}]", _toml("version", __version__)]
    lines += [_toml(key, value) for key, value in provenance.items()]
    return "\n".join(lines) + "\n"


def _toml(key: str, value: object) -> str:
    bare = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
    return f"{bare} = {json.dumps(value, ensure_ascii=False)}"
