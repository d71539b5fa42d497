"""A schema says the same of every file that fits it, and says of others which column and why."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate import InputError, load, run
from fairfate.data import (
    Columns,
    Encoder,
    Schema,
    ServerFiles,
    UnfitError,
    describe_frame,
    table_from_frame,
    widen_schema,
)
from fairfate.data.groups import Groups
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build

COLUMNS = Columns(target="hired", favourable="yes", sensitive=("sex",))


@pytest.fixture
def frame(people: Path) -> pd.DataFrame:
    return pd.read_csv(people).drop(columns="site")


@pytest.fixture
def schema(frame: pd.DataFrame) -> Schema:
    return Schema.from_table(table_from_frame(frame, COLUMNS))


def test_a_table_is_the_same_read_by_its_own_schema(frame: pd.DataFrame, schema: Schema) -> None:
    plain, again = table_from_frame(frame, COLUMNS), schema.table(frame, "again")
    assert np.array_equal(plain.features, again.features, equal_nan=True)
    assert np.array_equal(plain.label, again.label)
    assert np.array_equal(plain.group, again.group)
    assert (plain.feature_names, plain.group_names) == (again.feature_names, again.group_names)


def test_part_of_the_rows_in_another_order_mean_the_same(frame: pd.DataFrame, schema: Schema) -> None:
    some = frame.iloc[[7, 3, 100]][[*reversed(frame.columns)]]
    whole = schema.table(frame, "whole").features[[7, 3, 100]]
    assert np.array_equal(schema.table(some, "some").features, whole, equal_nan=True)


def test_one_group_one_label_and_other_columns_are_no_obstacle(frame: pd.DataFrame, schema: Schema) -> None:
    some = frame[(frame["sex"] == "male") & (frame["hired"] == "yes")]
    table = schema.table(some.assign(extra="x"), "some")
    assert set(table.group.tolist()) == {schema.grouping.names.index("male")}
    assert table.label.all()


def test_text_goes_there_and_back_to_the_last_digit(schema: Schema) -> None:
    again = Schema.from_json(schema.to_json())
    assert again.to_json() == schema.to_json()
    for name in ("low", "span", "median"):
        assert np.array_equal(getattr(again.encoder, name), getattr(schema.encoder, name))


@given(st.lists(st.floats(-1e30, 1e30), min_size=2, max_size=6))
def test_any_range_survives_the_text(values: list[float]) -> None:
    encoder = Encoder.fit(np.array(values)[:, None])
    schema = Schema("y", ("s",), {}, ("0", "1"), Groups.single("s", ("a", "b")), encoder)
    assert Schema.from_json(schema.to_json()).encoder.span.tolist() == encoder.span.tolist()


@pytest.mark.parametrize(
    ("change", "public", "secret"),
    [
        (lambda f: f.drop(columns="age"), "column 'age' must be in the file", ""),
        (lambda f: f.assign(school="east"), "column 'school' must hold only the schema's 4 values", "east"),
        (lambda f: f.assign(age="forty"), "column 'age' must hold numbers, got text", "forty"),
        (lambda f: f.assign(age=np.inf), "column 'age' must hold finite numbers", "inf"),
        (lambda f: f.assign(hired="maybe"), "column 'hired' must hold only the schema's 2 values", "maybe"),
        (lambda f: f.assign(sex=None), "column 'sex' must have a value in every row", ""),
        (lambda f: f.assign(sex="unknown"), "column 'sex' must hold only the schema's 3", "unknown"),
    ],
)
def test_what_does_not_fit_is_named_without_showing_values(
    frame: pd.DataFrame, schema: Schema, change, public: str, secret: str
) -> None:
    with pytest.raises(UnfitError) as caught:
        schema.table(change(frame), "site")
    assert caught.value.public.startswith(public)
    assert secret in str(caught.value)
    assert not secret or secret not in caught.value.public


def test_a_missing_text_needs_a_category_for_it(frame: pd.DataFrame) -> None:
    strict = Schema.from_table(table_from_frame(frame.dropna(), COLUMNS))
    with pytest.raises(UnfitError, match=r"'school' must have a value in every row.*got 11 missing"):
        strict.table(frame, "site")


def test_all_but_the_privileged_are_others(frame: pd.DataFrame) -> None:
    columns = Columns(target="hired", favourable="yes", sensitive=("sex",), privileged=(("sex", "male"),))
    schema = Schema.from_table(table_from_frame(frame, columns))
    strange = frame.assign(sex=np.where(frame["sex"] == "male", "male", "diverse"))
    assert np.array_equal(schema.table(strange, "site").group, frame["sex"] == "male")


def test_a_widened_schema_fits_all_sites_and_is_that_of_all_rows(frame: pd.DataFrame) -> None:
    server, first, second = frame.iloc[:40], frame.iloc[40:140], frame.iloc[140:].assign(school="east")
    draft = Schema.from_table(table_from_frame(server, COLUMNS))
    wide, refused = widen_schema(
        draft, {"first": describe_frame(draft, first), "second": describe_frame(draft, second)}
    )
    assert refused == {}
    whole = table_from_frame(pd.concat([server, first, second]), COLUMNS)
    assert wide.categories == whole.categories
    assert wide.grouping == whole.grouping
    fitted = Encoder.fit(whole.features)
    assert wide.encoder.low.tolist() == fitted.low.tolist()
    assert wide.encoder.span.tolist() == pytest.approx(fitted.span.tolist())
    for rows in (server, first, second):
        wide.table(rows, "site")


def test_a_description_shows_ranges_and_names_only(frame: pd.DataFrame, schema: Schema) -> None:
    described = describe_frame(schema, frame)
    assert described == {
        "age": [frame["age"].min(), frame["age"].max()],
        "income": [frame["income"].min(), frame["income"].max()],
        "school": ["(missing)", "north", "south", "west"],
    }


def test_few_rows_do_not_name_their_texts(frame: pd.DataFrame, schema: Schema) -> None:
    with pytest.raises(UnfitError, match="'school' must have few different texts"):
        describe_frame(schema, frame.dropna().iloc[:3])


@pytest.mark.parametrize("values", [pd.to_datetime(["2020-01-01"] * 240), np.full(240, 1j)])
def test_dates_and_complex_numbers_are_no_numbers(
    frame: pd.DataFrame, schema: Schema, values: object
) -> None:
    with pytest.raises(UnfitError, match=r"column 'age' must hold numbers, got (datetime|complex)"):
        schema.table(frame.assign(age=values), "site")


def test_identifiers_are_not_described(frame: pd.DataFrame) -> None:
    named = frame.assign(patient=[f"person {number}" for number in range(len(frame))])
    schema = Schema.from_table(table_from_frame(named, COLUMNS))
    with pytest.raises(UnfitError, match="'patient' must have few different texts to be described, got 240"):
        describe_frame(schema, named)


@pytest.mark.parametrize(
    "lie",
    [
        [],
        "age",
        {"age": [np.inf, 1]},
        {"age": [1]},
        {"age": [1, np.nan]},
        {"age": [2, 1]},
        {"age": "old"},
        {"school": [1, 2]},
        {"school": [str(number) for number in range(1000)]},
        {"school": 7},
    ],
)
def test_a_description_that_makes_no_sense_is_refused(schema: Schema, lie: object) -> None:
    same, refused = widen_schema(schema, {"liar": lie})
    assert "a description must hold ranges and category names, got" in refused["liar"]
    assert same.to_json() == widen_schema(schema, {})[0].to_json()


def test_a_description_adds_no_column_and_no_group(schema: Schema) -> None:
    same, _ = widen_schema(schema, {"x": {"wage": [1, 2], "sex": ["femle"], "hired": ["maybe"], "age": []}})
    assert same.to_json() == widen_schema(schema, {})[0].to_json()


def test_colluding_sites_cannot_widen_a_range_step_by_step(schema: Schema) -> None:
    span = schema.encoder.span[schema.features.index("age")]
    liars = {f"liar {k}": {"age": [0, float(span) * 90**k]} for k in range(1, 5)}
    wide, refused = widen_schema(schema, liars)
    assert list(refused) == ["liar 2", "liar 3", "liar 4"]
    assert wide.encoder.span[schema.features.index("age")] <= 100 * span


def test_colluding_sites_cannot_add_thousands_of_names(schema: Schema) -> None:
    liars = {f"liar {k}": {"school": [f"{k}-{n}" for n in range(150)]} for k in range(10)}
    wide, refused = widen_schema(schema, {**liars, "honest": {"school": ["east", "north"]}})
    assert "honest" not in refused
    assert len(refused) == 9
    assert "east" in wide.categories["school"]
    assert len(wide.categories["school"]) <= len(schema.categories["school"]) + 200


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"inputs": {}, "target": {}}', "null"])
def test_what_is_not_a_schema_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    with pytest.raises(InputError, match=r"schema .*schema.json.* must be a schema"):
        Schema.read(file)


# -- the server's own files in `fairfate run` ------------------------------------------------------------


@pytest.fixture
def hospitals(frame: pd.DataFrame, tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for name, rows in (("a", frame[:60]), ("b", frame[60:120])):
        rows.to_csv(folder / f"{name}.csv", index=False)
    frame[120:180].to_csv(tmp_path / "validation.csv", index=False)
    frame[180:].to_csv(tmp_path / "test.csv", index=False)
    return folder


def options(hospitals: Path, **more: object) -> dict:
    named = {"target": "hired", "favourable": "yes", "sensitive": ("sex",)}
    validation = str(hospitals.parent / "validation.csv")
    return {"data": str(hospitals), "validation": validation, "rounds": 2, "seeds": (1,), **named, **more}


def test_the_servers_rows_are_never_trained_on(hospitals: Path, frame: pd.DataFrame) -> None:
    held = ServerFiles(str(hospitals.parent / "validation.csv"), str(hospitals.parent / "test.csv"))
    table = load(str(hospitals), columns=COLUMNS, server_files=held)
    federation = build(table, parse_partition("column:(file)"), 2, Streams(1))
    assert federation.sizes.tolist() == [60, 60]
    assert federation.client_names == ("a", "b")
    assert federation.validation.sizes.sum() == federation.test.sizes.sum() == 60
    own = Schema.from_table(table_from_frame(frame[120:180], COLUMNS, encode="onehot", tidy=True))
    assert federation.encoder.low.tolist() == own.encoder.low.tolist()
    assert federation.rows.y.tolist() == (frame["hired"][:120] == "yes").astype(float).tolist()


def test_without_a_test_file_half_of_the_validation_rows_are_kept_apart(hospitals: Path) -> None:
    finished = run(**options(hospitals), strategies="fedavg", jobs=1)
    assert any("half of the validation rows" in note for note in finished.table.notes)
    table, partition = finished.table, finished.plan.partition
    one, two = (build(table, partition, 2, Streams(seed)) for seed in (1, 2))
    assert abs(one.validation.sizes - one.test.sizes).max() <= 1  # of each group and label
    assert one.validation.sizes.sum() + one.test.sizes.sum() == 60
    assert one.validation.blocks.tolist() != two.validation.blocks.tolist()


def test_a_run_with_held_rows_can_be_run_again_from_its_config(hospitals: Path, tmp_path: Path) -> None:
    from fairfate.experiments.config import from_mapping, read_config

    first = run(**options(hospitals, test=str(hospitals.parent / "test.csv")), out=tmp_path / "x", jobs=1)
    again = run(from_mapping(read_config(tmp_path / "x" / "config.toml")), jobs=1)
    assert again.rounds.equals(first.rounds)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"validation": None, "test": "x.csv"}, "test must be left out without validation, got 'x.csv'"),
        ({"data": "synthetic", "target": None}, "must be left out for 'synthetic'"),
        ({"validation": "nowhere.csv"}, "no such file"),
        ({"schema": "nowhere.json", "target": None, "favourable": None, "sensitive": None}, "no such file"),
        ({"schema": "s.json"}, "target must be left out for 's.json'"),
    ],
)
def test_wrong_combinations_are_refused(hospitals: Path, more: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(**options(hospitals, **more), jobs=1)


def test_a_site_that_does_not_fit_is_named(hospitals: Path, frame: pd.DataFrame) -> None:
    frame[:60].assign(hired="perhaps").to_csv(hospitals / "b.csv", index=False)
    with pytest.raises(InputError, match=r"b.csv' must fit the schema: column 'hired'.*perhaps"):
        run(**options(hospitals), jobs=1)


def test_a_file_with_a_client_column_works_as_well(hospitals: Path, frame: pd.DataFrame) -> None:
    file = hospitals.parent / "all.csv"
    frame[:120].assign(ward=["x", "y", "z"] * 40).to_csv(file, index=False)
    finished = run(**options(hospitals, data=str(file), client_column="ward"), strategies="fedavg", jobs=1)
    assert finished.plan.clients == 3
    with pytest.raises(InputError, match="unknown column for client-column 'wing'"):
        run(**options(hospitals, data=str(file), client_column="wing"), jobs=1)


def test_a_schemas_favourable_outcome_counts(schema: Schema) -> None:
    content = json.loads(schema.to_json())
    bad, good = schema.labels
    content["target"]["favourable"] = bad
    assert Schema.from_json(json.dumps(content)).labels == (good, bad)
    content["target"]["favourable"] = "maybe"
    with pytest.raises(InputError, match="must be a schema that fairfate has written"):
        Schema.from_json(json.dumps(content))
