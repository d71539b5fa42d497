"""Worked numbers of methods from the literature: each rule by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.strategies import Cohort, Need, Statistics, Strategy, fairfed, fairgrad, ffalm, prejudice
from fairfate.strategies.fairgrad import constraints
from fairfate.strategies.ffalm import loss_gap
from fairfate.strategies.prejudice import group_push
from rounds_by_hand import rule

# FairFed: three clients' counts [group][label][prediction] on their own rows; the third has one group only
OWN = np.array(
    [
        [[[6, 2], [3, 9]], [[8, 2], [4, 16]]],
        [[[5, 1], [2, 2]], [[9, 3], [2, 6]]],
        [[[0, 0], [0, 0]], [[7, 3], [4, 6]]],
    ]
)
ROWS = OWN.sum(axis=(1, 2, 3))


def cohort(local: Statistics, t: int = 1) -> Cohort:
    clients = len(local.counts)
    return Cohort(
        round=t,
        deltas=np.eye(clients),
        num_examples=local.counts.sum(axis=(1, 2, 3)),
        client_counts=np.zeros((0, 2, 2, 2), np.int64),
        server_counts=np.zeros((2, 2, 2), np.int64),
        clients=tuple("ABCDEF"[:clients]),
        measured={Need.REPORTS: local},
    )


def of(counts: np.ndarray) -> Statistics:
    return Statistics(counts, counts.sum(axis=-1) * 0.5, counts.sum(axis=-1) * 0.7)


def shares(strategy: Strategy, t: int = 1) -> np.ndarray:
    """The clients' weights: each moved its own parameter by one."""
    return strategy.aggregate(strategy.init(np.zeros(3)), cohort(of(OWN), t)).params


def test_fairfed_gaps_and_weights() -> None:
    assert ROWS.tolist() == [50, 30, 20]
    strategy = rule(fairfed(metric="eo", beta=1))
    state = strategy.aggregate(strategy.init(np.zeros(3)), cohort(of(OWN)))
    assert state.notes["gap"] == pytest.approx([0.000658, 0.200658, 0.09], abs=1e-6)
    assert state.params == pytest.approx([0.596447, 0.196447, 0.207105], abs=1e-6)
    assert state.moved == pytest.approx({"A": 0.096447, "B": -0.103553, "C": 0.007105}, abs=1e-6)


def test_fairfed_clips_and_lets_clients_return() -> None:
    strategy = rule(fairfed(metric="eo", beta=5))
    assert shares(strategy) == pytest.approx([0.806591, 0, 0.193409], abs=1e-6)
    state = strategy.aggregate(strategy.init(np.zeros(3)), cohort(of(OWN)))
    even = np.stack([OWN[0]] * 3)
    again = strategy.aggregate(state, cohort(of(even), 2))
    assert again.notes["weight"].sum() == pytest.approx(1)


def test_fairfed_exp_has_no_memory() -> None:
    assert shares(rule(fairfed(metric="eo", beta=1, variant="exp"))) == pytest.approx(
        [0.538488, 0.264526, 0.196986], abs=1e-6
    )


def test_fairfed_without_any_weight_averages_by_rows() -> None:
    strategy = rule(fairfed(metric="eo", beta=0))
    assert shares(strategy) == pytest.approx([0.5, 0.3, 0.2])


def test_prejudice_remover_by_hand() -> None:
    """p = (.8, .4, .3, .1), s = (1, 1, 0, 0): dR/dp = (.202733, .202733, -.245207, -.245207) by row."""
    probability = np.array([[0.1, 0.3], [0.4, 0.8]])
    push = group_push(1.0, probability, np.ones((2, 2), dtype=np.int64))
    assert push / 4 == pytest.approx([-0.245207, 0.202733], abs=1e-6)


def test_prejudice_with_one_group_is_plain() -> None:
    rows = np.array([[0, 0], [3, 4]])
    assert group_push(2.0, np.array([[0.0, 0.0], [1.0, 3.0]]), rows).tolist() == [0, 0]


