"""Attacks that succeed without differential privacy and fail with it, with numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.thresholds import auc
from fairfate.models.mlp import Mlp, margins_of
from fairfate.models.model import Batches, Losses
from fairfate.models.private import NoisySteps, train_private
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.privacy.budget import Budget
from fairfate.privacy.calibration import Exposure, calibrate
from fairfate.privacy.mechanism import Seeded, noisy_counts
from fairfate.privacy.releases import COUNTS, Releases

ROWS, INPUTS = 100, 20
MODEL, TRAINING = Mlp(INPUTS, (32,)), Training(1, 1, 200, 10, 0.3)
LOSSES = Losses(np.ones((1, 1, 4), np.float32))


def members(seed: int) -> tuple[ClientRows, NDArray[np.float32], NDArray[np.int32]]:
    """A client's rows, of which labels say nothing, and as many rows like them that it does not have."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2 * ROWS, INPUTS)).astype(np.float32)
    cell = rng.integers(0, 4, 2 * ROWS).astype(np.int32)
    return ClientRows(x[:ROWS].ravel(), cell[:ROWS], np.array([0, ROWS])), x, cell


def membership_advantage(
    params: NDArray[np.float32], x: NDArray[np.float32], cell: NDArray[np.int32]
) -> float:
    """AUC of guessing from a released model's losses which rows it was trained on; 0.5 is chance."""
    sign = 1 - 2 * (cell % 2)
    losses = np.logaddexp(0, sign * margins_of(MODEL.arrays(params), x).ravel())
    ranks = np.argsort(np.argsort(-losses))
    rows = np.zeros((1, 2, len(x)), dtype=np.int64)
    rows[0, np.repeat([1, 0], ROWS), ranks] = 1
    return float(auc(rows))


def test_members_of_a_released_model_are_known_without_noise_and_not_with_it() -> None:
    plain, private = [], []
    calibration = calibrate(Budget(1.0), Exposure(ROWS, 200, 10, 1), Releases())
    assert calibration is not None
    for seed in range(8):
        rows, x, cell = members(seed)
        start = MODEL.initial(np.random.default_rng(seed).standard_normal(MODEL.num_parameters))
        trained = MODEL.train(
            start[None, None], rows, np.array([0]), LOSSES, TRAINING, Batches(np.uint64(seed), 1)
        )[0, 0]
        noisy = NoisySteps(1.0, calibration.update, Seeded(seed, "attack"))
        plain.append(membership_advantage(trained, x, cell))
        private.append(
            membership_advantage(train_private(MODEL, start, rows, 0, LOSSES, TRAINING, 200, noisy), x, cell)
        )
    assert np.mean(plain) > 0.75
    assert np.mean(private) < 0.56


def test_counts_of_two_rounds_tell_who_came_without_noise_and_not_with_it() -> None:
    calibration = calibrate(Budget(1.0), Exposure(2000, 1, 64, 30), Releases((COUNTS,)))
    assert calibration is not None
    rng, before = np.random.default_rng(1), np.array([[700, 300], [600, 400]])
    right = {"exact": 0, "noisy": 0}
    for trial in range(500):
        after = before.copy()
        came = tuple(rng.integers(0, 2, 2))
        after[came] += 1
        sent = [
            noisy_counts(counts, calibration.other, Seeded(trial, t))
            for t, counts in enumerate((before, after))
        ]
        for kind, difference in (("exact", after - before), ("noisy", sent[1] - sent[0])):
            right[kind] += np.unravel_index(difference.argmax(), (2, 2)) == came
    assert right["exact"] == 500
    assert right["noisy"] < 0.35 * 500  # a quarter is chance
