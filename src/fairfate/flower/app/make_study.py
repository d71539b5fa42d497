"""Makes a study file from an app and the public keys of those who take part, or amends one."""

from __future__ import annotations

import json
import math
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairfate._version import __version__
from fairfate.data import read_frame
from fairfate.engine.rules import MOST_TESTS
from fairfate.errors import InputError, check
from fairfate.experiments.prepare import check_secure_sums
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.fairness.tilt_groups import MOST_QUESTIONS
from fairfate.federation.validation_source import PUBLIC
from fairfate.flower.app.guard import app_checksum
from fairfate.flower.app.node import check_keys, data_file, name_of, read_node, reading_of
from fairfate.flower.app.settings import NEEDS_FIXED, SITES, Settings, schema_of, settings_of, study_budget
from fairfate.flower.sealing import PrivateKey, PublicKey
from fairfate.flower.study import (
    FIT,
    HISTOGRAM,
    ROWS,
    SCORES,
    SERVER,
    TRAIN,
    UNMASK,
    Data,
    Limits,
    Member,
    NotInStudyError,
    Study,
    Training,
    check_name,
    check_parties,
    columns_of,
)
from fairfate.privacy.releases import releases_of
from fairfate.storage import sha256_of, write_bytes
from fairfate.strategies import TILT, Need, Setup, Step, parse_spec
from fairfate.strategies.steps import asks_clients, is_distilled

STEP = 50
"""Of the range of rows in a site's public file, so that it does not say how many there are."""
MIN_ROWS, MAX_WEIGHT, MAX_TOLD, ATTEMPTS, RUNS = 50, 10.0, 100.0, 3, 5
"""Defaults of a study: a model of ten units on a hundred standardised columns has weights below 10."""
WIDEST = 4
"""Times the lower bound that a site's range of rows may end at, and some for sites of few rows."""


@dataclass(frozen=True)
class Party:
    """Whoever takes part, as its public file says."""

    name: str
    key: PublicKey
    rows: tuple[int, int] | None = None
    """Of a site: how many rows it trains on, at least and at most."""


def make_key(name: str, folder: Path, node: Path | None = None, *, rotate: bool = False) -> tuple[Path, Path]:
    """Make a party's keys; returns its private and its public file.

    Parameters
    ----------
    name : ``server``, or the site's
    folder : where both files go; neither may exist
    node : the site's node-config: its rows are counted, and the public file says so many, roughly
    rotate : make new ones beside those that exist, which are needed until the study is amended
    """
    check_name(name)
    if (node is None) != (name == SERVER):
        raise InputError(f"node must be given for a site, and not for the server, got {node or 'none'}")
    number = 1
    while rotate and any((folder / _key_file(name, number, kind)).exists() for kind in ("key", "pub")):
        number += 1
    private, public = (folder / _key_file(name, number, kind) for kind in ("key", "pub"))
    if public.exists():
        raise InputError(
            f"public key must be a new file, got '{public}', which exists (--rotate makes one beside it)"
        )
    check(folder.is_dir(), "out must be a folder", f"'{folder}'")
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


def _key_file(name: str, number: int, kind: str) -> str:
    return f"{name}-study{'' if number == 1 else f'-{number}'}.{kind}"


def _count(node: Path) -> int:
    config = read_node(node)
    check_keys(config)
    return len(read_frame(data_file(config), reading_of(config)))


def site_name(node: Path) -> str:
    """What a site's node-config calls it."""
    return name_of(read_node(node))


def read_party(path: Path) -> Party:
    """A public file that `make_key` has written."""
    try:
        about = tomllib.loads(path.read_text("utf-8"))
        rows = about.get("rows")
        if rows is not None and [type(row) for row in rows] != [int, int]:
            raise ValueError("rows that are not two whole numbers")
        span = None if rows is None else (rows[0], rows[1])
        party = Party(str(about["name"]), PublicKey(str(about["sign"]), str(about["seal"])), span)
        bytes.fromhex(party.key.sign)
        party.key.wrap(bytes(32), b"")  # some keys cannot be sealed for
    except OSError as error:
        raise InputError(f"public key must be a file, got '{path}' ({error.strerror})") from None
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(
            f"public key must be a file that fairfate flower key has written, got '{path}' ({error})"
        ) from None
    _check_party(party)
    return party


