"""No rows at the server: clients hold out rows, and judge models on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from builders import rule, run_and_list
from fairfate.data import Table, synthetic
from fairfate.engine.recorder import Trace
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.engine.validators import candidates
from fairfate.errors import InputError
from fairfate.experiments.config import expand, from_mapping, read_config
from fairfate.experiments.run import run
from fairfate.experiments.runs import read_runs
from fairfate.experiments.sweep import sweep
from fairfate.fairness.objective import bind
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.federation.validation_source import AT_SERVER, ValidationSource, parse_validation_source
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Cohort, Setup, fair_fate, parse_spec
from fairfate.strategies.registry import TWO_GROUPS

TRAINING = Training(rounds=6, per_round=5, epochs=2)
STRATEGIES = ["fair_fate", "fair_fate:metric=sp", "fedval", "fair_best", "fedavg", "fair_fate+average"]


@pytest.fixture(scope="module")
def table() -> Table:
    return synthetic(3000, 1)


def federate(table: Table, text: str, partition: str = "dirichlet:0.5", seed: int = 1) -> Federation:
    return build(table, parse_partition(partition), 8, Streams(seed), parse_validation_source(text))


def played(table: Table, text: str, strategies: list[str], min_cell: int = 20, **options) -> list[Trace]:
    federation = federate(table, text)
    setup = Setup(TRAINING.rounds, learning_rate=TRAINING.learning_rate, min_cell=min_cell)
    specs = [parse_spec(strategy, "eqo") for strategy in strategies]
    model = Mlp(federation.inputs)
    return simulate(federation, specs, model, TRAINING, setup, Streams(1), record_clients=True, **options)


# -- what the user says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("server", AT_SERVER),
        ("server:rows=300", ValidationSource(rows=300)),
        ("clients", ValidationSource("clients")),
        ("clients:mode=secure,bucket=3", ValidationSource("clients", mode="secure", bucket=3)),
        ("clients:share=0.1,mode=secure", ValidationSource("clients", mode="secure", share=0.1)),
        ("clients:validators=all", ValidationSource("clients", validators="all")),
        ("clients:mode=own", ValidationSource("clients", mode="own")),
        ("clients:mode=public", ValidationSource("clients", mode="public")),
    ],
)
def test_a_text_is_read_and_written(text: str, meant: ValidationSource) -> None:
    assert parse_validation_source(text) == meant
    assert parse_validation_source(str(meant)) == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nobody", "validation-from must be server or clients, got 'nobody'"),
        ("server:rows=0", "rows must be a whole number >= 1, got '0'"),
        ("server:mode=cross", "setting of validation-from server"),
        ("clients:mode=mine", "mode must be one of cross|secure|own|public, got 'mine'"),
        ("clients:mode=public,share=0.1", "share must be left out with mode=public, got 0.1"),
        ("clients:mode=own,validators=all", "validators must be left out with mode=own, got all"),
        ("clients:bucket=2", "bucket must be left out with mode=cross, got 2"),
        ("clients:mode=secure,bucket=two", "bucket must be a whole number >= 1, got 'two'"),
        ("clients:share=0", "share must be in (0, 0.5], got 0"),
        ("clients:share", "must be NAME:key=value"),
    ],
)
def test_malformed_text_is_refused_and_named(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_validation_source(text)
    assert said in str(error.value)


# -- who holds what --------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", ["random", "dirichlet:0.5"])
def test_every_row_is_trained_on_held_out_or_tested_and_the_test_rows_stay(
    table: Table, partition: str
) -> None:
    ours, usual = federate(table, "clients", partition), federate(table, "server", partition)
    held = sum(rows.rows for rows in ours.held_out)
    assert np.array_equal(held, ours.validation.rows)
    total = ours.client_cells.sum(axis=0) + held
    assert np.array_equal(total, usual.client_cells.sum(axis=0) + usual.validation.rows)
    assert np.array_equal(ours.test.rows, usual.test.rows)
    assert ours.client_cells.sum() == len(ours.rows.y)


def test_a_fifth_of_every_cell_that_has_five_rows_is_held_out(table: Table) -> None:
    federation = federate(table, "clients")
    for client in range(federation.clients):
        held, kept = federation.held_out[client].rows, federation.client_cells[client]
        for out, stay in zip(held.ravel(), kept.ravel(), strict=True):
            assert out == (round(0.2 * (out + stay)) if out + stay >= 5 else 0)


def test_what_is_held_out_depends_on_the_seed_and_the_client_only(table: Table) -> None:
    cell = table.cell[:200]
    first = Streams(3).held_out(2, cell, 0.2)
    assert np.array_equal(first, Streams(3).held_out(2, cell, 0.2))
    assert not np.array_equal(first, Streams(3).held_out(1, cell, 0.2))
    assert not np.array_equal(first, Streams(4).held_out(2, cell, 0.2))


def test_a_server_with_few_rows_has_some_of_those_it_had(table: Table) -> None:
    few, more, every = (federate(table, f"server:rows={n}").validation for n in (50, 100, 10**6))
    usual = federate(table, "server").validation
    assert few.sizes.sum() == 50
    assert (few.sizes <= more.sizes).all()
    assert np.array_equal(every.sizes, usual.sizes)
    inputs = federate(table, "server").inputs
    known = {row.tobytes() for row in more.plain(inputs)}
    assert all(row.tobytes() in known for row in few.plain(inputs))


# -- buckets ---------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 50))
def test_buckets_are_large_enough_and_hold_everybody_once(clients: int, least: int, t: int) -> None:
    buckets = Streams(1).buckets(t, clients, least)
    assert sorted(np.concatenate(buckets).tolist()) == list(range(clients))
    assert len(buckets) == max(1, clients // least)
    assert all(len(bucket) >= min(least, clients) for bucket in buckets)
    firsts = [int(bucket[0]) for bucket in buckets]
    assert firsts == sorted(firsts)


def test_buckets_are_drawn_anew_in_every_round() -> None:
    drawn = {tuple(map(tuple, Streams(1).buckets(t, 6, 2))) for t in range(1, 20)}
    assert len(drawn) > 5


def test_the_worked_example_of_buckets() -> None:
    class Fixed(Streams):
        def buckets(self, t: int, clients: int, least: int) -> list[np.ndarray]:
            return [np.array([0, 1]), np.array([2, 3])]

    deltas = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
    found = candidates(
        parse_validation_source("clients:mode=secure"),
        Fixed(1),
        1,
        "abcd",
        deltas,
        np.array([10, 30, 20, 20]),
    )
    assert found.names == ("a + b", "c + d")
    assert found.models.tolist() == [[2.5, 0.0], [0.0, 3.0]]
    assert found.num_examples.tolist() == [40, 40]

    def fairness(counts: np.ndarray) -> np.ndarray:
        return np.asarray(counts[..., 0, 0, 0] / 10)

    counts = np.zeros((3, 2, 2, 2))
    counts[:, 0, 0, 0] = (6, 9, 7)
    strategy = rule(fair_fate(beta0=0.0, momentum="constant", lam0=0.5, growth="constant", max=1.0), fairness)
    cohort = Cohort(1, found.models, found.num_examples, counts[:2], counts[2])
    state = strategy.aggregate(strategy.init(np.zeros(2)), cohort)
    np.testing.assert_allclose(state.params, [0.625, 2.25])


def test_buckets_of_one_are_cross_to_the_bit(table: Table) -> None:
    ours = played(table, "clients:mode=secure,bucket=1", STRATEGIES)
    theirs = played(table, "clients", STRATEGIES)
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one.params, other.params)
        assert np.array_equal(one.validation, other.validation)
        assert [client.name for client in one.clients] == [client.name for client in other.clients]


def test_strategy_sees_buckets_instead_of_clients(table: Table) -> None:
    (trace, plain) = played(table, "clients:mode=secure", ["fair_fate", "fedavg"])
    seen = [client for client in trace.clients if client.round == 1]
    assert len(seen) == 2
    assert sum(client.name.count(" + ") + 1 for client in seen) == 5
    assert len([client for client in plain.clients if client.round == 1]) == 5
    assert sum(client.examples for client in seen) == sum(c.examples for c in plain.clients if c.round == 1)


def test_too_few_clients_for_two_buckets_are_averaged_with_momentum(table: Table) -> None:
    (trace,) = played(table, "clients:mode=secure,bucket=3", ["fair_fate:lam0=1,max=1"])
    (other,) = played(table, "clients", ["feddemon"])
    np.testing.assert_allclose(trace.params, other.params, atol=1e-5)
    assert all(client.counts is not None and not client.counts.sum() for client in trace.clients)


# -- counts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["cross", "secure"])
def test_counts_are_sums_over_the_rounds_clients(table: Table, mode: str) -> None:
    federation, streams = federate(table, f"clients:mode={mode}"), Streams(1)
    model = Mlp(federation.inputs)
    clients = Simulation(federation, model, TRAINING, streams)
    setup = Setup(TRAINING.rounds, min_cell=20)
    server = Server.start(parse_spec("fair_fate", "eqo").build(setup), clients.initial())
    before = server.params
    done = run_and_list(clients, [server], 1)[0]
    (replies,) = done.replies
    cohort = [k for k in streams.cohort(1, 8, 5) if federation.sizes[k]]
    rows = sum(federation.held_out[k].rows for k in cohort)
    assert replies.server_counts is not None
    for counts in (*replies.client_counts, replies.server_counts):
        assert np.array_equal(counts.sum(axis=-1), rows)
    models = np.concatenate([replies.deltas + before, before[None]]).astype(np.float32)
    expected = sum(model.count(models, federation.held_out[k]) for k in cohort)
    assert np.abs(expected - [*replies.client_counts, replies.server_counts]).sum() <= 2  # roundings
    assert np.array_equal(expected[-1], replies.server_counts)


@pytest.mark.parametrize("mode", ["cross", "secure"])
def test_all_clients_may_validate(table: Table, mode: str) -> None:
    federation, streams = federate(table, f"clients:mode={mode},validators=all"), Streams(1)
    clients = Simulation(federation, Mlp(federation.inputs), TRAINING, streams)
    setup = Setup(TRAINING.rounds, min_cell=20)
    server = Server.start(parse_spec("fair_fate", "eqo").build(setup), clients.initial())
    before = server.params[None].astype(np.float32)
    (replies,) = run_and_list(clients, [server], 1)[0].replies
    counts = replies.server_counts if replies.score is None else replies.score(before)[0]
    assert np.array_equal(counts, clients.validate(before)[0])


def test_a_rate_with_few_rows_behind_it_is_undefined() -> None:
    counts = np.array([[[10, 9], [15, 5]], [[20, 20], [20, 20]]])
    assert not np.isnan(bind("sp", TWO_GROUPS, least=20)(counts))
    assert not np.isnan(bind("eo", TWO_GROUPS, least=20)(counts))
    assert np.isnan(bind("eqo", TWO_GROUPS, least=20)(counts))
    assert np.isnan(bind("0.5*sp+0.5*eqo", TWO_GROUPS, least=20)(counts))
    assert np.isnan(bind("eo", TWO_GROUPS, least=21)(counts))
    assert not np.isnan(bind("eqo", TWO_GROUPS)(counts))


def test_in_a_round_with_too_few_rows_nobody_is_fair(table: Table) -> None:
    (trace,) = played(table, "clients", ["fair_fate:lam0=0.5,max=0.5"], min_cell=10**6)
    (usual,) = played(table, "clients", ["fair_fate:lam0=0.5,max=0.5"])
    assert not any(np.any(note["fair"]) for note in trace.notes)
    assert any(np.any(note["fair"]) for note in usual.notes)


def test_a_strategy_gives_the_same_bits_alone_and_beside_others(table: Table) -> None:
    for mode in ("cross", "secure"):
        text = f"clients:mode={mode}"
        together = played(table, text, STRATEGIES)
        for strategy, trace in zip(STRATEGIES, together, strict=True):
            (alone,) = played(table, text, [strategy])
            assert np.array_equal(alone.params, trace.params), (mode, strategy)


def test_client_whose_update_is_not_finite_does_not_validate(table: Table) -> None:
    federation = federate(table, "clients")
    first = int(np.flatnonzero(federation.sizes)[0])
    x = federation.rows.x.reshape(len(federation.rows.y), -1).copy()
    x[federation.rows.offsets[first]] = np.inf
    broken = replace(federation, rows=replace(federation.rows, x=x.ravel()))
    clients = Simulation(broken, Mlp(broken.inputs), replace(TRAINING, per_round=8), Streams(1))
    server = Server.start(parse_spec("fair_fate", "eqo").build(Setup(6, min_cell=20)), clients.initial())
    (replies,) = run_and_list(clients, [server], 1)[0].replies
    assert [gone.client for gone in replies.dropped] == [federation.client_names[first]]
    rows = federation.validation.rows - federation.held_out[first].rows
    assert replies.server_counts is not None
    assert np.array_equal(replies.server_counts.sum(axis=-1), rows)


# -- whole runs ------------------------------------------------------------------------------------------


def test_a_run_is_recorded_and_repeated_to_the_byte(tmp_path: Path) -> None:
    options = {"rounds": 3, "seeds": 2, "strategy": ["fair_fate", "fedavg+average+thresholds"]}
    given = from_mapping({"data": "synthetic:rows=2000", "validation-from": "clients", **options})
    run(given, out=tmp_path / "a", jobs=1)
    kept = read_config(tmp_path / "a" / "config.toml")
    assert kept["validation-from"] == "clients:mode=cross,share=0.2"
    run(from_mapping(kept), out=tmp_path / "b", jobs=1)
    for name in ("config.toml", "rounds.parquet", "clients.parquet", "summary.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_run_with_the_servers_rows_has_no_note_on_validators(tmp_path: Path) -> None:
    given = from_mapping({"rounds": 1, "seeds": 1, "validation-from": "server"})
    run(given, out=tmp_path / "a", jobs=1)
    assert "validation-from" not in read_config(tmp_path / "a" / "config.toml")


def test_thresholds_come_from_what_clients_hold_out(table: Table) -> None:
    (trace,) = played(table, "clients", ["fedavg+thresholds"])
    federation = federate(table, "clients")
    assert trace.thresholds is not None
    assert np.array_equal(trace.validation[-1].sum(axis=-1), federation.validation.rows)


def test_sweep_separates_validation_sources(tmp_path: Path) -> None:
    options = {"data": "synthetic:rows=1500", "strategy": ["fair_fate"], "rounds": 2, "seeds": 2}
    configs = expand({**options, "validation-from": ["server", "clients", "clients:mode=secure"]})
    sweep(configs, tmp_path, jobs=1)
    held = list(read_runs(tmp_path))
    assert [len(one.rounds) for one in held] == [2 * 2 * 2] * 3
    assert [one.title.removeprefix("validation-from ") for one in held] == [
        "server",
        "clients:mode=cross,share=0.2",
        "clients:mode=secure,bucket=2,share=0.2",
    ]


@pytest.mark.parametrize(
    ("strategy", "text", "said"),
    [
        ("server_step", "clients", "validation-from must be server for server_step, which trains there"),
    ],
)
def test_what_cannot_do_without_the_servers_rows_is_refused(strategy: str, text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        run(from_mapping({"strategy": strategy, "validation-from": text, "seeds": 1, "rounds": 1}))
    assert said in str(error.value)


@pytest.mark.parametrize("mode", ["cross", "secure"])
def test_a_killed_simulation_continues(table: Table, mode: str, tmp_path: Path) -> None:
    file = tmp_path / "state.safetensors"

    seen: list[int] = []

    def on_round() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    text = f"clients:mode={mode}"
    with pytest.raises(KeyboardInterrupt):
        played(table, text, ["fair_fate"], checkpoint=file, seconds=0.0, on_round=on_round)
    (resumed,) = played(table, text, ["fair_fate"], checkpoint=file, seconds=0.0)
    (whole,) = played(table, text, ["fair_fate"])
    assert np.array_equal(resumed.params, whole.params)
    assert np.array_equal(resumed.validation, whole.validation)


def judged_round(text: str, *strategies: str) -> tuple[Simulation, list[Server], list[Replies]]:
    """One round of five clients that judge on rows which they hold out."""
    streams = Streams(1)
    held = build(
        synthetic(rows=600, seed=2),
        parse_partition("random"),
        5,
        streams,
        validation_source=parse_validation_source(text),
    )
    training = Training(rounds=3, per_round=5, epochs=8, learning_rate=1.0)
    clients = Simulation(held, Mlp(held.inputs), training, streams)
    servers = [Server.start(parse_spec(of, "sp").build(Setup(3)), clients.initial()) for of in strategies]
    return clients, servers, list(clients.train(1, servers))


def test_clipped_updates_are_scored_after_clipping() -> None:
    texts = ["fair_fate", "fair_fate+clip:norm=1", "fair_fate+clip:norm=1000", "fedavg", "fair_fate:keep=0.5"]
    clients, servers, found = judged_round("clients:validators=all", *texts)
    for server, replies in zip(servers[:3], found[:3], strict=True):
        assert_array_equal(replies.client_counts, clients.validate(server.params + replies.deltas))
        assert_array_equal(replies.server_counts, clients.validate(server.params[None])[0])
    norms = np.linalg.norm(found[1].deltas.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
    assert_array_equal(found[2].deltas, found[0].deltas)
    assert not np.array_equal(found[1].client_counts, found[0].client_counts)
    assert (len(found[3].client_counts), found[3].server_counts) == (0, None)
    assert [replies.score is not None for replies in found] == [False] * 4 + [True]
    assert found[4].score is not None
    assert_array_equal(found[4].score(servers[4].params[None]), clients.validate(servers[4].params[None]))


def test_with_one_bucket_no_model_is_scored() -> None:
    _, _, (secret, plain) = judged_round("clients:mode=secure,bucket=3", "fair_fate", "fedavg")
    assert len(secret.clients) == 1
    assert secret.client_counts.shape == (1, 2, 2, 2)
    assert secret.server_counts is not None
    assert secret.server_counts.shape == (2, 2, 2)
    assert not secret.client_counts.any()
    assert not secret.server_counts.any()
    assert secret.num_examples.sum() == plain.num_examples.sum()
    assert plain.client_counts.shape == (0, 2, 2, 2)


@pytest.mark.parametrize(
    ("bucket", "clients", "judged"), [(1, 1, True), (1, 3, True), (2, 3, False), (2, 4, True)]
)
def test_client_alone_in_a_bucket_is_scored_only_with_buckets_of_one(
    bucket: int, clients: int, judged: bool
) -> None:
    validation_source = parse_validation_source(f"clients:mode=secure,bucket={bucket}")
    found = candidates(
        validation_source, Streams(1), 1, "abcd"[:clients], np.ones((clients, 2)), np.ones(clients)
    )
    assert found.is_scored == judged
    cross = candidates(parse_validation_source("clients"), Streams(1), 1, "a", np.ones((1, 2)), np.ones(1))
    assert cross.is_scored
