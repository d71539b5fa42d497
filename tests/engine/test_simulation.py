"""All clients in this process, and several strategies over the rounds: each piece alone."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from builders import replies
from fairfate.data import synthetic
from fairfate.engine.recorder import Trace
from fairfate.engine.server import Dropped, Server, stack
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation, _distinct, _keep_usable
from fairfate.fairness import metrics
from fairfate.fairness.metrics import Statistics
from fairfate.fairness.thresholds import choose_from_histogram, choose_from_scores, histogram
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.federation.validation_source import parse_validation_source
from fairfate.models.mlp import Mlp
from fairfate.models.rows import ClientRows
from fairfate.models.training import Training
from fairfate.strategies import (
    Setup,
    Spec,
    parse_spec,
)
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.strategy import plain_loss

STREAMS = Streams(1)
FEDERATION = build(synthetic(rows=300, seed=3), parse_partition("dirichlet:0.5"), 6, STREAMS)
MODEL = Mlp(FEDERATION.inputs)
TRAINING = Training(rounds=3, per_round=3, epochs=2)
FAST = replace(TRAINING, learning_rate=1.0, epochs=8)
"""So that models of one round differ from those of the next in what they predict."""
ROWS = np.array([[3, 4], [5, 6]])


# -- all clients in this process ---------------------------------------------------------------------------


def test_servers_with_one_model_and_the_usual_loss_are_trained_once() -> None:
    other = AVERAGING._replace(local_loss=lambda told, rows, now: plain_loss(rows))
    models = stack([np.zeros(2), np.ones(2), np.zeros(2), np.zeros(2), np.zeros(2)])
    strategies = (AVERAGING, AVERAGING, AVERAGING, other, other)
    servers = [Server.start(of, model) for of, model in zip(strategies, models, strict=True)]
    assert _distinct(models, servers) == ([0, 1, 3, 4], [0, 1, 0, 2, 3])


def test_reports_of_dropped_clients_are_dropped_too() -> None:
    statistics = Statistics(*(np.arange(3).reshape(3, 1, 1) for _ in range(3)))
    found = _keep_usable(replies(3, local=statistics), np.array([True, False, True]))
    assert found.clients == ("a", "c")
    assert found.deltas.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert found.num_examples.tolist() == [10, 30]
    assert found.client_counts[:, 0, 0, 0].tolist() == [0, 16]
    assert found.local is not None
    assert found.local.loss.ravel().tolist() == [0, 2]
    assert found.dropped == (Dropped("b", "an update with NaN or infinity"),)
    nothing = replies(3, client_counts=np.zeros((0, 2, 2, 2)))
    assert _keep_usable(nothing, np.array([True, False, True])).client_counts.shape == (0, 2, 2, 2)
    assert _keep_usable(nothing, np.array([True, False, True])).local is None


def started(clients: Simulation, *texts: str) -> list[Server]:
    setup = Setup(3, learning_rate=0.01)
    servers = [Server.start(parse_spec(text, "eqo").build(setup), clients.initial()) for text in texts]
    for server in servers:
        server.counts = clients.validate(server.params[None])[0]
    return servers


def test_a_client_that_sends_no_numbers_is_dropped_for_that_strategy_alone() -> None:
    """Client 1's rows hold a NaN; both servers train on them, one of them with a loss of its own."""
    x = FEDERATION.rows.x.copy().reshape(len(FEDERATION.rows.y), -1)
    x[FEDERATION.rows.offsets[1], 0] = np.nan
    rows = replace(FEDERATION.rows, x=x.ravel())
    everybody = replace(TRAINING, per_round=6)
    clients = Simulation(replace(FEDERATION, rows=rows), MODEL, everybody, STREAMS)
    honest = Simulation(FEDERATION, MODEL, everybody, STREAMS)
    name = FEDERATION.client_names[1]
    for text in ("fair_fate", "fedavg_lr"):
        found, usual = (of.train(1, started(of, text))[0] for of in (clients, honest))
        kept = [place for place, client in enumerate(usual.clients) if client != name]
        assert found.clients == tuple(usual.clients[place] for place in kept)
        assert_array_equal(found.deltas, usual.deltas[kept])
        assert [gone.client for gone in found.dropped] == [name]


