"""Strategies by name, and how a text with settings and steps becomes something that can be run."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check, listing, plain, unknown
from fairfate.fairness.grammar import individual_terms, is_individual
from fairfate.fairness.individual import Fairness
from fairfate.fairness.metrics import GAPS, Metric
from fairfate.fairness.objective import bind, bind_people
from fairfate.strategies.foreign import calling, checked
from fairfate.strategies.robust import robust
from fairfate.strategies.settings import Setting, read_settings, resolve_settings
from fairfate.strategies.steps import ROBUST, THRESHOLDS, Step, parse_steps, split_steps
from fairfate.strategies.strategy import Strategy

TWO_GROUPS = Groups.single("group", ("0", "1"))


@lru_cache(maxsize=256)
def _bound(metric: str, groups: Groups, published: bool, least: int) -> Metric:
    """One function for each objective, so that strategies with the same one are measured together."""
    return bind(metric, groups, published=published, least=least)


@dataclass(frozen=True)
class Setup:
    """What a strategy may know about the run it is built for."""

    num_rounds: int
    published: bool = False
    groups: Groups = TWO_GROUPS
    learning_rate: float | None = None
    """Of the clients' SGD, where it is known."""
    min_cell: int = 0
    """Rows that a rate must have behind it for fairness to be defined, where clients hold them."""

    def fairness(self, metric: str) -> Metric:
        """An objective under the run's protocol, as a function of counts."""
        return _bound(metric, self.groups, self.published, self.min_cell)

    def objective(self, metric: str, min_mcc: float) -> Fairness:
        """The same for a strategy with a guard, which may look at individual fairness too.

        Where it looks at nothing else the guard must be on: one answer for everybody would be perfect.
        """
        check(
            min_mcc > 0 or not is_individual(metric),
            f"min_mcc must be > 0 for metric '{metric}', which is 1 for one answer for everybody",
            f"{min_mcc:g}",
        )
        if individual_terms(metric):
            return bind_people(metric, self.groups, published=self.published, least=self.min_cell)
        return self.fairness(metric)

    def gap(self, metric: str, gaps: Mapping[str, Metric] = GAPS) -> Metric:
        """The same as a difference between the groups, signed unless others are given; 0 is fair."""
        return bind(metric, self.groups, difference=True, gaps=gaps)

    def check_two_groups(self, name: str) -> None:
        """For a strategy whose rule compares one group with the other."""
        check(len(self.groups) == 2, f"{name} must be run with two groups", len(self.groups))


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
    for what, value in (("name", name), ("summary", summary), ("reference", reference)):
        check(isinstance(value, str), f"a strategy's {what} must be a text", repr(value))
    check(re.fullmatch(r"[A-Za-z]\w*", name) is not None, "a strategy's name must be a word", f"'{name}'")
    for key, setting in settings.items():
        rule = f"setting '{key}' of strategy '{name}' must be a Number, a Choice or a metric"
        check(isinstance(setting, Setting), rule, repr(setting))

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
    """A strategy's name with every setting and step resolved: what a run compares and a file records."""

    name: str
    settings: tuple[tuple[str, float | str], ...]
    steps: tuple[Step, ...] = field(default=())

    @property
    def base(self) -> Spec:
        """What is trained: the strategy without the steps that change what is released."""
        return replace(self, steps=tuple(step for step in self.steps if step.name in ROBUST))

    @property
    def own(self) -> Spec:
        """The strategy without any step: all that concerns a client."""
        return replace(self, steps=())

    def step(self, name: str) -> Step | None:
        """One of its steps."""
        return next((step for step in self.steps if step.name == name), None)

    @property
    def label(self) -> str:
        """The names alone: ``fedavg+average``."""
        return "+".join([self.name, *(step.name for step in self.steps)])

    @property
    def metric(self) -> str | None:
        """The objective that the released model was chosen by, if any."""
        step = self.step(THRESHOLDS)
        settings = self.settings if step is None else step.settings
        return next((str(value) for key, value in settings if key == "metric"), None)

    @property
    def individual(self) -> frozenset[str]:
        """The terms of individual fairness in the objective that it is trained by."""
        return frozenset() if self.base.metric is None else individual_terms(self.base.metric)

    @property
    def text(self) -> str:
        """As on the command line: ``name:key=value,...+step:...``."""
        pairs = [f"{key}={plain(value)}" for key, value in self.settings]
        own = f"{self.name}:{','.join(pairs)}" if pairs else self.name
        return "+".join([own, *(step.text for step in self.steps)])

    @property
    def recorded(self) -> dict[str, float | str]:
        """The settings other than the metric, as files have them."""
        found: dict[str, float | str] = {}
        if self.step(THRESHOLDS) is not None and self.base.metric is not None:
            found["of"] = self.base.metric
        found |= {key: value for key, value in self.settings if key != "metric"}
        for step in self.steps:
            usual = _FIRST_RULE if step.name == THRESHOLDS else {}
            for key, value in step.settings:
                if key != "metric" and usual.get(key) != value:
                    own = step.name not in ROBUST and key not in found
                    found[key if own else f"{step.name}_{key}"] = value
        return found

    @property
    def settings_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.recorded)

    @property
    def code(self) -> str:
        """For a strategy that is not ours, a checksum of its code, on which its results depend; else ""."""
        entry = _ENTRIES.get(self.name)
        return "" if entry is None else _code_checksum(entry.build)

    def build(self, setup: Setup) -> Strategy:
        """The strategy itself, with the steps that change its training; the others are taken elsewhere."""
        if self.name not in _ENTRIES:
            raise InputError(
                f"strategy '{self.name}' must be registered in every process: put it into a file and name"
                " that file with --plugin (plugins=...)"
            )
        entry = _ENTRIES[self.name]
        if _is_ours(entry.build):
            strategy = entry.build(setup, **dict(self.settings))
        else:
            with calling(f"strategy '{self.text}'", "must be buildable"):
                strategy = entry.build(setup, **dict(self.settings))
            strategy = checked(strategy, self.name)
        for step in self.base.steps:
            strategy = robust(strategy, step)
        return strategy