def _check_party(party: Party) -> None:
    """InputError for what `make_key` never writes: somebody else may have written the file."""
    check_name(party.name)
    if (party.rows is None) != (party.name == SERVER):
        raise InputError(
            f"public key must say the rows of a site, and none of the server, got {party.rows} for"
            f" '{party.name}'"
        )
    low, high = party.rows or (0, 0)
    most = WIDEST * low + WIDEST * STEP
    check(0 <= low <= high <= most, f"rows of '{party.name}' must end at {most} at most", f"{low} to {high}")


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
    runs: int | None = None,
    min_cell: int | None = None,
    min_rows: int | None = None,
    max_weight: float | None = None,
    amends: Study | None = None,
    without: Sequence[str] = (),
) -> Study:
    """The study of an app.

    One that amends another has its limits, training and questions, but for those that are given anew.

    Parameters
    ----------
    app : the app's folder
    parties : the server and all sites; those that an amended study has need not be given again
    changes : to the run config, as ``flwr run -c`` makes them
    strategies, seeds : that may be run, beside the run config's own and those of an amended study
    runs : how many runs the sites' questions suffice for (default: 5)
    min_cell, min_rows, max_weight : see `Limits`
    amends : the study that this one takes the place of
    without : names of its sites that take part no longer
    """
    given = dict(changes or {})
    settings = settings_of(app, {**_run_config(amends), **given})
    check(settings.schema != SITES, NEEDS_FIXED, f"'{SITES}'")
    schema, _ = schema_of(settings)
    limits = replace(_limits(amends, min_cell, min_rows, max_weight), **_sums(settings))
    limits = _private_limits(limits, settings, strategies, min_cell)
    server, sites = _parties(parties, amends, without)
    if limits.secure_sums:
        _check_sizes(settings, limits, len(sites))
        for text in (settings.strategy, *strategies):
            spec = parse_spec(text, settings.config.metric, guard=True)
            setup = Setup(settings.training.rounds, settings.config.protocol == "published")
            check_secure_sums(spec, spec.build(setup), settings.validation_source)
    metric = settings.config.metric
    texts = [settings.strategy, *(parse_spec(text, metric, guard=True).text for text in strategies)]
    numbers = [settings.seed, *seeds]
    if amends is not None:
        texts += () if "strategy" in given else amends.training.strategies
        numbers += () if "seed" in given else amends.training.seeds
    training = settings.training
    from flwr.supercore.version import package_version

    study = Study(
        name=settings.name,
        version=1 if amends is None else amends.version + 1,
        previous="" if amends is None else amends.checksum,
        fairfate=__version__,
        flower=".".join(package_version.split(".")[:2]),
        app=app_checksum(app),
        data=Data.from_schema(schema),
        columns=columns_of(schema),
        training=Training(
            strategies=tuple(dict.fromkeys(texts)),
            metric=metric,
            protocol=settings.config.protocol,
            seeds=tuple(dict.fromkeys(numbers)),
            rounds=training.rounds,
            hidden=settings.hidden,
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=float(training.learning_rate),
            l2=float(training.l2),
            validation_from=str(settings.validation_source),
        ),
        limits=limits,
        questions=_questions(settings, texts, runs, amends, len(schema.grouping)),
        server=server,
        sites=dict(sorted(sites.items())),
    )
    study = Study.parse(study.text().encode())
    try:
        study.check_schema(schema.to_json())
    except NotInStudyError as error:
        raise InputError(f"schema must be one that a study can have, got {error}") from None
    return study


