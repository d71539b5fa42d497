"""Steps that any strategy can take, written after a ``+``.

Some change how the server combines updates, so that a few wrong clients do less harm:

- ``clip``: long updates are scaled down;
- ``median``, ``trimmed``, ``krum``: another rule instead of the mean. All clients whose weight is not zero
  count alike. The more clients differ, the more of what honest ones know is lost too, first of those with
  rare groups.

The others change what is released, never the training:

- ``average``: release the mean of the models of the last rounds (Polyak and Ruppert);
- ``thresholds``: decide by one threshold for each group, chosen after training;
- ``common_threshold``: decide by one threshold for everybody, chosen after training;
- ``tilt``: decide by the score plus a price on the guessed group, one rule for everybody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairfate.errors import InputError, plain, unknown
from fairfate.fairness.metrics import Values
from fairfate.fairness.objective import WORDS
from fairfate.fairness.tilt import BINS
from fairfate.strategies.hyperparameters import (
    Choice,
    Number,
    ObjectiveSetting,
    Setting,
    read_settings,
    resolve_settings,
)
from fairfate.strategies.strategy import Combine, Matrix, Strategy, Vector
from fairfate.sums import squared_norm

CLIP, MEDIAN, TRIMMED, KRUM = "clip", "median", "trimmed", "krum"
AVERAGE, THRESHOLDS, COMMON, TILT = "average", "thresholds", "common_threshold", "tilt"
ROBUST = (CLIP, MEDIAN, TRIMMED, KRUM)
"""Steps that change the training."""
RULES = (THRESHOLDS, COMMON, TILT)
"""Steps that choose after training how is decided."""
AVERAGE_SHARE = 0.5
"""Of the rounds, the last ones, whose models are averaged."""


class StepEntry(NamedTuple):
    """A step that strategies can take."""

    summary: str
    settings: Mapping[str, Setting]


_BOUND: dict[str, Setting] = {
    "bound": Number(
        0.0, "fairness to reach at the least cost in accuracy; 0 for as fair as it can be", extension=True
    ),
    "measure": Choice(
        "ratio",
        "how rates are compared: a ratio is to reach the bound, a difference not to exceed it",
        ("ratio", "difference"),
        extension=True,
    ),
}

_GUARDED: dict[str, Setting] = {
    "metric": ObjectiveSetting("fairness it looks at", counted=True),
    "tolerance": Number(0.02, "accuracy that may be given up"),
    "keep": Number(0.85, "share of the balanced accuracy above one half that must be kept"),
    "margin": Number(
        2.0,
        "standard errors of the accuracy given up, which count as given up too",
        high=10.0,
        extension=True,
    ),
    **_BOUND,
}
"""What a rule for everybody must keep of the model's own."""

STEPS: dict[str, StepEntry] = {
    CLIP: StepEntry(
        "scales long updates down before they are scored and combined",
        {"norm": Number(0.0, "longest L2 norm of an update; 0 for the median of the round's", high=math.inf)},
    ),
    MEDIAN: StepEntry("takes the median of the updates, parameter by parameter, in place of their mean", {}),
    TRIMMED: StepEntry(
        "excludes the largest and smallest values of each parameter, and takes the mean of the rest",
        {
            "share": Number(
                0.2, "share of the clients that is excluded at each end", high=0.5, below_high=True
            )
        },
    ),
    KRUM: StepEntry(
        "keeps the updates that are closest to the others",
        {
            "attackers": Number(1.0, "clients of a round that may be attackers", high=1e6, whole=True),
            "keep": Number(1.0, "number of updates that are averaged", low=1.0, high=1e6, whole=True),
        },
    ),
    AVERAGE: StepEntry(
        "releases the mean of the models of the last rounds",
        {
            "share": Number(
                AVERAGE_SHARE, "share of the rounds, the last ones, that is averaged", above_low=True
            )
        },
    ),
    THRESHOLDS: StepEntry(
        "decides by one threshold for each group, chosen after training",
        {
            "metric": ObjectiveSetting("fairness it looks at", counted=True),
            "tolerance": Number(0.02, "accuracy that may be given up"),
            "keep": Number(0.8, "share of the balanced accuracy above one half that must be kept"),
            "against": Choice(
                "own",
                "reference for accuracy: the model's own decisions, or the most accurate thresholds",
                ("own", "best"),
            ),
            "from": Choice(
                "validation",
                "the server's rows, or the clients' score histograms",
                ("validation", "clients"),
            ),
            **_BOUND,
        },
    ),
    COMMON: StepEntry(
        "decides by one threshold for everybody, chosen from the clients' score histograms", _GUARDED
    ),
    TILT: StepEntry(
        "decides by the score plus a price on the guessed group, chosen from the clients' histograms",
        {
            **_GUARDED,
            "bins": Choice(
                str(BINS), "ranges of each of both scores", ("8", "16", "32", "64"), extension=True
            ),
            "distil": Choice(
                "false",
                "true: release one plain network that is trained on the rule's decisions, with one threshold",
                ("false", "true"),
                extension=True,
            ),
        },
    ),
}


