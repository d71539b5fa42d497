"""The job of benchmarks/peers.py, and plain loops that do it: fairfate, NumPy, PyTorch, JAX.

Only `make_job` and the loops of fairfate and NumPy need fairfate; the others need NumPy and their library.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

INPUTS, CLIENTS, PER_ROUND, HIDDEN, BATCH, EPOCHS, RATE = 14, 15, 5, 10, 10, 10, 0.01
SHAPE = ("INPUTS", "CLIENTS", "PER_ROUND", "HIDDEN", "BATCH", "EPOCHS", "RATE")
STACKED = 16


@dataclass(frozen=True, eq=False)
class Job:
    """What everybody trains on: rows of all clients, who is asked, and in which order rows are visited."""

    x: Any
    y: Any
    group: Any
    offsets: Any
    """(clients + 1,) where each client's rows begin."""
    cohorts: Any
    """(rounds, per round) clients of each round; the first round warms up."""
    orders: Any
    """Rows in visiting order, ten shuffles for each client of each round, one after another."""
    start: Any
    """The initial model: w1 (inputs, units), b1, w2, b2, flat."""
    x_test: Any
    y_test: Any
    table_rows: Any
    """Rows of the whole table, from which fairfate makes the same federation."""

    @property
    def rounds(self) -> int:
        """Number of rounds, with the one that warms up."""
        return len(self.cohorts)

    def save(self, path: Path) -> None:
        """Write it for a process of another environment."""
        np.savez(path, **vars(self))

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read it."""
        with np.load(path) as file:
            return cls(**{name: file[name] for name in file.files})

    def size(self, client: int) -> int:
        """Rows of a client."""
        return int(self.offsets[client + 1] - self.offsets[client])

    def rows(self, client: int) -> tuple[Any, Any]:
        """Inputs and labels of a client."""
        rows = slice(self.offsets[client], self.offsets[client + 1])
        return self.x[rows], self.y[rows]

    def order(self, t: int, client: int) -> Any:
        """Rows of a client in the order in which it visits them in round ``t``, counted from 0."""
        sizes = EPOCHS * np.diff(self.offsets)[self.cohorts]
        index = list(self.cohorts[t]).index(client)
        first = int(sizes[:t].sum() + sizes[t, :index].sum())
        return self.orders[first : first + sizes[t, index]]

    def steps(self, epoch_by_epoch: bool) -> int:
        """Client-steps of all rounds; a short batch ends every epoch, or the last one only."""
        sizes = np.diff(self.offsets)[self.cohorts]
        each = EPOCHS * -(-sizes // BATCH) if epoch_by_epoch else -(-EPOCHS * sizes // BATCH)
        return int(each.sum())

    def mean(self, t: int, models: list[Any]) -> Any:
        """FedAvg of the models of a round."""
        weights = [self.size(client) for client in self.cohorts[t]]
        return np.average(models, axis=0, weights=weights).astype(np.float32)

    def accuracy(self, params: Any) -> float:
        """Of a model on the test rows."""
        w1, b1, w2, b2 = layers(params)
        return float(np.mean((np.tanh(self.x_test @ w1 + b1) @ w2 + b2 > 0) == self.y_test))


class Done(NamedTuple):
    """What a peer has done."""

    params: Any
    """Its model, laid out as ours."""
    steps: int
    """Client-steps of all rounds."""
    settings: int = 1
    """How many runs were made at once."""


class Clock:
    """CPU time of this process and of those it has waited for, at the start and after every round."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def tick(self) -> None:
        """Take the time."""
        children = os.times()
        self.times.append(time.process_time() + children.children_user + children.children_system)


def layers(params: Any) -> list[Any]:
    """Views of a flat model: w1, b1, w2, b2."""
    w1, b1, w2, b2 = np.split(params, np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN]))
    return [w1.reshape(INPUTS, HIDDEN), b1, w2, b2]


def federation(rows: int) -> Any:
    """Adult's shape, split and given to clients by fairfate."""
    import engine
    from fairfate.federation.partition import parse_partition
    from fairfate.federation.split import build

    return build(engine.adult_shape(rows), parse_partition("dirichlet:1"), CLIENTS, engine.STREAMS)


def make_job(rows: int, rounds: int) -> Job:
    """The clients and rows of fairfate's simulator, its batches and its initial model."""
    import engine
    from fairfate.models.kernels.batches import batch_order

    made, streams, model = federation(rows), engine.STREAMS, engine.MODEL
    cohorts, orders = streams.cohorts(rounds, CLIENTS, PER_ROUND), []
    for t, cohort in enumerate(cohorts, start=1):
        for client in cohort:
            orders.append(np.empty(EPOCHS * made.sizes[client], np.int32))
            batch_order(streams.batch_key, t, client, made.sizes[client], EPOCHS, orders[-1])
    return Job(
        x=made.rows.x.reshape(-1, INPUTS),
        y=made.rows.y,
        group=made.rows.cell >> 1,
        offsets=made.rows.offsets,
        cohorts=cohorts,
        orders=np.concatenate(orders),
        start=model.initial(streams.weights(model.num_parameters)),
        x_test=made.test.plain(INPUTS),
        y_test=np.repeat(np.arange(made.test.cells) & 1, made.test.sizes),
        table_rows=np.array(rows),
    )


def fairfate(job: Job, clock: Clock) -> Done:
    """One run of FedAvg, whose models are scored on the validation and test rows in every round."""
    return _simulate(job, clock, ["fedavg"])


