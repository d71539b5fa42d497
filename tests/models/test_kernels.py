from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from fairfate.data import Table, synthetic
from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.models import mlp
from fairfate.models.kernels import batches
from fairfate.models.kernels.batches import batch_order
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Batches, Losses, batch_rows
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.training import Training
from fairfate.strategies import reweigh

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
        grouping=Groups.single("g", tuple(f"g{i}" for i in range(groups))),
        categories={},
    )


def train(
    federation: Federation,
    hidden: tuple[int, ...],
    models: np.ndarray,
    clients: np.ndarray,
    losses: Losses,
    training: Training,
    batches: Batches,
) -> np.ndarray:
    """Every model at every client."""
    model = Mlp(federation.inputs, hidden)
    each = np.repeat(models[:, None], len(clients), axis=1)
    return model.train(each, federation.rows, clients, losses, training, batches)


def start(inputs: int, hidden: int | tuple[int, ...], models: int) -> np.ndarray:
    widths = (hidden,) if isinstance(hidden, int) else hidden
    count = Mlp(inputs, widths).num_parameters
    return np.stack([Streams(s).weights(count).astype(np.float32) * 0.3 for s in range(models)])


def by_client(models: np.ndarray, clients: int) -> np.ndarray:
    """(models, clients, parameters) the same for every client."""
    return np.repeat(models[:, None], clients, axis=1)


@pytest.mark.parametrize(
    ("inputs", "hidden", "batch"),
    [(14, 10, 10), (1, 1, 1), (7, 16, 3), (33, 37, 32), (5, 20, 17), (9, 64, 150)],
)
def test_a_round_agrees_with_plain_numpy(inputs: int, hidden: int, batch: int) -> None:
    table = random_table(500, inputs)
    federation = build(table, parse_partition("dirichlet:1"), 4, STREAMS)
    training = Training(rounds=1, per_round=4, epochs=3, batch_size=batch)
    models = start(inputs, hidden, 1)
    clients = np.flatnonzero(federation.sizes > 0)
    weights = reweigh(federation.client_cells[clients]).reshape(1, len(clients), -1)
    losses = Losses(weights.astype(np.float32))
    trained = train(federation, (hidden,), models, clients, losses, training, Batches(STREAMS.batch_key, 1))
    mean = np.average(trained[0], axis=0, weights=federation.sizes[clients])

    def weigh(client: int) -> np.ndarray:
        return reweigh(federation.client_cells[client]).ravel()

    model = Mlp(inputs, (hidden,))
    expected = oracle.fedavg_round(federation, model, models[0], training, STREAMS, 1, clients, weigh)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    assert np.abs(mean - models[0]).max() > 1e-3  # it did train


