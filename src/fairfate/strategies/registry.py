"""Strategies by name: their settings, and how a name with settings becomes a strategy."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fairfate.errors import InputError, check, listing, plain, unknown
from fairfate.metrics import FAIRNESS, PUBLISHED_FAIRNESS, Metric
from fairfate.strategies.strategy import Strategy


@dataclass(frozen=True)
class Number:
    """A setting that is a number in a range."""

    default: float
    help: str
    low: float = 0.0
    high: float = 1.0
    below_high: bool = False

    @property
    def rule(self) -> str:
        """The range in words."""
        return f"in [{self.low:g}, {self.high:g}{')' if self.below_high else ']'}"

    def parse(self, text: object, name: str) -> float:
        """The value, or an InputError that names the setting, the rule and the value."""
        try:
            value = float(str(text))
        except ValueError:
            raise InputError(f"{name} must be a number {self.rule}, got '{text}'") from None
        inside = self.low <= value <= self.high and not (self.below_high and value == self.high)
        if not inside or math.isnan(value):
            raise InputError(f"{name} must be {self.rule}, got {value:g}")
        return value


@dataclass(frozen=True)
class Choice:
    """A setting that is one of a few words. The default None stands for the run's own choice."""

    default: str | None
    help: str
    options: tuple[str, ...]

    @property
    def rule(self) -> str:
        """The options in words."""
        return "one of " + "|".join(self.options)

    def parse(self, text: object, name: str) -> str:
        """The value, or an InputError that names the setting, the rule and the value."""
        if text not in self.options:
            raise InputError(f"{name} must be {self.rule}, got '{text}'")
        return str(text)


Setting = Number | Choice


@dataclass(frozen=True)
class Setup:
    """What a strategy may know about the run it is built for."""

    num_rounds: int
    published: bool = False

    def fairness(self, metric: str) -> Metric:
        """The fairness function of that name under the run's protocol."""
        return (PUBLISHED_FAIRNESS if self.published else FAIRNESS)[metric]


METRIC = Choice(None, "fairness it looks at", tuple(FAIRNESS))


@dataclass(frozen=True)
class Entry:
    """A registered strategy."""

    name: str
    summary: str
    reference: str
    settings: Mapping[str, Setting]
    build: Callable[..., Strategy]


_ENTRIES: dict[str, Entry] = {}
_PLUGINS: dict[str, str] = {}
"""The SHA-256 of each plugin's file, by the name of its module."""


def register(
    name: str, summary: str, reference: str, **settings: Setting
) -> Callable[[Callable[..., Strategy]], Callable[..., Strategy]]:
    """Make ``build(setup, **settings) -> Strategy`` available under a name, with its settings."""
    check(re.fullmatch(r"[A-Za-z]\w*", name) is not None, "a strategy's name must be a word", f"'{name}'")

    def add(build: Callable[..., Strategy]) -> Callable[..., Strategy]:
        known = _ENTRIES.get(name)
        if known is not None and known.build.__module__ != build.__module__:
            raise InputError(
                f"a strategy's name must be new, got '{name}', which is taken by: {known.summary}"
            )
        _ENTRIES[name] = Entry(name, summary, reference, settings, build)
        return build

    return add


def entries() -> list[Entry]:
    """All registered strategies, by name."""
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


@dataclass(frozen=True)
class Spec:
    """A strategy's name with every setting resolved: what a run compares and a file records."""

    name: str
    settings: tuple[tuple[str, float | str], ...]

    @property
    def metric(self) -> str | None:
        """The fairness metric it looks at, if any."""
        return next((str(value) for key, value in self.settings if key == "metric"), None)

    @property
    def text(self) -> str:
        """As on the command line: ``name:key=value,...``."""
        pairs = [f"{key}={plain(value)}" for key, value in self.settings]
        return f"{self.name}:{','.join(pairs)}" if pairs else self.name

    @property
    def code(self) -> str:
        """For a strategy that is not ours, a checksum of its code, on which its results depend; else ""."""
        entry = _ENTRIES.get(self.name)
        return "" if entry is None else _code_checksum(entry.build)

    @property
    def settings_json(self) -> str:
        """The settings other than the metric, as JSON."""
        return json.dumps({key: value for key, value in self.settings if key != "metric"})

    def build(self, setup: Setup) -> Strategy:
        """The strategy itself."""
        if self.name not in _ENTRIES:
            raise InputError(
                f"strategy '{self.name}' must be registered in every process: put it into a file and name"
                " that file with --plugin (plugins=...)"
            )
        return _ENTRIES[self.name].build(setup, **dict(self.settings))


