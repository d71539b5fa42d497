"""Schedules, and momentum at the server, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate.strategies import Cohort, Setup, parse_spec
from fairfate.strategies.momentum import MomentumState, momentum
from fairfate.strategies.schedules import constant, demon, exponential, linear

share = st.floats(0, 1)


@given(start=share, rate=share, maximum=share, t=st.integers(1, 5000))
def test_growing_weights_never_fall_and_stay_bounded(start, rate, maximum, t) -> None:
    for schedule in (linear(start, rate, maximum), exponential(start, rate, maximum)):
        assert 0 <= schedule(t) <= schedule(t + 1) <= maximum


@given(start=st.floats(0, 0.999), rounds=st.integers(1, 500))
def test_decaying_momentum_falls_to_zero_in_the_last_round(start, rounds) -> None:
    values = [demon(start, rounds)(t) for t in range(1, rounds + 1)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0
    assert all(0 <= value <= start for value in values)


def test_exponential_is_the_papers_formula() -> None:
    assert exponential(0.1, 0.04, 1.0)(30) == pytest.approx(0.1 * 1.04**30)


def test_demon_is_the_papers_formula() -> None:
    # beta0 0.9, t/T = 0.25: 0.9 * 0.75 / (0.1 + 0.675)
    assert demon(0.9, 100)(25) == pytest.approx(0.675 / 0.775)


def test_constant_is_constant() -> None:
    assert {constant(0.3)(t) for t in range(1, 9)} == {0.3}


def cohort(t: int, *deltas: float) -> Cohort:
    each = np.array([[delta] for delta in deltas])
    return Cohort(t, each, np.array([1.0, 3.0]), np.zeros((0, 2, 2, 2)), np.zeros((2, 2, 2)))


@pytest.mark.parametrize("corrected", [False, True])
def test_momentum_by_hand(corrected: bool) -> None:
    strategy = momentum(constant(0.5), bias_correction=corrected)
    state = strategy.init(np.array([1.0]))
    assert state == MomentumState(np.array([1.0]), np.array([0.0]))
    state = strategy.aggregate(state, cohort(1, 0.0, 4.0))  # a mean of 3
    assert state.momentum.tolist() == [1.5]
    assert state.params.tolist() == [1 + (3.0 if corrected else 1.5)]
    assert state.notes == {"beta": 0.5}
    before = state.params[0]
    state = strategy.aggregate(state, cohort(2, 4.0, 0.0))  # a mean of 1
    assert state.momentum.tolist() == [1.25]
    assert state.params[0] == pytest.approx(before + (1.25 / 0.75 if corrected else 1.25))


def test_momentum_is_corrected_in_the_published_runs_only() -> None:
    for name in ("fedmom", "feddemon"):
        spec = parse_spec(name, "sp")
        steps = []
        for published in (False, True):
            strategy = spec.build(Setup(10, published=published))
            state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(1, 4.0, 4.0))
            steps.append(float(state.params[0]))
        assert steps[0] < steps[1]
        assert steps[1] == pytest.approx(4.0)
