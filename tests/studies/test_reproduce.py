from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fairfate.errors import InputError
from fairfate.studies.reproduce import findings, printed
from fairfate.studies.reproduce import run as running
from fairfate.studies.reproduce.findings import interval, runs_of
from fairfate.studies.reproduce.page import markdown, page
from fairfate.studies.reproduce.run import configs, reproduce

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "reproduce" / "results"


def test_the_grid_is_the_papers() -> None:
    planned = configs(printed.DATASETS, list(printed.SPLITS), ["published"], 10)
    assert len(planned) == 12
    assert len(planned[0].strategies) == 108 + 3 + 3 + 3 + 3
    assert planned[0].seeds == tuple(range(1, 11))
    paper = configs(["law"], ["rnd"], ["paper"], 2)
    assert sum("+thresholds" in text for text in paper[0].strategies) == 3 * (120 + 27)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["iris"], ["rnd"], ["paper"]), "unknown dataset 'iris'"),
        ((["law"], ["2.0"], ["paper"]), "unknown sigma '2.0'"),
        ((["law"], ["rnd"], ["papers"]), r"unknown protocol 'papers'; did you mean 'paper'\?"),
    ],
)
def test_unknown_parts_are_named(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        configs(*arguments, seeds=1)


def test_the_printed_tables_are_complete() -> None:
    table = printed.printed_tables()
    assert len(table) == 384
    assert set(table["row"]) == set(printed.ROWS)
    assert len(printed.printed_settings()) == 60
    wins = printed.printed_beats().groupby("dataset")["wins"].sum()
    assert wins.to_dict() == {"compas": 7, "adult": 9, "law": 7, "dutch": 8}  # 78, 100, 78 and 88 %


def test_welch_is_scipys_once_the_printed_digit_is_allowed_for() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.7, 0.1, 10)
    theirs = stats.ttest_ind_from_stats(
        values.mean() - 0.005, values.std(ddof=1), 10, 0.6, 0.05, 10, equal_var=False
    )
    assert printed.welch(values, 0.6, 0.05) == pytest.approx(theirs.pvalue)
    assert printed.welch(np.full(10, 0.604), 0.6, 0.0) == 1
    assert printed.welch(np.full(10, 0.61), 0.6, 0.0) < 1e-9


def test_intervals_cover_the_mean() -> None:
    values = np.random.default_rng(0).normal(size=10)
    low, high = interval(values)
    assert low < values.mean() < high
    assert interval(np.full(10, 0.3)) == (pytest.approx(0.3), pytest.approx(0.3))


def rounds_by_hand() -> pd.DataFrame:
    """One strategy, 25 rounds: accuracy falls from 1, SP is constant."""
    frame = pd.DataFrame(
        {"round": np.tile(np.arange(1, 26), 2), "split": ["validation"] * 25 + ["test"] * 25}
    )
    for name in ("accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo"):
        frame[name] = 0.5
    for name in ("sp", "eo", "eqo"):
        frame[f"{name}_published"] = 0.5
    frame["accuracy"] = 1 - frame["round"] / 100
    keys = {
        "dataset": "d",
        "partition": "random",
        "protocol": "paper",
        "strategy": "fedavg",
        "settings": "{}",
    }
    return frame.assign(**keys, metric=None, seed=1, selection_rate=0.4)


def test_a_run_is_its_last_round_and_the_mean_and_swing_of_its_last_twenty() -> None:
    (row,) = runs_of(rounds_by_hand()).to_dict("records")
    late = 1 - np.arange(6, 26) / 100
    assert row["accuracy"] == pytest.approx(0.75)
    assert row["accuracy_late"] == pytest.approx(late.mean())
    assert row["accuracy_swing"] == pytest.approx(late.std(ddof=1))
    assert row["validation_accuracy"] == pytest.approx(0.75)
    assert not row["collapsed"]


@pytest.mark.parametrize(
    ("mcc", "selection_rate", "collapsed"), [(0.04, 0.5, True), (0.3, 0.995, True), (0.3, 0.98, False)]
)
def test_collapsed_models_are_marked(mcc: float, selection_rate: float, collapsed: bool) -> None:
    frame = rounds_by_hand().assign(mcc=mcc, selection_rate=selection_rate)
    assert bool(runs_of(frame)["collapsed"].iloc[0]) is collapsed


def tuning_runs() -> pd.DataFrame:
    """FedAvg and three settings of FAIR-FATE with known validation scores."""
    base = {
        "protocol": "paper",
        "dataset": "law",
        "partition": "random",
        "seed": 1,
        "metric": "",
        "collapsed": False,
    }
    usual = '"momentum": "decaying", "growth": "exponential"}'
    rows = [
        {**base, "strategy": "fedavg", "settings": "{}", "validation_accuracy": 0.8, "validation_sp": 0.3}
    ]
    for number, (accuracy, fairness) in enumerate([(0.79, 0.6), (0.785, 0.7), (0.7, 0.99)]):
        rows.append(
            {
                **base,
                "strategy": "fair_fate",
                "metric": "sp",
                "settings": f'{{"lam0": {number}, {usual}',
                "validation_accuracy": accuracy,
                "validation_sp": fairness,
            }
        )
    frame = pd.DataFrame(rows)
    for name in ("eo", "eqo"):
        frame[f"validation_{name}"] = 0.5
    return frame