def _code_checksum(build: Callable[..., Strategy]) -> str:
    """The SHA-256 of the file that a strategy comes from, or of its code if there is none; "" for ours."""
    module = build.__module__
    if module in _PLUGINS or module.startswith("fairfate."):
        return _PLUGINS.get(module, "")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    code = getattr(build, "__code__", None)
    content = file.read_bytes() if file.is_file() else repr(code and (code.co_code, code.co_consts)).encode()
    return hashlib.sha256(content).hexdigest()


def parse_spec(text: str, metric: str) -> Spec:
    """Read ``name[:key=value,...]``; settings not named take their defaults.

    >>> parse_spec("fedmom:beta=0.8", "eqo").text
    'fedmom:beta=0.8'
    >>> parse_spec("fedval", "eqo").text
    'fedval:metric=eqo'
    """
    name, _, rest = text.partition(":")
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    given: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"strategy '{text}' must be NAME:key=value,..., got '{pair}'")
        if key in given:
            raise InputError(f"strategy '{text}' must name each setting once, got '{key}' twice")
        given[key] = value
    return make_spec(name, given, metric)


def make_spec(name: str, given: Mapping[str, object], metric: str) -> Spec:
    """A spec from a name and some of its settings; ``metric`` is the default for a metric setting."""
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    settings = _ENTRIES[name].settings
    for key in given:
        if key not in settings:
            if not settings:
                raise InputError(f"strategy '{name}' has no settings, got '{key}'")
            raise unknown(f"setting of {name}", key, settings)
    values: list[tuple[str, float | str]] = []
    for key, setting in settings.items():
        default = metric if setting.default is None else setting.default
        values.append((key, setting.parse(given.get(key, default), f"{name}: {key}")))
    return Spec(name, tuple(values))


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers strategies of its own."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"plugin must be a Python file, got '{file}' (no such file)")
    place = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]  # others may have the same name
    name = f"fairfate_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{place}"
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if _PLUGINS.get(name) == digest:
        return
    loaded = ModuleType(name)
    loaded.__file__ = str(file)
    before = dict(_ENTRIES)
    for known in [known for known, entry in _ENTRIES.items() if entry.build.__module__ == name]:
        del _ENTRIES[known]  # an older version of the file
    sys.modules[name], _PLUGINS[name] = loaded, digest
    try:
        exec(compile(content, str(file), "exec"), loaded.__dict__)
        if not any(entry.build.__module__ == name for entry in entries()):
            raise InputError(f"plugin '{file}' must register a strategy; known: {listing(_ENTRIES)}")
    except (Exception, SystemExit) as error:
        _ENTRIES.clear()
        _ENTRIES.update(before)
        del _PLUGINS[name]
        if isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"plugin '{file}' must run without an error, got {reason}") from error


def labels(specs: Iterable[Spec]) -> list[str]:
    """Short names for tables: the strategy, with only those settings that tell it from the others.

    >>> labels([parse_spec("fedavg", "sp"), parse_spec("fedmom:beta=0.8", "sp")])
    ['fedavg', 'fedmom']
    >>> labels([parse_spec("fedmom:beta=0.8", "sp"), parse_spec("fedmom:beta=0.9", "sp")])
    ['fedmom(beta=0.8)', 'fedmom(beta=0.9)']
    """
    return short_names([(spec.name, dict(spec.settings)) for spec in specs])


def short_names(strategies: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """The same for names with settings, as read from a file."""
    result = []
    for name, settings in strategies:
        twins = [other for twin, other in strategies if twin == name]
        telling = [
            f"{key}={plain(value)}"
            for key, value in settings.items()
            if any(other.get(key) != value for other in twins)
        ]
        result.append(f"{name}({', '.join(telling)})" if telling else name)
    return result
