"""Rows by a score and by the plain model's decision: what tells how a threshold of the score differs from it.

The guard of a rule asks how many decisions a rule changes. Where it is another model's score that is cut,
that is counted with the plain model's decisions beside it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.disclosure import merge_bins
from fairfate.fairness.metrics import Counts, Metric
from fairfate.fairness.thresholds import BINS, EDGES, Margins
from fairfate.fairness.tilt import Candidates, Guard, select


def split_histogram(plain: Margins, margins: Margins) -> NDArray[np.int64]:
    """(groups, 2, 2, bins) rows by group, label, the plain model's decision and the range of a score: sums.

    Parameters
    ----------
    plain : for each group and label, its rows' log-odds by the plain model
    margins : by the model whose score is cut
    """
    counted = [
        np.bincount(
            (own > 0) * BINS + np.searchsorted(EDGES, other, side="left"),
            minlength=2 * BINS,
        )
        for own, other in zip(plain, margins, strict=True)
    ]
    return np.stack(counted).astype(np.int64).reshape(-1, 2, 2, BINS)


def merge_split(rows: NDArray[np.int64], min_cell: int) -> NDArray[np.int64]:
    """The same with 0 or at least ``min_cell`` rows in each range; see `merge_bins`."""
    flat = rows.reshape(*rows.shape[:-2], 2 * BINS)
    return merge_bins(flat, min_cell).reshape(rows.shape)


def count_plain(rows: NDArray[np.int64]) -> Counts:
    """(..., groups, 2, 2) what the plain model decides."""
    return np.asarray(rows.sum(axis=-1))


def cut_everywhere(rows: NDArray[np.int64]) -> tuple[Counts, NDArray[np.float64]]:
    """(thresholds, groups, 2, 2) decisions by each threshold between ranges, and how many it changes."""
    below = np.zeros((*rows.shape[:-1], BINS + 1), dtype=np.int64)
    below[..., 1:] = rows.cumsum(axis=-1)
    above = below[..., -1:] - below
    counts = np.stack([below.sum(axis=-2), above.sum(axis=-2)], axis=-1)
    changed = (above[..., 0, :] + below[..., 1, :]).sum(axis=(0, 1))
    return np.moveaxis(counts, 2, 0), changed.astype(np.float64)


def cut_at(rows: NDArray[np.int64], threshold: float) -> Counts:
    """(groups, 2, 2) what is decided by a threshold between two ranges."""
    index = cut_step(threshold)
    everybody = rows.sum(axis=-2)
    rejected = everybody[..., :index].sum(axis=-1)
    return np.stack([rejected, everybody.sum(axis=-1) - rejected], axis=-1)


def cut_step(threshold: float) -> int:
    """How many ranges are below a threshold between two of them."""
    return int(np.searchsorted(_ends(), threshold, side="left"))


def choose_distilled(rows: NDArray[np.int64], fairness: Metric, guard: Guard) -> float | None:
    """The log-odds that everybody's score by a distilled model must exceed, from (groups, 2, 2, bins) rows.

    None where the plain model's own decisions are to be kept, which are one of the candidates: those of the
    distilled model may all cost too much, or be less fair.
    """
    counts, changed = cut_everywhere(rows)
    plain = count_plain(rows)
    distance = np.abs(np.arange(BINS + 1) - BINS // 2).astype(np.float64)
    candidates = Candidates(
        np.concatenate([plain[None], counts]),
        np.concatenate([[0.0], changed]),
        (np.concatenate([[0.0], distance]),),
    )
    number = select(candidates, plain, fairness, guard)
    return None if not number else float(_ends()[number - 1])


def _ends() -> NDArray[np.float64]:
    return np.array([-math.inf, *EDGES.tolist(), math.inf])
