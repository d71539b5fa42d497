"""The settings of strategies and steps: how each is read, checked and explained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fairfate.errors import InputError, unknown
from fairfate.fairness.grammar import FAIRNESS, parse_objective


@dataclass(frozen=True)
class Number:
    """A setting that is a number in a range."""

    default: float
    help: str
    low: float = 0.0
    high: float = 1.0
    below_high: bool = False
    above_low: bool = False
    whole: bool = False
    later: bool = False
    """Came after results were first stored: left out where it has its default, so that they still compare."""
    guarded: float | None = None
    """The default in a run with the guard; then, or where it is given, the setting is not left out."""

    @property
    def rule(self) -> str:
        """The range in words."""
        if math.isinf(self.high):
            return f"{'>' if self.above_low else '>='} {self.low:g}"
        return (
            f"in {'(' if self.above_low else '['}{self.low:g}, {self.high:g}{')' if self.below_high else ']'}"
        )

    def parse(self, text: object, name: str) -> float:
        """The value, or an InputError that names the setting, the rule and the value."""
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
    """A setting that is one of a few words."""

    default: str
    help: str
    options: tuple[str, ...]
    later: bool = False
    """As of a number."""

    @property
    def rule(self) -> str:
        """The options in words."""
        return "one of " + "|".join(self.options)

    def parse(self, text: object, name: str) -> str:
        """The value, or an InputError that names the setting, the rule and the value."""
        if text not in self.options:
            raise InputError(f"{name} must be {self.rule}, got '{text}'")
        return str(text)


@dataclass(frozen=True)
class ObjectiveSetting:
    """A setting that is a fairness objective. The default None stands for the run's own choice."""

    help: str
    default: None = None
    rule: str = "an objective such as sp|eo|eqo|0.5*sp+0.5*eo|worst(eo@sex, eo@race)"
    later = False
    counted: bool = False
    """Whether it must be one that counts tell, without terms of individual fairness."""

    def parse(self, text: object, name: str) -> str:
        """The objective's text in its usual form, or an InputError that points at the mistake."""
        return str(parse_objective(str(text), name, counted=self.counted))


@dataclass(frozen=True)
class MetricSetting:
    """A setting that is one of the three metrics that rules of papers are written for."""

    help: str
    default: None = None
    rule: str = f"one of {'|'.join(FAIRNESS)}"
    later = False

    def parse(self, text: object, name: str) -> str:
        """The metric's name, or an InputError that names the setting, the rule and the value."""
        found = str(parse_objective(str(text), name))
        if found not in FAIRNESS:
            raise InputError(f"{name} must be sp, eo or eqo, got '{found}'")
        return found


Setting = Number | Choice | ObjectiveSetting | MetricSetting

METRIC = ObjectiveSetting("fairness it looks at")
COUNTED_METRIC = ObjectiveSetting("fairness it looks at", counted=True)
ONE_METRIC = MetricSetting("fairness it looks at")


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
            raise InputError(f"{what} '{text}' must name each setting once, got '{key}' twice")
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

    Settings that came later are left out where they have their default.
    """
    for key in given:
        if key not in settings:
            if not settings:
                raise InputError(f"{what} '{name}' has no settings, got '{key}'")
            raise unknown(f"setting of {name}", key, settings)
    values: list[tuple[str, float | str]] = []
    for key, setting in settings.items():
        default = metric if setting.default is None else setting.default
        guarded = setting.guarded if isinstance(setting, Number) else None
        if guard and guarded is not None:
            default = guarded
        value = setting.parse(given.get(key, default), f"{name}: {key}")
        said = guarded is not None and key in given
        if said or not (setting.later and value == setting.default):
            values.append((key, value))
    return tuple(values)
