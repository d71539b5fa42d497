"""The ready app at the server: its settings, its rows, its folder, and what it leaves behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairfate import results
from fairfate.config import PROTOCOLS, Config, config_text
from fairfate.data import FILE, Columns, Held, Schema, Table, load_held, widen
from fairfate.engine import mlp
from fairfate.engine.training import Training
from fairfate.errors import InputError, check, unknown
from fairfate.federation import Rows, held_out
from fairfate.files import write_bytes
from fairfate.flower.logs import log
from fairfate.flower.nodes import CLIENT, NAME, PROBLEM, Roster
from fairfate.flower.site import ASK, DESCRIBE, SCHEMA
from fairfate.flower.strategy import FlowerStrategy
from fairfate.flower.validation import BuiltIn, built_in_arrays
from fairfate.metrics import FAIRNESS
from fairfate.strategies import labels, parse_spec
from fairfate.streams import Streams

CHECKPOINT, CLIENTS, SCHEMA_FILE, LOCK = "checkpoint.safetensors", "clients.csv", "schema.json", ".lock"
VALIDATION, SITES = "validation", "sites"
"""Where a schema comes from, unless from a file."""
WAIT_FOR_LOCK = 60.0


@dataclass(frozen=True)
class Settings:
    """The run config of the ready app: flat keys, as `pyproject.toml` and ``flwr run -c`` give them."""

    name: str
    validation: str
    out: str
    test: str = ""
    sites: str = ""
    schema: str = VALIDATION
    target: str = ""
    favourable: str = ""
    sensitive: str = ""
    privileged: str = ""
    drop: str = ""
    categorical: str = ""
    strategy: str = "fair_fate"
    metric: str = "eqo"
    protocol: str = "paper"
    seed: int = 1
    rounds: int = 100
    per_round: int = 0
    min_sites: int = 2
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 0.01
    hidden: int = 10
    timeout: float = 300.0
    max_wait: float = 600.0
    max_norm: float = 0.0
    max_examples: float = 0.0

    @classmethod
    def read(cls, run_config: Mapping[str, Any]) -> Settings:
        """From a run config; every key is checked."""
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        given: dict[str, Any] = {}
        for key, value in run_config.items():
            if key not in known:
                raise unknown("key in the run config", key, known)
            field = known[key]
            kind = {"str": str, "int": int, "float": float}[str(field.type)]
            right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
            if not right or isinstance(value, bool):
                what = {str: "a text", int: "a whole number", float: "a number"}[kind]
                raise InputError(f"{key} must be {what}, got {value!r}")
            given[field.name] = kind(value)
        for key in ("name", "validation", "out"):
            if not given.get(key):
                raise InputError(f"{key} must be given in the run config, got none")
        settings = cls(**given)
        settings.check()
        return settings

    def check(self) -> None:
        """Everything that can be checked before the first message."""
        check(self.metric in FAIRNESS, f"metric must be one of {'|'.join(FAIRNESS)}", self.metric)
        check(self.protocol in PROTOCOLS, f"protocol must be one of {'|'.join(PROTOCOLS)}", self.protocol)
        check(self.min_sites >= 1, "min-sites must be >= 1", self.min_sites)
        for name in ("per_round", "seed", "max_norm", "max_examples"):
            check(getattr(self, name) >= 0, f"{name.replace('_', '-')} must be >= 0", getattr(self, name))
        for name in ("timeout", "max_wait"):
            check(getattr(self, name) > 0, f"{name.replace('_', '-')} must be > 0", getattr(self, name))
        parse_spec(self.strategy, self.metric)
        assert self.training

    @property
    def training(self) -> Training:
        """The clients' SGD."""
        return Training(
            rounds=self.rounds,
            per_round=max(1, self.per_round),
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            hidden=self.hidden,
        )

    @property
    def columns(self) -> Columns:
        """What the columns of the validation file mean."""
        return Columns(
            target=self.target,
            sensitive=self.sensitive,
            favourable=self.favourable or None,
            privileged=self.privileged or None,
            drop=_parts(self.drop),
            categorical=_parts(self.categorical),
        )

    @property
    def held(self) -> Held:
        """The server's files."""
        made = self.schema in (VALIDATION, SITES)
        return Held(self.validation, self.test or None, None if made else self.schema)

    @property
    def streams(self) -> Streams:
        """The random numbers of the run."""
        return Streams(self.seed, self.protocol == "published")


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, eq=False)
class ServerData:
    """What the server holds: the schema, and its rows in it."""

    schema: Schema
    table: Table
    validation: BuiltIn
    test: BuiltIn
    initial: ArrayRecord
    """The built-in model at the start."""
    train_config: ConfigRecord
    """What sites need to train it."""

    @classmethod
    def load(cls, settings: Settings, schema: Schema | None = None) -> ServerData:
        """Read the server's files; the schema is theirs unless one is given."""
        if schema is None:
            schema, table = load_held(settings.held, settings.columns)
        else:
            table = load_held(settings.held, settings.columns, schema)[1]
        streams, hidden, inputs = settings.streams, settings.hidden, len(schema.features)
        validation, test = held_out(table, streams)
        for name, rows in (("validation", validation), ("test", test)):
            check(len(rows) > 0, f"the server's files must leave a {name} row", f"{len(table)} rows in all")
        start = mlp.initial(streams.weights(mlp.num_parameters(inputs, hidden)), inputs, hidden)
        layers = built_in_arrays(start, inputs, hidden)
        return cls(
            schema=schema,
            table=table,
            validation=BuiltIn(Rows.of(table, validation, schema.encoder), inputs, hidden),
            test=BuiltIn(Rows.of(table, test, schema.encoder), inputs, hidden),
            initial=ArrayRecord({name: Array(layer) for name, layer in layers.items()}),
            train_config=ConfigRecord(
                {
                    SCHEMA: schema.to_json(),
                    "seed": settings.seed,
                    "protocol": settings.protocol,
                    "epochs": settings.epochs,
                    "batch-size": settings.batch_size,
                    "learning-rate": settings.learning_rate,
                    "hidden": hidden,
                }
            ),
        )


