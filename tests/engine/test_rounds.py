"""The pieces of a round, each alone: losses, servers, the loop and the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from builders import replies, run_and_list
from fairfate.data import synthetic
from fairfate.data.groups import Groups
from fairfate.engine import local
from fairfate.engine.record import (
    MEASURES,
    ClientRound,
    ClientsRecord,
    CountsRecord,
    client_rounds,
    clients_frame,
)
from fairfate.engine.server import UNTRAINED, Dropped, Outcome, Replies, Server, stack
from fairfate.engine.simulation import Simulation
from fairfate.errors import InputError
from fairfate.fairness.metrics import Statistics
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import (
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Needs,
    Strategy,
)
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.strategy import plain_loss

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=300, seed=3), parse_partition("dirichlet:0.5"), 6, STREAMS)
MODEL = Mlp(FEDERATION.inputs)
TRAINING = Training(rounds=3, per_round=3, epochs=2)
ROWS = np.array([[3, 4], [5, 6]])


# -- what clients minimise ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (np.ones((2, 2)), "must give LossTerms, got ndarray"),
        (
            LossTerms(None),
            r"must give a finite weight for each of \(groups, labels\) \(2, 2\), got None",
        ),
        (LossTerms(np.ones((2, 1))), r"a finite weight .* got \[\[1\.\]"),
        (LossTerms([[1, 2], [3]]), r"a finite weight .* got \[\[1, 2\], \[3\]\]"),
        (LossTerms([["a", "b"], ["c", "d"]]), "a finite weight"),
        (LossTerms(np.array([[1, 1], [1, np.nan]])), "a finite weight"),
        (LossTerms(np.ones((2, 2)), np.full((2, 2), np.inf)), "a finite push"),
        (LossTerms(np.ones((2, 2)), target=np.zeros(2)), "a finite target for each of"),
        (LossTerms(np.ones((2, 2)), target=np.full((2, 2), 1.1)), r"a target in \[0, 1\], got \[\[1\.1"),
        (LossTerms(np.ones((2, 2)), target=np.full((2, 2), -0.1)), r"a target in \[0, 1\], got \[\[-0\.1"),
        (LossTerms(np.ones((2, 2)), prejudice=np.nan), "must give a finite prejudice, got nan"),
        (LossTerms(np.ones((2, 2)), prox=np.inf), "must give a finite prox, got inf"),
        (LossTerms(np.ones((2, 2)), prox=np.ones(2)), "must give a finite prox"),
    ],
)
def test_losses_that_make_no_sense_are_named(terms: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        local.check_terms(terms, ROWS)


def test_losses_of_lists_and_whole_numbers_are_taken() -> None:
    terms = LossTerms([[1, 2], [3, True]], None, 1, 2)
    assert local.check_terms(terms, ROWS) is terms


def test_without_a_loss_of_its_own_a_strategy_has_the_usual_one() -> None:
    assert local.local_terms(AVERAGING, None, ROWS, None).weight.tolist() == [[1, 1], [1, 1]]


def trained(strategy: Strategy, training: Training) -> np.ndarray:
    server = Server.start(strategy, Simulation(FEDERATION, MODEL, training, STREAMS).initial())
    return Simulation(FEDERATION, MODEL, training, STREAMS).train(1, [server])[0].deltas


@pytest.mark.parametrize(("refresh", "calls"), [(1, 5), (2, 3), (3, 2), (5, 1), (9, 1), (None, 1)])
def test_a_loss_is_asked_for_again_after_so_many_epochs(refresh: int | None, calls: int) -> None:
    """With batches of one row, five epochs in pieces are five epochs in one."""
    seen: list[np.ndarray] = []

    def loss(told: Any, rows: np.ndarray, now: Statistics | None) -> LossTerms:
        assert now is not None
        seen.append(now.loss.copy())
        return plain_loss(rows)

    training = replace(TRAINING, epochs=5, batch_size=1)
    watching = AVERAGING._replace(local_loss=loss, refresh=refresh, needs={Need.LOCAL})
    found = trained(watching, training)
    assert_array_equal(found, trained(AVERAGING, training))
    assert len(seen) == calls * len(found)
    assert len({of.tobytes() for of in seen}) == len(seen)  # of the model as it is by then


def test_each_client_of_each_strategy_has_its_own_loss() -> None:
    """Weights, prices, targets and distances from the model, by strategy and client; none is as without."""

    def told(told: Any, rows: np.ndarray, now: Any) -> LossTerms:
        terms = LossTerms(rows / 7.0, rows / 9.0, prejudice=0.5, prox=0.25 + float(rows[0, 0]))
        return terms._replace(target=rows / 99.0)

    strategies = [AVERAGING, AVERAGING._replace(local_loss=told), AVERAGING]
    clients, cells = np.array([0, 2]), np.array([ROWS, ROWS + 1])
    sent = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    losses = local._losses(MODEL, strategies, sent, sent, [None] * 3, clients, cells, {}, 0.0)
    assert losses.weight.shape == (3, 2, 4)
    assert (losses.weight[[0, 2]] == 1).all()
    np.testing.assert_allclose(losses.weight[1], cells.reshape(2, 4) / 7.0, rtol=1e-6)
    assert losses.push is not None
    assert (losses.push[[0, 2]] == 0).all()
    np.testing.assert_allclose(losses.push[1], cells.reshape(2, 4) / 9.0, rtol=1e-6)
    assert losses.target is not None
    assert (losses.target[[0, 2]] == [0, 1, 0, 1]).all()
    np.testing.assert_allclose(losses.target[1], cells.reshape(2, 4) / 99.0, rtol=1e-6)
    assert losses.prejudice is not None
    assert losses.prejudice.tolist() == [0, 0.5, 0]
    assert losses.prox is not None
    assert losses.prox.tolist() == [[0, 0], [3.25, 4.25], [0, 0]]
    assert losses.anchor is not None
    assert_array_equal(losses.anchor, np.repeat(sent[:, None], 2, axis=1))
    usual = local._losses(MODEL, strategies[:1], sent[:1], sent[:1], [None], clients, cells, {}, 0.0)
    assert usual[1:] == (None, None, None, None, None)


# -- the server of one strategy ----------------------------------------------------------------------------


def watching(seen: list[Cohort], needs: Needs = frozenset()) -> Strategy:
    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        seen.append(cohort)
        return ModelState(state.params + 1, {"lam": 0.5})

    return Strategy(ModelState, aggregate, needs=needs)


def test_a_strategy_sees_what_came_back() -> None:
    seen: list[Cohort] = []
    server = Server.start(watching(seen), np.zeros(3))
    server.counts = np.ones((2, 2, 2))
    statistics = Statistics(np.ones((2, 2, 2, 2)), np.ones((2, 2, 2)), np.ones((2, 2, 2)))
    given = replies(local=statistics)
    assert server.take(7, given) == Outcome({"lam": 0.5})
    (cohort,) = seen
    assert cohort.round == 7
    assert cohort.deltas is given.deltas
    assert cohort.num_examples is given.num_examples
    assert cohort.client_counts is given.client_counts
    assert cohort.server_counts is server.counts
    assert cohort.clients == ("a", "b")
    assert cohort.get(Need.REPORTS) is statistics
    for need in (Need.DESCENT, Need.TRIALS):
        with pytest.raises(InputError, match=f"must declare needs={{{need}}} to use it"):
            cohort.get(need)
    assert server.params.tolist() == [1, 1, 1]


def test_held_out_rows_of_clients_replace_the_servers() -> None:
    seen: list[Cohort] = []
    server = Server.start(watching(seen), np.zeros(3))
    server.counts, server.score, server.descend = np.ones((2, 2, 2)), len, len
    server.take(1, replies())
    server.take(2, replies(server_counts=np.zeros((2, 2, 2)), score=max))
    assert [cohort.server_counts.sum() for cohort in seen] == [8, 0]
    assert [cohort.get(Need.TRIALS) for cohort in seen] == [len, max]
    assert [cohort.get(Need.DESCENT) for cohort in seen] == [len, len]


def test_what_is_broadcast_must_be_finite() -> None:
    server = Server.start(AVERAGING._replace(broadcast=lambda state, rows: [1, np.nan]), np.zeros(3))
    with pytest.raises(InputError, match="a strategy must broadcast finite numbers, got"):
        server.broadcast(None)
    rows_of: list[Any] = []
    told = AVERAGING._replace(broadcast=lambda state, rows: rows_of.append(rows) or [1, 2])
    found = Server.start(told, np.zeros(3)).broadcast(ROWS)
    assert found is not None
    assert (found.tolist(), found.dtype) == ([1, 2], np.float64)
    assert rows_of[0] is ROWS
    assert Server.start(AVERAGING, np.zeros(3)).broadcast(ROWS) is None


def test_the_released_model_may_be_another() -> None:
    server = Server.start(AVERAGING._replace(release=lambda state: state.params + 5), np.zeros(3))
    assert server.params.tolist() == [0, 0, 0]
    assert server.released.tolist() == [5, 5, 5]
    assert Server.start(AVERAGING, np.ones(3)).released.tolist() == [1, 1, 1]


def test_a_server_has_a_model_of_its_own() -> None:
    start = np.zeros(3)
    server = Server.start(AVERAGING, start)
    start += 1
    assert server.params.tolist() == [0, 0, 0]


def test_a_server_has_no_counts_before_it_is_measured() -> None:
    counts = Server.start(AVERAGING, np.zeros(3)).counts
    assert (counts.shape, counts.dtype) == ((0, 2, 2), np.int64)


def test_a_model_with_one_number_that_is_none_is_discarded() -> None:
    broken = Strategy(ModelState, lambda state, cohort: ModelState(np.array([1.0, np.nan, 1.0])))
    server = Server.start(broken, np.zeros(3))
    for t in (1, 2):
        assert server.take(t, replies()) == Outcome({UNTRAINED: 1.0}, "the new model would not be finite")
    assert server.params.tolist() == [0, 0, 0]


def test_a_discarded_round_after_one_that_counted_does_not_make_a_model_untrained() -> None:
    server = Server.start(AVERAGING, np.zeros(3))
    nothing = replies()._replace(clients=())
    assert server.take(1, nothing) == Outcome({UNTRAINED: 1.0}, "no usable reply")
    assert not server.take(2, replies()).problem
    assert server.take(3, nothing) == Outcome({}, "no usable reply")


def test_one_of_several_needs_is_enough() -> None:
    server = Server.start(AVERAGING._replace(needs={Need.LOCAL, Need.ROWS}), np.zeros(3))
    assert server.needs(Need.LOCAL)
    assert server.needs(Need.LOCAL, Need.SCORES)
    assert not server.needs(Need.SCORES, Need.TRIALS)


def test_models_are_stacked_in_32_bits() -> None:
    found = stack([np.float64([1, 2]), np.float32([3, 4])])
    assert (found.tolist(), found.dtype) == ([[1, 2], [3, 4]], np.float32)


# -- the loop ----------------------------------------------------------------------------------------------


class Noted:
    """Clients that note what they are asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def train(self, t: int, servers: Any) -> list[Replies]:
        self.asked.append(t)
        return [replies() for _ in servers]

    def validate(self, models: np.ndarray) -> np.ndarray:
        self.asked.append(models[:, 0].tolist())
        return np.stack([np.full((2, 2, 2), model[0]) for model in models])

    def descend(self, params: Any, loss: Any) -> Any:
        raise AssertionError