def test_updates_that_are_clipped_are_scored_as_they_are_then() -> None:
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    norms = np.linalg.norm(clients.train(1, started(clients, "fedavg"))[0].deltas.astype(np.float64), axis=1)
    between = float(np.sort(norms)[:2].mean())
    plain, clipped, free = (
        clients.train(1, started(clients, f"fair_fate{step}"))[0]
        for step in ("", f"+clip:norm={between}", "+clip:norm=1000")
    )
    for place, norm in enumerate(norms):
        expected = plain.deltas[place] * np.float32(min(1.0, between / norm))
        np.testing.assert_allclose(clipped.deltas[place], expected, rtol=1e-5)
        model = clients.initial() + clipped.deltas[place]
        assert_array_equal(clipped.client_counts[place], clients.validate(model[None])[0])
    assert_array_equal(free.deltas, plain.deltas)
    assert_array_equal(free.client_counts, plain.client_counts)


def test_clients_report_only_the_rows_that_were_asked_for() -> None:
    """With ALL_ROWS those of all clients that have some; with ROWS those of the round; else nothing."""
    sizes = FEDERATION.rows.offsets.copy()
    sizes[2] = sizes[1]  # the second client's rows are the third's
    cells = FEDERATION.client_cells.copy()
    cells[2] += cells[1]
    cells[1] = 0
    federation = replace(FEDERATION, rows=replace(FEDERATION.rows, offsets=sizes), client_cells=cells)
    clients = Simulation(federation, MODEL, TRAINING, STREAMS)
    of_round = np.array([0, 3])
    every, those, none = (
        clients._known_rows(server, cells[of_round], of_round)
        for server in started(clients, "fedavg_gr:counts=once", "fedavg_gr", "fedavg")
    )
    assert_array_equal(every, cells[[0, 2, 3, 4, 5]])
    assert_array_equal(those, cells[[0, 3]])
    assert none is None


def test_updates_may_not_be_changed_by_one_of_the_strategies() -> None:
    clients = Simulation(FEDERATION, MODEL, TRAINING, STREAMS)
    with pytest.raises(ValueError, match="read-only"):
        clients.train(1, started(clients, "fedavg"))[0].deltas[0] = 1


def test_reports_are_of_the_model_that_was_sent_out() -> None:
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    servers = started(clients, "fedavg", "afl", "qffl")
    servers[2].state = servers[2].state._replace(params=servers[2].params + 1)
    plain, afl, qffl = clients.train(1, servers)
    assert plain.local is None
    for server, found in zip(servers[1:], (afl, qffl), strict=True):
        assert found.local is not None
        for place, name in enumerate(found.clients):
            rows = FEDERATION.local[FEDERATION.client_names.index(name)]
            expected = MODEL.statistics(server.params[None], rows)
            assert_array_equal(found.local.counts[place], expected.counts[0])
            assert_array_equal(found.local.loss[place], expected.loss[0])


def test_only_strategies_that_look_get_scores() -> None:
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    servers = started(clients, "fedavg", "fedval", "fair_fate", "fedavg_lr")
    servers[2].state = servers[2].state._replace(params=servers[2].params + np.float32(0.1))
    found = clients.train(1, servers)
    assert [len(of.client_counts) for of in found] == [0, 3, 3, 0]
    for server, of in zip(servers[1:3], found[1:3], strict=True):
        assert_array_equal(of.client_counts, clients.validate(server.params + of.deltas))
        assert len({counts.tobytes() for counts in of.client_counts}) > 1


def test_histograms_of_clients_are_those_of_all_their_rows() -> None:
    clients = Simulation(FEDERATION, MODEL, TRAINING, STREAMS)
    rows = FEDERATION.rows
    everybody = ClientRows(rows.x, rows.cell, np.array([0, len(rows)])).packed(0, 2)
    params = clients.initial()
    counts = MODEL.count(params[None], everybody)[0]
    found = clients.histograms(params)
    assert_array_equal(found.sum(axis=-1), counts.sum(axis=-1))
    assert_array_equal(found[..., 128:].sum(axis=-1), counts[..., 1])


# -- several strategies over the rounds --------------------------------------------------------------------


def traced(texts: list[str], training: Training = TRAINING, **options: Any) -> list[Trace]:
    specs = [parse_spec(text, "eqo") for text in texts]
    federation, setup = options.pop("federation", FEDERATION), options.pop("setup", Setup(3))
    return simulate(federation, specs, MODEL, training, setup, STREAMS, **options)


