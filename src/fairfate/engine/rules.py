"""How a released model decides, where a step chooses that after training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairfate.engine.loop import Clients, Round, run_rounds
from fairfate.engine.server import Server
from fairfate.fairness.intervals import bootstrap
from fairfate.fairness.metrics import COLLAPSED, Counts, Metric, Values, eo_diff, eqo_diff, mcc, sp_diff
from fairfate.fairness.objective import GroupMetric, parse_objective
from fairfate.fairness.split_scores import choose_distilled, count_plain, cut_at, cut_everywhere, cut_step
from fairfate.fairness.thresholds import (
    EDGES,
    Margins,
    apply,
    apply_to_histogram,
    choose_from_histogram,
    choose_from_scores,
)
from fairfate.fairness.tilt import Guard, Tilt, choose_common, choose_tilt, joint_histogram, plain_rule
from fairfate.fairness.tilt_groups import UNIT, Ask, GroupSearch, GroupTilt
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows
from fairfate.privacy.mechanism import cut_variance
from fairfate.strategies import THRESHOLDS, TILT, Average, Setup, Step
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.steps import asked_bins, asks_clients, is_distilled

DIFFERENCES: Mapping[str, Metric] = {"sp": sp_diff, "eo": eo_diff, "eqo": eqo_diff}
"""Fairness as differences of rates; 0 is fair."""


class Labelling(NamedTuple):
    """A tilted score, as clients need it to label their rows by its decisions."""

    params: Models
    group_params: Models
    """(parameters,), or with more than two groups one for each but the first."""
    tilt: Tilt | GroupTilt


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

    @property
    def histogram_noise(self) -> float:
        """The standard deviation of the noise in each count of that, as clients add it; 0 without."""
        ...

    def held_histograms(self, params: Models) -> NDArray[np.int64]:
        """(groups, 2, bins) the rows that clients hold out by score: sums."""
        ...

    def guess_groups(self, share: float, group: int = 1) -> Models:
        """A model of who is in a group, trained as the plain strategy with an average trains one."""
        ...

    def priced(self, params: Models, group_params: Models, *, held_out: bool = False) -> Ask:
        """A way to ask about prices on several guessed groups, on the rows of `joint_histograms`."""
        ...

    def distil(self, labelling: Labelling, share: float) -> Models:
        """A model of what a rule decides, trained like that of the groups, on labels that clients make."""
        ...

    def split_histograms(self, params: Models, other: Models, *, held_out: bool = False) -> NDArray[np.int64]:
        """(groups, 2, 2, bins) the clients' rows by a model's decision and another one's score: sums."""
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
    tilt: Tilt | GroupTilt | None = None
    group_params: Models | None = None
    """The model that guesses the group, where the rule is a tilted score; of several groups (groups - 1, ...)
    models."""
    about: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What users are told of it."""

    @property
    def counts(self) -> list[str]:
        """Which of that are numbers of rows, by the model's own decision and the rule's."""
        return [key for key in ("changes", "guessed") if key in self.about]


PLAIN = Rule()
"""By the model's own score."""


def count_decisions(model: Model, params: Models, rule: Rule, rows: PackedRows) -> Counts:
    """(groups, 2, 2) counts of what a rule other than the plain one decides about rows."""
    margins = model.margins(params, rows)
    tilt, guesses = rule.tilt, rule.group_params
    if isinstance(tilt, GroupTilt) and guesses is not None:
        return _count_priced(tilt, margins, [model.margins(guess, rows) for guess in guesses])
    if isinstance(tilt, Tilt) and guesses is not None:
        return tilt.counts(joint_histogram(margins, model.margins(guesses, rows), tilt.bins))
    assert rule.thresholds is not None
    return apply(margins, rule.thresholds)


