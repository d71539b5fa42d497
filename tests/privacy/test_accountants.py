"""Epsilon against another accountant's, and a ledger that is rebuilt from what was done."""

from __future__ import annotations

from typing import Any

import pytest

import fairfate
from fairfate.models.kernels import private
from fairfate.privacy.accounting import Cost, epsilon_of
from fairfate.privacy.ledger import entries_of, spent

OPACUS: list[tuple[list[tuple[float, float, int]], float, float]] = [
    ([(64 / 1950, 4.33, 1023)], 1e-5, 1.0091),
    ([(64 / 1950, 1.76, 1023)], 1e-5, 3.0177),
    ([(64 / 1950, 0.97, 1023)], 1e-5, 8.0116),
    ([(32 / 370, 6.64, 360)], 1e-5, 1.0218),
    ([(32 / 370, 2.59, 360)], 1e-5, 3.0635),
    ([(32 / 370, 1.29, 360)], 1e-5, 8.1524),
    ([(0.0128, 3.34, 3950)], 1e-5, 1.0072),
    ([(0.0128, 1.40, 3950)], 1e-5, 3.0290),
    ([(0.0128, 0.83, 3950)], 1e-5, 8.0062),
    ([(0.0033, 1.0, 90_000)], 1e-5, 6.4788),
    ([(0.0033, 1.64, 90_000)], 1e-6, 3.3256),
    ([(0.02, 1.58, 13_200)], 1e-5, 8.3698),
    ([(1.0, 3.73, 1)], 1e-5, 1.0928),
    ([(1.0, 37.0, 100)], 1e-5, 1.1025),
    ([(1.0, 12.3, 1)], 1e-5, 0.3001),
    ([(64 / 1950, 1.8, 1023), (1.0, 12.3, 1)], 1e-5, 2.9509),
    ([(64 / 1950, 1.8, 1023), (1.0, 12.3, 2)], 1e-5, 2.9751),
    ([(0.02, 2.2, 600), (1.0, 74.0, 40)], 1e-5, 1.0499),
    ([(0.1, 4.0, 200), (1.0, 20.0, 30), (1.0, 8.0, 1)], 1e-6, 2.2942),
    ([(0.0833, 9.16, 8800)], 1e-5, 3.9651),
]
"""(rate, noise, times) of releases, delta, and epsilon by Opacus 1.6.0: ``compute_rdp`` and
``get_privacy_spent`` of ``opacus.accountants.analysis.rdp``, orders 1.1 to 10.9 and 12 to 63."""


@pytest.mark.parametrize(("costs", "delta", "epsilon"), OPACUS)
def test_epsilon_is_that_of_opacus_within_two_percent(
    costs: list[tuple[float, float, int]], delta: float, epsilon: float
) -> None:
    assert epsilon_of([Cost(*cost) for cost in costs], delta) == pytest.approx(epsilon, rel=0.02)


def test_ledger_is_what_steps_were_taken_with_which_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebuilt from the calls of the training loop: rows, steps, limit and noise as they were used."""
    calls: list[tuple[int, float, int]] = []
    train = private.train

    def recorded(start: Any, x: Any, cell: Any, first: int, lengths: Any, steps: Any, *others: Any) -> Any:
        _, _, rate, clip, deviation, _ = others
        calls.append((len(lengths), deviation / clip, len(steps.bounds) - 1))
        expected = 0.1 / rate  # the fixed denominator: the learning rate over it is the step's rate
        assert len(steps.order) / (len(steps.bounds) - 1) == pytest.approx(expected, rel=0.2)
        assert expected == pytest.approx(16)
        return train(start, x, cell, first, lengths, steps, *others)

    monkeypatch.setattr(private, "train", recorded)
    run = fairfate.run(
        data="synthetic:rows=1500", clients=3, per_round=2, rounds=5, epochs=2, batch_size=16, seeds=(1,),
        learning_rate=0.1, privacy="epsilon=4", strategies="fedavg", jobs=1,
    )  # fmt: skip
    by_client: dict[tuple[int, float], int] = {}
    for rows, noise, steps in calls:
        by_client[rows, noise] = by_client.get((rows, noise), 0) + steps
    rebuilt = sorted(
        epsilon_of([Cost(16 / rows, noise, steps)], 1e-5) for (rows, noise), steps in by_client.items()
    )
    kept = sorted(spent(entries_of(own), 1e-5) for _, own in run.ledger.groupby(["client"]))
    assert len(kept) >= 2
    assert rebuilt == pytest.approx(kept[-len(rebuilt) :], rel=0.02)
    assert max(kept) <= 4
