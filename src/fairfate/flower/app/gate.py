"""The gate of a site: no row is read for a message that the study does not have.

A message must be signed by the study's server, sealed for this site, bound to this run and node, newer than
the last one, one of the study's questions in every detail, and within its number of them. Anything else is
refused: it is logged with who claims to have asked and what, and answered with nothing.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data import Schema
from fairfate.engine.rules import family_of
from fairfate.errors import InputError
from fairfate.fairness.tilt_groups import MOST_QUESTIONS, GroupTilt, family_name, most_rules, read_rule
from fairfate.federation.validation_source import CROSS, SECURE, parse_validation_source
from fairfate.flower.app.node import NodeConfig
from fairfate.flower.app.site_state import ANSWERED, SiteFolder, State
from fairfate.flower.app.sum_state import (
    SUMMED,
    Entry,
    begin,
    check_question,
    content_checksum,
    open_part,
    sum_key,
    transcript_of,
)
from fairfate.flower.logs import one_line
from fairfate.flower.messages import (
    ASK,
    ATTEMPT,
    BINS,
    BROADCAST,
    COHORT,
    DECISION,
    GROUP,
    GUESSED,
    HELD,
    HELD_SEED,
    HELD_SHARE,
    LEARNING_RATE,
    MEMBERS,
    MODEL,
    PART,
    PRICES,
    QUESTION,
    ROUND,
    SHARES,
    SIGNATURES,
    SPEC,
    SPLIT,
    SUM_PART,
    TABLE,
    TARGET,
)
from fairfate.flower.sealed_grid import LARGEST
from fairfate.flower.sealing import (
    Envelope,
    EnvelopeError,
    Head,
    PrivateKey,
    from_records,
    pack,
    seal,
    to_records,
)
from fairfate.flower.study import (
    FIT,
    HISTOGRAM,
    KINDS,
    ROWS,
    SCORES,
    SERVER,
    TRAIN,
    UNMASK,
    NotInStudyError,
    Study,
)
from fairfate.models.model import Model
from fairfate.privacy.masked_sums import Transcript
from fairfate.strategies import TILT, parse_spec
from fairfate.strategies.steps import asked_bins, is_distilled

SCHEMA = "schema"
_HELD_KEYS = (HELD_SHARE, HELD_SEED, "client")
_QUERY_KEYS = (SCHEMA, "wants-rows", HELD_SHARE)
_KEYS = {
    FIT: _QUERY_KEYS,
    ROWS: _QUERY_KEYS,
    SCORES: (*_QUERY_KEYS, *_HELD_KEYS, ASK, "groups", ROUND),
    HISTOGRAM: (*_QUERY_KEYS, *_HELD_KEYS, ASK, "groups", PART, BINS, SPLIT, PRICES, ROUND),
    UNMASK: (*(ASK, QUESTION, ROUND, PART, ATTEMPT, SUM_PART, SHARES, MEMBERS, SIGNATURES),),
    TRAIN: (
        *(SCHEMA, "seed", "protocol", "epochs", "batch-size", "learning-rate", "l2", "hidden", ROUND),
        *("strategy", "num-rounds", LEARNING_RATE, BROADCAST, TARGET, GUESSED, TABLE),
        *_HELD_KEYS,
    ),
}
"""What the config of each kind of question may hold."""
_SUM_KEYS = (COHORT, ATTEMPT)
"""Beside these, under secure sums."""
_PRIVATE_KINDS = (FIT, ROWS, TRAIN, HISTOGRAM)
"""Questions that there are under differential privacy: each is for a strategy."""
_MOST_TABLE = 64 * 64 // 4
"""Digits of a rule's table."""
_MOST_NAMES = 20
"""Of what is in a message, in a line of the log."""


class RefusedError(RuntimeError):
    """A message that the site does not answer; its own log says why."""

    def __init__(self) -> None:
        super().__init__("refused")


@dataclass(frozen=True, eq=False)
class Question:
    """A message that was let through."""

    kind: str
    config: Mapping[str, Any]
    models: tuple[Mapping[str, NDArray[Any]], ...]
    """The layers of each model in it."""
    schema: Schema
    run: int = 0


