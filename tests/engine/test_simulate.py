from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import oracle
from builders import fair_clients, simulated
from fairfate.data import Table, synthetic
from fairfate.data.groups import Groups
from fairfate.engine.loop import MeasuredTogether
from fairfate.engine.server import Replies, Server
from fairfate.engine.simulate import simulate
from fairfate.errors import InputError
from fairfate.experiments.run import run
from fairfate.fairness import metrics
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.models.mlp import Mlp
from fairfate.models.rows import PackedRows
from fairfate.models.training import Training
from fairfate.strategies import LossTerms, Setup, Strategy, parse_spec, register, registry
from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.registry import _ENTRIES

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAINING = Training(rounds=4, per_round=3, epochs=2)
ALL = [
    "fedavg",
    "fedavg_lr",
    "fedavg_gr",
    "fedmom",
    "feddemon",
    "fedval",
    "fair_fate",
    "fair_fate:metric=sp",
    "fairfed",
    "fairfed:variant=exp,local=none,metric=sp",
    "prejudice:scope=batch",
    "prejudice",
    "prejudice:scope=global",
    "ffalm",
    "fairgrad:rate=0.1",
    "fedfact:rate=1",
    "fedprox:mu=1",
    "fedadam",
    "fedyogi",
    "qffl",
    "afl:rate=0.5",
    "fedavg_gr:counts=once",
    "fair_best",
    "fair_avg:alpha=0.4,metric=sp",
    "fair_acc_avg:min_mcc=-1",
    "fedfb:metric=sp",
    "fedfb:step=0.05",
    "fairbatch:alpha=0.05",
    "fedgft:gamma=5",
    "fedminmax:rate=0.5",
    "dual_reweighing",
    "server_step:rho=0.3",
    "fedavg+average",
    "fedval+average+thresholds:from=clients",
]


def federate(table: Table, partition: str = "dirichlet:0.5", clients: int = 8, seed: int = 1) -> Federation:
    return build(table, parse_partition(partition), clients, Streams(seed))


def test_three_rounds_of_fedavg_agree_with_plain_numpy(small: Table) -> None:
    federation, streams = federate(small), Streams(1)
    training = replace(TRAINING, rounds=3)
    (trace,) = simulated(federation, ["fedavg"], training, streams)
    model = Mlp(federation.inputs)
    params = model.initial(streams.weights(model.num_parameters)).astype(np.float64)
    for t, cohort in enumerate(streams.cohorts(3, 8, 3), start=1):
        clients = [c for c in cohort if federation.sizes[c] > 0]
        params = oracle.fedavg_round(federation, model, params, training, streams, t, clients)
    np.testing.assert_allclose(trace.params, params, atol=1e-5)


@pytest.mark.parametrize("published", [False, True])
def test_a_strategy_gives_the_same_bits_alone_and_in_a_stack(small: Table, published: bool) -> None:
    streams = Streams(2, published)
    federation = build(small, parse_partition("dirichlet:0.5"), 8, streams)
    grid = [f"fair_fate:metric=sp,max={i / 20}" for i in range(12)]
    stack = simulated(federation, ALL + grid, TRAINING, streams)
    for i in (0, 1, 2, 6, 7, ALL.index("fedprox:mu=1"), ALL.index("fedgft:gamma=5"), len(ALL) + 2):
        (alone,) = simulated(federation, [(ALL + grid)[i]], TRAINING, streams)
        assert np.array_equal(alone.params, stack[i].params)
        assert np.array_equal(alone.test, stack[i].test)
        assert np.array_equal(alone.validation, stack[i].validation)


def test_strategies_differ_from_each_other(small: Table) -> None:
    traces = simulated(federate(small), ALL, TRAINING, Streams(1))
    assert len({trace.params.tobytes() for trace in traces}) == len(ALL)


def test_counts_cover_the_validation_and_test_rows(small: Table) -> None:
    (trace,) = simulated(federate(small), ["fedavg"], TRAINING, Streams(1))
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
    (trace,) = simulated(federation, ["fedavg"], Training(rounds=20, per_round=4), streams)
    assert metrics.accuracy(trace.test)[-1] > 0.75


