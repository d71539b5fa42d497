"""A model of your own in plain NumPy: logistic regression, trained by FedAvg and FairFed in a federation.

python examples/numpy_model.py
"""

import numpy as np

from fairfate.data import synthetic
from fairfate.engine.simulate import simulate
from fairfate.fairness.metrics import Statistics, accuracy, eqo
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.model import batch_rows, statistics_of
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec


class Logistic:
    """``P(1) = sigmoid(w . x + b)``; the vector is w, then b."""

    def __init__(self, inputs):
        self.inputs, self.num_parameters, self.text = inputs, inputs + 1, "logistic"

    def initial(self, normals):
        return (0.01 * normals).astype(np.float32)

    def train(self, models, rows, clients, losses, training, batches):
        x, trained = rows.x.reshape(-1, self.inputs), models.copy()
        for c, client in enumerate(clients):
            for at in batch_rows(rows, int(client), training, batches):
                p = 1 / (1 + np.exp(-(x[at] @ trained[:, c, :-1].T + trained[:, c, -1])))  # (batch, models)
                slope = losses.weight[:, c][:, rows.cell[at]].T * (p - rows.y[at, None]) / len(at)
                if losses.push is not None:
                    slope += losses.push[:, c][:, rows.cell[at]].T * p * (1 - p) / len(at)
                trained[:, c, :-1] -= training.learning_rate * slope.T @ x[at]
                trained[:, c, -1] -= training.learning_rate * slope.sum(axis=0)
        return trained

    def margins(self, model, rows):
        scores = rows.plain(self.inputs) @ model[:-1] + model[-1]
        return np.split(scores, np.cumsum(rows.sizes)[:-1])

    def statistics(self, models, rows):
        each = [statistics_of(self.margins(model, rows)) for model in models]
        return Statistics(*(np.concatenate(values) for values in zip(*each, strict=True)))

    def count(self, models, rows):
        return self.statistics(models, rows).counts


if __name__ == "__main__":
    streams, specs = Streams(1), [parse_spec(text, "eqo") for text in ("fedavg+average", "fairfed")]
    federation = build(synthetic(), parse_partition("dirichlet:0.5"), 10, streams)
    for trace in simulate(federation, specs, Logistic(6), Training(rounds=30), Setup(30), streams):
        last = trace.test[-1]
        print(f"{trace.spec.label}: accuracy {accuracy(last):.2f}, equalized odds {eqo(last):.2f}")
