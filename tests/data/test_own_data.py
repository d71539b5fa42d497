"""Users' files, from one command to a table: what is read, left out, cut, merged and told."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_up
from command import Outcome
from fairfate import InputError, load, run
from fairfate.data import Columns, ServerFiles, parse_sensitive, synthetic, table_from_frame
from fairfate.data.columns import least_rows, why_no_number_input
from fairfate.data.groups import band_names, cut_into_bands, merge_small
from fairfate.experiments.config import Config, from_mapping
from fairfate.experiments.plan import resolve
from fairfate.experiments.prepare import prepare
from fairfate.federation.seeds import Streams
from fairfate.federation.split import split_rows
from fairfate.report.page import report as write_report

Call = Callable[..., Outcome]
SHORT = ["--rounds", "5", "--seeds", "2", "--jobs", "1"]
BANK = ["--target", "subscribed", "--favourable", "yes", "--sensitive", "origin"]


def as_excel(frame: pd.DataFrame, path: Path) -> None:
    pytest.importorskip("openpyxl")
    frame.to_excel(path, index=False)


def latin(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.replace({"month": {"mar": "März"}}).rename(columns={"balance": "Guthaben (Größe)"})


WAYS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "bank.csv": (lambda path: made_up.write(made_up.bank(1500), path), BANK),
    "census.csv": (
        lambda path: made_up.write(made_up.census(2000), path),
        ["--target", "rich", "--sensitive", "sex", "--sensitive", "race"],
    ),
    "credit.csv": (
        lambda path: made_up.write(made_up.credit(), path),
        ["--target", "risk", "--favourable", "good", "--sensitive", "age"],
    ),
    "hospital.csv": (
        lambda path: made_up.write(made_up.hospital(1500), path),
        ["--target", "readmitted", "--favourable", "no", "--sensitive", "region"],
    ),
    "european.csv": (lambda path: made_up.write(made_up.european(made_up.bank(1500)), path, sep=";"), BANK),
    "packed.csv.gz": (lambda path: made_up.write(made_up.bank(1500), path), BANK),
    "book.xlsx": (lambda path: as_excel(made_up.bank(1500), path), BANK),
    "lines.jsonl": (lambda path: made_up.bank(1500).to_json(path, orient="records", lines=True), BANK),
    "latin.csv": (
        lambda path: made_up.write(latin(made_up.bank(1500)), path, encoding="latin-1"),
        BANK,
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_one_command_from_a_file_to_a_table(fairfate: Call, tmp_path: Path, name: str) -> None:
    make, named = WAYS[name]
    make(tmp_path / name)
    code, out, err = fairfate("run", "--data", name, *named, *SHORT, "--out", "o")
    assert code == 0, err
    for line in ("fedavg ", "fair_fate ", "logistic regression ", "majority baseline "):
        assert any(row.startswith(line) for row in out.splitlines()), out
    assert "nan" not in out.split("Note:")[0]
    assert (tmp_path / "o" / "groups.csv").exists()


@pytest.mark.parametrize("name", ["european.csv", "packed.csv.gz", "book.xlsx", "lines.jsonl"])
def test_the_form_of_a_file_does_not_change_its_table(tmp_path: Path, name: str) -> None:
    WAYS[name][0](tmp_path / name)
    columns = Columns("subscribed", ("origin",), "yes")
    made_up.write(made_up.bank(1500), tmp_path / "plain.csv")
    one, two = (load(str(tmp_path / file), columns=columns) for file in ("plain.csv", name))
    assert two.feature_names == one.feature_names
    assert two.categories == one.categories
    np.testing.assert_array_equal(two.features, one.features)
    assert two.checksum == one.checksum


# -- identifiers -----------------------------------------------------------------------------------------


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def secrets(frame: pd.DataFrame, columns: list[str]) -> list[str]:
    """Texts that fewer than twenty rows share."""
    found: list[str] = []
    for name in columns:
        counts = frame[name].dropna().astype(str).value_counts()
        found += list(counts[counts < 20].index)
    return found


@pytest.mark.parametrize("european", [False, True])
@pytest.mark.parametrize("keep", [[], ["--keep", "iban"]])
def test_no_file_of_a_run_names_what_few_rows_share(
    fairfate: Call, tmp_path: Path, keep: list[str], european: bool
) -> None:
    frame = made_up.bank(1000).assign(town=[f"town-{n % 90:03}" if n < 300 else "Big" for n in range(1000)])
    frame.loc[:4, "origin"] = "Xanadu"
    frame = made_up.european(frame) if european else frame
    made_up.write(frame, tmp_path / "bank.csv", sep=";" if european else ",")
    code, out, err = fairfate("run", "--data", "bank.csv", *BANK, *SHORT, *keep, "--out", "o")
    assert code == 0, err
    hidden = [*secrets(frame, ["iban", "job", "town"]), "Xanadu"]
    if european:  # as it is written; an example is shown on the screen, for the file's owner
        hidden += [text for text in secrets(frame, ["balance"]) if len(text) > 6]
    assert len(hidden) > 1000
    files = everything(tmp_path / "o")
    assert {path.suffix for path in files} >= {".safetensors", ".toml", ".parquet", ".csv"}
    for path, content in files.items():
        found = [text for text in hidden if text.encode() in content]
        assert not found, (path.name, found[:3])
    model = next(content for path, content in files.items() if path.suffix == ".safetensors")
    assert b"blue-collar" in model  # which many rows share
    assert (b'"iban"' in model or b'\\"iban\\"' in model) == bool(keep)
    assert bool(
        re.search(r"\(others\):.* iban \([\d,]+ texts in [\d,]+ rows\)", " ".join(out.split()))
    ) == bool(keep)


def tidy(frame: pd.DataFrame, **named: object):
    columns = {"target": "y", "sensitive": ("s",), **named}
    return table_from_frame(frame, Columns(**columns), encode="onehot", tidy=True)  # type: ignore[arg-type]


def plain(rows: int = 600, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    base = {"x": rng.normal(size=rows), "s": rng.choice(["a", "b"], rows), "y": rng.integers(0, 2, rows)}
    return pd.DataFrame({**base, **columns})


def differing(low: int, high: int, rows: int = 600) -> np.ndarray:
    return np.random.default_rng(1).choice(high - low, rows, replace=False) + low


LEFT_OUT = {
    "Unnamed: 0": np.arange(600),
    "countdown": np.arange(600)[::-1] * 7,
    "customer": np.random.default_rng(0).permutation(600) + 100_000,
    "number of a card": differing(10**9, 10**10, 600),
    "row_id": differing(0, 9000),
    "constant": 7,
    "constant text": "same",
    "nothing": np.nan,
    "iban": [f"DE{n:010}" for n in differing(0, 10**9)],
    "one day": "2020-01-01",
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_identifiers_and_constants_are_left_out_and_named(name: str) -> None:
    table = tidy(plain(**{name: LEFT_OUT[name]}))
    assert table.feature_names == ("x", "s")
    (note,) = table.notes
    assert note.startswith(f"left out: {name} (")
    assert note.endswith("; --keep NAME takes one in")
    kept = tidy(plain(**{name: LEFT_OUT[name]}), keep=(name,))
    assert name in kept.feature_names
    assert not any(note.startswith("left out") for note in kept.notes)


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(2).integers(20_000, 150_000, 600),
        differing(20_000, 150_000),
        differing(0, 9_000),
        differing(1_000, 9_999),
        np.random.default_rng(3).normal(50_000, 9_000, 600),
        np.random.default_rng(3).random(600),
        np.append(np.arange(599), 3),
    ],
)
def test_honest_numbers_are_inputs_though_they_differ(values: np.ndarray) -> None:
    table = tidy(plain(income=values))
    assert table.feature_names == ("x", "s", "income")
    np.testing.assert_array_equal(table.features[:, 2], values)
    assert table.notes == ()


def test_few_numbers_are_no_identifiers() -> None:
    assert why_no_number_input(np.arange(19.0), "x") == ""
    assert "identifier" in why_no_number_input(np.arange(20.0), "x")


def test_an_unknown_column_to_keep_is_named() -> None:
    with pytest.raises(InputError, match="unknown column for keep 'ibn'"):
        tidy(plain(), keep=("ibn",))


@pytest.mark.parametrize(("rows", "least"), [(10_000, 20), (400, 20), (399, 19), (100, 5), (10, 2)])
def test_how_many_rows_must_share_a_text(rows: int, least: int) -> None:
    assert least_rows(rows) == least
    texts = ["often"] * (rows - 2 * least + 1) + ["enough"] * least + ["rare"] * (least - 1)
    table = tidy(plain(rows, t=texts))
    if rows > 10:
        assert table.categories["t"] == ("enough", "often", "(others)")


# -- groups ----------------------------------------------------------------------------------------------


def test_bands_begin_with_their_lower_cut() -> None:
    numbers = np.array([24.999, 25, 39, 40, 64.5, 65, 200, -1, np.nan])
    names = ["below 25", "25 to 40", "40 to 65", "65 and over"]
    assert band_names((25, 40, 65)) == names
    expected = [names[place] for place in (0, 1, 1, 2, 2, 3, 3, 0)]
    assert cut_into_bands(numbers, (25, 40, 65)).tolist()[:-1] == expected
    assert cut_into_bands(numbers, (25, 40, 65)).isna().tolist() == [False] * 8 + [True]


def test_a_column_in_bands_stays_a_number_among_the_inputs(tmp_path: Path) -> None:
    frame = made_up.credit()
    made_up.write(frame, tmp_path / "credit.csv")
    columns = Columns("risk", ("age",), "good", bands=(("age", (25.0, 40.0)),), min_group=0)
    table = load(str(tmp_path / "credit.csv"), columns=columns)
    assert table.group_names == ("below 25", "25 to 40", "40 and over")
    assert table.group.tolist() == [0 if age < 25 else 1 if age < 40 else 2 for age in frame["age"]]
    assert table.features[:, table.feature_names.index("age")].tolist() == frame["age"].tolist()
    assert table.slots[table.feature_names.index("age")] == 0


@pytest.mark.data
def test_bands_of_a_public_dataset(data_folder: Path) -> None:
    named = Columns("", ("age",), bands=(("age", (25.0, 40.0)),))
    table = load("adult", data_dir=data_folder, columns=named)
    age = pd.read_csv(data_folder / "adult.csv")["age"]
    assert table.group_names == ("below 25", "25 to 40", "40 and over")
    assert np.bincount(table.group).tolist() == [
        int((age < 25).sum()),
        int(((age >= 25) & (age < 40)).sum()),
        int((age >= 40).sum()),
    ]
    usual = load("adult", data_dir=data_folder)
    np.testing.assert_array_equal(table.features[:, table.feature_names.index("age")], age)
    assert (table.encode, table.stratified) == (usual.encode, usual.stratified) == ("ordinal", False)


def test_many_numbers_are_cut_at_their_quartiles_with_a_note() -> None:
    ages = np.tile(np.arange(20, 60), 15)
    table = tidy(plain(s=ages))
    assert table.group_names == ("below 29.75", "29.75 to 39.5", "39.5 to 49.25", "49.25 and over")
    assert np.bincount(table.group).tolist() == [150] * 4
    assert table.notes == ("s: cut into bands at its quartiles, as by --sensitive s:29.75,39.5,49.25",)
    asked = tidy(plain(s=ages), bands=(("s", (29.75, 39.5, 49.25)),))
    assert asked.group.tolist() == table.group.tolist()
    few = tidy(plain(s=np.arange(600) % 12))
    assert few.groups == 12


@pytest.mark.parametrize(
    "held",
    ["object", "str", "category", "float64", "Int64", "boolean"],
)
def test_missing_groups_are_kept_dropped_or_refused_whatever_holds_them(held: str) -> None:
    numbers = pd.Series(np.arange(600) % 2).astype("Int64").mask(pd.Series(np.arange(600) % 10 == 0))
    s = numbers.map({0: "a", 1: "b"}).astype(held) if held in ("object", "str", "category") else None
    s = numbers.astype(held) if s is None else s
    kept = tidy(plain(s=s))
    assert kept.groups == 3
    assert kept.group_names[0] == "(missing)"
    assert np.flatnonzero(kept.group == 0).tolist() == list(range(0, 600, 10))
    assert [note[:35] for note in kept.notes] == ["s: 60 rows without a value are repo"]
    assert kept.grouping.compared(("s",)).tolist() == [False, True, True]
    group = tidy(plain(s=s), missing_group="keep")
    assert group.grouping.compared(("s",)).all()
    assert group.checksum != kept.checksum
    dropped = tidy(plain(s=s), missing_group="drop")
    assert (len(dropped), dropped.groups) == (540, 2)
    assert dropped.notes == ("s: 60 rows without a value are left out (--missing-group)",)
    with pytest.raises(InputError, match="sensitive must have a value in every row, got 60 missing"):
        tidy(plain(s=s), missing_group="refuse")


def test_missing_numbers_of_a_column_in_bands_are_a_group() -> None:
    ages = np.where(np.arange(600) % 10 == 0, np.nan, np.arange(600) % 50)
    table = tidy(plain(s=ages), bands=(("s", (10.0, 30.0)),))
    assert table.group_names == ("below 10", "10 to 30", "30 and over", "(missing)")
    assert np.flatnonzero(table.group == 3).tolist() == list(range(0, 600, 10))


def test_few_rows_without_a_group_are_kept_unless_compared() -> None:
    frame = plain()
    frame.loc[:3, "s"] = None
    table = tidy(frame)
    assert (len(table), table.group_names) == (600, ("(missing)", "a", "b"))
    assert np.flatnonzero(table.group == 0).tolist() == [0, 1, 2, 3]
    kept = tidy(frame, missing_group="keep")
    assert (len(kept), kept.group_names) == (596, ("a", "b"))
    assert kept.notes == ("s: 4 rows without a value are too few for a group, and left out",)


def test_rows_without_a_label_are_left_out() -> None:
    frame = plain().astype({"y": float})
    frame.loc[::6, "y"] = np.nan
    table = tidy(frame)
    assert len(table) == 500
    assert table.notes[0] == "y: 100 rows without a value are left out"
    with pytest.raises(InputError, match="data must have a row with a label and a group"):
        tidy(frame.assign(y=np.nan))


def merged(cells: dict[str, tuple[int, int]], least: int = 50) -> tuple[list[str], list[str], list[int]]:
    """The groups and the merged ones, from rows of either label."""
    codes = np.repeat(np.arange(len(cells)), [sum(of) for of in cells.values()])
    label = np.concatenate([[0] * zero + [1] * one for zero, one in cells.values()]).astype(np.int8)
    found, names, gone, _ = merge_small(codes, list(cells), label, least)
    return names, gone, np.bincount(found, minlength=len(names)).tolist()


BIG, SMALL = (60, 60), (20, 20)


@pytest.mark.parametrize(
    ("cells", "names", "gone"),
    [
        ({"a": BIG, "b": BIG, "c": BIG}, ["a", "b", "c"], []),
        ({"a": BIG, "b": SMALL, "c": SMALL}, ["a", "(small groups)"], ["b", "c"]),
        ({"a": BIG, "b": BIG, "c": SMALL}, ["a", "b", "(small groups)"], ["c"]),
        ({"a": (70, 70), "b": BIG, "c": (9, 3)}, ["a", "b", "(small groups)"], ["c"]),
        ({"(missing)": SMALL, "a": BIG, "b": SMALL}, ["(missing)", "a", "b"], []),  # two groups, and no value
        (
            {"(missing)": (1, 0), "a": BIG, "b": SMALL, "c": BIG},
            ["(missing)", "a", "c", "(small groups)"],
            ["b"],
        ),
        ({"a": (100, 9), "b": (100, 9), "c": BIG}, ["c", "(small groups)"], ["a", "b"]),  # of one label
        ({"a": (100, 10), "b": (100, 10), "c": BIG}, ["a", "b", "c"], []),
        ({"a": (100, 100), "b": (2, 1)}, ["a", "b"], []),  # two groups only
        ({"a": (3, 1), "b": (2, 1)}, ["a", "b"], []),
        ({"a": SMALL, "b": SMALL, "c": SMALL}, ["a", "b", "c"], []),  # all are small: those that can be split
        ({"a": SMALL, "b": (4, 20), "c": (20, 4)}, ["a", "(small groups)"], ["b", "c"]),
        ({"a": (4, 9), "b": (4, 8), "c": (4, 7)}, ["a", "b", "c"], []),  # nothing can be done
        ({"a": (0, 1), "b": (1, 0), "c": BIG, "d": (70, 70)}, ["c", "d", "(small groups)"], ["a", "b"]),
    ],
)
def test_small_groups_are_merged(
    cells: dict[str, tuple[int, int]], names: list[str], gone: list[str]
) -> None:
    found, told, rows = merged(cells)
    assert (found, told) == (names, gone)
    of_merged = sum(sum(cells[name]) for name in gone)
    assert rows == [sum(cells[name]) if name in cells else of_merged for name in names]


def test_the_limit_of_small_groups_can_be_set() -> None:
    cells = {"a": BIG, "b": SMALL, "c": SMALL}
    assert merged(cells, 30)[1] == []
    frame = plain(s=["a"] * 500 + ["b"] * 45 + ["c"] * 45 + ["d"] * 10)
    assert tidy(frame).group_names == ("a", "(small groups)")
    (note,) = tidy(frame).notes
    assert "(--min-group): b, c, 1 of them with fewer than 20" in note
    assert tidy(frame, min_group=0).group_names == ("a", "b", "c", "d")


def test_a_single_small_group_is_reported_apart_and_named_and_its_rows_stay() -> None:
    frame = plain(s=["a"] * 300 + ["b"] * 280 + ["c"] * 20)
    table = tidy(frame)
    assert (len(table), table.group_names) == (600, ("a", "b", "(small groups)"))
    assert np.flatnonzero(table.group == 2).tolist() == list(range(580, 600))
    assert table.grouping.compared(("s",)).tolist() == [True, True, False]
    (note,) = table.notes
    assert note.endswith("not compared with others (--min-group): c")


def test_the_smaller_of_two_groups_stays_and_is_named() -> None:
    table = tidy(plain(s=["a"] * 580 + ["b"] * 20))
    assert table.group_names == ("a", "b")
    (note,) = table.notes
    assert note.endswith("only one other: b")


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=2, max_size=8))
def test_merging_loses_nobody_and_leaves_two_groups(cells: list[tuple[int, int]]) -> None:
    cells = [of if sum(of) else (1, 0) for of in cells]
    names, gone, rows = merged({str(number): of for number, of in enumerate(cells)})
    assert sum(rows) == sum(map(sum, cells))
    assert len(names) >= 2
    assert {*names, *gone} - {"(small groups)"} == {str(number) for number in range(len(cells))}


def test_several_sensitive_columns_make_combinations() -> None:
    frame = plain(s=["a", "b", "b"] * 200, age=np.arange(600) % 60)
    table = tidy(frame, sensitive=("s", "age"), bands=(("age", (30.0,)),))
    assert table.group_names == ("a, below 30", "a, 30 and over", "b, below 30", "b, 30 and over")
    expected = 2 * (frame["s"] == "b") + (frame["age"] >= 30)
    assert table.group.tolist() == expected.tolist()
    assert table.slots.tolist() == [0, 2, 0]


OPTIONS = ("--target", "--sensitive", "--client-column", "--drop", "--categorical", "--keep")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("others", "said"), [(10, 13), (4000, 2)])
def test_a_misspelt_column_is_answered_by_all_columns_or_by_the_nearest(
    fairfate: Call, tmp_path: Path, option: str, others: int, said: int
) -> None:
    names = ["hired", "sex", "wage", *(f"q{number}" for number in range(others))]
    pd.DataFrame([[0] * len(names)] * 2, columns=names).to_csv(tmp_path / "wide.csv", index=False)
    named = {"--target": "hired", "--sensitive": "sex", option: "wages"}
    words = [word for pair in named.items() for word in pair]
    code, _, err = fairfate("run", "--data", "wide.csv", *words)
    assert code == 2
    assert "'wages'; did you mean 'wage'?" in err
    listed = err.rpartition(": ")[2].split(", ")
    assert len(listed) <= said
    assert (f"of {len(names):,}" in err) == (others > 20)
    assert len(fairfate("run", "--data", "wide.csv").err) < 300


def test_favorable_is_another_spelling_of_favourable(fairfate: Call, tmp_path: Path) -> None:
    frame = made_up.credit(200)
    made_up.write(frame, tmp_path / "credit.csv")
    named = ["--target", "risk", "--sensitive", "house", "--favorable", "good"]
    assert "P(good)" in fairfate("data", "describe", "credit.csv", *named).out
    (tmp_path / "c.toml").write_text('data = "credit.csv"\ntarget = "risk"\nfavorable = "bad"\nseeds = 1')
    words = ["--config", "c.toml", "--sensitive", "house", "--strategy", "fedavg", "--rounds", "1"]
    assert fairfate("run", *words, "--out", "bad").code == 0
    assert tomllib.loads((tmp_path / "bad" / "config.toml").read_text())["favourable"] == "bad"
    assert fairfate("run", *words, "--favorable", "good", "--out", "good").code == 0
    assert tomllib.loads((tmp_path / "good" / "config.toml").read_text())["favourable"] == "good"
    code, _, err = fairfate("run", *words, "--favorable", "good", "--favourable", "bad")
    assert (code, "give it once" in err) == (2, True)
    options = {"target": "risk", "sensitive": "house", "strategies": "fedavg", "rounds": 1, "seeds": 1}
    assert run(data=frame, favorable="good", **options, jobs=1).table.label_names == ("bad", "good")


def test_a_column_without_numbers_cannot_be_cut() -> None:
    with pytest.raises(InputError, match="to be cut into bands, got no value in any row"):
        tidy(plain(s=np.nan), bands=(("s", (1.0,)),))


def test_a_name_with_a_colon_is_a_name() -> None:
    assert parse_sensitive("a:b") == ("a:b", ())
    assert parse_sensitive("a:b:-1, 2.5") == ("a:b", (-1.0, 2.5))


def test_the_servers_file_follows_the_same_rules(tmp_path: Path) -> None:
    """Rows without a label or group are left out of all files, or have the group that the schema gives."""
    frame = made_up.hospital(1200).drop(columns="admitted")
    frame.loc[5:8, "readmitted"] = None
    parts = {"data": frame[:600], "validation": frame[600:900], "test": frame[900:]}
    files = {name: str(made_up.write(part, tmp_path / f"{name}.csv")) for name, part in parts.items()}
    held = ServerFiles(files["validation"], files["test"])
    columns = Columns("readmitted", ("region",), "no", missing_group="drop")
    table = load(files["data"], columns=columns, server_files=held)
    assert len(table) == int((frame["region"].notna() & frame["readmitted"].notna()).sum())
    assert "(missing)" not in table.group_names
    assert any(note.startswith("data.csv: ") and "left out" in note for note in table.notes)
    sited = made_up.write(parts["data"].assign(site=["x", "y"] * 300), tmp_path / "sited.csv")
    by_site = Columns("readmitted", ("region",), "no", missing_group="drop", client="site")
    assert load(str(sited), columns=by_site, server_files=held).client_names == ("x", "y")
    against = load(
        files["data"], columns=replace(columns, privileged=(("region", "north"),)), server_files=held
    )
    assert against.group_names == ("(others)", "north")
    usable = frame[frame["readmitted"].notna() & frame["region"].notna()]
    assert against.group.tolist() == (usable["region"] == "north").astype(int).tolist()


def test_few_missing_groups_of_the_server_are_kept_unless_compared(tmp_path: Path) -> None:
    """Then the schema has none for them, by the server's own doing; a site must not lose rows by it."""
    files = {name: tmp_path / f"{name}.csv" for name in ("data", "validation")}
    frame = plain(600)
    frame.loc[590:, "s"] = frame.loc[590:, "s"].mask(frame.loc[590:, "y"] == 1)
    made_up.write(frame[:300], files["data"])
    made_up.write(frame[300:], files["validation"])
    held = ServerFiles(str(files["validation"]))
    keep = Columns("y", ("s",), missing_group="keep")
    table = load(str(files["data"]), columns=keep, server_files=held)
    assert len(table) == int(frame["s"].notna().sum()) < 600
    assert any(re.match(r"validation.csv: \d rows without y or s are left out", n) for n in table.notes)
    made_up.write(frame[:300].assign(s=frame["s"].mask(frame.index < 2)), files["data"])
    with pytest.raises(InputError, match=r"data.csv' must fit the schema: column 's' must have a value"):
        load(str(files["data"]), columns=keep, server_files=held)
    table = load(str(files["data"]), columns=Columns("y", ("s",)), server_files=held)
    assert len(table) == 600
    assert table.group_names == ("(missing)", "a", "b")


