"""Steps: averages of models, and those against wrong clients (clip, median, trimmed, krum)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fairfate import run
from fairfate.engine.server import Replies, Server
from fairfate.errors import InputError
from fairfate.strategies import (
    Cohort,
    ModelState,
    Setup,
    Strategy,
    entries,
    labels,
    parse_spec,
    weighted_mean,
)
from fairfate.strategies.steps import (
    Average,
    clip,
    each,
    krum,
    krum_scores,
    median,
    scaled,
    trimmed,
)

DELTAS = np.array([[1, 0], [1.2, 0.1], [0.9, -0.1], [10, 10]])


NOTHING = np.zeros((0, 2, 2, 2), dtype=np.int64)


SETUP = Setup(10, learning_rate=0.1)


def test_worked_numbers() -> None:
    assert_allclose(median(DELTAS), [1.1, 0.05])
    assert_allclose(trimmed(DELTAS, 0.25), [1.1, 0.05])
    assert_allclose(krum_scores(DELTAS, 1), [0.02, 0.05, 0.02, 175.45])
    assert_array_equal(krum(DELTAS, 1), DELTAS[0])
    clipped = scaled(DELTAS, clip(1.0)(DELTAS))
    assert_allclose(weighted_mean(clipped, np.ones(4)), [0.900913, 0.172538], atol=1e-6)


def test_median_of_an_odd_number_and_trimming_of_nobody() -> None:
    assert_array_equal(median(DELTAS[:3]), [1, 0])
    assert_allclose(trimmed(DELTAS, 0.2), DELTAS.mean(axis=0))
    assert_allclose(trimmed(np.arange(10.0)[:, None] ** 2, 0.2), [np.mean(np.arange(2, 8) ** 2)])


def test_krum_takes_the_mean_of_several_and_the_earlier_of_two() -> None:
    assert_allclose(krum(DELTAS, 1, 3), DELTAS[:3].mean(axis=0))
    assert_array_equal(krum(DELTAS, 1, 99), DELTAS.mean(axis=0))
    assert_array_equal(krum(DELTAS[:2], 1), DELTAS[0])
    assert_array_equal(krum(DELTAS[1::-1], 1), DELTAS[1])


def test_clip_by_the_median_norm_leaves_short_updates_their_bits() -> None:
    deltas = np.array([[3, 4], [0, 1], [0.6, 0.7], [0, 20]], dtype=np.float32)
    factors = clip()(deltas)
    middle = (5 + 1) / 2
    assert_allclose(factors, [middle / 5, 1, 1, middle / 20])
    assert_array_equal(scaled(deltas, factors)[1:3], deltas[1:3])


@pytest.mark.parametrize("rule", [median, lambda d: trimmed(d, 0.2), krum])
def test_only_clients_with_a_weight_count(rule) -> None:
    combined = each(rule)(DELTAS, np.array([1, 1, 1, 0]), np.zeros(4), np.array([0, 0, 5, 0]))
    assert_array_equal(combined[0], rule(DELTAS[:3]))
    assert_array_equal(combined[1], [0, 0])
    assert_array_equal(combined[2], DELTAS[2])


OURS = [e.name for e in entries() if e.build.__module__.startswith("fairfate.")]


@pytest.mark.parametrize("step", ["clip", "median", "trimmed", "krum", "clip+trimmed"])
def test_one_client_is_as_without_a_step(step: str) -> None:
    deltas = np.array([[0.3, -2.0, 5.0]], dtype=np.float32)
    counts = np.array([[[[5, 2], [1, 4]], [[3, 3], [2, 6]]]])
    models = []
    for text in ("fair_fate", f"fair_fate+{step}"):
        strategy = parse_spec(text, "eqo").build(SETUP)
        server = Server.start(strategy, np.zeros(3, dtype=np.float32))
        server.counts = counts[0]
        result = deltas if strategy.scale is None else scaled(deltas, strategy.scale(deltas))
        server.take(1, Replies(("a",), result, np.array([7]), counts))
        models.append(server.params)
    assert_array_equal(*models)


def test_fair_fate_takes_the_median_of_its_fair_set_and_of_all() -> None:
    deltas = np.array([[1.0], [2], [4], [100]])
    fair, unfair = [[[4, 4], [2, 6]]] * 2, [[[4, 4], [2, 6]], [[8, 0], [8, 0]]]
    strategy = parse_spec("fair_fate:lam0=0.5,rho=0,beta0=0+median", "sp").build(SETUP)
    server = Server.start(strategy, np.zeros(1))
    server.counts = np.array([[[4, 4], [2, 6]], [[5, 3], [3, 5]]])
    server.take(1, Replies(tuple("abcd"), deltas, np.ones(4), np.array([fair, fair, unfair, unfair])))
    assert server.params.tolist() == [0.5 * 1.5 + 0.5 * 3]


def test_texts_labels_and_records() -> None:
    spec = parse_spec("fedavg+clip+krum:keep=2+average+thresholds", "sp")
    assert spec.label == "fedavg+clip+krum+average+thresholds"
    assert spec.base.text == "fedavg+clip:norm=0+krum:attackers=1,keep=2"
    assert spec.own.text == "fedavg"
    assert parse_spec(spec.text, "eo") == spec
    two = [parse_spec(f"fedavg+trimmed:share={share}+average", "sp") for share in (0.1, 0.2)]
    assert two[0].recorded == {"trimmed_share": 0.1, "share": 0.5}
    assert labels(two) == [
        "fedavg+trimmed+average(trimmed_share=0.1)",
        "fedavg+trimmed+average(trimmed_share=0.2)",
    ]


def test_strategy_that_uses_an_undeclared_need_gets_an_error() -> None:
    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        return ModelState(state.params + weighted_mean(cohort.deltas, cohort.num_examples))

    replies = Replies(tuple("abcd"), DELTAS, np.ones(4), NOTHING)
    plain = Server.start(Strategy(ModelState, aggregate), np.zeros(2))
    assert not plain.take(1, replies).problem
    own = Server.start(Strategy(ModelState, aggregate, combine=each(median)), np.zeros(2))
    with pytest.raises(InputError, match=r"must combine updates by cohort\.mean"):
        own.take(1, replies)


def test_all_strategies_run_with_all_steps(tmp_path: Path) -> None:
    texts = [f"{name}+clip+{step}" for name in OURS for step in ("median", "krum")]
    texts += ["fedavg", "fedavg+clip:norm=1000", "fedavg+clip:norm=0.01", "fedavg+trimmed+average"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finished_run = run(
            data="synthetic", strategies=texts, rounds=3, per_round=5, seeds=1, out=tmp_path / "a"
        )
    rounds = finished_run.rounds
    assert set(rounds["strategy"]) == {parse_spec(text, "eqo").label for text in texts}
    assert rounds["accuracy"].notna().all()
    same = rounds[rounds["strategy"].isin(["fedavg", "fedavg+clip"])].groupby("settings", sort=False)
    values = {key: part["accuracy"].tolist() for key, part in same}
    assert values["{}"] == values['{"clip_norm": 1000.0}'] != values['{"clip_norm": 0.01}']


@pytest.mark.parametrize("step", ["clip", "median", "trimmed", "krum"])
def test_the_example_of_a_strategy_takes_every_robust_step(step: str) -> None:
    plugin = Path(__file__).parents[2] / "examples" / "own_strategy.py"
    options = {"data": "synthetic:rows=300", "rounds": 2, "per_round": 5, "seeds": 1, "jobs": 1}
    rounds = run(**options, plugins=[plugin], strategies=["drop_unfair", f"drop_unfair+{step}"]).rounds
    last = rounds[(rounds["split"] == "test") & (rounds["round"] == 2)]
    assert list(last["strategy"]) == ["drop_unfair", f"drop_unfair+{step}"]


def test_on_flower_whole_numbers_neither_count_nor_change() -> None:
    app = pytest.importorskip("flwr.app")
    from fairfate.flower.messages import Layout
    from fairfate.flower.replies import Received as Sent
    from fairfate.flower.replies import scale_updates

    def record(w: list[float], mean: float, batches: int) -> object:
        values = {"w": np.float32(w), "running_mean": np.float32([mean]), "seen": np.int64([batches])}
        return app.ArrayRecord({name: app.Array(value) for name, value in values.items()})

    layout = Layout.from_record(record([1, 1], 0, 5), ("running_mean",))
    model = layout.flat(record([1, 1], 0, 5))
    records = [record([1, 2], 0, 6), record([1, 1], 20, 900)]
    deltas = np.stack([layout.flat(item) - model for item in records])
    good = Sent([1, 2], list(records), [], deltas, np.ones(2), set(), [])
    scale_updates(good, clip(2.0), layout, model)
    assert good.records[0] is records[0]
    assert_allclose(good.deltas, [[0, 1, 0, 1], [0, 0, 2, 895]])
    assert good.records[1]["running_mean"].numpy().tolist() == [2]
    assert good.records[1]["seen"].numpy().tolist() == [900]


@pytest.mark.parametrize("parameters", [1, 4, 5, 11])
@pytest.mark.parametrize("block", [1, 12, 15, 1000])
def test_the_middle_is_taken_in_pieces_of_any_size(
    parameters: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairfate.strategies.steps._BLOCK", block)
    deltas = np.random.default_rng(0).normal(size=(3, parameters))
    assert_allclose(median(deltas), np.median(deltas, axis=0))
    assert_allclose(trimmed(deltas, 0.2), deltas.mean(axis=0))


def test_krum_with_as_few_clients_as_there_are_still_looks_at_one_neighbour() -> None:
    """Of three clients, one of which may be wrong, none would be left to look at."""
    deltas = np.array([[9.0], [1.0], [1.5]])
    assert krum_scores(deltas, 1).tolist() == [7.5**2, 0.25, 0.25]
    assert krum(deltas, 1).tolist() == [1.0]
    assert krum_scores(np.array([[0.0], [1.0], [3.0], [7.0]]), 0).tolist() == [1 + 9, 1 + 4, 4 + 9, 16 + 36]


def test_very_long_updates_are_measured_in_64_bits() -> None:
    """The square of 1e30 does not fit into 32."""
    factors = clip(1.0)(np.float32([[1e30, 0], [0.5, 0]]))
    assert_allclose(factors, [1e-30, 1.0], rtol=1e-6)
    assert np.isfinite(krum_scores(np.float32([[1e30], [0], [1]]), 0)).all()


def test_an_update_as_long_as_allowed_keeps_its_factor() -> None:
    assert clip(5.0)(np.array([[3.0, 4.0], [6.0, 8.0], [0.0, 0.0]])).tolist() == [1, 0.5, 1]
    assert clip()(np.array([[1.0], [2.0], [4.0]])).tolist() == [1, 1, 0.5]
    assert clip()(np.zeros((2, 3))).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("step", "rule"),
    [
        ("median", median),
        ("trimmed:share=0.25", lambda deltas: trimmed(deltas, 0.25)),
        ("krum:attackers=1,keep=2", lambda deltas: krum(deltas, 1, 2)),
    ],
)
def test_a_step_by_its_name_is_that_rule(step: str, rule) -> None:
    built = parse_spec(f"fedavg+{step}", "eo").build(SETUP)
    (result,) = built.combine(DELTAS, np.ones(4))
    assert_array_equal(result, rule(DELTAS))
    assert not np.allclose(result, DELTAS.mean(axis=0))


@pytest.mark.parametrize(
    ("share", "rounds", "first"), [(1.0, 10, 1), (0.5, 10, 6), (0.01, 10, 10), (0.25, 10, 9), (0.75, 3, 2)]
)
def test_an_average_begins_so_many_rounds_before_the_end(share: float, rounds: int, first: int) -> None:
    """A share of the rounds, to the nearest even number of two, and one at least."""
    assert Average(share, rounds).first == first


def test_an_average_is_of_the_models_from_its_first_round_on() -> None:
    average = Average(0.5, 4)
    models = [np.float32([t, 10 * t]) for t in (1, 2, 3, 4)]
    assert average.add(1, models[0]) is models[0]
    assert average.add(2, models[1]) is models[1]
    assert average.add(3, models[2]).tolist() == [3, 30]
    result = average.add(4, models[3])
    assert result.tolist() == [3.5, 35]
    assert result.dtype == np.float32
    assert average.count == 2


def test_updates_are_multiplied_by_their_factors() -> None:
    deltas = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    result = scaled(deltas, np.array([0.0, 0.5, 1.0, 2.0]))
    assert result.tolist() == [[0, 0], [1.5, 2], [5, 6], [14, 16]]
    assert result.dtype == np.float32
    assert deltas[0].tolist() == [1, 2]
