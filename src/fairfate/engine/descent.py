"""A step of training at the server, on its own rows."""

from __future__ import annotations

import numpy as np

from fairfate.engine.local import check_terms, part
from fairfate.models.model import Batches, Losses, Model
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.training import Training
from fairfate.options import MOST_BATCH
from fairfate.strategies import Loss, Vector


def descend(model: Model, rows: PackedRows, params: Vector, loss: Loss) -> Vector:
    """What one step of training on all rows as one batch, as a client would take it, adds to a model.

    The learning rate is 1: with plain SGD, it is the gradient of the loss that is taken off.
    """
    start = np.asarray(params, dtype=np.float32)
    terms = check_terms(loss(part(model.statistics(start[None], rows), 0)), rows.rows)
    weight = np.asarray(terms.weight, dtype=np.float32).reshape(1, 1, -1)
    push, target = (
        None if term is None else np.asarray(term, dtype=np.float32).reshape(1, 1, -1)
        for term in (terms.push, terms.target)
    )
    prejudice = np.array([terms.prejudice], dtype=np.float32) if terms.prejudice else None
    training = Training(1, 1, 1, min(max(int(rows.sizes.sum()), 1), MOST_BATCH), 1.0)
    trained = model.train(
        start[None, None],
        as_client(rows),
        np.array([0]),
        Losses(weight, push, prejudice, target=target),
        training,
        Batches(np.uint64(0), 0),
    )
    return np.asarray(trained[0, 0] - start)


def as_client(rows: PackedRows) -> ClientRows:
    """Rows to score on as rows to train on: those of one client."""
    count = int(rows.sizes.sum())
    inputs = len(rows.blocks) // max(len(rows.real), 1)
    cell = np.repeat(np.arange(rows.cells, dtype=np.int32), rows.sizes)
    return ClientRows(
        x=rows.plain(inputs).ravel(),
        cell=cell,
        offsets=np.array([0, count], dtype=np.int64),
    )