def test_prejudice_global_tells_what_the_round_before_found() -> None:
    strategy = rule(prejudice(eta=1.0, scope="global"))
    state = strategy.init(np.zeros(3))
    assert strategy.broadcast(state, None).tolist() == []
    rows = np.ones((2, 2), dtype=np.int64)
    counts = np.stack([rows, np.zeros_like(rows)], axis=-1)[None]
    local = Statistics(counts, np.array([[[0.1, 0.3], [0.4, 0.8]]]), np.ones((1, 2, 2)))
    after = strategy.aggregate(state._replace(params=np.zeros(1)), cohort(local))
    assert strategy.broadcast(after, None) == pytest.approx([-0.980829, 0.81093], abs=1e-5)


def test_ffalm_by_hand() -> None:
    """L = (.7, .4), lambda .1, beta 5: the loss gains .255, and lambda becomes .7 with a rate of 2."""
    rows = np.array([[5, 5], [5, 5]])
    local = Statistics(
        np.stack([rows, np.zeros_like(rows)], axis=-1)[None],
        np.ones((1, 2, 2)),
        (rows * np.array([[0.7], [0.4]]))[None],
    )
    gap = float(loss_gap(local, slice(0, 2))[0])
    assert gap == pytest.approx(0.3)
    assert 0.1 * gap + 5 / 2 * gap**2 == pytest.approx(0.255)
    strategy = rule(ffalm(beta=5, rate=2, growth=1.05))
    state = strategy.init(np.zeros(1))._replace(lam=0.1)
    after = strategy.aggregate(state, cohort(local))
    assert after.lam == pytest.approx(0.7)
    assert (after.beta, after.rate) == pytest.approx((5.25, 2 / 1.05))
    # weight of a row: 1 + (lambda + beta gap) / share for group 0, 1 - that for group 1, at least 0
    terms = strategy.local_loss(np.array([0.1, 5.0]), rows, Statistics(*(v[0] for v in local)))
    assert terms.weight[0] == pytest.approx([1 + 1.6 / 0.5] * 2)
    assert terms.weight[1].tolist() == [0, 0]


def test_ffalm_without_a_group_is_plain() -> None:
    rows = np.array([[0, 0], [5, 5]])
    local = Statistics(np.stack([rows, rows * 0], axis=-1), np.ones((2, 2)), np.ones((2, 2)))
    strategy = rule(ffalm(beta=5, rate=2, growth=1.05))
    assert (strategy.local_loss(np.array([0.1, 5.0]), rows, local).weight == 1).all()


# cells (label, group) 00, 01, 10, 11 with counts (60, 20, 10, 10) and accuracy (.9, .8, .5, .7)
FAIRGRAD = np.array([[[54, 6], [5, 5]], [[16, 4], [3, 7]]])


@pytest.mark.parametrize(
    ("metric", "better", "weights"),
    [
        ("eqo", (0.025, -0.075, -0.1, 0.1), (0.989583, 1.03125, 1.1, 0.9)),
        ("sp", (0.062857, -0.146667, -0.062857, 0.146667), (0.965279, 1.081016, 1.034721, 0.918984)),
    ],
)
def test_fairgrad_by_hand(metric: str, better, weights) -> None:
    matrix, constant = constraints(metric, FAIRGRAD.sum(axis=-1))
    error = np.array([0.1, 0.5, 0.2, 0.3])  # by (group, label)
    found = (constant + matrix @ error).reshape(2, 2)
    assert found.T.ravel() == pytest.approx(better, abs=1e-6)
    strategy = rule(fairgrad(metric=metric, rate=0.1, epsilon=0.0))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(of(FAIRGRAD[None])))
    told = strategy.broadcast(state, None).reshape(2, 2)
    assert told.T.ravel() == pytest.approx(weights, abs=1e-6)


def test_fairgrad_eo_moves_only_label_one() -> None:
    strategy = rule(fairgrad(metric="eo", rate=0.1, epsilon=0.0))
    state = strategy.aggregate(strategy.init(np.zeros(1)), cohort(of(FAIRGRAD[None])))
    told = strategy.broadcast(state, None).reshape(2, 2)
    assert told[:, 0].tolist() == [1, 1]
    assert told[:, 1] == pytest.approx([1.1, 0.9])
