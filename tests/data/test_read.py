from __future__ import annotations

import contextlib
import gzip
import importlib.util
import json
import math
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairfate.data import Columns, load
from fairfate.data.numbers import parse_number
from fairfate.data.readers import FileRows, Reading, list_folder, read_file, read_folder, read_frame
from fairfate.errors import InputError

FRAME = pd.DataFrame({"age": [30, 41, 52], "city": ["Köln", "Łódź", "a,b;c"], "rate": [0.5, 1.25, -3.0]})
EXCEL = pytest.mark.skipif(importlib.util.find_spec("openpyxl") is None, reason="needs openpyxl")


def csv_bytes(frame: pd.DataFrame, sep: str = ",") -> bytes:
    return frame.to_csv(index=False, sep=sep).encode()


def in_bytes(frame: pd.DataFrame, ending: str, tmp_path: Path) -> bytes:
    records = [json.dumps(record) for record in frame.to_dict("records")]
    if ending in (".csv", ".txt", ".tsv", ".dat"):
        return csv_bytes(frame, "\t" if ending == ".tsv" else ",")
    if ending == ".json":
        return f"[{', '.join(records)}]".encode()
    if ending in (".jsonl", ".ndjson"):
        return "\n".join([*records, ""]).encode()
    if ending == ".xlsx":
        frame.to_excel(tmp_path / "made", index=False, engine="openpyxl")
    else:
        frame.to_parquet(tmp_path / "made")
    return (tmp_path / "made").read_bytes()


ENDINGS = [".csv", ".tsv", ".txt", ".dat", ".parquet", ".pq", ".json", ".jsonl", ".ndjson"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ending", [*ENDINGS, ".CSV", pytest.param(".xlsx", marks=EXCEL)])
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str, packed: bool) -> None:
    content = in_bytes(FRAME, ending.lower(), tmp_path)
    file = tmp_path / f"data{ending}{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(content) if packed else content)
    frame, notes, _ = read_file(file)
    pd.testing.assert_frame_equal(frame, FRAME)
    assert notes == ()


def test_a_json_file_may_hold_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"a": 1, "b": "x"}\n\n{"b": "y", "a": null}\n')
    pd.testing.assert_frame_equal(read_frame(file), pd.DataFrame({"a": [1, np.nan], "b": ["x", "y"]}))


@EXCEL
def test_first_sheet_is_read_with_a_note(tmp_path: Path) -> None:
    file = tmp_path / "a.xlsx"
    days = pd.to_datetime(["2020-02-01", "2021-03-04"])
    with pd.ExcelWriter(file, engine="openpyxl") as book:
        frame = pd.DataFrame({" day ": days, "x": [1, "?"], "n": ["1.234,5", "2,0"]})
        frame.to_excel(book, sheet_name="people", index=False)
        FRAME.to_excel(book, sheet_name="other", index=False)
    frame, notes, _ = read_file(file)
    assert list(frame.columns) == ["day", "x", "n"]
    assert frame["day"].dtype.kind == "M"
    assert frame["x"].tolist()[0] == 1
    assert math.isnan(frame["x"].tolist()[1])
    assert frame["n"].tolist() == [1234.5, 2.0]
    assert notes == (
        "read the first sheet, 'people', of 2",
        "x: read as numbers, with 1 missing value written as '?'",
        "n: read as numbers with a decimal comma, such as '1.234,5' = 1234.5",
    )


@EXCEL
def test_columns_of_one_name_are_refused_in_a_sheet(tmp_path: Path) -> None:
    pd.DataFrame([[1, 2]], columns=["y", "y "]).to_excel(tmp_path / "a.xlsx", index=False, engine="openpyxl")
    with pytest.raises(InputError, match="must name each column once, got y more than once"):
        read_frame(tmp_path / "a.xlsx")


def test_without_openpyxl_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairfate.data.readers.importlib.util.find_spec", lambda name: None)
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r'a\.xlsx.*pip install "fairfate\[excel\]"'):
        read_frame(tmp_path / "a.xlsx")


def test_datetimes_of_parquet_stay_datetimes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"day": pd.to_datetime(["2020-02-01", None]), "x": [1, 2]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_frame(tmp_path / "a.parquet")["day"].dtype.kind == "M"


