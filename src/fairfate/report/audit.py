"""What models do to groups of people, with intervals, and whether the groups' rates lie far apart.

The layout is the one that New York City's Local Law 144 asks for: the selection rate of every category and of
the crossed categories, and its ratio to the rate of the most selected one. People of unknown category, and
those of groups too small to be groups of their own, are reported and not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data.columns import MISSING
from fairfate.data.groups import Groups
from fairfate.fairness.disclosure import is_small, show_counts
from fairfate.fairness.intervals import least_to_most, ratio, wilson
from fairfate.fairness.metrics import (
    COLLAPSED,
    Counts,
    Values,
    mcc,
)
from fairfate.results.summary import crossings

LEAST_PEOPLE = 30
"""Behind a rate that tells something."""
FOUR_FIFTHS = 0.8

ABOVE, BELOW, UNCLEAR, TOO_FEW = "above", "below", "unclear", "too few"
"""What an interval says of the line that the user has drawn."""
COLLAPSED_MODEL, UNTRAINED_MODEL = "collapsed", "untrained"


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval; arrays of one shape."""

    value: Values
    low: Values
    high: Values


class GroupPair(NamedTuple):
    """The least rate of some kind over the largest, and whose they are."""

    rate: str
    value: float
    low: float
    high: float
    least: str
    most: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """One fairness metric of one model against the line."""

    metric: str
    value: float
    low: float
    high: float
    pairs: tuple[GroupPair, ...]
    """The groups that it compares: for equalized odds, those of the two rates that it is the mean of."""
    sentence: str
    """One of the words above."""
    left_out: tuple[str, ...] = ()
    """Groups of too few people."""


@dataclass(frozen=True, eq=False)
class Audit:
    """Some models and the groups of one attribute, or of several crossed: arrays of (models, groups)."""

    attributes: tuple[str, ...]
    groups: tuple[str, ...]
    unknown: NDArray[np.bool_]
    """(groups,) whether the category is not known."""
    parts: dict[str, tuple[NDArray[Any], NDArray[Any]]]
    """Of each rate: how many, of how many."""
    rates: dict[str, Interval]
    ratios: dict[str, Interval]
    """Of each rate to that of the group with the highest, among the groups that are compared."""
    compared: dict[str, NDArray[np.bool_]]
    """For each rate, whether the group counts in ratios: it is compared, and enough people are behind it."""
    enough: dict[str, NDArray[np.bool_]]
    """For each rate, whether there are enough people to tell."""
    shown: dict[str, NDArray[np.int64]]
    """Counts as a report shows them: people, favourable, unfavourable and selected; see `show_counts`."""
    hidden: dict[str, NDArray[np.bool_]]
    """For each rate, whether it is of so few people that it is not shown."""
    skill: Values
    """(models,) MCC."""

    @property
    def attribute(self) -> str:
        """The attributes' names in one."""
        return " x ".join(self.attributes)

    def verdicts(self, model: int, line: float = FOUR_FIFTHS) -> list[Verdict]:
        """Each fairness metric of one model against a line that a ratio should reach."""
        comparisons = {name: self._compare(model, name) for name in ("selection_rate", "tpr", "fpr")}
        ratios = {"sp": ("selection_rate",), "eo": ("tpr",), "eqo": ("tpr", "fpr")}
        return [
            self._verdict(metric, tuple(comparisons[rate] for rate in rates), line, model)
            for metric, rates in ratios.items()
        ]

    def _compare(self, model: int, rate: str) -> GroupPair:
        """The least rate over the largest, among groups of enough people."""
        usable = self.compared[rate][model]
        out = tuple(self.groups[g] for g in np.flatnonzero(~self.unknown & ~usable))
        if usable.sum() < 2:
            return GroupPair(rate, np.nan, np.nan, np.nan, "", "", out)
        indices = np.flatnonzero(usable)
        part, whole = (values[model][indices] for values in self.parts[rate])
        value, low, high, least, most = least_to_most(part, whole)
        ends = self.groups[indices[int(least)]], self.groups[indices[int(most)]]
        return GroupPair(rate, float(value), float(low), float(high), *ends, out)

    def _verdict(self, metric: str, pairs: tuple[GroupPair, ...], line: float, model: int) -> Verdict:
        interval = _mean(pairs)
        if np.isnan(interval.value):
            sentence = TOO_FEW
        elif self.skill[model] < COLLAPSED:
            sentence = COLLAPSED_MODEL
        else:
            sentence = ABOVE if interval.low >= line else BELOW if interval.high < line else UNCLEAR
        left_out = tuple(dict.fromkeys(group for pair in pairs for group in pair.left_out))
        shown = () if np.isnan(interval.value) else pairs
        value, low, high = map(float, interval)
        return Verdict(metric, value, low, high, shown, sentence, left_out)


