"""Rows with weights as rows that stand there several times, or not at all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairfate.federation.seeds import Streams

MOST_COPIES = 10
"""Rows in all, for each row that was given; beyond that, copies are drawn."""
_MOST_PARTS = 10
"""Of the smallest weight, in which the others are measured."""
_SAME = 1e-9


def copies(weight: NDArray[np.float64], order: NDArray[np.int64], streams: Streams) -> NDArray[np.int64]:
    """(rows,) how often each row is taken; only the ratios of weights matter.

    Weights that are whole numbers of a common unit are these numbers, as long as this makes no more than
    `MOST_COPIES` times as many rows. Others give as many rows as have a weight, drawn systematically in
    ``order``: each row, and each stretch of rows, is taken as often as its weight says, rounded down or up.

    Parameters
    ----------
    weight : (rows,) finite numbers >= 0, not all 0
    order : (rows,) the rows' numbers, such that rows of a kind stand together

    Examples
    --------
    >>> copies(np.array([0.5, 0.0, 1.0, 0.75]), np.arange(4), Streams(1)).tolist()
    [2, 0, 4, 3]
    """
    weight = weight / weight.max()
    weighted = weight > 0
    with np.errstate(over="ignore"):
        ratio = weight / weight[weighted].min()
    for parts in range(1, _MOST_PARTS + 1):
        whole = np.rint(parts * ratio)
        if whole.sum() > MOST_COPIES * len(weight):
            break
        if (np.abs(parts * ratio - whole) <= _SAME * whole).all():
            return np.asarray(whole, dtype=np.int64)
    ends = np.cumsum(weight[order])
    ends *= int(weighted.sum()) / ends[-1]
    taken = np.empty(len(weight), dtype=np.int64)
    taken[order] = np.diff(np.floor(ends + streams.offset()), prepend=0.0)
    return taken