_FIRST_RULE = {"keep": 0.0, "against": "best", "from": "validation"}
"""How thresholds were chosen before they had these settings; not recorded, so that old results compare."""


def _is_ours(build: Callable[..., Strategy]) -> bool:
    return (build.__module__ or "").startswith("fairfate.")


def _code_checksum(build: Callable[..., Strategy]) -> str:
    """The SHA-256 of the file that a strategy comes from, or of its code if there is none; "" for ours."""
    module = build.__module__ or ""  # none in code that was run as a text
    if module in _PLUGINS or module.startswith("fairfate."):
        return _PLUGINS.get(module, "")
    file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
    code = getattr(build, "__code__", None)
    content = file.read_bytes() if file.is_file() else repr(code and (code.co_code, code.co_consts)).encode()
    return hashlib.sha256(content).hexdigest()


def parse_spec(text: str, metric: str, *, guard: bool = False, trials: bool = True) -> Spec:
    """Read ``name[:key=value,...][+step[:key=value,...]]...``; settings not named take their defaults.

    With ``guard`` these are the ones against models that give everybody one answer; without ``trials``, only
    those that need no further models to be tried.

    >>> parse_spec("fedmom:beta=0.8", "eqo").text
    'fedmom:beta=0.8'
    >>> parse_spec("fedavg+average", "eqo").text
    'fedavg+average:share=0.5'
    """
    own, steps = split_steps(text)
    name, _, rest = own.partition(":")
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    given = read_settings(rest, text, "strategy")
    spec = make_spec(name, given, metric, guard=guard, trials=trials)
    return replace(spec, steps=parse_steps(steps, metric))


def make_spec(
    name: str, given: Mapping[str, object], metric: str, *, guard: bool = False, trials: bool = True
) -> Spec:
    """A spec from a name and some of its settings; the others are as for `parse_spec`."""
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    settings = _ENTRIES[name].settings
    if guard and not trials and "keep" in settings:
        given = {"keep": "0", **given}
    return Spec(name, resolve_settings(name, settings, given, metric, "strategy", guard=guard))


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
        with calling(f"plugin '{file}'"):
            exec(compile(content, str(file), "exec"), loaded.__dict__)
        if not any(entry.build.__module__ == name for entry in entries()):
            raise InputError(f"plugin '{file}' must register a strategy; known: {listing(_ENTRIES)}")
    except BaseException:
        _ENTRIES.clear()
        _ENTRIES.update(before)
        del _PLUGINS[name]
        raise


def labels(specs: Iterable[Spec]) -> list[str]:
    """Short names for tables: the strategy, with only those settings that tell it from the others.

    >>> labels([parse_spec("fedavg", "sp"), parse_spec("fedmom:beta=0.8", "sp")])
    ['fedavg', 'fedmom']
    >>> labels([parse_spec("fedmom:beta=0.8", "sp"), parse_spec("fedmom:beta=0.9", "sp")])
    ['fedmom(beta=0.8)', 'fedmom(beta=0.9)']
    """
    named = []
    for spec in specs:
        own = {} if spec.metric is None else {"metric": spec.metric}
        named.append((spec.label, {**own, **spec.recorded}))
    return short_names(named)


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
