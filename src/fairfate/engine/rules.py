"""How a released model decides, where a step chooses that after training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairfate.engine.loop import Clients, Round, run_rounds
from fairfate.engine.server import Server
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.fairness.thresholds import (
    Margins,
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
)
from fairfate.fairness.tilt import Guard, Tilt, choose_common, choose_tilt, joint_histogram
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.strategies import COMMON, THRESHOLDS, Average, Setup, Step
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.steps import asked_bins


class ScoredRows(Protocol):
    """Rows by which a rule is chosen, wherever they are."""

    @property
    def at_clients(self) -> bool:
        """Whether the validation rows are those that clients hold out."""
        ...

    def margins(self, params: Models, split: str) -> Margins | None:
        """The server's rows of a split by the score that a model gives them; None where it has none."""
        ...

    def histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the clients' training rows by score: sums."""
        ...

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the rows that clients hold out by score: sums."""
        ...

    def guess_groups(self, share: float) -> Models:
        """A model of who is in the second group, trained as the plain strategy with an average trains one."""
        ...

    def joint_rows(
        self, params: Models, group_params: Models, bins: int, split: str
    ) -> NDArray[np.int64] | None:
        """(groups, 2, bins, bins) the server's rows of a split by both scores; None where it has none."""
        ...

    def joint_histograms(
        self, params: Models, group_params: Models, bins: int, *, held_out: bool = False
    ) -> NDArray[np.int64]:
        """The same of the rows that clients train on or, with ``held_out``, hold out: sums."""
        ...


@dataclass(frozen=True, eq=False)
class Rule:
    """How a released model decides."""

    thresholds: Values | None = None
    """(groups,) log-odds that each group's score must exceed; the same one where it is everybody's."""
    tilt: Tilt | None = None
    group_params: Models | None = None
    """The model that guesses the group, where the rule is a tilted score."""
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What users are told of it."""


PLAIN = Rule()
"""By the model's own score."""


def count_decisions(model: Model, params: Models, rule: Rule, rows: PackedRows) -> Counts:
    """(groups, 2, 2) counts of what a rule other than the plain one decides about rows."""
    margins = model.margins(params, rows)
    if rule.tilt is not None and rule.group_params is not None:
        guessed = model.margins(rule.group_params, rows)
        return rule.tilt.counts(joint_histogram(margins, guessed, rule.tilt.bins))
    assert rule.thresholds is not None
    return apply(margins, rule.thresholds)


class Decided(NamedTuple):
    """A rule, and what comes of it."""

    rule: Rule
    validation: Counts
    test: Counts | None
    """None where the server has no such rows."""


def choose_rule(step: Step, setup: Setup, rows: ScoredRows, params: Models, share: float) -> Decided:
    """The rule of a step for a released model.

    Parameters
    ----------
    step : the step, with its settings
    setup : what is known of the run
    rows : by which it is chosen
    params : the released model
    share : of the rounds whose models are averaged, for the model that guesses the group
    """
    fairness = replace(setup, min_cell=0).fairness(str(step["metric"]))
    if step.name == THRESHOLDS:
        return _choose_by_group(step, fairness, rows, params)
    if step.name == COMMON:
        return _choose_common(step, fairness, len(setup.groups), rows, params)
    return _choose_tilt(step, fairness, rows, params, share)


def guard_of(step: Step) -> Guard:
    """What the rule of a step must keep."""
    given = dict(step.settings)
    return Guard(float(step["tolerance"]), float(step["keep"]), float(given.get("margin", Guard().margin)))


def _choose_by_group(step: Step, fairness: Metric, rows: ScoredRows, params: Models) -> Decided:
    settings = float(step["tolerance"]), float(step["keep"]), str(step["against"])
    validation_rows = rows.held_histograms(params) if rows.at_clients else None
    if step["from"] == "clients":
        chosen = choose_from_histogram(rows.histograms(params), fairness, *settings)
    elif validation_rows is not None:
        chosen = choose_from_histogram(validation_rows, fairness, *settings)
    else:
        margins = rows.margins(params, "validation")
        assert margins is not None
        chosen = choose_from_scores(margins, fairness, *settings)
    return _measure(chosen, rows, params, validation_rows)


def _choose_common(step: Step, fairness: Metric, groups: int, rows: ScoredRows, params: Models) -> Decided:
    validation_rows = rows.held_histograms(params) if rows.at_clients else None
    cut = choose_common(rows.histograms(params), fairness, guard_of(step))
    return _measure(np.full(groups, cut), rows, params, validation_rows)


def _measure(
    thresholds: Values, rows: ScoredRows, params: Models, validation_rows: NDArray[np.int64] | None
) -> Decided:
    """Thresholds on the validation rows, by score where clients hold them, and on the test rows."""
    if validation_rows is not None:
        validation = apply_to_histogram(validation_rows, thresholds)
    else:
        margins = rows.margins(params, "validation")
        assert margins is not None
        validation = apply(margins, thresholds)
    test = rows.margins(params, "test")
    return Decided(Rule(thresholds), validation, None if test is None else apply(test, thresholds))


def _choose_tilt(step: Step, fairness: Metric, rows: ScoredRows, params: Models, share: float) -> Decided:
    bins = asked_bins(step)
    guess = rows.guess_groups(share)
    counted = rows.joint_histograms(params, guess, bins)
    tilt = choose_tilt(counted, fairness, str(step["metric"]), guard_of(step))
    if rows.at_clients:
        validation_rows: NDArray[np.int64] | None = rows.joint_histograms(params, guess, bins, held_out=True)
    else:
        validation_rows = rows.joint_rows(params, guess, bins, "validation")
    assert validation_rows is not None
    test = rows.joint_rows(params, guess, bins, "test")
    rule = Rule(tilt=tilt, group_params=guess)
    return Decided(rule, tilt.counts(validation_rows), None if test is None else tilt.counts(test))


def train_average(clients: Clients, start: Models, rounds: int, share: float) -> Models:
    """Train a model by the plain strategy; the mean of the models of the last rounds."""
    server, average = Server.start(AVERAGING, start), Average(share, rounds)
    released = start

    def release(this_round: Round) -> None:
        nonlocal released
        released = average.add(this_round.number, server.released)

    run_rounds(clients, [server], rounds, [release])
    return released
