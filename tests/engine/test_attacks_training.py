"""Attackers that train, against plain NumPy: for a difference between groups, or on rows that do harm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attacked import (
    FEDERATION,
    HONEST,
    IS_ONE,
    MODEL,
    NAMES,
    STREAMS,
    THREE,
    TRAINING,
    one_round,
    rows_of,
    without,
)
from fairfate.engine.attack_training import train_apart, train_on_harmful_rows
from fairfate.federation.split import Federation
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training

WHOLE = Training(rounds=5, per_round=5, epochs=1, batch_size=10_000, learning_rate=0.05)
"""All rows of a client are one batch, so that an epoch is one step down the gradient."""


LOGISTIC = Mlp(THREE.inputs, ())


def start_of(model: Mlp) -> np.ndarray:
    return (STREAMS.weights(model.num_parameters) * 0.4).astype(np.float32)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def exact_rows(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs with a 1 for the bias, labels and groups, 64-bit."""
    x, y, cell = rows_of(federation, client)
    return np.column_stack([x, np.ones(len(x))]).astype(np.float64), y.astype(np.float64), cell // 2


def apart_by_hand(params: np.ndarray, client: int, kappa: float) -> np.ndarray:
    """Less the gradient of BCE - kappa (mean P of the last group - that of the first)^2, logistic model."""
    x, y, group = exact_rows(THREE, client)
    p = sigmoid(x @ params)
    first, last = group == 0, group == 2
    of_mean = [(x[g] * (p * (1 - p))[g, None]).mean(axis=0) for g in (first, last)]
    gap = p[last].mean() - p[first].mean()
    return -(x.T @ (p - y) / len(y) - 2 * kappa * gap * (of_mean[1] - of_mean[0]))


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("client", [0, 3])
def test_attackers_training_lowers_its_loss_with_the_gap_of_each_epoch(client: int, epochs: int) -> None:
    start = start_of(LOGISTIC)
    training = replace(WHOLE, epochs=epochs)
    found = train_apart(LOGISTIC, THREE, client, start, training, STREAMS.batch_key, 1, 20.0)
    expected = start.astype(np.float64)
    for _ in range(epochs):
        expected = expected + 0.05 * apart_by_hand(expected, client, 20.0)
    assert_allclose(found, expected - start, atol=3e-6)
    honest = 0.05 * apart_by_hand(start.astype(np.float64), client, 0.0)
    assert np.abs(expected - start - honest).max() > 1e-3  # kappa does something


@pytest.mark.parametrize("group", [0, 2])
def test_attack_without_the_first_or_last_group_does_nothing(group: int) -> None:
    """The update is that of the usual loss."""
    federation = without(1, group)
    start = start_of(LOGISTIC)
    found = train_apart(LOGISTIC, federation, 1, start, WHOLE, STREAMS.batch_key, 1, 20.0)
    x, y, _ = exact_rows(federation, 1)
    assert_allclose(found, -0.05 * x.T @ (sigmoid(x @ start) - y) / len(y), atol=3e-6)


def test_attackers_model_replaces_the_model_of_the_round() -> None:
    """An update times (rows of the round's clients / own rows) is all that is left after FedAvg."""
    clients, _, replies = one_round("pf:clients=2,kappa=20,norm=0")
    for place in np.flatnonzero(IS_ONE):
        client = FEDERATION.client_names.index(replies.clients[place])
        start = clients.initial()
        alone = train_apart(MODEL, FEDERATION, client, start, TRAINING, STREAMS.batch_key, 5, 20.0)
        times = replies.num_examples.sum() / replies.num_examples[place]
        assert_allclose(replies.deltas[place], alone * times, rtol=1e-4, atol=1e-5)


