"""How far a number can be trusted that was counted on few people, or measured with few seeds.

Two questions, two kinds of intervals. *Over people*: what if other people of the same kind had been in
the test rows (`wilson`, `difference`, `ratio`, `least_to_most`, `most_minus_least`, `bootstrap`)? *Over
seeds*: what if the rows had been split in another way (`over_seeds`, `paired`)? All are 95 % intervals unless
another ``z`` is given.

Counts may be fractions (means over seeds). Arrays are broadcast, and what cannot be told is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairfate.errors import check
from fairfate.fairness.metrics import Counts, Values

Z95 = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""
TEST_TO_TRAIN = 1 / 3
"""Test rows for each training row, where a seed's rows are split 60 : 20 : 20."""
LEAST_PEOPLE, WIDEST = 30, 0.3
"""From so many people on, and with a narrower interval than this, a group's rate says something."""

Numbers = NDArray[np.int64]


def wilson(part: NDArray[Any], whole: NDArray[Any], z: float = Z95) -> tuple[Values, Values]:
    """Wilson's interval of the rate ``part / whole``; NaN where there is nobody.

    >>> low, high = wilson(np.array([8.0, 0.0]), np.array([10.0, 5.0]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.49, 0.0], [0.943, 0.434])
    """
    whole = np.asarray(whole, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.asarray(part, dtype=np.float64) / whole
        scale = 1 + z * z / whole
        centre = (rate + z * z / (2 * whole)) / scale
        half = z * np.sqrt(rate * (1 - rate) / whole + z * z / (4 * whole * whole)) / scale
    nobody = whole <= 0
    low = np.where(nobody, np.nan, np.minimum(np.clip(centre - half, 0, 1), rate))
    return low, np.where(nobody, np.nan, np.maximum(np.clip(centre + half, 0, 1), rate))


def difference(
    part1: ArrayLike, whole1: ArrayLike, part2: ArrayLike, whole2: ArrayLike, z: float = Z95
) -> tuple[Values, Values]:
    """Interval of the difference ``part1 / whole1 - part2 / whole2`` of two separate groups' rates.

    Miettinen and Nurminen's (1985) score interval: all differences that a score test does not reject. It
    leaves 0 out exactly where `ratio` leaves 1 out. NaN where a group is empty.

    >>> low, high = difference([7, 0], [34, 20], [1, 0], [34, 20])
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.027, -0.165], [0.345, 0.165])
    """
    rate1, of1 = _rates(part1, whole1)
    rate2, of2 = _rates(part2, whole2)
    high = -_least_difference(rate2, of2, rate1, of1, z)
    return _least_difference(rate1, of1, rate2, of2, z), high


def ratio(
    part1: ArrayLike, whole1: ArrayLike, part2: ArrayLike, whole2: ArrayLike, z: float = Z95
) -> tuple[Values, Values]:
    """Interval of the ratio ``(part1 / whole1) / (part2 / whole2)`` of two separate groups' rates.

    Miettinen and Nurminen's (1985) score interval, which holds with small counts too. The lower end is 0
    where ``part1`` is 0, the upper end infinite where ``part2`` is 0. NaN where a group is empty.

    >>> low, high = ratio([7, 0, 3, 0], [34, 20, 20, 20], [1, 5, 0, 0], [34, 20, 20, 20])
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([1.209, 0.0, 0.829, 0.0], [43.033, 0.705, inf, inf])
    """
    rate1, of1 = _rates(part1, whole1)
    rate2, of2 = _rates(part2, whole2)
    with np.errstate(invalid="ignore", divide="ignore"):
        high = np.fmax(1 / _least_ratio(rate2, of2, rate1, of1, z), rate1 / rate2)
    return _least_ratio(rate1, of1, rate2, of2, z), high


class Extremes(NamedTuple):
    """What lies between the groups with the lowest and the highest rate, and how sure that is."""

    value: Values
    low: Values
    high: Values
    least: Numbers
    """Number of the group with the lowest rate, -1 where a group is empty."""
    most: Numbers
    """Number of the group with the highest rate, -1 where a group is empty."""


def least_to_most(part: ArrayLike, whole: ArrayLike, z: float = Z95) -> Extremes:
    """Ratio of the lowest to the highest rate among the groups (last axis), as `metrics.sp` and `eo` have it.

    1 where all rates are 0, NaN where a group is empty. Of two groups, the interval is that of `ratio`, told
    as lesser to larger: if equal rates are in it, it reaches to 1, and its lower end is the worse of the two
    directions.

    Of more groups, any pair may truly be the extreme one, and the one that looks so was picked for it. The
    lower end is the lowest among all pairs: the true one is among them. The upper end is the lowest too, of
    intervals at a level that is adjusted for the number of pairs (Bonferroni), since it must be right for all
    of them. The interval is wide where one group is small: that group may be worse off than it looks.

    Examples
    --------
    >>> result = least_to_most([30, 45], [100, 100])
    >>> float(result.value.round(3)), float(result.low.round(3)), float(result.high.round(3))
    (0.667, 0.458, 0.96)
    >>> int(result.least), int(result.most)
    (0, 1)
    """
    lowest, highest, least, most = _extremes(part, whole)
    value = np.divide(lowest, highest, out=np.ones(lowest.shape), where=highest != 0)
    each, together = _of_pairs(ratio, part, whole, z)
    with np.errstate(divide="ignore"):
        low = np.minimum(each[0], 1 / each[1]).min(axis=-1, initial=1)
        high = np.minimum(together[1], 1 / together[0]).min(axis=-1, initial=1)
    return Extremes(value, np.minimum(low, value), np.maximum(high, value), least, most)


def most_minus_least(part: ArrayLike, whole: ArrayLike, z: float = Z95) -> Extremes:
    """Highest less lowest rate among the groups (last axis), as `metrics.sp_diff` and `eo_diff` have it.

    NaN where a group is empty. The interval is made as in `least_to_most`: it starts at 0 if equal rates are
    in it, and of more than two groups its lower end is adjusted for the number of pairs (Bonferroni).

    >>> result = most_minus_least([30, 45], [100, 100])
    >>> float(result.value.round(3)), float(result.low.round(3)), float(result.high.round(3))
    (0.15, 0.016, 0.279)
    """
    lowest, highest, least, most = _extremes(part, whole)
    value = highest - lowest
    each, together = _of_pairs(difference, part, whole, z)
    low = np.maximum(together[0], -together[1]).max(axis=-1, initial=0)
    high = np.maximum(each[1], -each[0]).max(axis=-1, initial=0)
    return Extremes(value, np.minimum(low, value), np.maximum(high, value), least, most)


def enough(
    part: ArrayLike, whole: ArrayLike, least: float = LEAST_PEOPLE, width: float = WIDEST
) -> NDArray[np.bool_]:
    """Whether a group is large enough for its rate to say something.

    There must be ``least`` people, and the rate's 95 % interval must be narrower than ``width``. By the
    second rule a rate near a half needs 39 people. By the first, 0 of 10 does not do, though its interval is
    narrow (0 to 0.28): ten people are too few to stand for a group.

    >>> enough([0, 3, 15, 20], [10, 30, 30, 40]).tolist()
    [False, True, False, True]
    """
    people = np.asarray(whole, dtype=np.float64)
    low, high = wilson(np.asarray(part, dtype=np.float64), people)
    return np.asarray((people >= least) & (high - low < width))


DRAWS = 2000


def bootstrap(counts: Counts, draws: int = DRAWS, seed: int = 0) -> Counts:
    """(draws, groups, 2, 2) counts of as many people drawn anew, with replacement; the same each time.

    Any metric of counts has its interval from the quantiles of its values on these.
    """
    flat = counts.reshape(-1)
    total = int(flat.sum())
    if not total:
        return np.zeros((draws, *counts.shape), dtype=np.int64)
    drawn = np.random.default_rng(seed).multinomial(total, flat / total, size=draws)
    return drawn.reshape(draws, *counts.shape).astype(np.int64)


def resample_people(
    decisions: NDArray[np.bool_], stratum: NDArray[np.int64], groups: int, draws: int = 1000, seed: int = 0
) -> Counts:
    """(draws, models, groups, 2, 2) counts of several models on the same people, drawn anew for all alike.

    The variance of a difference between models is that of its values on these: people whom both models
    decide alike add nothing to it.

    Parameters
    ----------
    decisions : (models, rows) whether a model decides for the favourable outcome
    stratum : (rows,) twice the group's number, plus the label
    groups : how many there are
    draws, seed : how often people are drawn, and by which random numbers

    Examples
    --------
    >>> decisions = np.array([[True, True, False, False], [True, True, False, True]])
    >>> resample_people(decisions, np.array([0, 1, 2, 3]), 2, draws=3).shape
    (3, 2, 2, 2, 2)
    """
    patterns = np.packbits(decisions, axis=0).T
    keys = np.concatenate([stratum.astype(">i4").view(np.uint8).reshape(len(stratum), 4), patterns], axis=1)
    _, first, people = np.unique(keys, axis=0, return_index=True, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(stratum), people / len(stratum), size=draws)
    counts = np.zeros((draws, len(decisions), 2 * groups, 2), dtype=np.int64)
    for number in np.unique(stratum):
        of_stratum = np.flatnonzero(stratum[first] == number)
        rows = drawn[:, of_stratum]
        for model, decided in enumerate(decisions[:, first[of_stratum]]):
            counts[:, model, number, 1] = rows[:, decided].sum(axis=1)
            counts[:, model, number, 0] = rows[:, ~decided].sum(axis=1)
    return counts.reshape(draws, len(decisions), groups, 2, 2)


def over_seeds(
    values: ArrayLike, test_to_train: float = TEST_TO_TRAIN, people: ArrayLike = 0.0
) -> tuple[Values, Values, Values]:
    """Mean over seeds (last axis) and its 95 % interval.

    Seeds split the same rows again and again, so their values are alike, and more seeds do not make up for
    more people. Nadeau and Bengio (2003) therefore multiply the variance with 1/n + test/train instead of
    1/n. The mean is NaN if a value is, and the interval of one seed is NaN.

    Parameters
    ----------
    values : one for each seed
    test_to_train : test rows for each training row; 0 where all seeds train and test on the same rows, and
        the interval is about the chance in training alone
    people : the variance of the mean over people, where all seeds test on the same rows; it is added, and the
        degrees of freedom are Satterthwaite's

    Returns
    -------
    mean, low, high

    Examples
    --------
    >>> mean, low, high = over_seeds([0.80, 0.82, 0.81, 0.85, 0.82])
    >>> float(mean.round(3)), float(low.round(3)), float(high.round(3))
    (0.82, 0.782, 0.858)
    """
    by_seed = _of_seeds(values)
    mean, error = _mean_and_error(by_seed, test_to_train)
    error, freedom = _with_people(error, by_seed.shape[-1], people)
    half = error * np.vectorize(_t_quantile, otypes=[np.float64])(freedom)
    return mean, mean - half, mean + half


_MOST_FREEDOM = 200


def _with_people(error: Values, seeds: int, people: ArrayLike) -> tuple[Values, Numbers]:
    """The standard error with the variance over people added, and its degrees of freedom (Satterthwaite)."""
    added = np.broadcast_to(np.asarray(people, dtype=np.float64), error.shape)
    total = error**2 + added
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = (seeds - 1) * np.where(added > 0, (total / error**2) ** 2, 1.0)
    freedom = np.where(np.isnan(freedom), seeds - 1, np.minimum(freedom, max(_MOST_FREEDOM, seeds - 1)))
    return np.where(added > 0, np.sqrt(total), error), freedom.astype(np.int64)


def _t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; NaN without degrees of freedom."""
    if freedom < 1:
        return math.nan
    low, high = 1.0, 13.0  # of infinitely many degrees, and of one
    while low < (middle := (low + high) / 2) < high:
        below = _t_below(freedom, np.array(middle)) < 0.975
        low, high = (middle, high) if below else (low, middle)
    return low


def _t_below(freedom: int, values: Values) -> Values:
    """How often Student's t is below values; NaN without degrees of freedom.

    By the finite sums for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4): importing a
    library for it takes longer than all other steps of a short run.

    >>> _t_below(4, np.array([0.0, 2.7764451051977987])).round(12).tolist()
    [0.5, 0.975]
    """
    if freedom < 1:
        return np.full_like(values, np.nan)
    angle = np.arctan(values / math.sqrt(freedom))
    cosine, is_odd = np.cos(angle), freedom % 2
    term = cosine if is_odd else np.ones_like(cosine)
    total = term if freedom > 1 else np.zeros_like(cosine)
    for k in range(2 + is_odd, freedom - 1, 2):
        term = term * cosine**2 * (k - 1) / k
        total = total + term
    between = np.sin(angle) * total
    if is_odd:
        between = 2 / math.pi * (angle + between)
    return np.asarray((1 + between) / 2)


class Paired(NamedTuple):
    """How two strategies differ on the same seeds."""

    difference: Values
    """Mean of the first less the second."""
    low: Values
    high: Values
    p: Values
    """How often chance alone makes so large a difference, to either side."""
    wins: Numbers
    """Seeds in which the first is higher."""


def paired(
    a: ArrayLike, b: ArrayLike, test_to_train: float = TEST_TO_TRAIN, people: ArrayLike = 0.0
) -> Paired:
    """Compare two strategies on the same seeds (last axis): the corrected resampled t-test.

    Nadeau and Bengio's (2003) test; see `over_seeds` for the correction. With ``test_to_train=0`` it is
    the usual paired t-test, which sees differences between equals far too often when seeds split the same
    rows. If all differences are 0, p is 1. If all are the same and not 0, there is no spread to test
    by: p and the interval are NaN, as they are with one seed.

    Where all seeds test on the same rows, the seeds do not tell how much the difference owes to these people:
    ``people`` is the variance of the mean difference over them (see `resample_people`), and is added.

    >>> result = paired([0.80, 0.82, 0.81, 0.85], [0.78, 0.79, 0.80, 0.80])
    >>> float(result.difference.round(4)), float(result.p.round(3)), int(result.wins)
    (0.0275, 0.126, 4)
    """
    first, second = _of_seeds(a), _of_seeds(b)
    check(
        first.shape[-1] == second.shape[-1],
        "a and b must have one value for each seed",
        f"shapes {first.shape} and {second.shape}",
    )
    gaps = first - second
    mean, low, high = over_seeds(gaps, test_to_train, people)
    seeds = gaps.shape[-1]
    error, freedom = _with_people(_mean_and_error(gaps, test_to_train)[1], seeds, people)
    rounding = 1e-12 * np.maximum(np.abs(first), np.abs(second)).max(axis=-1)
    are_equal = np.ptp(gaps, axis=-1) <= rounding
    equal = np.abs(gaps).max(axis=-1) <= rounding
    unknown = are_equal & ~equal & ~(np.asarray(people) > 0) | (seeds < 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        score = -np.abs(mean / error)
    p = np.full(score.shape, np.nan)
    for number in np.unique(freedom):
        p = np.where(freedom == number, 2 * _t_below(int(number), score), p)
    p = np.where(unknown, np.nan, np.where(equal, 1.0, p))
    low, high = np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)
    return Paired(mean, low, high, p, np.asarray((gaps > 0).sum(axis=-1)))


def holm(p_values: ArrayLike) -> Values:
    """p-values adjusted for there being several: Holm's (1979) step-down method, over the whole array.

    If only what is below 0.05 after it is called a difference, the chance that any of the calls is about
    equals is 5 % at most, however many there are. NaN stays NaN and does not count.

    >>> holm([0.01, 0.04, float("nan"), 0.03]).round(3).tolist()
    [0.03, 0.06, nan, 0.06]
    """
    values = np.array(p_values, dtype=np.float64)
    known = ~np.isnan(values)
    adjusted = values[known]
    check(bool(((adjusted >= 0) & (adjusted <= 1)).all()), "p_values must be from 0 to 1", values)
    order = np.argsort(adjusted, kind="stable")
    steps = np.arange(len(adjusted), 0, -1) * adjusted[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1)
    values[known] = adjusted
    return values


def _rates(part: ArrayLike, whole: ArrayLike) -> tuple[Values, Values]:
    """The rate, NaN where there is none, and the number of people."""
    parts, people = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    is_defined = (people > 0) & (parts >= 0) & (parts <= people)
    rate: Values = np.divide(parts, people, out=np.full(people.shape, np.nan), where=is_defined)
    return rate, people


def _pulled_down(rate: Values, people: Values, pull: Values) -> Values:
    """The ``p`` below ``rate`` with ``rate - p = pull * p * (1 - p) / people``: a quadratic equation."""
    k = pull / people
    root: Values = 2 * rate / (1 + k + np.sqrt((1 - k) ** 2 + 4 * k * (1 - rate)))
    return root


# Both score intervals. Given a difference or a ratio, let p1 and p2 be the likeliest rates that have it, and
# v1 = p1 (1 - p1) / n1 and v2 likewise their variances. By Lagrange there is one number, the pull, with
#     difference:  rate1 - p1 = pull * v1  and  rate2 - p2 = -pull * v2
#     ratio:       rate1 - p1 = pull * v1  and  rate2 - p2 = -pull * v2 * p1 / p2
# so that p1 and p2 follow from the pull, and the square of the score is pull * way, where the way is
# rate1 - rate2 - (p1 - p2), or rate1 - rate2 * p1 / p2. Both factors grow with the pull, so there is one pull
# where the score is z. It is found by halving the share of the longest possible way.

_HALVINGS = 60


def _pull(gone: Callable[[Values], Values], least: Values) -> Values:
    """The pull with ``pull * gone(pull) = least``, where ``gone`` goes from 0 to 1."""
    near, far = np.zeros_like(least), np.ones_like(least)
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        further = gone(least / middle) > middle
        near, far = np.where(further, middle, near), np.where(further, far, middle)
    pull: Values = least / far
    return pull


def _limit(of1: Values, of2: Values, z: float) -> Values:
    """The square of the score at the ends, by Miettinen and Nurminen's correction for few people."""
    both = of1 + of2
    limit: Values = z * z * both / np.maximum(both - 1, 1e-9)
    return limit


