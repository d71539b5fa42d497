"""Which of many models to take: the fairest that keeps accuracy and skill; and the front that none beats.

One rule for all who select: what a run recommends, what the benchmark tunes by, how the reproduction chooses
settings. Each calls it with its own constants, on validation rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

TOLERANCE = 0.02
"""Accuracy that a model may lack against the reference's."""
KEEP = 0.8
"""Share of the reference's skill, its balanced accuracy above one half, that a model must have."""


def keeps(
    accuracy: ArrayLike,
    skill: ArrayLike,
    reference: tuple[ArrayLike, ArrayLike],
    tolerance: float = TOLERANCE,
    keep: float = KEEP,
    slack: float = 0.0,
) -> NDArray[np.bool_]:
    """Whether models keep the accuracy and the skill of a reference; what is undefined does not.

    Parameters
    ----------
    accuracy, skill : of the models; skill is balanced accuracy minus one half
    reference : its accuracy and its skill
    tolerance : accuracy that may be given up
    keep : share of the skill that must be left
    slack : for rounding: a difference that counts as none

    >>> keeps([0.80, 0.79, 0.70], [0.20, 0.15, 0.20], (0.80, 0.20)).tolist()
    [True, False, False]
    """
    accurate = np.asarray(accuracy) >= np.asarray(reference[0]) - tolerance - slack
    return np.asarray(accurate & (np.asarray(skill) >= keep * np.asarray(reference[1]) - slack))


def select(
    candidates: pd.DataFrame, eligible: NDArray[np.bool_], fairness: str, accuracy: str, keys: Sequence[str]
) -> pd.DataFrame:
    """For each ``by``, the fairest eligible candidate; without any, the most accurate. Of equals, the first.

    Parameters
    ----------
    candidates : a row for each
    eligible : which of them keep what they must, see `keeps`
    fairness, accuracy : their columns
    by : columns of what is chosen for, such as the seed and the method

    Returns
    -------
    The chosen rows, with ``matched``: whether it is eligible, and ``grid``: of how many it was chosen.
    """
    keys = list(keys)
    score = np.where(eligible, 1 + candidates[fairness].fillna(-1), candidates[accuracy] - 10)
    scored = candidates.assign(matched=eligible, score=score)
    ranked = scored.sort_values("score", ascending=False, kind="stable")
    sizes = candidates.groupby(keys).size().rename("grid")
    return ranked.drop(columns="score").drop_duplicates(keys).join(sizes, on=keys)


def on_front(points: NDArray[Any]) -> NDArray[np.bool_]:
    """Which (models, 2) points no other beats in one value without losing in the other.

    >>> on_front(np.array([[0.8, 0.5], [0.7, 0.9], [0.7, 0.4], [0.8, 0.5]])).tolist()
    [True, True, False, True]
    """
    known: NDArray[Any] = np.where(np.isnan(points), -np.inf, points)
    at_least = (known[None] >= known[:, None]).all(axis=2)
    more = (known[None] > known[:, None]).any(axis=2)
    return np.asarray(~np.any(at_least & more, axis=1))


def pareto_front(points: Iterable[tuple[float, float]]) -> list[int]:
    """The numbers of the points on the front, from left to right.

    >>> pareto_front([(0.5, 0.9), (0.7, 0.8), (0.6, 0.7), (0.8, 0.1)])
    [0, 1, 3]
    """
    listed = np.array(list(points), dtype=np.float64).reshape(-1, 2)
    front = np.flatnonzero(on_front(listed))
    return [int(number) for number in front[np.lexsort((listed[front, 1], listed[front, 0]))]]
