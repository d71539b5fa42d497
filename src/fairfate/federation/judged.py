"""The validation rows that clients' models are scored on: all of them or, for very many clients, a sample.

Every client's model is scored in every round, so that with thousands of clients and hundreds of thousands of
rows scoring would take a hundred times as long as training. The server's model, which is what users read of,
is always measured on all rows.
"""

from __future__ import annotations

from fairfate.federation.streams import Streams
from fairfate.models.rows import PackedRows

MOST_SCORES = 15_000_000
"""Rows times clients of a round."""
LEAST_ROWS = 5_000


def sample_size(rows: int, clients: int) -> int | None:
    """How many of the rows so many clients' models are scored on; None for all.

    >>> sample_size(200_000, 50), sample_size(200_000, 100), sample_size(200_000, 10_000)
    (None, 150000, 5000)
    """
    number = max(LEAST_ROWS, MOST_SCORES // max(clients, 1))
    return None if number >= rows else number


def judged_rows(rows: PackedRows, clients: int, streams: Streams) -> PackedRows:
    """The rows themselves, or a sample with its share of every group and label; the same in every round."""
    number = sample_size(len(rows), clients)
    return rows if number is None else rows.only(streams.sample(rows.sizes, number))


def said(rows: int, clients: int) -> str | None:
    """What users are told of a sample."""
    number = sample_size(rows, clients)
    if number is None:
        return None
    return (
        f"the models of the {clients:,} clients of a round are scored on a sample of about {number:,} of the"
        f" {rows:,} validation rows; the server's model is measured on all"
    )
