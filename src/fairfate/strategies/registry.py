"""Strategies by name, and how a text or an object becomes something that can be run.

A factory is a function ``(setup, *, hyperparameters) -> Strategy`` under `register`. Its call gives a `Spec`,
which is the same as the text of the command line: ``fedmom(beta=0.8)`` is ``"fedmom:beta=0.8"``.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check, listing, plain, reason_of, unknown
from fairfate.fairness.individual import Fairness
from fairfate.fairness.metrics import GAPS, Metric
from fairfate.fairness.objective import bind, bind_individual, individual_terms, is_individual
from fairfate.strategies.hyperparameters import (
    RUN_METRIC,
    Number,
    Setting,
    read_settings,
    read_signature,
    resolve_settings,
)
from fairfate.strategies.plugins import (
    checked,
    code_checksum,
    is_built_in,
    is_in_plugin,
    load_module,
    module_of,
    user_code,
)
from fairfate.strategies.steps import ROBUST, RULES, THRESHOLDS, TILT, Step, parse_steps, robust, split_steps
from fairfate.strategies.strategy import Strategy

RECOMMENDED = (
    "fedavg",  # what everything else is compared with
    "fair_fate",  # the paper's method, guarded against collapsed models
    "fedavg_lr+average",  # reweighing: most of the gain, and no group is needed at decisions
    "fedavg+average+thresholds:from=clients",  # the largest gain, and the group is needed at every decision
)
"""What a run compares unless told otherwise; docs/choosing.md and docs/benchmark.md have the measurements."""
PUBLISHED = ("fedavg", "fair_fate")
"""The same under the protocol of the published runs."""

TWO_GROUPS = Groups.single("group", ("0", "1"))


@lru_cache(maxsize=256)
def _bound(metric: str, groups: Groups, published: bool, least: int) -> Metric:
    """One function for each objective, so that strategies with the same one are measured together."""
    return bind(metric, groups, published=published, least=least)


@dataclass(frozen=True)
class Setup:
    """What a strategy may know about the run it is built for.

    Examples
    --------
    >>> import numpy as np
    >>> setup = Setup(num_rounds=100)
    >>> counts = np.array([[[30, 20], [10, 40]], [[20, 10], [20, 50]]])  # by group, label and prediction
    >>> float(setup.fairness("sp")(counts))
    1.0
    """

    num_rounds: int
    """Rounds of the run."""
    published: bool = False
    """Whether the run follows the protocol ``published``."""
    groups: Groups = TWO_GROUPS
    """The groups of people, in the order of the counts."""
    learning_rate: float | None = None
    """The clients' learning rate; None if it is unknown."""
    min_cell: int = 0
    """A rate with fewer rows behind it is undefined (where clients hold the validation rows)."""

    def fairness(self, metric: str) -> Metric:
        """An objective under the run's protocol, as a function of counts.

        Parameters
        ----------
        metric : the objective's text, such as ``sp`` or ``0.5*eo+0.5*eqo``

        Returns
        -------
        a function from (..., groups, 2, 2) counts to values; 1 is fair

        Examples
        --------
        >>> import numpy as np
        >>> counts = np.array([[[30, 20], [10, 40]], [[20, 10], [20, 50]]])  # by group, label and prediction
        >>> round(float(Setup(num_rounds=100).fairness("eo")(counts)), 3)
        0.893
        """
        return _bound(metric, self.groups, self.published, self.min_cell)

    def objective(self, metric: str, min_mcc: float) -> Fairness:
        """An objective for a strategy with a guard, which may look at individual fairness too.

        Where it looks at nothing else the guard must be on: one answer for everybody would be perfect.

        Parameters
        ----------
        metric : the objective's text
        min_mcc : the guard's least MCC; 0 if it is off

        Returns
        -------
        a function of counts, or an objective of single rows

        Examples
        --------
        >>> import numpy as np
        >>> counts = np.array([[[30, 20], [10, 40]], [[20, 10], [20, 50]]])  # by group, label and prediction
        >>> round(float(Setup(num_rounds=100).objective("eo", 0.05)(counts)), 3)
        0.893
        """
        check(
            min_mcc > 0 or not is_individual(metric),
            f"min_mcc must be > 0 for metric '{metric}', which is 1 for one answer for everybody",
            f"{min_mcc:g}",
        )
        if individual_terms(metric):
            return bind_individual(metric, self.groups, published=self.published, least=self.min_cell)
        return self.fairness(metric)

    def gap(self, metric: str, gaps: Mapping[str, Metric] = GAPS) -> Metric:
        """An objective as a difference between the groups; 0 is fair.

        Parameters
        ----------
        metric : the objective's text
        gaps : the differences by metric; signed unless others are given

        Returns
        -------
        a function from (..., groups, 2, 2) counts to values

        Examples
        --------
        >>> import numpy as np
        >>> counts = np.array([[[30, 20], [10, 40]], [[20, 10], [20, 50]]])  # by group, label and prediction
        >>> abs(round(float(Setup(num_rounds=100).gap("eo")(counts)), 3))
        0.086
        """
        return bind(metric, self.groups, difference=True, gaps=gaps)

    def check_two_groups(self, name: str) -> None:
        """Raise InputError unless there are two groups, for a rule that compares one with the other.

        Parameters
        ----------
        name : of the strategy

        Examples
        --------
        >>> Setup(num_rounds=100).check_two_groups("fairbatch")
        """
        check(len(self.groups) == 2, f"{name} must be run with two groups", len(self.groups))