@given(
    inputs=st.integers(1, 23),
    hidden=st.integers(1, 35),
    batch=st.integers(1, 24),
    models=st.integers(8, 35),
    groups=st.integers(2, 3),
    pushed=st.booleans(),
    held=st.booleans(),
    soft=st.booleans(),
    skip=st.integers(0, 1),
)
def test_one_model_and_sixteen_lanes_give_the_same_bits(
    inputs: int,
    hidden: int,
    batch: int,
    models: int,
    groups: int,
    pushed: bool,
    held: bool,
    soft: bool,
    skip: int,
) -> None:
    table = random_table(90, inputs, groups)
    federation = build(table, parse_partition("dirichlet:1"), 3, STREAMS)
    training = Training(epochs=2, batch_size=batch)
    clients = np.flatnonzero(federation.sizes > 0)
    stack = start(inputs, hidden, models)
    rng = np.random.default_rng(1)
    shape = (models, len(clients), 2 * groups)
    weights = rng.uniform(0.5, 2, shape).astype(np.float32)
    push = rng.normal(size=shape).astype(np.float32) * (rng.random((models, 1, 1)) < 0.5) if pushed else None
    prejudice = (rng.random(models) * rng.integers(0, 2, models)).astype(np.float32) if pushed else None
    prox = (rng.random(shape[:2]) * rng.integers(0, 2, (models, 1))).astype(np.float32) if held else None
    anchor = rng.normal(size=(*shape[:2], stack.shape[1])).astype(np.float32) if held else None
    batches = Batches(STREAMS.batch_key, 1, skip, 2 - skip)
    target = rng.random(shape).astype(np.float32) if soft else None
    losses = Losses(weights, push, prejudice, prox, anchor, target)
    together = train(federation, (hidden,), stack, clients, losses, training, batches)
    for m in (0, models // 2, models - 1):
        rows = slice(m, m + 1)
        own = Losses(*(None if value is None else value[rows] for value in losses))
        alone = train(federation, (hidden,), stack[rows], clients, own, training, batches)
        assert np.array_equal(alone[0], together[m])


def tanh_of_vectors(x: np.ndarray) -> np.ndarray:
    """The kernels' own tanh, by a model that hands its one input to one unit, and that on to the margin."""
    model = Mlp(1, (1,))
    rows = PackedRows.pack(x.reshape(-1, 1), np.zeros(x.size, np.int64), 1)
    return model.margins(np.float32([1, 0, 1, 0]), rows)[0].reshape(x.shape)


def plain_step(model: Mlp, params: np.ndarray, x: np.ndarray, y: np.ndarray, rate: np.float32) -> np.ndarray:
    """One batch in 32 bits, each product rounded and then added, in the order that the kernels promise."""
    layers = model.arrays(params.copy())
    names = [(f"w{n}", f"b{n}") for n in range(1, len(model.widths))]
    values = [x]
    for w, b in names:
        weights, sums = layers[w].reshape(values[-1].shape[1], -1), np.repeat(layers[b][None], len(x), 0)
        for j in range(len(weights)):
            sums = sums + values[-1][:, [j]] * weights[j]
        values.append(sums if w == names[-1][0] else tanh_of_vectors(sums))
    half, step = np.float32(0.5), rate / np.float32(len(x))
    t = tanh_of_vectors(values.pop()[:, 0] * half)
    errors = ((half * t + (half - y)) * (np.float32(1) * step))[:, None]
    for (w, b), inputs in zip(names[::-1], values[::-1], strict=True):
        weights = layers[w].reshape(inputs.shape[1], -1)
        gradient, bias, back = np.zeros_like(weights), np.zeros_like(layers[b]), np.zeros_like(inputs)
        for row, error in zip(inputs, errors, strict=True):
            gradient += row[:, None] * error
            bias += error
        for k in range(weights.shape[1]):
            back += errors[:, [k]] * weights[:, k]
        errors = back * (np.float32(1) - inputs * inputs)
        weights -= gradient  # a view of the vector
        layers[b] -= bias
    return model.flat(layers)


@pytest.mark.parametrize(
    ("inputs", "hidden", "batch"),
    [
        (14, (), 10),
        (200, (), 100),
        (1, (1, 1), 1),
        (14, (32, 16), 32),
        (5, (17, 3), 7),
        (33, (10, 64, 1), 65),
        (20, (16, 33, 5, 2), 150),
    ],
)
def test_deep_models_get_the_bits_of_a_plain_loop(inputs: int, hidden: tuple[int, ...], batch: int) -> None:
    """Rows, units and inputs in numbers that fill no vector, and batches with a part at the end."""
    federation = build(random_table(200, inputs), parse_partition("random"), 1, STREAMS)
    training, batches = Training(epochs=2, batch_size=batch, learning_rate=0.3), Batches(STREAMS.batch_key, 1)
    model, models = Mlp(inputs, hidden), start(inputs, hidden, 1)
    losses = Losses(np.ones((1, 1, 4), np.float32))
    trained = train(federation, hidden, models, np.array([0]), losses, training, batches)[0, 0]
    rows, expected = federation.rows, models[0]
    for at in batch_rows(rows, 0, training, batches):
        x = rows.x.reshape(-1, inputs)[at]
        expected = plain_step(model, expected, x, rows.y[at], np.float32(training.learning_rate))
    assert np.array_equal(trained, expected)


@pytest.mark.parametrize("hidden", [(), (16,), (7, 5), (3, 20, 4)])
def test_margins_get_the_bits_of_a_plain_loop(hidden: tuple[int, ...]) -> None:
    """Sums with one rounding for each product and addition, as 64 bits round them almost always."""
    model, table = Mlp(19, hidden), random_table(100, 19)
    params, x = start(19, hidden, 1)[0], table.features.astype(np.float32)
    layers, values = model.arrays(params), x
    for number in range(1, len(model.widths)):
        weights = layers[f"w{number}"].reshape(values.shape[1], -1).astype(np.float64)
        sums = np.repeat(layers[f"b{number}"][None], len(x), 0)
        for j in range(len(weights)):
            sums = (values[:, [j]] * weights[j] + sums).astype(np.float32)
        values = sums if number == len(model.widths) - 1 else tanh_of_vectors(sums)
    packed = PackedRows.pack(x, np.zeros(len(x), np.int64), 1)
    assert np.array_equal(model.margins(params, packed)[0], values[:, 0])


def test_batches_of_many_rows_give_the_same_bits_in_lanes() -> None:
    """More rows than one model's gradient is summed over at once."""
    federation = build(random_table(400, 11), parse_partition("random"), 1, STREAMS)
    stack, ones = start(11, 20, 16), np.ones((16, 1, 4), np.float32)
    training, batches = Training(epochs=2, batch_size=150), Batches(STREAMS.batch_key, 1)
    client = np.array([0])
    together = train(federation, (20,), stack, client, Losses(ones), training, batches)
    alone = train(federation, (20,), stack[:1], client, Losses(ones[:1]), training, batches)
    assert np.array_equal(together[:1], alone)


@pytest.mark.parametrize("hidden", [(), (9, 18)])
def test_stacked_deep_models_do_not_disturb_each_other(hidden: tuple[int, ...]) -> None:
    """What one wants beside the loss's gradient is gone when the next one is trained."""
    federation = build(random_table(90, 5), parse_partition("random"), 2, STREAMS)
    models, clients = start(5, hidden, 2), np.arange(2)
    push = np.float32([1, 0])[:, None, None] * np.ones((2, 2, 4), np.float32)
    prox = np.float32([[2, 2], [0, 0]])
    losses = Losses(
        push + 1, push, np.float32([0.5, 0]), prox, by_client(models[::-1], 2), push * np.float32(0.3)
    )
    training, batches = Training(epochs=2), Batches(STREAMS.batch_key, 1)
    together = train(federation, hidden, models, clients, losses, training, batches)
    for item in (slice(0, 1), slice(1, 2)):
        own = Losses(*(value[item] for value in losses))
        assert np.array_equal(
            together[item], train(federation, hidden, models[item], clients, own, training, batches)
        )


def test_clients_of_a_cohort_do_not_disturb_each_other() -> None:
    federation = build(random_table(200, 5), parse_partition("random"), 4, STREAMS)
    training = Training(epochs=2)
    models, ones = start(5, 10, 1), np.ones((1, 4, 4), np.float32)
    key = STREAMS.batch_key
    batches = Batches(key, 3)
    all_four = train(federation, (10,), models, np.arange(4), Losses(ones), training, batches)
    two = Losses(np.ascontiguousarray(ones[:, :2]))
    only_two = train(federation, (10,), models, np.array([1, 3]), two, training, batches)
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
    counts = Mlp(inputs, (hidden,)).count(models, PackedRows.pack(x, table.cell, groups))
    assert counts.shape == (3, groups, 2, 2)
    for model, result in zip(models, counts, strict=True):
        probability = mlp.probabilities(Mlp(inputs, (hidden,)).arrays(model), x)
        sure = np.abs(probability - 0.5) > 1e-5
        expected = np.zeros((groups, 2, 2), np.int64)
        np.add.at(expected, (table.group, table.label, (probability > 0.5).astype(int)), 1)
        assert np.abs(result - expected).sum() <= 2 * (~sure).sum()
        assert result.sum() == rows


def test_saturated_models_stay_finite() -> None:
    table = synthetic(rows=100)
    federation = build(table, parse_partition("random"), 2, Streams(1, published=True))
    models = np.full((1, Mlp(6).num_parameters), 100, np.float32)
    ones = Losses(np.ones((1, 2, 4), np.float32))
    batches = Batches(STREAMS.batch_key, 1)
    trained = train(federation, (10,), models, np.arange(2), ones, Training(), batches)
    assert np.isfinite(trained).all()


def numpy_loss(
    model: Mlp, params: np.ndarray, x: np.ndarray, y: np.ndarray, cell: np.ndarray, terms: Losses
) -> float:
    """The loss of one batch, in plain NumPy and 64 bits."""
    p = mlp.probabilities(model.arrays(params), x)
    t = y if terms.target is None else terms.target[0, 0][cell]
    entropy = -(t * np.log(p) + (1 - t) * np.log(1 - p))
    loss = (terms.weight[0, 0][cell] * entropy).mean()
    if terms.push is not None:
        loss += (terms.push[0, 0][cell] * p).mean()
    if terms.prejudice is not None:
        group = cell // 2
        q = np.array([p[group == g].mean() if (group == g).any() else 0.5 for g in range(group.max() + 1)])
        r = p.mean()
        removed = p * np.log(q[group] / r) + (1 - p) * np.log((1 - q[group]) / (1 - r))
        loss += terms.prejudice[0] * removed.mean()
    if terms.prox is not None:
        loss += terms.prox[0, 0] / 2 * ((params - terms.anchor[0, 0]) ** 2).sum()
    return float(loss)


@pytest.mark.parametrize("hidden", [(), (7,), (9, 4), (3, 5, 2)])
@pytest.mark.parametrize("terms", ["weight", "target", "push", "prejudice", "prox", "all"])
def test_a_step_follows_the_gradient_of_the_loss(hidden: tuple[int, ...], terms: str) -> None:
    """One batch of all rows, against central differences of the loss in plain NumPy."""
    table = random_table(40, 4, seed=3)
    federation = build(table, parse_partition("random"), 1, STREAMS)
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, (1, 1, 4)).astype(np.float32)
    push = rng.normal(size=(1, 1, 4)).astype(np.float32) if terms in ("push", "all") else None
    prejudice = np.float32([0.7]) if terms in ("prejudice", "all") else None
    model = Mlp(4, hidden)
    params = (rng.normal(size=model.num_parameters) * 0.5).astype(np.float32)
    target = rng.random((1, 1, 4)).astype(np.float32) if terms in ("target", "all") else None
    losses = Losses(weight, push, prejudice, target=target)
    if terms in ("prox", "all"):
        losses = losses._replace(prox=np.float32([[0.6]]), anchor=params[None, None] * np.float32(0.5) - 1)
    rate = 0.01
    training = Training(epochs=1, batch_size=100, learning_rate=rate)
    batches = Batches(STREAMS.batch_key, 1)
    trained = train(federation, hidden, params[None], np.array([0]), losses, training, batches)[0, 0]
    rows = federation.rows
    data = rows.x.reshape(-1, 4).astype(np.float64), rows.y.astype(np.float64), rows.cell
    expected, step = np.empty(len(params)), 1e-5
    for k in range(len(params)):
        moved = [params.astype(np.float64) for _ in range(2)]
        moved[0][k] += step
        moved[1][k] -= step
        up, down = (numpy_loss(model, at, *data, losses) for at in moved)
        expected[k] = (up - down) / (2 * step)
    np.testing.assert_allclose((params - trained) / rate, expected, atol=3e-4)


