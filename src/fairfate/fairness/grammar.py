"""A fairness objective is one small text, such as ``eqo``, ``0.5*sp+0.5*eo`` or ``worst(eo@sex, eo@race)``.

    objective   a weighted mean of terms: ``sp``, ``sp+eo``, ``0.7*sp+0.3*accuracy``
    term        a metric, ``worst(...)``, ``geometric(...)``, or an objective in brackets, perhaps weighted
    metric      ``sp``, ``eo``, ``eqo``, ``accuracy``, ``balanced_accuracy`` or ``f1``; or of single people,
                which counts do not tell: ``consistency`` or ``flip``
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
from dataclasses import dataclass

from fairfate.errors import InputError, plain, unknown
from fairfate.fairness.individual import INDIVIDUAL

FAIRNESS = ("sp", "eo", "eqo")
PERFORMANCE = ("accuracy", "balanced_accuracy", "f1")
FUNCTIONS = ("worst", "geometric")
RULES = ("shrink", "min_count")
WORDS = (*FAIRNESS, *PERFORMANCE, *INDIVIDUAL, *FUNCTIONS)

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
        return f"{self.metric}@{'*'.join(named)}{small}" if named else f"{self.metric}{small}"

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


def parse_objective(text: str, where: str = "metric", *, counted: bool = False) -> Objective:
    """Read an objective; one that counts tell, if it must be ``counted``.

    >>> str(parse_objective("0.5*sp + 0.5*eo@sex"))
    '0.5*sp+0.5*eo@sex'
    >>> str(parse_objective("worst(eo@sex,eo@sex*race)"))
    'worst(eo@sex, eo@sex*race)'
    """
    objective = _Parser(text, where).whole()
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
        if attributes and name in (*PERFORMANCE, *INDIVIDUAL):
            raise self._wrong(f"no attribute for {name}, which is everybody's", self.tokens[self.at - 1][2])
        if len(set(attributes)) < len(attributes):
            raise self._wrong("each attribute once", self.tokens[self.at - 1][2])
        return Measured(name, tuple(attributes), self._small() if name in FAIRNESS else None)

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


def parts_of(objective: Mean | Together) -> list[tuple[float, Objective]]:
    """What it is made of, with weights."""
    if isinstance(objective, Mean):
        return list(objective.terms)
    return [(1.0, part) for part in objective.parts]


def individual_terms(objective: Objective | str) -> frozenset[str]:
    """The terms of individual fairness that an objective has."""
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, Measured):
        return frozenset({parsed.metric} & set(INDIVIDUAL))
    return frozenset().union(*(individual_terms(part) for _, part in parts_of(parsed)))


def is_individual(objective: Objective | str) -> bool:
    """Whether nothing but such terms counts in it, so that one answer for everybody is perfect."""
    parsed = parse_objective(objective) if isinstance(objective, str) else objective
    if isinstance(parsed, Measured):
        return parsed.metric in INDIVIDUAL
    return all(is_individual(part) for weight, part in parts_of(parsed) if weight > 0)