Hyperparameters = ParamSpec("Hyperparameters")


@dataclass(frozen=True)
class Entry:
    """A registered strategy.

    Examples
    --------
    >>> entry = next(entry for entry in entries() if entry.name == "fedmom")
    >>> entry.summary, entry.settings["beta"].default
    ('fedavg with server momentum', 0.9)
    """

    name: str
    """As in texts: ``fedmom``."""
    summary: str
    """What it does, in a line."""
    reference: str
    """The paper, in short."""
    settings: Mapping[str, Setting]
    """Its hyperparameters by name."""
    build: Callable[..., Strategy | Spec]
    """Makes the strategy: ``build(setup, **hyperparameters)``."""
    code: str = ""
    """A checksum of a user's code, on which results depend; "" for this library's own."""

    def make(self, setup: Setup, settings: Mapping[str, float | str]) -> Strategy:
        """Make the strategy.

        Parameters
        ----------
        setup : what it may know about the run
        settings : its hyperparameters by name; the others have their defaults

        Returns
        -------
        the strategy

        Examples
        --------
        >>> entry = next(entry for entry in entries() if entry.name == "fedmom")
        >>> entry.make(Setup(num_rounds=10), {"beta": 0.5}).scale is None
        True
        """
        values: dict[str, Any] = dict(settings)
        for key, setting in self.settings.items():
            if setting.default is None and values.get(key, RUN_METRIC) == RUN_METRIC:
                values[key] = "eqo"  # nobody has said which
            if isinstance(setting, Number) and setting.whole and key in values:
                values[key] = int(values[key])
        if is_built_in(self.build):
            strategy = self.build(setup, **values)
        else:
            with user_code(f"strategy '{self.name}'"):
                strategy = self.build(setup, **values)
        if isinstance(strategy, Spec):
            return strategy.build(setup)
        return strategy if is_built_in(self.build) else checked(strategy, self.name)


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str, summary: str = "", reference: str = ""
) -> Callable[
    [Callable[Concatenate[Setup, Hyperparameters], Strategy | Spec]], Callable[Hyperparameters, Spec]
]:
    """Make ``build(setup, *, hyperparameters) -> Strategy`` available under a name.

    Parameters
    ----------
    name : of the strategy in texts and tables; a word
    summary : what it does, in a line
    reference : the paper, in short

    Returns
    -------
    a decorator. The decorated function becomes a factory: it is called with hyperparameters only, and returns
    a `Spec`.

    Examples
    --------
    >>> from fairfate.strategies import fedprox
    >>> fedprox(mu=0.5).text
    'fedprox:mu=0.5'
    """
    for what, value in (("name", name), ("summary", summary), ("reference", reference)):
        check(isinstance(value, str), f"a strategy's {what} must be a text", repr(value))
    check(re.fullmatch(r"[A-Za-z]\w*", name) is not None, "a strategy's name must be a word", f"'{name}'")

    def add(
        build: Callable[Concatenate[Setup, Hyperparameters], Strategy | Spec],
    ) -> Callable[Hyperparameters, Spec]:
        entry = Entry(name, summary, reference, read_signature(build, name), build, code_checksum(build))
        _add(entry)

        @functools.wraps(build)
        def factory(*args: Hyperparameters.args, **given: Hyperparameters.kwargs) -> Spec:
            values = {**dict(zip(entry.settings, args, strict=False)), **given}
            return Spec(name, given_settings(entry, values))

        signature = inspect.signature(build)
        factory.__doc__ = _with_parameters(entry, inspect.getdoc(build) or "")
        factory.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=list(signature.parameters.values())[1:], return_annotation=Spec
        )
        return factory

    return add


