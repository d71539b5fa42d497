"""A site checks itself: everything that does not fit is said at once, and nothing but that is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate import InputError
from fairfate.cli.main import run_command
from fairfate.data import Columns, Schema, UnfitError, table_from_frame
from fairfate.flower.app.init import init
from fairfate.flower.app.node import KEYS, check_site, read_node
from fairfate.flower.app.settings import schema_of, settings_of

SIZE = 40
GOOD = pd.DataFrame(
    {
        "age": np.arange(SIZE) * 1.5,
        "field": np.array(["arts", "law"])[np.arange(SIZE) % 2],
        "sex": np.array(["f", "m"])[np.arange(SIZE) // 2 % 2],
        "race": np.array(["a", "b", "b"])[np.arange(SIZE) % 3],
        "hired": np.array(["no", "yes"])[np.arange(SIZE) // 4 % 2],
    }
)
COLUMNS = Columns(target="hired", favourable="yes", sensitive=("sex",))
SCHEMA = Schema.from_table(table_from_frame(GOOD, COLUMNS))


def changed(column: str, **rows: object) -> pd.DataFrame:
    """The good rows with others in some places, as in ``r3="much"``; rows count from 1."""
    values = GOOD[column].astype(object)
    for row, value in rows.items():
        values.iloc[int(row[1:]) - 1] = value
    return GOOD.assign(**{column: values})


def problems(schema: Schema, frame: pd.DataFrame) -> list[str]:
    return list(schema.apply(frame, on_unknown="collect").problems)


# -- the function ----------------------------------------------------------------------------------------


def test_a_file_that_fits_has_no_problems() -> None:
    assert problems(SCHEMA, GOOD) == []
    assert problems(SCHEMA, changed("age", r3=None).assign(extra=1)) == []


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            GOOD.rename(columns={"age": "AGE"}),
            "column 'age' must be in the file; did you mean 'AGE'?",
        ),
        (
            GOOD.drop(columns="age"),
            "column 'age' must be in the file; the file has field, sex, race, hired",
        ),
        (
            changed("field", r2="alchemy", r5="alchemy", r7="magic", r9="runes"),
            "column 'field' must hold only the schema's 2 values, got 3 others in 4 rows, such as 'alchemy'"
            " (row 2) and 'magic' (row 7); the schema knows arts, law",
        ),
        (
            changed("age", r4="much", r6="old", r8="much"),
            "column 'age' must hold numbers, got text in 3 rows, such as 'much' (row 4) and 'old' (row 6)",
        ),
        (
            changed("field", r6=None),
            "column 'field' must have a value in every row, since the schema knows no missing one, got 1"
            " missing, the first in row 6",
        ),
        (
            changed("sex", r3="x"),
            "column 'sex' must hold only the schema's 2 values, got 1 other in 1 row, such as 'x' (row 3);"
            " the schema knows f, m",
        ),
        (
            changed("sex", r3=None, r4=None),
            "column 'sex' must have a value in every row, got 2 missing, the first in row 3",
        ),
        (
            changed("hired", r1="maybe"),
            "column 'hired' must hold only the schema's 2 values, got 1 other in 1 row, such as 'maybe'"
            " (row 1); the schema knows no, yes",
        ),
        (
            changed("hired", r2=None),
            "column 'hired' must have a value in every row, got 1 missing, the first in row 2",
        ),
        (
            GOOD.assign(age=pd.Timestamp("2020-01-01")),
            "column 'age' must hold numbers, got datetime64[us]",
        ),
        (
            changed("field", r1=["a"]),
            "column 'field' must hold numbers or texts, got lists or records",
        ),
        (
            changed("field", r1="a\nb\x1b[31m" + "c" * 100),
            f"column 'field' must hold only the schema's 2 values, got 1 other in 1 row, such as 'a b [31m"
            f"{'c' * 51}…' (row 1); the schema knows arts, law",
        ),
    ],
)
def test_each_problem_names_the_column_the_rule_and_the_value(frame: pd.DataFrame, said: str) -> None:
    assert problems(SCHEMA, frame) == [said]


@pytest.mark.parametrize("value", [np.inf, 1e40])
def test_numbers_of_no_use_are_named_with_their_row(value: float) -> None:
    (line,) = problems(SCHEMA, changed("age", r5=value))
    assert line.startswith("column 'age' must hold finite numbers of a usable size")
    assert "row 5" in line


def test_all_problems_are_reported_at_once_and_several_of_one_column() -> None:
    frame = pd.DataFrame(
        {
            "Age": GOOD["age"],
            "field": changed("field", r2="magic", r3=None)["field"],
            "sex": changed("sex", r1="x", r2=None)["sex"],
            "hired": changed("hired", r7="perhaps")["hired"],
        }
    )
    wide = Schema.from_table(table_from_frame(GOOD.assign(pay=1.0), COLUMNS))
    found = problems(wide, frame.assign(pay="lots"))
    assert [line.split("'")[1] for line in found] == [
        "age",
        "race",
        "field",
        "field",
        "pay",
        "sex",
        "sex",
        "hired",
    ]


def test_text_and_an_infinite_number_in_one_column_are_both_reported() -> None:
    found = problems(SCHEMA, changed("age", r2="much", r9=np.inf))
    assert len(found) == 2
    assert "text in 1 row" in found[0]
    assert "inf in row 9" in found[1]


def test_combinations_that_the_schema_lacks_are_reported() -> None:
    rows = GOOD[~((GOOD["sex"] == "f") & (GOOD["race"] == "a"))]
    schema = Schema.from_table(table_from_frame(rows, Columns("hired", ("sex", "race"), favourable="yes")))
    (line,) = problems(schema, GOOD)
    strange = int(((GOOD["sex"] == "f") & (GOOD["race"] == "a")).sum())
    assert line == (
        "columns sex, race must hold only the schema's 3 combinations, got others in"
        f" {strange} rows, such as 'f, a' (row 1)"
    )
    assert len(problems(schema, changed("sex", r1="x"))) == 2


def test_where_all_others_are_one_group_any_value_fits() -> None:
    three = changed("race", r1="c")
    columns = Columns("hired", ("race",), favourable="yes", privileged=(("race", "b"),))
    schema = Schema.from_table(table_from_frame(three, columns))
    assert problems(schema, changed("race", r1="d", r2="e")) == []
    assert problems(schema, changed("race", r3=None)) == [
        "column 'race' must have a value in every row, got 1 missing, the first in row 3"
    ]


VALUES = st.sampled_from([None, "arts", "law", "f", "m", "yes", "no", "x", "", 1, 2.5, "3", np.inf, True])


@given(
    st.dictionaries(
        st.sampled_from([*GOOD.columns]), st.lists(VALUES, min_size=SIZE, max_size=SIZE), max_size=3
    ),
    st.sets(st.sampled_from([*GOOD.columns]), max_size=1),
)
def test_there_are_problems_exactly_where_the_schema_refuses(columns: dict, dropped: set[str]) -> None:
    frame = GOOD.assign(**columns).drop(columns=list(dropped))
    found, rule = problems(SCHEMA, frame), ""
    try:
        SCHEMA.table(frame, "site")
    except UnfitError as error:
        rule = error.public.partition(", got")[0]
    assert any(rule in line for line in found) if rule else found == []
    assert all("\n" not in line for line in found)


# -- the command -----------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ready app in an empty folder, with its schema."""
    monkeypatch.chdir(tmp_path)
    folder = init(tmp_path / "hospitals")
    schema_of(settings_of(folder))[0].write(tmp_path / "schema.json")
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fairfate", "flower", *map(str, words)])
        return run_command(), *capsys.readouterr()

    return run


