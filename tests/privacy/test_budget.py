"""Budgets as texts, what strategies release, and the noise that budgets ask for."""

from __future__ import annotations

import pytest

from fairfate.errors import InputError
from fairfate.privacy.accounting import Cost, epsilon_of, least_noise
from fairfate.privacy.budget import Budget, parse_budget
from fairfate.privacy.calibration import Exposure, calibrate
from fairfate.privacy.releases import COUNTS, HISTOGRAM, SUMS, Releases, releases_of
from fairfate.strategies import Setup, parse_spec


def test_budget_survives_writing_and_reading() -> None:
    budget = parse_budget("epsilon=0.5,delta=1e-6,clip=2,participations=30")
    assert budget == Budget(0.5, 1e-6, 2.0, 30)
    assert parse_budget(str(budget)) == budget
    assert parse_budget("none") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epsilon=0", "privacy: epsilon must be > 0, got 0"),
        ("epsilon=-1", "privacy: epsilon must be > 0, got -1"),
        ("epsilon=inf", "privacy: epsilon must be > 0, got inf"),
        ("epsilon=3,delta=1", "privacy: delta must be in (0, 1), got 1"),
        ("epsilon=3,delta=0", "privacy: delta must be in (0, 1), got 0"),
        ("epsilon=3,clip=0", "privacy: clip must be in (0, 1e+06], got 0"),
        ("epsilon=3,participations=1.5", "privacy: participations must be a whole number, got 1.5"),
        ("delta=1e-5", "privacy must have an epsilon, such as epsilon=3, got 'delta=1e-5'"),
        ("epsilon=3,epsilon=4", "must name each key once"),
        ("epsilon=3,eps=4", "unknown setting of privacy 'eps'"),
        ("3", "privacy '3' must be NAME:key=value"),
    ],
)
def test_bad_budget_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_budget(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "once", "each_round"),
    [
        ("fedavg", (), ()),
        ("fair_fate", (), ()),
        ("fedavg+median", (), ()),
        ("fedprox", (), ()),
        ("fedavg_lr+average", (COUNTS,), ()),
        ("fedavg_gr:counts=once", (COUNTS,), ()),
        ("fedavg+thresholds:from=clients", (HISTOGRAM,), ()),
        ("fedavg+thresholds", (), ()),
        ("fairgrad", (), (SUMS,)),
        ("fairfed", (COUNTS,), (SUMS,)),
        ("fedavg_lr+thresholds:from=clients", (COUNTS, HISTOGRAM), ()),
    ],
)
def test_releases_of_strategies(text: str, once: tuple[str, ...], each_round: tuple[str, ...]) -> None:
    releases = releases_of(parse_spec(text, "eqo"), Setup(10, learning_rate=0.1))
    assert (releases.once, releases.each_round) == (once, each_round)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("prejudice:scope=batch", "joins the rows of a batch"), ("ffalm", "look at their rows again")],
)
def test_strategy_without_a_guarantee_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        releases_of(parse_spec(text, "eqo"), Setup(10, learning_rate=0.1))


@pytest.mark.parametrize(
    ("rows", "batch", "rounds", "epsilon", "noise"),
    [(1950, 64, 33, 1, 4.33), (1950, 64, 33, 3, 1.76), (370, 32, 30, 8, 1.29), (10_000, 128, 50, 3, 1.40)],
)
def test_noise_is_that_of_the_literature_s_accountant(
    rows: int, batch: int, rounds: int, epsilon: float, noise: float
) -> None:
    calibration = calibrate(Budget(epsilon), Exposure(rows, 1, batch, rounds), Releases())
    assert calibration is not None
    assert calibration.update == pytest.approx(noise, rel=0.015)


@pytest.mark.parametrize(
    "releases", [Releases(), Releases((COUNTS,)), Releases((COUNTS, HISTOGRAM), (SUMS,))]
)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_all_releases_together_keep_the_budget_and_leave_little_of_it(
    releases: Releases, epsilon: float
) -> None:
    budget, exposure = Budget(epsilon), Exposure(3000, 2, 20, 12)
    calibration = calibrate(budget, exposure, releases)
    assert calibration is not None
    entries = calibration.entries("a", 12, releases.once)
    total = epsilon_of([entry.cost for entry in entries], budget.delta)
    assert 0.99 * epsilon < total <= epsilon


def test_too_small_a_client_has_no_calibration() -> None:
    assert calibrate(Budget(0.1), Exposure(5, 10, 10, 100), Releases()) is None


def test_one_gaussian_release_costs_what_is_known() -> None:
    assert epsilon_of([Cost(1.0, 3.73, 1)], 1e-5) == pytest.approx(1.09, rel=0.01)
    assert epsilon_of([], 1e-5) == 0.0
    assert least_noise(lambda noise: [Cost(1.0, noise, 1)], 1.0, 1e-5, 2.0) is None
