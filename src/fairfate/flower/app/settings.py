"""The run config of the ready app, every key checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fairfate.data import Columns, Held
from fairfate.errors import InputError, check, unknown
from fairfate.fairness.objective import parse_objective
from fairfate.federation.streams import Streams
from fairfate.models.mlp import parse_hidden
from fairfate.models.training import Training
from fairfate.runs.config import PROTOCOLS, parse_privileged
from fairfate.strategies import parse_spec

VALIDATION, SITES = "validation", "sites"
"""Where a schema comes from, unless from a file."""


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
    hidden: str = "10"
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
            if field.name == "hidden" and isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
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
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name):
            raise InputError(
                "name must be up to 64 letters, digits, dots, hyphens and underscores and begin with a letter"
                f" or digit, got '{self.name}'"
            )
        parse_objective(self.metric)
        parse_hidden(self.hidden)
        check(self.protocol in PROTOCOLS, f"protocol must be one of {'|'.join(PROTOCOLS)}", self.protocol)
        check(self.min_sites >= 1, "min-sites must be >= 1", self.min_sites)
        for name in ("per_round", "seed", "max_norm", "max_examples"):
            check(getattr(self, name) >= 0, f"{name.replace('_', '-')} must be >= 0", getattr(self, name))
        for name in ("timeout", "max_wait"):
            check(getattr(self, name) > 0, f"{name.replace('_', '-')} must be > 0", getattr(self, name))
        for name in ("validation", "test", "out", "sites"):
            path = getattr(self, name)
            if path and not Path(path).is_absolute():
                raise InputError(f"{name} must be a full path (Flower starts apps elsewhere), got '{path}'")
        for name in ("validation", "test"):
            file = getattr(self, name)
            if file and not Path(file).is_file():
                raise InputError(f"{name} must be a file, got '{file}' (no such file)")
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
        )

    @property
    def columns(self) -> Columns:
        """What the columns of the validation file mean."""
        return Columns(
            target=self.target,
            sensitive=_parts(self.sensitive),
            favourable=self.favourable or None,
            privileged=parse_privileged(_parts(self.privileged), _parts(self.sensitive)),
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