def _with_parameters(entry: Entry, text: str) -> str:
    """A factory's docstring with its parameters, from its signature, and its result."""
    parameters = [f"{key} : {setting.rule}\n    {setting.help}\n" for key, setting in entry.settings.items()]
    section = f"Parameters\n----------\n{''.join(parameters)}\n" if parameters else ""
    section += (
        "Returns\n-------\nSpec\n    the strategy with these hyperparameters, as `fairfate.run` takes it\n\n"
    )
    heading = re.search(r"^(?:Notes|References|Examples)\n-", text, re.MULTILINE)
    start = len(text) if heading is None else heading.start()
    return f"{text[:start]}{section}{text[start:]}"


def _add(entry: Entry) -> None:
    known = _ENTRIES.get(entry.name)
    if known is not None and module_of(known.build) != module_of(entry.build):
        raise InputError(
            f"a strategy's name must be new, got '{entry.name}', which is taken by: {known.summary}"
        )
    _ENTRIES[entry.name] = entry


def given_settings(entry: Entry, given: Mapping[str, object]) -> tuple[tuple[str, float | str], ...]:
    """Hyperparameters that were given, checked; the others are for the run to decide."""
    every = resolve_settings(entry.name, entry.settings, given, RUN_METRIC, "strategy")
    return tuple((key, value) for key, value in every if key in given)


def entries() -> list[Entry]:
    """All registered strategies.

    Returns
    -------
    their entries, sorted by name

    Examples
    --------
    >>> [entry.name for entry in entries() if entry.name.startswith("fedavg")]
    ['fedavg', 'fedavg_gr', 'fedavg_lr']
    """
    return sorted(_ENTRIES.values(), key=lambda entry: entry.name)


def entry_of(name: str) -> Entry:
    """The registered strategy of a name."""
    if name not in _ENTRIES:
        raise unknown("strategy", name, _ENTRIES)
    return _ENTRIES[name]


