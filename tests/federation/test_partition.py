from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairfate.data import synthetic
from fairfate.federation.partition import dirichlet, parse_partition, random
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build


@given(
    rows=st.integers(1, 400),
    clients=st.integers(1, 30),
    sigma=st.floats(0.05, 100),
    groups=st.integers(2, 4),
    seed=st.integers(0, 99),
)
def test_every_row_goes_to_exactly_one_client(rows, clients, sigma, groups, seed) -> None:
    rng = np.random.default_rng(seed)
    cell = rng.integers(0, 2 * groups, rows)
    assignment = dirichlet(cell, clients, sigma, rng, groups=groups)
    assert assignment.shape == (rows,)
    assert ((assignment >= 0) & (assignment < clients)).all()


@given(rows=st.integers(1, 200), clients=st.integers(1, 30))
def test_random_parts_are_equal(rows: int, clients: int) -> None:
    sizes = np.bincount(random(rows, clients), minlength=clients)
    assert sizes.sum() == rows
    assert sizes.max() - sizes.min() <= 1


def test_dirichlet_gives_each_client_its_rounded_share_and_the_last_one_the_rest() -> None:
    class Shares:
        def dirichlet(self, alpha, size):
            return np.tile([0.25, 0.333, 0.417], (size, 1))

    cell = np.repeat([0, 1, 2, 3], [10, 7, 4, 1])
    counts = np.zeros((3, 4), int)
    np.add.at(counts, (dirichlet(cell, 3, 1.0, Shares()), cell), 1)  # type: ignore[arg-type]
    # 0.25 of 10, 7, 4, 1 rounds (half to even) to 2, 2, 1, 0; 0.333 to 3, 2, 1, 0
    assert counts.T.tolist() == [[2, 3, 5], [2, 2, 3], [1, 1, 2], [0, 0, 1]]


def test_published_shares_are_the_authors() -> None:
    """Row by row with slices, as the published runs did it: cells (y, s) = (1,1), (1,0), (0,1), (0,0)."""
    cell = np.random.default_rng(1).integers(0, 4, 1000)
    shares = np.random.RandomState(30).dirichlet(np.full(10, 0.5), 4)
    expected = np.full(1000, -1)
    for share, (y, s) in zip(shares, [(1, 1), (1, 0), (0, 1), (0, 0)], strict=True):
        rows, start = np.flatnonzero(cell == 2 * s + y), 0
        for client in range(10):
            size = round(len(rows) * share[client])
            end = start + size if client < 9 else len(rows)
            expected[rows[start:end]] = client
            start += size
    assignment = dirichlet(cell, 10, 0.5, Streams(3, published=True).partition())
    np.testing.assert_array_equal(assignment, expected)


def test_smaller_sigma_makes_clients_differ_more() -> None:
    table = synthetic()
    spread = {}
    for sigma in ("0.1", "1", "100"):
        cells = build(table, parse_partition(f"dirichlet:{sigma}"), 10, Streams(1)).client_cells
        spread[sigma] = cells.sum(axis=(1, 2)).std()
    assert spread["0.1"] > spread["1"] > spread["100"]
