"""A common threshold under differential privacy: its guard knows of the noise in the clients' histograms."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fairfate
from fairfate.engine.private import PrivateClients
from fairfate.fairness.metrics import accuracy, sp
from fairfate.fairness.thresholds import apply_to_histogram
from fairfate.fairness.tilt import Candidates, Guard, choose_common, select
from fairfate.privacy.mechanism import cut_variance, smooth_histogram


def population() -> np.ndarray:
    """(2, 2, 256) 20,000 rows by score."""
    rng = np.random.default_rng(1)
    edges = np.linspace(0, 1, 257)
    shapes = [(2, 4), (4, 3), (1, 4), (3, 3)]
    return np.array([np.histogram(rng.beta(a, b, 5000), edges)[0] for a, b in shapes]).reshape(2, 2, 256)


def test_guard_adds_the_noise_to_the_sampling_error() -> None:
    """8 of 1,000 lost, 20 changed, a variance of 16: 0.008 + 2 sqrt((0.02 - 0.008^2 + 0.016) / 1000)."""
    plain = np.array([[[400, 100], [100, 400]]])
    rule = np.array([[[406, 94], [114, 386]]])
    drop = float(accuracy(plain) - accuracy(rule))
    assert drop == pytest.approx(0.008)
    needed = drop + 2 * math.sqrt((0.02 - drop**2) / 1000 + 16 / 1000**2)

    def is_taken(tolerance: float, noise: float) -> bool:
        candidates = Candidates(rule[None], np.array([20.0]), (np.zeros(1),), noise)
        return select(candidates, plain, lambda counts: np.ones(len(counts)), Guard(tolerance, 0.0)) == 0

    assert is_taken(needed + 1e-9, 16.0)
    assert not is_taken(needed - 1e-9, 16.0)
    assert is_taken(needed - 1e-9, 15.0)


@pytest.mark.parametrize("deviation", [5.0, 40.0])
def test_error_of_accuracy_under_noise_is_not_larger_than_said(deviation: float) -> None:
    """Against 300 draws of noise, smoothed as the server does it; and not several times too large."""
    rows, rng = population(), np.random.default_rng(2)
    coarse = rows.reshape(2, 2, 32, 8).sum(axis=-1)
    steps = [96, 112, 144, 160]
    cuts = [math.log(step / (256 - step)) for step in steps]
    drops = []
    for _ in range(300):
        noisy = np.rint(coarse + rng.normal(0, deviation, coarse.shape)).astype(np.int64)
        smooth = smooth_histogram(noisy)
        plain = apply_to_histogram(smooth, np.zeros(2))
        drops.append(
            [
                float(accuracy(plain) - accuracy(apply_to_histogram(smooth, np.full(2, np.float32(cut)))))
                for cut in cuts
            ]
        )
    measured = np.std(drops, axis=0)
    said = np.sqrt(cut_variance(deviation, 4)[steps]) / rows.sum()
    assert (measured < 1.15 * said).all()
    assert (measured > 0.4 * said).all()


def test_more_noise_takes_fewer_liberties() -> None:
    rows = population()
    without = choose_common(rows, sp, Guard())
    assert without != 0
    assert choose_common(rows, sp, Guard(), cut_variance(0.0, 4)) == without
    some, much = (choose_common(rows, sp, Guard(), cut_variance(noise, 4)) for noise in (10.0, 1000.0))
    assert abs(much) <= abs(some) <= abs(without)
    assert much == 0


def test_noise_of_a_run_is_that_of_all_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    inner = PrivateClients.histogram_noise

    def record(self: PrivateClients, server) -> float:
        releases, clients = server.releases, np.flatnonzero(self.federation.sizes > 0)
        each = [self.calibration(int(client), releases).other for client in clients]
        seen["expected"] = math.sqrt(sum(other**2 for other in each))
        seen["noise"] = inner(self, server)
        return seen["noise"]

    monkeypatch.setattr(PrivateClients, "histogram_noise", record)
    fairfate.run(
        data="synthetic:rows=4000",
        strategies="fedavg+average+common_threshold",
        privacy="epsilon=8,delta=1e-4",
        clients=3,
        rounds=2,
        seeds=1,
        jobs=1,
    )
    assert seen["noise"] == pytest.approx(seen["expected"])
    assert seen["noise"] > 1