@pytest.mark.parametrize("hidden", [(), (7,), (9, 4)])
@pytest.mark.parametrize("models", [1, 20])
def test_labels_written_out_as_targets_change_no_bit(hidden: tuple[int, ...], models: int) -> None:
    federation = build(random_table(90, 5, 3), parse_partition("dirichlet:1"), 3, STREAMS)
    clients = np.flatnonzero(federation.sizes > 0)
    weight = np.random.default_rng(1).uniform(0.5, 2, (models, len(clients), 6)).astype(np.float32)
    target = np.resize(np.float32([0, 1]), weight.shape)
    plain, written = (
        train(
            federation,
            hidden,
            start(5, hidden, models),
            clients,
            losses,
            Training(),
            Batches(np.uint64(1), 1),
        )
        for losses in (Losses(weight), Losses(weight, target=target))
    )
    assert plain.tobytes() == written.tobytes()


@pytest.mark.parametrize("hidden", [(), (10,), (6, 5)])
def test_statistics_are_those_of_plain_numpy(hidden: tuple[int, ...]) -> None:
    table = random_table(77, 5, 3)
    x = table.features.astype(np.float32)
    model = Mlp(5, hidden)
    models = start(5, hidden, 2) * 3
    statistics = model.statistics(models, PackedRows.pack(x, table.cell, 3))
    margins = model.margins(models[1], PackedRows.pack(x, table.cell, 3))
    np.testing.assert_array_equal(statistics.counts, model.count(models, PackedRows.pack(x, table.cell, 3)))
    for m in range(2):
        p = mlp.probabilities(model.arrays(models[m]), x)
        entropy = -np.where(table.label == 1, np.log(p), np.log(1 - p))
        for cell in range(6):
            own = table.cell == cell
            assert statistics.probability[m].ravel()[cell] == pytest.approx(p[own].sum(), abs=1e-4)
            assert statistics.loss[m].ravel()[cell] == pytest.approx(entropy[own].sum(), abs=1e-4)
            assert statistics.rows[m].ravel()[cell] == own.sum()
            if m == 1:
                np.testing.assert_allclose(margins[cell], np.log(p / (1 - p))[own], atol=1e-4)