def ask_for_schema(grid: Grid, settings: Settings, draft: Schema) -> Schema:
    """One query to every site for its columns' ranges and category names, and a schema that covers them."""
    clients = Roster(max_wait=settings.max_wait).clients(grid, settings.min_sites)
    question = RecordDict({"config": ConfigRecord({ASK: DESCRIBE, SCHEMA: draft.to_json()})})
    messages = [Message(question, client.node, MessageType.QUERY) for client in clients]
    schema = draft
    told: list[tuple[str, dict[str, Any]]] = []
    for reply in grid.send_and_receive(messages, timeout=settings.timeout):
        about = (
            ConfigRecord() if reply.has_error() else reply.content.config_records.get(CLIENT, ConfigRecord())
        )
        name = str(about.get(NAME) or f"node {reply.metadata.src_node_id}")
        if DESCRIBE not in about:
            why = reply.error.reason if reply.has_error() else about.get(PROBLEM, "an empty answer")
            log(WARNING, "%s does not describe its columns: %s", name, why)
            continue
        told.append((name, json.loads(str(about[DESCRIBE]))))
    for name, described in sorted(told, key=lambda pair: pair[0]):
        try:
            schema = widen(schema, {name: described})
        except InputError as error:
            log(WARNING, "%s is left out of the schema: %s", name, error)
    log(INFO, "The schema covers the columns of %d sites", len(told))
    return schema


class RunFolder:
    """Where a run's results go, ready to go on where an interrupted run of the same settings ended."""

    def __init__(self, path: Path, config: str, resumed: bool) -> None:
        self.path, self.config, self.resumed = path, config, resumed
        self.checkpoint = path / CHECKPOINT

    @property
    def schema(self) -> Schema | None:
        """The schema that an interrupted run agreed on, if there is one."""
        file = self.path / SCHEMA_FILE
        return Schema.read(file) if file.exists() else None

    def agree(self, schema: Schema) -> None:
        """Write the schema down."""
        schema.write(self.path / SCHEMA_FILE)

    def finish(self, settings: Settings, data: ServerData, strategy: FlowerStrategy) -> None:
        """Write rounds, summary, model and clients as `fairfate run` does, the summary last."""
        spec = strategy.spec
        clients = strategy.clients()
        cohorts = clients.groupby("round").size()
        config = _config(settings, self.path)
        if not settings.per_round and len(cohorts):
            config |= {"per_round": int(cohorts.max())}
        write_bytes(self.path / results.CONFIG, config_text(Config(**config), _provenance(data)).encode())
        rounds = strategy.rounds(settings.name, f"column:{FILE}")
        results.write_rounds(self.path / results.ROUNDS, rounds)
        write_bytes(self.path / CLIENTS, clients.to_csv(index=False).encode())
        results.write_model(
            self.path / results.MODELS / results.model_file(labels([spec])[0], settings.seed),
            strategy.model,
            data.schema,
            hidden=settings.hidden,
            strategy=spec.text,
            protocol=settings.protocol,
            data_checksum=data.table.checksum,
        )
        results.write_summary(self.path / results.SUMMARY, results.summarise(rounds))
        self.checkpoint.unlink(missing_ok=True)
        log(INFO, "Saved to %s", self.path)