class Gate:
    """What a site lets in and out, by its study file, its key and its state.

    Parameters
    ----------
    config : the site's node-config
    """

    def __init__(self, config: NodeConfig) -> None:
        self.folder = SiteFolder(state_folder(config))
        self.folder.check_owner()
        self.study = read_study(config)
        self.key = PrivateKey.read(str(config.get("key") or ""))
        names = [name for name, member in self.study.sites.items() if member.key == self.key.public]
        if not names:
            raise InputError("key must be that of a site of the study, got another")
        self.name = names[0]

    def open(self, message: Message, context: Context, network: str | None) -> tuple[Question, Envelope]:
        """What was asked; RefusedError, and a line in the log, for anything that the study does not have."""
        about = describe_message(message, context)
        try:
            check_versions(self.study)
            if not message.has_content():
                raise EnvelopeError("nothing in it")
            sealed = from_records(message.content, LARGEST)
            about["bytes"] = len(sealed)
            envelope = Envelope.read(sealed)
            about["claims"] = one_line(envelope.head.sender, 60)
            envelope.verify(self.study.server)
            about["signed"] = self.study.server.fingerprint
            self._check_head(envelope.head, message, context)
            content = envelope.open(self.name, self.key)
            about["holds"] = describe(content)
            with self.folder.state(self.study.checksum) as state:
                if envelope.head.counter <= state.counter:
                    raise EnvelopeError("a message that is not newer than the last one")
                state.counter = envelope.head.counter
            kind = self._kind(message.metadata.message_type, content)
            about["kind"] = kind
            if len(envelope.head.recipients) > 1 and kind not in (FIT, ROWS):
                raise EnvelopeError("sealed for several sites")
            question = replace(self._question(kind, content, network), run=context.run_id)
            self._count(question, context.run_id)
        except (EnvelopeError, NotInStudyError, InputError, OSError) as error:
            self.folder.refuse(self.study.checksum, **about, reason=one_line(error))
            raise RefusedError from None
        except Exception as error:  # whatever somebody has sent
            self.folder.refuse(self.study.checksum, **about, reason=f"unreadable ({type(error).__name__})")
            raise RefusedError from None
        return question, envelope

    def close(
        self, question: Question, envelope: Envelope, content: RecordDict, problem: str = ""
    ) -> RecordDict:
        """Seal the answer for the server, and log what leaves; a problem is all that left."""
        asked = envelope.head
        head = Head(
            self.study.checksum,
            self.name,
            (SERVER,),
            asked.run,
            asked.node,
            asked.type,
            asked.counter,
            envelope.checksum,
        )
        sealed = seal(head, content, self.key, {SERVER: self.study.server})
        with self.folder.state(self.study.checksum) as state:
            answered = state.answered.get(question.kind, 0)
        self.folder.log(
            ANSWERED,
            claims=asked.sender,
            signed=self.study.server.fingerprint,
            run=asked.run,
            kind=question.kind,
            **describe_question(question),
            sent=describe(content),
            bytes=len(pack(content)),
            study=self.study.version,
            number=f"{answered} of {self.study.questions[question.kind]}",
            **({"reason": problem} if problem else {}),
        )
        return to_records(sealed)

    def _check_head(self, head: Head, message: Message, context: Context) -> None:
        if head.sender != SERVER:
            raise EnvelopeError("not from the server")
        if head.study != self.study.checksum:
            raise EnvelopeError(f"of another study ({head.study[:16]})")
        if self.name not in head.recipients:
            raise EnvelopeError("for another site")
        if (head.run, head.node) != (context.run_id, context.node_id):
            raise EnvelopeError("of another run or node")
        if head.type != message.metadata.message_type:
            raise EnvelopeError("a message of another type than it states")

    def _kind(self, message_type: str, content: RecordDict) -> str:
        config = content.get("config")
        if not isinstance(config, ConfigRecord):
            raise NotInStudyError("a message without a config")
        if message_type == MessageType.TRAIN:
            return TRAIN
        if message_type != MessageType.QUERY:
            raise NotInStudyError(f"a message of type '{one_line(message_type, 40)}'")
        if ASK in config:
            if config[ASK] not in (SCORES, HISTOGRAM, UNMASK):
                raise NotInStudyError(f"a question for '{one_line(config[ASK], 40)}'")
            return str(config[ASK])
        return ROWS if config.get("wants-rows") else FIT

    def _question(self, kind: str, content: RecordDict, network: str | None) -> Question:
        """The question, every part of it checked against the study."""
        from fairfate.flower.app.site import model_of  # which needs us

        config = dict(content["config"])
        study = self.study
        is_summed = study.limits.secure_sums and kind in SUMMED
        is_private = study.budget is not None
        known = (*_KEYS[kind], *(_SUM_KEYS if is_summed else ()), *((SPEC,) if is_private else ()))
        strange = [key for key in config if key not in known]
        if strange:
            raise NotInStudyError(f"unknown '{one_line(strange[0], 40)}'")
        if is_summed and not set(_SUM_KEYS) <= set(config):
            raise NotInStudyError("nothing of the sum that the answer is for")
        if is_private and (kind not in _PRIVATE_KINDS or config.get(SPEC) not in study.training.strategies):
            raise NotInStudyError("no strategy of the study, which noise is for")
        if kind == UNMASK:
            check_question(config, study)
        text = str(config[SCHEMA]) if SCHEMA in config else self.folder.read_schema(study.checksum)
        schema = study.check_schema(text)
        self._check_numbers(kind, config, len(schema.grouping))
        if kind == TRAIN:
            study.check_settings(config)
            self._check_strategy(config)
        groups = len(schema.grouping)
        if {TARGET, GUESSED, BINS, TABLE, SPLIT, PRICES} & set(config):
            self._check_tilt(config, groups)
        if kind == HISTOGRAM and (ROUND in config) != (PRICES in config):
            raise NotInStudyError("a number of a question without prices, or prices without it")
        records = {name: record for name, record in content.items() if name != "config"}
        if kind == SCORES:
            self._check_scored(_whole(config, ROUND, 1, study.training.rounds + 1), len(records))
        sent = 2 if {BINS, SPLIT} & set(config) else 0 if kind == TRAIN else len(records)
        names = _model_names(kind, groups if {PRICES, TABLE} & set(config) else sent)
        if set(records) != set(names):
            raise NotInStudyError("records that do not belong to this question")
        models: list[Mapping[str, NDArray[Any]]] = []
        if names:
            model = model_of(schema, study.training.hidden, network)
            models = [_layers(records[name], model, study.limits.max_weight) for name in names]
        self.folder.keep_schema(study.checksum, text)
        return Question(kind, config, tuple(models), schema)

    def _check_numbers(self, kind: str, config: Mapping[str, Any], groups: int) -> None:
        """Numbers that rows are chosen by."""
        study = self.study
        if "client" in config or kind == TRAIN:
            _whole(config, "client", 0, len(study.sites) - 1)
        if "groups" in config and config["groups"] != groups:
            raise NotInStudyError(f"{config['groups']!r} groups")
        if not isinstance(config.get("wants-rows", False), bool):
            raise NotInStudyError("wants-rows that is neither true nor false")
        if PART in config and config[PART] != HELD:
            raise NotInStudyError(f"part {config[PART]!r}")
        validation_source = parse_validation_source(study.training.validation_from)
        shares = [validation_source.share] if validation_source.at_clients else []
        if HELD_SHARE in config and config[HELD_SHARE] not in shares:
            raise NotInStudyError(f"{HELD_SHARE} {config[HELD_SHARE]!r}")
        if HELD_SEED in config and (not shares or config[HELD_SEED] not in study.training.seeds):
            raise NotInStudyError(f"{HELD_SEED} {config[HELD_SEED]!r}")
        if shares and kind in (TRAIN, SCORES, HISTOGRAM) and not {HELD_SHARE, HELD_SEED} <= set(config):
            raise NotInStudyError("no description of the rows to hold out")

    def _check_strategy(self, config: Mapping[str, Any]) -> None:
        """The round, the seed and the strategy's half at the site."""
        training, limits = self.study.training, self.study.limits
        if type(config.get("seed")) is not int or config["seed"] not in training.seeds:
            raise NotInStudyError(f"seed {config.get('seed')!r}")
        rounds = training.rounds
        if "num-rounds" in config:
            rounds = _whole(config, "num-rounds", 1, rounds)
        _whole(config, ROUND, 1, rounds)
        known = {parse_spec(text, training.metric).own.text for text in training.strategies}
        if "strategy" in config and config["strategy"] not in known:
            raise NotInStudyError(f"strategy {one_line(config['strategy'], 80)}")
        if LEARNING_RATE in config and config[LEARNING_RATE] != training.learning_rate:
            raise NotInStudyError(f"{LEARNING_RATE} {config[LEARNING_RATE]!r}")
        broadcast = config.get(BROADCAST, [])
        most = 8 * len(self.study.data.groups) + 8
        numbers = (
            isinstance(broadcast, list)
            and len(broadcast) <= most
            and all(isinstance(n, float) for n in broadcast)
        )
        if not numbers or not all(abs(number) <= limits.max_told for number in broadcast):
            raise NotInStudyError(f"'{BROADCAST}' is not at most {most} numbers within {limits.max_told:g}")

    def _check_tilt(self, config: Mapping[str, Any], groups: int) -> None:
        """What only a rule for everybody asks for: other models, and histograms of two models' scores."""
        training = self.study.training
        steps = [parse_spec(text, training.metric).step(TILT) for text in training.strategies]
        known = [asked_bins(step) for step in steps if step is not None]
        distilled = [asked_bins(step) for step in steps if step is not None and is_distilled(step)]
        targets = ([GROUP] if known else []) + ([DECISION] if distilled else [])
        if TARGET in config and (config[TARGET] not in targets or "strategy" in config):
            raise NotInStudyError(f"target {one_line(repr(config[TARGET]), 40)}")
        if BINS in config and (type(config[BINS]) is not int or config[BINS] not in known):
            raise NotInStudyError(f"bins {one_line(repr(config[BINS]), 40)}")
        if SPLIT in config and (config[SPLIT] is not True or not distilled or BINS in config):
            raise NotInStudyError(f"split {one_line(repr(config[SPLIT]), 40)}")
        if (TABLE in config) != (config.get(TARGET) == DECISION):
            raise NotInStudyError("a rule's table without its training, or that without a table")
        if TABLE in config and _rule_form(config[TABLE]) not in {(bins, groups) for bins in distilled}:
            raise NotInStudyError("a table that no rule of the study has")
        if GUESSED in config or (groups > 2 and config.get(TARGET) == GROUP):
            if config.get(TARGET) != GROUP or groups == 2:
                raise NotInStudyError("a guessed group where none is")
            _whole(config, GUESSED, 1, groups - 1)
        if BINS in config and groups > 2:
            raise NotInStudyError("a histogram of both scores with more than two groups")
        if PRICES in config:
            forms = {
                (family_name(family_of(str(s["metric"]))), asked_bins(s)) for s in steps if s is not None
            }
            _check_prices(config, groups, forms)

    def _check_scored(self, number: int, models: int) -> None:
        """How many models may be scored at once: those of a round, or the released one after the last."""
        validation_source = parse_validation_source(self.study.training.validation_from)
        sites = len(self.study.sites)
        most = {CROSS: sites + 1, SECURE: sites // validation_source.bucket + 1}.get(
            validation_source.mode, 1
        )
        in_round = number <= self.study.training.rounds and 2 <= models <= most
        if not in_round and models != 1:
            raise NotInStudyError(f"{models} models in round {number}")

    def _count(self, question: Question, run: int) -> None:
        """Count the question, before it is answered; NotInStudyError once there were enough."""
        kind, config, most = question.kind, question.config, self.study.questions[question.kind]
        with self.folder.state(self.study.checksum) as state:
            if state.answered.get(kind, 0) >= most:
                raise NotInStudyError(f"more than {most} questions of this kind")
            if kind == UNMASK:
                key = sum_key(run, str(config[QUESTION]), config)
                open_part(state.sums, state.opened, key, config, run, self.study)
            for name in {"client", "seed", HELD_SEED, SPEC} & set(config):
                if state.fixed.setdefault(f"{run}/{name}", config[name]) != config[name]:
                    raise NotInStudyError(f"another {name} than earlier in the run")
            if PRICES in config:
                scored = hashlib.sha256(_model_bytes(question.models)).hexdigest()
                if state.fixed.setdefault(f"{run}/{PRICES}", scored) != scored:
                    raise NotInStudyError("other models than earlier in the search")
            if TABLE in config:
                rule = hashlib.sha256(str(config[TABLE]).encode() + _model_bytes(question.models[1:]))
                if state.fixed.setdefault(f"{run}/{TABLE}", rule.hexdigest()) != rule.hexdigest():
                    raise NotInStudyError("another rule to learn than earlier in the run")
            if kind == TRAIN and self.study.limits.privacy:
                last = state.fixed.get(f"{run}/{ROUND}", 0)
                if config[ROUND] < int(last):
                    raise NotInStudyError("an earlier round than the last one, which would have other noise")
                state.fixed[f"{run}/{ROUND}"] = config[ROUND]
            if kind in (TRAIN, SCORES):
                target = f"/{config[TARGET]}{config.get(GUESSED, '')}" if TARGET in config else ""
                self._count_attempt(state, f"{run}/{kind}/{config[ROUND]}{target}", question)
            elif kind == HISTOGRAM:  # of the released model
                split = f"/{SPLIT}" if SPLIT in config else ""
                split += f"/{PRICES}/{config[ROUND]}" if PRICES in config else ""
                self._count_attempt(state, f"{run}/{kind}/{config.get(PART, '')}{split}", question)
            if self.study.limits.secure_sums and kind in SUMMED:
                content, key = content_checksum(config, question.models), sum_key(run, kind, config)
                begin(state.sums, state.opened, key, config, content, self.name, self.study)
            state.answered[kind] = state.answered.get(kind, 0) + 1

    def _count_attempt(self, state: State, number: str, question: Question) -> None:
        """A round may be repeated a few times, with the same models and settings."""
        digest = question_digest(question)
        tried, first = state.attempts.get(number, (0, digest))
        if first != digest:
            raise NotInStudyError("another model or setting in a repeated round")
        if tried >= self.study.limits.attempts:
            raise NotInStudyError(f"more than {self.study.limits.attempts} attempts at one round")
        state.attempts[number] = tried + 1, first

    def read_sum(self, question: Question) -> tuple[Transcript, Entry]:
        """What is summed, and what the site remembers of it."""
        kind = str(question.config[QUESTION]) if question.kind == UNMASK else question.kind
        key = sum_key(question.run, kind, question.config)
        with self.folder.state(self.study.checksum) as state:
            entry = dict(state.sums[key])
        return transcript_of(entry, key, question.run, self.study), entry

    def keep_membership(self, question: Question, *, is_member: bool) -> None:
        """Remember whether the site has given itself a weight, before its part of the sum leaves."""
        key = sum_key(question.run, question.kind, question.config)
        with self.folder.state(self.study.checksum) as state:
            state.sums[key]["member"] = is_member

    def check_file(self, checksum: str) -> bool:
        """Whether the site's file is what it was at the first answer of this version of the study."""
        with self.folder.state(self.study.checksum) as state:
            return state.file in ("", checksum)

    def keep_file(self, checksum: str) -> None:
        """Remember the site's file, by which a question was answered; InputError if it was another's turn."""
        with self.folder.state(self.study.checksum) as state:
            if state.file not in ("", checksum):
                raise InputError("another question has been answered by another file meanwhile")
            state.file = checksum


