"""Makes a study file from an app and the public keys of those who take part, or amends one."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.data import Reading, read_frame
from fairfate.data.read import stem
from fairfate.errors import InputError, check
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.files import write_bytes
from fairfate.flower.app.check import read_node
from fairfate.flower.app.guard import app_checksum
from fairfate.flower.app.node import check_keys, data_file
from fairfate.flower.app.settings import Settings, schema_of, settings_of
from fairfate.flower.keys import PrivateKey, PublicKey
from fairfate.flower.study import (
    DESCRIBE,
    FIT,
    HISTOGRAM,
    ROWS,
    SCORES,
    SERVER,
    TRAIN,
    Limits,
    Member,
    Study,
    Training,
    columns_of,
    grouping_checksum,
)
from fairfate.strategies import THRESHOLDS, Need, Setup, parse_spec

STEP = 50
"""Of the range of rows in a site's public file, so that it does not say how many there are."""
MIN_ROWS, MAX_WEIGHT, MAX_TOLD, ATTEMPTS, RUNS = 50, 100.0, 100.0, 3, 5
"""Defaults of a study: a model of ten units on a hundred standardised columns has weights below 10."""


@dataclass(frozen=True)
class Party:
    """Whoever takes part, as its public file says."""

    name: str
    key: PublicKey
    rows: tuple[int, int] | None = None
    """Of a site: how many rows it trains on, at least and at most."""


def make_key(name: str, folder: Path, node: Path | None = None) -> tuple[Path, Path]:
    """Make a party's keys; returns its private and its public file.

    Parameters
    ----------
    name : ``server``, or the site's
    folder : where both files go; neither may exist
    node : the site's node-config: its rows are counted, and the public file says so many, roughly
    """
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 64:
        raise InputError(f"name must be letters, digits, dots, hyphens and underscores, got '{name}'")
    if (node is None) != (name == SERVER):
        raise InputError(f"node must be given for a site, and not for the server, got {node or 'none'}")
    private, public = folder / f"{name}-study.key", folder / f"{name}-study.pub"
    check(not public.exists(), "public key must be a new file", f"'{public}', which exists")
    lines = {"name": name}
    rows = None if node is None else _count(node)
    key = PrivateKey.create()
    lines |= {"sign": key.public.sign, "seal": key.public.seal}
    text = "".join(f"{word} = {json.dumps(value, ensure_ascii=False)}\n" for word, value in lines.items())
    if rows is not None:
        about = rows * (900 + secrets.randbelow(201)) // 1000  # the bounds tell of this number only
        low, high = about // 2 // STEP * STEP, math.ceil(1.3 * about / STEP) * STEP
        text += f"rows = [{low}, {high}]  # it trains on, at least and at most\n"
    key.write(private)
    write_bytes(public, text.encode())
    return private, public


def _count(node: Path) -> int:
    config = read_node(node)
    check_keys(config)
    how = (str(config[key]) if config.get(key) else None for key in ("sep", "decimal", "encoding"))
    return len(read_frame(data_file(config), Reading(*how)))


def site_name(node: Path) -> str:
    """What a site's node-config calls it."""
    config = read_node(node)
    return str(config.get("name") or stem(data_file(config)))


def read_party(path: Path) -> Party:
    """A public file that `make_key` has written."""
    try:
        about = tomllib.loads(path.read_text("utf-8"))
        rows = about.get("rows")
        span = None if rows is None else (int(rows[0]), int(rows[1]))
        key = PublicKey(str(about["sign"]), str(about["seal"]))
        bytes.fromhex(key.sign + key.seal)
        return Party(str(about["name"]), key, span)
    except OSError as error:
        raise InputError(f"public key must be a file, got '{path}' ({error.strerror})") from None
    except (ValueError, LookupError, TypeError) as error:
        raise InputError(
            f"public key must be a file that fairfate flower key has written, got '{path}' ({error})"
        ) from None


