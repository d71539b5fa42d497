"""Steps that any strategy can take, written after a ``+``.

Some change how the server combines updates, so that a few wrong clients do less harm (`strategies.robust`):

- ``clip``: long updates are scaled down;
- ``median``, ``trimmed``, ``krum``: something else in place of the mean.

The others change what is released, never the training:

- ``average``: release the mean of the models of the last rounds (Polyak and Ruppert);
- ``thresholds``: decide by one threshold for each group, chosen after training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fairfate.errors import InputError, plain, unknown
from fairfate.fairness.grammar import WORDS
from fairfate.strategies.settings import (
    COUNTED_METRIC,
    Choice,
    Number,
    Setting,
    read_settings,
    resolve_settings,
)
from fairfate.strategies.strategy import Vector

CLIP, MEDIAN, TRIMMED, KRUM = "clip", "median", "trimmed", "krum"
AVERAGE, THRESHOLDS = "average", "thresholds"
ROBUST = (CLIP, MEDIAN, TRIMMED, KRUM)
"""Steps that change the training."""


class StepEntry(NamedTuple):
    """A step that there is."""

    summary: str
    settings: Mapping[str, Setting]


STEPS: dict[str, StepEntry] = {
    CLIP: StepEntry(
        "scales long updates down before they are scored and combined",
        {"norm": Number(0.0, "longest L2 norm of an update; 0 for the median of the round's", high=math.inf)},
    ),
    MEDIAN: StepEntry("takes the median of the updates, parameter by parameter, for their mean", {}),
    TRIMMED: StepEntry(
        "leaves out the largest and smallest values of each parameter, and takes the mean of the rest",
        {"share": Number(0.2, "of the clients that is left out at each end", high=0.5, below_high=True)},
    ),
    KRUM: StepEntry(
        "takes the updates that have others nearby",
        {
            "attackers": Number(1.0, "clients of a round that may be wrong", high=1e6, whole=True),
            "keep": Number(1.0, "updates that are taken, as their mean", low=1.0, high=1e6, whole=True),
        },
    ),
    AVERAGE: StepEntry(
        "releases the mean of the models of the last rounds",
        {"share": Number(0.5, "of the rounds that are averaged, the last ones", above_low=True)},
    ),
    THRESHOLDS: StepEntry(
        "decides by one threshold for each group, chosen after training",
        {
            "metric": COUNTED_METRIC,
            "tolerance": Number(0.02, "accuracy that may be given up"),
            "keep": Number(0.8, "share of the balanced accuracy above one half that must be kept"),
            "against": Choice("own", "whose accuracy may not fall: its own, or the best", ("own", "best")),
            "from": Choice(
                "validation",
                "the server's rows, or the clients' score histograms",
                ("validation", "clients"),
            ),
        },
    ),
}


@dataclass(frozen=True)
class Step:
    """A step with every setting resolved."""

    name: str
    settings: tuple[tuple[str, float | str], ...]

    @property
    def text(self) -> str:
        """As on the command line."""
        pairs = [f"{key}={plain(value)}" for key, value in self.settings]
        return f"{self.name}:{','.join(pairs)}" if pairs else self.name

    def __getitem__(self, key: str) -> Any:
        return dict(self.settings)[key]


def split_steps(text: str) -> tuple[str, list[str]]:
    """A strategy's own text, and those of its steps.

    A ``+`` before a name that is no part of an objective begins a step.

    >>> split_steps("fair_fate:metric=0.5*sp+0.5*eo+average+thresholds:keep=1")
    ('fair_fate:metric=0.5*sp+0.5*eo', ['average', 'thresholds:keep=1'])
    """
    parts, depth, quoted, start = [], 0, False, 0
    for place, character in enumerate(text):
        quoted ^= character == '"'
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == "+" and depth <= 0 and not quoted:
            word = re.match(r"\s*([A-Za-z_]\w*)", text[place + 1 :])
            if word is not None and word.group(1) not in WORDS:
                parts.append(text[start:place])
                start = place + 1
    parts.append(text[start:])
    return parts[0].strip(), [part.strip() for part in parts[1:]]


_PLACES = {CLIP: 0, MEDIAN: 1, TRIMMED: 1, KRUM: 1, AVERAGE: 2, THRESHOLDS: 3}


def parse_steps(texts: Sequence[str], metric: str) -> tuple[Step, ...]:
    """Read ``STEP[:key=value,...]`` of each step."""
    steps = []
    for text in texts:
        name, _, rest = text.partition(":")
        if name not in STEPS:
            raise unknown("step", name, STEPS)
        given = read_settings(rest, text, "step")
        steps.append(Step(name, resolve_settings(name, STEPS[name].settings, given, metric, "step")))
    names = [step.name for step in steps]
    places = [_PLACES[name] for name in names]
    if sorted(places) != places or len(set(places)) < len(places):
        order = "clip before median, trimmed or krum before average before thresholds"
        raise InputError(f"steps must be taken once each, {order}, got {'+'.join(names)}")
    return tuple(steps)


class Average:
    """The running mean of the models of the last ``share`` of the rounds."""

    def __init__(self, share: float, num_rounds: int) -> None:
        self.first = num_rounds - max(1, round(share * num_rounds)) + 1
        self.total: Vector | None = None
        self.count = 0

    def add(self, t: int, params: Vector) -> Vector:
        """Take note of a round's model; returns the one to release."""
        if t < self.first:
            return params
        self.total = params.astype(np.float64) if self.total is None else self.total + params
        self.count += 1
        return self.mean.astype(params.dtype)

    @property
    def mean(self) -> Vector:
        """Of the models so far, in 64 bits."""
        assert self.total is not None
        return np.asarray(self.total / self.count)
