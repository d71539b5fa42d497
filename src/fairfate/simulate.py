"""The only loop over rounds: clients train, the server aggregates, models are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairfate.engine import mlp
from fairfate.engine.training import Training
from fairfate.errors import InputError, check
from fairfate.federation import Federation
from fairfate.metrics import Counts
from fairfate.strategies import Cohort, Notes, State, Strategy
from fairfate.streams import Streams


@dataclass(frozen=True, eq=False)
class Trace:
    """What one strategy did over the rounds."""

    validation: Counts
    """(rounds, groups, 2, 2) the global model on the validation rows after each round."""
    test: Counts
    """The same on the test rows."""
    notes: list[Notes]
    params: NDArray[np.float32]
    """The final global model."""


def simulate(
    federation: Federation,
    strategies: Sequence[Strategy],
    training: Training,
    streams: Streams,
    on_round: Callable[[], None] = lambda: None,
) -> list[Trace]:
    """Run several strategies side by side on the same split, clients and batches.

    Parameters
    ----------
    federation : the data of this seed
    strategies : what to compare; each starts from the same initial model
    training : rounds, cohort size and the clients' SGD
    streams : the random numbers of this seed
    on_round : called after every round

    Returns
    -------
    One trace for each strategy, the same whatever the others are.
    """
    check(
        training.per_round <= federation.clients,
        f"per-round must be <= the {federation.clients} clients",
        training.per_round,
    )
    hidden, inputs, key = training.hidden, federation.inputs, streams.batch_key
    start = mlp.initial(streams.weights(mlp.num_parameters(inputs, hidden)), inputs, hidden)
    states = [strategy.init(start.copy()) for strategy in strategies]
    models = np.stack([start] * len(strategies))
    counts = federation.validation.score(models, hidden)
    history: list[tuple[Counts, Counts, list[Notes]]] = []
    for t, sampled in enumerate(
        streams.cohorts(training.rounds, federation.clients, training.per_round), start=1
    ):
        clients = sampled[federation.sizes[sampled] > 0]
        notes = [Notes()] * len(strategies)
        if len(clients):  # a client without rows sends nothing; without any reply the model stays
            weights = _loss_weights(strategies, federation.client_cells[clients])
            trained = federation.train(models, clients, weights, training, key, t)
            _check_finite(trained, t, training)
            deltas = trained - models[:, None]
            scored = _score_clients(federation, strategies, trained, hidden)
            for s, strategy in enumerate(strategies):
                cohort = Cohort(t, deltas[s], federation.sizes[clients], scored[s], counts[s])
                states[s] = strategy.aggregate(states[s], cohort)
            models = _models(states, start, t, training)
            counts = federation.validation.score(models, hidden)
            notes = [state.notes for state in states]
        history.append((counts, federation.test.score(models, hidden), notes))
        on_round()
    return [
        Trace(
            validation=np.stack([validation[s] for validation, _, _ in history]),
            test=np.stack([test[s] for _, test, _ in history]),
            notes=[notes[s] for _, _, notes in history],
            params=models[s],
        )
        for s in range(len(strategies))
    ]


def _models(
    states: Sequence[State], start: NDArray[np.float32], t: int, training: Training
) -> NDArray[np.float32]:
    """The strategies' models for the next round, checked."""
    for state in states:
        if np.shape(state.params) != start.shape:
            raise InputError(
                f"a strategy must keep the model's shape {start.shape}, got {np.shape(state.params)}"
            )
    models = np.stack([np.asarray(state.params, dtype=np.float32) for state in states])
    _check_finite(models, t, training)
    return models


def _check_finite(models: NDArray[np.float32], t: int, training: Training) -> None:
    if not np.isfinite(models).all():
        raise InputError(
            f"models must stay finite, got NaN or infinity in round {t} (learning-rate"
            f" {training.learning_rate:g}; if that is not too large, a strategy is at fault)"
        )


def _score_clients(
    federation: Federation, strategies: Sequence[Strategy], trained: NDArray[np.float32], hidden: int
) -> list[Counts]:
    """For each strategy, its clients' models on the validation rows; nothing where it does not look."""
    wanted = [s for s, strategy in enumerate(strategies) if strategy.scores_clients]
    flat = trained[wanted].reshape(-1, trained.shape[-1])
    counts = federation.validation.score(flat, hidden)
    scored = [counts[:0]] * len(strategies)
    for s, mine in zip(wanted, counts.reshape(len(wanted), trained.shape[1], *counts.shape[1:]), strict=True):
        scored[s] = mine
    return scored


def _loss_weights(strategies: Sequence[Strategy], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """(strategies, clients, cells) the weights that each strategy wants in the clients' losses."""
    weights = np.ones((len(strategies), len(rows), rows[0].size), dtype=np.float32)
    for s, strategy in enumerate(strategies):
        if strategy.loss_weights is not None:
            weights[s] = strategy.loss_weights(rows).reshape(len(rows), -1)
    return weights