def test_tuning_takes_the_fairest_setting_that_is_accurate_enough() -> None:
    for tolerance, chosen in ((0.02, '{"lam0": 1'), (0.011, '{"lam0": 0'), (0.2, '{"lam0": 2')):
        tuned = findings.tune(tuning_runs(), tolerance)
        mine = tuned[(tuned["method"] == "fair_fate") & (tuned["goal"] == "sp")]
        assert len(mine) == 1
        assert mine["settings"].iloc[0].startswith(chosen)
        assert mine["grid"].iloc[0] == 3


def test_the_accuracy_that_counts_may_be_another_methods() -> None:
    runs = tuning_runs()
    other = runs[runs["strategy"] == "fedavg"].assign(strategy="fedavg_lr", validation_accuracy=0.71)
    tuned = findings.tune(pd.concat([runs, other], ignore_index=True), 0.02, "fedavg_lr")
    mine = tuned[(tuned["method"] == "fair_fate") & (tuned["goal"] == "sp")]
    assert mine["settings"].iloc[0].startswith('{"lam0": 2')


def test_without_an_accurate_setting_the_most_accurate_is_taken() -> None:
    tuned = findings.tune(tuning_runs(), 0.0)
    assert (
        tuned[(tuned["method"] == "fair_fate") & (tuned["goal"] == "sp")]["settings"]
        .iloc[0]
        .startswith('{"lam0": 0')
    )


@pytest.mark.data
def test_a_small_reproduction_from_end_to_end(tmp_path: Path, data_folder: Path, monkeypatch) -> None:
    """COMPAS, random split, two seeds, fewer settings: the same outputs as the whole."""
    few = (
        "fedavg",
        "fedavg_lr",
        "fedavg_gr",
        "fedmom:beta=0.8",
        "feddemon:beta0=0.8",
        "fedval:metric=sp|eo|eqo",
    )
    fair = "fair_fate:metric=sp|eo|eqo,lam0=0.1,rho=0.04|0.05,max=1,beta0=0.9"
    monkeypatch.setattr(running, "STRATEGIES", (*few, fair))
    done = reproduce(
        tmp_path, datasets=["compas"], splits=["rnd"], seeds=2, jobs=1, data_dir=str(data_folder)
    )
    text = done.page.read_text()
    for part in (
        "## What holds",
        "## The printed tables",
        "## The protocol `paper`",
        "### Table 1",
        "COMPAS",
    ):
        assert part in text
    assert "nan" not in text
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    for figure in ("figure1-compas", "figure2-compas", "figure3-compas", "tradeoff-compas", "ablation"):
        assert {f"{figure}.png", f"{figure}.svg"} <= names
    assert (tmp_path / "results" / "table1.tex").read_text().startswith(r"\\begin{tabular}"[1:])
    # 5 rows without a metric have 4 measures, 3 of FedVal and 3 of FAIR-FATE have accuracy and their own
    assert len(done.tables["comparison"]) == 5 * 4 + 3 * 2 + 3 * 2
    before = (done.page.read_bytes(), (tmp_path / "results" / "honest.csv").read_bytes())
    again = reproduce(
        tmp_path, datasets=["compas"], splits=["rnd"], seeds=2, jobs=1, data_dir=str(data_folder)
    )
    assert again.sweep.ran == 0
    assert (again.page.read_bytes(), (tmp_path / "results" / "honest.csv").read_bytes()) == before


def test_the_page_is_that_of_the_kept_results() -> None:
    expected = page(findings.read(KEPT), "images/reproduction")
    assert (ROOT / "docs" / "reproduction.md").read_text() == expected


def test_the_kept_results_are_complete_and_small() -> None:
    about = pd.read_csv(KEPT / "about.csv").iloc[0]
    assert about["seeds"] == 10
    assert about["published_runs"] == 4 * 3 * 10 * 120
    settings = pd.read_csv(KEPT / "settings.csv")
    assert (
        len(settings[(settings["strategy"] == "fair_fate") & (settings["protocol"] == "published")])
        == 12 * 108
    )
    size = sum(path.stat().st_size for path in KEPT.iterdir())
    assert size < 3_000_000
    for number in (1, 2):
        comparison = findings.read(KEPT)["comparison"]
        assert (KEPT / f"table{number}.md").read_text() == markdown(comparison, number)


def test_the_printed_tables_were_met() -> None:
    comparison = findings.read(KEPT)["comparison"]
    usual = comparison[comparison["note"] == ""]
    assert len(usual) == 384 - 4 * 8 - 1
    assert usual["agrees"].mean() >= 0.95
