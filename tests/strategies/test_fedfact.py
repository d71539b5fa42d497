"""FedFACT: worked numbers, and a second computation from the paper's matrices."""

from __future__ import annotations

import numpy as np
import pytest

from builders import after, cohort, rule, seen
from fairfate.engine.descent import descend
from fairfate.engine.local import check_terms
from fairfate.models.mlp import Mlp, probabilities
from fairfate.models.rows import PackedRows
from fairfate.strategies import Need, Setup, fedfact, parse_spec
from fairfate.strategies.fedfact import cost_loss, prediction_costs, rate_gaps, step_multipliers
from fairfate.strategies.strategy import NO_ROWS, NO_STATISTICS

PARITY = np.array([[[12, 8], [8, 12]], [[9, 21], [6, 24]]])
"""Selected: 20 of 40 and 45 of 60, 65 of 100 together."""
OPPORTUNITY = np.array([[[15, 5], [10, 10]], [[24, 6], [3, 27]]])
"""Selected of label 1: 10 of 20 and 27 of 30, 37 of 50 together."""


def test_parity_by_hand() -> None:
    """D is -.15 and .1, so multipliers are .14 and .09; .14 / .4 - .05 = .3 and .09 / .6 + .05 = .2."""
    state = after(rule(fedfact(metric="sp", rate=1, epsilon=0.01)), seen(PARITY[None]))
    high, low = state.lam[:, :, 0]
    assert high == pytest.approx(np.array([[0.14, 0], [0, 0.09]]))
    assert low == pytest.approx(np.array([[0, 0.14], [0.09, 0]]))
    expected = np.array([[[0.7, 0.3], [-0.3, 1.3]], [[1.2, -0.2], [0.2, 0.8]]]) + 0.30001
    assert state.costs.reshape(2, 2, 2) == pytest.approx(expected)
    terms = cost_loss(state.costs, PARITY.sum(axis=-1), NO_STATISTICS)
    assert terms.weight == pytest.approx(1.60002)
    assert terms.target == pytest.approx(expected[..., 1] / 1.60002)
    assert state.notes == pytest.approx({"gap": 0.15, "lam": 0.46})


def test_opportunity_by_hand() -> None:
    """D is -.24 and .16 with label 1; .1 / .2 and .06 / .3, both less -.04 / .5; nothing is below 0."""
    state = after(rule(fedfact(metric="eo", rate=0.5, epsilon=0.04)), seen(OPPORTUNITY[None]))
    costs = state.costs.reshape(2, 2, 2)
    assert costs == pytest.approx(np.array([[[1, 0], [0, 1.42]], [[1, 0], [0, 0.72]]]))
    terms = cost_loss(state.costs, OPPORTUNITY.sum(axis=-1), NO_STATISTICS)
    assert terms.weight == pytest.approx(np.array([[1, 1.42], [1, 0.72]]))
    assert terms.target == pytest.approx(np.array([[0, 1], [0, 1]]))


def nearest(values: np.ndarray, bound: float) -> np.ndarray:
    """The nearest numbers >= 0 whose sum is at most the bound, by bisection of what is taken off each."""
    low, high = 0.0, float(np.abs(values).max())
    if np.maximum(values, 0).sum() <= bound:
        return np.maximum(values, 0)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(values - middle, 0).sum() > bound else (low, middle)
    return np.maximum(values - high, 0)


def constraint_matrices(metric: str, p: np.ndarray) -> dict[tuple[int, ...], np.ndarray]:
    """The paper's D, (groups, label, prediction), by constraint; p are shares of (group, label)."""
    matrices = {}
    groups, of_group, of_label = range(len(p)), p.sum(axis=1), p.sum(axis=0)
    for b in groups:
        for i in (0, 1):
            for j in (0, 1):
                matrix = np.zeros((len(p), 2, 2))
                for a in groups:
                    if metric == "sp":
                        matrix[a, :, j] = float(a == b) - of_group[a]
                    else:
                        matrix[a, i, j] = of_group[b] / p[b, i] * (a == b) - of_group[a] / of_label[i]
                if metric == "eqo" or (metric == "sp" and i == 0) or (metric == "eo" and i == j == 1):
                    matrices[b, i, j] = matrix
    return matrices


