from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate.data import synthetic
from fairfate.experiments.run import run
from fairfate.fairness import metrics
from fairfate.fairness.thresholds import (
    BINS,
    apply,
    choose_from_histogram,
    choose_from_scores,
    histogram,
)
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models import mlp
from fairfate.models.mlp import Mlp


def margins(sizes: tuple[int, ...], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(i % 2, 1, size).astype(np.float32) for i, size in enumerate(sizes)]


def brute_force(scores: list[np.ndarray], fairness: metrics.Metric, tolerance: float) -> tuple[float, float]:
    """Best fairness and its accuracy over all cuts between rows, by plain counting."""
    cuts = []
    for g in range(len(scores) // 2):
        rows = np.unique(np.concatenate(scores[2 * g : 2 * g + 2])).astype(float)
        cuts.append([rows[0] - 1, *((rows[1:] + rows[:-1]) / 2), rows[-1] + 1, 0.0])
    tried = []
    for pick in itertools.product(*cuts):
        y = np.concatenate([np.full(len(cell), i % 2) for i, cell in enumerate(scores)])
        group = np.concatenate([np.full(len(cell), i // 2) for i, cell in enumerate(scores)])
        p = np.concatenate([cell > pick[i // 2] for i, cell in enumerate(scores)])
        counts = metrics.count(y, p, group=group)
        tried.append((float(np.nan_to_num(fairness(counts), nan=-1)), float(metrics.accuracy(counts))))
    best = max(accuracy for _, accuracy in tried)
    return max(pair for pair in tried if pair[1] >= best - tolerance)


@given(st.integers(0, 500), st.sampled_from(["sp", "eo", "eqo"]), st.sampled_from([0.0, 0.05, 0.3]))
def test_the_chosen_thresholds_are_the_best_of_all(seed: int, metric: str, tolerance: float) -> None:
    rng = np.random.default_rng(seed)
    result = margins(tuple(rng.integers(1, 8, 4)), seed)
    fairness = metrics.FAIRNESS[metric]
    counts = apply(result, choose_from_scores(result, fairness, tolerance, 0.0, "best"))
    expected = brute_force(result, fairness, tolerance)
    assert (float(fairness(counts)), float(metrics.accuracy(counts))) == pytest.approx(expected)


def test_three_groups_have_three_thresholds() -> None:
    result = margins((30, 30, 20, 25, 9, 14), 1)
    thresholds = choose_from_scores(result, metrics.sp, 0.1, 0.0, "best")
    assert thresholds.shape == (3,)
    plain = apply(result, np.zeros(3))
    assert metrics.sp(apply(result, thresholds)) > metrics.sp(plain)


def test_margins_are_the_log_odds_of_plain_numpy() -> None:
    table = synthetic(rows=200)
    federation = build(table, parse_partition("random"), 3, Streams(1))
    model = Mlp(6, (7,))
    params = Streams(2).weights(model.num_parameters).astype(np.float32)
    result = model.margins(params, federation.test)
    _, _, test = Streams(1).split(200)
    x = federation.encoder.transform(table.features[test])
    p = mlp.probabilities(model.arrays(params), x)
    for cell in range(4):
        expected = np.log(p / (1 - p))[table.cell[test] == cell]
        np.testing.assert_allclose(result[cell], expected, atol=1e-4)


def test_zero_thresholds_are_the_models_own_predictions() -> None:
    table = synthetic(rows=300)
    federation = build(table, parse_partition("random"), 3, Streams(1))
    model = Mlp(6)
    params = Streams(2).weights(model.num_parameters).astype(np.float32)
    counts = apply(model.margins(params, federation.test), np.zeros(2))
    np.testing.assert_array_equal(counts, model.count(params[None], federation.test)[0])


@given(st.integers(0, 500), st.sampled_from(["own", "best"]), st.sampled_from([0.0, 0.8, 1.0]))
def test_accuracy_and_skill_to_be_kept_are_kept(seed: int, against: str, keep: float) -> None:
    result = margins((60, 40, 30, 50), seed)
    own = apply(result, np.zeros(2))
    for rows in ("scores", "histogram"):
        rule = (metrics.sp, 0.05, keep, against)
        chosen = (
            choose_from_scores(result, *rule)
            if rows == "scores"
            else choose_from_histogram(histogram(result), *rule)
        )
        after = apply(result, chosen)
        if against == "own":
            assert metrics.accuracy(after) >= metrics.accuracy(own) - 0.05 - 1e-12
            assert metrics.sp(after) >= metrics.sp(own) - 1e-12
        if keep:
            skill = metrics.balanced_accuracy(own) - 0.5
            assert metrics.balanced_accuracy(after) - 0.5 >= keep * skill - 1e-9


def test_histograms_of_clients_add_up_and_say_what_the_scores_say() -> None:
    result = margins((400, 300, 350, 500), 3)
    halves = [[cell[:100] for cell in result], [cell[100:] for cell in result]]
    together = histogram(halves[0]) + histogram(halves[1])
    np.testing.assert_array_equal(together, histogram(result))
    assert together.shape == (2, 2, BINS)
    assert together.sum() == 1550
    rule = (metrics.sp, 0.02, 0.8, "own")
    from_bins = apply(result, choose_from_histogram(together, *rule))
    from_rows = apply(result, choose_from_scores(result, *rule))
    assert metrics.sp(from_bins) > metrics.sp(apply(result, np.zeros(2))) + 0.05
    assert metrics.sp(from_bins) == pytest.approx(metrics.sp(from_rows), abs=0.05)


def test_the_histogram_counts_a_cuts_rows_as_the_scores_do() -> None:
    """Whatever thresholds are chosen from bins, their counts are those of the rows behind them."""
    result = margins((50, 60, 40, 30), 8)
    chosen = choose_from_histogram(histogram(result), metrics.eo, 0.3, 0.0, "best")
    after = apply(result, chosen)
    assert after.sum() == 180
    for g in range(2):
        accepted = [(cell > chosen[g]).sum() for cell in result[2 * g : 2 * g + 2]]
        assert after[g, :, 1].tolist() == accepted


def test_a_step_has_its_own_rows() -> None:
    finished = run(
        data="synthetic:rows=400",
        rounds=3,
        seeds=(1, 2),
        jobs=1,
        strategies=[
            *("fedavg", "fair_fate"),
            *(f"{name}+thresholds:metric=eo" for name in ("fedavg", "fair_fate")),
            *(f"{name}+thresholds:metric=sp,tolerance=0.1" for name in ("fedavg", "fair_fate")),
        ],
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
        own = merged[merged["metric"] == metric]
        assert (own["accuracy"] >= own["accuracy_plain"] - 0.1001).all()


@pytest.mark.parametrize("groups", [4, 6, 12])
@pytest.mark.parametrize("metric", ["sp", "eo", "eqo"])
@pytest.mark.parametrize("histograms", [False, True])
def test_many_groups_get_thresholds_one_after_another(groups: int, metric: str, histograms: bool) -> None:
    """Groups whose scores are shifted against each other: fair thresholds exist and are found."""
    rng = np.random.default_rng(groups)
    margins = [
        rng.normal((2 if label else -2) + 0.15 * g, 1.5, size=400 + 30 * g).astype(np.float32)
        for g in range(groups)
        for label in (0, 1)
    ]
    fairness, rule = metrics.FAIRNESS[metric], (0.02, 0.8, "own")
    if histograms:
        thresholds = choose_from_histogram(histogram(margins), fairness, *rule)
    else:
        thresholds = choose_from_scores(margins, fairness, *rule)
    before, after = apply(margins, np.zeros(groups)), apply(margins, thresholds)
    assert fairness(after) > max(fairness(before), 0.9 if metric != "eqo" else 0.8)
    assert metrics.accuracy(after) >= metrics.accuracy(before) - 0.02 - 1e-9
    assert metrics.mcc(after) > 0.5