def decide_rows(
    model: Model, params: Models, rule: Rule, rows: PackedRows, groups: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(rows,) what a rule decides about packed rows of these groups, in their order."""
    margins = np.concatenate(model.margins(params, rows))
    if rule.tilt is not None and rule.group_params is not None:
        return _decide_tilted(model, Labelling(params, rule.group_params, rule.tilt), rows)
    return np.asarray(margins > (0.0 if rule.thresholds is None else rule.thresholds[groups]))


def _decide_tilted(model: Model, labelling: Labelling, rows: PackedRows) -> NDArray[np.bool_]:
    """(rows,) what a tilted score decides about packed rows, in their order."""
    own = np.concatenate(model.margins(labelling.params, rows))
    each = [np.concatenate(model.margins(guess, rows)) for guess in np.atleast_2d(labelling.group_params)]
    if isinstance(labelling.tilt, GroupTilt):
        return labelling.tilt.decide(own, each)
    return labelling.tilt.decide(own, each[0])


class Decided(NamedTuple):
    """A rule, and what comes of it."""

    rule: Rule
    validation: Counts
    test: Counts | None
    """None where the server has no such rows."""
    params: Models | None = None
    """The model that decides by it, where that is another than the trained one."""


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
    fairness = _fairness(step, replace(setup, min_cell=0))
    if step.name == TILT and len(setup.groups) > 2:
        return _choose_priced(step, fairness, rows, params, share, len(setup.groups))
    if step.name == TILT:
        return _choose_tilt(step, fairness, rows, params, share)
    validation = rows.held_histograms(params) if rows.at_clients else None
    if not asks_clients(step):
        return _choose_on_validation(step, fairness, rows, params, validation)
    counted = rows.histograms(params)
    guard, noise = guard_of(step), cut_variance(rows.histogram_noise, 2 * len(counted))

    def choose(bound: float, slack: float) -> Values:
        if step.name == THRESHOLDS:
            settings = float(step["tolerance"]), float(step["keep"]), str(step["against"])
            return choose_from_histogram(counted, fairness, *settings, bound)
        cut = choose_common(counted, fairness, guard._replace(bound=bound, slack=slack), noise)
        return np.full(len(counted), cut)

    def count_validation(thresholds: Values) -> Counts:
        return _count_validation(thresholds, rows, params, validation)

    chosen, reached = reach_bound(
        step, choose, partial(apply_to_histogram, counted), count_validation, fairness
    )
    plain = np.zeros(len(counted))
    changes = _changes(counted, _accepted(plain), _accepted(chosen))
    undefined = bool(np.isnan(fairness(apply_to_histogram(counted, plain))))
    about = {**_describe(step, undefined, changes), **reached}
    return Decided(Rule(chosen, about=about), count_validation(chosen), _count_test(chosen, rows, params))


def family_of(metric: str) -> str:
    """The family of scores for an objective: that of sp or eo, by whatever attributes, or the general one."""
    objective = parse_objective(metric)
    return objective.metric if isinstance(objective, GroupMetric) else metric


def guard_of(step: Step) -> Guard:
    """What the rule of a step must keep."""
    margin = 0.0 if step.name == THRESHOLDS else float(step.get("margin"))
    return Guard(float(step["tolerance"]), float(step["keep"]), margin)


def _fairness(step: Step, setup: Setup) -> Metric:
    """What a rule is chosen by; as a difference, 1 less the gap, so that 1 is fair."""
    metric = str(step["metric"])
    if step.get("measure") == "ratio":
        return setup.fairness(metric)
    gap = setup.gap(metric, DIFFERENCES)
    return lambda counts: 1 - gap(counts)


def _choose_on_validation(
    step: Step, fairness: Metric, rows: ScoredRows, params: Models, validation: NDArray[np.int64] | None
) -> Decided:
    """Thresholds by group from the validation rows, which have them measured too."""
    settings = float(step["tolerance"]), float(step["keep"]), str(step["against"])
    if validation is not None:
        chosen = choose_from_histogram(validation, fairness, *settings)
    else:
        margins = rows.margins(params, "validation")
        assert margins is not None
        chosen = choose_from_scores(margins, fairness, *settings)
    counts = _count_validation(chosen, rows, params, validation)
    return Decided(Rule(chosen), counts, _count_test(chosen, rows, params))


def _count_validation(
    thresholds: Values, rows: ScoredRows, params: Models, validation: NDArray[np.int64] | None
) -> Counts:
    """Decisions on the validation rows, of which the scores alone are known where clients hold them."""
    if validation is not None:
        return apply_to_histogram(validation, thresholds)
    margins = rows.margins(params, "validation")
    assert margins is not None
    return apply(margins, thresholds)


def _count_test(thresholds: Values, rows: ScoredRows, params: Models) -> Counts | None:
    test = rows.margins(params, "test")
    return None if test is None else apply(test, thresholds)


def _choose_tilt(step: Step, fairness: Metric, rows: ScoredRows, params: Models, share: float) -> Decided:
    bins, guard, family = asked_bins(step), guard_of(step), str(step["metric"])
    guess = rows.guess_groups(share)
    counted = rows.joint_histograms(params, guess, bins)
    if is_distilled(step):
        taught = choose_tilt(counted, fairness, family, _taught(guard))
        is_taught = bool((taught.table != plain_rule(bins).table).any())
        return _distil(step, fairness, rows, Labelling(params, guess, taught), is_taught, share)
    if rows.at_clients:
        validation: NDArray[np.int64] | None = rows.joint_histograms(params, guess, bins, held_out=True)
    else:
        validation = rows.joint_rows(params, guess, bins, "validation")
    assert validation is not None

    def choose(bound: float, slack: float) -> Tilt:
        return choose_tilt(counted, fairness, family, guard._replace(bound=bound, slack=slack))

    tilt, reached = reach_bound(
        step, choose, lambda rule: rule.counts(counted), lambda rule: rule.counts(validation), fairness
    )
    plain = plain_rule(bins)
    guessed = np.swapaxes(counted.sum(axis=0), -1, -2).reshape(2, 2, bins // 2, bins).swapaxes(0, 1)
    by_guess = [table.T.reshape(2, bins // 2, bins) for table in (plain.table, tilt.table)]
    undefined = bool(np.isnan(fairness(plain.counts(counted))))
    about = {
        **_describe(step, undefined, _changes(counted, plain.table, tilt.table)),
        **reached,
        "guessed": _changes(guessed, *by_guess).tolist(),
        "prices": list(tilt.prices),
        "threshold": tilt.threshold,
    }
    test = rows.joint_rows(params, guess, bins, "test")
    rule = Rule(tilt=tilt, group_params=guess, about=about)
    return Decided(rule, tilt.counts(validation), None if test is None else tilt.counts(test))


def _choose_priced(
    step: Step, fairness: Metric, rows: ScoredRows, params: Models, share: float, groups: int
) -> Decided:
    """A tilted score for more than two groups, by questions to the clients."""
    guard, family = guard_of(step), family_of(str(step["metric"]))
    guesses = np.stack([rows.guess_groups(share, group) for group in range(1, groups)])
    search = GroupSearch(rows.priced(params, guesses), groups, fairness, guard, family, asked_bins(step))
    search.run()
    if is_distilled(step):
        best = search.best(_taught(guard))
        is_taught = bool((search.counts_of(best) != search.counts_of(search.plain)).any())
        return _distil(step, fairness, rows, Labelling(params, guesses, best), is_taught, share)
    ask_held = rows.priced(params, guesses, held_out=True) if rows.at_clients else None

    def count_server(rule: GroupTilt, split: str) -> Counts | None:
        own = rows.margins(params, split)
        each = [scores for guess in guesses if (scores := rows.margins(guess, split)) is not None]
        return None if own is None else _count_priced(rule, own, each)

    answers: dict[bytes, Counts] = {}

    def count_validation(rule: GroupTilt) -> Counts:
        if ask_held is not None:
            key = rule.prices.tobytes()
            if key not in answers:
                answers[key] = cut_everywhere(ask_held([rule])[0])[0]
            return np.asarray(answers[key][rule.step])
        counts = count_server(rule, "validation")
        assert counts is not None
        return counts

    tilt, reached = reach_bound(
        step,
        lambda bound, slack: search.best(guard._replace(bound=bound, slack=slack)),
        search.counts_of,
        count_validation,
        fairness,
    )
    about = {
        **_describe(
            step,
            bool(np.isnan(fairness(search.counts_of(search.plain)))),
            _split_changes(search.rows_of(tilt), tilt.step),
        ),
        **reached,
        "prices": (tilt.prices / UNIT).tolist(),
        "questions": len(search.rules),
    }
    rule = Rule(tilt=tilt, group_params=guesses, about=about)
    return Decided(rule, count_validation(tilt), count_server(tilt, "test"))


def _count_priced(rule: GroupTilt, margins: Margins, guesses: Sequence[Margins]) -> Counts:
    """(groups, 2, 2) what prices on several guessed groups decide, from each stratum's scores."""
    accepted = [
        int(rule.decide(own, [guess[stratum] for guess in guesses]).sum())
        for stratum, own in enumerate(margins)
    ]
    counts = [[len(own) - taken, taken] for own, taken in zip(margins, accepted, strict=True)]
    return np.array(counts, dtype=np.int64).reshape(-1, 2, 2)


TAUGHT = 0.8
"""Of the tolerance, for a rule that is distilled: the network that learns it is a little less accurate."""


def _taught(guard: Guard) -> Guard:
    return guard._replace(tolerance=TAUGHT * guard.tolerance)


def _distil(
    step: Step,
    fairness: Metric,
    rows: ScoredRows,
    taught: Labelling,
    is_taught: bool,
    share: float,
) -> Decided:
    """One plain network in the place of two and a table, and one threshold of its score for everybody.

    The plain model stays where it is the rule, or where no threshold of the network may be taken.

    Parameters
    ----------
    step, fairness, rows, share : as for `choose_rule`
    taught : whose decisions are learned: the fairest rule, so that no bound has been tested yet
    is_taught : whether it decides anything otherwise than the plain model
    """
    plain, guard = taught.params, guard_of(step)
    network = rows.distil(taught, share) if is_taught else plain
    split = rows.split_histograms(plain, network)
    validation = rows.split_histograms(plain, network, held_out=True) if rows.at_clients else None

    def choose(bound: float, slack: float) -> float | None:
        return choose_distilled(split, fairness, guard._replace(bound=bound, slack=slack))

    def count_validation(cut: float | None) -> Counts:
        if validation is not None:
            return count_plain(validation) if cut is None else cut_at(validation, cut)
        counts = _count_common(rows, plain if cut is None else network, cut or 0.0, "validation")
        assert counts is not None
        return counts

    chosen, reached = reach_bound(
        step,
        choose,
        lambda cut: count_plain(split) if cut is None else cut_at(split, cut),
        count_validation,
        fairness,
    )
    released, cut = (plain, 0.0) if chosen is None else (network, chosen)
    about = {
        **_describe(
            step,
            bool(np.isnan(fairness(count_plain(split)))),
            _split_changes(split, None if chosen is None else cut_step(chosen)),
        ),
        **reached,
        "distilled": chosen is not None and is_taught,
        "prices": list(taught.tilt.prices) if isinstance(taught.tilt, Tilt) else [],
    }
    rule = Rule(np.full(len(split), cut), about=about)
    return Decided(rule, count_validation(chosen), _count_common(rows, released, cut, "test"), released)


def _count_common(rows: ScoredRows, params: Models, cut: float, split: str) -> Counts | None:
    """What one threshold for everybody decides on the server's rows; None where it has none."""
    margins = rows.margins(params, split)
    return None if margins is None else apply(margins, np.full(len(margins) // 2, cut))


def _split_changes(split: NDArray[np.int64], step: int | None) -> NDArray[np.int64]:
    """(groups, 2, 2) rows by the plain model's decision and a threshold's; None for the plain one again."""
    each: NDArray[np.int64] = split.sum(axis=1)  # (groups, 2, ranges)
    if step is None:
        return np.asarray(each.sum(axis=-1)[:, :, None] * np.eye(2, dtype=np.int64))
    return np.stack([each[..., :step].sum(axis=-1), each[..., step:].sum(axis=-1)], axis=-1)


# -- bounds ----------------------------------------------------------------------------------------------


SURE, FINER = 0.95, 0.01
"""How sure a bound must be reached on rows held out, and by how much less fair each next rule may be."""
MOST_TESTS = math.ceil(1 / FINER) + 2
"""How many rules are looked at on rows held out, at most."""

Kind = TypeVar("Kind")


def reach_bound(
    step: Step,
    choose: Callable[[float, float], Kind],
    count: Callable[[Kind], Counts],
    count_validation: Callable[[Kind], Counts],
    fairness: Metric,
) -> tuple[Kind, dict[str, Any]]:
    """The rule that reaches a step's bound at the least cost in accuracy, and what is known of it.

    Rules are tested from the fairest on, each cheaper than the one before, on rows by which none was chosen;
    the first that is not surely fair enough ends it. In such a fixed sequence of tests the chance to release
    a rule that does not reach the bound stays 5 %. One answer for everybody reaches none. Without a bound,
    or where it is not reached, the fairest rule is released.

    Parameters
    ----------
    step : with its bound
    choose : the rule for a bound, or for none, and a slack
    count, count_validation : what a rule decides on the rows that it is chosen by, and on rows held out
    fairness : what is to reach the bound
    """
    given, usual = float(step.get("bound")), Guard().slack
    fairest = choose(math.inf, usual)
    if not given:
        return fairest, {}
    bound = given if step.get("measure") == "ratio" else 1 - given
    top = float(fairness(count(choose(math.inf, 0.0))))
    is_possible = top >= bound
    levels = [top - FINER * k for k in range(math.ceil((top - bound) / FINER))] if is_possible else []
    chosen, is_reached = fairest, False
    for level in [*levels, *([bound] if is_possible else [])]:
        rule = choose(level, 0.0)
        counted = count_validation(rule)
        if not (lower_limit(counted, fairness) >= bound and mcc(counted) >= COLLAPSED):
            break
        chosen, is_reached = rule, True
    counted = count_validation(chosen)
    limit = lower_limit(counted, fairness)
    is_collapsed = not mcc(counted) >= COLLAPSED
    about = {"bound": given, "reached": is_reached, "possible": is_possible, "collapsed": is_collapsed}
    if math.isnan(limit):
        return chosen, {**about, "limit": None}
    return chosen, {**about, "limit": limit if step.get("measure") == "ratio" else 1 - limit}


def lower_limit(counts: Counts, fairness: Metric) -> float:
    """What fairness exceeds with one-sided 95 % confidence, over people; NaN where it is undefined."""
    values = fairness(bootstrap(counts))
    return float(np.quantile(values, 1 - SURE)) if np.isfinite(values).all() else math.nan


# -- what users are told ---------------------------------------------------------------------------------


def _accepted(thresholds: Values) -> NDArray[np.bool_]:
    """(groups, bins) which scores are accepted."""
    return np.asarray(np.array([-math.inf, *EDGES.tolist()]) >= thresholds[:, None])


def _changes(
    rows: NDArray[np.int64], own: NDArray[np.bool_], accepted: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """(groups, 2, 2) rows by the own decision and by the rule's, from (groups, 2, ...) rows by score."""
    fields, axes = rows.sum(axis=1), tuple(range(1, rows.ndim - 1))
    counts = [
        [(fields * (before & after)).sum(axis=axes) for after in (~accepted, accepted)]
        for before in (~own, own)
    ]
    return np.moveaxis(np.array(counts, dtype=np.int64), -1, 0)


def _describe(step: Step, undefined: bool, changes: NDArray[np.int64]) -> dict[str, Any]:
    """What users are told of a rule: what it changes is counted on the clients' training rows."""
    return {
        "kind": step.name,
        "metric": str(step["metric"]),
        "measure": str(step.get("measure")),
        "undefined": undefined,
        "changes": changes.tolist(),
    }


# -- models that only a rule needs ------------------------------------------------------------------------


def label_by_rule(federation: Federation, model: Model, labelling: Labelling) -> Federation:
    """The training rows of clients with what a tilted score decides about each as its label."""
    x = federation.rows.x.reshape(len(federation.rows), federation.inputs)
    rows = PackedRows.pack(x, np.zeros(len(x), dtype=np.int64), 1)  # of one stratum, so in their order
    return federation.deciding(_decide_tilted(model, labelling, rows))


def train_average(clients: Clients, start: Models, rounds: int, share: float) -> Models:
    """Train a model by the plain strategy; the mean of the models of the last rounds."""
    server, average = Server.start(AVERAGING, start), Average(share, rounds)
    released = start

    def release(this_round: Round) -> None:
        nonlocal released
        released = average.add(this_round.number, server.released)

    run_rounds(clients, [server], rounds, [release])
    return released
