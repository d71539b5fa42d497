"""One rule for everybody, chosen after training from sums that clients send. No group is needed at decisions.

Two rules are chosen under the same guard: a *common threshold* of the score, from a histogram of it; and the
*tilted score*, from a joint histogram of P(label 1 | x) and P(group 1 | x), by two models that do not see the
group. Its table of decisions, one for each pair of ranges, is what is released, so that the sums are exact
counts of what it does.

Menon and Williamson (FAT* 2018) have the form of the rule: the score plus a price on the guessed group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.disclosure import merge_bins
from fairfate.fairness.metrics import Counts, Metric, Values, accuracy, balanced_accuracy
from fairfate.fairness.thresholds import BINS as SCORE_BINS
from fairfate.fairness.thresholds import EDGES as SCORE_EDGES
from fairfate.fairness.thresholds import Margins

BINS = 32
"""Ranges of each of the two probabilities, unless the step says otherwise."""
STEPS = 256
"""Thresholds of the tilted score that are tried, evenly spaced between its ends."""
SPAN = 1.5
"""Largest price on the guessed group in the first pass; the second looks around the first one's choice."""
SP, EO = "sp", "eo"
_WAYS = {SP: 41, EO: 41}
_WAYS_OF_TWO = 21
"""How many prices are tried in a pass; where there are two of them, of each."""
_ROUNDING = 1e-9
"""Of a step: a score on an edge belongs above it, whatever the last bits of its arithmetic are."""


class Guard(NamedTuple):
    """What a rule must keep of the plain one, and how fair it must be."""

    tolerance: float = 0.02
    """Accuracy that may be given up."""
    keep: float = 0.85
    """Share of the skill, balanced accuracy above one half, that must be left."""
    margin: float = 2.0
    """Standard errors of the accuracy given up that must lie within the tolerance too."""
    slack: float = 0.01
    """Of rules that are less fair than the fairest by this at most, the most accurate is taken."""
    bound: float = math.inf
    """Fairness to reach at the least cost in accuracy; as much as there is where it cannot be reached."""


class Candidates(NamedTuple):
    """Rules that are tried."""

    counts: Counts
    """(rules, groups, 2, 2)"""
    changed: Values
    """(rules,) how many rows the rule decides otherwise than the plain one."""
    ties: tuple[Values, ...]
    """(rules,) of equally accurate rules, the one with the least of the first; then of the second."""
    noise: Values | float = 0.0
    """(rules,) the variance that noise in the counts gives to how many decisions more are right than by the
    plain rule."""


def select(candidates: Candidates, plain: Counts, fairness: Metric, guard: Guard) -> int | None:
    """The number of the fairest rule that keeps accuracy and skill; of nearly as fair ones the most accurate.

    None where fairness is undefined for all that may be taken: then the plain rule is left as it is.
    """
    rows = max(float(plain.sum()), 1.0)
    drop = accuracy(plain) - accuracy(candidates.counts)
    error = np.sqrt(np.maximum(candidates.changed / rows - drop**2, 0) / rows + candidates.noise / rows**2)
    allowed = drop + guard.margin * error <= guard.tolerance
    least = guard.keep * (balanced_accuracy(plain) - 0.5)
    allowed &= ~(balanced_accuracy(candidates.counts) - 0.5 < least - 1e-12)
    allowed |= candidates.changed == 0
    scores = np.where(allowed, np.nan_to_num(fairness(candidates.counts), nan=-1.0), -2.0)
    if scores.max() < 0:
        return None
    most = scores.max()
    numbers = np.flatnonzero(scores >= (guard.bound if most >= guard.bound else most - guard.slack))
    keys = [key[numbers] for key in (drop, *candidates.ties)]
    return int(numbers[np.lexsort(keys[::-1])[0]])


# -- one threshold for everybody -------------------------------------------------------------------------


def choose_common(
    rows: NDArray[np.int64], fairness: Metric, guard: Guard, noise: Values | float = 0.0
) -> float:
    """The log-odds that everybody's score must exceed, from (groups, 2, bins) rows by score.

    0, the plain rule, where fairness is undefined for every threshold. ``noise`` is that of `Candidates`, for
    each of the bins + 1 thresholds.
    """
    below = np.concatenate([np.zeros((*rows.shape[:2], 1), dtype=rows.dtype), rows.cumsum(axis=-1)], axis=-1)
    counts = np.stack([below, below[..., -1:] - below], axis=-1)
    counts = np.moveaxis(counts, 2, 0)  # (thresholds, groups, 2, 2)
    rejected, middle = below.sum(axis=(0, 1)), SCORE_BINS // 2
    changed = np.abs(rejected - rejected[middle]).astype(np.float64)
    distance = np.abs(np.arange(SCORE_BINS + 1) - middle).astype(np.float64)
    number = select(Candidates(counts, changed, (distance,), noise), counts[middle], fairness, guard)
    ends = [-math.inf, *SCORE_EDGES.tolist(), math.inf]
    return 0.0 if number is None else float(ends[number])