# -- splits ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(0, 5))
def test_every_class_of_three_rows_is_in_each_part(sizes: list[int], seed: int) -> None:
    by = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    if not len(by):
        return
    parts = Streams(seed).split(len(by), by)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(by)))
    for number, size in enumerate(sizes):
        counts = [int((by[part] == number).sum()) for part in parts]
        assert size < 3 or min(counts) >= 1
        assert all(abs(c - s * size) <= 1 + 1e-9 for c, s in zip(counts, (0.6, 0.2, 0.2), strict=True))
    for part, again in zip(parts, Streams(seed).split(len(by), by), strict=True):
        np.testing.assert_array_equal(part, again)
    halves = Streams(seed).halves(len(by), by)
    assert sorted(np.concatenate(halves).tolist()) == list(range(len(by)))
    for number in range(len(sizes)):
        assert abs(int((by[halves[0]] == number).sum()) - int((by[halves[1]] == number).sum())) <= 1


def test_files_are_split_by_group_and_label_and_others_as_before() -> None:
    rng = np.random.default_rng(0)
    table = tidy(plain(s=np.where(rng.random(600) < 0.05, "rare", "a")))
    assert table.stratified
    train, validation, test = split_rows(table, Streams(4))
    whole = np.bincount(table.cell) / len(table)
    for part in (train, validation, test):
        np.testing.assert_allclose(np.bincount(table.cell[part]) / len(part), whole, atol=0.01)
    made = synthetic(rows=500)
    order = Streams(4).split(500)
    assert not made.stratified
    for ours, plainly in zip(split_rows(made, Streams(4)), order, strict=True):
        np.testing.assert_array_equal(ours, plainly)


