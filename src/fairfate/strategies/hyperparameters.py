"""Hyperparameters of strategies and steps: how each is declared, read, checked and explained.

A strategy declares them in its factory's signature and nowhere else::

    def my_strategy(setup: Setup, *, share: Annotated[float, Range(0, 1), "of the clients"] = 0.3) -> Strategy
"""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from fairfate.errors import InputError, reason_of, unknown
from fairfate.fairness.objective import FAIRNESS, parse_objective

RUN_METRIC = "run"
"""The default of a metric: the run's own."""


@dataclass(frozen=True)
class Range:
    """The numbers that a hyperparameter may be.

    Examples
    --------
    >>> Share = Annotated[float, Range(0, 1, below_high=True), "of the clients"]  # in [0, 1)
    """

    low: float = 0.0
    """The smallest."""
    high: float = math.inf
    """The largest."""
    above_low: bool = False
    """Whether ``low`` itself is excluded."""
    below_high: bool = False
    """Whether ``high`` itself is excluded."""


@dataclass(frozen=True)
class Guarded:
    """The default of a hyperparameter in runs with guards: those on users' own data.

    Examples
    --------
    >>> MinMcc = Annotated[float, Range(0, 1), Guarded(0.05), "least MCC of a fair client"]
    """

    default: float
    """Its value there."""


EXTENSION = "(extension)"
"""Marks what goes beyond a paper's rule: at its default it is left out of texts and records."""


@dataclass(frozen=True)
class Number:
    """A hyperparameter that is a number in a range."""

    default: float
    help: str
    low: float = 0.0
    high: float = 1.0
    below_high: bool = False
    above_low: bool = False
    whole: bool = False
    extension: bool = False
    """Left out of texts and records at its default."""
    guarded: float | None = None
    """The default in a run with guards; then, or where it is given, it is not left out."""

    @property
    def rule(self) -> str:
        """The range in words."""
        if math.isinf(self.low):
            return "finite"
        if math.isinf(self.high):
            return f"{'>' if self.above_low else '>='} {self.low:g}"
        return (
            f"in {'(' if self.above_low else '['}{self.low:g}, {self.high:g}{')' if self.below_high else ']'}"
        )

    def parse(self, text: object, name: str) -> float:
        """The value, or an InputError that names the hyperparameter, the rule and the value."""
        try:
            value = float(str(text))
        except ValueError:
            raise InputError(f"{name} must be a number {self.rule}, got '{text}'") from None
        inside = self.low <= value <= self.high and not math.isinf(value)
        inside &= not (self.below_high and value == self.high) and not (self.above_low and value == self.low)
        if not inside or math.isnan(value):
            raise InputError(f"{name} must be {self.rule}, got {value:g}")
        if self.whole and value != int(value):
            raise InputError(f"{name} must be a whole number, got {value:g}")
        return value


@dataclass(frozen=True)
class Choice:
    """A hyperparameter that is one of a few words."""

    default: str
    help: str
    options: tuple[str, ...]
    extension: bool = False
    """As of a number."""

    @property
    def rule(self) -> str:
        """The options in words."""
        return "one of " + "|".join(self.options)

    def parse(self, text: object, name: str) -> str:
        """The value, or an InputError that names the hyperparameter, the rule and the value."""
        if text not in self.options:
            raise InputError(f"{name} must be {self.rule}, got '{text}'")
        return str(text)


@dataclass(frozen=True)
class ObjectiveSetting:
    """A hyperparameter that is a fairness objective. The default None stands for the run's own choice."""

    help: str
    default: None = None
    rule: str = "an objective such as sp|eo|eqo|0.5*sp+0.5*eo|worst(eo@sex, eo@race)"
    extension = False
    counted: bool = False
    """Whether it must be one that counts tell, without terms of individual fairness."""

    def parse(self, text: object, name: str) -> str:
        """The objective's text in its usual form, or an InputError that points at the mistake."""
        return str(parse_objective(str(text), name, counted=self.counted))


@dataclass(frozen=True)
class MetricSetting:
    """A hyperparameter that is one of the three metrics that rules of papers are written for."""

    help: str
    default: None = None
    rule: str = f"one of {'|'.join(FAIRNESS)}"
    extension = False

    def parse(self, text: object, name: str) -> str:
        """The metric's name, or an InputError that names the hyperparameter, the rule and the value."""
        metric = str(parse_objective(str(text), name))
        if metric not in FAIRNESS:
            raise InputError(f"{name} must be sp, eo or eqo, got '{metric}'")
        return metric


