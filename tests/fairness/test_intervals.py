from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import ttest_1samp, ttest_rel
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from fairfate.errors import InputError
from fairfate.fairness import metrics
from fairfate.fairness.intervals import (
    Z95,
    difference,
    enough,
    holm,
    least_to_most,
    most_minus_least,
    over_seeds,
    paired,
    ratio,
    wilson,
)

close = pytest.approx
LEVELS = st.sampled_from([0.5, 1.0, Z95, 2.575829, 3.5])


def _simulations() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "intervals.py"
    spec = importlib.util.spec_from_file_location("benchmarks_intervals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulations = _simulations()


@st.composite
def counts(draw: st.DrawFn, largest: int = 3000, ends: bool = True) -> tuple[int, int]:
    """How many of how many people; without the ends, neither none nor all."""
    whole = draw(st.integers(1 if ends else 2, largest))
    return draw(st.integers(0 if ends else 1, whole if ends else whole - 1)), whole


# Over people: against others' numbers


@given(counts(), LEVELS)
def test_a_rate_has_the_interval_that_statsmodels_gives_it(case, z) -> None:
    part, whole = case
    theirs = proportion_confint(part, whole, alpha=math.erfc(z / math.sqrt(2)), method="wilson")
    low, high = wilson(np.array(part), np.array(whole), z)
    assert (float(low), float(high)) == close(theirs, abs=1e-12)
    assert low <= part / whole <= high


@given(counts(ends=False), counts(ends=False))
def test_a_ratio_has_the_interval_that_statsmodels_gives_it(one, two) -> None:
    theirs = confint_proportions_2indep(*one, *two, compare="ratio", method="score", correction=True)
    assert [float(end) for end in ratio(*one, *two)] == close(theirs, rel=1e-6)


def test_intervals_by_others_to_all_their_digits() -> None:
    # R's PropCIs: diffscoreci(7, 34, 1, 34, 0.95) and riskscoreci(7, 34, 1, 34, 0.95), which does not correct
    # for few people
    assert [float(end) for end in difference(7, 34, 1, 34)] == close((0.0270416, 0.3452912), abs=6e-8)
    uncorrected = Z95 * math.sqrt(67 / 68)
    assert [float(end) for end in ratio(7, 34, 1, 34, uncorrected)] == close((1.220853, 42.575718), abs=6e-7)


def _score(item: tuple[int, int], two: tuple[int, int], factor: float, gap: float) -> float:
    """The score of ``rate1 = factor * rate2 + gap`` by its definition, with the likeliest such rates."""

    def unlikely(rate2: float) -> float:
        result = 0.0
        for (part, whole), rate in ((item, factor * rate2 + gap), (two, rate2)):
            result -= part * math.log(rate) if part else 0
            result -= (whole - part) * math.log(1 - rate) if part < whole else 0
        return result

    bounds = (max(0, -gap) + 1e-12, min(1, (1 - gap) / factor) - 1e-12)
    rate2 = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-13}).x
    rate1, both = factor * rate2 + gap, item[1] + two[1]
    variance = rate1 * (1 - rate1) / item[1] + factor**2 * rate2 * (1 - rate2) / two[1]
    return (item[0] / item[1] - factor * two[0] / two[1] - gap) / math.sqrt(variance * both / (both - 1))


@given(counts(300), counts(300))
def test_at_the_ends_of_a_difference_the_score_is_z(one, two) -> None:
    # statsmodels' own score interval has a wrong coefficient: github.com/statsmodels/statsmodels/issues/10269
    low, high = (float(end) for end in difference(*one, *two))
    if low > -1:
        assert _score(one, two, 1, low) == close(Z95, rel=1e-4)
    if high < 1:
        assert _score(one, two, 1, high) == close(-Z95, rel=1e-4)


@given(counts(300), counts(300))
def test_at_the_ends_of_a_ratio_the_score_is_z(one, two) -> None:
    low, high = (float(end) for end in ratio(*one, *two))
    if one[0]:
        assert _score(one, two, low, 0) == close(Z95, rel=1e-4)
    if two[0]:
        assert _score(one, two, high, 0) == close(-Z95, rel=1e-4)