def test_what_is_released_is_what_is_measured() -> None:
    """Without a step, with an average, and with thresholds, which are chosen after the last round."""
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    texts = ["fedavg", "fedavg+average:share=1", "fedavg+thresholds:metric=sp"]
    plain, averaged, cut = traced(texts, training=FAST)
    for trace in (plain, averaged):
        assert trace.rounds == [1, 2, 3]
        assert_array_equal(trace.validation[-1], clients.validate(trace.params[None])[0])
        assert_array_equal(trace.test[-1], clients.test(trace.params[None])[0])
    assert_array_equal(averaged.validation[0], plain.validation[0])
    assert not np.array_equal(averaged.validation[-1], plain.validation[-1])
    assert not np.array_equal(averaged.test[-1], plain.test[-1])
    assert (cut.rounds, len(cut.notes), len(cut.validation), len(cut.test)) == ([3], 1, 1, 1)
    assert_array_equal(cut.params, plain.params)
    assert cut.thresholds is not None
    assert cut.thresholds.any()
    for counts, rows in ((cut.validation[0], FEDERATION.validation), (cut.test[0], FEDERATION.test)):
        accepted = [
            (of > cut.thresholds[cell // 2]).sum() for cell, of in enumerate(MODEL.margins(cut.params, rows))
        ]
        assert counts[..., 1].ravel().tolist() == accepted
    assert plain.thresholds is None


def test_a_strategy_that_releases_another_model_is_measured_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    released = AVERAGING._replace(release=lambda state: -state.params)
    monkeypatch.setattr(Spec, "build", lambda spec, setup: released)
    (trace,) = traced(["fedavg"], training=FAST)
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    assert_array_equal(trace.validation[-1], clients.validate(trace.params[None])[0])
    assert_array_equal(trace.test[-1], clients.test(trace.params[None])[0])
    assert not np.array_equal(trace.validation[-1], clients.validate(-trace.params[None])[0])


def test_thresholds_are_chosen_by_the_reported_histograms() -> None:
    """From the server's rows by their scores; from the clients' by their histograms, as where they judge."""
    rule = (metrics.sp, 0.1, 0.0, "own")
    text = "fedavg+thresholds:metric=sp,tolerance=0.1,keep=0"
    clients = Simulation(FEDERATION, MODEL, FAST, STREAMS)
    own, theirs = traced([text, f"{text},from=clients"], training=FAST)
    scores = MODEL.margins(own.params, FEDERATION.validation)
    assert_array_equal(own.thresholds, choose_from_scores(scores, *rule))
    assert_array_equal(theirs.thresholds, choose_from_histogram(clients.histograms(own.params), *rule))
    held = build(
        synthetic(rows=300, seed=3),
        parse_partition("random"),
        6,
        STREAMS,
        validation_source=parse_validation_source("clients"),
    )
    (judged,) = traced([text], training=FAST, federation=held, setup=Setup(3, min_cell=10**6))
    scores = MODEL.margins(judged.params, held.validation)
    assert_array_equal(judged.thresholds, choose_from_histogram(histogram(scores), *rule))
    assert not np.array_equal(judged.thresholds, choose_from_scores(scores, *rule))


def test_a_round_leaves_little_in_memory() -> None:
    """About 1,500 bytes for two strategies with three clients each; as Python objects they took 3,900."""
    used: list[int] = []
    tracemalloc.start()
    traced(
        ["fedavg", "fair_fate"],
        replace(TRAINING, rounds=400, epochs=1),
        record_clients=True,
        on_round=lambda: used.append(tracemalloc.get_traced_memory()[0]),
    )
    tracemalloc.stop()
    assert (used[-1] - used[199]) / 200 < 2200


def test_the_last_round_alone_may_be_measured() -> None:
    for one, other in zip(
        traced(["fedmom", "fedavg+average"]),
        traced(["fedmom", "fedavg+average"], last_only=True),
        strict=True,
    ):
        assert other.rounds == [3]
        assert len(other.notes) == len(other.validation) == len(other.test) == 1
        assert_array_equal(one.validation[-1], other.validation[0])
        assert_array_equal(one.params, other.params)
        assert len(other.clients) == 0


def test_every_round_is_reported_to_observers() -> None:
    seen: list[tuple[int, int]] = []
    rounds: list[int] = []
    traced(
        ["fedavg"],
        on_round=lambda: rounds.append(len(seen)),
        on_record=lambda t, traces: seen.append((t, len(traces[0].rounds))),
    )
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert rounds == [1, 2, 3]


def test_a_strategy_knows_the_clients_learning_rate() -> None:
    by_setup = simulate(
        FEDERATION, [parse_spec("qffl", "eqo")], MODEL, TRAINING, Setup(3, learning_rate=0.5), STREAMS
    )
    usual, same = (
        traced(["qffl"]),
        simulate(
            FEDERATION, [parse_spec("qffl", "eqo")], MODEL, TRAINING, Setup(3, learning_rate=0.01), STREAMS
        ),
    )
    assert_array_equal(usual[0].params, same[0].params)
    assert not np.array_equal(usual[0].params, by_setup[0].params)
