"""Updates combined so that a few wrong clients do less harm: norm clipping, median, trimmed mean, Krum.

Median, trimmed mean and Krum count alike all clients whose weight is not zero. The less clients resemble each
other, the more of what the honest ones know is lost too: those with rare groups first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fairfate.fairness.metrics import Values
from fairfate.strategies.steps import CLIP, MEDIAN, TRIMMED, Step
from fairfate.strategies.strategy import Combine, Matrix, Strategy, Vector
from fairfate.sums import squared_norm

_BLOCK = 1_000_000
"""How many numbers are sorted at a time."""


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
    """A rule for the updates of all clients that count; where nobody does, nothing moves."""

    def combine(deltas: Matrix, *weights: Vector) -> list[Vector]:
        found = []
        for of in weights:
            counts = np.asarray(of) > 0
            chosen = deltas if counts.all() else deltas[counts]
            found.append(rule(chosen) if len(chosen) else np.zeros(deltas.shape[1], dtype=deltas.dtype))
        return found

    return combine


def clip(norm: float = 0.0) -> Callable[[Matrix], Values]:
    """By what each update is multiplied so that none is longer than ``norm``; 0 stands for the median.

    Of two updates the shorter one sets the limit: their mean would be the liar's to choose.

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
    found = deltas.copy()
    for place in np.flatnonzero(factors != 1):
        found[place] *= found.dtype.type(factors[place])
    return found


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

    Blanchard et al. prove something for K >= 2 * attackers + 3 clients only. With fewer it is still defined,
    and says little: of two clients it is the first.
    """
    first = np.argsort(krum_scores(deltas, attackers), kind="stable")[:keep]
    mean: Vector = deltas[np.sort(first)].mean(axis=0, dtype=np.float64).astype(deltas.dtype)
    return mean


def krum_scores(deltas: Matrix, attackers: int) -> Values:
    """(clients,) squared distances to the ``max(1, K - attackers - 2)`` nearest others, summed."""
    clients = len(deltas)
    squares = np.zeros((clients, clients))
    for one in range(clients):
        for other in range(one):
            apart = deltas[one].astype(np.float64) - deltas[other]
            squares[one, other] = squares[other, one] = squared_norm(apart)
    nearest = max(1, clients - attackers - 2)
    others = [np.sort(np.delete(squares[one], one))[:nearest] for one in range(clients)]
    return np.array([of.sum() for of in others])