@pytest.mark.parametrize(
    ("encoding", "told"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-16", ""),
        ("utf-16-le", "UTF-16-LE"),
        ("utf-16-be", "UTF-16-BE"),
        ("latin-1", "Windows-1252"),
        ("cp1252", "Windows-1252"),
    ],
)
@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_encodings_are_found_out(tmp_path: Path, encoding: str, told: str, ending: str) -> None:
    text = "stadt,alter\nKöln,30\nZürich,41\n"
    if ending == ".jsonl":
        text = '{"stadt": "Köln", "alter": 30}\n{"stadt": "Zürich", "alter": 41}\n'
    (tmp_path / f"a{ending}").write_bytes(text.encode(encoding))
    frame, notes, _ = read_file(tmp_path / f"a{ending}")
    assert frame.to_dict("list") == {"stadt": ["Köln", "Zürich"], "alter": [30, 41]}
    assert [told in note for note in notes] == ([True] if told else [])


@pytest.mark.parametrize("mark", [b"\xfe\xff", b""])
def test_utf_16_with_the_high_byte_first(tmp_path: Path, mark: bytes) -> None:
    (tmp_path / "a.csv").write_bytes(mark + "a;b\n1;ä\n".encode("utf-16-be"))
    assert read_frame(tmp_path / "a.csv").to_dict("list") == {"a": [1], "b": ["ä"]}


def read_text(tmp_path: Path, text: str, **reading: str) -> FileRows:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    return read_file(tmp_path / "a.csv", Reading(**reading))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a,b\n1,2\n", ["a", "b"]),
        ("a;b\n1,5;2,5\n", ["a", "b"]),
        ("a\tb, c, d\n1\tx\n", ["a", "b, c, d"]),
        ("a|b\n1|2\n", ["a", "b"]),
        ("id;pay, in EUR, gross, a year;city\n1;2;Bonn\n", ["id", "pay, in EUR, gross, a year", "city"]),
        ('"a;b;c",d\n1,2\n', ["a;b;c", "d"]),
        ('"a\nb";c\n1;2\n', ["a\nb", "c"]),
        (" a , b \n1, 2\n\n\n", ["a", "b"]),
        ("a\nx\ny\n", ["a"]),
        ("\n\na;b\n1;2\n", ["a", "b"]),
    ],
)
def test_the_separator_fits_header_and_rows(tmp_path: Path, text: str, columns: list[str]) -> None:
    assert list(read_text(tmp_path, text)[0].columns) == columns


def column(tmp_path: Path, values: list[str], other: str = "x", **reading: str) -> tuple[list[object], str]:
    """A column among others in a file with semicolons, and what is told about it."""
    rows = "".join(f'{other};"{value}"\n' for value in values)
    frame, notes, _ = read_text(tmp_path, f"other;n\n{rows}", **reading)
    return frame["n"].tolist(), "".join(note for note in notes if note.startswith("n:"))


COMMA = [
    (["12,5", "3,25"], [12.5, 3.25]),
    (["1.234,56", "7,00"], [1234.56, 7]),
    (["1.234.567", "12"], [1234567, 12]),
    (["1 234,56", "7"], [1234.56, 7]),
    (["1\u00a0234,56", "7"], [1234.56, 7]),
    (["1\u202f234\u202f567,5", "7"], [1234567.5, 7]),
    (["1'234,56", "1’234’567,5"], [1234.56, 1234567.5]),
    (["-12,5", "+3,5"], [-12.5, 3.5]),
    (["−12,5", "3,5"], [-12.5, 3.5]),
    (["(1.234,56)", "3,5"], [-1234.56, 3.5]),
    (["€ 1.234,56", "€ 3,5"], [1234.56, 3.5]),
    (["1.234,56 €", "-3,5 EUR"], [1234.56, -3.5]),
    (["CHF 1'234,5", "CHF -3,5"], [1234.5, -3.5]),
    (["(3,5 €)", "1,5 €"], [-3.5, 1.5]),
    (["12,5%", "3,5 %"], [12.5, 3.5]),
    ([",5", "1,5"], [0.5, 1.5]),
    (["1,5E+03", "2,5"], [1500, 2.5]),
]
POINT = [
    (["1,234.56", "7.5"], [1234.56, 7.5]),
    (["1,234", "12"], [1234, 12]),
    (["1 234.5", "7"], [1234.5, 7]),
    (["1'234.5", "7"], [1234.5, 7]),
    (["$1,234.56", "-$3.50"], [1234.56, -3.5]),
    (["$ 5", "($3.50)"], [5, -3.5]),
    (["£5", "£6.5"], [5, 6.5]),
    (["¥1,000,000", "¥6"], [1e6, 6]),
    (["5 USD", "6.5 USD"], [5, 6.5]),
    (["GBP 5", "GBP 6.5"], [5, 6.5]),
    (["50%", "12.5%"], [50, 12.5]),
    (["(5)", "6"], [-5, 6]),
]


