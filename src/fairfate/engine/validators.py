"""Clients that validate models on rows which they hold out: which models they are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.federation.seeds import Streams
from fairfate.federation.validation_source import SECURE, ValidationSource
from fairfate.strategies import weighted_mean


class Candidates(NamedTuple):
    """The models of a round, in place of its clients' own: these, or the means of buckets of them."""

    names: tuple[str, ...]
    models: NDArray[Any]
    """(candidates, parameters)"""
    num_examples: NDArray[Any]
    members: tuple[NDArray[np.int64], ...]
    """The clients behind each."""
    is_scored: bool = True
    """False where there are too few clients for two buckets: then nobody is asked."""


def candidates(
    validation_source: ValidationSource,
    streams: Streams,
    t: int,
    names: Sequence[str],
    models: NDArray[Any],
    num_examples: NDArray[Any],
) -> Candidates:
    """What the server of a round gets to see, and the validators are asked about.

    Parameters
    ----------
    validation_source : how clients validate
    streams, t : what buckets depend on
    names, models, num_examples : the clients', their models, and the rows behind each
    """
    if validation_source.mode != SECURE:
        alone = tuple(np.array([number]) for number in range(len(names)))
        return Candidates(tuple(names), models, num_examples, alone)
    members = tuple(streams.buckets(t, len(names), validation_source.bucket))
    return Candidates(
        tuple(" + ".join(names[number] for number in bucket) for bucket in members),
        np.stack([weighted_mean(models[bucket], num_examples[bucket]) for bucket in members]),
        np.array([num_examples[bucket].sum() for bucket in members]),
        members,
        is_scored=validation_source.bucket == 1 or len(members) > 1,
    )
