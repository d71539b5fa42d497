"""What an objective is of counts by group; `fairness.grammar` says how it is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.fairness import metrics
from fairfate.fairness.grammar import (
    FAIRNESS,
    PERFORMANCE,
    Mean,
    Measured,
    Objective,
    Together,
    check_counted,
    individual_terms,
    parse_objective,
    parts_of,
)
from fairfate.fairness.individual import INDIVIDUAL, Fairness, IndividualObjective
from fairfate.fairness.metrics import Counts, Metric, Values


def bind(
    objective: Objective | str,
    groups: Groups,
    *,
    published: bool = False,
    difference: bool = False,
    gaps: Mapping[str, Metric] = metrics.GAPS,
    least: int = 0,
) -> Metric:
    """The objective as a function of counts by group.

    Parameters
    ----------
    objective : parsed, or its text
    groups : what the counts are counted by
    published : take the published runs' metrics
    difference : take signed differences (the first group's rate less the second's, or the largest less the
        smallest) in the place of ratios; then 0 is fair
    gaps : the differences, if they are others: of sp, eo and eqo
    least : undefined where a rate has fewer rows behind it, and no rule for small groups
    """
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    known = gaps if difference else metrics.PUBLISHED_FAIRNESS if published else metrics.FAIRNESS
    if difference and not _is_gap(parsed):
        raise InputError(f"metric must be made of sp, eo and eqo by + and worst(), got '{parsed}'")
    check_counted(parsed)
    return _bind(parsed, groups, known, difference, least)


def bind_individual(
    objective: Objective | str, groups: Groups, *, published: bool = False, least: int = 0
) -> Fairness:
    """The same where an objective may have terms of individual fairness, which are then given beside counts.

    >>> fairness = bind_individual("0.5*accuracy+0.5*flip", Groups.everybody())
    >>> float(fairness(np.array([[[3, 1], [0, 4]]]), {"flip": np.array(0.5)}))
    0.6875
    """
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    terms = individual_terms(parsed)
    if not terms:
        return bind(parsed, groups, published=published, least=least)
    known = metrics.PUBLISHED_FAIRNESS if published else metrics.FAIRNESS

    def bound(people: Mapping[str, Values]) -> Metric:
        given: dict[str, Metric] = {name: partial(_given, people[name]) for name in terms}
        return _bind(parsed, groups, {**known, **given}, difference=False, least=least)

    return IndividualObjective(terms, bound)


def _given(values: Values, counts: Counts) -> Values:
    return values


def _is_gap(objective: Objective) -> bool:
    if isinstance(objective, Measured):
        return objective.metric in FAIRNESS
    if isinstance(objective, Mean):
        return all(_is_gap(term) for _, term in objective.terms)
    return objective.function == "worst" and all(map(_is_gap, objective.parts))


def _bind(
    objective: Objective, groups: Groups, known: Mapping[str, Metric], difference: bool, least: int = 0
) -> Metric:
    if isinstance(objective, Mean):
        weights = [weight for weight, _ in objective.terms]
        parts = [_bind(term, groups, known, difference, least) for _, term in objective.terms]
        return partial(_mean, parts, weights)
    if isinstance(objective, Together):
        parts = [_bind(part, groups, known, difference, least) for part in objective.parts]
        if difference:
            return partial(_largest, parts)
        return partial(_worst if objective.function == "worst" else _geometric, parts)
    if objective.metric in PERFORMANCE:
        return metrics.METRICS[objective.metric]
    if objective.metric in INDIVIDUAL:
        return known[objective.metric]
    groups.check(objective.attributes, f"'{objective}'")
    if not objective.attributes and len(groups.attributes) > 1:
        each = tuple(Measured(objective.metric, (name,), objective.small) for name in groups.attributes)
        return _bind(Together("worst", each), groups, known, difference, least)
    attributes = objective.attributes or groups.attributes
    metric = known[objective.metric]
    rule, number = objective.rule
    if number > 0 and metric is metrics.FAIRNESS[objective.metric]:
        metric = partial((metrics.SHRUNK if rule == "shrink" else metrics.COUNTED)[objective.metric], number)
    elif least > 0:
        metric = partial(_enough, objective.metric, metric, least)
    return _compared(metric, groups, attributes)


def _compared(metric: Metric, groups: Groups, attributes: tuple[str, ...]) -> Metric:
    """A metric of counts by all groups, as one of those that some attributes make and that are compared."""
    compared = groups.compared(attributes)
    merged = metric
    if not compared.all():
        places = np.flatnonzero(compared)
        merged = lambda counts: metric(counts[..., places, :, :])  # noqa: E731
    if len(attributes) == len(groups.attributes):
        return merged
    return lambda counts: merged(groups.merge(counts, attributes))


def _enough(name: str, metric: Metric, least: int, counts: Counts) -> Values:
    """A metric, NaN where one of its rates has fewer rows behind it."""
    rows = counts.sum(axis=-1)
    behind = {"sp": rows.sum(axis=-1), "eo": rows[..., 1]}.get(name, rows.min(axis=-1))
    return np.where((behind < least).any(axis=-1), np.nan, metric(counts))


def _mean(parts: list[Metric], weights: list[float], counts: Counts) -> Values:
    total = sum(weights)
    first, *rest = (weight / total * part(counts) for part, weight in zip(parts, weights, strict=True))
    return np.asarray(sum(rest, start=first))


def _worst(parts: list[Metric], counts: Counts) -> Values:
    found = [part(counts) for part in parts]
    return np.asarray(np.minimum.reduce(found))


def _largest(parts: list[Metric], counts: Counts) -> Values:
    found = np.stack([part(counts) for part in parts])
    undefined = np.isnan(found).any(axis=0)
    place = np.abs(np.nan_to_num(found)).argmax(axis=0)
    return np.where(undefined, np.nan, np.take_along_axis(found, place[None], axis=0)[0])


def _geometric(parts: list[Metric], counts: Counts) -> Values:
    found = np.stack([part(counts) for part in parts])
    return np.asarray(np.prod(found, axis=0) ** (1 / len(parts)))


def metrics_by(groups: Groups | None) -> dict[str, Metric]:
    """Every metric as a function of counts by group; of several attributes, the worst."""
    if groups is None or not groups.attributes:
        return dict(metrics.METRICS)
    differences = [name for name in metrics.METRICS if name.endswith("_diff")]
    known = {name: _compared(metrics.METRICS[name], groups, groups.attributes) for name in differences}
    return metrics.METRICS | known | {name: bind(name, groups) for name in FAIRNESS}


MIN_PEOPLE = 10
"""Behind a rate that is compared with those of other groups."""


def fairness_by(
    counts: Counts, groups: Groups, attributes: tuple[str, ...], least: int = MIN_PEOPLE
) -> dict[str, Values]:
    """SP, EO and EQO by some attributes from (..., groups, 2, 2) counts, without rates of very few people.

    A rate counts if its group is compared and has ``least`` people behind it; NaN without two of them.
    """
    compared = groups.merge(counts, attributes)[..., groups.compared(attributes), :, :]
    rows = compared.sum(axis=-1)
    behind = {"sp": (rows.sum(axis=-1),), "eo": (rows[..., 1],), "eqo": (rows[..., 1], rows[..., 0])}
    rates: dict[str, tuple[Metric, ...]] = {
        "sp": (metrics.selection_rates,),
        "eo": (metrics.true_positive_rates,),
        "eqo": (metrics.true_positive_rates, metrics.false_positive_rates),
    }
    values: dict[str, Values] = {}
    for name, of_rates in rates.items():
        ratios = [
            _defined_ratio(np.where(people >= max(least, 1), rate(compared), np.nan))
            for rate, people in zip(of_rates, behind[name], strict=True)
        ]
        values[name] = np.asarray(sum(ratios[1:], start=ratios[0]) / len(ratios))
    return values


def _defined_ratio(rates: Values) -> Values:
    """The least rate over the largest of those that are defined; NaN without two, 1 where all are 0."""
    defined = ~np.isnan(rates)
    low = np.where(defined, rates, np.inf).min(axis=-1)
    high = np.where(defined, rates, -np.inf).max(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(high > 0, low / np.where(high > 0, high, 1.0), 1.0)
    return np.where(defined.sum(axis=-1) < 2, np.nan, ratio)


def reported_fairness(counts: Counts, groups: Groups) -> dict[str, Values]:
    """SP, EO and EQO as tables and recommendations have them; of several attributes, the worst.

    Without rates of fewer than `MIN_PEOPLE`; of all groups where no two have so many.
    """
    found: dict[str, Values] = {}
    for attribute in groups.attributes:
        for name, values in fairness_by(counts, groups, (attribute,)).items():
            exact = bind(Measured(name, (attribute,)), groups)(counts)
            own = np.where(np.isnan(values), exact, values)
            found[name] = own if name not in found else np.minimum(found[name], own)
    return found


def small_groups(objective: Objective | str) -> list[str]:
    """What is done with small groups, in words, for each part that does something."""
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, Measured):
        rule, number = parsed.rule
        if not number:
            return []
        if rule == "shrink":
            return [f"{parsed}: rates are drawn towards the overall one, as by {number:g} more rows of it"]
        return [f"{parsed}: groups of fewer than {number:g} rows, or 2 % of all, are not assessed"]
    return [line for _, part in parts_of(parsed) for line in small_groups(part)]


def check_defined(metric: Fairness, rows: Counts, said: Callable[[], str]) -> None:
    """InputError unless the objective is defined on rows, which depends on them and never on a model.

    Parameters
    ----------
    metric : a bound objective
    rows : (groups, 2) rows by group and label
    said : what to call the objective and the rows
    """
    counts = np.stack([rows, np.zeros_like(rows)], axis=-1)
    found = metric(counts, metric.perfect()) if isinstance(metric, IndividualObjective) else metric(counts)
    if np.isnan(found):
        raise InputError(said())
