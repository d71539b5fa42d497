"""A step of training at the server: the gradient of the loss on its rows."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.data import synthetic
from fairfate.engine.descent import as_client, descend
from fairfate.errors import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models import mlp
from fairfate.models.mlp import Mlp
from fairfate.strategies import LossTerms, Statistics
from fairfate.strategies.server_step import unfairness_slope

FEDERATION = build(synthetic(rows=400, seed=2), parse_partition("random"), 4, Streams(1))
ROWS = FEDERATION.validation


def spread(model: Mlp, params: np.ndarray, metric: str) -> float:
    """The sum of squared distances of the groups' means from their mean, in plain NumPy."""
    rows = as_client(ROWS)
    p = mlp.probabilities(model.arrays(params), rows.x.reshape(len(rows.y), -1))
    group, total = rows.cell // 2, 0.0
    for label in {"sp": [None], "eo": [1], "eqo": [0, 1]}[metric]:
        of = np.ones(len(p), bool) if label is None else rows.y == label
        means = np.array([p[(group == g) & of].mean() for g in (0, 1)])
        total += float(((means - means.mean()) ** 2).sum())
    return total


@pytest.mark.parametrize("hidden", [(), (7,), (5, 3)])
@pytest.mark.parametrize("metric", ["sp", "eo", "eqo"])
def test_a_step_takes_off_the_gradient(hidden: tuple[int, ...], metric: str) -> None:
    model = Mlp(FEDERATION.inputs, hidden)
    params = (Streams(3).weights(model.num_parameters) * 0.7).astype(np.float32)

    def loss(now: Statistics) -> LossTerms:
        return LossTerms(np.zeros(now.rows.shape), unfairness_slope(now, metric))

    found = descend(model, ROWS, params, loss)
    for k in range(0, len(params), 3):
        near = [params.astype(np.float64) for _ in range(2)]
        near[0][k] += 1e-5
        near[1][k] -= 1e-5
        up, down = (spread(model, at, metric) for at in near)
        assert -found[k] == pytest.approx((up - down) / 2e-5, abs=3e-5)
    assert np.abs(found).max() > 1e-3
    after = params + found / np.float32(np.linalg.norm(found)) * np.float32(0.01)
    assert spread(model, after, metric) < spread(model, params, metric)


def test_rows_to_score_on_are_the_same_rows_to_train_on() -> None:
    rows, model = as_client(ROWS), Mlp(FEDERATION.inputs)
    params = model.initial(Streams(3).weights(model.num_parameters))[None]
    again = rows.packed(0, 2)
    np.testing.assert_array_equal(model.count(params, again), model.count(params, ROWS))
    np.testing.assert_array_equal(again.sizes, ROWS.sizes)


def test_a_loss_that_is_not_a_number_is_refused() -> None:
    model = Mlp(FEDERATION.inputs)
    params = model.initial(Streams(3).weights(model.num_parameters))
    with pytest.raises(InputError, match="must give a finite weight"):
        descend(model, ROWS, params, lambda now: LossTerms(np.full(now.rows.shape, np.nan)))


def test_prejudice_is_part_of_a_step_and_grows_with_its_weight() -> None:
    """What it adds to a step is linear in its weight."""
    model = Mlp(FEDERATION.inputs)
    params = model.initial(Streams(3).weights(model.num_parameters)) * 10

    def step(eta: float) -> np.ndarray:
        return descend(model, ROWS, params, lambda now: LossTerms(np.ones(now.rows.shape), prejudice=eta))

    plain, once, twice = (step(eta) for eta in (0.0, 1.0, 2.0))
    assert np.abs(once - plain).max() > 1e-3
    np.testing.assert_allclose(twice - plain, 2 * (once - plain), atol=1e-5)


def test_models_of_64_bits_take_the_same_step() -> None:
    model = Mlp(FEDERATION.inputs)
    params = model.initial(Streams(3).weights(model.num_parameters))
    one, other = (
        descend(model, ROWS, of, lambda now: LossTerms(np.ones(now.rows.shape)))
        for of in (params, params.astype(np.float64))
    )
    np.testing.assert_array_equal(one, other)
    assert other.dtype == np.float32
