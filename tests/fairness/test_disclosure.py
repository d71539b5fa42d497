"""Minimum cell counts: what is shown holds nobody's small count, and loses no row on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairfate.fairness.disclosure import (
    HIDDEN,
    large_strata,
    merge_bins,
    round_counts,
    round_histograms,
    round_statistics,
    show_counts,
)
from fairfate.fairness.metrics import Statistics

minimum = st.integers(2, 20)


@given(arrays(np.int64, (3, 2, 2), elements=st.integers(0, 60)), minimum)
def test_no_count_of_fewer_than_the_minimum_is_shown(counts: np.ndarray, k: int) -> None:
    shown = round_counts(counts, k)
    assert ((shown == 0) | (shown >= k)).all()
    rows = counts.sum(axis=-1)
    assert (shown.sum(axis=-1) == np.where(rows >= k, rows, 0)).all()
    kept = (counts >= k).all(axis=-1)
    assert (shown[kept] == counts[kept]).all()


def test_bins_are_merged_however_they_lie_in_memory() -> None:
    histogram = np.arange(32).reshape(16, 2) % 5
    assert (merge_bins(histogram.T, 10) == merge_bins(histogram.T.copy(), 10)).all()
    assert (merge_bins(histogram.T, 10) != histogram.T).any()


@given(arrays(np.int64, (3, 2, 8), elements=st.integers(0, 6)), minimum)
def test_histograms_beside_a_small_one_are_rounded(histograms: np.ndarray, k: int) -> None:
    rows, rounded = histograms.sum(axis=-1), round_histograms(histograms, k)
    small = (rows > 0) & (rows < k)
    assert (rounded <= histograms).all()
    expected = np.where(small, 0, rows - rows % k if small.any() else rows)
    assert (rounded.sum(axis=-1) == expected).all()


@given(arrays(np.int64, (6,), elements=st.integers(0, 60)), minimum)
def test_counts_beside_a_small_one_are_near_what_they_are(counts: np.ndarray, k: int) -> None:
    small = (counts > 0) & (counts < k)
    shown = show_counts(counts, k, np.asarray(small.any()))
    assert ((shown == HIDDEN) == small).all()
    assert (np.abs(shown - counts)[~small] <= (k / 2 if small.any() else 0)).all()
    assert ((shown[~small] == 0) | (shown[~small] >= k)).all()


@given(arrays(np.int64, (2, 16), elements=st.integers(0, 12)), minimum)
def test_merged_bins_hold_none_or_enough_and_all_rows(histogram: np.ndarray, k: int) -> None:
    merged = merge_bins(histogram, k)
    assert ((merged == 0) | (merged >= k)).all()
    total = histogram.sum(axis=-1)
    assert (merged.sum(axis=-1) == np.where(total >= k, total, 0)).all()


def test_one_person_at_the_end_does_not_blur_the_rest() -> None:
    histogram = np.array([20, 20, 20, 20, 0, 0, 0, 1])
    assert merge_bins(histogram, 10).tolist() == [20, 20, 20, 21, 0, 0, 0, 0]


def test_bins_that_may_be_shown_stay_as_they_are() -> None:
    histogram = np.array([10, 0, 12, 30])
    assert merge_bins(histogram, 10).tolist() == histogram.tolist()


def test_a_minimum_of_one_changes_nothing() -> None:
    counts = np.arange(8).reshape(2, 2, 2)
    assert round_counts(counts, 1) is counts
    assert merge_bins(counts, 0) is counts


def test_small_strata_have_no_sums() -> None:
    counts = np.array([[[3, 2], [20, 20]]])
    given = Statistics(counts, np.array([[1.5, 9.0]]), np.array([[2.5, 8.0]]))
    shown = round_statistics(given, 10)
    assert shown.counts.tolist() == [[[0, 0], [20, 20]]]
    assert shown.probability.tolist() == [[0.0, 10.0]]  # 9 would be as good as a count
    assert shown.loss.tolist() == [[0.0, pytest.approx(-40 * math.log(0.25))]]


@given(st.integers(0, 9), minimum)
def test_no_small_count_follows_from_a_sum(people: int, k: int) -> None:
    """A model that is sure of everybody: its sums of probabilities are counts."""
    counts = np.array([[[50 - people, people], [30, 20]]])
    given = Statistics(counts, np.array([[people + 1e-5, 20.0]]), np.array([[40.0 * people, 9.0]]))
    shown = round_statistics(given, k)
    assert shown.probability[0, 0] % k == 0 or shown.probability[0, 0] in (50, 50 - k)
    same = round_statistics(given._replace(loss=given.loss + 7), k)
    assert (same.loss == shown.loss).all()


def test_rows_of_small_strata_take_part_in_nothing() -> None:
    assert large_strata(np.array([0, 0, 3, 3, 3]), 3, 4).tolist() == [False, False, True, True, True]