@pytest.mark.parametrize(("values", "numbers"), [*COMMA, *POINT])
def test_written_numbers_are_numbers_with_a_note(
    tmp_path: Path, values: list[str], numbers: list[float]
) -> None:
    read, note = column(tmp_path, values)
    assert read == numbers
    longest = max(values, key=len)
    assert note.startswith("n: read as numbers")
    assert f"'{longest}' = " in note
    assert ("decimal comma" in note) == ((values, numbers) in COMMA)


def test_the_note_says_how_a_value_was_read(tmp_path: Path) -> None:
    note = column(tmp_path, ["1.234,56", "3,5"])[1]
    assert note == "n: read as numbers with a decimal comma, such as '1.234,56' = 1234.56"


@pytest.mark.parametrize(
    "values",
    [
        ["01.02.2020", "03.04.2021"],
        ["2020-01-02", "2021-03-04"],
        ["1/2/2020", "3/4/2021"],
        ["12:30", "13:45"],
        ["1.2.3", "2.3.4"],
        ["12,34,567", "1,2,3"],
        ["1.23,5", "2,5"],
        ["€5€", "€6"],
        ["$5", "€5"],
        ["5%", "0.5"],
        ["1 234,5", "1.234,5"],
        ["--5", "6"],
        ["(5", "6)"],
        ["(-5)", "(-6)"],
        ["1.", "2.a"],
        ["0x1F", "0x2F"],
        ["1_000", "2_000"],
        ["٣", "٤"],
        ["5 kg", "6 kg"],
        ["abc", "?"],
        ["?", "-"],
    ],
)
@pytest.mark.parametrize("other", ["1,5", "x"])
def test_what_is_not_a_number_stays_text(tmp_path: Path, values: list[str], other: str) -> None:
    assert column(tmp_path, values, other)[0] == values


@pytest.mark.parametrize(
    ("values", "other", "numbers"),
    [
        (["1.234", "5.678"], "x", [1.234, 5.678]),
        (["1.234", "5.678"], "12", [1.234, 5.678]),
        (["1.234", "5.678"], "1234.56", [1.234, 5.678]),
        (["1.234", "5.678"], "12,5", [1234, 5678]),
        (["1.234", "5.678"], "1.234,56 €", [1234, 5678]),
        (["1,234", "5,678"], "x", [1234, 5678]),
        (["1,234", "5,678"], "12,5", [1.234, 5.678]),
        (["12", "13"], "12,5", [12, 13]),
        (["12", ""], "12,5", [12, None]),
        (["1.234", "0.5"], "12,5", [1.234, 0.5]),  # a file of both kinds: each column by itself
        (["1.234", ""], "12,5", [1234, None]),
        (["01.02.2020", "1.234"], "12,5", ["01.02.2020", "1.234"]),
    ],
)
def test_other_columns_settle_what_is_ambiguous(
    tmp_path: Path, values: list[str], other: str, numbers: list[object]
) -> None:
    read, _ = column(tmp_path, values, other)
    assert [None if pd.isna(value) else value for value in read] == numbers


def test_whole_numbers_and_truths_stay_what_pandas_makes_of_them(tmp_path: Path) -> None:
    frame, notes, _ = read_text(tmp_path, "a;b;c;d\n1;1,5;True;x\n2;2,5;False;\n")
    assert frame.dtypes.astype(str).tolist() == ["int64", "float64", "bool", "str"]
    assert len(notes) == 1


def test_a_decimal_comma_in_quotes_between_commas(tmp_path: Path) -> None:
    frame, _, _ = read_text(tmp_path, 'a,b\n"1,5",x\n"1.000,5",y\n')
    assert frame["a"].tolist() == [1.5, 1000.5]