@dataclass(frozen=True)
class Step:
    """A step with all its hyperparameters.

    Examples
    --------
    >>> step = Step("average", (("share", 0.5),))
    >>> step.text, step["share"]
    ('average:share=0.5', 0.5)
    """

    name: str
    """As in texts: ``average``."""
    settings: tuple[tuple[str, float | str], ...]
    """Its hyperparameters, as pairs of name and value."""

    @property
    def text(self) -> str:
        """As on the command line."""
        pairs = [f"{key}={plain(value)}" for key, value in self.settings]
        return f"{self.name}:{','.join(pairs)}" if pairs else self.name

    def __getitem__(self, key: str) -> Any:
        return dict(self.settings)[key]

    def get(self, key: str) -> Any:
        """A hyperparameter, also where it is left out at its default.

        Parameters
        ----------
        key : its name

        Returns
        -------
        a number or a text

        Examples
        --------
        >>> Step("average", ()).get("share")
        0.5
        """
        return dict(self.settings).get(key, STEPS[self.name].settings[key].default)


def asked_bins(step: Step) -> int:
    """Into how many ranges a tilted score's two probabilities are counted."""
    return int(step.get("bins"))


def is_distilled(step: Step | None) -> bool:
    """Whether one plain network is trained on a tilted score's decisions, and released in its place."""
    return step is not None and step.name == TILT and step.get("distil") == "true"


def asks_clients(step: Step) -> bool:
    """Whether a rule is chosen from histograms of the clients' training rows."""
    return step.name != THRESHOLDS or step["from"] == "clients"


def split_steps(text: str) -> tuple[str, list[str]]:
    """A strategy's own text, and those of its steps.

    A ``+`` before a name that is no part of an objective begins a step.

    >>> split_steps("fair_fate:metric=0.5*sp+0.5*eo+average+thresholds:keep=1")
    ('fair_fate:metric=0.5*sp+0.5*eo', ['average', 'thresholds:keep=1'])
    """
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        quoted ^= character == '"'
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == "+" and depth <= 0 and not quoted:
            word = re.match(r"\s*([A-Za-z_]\w*)", text[index + 1 :])
            if word is not None and word.group(1) not in WORDS:
                parts.append(text[start:index])
                start = index + 1
    parts.append(text[start:])
    return parts[0].strip(), [part.strip() for part in parts[1:]]


_ORDER = {CLIP: 0, MEDIAN: 1, TRIMMED: 1, KRUM: 1, AVERAGE: 2} | dict.fromkeys(RULES, 3)


def parse_steps(texts: Sequence[str], metric: str) -> tuple[Step, ...]:
    """Read ``STEP[:key=value,...]`` of each step."""
    steps = []
    for text in texts:
        name, _, rest = text.partition(":")
        if name not in STEPS:
            raise unknown("step", name, STEPS)
        given = read_settings(rest, text, "step")
        steps.append(Step(name, resolve_settings(name, STEPS[name].settings, given, metric, "step")))
        if name in RULES and steps[-1].get("bound") and not asks_clients(steps[-1]):
            raise InputError(
                f"{name}: from must be clients with a bound, which is tested on the validation rows, got"
                " validation"
            )
    names = [step.name for step in steps]
    order = [_ORDER[name] for name in names]
    if sorted(order) != order or len(set(order)) < len(order):
        rule = (
            "clip before median, trimmed or krum before average before thresholds, common_threshold or tilt"
        )
        raise InputError(f"steps must be taken once each, {rule}, got {'+'.join(names)}")
    return tuple(steps)


class Average:
    """The running mean of the models of the last rounds.

    Parameters
    ----------
    share : of the rounds, the last ones
    num_rounds : of the run

    References
    ----------
    Polyak, Juditsky, "Acceleration of Stochastic Approximation by Averaging", SIAM Journal on Control and
    Optimization 30, 1992.

    Examples
    --------
    >>> average = Average(share=0.5, num_rounds=4)
    >>> [average.add(t, np.array([float(t)])).tolist() for t in (1, 2, 3, 4)]
    [[1.0], [2.0], [3.0], [3.5]]
    """

    def __init__(self, share: float, num_rounds: int) -> None:
        self.first = num_rounds - max(1, round(share * num_rounds)) + 1
        self.total: Vector | None = None
        self.count = 0

    def add(self, t: int, params: Vector) -> Vector:
        """Include a round's model.

        Parameters
        ----------
        t : the round's number, from 1
        params : its model

        Returns
        -------
        the model to release: the mean so far, or before the last rounds the model itself

        Examples
        --------
        >>> average = Average(share=1.0, num_rounds=2)
        >>> average.add(1, np.array([1.0])).tolist(), average.add(2, np.array([3.0])).tolist()
        ([1.0], [2.0])
        """
        if t < self.first:
            return params
        self.total = params.astype(np.float64) if self.total is None else self.total + params
        self.count += 1
        return self.mean.astype(params.dtype)

    @property
    def mean(self) -> Vector:
        """The mean of the models so far, in 64 bits."""
        assert self.total is not None
        return np.asarray(self.total / self.count)


