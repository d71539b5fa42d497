from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler

from fairfate.data import Columns, Encoder, load, read_frame, synthetic, table_from_frame
from fairfate.data.readers import read_folder
from fairfate.errors import InputError

COLUMNS = Columns(
    target="hired", sensitive=("sex",), favourable="yes", privileged=(("sex", "male"),), client="site"
)


def test_mixed_types_become_numbers_with_names(people: Path) -> None:
    table = load(str(people), columns=COLUMNS)
    assert table.feature_names == ("age", "income", "school", "sex")
    assert table.categories == {"school": ("north", "south", "west", "(missing)", "(others)")}
    assert table.group_names == ("(others)", "male")
    assert table.label_names == ("no", "yes")
    assert table.client_names == ("A", "B", "C", "D")
    frame = pd.read_csv(people)
    assert table.label.tolist() == (frame.hired == "yes").astype(int).tolist()
    assert table.group.tolist() == (frame.sex == "male").astype(int).tolist()
    names = np.array(table.categories["school"])[table.features[:, 2].astype(int)]
    assert names.tolist() == frame.school.fillna("(missing)").tolist()


def test_missing_values_are_reported(people: Path) -> None:
    table = load(str(people), columns=COLUMNS)
    assert table.notes == (
        "missing texts are a category of their own: school (11)",
        "missing numbers are replaced, by the mean or median of the training rows: age (15)",
    )


def test_all_groups_when_none_is_privileged(people: Path) -> None:
    table = load(str(people), columns=Columns(target="hired", sensitive=("sex",), favourable="yes"))
    assert table.group_names == ("female", "male", "(small groups)")
    assert "site" in table.feature_names


def test_parquet_and_csv_give_the_same_table(people: Path, tmp_path: Path) -> None:
    pd.read_csv(people).to_parquet(tmp_path / "people.parquet")
    one = load(str(people), columns=COLUMNS)
    two = load(str(tmp_path / "people.parquet"), columns=COLUMNS)
    assert one.checksum == two.checksum


def test_the_checksum_changes_with_any_value(people: Path) -> None:
    frame = read_frame(people)
    before = table_from_frame(frame, COLUMNS).checksum
    frame.loc[5, "income"] += 1
    assert table_from_frame(frame, COLUMNS).checksum != before


@pytest.mark.parametrize("wanted", ["1", "1.0", "True"])
def test_values_are_found_as_people_type_them(wanted: str) -> None:
    kind = bool if wanted == "True" else float
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "s": list("abab"), "y": np.array([0, 1, 1, 0]).astype(kind)})
    table = table_from_frame(frame, Columns(target="y", sensitive=("s",), favourable=wanted))
    assert table.label.tolist() == [0, 1, 1, 0]


def test_a_zero_one_label_needs_no_favourable_value() -> None:
    frame = pd.DataFrame({"x": [1, 2], "s": ["a", "b"], "y": [0, 1]})
    assert table_from_frame(frame, Columns(target="y", sensitive=("s",))).label.tolist() == [0, 1]


def frame_with(**changes: object) -> pd.DataFrame:
    columns: dict[str, object] = {
        "x": [1.0, 2.0, 3.0, 4.0],
        "color": list("rgbr"),
        "s": list("abab"),
        "y": [0, 1, 1, 0],
    }
    return pd.DataFrame({**columns, **changes})


@pytest.mark.parametrize(
    ("frame", "columns", "message"),
    [
        (frame_with(), {"target": "yy"}, r"unknown column for target 'yy'; did you mean 'y'\?"),
        (frame_with(), {"sensitive": ("sx",)}, "unknown column for sensitive 'sx'"),
        (frame_with(), {"client": "site"}, "unknown column for client-column 'site'"),
        (frame_with(), {"drop": ("colour",)}, r"unknown column for drop 'colour'; did you mean 'color'\?"),
        (frame_with(), {"sensitive": ("y",)}, "sensitive must be another column than target, got 'y'"),
        (frame_with(y=[1] * 4), {}, "target must have two values, got 1 in column 'y': 1"),
        (frame_with(y=[0, 1, 2, 1]), {}, "target must have two values, got 3 in column 'y': 0, 1, 2"),
        (frame_with(s=["a"] * 4), {}, "sensitive must have at least two values, got one in column 's': a"),
        (
            frame_with(),
            {"privileged": (("s", "c"),)},
            r"privileged must be a value of column 's' \(a, b\), got 'c'",
        ),
        (frame_with(), {"favourable": "7"}, r"favourable must be a value of column 'y' \(0, 1\), got '7'"),
        (frame_with(y=list("npnp")), {}, r"favourable must name the good outcome of column 'y' \(n, p\)"),
        (frame_with(x=[1, np.inf, 3, 4]), {}, r"column 'x' must be finite, got inf in row 2"),
        (
            frame_with(x=["1", "2", "3", "x"]),
            {},
            r"column 'x' must be all numbers or all text, got 'x' in row 4",
        ),
        (
            frame_with(y=[0, 1, None, 1]),
            {},
            "target must have a value in every row, got 1 missing in column 'y'",
        ),
        (frame_with(s=["a", None, "b", "b"]), {}, "sensitive must have a value in every row, got 1 missing"),
    ],
)
def test_bad_columns_are_named_with_rule_and_value(frame, columns, message) -> None:
    with pytest.raises(InputError, match=message):
        table_from_frame(frame, Columns(**{"target": "y", "sensitive": ("s",), **columns}))