@pytest.mark.parametrize("case", [(300, 1000, 450, 1000), (200, 2000, 500, 900), (480, 500, 380, 500)])
def test_with_many_people_a_difference_has_newcombes_interval_too(case) -> None:
    theirs = confint_proportions_2indep(*case, compare="diff", method="newcomb")
    assert [float(end) for end in difference(*case)] == close(theirs, abs=2e-3)


# Over people: what must always hold


@pytest.mark.parametrize("z", [0, 1e-12, 1e-9, 0.5, Z95, 5.0])
def test_the_estimate_is_inside_to_the_last_bit(z) -> None:
    rng = np.random.default_rng(3)
    whole1, whole2 = (10 ** rng.uniform(0, 7, (2, 40_000))).astype(np.int64)
    part1, part2 = (rng.integers(0, whole + 1) for whole in (whole1, whole2))
    part1[::5], part2[1::5] = 0, 0  # also at the same time
    part1[2::7], part2[3::7] = whole1[2::7], whole2[3::7]
    part2[2::49], part2[::25] = 0, 0
    rate1, rate2 = part1 / whole1, part2 / whole2
    low, high = wilson(part1, whole1, z)
    assert ((low >= 0) & (low <= rate1) & (rate1 <= high) & (high <= 1)).all()
    low, high = difference(part1, whole1, part2, whole2, z)
    assert ((low >= -1) & (low <= rate1 - rate2) & (rate1 - rate2 <= high) & (high <= 1)).all()
    low, high = ratio(part1, whole1, part2, whole2, z)
    neither = (part1 == 0) & (part2 == 0)
    assert neither.any()
    assert (low[neither] == 0).all()
    assert (high[neither] == np.inf).all()
    with np.errstate(divide="ignore"):
        value = rate1[~neither] / rate2[~neither]
    assert ((low >= 0)[~neither] & (low[~neither] <= value) & (value <= high[~neither])).all()
    assert (low[part1 == 0] == 0).all()
    assert (high[part2 == 0] == np.inf).all()


@given(counts(), counts(), LEVELS)
def test_swapped_groups_have_the_swapped_interval(one, two, z) -> None:
    low, high = difference(*one, *two, z)
    assert difference(*two, *one, z) == (-high, -low)
    low, high = ratio(*one, *two, z)
    with np.errstate(divide="ignore"):
        assert [float(end) for end in ratio(*two, *one, z)] == close([1 / high, 1 / low], rel=1e-14)


@given(counts(), counts())
def test_an_interval_of_a_higher_level_holds_the_one_of_a_lower(one, two) -> None:
    for interval in (difference, ratio):
        ends = [interval(*one, *two, z) for z in (0, 0.5, 1.0, Z95, 3.0, 5.0)]
        lows, highs = np.array(ends).T
        highs[np.isinf(highs)] = 1e300
        assert (np.diff(lows) <= 1e-12).all()
        assert (np.diff(highs) >= -1e-12 * np.abs(highs[1:])).all()


@given(counts(), counts(), LEVELS)
def test_ratio_and_difference_agree_on_whether_the_rates_may_be_equal(one, two, z) -> None:
    low, high = difference(*one, *two, z)
    if min(abs(low), abs(high)) > 1e-9:
        assert bool(low < 0 < high) == bool(ratio(*one, *two, z)[0] < 1 < ratio(*one, *two, z)[1])


@given(counts(200), counts(200))
def test_the_other_answer_has_the_same_difference_the_other_way(one, two) -> None:
    low, high = difference(*one, *two)
    rejected = (one[1] - one[0], one[1]), (two[1] - two[0], two[1])
    assert [float(end) for end in difference(*rejected[0], *rejected[1])] == close([-high, -low], abs=1e-9)


