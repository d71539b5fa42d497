"""The same rounds by Flower's own strategies, which this project did not write."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedYogi, QFedAvg

from fairfate.strategies import Cohort, Need, Setup, Statistics, parse_spec
from federation_in_process import LocalGrid

CLIENTS, PARAMETERS, ROUNDS, RATE = 4, 6, 5, 0.05
OTHER = {"eta": 0.3, "beta_1": 0.5, "beta_2": 0.8, "tau": 0.1}
OTHER_TEXT = "rate=0.3,beta1=0.5,beta2=0.8,tau=0.1"


class Rounds:
    """What each client's update, rows and loss are in each round; clients that reply with them."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.deltas = rng.normal(size=(ROUNDS, CLIENTS, PARAMETERS))
        self.rows, self.loss = rng.integers(1, 90, (ROUNDS, CLIENTS)), rng.random((ROUNDS, CLIENTS))
        self.start = rng.normal(size=PARAMETERS)
        app = ClientApp()
        app.train()(self.reply)
        self.grid = LocalGrid(app, {number + 1: {"number": number} for number in range(CLIENTS)})

    def reply(self, message: Message, context: Context) -> Message:
        index = int(message.content["config"]["server-round"]) - 1, int(context.node_config["number"])
        trained = message.content["arrays"]["w"].numpy() + self.deltas[index]
        about = MetricRecord({"num-examples": int(self.rows[index]), "train_loss": float(self.loss[index])})
        sent = RecordDict({"arrays": ArrayRecord({"w": Array(trained)}), "metrics": about})
        return Message(sent, reply_to=message)

    def cohort(self, t: int) -> Cohort:
        counts, sums = np.zeros((CLIENTS, 2, 2, 2), np.int64), np.zeros((CLIENTS, 2, 2))
        counts[:, 0, 1, 1] = self.rows[t - 1]
        sums[:, 0, 1] = self.loss[t - 1] * self.rows[t - 1]
        return Cohort(
            round=t,
            deltas=self.deltas[t - 1],
            num_examples=self.rows[t - 1],
            client_counts=np.zeros((0, 2, 2, 2), np.int64),
            server_counts=np.zeros((2, 2, 2), np.int64),
            clients=tuple(map(str, range(CLIENTS))),
            measured={Need.REPORTS: Statistics(counts, sums, sums)},
        )


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("fedadam:correction=flower", FedAdam()),
        (f"fedadam:correction=flower,{OTHER_TEXT}", FedAdam(**OTHER)),
        ("fedyogi", FedYogi()),
        (f"fedyogi:{OTHER_TEXT}", FedYogi(**OTHER)),
        ("qffl", QFedAvg(client_learning_rate=RATE)),
        ("qffl:q=3", QFedAvg(client_learning_rate=RATE, q=3.0)),
        ("qffl:q=0", QFedAvg(client_learning_rate=RATE, q=0.0)),
    ],
)
def test_rounds_are_those_of_flowers_own_strategy(text: str, theirs: FedAdam | FedYogi | QFedAvg) -> None:
    ours, rounds = parse_spec(text, "eqo").build(Setup(ROUNDS, learning_rate=RATE)), Rounds()
    state, arrays = ours.init(rounds.start), ArrayRecord({"w": Array(rounds.start)})
    for t in range(1, ROUNDS + 1):
        asked = theirs.configure_train(t, arrays, ConfigRecord(), rounds.grid)
        result, _ = theirs.aggregate_train(t, rounds.grid.send_and_receive(asked))
        assert result is not None
        arrays = result
        state = ours.aggregate(state, rounds.cohort(t))
        np.testing.assert_allclose(state.params, arrays["w"].numpy(), rtol=1e-9, atol=1e-12)
