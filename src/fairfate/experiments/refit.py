"""The recommended strategy trained once more, on all rows: those for validation and test too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fairfate.data import Schema, Table
from fairfate.engine.simulate import simulate
from fairfate.errors import check
from fairfate.experiments.job import fair_model
from fairfate.experiments.plan import Plan
from fairfate.experiments.runs import REFIT
from fairfate.federation.split import assign_all, encode

if TYPE_CHECKING:
    from fairfate.models.fair_model import FairModel


def check_refit(plan: Plan, table: Table) -> None:
    """Refuse, before training, what cannot be trained on all rows."""
    check(table.part is None, "refit must be left out where the server has files of its own", table.name)
    source = plan.validation_source
    check(not source.at_clients, "refit must be left out with validation-from clients", source)
    check(plan.budget is None, "refit must be left out with privacy, which it would spend again", plan.budget)


def refit(plan: Plan, table: Table, line: int, seed: int) -> FairModel:
    """One strategy's model of all rows, with the random numbers of a seed; nothing is left to test it.

    The rows that steer training, such as those by which FAIR-FATE compares models, are the seed's validation
    rows, which the clients train on as well.
    """
    streams = plan.streams(seed)
    validation = plan.assign(table, streams).validation
    assignment = assign_all(table, plan.partition, plan.clients, streams, validation, plan.min_cell)
    federation = encode(table, assignment, streams, plan.validation_source, plan.min_cell)
    schema = Schema.from_table(table, federation.encoder)
    model = plan.model(federation.inputs, schema)
    (trace,) = simulate(
        federation,
        [plan.specs[line]],
        model,
        plan.training,
        plan.setup(table),
        streams,
        lambda: None,
        attack=plan.attack,
        secure_sums=plan.secure_sums,
    )
    about = {"protocol": plan.config.protocol, "seed": seed, "data": table.name}
    fitted = fair_model(model, schema, table, trace, **about)
    untested = {"validation": None, "test": None, REFIT: "trained on all rows; none are left to test it"}
    if plan.network is not None:
        fitted = replace(fitted, network=plan.network.model(schema).scores)
    return replace(fitted, about={**fitted.about, **untested})