ALL = 1 / (1 + Z95**2 * 2 / 39)
"""The lower end of 20 of 20 to 20 of 20: the root of (1 - x)^2 = z^2 * 40/39 * x (1 - x) / 20."""


@pytest.mark.parametrize(
    ("case", "low", "high"),
    [
        ((0, 20, 0, 20), 0, math.inf),
        ((20, 20, 20, 20), ALL, 1 / ALL),
        ((0, 1, 1, 1), 0, Z95**2),
        ((1, 1, 0, 1), Z95**-2, math.inf),
    ],
)
def test_ratios_with_empty_cells_by_hand(case, low, high) -> None:
    assert [float(end) for end in ratio(*case)] == close([low, high], rel=1e-12)


@pytest.mark.parametrize("case", [(0, 0, 1, 2), (1, 2, 0, 0), (0, 0, 0, 0), (3, 2, 1, 2), (-1, 2, 1, 2)])
def test_rate_of_no_people_or_more_than_all_is_nan(case) -> None:
    assert np.isnan([*ratio(*case), *difference(*case)]).all()


def test_counts_may_be_fractions_and_nan() -> None:
    inner = [ratio(part, 30, 12, 30)[0] for part in (7, 7.5, 8)]
    assert inner[0] < inner[1] < inner[2]
    assert np.isnan([*ratio(np.nan, 30, 12, 30), *difference(3, np.nan, 12, 30)]).all()
    low, high = difference(0.1, 0.4, 0.2, 0.4)  # less than one person in all
    assert low == close(-1, abs=1e-3)
    assert high == close(1, abs=1e-3)


def test_arrays_are_broadcast() -> None:
    part, whole = np.arange(1, 7).reshape(3, 1, 2), np.array([20, 40])
    for interval in (difference, ratio):
        low, high = interval(part, whole, [[3], [4]], 30)
        assert low.shape == high.shape == (3, 2, 2)
        alone = interval(part[2, 0, 1], 40, 4, 30)
        assert (low[2, 1, 1], high[2, 1, 1]) == (close(float(alone[0])), close(float(alone[1])))


# The least to the most favoured group


@given(st.lists(counts(), min_size=2, max_size=5), LEVELS)
def test_the_ratio_is_that_of_the_metric_and_inside_its_interval(groups, z) -> None:
    part, whole = np.array(groups).T
    result, gap = least_to_most(part, whole, z), most_minus_least(part, whole, z)
    by_prediction = np.zeros((len(groups), 2, 2), dtype=np.int64)
    by_prediction[:, 1, 0], by_prediction[:, 1, 1] = whole - part, part
    assert result.value == metrics.sp(by_prediction)
    assert gap.value == metrics.sp_diff(by_prediction)
    for which in (result, gap):
        assert 0 <= which.low <= which.value <= which.high <= 1
        rates = part / whole
        assert rates[which.least] == rates.min()
        assert rates[which.most] == rates.max()
        assert which.least != which.most


