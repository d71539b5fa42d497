"""A fairness objective is one small text, such as ``eqo``, ``0.5*sp+0.5*eo`` or ``worst(eo@sex, eo@race)``.

    objective   a weighted mean of terms: ``sp``, ``sp+eo``, ``0.7*sp+0.3*accuracy``
    term        a metric, ``worst(...)``, ``geometric(...)``, or an objective in brackets, perhaps weighted
    metric      ``sp``, ``eo``, ``eqo``, ``accuracy``, ``balanced_accuracy`` or ``f1``
    metric@a    by the attribute ``a`` alone; ``metric@a*b`` by its combinations with ``b``
    [rule=n]    after attributes, for small groups: ``eo@a*b[shrink=20]`` draws each rate towards the overall
                one as by 20 more rows of it (the rule of combinations unless another is given; 0 for none);
                ``eo@a*b[min_count=30]`` leaves out groups with fewer rows, or less than 2 % of all

Without ``@`` a fairness metric is that of the only attribute or, where there are several, the worst of them.
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
from fairfate.fairness.metrics import Counts, Metric, Values

FAIRNESS = ("sp", "eo", "eqo")
PERFORMANCE = ("accuracy", "balanced_accuracy", "f1")
FUNCTIONS = ("worst", "geometric")
RULES = ("shrink", "min_count")
WORDS = (*FAIRNESS, *PERFORMANCE, *FUNCTIONS)

SHRINK = 20.0
"""Rows of the overall rate that are added to each combination of attributes: small ones say little."""


@dataclass(frozen=True)
class Measured:
    """A metric, perhaps by some of the attributes."""

    metric: str
    attributes: tuple[str, ...] = ()
    small: tuple[str, float] | None = None
    """How small groups are treated: a rule and its number."""

    def __str__(self) -> str:
        named = [a if re.fullmatch(_WORD, a) else f'"{a}"' for a in self.attributes]
        small = "" if self.small is None else f"[{self.small[0]}={plain(self.small[1])}]"
        return f"{self.metric}@{'*'.join(named)}{small}" if named else self.metric

    @property
    def rule(self) -> tuple[str, float]:
        """The rule for small groups, given or usual."""
        return self.small or ("shrink", SHRINK if len(self.attributes) > 1 else 0.0)


@dataclass(frozen=True)
class Mean:
    """A weighted mean."""

    terms: tuple[tuple[float, Objective], ...]

    def __str__(self) -> str:
        parts = []
        for weight, term in self.terms:
            text = f"({term})" if isinstance(term, Mean) else str(term)
            parts.append(text if weight == 1 else f"{plain(weight)}*{text}")
        return "+".join(parts)


@dataclass(frozen=True)
class Together:
    """The worst, or the geometric mean, of several objectives."""

    function: str
    parts: tuple[Objective, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.parts))})"


Objective = Measured | Mean | Together

_WORD = r"[^\W\d][\w.-]*"
_TOKEN = re.compile(rf'\s*(?:(\d+\.?\d*(?:e-?\d+)?|\.\d+)|({_WORD})|"([^"]*)"|([+*(),@=\[\]]))')


def parse_objective(text: str, where: str = "metric") -> Objective:
    """Read an objective.

    >>> str(parse_objective("0.5*sp + 0.5*eo@sex"))
    '0.5*sp+0.5*eo@sex'
    >>> str(parse_objective("worst(eo@sex,eo@sex*race)"))
    'worst(eo@sex, eo@sex*race)'
    """
    return _Parser(text, where).whole()


class _Parser:
    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                self.at = len(self.tokens)
                raise self._wrong(
                    "a number, a name or one of + * ( ) , @", len(text) - len(text[at:].lstrip())
                )
            kind = ("number", "name", "quoted", "symbol")[(found.lastindex or 1) - 1]
            self.tokens.append((kind, found.group(found.lastindex or 1), found.start(found.lastindex or 1)))
            at = found.end()
        self.at = 0

    def whole(self) -> Objective:
        objective = self._mean()
        if self.at < len(self.tokens):
            raise self._wrong("the end, or a +")
        return objective

    def _peek(self, value: str) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at][:2] == ("symbol", value)

    def _take(self, value: str) -> None:
        if not self._peek(value):
            raise self._wrong(f"'{value}'")
        self.at += 1

    def _mean(self) -> Objective:
        terms = [self._term()]
        while self._peek("+"):
            self.at += 1
            terms.append(self._term())
        if len(terms) == 1:
            return terms[0][1]
        if not sum(weight for weight, _ in terms) > 0:
            raise self._wrong("weights that do not all vanish", 0)
        return Mean(tuple(terms))

    def _term(self) -> tuple[float, Objective]:
        weight = 1.0
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            weight = float(self.tokens[self.at][1])
            self.at += 1
            self._take("*")
        return weight, self._factor()

    def _factor(self) -> Objective:
        if self._peek("("):
            self.at += 1
            inside = self._mean()
            self._take(")")
            return inside
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "name":
            raise self._wrong("a metric")
        name = self.tokens[self.at][1]
        if name not in WORDS:
            raise InputError(f"{unknown(f'name in {self.where}', name, WORDS)}{self._mark()}")
        self.at += 1
        if name in FUNCTIONS:
            self._take("(")
            parts = [self._mean()]
            while self._peek(","):
                self.at += 1
                parts.append(self._mean())
            self._take(")")
            return Together(name, tuple(parts))
        attributes: list[str] = []
        while self._peek("@" if not attributes else "*"):
            self.at += 1
            if self.at >= len(self.tokens) or self.tokens[self.at][0] not in ("name", "quoted"):
                raise self._wrong("an attribute")
            attributes.append(self.tokens[self.at][1])
            self.at += 1
        if attributes and name in PERFORMANCE:
            raise self._wrong(f"no attribute for {name}, which is everybody's", self.tokens[self.at - 1][2])
        if len(set(attributes)) < len(attributes):
            raise self._wrong("each attribute once", self.tokens[self.at - 1][2])
        return Measured(name, tuple(attributes), self._small() if attributes else None)

    def _small(self) -> tuple[str, float] | None:
        if not self._peek("["):
            return None
        self.at += 1
        rule = self.tokens[self.at][1] if self.at < len(self.tokens) else ""
        if rule not in RULES:
            raise self._wrong(" or ".join(RULES))
        self.at += 1
        self._take("=")
        if self.at >= len(self.tokens) or self.tokens[self.at][0] != "number":
            raise self._wrong("a number >= 0")
        number = float(self.tokens[self.at][1])
        self.at += 1
        self._take("]")
        return rule, number

    def _wrong(self, wanted: str, place: int | None = None) -> InputError:
        at_end = self.at >= len(self.tokens)
        got = "the end" if at_end else f"'{self.tokens[self.at][1]}'"
        if place is not None:
            got = f"'{self.text[place : place + 12]}'"
        return InputError(f"{self.where} '{self.text}' must have {wanted}, got {got}{self._mark(place)}")

    def _mark(self, place: int | None = None) -> str:
        """A line below the text that points at the place."""
        at_end = self.at >= len(self.tokens)
        column = place if place is not None else len(self.text) if at_end else self.tokens[self.at][2]
        return f" here:\n    {self.text}\n    {' ' * column}^"


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
    return _bind(parsed, groups, known, difference, least)


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
    groups.check(objective.attributes, f"'{objective}'")
    if not objective.attributes and len(groups.attributes) > 1:
        each = tuple(Measured(objective.metric, (name,)) for name in groups.attributes)
        return _bind(Together("worst", each), groups, known, difference, least)
    attributes = objective.attributes or groups.attributes
    metric = known[objective.metric]
    rule, number = objective.rule
    if number > 0 and known is metrics.FAIRNESS:
        metric = partial((metrics.SHRUNK if rule == "shrink" else metrics.COUNTED)[objective.metric], number)
    elif least > 0:
        metric = partial(_enough, objective.metric, metric, least)
    if len(attributes) == len(groups.attributes):
        return metric
    return lambda counts: metric(groups.merge(counts, attributes))


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
    if groups is None or len(groups.attributes) < 2:
        return dict(metrics.METRICS)
    return metrics.METRICS | {name: bind(name, groups) for name in FAIRNESS}


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
    inside = parsed.parts if isinstance(parsed, Together) else tuple(term for _, term in parsed.terms)
    return [line for part in inside for line in small_groups(part)]


def check_defined(metric: Metric, rows: Counts, said: Callable[[], str]) -> None:
    """InputError unless the objective is defined on rows, which depends on them and never on a model.

    Parameters
    ----------
    metric : a bound objective
    rows : (groups, 2) rows by group and label
    said : what to call the objective and the rows
    """
    counts = np.stack([rows, np.zeros_like(rows)], axis=-1)
    if np.isnan(metric(counts)):
        raise InputError(said())
