"""A config with everything decided that depends on the data, and every option checked."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairfate.data import FILE, SOURCES, TRAINING, Schema, Table
from fairfate.data.groups import Groups
from fairfate.data.readers import list_folder
from fairfate.engine.attack import Attack, parse_attack
from fairfate.engine.secure_sums import SecureSums
from fairfate.errors import InputError, check, hide_examples
from fairfate.experiments.config import HIDDEN, Config, Shape, config_text
from fairfate.fairness.objective import parse_objective
from fairfate.federation.bias import check_biased
from fairfate.federation.partition import FORMS, Partition, parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import RowAssignment, assign_rows
from fairfate.federation.validation_source import AT_SERVER, ValidationSource, parse_validation_source
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Model
from fairfate.models.training import Training
from fairfate.models.user_network import Network
from fairfate.privacy.budget import Budget, parse_budget
from fairfate.storage import sha256_of
from fairfate.strategies import Setup, Spec, load_plugin, parse_spec
from fairfate.strategies.registry import PUBLISHED, RECOMMENDED

DEFAULT_CLIENTS = 10
FEW_SITES = 20
"""Up to so many sites train in every round by default."""


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
    network: Network | None = None
    """The user's own model, in its place."""
    attack: Attack | None = None
    """What some clients do to the others."""
    validation_source: ValidationSource = AT_SERVER
    """Who holds the validation rows."""
    secure_sums: SecureSums | None = None
    """The rule by which the server sees sums over clients only."""
    budget: Budget | None = None
    """What each client's rows may be told by, under differential privacy."""
    notes: tuple[str, ...] = ()
    """What is done otherwise than a reader may think, for the user to read."""

    @property
    def min_cell(self) -> int:
        """The least count that a client tells: none under secure sums, which apply it to the opened sum."""
        return self.config.min_cell if self.secure_sums is None else 0

    def model(self, inputs: int, schema: Schema | None = None) -> Model:
        """The kind of model that is trained; a network of the user's needs the schema."""
        if self.network is None:
            return Mlp(inputs, self.hidden)
        assert schema is not None
        return self.network.model(schema)

    def setup(self, table: Table) -> Setup:
        """What strategies may know of the run."""
        return setup_of(self.validation_source, self.training, table.grouping, self.published)

    def streams(self, seed: int) -> Streams:
        """The random numbers of a seed."""
        return Streams(seed, self.published)

    def assign(self, table: Table, streams: Streams) -> RowAssignment:
        """Which of a table's rows are whose, and for what."""
        return assign_rows(
            table, self.partition, self.clients, streams, self.validation_source, self.min_cell
        )

    @property
    def split(self) -> str:
        """Who holds what and, where somebody attacks, how: the partition in tables."""
        return str(self.partition) if self.attack is None else f"{self.partition} {self.attack}"

    def visits(self, rows: int) -> float:
        """How many rows one strategy's models see in training, expected for a table of so many rows."""
        training = self.training
        return 0.6 * rows * training.per_round / self.clients * training.epochs * training.rounds

    @property
    def published(self) -> bool:
        """Whether the protocol is that of the published runs."""
        return self.config.protocol == "published"


def setup_of(
    validation_source: ValidationSource, training: Training, groups: Groups, published: bool
) -> Setup:
    """What strategies may know of a run."""
    return Setup(training.rounds, published, groups, training.learning_rate, validation_source.min_cell)


