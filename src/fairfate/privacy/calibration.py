"""The noise that a client's budget asks for, and what it has spent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from fairfate.errors import InputError, listing
from fairfate.models.private import batch_of, steps_of
from fairfate.models.training import Training
from fairfate.privacy.accounting import Cost, epsilon_of, least_noise
from fairfate.privacy.budget import Budget
from fairfate.privacy.ledger import Entry
from fairfate.privacy.releases import UPDATE, Releases

_MOST_OTHER = 1e5
"""Noise of releases other than updates that is looked for at most."""


class Exposure(NamedTuple):
    """How much a client of so many rows is asked for."""

    rows: int
    epochs: int
    batch: int
    participations: int

    @classmethod
    def of_training(cls, rows: int, training: Training, participations: int) -> Exposure:
        """That of a client in a run."""
        return cls(rows, training.epochs, training.batch_size, participations)

    @property
    def rate(self) -> float:
        """The probability with which each row joins a batch."""
        return batch_of(self.rows, self.batch) / self.rows

    @property
    def steps(self) -> int:
        """Of a round."""
        return steps_of(self.rows, self.epochs, self.batch)

    def costs(self, rounds: int, noise: float, releases: Releases, other: float) -> list[Cost]:
        """What so many rounds with some noise cost, with all other releases."""
        updates = Cost(self.rate, noise, rounds * self.steps)
        return [updates, Cost(1.0, other, releases.times(rounds))]


class Calibration(NamedTuple):
    """The noise of a client in a strategy, as multiples of sensitivities."""

    exposure: Exposure
    releases: Releases
    update: float
    """Of each step."""
    other: float
    """Of every other release; 0 if there is none."""

    def entries(self, client: str, rounds: int, once: Sequence[str]) -> list[Entry]:
        """What it has released after so many rounds; ``once`` are those releases that have been made."""
        exposure, rows = self.exposure, self.exposure.rows
        entries = [Entry(client, rows, UPDATE, exposure.rate, self.update, rounds * exposure.steps)]
        entries += [Entry(client, rows, kind, 1.0, self.other, 1) for kind in once]
        entries += [Entry(client, rows, kind, 1.0, self.other, rounds) for kind in self.releases.each_round]
        return [entry for entry in entries if entry.times]


@lru_cache(maxsize=4096)
def calibrate(budget: Budget, exposure: Exposure, releases: Releases) -> Calibration | None:
    """The least noise within a budget; None for a client that is too small for it."""
    epsilon, delta = budget.epsilon, budget.delta
    other = other_noise(budget, releases.times(exposure.participations))
    if other is None:
        return None
    update = least_noise(
        lambda noise: exposure.costs(exposure.participations, noise, releases, other),
        epsilon,
        delta,
        budget.noise,
    )
    return None if update is None else Calibration(exposure, releases, update, other)


def other_noise(budget: Budget, times: int) -> float | None:
    """The noise of so many releases other than updates, within their share; None if none suffices."""
    if not times:
        return 0.0
    share = budget.share * budget.epsilon
    return least_noise(lambda noise: [Cost(1.0, noise, times)], share, budget.delta, _MOST_OTHER)


def is_affordable(budget: Budget, exposure: Exposure, releases: Releases) -> bool:
    """Whether a client is large enough for its budget; quicker than `calibrate`."""
    return least_epsilon(budget, exposure, releases) <= budget.epsilon


def least_epsilon(budget: Budget, exposure: Exposure, releases: Releases) -> float:
    """The epsilon of a client with the most noise that its steps may have."""
    given = other_noise(budget, releases.times(exposure.participations))
    other = _MOST_OTHER if given is None else given
    return epsilon_of(exposure.costs(exposure.participations, budget.noise, releases, other), budget.delta)


def check_sizes(
    budget: Budget, exposures: Sequence[tuple[str, Exposure]], releases: Releases, where: str
) -> None:
    """InputError that names the clients which are too small for their budget.

    Of two clients the smaller one spends more, so only the smallest are looked at.
    """
    small = []
    for name, exposure in sorted(exposures, key=lambda pair: pair[1].rows):
        if is_affordable(budget, exposure, releases):
            break
        small.append(f"{name} ({exposure.rows:,} rows: {least_epsilon(budget, exposure, releases):.3g})")
    if small:
        raise InputError(
            f"privacy must leave every client enough rows{where}, got epsilon={budget.epsilon:g}, which these"
            f" cannot keep with noise={budget.noise:g} (and the epsilon that they could): {listing(small)};"
            " fewer rounds, epochs or participations, or fewer and larger clients, cost less"
        )