@pytest.mark.data
def test_public_datasets_are_split_as_before(data_folder: Path) -> None:
    table = load("compas", data_dir=data_folder)
    assert not table.stratified
    for ours, plainly in zip(split_rows(table, Streams(2)), Streams(2).split(len(table)), strict=True):
        np.testing.assert_array_equal(ours, plainly)


# -- defaults --------------------------------------------------------------------------------------------


def settings(path: Path) -> tuple[object, ...]:
    config = tomllib.loads(path.read_text())
    return tuple(config[key] for key in ("encode", "rounds", "epochs", "batch-size", "learning-rate"))


PAPER = (100, 10, 10, 0.01)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("onehot", 200, 2, 20, 0.03)),
        (["--encode", "onehot", "--epochs", "3"], ("onehot", 200, 3, 20, 0.03)),
        (["--encode", "ordinal"], ("ordinal", *PAPER)),
        (["--encode", "none"], ("none", *PAPER)),
        (["--protocol", "published"], ("ordinal", *PAPER)),
    ],
)
def test_files_have_defaults_of_their_own(
    fairfate: Call, tmp_path: Path, words: list[str], expected: tuple[object, ...]
) -> None:
    made_up.write(made_up.credit(120), tmp_path / "credit.csv")
    named = ["--data", "credit.csv", "--target", "risk", "--favourable", "good", "--sensitive", "age:45"]
    named += ["--strategy", "fedavg", "--seeds", "1", "--jobs", "1"]
    code, _, err = fairfate("run", *named, *words, "--out", "o")
    assert code == 0, err
    assert settings(Path("o/config.toml")) == expected
    code, _, err = fairfate("run", "--config", "o/config.toml", "--jobs", "1", "--out", "again")
    assert (code, err) == (0, "")
    one, two = everything(tmp_path / "o"), everything(tmp_path / "again")
    assert len(one) >= 6
    for path, content in one.items():
        assert two[tmp_path / "again" / path.relative_to(tmp_path / "o")] == content, path.name


