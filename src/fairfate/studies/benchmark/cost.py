"""What a method makes clients and server send."""

from __future__ import annotations

from fairfate.fairness.thresholds import BINS
from fairfate.strategies import THRESHOLDS, Need, Setup, Spec

_FLOAT, _DOUBLE = 4, 8
_SUMS = 8
"""Numbers for each group that a client reports: of both labels, rows, rows accepted, probability, loss."""


def bytes_sent(spec: Spec, parameters: int, rounds: int, groups: int = 2) -> float:
    """Bytes that a client sends and receives in a round, counted and not measured: no headers, no encryption.

    What is sent once is spread over the rounds.
    """
    strategy = spec.build(Setup(rounds, learning_rate=0.01))
    sent = 2.0 * _FLOAT * parameters + _DOUBLE
    if strategy.broadcast is not None:
        sent += 2 * groups * _DOUBLE
    if Need.REPORTS in strategy.needs:
        sent += _SUMS * groups * _DOUBLE
    once = 2 * groups * _DOUBLE if strategy.needs & {Need.ROWS, Need.ALL_ROWS} else 0
    step = spec.step(THRESHOLDS)
    if step is not None and step["from"] == "clients":
        once += 2 * groups * BINS * _DOUBLE
    return sent + once / rounds