def test_epochs_in_pieces_visit_the_same_rows() -> None:
    """With batches that end with an epoch, running one epoch after another changes nothing."""
    federation = build(random_table(100, 5), parse_partition("random"), 3, STREAMS)
    models, ones = start(5, 10, 1), Losses(np.ones((1, 1, 4), np.float32))
    training, client = Training(epochs=4, batch_size=5), np.array([1])
    assert federation.sizes[1] % 5 == 0
    whole = train(federation, (10,), models, client, ones, training, Batches(STREAMS.batch_key, 2))
    pieces = models
    for skip in range(4):
        batches = Batches(STREAMS.batch_key, 2, skip, 1)
        pieces = train(federation, (10,), pieces, client, ones, training, batches)[:, 0]
    assert np.array_equal(whole[:, 0], pieces)


@pytest.mark.parametrize("hidden", [(), (10,), (6, 5)])
def test_a_proximal_term_of_nothing_changes_no_bit(hidden: tuple[int, ...]) -> None:
    federation = build(random_table(100, 5), parse_partition("random"), 3, STREAMS)
    models, ones = start(5, hidden, 2), np.ones((2, 2, 4), np.float32)
    training, clients, batches = Training(epochs=2), np.array([0, 2]), Batches(STREAMS.batch_key, 1)
    far = Losses(ones, prox=np.zeros((2, 2), np.float32), anchor=by_client(models + 1, 2))
    plain, kept_rows = (
        train(federation, hidden, models, clients, value, training, batches) for value in (Losses(ones), far)
    )
    assert np.array_equal(plain, kept_rows)