def _mean(pairs: tuple[GroupPair, ...]) -> Interval:
    """The mean of ratios that are of different people.

    Its distances to the ends of the interval are those of the ratios, added as squares.
    """
    values, lows, highs = (np.array([pair[column] for pair in pairs]) for column in (1, 2, 3))
    value = values.mean()
    low = value - np.sqrt(((values - lows) ** 2).sum()) / len(pairs)
    return Interval(value, low, value + np.sqrt(((highs - values) ** 2).sum()) / len(pairs))


def audits(counts: Counts, groups: Groups, min_cell: int = 0) -> list[Audit]:
    """The audit of (models, groups, 2, 2) counts by each attribute and, of several, by all crossed.

    Counts from 1 to ``min_cell`` - 1 are hidden, and rates of so few people.
    """
    selected, people = counts[..., 1].sum(axis=-1), counts.sum(axis=(-2, -1))
    small = np.asarray(is_small(counts.sum(axis=-1), min_cell).any(axis=(1, 2)))
    few = np.asarray((is_small(selected, min_cell) | is_small(people - selected, min_cell)).any(axis=1))
    beside_small = {"people": small, "selected": small | few}
    return [
        _audit(groups.merge(counts, names), groups, names, min_cell, beside_small)
        for names in crossings(groups)
    ]


def _audit(
    counts: Counts,
    groups: Groups,
    attributes: tuple[str, ...],
    min_cell: int,
    beside_small: dict[str, NDArray[np.bool_]],
) -> Audit:
    members, compares = groups.categories(attributes), groups.compared(attributes)
    names = tuple(map(", ".join, members))
    unknown = np.array([MISSING in member and not groups.missing_counts for member in members])
    least = least_people(min_cell)
    tn, fp, fn, tp = (counts[..., y, p] for y in (0, 1) for p in (0, 1))
    people, positives, selected = tn + fp + fn + tp, tp + fn, tp + fp
    wholes = {
        "selection_rate": (selected, people),
        "tpr": (tp, positives),
        "fpr": (fp, people - positives),
        "accuracy": (tp + tn, people),
    }
    compared = {name: compares & (whole >= max(min_cell, 1)) for name, (_, whole) in wholes.items()}
    hidden = {name: is_small(whole, min_cell) for name, (_, whole) in wholes.items()}
    counted = {"people": people, "favourable": positives, "unfavourable": people - positives}
    shown = {
        name: show_counts(parts, min_cell, beside_small["people"][:, None]) for name, parts in counted.items()
    }
    shown["selected"] = show_counts(selected, min_cell, beside_small["selected"][:, None])
    return Audit(
        attributes,
        names,
        unknown,
        wholes,
        {name: _interval(*parts, hidden[name]) for name, parts in wholes.items()},
        {name: _to_highest(*parts, compared[name]) for name, parts in wholes.items() if name != "accuracy"},
        compared,
        {name: np.asarray(whole >= least) for name, (_, whole) in wholes.items()},
        shown,
        hidden,
        mcc(counts),
    )


def _interval(part: NDArray[Any], whole: NDArray[Any], hidden: NDArray[np.bool_]) -> Interval:
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
    return Interval(*(np.where(hidden, np.nan, values) for values in (value, *wilson(part, whole))))


def _to_highest(part: NDArray[Any], whole: NDArray[Any], compared: NDArray[np.bool_]) -> Interval:
    """Each group's rate over that of the group with the highest; NaN for groups that are not compared.

    One group alone is not compared with anybody.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.where(compared & (whole > 0), part / np.maximum(whole, 1), -1.0)
    most = rates.argmax(axis=1)[:, None]
    top_part, top_whole = (np.take_along_axis(values, most, axis=1) for values in (part, whole))
    top = np.take_along_axis(rates, most, axis=1)
    usable = (rates >= 0) & ((rates >= 0).sum(axis=1, keepdims=True) > 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(usable, np.where(top > 0, rates / np.where(top > 0, top, 1), 1.0), np.nan)
    low, high = ratio(part, whole, top_part, top_whole)
    is_top = np.arange(part.shape[1])[None] == most
    low, high = (np.where(usable, np.where(is_top, 1.0, ends), np.nan) for ends in (low, high))
    return Interval(value, low, high)


def least_people(min_cell: int) -> int:
    """Behind a rate that counts in ratios, where smaller counts are not shown."""
    return max(LEAST_PEOPLE, min_cell)