def question_digest(question: Question) -> str:
    """A checksum of what is asked, whoever else is and how often."""
    passing = (*_SUM_KEYS, SCHEMA)
    settings = [item for item in sorted(question.config.items()) if item[0] not in passing]
    return hashlib.sha256(repr(settings).encode() + _model_bytes(question.models)).hexdigest()


def _model_bytes(models: Sequence[Mapping[str, NDArray[Any]]]) -> bytes:
    """All numbers of some models."""
    return b"".join(
        np.ascontiguousarray(layers[name]).tobytes() for layers in models for name in sorted(layers)
    )


def _rule_form(text: object) -> tuple[int, int]:
    """The ranges of the rule in a text, and for how many groups it is; 0 for none."""
    try:
        rule = read_rule(text) if isinstance(text, str) and len(text) <= _MOST_TABLE else None
    except ValueError:
        rule = None
    if isinstance(rule, GroupTilt):
        return rule.bins, rule.prices.shape[1] + 1
    return (0, 0) if rule is None else (rule.bins, 2)


def _check_prices(config: Mapping[str, Any], groups: int, forms: set[tuple[str, int]]) -> None:
    """NotInStudyError for tilted scores that no search for several groups' prices asks for."""
    texts = config[PRICES]
    if not isinstance(texts, list) or not 1 <= len(texts) <= most_rules(groups) or groups == 2:
        raise NotInStudyError("prices that no search asks for")
    for text in texts:
        try:
            rule = GroupTilt.from_text(str(text)) if len(str(text)) <= _MOST_TABLE else None
        except ValueError:
            rule = None
        if rule is None or (rule.family, rule.bins) not in forms or rule.prices.shape[1] != groups - 1:
            raise NotInStudyError("a rule that no search of the study asks for")
    _whole(config, ROUND, 1, MOST_QUESTIONS)