def _config(settings: Settings, folder: Path) -> dict[str, Any]:
    """The keys of `fairfate run` that give the same run, where it can see the sites' files."""
    training = settings.training
    return {
        "data": settings.sites or "sites",
        "validation": settings.validation,
        "test": settings.test or None,
        "schema": str(folder / SCHEMA_FILE),
        "protocol": settings.protocol,
        "partition": f"column:{FILE}",
        "strategies": (parse_spec(settings.strategy, settings.metric).text,),
        "metric": settings.metric,
        "per_round": settings.per_round or None,
        "rounds": training.rounds,
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "hidden": training.hidden,
        "seeds": (settings.seed,),
    }


def _provenance(data: ServerData) -> dict[str, object]:
    checksum = f"sha256:{data.table.checksum}"
    return {"server-data-checksum": checksum, "server-data-rows": len(data.table)}


@contextmanager
def open_run(settings: Settings) -> Iterator[RunFolder]:
    """The folder of an interrupted run with the same settings, or a new one; nobody else may use it."""
    base, number = Path(settings.out).expanduser(), 1
    while (base / f"{settings.name}-{number + 1}").exists():
        number += 1
    path = base / f"{settings.name}-{number}"
    if path.exists() and not _unfinished(path, settings):
        path = base / f"{settings.name}-{number + 1}"
    resumed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    with _locked(path) as alone:
        if not alone:
            raise InputError(f"out must hold no run with these settings that is still going, got '{path}'")
        config = config_text(Config(**_config(settings, path)), _limits(settings))
        write_bytes(path / results.CONFIG, config.encode())
        log(INFO, "%s in %s", "Going on" if resumed else "Working", path)
        yield RunFolder(path, config, resumed)
    with suppress(FileNotFoundError):
        (path / LOCK).unlink()


def _limits(settings: Settings) -> dict[str, object]:
    """What `fairfate run` has no option for."""
    names = (
        "target",
        "favourable",
        "sensitive",
        "privileged",
        "drop",
        "categorical",
        "max_norm",
        "max_examples",
    )
    return {f"server-{name.replace('_', '-')}": getattr(settings, name) for name in names}


def _unfinished(path: Path, settings: Settings) -> bool:
    """Whether a folder holds an interrupted run with these settings."""
    file = path / results.CONFIG
    same = config_text(Config(**_config(settings, path)), _limits(settings))
    return file.exists() and not (path / results.SUMMARY).exists() and file.read_text() == same


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold a folder for this process alone; the system lets go when the process ends, however it ends.

    The server process of a killed SuperLink may live on for some seconds, so this waits a little.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    with (path / LOCK).open("w") as file:
        end = time.monotonic() + WAIT_FOR_LOCK
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(0.5)
        yield True


def make_strategy(settings: Settings, data: ServerData, checkpoint: Path | None) -> FlowerStrategy:
    """The strategy that the settings name, for the built-in model."""
    return FlowerStrategy(
        settings.strategy,
        num_rounds=settings.rounds,
        metric=settings.metric,
        protocol=settings.protocol,
        seed=settings.seed,
        validation=data.validation,
        test=data.test,
        per_round=settings.per_round or None,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=settings.min_sites,
        max_wait=settings.max_wait,
        max_norm=settings.max_norm or None,
        max_examples=settings.max_examples or None,
        checkpoint=checkpoint,
        ask_clients=True,
        query_config=ConfigRecord({SCHEMA: data.schema.to_json()}),
    )