@given(st.lists(counts(200), min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_the_groups_does_not_matter(groups, random) -> None:
    shuffled = random.sample(groups, len(groups))
    for function in (least_to_most, most_minus_least):
        first, two = (function(*np.array(which).T) for which in (groups, shuffled))
        assert [float(v) for v in first[:3]] == close([float(v) for v in two[:3]], abs=1e-12)


def test_two_groups_far_apart_have_the_interval_of_their_ratio() -> None:
    for part, whole in (([20, 60], [100, 110]), ([60, 20], [110, 100])):
        extremes = least_to_most(part, whole)
        low, high = ratio(20, 100, 60, 110)
        assert (float(extremes.low), float(extremes.high)) == (close(float(low)), close(float(high)))
        gap = most_minus_least(part, whole)
        low, high = difference(60, 110, 20, 100)
        assert (float(gap.low), float(gap.high)) == (close(float(low)), close(float(high)))
        assert part[extremes.least] == 20


def test_two_groups_that_may_be_equal_reach_to_1_and_to_the_worse_direction() -> None:
    low, high = ratio(10, 40, 11, 30)
    assert low < 1 < high
    extremes = least_to_most([10, 11], [40, 30])
    assert extremes.high == 1
    assert extremes.low == close(min(low, 1 / high))
    low, high = difference(10, 40, 11, 30)
    gap = most_minus_least([10, 11], [40, 30])
    assert gap.low == 0
    assert gap.high == close(max(-low, high))


def test_rates_of_0_are_equal_and_say_nothing_of_how_equal() -> None:
    extremes = least_to_most([0, 0], [20, 30])
    assert tuple(float(v) for v in extremes[:3]) == (1, 0, 1)
    assert most_minus_least([0, 0], [20, 30])[0:2] == (0, 0)


def test_an_empty_group_makes_all_undefined() -> None:
    for function in (least_to_most, most_minus_least):
        result = function([[1, 0, 3], [1, 2, 3]], [[5, 0, 5], [5, 5, 5]])
        assert np.isnan([result.value[0], result.low[0], result.high[0]]).all()
        assert (result.least[0], result.most[0]) == (-1, -1)
        assert not np.isnan([result.value[1], result.low[1], result.high[1]]).any()
        assert (result.least[1], result.most[1]) == (0, 2)


def test_one_group_is_equal_to_itself() -> None:
    assert tuple(least_to_most([3], [5])) == (1, 1, 1, 0, 0)
    assert tuple(most_minus_least([3], [5])) == (0, 0, 0, 0, 0)
    with pytest.raises(InputError, match="must have groups on the last axis"):
        least_to_most(3, 5)


def test_with_more_groups_the_end_near_equality_is_adjusted_for_the_number_of_pairs() -> None:
    # three pairs: 0.05 / 3 to both sides; normal quantile of 1 - 0.05 / 6
    extremes = least_to_most([30, 60, 55], [100, 100, 100])
    assert extremes.high == close(float(ratio(30, 100, 60, 100, 2.3939797998)[1]))
    assert extremes.low == close(float(ratio(30, 100, 60, 100)[0]))
    gap = most_minus_least([30, 60, 55], [100, 100, 100])
    assert gap.low == close(float(difference(60, 100, 30, 100, 2.3939797998)[0]))
    assert gap.high == close(float(difference(60, 100, 30, 100)[1]))


def test_a_small_group_that_looks_well_may_be_the_worst() -> None:
    large = least_to_most([600, 1000], [2000, 2000])
    small = least_to_most([600, 1000, 2], [2000, 2000, 5])
    assert small.value == large.value
    assert small.low == close(float(ratio(2, 5, 1000, 2000)[0]))
    assert small.low < 0.5 * large.low


# Few people


@pytest.mark.parametrize(
    ("part", "whole", "is_mentioned"),
    [
        (0, 0, False),
        (0, 29, False),
        (0, 30, True),
        (3, 30, True),
        (15, 30, False),
        (19, 38, False),
        (19.5, 39, True),
        (1000, 2000, True),
    ],
)
def test_a_rate_says_something_from_30_people_on_if_its_interval_is_narrow(part, whole, is_mentioned) -> None:
    assert enough(part, whole) == is_mentioned
    assert enough([part, 0], whole).tolist() == [is_mentioned, whole >= 30]


# Over seeds


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12).filter(lambda values: np.ptp(values) > 1e-3))
def test_uncorrected_it_is_the_usual_t_interval(values) -> None:
    theirs = ttest_1samp(values, 0).confidence_interval(0.95)
    mean, low, high = over_seeds(values, test_to_train=0)
    assert (float(mean), float(low), float(high)) == close((np.mean(values), *theirs))


def test_a_mean_over_seeds_by_hand() -> None:
    # five seeds, variance 0.00035; t(4) = 2.7764; 0.00035 * (1/5 + 1/3) = 0.000186667
    mean, low, high = over_seeds([0.80, 0.82, 0.81, 0.85, 0.82])
    assert mean == close(0.82)
    assert mean - low == close(2.776445 * math.sqrt(0.00035 * (1 / 5 + 1 / 3)))
    assert high - mean == close(2.776445 * math.sqrt(0.00035 * (1 / 5 + 1 / 3)))