@dataclass(frozen=True)
class Spec:
    """A strategy by name, with its hyperparameters and steps: what a run compares and a file records.

    `parse_spec` decides what is left open: the metric, and guards.

    Examples
    --------
    >>> spec = parse_spec("fedmom:beta=0.8+average", "eqo")
    >>> spec.label, spec.text
    ('fedmom+average', 'fedmom:beta=0.8+average:share=0.5')
    """

    name: str
    """Of the strategy, without steps."""
    settings: tuple[tuple[str, float | str], ...]
    """Its hyperparameters, as pairs of name and value."""
    steps: tuple[Step, ...] = field(default=())
    """What follows a ``+``."""

    @property
    def base(self) -> Spec:
        """What is trained: the strategy without the steps that change what is released."""
        return replace(self, steps=tuple(step for step in self.steps if step.name in ROBUST))

    @property
    def own(self) -> Spec:
        """The strategy without any step: all that concerns a client."""
        return replace(self, steps=())

    def step(self, name: str) -> Step | None:
        """One of its steps.

        Parameters
        ----------
        name : the step's name

        Returns
        -------
        the step, or None if it is not taken

        Examples
        --------
        >>> parse_spec("fedavg+average:share=0.25", "eqo").step("average").get("share")
        0.25
        """
        return next((step for step in self.steps if step.name == name), None)

    @property
    def rule(self) -> Step | None:
        """The step that chooses after training how is decided, if there is one."""
        return next((step for step in self.steps if step.name in RULES), None)

    @property
    def label(self) -> str:
        """The names alone: ``fedavg+average``."""
        return "+".join([self.name, *(step.name for step in self.steps)])

    @property
    def metric(self) -> str | None:
        """The objective that the released model was chosen by, if any."""
        step = self.rule
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

    def __str__(self) -> str:
        return self.text

    def __add__(self, step: str) -> Spec:
        """The strategy with one more step: ``fedavg() + "average:share=0.3"``."""
        texts = [*(known.text for known in self.steps), *split_steps(f"+{step}")[1]]
        return replace(self, steps=parse_steps(texts, RUN_METRIC))

    @property
    def recorded(self) -> dict[str, float | str]:
        """The settings other than the metric, as files have them."""
        record: dict[str, float | str] = {}
        if self.rule is not None and self.base.metric is not None:
            record["of"] = self.base.metric
        record |= {key: value for key, value in self.settings if key != "metric"}
        for step in self.steps:
            usual = _USUAL_THRESHOLDS if step.name == THRESHOLDS else {}
            for key, value in step.settings:
                if key != "metric" and usual.get(key) != value:
                    is_free = step.name not in ROBUST and key not in record
                    record[key if is_free else f"{step.name}_{key}"] = value
        return record

    @property
    def settings_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.recorded)

    @property
    def code(self) -> str:
        """For a user's strategy, a checksum of its code, on which its results depend; else ""."""
        return _ENTRIES[self.name].code if self.name in _ENTRIES else ""

    def build(self, setup: Setup) -> Strategy:
        """Make the strategy with the steps that change its training; the engine takes the other steps.

        Parameters
        ----------
        setup : what it may know about the run

        Returns
        -------
        the strategy

        Examples
        --------
        >>> parse_spec("fedavg+clip:norm=1", "eqo").build(Setup(num_rounds=10)).scale is None
        False
        """
        if self.name not in _ENTRIES:
            raise InputError(
                f"strategy '{self.name}' must be registered in every process: put it into a file and name"
                " that file with --plugin (plugins=...)"
            )
        if self.step(TILT) is not None:
            check(len(setup.groups) > 1, f"{TILT} must be run with two groups or more", len(setup.groups))
        strategy = _ENTRIES[self.name].make(setup, dict(self.settings))
        for step in self.base.steps:
            strategy = robust(strategy, step)
        return strategy

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process, which knows this library and plugins, but no notebook."""
        entry = _ENTRIES.get(self.name)
        sent = (
            None if entry is None or is_built_in(entry.build) or is_in_plugin(entry.build) else _pack(entry)
        )
        return _unpack, (sent, self.name, self.settings, self.steps)

    def __deepcopy__(self, memo: object) -> Spec:
        return self


_USUAL_THRESHOLDS = {"keep": 0.0, "against": "best", "from": "validation"}
"""What is not recorded of thresholds; kept results of studies are known by their records."""

StrategyLike = str | Spec | Strategy | Callable[[], Spec | Strategy]
"""What stands for a strategy: a text, what a factory gives, a factory itself, or a bare `Strategy`."""


def _pack(entry: Entry) -> bytes:
    import cloudpickle

    try:
        packed: bytes = cloudpickle.dumps(entry)
    except Exception as error:
        raise InputError(
            f"strategy '{entry.name}' must be one that other processes can be sent, with jobs > 1,"
            f" got {reason_of(error)}; put it into a file and name that file with plugins"
        ) from error
    return packed


def _unpack(
    sent: bytes | None, name: str, settings: tuple[tuple[str, float | str], ...], steps: tuple[Step, ...]
) -> Spec:
    """In a process that this library has started, from its pipe."""
    if sent is not None:
        import cloudpickle

        entry: Entry = cloudpickle.loads(sent)
        _ENTRIES[name] = entry
    return Spec(name, settings, steps)


def as_spec(strategy: StrategyLike) -> Spec | None:
    """An object that stands for a strategy as a spec; None for a text."""
    if not isinstance(strategy, str | Spec | Strategy) and callable(strategy):
        strategy = strategy()
    if isinstance(strategy, Strategy):
        return _spec_of(strategy)
    return strategy if isinstance(strategy, Spec) else None


def strategy_texts(strategies: object) -> object:
    """Texts in place of objects, in a list or alone; whatever is no strategy is left as it is."""
    if isinstance(strategies, list | tuple) and not isinstance(strategies, Strategy):
        return [strategy_texts(strategy) for strategy in strategies]
    is_object = isinstance(strategies, Spec | Strategy) or callable(strategies)
    return str(as_spec(strategies)) if is_object else strategies  # type: ignore[arg-type]


def _spec_of(strategy: Strategy) -> Spec:
    """A bare strategy under the name of the function that made it."""
    functions = [function for function in strategy if callable(function)]
    own = next((function for function in functions if not is_built_in(function)), strategy.aggregate)
    word = getattr(own, "__qualname__", "").partition(".")[0]
    base = word if re.fullmatch(r"[A-Za-z]\w*", word) else "strategy"
    code, name, number = code_checksum(*functions, deep=True), base, 1
    while name in _ENTRIES and _ENTRIES[name].code != code:
        number += 1
        name = f"{base}_{number}"

    def build(setup: Setup) -> Strategy:
        return strategy

    build.__module__ = module_of(own)
    _ENTRIES[name] = Entry(name, "a strategy of yours", "", {}, build, code)
    return Spec(name, ())


def parse_spec(strategy: StrategyLike, metric: str, *, guard: bool = False, trials: bool = True) -> Spec:
    """Read ``name[:key=value,...][+step[:key=value,...]]...``, or an object that stands for a strategy.

    Hyperparameters that are not named take their defaults.

    Parameters
    ----------
    strategy : the text, or an object such as ``fedmom(beta=0.8)``
    metric : the objective of a strategy that names none
    guard : whether the guards against models that give everybody one answer are on by default
    trials : whether guards may be on that score further models

    Returns
    -------
    the strategy with every hyperparameter

    Examples
    --------
    >>> parse_spec("fedmom:beta=0.8", "eqo").text
    'fedmom:beta=0.8'
    >>> parse_spec("fedavg+average", "eqo").text
    'fedavg+average:share=0.5'
    """
    text = str(as_spec(strategy) or strategy)
    own, steps = split_steps(text)
    name, _, rest = own.partition(":")
    entry_of(name)
    given = read_settings(rest, text, "strategy")
    spec = make_spec(name, given, metric, guard=guard, trials=trials)
    return replace(spec, steps=parse_steps(steps, metric))


def make_spec(
    name: str, given: Mapping[str, object], metric: str, *, guard: bool = False, trials: bool = True
) -> Spec:
    """A strategy from its name and some hyperparameters.

    Parameters
    ----------
    name : of a registered strategy
    given : hyperparameters by name
    metric, guard, trials : as for `parse_spec`

    Returns
    -------
    the strategy with every hyperparameter, without steps

    Examples
    --------
    >>> make_spec("fedmom", {"beta": 0.8}, "eqo").text
    'fedmom:beta=0.8'
    """
    settings = entry_of(name).settings
    if guard and not trials and "keep" in settings:
        given = {"keep": "0", **given}
    return Spec(name, resolve_settings(name, settings, given, metric, "strategy", guard=guard))


def load_plugin(path: str | Path, content: bytes | None = None) -> None:
    """Run a Python file that registers strategies, as ``--plugin`` does.

    Parameters
    ----------
    path : of the file
    content : of the file, if it lies on another machine

    Examples
    --------
    >>> load_plugin("nowhere.py")
    Traceback (most recent call last):
    fairfate.errors.InputError: plugin must be a Python file, got 'nowhere.py' (no such file)
    """
    before = dict(_ENTRIES)

    def run(module: str, execute: Callable[[], None]) -> None:
        try:
            for name in [name for name, entry in _ENTRIES.items() if module_of(entry.build) == module]:
                del _ENTRIES[name]  # an older version of the file
            execute()
            if not any(module_of(entry.build) == module for entry in entries()):
                raise InputError(f"plugin '{path}' must register a strategy; known: {listing(_ENTRIES)}")
        except BaseException:
            _ENTRIES.clear()
            _ENTRIES.update(before)
            raise

    load_module(path, run, content)


def labels(specs: Iterable[Spec]) -> list[str]:
    """Short names for tables: each strategy, with only those hyperparameters that differ.

    Parameters
    ----------
    specs : the strategies of one table

    Returns
    -------
    a name for each, in their order

    Examples
    --------
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
