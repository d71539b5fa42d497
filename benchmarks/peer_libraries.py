"""The job of benchmarks/peers.py in other libraries of federated learning: Flower, fluke, declearn.

All clients live in one process, and none of them evaluates. Who is asked in a round is told to the library,
so that everybody trains the same clients. Flower's messages are handed over as objects, not packed or sent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from peer_loops import BATCH, CLIENTS, EPOCHS, PER_ROUND, RATE, Clock, Done, Job, torch_network, torch_params


def flower(job: Job, clock: Clock) -> Done:
    """Flower's FedAvg; clients train by the loop in NumPy."""
    import engine

    return _flower(job, clock, engine.numpy_client)


def flower_idle(job: Job, clock: Clock) -> Done:
    """The same with clients that return what they were sent: what Flower costs by itself."""
    return _flower(job, clock, None)


def _flower(job: Job, clock: Clock, train_client: Any) -> Done:
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from federation_in_process import LocalGrid

    logging.getLogger("flwr").setLevel(logging.ERROR)
    app, steps = ClientApp(), 0

    @app.train()
    def train(message: Message, context: Context) -> Message:
        nonlocal steps
        client, t = context.node_id - 1, int(message.content["config"]["server-round"]) - 1
        params = message.content["arrays"]["model"].numpy()
        if train_client is not None:
            order = job.order(t, client)
            params = train_client(params, *job.rows(client), order)
            steps += -(-len(order) // BATCH)
        metrics = MetricRecord({"num-examples": job.size(client), "loss": 0.0})
        arrays = ArrayRecord({"model": Array(params)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid = LocalGrid(app, {node: {} for node in range(1, CLIENTS + 1)})
    everybody = frozenset(grid.contexts)

    def after_round(number: int, arrays: ArrayRecord) -> None:
        if number < job.rounds:
            grid.offline = set(everybody - {int(client) + 1 for client in job.cohorts[number]})
        clock.tick()

    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=PER_ROUND, min_available_nodes=PER_ROUND
    )
    start = ArrayRecord({"model": Array(job.start)})
    result = strategy.start(grid, start, num_rounds=job.rounds, evaluate_fn=after_round)
    return Done(result.arrays["model"].numpy(), steps)


def fluke(job: Job, clock: Clock) -> Done:
    """FedAVG of fluke."""
    import torch
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
    from fluke.server import Server
    from fluke.utils import FederationObserver
    from torch.optim.optimizer import register_optimizer_step_post_hook

    class Told(Server):
        def get_eligible_clients(self, eligible_perc: float) -> Any:
            return [self.clients[client] for client in next(cohorts)]

    class Algorithm(FedAVG):
        def get_server_class(self) -> Any:
            return Told

    class Ticks(FederationObserver):
        def end_round(self, round: int) -> None:  # noqa: A002
            clock.tick()

    def loader(client: int) -> Any:
        x, y = (torch.from_numpy(value.copy()) for value in job.rows(client))
        shape = {"num_labels": 2, "batch_size": BATCH, "shuffle": True, "skip_singleton": False}
        return FastDataLoader(x, y[:, None], **shape)

    cohorts, steps = iter(job.cohorts), 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    FlukeENV().set_seed(1)
    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    data = DummyDataContainer([loader(k) for k in range(CLIENTS)], [None] * CLIENTS, None, num_classes=2)
    client = {
        "batch_size": BATCH,
        "local_epochs": EPOCHS,
        "loss": "BCEWithLogitsLoss",
        "optimizer": {"name": "SGD", "lr": RATE},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
    }
    settings = DDict(client=client, server={"weighted": True}, model=torch_network(job.start))
    algorithm = Algorithm(CLIENTS, DataSplitter(data), settings)
    algorithm.set_callbacks([Ticks()])
    counter = register_optimizer_step_post_hook(count)
    clock.tick()
    algorithm.run(job.rounds, PER_ROUND / CLIENTS, finalize=False)
    counter.remove()
    return Done(torch_params(algorithm.server.model), steps)


def declearn(job: Job, clock: Clock) -> Done:
    """Federated averaging of declearn, over WebSockets that stay on this machine."""
    return asyncio.run(_declearn(job, clock, fair=False))


def declearn_fairfed(job: Job, clock: Clock) -> Done:
    """FairFed of declearn: it also asks all clients for their fairness in every round."""
    return asyncio.run(_declearn(job, clock, fair=True))


async def _declearn(job: Job, clock: Clock, fair: bool) -> Done:
    import torch
    from declearn.communication.websockets import WebsocketsClient, WebsocketsServer
    from declearn.fairness.core import FairnessInMemoryDataset
    from declearn.main import FederatedClient
    from declearn.main.config import FLOptimConfig, FLRunConfig
    from declearn.model.torch import TorchModel

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # on pickle and on connections without encryption
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    flat = torch.nn.Sequential(*torch_network(job.start), torch.nn.Flatten(0))
    fairfed = {"algorithm": "fairfed", "f_type": "equality_of_opportunity"}
    optim = FLOptimConfig.from_params(
        aggregator="averaging", client_opt=RATE, server_opt=1.0, fairness=fairfed if fair else None
    )
    sampler = declearn_sampler(job)
    server = declearn_server(clock)(
        TorchModel(flat, torch.nn.BCEWithLogitsLoss()),
        WebsocketsServer(host="localhost", port=port, heartbeat=0.05),
        optim,
        client_sampler=sampler,
    )
    clients = []
    for number in range(CLIENTS):
        x, y = job.rows(number)
        group = job.group[job.offsets[number] : job.offsets[number + 1], None]
        rows = FairnessInMemoryDataset(x, target=y, s_attr=group, seed=number)
        network = WebsocketsClient(f"ws://localhost:{port}", name=str(number))
        clients.append(FederatedClient(network, rows, verbose=False))
    config = FLRunConfig.from_params(
        rounds=job.rounds,
        register=CLIENTS,
        training={"batch_size": BATCH, "n_epoch": EPOCHS, "shuffle": True, "drop_remainder": False},
        fairness={"batch_size": 10_000, "thresh": 0.0},
    )
    await asyncio.gather(server.async_run(config), *(client.async_run() for client in clients))
    weights = server.model.get_weights().coefs
    return Done(np.concatenate([np.asarray(value).T.ravel() for value in weights.values()]), sampler.steps)


def declearn_sampler(job: Job) -> Any:
    """One that names the clients of our cohorts, and adds up the steps that clients report."""
    from declearn.client_sampler import ClientSampler

    class Told(ClientSampler, register=False):
        strategy = "told"
        secagg_compatible = False

        def __init__(self) -> None:
            super().__init__()
            self.cohorts, self.steps = iter(job.cohorts), 0

        def sample(self, eligible_clients: set[str]) -> set[str]:
            return {str(client) for client in next(self.cohorts)}

        def update(self, client_to_reply: Any, global_model: Any) -> None:
            self.steps += sum(reply.n_steps for reply in client_to_reply.values())

    return Told()


def declearn_server(clock: Clock) -> Any:
    """A server that looks at the clock instead of asking for evaluations."""
    from declearn.main import FederatedServer

    class Timed(FederatedServer):
        async def initialization(self, config: Any) -> None:
            await super().initialization(config)
            clock.tick()

        async def evaluation_round(self, *args: Any, **options: Any) -> None:
            clock.tick()

    return Timed
