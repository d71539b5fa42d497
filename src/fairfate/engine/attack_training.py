"""Attackers that train: for a difference between groups (PFAttack), or on rows that do harm (EAB-FL)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairfate.engine import local
from fairfate.engine.descent import descend
from fairfate.fairness.metrics import CellRows, Statistics
from fairfate.federation.split import Federation
from fairfate.models.model import Batches, Losses, Model, Models
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.strategies import LossTerms, ModelState, Need, Strategy, Vector
from fairfate.sums import product

LEAST_SLOPE = 0.01
"""Parameters that matter less to the other groups are left as they are."""


def train_apart(
    model: Model,
    federation: Federation,
    client: int,
    start: Models,
    training: Training,
    key: np.uint64,
    t: int,
    kappa: float,
) -> Models:
    """The update of a client that minimises BCE less ``kappa`` times the squared difference of groups.

    The difference is that of the mean predictions of the last and the first group among its own rows, taken
    anew before each epoch.
    """

    def loss(broadcast: Vector | None, rows: CellRows, now: Statistics | None) -> LossTerms:
        assert now is not None
        push = np.zeros(rows.shape)
        sizes = rows.sum(axis=1)
        if sizes[0] and sizes[-1]:
            first, last = (float(now.probability[g].sum() / sizes[g]) for g in (0, -1))
            slope = 2 * kappa * (last - first) * sizes.sum()
            push[0], push[-1] = slope / sizes[0], -slope / sizes[-1]
        return LossTerms(np.ones(rows.shape), push)

    strategy = Strategy(ModelState, lambda state, cohort: state, None, loss, {Need.LOCAL}, refresh=1)
    clients = np.array([client])
    trained = local.train(
        model,
        [strategy],
        start[None],
        [None],
        federation.rows,
        clients,
        federation.client_cells[clients],
        {client: federation.local[client]},
        training,
        key,
        t,
    )
    return np.asarray(trained[0, 0] - start)


def train_on_harmful_rows(
    model: Model,
    federation: Federation,
    client: int,
    trained: Models,
    training: Training,
    key: np.uint64,
    t: int,
    *,
    harm: bool,
) -> Models:
    """What more epochs on some rows of the last group add to an honestly trained model.

    A row is kept if a step on it makes the other groups' loss larger (``harm``), or smaller: the gradients'
    dot product says so. Only parameters move whose slope of that loss is over 0.01; the others are put back
    after each epoch.
    """
    own = federation.local[client]
    others = np.repeat((np.arange(federation.groups) < federation.groups - 1)[:, None], 2, axis=1)
    total = own.rows[others].sum()
    span = slice(federation.rows.offsets[client], federation.rows.offsets[client + 1])
    cell = federation.rows.cell[span]
    privileged = cell // 2 == federation.groups - 1
    nothing = np.zeros_like(trained)
    if not total or not privileged.any():
        return nothing
    weight = np.where(others, own.rows.sum() / total, 0.0)
    slope = -descend(model, own, trained, lambda now: LossTerms(weight))
    x = federation.rows.x.reshape(len(federation.rows), -1)[span]
    candidates = ClientRows(
        x[privileged].ravel(),
        cell[privileged],
        np.arange(privileged.sum() + 1, dtype=np.int64),
    )
    steps = _steps(model, candidates, trained, federation.client_cells[client].size)
    grows = product(steps, slope.astype(np.float64))  # how the others' loss changes by a step on each row
    kept = grows > 0 if harm else grows < 0
    if not kept.any():
        return nothing
    rows = ClientRows(
        candidates.x.reshape(len(kept), -1)[kept].ravel(),
        candidates.cell[kept],
        np.array([0] * (client + 1) + [int(kept.sum())], dtype=np.int64),
    )
    moves = np.abs(slope) > LEAST_SLOPE
    current = trained
    losses = Losses(np.ones((1, 1, federation.client_cells[client].size), dtype=np.float32))
    for epoch in range(training.epochs):
        batches = Batches(key, t, epoch, 1)
        after = model.train(current[None, None], rows, np.array([client]), losses, training, batches)[0, 0]
        current = np.where(moves, after, trained)
    return np.asarray(current - trained)


def _steps(model: Model, rows: ClientRows, params: Models, cells: int) -> NDArray[np.float64]:
    """(rows, parameters) what a step of training on each row alone adds."""
    number = len(rows)
    losses = Losses(np.ones((1, number, cells), dtype=np.float32))
    alone = Training(1, 1, 1, 1, 1.0)
    start = np.repeat(params[None, None], number, axis=1)
    trained = model.train(start, rows, np.arange(number), losses, alone, Batches(np.uint64(0), 0))
    return np.asarray((trained[0] - params).astype(np.float64))