def test_lambda_beta_and_the_fair_set_are_on_record(small: Table) -> None:
    traces = simulated(federate(small), ["fedavg", "fair_fate"], TRAINING, Streams(1))
    assert not any(traces[0].notes)
    assert [note["lam"] for note in traces[1].notes] == pytest.approx([0.1 * 1.05**t for t in (1, 2, 3, 4)])
    assert traces[1].notes[-1]["beta"] == 0
    assert all(0 <= fair_clients(note) <= 3 for note in traces[1].notes)


def hand_out(federation: Federation, sizes: list[int]) -> Federation:
    """The same rows, handed to clients of these sizes."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    cells = [np.bincount(federation.rows.cell[a:b], minlength=4) for a, b in pairwise(offsets)]
    rows = replace(federation.rows, offsets=offsets)
    return replace(federation, rows=rows, client_cells=np.array(cells).reshape(-1, 2, 2))


def test_a_client_without_rows_sends_nothing(small: Table) -> None:
    federation = federate(small, "random", 4)
    with_empty = hand_out(federation, [100, 0, 80, 0])
    training = replace(TRAINING, per_round=4)
    for trace in simulated(with_empty, ALL, training, Streams(1)):
        assert np.isfinite(trace.params).all()
        assert max(np.nan_to_num([fair_clients(note) for note in trace.notes])) <= 2


def test_a_round_whose_clients_are_all_empty_keeps_the_model(small: Table) -> None:
    federation = hand_out(federate(small, "random", 4), [0, 0, 0, 180])
    streams = Streams(1)
    cohorts = streams.cohorts(12, 4, 1).ravel()
    training = replace(TRAINING, rounds=12, per_round=1)
    (trace,) = simulated(federation, ["fair_fate"], training, streams)
    quiet = [t for t in range(1, 12) if cohorts[t] != 3]
    assert quiet
    for t in quiet:
        assert np.array_equal(trace.test[t], trace.test[t - 1])
        assert not trace.notes[t]


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
    traces = simulated(replace(federation, validation=validation), ALL, TRAINING, Streams(1))
    assert np.isnan(metrics.sp(traces[7].validation)).all()
    assert {fair_clients(note) for note in traces[7].notes} == {0}
    assert all(np.isfinite(trace.params).all() for trace in traces)


@pytest.mark.parametrize(("clients", "per_round"), [(1, 1), (8, 1), (3, 3)])
def test_small_cohorts_work(small: Table, clients: int, per_round: int) -> None:
    federation = federate(small, clients=clients)
    for trace in simulated(federation, ALL, replace(TRAINING, per_round=per_round), Streams(1)):
        assert np.isfinite(trace.params).all()


def test_more_clients_a_round_than_there_are_is_refused(small: Table) -> None:
    with pytest.raises(InputError, match="per-round must be <= the 2 clients, got 3"):
        simulated(federate(small, clients=2), ["fedavg"], TRAINING, Streams(1))


def test_more_than_two_groups_are_measured_and_reweighed() -> None:
    table = synthetic(rows=400)
    three = replace(
        table,
        group=(np.arange(400) % 3).astype(np.int16),
        grouping=Groups.single("g", ("a", "b", "c")),
    )
    federation = federate(three, clients=3)
    for_two = ("ffalm", "fedfb:step", "fairbatch", "fedgft")
    texts = [text for text in ALL if not text.startswith(for_two)]
    traces = simulated(federation, texts, TRAINING, Streams(1))
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
        simulated(federation, ["fedavg"], replace(TRAINING, batch_size=size), Streams(1))[0].params
        for size in (10_000, 1_000_000)
    ]
    assert np.array_equal(*results)


@pytest.fixture
def broken():
    """Registers strategies for one test."""
    names: list[str] = []

    def add(name: str, strategy: Strategy) -> str:
        register(name, "s", "r")(lambda setup: strategy)
        names.append(name)
        return name

    yield add
    for name in names:
        _ENTRIES.pop(name)


def test_a_strategy_that_changes_the_models_shape_is_stopped(small: Table, broken) -> None:
    shrink = Strategy(AVERAGING.init, lambda state, cohort: state._replace(params=state.params[:3]))
    with pytest.raises(InputError, match="must keep the model's shape"):
        simulated(federate(small), [broken("shrinks", shrink)], TRAINING, Streams(1))


def test_a_round_whose_model_would_not_be_finite_is_discarded(small: Table, broken) -> None:
    explode = Strategy(AVERAGING.init, lambda state, cohort: state._replace(params=state.params * np.nan))
    (trace,) = simulated(federate(small), [broken("explodes", explode)], TRAINING, Streams(1))
    assert np.isfinite(trace.params).all()
    assert {client.outcome for client in trace.clients} == {"dropped"}
    assert {client.reason for client in trace.clients} == {"the new model would not be finite"}


def test_a_client_whose_update_is_not_finite_is_dropped(small: Table) -> None:
    wild = replace(TRAINING, learning_rate=1e5)
    (trace,) = simulated(federate(small), ["prejudice:eta=1000"], wild, Streams(1))
    assert np.isfinite(trace.params).all()


@pytest.mark.parametrize(
    "terms",
    [
        LossTerms(np.ones(3)),
        LossTerms(np.full((2, 2), np.nan)),
        LossTerms(np.ones((2, 2)), np.ones((3, 2))),
        LossTerms(np.ones((2, 2)), np.full((2, 2), np.inf)),
        LossTerms(np.ones((2, 2)), prejudice=np.nan),
    ],
)
def test_error_in_a_client_function_names_it(small: Table, broken, terms: LossTerms) -> None:
    name = broken("nonsense", AVERAGING._replace(local_loss=lambda told, rows, local: terms))
    with pytest.raises(InputError, match="a strategy's local_loss must give a finite"):
        simulated(federate(small), [name], TRAINING, Streams(1))


def test_without_a_reply_everything_stays() -> None:
    server = Server.start(AVERAGING, np.zeros(3, np.float32))
    nothing = Replies((), np.empty((0, 3)), np.empty(0), np.zeros((0, 2, 2, 2), np.int64))
    assert server.take(1, nothing).problem == "no usable reply"
    assert server.params.tolist() == [0, 0, 0]


@pytest.mark.parametrize("hidden", [(), (6, 4)])
def test_other_models_run_all_strategies(small: Table, hidden: tuple[int, ...]) -> None:
    federation = federate(small)
    stack = simulated(federation, ALL, TRAINING, Streams(1), hidden)
    for i in (0, 6, 10, 11):
        (alone,) = simulated(federation, [ALL[i]], TRAINING, Streams(1), hidden)
        assert np.array_equal(alone.params, stack[i].params)


@pytest.mark.parametrize("text", ["fairfed:beta=0,local=none", "prejudice:eta=0", "fairgrad:rate=0"])
def test_a_strength_of_zero_is_fedavg_to_the_bit(small: Table, text: str) -> None:
    fedavg_trace, other = simulated(federate(small), ["fedavg", text], TRAINING, Streams(1))
    if text.startswith("prejudice"):  # trained in one piece for each epoch, so with other batches
        (other,) = simulated(federate(small), ["prejudice:eta=0,scope=batch"], TRAINING, Streams(1))
    assert np.array_equal(fedavg_trace.params, other.params)


def test_an_average_is_the_mean_of_the_last_models(small: Table) -> None:
    training = replace(TRAINING, rounds=6)
    federation, streams = federate(small), Streams(1)
    (averaged,) = simulated(federation, ["fedavg+average:share=0.5"], training, streams)
    models = [
        simulated(federation, ["fedavg"], replace(training, rounds=t), streams)[0].params for t in (4, 5, 6)
    ]
    np.testing.assert_allclose(averaged.params, np.mean(models, axis=0), atol=1e-7)


def test_a_model_in_plain_numpy_is_the_built_in_one_without_a_layer(small: Table) -> None:
    spec = importlib.util.spec_from_file_location("numpy_model", EXAMPLES / "numpy_model.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    federation, streams, setup = federate(small), Streams(1), Setup(4)
    specs = [parse_spec(text, "eqo") for text in ("fedavg", "fairfed", "prejudice", "fair_fate")]
    theirs = example.Logistic(federation.inputs)
    theirs.initial = Mlp(federation.inputs, ()).initial
    for one, other in zip(
        simulate(federation, specs, theirs, TRAINING, setup, streams),
        simulate(federation, specs, Mlp(federation.inputs, ()), TRAINING, setup, streams),
        strict=True,
    ):
        np.testing.assert_allclose(one.params, other.params, atol=2e-3)
    assert len((EXAMPLES / "numpy_model.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("stop", [1, 3])
def test_a_killed_simulation_continues_to_the_same_result(small: Table, tmp_path: Path, stop: int) -> None:
    federation, streams, setup = federate(small), Streams(1), Setup(4)
    specs = [parse_spec(text, "eqo") for text in ALL]
    model, file = Mlp(federation.inputs), tmp_path / "c" / "seed-1.safetensors"
    whole = simulate(federation, specs, model, TRAINING, setup, streams, record_clients=True)
    done = 0

    def interrupt() -> None:
        nonlocal done
        done += 1
        if done == stop:
            raise KeyboardInterrupt

    options = {"record_clients": True, "checkpoint": file, "seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        simulate(federation, specs, model, TRAINING, setup, streams, interrupt, **options)
    rounds: list[int] = []
    again = simulate(federation, specs, model, TRAINING, setup, streams, lambda: rounds.append(1), **options)
    assert len(rounds) == 4
    for one, other in zip(whole, again, strict=True):
        assert np.array_equal(one.params, other.params), one.spec.text
        assert np.array_equal(one.test, other.test)
        assert np.array_equal(one.validation, other.validation)
        assert [c[:5] for c in one.clients] == [c[:5] for c in other.clients]
        for mine, theirs in zip(one.notes, other.notes, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(np.array_equal(mine[key], theirs[key]) for key in mine)
    other_run = [parse_spec("fedmom", "eqo")]
    assert simulate(federation, other_run, model, TRAINING, setup, streams, **options)[0].rounds == [
        1,
        2,
        3,
        4,
    ]


def test_fairness_of_all_settings_is_measured_in_one_call_a_round(
    small: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def counted(counts: metrics.Counts) -> metrics.Values:
        measured.append(len(counts))
        return metrics.eo(counts)

    monkeypatch.setitem(metrics.FAIRNESS, "eo", counted)
    registry._bound.cache_clear()
    settings = [f"fair_fate:metric=eo,lam0={share}" for share in (0.1, 0.2, 0.3)]
    federation = build(small, parse_partition("random"), 5, Streams(1))
    simulated(federation, [*settings, "fedval:metric=eo", "fedavg"], TRAINING, Streams(1))
    registry._bound.cache_clear()
    assert measured == [4 * (TRAINING.per_round + 1)] * TRAINING.rounds  # not fedavg's, who judges nobody


def test_what_is_measured_together_is_what_each_would_find_and_cannot_be_changed() -> None:
    rng = np.random.default_rng(0)
    counts = [rng.integers(1, 9, (number, 2, 2, 2)) for number in (3, 1, 4)]
    together = MeasuredTogether([counts[0], None, counts[1], counts[2]])
    assert together.metrics_of(1) is None
    for place, of in zip((0, 2, 3), counts, strict=True):
        measure = together.metrics_of(place)
        assert measure is not None
        found = measure(metrics.eqo)
        np.testing.assert_array_equal(found, metrics.eqo(of))
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1


def test_equal_models_are_scored_once(small: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []

    def count(self: Mlp, models: np.ndarray, rows: PackedRows) -> metrics.Counts:
        scored.append(len(models))
        return plain(self, models, rows)

    plain = Mlp.count
    monkeypatch.setattr(Mlp, "count", count)
    federation = build(small, parse_partition("random"), 5, Streams(1))
    same = simulated(federation, ["fedavg", "fedprox:mu=0", "fedmom"], TRAINING, Streams(1))
    assert max(scored) == 2  # fedavg's and fedprox's are one
    np.testing.assert_array_equal(same[0].test, same[1].test)
