"""Small inputs that many tests share, built by functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.engine.loop import Round, run_rounds
from fairfate.engine.record import ClientRound
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulate import simulate
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Cohort, Need, Setup, Spec, Statistics, Strategy, parse_spec

OWN = ["--target", "hired", "--favourable", "yes", "--sensitive", "sex"]
"""What must be said of `people`."""
ROWS = np.array([[30, 10], [40, 20]])
"""By (group, label)."""


def people(rows: int = 120) -> pd.DataFrame:
    """Rows as users have them."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 70, rows).astype(float),
            "income": rng.normal(30, 8, rows).round(2),
            "school": rng.choice(["north", "south", "west"], rows),
            "sex": rng.choice(["male", "female"], rows),
            "site": rng.choice(["A", "B", "C"], rows),
            "hired": rng.choice(["yes", "no"], rows),
        }
    )


@dataclass(frozen=True)
class FixedSetup(Setup):
    """A run whose fairness is a given function, whatever the metric."""

    function: Callable[..., Any] | None = None

    def fairness(self, metric: str) -> Any:
        return self.function or super().fairness(metric)

    def objective(self, metric: str, min_mcc: float) -> Any:
        return self.function or super().objective(metric, min_mcc)


def rule(spec: Spec, fairness: Callable[..., Any] | None = None, **setup: Any) -> Strategy:
    """The strategy itself, where a function of counts may stand for fairness."""
    given = {"num_rounds": 10, "learning_rate": 0.1, **setup}
    return spec.build(FixedSetup(**given, function=fairness))


def report(rows: object, loss: object = 0.0, probability: object = 0.0, wrong: object = 0) -> Statistics:
    """One client's rows by (group, label), how many of them are wrong, sums of losses and of P(1)."""
    rows = np.asarray(rows)
    wrong = np.broadcast_to(wrong, rows.shape)
    counts = np.stack([rows - wrong, wrong], axis=-1)
    counts[:, 1] = counts[:, 1, ::-1]
    sums = (np.broadcast_to(np.asarray(values, float), rows.shape)[None] for values in (probability, loss))
    return Statistics(counts[None], *sums)


def seen(counts: np.ndarray) -> Statistics:
    """Clients' counts, with a loss of 0.7 and a P(1) of 0.5 in each row."""
    return Statistics(counts, counts.sum(axis=-1) * 0.5, counts.sum(axis=-1) * 0.7)


def cohort(local: Statistics | None = None, n: tuple[int, ...] = (1,), **more: object) -> Cohort:
    """Each client moves a parameter of its own by one."""
    clients = len(n) if local is None else len(local.counts)
    given = {
        "round": 1,
        "deltas": np.eye(clients),
        "num_examples": np.array(n) if local is None else local.counts.sum(axis=(1, 2, 3)),
        "client_counts": np.zeros((0, 2, 2, 2), np.int64),
        "server_counts": np.ones((2, 2, 2), np.int64),
        "clients": tuple("ABCDEF"[:clients]),
    }
    measured = {
        Need.REPORTS: local,
        Need.DESCENT: more.pop("descend", None),
        Need.TRIALS: more.pop("score", None),
    }
    given["measured"] = {need: value for need, value in measured.items() if value is not None}
    return Cohort(**{**given, **more})


def after(strategy: Strategy, *locals_: Statistics) -> Any:
    """The state after some rounds of one client's reports."""
    state = strategy.init(np.zeros(1))
    for t, local in enumerate(locals_, start=1):
        state = strategy.aggregate(state, cohort(local, round=t))
    return state


def replies(clients: int = 2, **more: Any) -> Replies:
    deltas = np.arange(3.0 * clients).reshape(clients, 3)
    counts = np.arange(8 * clients).reshape(clients, 2, 2, 2)
    given = {
        "clients": tuple("abcdef"[:clients]),
        "deltas": deltas,
        "num_examples": np.arange(1, clients + 1) * 10,
        "client_counts": counts,
    }
    return Replies(**{**given, **more})


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


def run_and_list(clients: Any, servers: list[Server], last: int, first: int = 1) -> list[Round]:
    """Every round of a run."""
    finished: list[Round] = []
    run_rounds(clients, servers, last, [finished.append], first)
    return finished