_BLOCK = 1_000_000
"""Numbers that are sorted at a time."""


def robust(strategy: Strategy, step: Step) -> Strategy:
    """A strategy that takes one of these steps."""
    if step.name == CLIP:
        return strategy._replace(scale=clip(float(step["norm"])))
    if step.name == MEDIAN:
        return strategy._replace(combine=each(median))
    if step.name == TRIMMED:
        share = float(step["share"])
        return strategy._replace(combine=each(lambda deltas: trimmed(deltas, share)))
    attackers, keep = int(step["attackers"]), int(step["keep"])
    return strategy._replace(combine=each(lambda deltas: krum(deltas, attackers, keep)))


def each(rule: Callable[[Matrix], Vector]) -> Combine:
    """A rule for the updates of the clients with a weight; without any, the update is zero."""

    def combine(deltas: Matrix, *weights: Vector) -> list[Vector]:
        results = []
        for client_weights in weights:
            is_weighted = np.asarray(client_weights) > 0
            chosen = deltas if is_weighted.all() else deltas[is_weighted]
            results.append(rule(chosen) if len(chosen) else np.zeros(deltas.shape[1], dtype=deltas.dtype))
        return results

    return combine


def clip(norm: float = 0.0) -> Callable[[Matrix], Values]:
    """Factors for updates, so that none is longer than ``norm``; 0 stands for the median.

    Of two updates the shorter one sets the limit, since an attacker could choose their mean.

    >>> clip(1.0)(np.array([[3.0, 4.0], [0.6, 0.8]])).tolist()
    [0.2, 1.0]
    """

    def scale(deltas: Matrix) -> Values:
        norms = np.sqrt([squared_norm(delta) for delta in deltas])
        most = norm or float(norms.min() if len(norms) == 2 else np.median(norms))
        return np.where(norms > most, most / np.where(norms > most, norms, 1.0), 1.0)

    return scale


def scaled(deltas: Matrix, factors: Values) -> Matrix:
    """Updates times their factors; one whose factor is 1 keeps its bits."""
    result = deltas.copy()
    for client in np.flatnonzero(factors != 1):
        result[client] *= result.dtype.type(factors[client])
    return result


def median(deltas: Matrix) -> Vector:
    """The middle of each parameter's values; of an even number, the mean of the middle two.

    >>> median(np.array([[1.0, 0.0], [1.25, 1.0], [1.0, -1.0], [9.0, 9.0]])).tolist()
    [1.125, 0.5]
    """
    return _middle(deltas, (len(deltas) - 1) // 2)


def trimmed(deltas: Matrix, share: float) -> Vector:
    """The mean of each parameter's values without a share of the clients at each end, rounded down."""
    return _middle(deltas, math.floor(share * len(deltas) + 1e-9))


def _middle(deltas: Matrix, cut: int) -> Vector:
    mean = np.empty(deltas.shape[1], dtype=deltas.dtype)
    step = max(1, _BLOCK // len(deltas))
    for start in range(0, deltas.shape[1], step):
        values = np.sort(deltas[:, start : start + step], axis=0)[cut : len(deltas) - cut]
        mean[start : start + step] = values.mean(axis=0, dtype=np.float64)
    return mean


def krum(deltas: Matrix, attackers: int = 1, keep: int = 1) -> Vector:
    """The mean of the ``keep`` updates with the least scores; ties go to the earlier client.

    Its guarantee needs K >= 2 * attackers + 3 clients (Blanchard et al. 2017). With fewer it is still
    defined; of two clients it is the first.
    """
    first = np.argsort(krum_scores(deltas, attackers), kind="stable")[:keep]
    mean: Vector = deltas[np.sort(first)].mean(axis=0, dtype=np.float64).astype(deltas.dtype)
    return mean


def krum_scores(deltas: Matrix, attackers: int) -> Values:
    """(clients,) squared distances to the ``max(1, K - attackers - 2)`` nearest others, summed."""
    clients = len(deltas)
    squares = np.zeros((clients, clients))
    for k in range(clients):
        for other in range(k):
            apart = deltas[k].astype(np.float64) - deltas[other]
            squares[k, other] = squares[other, k] = squared_norm(apart)
    nearest = max(1, clients - attackers - 2)
    return np.array([np.sort(np.delete(squares[k], k))[:nearest].sum() for k in range(clients)])
