"""Thresholds of another model's score, under a guard that looks at the plain model's decisions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairfate.fairness.disclosure import is_small
from fairfate.fairness.metrics import accuracy, eo, sp
from fairfate.fairness.split_scores import (
    choose_distilled,
    count_plain,
    cut_at,
    cut_everywhere,
    merge_split,
    split_histogram,
)
from fairfate.fairness.tilt import Guard


def worked() -> np.ndarray:
    """Two groups of 500 rows; group 1 has 100 of label 1 whom only the new model takes."""
    rows = np.zeros((2, 2, 2, 256), dtype=np.int64)
    rows[0, 0, 0, 64], rows[0, 1, 1, 192] = 250, 250
    rows[1, 0, 0, 64], rows[1, 0, 0, 100], rows[1, 1, 0, 100], rows[1, 1, 1, 192] = 240, 10, 100, 150
    return rows


def test_counts_of_the_worked_numbers() -> None:
    """Above range 64: all of label 1, and the 10 of label 0; 110 decisions are other than the plain ones."""
    rows = worked()
    assert count_plain(rows).tolist() == [[[250, 0], [0, 250]], [[250, 0], [100, 150]]]
    counts, changed = cut_everywhere(rows)
    assert counts[65].tolist() == [[[250, 0], [0, 250]], [[240, 10], [0, 250]]]
    assert changed[[0, 65, 101, 256]].tolist() == [600, 110, 0, 400]
    assert cut_at(rows, math.log(65 / 191)).tolist() == counts[65].tolist()
    assert cut_at(rows, -math.inf).tolist() == counts[0].tolist()


def test_choice_of_the_worked_numbers() -> None:
    """EO from 0.6 to 1, and accuracy from 0.9 to 0.99; of equal thresholds the one nearest to 0."""
    rows = worked()
    plain = count_plain(rows)
    assert (float(eo(plain)), float(accuracy(plain))) == (0.6, 0.9)
    assert choose_distilled(rows, eo, Guard()) == pytest.approx(math.log(100 / 156))
    assert choose_distilled(rows, eo, Guard(keep=1.5)) is None


def test_change_is_measured_against_the_plain_model_and_not_the_threshold_of_one_half() -> None:
    """The new model's own decisions at 0 change rows, whose share widens what may have been lost."""
    rows = np.zeros((2, 2, 2, 256), dtype=np.int64)
    rows[:, 0, 0, 20], rows[:, 1, 1, 200] = 2000, 2000
    rows[0, 0, 1, 20] = 60  # wrongly taken by the plain model only
    rows[0, 1, 1, 20] = 70  # rightly taken by the plain model only
    rows[1, 0, 0, 20] += 130
    counts, changed = cut_everywhere(rows)
    assert changed[128] == 130
    drop = float(accuracy(count_plain(rows)) - accuracy(counts[128]))
    assert drop == pytest.approx(10 / 8260)
    error = math.sqrt((130 / 8260 - drop**2) / 8260)
    needed = drop + 2 * error
    assert choose_distilled(rows, sp, Guard(needed + 1e-6, slack=0.0)) is not None
    assert choose_distilled(rows, sp, Guard(needed - 1e-6, slack=0.0)) is None


def test_plain_model_stays_where_nothing_is_fairer_or_fairness_is_undefined() -> None:
    rows = worked()
    rows[1] = 0
    assert choose_distilled(rows, eo, Guard(1.0, 0.0, 0.0)) is None
    fair = np.zeros((2, 2, 2, 256), dtype=np.int64)
    fair[:, 0, 0, 64], fair[:, 1, 1, 192] = 100, 100
    assert choose_distilled(fair, sp, Guard()) is None


def test_counts_of_every_threshold_are_those_of_the_rows() -> None:
    """Against comparing each row with each threshold."""
    rng = np.random.default_rng(4)
    plain = [rng.normal(0, 1, 70).astype(np.float32) for _ in range(6)]
    scores = [rng.normal(0, 3, 70).astype(np.float32) for _ in range(6)]
    rows = split_histogram(plain, scores)
    assert rows.shape == (3, 2, 2, 256)
    counts, changed = cut_everywhere(rows)
    for number in (1, 60, 128, 255):
        cut = np.float32(math.log(number / (256 - number)))
        accepted = [int((own > cut).sum()) for own in scores]
        assert counts[number].reshape(6, 2).tolist() == [[70 - n, n] for n in accepted]
        others = sum(int(((own > cut) != (old > 0)).sum()) for own, old in zip(scores, plain, strict=True))
        assert changed[number] == others
    assert count_plain(rows).reshape(6, 2)[:, 1].tolist() == [int((old > 0).sum()) for old in plain]


def test_no_small_count_of_a_split_histogram_is_told() -> None:
    rng = np.random.default_rng(5)
    rows = rng.poisson(0.4, (2, 2, 2, 256))
    merged = merge_split(rows, 10)
    assert not is_small(merged, 10).any()
    assert (merged.sum(axis=(-1, -2)) == rows.sum(axis=(-1, -2))).all()
