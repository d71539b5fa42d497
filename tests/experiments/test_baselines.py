"""Models of the pooled rows beside the federated ones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import matthews_corrcoef, roc_auc_score

import fairfate as library
from command import TWO
from fairfate.errors import InputError
from fairfate.experiments.baselines import COLUMNS, LOGISTIC, pooled_baselines, read_baselines
from fairfate.experiments.config import Config
from fairfate.experiments.prepare import prepare
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build, split_rows


def test_logistic_regression_is_that_of_the_rows_that_clients_train_on() -> None:
    plan, table = prepare(Config(data="synthetic:rows=800", seeds=(3,)))
    logistic, boosting, _ = pooled_baselines(plan, table)
    streams = Streams(3)
    rows = build(table, plan.partition, plan.clients, streams)
    model = LogisticRegression(max_iter=300).fit(rows.rows.x.reshape(len(rows.rows), -1), rows.rows.cell % 2)
    _, _, test = streams.split(len(table))
    inputs, label = rows.encoder.transform(table.features, test), table.label[test]
    assert logistic.name == LOGISTIC
    assert logistic.metrics["mcc"] == pytest.approx(matthews_corrcoef(label, model.predict(inputs)), abs=2e-3)
    auc = roc_auc_score(label, model.predict_proba(inputs)[:, 1])
    assert logistic.metrics["auc"] == pytest.approx(auc, abs=2e-3)
    assert set(boosting.metrics) == set(COLUMNS)
    assert (logistic.seeds, boosting.seeds) == (1, 1)


def test_a_run_writes_shows_and_reads_its_baselines(fairfate, tmp_path: Path) -> None:
    words = ["--data", "synthetic:rows=300", "--rounds", "3", "--seeds", "2", "--jobs", "1"]
    outcome = fairfate("run", *words, *TWO, "--out", "o")
    assert outcome.code == 0, outcome.err
    with open("o/baselines.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    pooled = ["pooled logistic regression", "pooled gradient boosting"]
    assert [row["baseline"] for row in rows] == [*pooled, "majority baseline"]
    assert float(rows[-1]["accuracy"]) >= 0.5
    assert (rows[-1]["mcc"], rows[-1]["eqo"]) == ("0.0", "")
    assert all(len(row[name].partition(".")[2]) <= 3 for row in rows for name in COLUMNS)
    assert "logistic regression " in outcome.out
    assert "logistic regression " in fairfate("show", "o").out
    page = Path("o/report.html").read_text("utf-8")
    assert "pooled gradient boosting" in page
    assert '<th scope="row">majority baseline</th>' in page
    assert outcome.out.count("majority baseline  ") == 1
    assert fairfate("run", *words, *TWO, "--out", "p", "--no-baselines").code == 0
    assert not Path("p/baselines.csv").exists()
    Path("o/baselines.csv").write_text("baseline,seeds\nx,y\n", "utf-8")
    with pytest.raises(InputError, match=r"baselines\.csv"):
        read_baselines(Path("o"))


def test_defaults_invent_no_unfairness(tmp_path: Path) -> None:
    """Dealt out at random, FedAvg is about as fair as logistic regression on the same pooled rows."""
    rng = np.random.default_rng(3)
    sex, skill = rng.choice(["f", "m"], 4000), rng.normal(size=4000)
    hired = skill + 0.4 * (sex == "m") + rng.normal(scale=0.7, size=4000) > 0.2
    frame = pd.DataFrame({"sex": sex, "skill": skill, "noise": rng.normal(size=4000), "hired": hired})
    frame["hired"] = np.where(frame["hired"], "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    run = library.run(
        data=tmp_path / "people.csv",
        target="hired",
        favourable="yes",
        sensitive="sex",
        strategies="fedavg",
        seeds=1,
        rounds=60,
        baselines=True,
        jobs=1,
    )
    assert str(run.plan.partition) == "random"
    (note,) = (note for note in run.plan.notes if "simulated" in note)
    assert "--client-column" in note
    (pooled,) = (item for item in run.baselines if item.name == LOGISTIC)
    assert float(run.summary["eqo_last_mean"].iloc[0]) == pytest.approx(pooled.metrics["eqo"], abs=0.05)


def test_test_rows_are_the_same_in_every_seed(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(600.0), "s": ["a", "b"] * 300, "y": ["n", "n", "p"] * 200})
    frame.to_csv(tmp_path / "own.csv", index=False)
    _, table = prepare(Config(data=str(tmp_path / "own.csv"), target="y", favourable="p", sensitive=("s",)))
    rows = [split_rows(table, Streams(seed)) for seed in (1, 2)]
    assert set(rows[0][2]) == set(rows[1][2])
    assert set(rows[0][1]) != set(rows[1][1])
    for train, validation, test in rows:
        assert sorted([*train, *validation, *test]) == list(range(600))


def test_few_real_sites_train_in_every_round(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=800), "s": rng.choice(["a", "b"], 800)})
    frame = frame.assign(y=rng.choice(["n", "p"], 800), site=rng.choice(list("KLMNO"), 800))
    frame.to_csv(tmp_path / "own.csv", index=False)
    options = {"data": str(tmp_path / "own.csv"), "target": "y", "favourable": "p", "sensitive": ("s",)}
    plan, _ = prepare(Config(**options, client_column="site"))
    assert (plan.clients, plan.training.per_round) == (5, 5)
    assert plan.notes == ()
    simulated, _ = prepare(Config(**options))
    assert (simulated.clients, simulated.training.per_round) == (10, 3)
    for sites, in_round in ((20, 20), (21, 7)):
        frame.assign(site=np.arange(800) % sites).to_csv(tmp_path / "own.csv", index=False)
        plan, _ = prepare(Config(**options, client_column="site"))
        assert (plan.clients, plan.training.per_round) == (sites, in_round)


def test_baselines_take_few_seeds_and_of_large_files_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that they take a small part of a run's time."""
    plan, table = prepare(Config(data="synthetic:rows=300", seeds=(1, 2, 3, 4, 5)))
    assert {item.seeds for item in pooled_baselines(plan, table)} == {3}
    monkeypatch.setattr("fairfate.experiments.baselines._MOST_ROWS", 299)
    assert {item.seeds for item in pooled_baselines(plan, table)} == {1}


def test_half_of_the_validation_rows_are_the_test_rows_of_every_seed(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(900.0), "s": ["a", "b"] * 450, "y": ["n", "n", "p"] * 300})
    frame[:500].to_csv(tmp_path / "sites.csv", index=False)
    frame[500:].to_csv(tmp_path / "server.csv", index=False)
    files = {"data": str(tmp_path / "sites.csv"), "validation": str(tmp_path / "server.csv")}
    _, table = prepare(Config(**files, target="y", favourable="p", sensitive=("s",)))
    rows = [split_rows(table, Streams(seed)) for seed in (1, 2)]
    assert set(rows[0][2]) == set(rows[1][2])
    assert not set(rows[0][2]) & {*rows[0][0], *rows[0][1]}


def test_short_runs_train_baselines_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing scikit-learn would be a fifth of their time."""

    def fail(*arguments: object) -> None:
        raise AssertionError("trained in this process")

    monkeypatch.setattr("fairfate.experiments.execute.cores", lambda: 2)
    monkeypatch.setattr("fairfate.experiments.execute.pooled_baselines", fail)
    finished = library.run(data="synthetic:rows=300", rounds=2, seeds=1, baselines=True)
    assert next(baseline.name for baseline in finished.baselines) == LOGISTIC
