"""FedAvg rounds in plain NumPy, 64-bit, one client after another: what the engine is checked against."""

from __future__ import annotations

import numpy as np

from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation
from fairfate.models.kernels.batches import batch_order
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training


def sgd(layers, x, y, weight, order, batch, rate):
    """The trained layers of one client."""
    w1, b1, w2, b2 = (layers[name].astype(np.float64).copy() for name in ("w1", "b1", "w2", "b2"))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        h = np.tanh(x[rows] @ w1 + b1)
        p = 1 / (1 + np.exp(-(h @ w2 + b2)))
        g = weight[rows] * (p - y[rows]) / len(rows)
        back = np.outer(g, w2) * (1 - h**2)
        w1 -= rate * x[rows].T @ back
        b1 -= rate * back.sum(axis=0)
        w2 -= rate * h.T @ g
        b2 -= rate * g.sum()
    return {"w1": w1, "b1": b1, "w2": w2, "b2": b2}


def fedavg_round(
    federation: Federation,
    model: Mlp,
    params,
    training: Training,
    streams: Streams,
    t: int,
    clients,
    weigh=None,
):
    """The mean of the clients' models after round t, weighted by rows."""
    models, sizes = [], []
    for client in clients:
        rows = federation.rows
        first, last = rows.offsets[client], rows.offsets[client + 1]
        x = rows.x.reshape(-1, federation.inputs)[first:last].astype(np.float64)
        order = np.empty((last - first) * training.epochs, dtype=np.int32)
        batch_order(streams.batch_key, t, client, last - first, training.epochs, order)
        weight = np.ones(last - first) if weigh is None else weigh(client)[rows.cell[first:last]]
        trained = sgd(
            model.arrays(params),
            x,
            rows.y[first:last],
            weight,
            order,
            training.batch_size,
            training.learning_rate,
        )
        models.append(model.flat(trained))
        sizes.append(last - first)
    return np.average(models, axis=0, weights=sizes)
