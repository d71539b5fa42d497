"""A federation with attackers in it, and one round of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairfate.data import synthetic
from fairfate.data.groups import Groups
from fairfate.engine.attack import Attackers, parse_attack
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulation import Simulation
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.models.mlp import Mlp
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=600, seed=2), parse_partition("dirichlet:1"), 5, STREAMS)
MODEL = Mlp(FEDERATION.inputs)
TRAINING = Training(rounds=5, per_round=5, epochs=2, batch_size=10, learning_rate=0.05)


def drawn(text: str) -> Attackers:
    attack = parse_attack(text)
    assert attack is not None
    return Attackers.draw(attack, FEDERATION, MODEL, STREAMS)


def one_round(text: str, strategy: str = "fair_fate", t: int = 5) -> tuple[Simulation, Server, Replies]:
    clients = Simulation(FEDERATION, MODEL, TRAINING, STREAMS, parse_attack(text))
    setup = Setup(5, learning_rate=0.05)
    server = Server.start(parse_spec(strategy, "eqo").build(setup), clients.initial())
    server.counts = clients.validate(server.params[None])[0]
    return clients, server, clients.train(t, [server])[0]


CLIENTS, _, HONEST = one_round("none")
NAMES = drawn("scale:clients=2").names
IS_ONE = np.array([name in NAMES for name in HONEST.clients])


def rows_of(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = slice(federation.rows.offsets[client], federation.rows.offsets[client + 1])
    x = federation.rows.x.reshape(len(federation.rows.y), -1)
    return x[rows], federation.rows.y[rows], federation.rows.cell[rows]


def three_groups() -> Federation:
    """The middle group is neither the first nor the last, and has rows of its own."""
    table = synthetic(rows=600, seed=2)
    group = np.where(np.arange(600) % 4 == 0, 2, table.group).astype(np.int16)
    three = replace(table, group=group, grouping=Groups.single("g", ("a", "b", "c")))
    return build(three, parse_partition("dirichlet:1"), 5, STREAMS)


THREE = three_groups()


def without(client: int, *groups: int) -> Federation:
    """The federation in which a client has no rows of some groups."""
    rows = THREE.rows
    gone = np.isin(rows.cell // 2, groups)
    gone[: rows.offsets[client]] = gone[rows.offsets[client + 1] :] = False
    offsets = np.array([(~gone[:end]).sum() for end in rows.offsets])
    x = rows.x.reshape(len(rows), -1)[~gone]
    cells = THREE.client_cells.copy()
    cells[client, groups] = 0
    fewer = ClientRows(x.ravel(), rows.cell[~gone], offsets)
    return replace(THREE, rows=fewer, client_cells=cells)
