"""Rounds made up by hand: what clients report, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairfate.engine.loop import Round, run_rounds
from fairfate.engine.server import Replies, Server
from fairfate.strategies import Cohort, Need, Setup, Spec, Statistics, Strategy


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


def report(rows: np.ndarray, loss: object = 0.0, probability: object = 0.0) -> Statistics:
    """One client's rows by (group, label), all predicted 0, with sums of losses and of P(1)."""
    rows = np.asarray(rows)
    return Statistics(
        np.stack([rows, rows * 0], axis=-1)[None],
        np.broadcast_to(np.asarray(probability, float), rows.shape)[None],
        np.broadcast_to(np.asarray(loss, float), rows.shape)[None],
    )


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


def after(strategy: Strategy, *locals_: Statistics):
    state = strategy.init(np.zeros(1))
    for local in locals_:
        state = strategy.aggregate(state, cohort(local))
    return state


ROWS = np.array([[30, 10], [40, 20]])


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


def run_and_list(clients: Any, servers: list[Server], last: int, first: int = 1) -> list[Round]:
    """Every round of a run."""
    done: list[Round] = []
    run_rounds(clients, servers, last, [done.append], first)
    return done