# -- the tilted score --------------------------------------------------------------------------------------


class Tilt(NamedTuple):
    """A rule by the ranges that P(label 1 | x) and P(group 1 | x) are in."""

    table: NDArray[np.bool_]
    """(bins, bins) whether the favourable outcome is decided; by the label's range, then by the group's."""
    prices: tuple[float, float] = (0.0, 0.0)
    """Of the guessed group: of those with label 1, and of those with label 0 (0 for sp and eo). Different
    prices may have the same table."""
    threshold: float = 0.5

    @property
    def bins(self) -> int:
        """Ranges of each probability."""
        return len(self.table)

    @property
    def text(self) -> str:
        """Its table as text: the bits in their order, in hexadecimal digits."""
        return np.packbits(self.table).tobytes().hex()

    @classmethod
    def from_text(cls, text: str) -> Tilt:
        """The rule of such a text; ValueError for that of no table.

        >>> Tilt.from_text(Tilt(np.eye(8, dtype=bool)).text).table.diagonal().all()
        np.True_
        """
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8)).astype(bool)
        bins = math.isqrt(len(bits))
        if not bins or bins * bins != len(bits):
            raise ValueError(f"{len(bits)} decisions are no square table")
        return cls(bits.reshape(bins, bins))

    def counts(self, rows: NDArray[np.int64]) -> Counts:
        """(groups, 2, 2) counts of its decisions, from (groups, 2, bins, bins) rows by both ranges."""
        accepted = (rows * self.table).sum(axis=(-1, -2))
        return np.stack([rows.sum(axis=(-1, -2)) - accepted, accepted], axis=-1)

    def decide(self, margins: NDArray[np.floating], group_margins: NDArray[np.floating]) -> NDArray[np.bool_]:
        """(rows,) the decisions, from the log-odds of both models."""
        return np.asarray(self.table[find_bins(margins, self.bins), find_bins(group_margins, self.bins)])

    def excess(self, margins: NDArray[np.float64], group_margins: NDArray[np.float64]) -> NDArray[np.float64]:
        """(rows,) by how much the log-odds exceed what they must exceed; above 0 where a row is accepted.

        That is the distance to the nearest score with the other decision, for the same guess of the group.
        """
        guesses, accepted = find_bins(group_margins, self.bins), self.decide(margins, group_margins)
        distance = np.full(len(margins), np.inf)
        edges = bin_edges(self.bins).astype(np.float64)
        for guess in np.unique(guesses):
            ends = edges[self.table[1:, guess] != self.table[:-1, guess]]
            rows = guesses == guess
            if len(ends):
                distance[rows] = np.abs(margins[rows, None] - ends).min(axis=1)
        distance = np.maximum(distance, np.finfo(np.float64).tiny)  # a score on an edge has a decision too
        return np.asarray(np.where(accepted, distance, -distance))


