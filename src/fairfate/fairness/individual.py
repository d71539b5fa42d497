"""Fairness to single people: whether those who are alike are treated alike.

A model that gives everybody one answer is perfect by all of these, so they are read beside its skill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import check
from fairfate.fairness.metrics import Counts, Metric, Values

NEIGHBOURS = 5
CONSISTENCY, FLIP = "consistency", "flip"
INDIVIDUAL = (CONSISTENCY, FLIP)
"""As terms of an objective, where 1 is fair: ``flip`` is 1 less the attribute flip rate."""


class IndividualObjective(NamedTuple):
    """An objective with such terms: a function of counts and of these."""

    terms: frozenset[str]
    bound: Callable[[Mapping[str, Values]], Metric]
    """The objective as a function of counts alone, once the terms have values."""

    def __call__(self, counts: Counts, people: Mapping[str, Values]) -> Values:
        """Its values, one for each leading index of the counts; of the terms, as many are given."""
        return self.bound(people)(counts)

    def perfect(self) -> dict[str, Values]:
        """The terms of one model that treats everybody alike."""
        return dict.fromkeys(self.terms, np.ones(()))


Fairness = Metric | IndividualObjective
"""What a strategy may score models by."""


def gower_neighbours(
    features: NDArray[np.float64], categorical: NDArray[np.bool_], k: int = NEIGHBOURS
) -> NDArray[np.int64]:
    """(rows, k) the rows most like each row, without itself; ties go to the earlier row.

    Likeness is Gower's: the mean over columns of the difference as a share of the column's range, and of 0 or
    1 for categories. A missing number counts as the column's median.

    >>> x = np.array([[0.0], [0.1], [0.2], [0.9], [1.0]])
    >>> gower_neighbours(x, np.array([False]), k=2).tolist()
    [[1, 2], [0, 2], [1, 0], [4, 2], [3, 2]]
    """
    rows = len(features)
    check(1 <= k < rows, f"k must be from 1 to {rows - 1}", k)
    distance = np.zeros((rows, rows))
    for column, category in zip(features.T, categorical, strict=True):
        if category:
            distance += column[:, None] != column[None]
            continue
        missing = np.isnan(column)
        filled = np.where(missing, np.median(column[~missing]) if not missing.all() else 0.0, column)
        span = float(np.ptp(filled))
        if span > 0:
            distance += np.abs(filled[:, None] - filled[None]) / span
    np.fill_diagonal(distance, np.inf)
    return np.argsort(distance.round(12), axis=1, kind="stable")[:, :k]


def consistency(accepted: NDArray[np.bool_], neighbours: NDArray[np.int64]) -> float:
    """1 less the mean distance of a person's decision from that of the people most like them.

    >>> near = gower_neighbours(np.array([[0.0], [0.1], [0.2], [0.9], [1.0]]), np.array([False]), k=2)
    >>> round(consistency(np.array([False, False, True, True, True]), near), 6)
    0.6
    """
    decided = accepted.astype(np.float64)
    return float(1 - np.abs(decided - decided[neighbours].mean(axis=1)).mean())


def attribute_flip_rate(accepted: NDArray[np.bool_], flipped: NDArray[np.bool_]) -> float:
    """Share of people whose decision changes if only their group does, to any of the others.

    Only the attribute is changed, not what follows from it: this says nothing of counterfactual fairness.
    The worst for each person, so it does not matter in which order the groups come.

    Parameters
    ----------
    accepted : (rows,) decisions
    flipped : (others, rows) decisions with each other value of the attribute
    """
    return float((flipped != accepted).any(axis=0).mean())