def fairfate_stacked(job: Job, clock: Clock) -> Done:
    """Sixteen settings of FAIR-FATE at once, which does more in a round than FedAvg."""
    return _simulate(job, clock, [f"fair_fate:lam0={(k + 1) / 20}" for k in range(STACKED)])


def _simulate(job: Job, clock: Clock, texts: list[str]) -> Done:
    import engine
    from fairfate.engine.simulate import simulate
    from fairfate.models.training import Training
    from fairfate.strategies import Setup, parse_spec

    specs = [parse_spec(text, "eqo") for text in texts]
    training = Training(job.rounds, PER_ROUND, EPOCHS, BATCH, RATE)
    made = federation(int(job.table_rows))
    clock.tick()
    traces = simulate(made, specs, engine.MODEL, training, Setup(job.rounds), engine.STREAMS, clock.tick)
    return Done(traces[0].params, job.steps(False), len(texts))


def numpy_loop(job: Job, clock: Clock) -> Done:
    """A loop over clients and batches."""
    import engine

    params, steps = job.start, 0
    clock.tick()
    for t, cohort in enumerate(job.cohorts):
        models = []
        for client in cohort:
            order = job.order(t, client)
            models.append(engine.numpy_client(params, *job.rows(client), order))
            steps += -(-len(order) // BATCH)
        params = job.mean(t, models)
        clock.tick()
    return Done(params, steps)


def torch_network(params: Any) -> Any:
    """Our model as one of PyTorch, without the sigmoid."""
    import torch

    torch.set_num_threads(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1)
    )
    with torch.no_grad():
        for layer, value in zip(network.parameters(), layers(params), strict=True):
            layer.copy_(torch.from_numpy(np.ascontiguousarray(value.T)).reshape(layer.shape))
    return network


def torch_params(network: Any) -> Any:
    """The other way round."""
    arrays = [layer.detach().numpy() for layer in network.parameters()]
    return np.concatenate([array.T.ravel() for array in arrays])


def torch_loop(job: Job, clock: Clock) -> Done:
    """A loop over clients and batches; rows are put into their order at once."""
    import torch

    params, steps, loss = job.start, 0, torch.nn.BCEWithLogitsLoss()
    clock.tick()
    for t, cohort in enumerate(job.cohorts):
        models = []
        for client in cohort:
            x, y = (torch.from_numpy(value[job.order(t, client)]) for value in job.rows(client))
            network = torch_network(params)
            optimiser = torch.optim.SGD(network.parameters(), lr=RATE)
            for xb, yb in zip(x.split(BATCH), y[:, None].split(BATCH), strict=True):
                optimiser.zero_grad()
                loss(network(xb), yb).backward()
                optimiser.step()
                steps += 1
            models.append(torch_params(network))
        params = job.mean(t, models)
        clock.tick()
    return Done(params, steps)


def jax_loop(job: Job, clock: Clock) -> Done:
    """Clients side by side (vmap), batches in a compiled loop (scan); the first round compiles."""
    import jax
    import jax.numpy as jnp

    most = max(job.size(client) for client in range(CLIENTS))
    length = -(-EPOCHS * most // BATCH)

    def loss(model: Any, x: Any, y: Any, weight: Any) -> Any:
        w1, b1, w2, b2 = model
        logit = jnp.tanh(x @ w1 + b1) @ w2 + b2[0]
        return jnp.sum(weight * (jax.nn.softplus(logit) - y * logit)) / jnp.maximum(weight.sum(), 1)

    def client(model: Any, x: Any, y: Any, order: Any, weight: Any) -> Any:
        def step(model: Any, batch: Any) -> Any:
            rows, weight = batch
            slopes = jax.grad(loss)(model, x[rows], y[rows], weight)
            return [value - RATE * slope for value, slope in zip(model, slopes, strict=True)], None

        return jax.lax.scan(step, model, (order, weight), unroll=16)[0]  # the fastest of 1, 4, 16

    @jax.jit
    def one_round(model: Any, x: Any, y: Any, order: Any, weight: Any, sizes: Any) -> Any:
        trained = jax.vmap(client, in_axes=(None, 0, 0, 0, 0))(model, x, y, order, weight)
        return [jnp.average(value, axis=0, weights=sizes) for value in trained]

    all_x, all_y = np.zeros((CLIENTS, most, INPUTS), np.float32), np.zeros((CLIENTS, most), np.float32)
    for k in range(CLIENTS):
        all_x[k, : job.size(k)], all_y[k, : job.size(k)] = job.rows(k)
    all_x, all_y = jnp.asarray(all_x), jnp.asarray(all_y)
    model, steps = [jnp.asarray(value) for value in layers(job.start)], 0
    clock.tick()
    for t, cohort in enumerate(job.cohorts):
        order = np.zeros((PER_ROUND, length * BATCH), np.int32)
        weight = np.zeros((PER_ROUND, length * BATCH), np.float32)
        for index, k in enumerate(cohort):
            own = job.order(t, k)
            order[index, : len(own)], weight[index, : len(own)] = own, 1
        batches = order.reshape(PER_ROUND, -1, BATCH), weight.reshape(PER_ROUND, -1, BATCH)
        sizes = np.array([job.size(k) for k in cohort], np.float32)
        model = jax.block_until_ready(one_round(model, all_x[cohort], all_y[cohort], *batches, sizes))
        steps += int(batches[1].any(axis=2).sum())
        clock.tick()
    return Done(np.concatenate([np.asarray(value).ravel() for value in model]), steps)
