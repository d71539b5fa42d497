"""The run config of the ready app: what a deployment needs, and the options of `fairfate run`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairfate.data import (
    AUTO,
    FILE,
    ONEHOT,
    Columns,
    Schema,
    ServerFiles,
    Table,
    draft_schema,
    load_server_files,
)
from fairfate.errors import InputError, check, unknown
from fairfate.experiments.config import HIDDEN, Config, Shape, from_mapping
from fairfate.experiments.plan import check_private
from fairfate.fairness.objective import parse_objective
from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import (
    AT_SERVER,
    PUBLIC,
    ValidationSource,
    parse_validation_source,
)
from fairfate.models.mlp import parse_hidden
from fairfate.models.training import Training
from fairfate.options import Checked, keys_of, option, options_of, read_options
from fairfate.privacy.budget import Budget, parse_budget
from fairfate.privacy.releases import releases_of
from fairfate.strategies import Setup, parse_spec

VALIDATION, SITES = "validation", "sites"
"""Where a schema comes from, unless from a file."""
NEEDS_FIXED = (
    "schema must be fixed where there is a study (what sites would tell of their columns are small counts and"
    f' single values): schema = "{VALIDATION}" learns it from the server\'s validation file; or write one'
    " with fairfate flower schema APP --out schema.json, agree on it and give its full path"
)
"""What a study asks of the run config."""
NETWORK = "net.py"
"""A file beside the app's own: its function ``build`` makes the network, in place of the built-in one."""


@dataclass(frozen=True)
class Settings(Checked):
    """The keys of the run config that `fairfate run` does not have; `config` has the others."""

    config: Config
    """What `fairfate run` would be asked for."""
    name: str = option("", "name of the federation in tables and reports")
    out: str = option("", "folder at the server for the results", is_path=True)
    sites: str = option("", "in a simulation: folder with one file for each site")
    schema: str = option(VALIDATION, f"how columns become numbers: {VALIDATION}, {SITES} or a schema.json")
    seed: int = option(1, "of the random numbers", low=0)
    min_sites: int = option(2, "wait for so many sites before each round", low=1)
    min_replies: int = option(0, "a round in which fewer count is repeated; 0: as min-sites", low=0)
    study: str = option("", "of a deployment: the file that the sites have signed off")
    timeout: float = option(300.0, "seconds that a round waits for a site", low=0, is_above=True)
    max_wait: float = option(600.0, "seconds that the server waits for min-sites", low=0, is_above=True)
    max_norm: float = option(0.0, "a longer update is dropped; 0: one far longer than the others'", low=0)
    max_examples: float = option(0.0, "a site that claims more rows counts for so many; 0: no limit", low=0)

    @classmethod
    def read(cls, run_config: Mapping[str, Any], network: str | None = None) -> Settings:
        """From a run config, whose keys are all checked. A network of the user's own comes with the app."""
        own = options_of(cls)
        shared = [item for item in options_of(Config).values() if item.on_flower and item.name not in own]
        keys = keys_of([*own.values(), *shared])
        given: dict[str, Any] = {}
        options: dict[str, Any] = {"strategy": "fair_fate"}
        for key, value in run_config.items():
            if key not in keys or "_" in key:
                raise unknown("key in the run config", key, sorted(item.key for item in keys.values()))
            chosen = keys[key]
            if chosen.name in own:
                given[chosen.name] = value
            elif value != "" and not (key == "per-round" and value == 0):
                is_list = chosen.is_repeatable and chosen.name != "strategies"
                options[key] = _parts(value) if is_list else value
        where = "the run config"
        given = read_options({key: value for key, value in given.items() if value != ""}, where, own.values())
        for key in ("name", "validation", "out"):
            if not (given.get(key) or options.get(key)):
                raise InputError(f"{key} must be given in the run config, got none")
        options |= {"data": given.get("sites") or SITES, "partition": f"column:{FILE}"}
        options |= {"seeds": [given.get("seed", cls.seed)]}
        if given.get("schema", VALIDATION) not in (VALIDATION, SITES):
            options["schema"] = given["schema"]
        if "model" in options:
            raise InputError(f"model must be the app's own {NETWORK} on Flower, got '{options['model']}'")
        settings = cls(replace(from_mapping(options, where), model=network), **given)
        settings.check()
        return settings

    def check(self) -> None:
        """Everything that can be checked before the first message."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):
            raise InputError(
                "name must be up to 64 letters, digits, dots, hyphens and underscores and begin with a letter"
                f" or digit, got '{self.name}'"
            )
        config = self.config
        parse_objective(config.metric, counted=True)
        parse_hidden(self.hidden)
        if self.validation_source.is_local:
            check(
                config.secure_sums, "secure-sums must be true with this validation-from", config.secure_sums
            )
        if self.validation_source.mode == PUBLIC and config.test is None:
            raise InputError("test must be given with mode=public, where sites have the validation rows")
        check(config.early_stopping == 0, "early-stopping must be left out on Flower", config.early_stopping)
        paths = {"validation": config.validation, "test": config.test, "out": self.out, "sites": self.sites}
        paths["study"] = self.study
        for name, path in paths.items():
            if path and not Path(path).is_absolute():
                raise InputError(f"{name} must be a full path (Flower starts apps elsewhere), got '{path}'")
        for name, file in list(paths.items())[:2]:
            if file and not Path(file).is_file():
                raise InputError(f"{name} must be a file, got '{file}' (no such file)")
        self._check_privacy()
        for checked in ("strategy", "training", "validation_source"):
            getattr(self, checked)  # raises

    def _check_privacy(self) -> None:
        """InputError for what has no guarantee under differential privacy."""
        if self.budget is not None:
            check_private(self.config, self.validation_source, None)
            if self.schema == SITES:
                raise InputError(
                    f"schema must be '{VALIDATION}' or a file with privacy, since what sites tell of their"
                    f" columns has no noise, got '{SITES}'"
                )
            releases_of(parse_spec(self.strategy, self.config.metric), self.setup)

    @property
    def setup(self) -> Setup:
        """By which the strategy is built, wherever its groups do not matter."""
        training = self.training
        return Setup(
            training.rounds, self.config.protocol == "published", learning_rate=training.learning_rate
        )

    @property
    def budget(self) -> Budget | None:
        """Of differential privacy, for each site's rows and run; None without."""
        return parse_budget(self.config.privacy)

    @property
    def strategy(self) -> str:
        """The only strategy, with every setting; as for all data of users, with its guard."""
        check(len(self.config.strategies) == 1, "strategy must be one", len(self.config.strategies))
        guard = self.config.protocol == "paper"
        trials = not self.validation_source.at_clients
        return parse_spec(self.config.strategies[0], self.config.metric, guard=guard, trials=trials).text

    @property
    def training(self) -> Training:
        """The clients' SGD."""
        encode = ONEHOT if self.config.encode == AUTO else self.config.encode
        return self.config.training(
            Shape(encode, is_private=self.budget is not None), self.config.per_round or 1
        )

    @property
    def sgd(self) -> dict[str, str | int | float]:
        """What sites must know to train, as messages and studies have it."""
        training = self.training
        return {
            "protocol": self.config.protocol,
            "epochs": training.epochs,
            "batch-size": training.batch_size,
            "learning-rate": training.learning_rate,
            "l2": training.l2,
            "hidden": self.hidden,
        }

    @property
    def hidden(self) -> str:
        """Widths of the built-in model's layers."""
        return HIDDEN if self.config.hidden is None else self.config.hidden

    @property
    def validation_source(self) -> ValidationSource:
        """Who holds the validation rows."""
        return (
            AT_SERVER
            if self.config.validation_from is None
            else parse_validation_source(self.config.validation_from)
        )

    @property
    def columns(self) -> Columns:
        """What the columns of the validation file mean."""
        columns = replace(self.config, schema=None).columns
        if columns is None:
            raise InputError(f"data must be files of the sites' own, got '{self.config.data}'")
        return columns

    @property
    def server_files(self) -> ServerFiles:
        """The server's files."""
        if self.config.server_files is None:
            raise InputError("validation must be given, got none")
        return self.config.server_files

    def draft_schema(self) -> Schema:
        """What can be learned of the columns from the validation file."""
        return draft_schema(self.server_files, self.columns, self.config.encode, self.config.reading)

    def load_server_files(self, schema: Schema | None) -> tuple[Schema, Table]:
        """The schema, unless it is given, and the server's rows in it."""
        return load_server_files(
            self.server_files, self.columns, schema, self.config.encode, self.config.reading
        )

    @property
    def streams(self) -> Streams:
        """The random numbers of the run."""
        return Streams(self.seed, self.config.protocol == "published")


