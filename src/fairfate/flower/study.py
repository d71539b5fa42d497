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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fairfate.data import Schema
from fairfate.data.encoder import ONEHOT
from fairfate.errors import InputError, check, listing
from fairfate.federation.validation_source import PUBLIC, ValidationSource, parse_validation_source
from fairfate.flower.sealing import PublicKey
from fairfate.privacy.budget import Budget, parse_budget
from fairfate.privacy.releases import releases_of
from fairfate.strategies import Setup, Spec, parse_spec

FIT, ROWS, TRAIN, SCORES, HISTOGRAM, UNMASK = "fit", "rows", "train", "scores", "histogram", "unmask"
KINDS = {
    FIT: "does your file fit the schema? (yes, or the column that does not and the rule)",
    ROWS: "how many training rows by group and label",
    TRAIN: "train this model, of the label or (for +tilt) of the group or of what a rule decides: weights,"
    " number of rows, and what the strategy needs beside them",
    SCORES: "how often these models decide how, on rows held out, by group and label",
    HISTOGRAM: "how many rows by group, label and range of the model's score (for +tilt: of both models')",
    UNMASK: "what opens a sum over min-sum sites or more, once for each sum",
}
"""The kinds of questions, and what the answer holds."""
SERVER = "server"
LEAST_SUM = 3
"""The least that min-sum may be: of two sites in a sum, each knows the other's part."""


class NotInStudyError(ValueError):
    """A question that the study does not have."""