def resolve(config: Config, table: Table) -> Plan:
    """Decide what depends on the data, and check everything that can be checked before running."""
    metric = str(parse_objective(config.metric, counted=True))
    source = None if table.source is None else SOURCES[table.source]
    partition = _partition(config, table)
    if partition.kind == "column":
        clients = len(table.client_names)
        if config.clients not in (None, clients):
            raise InputError(
                f"clients must be left out or {clients}, the values of '{partition.column}',"
                f" got {config.clients}"
            )
        usual: int | None = clients if clients <= FEW_SITES else None
    else:
        known = (source.clients, source.per_round) if source else (DEFAULT_CLIENTS, None)
        clients = known[0] if config.clients is None else config.clients
        usual = known[1] if known[1] is not None and config.clients is None else None
    per_round = config.per_round if config.per_round is not None else usual or default_per_round(clients)
    check(per_round <= clients, f"per-round must be <= the {clients} clients", per_round)
    train_rows = round(0.6 * len(table)) if table.part is None else int((table.part == TRAINING).sum())
    check(
        partition.kind == "column" or clients <= train_rows,
        f"clients must be <= the {train_rows} training rows of '{table.name}'",
        clients,
    )
    if partition.strength is not None:
        check_biased(table, partition, clients)
    _check_seeds(config.seeds, config.protocol == "published")
    for plugin in config.plugins:
        load_plugin(plugin)
    published = config.protocol == "published"
    strategies = config.strategies or (PUBLISHED if published else RECOMMENDED)
    guard = not published and (not config.strategies or table.is_own)
    validation_source = (
        AT_SERVER if config.validation_from is None else parse_validation_source(config.validation_from)
    )
    specs = tuple(
        dict.fromkeys(
            parse_spec(text, metric, guard=guard, trials=not validation_source.at_clients)
            for text in strategies
        )
    )
    attack = parse_attack(config.attack)
    if attack is not None:
        number = int(attack["clients"])
        check(number <= clients, f"attack must be by <= the {clients} clients", number)
    budget = parse_budget(config.privacy)
    shape = Shape(table.encode, train_rows, table.features.shape[1], clients, budget is not None)
    hidden = parse_hidden(shape.hidden if config.hidden is None else config.hidden)
    is_deep = bool(hidden) or config.model is not None
    training = config.training(shape, per_round, is_deep=is_deep)
    network = None if config.model is None else Network.read(config.model)
    check(network is None or config.hidden is None, "hidden must be left out with model", config.hidden)
    check(
        training.early_stopping == 0 or not validation_source.at_clients,
        "early-stopping must be left out with validation-from clients, who tell no loss",
        training.early_stopping,
    )
    if budget is not None:
        check_private(config, validation_source, attack)
    resolved = replace(
        config,
        privacy=None if budget is None else str(budget),
        validation_from=None if validation_source == AT_SERVER else str(validation_source),
        partition=str(partition),
        attack=None if attack is None else str(attack),
        clients=clients,
        per_round=per_round,
        rounds=training.rounds,
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        l2=training.l2,
        encode=table.encode,
        strategies=tuple(spec.text for spec in specs),
        metric=metric,
        hidden=None if network is not None else ",".join(map(str, hidden)) or "0",
    )
    notes = _shape_notes(resolved, shape, is_deep=is_deep)
    return Plan(
        resolved,
        table.name,
        partition,
        clients,
        training,
        specs,
        hidden,
        network,
        attack,
        validation_source,
        SecureSums(config.min_sum, config.min_cell) if config.secure_sums else None,
        budget,
        notes,
    )


def _shape_notes(config: Config, shape: Shape, *, is_deep: bool) -> tuple[str, ...]:
    """Where a resolved config has a default that is due to the data's size or shape."""
    notes = []
    if config.hidden == shape.hidden != HIDDEN:
        notes.append(
            f"the model has no hidden layer (logistic regression), the default for {shape.rows:,} training"
            f" rows of {shape.columns:,} columns; --hidden {HIDDEN} adds one"
        )
    if shape.is_private:
        own = shape.training(is_deep=is_deep)
        notes.append(
            f"with privacy training has by default {own.rounds} rounds, {own.epochs} epochs, batches of"
            f" {own.batch_size} rows and a learning rate of {own.learning_rate:g}: few, large steps bear"
            " noise best"
        )
        return tuple(notes)
    usual, chosen = (each.training(is_deep=is_deep) for each in (Shape(shape.encode), shape))
    if config.learning_rate == chosen.learning_rate != usual.learning_rate:
        notes.append(
            f"the learning rate is {chosen.learning_rate:g} rather than {usual.learning_rate:g}, the default"
            f" for {shape.columns:,} columns; --learning-rate sets another"
        )
    if config.l2 == chosen.l2 != usual.l2:
        notes.append(f"weights decay by an L2 of {chosen.l2:g}, the default for wide files; --l2 0 has none")
    if config.batch_size == chosen.batch_size != usual.batch_size:
        notes.append(
            f"batches have {chosen.batch_size:,} rather than {usual.batch_size} rows, the default for clients"
            f" with about {shape.rows // shape.clients:,}; --batch-size sets another size"
        )
    return tuple(notes)


