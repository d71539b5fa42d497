"""Momentum at the server, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.strategies import Cohort, Setup, parse_spec
from fairfate.strategies.momentum import MomentumState, momentum
from fairfate.strategies.schedules import constant


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
    for text in ("fedmom:beta=1", "fedmom:beta=-0.1", "feddemon:beta0=1", "fedmom:beta=x"):
        with pytest.raises(InputError, match=r"must be"):
            parse_spec(text, "sp")
