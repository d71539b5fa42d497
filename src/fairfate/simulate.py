"""The only loop over rounds: clients train, the server aggregates, models are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.engine import mlp
from fairfate.engine.kernels import train_cohort
from fairfate.errors import check
from fairfate.federation import Federation
from fairfate.metrics import Counts
from fairfate.strategies import Cohort, Notes, Strategy
from fairfate.streams import Streams


@dataclass(frozen=True)
class Training:
    """How long and how clients train."""

    rounds: int = 100
    per_round: int = 3
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 0.01
    hidden: int = 10

    def __post_init__(self) -> None:
        for name in ("rounds", "per_round", "epochs", "batch_size", "hidden"):
            value = getattr(self, name)
            check(value >= 1, f"{name.replace('_', '-')} must be >= 1", value)
        rate = self.learning_rate
        check(0 < rate < float("inf"), "learning-rate must be > 0 and finite", rate)


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
    hidden, inputs = training.hidden, federation.inputs
    start = mlp.initial(streams.weights(mlp.num_parameters(inputs, hidden)), inputs, hidden)
    states = [strategy.init(start.copy()) for strategy in strategies]
    models = np.stack([start] * len(strategies))
    server_counts = federation.validation.score(models, hidden)
    cohorts = streams.cohorts(training.rounds, federation.clients, training.per_round)
    history: list[tuple[Counts, Counts, list[Notes]]] = []
    for t, sampled in enumerate(cohorts, start=1):
        clients = sampled[np.diff(federation.offsets)[sampled] > 0]
        if len(clients):  # a client without rows sends nothing; without any reply the model stays
            trained = _train(federation, strategies, models, clients, training, streams, t)
            states = _aggregate(federation, strategies, states, models, trained, clients, t, hidden, server_counts)  # fmt: skip
            models = np.stack([np.asarray(state.params, dtype=np.float32) for state in states])
            server_counts = federation.validation.score(models, hidden)
            notes = [state.notes for state in states]
        else:
            notes = [Notes()] * len(strategies)
        history.append((server_counts, federation.test.score(models, hidden), notes))
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


def _train(
    federation: Federation,
    strategies: Sequence[Strategy],
    models: NDArray[np.float32],
    clients: NDArray[np.int64],
    training: Training,
    streams: Streams,
    t: int,
) -> NDArray[np.float32]:
    """(strategies, clients, parameters) the models that the clients of a round send."""
    rows = federation.client_cells[clients]
    weights = np.ones((len(strategies), len(clients), rows[0].size), dtype=np.float32)
    for s, strategy in enumerate(strategies):
        if strategy.loss_weights is not None:
            weights[s] = strategy.loss_weights(rows).reshape(len(clients), -1)
    trained: NDArray[np.float32] = train_cohort(
        models,
        federation.x,
        federation.y,
        federation.cell,
        federation.offsets,
        clients,
        weights,
        training.epochs,
        training.batch_size,
        np.float32(training.learning_rate),
        streams.batch_key,
        t,
        training.hidden,
    )
    return trained


def _aggregate(
    federation: Federation,
    strategies: Sequence[Strategy],
    states: list[Any],
    models: NDArray[np.float32],
    trained: NDArray[np.float32],
    clients: NDArray[np.int64],
    t: int,
    hidden: int,
    server_counts: Counts,
) -> list[Any]:
    """The strategies' states after a round."""
    num_examples = np.diff(federation.offsets)[clients]
    none = np.empty((0, *server_counts.shape[1:]), dtype=np.int64)
    after = []
    for s, strategy in enumerate(strategies):
        counts = federation.validation.score(trained[s], hidden) if strategy.scores_clients else none
        cohort = Cohort(t, trained[s] - models[s], num_examples, counts, server_counts[s])
        after.append(strategy.aggregate(states[s], cohort))
    return after