@pytest.mark.parametrize("metric", ["sp", "eo", "eqo"])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("bound", [0.2, 50.0])
def test_three_rounds_are_those_of_the_papers_matrices(metric: str, groups: int, bound: float) -> None:
    rng = np.random.default_rng(groups)
    favour = np.stack([np.ones(groups), 1 + np.arange(groups)], axis=-1)[:, None].astype(int)
    rounds = [rng.integers(1, 60, (3, groups, 2, 2)) * favour for _ in range(3)]
    rate, epsilon = 0.7, 0.02
    state = after(rule(fedfact(metric=metric, rate=rate, epsilon=epsilon, bound=bound)), *map(seen, rounds))

    up = down = np.zeros(0)
    for counts in rounds:
        # the same clients report each time, so the rows known are those of the latest reports
        together = counts.sum(axis=0)
        p = together.sum(axis=2) / together.sum()
        matrices = constraint_matrices(metric, p)
        confusion = together / together.sum(axis=(1, 2), keepdims=True)
        gaps = np.array([(matrix * confusion).sum() for matrix in matrices.values()])
        up, down = (np.zeros(len(gaps)), np.zeros(len(gaps))) if not len(up) else (up, down)
        moved = np.concatenate([up + rate * (gaps - epsilon), down + rate * (-gaps - epsilon)])
        up, down = np.split(nearest(moved, bound), 2)
    total = sum((u - d) * matrix for u, d, matrix in zip(up, down, matrices.values(), strict=True))
    costs = np.eye(2) - total / p.sum(axis=1)[:, None, None]
    costs += max(0.0, 1e-5 - costs.min()) if costs.min() < 0 else 0.0
    assert state.lam.sum() == pytest.approx((up + down).sum())
    assert (state.lam.sum() > bound - 1e-9) == (bound == 0.2)
    np.testing.assert_allclose(state.costs.reshape(groups, 2, 2), costs, atol=1e-9)
    assert np.abs(costs - np.eye(2)).max() > 0.1


def plain_loss_of(
    model: Mlp, params: np.ndarray, x: np.ndarray, cell: np.ndarray, costs: np.ndarray
) -> float:
    """The mean over rows of ``-sum_c M[a, y, c] log P(c)``, in plain NumPy and 64 bits."""
    p = probabilities(model.arrays(params), x)
    chosen = costs.reshape(-1, 2)[cell]
    return float(-(chosen * np.log(np.stack([1 - p, p], axis=1))).sum(axis=1).mean())


@pytest.mark.parametrize("hidden", [(), (6,), (5, 3)])
def test_a_step_follows_the_gradient_of_the_papers_loss(hidden: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    model, x, cell = Mlp(4, hidden), rng.normal(size=(60, 4)), np.sort(rng.integers(0, 6, 60))
    counts = rng.integers(1, 60, (1, 3, 2, 2))
    costs = after(rule(fedfact(metric="eqo", rate=2)), seen(counts)).costs
    params = (rng.normal(size=model.num_parameters) * 0.5).astype(np.float32)
    rows = PackedRows.pack(x.astype(np.float32), cell, 3)
    step = descend(model, rows, params, lambda now: cost_loss(costs, now.rows, now))
    x, h = x.astype(np.float32).astype(np.float64), 1e-5
    expected = [
        (
            plain_loss_of(model, params + at, x, cell, costs)
            - plain_loss_of(model, params - at, x, cell, costs)
        )
        / (2 * h)
        for at in np.eye(len(params)) * h
    ]
    assert np.abs(expected).max() > 0.05
    np.testing.assert_allclose(-step, expected, atol=2e-5)


def test_multipliers_of_a_group_that_is_not_seen_stay() -> None:
    """And so does what is known of its rows."""
    strategy = rule(fedfact(metric="sp", rate=1))
    first = strategy.aggregate(strategy.init(np.zeros(1)), cohort(seen(PARITY[None])))
    alone = PARITY[None] * np.array([0, 1])[:, None, None]
    second = strategy.aggregate(first, cohort(seen(alone), clients=("B",)))
    assert second.lam[:, 0].tolist() == first.lam[:, 0].tolist()
    np.testing.assert_allclose(second.lam[:, 1], np.maximum(first.lam[:, 1] - 0.01, 0))
    known = prediction_costs(second.lam, PARITY.sum(axis=-1) * np.array([[1], [2]]), "sp")
    assert second.costs == pytest.approx(known.ravel())


def test_a_group_without_rows_costs_nothing() -> None:
    counts = PARITY * np.array([0, 1])[:, None, None]
    for metric in ("sp", "eo", "eqo"):
        state = after(rule(fedfact(metric=metric, rate=5, epsilon=0.0)), seen(counts[None]))
        assert (state.costs.reshape(2, 2, 2) == np.eye(2)).all()
        assert state.notes["gap"] == 0


def test_a_stratum_whose_costs_are_zero_weighs_nothing() -> None:
    terms = check_terms(
        cost_loss(np.array([1.0, 0, 0, 0, 1, 0, 0, 1]), np.ones((2, 2)), NO_STATISTICS), np.ones((2, 2))
    )
    assert terms.weight.tolist() == [[1, 0], [1, 1]]


def test_opportunity_compares_nothing_but_the_favourable_label() -> None:
    gaps = rate_gaps(OPPORTUNITY, "eo")
    assert gaps[:, 1, 1] == pytest.approx([-0.24, 0.16])
    assert np.isnan(gaps).sum() == 6
    lam = step_multipliers(np.zeros((2, 2, 2, 2)), gaps, 1.0, 0.0, 5.0)
    assert lam[0, 1, 1, 1] == pytest.approx(0.16)
    assert lam.sum() == pytest.approx(0.4)


def test_the_loss_before_the_first_round_is_the_usual_one() -> None:
    strategy = parse_spec("fedfact", "sp").build(Setup(3))
    message = strategy.broadcast(strategy.init(np.zeros(3)), NO_ROWS)
    terms = strategy.local_loss(message, np.ones((2, 2)), NO_STATISTICS)
    assert terms.target is None
    assert (terms.weight == 1).all()
    assert strategy.needs == {Need.REPORTS}
