"""A Flower grid inside the test's own process: real ServerApp and ClientApp code, no network.

The only place in the tests that touches Flower's internals.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from fairfate.engine.record import DROPPED, FAIR, USED, ClientRound
from fairfate.flower import FlowerStrategy, messages
from fairfate.flower.aliases import group_options
from fairfate.strategies import StrategyLike

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class Clock:
    """Nodes in this process answer at once or never: whoever waits for them has waited long enough."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now = math.nextafter(self.now + 1e6, math.inf)


messages.time = Clock()  # type: ignore[assignment]

Tamper = Callable[[Message, Message], "Message | None"]
"""A question and its honest reply to what really arrives; None for no reply at all."""


def flower_strategy(strategy: StrategyLike, **options: Any) -> FlowerStrategy:
    """A strategy with keywords one by one, as those by name take them."""
    return FlowerStrategy(strategy, **group_options(options))


def clients_of(strategy: FlowerStrategy, t: int, *outcomes: str) -> list[ClientRound]:
    """The clients of a round, of which one of these outcomes became; without any, all."""
    return [c for c in strategy.trace.clients if c.round == t and c.outcome in (outcomes or (c.outcome,))]


def count_replies(strategy: FlowerStrategy) -> list[int]:
    """How many replies counted in each round."""
    return [len(clients_of(strategy, t, USED, FAIR)) for t in range(1, len(strategy.asked) + 1)]


def dropped(strategy: FlowerStrategy, t: int = 1) -> list[ClientRound]:
    """Who was asked in vain in a round."""
    return clients_of(strategy, t, DROPPED)


class Killed(BaseException):
    """The server's process is gone."""


class Log(logging.Handler):
    """What the server and what the sites write into Flower's log; each would see its own only."""

    def __init__(self) -> None:
        super().__init__()
        self.server: list[str] = []
        self.sites: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        (self.sites if LocalGrid.at_a_site else self.server).append(record.getMessage())


class LocalGrid(Grid):
    """Nodes that answer at once, in a random order, each through a ClientApp."""

    at_a_site = False

    def __init__(
        self,
        app: ClientApp,
        nodes: Mapping[int, Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.app = app
        self.contexts = {
            node: Context(1, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in nodes.items()
        }
        self.offline: set[int] = set()
        self.tamper: dict[int, Tamper] = {}
        self.sent: list[Message] = []
        self._replies: dict[str, Message] = {}
        self._order = random.Random(5)

    def set_run(self, run: Run) -> None:
        raise AssertionError("not used")

    @property
    def run(self) -> Run:
        raise AssertionError("not used")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower")

    def get_node_ids(self) -> Iterable[int]:
        nodes = [node for node in self.contexts if node not in self.offline]
        self._order.shuffle(nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        identity = str(uuid4())
        message.metadata.__dict__["_message_id"] = identity
        self.sent.append(message)
        node = message.metadata.dst_node_id
        LocalGrid.at_a_site = True
        try:
            reply: Message | None = self.app(message, self.contexts[node])
        except Exception as error:
            reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        finally:
            LocalGrid.at_a_site = False
        if node in self.tamper and reply is not None:
            reply = self.tamper[node](message, reply)
        if reply is not None and node not in self.offline:
            self._replies[identity] = reply
        return identity

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies.pop(identity) for identity in message_ids if identity in self._replies]
        self._order.shuffle(found)
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(list(self.push_messages(messages)))


InMemoryGrid.register(LocalGrid)  # as in a simulation, the nodes are in this process