def _least_difference(rate1: Values, of1: Values, rate2: Values, of2: Values, z: float) -> Values:
    gap = rate1 - rate2
    longest = np.where(gap > -1, gap + 1, np.nan)

    def rates(pull: Values) -> tuple[Values, Values]:
        return _pulled_down(rate1, of1, pull), 1 - _pulled_down(1 - rate2, of2, pull)

    def gone(pull: Values) -> Values:
        p1, p2 = rates(pull)
        return ((rate1 - p1) + (p2 - rate2)) / longest

    with np.errstate(invalid="ignore"):
        p1, p2 = rates(_pull(gone, _limit(of1, of2, z) / longest))
    return np.where(gap == -1, -1.0, np.minimum(p1 - p2, gap))


def _least_ratio(rate1: Values, of1: Values, rate2: Values, of2: Values, z: float) -> Values:
    longest = np.where(rate1 > 0, rate1, np.nan)

    def at(pull: Values) -> Values:
        p1 = _pulled_down(rate1, of1, pull)
        step = pull * p1 / of2
        quotient: Values = p1 * (1 + step) / (rate2 + step)
        return quotient

    def gone(pull: Values) -> Values:
        return 1 - at(pull) * rate2 / longest

    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.minimum(at(_pull(gone, _limit(of1, of2, z) / longest)), rate1 / rate2)
    return np.where((rate1 == 0) & (rate2 >= 0), 0.0, low)