def node(app: Path, text: str) -> Path:
    file = app.parent / "own.toml"
    file.write_text(text)
    return file


def south(app: Path, **columns: object) -> Path:
    """South's file with other columns, somewhere else."""
    frame = pd.read_csv(app / "data" / "sites" / "south.csv").assign(**columns)
    frame.to_csv(app.parent / "own.csv", index=False)
    return app.parent / "own.csv"


@pytest.mark.parametrize("site", ["north", "south", "west"])
def test_the_ready_apps_own_files_fit(app: Path, call, site: str) -> None:
    code, out, err = call("check", "--schema", "schema.json", "--node", app / "sites" / f"{site}.toml")
    rows = len(pd.read_csv(app / "data" / "sites" / f"{site}.csv"))
    assert (code, err) == (0, "")
    assert f"{site}: {rows} rows fit the schema." in out
    assert "Missing values: none" in out
    assert "Columns of the file that are not used: none" in out


def test_the_summary_counts_rows_gaps_and_columns_that_are_not_used(app: Path, call) -> None:
    frame = pd.read_csv(app / "data" / "sites" / "south.csv")
    file = south(app, patient=1, experience=frame["experience"].where(frame.index >= 7))
    code, out, _ = call("check", "--schema", "schema.json", "--data", file)
    women = int(((frame["sex"] == "female") & (frame["hired"] == "hired")).sum())
    assert code == 0
    assert f"; female, hired {women}; " in out
    assert "Missing values: experience 7 (the mean is taken)" in out
    assert "not used: patient" in out