MARKERS = "? - -- . n/a N.A. NA nan None NULL Unknown missing #N/A".split()  # noqa: SIM905


@pytest.mark.parametrize("marker", [*MARKERS, "not available", " ? "])
@pytest.mark.parametrize(
    ("values", "numbers"), [(["1", "2.5"], [1, 2.5]), (["1,5", "2,5"], [1.5, 2.5]), (["$1", "$2"], [1, 2])]
)
def test_words_for_missing_values(
    tmp_path: Path, marker: str, values: list[str], numbers: list[float]
) -> None:
    read, note = column(tmp_path, [*values, marker, marker])
    assert read[:2] == numbers
    assert all(isinstance(value, float) and math.isnan(value) for value in read[2:])
    if marker not in {"n/a", "NA", "nan", "None", "NULL", "#N/A"}:  # pandas knows these
        assert f"with 2 missing values written as '{marker.strip()}'" in note


def test_a_column_of_texts_keeps_its_marks(tmp_path: Path) -> None:
    assert column(tmp_path, ["a", "?", "b"]) == (["a", "?", "b"], "")


def test_mostly_numbers_stay_text_with_a_note(tmp_path: Path) -> None:
    values = [str(n) for n in range(237)] + ["abc", "x1", "abc"]
    read, note = column(tmp_path, values)
    assert read == values
    assert note == (
        "n: read as text, since 3 of 240 values are no numbers, such as 'abc' and 'x1'; fix them to use it"
        " as numbers"
    )
    assert column(tmp_path, ["1,5", "2,5", "x", "?"])[1] == (
        "n: read as text, since 1 of 3 values are no numbers, such as 'x'; fix them to use it as numbers"
    )
    assert column(tmp_path, ["1", "x"])[1] == ""


def test_numbers_written_in_different_ways_stay_text_with_a_note(tmp_path: Path) -> None:
    assert column(tmp_path, ["$5", "€6", "7"])[1] == (
        "n: read as text, since its numbers are written in different ways, such as '$5' and '€6'; fix them"
        " to use it as numbers"
    )


@pytest.mark.parametrize(
    ("values", "decimal", "expected"),
    [
        (["1.234", "5.678"], ",", [1234, 5678]),
        (["1,234", "5,678"], ",", [1.234, 5.678]),
        (["1,234", "5,678"], ".", [1234, 5678]),
        (["1,5", "2,5"], ".", ["1,5", "2,5"]),
        (["1.5", "2.5"], ",", ["1.5", "2.5"]),
        (["1.5", ""], ",", ["1.5", None]),
        (["01.02", "03.04"], ",", ["01.02", "03.04"]),
    ],
)
def test_the_decimal_separator_can_be_given(
    tmp_path: Path, values: list[str], decimal: str, expected: list[object]
) -> None:
    read, _ = column(tmp_path, values, decimal=decimal)
    assert [None if pd.isna(value) else value for value in read] == expected