def test_one_seed_has_a_mean_and_no_interval_and_nan_stays_nan() -> None:
    mean, low, high = over_seeds([[0.3]])
    assert mean == 0.3
    assert np.isnan([low, high]).all()
    result = np.array(over_seeds([[0.3, np.nan, 0.4], [0.3, 0.3, 0.3]]))
    assert np.isnan(result[:, 0]).all()
    assert result[:, 1] == close(0.3)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=12))
def test_uncorrected_it_is_scipys_paired_test(pairs) -> None:
    a, b = np.array(pairs).T
    if np.ptp(a - b) < 1e-6:
        return
    theirs, result = ttest_rel(a, b), paired(a, b, test_to_train=0)
    assert float(result.p) == close(float(theirs.pvalue), abs=1e-12)
    ends = theirs.confidence_interval(0.95)
    assert (float(result.low), float(result.high)) == (close(float(ends[0])), close(float(ends[1])))
    assert result.wins == (a > b).sum()
    assert paired(a, b).p >= result.p


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=12))
def test_p_is_below_5_per_cent_exactly_where_the_interval_leaves_0_out(pairs) -> None:
    a, b = np.array(pairs).T
    result, swapped = paired(a, b), paired(b, a)
    assert swapped.p == close(float(result.p), nan_ok=True)
    assert swapped.difference == -result.difference
    if abs(result.p - 0.05) > 1e-9:
        assert bool(result.p < 0.05) == bool(result.low > 0 or result.high < 0)


def test_the_corrected_test_by_hand() -> None:
    # differences 0.02, 0.03, 0.01, 0.05: mean 0.0275, variance 0.00029167; t = 2.108 with 3 degrees
    comparison = paired([0.80, 0.82, 0.81, 0.85], [0.78, 0.79, 0.80, 0.80])
    assert comparison.difference / math.sqrt(0.000291667 * (1 / 4 + 1 / 3)) == close(2.1083, rel=1e-4)
    assert comparison.p == close(0.1256, abs=1e-4)
    assert comparison.wins == 4


def test_equal_differences_have_no_interval() -> None:
    same = paired([0.1, 0.7, 0.3], [0.1, 0.7, 0.3])
    assert tuple(same) == (0, 0, 0, 1, 0)
    # 0.3 - 0.2, 0.4 - 0.3 and 0.9 - 0.8 differ by rounding alone
    constant = paired([0.3, 0.4, 0.9], [0.2, 0.3, 0.8])
    assert constant.difference == close(0.1)
    assert constant.wins == 3
    assert np.isnan([constant.low, constant.high, constant.p]).all()


def test_one_seed_or_nan_cannot_be_compared() -> None:
    comparison = paired([0.4], [0.3])
    assert comparison.difference == close(0.1)
    assert np.isnan([comparison.low, comparison.high, comparison.p]).all()
    assert np.isnan(paired([0.4], [0.4]).p)
    some = paired([[0.4, np.nan, 0.3], [0.4, 0.5, 0.3]], [0.1, 0.2, 0.1])
    assert np.isnan([some.difference[0], some.low[0], some.high[0], some.p[0]]).all()
    assert 0 < some.p[1] < 1


def test_seeds_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="one value for each seed"):
        paired([1, 2, 3], [1, 2])
    with pytest.raises(InputError, match="test_to_train must be >= 0, got -1"):
        over_seeds([1, 2], test_to_train=-1)
    with pytest.raises(InputError, match="a value for each seed"):
        over_seeds([])


# Many comparisons


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_agrees_with_statsmodels(p_values) -> None:
    assert holm(p_values).tolist() == close(multipletests(p_values, method="holm")[1].tolist())