# -- how values are read from a file: ValueError or TypeError for any other ------------------------------


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no whole number >= 0")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _not_negative(value: object) -> float:
    if not isinstance(value, float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is no number >= 0")
    return value


def _positive(value: object) -> float:
    if not _not_negative(value):
        raise ValueError(f"{value!r} is no number > 0")
    return _not_negative(value)


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _two_texts(values: Any) -> tuple[str, str]:
    first, second = map(str, values)
    return first, second


def _range(value: Any) -> tuple[int, int]:
    low, high = map(_whole, value)
    if not low <= high:
        raise ValueError(f"{value!r} is no range")
    return low, high


def _name(value: object) -> str:
    if not str(value).isprintable():
        raise ValueError("a name that cannot be printed in a line")
    return str(value)


def _bands(value: Any) -> dict[str, tuple[float, ...]]:
    return {str(name): tuple(map(float, cuts)) for name, cuts in value.items()}


def _line(read: Callable[[Any], Any] = str, comment: str = "") -> Any:
    """A field that is a line of the file: how it is read, and what stands behind it."""
    return field(metadata={"read": read, "comment": comment})


def _lines(part: Any) -> list[str]:
    """The lines of a part of the file."""
    lines = [each for each in fields(part) if "read" in each.metadata]
    return [_text(_key(each.name), getattr(part, each.name), each.metadata["comment"]) for each in lines]


def _values(kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a part from its table; LookupError, ValueError or TypeError where it is none."""
    lines = [each for each in fields(kind) if "read" in each.metadata]
    return {each.name: each.metadata["read"](table[_key(each.name)]) for each in lines}


def _key(name: str) -> str:
    return name.replace("_", "-")


# -- what is in a study file -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """A site that takes part."""

    key: PublicKey
    rows: tuple[int, int]
    """How many rows it may train on, at least and at most."""


@dataclass(frozen=True)
class Data:
    """What the study says of the schema, for people to read."""

    label: str = _line()
    labels: tuple[str, str] = _line(_two_texts, "the last is the favourable outcome")
    sensitive: tuple[str, ...] = _line(_texts)
    groups: tuple[str, ...] = _line(_texts)
    grouping: str = _line(str, "checksum of the values that they are made from")
    bands: Mapping[str, tuple[float, ...]] = _line(_bands)
    missing: tuple[str, ...] = _line(_texts, "values that stand for a missing one")
    schema: str = _line(str, "checksum of the schema")
    encode: str = _line(str, "how columns become inputs")

    @classmethod
    def from_schema(cls, schema: Schema) -> Data:
        """What there is to say of a schema."""
        return cls(
            label=schema.target,
            labels=schema.labels,
            sensitive=schema.sensitive,
            groups=schema.grouping.names,
            grouping=hashlib.sha256(json.dumps(schema.sensitive_json()).encode()).hexdigest(),
            bands={name: tuple(cuts) for name, cuts in schema.bands.items()},
            missing=schema.missing,
            schema=hashlib.sha256(schema.to_json().encode("utf-8", "surrogatepass")).hexdigest(),
            encode=schema.encode,
        )


@dataclass(frozen=True)
class Training:
    """The strategies, and the sites' SGD; every message has just these."""

    strategies: tuple[str, ...] = _line(_texts)
    metric: str = _line()
    protocol: str = _line()
    seeds: tuple[int, ...] = _line(lambda values: tuple(map(_whole, values)))
    rounds: int = _line(_whole, "at most, in a run")
    hidden: str = _line(str, "units of each hidden layer")
    epochs: int = _line(_whole)
    batch_size: int = _line(_whole)
    learning_rate: float = _line(_positive)
    l2: float = _line(_not_negative, "weight decay")
    validation_from: str = _line()


@dataclass(frozen=True)
class Limits:
    """Bounds on what may be asked and answered."""

    min_cell: int = _line(_whole, "no count of fewer people leaves a site")
    min_rows: int = _line(_whole, "a site with fewer rows does not train")
    max_weight: float = _line(_positive, "largest weight of a model that is sent to a site")
    max_told: float = _line(_positive, "largest number beside it")
    attempts: int = _line(_whole, "how often a site trains in one round, if it is repeated")
    secure_sums: bool = _line(_truth, "whether what a site trains and counts leaves it under masks only")
    min_sum: int = _line(_whole, "then: least number of sites in a sum that is opened")
    public: str = _line(
        str, "then: checksum of the file on which every site scores its model, if there is one"
    )
    privacy: str = _line(str, "differential privacy of a site's rows: its budget for a run; empty for none")


@dataclass(frozen=True, kw_only=True)
class Study:
    """Everything in the file."""

    name: str = _line(_name)
    version: int = _line(_whole, "goes up with every amendment")
    previous: str = _line(str, "checksum of the study that this one amends")
    fairfate: str = _line(str, "version at the server and at every site")
    flower: str = _line(str, "the same")
    app: str = _line(str, "checksum of the app's files: fairfate flower checksum APP")
    data: Data
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

    @property
    def budget(self) -> Budget | None:
        """What a run may tell of a row; None without differential privacy."""
        return parse_budget(self.limits.privacy or None)

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
        study.check_limits(where)
        return study

    def check_limits(self, where: str = "study") -> None:
        """InputError for limits that do not go together, and so would not be kept."""
        training, limits = self.training, self.limits
        try:
            source = parse_validation_source(training.validation_from)
            specs = [parse_spec(text, training.metric) for text in training.strategies]
            check(limits.attempts >= 1, "attempts must be >= 1", limits.attempts)
            if source.is_local:
                check(limits.secure_sums, f"secure-sums must be true with '{source}'", limits.secure_sums)
            check(
                bool(limits.public) == (source.mode == PUBLIC),
                "public must be given with mode=public only",
                limits.public or "none",
            )
            asked = self.questions[UNMASK]
            check(
                bool(asked) == limits.secure_sums,
                "unmask must be above 0 with secure-sums, and 0 without",
                asked,
            )
            if limits.secure_sums:
                self._check_sums(specs, source)
            if self.budget is not None:
                self._check_privacy(specs, source, self.budget)
        except InputError as error:
            raise InputError(f"{where} must have limits that can be kept: {error}") from None

    def _setup(self) -> Setup:
        training = self.training
        is_published = training.protocol == "published"
        return Setup(training.rounds, is_published, learning_rate=training.learning_rate)

    def _check_sums(self, specs: Sequence[Spec], source: ValidationSource) -> None:
        from fairfate.experiments.prepare import check_secure_sums

        limits, rows = self.limits, self.questions[ROWS]
        check(limits.min_sum >= LEAST_SUM, f"min-sum must be >= {LEAST_SUM}", limits.min_sum)
        check(
            len(self.sites) >= limits.min_sum,
            "a study must have min-sum sites with secure-sums",
            len(self.sites),
        )
        check(rows == 0, "rows must be 0 with secure-sums, under which no site answers for itself", rows)
        for spec in specs:
            check_secure_sums(spec, spec.build(self._setup()), source)

    def _check_privacy(self, specs: Sequence[Spec], source: ValidationSource, budget: Budget) -> None:
        from fairfate.experiments.plan import check_private_limits

        limits, scores = self.limits, self.questions[SCORES]
        check_private_limits(
            secure_sums=limits.secure_sums, min_cell=limits.min_cell, validation_source=source
        )
        check(scores == 0, "scores must be 0 with privacy, since their counts have no noise", scores)
        for spec in specs:
            releases_of(spec, self._setup())
        least = max(member.rows[0] for member in self.sites.values())
        if budget.delta * max(least, 2) > 1:
            raise InputError(
                f"delta must be at most one in a site's number of rows ({least:,} at least), got"
                f" {budget.delta:g}"
            )

    def text(self) -> str:
        """The file, with comments for the person who signs it off."""
        columns = [_text(name, dict(about)) for name, about in self.columns.items()]
        questions = [_text(kind, self.questions[kind], what) for kind, what in KINDS.items()]
        parts = [
            [_HEAD.format(name=self.name) + "[study]", *_lines(self)],
            [*_TITLES["data"], *_lines(self.data)],
            [*_TITLES["columns"], *columns],
            [*_TITLES["training"], *_lines(self.training)],
            [*_TITLES["limits"], *_lines(self.limits)],
            [*_TITLES["questions"], *questions],
            [*_TITLES["server"], *_key_lines(self.server)],
        ]
        for name, member in self.sites.items():
            rows = _text("rows", member.rows, "it trains on, at least and at most")
            parts.append([f"[sites.{_toml(name)}]", *_key_lines(member.key), rows])
        return "\n\n".join("\n".join(lines) for lines in parts) + "\n"

    # -- what a site checks --------------------------------------------------------------------------------

    def check_schema(self, text: str) -> Schema:
        """The schema of a message; NotInStudyError unless it is the study's, and what the study says of it.

        The text is read only if it has the study's checksum. What the study lists for people to read must be
        what that schema has: somebody else has written both.
        """
        if hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() != self.data.schema:
            raise NotInStudyError("another schema than the study's")
        try:
            schema = Schema.from_json(text)
        except InputError as error:
            raise NotInStudyError(f"no schema ({error})") from None
        if schema.to_json() != text:
            raise NotInStudyError("a schema that says more than is read of it")
        given, listed = vars(Data.from_schema(schema)), vars(self.data)
        others = [name for name in listed if given[name] != listed[name]]
        if others:
            raise NotInStudyError(f"a schema with other {others[0]} than the study lists")
        if list(schema.features) != list(self.columns):
            raise NotInStudyError("a schema with other columns than the study lists")
        for name, about in columns_of(schema).items():
            if about != dict(self.columns[name]):
                raise NotInStudyError(f"column '{name}' with another role or range than the study lists")
        hidden = [name for name in schema.sensitive if name in schema.categories or name in schema.dates]
        if hidden:
            raise NotInStudyError(f"sensitive column '{hidden[0]}' with texts or dates of its own")
        return schema

    def check_settings(self, config: Mapping[str, Any]) -> None:
        """NotInStudyError unless the settings of a training message are the study's."""
        for name in ("protocol", "epochs", "batch_size", "learning_rate", "l2", "hidden"):
            key, value = _key(name), getattr(self.training, name)
            given = config.get(key)
            if type(given) is not type(value) or given != value:
                raise NotInStudyError(f"{key} {given!r} instead of {value!r}")

    def has_run(self, strategy: str, seed: int, rounds: int) -> bool:
        """Whether a run is one of the study's."""
        training = self.training
        return strategy in training.strategies and seed in training.seeds and 1 <= rounds <= training.rounds


def columns_of(schema: Schema) -> dict[str, dict[str, Any]]:
    """Each input's role and range, as a study lists them."""
    encoder, ranges = schema.encoder, {}
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
        ranges[name] = about
    return ranges


_HEAD = """\
# The study '{name}': what a site of this federation answers, and to whom. Made by fairfate flower study.
# Read it through; nothing that is not in it is answered. Then pin it in the site's own settings:
#
#     study = "/path/to/study.toml"
#     study-sha256 = "..."             # sha256sum study.toml

"""
_TITLES = {
    name: (f"# {title}", f"[{name}]")
    for name, title in {
        "data": "The columns that a site's file must have. No other column of it is in any answer.",
        "columns": "The inputs of the model.",
        "training": "What sites train. Every message must have just these values.",
        "limits": "Bounds on questions and answers.",
        "questions": "How many questions of each kind a site answers under this version, all runs together.",
        "server": "Whose messages a site answers: public keys, to sign and to seal.",
    }.items()
}
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def _text(key: str, value: object, comment: str = "") -> str:
    bare = key if _BARE.fullmatch(key) else _toml(key)
    return f"{bare} = {_toml(value)}" + (f"  # {comment}" if comment else "")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(_text(key, item) for key, item in value.items()) + "}"
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else _escaped(sign) for sign in text)


def _escaped(sign: str) -> str:
    """A character that nobody would see, or that changes what is seen around it, in TOML."""
    return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"


def _key_lines(key: PublicKey) -> list[str]:
    return [_text("sign", key.sign), _text("seal", key.seal)]


def _from_table(table: Mapping[str, Any], checksum: str) -> Study:
    """A study from its TOML; ValueError, LookupError or TypeError where it is none."""
    sites = {
        str(name): Member(_public_key(about), _range(about["rows"])) for name, about in table["sites"].items()
    }
    questions = {kind: _whole(table["questions"][kind]) for kind in KINDS}
    if not sites or set(questions) != set(table["questions"]):
        raise ValueError("no sites, or unknown questions")
    server = _public_key(table["server"])
    check_parties(server, sites)
    return Study(
        **_values(Study, table["study"]),
        data=Data(**_values(Data, table["data"])),
        columns={str(name): dict(about) for name, about in table["columns"].items()},
        training=Training(**_values(Training, table["training"])),
        limits=Limits(**_values(Limits, table["limits"])),
        questions=questions,
        server=server,
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


def _public_key(about: Mapping[str, Any]) -> PublicKey:
    for name in ("sign", "seal"):
        if not re.fullmatch(r"[0-9a-f]{64}", about[name]):
            raise ValueError(f"{name} must be a public key")
    return PublicKey(about["sign"], about["seal"])
