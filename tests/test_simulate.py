from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import oracle
from fairfate import metrics
from fairfate.data import Table, synthetic
from fairfate.engine import mlp
from fairfate.engine.training import Training
from fairfate.errors import InputError
from fairfate.experiment import run
from fairfate.federation import Federation, build
from fairfate.partition import parse_partition
from fairfate.simulate import simulate
from fairfate.strategies import Setup, Strategy, fedavg, parse_spec
from fairfate.streams import Streams

TRAINING = Training(rounds=4, per_round=3, epochs=2)
ALL = ["fedavg", "fedavg_lr", "fedavg_gr", "fedmom", "feddemon", "fedval", "fair_fate", "fair_fate:metric=sp"]


def federate(table: Table, partition: str = "dirichlet:0.5", clients: int = 8, seed: int = 1) -> Federation:
    return build(table, parse_partition(partition), clients, Streams(seed))


def make(texts: list[str], rounds: int = 4, published: bool = False) -> list[Strategy]:
    return [parse_spec(text, "eqo").build(Setup(rounds, published)) for text in texts]


def test_three_rounds_of_fedavg_agree_with_plain_numpy(small: Table) -> None:
    federation, streams = federate(small), Streams(1)
    training = replace(TRAINING, rounds=3)
    (trace,) = simulate(federation, [fedavg()], training, streams)
    count = mlp.num_parameters(federation.inputs, 10)
    params = mlp.initial(streams.weights(count), federation.inputs, 10).astype(np.float64)
    for t, cohort in enumerate(streams.cohorts(3, 8, 3), start=1):
        clients = [c for c in cohort if federation.sizes[c] > 0]
        params = oracle.fedavg_round(federation, params, training, streams, t, clients)
    np.testing.assert_allclose(trace.params, params, atol=1e-5)


@pytest.mark.parametrize("published", [False, True])
def test_a_strategy_gives_the_same_bits_alone_and_in_a_stack(small: Table, published: bool) -> None:
    streams = Streams(2, published)
    federation = build(small, parse_partition("dirichlet:0.5"), 8, streams)
    grid = [f"fair_fate:metric=sp,max={i / 20}" for i in range(12)]
    stack = simulate(federation, make(ALL + grid, 4, published), TRAINING, streams)
    for i in (0, 1, 2, 6, 7, 19):
        (alone,) = simulate(federation, make([(ALL + grid)[i]], 4, published), TRAINING, streams)
        assert np.array_equal(alone.params, stack[i].params)
        assert np.array_equal(alone.test, stack[i].test)
        assert np.array_equal(alone.validation, stack[i].validation)


def test_strategies_differ_from_each_other(small: Table) -> None:
    traces = simulate(federate(small), make(ALL), TRAINING, Streams(1))
    assert len({trace.params.tobytes() for trace in traces}) == len(ALL)


def test_counts_cover_the_validation_and_test_rows(small: Table) -> None:
    (trace,) = simulate(federate(small), [fedavg()], TRAINING, Streams(1))
    assert (trace.validation.sum(axis=(1, 2, 3)) == 60).all()
    assert (trace.test.sum(axis=(1, 2, 3)) == 60).all()


def test_heterogeneous_clients_make_the_embedded_disparity_worse() -> None:
    """FedAvg, mean of the last 20 rounds over five seeds."""
    found = {}
    for partition in ("random", "dirichlet:0.5"):
        finished = run(partition=partition, strategies=("fedavg",), jobs=1)
        found[partition] = finished.summary[["eo_last20_mean", "eqo_last20_mean"]].iloc[0]
    assert (found["dirichlet:0.5"] < found["random"] - 0.05).all()


def test_training_learns() -> None:
    table = synthetic(rows=2000)
    streams = Streams(1)
    federation = build(table, parse_partition("random"), 4, streams)
    (trace,) = simulate(federation, [fedavg()], Training(rounds=20, per_round=4), streams)
    assert metrics.accuracy(trace.test)[-1] > 0.75


def test_lambda_beta_and_the_fair_set_are_on_record(small: Table) -> None:
    traces = simulate(federate(small), make(["fedavg", "fair_fate"]), TRAINING, Streams(1))
    assert all(np.isnan(note.lam) and np.isnan(note.fair_clients) for note in traces[0].notes)
    assert [note.lam for note in traces[1].notes] == pytest.approx([0.1 * 1.05**t for t in (1, 2, 3, 4)])
    assert traces[1].notes[-1].beta == 0
    assert all(0 <= note.fair_clients <= 3 for note in traces[1].notes)


