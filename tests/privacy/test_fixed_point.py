"""Updates as whole numbers modulo 2**64."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate.errors import InputError
from fairfate.privacy.fixed_point import (
    RANGE,
    STEPS,
    NoSumError,
    add,
    contribute,
    may_open,
    open_rows,
    open_weights,
)

floats = st.floats(-20, 20, width=32)
clients = st.lists(
    st.tuples(st.lists(floats, min_size=3, max_size=3), st.integers(1, 2**30), st.floats(0, 1)),
    min_size=1,
    max_size=9,
)


@given(clients)
def test_opened_means_are_those_of_exact_fractions(given_clients: list) -> None:
    """An oracle without NumPy's integers or floats."""
    parts = [contribute(np.array(delta, np.float32), n, w) for delta, n, w in given_clients]
    steps = [
        [min(max(round(Fraction(float(np.float32(x))) * STEPS / 16), -STEPS), STEPS) for x in delta]
        for delta, _, _ in given_clients
    ]
    weights = {
        "rows": [n for _, n, _ in given_clients],
        "weights": [round(w * STEPS) for *_, w in given_clients],
    }
    opened = {
        "rows": open_rows(add([part.rows for part in parts]), len(parts)),
        "weights": open_weights(add([part.parts["weights"] for part in parts]), len(parts)),
    }
    for name, own in weights.items():
        total = sum(own)
        assert opened[name].total == total
        for position in range(3):
            exact = sum(w * delta[position] for w, delta in zip(own, steps, strict=True))
            mean = Fraction(exact, total) * 16 / STEPS if total else 0
            assert opened[name].mean[position] == pytest.approx(float(mean), rel=1e-12, abs=1e-15)


@given(clients, st.randoms())
def test_masks_that_cancel_leave_every_bit(given_clients: list, random) -> None:
    parts = [contribute(np.array(delta, np.float32), n).rows for delta, n, _ in given_clients]
    masks = [np.array([random.getrandbits(64) for _ in part], np.uint64) for part in parts]
    masked = [part + mask for part, mask in zip(parts, masks, strict=True)]
    order = random.sample(range(len(parts)), len(parts))
    assert np.array_equal(add([masked[k] for k in order]) - add(masks), add(parts))


def test_an_update_beyond_the_range_is_cut_and_counted() -> None:
    opened = open_rows(add([contribute(np.array(x), 5).rows for x in ([99.0, 1.0], [-99.0, 1.0])]), 2)
    assert opened.mean.tolist() == [0.0, 1.0]
    assert opened.cut == 2
    assert open_rows(contribute(np.array([RANGE]), 5).rows, 1).cut == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_update_that_is_not_a_number_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="finite"):
        contribute(np.array([value]), 5)


def test_a_sum_of_something_else_is_refused() -> None:
    rows = contribute(np.array([1.0, 2.0]), 5, 0.5)
    noise = np.array([0x5555555555555555] * 4, np.uint64)
    with pytest.raises(NoSumError):
        open_rows(rows.rows + noise, 1)
    with pytest.raises(NoSumError):
        open_weights(rows.parts["weights"] + noise[:3], 1)


@pytest.mark.parametrize("least", [3, 4])
def test_a_fair_sum_hides_its_members_and_the_others(least: int) -> None:
    for clients_in_round in range(least, 12):
        for members in range(clients_in_round + 1):
            others = clients_in_round - members
            hidden = (members == 0 or members >= least) and (others == 0 or others >= least)
            assert may_open(members, clients_in_round, least) == hidden