def test_every_misfit_is_a_line_and_the_exit_code_is_2(app: Path, call) -> None:
    file = south(app, field="astrology", experience="much", sex="x")
    code, out, err = call("check", "--schema", "schema.json", "--node", node(app, f'data = "{file}"'))
    assert code == 2
    assert [line.split("'")[1] for line in out.splitlines()] == ["experience", "sex"]  # fields: (others)
    assert "'much' (row 1)" in out
    assert err == f"Error: data must fit the schema, got 2 problems in '{file}'\n"


def test_a_sites_own_names_of_columns_count(app: Path, call) -> None:
    file = south(app)
    frame = pd.read_csv(file).rename(columns={"hired": "taken", "sex": "gender", "commute": "way"})
    frame.to_csv(file, index=False)
    names = 'target = "taken"\nsensitive = "gender"\nrename = "way=commute"\nname = "South"'
    code, out, _ = call("check", "--schema", "schema.json", "--node", node(app, f'data = "{file}"\n{names}'))
    assert code == 0
    assert out.startswith(f"South: {len(frame)} rows fit")
    assert call("check", "--schema", "schema.json", "--data", file)[0] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('dat = "OWN"', "unknown key in the node-config 'dat'; did you mean 'data'?"),
        ('[site]\ndata = "OWN"', "unknown key in the node-config 'site.data'"),
        ('name = "south"', "node-config must name the site's file"),
        ('data = "/nowhere/x.csv"', "got '/nowhere/x.csv' (no such file)"),
        ('data = "nowhere.csv"', "better give the full path"),
        ('data = "OWN"\nrename = "wage"', "node-config rename must be like 'own=schema,own=schema'"),
        ('data = "OWN"\ntarget = "Hired"', "unknown column for 'hired' in the node-config 'Hired'; did you"),
        ('data = "OWN"\nsensitive = "a,b"', "node-config sensitive must name 1 columns, got others"),
        ('data = "OWN"\nrename = "field=sex"', "must rename to a name that is free in the file, got 'sex'"),
        ('data = "OWN"\nrename = "sex=x,field=x"', "must give a column's name once, got 'x' for several"),
        ('data = ["OWN"]', "node must hold texts, numbers, true or false"),
        ("data = ", "node must be a TOML file"),
        ("data = \x00", "node must be a TOML file"),
    ],
)
def test_bad_settings_are_one_message_and_exit_2(app: Path, call, text: str, said: str) -> None:
    file = node(app, text.replace("OWN", str(south(app))))
    code, out, err = call("check", "--schema", "schema.json", "--node", file)
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_relative_path_starts_where_the_command_does_and_a_note_says_so(app: Path, call) -> None:
    south(app)
    code, out, _ = call("check", "--schema", "schema.json", "--node", node(app, 'data = "own.csv"'))
    assert code == 0
    assert "Note: 'own.csv' starts at the folder in which the SuperNode is started" in out


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "\x00",
        "[" * 100_000,
        json.dumps({"inputs": {}}),
        SCHEMA.to_json().replace('"no",\n', "", 1),
        SCHEMA.to_json().replace('"low": 0.0', '"low": 1' + "0" * 400, 1),
    ],
)
def test_a_schema_that_is_missing_or_damaged_is_one_message(app: Path, call, text: str | None) -> None:
    if text is not None:
        (app.parent / "bad.json").write_text(text)
    code, out, err = call("check", "--schema", "bad.json", "--node", app / "sites" / "north.toml")
    assert (code, out) == (2, "")
    assert err.startswith("Error: schema ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "check must be given either node or data, got neither"),
        (("--node", "a.toml", "--data", "b.csv"), "check must be given either node or data, got both"),
        (("--node", "nowhere.toml"), "node must be a TOML file, got 'nowhere.toml' (no such file)"),
        (("--node", "site.txt"), "node must be a file that ends in .toml, got 'site.txt'"),
        (("--data", "nowhere.csv"), "data must be a CSV or Parquet file, got 'nowhere.csv' (no such file"),
        (("--data", "empty.csv"), "data must have a header and rows"),
    ],
)
def test_bad_options_are_one_message(app: Path, call, words: tuple[str, ...], said: str) -> None:
    (app.parent / "empty.csv").write_text("")
    code, _, err = call("check", "--schema", "schema.json", *words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_the_schema_is_what_the_server_will_send(app: Path, call) -> None:
    code, out, _ = call("schema", app, "--out", "sent.json")
    assert code == 0
    assert "Saved sent.json" in out
    assert "a study needs" not in out
    validation = pd.read_csv(app / "data" / "validation.csv")
    columns = Columns("hired", ("sex",), favourable="hired")
    table = table_from_frame(validation, columns, encode="onehot", tidy=True)
    assert Path("sent.json").read_text() == Schema.from_table(table).to_json()
    config = app / "pyproject.toml"
    config.write_text(config.read_text().replace('schema = "validation"', 'schema = "sites"'))
    assert "a study needs a fixed one" in call("schema", app, "--out", "sent.json", "--force")[1]


@pytest.mark.parametrize("text", [None, "x = ", "x = 1", "[tool.flwr.app]\nconfig = 3"])
def test_an_app_without_a_run_config_has_no_schema(app: Path, call, text: str | None) -> None:
    config = app / "pyproject.toml"
    config.unlink()
    if text is not None:
        config.write_text(text)
    code, _, err = call("schema", app)
    assert code == 2
    assert err.startswith("Error: app must ")
    assert not Path("schema.json.new").exists()


def test_a_file_that_the_template_names_is_read_as_flower_reads_it(app: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.common.config import parse_config_args

    file = app / "sites" / "west.toml"
    assert read_node(file) == parse_config_args([str(file)])
    assert set(read_node(file)) <= set(KEYS)


def test_function_and_command_give_the_same_output(app: Path) -> None:
    checked = check_site("schema.json", data=south(app, sex="x"))
    assert len(checked.problems) == 1
    assert checked.summary == []
    with pytest.raises(InputError, match="either node or data"):
        check_site("schema.json")


def test_it_works_without_flower(app: Path) -> None:
    words = ["fairfate", "flower", "check", "--schema", "schema.json", "--node", "hospitals/sites/north.toml"]
    code = (
        f"import sys; sys.modules['flwr'] = None; sys.argv = {words};"
        "from fairfate.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "rows fit the schema" in done.stdout