def read_study(config: NodeConfig) -> Study:
    """The study that a site has pinned; InputError if it is another, or none."""
    path, pinned = str(config.get("study") or ""), str(config.get("study-sha256") or "")
    if not path or not pinned:
        raise InputError(
            "node-config must name study and study-sha256, got none: the study has not been signed off here"
            " (fairfate flower pin)"
        )
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"study must be a file, got '{path}' ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != pinned:
        raise InputError(
            f"study must have the checksum that study-sha256 has pinned, got another in '{path}'"
        )
    return Study.parse(content, f"study '{path}'")


def state_folder(config: NodeConfig) -> Path:
    """Where a site keeps its state and its log: ``state`` in the node-config, or beside its key.

    A key that was made to rotate another one leads to the same folder.
    """
    if config.get("state"):
        folder = Path(str(config["state"])).expanduser()
        if not folder.is_absolute():
            raise InputError(f"state must be a full path, got '{folder}'")
        return folder
    if not config.get("key"):
        raise InputError(
            "node-config must name study, study-sha256 and key, got no key: the study has not been signed off"
            " here (fairfate flower pin)"
        )
    key = Path(str(config["key"])).expanduser()
    if not key.is_absolute():
        raise InputError(f"key must be a full path, got '{key}'")
    name = re.sub("-study-[0-9]+$", "-study", key.stem)
    return key.with_name(f"{name}-state")


