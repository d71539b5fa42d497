"""Early stopping: the model with the lowest validation loss is released, and training ends after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fairfate import Config, run
from fairfate.data import synthetic
from fairfate.engine.recorder import BEST_ROUND, Trace
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.errors import InputError
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=300, seed=3), parse_partition("random"), 4, STREAMS)
MODEL = Mlp(FEDERATION.inputs)
NOISY = Training(rounds=12, per_round=2, epochs=8, learning_rate=1.0)
"""Whose validation loss goes up and down."""
TEXTS = [
    "fedavg",
    "fair_fate",
    "fedavg+average:share=0.8",
    "fedavg+thresholds:metric=sp",
    "fedmom",
    "fedprox",
]


def traced(texts: list[str], training: Training, **options: Any) -> list[Trace]:
    specs = [parse_spec(text, "eqo") for text in texts]
    return simulate(FEDERATION, specs, MODEL, training, Setup(training.rounds), STREAMS, **options)


def stopping(patience: int) -> Training:
    return replace(NOISY, early_stopping=patience)


def loss_of(params: np.ndarray) -> float:
    return float(MODEL.statistics(params[None], FEDERATION.validation).loss.sum())


def models_by_round() -> list[np.ndarray]:
    return [traced(["fedavg"], replace(NOISY, rounds=t))[0].params for t in range(1, NOISY.rounds + 1)]


@pytest.mark.parametrize("patience", [1, 2, 12])
def test_model_of_the_best_round_is_released(patience: int) -> None:
    models, best, last = models_by_round(), 0, 0
    losses = [loss_of(params) for params in models]
    for t, loss in enumerate(losses):
        if t - 1 - best >= patience:
            break
        best, last = (t if loss < losses[best] else best), t
    (trace,) = traced(["fedavg"], stopping(patience))
    assert_array_equal(trace.params, models[best])
    assert trace.notes[-1][BEST_ROUND] == best + 1
    assert best < last
    clients = Simulation(FEDERATION, MODEL, NOISY, STREAMS)
    assert_array_equal(trace.test[-1], clients.test(trace.params[None])[0])
    assert_array_equal(trace.validation[-1], clients.validate(trace.params[None])[0])


def test_training_ends_and_every_round_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, train, rounds = [], Simulation.train, []

    def noting(clients: Simulation, t: int, servers: Any) -> Any:
        trained.append(len(servers))
        return train(clients, t, servers)

    monkeypatch.setattr(Simulation, "train", noting)
    traces = traced(TEXTS, stopping(1), on_round=lambda: rounds.append(1), record_clients=True)
    assert len(trained) < NOISY.rounds
    assert trained[-1] < trained[0]
    assert len(rounds) == NOISY.rounds
    for trace in traces:
        if trace.thresholds is None:
            assert trace.rounds == [*range(1, NOISY.rounds + 1)]
            assert len(trace.test) == len(trace.validation) == len(trace.notes) == NOISY.rounds
            assert_array_equal(trace.test[-1], trace.test[-2])
        else:
            assert trace.rounds == [NOISY.rounds]
            assert len(trace.notes) == 1
        assert max(client.round for client in trace.clients) < NOISY.rounds


@pytest.mark.parametrize("patience", [1, 3])
def test_strategy_stops_at_the_same_round_whatever_the_others_do(patience: int) -> None:
    together = traced(TEXTS, stopping(patience), record_clients=True)
    for trace, text in zip(together, TEXTS, strict=True):
        (alone,) = traced([text], stopping(patience), record_clients=True)
        assert_array_equal(trace.params, alone.params, text)
        assert_array_equal(np.array(trace.test), np.array(alone.test), text)
        assert [client[:2] for client in trace.clients] == [client[:2] for client in alone.clients]


def test_without_it_every_model_is_trained_to_the_end() -> None:
    (trace,) = traced(["fedavg"], NOISY)
    assert_array_equal(trace.params, models_by_round()[-1])
    assert BEST_ROUND not in trace.notes[-1]


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 11, 12])
@pytest.mark.parametrize("patience", [0, 2])
def test_interrupted_run_continues_with_its_best_model(tmp_path: Path, stop: int, patience: int) -> None:
    whole = traced(TEXTS, stopping(patience))
    rounds = []

    def interrupt() -> None:
        rounds.append(1)
        if len(rounds) == stop:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"checkpoint": tmp_path / "c", "seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        traced(TEXTS, stopping(patience), on_round=interrupt, **options)
    for one, other in zip(whole, traced(TEXTS, stopping(patience), **options), strict=True):
        assert_array_equal(one.params, other.params, one.spec.text)
        assert_array_equal(np.array(one.test), np.array(other.test), one.spec.text)
        assert one.rounds == other.rounds
        assert [note.get(BEST_ROUND) for note in one.notes] == [note.get(BEST_ROUND) for note in other.notes]


def test_clients_with_the_validation_rows_send_no_loss() -> None:
    with pytest.raises(InputError, match="early-stopping must be left out with validation-from clients"):
        run(Config(rounds=2), validation_from="clients", early_stopping=1)


def test_patience_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="early-stopping must be >= 0"):
        run(Config(rounds=2), early_stopping=-1)