def test_a_mixture_can_be_kept_as_text() -> None:
    frame = frame_with(x=["1", "2", "3", "x"])
    table = table_from_frame(frame, Columns(target="y", sensitive=("s",), categorical=("x",)))
    assert table.categories["x"] == ("1", "2", "3", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("", "empty"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n1,2,3,4\n", "no more fields than the header's 2, got 4 in line 3"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "bad.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=rf"data must.*bad.csv.*{message}"):
        load(str(file), columns=COLUMNS)


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("not parquet")
    with pytest.raises(InputError, match="CSV or Parquet"):
        load(str(tmp_path / "bad.parquet"), columns=COLUMNS)


def test_a_file_of_the_user_needs_target_and_sensitive(people: Path) -> None:
    with pytest.raises(InputError, match=r"target must name a column of .*people.csv' \(age, income"):
        load(str(people))
    with pytest.raises(InputError, match="sensitive must name a column"):
        load(str(people), columns=Columns(target="hired", sensitive=()))


def test_an_unknown_dataset_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown dataset 'adlut'; did you mean 'adult'\?.*synthetic"):
        load("adlut")


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 99))
def test_encoder_agrees_with_scikit_learn(rows: int, inputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    train, other = rng.normal(size=(rows, inputs)).round(1), rng.normal(size=(7, inputs))
    expected = MinMaxScaler().fit(train).transform(other)
    np.testing.assert_allclose(Encoder.fit(train).transform(other), expected, rtol=1e-5, atol=1e-5)


def test_the_median_of_the_fitted_rows_fills_gaps() -> None:
    encoder = Encoder.fit(np.array([[1.0], [2.0], [9.0]]))
    assert encoder.transform(np.array([[np.nan]]))[0, 0] == np.float32(1 / 8)


def test_a_column_without_any_value_becomes_zero() -> None:
    encoder = Encoder.fit(np.full((3, 1), np.nan))
    assert encoder.transform(np.array([[np.nan], [4.0]])).tolist() == [[0.0], [4.0]]


def test_unscaled_encoding_keeps_units() -> None:
    assert Encoder.fit(np.array([[10.0], [30.0]]), scale=False).transform(np.array([[20.0]])) == 20


def test_synthetic_has_the_documented_disparity_and_depends_on_its_seed() -> None:
    table = synthetic(rows=20000)
    rates = [table.label[table.group == g].mean() for g in (0, 1)]
    assert rates[0] == pytest.approx(0.31, abs=0.02)
    assert rates[1] == pytest.approx(0.57, abs=0.02)
    assert synthetic(rows=50).checksum == synthetic(rows=50).checksum != synthetic(rows=50, seed=1).checksum


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("synthetic:rows=5", "synthetic rows must be >= 20 and <= 100,000,000, got 5"),
        ("synthetic:rows=many", "synthetic rows must be a whole number >= 0, got 'many'"),
        ("synthetic:columns=3", "unknown argument of synthetic 'columns'"),
    ],
)
def test_bad_sizes_of_synthetic_are_named(data: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(data)


def write(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_text(text, encoding=encoding)
    return str(path)


ROWS = [("30", "a", "1"), ("41", "b", "0"), ("52", "a", "0"), ("63", "b", "1"), ("24", "a", "1")]
MEANING = Columns(target="y", sensitive=("s",))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_usual_separators_and_a_byte_order_mark_are_understood(tmp_path: Path, separator: str) -> None:
    lines = [separator.join(row) for row in [("age", "s", "y"), *ROWS]]
    table = load(write(tmp_path / "a.csv", "\n".join(lines), "utf-8-sig"), columns=MEANING)
    assert table.feature_names == ("age", "s")
    assert table.features[:, 0].tolist() == [30, 41, 52, 63, 24]


def test_a_comma_at_the_end_of_every_row_shifts_nothing(tmp_path: Path) -> None:
    lines = ["age,s,y", *(",".join((*row, "")) for row in ROWS)]
    table = load(write(tmp_path / "a.csv", "\n".join(lines)), columns=MEANING)
    assert table.features[:, 0].tolist() == [30, 41, 52, 63, 24]
    assert table.label.tolist() == [1, 0, 0, 1, 1]


def test_rows_longer_than_the_header_are_refused(tmp_path: Path) -> None:
    lines = ["age,s,y", *(",".join((*row, "7")) for row in ROWS)]
    with pytest.raises(InputError, match="no more fields than the header's 3, got 4 in line 2"):
        load(write(tmp_path / "a.csv", "\n".join(lines)), columns=MEANING)


def test_numbers_stored_as_text_or_decimals_are_numbers(tmp_path: Path) -> None:
    numbers = [Decimal("9.5"), Decimal("10.25"), None, Decimal("-3"), Decimal("0")]
    frame = pd.DataFrame({"text": ["9", "10", "2.5", "-1", "7"], "s": list("abaab"), "y": [0, 1, 0, 1, 1]})
    table = table_from_frame(frame.assign(decimal=numbers), MEANING)
    assert table.categories == {}
    assert table.features[:, 0].tolist() == [9, 10, 2.5, -1, 7]
    assert table.features[[0, 1, 3, 4], 2].tolist() == [9.5, 10.25, -3, 0]
    assert np.isnan(table.features[2, 2])


def test_an_identifier_is_pointed_out() -> None:
    frame = pd.DataFrame({"id": [f"p{i}" for i in range(50)], "s": ["a", "b"] * 25, "y": [0, 1] * 25})
    assert "id: 50 different texts in 50 rows" in table_from_frame(frame, MEANING).notes[0]


def test_words_are_found_whatever_their_case() -> None:
    frame = frame_with(y=[True, False, True, False])
    table = table_from_frame(frame, Columns(target="y", sensitive=("s",), favourable="true"))
    assert table.label.tolist() == [1, 0, 1, 0]


def test_a_folder_is_one_file_for_each_client(tmp_path: Path) -> None:
    for site, rows in (("north", ROWS[:2]), ("south", ROWS[2:])):
        write(tmp_path / f"{site}.csv", "\n".join(",".join(row) for row in [("age", "s", "y"), *rows]))
    table = load(str(tmp_path), columns=MEANING)
    assert table.client_names == ("north", "south")
    assert table.client is not None
    assert table.client.tolist() == [0, 0, 1, 1, 1]
    assert table.feature_names == ("age", "s")
    write(tmp_path / "west.csv", "age,sex,y\n1,a,0\n")
    with pytest.raises(InputError, match=r"those of 'west.csv' differ: s, sex"):
        load(str(tmp_path), columns=MEANING)


@pytest.mark.parametrize(
    ("frame", "columns", "message"),
    [
        (frame_with(x=[[1], [2], [3], [4]]), {}, "column 'x' must hold numbers or texts, got lists"),
        (
            frame_with(x=[1e308, -1e308, 0, 0]),
            {},
            r"column 'x' must stay within ±1e\+30, got 1e\+308 in row 1",
        ),
        (frame_with(), {"drop": ("y",)}, "drop must be another column than target, got 'y'"),
        (frame_with(), {"client": "y"}, "client-column must be another column than target, got 'y'"),
        (
            frame_with(color=["r", None, "b", "r"]),
            {"client": "color"},
            "client-column must have a value in every",
        ),
    ],
)
def test_odd_columns_are_named(frame, columns, message) -> None:
    with pytest.raises(InputError, match=message):
        table_from_frame(frame, Columns(**{"target": "y", "sensitive": ("s",), **columns}))


def test_a_sensitive_column_of_numbers_needs_a_privileged_value() -> None:
    frame = pd.DataFrame({"s": np.arange(300), "x": 1, "y": np.arange(300) % 2})
    with pytest.raises(InputError, match="sensitive must have at most 100 values, got 300"):
        table_from_frame(frame, MEANING)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """pandas would call the second one ``y.1``, which leaks the label."""
    file = tmp_path / "a.csv"
    file.write_text("age,s,y,y,s\n1,a,0,0,b\n2,b,1,1,a\n")
    with pytest.raises(InputError, match=r"must name each column once, got s, y more than once"):
        read_frame(file)
    file.write_text('age;"the; y";y;y\n1;2;3;4\n')
    with pytest.raises(InputError, match=r"got y more than once"):
        read_frame(file)


@pytest.mark.parametrize("header", ["a,b,c", '"a","b","c"'])
@pytest.mark.parametrize("rows", ["1,2,3,\n4,5,6,7\n", "1,2,3,4\n5,6,7\n", "1,2,3\n5,6,7,8\n"])
def test_fields_beyond_the_header_are_never_dropped(tmp_path: Path, header: str, rows: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"{header}\n{rows}")
    with pytest.raises(InputError, match="no more fields than the header's 3, got 4 in line"):
        read_frame(file)


def test_empty_fields_beyond_the_header_are_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a,b,c\n1,2,3,\n4,5,6,\n")
    assert read_frame(file).values.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("content", [b"a,b\n1,\x002\n", "a,b\n1,\x002\n".encode("utf-16")])
def test_nul_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(content)
    with pytest.raises(InputError, match="NUL bytes, as in a damaged file or one in UTF-16"):
        read_frame(file)


def test_two_files_of_one_name_are_not_one_client(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2]})
    frame.to_csv(tmp_path / "north.csv", index=False)
    frame.to_parquet(tmp_path / "north.parquet")
    with pytest.raises(InputError, match=r"must differ in more than .* got 'north.csv' and 'north.parquet'"):
        read_folder(tmp_path)
