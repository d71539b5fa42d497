"""What a strategy has clients release under differential privacy, and how far one row can move it."""

from __future__ import annotations

import math
from typing import NamedTuple

from fairfate.errors import InputError
from fairfate.privacy.budget import Budget
from fairfate.strategies import COMMON, THRESHOLDS, TILT, Need, Setup, Spec, Strategy
from fairfate.strategies.strategy import broadcast_weights

UPDATE, COUNTS, SUMS, HISTOGRAM = "update", "counts", "sums", "histogram"
"""The kinds of releases: a model; rows by group and label; 8 sums for each group; rows by score."""


class Releases(NamedTuple):
    """What a strategy's clients release, beside an update in each round."""

    once: tuple[str, ...] = ()
    each_round: tuple[str, ...] = ()

    def times(self, participations: int) -> int:
        """How many there are in so many rounds."""
        return len(self.once) + participations * len(self.each_round)


def releases_of(spec: Spec, setup: Setup) -> Releases:
    """What clients release; InputError for a strategy whose releases have no guarantee."""
    strategy = spec.build(setup)
    reason = _reason_against(spec, strategy)
    if reason:
        raise InputError(f"strategy must be one with a guarantee under privacy, got {spec.label}: {reason}")
    by_group = spec.step(THRESHOLDS)
    once = [COUNTS] if reads_rows(strategy) else []
    if spec.step(COMMON) is not None or (by_group is not None and by_group["from"] == "clients"):
        once.append(HISTOGRAM)
    return Releases(tuple(once), (SUMS,) if Need.REPORTS in strategy.needs else ())


def reads_rows(strategy: Strategy) -> bool:
    """Whether its clients or its server use numbers of a client's rows by group and label."""
    if strategy.needs & {Need.ROWS, Need.ALL_ROWS}:
        return True
    return strategy.local_loss not in (None, broadcast_weights) and not strategy.group_blind


def _reason_against(spec: Spec, strategy: Strategy) -> str:
    """Why a strategy has no guarantee; "" if it has one."""
    if Need.LOCAL in strategy.needs or strategy.refresh is not None:
        return "its clients look at their rows again between epochs, which no noise is defined for"
    if spec.name == "prejudice" and dict(spec.settings).get("scope", "batch") == "batch":
        return "its loss joins the rows of a batch, so that no single row's gradient can be clipped"
    if spec.step(TILT) is not None:
        return "it trains a second model, of the groups, whose updates no budget counts yet"
    return ""


def sensitivity(kind: str, budget: Budget) -> float:
    """The L2 distance by which one row can move a release other than an update.

    A row is in one count; in sums it is in a count, a probability and a loss.
    """
    return math.sqrt(2 + budget.loss**2) if kind == SUMS else 1.0