def _extremes(part: ArrayLike, whole: ArrayLike) -> tuple[Values, Values, Numbers, Numbers]:
    """Lowest and highest rate, and the groups that have them: the first of equals, and the last."""
    rate, _ = _rates(part, whole)
    check(
        rate.ndim > 0 and rate.shape[-1] > 0, "part and whole must have groups on the last axis", rate.shape
    )
    known = ~np.isnan(rate).any(axis=-1)
    least = np.where(known, rate.argmin(axis=-1), -1)
    most = np.where(known, rate.shape[-1] - 1 - rate[..., ::-1].argmax(axis=-1), -1)
    return rate.min(axis=-1), rate.max(axis=-1), least, most


_Ends = tuple[Values, Values]
_Interval = Callable[[ArrayLike, ArrayLike, ArrayLike, ArrayLike, float], _Ends]


def _of_pairs(interval: _Interval, part: ArrayLike, whole: ArrayLike, z: float) -> tuple[_Ends, _Ends]:
    """Intervals of all pairs of groups: each at the level of ``z``, and all of them together (Bonferroni)."""
    parts, people = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    first, second = np.triu_indices(people.shape[-1], k=1)
    pairs = parts[..., first], people[..., first], parts[..., second], people[..., second]
    each = interval(*pairs, z)
    if len(first) < 2:
        return each, each
    outside = math.erfc(z / math.sqrt(2)) / 2 / len(first)
    return each, interval(*pairs, -NormalDist().inv_cdf(outside))


def _of_seeds(values: ArrayLike) -> Values:
    by_seed = np.asarray(values, dtype=np.float64)
    check(by_seed.ndim > 0 and by_seed.shape[-1] > 0, "there must be a value for each seed", by_seed.shape)
    return by_seed


def _mean_and_error(values: Values, test_to_train: float) -> tuple[Values, Values]:
    """Mean over seeds and its standard error, NaN for one seed."""
    check(test_to_train >= 0, "test_to_train must be >= 0", test_to_train)
    seeds = values.shape[-1]
    mean = np.asarray(values.mean(axis=-1))
    if seeds < 2:
        return mean, np.full_like(mean, np.nan)
    return mean, np.asarray(values.std(axis=-1, ddof=1) * math.sqrt(1 / seeds + test_to_train))
