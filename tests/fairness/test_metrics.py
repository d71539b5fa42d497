from __future__ import annotations

import warnings

import numpy as np
import pytest
from fairlearn import metrics as fairlearn
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics as sklearn

from fairfate.errors import InputError
from fairfate.fairness import metrics


@st.composite
def predictions(draw: st.DrawFn, groups: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = draw(st.integers(4, 60))
    bits = arrays.arrays(np.int64, n, elements=st.integers(0, 1))
    value = arrays.arrays(np.int64, n, elements=st.integers(0, groups - 1))
    return draw(bits), draw(bits), draw(value)


@st.composite
def complete(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions for two to four groups, each with rows of both labels, so that all rates exist."""
    groups = draw(st.integers(2, 4))
    y, p, group = draw(predictions(groups))
    extra = arrays.arrays(np.int64, 2 * groups, elements=st.integers(0, 1))
    every = np.arange(2 * groups)
    return np.append(y, every % 2), np.append(p, draw(extra)), np.append(group, every // 2)


@given(complete())
def test_ratios_and_differences_agree_with_fairlearn(case) -> None:
    y, p, group = case
    ours, kw = metrics.measure(y, p, group=group), {"sensitive_features": group}
    close = pytest.approx
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours["sp_diff"] == close(fairlearn.demographic_parity_difference(y, p, **kw))
        assert ours["eo_diff"] == close(fairlearn.equal_opportunity_difference(y, p, **kw))
        assert ours["eqo_diff"] == close(fairlearn.equalized_odds_difference(y, p, agg="mean", **kw))
        if p.any():  # all rates 0: we say 1 (equal), fairlearn says NaN
            assert ours["sp"] == close(fairlearn.demographic_parity_ratio(y, p, **kw))
        if (p & y).any():
            assert ours["eo"] == close(fairlearn.equal_opportunity_ratio(y, p, **kw))
        if (p & y).any() and (p & (1 - y)).any():
            assert ours["eqo"] == close(fairlearn.equalized_odds_ratio(y, p, agg="mean", **kw))


@given(predictions(groups=3))
def test_performance_agrees_with_scikit_learn(case) -> None:
    y, p, group = case
    ours = metrics.measure(y, p, group=group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours["accuracy"] == pytest.approx(sklearn.accuracy_score(y, p))
        assert ours["mcc"] == pytest.approx(sklearn.matthews_corrcoef(y, p))
        if y.any() and not y.all():
            assert ours["balanced_accuracy"] == pytest.approx(sklearn.balanced_accuracy_score(y, p))
        if (y | p).any():
            assert ours["f1"] == pytest.approx(sklearn.f1_score(y, p))


@given(predictions())
def test_swapping_the_groups_changes_nothing(case) -> None:
    y, p, group = case
    counts = metrics.count(y, p, group=group, groups=2)
    for metric in metrics.METRICS.values():
        np.testing.assert_allclose(metric(counts), metric(counts[::-1]), rtol=1e-12)


def test_many_models_are_measured_at_once() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (5, 7, 3, 2, 2))
    for metric in metrics.METRICS.values():
        values = metric(counts)
        assert values.shape == (5, 7)
        np.testing.assert_array_equal(values[4, 2], metric(counts[4, 2]))


@pytest.mark.parametrize("name", ["sp", "eo", "eqo"])
def test_two_rates_of_zero_are_equal(name: str) -> None:
    rejects_everyone = np.array([[[5, 0], [5, 0]], [[3, 0], [2, 0]]])
    assert metrics.METRICS[name](rejects_everyone) == 1.0
    assert metrics.METRICS[f"{name}_diff"](rejects_everyone) == 0.0


def test_an_empty_group_makes_fairness_undefined_and_leaves_performance_alone() -> None:
    counts = np.array([[[5, 1], [2, 7]], [[0, 0], [0, 0]]])
    for name in ("sp", "eo", "eqo", "sp_diff", "eo_diff", "eqo_diff"):
        assert np.isnan(metrics.METRICS[name](counts)), name
    assert metrics.accuracy(counts) == 12 / 15


def test_no_positive_label_in_a_group_leaves_statistical_parity_defined() -> None:
    counts = np.array([[[5, 5], [0, 0]], [[5, 5], [4, 6]]])
    assert np.isnan(metrics.eo(counts))
    assert np.isnan(metrics.eqo(counts))
    assert metrics.sp(counts) == pytest.approx(0.5 / (11 / 20))


def test_one_label_only() -> None:
    counts = np.array([[[0, 0], [1, 3]], [[0, 0], [2, 2]]])
    assert np.isnan(metrics.balanced_accuracy(counts))
    assert metrics.mcc(counts) == 0
    nobody = np.array([[[4, 0], [0, 0]], [[3, 0], [0, 0]]])
    assert np.isnan(metrics.f1(nobody))


def test_published_statistical_parity_by_hand() -> None:
    # selection 20/100 and 40/100: (20/120) / (40/140) = 0.5833, where the exact ratio is 0.5
    counts = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])
    assert metrics.sp_published(counts) == 0.58
    assert metrics.sp(counts) == pytest.approx(0.5)


def test_published_equalized_odds_by_hand() -> None:
    # TPR 10/20 and 30/40: 0.6667 -> 0.67; FPR 10/80 and 10/60: 0.75; mean 0.71
    counts = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])
    assert metrics.eo_published(counts) == 0.67
    assert metrics.eqo_published(counts) == 0.71


def test_published_ratio_is_zero_when_everyone_is_accepted() -> None:
    accepts_everyone = np.array([[[0, 5], [0, 5]], [[0, 3], [0, 2]]])
    assert metrics.eo_published(accepts_everyone) == 0
    assert metrics.eo(accepts_everyone) == 1


@pytest.mark.parametrize(
    ("y", "p", "group", "message"),
    [
        ([0, 2], [0, 1], [0, 1], "y_true must be 0 or 1, got 2"),
        ([0, 1], [0.7, 0.2], [0, 1], "y_pred must be 0 or 1, got 0.7"),
        ([0, 1], [0, 1], [0, -1], r"group must be 0, 1, \.\.\."),
        ([0, 1], [0], [0, 1], "must have one value for each row"),
    ],
)
def test_other_values_than_labels_are_refused(y, p, group, message) -> None:
    with pytest.raises(InputError, match=message):
        metrics.measure(y, p, group=group)


# group 0: 10 of 80 with label 0 and 10 of 20 with label 1 are accepted; group 1: 10 of 60 and 30 of 40;
# group 2: 0 of 90 and 10 of 10
TWO = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])
THREE = np.concatenate([TWO, [[[90, 0], [0, 10]]]])


def test_rates_of_each_group_by_hand() -> None:
    np.testing.assert_allclose(metrics.selection_rates(THREE), [20 / 100, 40 / 100, 10 / 100])
    np.testing.assert_allclose(metrics.true_positive_rates(THREE), [10 / 20, 30 / 40, 1])
    np.testing.assert_allclose(metrics.false_positive_rates(THREE), [10 / 80, 10 / 60, 0])


def test_signed_differences_are_the_first_group_less_the_second_or_the_whole_range() -> None:
    assert metrics.sp_gap(TWO) == pytest.approx(0.2 - 0.4)
    assert metrics.eo_gap(TWO) == pytest.approx(0.5 - 0.75)
    assert metrics.eqo_gap(TWO) == pytest.approx((0.5 - 0.75 + 1 / 8 - 1 / 6) / 2)
    assert metrics.sp_gap(TWO[::-1]) == pytest.approx(0.4 - 0.2)
    assert metrics.sp_gap(THREE) == pytest.approx(0.4 - 0.1)
    assert metrics.eo_gap(THREE) == pytest.approx(1 - 0.5)
    assert metrics.eqo_gap(THREE) == pytest.approx((0.5 + 1 / 6) / 2)


def test_selection_rate_is_the_share_of_all_rows_that_are_predicted_one() -> None:
    assert metrics.selection_rate(TWO) == (20 + 40) / 200
    assert metrics.selection_rate(THREE) == pytest.approx(70 / 300)


def test_shrunk_ratios_by_hand() -> None:
    # sp: 60 of 200 are accepted, so 20 rows of 0.3 are added to each group: 26/120 and 46/120
    assert metrics.SHRUNK["sp"](20, TWO) == pytest.approx(26 / 46)
    # eo: 40 of 60, so (10 + 40/3) / 40 and (30 + 40/3) / 60; false positives: 20 of 140, 9/70 and 9/56
    eo = (70 / 3 / 40) / (130 / 3 / 60)
    assert metrics.SHRUNK["eo"](20, TWO) == pytest.approx(eo)
    assert metrics.SHRUNK["eqo"](20, TWO) == pytest.approx((eo + 56 / 70) / 2)
    assert metrics.SHRUNK["sp"](20, np.stack([TWO, TWO[::-1]])) == pytest.approx(26 / 46)


def test_groups_count_from_the_least_number_of_rows_on() -> None:
    # all groups have 100 rows; 20, 60, 40, 90 (two of each) and 10 with one of the labels
    assert metrics.COUNTED["sp"](100, THREE) == pytest.approx(0.1 / 0.4)
    assert np.isnan(metrics.COUNTED["sp"](101, THREE))
    assert metrics.COUNTED["eo"](10, THREE) == pytest.approx(0.5 / 1)
    assert metrics.COUNTED["eo"](11, THREE) == pytest.approx(0.5 / 0.75)
    assert np.isnan(metrics.COUNTED["eo"](21, THREE))
    assert metrics.COUNTED["eqo"](20, TWO) == pytest.approx((0.5 / 0.75 + 6 / 8) / 2)
    assert metrics.COUNTED["eqo"](11, THREE) == pytest.approx((0.5 / 0.75 + 0) / 2)


def test_groups_count_from_two_in_a_hundred_rows_on() -> None:
    # half of the first group, a fifth of the second, and both rows of the third are accepted
    counts = np.array([[[24, 24], [0, 0]], [[40, 10], [0, 0]], [[0, 2], [0, 0]]])
    assert metrics.COUNTED["sp"](1, counts) == pytest.approx(0.2 / 1)  # 2 of 100
    counts[0, 0] += 1
    assert metrics.COUNTED["sp"](1, counts) == pytest.approx(0.2 / 0.5)  # 2 of 102


def test_counted_rates_of_zero_are_equal() -> None:
    rejects_everyone = np.array([[[5, 0], [5, 0]], [[3, 0], [2, 0]]])
    assert metrics.COUNTED["sp"](1, rejects_everyone) == 1


def test_statistics_add_up_over_clients() -> None:
    of_client = metrics.Statistics(
        np.stack([TWO, 2 * TWO]), np.arange(8.0).reshape(2, 2, 2), np.arange(10.0, 18.0).reshape(2, 2, 2)
    )
    assert of_client.rows.tolist() == [[[80, 20], [60, 40]], [[160, 40], [120, 80]]]
    total = of_client.total()
    assert total.counts.tolist() == (3 * TWO).tolist()
    assert total.probability.tolist() == [[4, 6], [8, 10]]
    assert total.loss.tolist() == [[24, 26], [28, 30]]


@pytest.mark.parametrize("published", ["sp_published", "eo_published"])
def test_published_ratio_is_zero_where_one_count_is(published: str) -> None:
    """Of two groups alike, one whose accepted or rejected rows (of label 1) are none."""
    metric = metrics.METRICS[published]
    same = np.array([[[5, 5], [5, 5]], [[5, 5], [5, 5]]])
    assert metric(same) == 1
    for group in (0, 1):
        nobody, everybody = same.copy(), same.copy()
        nobody[group, :, 1] = 0
        everybody[group, :, 0] = 0
        assert metric(nobody) == 0
        # rates p / (1 + p) have all rows where others have the rejected ones
        assert metric(everybody) == (0 if published == "eo_published" else 0.67)


def test_groups_may_be_texts_and_are_counted_in_their_order() -> None:
    y, p = [1, 1, 0, 1, 1, 0], [1, 0, 0, 1, 1, 1]
    expected = metrics.measure(y, p, group=[0, 0, 0, 1, 1, 1])
    for names in (["a", "a", "a", "b", "b", "b"], np.array(["x", "x", "x", None, None, None], dtype=object)):
        assert metrics.measure(y, p, group=names) == expected
    assert metrics.measure(y, p, group=[False, False, False, True, True, True]) == expected
    with pytest.raises(InputError, match="must have one value for each row"):
        metrics.measure([1], [1], group=[["a"]])


def test_number_of_groups_is_the_largest_index_or_as_given() -> None:
    assert metrics.count([1], [0], group=[0]).tolist() == [[[0, 0], [1, 0]]]
    assert metrics.count([1], [0], group=[2]).shape == (3, 2, 2)
    assert metrics.count([1], [0], group=[0], groups=3).tolist() == [
        [[0, 0], [1, 0]],
        *[[[0, 0], [0, 0]]] * 2,
    ]
    assert metrics.count([], [], group=[]).shape == (0, 2, 2)


@pytest.mark.parametrize("group", [[0, 0.5], [0.5, 0], [-1, 0]])
def test_every_group_must_be_a_whole_number(group) -> None:
    with pytest.raises(InputError, match=r"group must be 0, 1, \.\.\., got"):
        metrics.count([0, 1], [0, 1], group=group)


def test_rows_must_be_in_a_line() -> None:
    with pytest.raises(InputError, match=r"shapes \(1, 2\), \(1, 2\) and \(1, 2\)"):
        metrics.count([[0, 1]], [[0, 1]], group=[[0, 1]])


def test_a_single_group_has_equal_rates() -> None:
    assert metrics.sp(TWO[:1]) == metrics.eo(TWO[:1]) == metrics.eqo(TWO[:1]) == 1
    assert metrics.sp_diff(TWO[:1]) == metrics.sp_gap(TWO[:1]) == 0


@pytest.mark.parametrize("name", ["sp", "eo", "eqo"])
@pytest.mark.parametrize("rule", [metrics.SHRUNK, metrics.COUNTED])
def test_many_models_are_measured_at_once_where_groups_are_small(name: str, rule) -> None:
    every = np.array([THREE, THREE[[1, 1, 2]] * [[[3]], [[1]], [[1]]], THREE * 0 + [[3, 0], [2, 0]]])
    result = rule[name](11.0, every)
    np.testing.assert_array_equal(result, [rule[name](11.0, counts) for counts in every])
    assert len(set(result.tolist())) > 1


def test_published_ratios_of_many_models_and_of_the_smallest_counts() -> None:
    # TPR 1/2 and 1/2; then nobody with label 1 is accepted, or rejected
    first = np.array([[[5, 5], [1, 1]], [[5, 5], [1, 1]]])
    nobody, everybody = first.copy(), first.copy()
    nobody[:, 1] = [2, 0]
    everybody[:, 1] = [0, 2]
    assert metrics.eo_published(np.array([first, nobody, everybody])).tolist() == [1, 0, 0]


def test_two_rows_that_are_right_correlate_wholly() -> None:
    assert metrics.mcc(np.array([[[1, 0], [0, 1]]])) == 1
    assert metrics.mcc(np.array([[[0, 1], [1, 0]]])) == -1


def test_which_groups_count_depends_on_each_model_alone() -> None:
    """A third group of 2 among 100 rows; the same of 100 times as many; and one large group alone."""
    few = np.array([[[24, 24], [0, 0]], [[40, 10], [0, 0]], [[0, 2], [0, 0]]])
    alone = few * np.array([1, 0, 0])[:, None, None]
    result = metrics.COUNTED["sp"](1, np.stack([few, 100 * few, alone]))
    np.testing.assert_allclose(result, [0.2, 0.2, np.nan])