def _check_sizes(settings: Settings, limits: Limits, sites: int) -> None:
    """InputError where a round would have fewer sites than a sum must have."""
    from fairfate.privacy.masked_sums import threshold  # needs pycryptodome

    check(sites >= limits.min_sum, "a study must have min-sum sites with secure-sums", sites)
    least, per_round = threshold(sites, limits.min_sum), settings.config.per_round
    check(
        per_round is None or per_round >= least,
        f"per-round must be 0, or at least the {least} of {sites} sites that a secure sum is over",
        per_round,
    )


def _run_config(amends: Study | None) -> dict[str, Any]:
    """What an amended study says of training, as a run config says it."""
    if amends is None:
        return {}
    training = {name.replace("_", "-"): value for name, value in vars(amends.training).items()}
    limits = amends.limits
    training |= {"secure-sums": limits.secure_sums, "min-sum": limits.min_sum, "privacy": limits.privacy}
    return {"strategy": training.pop("strategies")[0], "seed": training.pop("seeds")[0], **training}


def _limits(
    amends: Study | None, min_cell: int | None, min_rows: int | None, max_weight: float | None
) -> Limits:
    """Those of an amended study, or the defaults, but for what is given."""
    usual = Limits(MIN_CELL, MIN_ROWS, MAX_WEIGHT, MAX_TOLD, ATTEMPTS, False, 3, "", "")
    known = usual if amends is None else amends.limits
    limits = replace(
        known,
        min_cell=known.min_cell if min_cell is None else min_cell,
        min_rows=known.min_rows if min_rows is None else min_rows,
        max_weight=known.max_weight if max_weight is None else float(max_weight),
    )
    check(limits.min_cell >= 0, "min-cell must be >= 0", limits.min_cell)
    check(limits.min_rows >= 1, "min-rows must be >= 1", limits.min_rows)
    check(0 < limits.max_weight < math.inf, "max-weight must be > 0", limits.max_weight)
    return limits


def _private_limits(
    limits: Limits, settings: Settings, strategies: Sequence[str], min_cell: int | None
) -> Limits:
    """What the study says of differential privacy, under which no count is hidden by what it truly is."""
    privacy = study_budget(settings)
    if not privacy:
        return replace(limits, privacy="")
    check(not min_cell, "min-cell must be left out with privacy, whose noise hides small counts", min_cell)
    for text in strategies:
        releases_of(parse_spec(text, settings.config.metric, guard=True), settings.setup)
    return replace(limits, privacy=privacy, min_cell=0)


def _sums(settings: Settings) -> dict[str, Any]:
    """What the study says of secure sums: as the run config has them."""
    config, public = settings.config, ""
    if settings.validation_source.mode == PUBLIC:
        public = sha256_of(Path(str(config.validation)))
    return {"secure_sums": config.secure_sums, "min_sum": config.min_sum, "public": public}


def _parties(
    parties: Sequence[Party], amends: Study | None, without: Sequence[str]
) -> tuple[PublicKey, dict[str, Member]]:
    server = None if amends is None else amends.server
    sites = {} if amends is None else dict(amends.sites)
    for name in without:
        check(name in sites, "without must name a site of the study", f"'{name}'")
        del sites[name]
    names = [party.name for party in parties]
    for party in parties:
        check(names.count(party.name) == 1, "party must name everybody once", f"'{party.name}' twice")
        if party.rows is None:
            server = party.key
        else:
            sites[party.name] = Member(party.key, party.rows)
    if server is None:
        raise InputError("a study must have the server's public key, got none")
    check(len(sites) >= 2, "a study must have at least two sites", len(sites))
    check_parties(server, sites)
    return server, sites


