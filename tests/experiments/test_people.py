"""Intervals and tests add the variance over people where all seeds have the same test rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import fairfate
from fairfate import InputError
from fairfate.experiments.people import _decide, read_people
from fairfate.fairness.intervals import over_seeds, paired, resample_people
from fairfate.fairness.metrics import METRICS, count
from fairfate.fairness.thresholds import auc_deviations
from fairfate.report.data import ReportData
from fairfate.report.recommendation import paired_tests
from fairfate.results.tables import counts_of


def null_case(rng: np.random.Generator, rows: int, seeds: int) -> dict[str, tuple[float, float]]:
    """p-values with and without people, of two equally good classifiers that see different columns."""
    x = rng.normal(size=(rows, 3))
    label = (x.sum(axis=1) + rng.normal(size=rows) > 0).astype(np.int64)
    group = rng.integers(0, 2, rows)
    order = rng.permutation(rows)
    test, rest = order[: rows // 5], order[rows // 5 :]
    decisions = np.empty((2, seeds, len(test)), dtype=bool)
    for seed in range(seeds):
        train = rng.permutation(rest)[: int(0.6 * rows)]
        for number, columns in enumerate(((0, 2), (1, 2))):
            means = [x[train][label[train] == y][:, columns].mean(axis=0) for y in (0, 1)]
            towards = means[1] - means[0]
            middle = (towards * (means[0] + means[1]) / 2).sum()
            decisions[number, seed] = (x[test][:, columns] * towards).sum(axis=1) > middle
    flat = decisions.reshape(2 * seeds, -1)
    counts = np.stack([count(label[test], d, group=group[test], groups=2) for d in flat])
    drawn = resample_people(flat, 2 * group[test] + label[test], 2, draws=300)
    p_values = {}
    for name in ("accuracy", "eo"):
        first, second = METRICS[name](counts).reshape(2, seeds)
        values = METRICS[name](drawn.reshape(-1, 2, 2, 2)).reshape(-1, 2, seeds).mean(axis=2)
        people = (values[:, 0] - values[:, 1]).var()
        p_values[name] = (float(paired(first, second).p), float(paired(first, second, people=people).p))
    return p_values


def test_equals_on_shared_test_rows_are_rarely_called_different() -> None:
    rng = np.random.default_rng(1)
    cases = [null_case(rng, 600, 5) for _ in range(150)]
    for name in ("accuracy", "eo"):
        without, with_people = np.mean([np.array(case[name]) < 0.05 for case in cases], axis=0)
        assert without > 0.3
        assert with_people <= 0.08  # 5 % of 150 is 7.5 +- 2.7


def test_resampled_people_are_the_same_for_all_models() -> None:
    rng = np.random.default_rng(0)
    stratum = rng.integers(0, 4, 500)
    one = rng.random(500) < 0.5
    drawn = resample_people(np.stack([one, one, ~one]), stratum, 2, draws=400)
    np.testing.assert_array_equal(drawn[:, 0], drawn[:, 1])
    np.testing.assert_array_equal(drawn[:, 0, ..., 0], drawn[:, 2, ..., 1])
    assert (drawn.sum(axis=(2, 3, 4)) == 500).all()
    share = drawn[:, 0, :, :, 1].sum(axis=(1, 2)) / 500
    assert share.std() == pytest.approx(np.sqrt(one.mean() * (1 - one.mean()) / 500), rel=0.15)


def test_people_widen_an_interval_with_satterthwaites_freedom() -> None:
    values = [0.80, 0.82, 0.81, 0.85, 0.82]
    _, low, high = over_seeds(values)
    _, lower, higher = over_seeds(values, people=0.03**2)
    assert lower < low
    assert higher > high
    assert higher - lower == pytest.approx(2 * 2.0 * np.hypot(0.03, 0.0136), rel=0.05)  # t of some 100
    _, same_low, _ = over_seeds(values, people=0.0)
    assert same_low == low
    alike = paired([0.8, 0.9], [0.7, 0.8], people=0.01**2)  # no spread over seeds
    assert alike.p < 0.001


def test_deviation_of_auc_is_that_of_people_drawn_anew() -> None:
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, 400)
    score = np.clip(np.round(rng.normal(label, 1.0) * 3 + 10), 0, 24).astype(int)
    rows = np.array([[np.bincount(score[label == y], minlength=25) for y in (0, 1)]])
    areas = []
    for _ in range(300):
        pick = rng.integers(0, 400, 400)
        areas.append(roc_auc_score(label[pick], score[pick]))
    assert float(auc_deviations(rows)) == pytest.approx(np.std(areas), rel=0.15)


def test_own_file_has_covariances_over_people_and_public_data_has_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc"))
    frame["sex"] = rng.choice(["f", "m"], 400)
    frame["y"] = np.where(frame["a"] + rng.normal(size=400) > 0, "yes", "no")
    frame.to_csv(tmp_path / "p.csv", index=False)
    options = {"strategies": ("fedavg", "fair_fate"), "rounds": 30, "seeds": 3, "jobs": 1}
    run = fairfate.run(
        data=tmp_path / "p.csv",
        target="y",
        favourable="yes",
        sensitive="sex",
        out=tmp_path / "o",
        **options,
    )
    assert run.people is not None
    again = fairfate.load_run(tmp_path / "o").people
    assert again is not None
    np.testing.assert_allclose(again["accuracy"], run.people["accuracy"])
    accuracy = run.summary["accuracy_last_mean"][0]
    alone = accuracy * (1 - accuracy) / 80
    assert 0.25 * alone < run.people["accuracy"][0, 0] < 1.2 * alone
    data = ReportData.from_runs([run])
    assert data.shares_test_rows
    tests = paired_tests(data, 0)["rows"]
    without = ReportData.from_runs([fairfate.run(data="synthetic:rows=400", **options)])
    assert without.people is None
    assert not without.shares_test_rows
    row = next(row for row in tests if row["metric"] == "accuracy")
    known = run.people["accuracy"]
    difference = np.sqrt(known[0, 0] + known[1, 1] - 2 * known[0, 1])
    assert row["high"] - row["low"] >= 2 * 1.96 * difference
    (tmp_path / "o" / "people.csv").write_text("metric,strategy,other,covariance\naccuracy,7,1,0.1\n")
    with pytest.raises(InputError, match=r"people\.csv"):
        read_people(tmp_path / "o", 2)


def test_decisions_about_people_are_those_that_were_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 3)), columns=list("abc"))
    frame["sex"] = rng.choice(["f", "m"], 500)
    frame["y"] = np.where(frame["a"] + (frame["sex"] == "m") + rng.normal(size=500) > 0, "yes", "no")
    frame.to_csv(tmp_path / "p.csv", index=False)
    run = fairfate.run(
        data=tmp_path / "p.csv",
        target="y",
        favourable="yes",
        sensitive="sex",
        strategies=(
            "fedavg",
            "fedavg+average+tilt",
            "fedavg+thresholds:from=clients",
            "fedavg+common_threshold",
        ),
        rounds=20,
        seeds=1,
        jobs=1,
    )
    assert run.table is not None
    assert run.plan is not None
    rows = np.sort(run.plan.assign(run.table, run.plan.streams(1)).test)
    last = run.rounds[(run.rounds["round"] == 20) & (run.rounds["split"] == "test")]
    for (name, _), counts in zip(run.models, counts_of(last), strict=True):
        decided = _decide(run.models[name, 1], run.table, rows)
        expected = count(run.table.label[rows], decided, group=run.table.group[rows], groups=2)
        np.testing.assert_array_equal(counts, expected)