def test_rounds_are_played_from_the_first_to_the_last_and_measured_after_each() -> None:
    seen: list[list[Cohort]] = [[], [], []]
    needs = (set(), {Need.DESCENT}, {Need.TRIALS})
    servers = [Server.start(watching(of, n), np.zeros(3)) for of, n in zip(seen, needs, strict=True)]
    clients = Noted()
    played = run_and_list(clients, servers, 4, first=3)
    assert clients.asked == [[0, 0, 0], 3, [1, 1, 1], 4, [2, 2, 2]]
    assert [of.number for of in played] == [3, 4]
    assert [len(of.outcomes) for of in played] == [3, 3]
    assert [cohort.round for cohort in seen[0]] == [3, 4]
    assert [int(cohort.server_counts[0, 0, 0]) for cohort in seen[0]] == [0, 1]
    assert int(servers[0].counts[0, 0, 0]) == 2
    assert [Need.DESCENT in of[0].measured for of in seen] == [False, True, False]
    assert [Need.TRIALS in of[0].measured for of in seen] == [False, False, True]
    other = Noted()
    assert len(run_and_list(other, [Server.start(AVERAGING, np.zeros(3))], 2)) == 2


def test_numbers_that_overflow_are_a_round_without_a_result() -> None:
    """And no warning."""

    def explode(state: ModelState, cohort: Cohort) -> ModelState:
        huge = np.full(3, 1e308) * 10
        return ModelState(huge - huge)

    (played,) = run_and_list(Noted(), [Server.start(Strategy(ModelState, explode), np.zeros(3))], 1)
    assert played.outcomes[0].problem == "the new model would not be finite"


