"""Minimum cell counts in the simulator: clients exclude small strata, and send no small counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fairfate.data import Table, synthetic
from fairfate.engine.local import part
from fairfate.engine.loop import Round, run_rounds
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulate import simulate
from fairfate.engine.simulation import Simulation
from fairfate.errors import InputError
from fairfate.experiments.config import expand, from_mapping
from fairfate.experiments.prepare import checked
from fairfate.experiments.run import run
from fairfate.experiments.runs import read_runs
from fairfate.experiments.sweep import sweep
from fairfate.fairness.disclosure import merge_bins, round_counts, round_statistics
from fairfate.fairness.thresholds import apply_to_histogram, choose_from_histogram, histogram
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, assign_rows, build
from fairfate.federation.validation_source import parse_validation_source
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.strategies import Setup, parse_spec

K = 10
TRAINING = Training(rounds=4, per_round=8, epochs=5, learning_rate=0.1)
PARTITION = parse_partition("dirichlet:0.5")
HELD = "clients:share=0.5"


@pytest.fixture(scope="module")
def table() -> Table:
    return synthetic(1500, 1)


def federate(table: Table, text: str = "server", min_cell: int = K) -> Federation:
    return build(table, PARTITION, 8, Streams(1), parse_validation_source(text), min_cell)


def simulation(federation: Federation) -> Simulation:
    return Simulation(federation, Mlp(federation.inputs), TRAINING, Streams(1))


def first_round(clients: Simulation, strategy: str) -> tuple[Server, Replies]:
    """The server before its first round, and what comes back in it."""
    server = Server.start(parse_spec(strategy, "eqo").build(Setup(4, learning_rate=0.01)), clients.initial())
    return server, clients.train(1, [server])[0]


# -- which rows take part --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["server", HELD])
def test_each_client_trains_on_its_large_strata_only(table: Table, text: str) -> None:
    every, ours = federate(table, text, 0), federate(table, text)
    assert ((every.client_cells > 0) & (every.client_cells < K)).any()
    assert_array_equal(ours.client_cells, np.where(every.client_cells < K, 0, every.client_cells))
    assert_array_equal(ours.sizes, ours.client_cells.sum(axis=(1, 2)))
    for k, rows in ours.local.items():
        assert_array_equal(rows.rows, ours.client_cells[k])
    _, replies = first_round(simulation(ours), "fedavg")
    assert_array_equal(replies.num_examples, ours.sizes[ours.sizes > 0])
    assert_array_equal(ours.test.rows, every.test.rows)


def test_inputs_are_scaled_by_the_rows_that_take_part(table: Table) -> None:
    ours = federate(table)
    kept = assign_rows(table, PARTITION, 8, Streams(1), min_cell=K).train
    assert len(kept) == len(ours.rows)
    assert_array_equal(ours.encoder.low, table.fit_encoder(kept).low)


def test_each_client_holds_out_large_strata_only(table: Table) -> None:
    every, ours = federate(table, HELD, 0), federate(table, HELD)
    held = np.array([rows.rows for rows in every.held_out])
    assert ((held > 0) & (held < K)).any()
    assert_array_equal([rows.rows for rows in ours.held_out], np.where(held < K, 0, held))
    assert_array_equal(ours.validation.rows, np.where(held < K, 0, held).sum(axis=0))


def test_rows_of_the_server_stay(table: Table) -> None:
    every, ours = federate(table, "server:rows=30", 0), federate(table, "server:rows=30")
    assert (every.validation.rows < K).any()
    assert_array_equal(ours.validation.rows, every.validation.rows)
    models = simulation(ours).initial()[None]
    counts = simulation(ours).model.count(models, ours.validation)
    assert not np.array_equal(counts, round_counts(counts, K))
    assert_array_equal(simulation(ours).validate(models), counts)
    assert_array_equal(simulation(ours).test(models), simulation(ours).model.count(models, ours.test))


def test_a_client_left_without_rows_sends_nothing(table: Table) -> None:
    ours = federate(table, min_cell=60)
    empty = ours.sizes == 0
    assert empty.any()
    assert federate(table, min_cell=0).sizes[empty].all()
    _, replies = first_round(simulation(ours), "fedavg")
    assert replies.clients == tuple(np.array(ours.client_names)[~empty])


@pytest.mark.parametrize(
    ("text", "min_cell", "message"),
    [
        ("server", 1000, "min-cell must leave a client training rows of 'synthetic', got 1000"),
        ("clients:share=0.1", 100, "min-cell must leave a client rows held out of 'synthetic', got 100"),
    ],
)
def test_minimum_that_excludes_all_rows_is_an_error(
    table: Table, text: str, min_cell: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        federate(table, text, min_cell)


# -- what clients send -----------------------------------------------------------------------------------


def test_reports_on_own_rows_are_rounded(table: Table) -> None:
    ours = federate(table)
    clients = simulation(ours)
    server, replies = first_round(clients, "fedgft")
    assert replies.local is not None
    true = [clients.model.statistics(server.params[None], rows) for rows in ours.local.values()]
    assert any(((of.counts > 0) & (of.counts < K)).any() for of in true)
    for number, of in enumerate(true):
        sent, expected = part(replies.local, number), part(round_statistics(of, K), 0)
        assert_array_equal(sent.counts, expected.counts)
        assert_array_equal(sent.loss, expected.loss)
        assert not ((sent.counts > 0) & (sent.counts < K)).any()


def sums(clients: Simulation, judges: list[int], models: np.ndarray) -> np.ndarray:
    """What clients count on held-out rows, rounded one by one and added."""
    counts = [clients.model.count(models, clients.federation.held_out[k]) for k in judges]
    rounded = np.sum([round_counts(of, K) for of in counts], axis=0)
    return np.asarray(rounded)


@pytest.mark.parametrize("validators", ["cohort", "all"])
def test_counts_of_candidates_are_rounded_at_each_client(table: Table, validators: str) -> None:
    ours = federate(table, f"{HELD},validators={validators}")
    clients = Simulation(ours, Mlp(ours.inputs), replace(TRAINING, per_round=4), Streams(1))
    judges = (
        [int(k) for k in Streams(1).cohort(1, 8, 4) if ours.sizes[k]]
        if validators == "cohort"
        else [*range(8)]
    )
    server, replies = first_round(clients, "fair_fate")
    before = server.params[None].astype(np.float32)
    assert replies.server_counts is not None
    assert_array_equal(replies.server_counts, sums(clients, judges, before)[0])
    assert_array_equal(replies.client_counts.sum(axis=-1)[0], replies.server_counts.sum(axis=-1))
    server, replies = first_round(clients, "fair_fate:keep=0.5")
    assert replies.score is not None
    assert_array_equal(replies.score(before), sums(clients, judges, before))


def test_models_are_measured_by_rounded_counts_of_all_clients(table: Table) -> None:
    ours = federate(table, HELD)
    clients = simulation(ours)
    server = Server.start(parse_spec("fedavg", "eqo").build(Setup(4)), clients.initial())

    def check(done: Round) -> None:
        assert_array_equal(server.counts, sums(clients, [*range(8)], server.params[None])[0])

    run_rounds(clients, [server], 4, [check])
    assert not np.array_equal(server.counts, clients.model.count(server.params[None], ours.validation)[0])
    equal = np.repeat(server.params[None], 3, axis=0)
    assert_array_equal(clients.validate(equal), np.repeat(server.counts[None], 3, axis=0))


@pytest.mark.parametrize("source", ["clients", "validation"])
def test_thresholds_are_chosen_by_merged_histograms(table: Table, source: str) -> None:
    ours = federate(table, HELD)
    clients = simulation(ours)
    spec = parse_spec(f"fedavg+thresholds:from={source}", "eqo")
    (trace,) = simulate(ours, [spec], clients.model, TRAINING, Setup(4), Streams(1))
    parts = {"clients": [*ours.local.values()], "validation": [*ours.held_out]}
    merged = {
        name: np.sum(
            [merge_bins(histogram(clients.model.margins(trace.params, of)), K) for of in rows], axis=0
        )
        for name, rows in parts.items()
    }
    assert_array_equal(clients.histograms(trace.params), merged["clients"])
    assert_array_equal(clients.held_histograms(trace.params), merged["validation"])
    assert trace.thresholds is not None
    assert_array_equal(trace.validation[-1], apply_to_histogram(merged["validation"], trace.thresholds))
    fairness = Setup(4).fairness("eqo")
    assert_array_equal(choose_from_histogram(merged[source], fairness, 0.02, 0.8, "own"), trace.thresholds)
    plain = simulation(replace(ours, min_cell=0))
    assert not np.array_equal(plain.histograms(trace.params), merged["clients"])
    assert not np.array_equal(plain.held_histograms(trace.params), merged["validation"])


def test_what_stays_at_a_client_is_not_rounded(table: Table) -> None:
    ours = federate(table)
    _, replies = first_round(simulation(ours), "ffalm")
    _, plain = first_round(simulation(replace(ours, min_cell=0)), "ffalm")
    assert_array_equal(replies.deltas, plain.deltas)
    _, other = first_round(simulation(federate(table, min_cell=0)), "ffalm")
    assert not np.array_equal(replies.deltas, other.deltas)


# -- a run of its own ------------------------------------------------------------------------------------

OPTIONS = {"data": "synthetic:rows=1500", "rounds": 3, "epochs": 1, "seeds": (1,), "strategies": "fedavg"}


@pytest.mark.parametrize(
    ("value", "message"), [(-1, "min-cell must be >= 0, got -1"), ("x", "a whole number")]
)
def test_a_minimum_is_a_whole_number_from_0_on(table: Table, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        checked(from_mapping({"min-cell": value}), table)


def test_notes_say_how_many_rows_are_excluded(table: Table) -> None:
    (note,) = checked(from_mapping({"min-cell": K, "clients": 8, "seeds": [1]}), table).notes
    of = assign_rows(table, PARTITION, 8, Streams(1), min_cell=K)
    rows, clients = int(of.excluded.sum()), int((of.excluded > 0).sum())
    assert rows == len(assign_rows(table, PARTITION, 8, Streams(1)).train) - len(of.train)
    assert note.startswith(f"{rows} rows of {clients} of the 8 clients are excluded:")
    (note,) = checked(from_mapping({"min-cell": K, "clients": 8, "seeds": 3}), table).notes
    assert note.startswith("up to ")
    (note,) = checked(
        from_mapping({"min-cell": 2, "clients": 8, "seeds": [2], "partition": "dirichlet:0.4"}), table
    ).notes
    assert note.startswith("fewer than 10 rows of ")
    assert checked(from_mapping({"min-cell": K, "partition": "random", "clients": 2}), table).notes == ()


def test_a_metric_without_rows_names_the_minimum(table: Table) -> None:
    config = from_mapping({"min-cell": 10, "validation-from": "clients", "strategy": "fair_fate"})
    with pytest.raises(
        InputError, match="the validation rows of seed 1 that min-cell 10 leaves, got no rows"
    ):
        checked(config, synthetic(700, 1))


def test_another_minimum_is_another_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run(**OPTIONS, min_cell=K, out=folder)
    assert first.plan.config.min_cell == K
    assert first.rounds["accuracy"].tolist() != run(**OPTIONS).rounds["accuracy"].tolist()
    (folder / "summary.csv").unlink()
    with pytest.raises(InputError, match="with another data-notes, min-cell"):
        run(**OPTIONS, min_cell=20, out=folder)


def test_a_checkpoint_of_another_minimum_is_not_used(table: Table, tmp_path: Path) -> None:
    ours, file = federate(table, HELD), tmp_path / "checkpoint.safetensors"
    specs, model = [parse_spec("fair_fate", "eqo")], Mlp(ours.inputs)

    rounds: list[int] = []

    def record(t: int, traces: object) -> None:
        rounds.append(t)
        if len(rounds) == 2:
            raise KeyboardInterrupt

    def go_on(federation: Federation) -> None:
        setup, options = Setup(4), {"checkpoint": file, "seconds": 0.0, "on_record": record}
        simulate(federation, specs, model, TRAINING, setup, Streams(1), **options)

    with pytest.raises(KeyboardInterrupt):
        go_on(ours)
    go_on(replace(ours, min_cell=0))
    assert rounds == [1, 2, 1, 2, 3, 4]


def test_a_sweep_varies_the_minimum(tmp_path: Path) -> None:
    configs = expand({**OPTIONS, "min-cell": [0, K], "seeds": [1]})
    assert [config.min_cell for config in configs] == [0, K]
    sweep(configs, tmp_path, jobs=1)
    titles = [found.title for found in read_runs(tmp_path)]
    assert titles == ["min-cell 0", "min-cell 10"]
    assert sweep(configs, tmp_path, jobs=1).ran == 0
