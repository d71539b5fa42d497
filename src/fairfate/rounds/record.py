"""Who took part in a round, who was fair, who was dropped and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fairfate.data.groups import Groups
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import metrics_by
from fairfate.lazy import pandas as pd
from fairfate.rounds.server import Outcome, Replies

FAIR, USED, DROPPED, REFUSED = "fair", "used", "dropped", "refused"
"""What becomes of a client in a round; who is refused is not asked at all."""
OUTCOMES = (FAIR, USED, DROPPED, REFUSED)
MEASURES = ("accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo")
"""Of a client's model on the validation rows, where it was scored."""


class ClientRound(NamedTuple):
    """One client in one round."""

    round: int
    name: str
    outcome: str
    reason: str = ""
    examples: float = math.nan
    counts: Counts | None = None
    """(groups, 2, 2) its model on the validation rows, where the strategy looks at that."""
    notes: Mapping[str, float] = MappingProxyType({})
    """What the strategy noted of it."""
    node: int | None = None
    """Its number on Flower."""


def client_rounds(t: int, replies: Replies, outcome: Outcome) -> list[ClientRound]:
    """What became of each client of a round."""
    of_client = {
        name: np.asarray(values, dtype=np.float64)
        for name, values in outcome.notes.items()
        if np.shape(values) == (len(replies.clients),)
    }
    found = []
    for number, name in enumerate(replies.clients):
        notes = {key: float(values[number]) for key, values in of_client.items() if key != "fair"}
        fair = bool(of_client["fair"][number]) if "fair" in of_client else False
        became = DROPPED if outcome.problem else FAIR if fair else USED
        counts = replies.client_counts[number] if len(replies.client_counts) else None
        examples = float(replies.num_examples[number])
        found.append(ClientRound(t, name, became, outcome.problem, examples, counts, notes))
    found += [ClientRound(t, gone.client, DROPPED, gone.reason) for gone in replies.dropped]
    return found


def clients_frame(rows: Sequence[ClientRound], groups: Groups | None) -> pd.DataFrame:
    """The same as a table, one row for each client and round."""
    metrics = metrics_by(groups)
    content: list[dict[str, Any]] = []
    for row in rows:
        measured = {
            name: math.nan if row.counts is None else float(metrics[name](row.counts)) for name in MEASURES
        }
        content.append(
            {
                "round": row.round,
                "name": row.name,
                **({} if row.node is None else {"node": row.node}),
                "outcome": row.outcome,
                "reason": row.reason,
                "examples": row.examples,
                **measured,
                **{f"note_{key}": value for key, value in row.notes.items()},
            }
        )
    columns = ["round", "name", "outcome", "reason", "examples", *MEASURES]
    frame = pd.DataFrame(content)
    return frame if len(frame) else pd.DataFrame(columns=columns)
