"""`fairfate predict` and `evaluate`: from a file to decisions, without touching code."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import made_up
from command import Outcome
from fairfate import FairModel
from fairfate.experiments.run import run
from fairfate.fairness.intervals import bootstrap, wilson
from fairfate.models.fair_model import TRAINED_ON

FILES = {
    "bank": ("subscribed", "yes", "origin"),
    "census": ("rich", "1", "race"),
    "credit": ("risk", "good", "age"),
    "hospital": ("readmitted", "yes", "region"),
}


@pytest.fixture(scope="module", params=list(FILES))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A run on the first part of a file; the rest is new."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    frame = getattr(made_up, name)(2400)
    made_up.write(frame[:2000], folder / "old.csv")
    made_up.write(frame[2000:], folder / "labelled.csv")
    target, favourable, sensitive = FILES[name]
    run(
        data=folder / "old.csv",
        target=target,
        favourable=favourable,
        sensitive=sensitive,
        strategies=["fedavg", "fedavg+average+thresholds:from=clients"],
        rounds=30,
        seeds=2,
        jobs=1,
        out=folder / "run",
    )
    return name, folder


def test_from_a_file_to_decisions_on_rows_as_they_come(trained, fairfate) -> None:
    name, folder = trained
    target, favourable, _ = FILES[name]
    new = pd.read_csv(folder / "labelled.csv").drop(columns=target)
    dates = ("iban", "admitted", "last call")
    text = next(name for name in new.columns if new[name].dtype.kind in "OT" and name not in dates)
    new.loc[:9, text] = "never seen"
    new = new[list(reversed(new.columns))].assign(extra="x")
    new.to_csv(folder / "new.csv", index=False)
    for strategy in ("fedavg", "fedavg+average+thresholds"):
        words = ["predict", str(folder / "run"), "--strategy", strategy, "--data", str(folder / "new.csv")]
        code, out, err = fairfate(*words, "--out", "scored.csv", "--force")
        if text in FILES[name] and "never seen" in err and code == 2:
            continue  # a group without a threshold
        assert code == 0, err
        assert "400 rows" in out
        scored = pd.read_csv("scored.csv")
        assert list(scored.columns) == [*new.columns, "probability", "prediction"]
        assert scored["probability"].between(0, 1).all()
        assert set(scored["prediction"].astype(str)) <= {favourable, *_other(name)}
        file = next((folder / "run" / "models").glob(f"{strategy.replace('+', '-')}-seed-1.safetensors"))
        model = FairModel.load(file)
        again = model.score(pd.read_csv(folder / "new.csv"))
        assert np.allclose(scored["probability"], again.probability)


def _other(name: str) -> set[str]:
    return {"bank": {"no"}, "census": {"0"}, "credit": {"bad"}, "hospital": {"no"}}[name]


def test_evaluation_says_how_sure_it_is(trained, fairfate) -> None:
    name, folder = trained
    data = ["--data", str(folder / "labelled.csv")]
    code, out, err = fairfate("evaluate", str(folder / "run"), "--strategy", "fedavg", *data)
    assert code == 0, err
    assert "400 rows" in " ".join(out.split()) or "rows without a value are left out" in err
    for word in ("accuracy", "mcc", "eqo", "95 % interval", "TPR", FILES[name][2]):
        assert word in out
    model = FairModel.load(folder / "run" / "models" / "fedavg-seed-1.safetensors")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts, _ = model.evaluate(pd.read_csv(folder / "labelled.csv"))
    assert f"{(counts[:, 0, 0] + counts[:, 1, 1]).sum() / counts.sum():.3f}" in out


@pytest.fixture
def credit(tmp_path: Path) -> Path:
    made_up.write(made_up.credit(400), tmp_path / "credit.csv")
    run(
        data=tmp_path / "credit.csv",
        target="risk",
        favourable="good",
        sensitive="age",
        strategies=["fedavg"],
        rounds=20,
        seeds=1,
        jobs=1,
        out=tmp_path / "run",
    )
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere", "--data", "credit.csv"], "model must be a .safetensors file, got 'nowhere' (no such"),
        (["empty", "--data", "credit.csv"], "run must be the folder of a run with models, got 'empty'"),
        (["run", "--data", "none.csv"], "no such file"),
        (
            ["run", "--data", "credit.csv", "--strategy", "fedval"],
            "strategy must be one of the run's (fedavg)",
        ),
        (["run", "--data", "credit.csv", "--strategy", "fedavg", "--seed", "9"], "seed must be one of"),
        (["run/models/fedavg-seed-1.safetensors", "--data", "credit.csv", "--seed", "1"], "must be left out"),
        (["run", "--data", "short.csv"], "did you mean 'Amount'?"),
        (["run", "--data", "words.csv"], "column 'amount' must hold numbers, got text"),
    ],
)
def test_bad_input_is_one_message(credit: Path, fairfate, words: list[str], message: str) -> None:
    (credit / "empty").mkdir()
    frame = pd.read_csv(credit / "credit.csv")
    frame.rename(columns={"amount": "Amount"}).to_csv(credit / "short.csv", index=False)
    frame.assign(amount="much").to_csv(credit / "words.csv", index=False)
    indices = [
        str(credit / word) if (credit / word).exists() or word == "none.csv" else word for word in words
    ]
    for command in (["predict", *indices, "--out", "scored.csv"], ["evaluate", *indices]):
        code, _, err = fairfate(*command)
        assert code == 2, command
        assert message.partition(", got '")[0] in err
        assert "Traceback" not in err
    assert not Path("scored.csv").exists()


def test_column_of_mixed_types_is_written_to_parquet_as_text(credit: Path, fairfate) -> None:
    rows = pd.read_csv(credit / "credit.csv").assign(extra="x").to_dict("records")[:4]
    for row, extra in zip(rows, ("a", 1.5, None, True), strict=True):
        row["extra"] = extra
    (credit / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = fairfate(
        "predict",
        str(credit / "run"),
        "--strategy",
        "fedavg",
        "--data",
        str(credit / "mixed.jsonl"),
        "--out",
        "m.parquet",
    )
    assert code == 0, err
    assert pd.read_parquet("m.parquet")["extra"].fillna("").tolist() == ["a", "1.5", "", "True"]


def test_names_of_columns_that_are_taken_are_not_changed(credit: Path, fairfate) -> None:
    frame = pd.read_csv(credit / "credit.csv").assign(prediction="mine", probability=7)
    frame.to_csv(credit / "taken.csv", index=False)
    words = ["predict", str(credit / "run"), "--strategy", "fedavg", "--data", str(credit / "taken.csv")]
    code, _, err = fairfate(*words, "--out", "scored.parquet")
    assert code == 0, err
    assert "the column 'risk' is the label, and ignored" in err
    scored = pd.read_parquet("scored.parquet")
    assert set(scored["prediction"]) == {"mine"}
    assert set(scored["prediction_"]) <= {"good", "bad"}
    code, _, err = fairfate(*words, "--out", "scored.xls")
    assert (code, "out must end with .csv or .parquet" in err) == (2, True)
    code, _, err = fairfate(*words, "--strict", "--out", "strict.csv")
    assert code in (0, 2)


def test_a_run_that_recommends_nothing_says_so(credit: Path, fairfate) -> None:
    shutil.copy(
        credit / "run" / "models" / "fedavg-seed-1.safetensors",
        credit / "run" / "models" / "fedavg-seed-2.safetensors",
    )
    (credit / "run" / "models" / "best.safetensors").unlink(missing_ok=True)
    code, _, err = fairfate(
        "predict", str(credit / "run"), "--data", str(credit / "credit.csv"), "--out", "x.csv"
    )
    assert code == 2
    assert "can be recommended" in err


def test_wilsons_interval_is_scipys() -> None:
    from scipy.stats import binomtest

    for part, whole in ((0, 5), (3, 10), (50, 50), (7, 1000)):
        low, high = wilson(np.array([part]), np.array([whole]))
        expected = binomtest(part, whole).proportion_ci(method="wilson")
        assert low[0] == pytest.approx(expected.low)
        assert high[0] == pytest.approx(expected.high)


def test_people_drawn_anew_are_as_many_and_the_same_each_time() -> None:
    counts = np.array([[[30, 10], [5, 20]], [[40, 2], [3, 9]]])
    drawn = bootstrap(counts, 500)
    assert (drawn.sum(axis=(1, 2, 3)) == counts.sum()).all()
    assert np.array_equal(drawn, bootstrap(counts, 500))
    assert np.allclose(drawn.mean(axis=0), counts, atol=1.5)


def test_the_users_own_cells_stay_as_they_are_written(credit: Path, fairfate) -> None:
    frame = pd.read_csv(credit / "credit.csv").assign(zip="01234", note=" NA", share="12,5 %")
    frame.to_csv(credit / "own.csv", index=False, sep=";")
    words = ["predict", str(credit / "run"), "--strategy", "fedavg", "--data", str(credit / "own.csv")]
    assert fairfate(*words, "--out", "scored.csv").code == 0
    scored = pd.read_csv("scored.csv", dtype=str, keep_default_na=False)
    assert set(scored["zip"]) == {"01234"}
    assert set(scored["note"]) == {" NA"}
    assert set(scored["share"]) == {"12,5 %"}


def test_no_cell_of_a_csv_file_is_a_formula_to_a_spreadsheet(fairfate) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "hired": rng.choice(["@yes", "no"], 400),
            "=sex": rng.choice(["=1+1", "+m", "-f"], 400),
            "town": rng.choice(["=HYPERLINK(1)", "Ulm", "-"], 400),
            "change": rng.choice(["-4,5", "+1e3", "3"], 400),
            "score": rng.normal(size=400),
        }
    )
    frame.to_csv("=people.csv", index=False)
    words = ["--target", "hired", "--favourable", "@yes", "--sensitive", "=sex", "--rounds", "2"]
    outcome = fairfate(
        "run", "--data", "=people.csv", *words, "--seeds", "1", "--jobs", "1", "--out", "o", "--decimal", ","
    )
    assert outcome.code == 0, outcome.err
    model = ["o", "--strategy", "fedavg", "--data", "=people.csv", "--decimal", ","]
    assert fairfate("predict", *model, "--out", "scored.csv").code == 0
    files = [*Path("o").glob("*.csv"), Path("scored.csv")]
    assert {file.name for file in files} == {
        *(
            "baselines.csv",
            "groups.csv",
            "importances.csv",
            "people.csv",
            "report-audit.csv",
            "report-tests.csv",
            "summary.csv",
            "scored.csv",
        )
    }
    for file in files:
        with file.open(newline="", encoding="utf-8") as opened:
            cells = {cell for row in csv.reader(opened) for cell in row if cell.startswith((*"=+-@\t\r",))}
        assert all(cell in ("-", "-4,5", "+1e3") or float(cell) < 0 for cell in cells), (file, cells)
    assert set(pd.read_csv("o/groups.csv")["group"]) == {"'=1+1", "'+m", "'-f"}
    assert pd.read_csv("o/summary.csv")["dataset"][0] == "'=people"
    scored = pd.read_csv("scored.csv", dtype=str)
    assert scored["town"].str.removeprefix("'").tolist() == frame["town"].tolist()
    assert scored["change"].tolist() == frame["change"].tolist()
    assert fairfate("show", "o").code == 0
    assert fairfate("predict", *model, "--out", "scored.parquet").code == 0
    assert pd.read_parquet("scored.parquet")["=sex"].tolist() == frame["=sex"].tolist()


@pytest.mark.parametrize("name", FILES)
def test_evaluating_on_the_training_file_is_warned_of(
    name: str, tmp_path: Path, fairfate: Callable[..., Outcome]
) -> None:
    frame = getattr(made_up, name)(1000)
    made_up.write(frame[:900], tmp_path / "old.csv")
    made_up.write(frame[900:], tmp_path / "new.csv")
    target, favourable, sensitive = FILES[name]
    options = {"target": target, "favourable": favourable, "sensitive": sensitive, "min_group": 0}
    run(data="old.csv", **options, strategies="fedavg", rounds=5, seeds=1, jobs=1, out="run")
    old = fairfate("evaluate", "run", "--strategy", "fedavg", "--data", "old.csv")
    assert old.code == 0, old.err
    assert "Warning: these rows were used to train" in " ".join(old.out.split())
    assert "accuracy" in old.out
    new = fairfate("evaluate", "run", "--strategy", "fedavg", "--data", "new.csv")
    assert new.code == 0, new.err
    assert "Warning" not in new.out + new.err


def test_evaluating_on_any_file_that_the_run_learned_from_is_warned_of(
    tmp_path: Path, fairfate: Callable[..., Outcome]
) -> None:
    frame = made_up.credit(900)
    for file, rows in {"a": slice(300), "b": slice(300, 600), "c": slice(600, None)}.items():
        made_up.write(frame[rows], tmp_path / f"{file}.csv")
    made_up.write(frame.assign(site="x")[:300], tmp_path / "sites.csv")
    frame[:300].to_parquet(tmp_path / "a.parquet")
    options = {
        "target": "risk",
        "favourable": "good",
        "sensitive": "age:40",
        "rounds": 3,
        "seeds": 1,
        "jobs": 1,
    }
    run(data="a.csv", validation="b.csv", test="c.csv", **options, strategies="fedavg", out="three")
    run(data="sites.csv", client_column="site", clients=1, **options, strategies="fedavg", out="sites")
    for folder, file, warned in (
        ("three", "a.csv", True),
        ("three", "b.csv", True),
        ("three", "c.csv", False),
        ("sites", "sites.csv", True),
        ("sites", "a.csv", True),  # the rows are the same, whichever client has them
    ):
        outcome = fairfate("evaluate", folder, "--strategy", "fedavg", "--data", file)
        assert outcome.code == 0, outcome.err
        assert ("Warning: these rows" in " ".join(outcome.out.split())) is warned, (folder, file)


def test_a_model_with_odd_checksums_still_evaluates(credit: Path) -> None:
    model = FairModel.load(credit / "run" / "models" / "fedavg-seed-1.safetensors")
    rows = pd.read_csv(credit / "credit.csv")
    expected, scored = model.evaluate(rows)
    assert scored.notes[0] == TRAINED_ON
    for odd in (None, 3, "x", {}, [None]):
        counts, scored = replace(model, about={**model.about, "rows-checksums": odd}).evaluate(rows)
        assert np.array_equal(counts, expected)
        assert TRAINED_ON not in scored.notes