def hand_out(federation: Federation, sizes: list[int]) -> Federation:
    """The same rows, handed to clients of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    cells = [np.bincount(federation.cell[a:b], minlength=4) for a, b in pairwise(offsets)]
    return replace(federation, offsets=offsets, client_cells=np.array(cells).reshape(-1, 2, 2))


def test_a_client_without_rows_sends_nothing(small: Table) -> None:
    federation = federate(small, "random", 4)
    with_empty = hand_out(federation, [100, 0, 80, 0])
    training = replace(TRAINING, per_round=4)
    for trace in simulate(with_empty, make(ALL), training, Streams(1)):
        assert np.isfinite(trace.params).all()
        assert max(np.nan_to_num([note.fair_clients for note in trace.notes])) <= 2


def test_a_round_whose_clients_are_all_empty_keeps_the_model(small: Table) -> None:
    federation = hand_out(federate(small, "random", 4), [0, 0, 0, 180])
    streams = Streams(1)
    cohorts = streams.cohorts(12, 4, 1).ravel()
    training = replace(TRAINING, rounds=12, per_round=1)
    (trace,) = simulate(federation, make(["fair_fate"], 12), training, streams)
    quiet = [t for t in range(1, 12) if cohorts[t] != 3]
    assert quiet
    for t in quiet:
        assert np.array_equal(trace.test[t], trace.test[t - 1])
        assert np.isnan(trace.notes[t].lam)


def test_a_group_missing_from_the_validation_rows_is_never_fair(small: Table) -> None:
    federation = federate(small)
    sizes = federation.validation.sizes.copy()
    keep = federation.validation.block_cell < 2
    inputs = federation.inputs
    validation = replace(
        federation.validation,
        blocks=federation.validation.blocks.reshape(-1, inputs * 16)[keep].ravel(),
        block_cell=federation.validation.block_cell[keep],
        mask=federation.validation.mask[keep],
        sizes=np.where(np.arange(4) < 2, sizes, 0),
    )
    traces = simulate(replace(federation, validation=validation), make(ALL), TRAINING, Streams(1))
    assert np.isnan(metrics.sp(traces[-1].validation)).all()
    assert {note.fair_clients for note in traces[-1].notes} == {0}
    assert all(np.isfinite(trace.params).all() for trace in traces)


@pytest.mark.parametrize(("clients", "per_round"), [(1, 1), (8, 1), (3, 3)])
def test_small_cohorts_work(small: Table, clients: int, per_round: int) -> None:
    federation = federate(small, clients=clients)
    for trace in simulate(federation, make(ALL), replace(TRAINING, per_round=per_round), Streams(1)):
        assert np.isfinite(trace.params).all()


def test_more_clients_a_round_than_there_are_is_refused(small: Table) -> None:
    with pytest.raises(InputError, match="per-round must be <= the 2 clients, got 3"):
        simulate(federate(small, clients=2), [fedavg()], TRAINING, Streams(1))


def test_more_than_two_groups_are_measured_and_reweighed() -> None:
    table = synthetic(rows=400)
    three = replace(
        table,
        group=(np.arange(400) % 3).astype(np.int16),
        group_names=("a", "b", "c"),
    )
    federation = federate(three, clients=3)
    traces = simulate(federation, make(ALL), TRAINING, Streams(1))
    assert traces[0].test.shape == (4, 3, 2, 2)
    assert all(np.isfinite(trace.params).all() for trace in traces)


def fitted_on(table: Table, streams: Streams) -> np.ndarray:
    return build(table, parse_partition("random"), 3, streams).encoder.low


def test_the_encoder_sees_the_training_rows_only_and_all_rows_in_the_published_protocol(small: Table) -> None:
    for seed in (1, 2, 3):
        train, _, _ = Streams(seed).split(len(small))
        np.testing.assert_array_equal(fitted_on(small, Streams(seed)), small.features[train].min(axis=0))
        everywhere = fitted_on(small, Streams(seed, published=True))
        np.testing.assert_array_equal(everywhere, small.features.min(axis=0))


def test_law_school_is_not_scaled_in_the_published_protocol_and_a_file_of_that_name_is(small: Table) -> None:
    for source, low in (("law", np.zeros(6)), (None, small.features.min(axis=0))):
        named = replace(small, name="law", source=source)
        np.testing.assert_array_equal(fitted_on(named, Streams(1, published=True)), low)


def test_a_batch_larger_than_all_visits_is_one_batch(small: Table) -> None:
    federation = federate(small)
    results = [
        simulate(federation, [fedavg()], replace(TRAINING, batch_size=size), Streams(1))[0].params
        for size in (10_000, 1_000_000)
    ]
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "must stay finite"), (None, "must keep the model's shape")]
)
def test_a_strategy_that_breaks_the_model_is_stopped(small: Table, value, message) -> None:
    def aggregate(state, cohort):
        return state._replace(params=state.params[:3] if value is None else state.params * value)

    broken = Strategy(fedavg().init, aggregate)
    with pytest.raises(InputError, match=message):
        simulate(federate(small), [broken], TRAINING, Streams(1))
