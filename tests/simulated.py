"""Strategies on a federation, by their texts, with what they did as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairfate.data.groups import Groups
from fairfate.engine.record import ClientRound
from fairfate.engine.simulate import simulate
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec


class Simulated(NamedTuple):
    validation: np.ndarray
    test: np.ndarray
    notes: list[dict[str, Any]]
    params: np.ndarray
    clients: list[ClientRound]
    thresholds: np.ndarray | None


def simulated(
    federation: Federation,
    texts: Sequence[str],
    training: Training,
    streams: Streams,
    hidden: tuple[int, ...] = (10,),
) -> list[Simulated]:
    """One result for each text."""
    groups = Groups.single("group", tuple(map(str, range(federation.groups))))
    setup = Setup(training.rounds, streams.published, groups, training.learning_rate)
    specs = [parse_spec(text, "eqo") for text in texts]
    model = Mlp(federation.inputs, hidden)
    traces = simulate(federation, specs, model, training, setup, streams, record_clients=True)
    return [
        Simulated(
            np.stack(trace.validation),
            np.stack(trace.test),
            [dict(note) for note in trace.notes],
            trace.params,
            trace.clients,
            trace.thresholds,
        )
        for trace in traces
    ]


def fair_clients(note: dict[str, Any]) -> float:
    """How many clients counted as fair in a round."""
    return float(np.sum(note["fair"])) if "fair" in note else np.nan
