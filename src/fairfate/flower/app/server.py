"""The ready app at the server: its rows, the schema it agrees on with the sites, and its strategy."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fairfate.data import Schema, Table, widen_schema
from fairfate.engine.recorder import Trace
from fairfate.engine.secure_sums import SecureSums
from fairfate.errors import InputError, check, listing
from fairfate.federation.individual import IndividualRows
from fairfate.federation.split import held_out, pack
from fairfate.flower.app.gate import SCHEMA
from fairfate.flower.app.settings import NEEDS_FIXED, SITES, Settings, study_budget
from fairfate.flower.app.site import DESCRIBE, model_of
from fairfate.flower.clients import Cohorts
from fairfate.flower.logs import log, one_line
from fairfate.flower.messages import ASK, CLIENT, NAME, PROBLEM, receive
from fairfate.flower.replies import ReplyPolicy
from fairfate.flower.roster import Roster
from fairfate.flower.sealed_grid import SealedGrid
from fairfate.flower.sealing import PrivateKey
from fairfate.flower.strategy import FlowerStrategy
from fairfate.flower.study import NotInStudyError, Study
from fairfate.flower.validation import BuiltIn, built_in_arrays
from fairfate.models.model import Model
from fairfate.privacy.calibration import other_noise
from fairfate.privacy.releases import SUMS, releases_of, sensitivity
from fairfate.strategies import parse_spec

SERVER_KEY = "FAIRFATE_SERVER_KEY"
"""The environment variable that names the file with the server's private key."""
ATTEMPTS = 3
"""At a round, without a study that says how many."""
_MOST_STRATA = 4096
"""Numbers that may be added up, of which each has noise of its own."""
LONGEST = 1_000_000
"""Characters of a site's description."""


@dataclass(frozen=True, eq=False)
class ServerData:
    """What the server holds: the schema, and its rows in it."""

    schema: Schema
    table: Table
    model: Model
    validation: BuiltIn
    test: BuiltIn
    initial: ArrayRecord
    """The model at the start."""
    train_config: ConfigRecord
    """What sites need to train it."""

    @classmethod
    def load(cls, settings: Settings, schema: Schema | None = None) -> ServerData:
        """Read the server's files; the schema is theirs unless one is given."""
        schema, table = settings.load_server_files(schema)
        streams, model = settings.streams, model_of(schema, settings.hidden, settings.config.model)
        validation, test = held_out(table, streams)
        if settings.validation_source.rows is not None:
            validation = streams.few(validation, settings.validation_source.rows)
        for name, rows in (("validation", validation), ("test", test)):
            check(len(rows) > 0, f"the server's files must leave a {name} row", f"{len(table)} rows in all")
        packed = pack(table, validation, schema.encoder)
        individual = IndividualRows(table, validation, packed, schema.encoder)
        layers = built_in_arrays(model.initial(streams.weights(model.num_parameters)), model)
        return cls(
            schema=schema,
            table=table,
            model=model,
            validation=BuiltIn(packed, model, schema.grouping, individual),
            test=BuiltIn(pack(table, test, schema.encoder), model, schema.grouping),
            initial=ArrayRecord({name: Array(layer) for name, layer in layers.items()}),
            train_config=ConfigRecord({"seed": settings.seed, **settings.sgd}),
        )


def ask_for_schema(grid: Grid, settings: Settings) -> Schema:
    """Ask every site of a simulation for its columns' sums and category names; a schema that covers them."""
    schema = settings.draft_schema()
    clients = Roster(max_wait=settings.max_wait).clients(grid, settings.min_sites)
    question = RecordDict({"config": ConfigRecord({ASK: DESCRIBE, SCHEMA: schema.to_json()})})
    messages = [Message(question, client.node, MessageType.QUERY) for client in clients]
    descriptions: dict[str, Any] = {}
    for reply in receive(grid, messages, settings.timeout):
        name, described, problem = _description(reply)
        if problem:
            log(WARNING, "%s is not included in the schema: %s", name, problem)
        else:
            descriptions[f"{name} (node {reply.metadata.src_node_id})"] = described
    schema, refused = widen_schema(schema, descriptions)
    for name, reason in refused.items():
        log(WARNING, "%s is not included in the schema: %s", name, one_line(reason))
    log(INFO, "The schema covers the columns of %d sites", len(descriptions) - len(refused))
    return schema


def _description(reply: Message) -> tuple[str, Any, str]:
    """Who describes its columns, how, and what is wrong with it, if anything is."""
    name = f"node {reply.metadata.src_node_id}"
    if reply.has_error() or not reply.has_content():
        return name, None, one_line(reply.error.reason) if reply.has_error() else "an empty answer"
    about = reply.content.config_records.get(CLIENT, ConfigRecord())
    name = one_line(about.get(NAME) or name, 60)
    if DESCRIBE not in about:
        return name, None, one_line(about.get(PROBLEM, "it did not describe its columns"))
    text = str(about[DESCRIBE])
    try:
        if len(text) > LONGEST:
            raise ValueError("too long")
        return name, json.loads(text), ""
    except (ValueError, RecursionError):
        return name, None, "its description of its columns cannot be read"


def _sums(settings: Settings, study: Study) -> SecureSums:
    """The rule by which sites' answers are summed."""
    from fairfate.privacy.masked_sums import threshold  # needs pycryptodome

    least = threshold(len(study.sites), study.limits.min_sum)
    return SecureSums(study.limits.min_sum, settings.config.min_cell, least)