def test_separator_and_encoding_can_be_given(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes("a:b\nж:1\n".encode("koi8-r"))
    frame = read_frame(file, Reading(sep=":", encoding="koi8-r"))
    assert frame.to_dict("list") == {"a": ["ж"], "b": [1]}
    file.write_bytes("a\tb\n1\t2\n".encode("utf-8-sig"))
    for sep in ("\t", "\\t", "tab"):
        assert list(read_frame(file, Reading(sep=sep, encoding="utf-8")).columns) == ["a", "b"]


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"encoding": "klingon"}, "encoding must be one that Python knows.*got 'klingon'"),
        ({"encoding": "base64"}, "encoding must be one that Python knows.*got 'base64'"),
        ({"encoding": "ascii"}, "encoding must be the one of the file, got 'ascii'"),
        ({"sep": ";"}, "sep must separate the names of the header, got ';' for 'a,b'"),
        ({"sep": ";;"}, "sep must be one character.*got ';;'"),
        ({"sep": ""}, "sep must be one character.*got ''"),
        ({"sep": '"'}, "sep must be one character"),
        ({"decimal": "x"}, r"decimal must be '\.' or ',', got 'x'"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, reading: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(tmp_path, "a,b\n1,ä\n", **reading)


BAD: list[tuple[str, bytes, str]] = [
    ("a.csv", b"", "empty"),
    ("a.csv", b"\n\n", "empty"),
    ("a.csv.gz", b"", "empty"),
    ("a.json", b"", "empty"),
    ("a.jsonl", b" \n", "empty"),
    ("a.json", b"[]", "no rows"),
    ("a.csv", b"a,b\n", "no rows"),
    ("a.csv", b"a, a\n1,2\n", "each column once, got a more than once"),
    ("a.csv", b"a ,a\n1,2\n", "each column once, got a more than once"),
    ("a.csv", b"a,\x0c,\x0c\x0c\n1,2,3\n", "each column once, got spaces more than once"),
    ("a.csv", b"a,b\n1,2,3\n", "no more fields than the header's 2, got 3 in line 2"),
    ("a.csv", b"a,b\n1,\0\n", "NUL bytes"),
    ("a.csv", b"\xff\xfea\0,\0b\0\n", "truncated"),
    ("a.csv", b"a,b\n1,\x81\n", "neither UTF-8 nor Windows-1252"),
    ("a.csv.gz", b"no gzip", "a.csv.gz"),
    ("a.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "a.csv.gz"),
    ("a.csv.gz", gzip.compress(b"a,b\n1,2\n" * 9, mtime=0)[:10] + b"\xff" * 20, "a.csv.gz"),
    ("a.parquet", b"no parquet", "a.parquet"),
    ("a.parquet.gz", gzip.compress(b"no parquet", mtime=0), "a.parquet.gz"),
    ("a.json", b'[{"a": 1}, {"a": ', "a.json"),
    ("a.json", b'{"a": [1, 2],\n "b": 3}', "a record in each line is wanted, line 1"),
    ("a.json", b"[1, 2]", "records are wanted"),
    ("a.json", b"7", "records are wanted"),
    ("a.jsonl", b'{"a": 1}\n{"a": \n', "line 2"),
    ("a.jsonl", b'{"a": 1, "a": 2}\n', "each column once, got a more than once"),
    ("a.json", b'[{"a": 1' + b"0" * 400 + b'}, {"a": "5"}]', "a.json"),
    ("a.json", b"[" * 100_000, "too many for a table"),
    pytest.param("a.xlsx", b"", "empty", marks=EXCEL),
    pytest.param("a.xlsx", b"no workbook", "no Excel workbook", marks=EXCEL),
    pytest.param("a.xlsx", b"PK\x03\x04 cut off", "no Excel workbook", marks=EXCEL),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"(?s)data must .*{name}.*") as error:
        read_frame(tmp_path / name)
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "reason"), [("", "a folder"), ("nothing.csv", "no such file")])
def test_what_is_not_a_file_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(InputError, match=rf"data must be a dataset's name or a file, got .* \({reason}\)"):
        read_frame(tmp_path / name)