def default_per_round(clients: int) -> int:
    """How many clients take part in a round by default."""
    return max(1, round(clients / 3))


def _check_seeds(seeds: tuple[int, ...], published: bool) -> None:
    check(len(seeds) > 0, "seeds must be a number >= 1 or a list")
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
        if table.client is not None:
            return Partition("column", column=FILE)
        return parse_partition("random" if table.is_own else "dirichlet:0.5")
    partition = parse_partition(config.partition)
    if partition.kind == "column" and table.client is None:
        raise InputError(f"partition must be {FORMS} for '{table.name}', got '{partition}'")
    return partition


def dump_config(plan: Plan, table: Table) -> str:
    """The resolved config as TOML, with the version and the data's checksum; `read_config` reads it."""
    provenance: dict[str, object] = {
        "software": _software(),
        "data-checksum": f"sha256:{table.checksum}",
        "data-rows": len(table),
        **_file_checksums(plan.config),
    }
    for plugin in plan.config.plugins:
        digest = hashlib.sha256(Path(plugin).read_bytes()).hexdigest()
        name = f"plugin {Path(plugin).name}"
        provenance[f"plugin {plugin}" if name in provenance else name] = f"sha256:{digest}"
    if plan.network is not None:
        provenance["model"] = f"sha256:{plan.network.digest}"
    return config_text(
        plan.config, {**provenance, "data-notes": [*map(hide_examples, table.notes), *plan.notes]}
    )


def _file_checksums(config: Config) -> dict[str, str]:
    """The SHA-256 of the user's files, as sha256sum prints it."""
    path = Path(config.data)
    if config.data.partition(":")[0] in (*SOURCES, "synthetic") or not path.exists():
        return {}
    files = {"": path} if path.is_file() else {f" {file.name}": file for file in list_folder(path)}
    return {f"sha256{name}": sha256_of(file) for name, file in files.items()}


def _software() -> str:
    """The versions that numbers may depend on."""
    packages = (f"{name} {version(name)}" for name in ("numpy", "numba", "pandas", "scikit-learn"))
    return ", ".join([f"Python {platform.python_version()}", *packages])


def changes(provenance: Mapping[str, Any], table: Table, file: Path | None) -> list[str]:
    """In what the data differ from those that a config file was written for."""
    differences = []
    if provenance.get("data-checksum", f"sha256:{table.checksum}") != f"sha256:{table.checksum}":
        differences.append(f"the data are not those that {file} was written for (checksum)")
    sites = provenance.get("server-sites")
    if isinstance(sites, list) and list(table.client_names) != sites:
        trained_by, here = ", ".join(map(str, sites)) or "nobody", ", ".join(table.client_names)
        differences.append(
            f"{file} is of a run by {trained_by}, and these are {here}: the results will differ"
        )
    return differences


def check_private(config: Config, validation_source: ValidationSource, attack: Attack | None) -> None:
    """InputError for what has no guarantee under differential privacy."""
    refused = (
        ("model", config.model, "which clips each row's gradient in the built-in model only"),
        ("attack", attack, "which attackers do not keep"),
    )
    for key, value, reason in refused:
        if value is not None:
            raise InputError(f"{key} must be left out with privacy, {reason}, got '{value}'")
    check_private_limits(
        secure_sums=config.secure_sums, min_cell=config.min_cell, validation_source=validation_source
    )


def check_private_limits(*, secure_sums: bool, min_cell: int, validation_source: ValidationSource) -> None:
    """The same for what a study has beside."""
    refused = (
        ("secure-sums", "true" if secure_sums else None, "of which a run has one"),
        ("min-cell", min_cell or None, "since hiding counts by the true ones tells of them"),
    )
    for key, value, reason in refused:
        if value is not None:
            raise InputError(f"{key} must be left out with privacy, {reason}, got '{value}'")
    if validation_source.at_clients or validation_source.is_local:
        raise InputError(
            "validation-from must be server with privacy, since counts of every model in every round have no"
            f" noise, got '{validation_source}'"
        )