def _questions(
    settings: Settings, strategies: Sequence[str], runs: int | None, amends: Study | None, groups: int
) -> dict[str, int]:
    """How many of each kind so many runs need; an amended study's own, unless the number of runs is given."""
    check(runs is None or runs >= 1, "runs must be >= 1", runs)
    if amends is None or runs is not None:
        return _count_questions(settings, strategies, runs or RUNS, groups)
    needed = _count_questions(settings, strategies, 1, groups)
    for kind, number in needed.items():
        if number > amends.questions[kind]:
            raise InputError(
                f"runs must be given: one run needs {number} questions of the kind '{kind}', and the amended"
                f" study has {amends.questions[kind]}"
            )
    return {kind: number if needed[kind] else 0 for kind, number in amends.questions.items()}


def _count_questions(settings: Settings, strategies: Sequence[str], runs: int, groups: int) -> dict[str, int]:
    """How many questions of each kind that many runs need, with some to spare for repeated rounds."""
    rounds, at_clients = settings.training.rounds, settings.validation_source.at_clients
    specs = [parse_spec(text, settings.config.metric) for text in strategies]
    needs: set[Any] = set()
    for spec in specs:
        needs |= spec.build(Setup(rounds, learning_rate=settings.training.learning_rate)).needs
    steps = [step for spec in specs if (step := spec.rule) is not None]
    asks_histogram = bool(steps) and (at_clients or any(asks_clients(step) for step in steps))
    spare = max(5, rounds if settings.config.secure_sums else rounds // 5)  # who drops out repeats a round
    asked = {
        TRAIN: runs * rounds * max([1, *(_models_trained(step, groups) for step in steps)]) + spare,
        SCORES: runs * (rounds + 1) + spare if at_clients else 0,
        HISTOGRAM: max(_histograms(step, groups) for step in steps) * runs if asks_histogram else 0,
    }
    parts = 2 if settings.validation_source.is_local else 1  # of a sum over what sites have trained
    opened = parts * asked[TRAIN] + asked[SCORES] + asked[HISTOGRAM]
    return {
        FIT: 20 * runs,
        ROWS: 5 * runs if needs & {Need.ROWS, Need.ALL_ROWS} else 0,
        **asked,
        UNMASK: opened if settings.config.secure_sums else 0,
    }


def _models_trained(step: Step, groups: int) -> int:
    """How many models a run with a rule trains: the label's, for +tilt the groups', and a plain network."""
    return 1 + (groups - 1 if step.name == TILT else 0) + is_distilled(step)


def _histograms(step: Step, groups: int) -> int:
    """How many histograms a run with a rule asks for: of training rows, and of rows held out."""
    searched = step.name == TILT and groups > 2
    tests = MOST_TESTS if searched and step.get("bound") else 1
    return (MOST_QUESTIONS if searched else 1) + tests + (2 if is_distilled(step) else 0)


def list_parties(study: Study) -> list[str]:
    """Who takes part, for the person who has made the study to compare with what each party says."""
    sites = [
        f"{name}: key {member.key.fingerprint}, {member.rows[0]} to {member.rows[1]} rows"
        for name, member in study.sites.items()
    ]
    return [f"{SERVER}: key {study.server.fingerprint}", *sites]


def changes_from(before: Study, after: Study) -> list[str]:
    """What an amendment changes, in lines."""
    keys = [(SERVER, before.server, after.server)]
    keys += [
        (name, before.sites[name].key, member.key)
        for name, member in after.sites.items()
        if name in before.sites
    ]
    replaced = [
        f"{name}: key replaced: {first.fingerprint} -> {second.fingerprint}"
        for name, first, second in keys
        if first != second
    ]
    old, new = (_by_section(study.text()) for study in (before, after))
    removed, added = (
        [line for line in lines if line not in other] for lines, other in ((old, new), (new, old))
    )
    return [*replaced, *(f"- {line}" for line in removed), *(f"+ {line}" for line in added)]


def _by_section(text: str) -> list[str]:
    """The lines of a study, each behind the name of its section: two sites may have the same range."""
    section, lines = "", []
    for line in text.splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#"):
            lines.append(f"{section} {line}")
    return lines