def noted(rows: int, columns: int, **options: object) -> tuple[Config, str]:
    """The resolved config, and the notes, for a file of numbers."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(rows, columns)), columns=[f"c{k}" for k in range(columns)])
    frame = frame.assign(sex=np.where(rng.random(rows) < 0.5, "f", "m"), label=rng.integers(0, 2, rows))
    table = load(frame, columns=Columns(target="label", favourable="1", sensitive=("sex",)))
    options = {"target": "label", "sensitive": "sex", "seeds": [1], "partition": "random", **options}
    plan = resolve(from_mapping({"data": "frame.csv", **options}), table)
    return plan.config, " ".join(plan.notes)


def test_notes_name_the_defaults_that_depend_on_the_shape() -> None:
    config, notes = noted(300, 5)
    assert (config.hidden, config.learning_rate, config.batch_size, notes) == ("10", 0.03, 20, "")
    config, notes = noted(300, 40)
    assert (config.hidden, config.learning_rate, config.l2) == ("0", 0.03, 0.01)
    assert "no hidden layer" in notes
    assert "L2 of 0.01" in notes
    config, notes = noted(300, 40, hidden="10")
    assert (config.hidden, config.learning_rate, config.l2, notes) == ("10", 0.03, 0.0, "")
    config, notes = noted(1500, 40)
    assert (config.hidden, config.learning_rate) == ("10", 0.011)
    assert "learning rate is 0.011" in notes
    config, notes = noted(1500, 40, learning_rate=0.2)
    assert (config.learning_rate, notes) == (0.2, "")
    config, notes = noted(10_000, 5, clients=1)
    assert config.batch_size == 30
    assert "batches have 30 rather than 20 rows" in notes
    config, notes = noted(10_000, 5, clients=1, batch_size=10)
    assert (config.batch_size, notes) == (10, "")


@pytest.mark.data
@pytest.mark.parametrize("protocol", ["paper", "published"])
def test_public_datasets_keep_the_papers(data_folder: Path, protocol: str) -> None:

    values = {"data": "compas", "data_dir": str(data_folder), "protocol": protocol, "seeds": [1]}
    config = prepare(from_mapping(values))[0].config
    found = (config.encode, config.rounds, config.epochs, config.batch_size, config.learning_rate)
    assert found == ("ordinal", *PAPER)
    config = prepare(from_mapping({**values, "encode": "onehot"}))[0].config
    assert (config.encode, config.rounds, config.epochs) == ("onehot", 200, 2)


def test_a_file_of_the_users_called_groups_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("mine")
    with pytest.raises(InputError, match=r"out must be a folder without results .* with groups.csv"):
        run(data="synthetic:rows=100", rounds=1, seeds=(1,), jobs=1, out=tmp_path)
    assert (tmp_path / "groups.csv").read_text() == "mine"


# -- a first look ----------------------------------------------------------------------------------------


def looked(out: str) -> dict[str, str]:
    """The lines of each column, by the column's name."""
    found: dict[str, str] = {}
    name = ""
    for line in out.splitlines()[1:]:
        if line.startswith("Next:"):
            break
        name = line.split("  ")[0] or name
        found[name] = f"{found.get(name, '')} {line}"
    return {name: " ".join(text.split()) for name, text in found.items()}


