from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