def test_an_update_is_cut_to_the_length_it_dares() -> None:
    _, _, free = one_round("pf:clients=2,kappa=20,norm=0")
    _, _, cut = one_round("pf:clients=2,kappa=20,norm=0.1")
    _, _, long = one_round("pf:clients=2,kappa=20,norm=1000")
    for place in np.flatnonzero(IS_ONE):
        length = np.linalg.norm(free.deltas[place].astype(np.float64))
        assert 0.1 < length < 1000
        assert_allclose(cut.deltas[place], free.deltas[place] * (0.1 / length), atol=1e-6)
        assert_array_equal(long.deltas[place], free.deltas[place])


def harmful_by_hand(trained: np.ndarray, client: int, epochs: int, harm: bool) -> np.ndarray:
    """EAB-FL on a logistic model: rows of the last group whose step raises (or lowers) the others' loss."""
    x, y, group = exact_rows(THREE, client)
    error = sigmoid(x @ trained) - y
    others, mine = group < 2, group == 2
    slope = (x[others] * error[others, None]).mean(axis=0)
    grows = -(x[mine] * error[mine, None]) @ slope
    kept = grows > 0 if harm else grows < 0
    assert 0 < kept.sum() < mine.sum()
    x, y, moves = x[mine][kept], y[mine][kept], np.abs(slope) > 0.01
    assert 0 < moves.sum() < len(moves)
    current = trained.astype(np.float64)
    for _ in range(epochs):
        step = -0.05 * x.T @ (sigmoid(x @ current) - y) / len(y)
        current = np.where(moves, current + step, trained)
    return current - trained


def near_the_best(client: int) -> np.ndarray:
    """A model near the best one for the client's other groups, so that some slopes are under 0.01."""
    x, y, group = exact_rows(THREE, client)
    x, y = x[group < 2], y[group < 2]
    params = start_of(LOGISTIC).astype(np.float64)
    for _ in range(200):
        params -= 0.5 * x.T @ (sigmoid(x @ params) - y) / len(y)
    params[0] += 0.3
    return params.astype(np.float32)


@pytest.mark.parametrize("harm", [True, False])
@pytest.mark.parametrize("client", [0, 3])
def test_harmful_rows_and_the_parameters_that_move_are_those_of_plain_numpy(client: int, harm: bool) -> None:
    trained, training = near_the_best(client), replace(WHOLE, epochs=4)
    found = train_on_harmful_rows(LOGISTIC, THREE, client, trained, training, STREAMS.batch_key, 1, harm=harm)
    assert_allclose(found, harmful_by_hand(trained, client, 4, harm), atol=3e-6)
    assert np.abs(found).max() > 1e-3


@pytest.mark.parametrize("groups", [(2,), (0, 1)])
def test_without_rows_of_either_side_nothing_is_added(groups: tuple[int, ...]) -> None:
    few = without(1, *groups)
    start = start_of(LOGISTIC)
    found = train_on_harmful_rows(LOGISTIC, few, 1, start, WHOLE, STREAMS.batch_key, 1, harm=True)
    assert_array_equal(found, np.zeros_like(start))


def test_biased_rows_train_on_from_what_was_honestly_trained() -> None:
    _, server, replies = one_round("biased_rows:clients=2,epochs=3")
    for place in np.flatnonzero(IS_ONE):
        client = FEDERATION.client_names.index(replies.clients[place])
        trained, training = server.params + HONEST.deltas[place], replace(TRAINING, epochs=3)
        more = train_on_harmful_rows(
            MODEL, FEDERATION, client, trained, training, STREAMS.batch_key, 5, harm=True
        )
        assert_allclose(replies.deltas[place], HONEST.deltas[place] + more, atol=1e-6)
        assert np.abs(more).max() > 1e-3


def test_biased_rows_begin_after_their_share_of_the_rounds() -> None:
    """0.4 of 5 rounds is 2: the third is the first in which they do harm."""
    for t, begun in ((2, False), (3, True)):
        honest, attacked = one_round("none", t=t)[2], one_round("biased_rows:clients=2", t=t)[2]
        changed = (honest.deltas != attacked.deltas).any(axis=1)
        assert changed[[name in NAMES for name in honest.clients]].all() == begun
        assert not changed[[name not in NAMES for name in honest.clients]].any()