def plain_rule(bins: int) -> Tilt:
    """The model's own decisions, as a table."""
    return Tilt(np.repeat(np.arange(bins)[:, None] >= bins // 2, bins, axis=1))


@lru_cache
def bin_edges(bins: int) -> NDArray[np.float32]:
    """The log-odds between so many equal ranges of probability."""
    edges = np.array([math.log(k / (bins - k)) for k in range(1, bins)], dtype=np.float32)
    edges.setflags(write=False)
    return edges


def find_bins(margins: NDArray[np.floating], bins: int) -> NDArray[np.intp]:
    """The range that each score is in; one on an edge is in the range below, so that 0 is rejected.

    >>> find_bins(np.array([-9.0, 0.0, 1e-3, 9.0]), 4).tolist()
    [0, 1, 2, 3]
    """
    return np.searchsorted(bin_edges(bins), margins, side="left")


def joint_histogram(margins: Margins, group_margins: Margins, bins: int) -> NDArray[np.int64]:
    """(groups, 2, bins, bins) rows by group, label and both scores: sums, so that clients' can be added."""
    counted = [
        np.bincount(find_bins(own, bins) * bins + find_bins(group, bins), minlength=bins * bins)
        for own, group in zip(margins, group_margins, strict=True)
    ]
    return np.stack(counted).astype(np.int64).reshape(-1, 2, bins, bins)


def merge_squares(joint: NDArray[np.int64], min_cell: int) -> NDArray[np.int64]:
    """Joint histograms whose ranges hold 0 or at least ``min_cell`` rows each; see `merge_bins`.

    Ranges are halved by one score and by the other in turn.
    """
    if min_cell <= 1:
        return joint
    bins = joint.shape[-1]
    order = _square_order(bins)
    flat = joint.reshape(*joint.shape[:-2], bins * bins)
    merged = np.empty_like(flat)
    merged[..., order] = merge_bins(flat[..., order], min_cell)
    return merged.reshape(joint.shape)


def _square_order(bins: int) -> NDArray[np.intp]:
    """The numbers of the fields of a square table in such an order that each half of them is half of it."""
    row, column = np.divmod(np.arange(bins * bins), bins)
    key = np.zeros(bins * bins, dtype=np.int64)
    for bit in range(bins.bit_length() - 1):
        key |= (row >> bit & 1) << (2 * bit + 1) | (column >> bit & 1) << (2 * bit)
    return np.argsort(key, kind="stable")


def choose_tilt(rows: NDArray[np.int64], fairness: Metric, family: str, guard: Guard) -> Tilt:
    """The rule of a family that `select` takes, from (2, 2, bins, bins) rows by group, label and both scores.

    With label's score e and group's score g, everybody is decided by ``r >= t``, where r is

    - ``sp``: e + a g
    - ``eo``: e (1 + a g)
    - anything else: e (1 + a1 g) + (1 - e) a0 g

    Two passes try prices a in even steps, and 257 thresholds of each; the second around what the first took.
    The plain rule is one of them, and stays where fairness is undefined for all.
    """
    chosen = plain_rule(rows.shape[-1])
    own = chosen.table.ravel()
    plain = chosen.counts(rows)
    centre, span = (0.0, 0.0), SPAN
    ways = _WAYS.get(family, _WAYS_OF_TWO)
    for _ in range(2):
        prices = list(_prices(centre, span, ways, family))
        candidates = _try_prices(rows, own, prices, family)
        number = select(candidates, plain, fairness, guard)
        if number is None:
            return chosen
        way, step = divmod(number, STEPS + 1)
        steps, low, high = _score_steps(rows.shape[-1], prices[way], family)
        table = (steps >= step).reshape(chosen.table.shape)
        chosen = Tilt(table, prices[way], low + (high - low) * step / STEPS)
        centre, span = prices[way], 2 * span / (ways - 1)
    return chosen


def _prices(
    centre: tuple[float, float], span: float, ways: int, family: str
) -> Iterator[tuple[float, float]]:
    """The prices of a pass."""
    offsets = [span * (2 * k / (ways - 1) - 1) for k in range(ways)]
    for first in offsets:
        for second in [0.0] if family in (SP, EO) else offsets:
            yield centre[0] + first, centre[1] + second


def _score_steps(
    bins: int, prices: tuple[float, float], family: str
) -> tuple[NDArray[np.int64], float, float]:
    """(bins * bins,) how many steps of the threshold each field reaches; and the ends of the steps."""
    label, group = (part.ravel() + 0.5 for part in np.divmod(np.arange(bins * bins), bins))
    label, group = label / bins, group / bins
    first, second = prices
    if family == SP:
        score, ends = label + first * group, (0.0, 1.0, first, 1 + first)
    else:
        score = label * (1 + first * group) + (1 - label) * second * group
        ends = (0.0, 1.0, second, 1 + first)
    low, high = min(ends), max(ends)
    steps = np.floor((score - low) / (high - low) * STEPS + _ROUNDING).astype(np.int64)
    return steps, low, high


def _try_prices(
    rows: NDArray[np.int64], own: NDArray[np.bool_], prices: list[tuple[float, float]], family: str
) -> Candidates:
    """Every threshold of each price."""
    bins = rows.shape[-1]
    strata = rows.reshape(-1, bins * bins)
    everybody = strata.sum(axis=0)
    parts = [*strata, everybody * own, everybody * ~own]
    each = np.empty((len(prices), len(parts), STEPS + 1))
    totals = np.array([float(part.sum()) for part in parts])
    changed = np.empty((len(prices), STEPS + 1))
    ties = np.empty((3, len(prices), STEPS + 1))
    for way, price in enumerate(prices):
        steps, low, high = _score_steps(bins, price, family)
        for number, part in enumerate(parts):
            counted = np.bincount(steps, weights=part, minlength=STEPS + 1)
            each[way, number] = np.concatenate([[0.0], counted.cumsum()[:STEPS]])
        changed[way] = each[way, -2] + totals[-1] - each[way, -1]
        thresholds = low + (high - low) * np.arange(STEPS + 1) / STEPS
        ties[0, way], ties[1, way], ties[2, way] = abs(price[0]), abs(price[1]), np.abs(thresholds - 0.5)
    rejected = np.moveaxis(each[:, :-2], 1, -1)
    both = np.stack([rejected, totals[:-2] - rejected], axis=-1)
    counts = both.reshape(-1, len(rows), 2, 2).astype(np.int64)
    return Candidates(counts, changed.ravel(), (ties[0].ravel(), ties[1].ravel(), ties[2].ravel()))
