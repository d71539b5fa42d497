"""Guards against models that are fair because they give everybody one answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import COLLAPSED, Counts, balanced_accuracy, mcc
from fairfate.strategies.settings import Number
from fairfate.strategies.strategy import Score, Vector

MIN_MCC = Number(
    0.0, "least MCC of a client that can be fair; 0.05 for data of your own", later=True, guarded=COLLAPSED
)
KEEP = Number(
    0.0, "share of skill that the momentum must leave; 0.8 for data of your own", later=True, guarded=0.8
)
HALVINGS = 4
"""How often the share of the momentum is halved before it is 0."""


def able(counts: Counts, min_mcc: float) -> NDArray[np.bool_]:
    """(clients,) whether models are good enough to count: always at 0, never of one answer above it."""
    if min_mcc <= 0:
        return np.ones(len(counts), dtype=bool)
    return np.asarray(mcc(counts) >= min_mcc)


def skill(counts: Counts) -> float:
    """Balanced accuracy above one half; 0 for one answer for everybody, or where it is undefined."""
    found = float(balanced_accuracy(counts)) - 0.5
    return found if np.isfinite(found) else 0.0


def lowered(share: float, at: Callable[[float], Vector], least: float, score: Score) -> float:
    """A share of the momentum, halved until the model that it leads to has so much skill; 0 in the end.

    >>> lowered(0.8, lambda share: np.array([share]), 0.1, lambda models: np.array([[[[5, 0], [5, 0]]]]))
    0.0
    """
    for _ in range(HALVINGS + 1):
        if skill(score(at(share)[None])[0]) >= least:
            return share
        share /= 2
    return 0.0