def open_study(settings: Settings) -> tuple[Settings, Study | None]:
    """The study that the sites have signed off, and the settings under it.

    The settings must be those of the study: sites would refuse others. In a simulation there is none, and
    nothing is sealed.
    """
    if not settings.study:
        check(
            not settings.config.secure_sums,
            "secure-sums must be left out without a study, whose keys masks are made from (fairfate run"
            " --secure-sums gives the same numbers)",
            settings.config.secure_sums,
        )
        return settings, None
    study = Study.read(settings.study)
    sums = settings.config.secure_sums, settings.config.min_sum
    agreed = study.limits.secure_sums, study.limits.min_sum
    check(sums == agreed, f"secure-sums and min-sum must be the study's, {agreed}", sums)
    check(settings.schema != SITES, NEEDS_FIXED, f"'{SITES}'")
    seed, rounds = settings.seed, settings.training.rounds
    if not study.has_run(settings.strategy, seed, rounds):
        raise InputError(
            f"run must be one of study '{settings.study}', got {settings.strategy} with seed {seed} and"
            f" {rounds} rounds; the study has {listing(study.training.strategies)}, seeds"
            f" {listing(study.training.seeds)} and up to {study.training.rounds} rounds"
        )
    check(
        settings.min_sites <= len(study.sites),
        f"min-sites must be at most the {len(study.sites)} sites of the study",
        settings.min_sites,
    )
    try:
        study.check_settings(settings.sgd)
    except NotInStudyError as error:
        raise InputError(f"run must be one of study '{settings.study}', got {error}") from None
    privacy = study_budget(settings)
    check(privacy == study.limits.privacy, f"privacy must be the study's, '{study.limits.privacy}'", privacy)
    settings = replace(settings, config=replace(settings.config, privacy=privacy or None))
    least = study.limits.min_cell
    check(
        settings.config.min_cell in (0, least),
        f"min-cell must be the study's {least}",
        settings.config.min_cell,
    )
    return replace(settings, config=replace(settings.config, min_cell=least)), study


def seal_messages(grid: Grid, study: Study | None, run: int) -> Grid:
    """The grid, which seals every message if there is a study; without one, only a simulation's.

    The server's key is in the file that the environment variable ``FAIRFATE_SERVER_KEY`` of the SuperLink's
    own process names: neither the app nor the run config nor Flower's database has it.
    """
    path = os.environ.get(SERVER_KEY)
    if study is None:
        _check_simulated(grid, path)
        return grid
    if not path:
        raise InputError(
            f"{SERVER_KEY} must name the server's private key where the SuperLink is started, got none"
        )
    key = PrivateKey.read(path)
    if key.public != study.server:
        raise InputError(f"{SERVER_KEY} must name the key of the study's server, got another in '{path}'")
    return SealedGrid(grid, study, key, run)


def _check_simulated(grid: Grid, key: str | None) -> None:
    """InputError unless the nodes are in this very process: nothing would be sealed, and anybody believed."""
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid  # Flower's own, of its simulations

    reason = f"{SERVER_KEY} is set" if key else "its nodes are on other machines"
    if key or not isinstance(grid, InMemoryGrid):
        raise InputError(
            f"study must be given in the run config unless the run is a simulation, got none ({reason})"
        )
    log(INFO, "No study: this is a simulation")


def most_noise(settings: Settings) -> float:
    """How far counts and sums may be from what is true: honest noise is that far once in 10^20 times."""
    if settings.budget is None:
        return 0.0
    spec = parse_spec(settings.strategy, settings.config.metric)
    releases, budget = releases_of(spec, settings.setup), settings.budget
    times = releases.times(budget.participations or settings.training.rounds)
    return 10 * sensitivity(SUMS, budget) * (other_noise(budget, times) or 0.0) * math.sqrt(_MOST_STRATA)


def make_strategy(
    settings: Settings,
    data: ServerData,
    checkpoint: Path | None,
    on_record: Callable[[int, Sequence[Trace]], None] = lambda t, traces: None,
    study: Study | None = None,
) -> FlowerStrategy:
    """The strategy that the settings name, for the built-in model or the app's own network."""
    limits = None if study is None else study.limits
    cohorts = Cohorts(
        per_round=settings.config.per_round,
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_available_nodes=settings.min_sites,
        min_replies=settings.min_replies or settings.min_sites,
        attempts=ATTEMPTS if limits is None else limits.attempts,
        max_wait=settings.max_wait,
        ask_clients=True,
        query_config={SCHEMA: data.schema.to_json()},
    )
    replies = ReplyPolicy(
        max_norm=settings.max_norm or None,
        max_examples=settings.max_examples or None,
        max_weight=None if limits is None else limits.max_weight,
        min_cell=settings.config.min_cell,
        max_told=None if limits is None else limits.max_told,
        noise=most_noise(settings),
        row_ranges={} if study is None else {name: site.rows for name, site in study.sites.items()},
        averaged=(),  # everything is in the strategy's vector, as in the simulator
    )
    return FlowerStrategy(
        settings.strategy,
        num_rounds=settings.training.rounds,
        metric=settings.config.metric,
        protocol=settings.config.protocol,
        seed=settings.seed,
        validation=None if settings.validation_source.at_clients else data.validation,
        validation_from=str(settings.validation_source)
        if settings.validation_source.at_clients or settings.validation_source.is_local
        else "server",
        test=data.test,
        learning_rate=settings.training.learning_rate,
        cohorts=cohorts,
        replies=replies,
        checkpoint=checkpoint,
        study="" if study is None else study.checksum,
        secure_sums=_sums(settings, study) if study is not None and settings.config.secure_sums else None,
        privacy=settings.budget,
        on_record=on_record,
    )
