from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from fairfate.data import Table, synthetic
from fairfate.engine import mlp
from fairfate.engine.kernels import batch_order, train_cohort
from fairfate.engine.training import Training
from fairfate.federation import Rows, build
from fairfate.partition import parse_partition
from fairfate.strategies import local_weights
from fairfate.streams import Streams

STREAMS = Streams(5)


def random_table(rows: int, inputs: int, groups: int = 2, seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    return Table(
        name="random",
        features=rng.normal(size=(rows, inputs)),
        label=rng.integers(0, 2, rows).astype(np.int8),
        group=rng.integers(0, groups, rows).astype(np.int16),
        feature_names=tuple(f"x{i}" for i in range(inputs)),
        label_names=("no", "yes"),
        group_names=tuple(f"g{i}" for i in range(groups)),
        categories={},
    )


def start(inputs: int, hidden: int, models: int) -> np.ndarray:
    count = mlp.num_parameters(inputs, hidden)
    return np.stack([Streams(s).weights(count).astype(np.float32) * 0.3 for s in range(models)])


@pytest.mark.parametrize(
    ("inputs", "hidden", "batch"), [(14, 10, 10), (1, 1, 1), (7, 16, 3), (33, 37, 32), (5, 20, 17)]
)
def test_a_round_agrees_with_plain_numpy(inputs: int, hidden: int, batch: int) -> None:
    table = random_table(500, inputs)
    federation = build(table, parse_partition("dirichlet:1"), 4, STREAMS)
    training = Training(rounds=1, per_round=4, epochs=3, batch_size=batch, hidden=hidden)
    models = start(inputs, hidden, 1)
    clients = np.flatnonzero(federation.sizes > 0)
    weights = local_weights(federation.client_cells[clients]).reshape(1, len(clients), -1)
    trained = federation.train(models, clients, weights.astype(np.float32), training, STREAMS.batch_key, 1)
    mean = np.average(trained[0], axis=0, weights=federation.sizes[clients])

    def weigh(client: int) -> np.ndarray:
        return local_weights(federation.client_cells[client]).ravel()

    expected = oracle.fedavg_round(federation, models[0], training, STREAMS, 1, clients, weigh)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    assert np.abs(mean - models[0]).max() > 1e-3  # it did train


@given(
    inputs=st.integers(1, 23),
    hidden=st.integers(1, 35),
    batch=st.integers(1, 24),
    models=st.integers(8, 35),
    groups=st.integers(2, 3),
)
def test_one_model_and_sixteen_lanes_give_the_same_bits(
    inputs: int, hidden: int, batch: int, models: int, groups: int
) -> None:
    table = random_table(90, inputs, groups)
    federation = build(table, parse_partition("dirichlet:1"), 3, STREAMS)
    training = Training(epochs=2, batch_size=batch, hidden=hidden)
    clients = np.flatnonzero(federation.sizes > 0)
    stack = start(inputs, hidden, models)
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.5, 2, (models, len(clients), 2 * groups)).astype(np.float32)
    together = federation.train(stack, clients, weights, training, STREAMS.batch_key, 1)
    for m in (0, models // 2, models - 1):
        alone = federation.train(
            stack[m : m + 1], clients, weights[m : m + 1], training, STREAMS.batch_key, 1
        )
        assert np.array_equal(alone[0], together[m])


def test_clients_of_a_cohort_do_not_disturb_each_other() -> None:
    federation = build(random_table(200, 5), parse_partition("random"), 4, STREAMS)
    training = Training(epochs=2)
    models, ones = start(5, 10, 1), np.ones((1, 4, 4), np.float32)
    key = STREAMS.batch_key
    all_four = federation.train(models, np.arange(4), ones, training, key, 3)
    only_two = federation.train(models, np.array([1, 3]), ones[:, :2], training, key, 3)
    assert np.array_equal(all_four[:, [1, 3]], only_two)


@given(rows=st.integers(1, 60), epochs=st.integers(1, 4), client=st.integers(0, 10**6))
def test_each_epoch_visits_every_row_once(rows: int, epochs: int, client: int) -> None:
    order = np.empty(rows * epochs, np.int32)
    batch_order(np.uint64(7), 1, client, rows, epochs, order)
    assert (np.sort(order.reshape(epochs, rows), axis=1) == np.arange(rows)).all()


def test_batch_order_changes_with_key_round_client_and_epoch() -> None:
    def order(key: int, t: int, client: int) -> list[int]:
        out = np.empty(200, np.int32)
        batch_order(np.uint64(key), t, client, 100, 2, out)
        return out.tolist()

    orders = [order(1, 1, 1), order(2, 1, 1), order(1, 2, 1), order(1, 1, 2)]
    assert len({tuple(o) for o in orders}) == 4
    assert orders[0] == order(1, 1, 1)
    assert orders[0][:100] != orders[0][100:]


def test_shuffles_are_even() -> None:
    """Every row comes first equally often: chi-square of 8 places stays far below its 0.1 % point."""
    first = np.zeros(8)
    out = np.empty(8, np.int32)
    for client in range(8000):
        batch_order(np.uint64(3), 1, client, 8, 1, out)
        first[out[0]] += 1
    assert ((first - 1000) ** 2 / 1000).sum() < 24.3


@given(rows=st.integers(1, 80), inputs=st.integers(1, 9), hidden=st.integers(1, 13), groups=st.integers(2, 4))
def test_counts_are_those_of_plain_numpy(rows: int, inputs: int, hidden: int, groups: int) -> None:
    table = random_table(rows, inputs, groups)
    x = table.features.astype(np.float32)
    models = start(inputs, hidden, 3)
    counts = Rows.pack(x, table.cell, groups).score(models, hidden)
    assert counts.shape == (3, groups, 2, 2)
    for model, found in zip(models, counts, strict=True):
        probability = mlp.probabilities(mlp.arrays(model, inputs, hidden), x)
        sure = np.abs(probability - 0.5) > 1e-5
        expected = np.zeros((groups, 2, 2), np.int64)
        np.add.at(expected, (table.group, table.label, (probability > 0.5).astype(int)), 1)
        assert np.abs(found - expected).sum() <= 2 * (~sure).sum()
        assert found.sum() == rows


def test_saturated_models_stay_finite() -> None:
    table = synthetic(rows=100)
    federation = build(table, parse_partition("random"), 2, Streams(1, published=True))
    models = np.full((1, mlp.num_parameters(6, 10)), 100, np.float32)
    weights = np.ones((1, 2, 4), np.float32)
    trained = federation.train(models, np.arange(2), weights, Training(), STREAMS.batch_key, 1)
    assert np.isfinite(trained).all()


def test_kernels_are_cached_on_disk() -> None:
    federation = build(random_table(60, 3), parse_partition("random"), 2, STREAMS)
    weights = np.ones((1, 2, 4), np.float32)
    federation.train(start(3, 10, 1), np.arange(2), weights, Training(epochs=1), STREAMS.batch_key, 1)
    stats = train_cohort.stats
    assert stats.cache_path
    assert sum(stats.cache_hits.values()) + sum(stats.cache_misses.values()) >= 1
