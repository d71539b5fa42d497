"""A fairness objective: how it is written, as in ``0.5*sp+0.5*eo``, and what it is of counts by group.

    objective   a weighted mean of terms: ``sp``, ``sp+eo``, ``0.7*sp+0.3*accuracy``
    term        a metric, ``worst(...)``, ``geometric(...)``, or an objective in brackets, perhaps weighted
    metric      ``sp``, ``eo``, ``eqo``, ``accuracy``, ``balanced_accuracy`` or ``f1``; or, of individual
                fairness, which counts do not tell: ``consistency`` or ``flip``
    metric@a    by the attribute ``a`` alone; ``metric@a*b`` by its combinations with ``b``
    [rule=n]    after a metric of fairness, for small groups: ``eo@a*b[shrink=20]`` draws each rate towards
                the overall one as by 20 more rows of it (the rule of combinations unless another is given; 0
                for none); ``eo[min_count=30]`` excludes groups with fewer rows, or less than 2 % of all

Without ``@`` a fairness metric is that of the only attribute or, where there are several, the worst of them,
each with the rule.
All values are in [0, 1]; 1 is fair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairfate.data.groups import Groups
from fairfate.errors import InputError, plain, unknown
from fairfate.fairness import metrics
from fairfate.fairness.individual import INDIVIDUAL, Fairness, IndividualObjective
from fairfate.fairness.metrics import Counts, Metric, Values

FAIRNESS = ("sp", "eo", "eqo")
PERFORMANCE = ("accuracy", "balanced_accuracy", "f1")
FUNCTIONS = ("worst", "geometric")
RULES = ("shrink", "min_count")
WORDS = (*FAIRNESS, *PERFORMANCE, *INDIVIDUAL, *FUNCTIONS)

SHRINK = 20.0
"""Rows of the overall rate that are added to each combination of attributes: small ones say little."""
MIN_PEOPLE = 10
"""Behind a rate that is compared with those of other groups."""


@dataclass(frozen=True)
class GroupMetric:
    """A metric, perhaps by some of the attributes."""

    metric: str
    attributes: tuple[str, ...] = ()
    small: tuple[str, float] | None = None
    """How small groups are treated: a rule and its number."""

    def __str__(self) -> str:
        names = [name if re.fullmatch(_WORD, name) else f'"{name}"' for name in self.attributes]
        small = "" if self.small is None else f"[{self.small[0]}={plain(self.small[1])}]"
        return f"{self.metric}@{'*'.join(names)}{small}" if names else f"{self.metric}{small}"

    @property
    def rule(self) -> tuple[str, float]:
        """The rule for small groups, given or usual."""
        return self.small or ("shrink", SHRINK if len(self.attributes) > 1 else 0.0)


@dataclass(frozen=True)
class WeightedMean:
    """A weighted mean of objectives."""

    terms: tuple[tuple[float, Objective], ...]

    def __str__(self) -> str:
        parts = []
        for weight, term in self.terms:
            text = f"({term})" if isinstance(term, WeightedMean) else str(term)
            parts.append(text if weight == 1 else f"{plain(weight)}*{text}")
        return "+".join(parts)


@dataclass(frozen=True)
class Combination:
    """The worst, or the geometric mean, of several objectives."""

    function: str
    parts: tuple[Objective, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.parts))})"


Objective = GroupMetric | WeightedMean | Combination

_WORD = r"[^\W\d][\w.-]*"
_TOKEN = re.compile(rf'\s*(?:(\d+\.?\d*(?:e-?\d+)?|\.\d+)|({_WORD})|"([^"]*)"|([+*(),@=\[\]]))')


def parse_objective(text: str, where: str = "metric", *, counted: bool = False) -> Objective:
    """Read an objective.

    Parameters
    ----------
    text : the objective
    where : what to call it in an error
    counted : whether it must be one that counts tell, without terms of individual fairness

    Examples
    --------
    >>> str(parse_objective("0.5*sp + 0.5*eo@sex"))
    '0.5*sp+0.5*eo@sex'
    >>> str(parse_objective("worst(eo@sex,eo@sex*race)"))
    'worst(eo@sex, eo@sex*race)'
    """
    objective = _Parser(text, where).parse()
    if counted:
        check_counted(objective, where)
    return objective


def check_counted(objective: Objective, where: str = "metric") -> None:
    """InputError if it has terms that counts by group do not tell."""
    if individual_terms(objective):
        raise InputError(
            f"{where} must be made of {', '.join((*FAIRNESS, *PERFORMANCE))} here, which counts by group tell"
            f" (consistency and flip are for a strategy's own: fair_fate:metric=flip), got '{objective}'"
        )


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where, self.index = text, where, 0
        self.tokens: list[tuple[str, str, int]] = []
        """Kind, text and position of each."""
        position = 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None:
                self.index = len(self.tokens)
                start = len(text) - len(text[position:].lstrip())
                raise self._error("a number, a name or one of + * ( ) , @", start)
            group = match.lastindex or 1
            kind = ("number", "name", "quoted", "symbol")[group - 1]
            self.tokens.append((kind, match.group(group), match.start(group)))
            position = match.end()

    def parse(self) -> Objective:
        objective = self._mean()
        if self.index < len(self.tokens):
            raise self._error("the end, or a +")
        return objective

    def _accept(self, *kinds: str, symbol: str | None = None) -> str | None:
        """The text of the next token, which is then behind us, if it is of these kinds or this symbol."""
        if self.index >= len(self.tokens):
            return None
        kind, text, _ = self.tokens[self.index]
        if not (kind in kinds or (kind == "symbol" and text == symbol)):
            return None
        self.index += 1
        return text

    def _expect(self, rule: str, *kinds: str, symbol: str | None = None) -> str:
        text = self._accept(*kinds, symbol=symbol)
        if text is None:
            raise self._error(rule)
        return text

    def _mean(self) -> Objective:
        terms = [self._term()]
        while self._accept(symbol="+"):
            terms.append(self._term())
        if len(terms) == 1:
            return terms[0][1]
        if not sum(weight for weight, _ in terms) > 0:
            raise self._error("weights that do not all vanish", 0)
        return WeightedMean(tuple(terms))

    def _term(self) -> tuple[float, Objective]:
        weight = self._accept("number")
        if weight is not None:
            self._expect("'*'", symbol="*")
        return float(weight or 1), self._factor()

    def _factor(self) -> Objective:
        if self._accept(symbol="("):
            inside = self._mean()
            self._expect("')'", symbol=")")
            return inside
        name = self._expect("a metric", "name")
        if name not in WORDS:
            self.index -= 1
            raise InputError(f"{unknown(f'name in {self.where}', name, WORDS)}{self._mark()}")
        return self._combination(name) if name in FUNCTIONS else self._metric(name)

    def _combination(self, name: str) -> Combination:
        self._expect("'('", symbol="(")
        parts = [self._mean()]
        while self._accept(symbol=","):
            parts.append(self._mean())
        self._expect("')'", symbol=")")
        return Combination(name, tuple(parts))

    def _metric(self, name: str) -> GroupMetric:
        attributes: list[str] = []
        while self._accept(symbol="*" if attributes else "@"):
            attributes.append(self._expect("an attribute", "name", "quoted"))
        last = self.tokens[self.index - 1][2]
        if attributes and name not in FAIRNESS:
            raise self._error(f"no attribute for {name}, which is everybody's", last)
        if len(set(attributes)) < len(attributes):
            raise self._error("each attribute once", last)
        return GroupMetric(name, tuple(attributes), self._small_rule() if name in FAIRNESS else None)

    def _small_rule(self) -> tuple[str, float] | None:
        if not self._accept(symbol="["):
            return None
        rule = self.tokens[self.index][1] if self.index < len(self.tokens) else ""
        if rule not in RULES:
            raise self._error(" or ".join(RULES))
        self.index += 1
        self._expect("'='", symbol="=")
        number = float(self._expect("a number >= 0", "number"))
        self._expect("']'", symbol="]")
        return rule, number

    def _error(self, rule: str, position: int | None = None) -> InputError:
        at_end = self.index >= len(self.tokens)
        got = "the end" if at_end else f"'{self.tokens[self.index][1]}'"
        if position is not None:
            got = f"'{self.text[position : position + 12]}'"
        return InputError(f"{self.where} '{self.text}' must have {rule}, got {got}{self._mark(position)}")

    def _mark(self, position: int | None = None) -> str:
        """A line below the text that points at a position, or at the next token."""
        if position is None:
            at_end = self.index >= len(self.tokens)
            position = len(self.text) if at_end else self.tokens[self.index][2]
        return f" here:\n    {self.text}\n    {' ' * position}^"


def parts_of(objective: WeightedMean | Combination) -> list[tuple[float, Objective]]:
    """What it is made of, with weights."""
    if isinstance(objective, WeightedMean):
        return list(objective.terms)
    return [(1.0, part) for part in objective.parts]


def individual_terms(objective: Objective | str) -> frozenset[str]:
    """The terms of individual fairness that an objective has.

    >>> sorted(individual_terms("0.5*flip+0.5*eo"))
    ['flip']
    """
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, GroupMetric):
        return frozenset({parsed.metric} & set(INDIVIDUAL))
    return frozenset().union(*(individual_terms(part) for _, part in parts_of(parsed)))


def is_individual(objective: Objective | str) -> bool:
    """Whether nothing but such terms counts in it, so that one answer for everybody is perfect."""
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, GroupMetric):
        return parsed.metric in INDIVIDUAL
    return all(is_individual(part) for weight, part in parts_of(parsed) if weight > 0)


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
    if isinstance(objective, GroupMetric):
        return objective.metric in FAIRNESS
    if isinstance(objective, WeightedMean):
        return all(_is_gap(term) for _, term in objective.terms)
    return objective.function == "worst" and all(map(_is_gap, objective.parts))


def _bind(
    objective: Objective, groups: Groups, known: Mapping[str, Metric], difference: bool, least: int = 0
) -> Metric:
    if isinstance(objective, WeightedMean):
        weights = [weight for weight, _ in objective.terms]
        parts = [_bind(term, groups, known, difference, least) for _, term in objective.terms]
        return partial(_mean, parts, weights)
    if isinstance(objective, Combination):
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
        by_attribute = tuple(
            GroupMetric(objective.metric, (name,), objective.small) for name in groups.attributes
        )
        return _bind(Combination("worst", by_attribute), groups, known, difference, least)
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
        indices = np.flatnonzero(compared)
        merged = lambda counts: metric(counts[..., indices, :, :])  # noqa: E731
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
    return np.asarray(np.minimum.reduce([part(counts) for part in parts]))


def _largest(parts: list[Metric], counts: Counts) -> Values:
    values = np.stack([part(counts) for part in parts])
    index = np.abs(np.nan_to_num(values)).argmax(axis=0)
    largest = np.take_along_axis(values, index[None], axis=0)[0]
    return np.where(np.isnan(values).any(axis=0), np.nan, largest)


def _geometric(parts: list[Metric], counts: Counts) -> Values:
    values = np.stack([part(counts) for part in parts])
    return np.asarray(np.prod(values, axis=0) ** (1 / len(parts)))


def metrics_by(groups: Groups | None) -> dict[str, Metric]:
    """Every metric as a function of counts by group; of several attributes, the worst."""
    if groups is None or not groups.attributes:
        return dict(metrics.METRICS)
    differences = [name for name in metrics.METRICS if name.endswith("_diff")]
    known = {name: _compared(metrics.METRICS[name], groups, groups.attributes) for name in differences}
    return metrics.METRICS | known | {name: bind(name, groups) for name in FAIRNESS}


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
    for name, rate_functions in rates.items():
        ratios = [
            _defined_ratio(np.where(people >= max(least, 1), rate(compared), np.nan))
            for rate, people in zip(rate_functions, behind[name], strict=True)
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
    worst: dict[str, Values] = {}
    for attribute in groups.attributes:
        for name, values in fairness_by(counts, groups, (attribute,)).items():
            exact = bind(GroupMetric(name, (attribute,)), groups)(counts)
            defined = np.where(np.isnan(values), exact, values)
            worst[name] = defined if name not in worst else np.minimum(worst[name], defined)
    return worst


def small_groups(objective: Objective | str) -> list[str]:
    """What is done with small groups, in words, for each part that does something."""
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, GroupMetric):
        rule, number = parsed.rule
        if not number:
            return []
        if rule == "shrink":
            return [f"{parsed}: rates are drawn towards the overall one, as by {number:g} more rows of it"]
        return [f"{parsed}: groups of fewer than {number:g} rows, or 2 % of all, are not assessed"]
    return [line for _, part in parts_of(parsed) for line in small_groups(part)]


def check_defined(metric: Fairness, rows: Counts, describe: Callable[[], str]) -> None:
    """InputError unless the objective is defined on rows, which depends on them and never on a model.

    Parameters
    ----------
    metric : a bound objective
    rows : (groups, 2) rows by group and label
    describe : what to call the objective and the rows
    """
    counts = np.stack([rows, np.zeros_like(rows)], axis=-1)
    value = metric(counts, metric.perfect()) if isinstance(metric, IndividualObjective) else metric(counts)
    if np.isnan(value):
        raise InputError(describe())
