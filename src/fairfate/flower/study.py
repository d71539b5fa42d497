"""The study file: what the sites of a federation have agreed to answer, to whom, and how often.

It is made by the server's operator (`fairfate flower study`), read by a person at every site, and pinned
there by its checksum. A site checks every message against it before it reads a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairfate.data import Schema
from fairfate.data.encoder import ONEHOT
from fairfate.errors import InputError, check, listing
from fairfate.flower.keys import PublicKey

FIT, ROWS, TRAIN, SCORES, HISTOGRAM = "fit", "rows", "train", "scores", "histogram"
KINDS = {
    FIT: "does your file fit the schema? (yes, or the column that does not and the rule)",
    ROWS: "how many training rows by group and label",
    TRAIN: "train this model: weights, number of rows, and what the strategy needs beside them",
    SCORES: "how often these models decide how, on rows held out, by group and label",
    HISTOGRAM: "how many rows by group, label and range of the model's score",
}
"""The kinds of questions, and what the answer holds."""
SERVER = "server"


class NotInStudyError(ValueError):
    """A question that the study does not have."""


@dataclass(frozen=True)
class Member:
    """A site that takes part."""

    key: PublicKey
    rows: tuple[int, int]
    """How many rows it may train on, at least and at most."""


@dataclass(frozen=True)
class Training:
    """The strategies, and the sites' SGD; every message has just these."""

    strategies: tuple[str, ...]
    metric: str
    protocol: str
    seeds: tuple[int, ...]
    rounds: int
    hidden: str
    epochs: int
    batch_size: int
    learning_rate: float
    l2: float
    validation_from: str


@dataclass(frozen=True)
class Limits:
    """Bounds on what may be asked and answered."""

    min_cell: int
    """No count of fewer people leaves a site, but 0 may."""
    min_rows: int
    """A site with fewer rows does not train."""
    max_weight: float
    """The largest weight of a model that a site trains or scores."""
    max_told: float
    """The largest number that a strategy tells the sites beside the model."""
    attempts: int
    """How often a site trains in one round, if the round is repeated."""


