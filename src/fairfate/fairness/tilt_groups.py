"""The tilted score for several groups: a price on each guessed group, found by questions to the clients.

With two groups one joint histogram tells everything. With more there is none that could be sent, so the
server asks: for given prices, how many rows of each group and label have which score. A path of questions
lowers the differences of the groups' rates step by step, and a search then moves one price at a time.

All numbers of a rule are whole, so that it decides alike wherever it is computed: a probability is the number
of its range, and prices are in 64ths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import (
    Counts,
    Metric,
    Values,
    false_positive_rates,
    selection_rates,
    true_positive_rates,
)
from fairfate.fairness.split_scores import count_plain, cut_everywhere
from fairfate.fairness.thresholds import BINS as RANGES
from fairfate.fairness.thresholds import Margins
from fairfate.fairness.tilt import EO, SP, Candidates, Guard, Tilt, bin_edges, find_bins, select

EQO = "eqo"
"""The general family; any objective but sp and eo has it."""
MOST_BINS = 64
UNIT = 64
"""A price is so many of these."""
MOST_PRICE = 4 * UNIT
"""In size; beyond it a guess outweighs every score."""
PATH, STRIDE = 40, 0.2
"""Questions of the path; and what a price moves at each, for a rate that is 1 below the overall one."""
NEARBY, REPEATS = (32, 16, 8, 4, 2), 12
"""By how much the search moves one price at a time, and how often by each."""
Whole = NDArray[np.int64]


class GroupTilt(NamedTuple):
    """A rule by the ranges of P(label 1 | x) and, for each group but the first, of P(group | x)."""

    family: str
    bins: int
    """Ranges of each probability."""
    prices: Whole
    """(2, groups - 1) in `UNIT`: of the guessed groups among those with label 1, and with label 0; the second
    are 0 for sp and eo."""
    step: int
    """Which of the `RANGES` + 1 thresholds evenly spaced between its ends the score must reach: the first
    accepts everybody, and the last nobody."""

    def scores(self, label: NDArray[np.intp], groups: NDArray[np.intp]) -> Whole:
        """(rows,) whole scores, from (rows,) ranges of the label's probability and (groups - 1, rows)."""
        own = 2 * label.astype(np.int64) + 1
        guesses = 2 * groups.astype(np.int64) + 1
        first, second = ((prices[:, None] * guesses).sum(axis=0) for prices in self.prices)
        most = 2 * self.bins
        if self.family == SP:
            return np.asarray(UNIT * own + first)
        return np.asarray(own * (UNIT * most + first) + (most - own) * second)

    @property
    def ends(self) -> tuple[int, int]:
        """Between which the score of somebody who is surely in one group is."""
        most, (first, second) = 2 * self.bins, self.prices.tolist()
        if self.family == SP:
            return most * min(0, *first), most * (UNIT + max(0, *first))
        at_ends = [0, *second, UNIT, *(UNIT + price for price in first)]
        return most * most * min(at_ends), most * most * max(at_ends)

    @property
    def text(self) -> str:
        """The rule as text: its family, ranges, threshold's step and prices."""
        return " ".join(map(str, [self.family, self.bins, self.step, *self.prices.ravel().tolist()]))

    @classmethod
    def from_text(cls, text: str) -> GroupTilt:
        """The rule of such a text; ValueError for that of none.

        >>> GroupTilt.from_text("sp 32 128 -64 16 0 0").prices.tolist()
        [[-64, 16], [0, 0]]
        """
        family, *numbers = text.split(" ")
        bins, step, *prices = map(int, numbers)
        is_rule = family in (SP, EO, EQO) and bins % 2 == 0 and 2 <= bins <= MOST_BINS
        is_rule = is_rule and 0 <= step <= RANGES and len(prices) > 0 and len(prices) % 2 == 0
        if not is_rule or max(map(abs, prices)) > MOST_PRICE:
            raise ValueError(f"'{text[:40]}' is no rule for several groups")
        return cls(family, bins, np.array(prices, dtype=np.int64).reshape(2, -1), step)

    @property
    def threshold(self) -> int:
        """What the score must reach, in its own unit."""
        low, high = self.ends
        if self.step in (0, RANGES):
            beyond = 4 * self.bins * self.bins * (2 * UNIT + int(np.abs(self.prices).sum()))
            return beyond if self.step else -beyond
        return -(-(low * RANGES + self.step * (high - low)) // RANGES)

    def steps(self, label: NDArray[np.intp], groups: NDArray[np.intp]) -> NDArray[np.int64]:
        """(rows,) which of the ranges between the thresholds each score is in."""
        low, high = self.ends
        return np.clip((self.scores(label, groups) - low) * RANGES // (high - low), 0, RANGES - 1)

    def decide(
        self, margins: NDArray[np.floating], guesses: Sequence[NDArray[np.floating]]
    ) -> NDArray[np.bool_]:
        """(rows,) the decisions, from the log-odds of the model and of those that guess the groups."""
        label, groups = find_bins(margins, self.bins), np.stack([find_bins(g, self.bins) for g in guesses])
        return np.asarray(self.scores(label, groups) >= self.threshold)

    def excess(
        self, margins: NDArray[np.float64], guesses: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """(rows,) by how much the log-odds exceed what they must exceed; above 0 where a row is accepted."""
        groups = np.stack([find_bins(guess, self.bins) for guess in guesses])
        every = np.stack(
            [self.scores(np.full(len(margins), k), groups) >= self.threshold for k in range(self.bins)]
        )
        turns = every[1:] != every[:-1]  # (edges, rows)
        edges = bin_edges(self.bins).astype(np.float64)
        distance = np.where(turns, np.abs(margins - edges[:, None]), np.inf).min(axis=0)
        distance = np.maximum(distance, np.finfo(np.float64).tiny)
        accepted = every[find_bins(margins, self.bins), np.arange(len(margins))]
        return np.asarray(np.where(accepted, distance, -distance))


def family_name(text: str) -> str:
    """The family of scores for an objective of this name."""
    return text if text in (SP, EO) else EQO


def plain_group_rule(family: str, bins: int, groups: int) -> GroupTilt:
    """The model's own decisions, as a rule."""
    return GroupTilt(family, bins, np.zeros((2, groups - 1), dtype=np.int64), RANGES // 2)


def priced_histogram(rule: GroupTilt, margins: Margins, guesses: Sequence[Margins]) -> Whole:
    """(groups, 2, 2, ranges) rows by group, label, plain decision and the range of a rule's score: sums."""
    counted = []
    for stratum, own in enumerate(margins):
        label = find_bins(own, rule.bins)
        groups = np.stack([find_bins(guess[stratum], rule.bins) for guess in guesses])
        index = (label >= rule.bins // 2) * RANGES + rule.steps(label, groups)
        counted.append(np.bincount(index, minlength=2 * RANGES))
    return np.stack(counted).astype(np.int64).reshape(-1, 2, 2, RANGES)


Ask = Callable[[Sequence[GroupTilt]], Whole]
"""(rules, groups, 2, 2, ranges) the clients' rows by the score of each rule, whatever its threshold: sums."""
MOST_QUESTIONS = PATH + 1 + len(NEARBY) * REPEATS
"""How often a search asks, at most."""


def read_rule(text: str) -> Tilt | GroupTilt:
    """The rule of a text, for two groups or for more; ValueError for that of none."""
    return GroupTilt.from_text(text) if " " in text else Tilt.from_text(text)


def most_rules(groups: int) -> int:
    """About how many rules a search asks at once, at most: two for each price."""
    return 4 * (groups - 1)


class GroupSearch:
    """The rules that clients were asked about, each with all of its thresholds, and what is the best of them.

    Parameters
    ----------
    ask : asks the clients
    groups : how many there are
    fairness, guard : what a rule is chosen by
    family : of the score: `SP`, `EO`, or anything else; see `choose_tilt`
    bins : ranges of each probability
    """

    def __init__(self, ask: Ask, groups: int, fairness: Metric, guard: Guard, family: str, bins: int) -> None:
        self.ask, self.fairness, self.guard = ask, fairness, guard
        self.rules: list[GroupTilt] = []
        self.rows: list[Whole] = []
        self._counts: list[Counts] = []
        self._changed: list[Values] = []
        self._numbers: dict[bytes, int] = {}
        self.plain = plain_group_rule(family_name(family), bins, groups)
        self._question([self.plain])
        self._count_plain = count_plain(self.rows[0])

    def run(self) -> None:
        """Ask until no rule nearby is better, or often enough; not at all where fairness is undefined."""
        if np.isnan(self.fairness(self._count_plain)):
            return
        self._walk()
        for size in NEARBY:
            for _ in range(REPEATS):
                base = self.best(self.guard)
                self._question(list(_neighbours(base, size)))
                if (self.best(self.guard).prices == base.prices).all():
                    break

    def best(self, guard: Guard) -> GroupTilt:
        """The rule that a guard takes; the plain one where fairness is undefined for all."""
        weights = [float(np.abs(rule.prices).sum()) for rule in self.rules]
        distance = np.abs(np.arange(RANGES + 1) - RANGES // 2).astype(np.float64)
        ties = np.repeat(weights, RANGES + 1), np.tile(distance, len(self.rules))
        candidates = Candidates(np.concatenate(self._counts), np.concatenate(self._changed), ties)
        number = select(candidates, self._count_plain, self.fairness, guard)
        if number is None:
            return self.plain
        rule, step = divmod(number, RANGES + 1)
        return self.rules[rule]._replace(step=step)

    def rows_of(self, rule: GroupTilt) -> Whole:
        """(groups, 2, 2, ranges) what clients have told of a rule."""
        return self.rows[self._numbers[rule.prices.tobytes()]]

    def counts_of(self, rule: GroupTilt) -> Counts:
        """(groups, 2, 2) its decisions."""
        return np.asarray(self._counts[self._numbers[rule.prices.tobytes()]][rule.step])

    def _question(self, rules: Sequence[GroupTilt]) -> None:
        """Ask about those that were not asked about yet."""
        new = {rule.prices.tobytes(): rule for rule in rules if rule.prices.tobytes() not in self._numbers}
        if not new:
            return
        for (key, rule), rows in zip(new.items(), self.ask([*new.values()]), strict=True):
            counts, changed = cut_everywhere(rows)
            self._numbers[key] = len(self.rules)
            self.rules.append(rule)
            self.rows.append(rows)
            self._counts.append(counts)
            self._changed.append(changed)

    def _walk(self) -> None:
        """Raise the prices of groups with lower rates, again and again, with as many people accepted."""
        rates = _rates_of(self.plain.family)
        prices, counts = np.zeros(self.plain.prices.shape), self._count_plain
        people = counts.sum(axis=(1, 2)).astype(np.float64)
        accepted = counts[..., 1].sum()
        for _ in range(PATH):
            for row, rate in enumerate(rates):
                by_group = rate(counts)
                known = np.isfinite(by_group)
                overall = float((people * by_group)[known].sum() / max(people[known].sum(), 1.0))
                lack = np.where(known, overall - by_group, 0.0)
                prices[row] += STRIDE * UNIT * (lack[1:] - lack[0])
            whole = np.rint(np.clip(prices, -MOST_PRICE, MOST_PRICE)).astype(np.int64)
            rule = self.plain._replace(prices=whole)
            self._question([rule])
            every = self._counts[self._numbers[rule.prices.tobytes()]]
            counts = every[np.abs(every[..., 1].sum(axis=(1, 2)) - accepted).argmin()]


def _rates_of(family: str) -> list[Metric]:
    """What a family's prices equalise, each by one row of them."""
    if family == SP:
        return [selection_rates]
    return [true_positive_rates] if family == EO else [true_positive_rates, false_positive_rates]


def _neighbours(rule: GroupTilt, size: int) -> Iterator[GroupTilt]:
    """Rules with one price that is so much higher or lower."""
    for row in range(len(_rates_of(rule.family))):
        for group in range(rule.prices.shape[1]):
            for move in (size, -size):
                prices = rule.prices.copy()
                prices[row, group] = np.clip(prices[row, group] + move, -MOST_PRICE, MOST_PRICE)
                yield rule._replace(prices=prices)