Setting = Number | Choice | ObjectiveSetting | MetricSetting

Objective = Annotated[str, ObjectiveSetting("fairness it looks at")]
"""A metric, or an objective made of several."""
GroupMetric = Annotated[str, MetricSetting("fairness it looks at")]
"""One of the three metrics that papers have rules for: sp, eo or eqo."""


def read_signature(factory: Callable[..., Any], name: str) -> dict[str, Setting]:
    """The hyperparameters of a factory: all parameters but the first, which is the `Setup`.

    >>> def factory(setup, *, share: Annotated[float, Range(0, 1), "of the clients"] = 0.3): ...
    >>> read_signature(factory, "mine")["share"].rule
    'in [0, 1]'
    """
    parameters = list(inspect.signature(factory).parameters.values())
    if not parameters:
        raise InputError(f"strategy '{name}' must have a setup as its first parameter")
    written = {each.name: each.annotation for each in parameters[1:] if each.annotation is not each.empty}
    try:
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__=written), getattr(factory, "__globals__", {}), include_extras=True
        )
    except Exception as error:
        raise InputError(
            f"strategy '{name}' must have readable annotations, got {reason_of(error)}"
        ) from None
    return {
        each.name: _declared(f"{name}: {each.name}", each.default, hints.get(each.name))
        for each in parameters[1:]
    }


def _declared(name: str, default: Any, hint: Any) -> Setting:
    """A hyperparameter from a default, and from what an annotation says of it."""
    kind, *about = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    for setting in about:
        if isinstance(setting, ObjectiveSetting | MetricSetting):
            return setting
    words = "; ".join(text for text in about if isinstance(text, str) and text != EXTENSION)
    is_extension = EXTENSION in about
    if typing.get_origin(kind) is Literal and default in typing.get_args(kind):
        return Choice(default, words, typing.get_args(kind), is_extension)
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    if not is_number or kind not in (None, int, float):
        raise InputError(
            f"{name} must be declared as a number, a Literal of texts or an Objective, with a default,"
            f" got {inspect.formatannotation(kind)}"
        )
    numbers = next((item for item in about if isinstance(item, Range)), Range(-math.inf))
    guarded = next((item.default for item in about if isinstance(item, Guarded)), None)
    whole = kind is int
    return Number(default, words, **asdict(numbers), whole=whole, extension=is_extension, guarded=guarded)


def split_outside(text: str, separator: str) -> list[str]:
    """Cut a text at a separator, but not inside brackets or quotes.

    >>> split_outside('metric=worst(sp, eo),lam0=1', ",")
    ['metric=worst(sp, eo)', 'lam0=1']
    """
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == separator and depth <= 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def read_settings(rest: str, text: str, what: str) -> dict[str, str]:
    """The pairs of ``key=value,...``."""
    given: dict[str, str] = {}
    for pair in filter(None, split_outside(rest, ",")):
        key, equals, value = pair.strip().partition("=")
        if not equals:
            raise InputError(f"{what} '{text}' must be NAME:key=value,..., got '{pair}'")
        if key in given:
            raise InputError(f"{what} '{text}' must name each key once, got '{key}' twice")
        given[key] = value
    return given


def resolve_settings(
    name: str,
    settings: Mapping[str, Setting],
    given: Mapping[str, object],
    metric: str,
    what: str,
    *,
    guard: bool = False,
) -> tuple[tuple[str, float | str], ...]:
    """Every setting with its value; ``metric`` is the default of an objective, ``guard`` turns guards on.

    Extensions of a paper's rule are left out where they have their default.
    """
    for key in given:
        if key not in settings:
            if not settings:
                raise InputError(f"{what} '{name}' has no hyperparameters, got '{key}'")
            raise unknown(f"hyperparameter of {name}", key, settings)
    values: list[tuple[str, float | str]] = []
    for key, setting in settings.items():
        default = RUN_METRIC if setting.default is None else setting.default
        guarded = setting.guarded if isinstance(setting, Number) else None
        if guard and guarded is not None:
            default = guarded
        value = given.get(key, default)
        is_given = guarded is not None and key in given
        if value == RUN_METRIC and setting.default is None:
            value = metric
        if value != RUN_METRIC:
            value = setting.parse(value, f"{name}: {key}")
        if is_given or not (setting.extension and value == setting.default):
            values.append((key, value))
    return tuple(values)
