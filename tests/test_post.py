from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate import metrics
from fairfate.data import synthetic
from fairfate.engine import mlp
from fairfate.errors import InputError
from fairfate.experiment import run
from fairfate.federation import build
from fairfate.partition import parse_partition
from fairfate.post import Thresholds, apply, choose, parse_post, post_counts
from fairfate.streams import Streams


def margins(sizes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(i % 2, 1, size).astype(np.float32) for i, size in enumerate(sizes)]


def brute_force(found: list[np.ndarray], fairness: metrics.Metric, tolerance: float) -> tuple[float, float]:
    """Best fairness and its accuracy over all cuts between rows, by plain counting."""
    cuts = []
    for g in range(len(found) // 2):
        rows = np.unique(np.concatenate(found[2 * g : 2 * g + 2])).astype(float)
        cuts.append([rows[0] - 1, *((rows[1:] + rows[:-1]) / 2), rows[-1] + 1, 0.0])
    tried = []
    for pick in itertools.product(*cuts):
        y = np.concatenate([np.full(len(cell), i % 2) for i, cell in enumerate(found)])
        group = np.concatenate([np.full(len(cell), i // 2) for i, cell in enumerate(found)])
        p = np.concatenate([cell > pick[i // 2] for i, cell in enumerate(found)])
        counts = metrics.count(y, p, group=group)
        tried.append((float(np.nan_to_num(fairness(counts), nan=-1)), float(metrics.accuracy(counts))))
    best = max(accuracy for _, accuracy in tried)
    return max(pair for pair in tried if pair[1] >= best - tolerance)


@given(st.integers(0, 500), st.sampled_from(["sp", "eo", "eqo"]), st.sampled_from([0.0, 0.05, 0.3]))
def test_the_chosen_thresholds_are_the_best_of_all(seed: int, metric: str, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    found = margins(tuple(rng.integers(1, 8, 4)), seed)
    fairness = metrics.FAIRNESS[metric]
    counts = apply(found, choose(found, fairness, tolerance))
    expected = brute_force(found, fairness, tolerance)
    assert (float(fairness(counts)), float(metrics.accuracy(counts))) == pytest.approx(expected)


def test_three_groups_have_three_thresholds() -> None:
    found = margins((30, 30, 20, 25, 9, 14), 1)
    thresholds = choose(found, metrics.sp, 0.1)
    assert thresholds.shape == (3,)
    plain = apply(found, np.zeros(3))
    assert metrics.sp(apply(found, thresholds)) > metrics.sp(plain)


def test_margins_are_the_log_odds_of_plain_numpy() -> None:
    table = synthetic(rows=200)
    federation = build(table, parse_partition("random"), 3, Streams(1))
    model = Streams(2).weights(mlp.num_parameters(6, 7)).astype(np.float32)
    found = federation.test.margins(model, 7)
    _, _, test = Streams(1).split(200)
    x = federation.encoder.transform(table.features[test])
    p = mlp.probabilities(mlp.arrays(model, 6, 7), x)
    for cell in range(4):
        expected = np.log(p / (1 - p))[table.cell[test] == cell]
        np.testing.assert_allclose(found[cell], expected, atol=1e-4)


def test_zero_thresholds_are_the_models_own_predictions() -> None:
    table = synthetic(rows=300)
    federation = build(table, parse_partition("random"), 3, Streams(1))
    model = Streams(2).weights(mlp.num_parameters(6, 10)).astype(np.float32)
    counts = apply(federation.test.margins(model, 10), np.zeros(2))
    np.testing.assert_array_equal(counts, federation.test.score(model[None], 10)[0])


def test_thresholds_only_look_at_the_validation_rows() -> None:
    table = synthetic(rows=300)
    federation = build(table, parse_partition("random"), 3, Streams(1))
    model = Streams(2).weights(mlp.num_parameters(6, 10)).astype(np.float32)
    step = Thresholds("sp", 0.02)
    once = post_counts(step, metrics.sp, model, federation.validation, federation.test, 10)
    other = post_counts(step, metrics.sp, model, federation.validation, federation.validation, 10)
    np.testing.assert_array_equal(once[0], other[0])
    np.testing.assert_array_equal(other[0], other[1])


def test_a_step_has_its_own_rows() -> None:
    finished = run(
        data="synthetic:rows=400",
        rounds=3,
        seeds=(1, 2),
        jobs=1,
        post=("thresholds:metric=eo", "thresholds:metric=sp,tolerance=0.1"),
    )
    rows = finished.rounds
    assert set(rows["strategy"]) == {"fedavg", "fair_fate", "fedavg+thresholds", "fair_fate+thresholds"}
    steps = rows[rows["strategy"].str.contains("+", regex=False)]
    assert set(steps["round"]) == {3}
    assert len(steps) == 2 * 2 * 2 * 2
    assert set(steps["metric"]) == {"eo", "sp"}
    assert len(finished.summary) == 2 + 4
    plain = rows[(rows["strategy"] == "fedavg") & (rows["round"] == 3) & (rows["split"] == "validation")]
    after = steps[(steps["strategy"] == "fedavg+thresholds") & (steps["split"] == "validation")]
    merged = after.merge(plain, on="seed", suffixes=("", "_plain"))
    for metric in ("eo", "sp"):
        mine = merged[merged["metric"] == metric]
        assert (mine["accuracy"] >= mine["accuracy_plain"] - 0.1001).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threshold", "unknown post step 'threshold'; did you mean 'thresholds'"),
        ("thresholds:metric=dp", r"thresholds: metric must be one of sp\|eo\|eqo, got 'dp'"),
        ("thresholds:tolerance=2", r"thresholds: tolerance must be in \[0, 1\], got 2"),
        ("thresholds:tol=2", "unknown setting of thresholds 'tol'"),
        ("thresholds:0.1", "must be thresholds:key=value,..., got '0.1'"),
    ],
)
def test_bad_steps_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_post(text, "eo")
