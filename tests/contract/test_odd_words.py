"""What was once accepted in silence, or printed as it came; and checks that nothing else looks at."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fairfate as library
from builders import OWN, people
from command import QUICK
from fairfate.cli.screen import UserConsole
from fairfate.errors import InputError, reason_of, shown
from fairfate.experiments.config import (
    Config,
    config_text,
    file_options,
    from_mapping,
    parse_privileged,
    parse_seeds,
    read_config,
    read_written,
)
from fairfate.experiments.runner import check_request
from fairfate.results.folder import model_file
from fairfate.results.tables import groups_in, read_clients, read_rounds
from fairfate.storage import short_name

SOURCE = Path(library.__file__).parent
SMALL = [*QUICK[2:], "--no-report"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    library.run(data="synthetic:rows=300", rounds=1, epochs=1, seeds=(1,), jobs=1, out=folder)
    return folder


# ---------------------------------------------------------------- what is printed


@pytest.mark.parametrize("word", ["\x1b[31m", "\x07", "\x7f", "\x85", "\u202e", "\u2066", "\r"])
def test_a_terminal_is_not_steered(word: str, fairfate) -> None:
    code, out, err = fairfate("show", f"no{word}where")
    assert code == 2
    assert word not in out + err
    assert shown(word) in err


def test_tables_show_escapes_and_no_smileys(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("name")
    table.add_row(Text("a\x1b[31mb"))
    table.add_row(":smile: [red]x[/red]")
    UserConsole(width=60).print(table)
    UserConsole(width=60).print(":smile:", "a\rb")
    out = capsys.readouterr().out
    assert r"a\x1b[31mb" in out
    assert ":smile: [red]x[/red]" in out
    assert r":smile: a\rb" in out


def test_an_error_without_a_text_has_a_name() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert reason_of(MuteError()) == "MuteError"
    assert reason_of(KeyError("a")) == "KeyError: 'a'"


# ---------------------------------------------------------------- accepted in silence once


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("/", "out must be a folder with a name, got '/'"),
        ("/nowhere/..", "out must be a folder with a name, got '/nowhere/..'"),
        ("a\udcffb", r"out must be in UTF-8, got 'a\\udcffb'"),
        ("a\0b", r"out must be without NUL characters, got 'a\\x00b'"),
        (Path(library.__file__), "out must be a folder, got '.*' \\(a file\\)"),
    ],
)
def test_a_folder_for_results_is_checked_before_anything_is_done(out: str | Path, message: str) -> None:
    with pytest.raises(InputError, match=message):  # not by a run, which would write into the root folder
        check_request(out, None)


@pytest.mark.parametrize("form", ["", ".", "a/b", "..", "JSON"])
def test_forms_of_a_model_are_known(form: str, finished: Path, fairfate) -> None:
    model = sorted((finished / "models").glob("fedavg*"))[0]
    for run in ([str(model)], [str(finished), "--strategy", "fedavg"]):
        code, _, err = fairfate("export", *run, "--format", form)
        assert code == 2
        assert f"format must be one of onnx|skops|json, got '{form}'" in err


def test_an_empty_kind_of_figure_is_not_a_default(finished: Path, fairfate) -> None:
    code, _, err = fairfate("plot", str(finished), "--kind", "")
    assert code == 2
    assert "kind must be one of rounds|tradeoff|both, got ''" in err


@pytest.mark.parametrize("out", ["/", ".", "..", "there"])
def test_a_file_is_not_written_over_a_folder(out: str, finished: Path, fairfate, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    model = str(sorted((finished / "models").glob("fedavg*"))[0])
    for words in (["report", str(finished), "--card"], ["export", model, "--format", "json"]):
        code, _, err = fairfate(*words, "--out", out)
        assert code == 2
        assert f"out must be a file, got '{out}' (a folder)" in err
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_trailing_empty_fields_are_reported(fairfate, tmp_path: Path) -> None:
    lines = people().to_csv(index=False).splitlines()
    (tmp_path / "p.csv").write_text("\n".join([lines[0], *(f"{line}," for line in lines[1:])]))
    code, out, err = fairfate("data", "describe", "p.csv", *OWN)
    assert code == 0, err
    assert "120 rows end with empty fields beyond the header's" in out + err


def test_long_names_are_no_error_after_training(fairfate, tmp_path: Path) -> None:
    name = "x" * 230
    people().to_csv(tmp_path / f"{name}.csv", index=False)
    code, _, err = fairfate("run", "--data", f"{name}.csv", *OWN, *SMALL, "--clients", "3", "--out", "o:1")
    assert code == 0, err
    assert len(short_name(name)) == 140
    assert short_name(name) != short_name(name + "y")
    assert len(model_file("y" * 400, 1)) < 200


def test_our_own_config_can_be_read_again() -> None:
    odd = "a\x7fb\x1b\"'\\\u202e:smile:\n\t"
    text = config_text(Config(data=odd, drop=(odd,)), {odd: odd})
    again = tomllib.loads(text)
    assert again["data"] == odd
    assert again["drop"] == [odd]
    assert again["provenance"][odd] == odd


def test_a_sweeps_summary_has_only_what_is_asked_for(fairfate, tmp_path: Path) -> None:
    head = 'data = "synthetic:rows=300"\nrounds = 1\nepochs = 1\nseeds = 1\nclients = 4\n'
    file = tmp_path / "s.toml"
    for values in ("0.8|0.9", "0.9|0.7"):
        file.write_text(f'{head}strategy = ["fedmom:beta={values}"]\n')
        assert fairfate("sweep", "s.toml", "--out", "s", "--jobs", "1").code == 0
    results = [json.loads(text)["beta"] for text in pd.read_csv(tmp_path / "s/summary.csv")["settings"]]
    assert sorted(results) == [0.7, 0.9]
    out = fairfate("show", "s").out
    assert "beta=0.7" in out
    assert "beta=0.8" not in out


def test_nothing_is_left_of_a_run_or_sweep_that_fails_at_once(fairfate, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from fairfate.strategies import ModelState, Strategy, register\n"
        "@register('failing', 'fails', 'nobody')\n"
        "def build(setup):\n"
        "    return Strategy(ModelState, lambda state, cohort: exit(0))\n"
    )
    words = ["--plugin", "mine.py", "--strategy", "failing", "--out", "o"]
    code, _, err = fairfate("run", *QUICK, *words)
    assert code == 2
    assert "strategy 'failing': aggregate must run without an error, got SystemExit: 0" in err
    (tmp_path / "s.toml").write_text(
        'data = "synthetic:rows=300"\nrounds = 1\nseeds = 1\nplugin = "mine.py"\nstrategy = "failing"\n'
    )
    assert fairfate("sweep", "s.toml", "--out", "s", "--jobs", "1").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "s.toml"]


# ---------------------------------------------------------------- python -O


def test_no_check_of_input_depends_on_assert() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Assert) or node in ast.parse(path.read_text()).body:
                continue
            narrows = isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.IsNot)
            narrows |= isinstance(node.test, ast.Call) and ast.unparse(node.test).startswith("isinstance(")
            narrows |= ast.unparse(node.test) == "set(GOALS) == set(METRICS)"
            assert narrows, f"{path.name}:{node.lineno}"


def test_bad_input_is_refused_without_asserts(tmp_path: Path) -> None:
    words = [sys.executable, "-O", "-m", "fairfate", "run", "--data", "synthetic:rows=0", "--jobs", "0"]
    process = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stderr.startswith("Error: ")


# ---------------------------------------------------------------- runs/config.py


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"drop = {'[' * 3000}{']' * 3000}", "values within values, too many"),
        (f"rounds = {'9' * 5000}", "config must be a TOML file"),
        (f"learning-rate = 1{'0' * 400}", "learning-rate must be a number, got one of 401 digits"),
    ],
)
def test_a_config_beyond_all_bounds_is_refused(text: str, message: str, fairfate, tmp_path: Path) -> None:
    people().to_csv(tmp_path / "p.csv", index=False)
    lines = text if "data" in text else f'data = "synthetic:rows=300"\n{text}'
    (tmp_path / "c.toml").write_text(lines)
    code, _, err = fairfate("run", "--config", "c.toml")
    assert code == 2
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.toml", "p.csv"]


def test_execution_options_are_removed_from_a_config() -> None:
    values = {"jobs": 2, "out": "o", "force": True, "rounds": 3}
    assert file_options(values, "c") == (2, "o", True)
    assert values == {"rounds": 3}
    assert file_options({}, "c") == (None, None, False)


def test_values_of_other_libraries_are_taken() -> None:
    config = from_mapping(
        {"seeds": np.arange(1, 3), "rounds": np.int64(4), "drop": {"b", "a"}, "data": Path("x")}
    )
    assert (config.seeds, config.rounds, config.drop, config.data) == ((1, 2), 4, ("a", "b"), "x")
    assert from_mapping({"seeds": range(3)}).seeds == (0, 1, 2)
    assert from_mapping({"hidden": [32, 16]}).hidden == "32,16"
    assert from_mapping({"drop": {1, "a"}}).drop == ("1", "a")


def test_seeds_are_read_and_refused() -> None:
    assert parse_seeds(" 3 , 5") == (3, 5)


def test_privileged_values_are_matched_with_their_columns() -> None:
    assert parse_privileged(["m"], ["sex"]) == (("sex", "m"),)
    assert parse_privileged(["a=b"], ["sex"]) == (("sex", "a=b"),)
    assert parse_privileged(["sex=m", "race=w"], ["sex", "race"]) == (("sex", "m"), ("race", "w"))


def test_a_written_config_has_values_of_their_kinds(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('seeds = 2\ndrop = "a"\nof-tomorrow = {a = 1}\n')
    assert read_written(file) == {"seeds": [1, 2], "drop": ["a"], "of-tomorrow": {"a": 1}}
    for text in ("rounds = 'x'", "provenance = 5", "[provenance]\ndata-notes = 5"):
        file.write_text(text)
        with pytest.raises(InputError, match=r"must be"):
            read_written(file)
    with pytest.raises(InputError, match="no such file"):
        read_config(tmp_path / "none.toml")


def test_columns_that_are_known_are_left_out() -> None:
    for key in ("target", "favourable", "client_column"):
        with pytest.raises(InputError, match="must be left out for 'synthetic'"):
            assert dataclasses.replace(Config(), **{key: "x"}).columns
    for key in ("sensitive", "privileged", "drop", "categorical"):
        with pytest.raises(InputError, match=r"must be left out for 'synthetic'.*got 'x'"):
            assert dataclasses.replace(Config(), **{key: ("x",)}).columns
    with pytest.raises(InputError, match="target must be left out for 'adult'"):
        assert Config(data="adult", target="x").columns
    with pytest.raises(InputError, match=r"target must be left out for 's\.json'"):
        assert Config(data="p.csv", validation="v.csv", schema="s.json", target="x").columns


# ---------------------------------------------------------------- runs/results.py


def changed(finished: Path, name: str, folder: Path, columns: dict[str, object]) -> Path:
    """A table of a run with other columns; None for none."""
    table = pq.read_table(finished / name)
    for column, value in columns.items():
        index = table.column_names.index(column)
        table = table.remove_column(index)
        if value is not None:
            table = table.add_column(index, column, pa.array([value] * table.num_rows))
    pq.write_table(table, folder / name)
    return folder / name


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"seed": None}, "with column 'seed'"),
        ({"seed": "x"}, "with int64 in column 'seed', got string"),
        ({"accuracy": "x"}, "with double in column 'accuracy', got string"),
        ({"strategy": 5}, "with string in column 'strategy', got int64"),
        ({"settings": "["}, r"settings that a run has written, got '\['"),
        ({"settings": "[]"}, r"settings that a run has written, got '\[\]'"),
        ({"n_0_0_0": None}, "with column 'n_0_0_0'"),
        ({"seed": 1.5}, "with int64 in column 'seed', got double"),
    ],
)
def test_rounds_are_checked(columns, message: str, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_rounds(changed(finished, "rounds.parquet", tmp_path, columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"outcome": "gone"}, "each outcome in clients.parquet must be one of fair|used|dropped|refused"),
        ({"name": None}, "with column 'name'"),
        ({"round": "x"}, "with int64 in column 'round'"),
        ({"settings": "5"}, "settings that a run has written, got '5'"),
    ],
)
def test_records_of_clients_are_checked(columns, message: str, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_clients(changed(finished, "clients.parquet", tmp_path, columns))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "about",
    [
        [],
        {"members": 5},
        {"members": [[0]], "values": [["a"]], "attributes": []},
        {"members": [[1]], "values": [["a"]], "attributes": ["x"]},
        {"members": [[0], [0]], "values": [["a"]], "attributes": ["x"]},
        {"members": [], "values": [], "attributes": []},
        {"members": [["a"]], "values": [["a"]], "attributes": ["x"]},
    ],
)
def test_groups_are_checked(about, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run must say"):
        groups_in(about)
    table = pq.read_table(finished / "rounds.parquet")
    file = tmp_path / "rounds.parquet"
    pq.write_table(table.replace_schema_metadata({b"fairfate": b"{"}), file)
    with pytest.raises(InputError, match="header of a run"):
        read_rounds(file)
    other = {"members": [[0]], "values": [["a"]], "attributes": ["x"]}
    pq.write_table(table.replace_schema_metadata({b"fairfate": json.dumps(other).encode()}), file)
    with pytest.raises(InputError, match="counts of its groups, got 'n_1_0_0'"):
        read_rounds(file)


def test_pandas_notes_in_our_tables_do_not_matter(finished: Path, tmp_path: Path) -> None:
    table = pq.read_table(finished / "rounds.parquet")
    pq.write_table(
        table.replace_schema_metadata({**table.schema.metadata, b"pandas": b"\xff{"}),
        tmp_path / "rounds.parquet",
    )
    pd.testing.assert_frame_equal(read_rounds(tmp_path), read_rounds(finished))
    pd.testing.assert_frame_equal(read_rounds(finished), pd.read_parquet(finished / "rounds.parquet"))


def test_a_text_of_a_run_that_is_not_utf_8_is_reported(finished: Path, tmp_path: Path) -> None:
    table = pq.read_table(finished / "rounds.parquet")
    ends = pa.py_buffer(np.arange(table.num_rows + 1, dtype=np.int32))
    odd = pa.Array.from_buffers(
        pa.string(), table.num_rows, [None, ends, pa.py_buffer(b"\xff" * table.num_rows)]
    )
    pq.write_table(table.append_column("extra", odd), tmp_path / "rounds.parquet")
    with pytest.raises(InputError, match=r"must hold a readable rounds\.parquet, got .*Invalid UTF8"):
        read_rounds(tmp_path)