@pytest.mark.parametrize("name", ["bank.csv", "european.csv", "book.xlsx", "sites"])
def test_a_first_look_fits_the_terminal_and_names_candidates(
    fairfate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if name == "sites":
        (tmp_path / name).mkdir()
        for part in range(3):
            made_up.write(made_up.bank(1500)[500 * part : 500 * part + 500], tmp_path / f"sites/{part}.csv")
    else:
        WAYS[name][0](tmp_path / name)
    code, out, err = fairfate("data", "describe", name)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert f"{name}: 1,500 rows, {11 + (name == 'sites')} columns" in out
    found = looked(out)
    assert "--target?" in found["subscribed"]
    assert "--sensitive?" in found["origin"]
    assert "number 62" in found["age"]
    assert "--sensitive, in" in found["age"]
    assert "left out:" in found["iban"]
    assert "left out:" in found["customer"]
    assert "left out: the same" in found["country"]
    assert found["last call"].startswith("last call date")
    assert "--target?" not in found["month"]
    assert ("(file)" in found) == (name == "sites")


@pytest.mark.parametrize(("name", "content"), [("bad.parquet", b"no"), ("empty.csv", b""), ("b.xlsx", b"x")])
def test_a_first_look_at_a_bad_file_is_one_message(
    fairfate: Call, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, err = fairfate("data", "describe", name)
    assert (code, out) == (2, "")
    assert err.startswith("Error: data must ")
    assert "Traceback" not in err


def test_a_first_look_suggests_clients_and_a_target_with_blanks(fairfate: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 600
    frame = pd.DataFrame(
        {
            "hospital_id": rng.choice([11, 12, 13], rows, p=[0.8, 0.15, 0.05]),
            "team": rng.choice(list("ABCDEFGH"), rows),
            "colour": rng.choice(["red", "blue", "green"], rows, p=[0.9, 0.05, 0.05]),
            "wage": rng.normal(size=rows),
            "outcome": np.where(np.arange(rows) % 7 == 0, None, rng.choice(["yes", "no"], rows)),
            "sex": rng.choice(["f", "m", "d"], rows),
        }
    )
    frame.to_csv(tmp_path / "h.csv", index=False)
    lines = fairfate("data", "describe", "h.csv").out.splitlines()
    could_be = {line.split()[0]: "".join(line.partition("--")[1:]).strip() for line in lines[2:8]}
    assert could_be == {
        "hospital_id": "--client-column?",
        "team": "--client-column?",
        "colour": "",
        "wage": "",
        "outcome": "--target?",
        "sex": "--sensitive?",
    }


def test_a_wide_file_is_summarised(fairfate: Call, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = {f"q{number}": rng.normal(size=60).round(3) for number in range(4000)}
    frame = pd.DataFrame(
        {**wide, "same": 1, "clinic": ["a", "b", "c"] * 20, "y": [0, 1] * 30, "sex": ["f", "m"] * 30}
    )
    frame.to_csv(tmp_path / "wide.csv", index=False)
    out = fairfate("data", "describe", "wide.csv").out
    assert len(out.splitlines()) < 60
    assert "4,004 columns" in out
    assert "4,002 number" in out
    assert {"q0", "clinic", "y", "sex"} <= {line.split()[0] for line in out.splitlines() if line}
    out = fairfate("data", "describe", "wide.csv", "--target", "y", "--sensitive", "sex").out
    assert "4,002 inputs: q0," in out
    assert len(out) < 4000


def test_with_columns_the_table_is_described(fairfate: Call, tmp_path: Path) -> None:
    made_up.write(made_up.credit(300), tmp_path / "credit.csv")
    named = ["credit.csv", "--target", "risk", "--favourable", "good", "--sensitive", "house"]
    out = fairfate("data", "describe", *named).out
    assert "credit: 300 rows" in out
    assert "P(good)" in out
    assert "6 inputs" not in out
    assert "5 inputs: purpose" in out


def test_one_outcome_against_all_others(fairfate: Call, tmp_path: Path) -> None:
    frame = made_up.hospital(900)
    later = np.where(np.arange(900) % 3 == 0, "soon", "late")
    frame["readmitted"] = np.where(frame["readmitted"] == "yes", later, "never")
    made_up.write(frame, tmp_path / "three.csv")
    named = [
        "--data",
        "three.csv",
        "--target",
        "readmitted",
        "--favourable",
        "never",
        "--sensitive",
        "region",
    ]
    code, out, err = fairfate(
        "run", *named, "--strategy", "fedavg", "--rounds", "20", "--seeds", "1", "--out", "o"
    )
    assert code == 0, err
    merged = (
        r"'never' against all other outcomes, counted as \(others\): late \((\d+) rows\), soon \((\d+) rows\)"
    )
    told = re.search(merged, " ".join(out.split()))
    assert told is not None
    rows = frame["readmitted"].value_counts()
    assert (int(told[1]), int(told[2])) == (rows["late"], rows["soon"])
    words = ["--strategy", "fedavg", "--data", "three.csv"]
    assert fairfate("predict", "o", *words, "--out", "scored.csv").code == 0
    assert set(pd.read_csv("scored.csv")["prediction"]) <= {"never", "(others)"}
    assert re.search(merged, fairfate("evaluate", "o", *words).err)
    code, _, err = fairfate("run", *named[:4], "--sensitive", "region", "--out", "p")
    assert code == 2
    assert "target must have two values, got 3" in err


def test_merged_outcomes_are_noted_for_the_server_s_files_and_small_ones_not_counted_in_reports(
    tmp_path: Path,
) -> None:
    held = {"validation": 900, "sites": 950}
    for name, rows in held.items():
        frame = made_up.hospital(rows).dropna(subset="region").reset_index(drop=True)
        frame.loc[:3, "readmitted"] = "died"
        made_up.write(frame, tmp_path / f"{name}.csv")
    options = {"target": "readmitted", "favourable": "yes", "sensitive": "region", "rounds": 1, "seeds": 1}
    done = run(
        data=tmp_path / "sites.csv",
        validation=tmp_path / "validation.csv",
        **options,
        strategies="fedavg",
        min_group=0,
        jobs=1,
        out=tmp_path / "o",
    )
    for name in held:
        assert any(note.startswith(f"{name}.csv: ") and "died (4 rows)" in note for note in done.table.notes)
    page = write_report([tmp_path / "o"]).read_text("utf-8")
    assert "died (fewer than 10 rows)" in page
    assert "died (4 rows)" not in page


def test_a_few_rows_of_a_group_are_trained_on_and_not_compared(fairfate: Call, tmp_path: Path) -> None:
    frame = made_up.hospital(1500).drop(columns="region")
    frame["sex"] = np.where(np.arange(1500) % 2, "Female", "Male")
    frame.loc[:1, "sex"] = "Unknown/Invalid"
    made_up.write(frame, tmp_path / "stray.csv")
    named = ["--data", "stray.csv", "--target", "readmitted", "--favourable", "yes", "--sensitive", "sex"]
    code, out, err = fairfate(
        "run", *named, "--strategy", "fedavg", "--rounds", "3", "--seeds", "1", "--out", "o"
    )
    assert code == 0, err
    told = "not compared with others (--min-group): 1 of them with fewer than 20"
    assert f"{told}, such as 'Unknown/Invalid'" in " ".join(out.split())
    assert (
        tomllib.loads((tmp_path / "o" / "config.toml").read_text("utf-8"))["provenance"]["data-rows"] == 1500
    )
    assert set(pd.read_csv("o/groups.csv")["group"]) == {"Female", "Male", "(small groups)"}


def test_blanks_around_the_favourable_value_do_not_matter(tmp_path: Path) -> None:
    frame = made_up.census(400).assign(rich=lambda f: np.where(f["rich"] == 1, " 50000+.", " - 50000."))
    file = made_up.write(frame, tmp_path / "c.csv")
    table = load(str(file), columns=Columns(target="rich", favourable=" 50000+.", sensitive=("sex",)))
    assert table.label_names == ("- 50000.", "50000+.")


# --- values that people take for the same


def _alike(rows: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "hired": rng.choice(["yes", "YES", " Yes", "no"], rows, p=[0.4, 0.1, 0.1, 0.4]),
            "sex": rng.choice(["f", "m", "m\u200b"], rows),
            "town": rng.choice(["Zu\u0308rich", "Z\u00fcrich", "Bern", "Ulm"], rows),
            "score": rng.normal(size=rows),
        }
    )


def test_lookalike_values_are_named_with_their_rows_and_kept_apart(tmp_path: Path) -> None:
    frame = _alike()
    frame.to_csv(tmp_path / "people.csv", index=False)
    columns = Columns(target="hired", favourable="yes", sensitive=("sex",))
    table = load(tmp_path / "people.csv", columns=columns)
    counts = {name: frame[name].str.strip().value_counts() for name in ("hired", "sex", "town")}
    start = "kept apart, though they differ only in capital letters, blanks, invisible characters or the"
    for column, spelled in (
        ("hired", {"YES": "YES", "Yes": "Yes", "yes": "yes"}),
        ("sex", {"m": "m", "m\\u200b": "m\u200b"}),
        ("town", {"Zu\\u0308rich": "Zu\u0308rich", "Z\\xfcrich": "Z\u00fcrich"}),
    ):
        told = " and ".join(f"'{text}' ({counts[column][value]})" for text, value in spelled.items())
        assert f"{column}: {start} encoding of accents: {told}" in table.notes
    assert table.group_names == ("f", "m", "m\u200b")
    assert table.label.sum() == counts["hired"]["yes"]


def test_lookalike_values_are_named_in_the_servers_files_too(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("sites", "validation")}
    for number, file in enumerate(files.values()):
        frame = _alike(500 + number)
        frame["hired"] = np.where(frame["hired"] == "no", "no", "yes")
        frame.to_csv(file, index=False)
    columns = Columns(target="hired", favourable="yes", sensitive=("sex",))
    table = load(str(files["sites"]), columns=columns, server_files=ServerFiles(str(files["validation"])))
    for name in files:
        assert any(note.startswith(f"{name}.csv: sex: kept apart, though") for note in table.notes)


def test_different_values_are_not_called_lookalikes() -> None:
    frame = _alike().assign(
        hired=lambda f: np.where(f["hired"] == "no", "no", "yes"),
        sex=lambda f: f["sex"].str[:1],
        town=lambda f: f["town"].map({"Bern": "Bern", "Ulm": "Ülm"}).fillna("Berne"),
    )
    columns = Columns(target="hired", favourable="yes", sensitive=("sex",))
    table = table_from_frame(frame, columns, tidy=True)
    assert not any("kept apart" in note for note in table.notes)


def test_wide_file_shows_sex_and_outcome_among_thousands_of_binary_columns(
    fairfate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 2, (60, 600)), columns=[f"gene_{n}" for n in range(600)])
    frame.insert(300, "sex", rng.choice(["f", "m"], 60))
    frame.insert(400, "answer", rng.choice(["yes", "no", "later"], 60))
    frame["relapse"] = rng.integers(0, 2, 60)
    frame.to_csv(tmp_path / "wide.csv", index=False)
    lines = fairfate("data", "describe", str(tmp_path / "wide.csv")).out.splitlines()
    remarks = {line.split()[0]: line for line in lines if line.split()}
    assert "--sensitive?" in remarks["sex"]
    assert "--target?" in remarks["answer"]  # of three values one is favourable
    assert "--target?" in remarks["relapse"]