def parse_changes(text: str) -> dict[str, Any]:
    """Changes to a run config, as ``flwr run -c`` reads them."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args([text] if text else None))
    except (ValueError, OSError, ClickException):
        example = "rounds=5 strategy='fedavg'"
        raise InputError(f'run-config must be like "{example}", got {text!r}') from None


def make_study(
    app: Path,
    parties: Sequence[Party],
    *,
    changes: Mapping[str, Any] | None = None,
    strategies: Sequence[str] = (),
    seeds: Sequence[int] = (),
    runs: int = RUNS,
    min_cell: int = MIN_CELL,
    min_rows: int = MIN_ROWS,
    max_weight: float = MAX_WEIGHT,
    amends: Study | None = None,
    without: Sequence[str] = (),
) -> Study:
    """The study of an app.

    Parameters
    ----------
    app : the app's folder
    parties : the server and all sites; those that an amended study has need not be given again
    changes : to the run config, as ``flwr run -c`` makes them
    strategies, seeds : that may be run, beside the run config's own
    runs : how many runs the sites' questions suffice for
    min_cell, min_rows, max_weight : see `Limits`
    amends : the study that this one takes the place of
    without : names of its sites that take part no longer
    """
    settings = settings_of(app, changes)
    schema, is_fixed = schema_of(settings)
    check(runs >= 1, "runs must be >= 1", runs)
    check(min_cell >= 0, "min-cell must be >= 0", min_cell)
    check(min_rows >= 1, "min-rows must be >= 1", min_rows)
    server, sites = _parties(parties, amends, without)
    metric = settings.config.metric
    texts = [settings.strategy, *(parse_spec(text, metric, guard=True).text for text in strategies)]
    training = settings.training
    from flwr.supercore.version import package_version

    study = Study(
        name=settings.name,
        version=1 if amends is None else amends.version + 1,
        previous="" if amends is None else amends.checksum,
        fairfate=__version__,
        flower=".".join(package_version.split(".")[:2]),
        app=app_checksum(app),
        schema=hashlib.sha256(schema.to_json().encode()).hexdigest(),
        schema_from="fixed" if is_fixed else "sites",
        target=schema.target,
        labels=schema.labels,
        sensitive=schema.sensitive,
        groups=schema.grouping.names,
        grouping=grouping_checksum(schema),
        bands={name: tuple(cuts) for name, cuts in schema.bands.items()},
        columns=columns_of(schema),
        training=Training(
            strategies=tuple(dict.fromkeys(texts)),
            metric=metric,
            protocol=settings.config.protocol,
            seeds=tuple(dict.fromkeys([settings.seed, *seeds])),
            rounds=training.rounds,
            hidden=str(settings.config.hidden),
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=float(training.learning_rate),
            validation_from=str(settings.holders),
        ),
        limits=Limits(min_cell, min_rows, float(max_weight), MAX_TOLD, ATTEMPTS),
        questions=_questions(settings, texts, len(schema.grouping), runs, is_fixed),
        server=server,
        sites=dict(sorted(sites.items())),
    )
    return Study.parse(study.text().encode())


def _parties(
    parties: Sequence[Party], amends: Study | None, without: Sequence[str]
) -> tuple[PublicKey, dict[str, Member]]:
    server = None if amends is None else amends.server
    sites = {} if amends is None else dict(amends.sites)
    for name in without:
        check(name in sites, "without must name a site of the study", f"'{name}'")
        del sites[name]
    for party in parties:
        if party.name == SERVER:
            server = party.key
        elif party.rows is None:
            raise InputError(f"public key of a site must say its rows, got none for '{party.name}'")
        else:
            sites[party.name] = Member(party.key, party.rows)
    if server is None:
        raise InputError("a study must have the server's public key, got none")
    check(len(sites) >= 2, "a study must have at least two sites", len(sites))
    keys = [member.key.sign for member in sites.values()]
    check(len({*keys, server.sign}) == len(keys) + 1, "every party must have a key of its own", "one twice")
    return server, sites


def _questions(
    settings: Settings, strategies: Sequence[str], groups: int, runs: int, is_fixed: bool
) -> dict[str, int]:
    """How many questions of each kind that many runs need, with some to spare for repeated rounds."""
    rounds, at_clients = settings.training.rounds, settings.holders.at_clients
    specs = [parse_spec(text, settings.config.metric) for text in strategies]
    needs = Need.NOTHING
    for spec in specs:
        needs |= spec.build(Setup(rounds, learning_rate=settings.training.learning_rate)).needs
    steps = [step for spec in specs if (step := spec.step(THRESHOLDS)) is not None]
    asks_histogram = bool(steps) and (at_clients or any(step["from"] == "clients" for step in steps))
    spare = max(5, rounds // 5)
    return {
        FIT: 20 * runs,
        DESCRIBE: 0 if is_fixed else 2 * runs,
        ROWS: 5 * runs if needs & (Need.ROWS | Need.ALL_ROWS) else 0,
        TRAIN: runs * rounds + spare,
        SCORES: runs * (2 * rounds + 1) + spare if at_clients else 0,
        HISTOGRAM: 2 * runs if asks_histogram else 0,
    }


def changes_from(before: Study, after: Study) -> list[str]:
    """What an amendment changes, in lines."""
    old, new = (replace(study, checksum="").text().splitlines() for study in (before, after))
    return [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]