@dataclass(frozen=True)
class Study:
    """Everything in the file."""

    name: str
    version: int
    previous: str
    """The checksum of the study that this one amends."""
    fairfate: str
    flower: str
    app: str
    """The checksum of the app's files."""
    schema: str
    """The checksum of the schema."""
    encode: str
    """How its columns become inputs."""
    target: str
    labels: tuple[str, str]
    """The second is the favourable outcome."""
    sensitive: tuple[str, ...]
    groups: tuple[str, ...]
    grouping: str
    """The checksum of all values that these groups are made from."""
    bands: Mapping[str, tuple[float, ...]]
    """Where sensitive columns of numbers are cut into groups."""
    missing: tuple[str, ...]
    """Values that stand for a missing one."""
    columns: Mapping[str, Mapping[str, Any]]
    """Each input: its role, the numbers by which it is standardised, and whether missing ones are flagged."""
    training: Training
    limits: Limits
    questions: Mapping[str, int]
    """How many of each kind a site answers."""
    server: PublicKey
    sites: Mapping[str, Member]
    checksum: str = field(default="", compare=False)

    # -- files ---------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | Path) -> Study:
        """Read a study file; InputError for anything that is not one."""
        file = Path(path).expanduser()
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"study must be a file, got '{file}' ({error.strerror})") from None
        return cls.parse(content, f"study '{file}'")

    @classmethod
    def parse(cls, content: bytes, where: str = "study") -> Study:
        """From a file's bytes."""
        try:
            table = tomllib.loads(content.decode("utf-8"))
            study = _from_table(table, hashlib.sha256(content).hexdigest())
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            reason = (
                f"one without {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            )
            raise InputError(
                f"{where} must be one that fairfate flower study has made, got {reason}"
            ) from None
        if study.text() != content.decode("utf-8"):
            raise InputError(
                f"{where} must be as fairfate flower study has written it, got one that was edited"
            )
        return study

    def text(self) -> str:
        """The file, with comments for the person who signs it off."""
        lines = [_HEAD.format(name=self.name)]
        add = lines.append
        add("[study]")
        lines += [
            _line("name", self.name),
            _line("version", self.version, "goes up with every amendment"),
            _line("previous", self.previous, "checksum of the study that this one amends"),
            _line("fairfate", self.fairfate, "version at the server and at every site"),
            _line("flower", self.flower, "the same"),
            _line("app", self.app, "checksum of the app's files: fairfate flower checksum APP"),
        ]
        add("\n# The columns that a site's file must have. No other column of it is in any answer.\n[data]")
        lines += [
            _line("label", self.target),
            _line("labels", list(self.labels), "the last is the favourable outcome"),
            _line("sensitive", list(self.sensitive)),
            _line("groups", list(self.groups)),
            _line("grouping", self.grouping, "checksum of the values that they are made from"),
            _line("bands", {name: list(cuts) for name, cuts in self.bands.items()}),
            _line("missing", list(self.missing), "values that stand for a missing one"),
            _line("schema", self.schema, "checksum of the schema"),
            _line("encode", self.encode, "how columns become inputs"),
        ]
        add("\n# The inputs of the model.\n[columns]")
        lines += [_line(name, dict(about)) for name, about in self.columns.items()]
        training = self.training
        add("\n# What sites train. Every message must have just these values.\n[training]")
        lines += [
            _line("strategies", list(training.strategies)),
            _line("metric", training.metric),
            _line("protocol", training.protocol),
            _line("seeds", list(training.seeds)),
            _line("rounds", training.rounds, "at most, in a run"),
            _line("hidden", training.hidden, "units of each hidden layer"),
            _line("epochs", training.epochs),
            _line("batch-size", training.batch_size),
            _line("learning-rate", training.learning_rate),
            _line("l2", training.l2, "weight decay"),
            _line("validation-from", training.validation_from),
        ]
        limits = self.limits
        add("\n# Bounds on questions and answers.\n[limits]")
        lines += [
            _line("min-cell", limits.min_cell, "no count of fewer people leaves a site"),
            _line("min-rows", limits.min_rows, "a site with fewer rows does not train"),
            _line("max-weight", limits.max_weight, "largest weight of a model that is sent to a site"),
            _line("max-told", limits.max_told, "largest number beside it"),
            _line("attempts", limits.attempts, "how often a site trains in one round, if it is repeated"),
        ]
        add("\n# How many questions of each kind a site answers under this version, all runs together.")
        add("[questions]")
        lines += [_line(kind, self.questions[kind], what) for kind, what in KINDS.items()]
        add("\n# Whose messages a site answers: public keys, to sign and to seal.\n[server]")
        lines += [_line("sign", self.server.sign), _line("seal", self.server.seal)]
        for name, member in self.sites.items():
            add(f"\n[sites.{_toml(name)}]")
            lines += [_line("sign", member.key.sign), _line("seal", member.key.seal)]
            add(_line("rows", list(member.rows), "it trains on, at least and at most"))
        return "\n".join(lines) + "\n"

    # -- what a site checks --------------------------------------------------------------------------------

    def check_schema(self, text: str) -> Schema:
        """The schema of a message; NotInStudyError unless it is the study's, and what the study says of it.

        The text is read only if it has the study's checksum. What the study lists for people to read must be
        what that schema has: somebody else has written both.
        """
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != self.schema:
            raise NotInStudyError("another schema than the study's")
        try:
            schema = Schema.from_json(text)
        except InputError as error:
            raise NotInStudyError(f"no schema ({error})") from None
        if schema.to_json() != text:
            raise NotInStudyError("a schema that says more than is read of it")
        listed = {
            "label": (schema.target, schema.labels) == (self.target, self.labels),
            "groups": (schema.sensitive, schema.grouping.names) == (self.sensitive, self.groups),
            "grouping": grouping_checksum(schema) == self.grouping,
            "bands": {name: tuple(cuts) for name, cuts in schema.bands.items()} == dict(self.bands),
            "missing values": schema.missing == self.missing,
            "encode": schema.encode == self.encode,
            "columns": list(schema.features) == list(self.columns),
        }
        for part, is_same in listed.items():
            if not is_same:
                raise NotInStudyError(f"a schema with other {part} than the study lists")
        for name, about in columns_of(schema).items():
            if about != dict(self.columns[name]):
                raise NotInStudyError(f"column '{name}' with another role or range than the study lists")
        hidden = [name for name in schema.sensitive if name in schema.categories or name in schema.dates]
        if hidden:
            raise NotInStudyError(f"sensitive column '{hidden[0]}' with texts or dates of its own")
        return schema

    def check_settings(self, config: Mapping[str, Any]) -> None:
        """NotInStudyError unless the settings of a training message are the study's."""
        training = self.training
        wanted = {
            "protocol": training.protocol,
            "epochs": training.epochs,
            "batch-size": training.batch_size,
            "learning-rate": training.learning_rate,
            "l2": training.l2,
            "hidden": training.hidden,
        }
        for key, value in wanted.items():
            given = config.get(key)
            if type(given) is not type(value) or given != value:
                raise NotInStudyError(f"{key} {given!r} instead of {value!r}")

    def has_run(self, strategy: str, seed: int, rounds: int) -> bool:
        """Whether a run is one of the study's."""
        training = self.training
        return strategy in training.strategies and seed in training.seeds and 1 <= rounds <= training.rounds


def grouping_checksum(schema: Schema) -> str:
    """Of the sensitive columns, their values and the groups made from them."""
    return hashlib.sha256(json.dumps(schema.sensitive_json()).encode()).hexdigest()


def columns_of(schema: Schema) -> dict[str, dict[str, Any]]:
    """Each input's role and range, as a study lists them."""
    encoder, found = schema.encoder, {}
    for number, name in enumerate(schema.features):
        about: dict[str, Any] = {"role": "number"}
        if name in schema.categories:
            about = {"role": "text", "values": list(schema.categories[name])}
        elif name in schema.dates:
            about = {"role": "date", "form": schema.dates[name]}
        if name in schema.sensitive:
            about = {"role": "group" if name not in schema.bands else "number and group"}
        if about["role"] not in ("text", "group"):
            onehot = schema.encode == ONEHOT
            names = ("mean", "deviation") if onehot else ("low", "span")
            about |= dict(zip(names, (float(encoder.low[number]), float(encoder.span[number])), strict=True))
            if encoder.flagged is not None:
                about["missing"] = bool(encoder.flagged[number])
        found[name] = about
    return found


_HEAD = """\
# The study '{name}': what a site of this federation answers, and to whom. Made by fairfate flower study.
# Read it through; nothing that is not in it is answered. Then pin it in the site's own settings:
#
#     study = "/path/to/study.toml"
#     study-sha256 = "..."             # sha256sum study.toml
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _line(key: str, value: object, comment: str = "") -> str:
    bare = key if _BARE.fullmatch(key) else _toml(key)
    return f"{bare} = {_toml(value)}" + (f"  # {comment}" if comment else "")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_line(key, of) for key, of in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    """A character that nobody would see, or that changes what is seen around it, in TOML."""
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"


def _from_table(table: Mapping[str, Any], checksum: str) -> Study:
    """A study from its TOML; ValueError, LookupError or TypeError where it is none."""
    study, data, training, limits = (table[name] for name in ("study", "data", "training", "limits"))
    sites = {str(name): Member(_key(about), _range(about["rows"])) for name, about in table["sites"].items()}
    questions = {kind: _whole(table["questions"][kind]) for kind in KINDS}
    first, second = map(str, data["labels"])
    if not sites or set(questions) != set(table["questions"]):
        raise ValueError("no sites, or unknown questions")
    if not str(study["name"]).isprintable():
        raise ValueError("a name that cannot be printed in a line")
    check_parties(_key(table["server"]), sites)
    return Study(
        name=str(study["name"]),
        version=_whole(study["version"]),
        previous=str(study["previous"]),
        fairfate=str(study["fairfate"]),
        flower=str(study["flower"]),
        app=str(study["app"]),
        schema=str(data["schema"]),
        encode=str(data["encode"]),
        target=str(data["label"]),
        labels=(first, second),
        sensitive=tuple(map(str, data["sensitive"])),
        groups=tuple(map(str, data["groups"])),
        grouping=str(data["grouping"]),
        bands={str(name): tuple(map(float, cuts)) for name, cuts in data["bands"].items()},
        missing=tuple(map(str, data["missing"])),
        columns={str(name): dict(about) for name, about in table["columns"].items()},
        training=Training(
            strategies=tuple(map(str, training["strategies"])),
            metric=str(training["metric"]),
            protocol=str(training["protocol"]),
            seeds=tuple(map(_whole, training["seeds"])),
            rounds=_whole(training["rounds"]),
            hidden=str(training["hidden"]),
            epochs=_whole(training["epochs"]),
            batch_size=_whole(training["batch-size"]),
            learning_rate=_number(training["learning-rate"]),
            l2=_number(training["l2"], positive=False),
            validation_from=str(training["validation-from"]),
        ),
        limits=Limits(
            min_cell=_whole(limits["min-cell"]),
            min_rows=_whole(limits["min-rows"]),
            max_weight=_number(limits["max-weight"]),
            max_told=_number(limits["max-told"]),
            attempts=_whole(limits["attempts"]),
        ),
        questions=questions,
        server=_key(table["server"]),
        sites=sites,
        checksum=checksum,
    )


def check_name(name: str) -> None:
    """InputError for a party's name that could be taken for another one."""
    letters = name.replace("-", "").replace("_", "").replace(".", "")
    if not (letters.isascii() and letters.isalnum()) or len(name) > 64:
        raise InputError(
            f"name must be up to 64 ASCII letters, digits, dots, hyphens and underscores, got {name[:80]!a}"
        )


def check_parties(server: PublicKey, sites: Mapping[str, Member]) -> None:
    """InputError unless all parties have names and keys of their own."""
    for name in sites:
        check_name(name)
    names = [name.casefold() for name in (SERVER, *sites)]
    check(len(set(names)) == len(names), "every party must have a name of its own", listing(sites))
    keys = [server, *(member.key for member in sites.values())]
    for parts in ({key.sign for key in keys}, {key.sealing_point for key in keys}):
        check(len(parts) == len(keys), "every party must have a key of its own", "one twice")


def _key(about: Mapping[str, Any]) -> PublicKey:
    for name in ("sign", "seal"):
        if not re.fullmatch(r"[0-9a-f]{64}", about[name]):
            raise ValueError(f"{name} must be a public key")
    return PublicKey(about["sign"], about["seal"])


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number >= 0")
    return value


def _number(value: object, *, positive: bool = True) -> float:
    if not isinstance(value, float) or not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{value!r} is no number {'>' if positive else '>='} 0")
    return value


def _range(value: Any) -> tuple[int, int]:
    low, high = map(_whole, value)
    if not low <= high:
        raise ValueError(f"{value!r} is no range")
    return low, high