# -- who took part -----------------------------------------------------------------------------------------


def test_the_record_of_a_round_by_hand() -> None:
    notes = {"fair": np.array([True, False]), "gap": [0.25, 0.5], "lam": 0.1, "other": np.ones(3)}
    gone = (Dropped("z", "late"),)
    found = client_rounds(3, replies(dropped=gone), Outcome(notes))
    assert [client[:5] for client in found[:2]] == [(3, "a", "fair", "", 10.0), (3, "b", "used", "", 20.0)]
    assert [dict(client.notes) for client in found] == [{"gap": 0.25}, {"gap": 0.5}, {}]
    assert found[1].counts is not None
    assert found[1].counts.ravel().tolist() == [*range(8, 16)]
    assert found[2][:4] == (3, "z", "dropped", "late")
    assert np.isnan(found[2].examples)
    assert [client.outcome for client in client_rounds(3, replies(), Outcome({}))] == ["used", "used"]
    failed = client_rounds(3, replies(client_counts=np.zeros((0, 2, 2, 2))), Outcome({}, "no use"))
    assert [client[2:4] for client in failed] == [("dropped", "no use")] * 2
    assert failed[0].counts is None


def test_a_record_of_many_rounds_gives_back_what_it_was_given() -> None:
    counts = np.arange(8).reshape(2, 2, 2)
    given = [
        ClientRound(1, "a", "fair", "", 5.0, counts, {"gap": 0.25, "flip": 0.5}),
        ClientRound(1, "b", "dropped", "late"),
        ClientRound(2, "a", "fair", "", 5.0, counts + 1, {"gap": 0.75, "flip": 1.0}, 17),
        ClientRound(2, "c", "used", "", 6.0, None, {"flip": 0.125}),
    ]
    record = ClientsRecord(given[:1])
    record.extend(given[1:])
    assert len(record) == 4
    for found in (list(record), record[0:], [record[n - 4] for n in range(4)]):
        for client, other in zip(found, given, strict=True):
            assert client[:4] == other[:4]
            assert (dict(client.notes), client.node) == (dict(other.notes), other.node)
            np.testing.assert_equal(client[4:6], other[4:6])
    assert [client.name for client in record[2:]] == ["a", "c"]
    kept = CountsRecord([counts, counts + 1])
    kept.append(counts + 2)  # while nobody holds a view of it
    assert_array_equal(kept, np.stack([counts, counts + 1, counts + 2]))
    assert_array_equal(kept[-1], counts + 2)
    assert np.asarray(CountsRecord()).shape == (0,)


def test_the_record_as_a_table() -> None:
    counts = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])
    rows = [
        ClientRound(1, "a", "fair", "", 5.0, counts, {"gap": 0.25}, 17),
        ClientRound(1, "b", "dropped", "late", node=18),
    ]
    found = clients_frame(rows, Groups.single("sex", ("f", "m")))
    assert found.columns.tolist() == [
        *("round", "name", "node", "outcome", "reason", "examples"),
        *MEASURES,
        "note_gap",
    ]
    assert found["node"].tolist() == [17, 18]
    assert found.loc[0, ["accuracy", "sp"]].tolist() == [(80 + 80) / 200, 0.5]
    assert found.loc[1, list(MEASURES)].isna().all()
    assert "node" not in clients_frame([rows[0]._replace(node=None)], None)
    nobody = clients_frame([], None)
    assert nobody.columns.tolist() == ["round", "name", "outcome", "reason", "examples", *MEASURES]
    assert len(nobody) == 0
