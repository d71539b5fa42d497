"""Noise for what clients release, and where their chance comes from."""

from __future__ import annotations

import hashlib
import math
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Statistics
from fairfate.fairness.thresholds import BINS
from fairfate.models.private import Randomness

PRIVATE_BINS = 32
"""Of score histograms with noise: each bin has its own, so there are fewer than without."""
_WORD = 2.0**-53


class Seeded:
    """Chance from a seed, for experiments: the same numbers whoever draws them, in whatever parts."""

    def __init__(self, seed: int, *key: int | str) -> None:
        words = [int.from_bytes(hashlib.sha256(str(word).encode()).digest()[:8]) for word in key]
        first, second = np.random.SeedSequence([seed, *words]).spawn(2)
        self._key = int(first.generate_state(1, np.uint64)[0])
        self._block = 0
        self._generator = np.random.default_rng(second)

    def normals(self, count: int) -> NDArray[np.float32]:
        """Standard normal numbers."""
        from fairfate.models.kernels.noise import normals  # which loads Numba

        numbers, self._block = normals(self._key, self._block, count)
        return numbers

    def exponentials(self, count: int) -> NDArray[np.float64]:
        """Standard exponential numbers."""
        return self._generator.standard_exponential(count)


class Secure:
    """Chance from the system's secure source, for sites: nobody else can know or repeat it."""

    def _uniforms(self, count: int) -> NDArray[np.float64]:
        """In (0, 1]."""
        words = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
        return ((words >> np.uint64(11)).astype(np.float64) + 1) * _WORD

    def normals(self, count: int) -> NDArray[np.float32]:
        """Standard normal numbers, by Box and Muller's transform."""
        half = -(-count // 2)
        radius = np.sqrt(-2 * np.log(self._uniforms(half)))
        angle = 2 * math.pi * self._uniforms(half)
        both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return both[:count].astype(np.float32)

    def exponentials(self, count: int) -> NDArray[np.float64]:
        """Standard exponential numbers."""
        return -np.log(self._uniforms(count))


def add_noise(values: NDArray[Any], deviation: float, randomness: Randomness) -> NDArray[np.float64]:
    """Values with Gaussian noise."""
    noise = randomness.normals(values.size).astype(np.float64).reshape(values.shape)
    return values + deviation * noise


def noisy_counts(counts: NDArray[np.int64], deviation: float, randomness: Randomness) -> NDArray[np.int64]:
    """Counts with noise, as whole numbers of at least one: weights are made from their ratios."""
    noisy = np.rint(add_noise(counts, deviation, randomness)).astype(np.int64)
    return np.maximum(noisy, 1)


def noisy_statistics(statistics: Statistics, deviation: float, randomness: Randomness) -> Statistics:
    """Sums with noise, brought back to where sums can be: counts of at least 0, no more chance than rows."""
    counts, probability, loss = (add_noise(part, deviation, randomness) for part in statistics)
    whole = np.maximum(np.rint(counts).astype(np.int64), 0)
    return Statistics(whole, np.clip(probability, 0.0, whole.sum(axis=-1)), np.maximum(loss, 0.0))


def noisy_histogram(
    histogram: NDArray[np.int64], deviation: float, randomness: Randomness
) -> NDArray[np.int64]:
    """(groups, 2, bins) rows by score in fewer bins, with noise; some may be below 0."""
    coarse = histogram.reshape(*histogram.shape[:-1], PRIVATE_BINS, -1).sum(axis=-1)
    return np.rint(add_noise(coarse, deviation, randomness)).astype(np.int64)


def cut_variance(deviation: float, strata: int) -> NDArray[np.float64]:
    """(thresholds,) the variance of how many more decisions are right at a threshold than at the middle one.

    They differ in the rows between the two, whose counts have noise in each range and stratum.

    >>> cut_variance(3.0, 4)[[128, 129, 136, 137]].tolist()
    [0.0, 36.0, 36.0, 72.0]
    """
    apart = np.abs(np.arange(BINS + 1) - BINS // 2)
    ranges = -(-apart // (BINS // PRIVATE_BINS))
    return np.asarray(strata * deviation**2 * ranges.astype(np.float64))


def smooth_histogram(sums: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of noisy histograms as a histogram of the usual bins, none below 0.

    The rows up to a bin must not fall from bin to bin. Where noise has them fall, they are the mean of the
    most so far and the least from there on; rows of a bin are spread over the usual bins in it.

    >>> smooth_histogram(np.array([[[4, -2, 3] + [0] * 29]]))[0, 0, :24].reshape(3, 8).sum(axis=1).tolist()
    [3, 0, 2]
    """
    upto = np.maximum(np.cumsum(sums, axis=-1), 0)
    most = np.maximum.accumulate(upto, axis=-1)
    least = np.minimum.accumulate(upto[..., ::-1], axis=-1)[..., ::-1]
    rising = (most + least) // 2
    edges = np.concatenate([np.zeros((*sums.shape[:-1], 1), dtype=np.int64), rising], axis=-1)
    parts = BINS // PRIVATE_BINS
    within = edges[..., :-1, None] + np.diff(edges)[..., None] * np.arange(1, parts + 1) // parts
    fine = within.reshape(*sums.shape[:-1], BINS)
    return np.diff(fine, prepend=0)
