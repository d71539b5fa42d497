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
    of = arrays.arrays(np.int64, n, elements=st.integers(0, groups - 1))
    return draw(bits), draw(bits), draw(of)


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