def test_nested_values_are_read_and_refused_as_inputs(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    rows = [{"x": [n], "z": {"k": n}, "s": "ab"[n % 2], "y": n // 2} for n in range(4)]
    file.write_text(json.dumps(rows))
    assert read_frame(file)["x"].tolist() == [[0], [1], [2], [3]]
    with pytest.raises(InputError, match="must hold numbers or texts, got lists or records"):
        load(str(file), columns=Columns(target="y", sensitive=("s",)))


def test_texts_with_leading_zeros_stay_text_where_numbers_have_a_type(tmp_path: Path) -> None:
    frame = pd.DataFrame({"code": ["007", "123"], "n": ["7", "1,234"], "day": [date(2020, 1, 2)] * 2})
    frame.to_parquet(tmp_path / "a.parquet")
    read = read_frame(tmp_path / "a.parquet")
    assert read["code"].tolist() == ["007", "123"]
    assert read["n"].tolist() == [7, 1234]


def test_a_folder_of_all_formats(tmp_path: Path) -> None:
    for number_, ending in enumerate(
        [".csv", ".tsv", ".txt", ".parquet", ".pq", ".json", ".jsonl", ".ndjson"]
    ):
        (tmp_path / f"site{number_}{ending}").write_bytes(in_bytes(FRAME, ending, tmp_path))
    (tmp_path / "site8.csv.gz").write_bytes(gzip.compress(csv_bytes(FRAME)))
    (tmp_path / "made").unlink()
    (tmp_path / "README.md").write_text("no data")
    assert [file.name[:5] for file in list_folder(tmp_path)] == [f"site{n}" for n in range(9)]
    frame, notes, _ = read_folder(tmp_path)
    assert frame["(file)"].tolist() == [f"site{n}" for n in range(9) for _ in range(3)]
    assert frame["age"].tolist() == [30, 41, 52] * 9
    assert notes == ()
    (tmp_path / "site9.xlsx").write_bytes(b"")
    assert list_folder(tmp_path)[-1].name == "site9.xlsx"
    (tmp_path / "site8.tsv.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"must differ .* got 'site8.csv.gz' and 'site8.tsv.gz'"):
        list_folder(tmp_path)


def test_the_files_of_a_folder_settle_each_others_decimals(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n;m\n1.234;x\n5.678;y\n")
    (tmp_path / "b.csv").write_text("n;m\n1,5;x\n1.000,25;y\n")
    frame, notes, _ = read_folder(tmp_path)
    assert frame["n"].tolist() == [1234, 5678, 1.5, 1000.25]
    assert notes[0] == "a.csv: n: read as numbers with a decimal comma, such as '1.234' = 1234"
    (tmp_path / "a.csv").write_text("n;m\n1.234;x\n5.5;y\n")
    assert read_folder(tmp_path).frame["n"].tolist() == [1.234, 5.5, 1.5, 1000.25]
    assert read_folder(tmp_path, Reading(decimal=",")).frame["n"].tolist() == ["1.234", "5.5", 1.5, 1000.25]


def european(value: float, group: str) -> str:
    whole, _, rest = f"{value:,.3f}".partition(".")
    return f"{whole.replace(',', group)},{rest}"


VALUES = st.lists(st.floats(-1e9, 1e9).map(lambda value: round(value, 3)), min_size=1, max_size=20)
MONEY: list[Callable[[str], str]] = [str, "{} €".format, "EUR {}".format, "{} %".format]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(VALUES, st.sampled_from(["", ".", " ", "'", "\u00a0"]), st.sampled_from(MONEY))
def test_european_numbers_are_read_to_the_last_digit(
    tmp_path: Path, values: list[float], group: str, money: Callable[[str], str]
) -> None:
    rows = "".join(f"{money(european(value, group))};x\n" for value in values)
    (tmp_path / "a.csv").write_text(f"n;s\n{rows}", encoding="utf-8")
    assert read_frame(tmp_path / "a.csv", Reading(decimal=","))["n"].tolist() == values


@given(st.text(alphabet="0123456789.,-+()%€$ 'eE", max_size=12), st.sampled_from([".", ","]))
def test_no_text_breaks_the_parser(text: str, decimal: str) -> None:
    found = parse_number(text, decimal)
    assert found is None or isinstance(found.value, float)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.binary(max_size=60), st.sampled_from([".csv", ".json", ".csv.gz", ".jsonl"]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, ending: str) -> None:
    file = tmp_path / f"a{ending}"
    file.write_bytes(content)
    with contextlib.suppress(InputError):
        assert len(read_frame(file)) > 0


def test_text_repeated_among_numbers_is_a_missing_value(tmp_path: Path) -> None:
    numbers = [f"{value / 7:.3f}" for value in range(400)]
    words = ["Exempt" if place % 40 == 3 else number for place, number in enumerate(numbers)]
    pd.DataFrame({"ratio": words, "x": range(400)}).to_csv(tmp_path / "h.csv", index=False)
    frame, notes, _ = read_file(tmp_path / "h.csv")
    assert frame["ratio"].isna().sum() == 10
    assert frame["ratio"].dtype == float
    assert notes == ("ratio: 10 values are no numbers and count as missing, such as 'Exempt'",)


def test_second_header_is_dropped_with_a_note(tmp_path: Path) -> None:
    frame = pd.DataFrame({f"X{n}": ["LIMIT", "AGE", "PAY"][n : n + 1] + list(range(30)) for n in range(3)})
    frame.to_csv(tmp_path / "two.csv", index=False)
    found, notes, _ = read_file(tmp_path / "two.csv")
    assert found["X1"].tolist() == list(range(30))
    assert notes == ("the first row looks like a second header, and is left out: LIMIT, AGE, PAY",)
