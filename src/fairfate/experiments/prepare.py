"""Checks of data and options before anything is trained or written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.data import AUTO, ENCODINGS, ORDINAL, Schema, Table, load
from fairfate.engine.private import participations_of
from fairfate.errors import InputError, check, listing
from fairfate.experiments.config import Config
from fairfate.experiments.plan import Plan, resolve
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.fairness.metrics import CellRows
from fairfate.fairness.objective import bind_individual, check_defined
from fairfate.federation.individual import check_measurable
from fairfate.federation.split import NO_ROWS, split_rows
from fairfate.federation.validation_source import (
    AT_SERVER,
    CLIENTS,
    OWN,
    PUBLIC,
    ValidationSource,
    describe_sample,
)
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import Exposure, calibrate, check_sizes
from fairfate.privacy.fixed_point import MOST_CLIENTS
from fairfate.privacy.releases import Releases, releases_of
from fairfate.strategies import THRESHOLDS, Need, Needs, Setup, Spec, Strategy
from fairfate.strategies.steps import CLIP, KRUM, MEDIAN, TILT, TRIMMED
from fairfate.strategies.strategy import ON_VALIDATION


def load_table(config: Config) -> Table:
    """The table of a config."""
    check(config.encode in ENCODINGS, f"encode must be one of {'|'.join(ENCODINGS)}", f"'{config.encode}'")
    return load(
        config.data,
        data_dir=config.data_dir,
        columns=config.columns,
        server_files=config.server_files,
        encode=ORDINAL if config.encode == AUTO and config.protocol == "published" else config.encode,
        reading=config.reading,
    )


def prepare(config: Config) -> tuple[Plan, Table]:
    """Load the data and check every option, without running or writing anything."""
    table = load_table(config)
    return checked(config, table), table


def prepare_all(configs: Iterable[Config]) -> list[tuple[Plan, Table]]:
    """The same for several configs; those that read the same data alike share a table."""
    tables: dict[tuple[Any, ...], Table] = {}
    prepared = []
    for config in configs:
        is_published = config.protocol == "published"
        files = (config.data, config.data_dir, config.columns, config.server_files)
        key = (*files, config.encode, config.encode == AUTO and is_published, config.reading)
        if key not in tables:
            tables[key] = load_table(config)
        prepared.append((checked(config, tables[key]), tables[key]))
    return prepared


def checked(config: Config, table: Table) -> Plan:
    """The plan of a config for a table, if it can be run and measured."""
    plan = resolve(config, table)
    setup = plan.setup(table)
    if plan.network is not None:
        plan.network.check(Schema.from_table(table, table.encoder))
    needs: set[Any] = set()
    releases = {} if plan.budget is None else {releases_of(spec, setup): spec for spec in plan.specs}
    for spec in plan.specs:
        check_individual(spec, plan.validation_source)
        own_needs = spec.build(setup).needs
        check_validation_source(spec, own_needs, plan.validation_source)
        check_bound(spec, own_needs, plan.training.early_stopping)
        if plan.secure_sums is not None:
            check_secure_sums(spec, spec.build(setup), plan.validation_source)
        needs |= own_needs
    _check_sums(plan)
    rows, excluded = zip(*(_check_seed(plan, table, seed, setup) for seed in plan.config.seeds), strict=True)
    estimate = None
    if plan.budget is not None:
        estimate = check_budget(plan, plan.budget, table, list(releases))
    sample = None if plan.validation_source.at_clients else describe_sample(rows[0], plan.training.per_round)
    small = excluded_note(plan.min_cell, excluded) if plan.min_cell > 1 else None
    notes = [
        *plan.notes,
        _simulated_note(plan, table),
        sample if Need.SCORES in needs else None,
        small,
        estimate,
    ]
    return replace(plan, notes=tuple(note for note in notes if note))


def check_budget(plan: Plan, budget: Budget, table: Table, releases: Sequence[Releases]) -> str:
    """InputError if a client of some seed is too small for its budget; a note on what will be spent.

    Returns
    -------
    The epsilon of the most demanding strategy, and the noise of the smallest and the largest client.
    """
    most = max(releases, key=lambda each: (len(each.each_round), len(each.once)))
    sizes: set[Exposure] = set()
    for seed in plan.config.seeds:
        streams = plan.streams(seed)
        assigned = plan.assign(table, streams)
        rows = np.bincount(assigned.client, minlength=plan.clients)
        cohorts = streams.cohorts(plan.training.rounds, plan.clients, plan.training.per_round)
        limit = participations_of(cohorts, plan.clients, budget.participations)[1]
        exposures = [
            (name, Exposure.of_training(int(number), plan.training, limit))
            for name, number in zip(assigned.names, rows, strict=True)
            if number
        ]
        for each in releases:
            check_sizes(budget, exposures, each, f" of seed {seed}")
        sizes |= {exposure for _, exposure in exposures}
    ends = [calibrate(budget, end, most) for end in (min(sizes), max(sizes))]
    noise = ", ".join(f"{end.update:.2f} with {end.exposure.rows:,} rows" for end in ends if end is not None)
    largest = max(sizes).rows
    delta = f" (more than 1 in {largest:,} rows)" if budget.delta * largest > 1 else ""
    rounds = max(size.participations for size in sizes)
    return (
        f"differential privacy: each client spends at most epsilon {budget.epsilon:g} at delta"
        f" {budget.delta:g}{delta} for each strategy and seed, in up to {rounds} rounds; noise as a multiple"
        f" of the clipping norm: {noise}"
    )


def _simulated_note(plan: Plan, table: Table) -> str | None:
    """A note that clients are simulated, where a user may think of sites of her own."""
    if plan.partition.kind == "column" or not table.is_own:
        return None
    how = "at random" if plan.partition.kind == "random" else f"unevenly ({plan.partition})"
    return (
        f"clients are simulated: rows are dealt {how} to {plan.clients} of them; if a column says which site"
        " holds a row, name it with --client-column"
    )


def excluded_note(min_cell: int, excluded: Sequence[NDArray[np.int64]]) -> str | None:
    """A note on the rows that clients exclude: (clients,) numbers of each seed.

    >>> excluded_note(10, [np.array([0, 4, 9]), np.array([4, 0, 1200])])
    'up to 1,204 rows of 2 of the 3 clients are excluded: a client has fewer than 10 of their group and label'
    """
    rows, clients = [int(n.sum()) for n in excluded], [int((n > 0).sum()) for n in excluded]
    if not any(rows):
        return None
    number = f"fewer than {MIN_CELL}" if max(rows) < MIN_CELL else _highest(rows)  # a report shows it
    return (
        f"{number} rows of {_highest(clients)} of the {len(excluded[0])} clients are excluded:"
        f" a client has fewer than {min_cell} of their group and label"
    )


def _highest(of_seeds: Sequence[int]) -> str:
    return f"{max(of_seeds):,}" if len(set(of_seeds)) == 1 else f"up to {max(of_seeds):,}"


def _check_seed(plan: Plan, table: Table, seed: int, setup: Setup) -> tuple[int, NDArray[np.int64]]:
    """Find out before anything is trained whether a seed's split can be run, and measured.

    Returns how many validation rows there are, and how many rows each client excludes.
    """
    streams, min_cell, excluded = plan.streams(seed), plan.min_cell, NO_ROWS
    if _may_fail(plan) or seed == plan.config.seeds[0] or plan.validation_source != AT_SERVER or min_cell > 1:
        assigned = plan.assign(table, streams)
        train, validation, excluded = assigned.train, assigned.validation, assigned.excluded
    else:
        train, validation, _ = split_rows(table, streams)
    rows: dict[str, CellRows] = {
        kind: np.bincount(table.cell[numbers], minlength=2 * table.groups).reshape(-1, 2)
        for kind, numbers in (("validation", validation), ("training", train))
    }
    for spec in plan.specs:
        check_measurable(spec.individual, table, int(rows["validation"].sum()))
        step = spec.step(THRESHOLDS)
        looks = [(spec.base.metric, "validation")] if spec.base.metric else []
        if step is not None:
            looks.append((str(step["metric"]), "training" if step["from"] == "clients" else "validation"))
        for metric, part in looks:
            where = f"the {part} rows of seed {seed}"
            where += f" that min-cell {min_cell} leaves" if excluded.any() else ""
            check_metric(str(metric), rows[part], setup, where, table)
    return len(validation), excluded


def check_metric(metric: str, rows: CellRows, setup: Setup, where: str, table: Table) -> None:
    """InputError unless a metric is defined on (groups, 2) rows of a table."""

    def problem() -> str:
        names = [f"{group} with {label}" for group in table.group_names for label in table.label_names]
        counts = dict(zip(names, rows.ravel().tolist(), strict=True))
        strata = sorted(counts, key=lambda name: counts[name])
        empty = [name for name in counts if not counts[name]]
        few = [f"{counts[name]} of {name}" for name in strata]
        got = f"no rows of {listing(empty)}" if empty else f"too few rows: {listing(few)}"
        return f"metric '{metric}' must be defined on {where}, got {got}"

    fairness = bind_individual(metric, setup.groups, published=setup.published, least=setup.min_cell)
    check_defined(fairness, rows, problem)


def _may_fail(plan: Plan) -> bool:
    """Whether some seed's shares may not be finite: tiny sigmas, with the authors' generator."""
    return plan.published and plan.partition.sigma is not None and plan.partition.sigma < 0.01


def check_individual(spec: Spec, validation_source: ValidationSource) -> None:
    """InputError where an objective asks how people are treated whose rows the server does not have."""
    if spec.individual and validation_source.at_clients:
        terms = listing(sorted(spec.individual))
        raise InputError(
            f"validation-from must be server for metric '{spec.base.metric}' ({terms} is measured on single"
            f" rows), got '{validation_source}'"
        )


ON_FEW_SUMS = {
    CLIP: "which measures each update",
    MEDIAN: "which compares the updates",
    TRIMMED: "which compares the updates",
    KRUM: "which compares the updates",
    TILT: "whose second model is not summed under masks yet",
}
"""Steps that look at single updates, or train something else."""
SEPARATE_REPORTS: Mapping[Need[Any], str] = {
    Need.REPORTS: "whose clients report 8 sums for each group, each for itself",
    Need.ROWS: "whose clients report their rows by group and label, each for itself",
    Need.ALL_ROWS: "whose clients report their rows by group and label, each for itself",
    Need.CONSISTENCY: "which scores each client's model on single rows",
    Need.FLIP: "which scores each client's model on single rows",
}


def check_secure_sums(spec: Spec, strategy: Strategy, validation_source: ValidationSource) -> None:
    """InputError where a strategy cannot do with sums over clients, with the reason."""

    def refuse(reason: str) -> None:
        raise InputError(f"secure-sums must be left out for {spec.label}, {reason}")

    for step in spec.steps:
        if step.name in ON_FEW_SUMS:
            refuse(ON_FEW_SUMS[step.name])
    for need, reason in SEPARATE_REPORTS.items():
        if need in strategy.needs:
            refuse(reason)
    if spec.code:
        refuse("a strategy of your own, of which it is not known whether sums are enough")
    if Need.SCORES not in strategy.needs:
        return
    if strategy.weigh is None:
        refuse("which compares the scores of single models")
    if not validation_source.is_local:
        raise InputError(
            f"validation-from must be {CLIENTS}:mode={OWN} or {CLIENTS}:mode={PUBLIC} for {spec.label} with"
            f" secure-sums: each client scores its own model, got '{validation_source}'"
        )
    if Need.TRIALS in strategy.needs and validation_source.at_clients:
        raise InputError(f"keep must be 0 for {spec.label} with secure-sums and mode={OWN}")


def _check_sums(plan: Plan) -> None:
    """InputError where a run has secure sums without enough clients, or scores that only they have."""
    if plan.secure_sums is None:
        if plan.validation_source.is_local:
            raise InputError(
                f"secure-sums must be given with validation-from '{plan.validation_source}', by which clients"
                " score their own models"
            )
        return
    least, clients = plan.secure_sums.min_sum, plan.training.per_round
    check(clients >= least, f"per-round must be >= the {least} clients of min-sum", clients)
    check(clients <= MOST_CLIENTS, f"per-round must be <= {MOST_CLIENTS} with secure-sums", clients)


def check_bound(spec: Spec, needs: Needs, early_stopping: int = 0) -> None:
    """InputError where a bound would be tested on rows by which the model was chosen."""
    if spec.rule is None or not spec.rule.get("bound"):
        return
    reason = "stops early by" if early_stopping else "is trained by" if needs & ON_VALIDATION else ""
    if reason:
        raise InputError(
            f"bound must be left out for {spec.label}, which {reason} the validation rows: on rows that have"
            f" chosen the model no bound can be tested, got {spec.rule['bound']}"
        )


def check_validation_source(spec: Spec, needs: Needs, validation_source: ValidationSource) -> None:
    """InputError where a strategy cannot do without validation rows at the server."""
    if not validation_source.at_clients:
        return
    if Need.DESCENT in needs:
        raise InputError(
            f"validation-from must be server for {spec.name}, which trains there, got '{validation_source}'"
        )