def own_network(app_file: str) -> str | None:
    """The network that comes with an app, if it has one, from the path of one of the app's files."""
    file = Path(app_file).with_name(NETWORK)
    return f"{file}:build" if file.is_file() else None


def settings_of(app: str | Path, changes: Mapping[str, Any] | None = None) -> Settings:
    """The run config of an app, with changes as ``flwr run -c`` makes them."""
    file = Path(app).expanduser() / "pyproject.toml"
    if not file.is_file():
        raise InputError(f"app must be the folder of a Flower app, got '{app}' (no pyproject.toml)")
    try:
        run_config = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"]["config"]
        network = own_network(str(next(file.parent.glob("*/server_app.py"), file)))
        return Settings.read({**run_config, **(changes or {})}, network)
    except InputError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"app must have a run config in pyproject.toml, got {error} in '{file}'") from None


def study_budget(settings: Settings) -> str:
    """What a study says of differential privacy, with the rounds that a site takes part in; "" for none."""
    budget = settings.budget
    if budget is None:
        return ""
    return str(replace(budget, participations=budget.participations or settings.training.rounds))


def schema_of(settings: Settings) -> tuple[Schema, bool]:
    """The schema that a server starts from, and whether sites leave it as it is."""
    given = settings.config.schema
    schema = settings.draft_schema() if given is None else Schema.read(given)
    return schema, settings.schema != SITES


def _parts(text: Any) -> list[str]:
    return [part.strip() for part in str(text).split(",") if part.strip()]