def check_versions(study: Study) -> None:
    """InputError unless fairfate and Flower are those of the study."""
    from flwr.supercore.version import package_version

    flower = ".".join(package_version.split(".")[:2])
    if (study.fairfate, study.flower) != (__version__, flower):
        raise InputError(
            f"versions must be those of the study (fairfate {study.fairfate}, Flower {study.flower}), got"
            f" fairfate {__version__}, Flower {flower}"
        )


def describe_message(message: Message, context: Context) -> dict[str, Any]:
    """Who claims to have sent a message of which kind, for the log."""
    return {
        "claims": f"node {message.metadata.src_node_id}",
        "run": context.run_id,
        "type": one_line(message.metadata.message_type, 40),
    }


def describe(content: RecordDict) -> dict[str, Any]:
    """What records hold, in a few words: names and sizes, no values."""
    summary: dict[str, Any] = {}
    for name in list(content)[:_MOST_NAMES]:
        record = content[name]
        if isinstance(record, ArrayRecord):
            parts: Any = f"{sum(math.prod(array.shape) for array in record.values())} numbers"
        else:
            parts = sorted(one_line(key, 40) for key in list(record)[:_MOST_NAMES])
        summary[one_line(name, 40)] = parts
    return summary


def describe_question(question: Question) -> dict[str, Any]:
    """What was asked, for the log."""
    config, about = question.config, {"asks": KINDS[question.kind]}
    keys = (ROUND, TARGET, GUESSED, "strategy", HELD_SHARE, PART, BINS, SPLIT)
    return {**about, **{key: config[key] for key in keys if key in config}, "models": len(question.models)}


def _model_names(kind: str, given: int) -> list[str]:
    numbered = [f"{MODEL}{number}" for number in range(given)]
    if kind == TRAIN:
        return ["arrays", *numbered]
    if kind == HISTOGRAM and given < 2:
        return ["arrays"]
    return numbered if kind in (SCORES, HISTOGRAM) else []


def _layers(record: object, model: Model, largest: float) -> dict[str, NDArray[Any]]:
    """A model's layers, of the right names, shapes and types and within bounds."""
    wanted = model.arrays(np.zeros(model.num_parameters, dtype=np.float32))
    if not isinstance(record, ArrayRecord) or set(record) != set(wanted):
        raise NotInStudyError("arrays of another model")
    arrays: dict[str, NDArray[Any]] = {}
    for name, like in wanted.items():
        values = record[name].numpy()
        if values.shape != like.shape or values.dtype != like.dtype:
            raise NotInStudyError(f"array '{name}' of another shape or type")
        if not (np.abs(values) <= largest).all():
            raise NotInStudyError(f"a weight beyond {largest:g} in array '{name}'")
        arrays[name] = values
    return arrays


def _whole(config: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise NotInStudyError(f"{key} {one_line(repr(value), 40)} instead of {low} to {high}")
    return value