@pytest.mark.parametrize("hidden", [(), (10,), (6, 5)])
def test_a_strong_proximal_term_keeps_the_model_at_its_anchor(hidden: tuple[int, ...]) -> None:
    federation = build(random_table(200, 5), parse_partition("random"), 1, STREAMS)
    models, ones = start(5, hidden, 1), np.ones((1, 1, 4), np.float32)
    training, batches = Training(epochs=20), Batches(STREAMS.batch_key, 1)
    distance = []
    for strength in (0.0, 1.0, 50.0):
        losses = Losses(ones, prox=np.full((1, 1), strength, np.float32), anchor=by_client(models, 1))
        trained = train(federation, hidden, models, np.array([0]), losses, training, batches)
        distance.append(np.linalg.norm(trained[0, 0] - models[0]))
    assert distance[0] > 2 * distance[1] > 4 * distance[2] > 0


@pytest.mark.parametrize("text", ["", "a", "-1", "10,0", "1.5", "99999", ",", "5," * 20 + "5"])
def test_bad_widths_are_named(text: str) -> None:
    with pytest.raises(InputError, match="hidden must"):
        parse_hidden(text)


def test_copied_rows_are_read_where_the_copy_lies() -> None:
    rng = np.random.default_rng(0)
    rows = PackedRows.pack(rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4, 2)
    model = Mlp(3, (4,))
    models = start(3, 4, 1)
    before = model.count(models, rows)
    copied = deepcopy(rows)
    rows.blocks[:] = 0
    assert np.array_equal(model.count(models, copied), before)
    assert not np.array_equal(model.count(models, rows), before)


def test_workspace_of_a_loop_is_empty_and_not_shared() -> None:
    sizes = (32, 16), (3,)
    first, second = batches.take_space(*sizes), batches.take_space(*sizes)
    assert [len(part) for part in first.parts] == [32, 16, 3]
    assert not any(np.shares_memory(*pair) for pair in zip(first.parts, second.parts, strict=True))
    for part in first.parts:
        part[:] = 7
    batches.return_space(first)
    batches.return_space(second)
    again, other = batches.take_space(*sizes), batches.take_space(*sizes)
    for space in (again, other):
        assert not any(part.any() for part in space.parts)
        assert all(part.ctypes.data % 64 == 0 for part in space.parts[:2])
    for size in range(40):  # those of other sizes do not pile up
        batches.return_space(batches.take_space((size,), (1,)))
    assert len(batches._FREE) <= batches._MOST_SPACES


def test_threads_train_side_by_side_as_one_after_another() -> None:
    rng = np.random.default_rng(0)
    model = Mlp(5, (7,))
    cell = rng.integers(0, 4, 4000).astype(np.int32)
    rows = ClientRows(rng.normal(size=20_000).astype(np.float32), cell, np.array([0, 4000]))
    starts = rng.normal(size=(8, 1, 1, model.num_parameters)).astype(np.float32)

    def train(start: np.ndarray) -> bytes:
        losses, batches = Losses(np.ones((1, 1, 4), np.float32)), Batches(np.uint64(1), 1)
        return model.train(start, rows, np.array([0]), losses, Training(1, 1, 3), batches).tobytes()

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(train, starts))
    assert together == [train(start) for start in starts]