def test_holm_leaves_nan_alone_and_keeps_the_shape() -> None:
    adjusted = holm([[0.01, np.nan], [0.04, 0.03]])
    np.testing.assert_allclose(adjusted, [[0.03, np.nan], [0.06, 0.06]])
    assert holm([]).tolist() == []
    assert np.isnan(holm([np.nan])).all()
    with pytest.raises(InputError, match="p_values must be from 0 to 1"):
        holm([0.2, 1.2])


# Coverage: data with known rates, drawn again and again


@pytest.mark.parametrize("sizes", simulations.SIZES, ids=str)
def test_intervals_hold_the_truth_in_95_per_cent(sizes) -> None:
    rng = np.random.default_rng(7)
    rates = rng.uniform(*simulations.RATES, (2000, 2))
    for name, share in simulations.of_two_groups(rates, sizes, rng).items():
        assert 0.93 <= share <= 0.97, name  # 2,000 draws of 95 % are off by 0.5 % (one standard deviation)


@pytest.mark.parametrize("sizes", simulations.GROUPS, ids=str)
@pytest.mark.parametrize("same", [False, True], ids=["any rates", "equal rates"])
def test_the_interval_of_the_extreme_pair_holds_the_truth_in_at_least_95_per_cent(sizes, same) -> None:
    rng = np.random.default_rng(8)
    rates = rng.uniform(*simulations.RATES, (2000, 1 if same else len(sizes))) * np.ones(len(sizes))
    result = simulations.of_extremes(rates, sizes, rng)
    assert min(result["ratio"], result["difference"]) >= 0.935
    if same and len(sizes) > 2:  # without the adjustment, equals are called unequal
        assert result["picked pair, not adjusted"] < 0.9


def test_equals_are_called_different_seldom_and_without_the_correction_often() -> None:
    values = simulations.seeds_of_equals(300, 300, 10, np.random.default_rng(9))["accuracy"]
    corrected, plain = simulations.of_seeds(values, 1 / 3), simulations.of_seeds(values, 0)
    assert corrected["called different"] <= 0.08
    assert plain["called different"] >= 0.15
    assert corrected["mean"] >= 0.93
    assert plain["mean"] <= 0.85


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", simulations.SIZES, ids=str)
def test_intervals_hold_the_truth_in_95_per_cent_of_many_draws(sizes) -> None:
    rng = np.random.default_rng(10)
    rates = rng.uniform(*simulations.RATES, (40_000, 2))
    for name, share in simulations.of_two_groups(rates, sizes, rng).items():
        assert 0.945 <= share <= 0.96, name


@pytest.mark.exhaustive
@pytest.mark.parametrize("sizes", [(20, 20), (50, 50), (20, 50), (200, 200), (20, 2000)], ids=str)
def test_at_no_pair_of_rates_does_an_interval_fail_badly(sizes) -> None:
    assert simulations.exactly(difference, False, sizes).min() >= 0.93
    assert simulations.exactly(ratio, True, sizes).min() >= 0.92


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rows", "seeds"), [(300, 5), (300, 10), (300, 30), (1000, 10)])
def test_the_correction_keeps_its_level_over_seeds(rows, seeds) -> None:
    values = simulations.seeds_of_equals(2000, rows, seeds, np.random.default_rng(11))
    for metric, own in values.items():
        result = simulations.of_seeds(own, 1 / 3)
        assert result["called different"] <= 0.06, metric
        assert result["mean"] >= 0.94, metric
    assert simulations.of_seeds(values["accuracy"], 0)["called different"] >= 0.1


@pytest.mark.exhaustive
def test_kept_coverage_is_what_the_simulation_prints(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["intervals.py"])
    simulations.main()
    kept = (Path(__file__).parents[2] / "docs" / "measurements" / "coverage.txt").read_text()
    printed, _, _ = capsys.readouterr().out.partition(
        "Seeds that split"
    )  # whose sums may differ in the last bit
    for line in printed.splitlines():
        assert line in kept


def test_intervals_over_seeds_load_no_scipy() -> None:
    code = "import sys; from fairfate.fairness.intervals import paired; paired([1, 2, 3], [1, 1, 2])"
    code += "; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
