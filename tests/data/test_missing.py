"""Values that stand for a missing one: named by the user, kept by the model, or noted as likely ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command import Outcome
from fairfate import FairModel, load, run
from fairfate.data import Columns, Reading, Schema, ServerFiles, read_file
from fairfate.data.inspection import find_spikes
from fairfate.data.numbers import without_codes
from fairfate.flower.app.node import read_rows

Call = Callable[..., Outcome]
COLUMNS = Columns(target="hired", favourable="1", sensitive=("sex",), min_group=0)
CODES = ("999", "n.b.", "age=-1")
SHORT: dict[str, Any] = {"rounds": 2, "seeds": 1, "strategies": "fedavg", "jobs": 1, "min_group": 0}
NAMED: dict[str, Any] = {"target": "hired", "favourable": 1, "sensitive": "sex"}


def people(rows: int = 400) -> pd.DataFrame:
    """Rows in which 999, n.b. and an age of -1 stand for missing values; -1 is a score like any other."""
    rng = np.random.default_rng(3)
    age = rng.integers(18, 65, rows).astype(object)
    age[::20], age[1::20] = -1, 999
    wage = np.array([f"{value:.2f}" for value in rng.normal(30, 5, rows)], dtype=object)
    wage[2::10] = "n.b."
    hired = rng.integers(0, 2, rows)
    hired[3::40] = 999
    score = rng.integers(-2, 3, rows)
    return pd.DataFrame(
        {"age": age, "wage": wage, "score": score, "sex": rng.choice(["f", "m"], rows), "hired": hired}
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    people().to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_codes_are_missing_before_the_kinds_of_columns_are_found(file: Path) -> None:
    table = load(file, columns=COLUMNS, reading=Reading(missing=CODES))
    frame = people()
    kept = frame[frame["hired"] != 999]
    assert len(table) == len(kept)
    age, wage, score = (table.features[:, table.feature_names.index(name)] for name in frame.columns[:3])
    assert np.isnan(age).tolist() == kept["age"].isin([-1, 999]).tolist()
    assert np.isnan(wage).tolist() == (kept["wage"] == "n.b.").tolist()
    assert not np.isnan(score).any()
    assert "wage" not in table.categories
    plain = load(file, columns=Columns("hired", ("sex",), "1"))
    assert plain.label_names == ("(others)", "1")


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_codes_are_found_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    frame, path = people(), tmp_path / f"people.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False, sep=";", decimal=",")
    elif kind == "json":
        frame.to_json(path, orient="records")
    else:
        frame.astype({"age": int}).to_parquet(path)
    found = read_file(path, Reading(missing=CODES))
    assert found.frame["age"].isna().sum() == 40
    assert found.frame["wage"].isna().sum() == 40
    rows = {code: held for code, held in found.missing.items() if code != "999"}
    assert rows == {"n.b.": 40, "age=-1": 20}


def test_a_number_is_the_same_number_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n;t\n1,5;x\n-9,00;-9\n1.234,5;y\n")
    frame = read_file(tmp_path / "a.csv", Reading(missing=("-9.0",))).frame
    assert frame["n"].isna().tolist() == [False, True, False]
    assert frame["t"].isna().tolist() == [False, True, False]


def test_used_and_unused_codes_are_noted(file: Path) -> None:
    codes = (*CODES, "-77", "score=5", "a=b")
    (file.parent / "more.csv").write_text(file.read_text() + "20,1.0,a=b,f,1\n")
    notes = "\n".join(load(file.parent / "more.csv", columns=COLUMNS, reading=Reading(missing=codes)).notes)
    assert "n.b. (40 rows), age=-1 (20 rows), a=b (1 row)" in notes
    assert "-77, score=5" in notes


def test_a_model_takes_the_same_codes_as_missing(fairfate: Call, file: Path, tmp_path: Path) -> None:
    done = run(data=file, missing=[999, "n.b.", "age=-1"], **NAMED, **SHORT, out=tmp_path / "o")
    model = done.model("fedavg")
    assert model.schema.missing == CODES
    assert FairModel.load(next((tmp_path / "o" / "models").glob("fedavg*"))).schema.missing == CODES
    frame = people(60)
    blank = without_codes(frame, CODES)[0]
    rows, gaps = (of.drop(columns="hired") for of in (frame, blank))
    np.testing.assert_array_equal(model.predict_proba(rows), model.predict_proba(gaps))
    np.testing.assert_array_equal(model.evaluate(frame)[0], model.evaluate(blank)[0])
    apart = model.score(rows.drop(columns="sex"), sensitive_features=["999"] * 60)
    assert apart.notes == model.score(gaps.drop(columns="sex"), sensitive_features=[None] * 60).notes
    for name, of in (("codes", frame), ("gaps", blank)):
        of.to_csv(tmp_path / f"{name}.csv", index=False)
        words = ["o", "--strategy", "fedavg", "--data", f"{name}.csv"]
        assert fairfate("predict", *words, "--out", f"{name}-scored.csv").code == 0
        (tmp_path / name).write_text(fairfate("evaluate", *words).out)
    scored = [pd.read_csv(tmp_path / f"{name}-scored.csv") for name in ("codes", "gaps")]
    assert scored[0]["probability"].tolist() == scored[1]["probability"].tolist()
    assert scored[0]["wage"][2] == "n.b."
    assert (tmp_path / "codes").read_text() == (tmp_path / "gaps").read_text()


def test_a_frame_is_treated_like_a_file(file: Path) -> None:
    of_file = run(data=file, missing=CODES, **NAMED, **SHORT).table
    frame = people().assign(wage=lambda f: pd.to_numeric(f["wage"], errors="coerce"))
    of_frame = run(data=frame, missing=CODES, **NAMED, **SHORT).table
    np.testing.assert_array_equal(of_file.features, of_frame.features)


def test_codes_for_missing_values_hold_for_sites_and_the_server(file: Path, tmp_path: Path) -> None:
    people(300).to_csv(tmp_path / "validation.csv", index=False)
    held = ServerFiles(str(tmp_path / "validation.csv"))
    table = load(file, columns=COLUMNS, server_files=held, reading=Reading(missing=CODES))
    schema = Schema.from_json(Schema.from_table(table).to_json())
    assert schema.missing == CODES
    assert table.missing["age=-1"] == 20 + 15
    rows = people().query("hired != 999")
    assert not schema.apply(rows, on_unknown="collect").problems
    assert replace(schema, missing=()).apply(rows, on_unknown="collect").problems
    schema.write(tmp_path / "schema.json")
    again = load(file, server_files=ServerFiles(held.validation, schema=str(tmp_path / "schema.json")))
    np.testing.assert_array_equal(again.features, table.features)


def test_a_site_s_own_names_of_columns_do_not_hide_codes(file: Path, tmp_path: Path) -> None:
    schema = Schema.from_table(load(file, columns=COLUMNS, reading=Reading(missing=CODES)))
    people().rename(columns={"age": "years"}).to_csv(tmp_path / "site.csv", index=False)
    rows = read_rows({"rename": "years=age"}, tmp_path / "site.csv", schema)
    pd.testing.assert_frame_equal(rows, read_rows({}, file, schema))
    assert rows["age"].isna().sum() == 40


def test_codes_are_read_from_toml_and_written_to_it(fairfate: Call, file: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        'missing = [999, "n.b.", "age=-1"]\nmin-group = 0\nseeds = 1\nrounds = 1'
    )
    named = ["--data", str(file), "--target", "hired", "--favourable", "1", "--sensitive", "sex"]
    assert fairfate("run", *named, "--config", "c.toml", "--strategy", "fedavg", "--out", "o").code == 0
    assert f"missing = {json.dumps(list(CODES))}" in (tmp_path / "o" / "config.toml").read_text()
    code, _, err = fairfate("run", "--missing", "9")
    assert (code, "missing must be left out for 'synthetic'" in err) == (2, True)


# --- numbers that look like codes


@pytest.mark.parametrize(
    ("values", "code", "noted"),
    [
        (range(18, 65), 999, True),
        (range(18, 65), 99, True),
        (range(0, 95), 99, False),
        (range(0, 10_000), -9, True),
        (range(-40, 40), -9, False),
        ((1, 2), 9, True),
        (range(1, 11), 9, False),
        ((0,), 9, False),
        (range(18, 65), 1000, False),
    ],
)
def test_nines_far_from_the_other_values_are_noted(values: Any, code: int, noted: bool) -> None:
    rest = np.resize(np.array(values), 980)
    frame = pd.DataFrame({"n": [*rest, *[code] * 20]})
    assert find_spikes(frame) == find_spikes(frame.astype(float))
    assert [f"n={code} (20 rows)" in note for note in find_spikes(frame)] == [True] * noted
    assert not find_spikes(pd.DataFrame({"n": [*rest, *[code] * 9]}))  # less than 1 %


def test_nines_are_noted_by_describe_and_run_with_the_option(fairfate: Call, file: Path) -> None:
    for more in ([], ["--target", "hired", "--favourable", "1", "--sensitive", "sex", "--min-group", "0"]):
        out = " ".join(fairfate("data", "describe", str(file), *more).out.split())
        assert "age=999 (20 rows)" in out
        assert "--missing COLUMN=VALUE" in out
        assert (
            "age=999 (20 rows)" not in fairfate("data", "describe", str(file), *more, "--missing", "999").out
        )


# --- censored numbers


@pytest.mark.parametrize(
    ("words", "number"),
    [(("<0,60",), 0.6), (("> 100",), 100), (("<=5", "≤5"), 5), ((">= 1.234,5",), 1234.5)],
)
def test_a_censored_number_is_its_bound_and_noted(
    tmp_path: Path, words: tuple[str, ...], number: float
) -> None:
    values = [f"{value},5" for value in range(40)]
    (tmp_path / "a.csv").write_text("n;t\n" + "".join(f"{value};x\n" for value in (*values, *words)))
    frame, notes, _ = read_file(tmp_path / "a.csv")
    assert frame["n"].tolist() == [*(value + 0.5 for value in range(40)), *[number] * len(words)]
    (note,) = [note for note in notes if note.startswith("n: ")]
    assert f"{len(words)} row" in note
    assert f"'{words[0]}'" in note


@pytest.mark.parametrize("values", [["<5", ">=5"], ["<18", "18", ">18", "<18", ">18"], ["<5", "many", "few"]])
def test_names_of_bands_stay_texts(tmp_path: Path, values: list[str]) -> None:
    (tmp_path / "a.csv").write_text("n;t\n" + "".join(f"{value};x\n" for value in values * 10))
    assert read_file(tmp_path / "a.csv").frame["n"].tolist() == values * 10


def test_new_rows_may_hold_nothing_but_censored_numbers(fairfate: Call, tmp_path: Path) -> None:
    frame = people().assign(hired=lambda f: f["hired"] % 2, wage=30.5).astype({"wage": object})
    frame["wage"] = np.random.default_rng(0).normal(30, 5, len(frame)).round(2).astype(object)
    frame.loc[::9, "wage"] = "<12.5"
    frame.to_csv(tmp_path / "people.csv", index=False)
    model = run(data=tmp_path / "people.csv", **NAMED, **SHORT).model("fedavg")
    rows = frame.head(3).drop(columns="hired")
    exact, bounds = (
        model.predict_proba(rows.assign(wage=wage)) for wage in (12.5, ["<12.5", "< 12,5", "<=12.5"])
    )
    np.testing.assert_array_equal(exact, bounds)


def test_example_of_a_word_is_not_one_of_a_bound(tmp_path: Path) -> None:
    values = [*map(str, range(10, 70)), *["<5"] * 9, *["n.b."] * 8]
    (tmp_path / "a.csv").write_text("n;t\n" + "".join(f"{value};x\n" for value in values))
    (note,) = [note for note in read_file(tmp_path / "a.csv").notes if note.startswith("n: ")]
    words, bounds = note.split(";")
    assert "8 values are no numbers" in words
    assert "'n.b.'" in words
    assert "9 rows only a bound is known" in bounds
    assert "n.b." not in bounds
