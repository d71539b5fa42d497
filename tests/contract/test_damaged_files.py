"""Files of a run that were damaged, or changed by hand: whole, with a right checksum, and wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairfate.engine.checkpoint import Checkpoint
from fairfate.errors import InputError
from fairfate.experiments.config import read_written
from fairfate.experiments.live import read_live_seeds
from fairfate.experiments.runs import read_runs
from fairfate.results.tables import counts_of, read_rounds
from fairfate.storage import read_arrays, write_arrays
from odd_input import make_base

READERS = (
    ["show", "there"],
    ["show", "there", "--groups"],
    ["plot", "there", "--kind", "tradeoff"],
    ["report", "there", "--card"],
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("damaged") / "base")


@pytest.fixture
def there(base: Path, tmp_path: Path) -> Path:
    """A finished run, to be damaged."""
    return Path(shutil.copytree(base / "run", tmp_path / "there"))


def rewrite(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def filled(column: str, value: object, row: int | None = None) -> Callable[[pa.Table], pa.Table]:
    """A column with another value, everywhere or in one row."""

    def change(table: pa.Table) -> pa.Table:
        index = table.column_names.index(column)
        values = [value] * table.num_rows
        if row is not None:
            values = table.column(index).to_pylist()
            values[row] = value
        return table.set_column(
            index, column, pa.array(values, None if row is None else table.schema.types[index])
        )

    return change


def test_a_run_without_rounds_is_reported(there: Path, fairfate) -> None:
    rewrite(there / "rounds.parquet", lambda table: table.slice(0, 0))
    assert counts_of(read_rounds(there)).shape == (0, 2, 2, 2)
    for words in READERS:
        code, _, err = fairfate(*words)
        assert code == 2
        assert (
            "one measurement on test rows for every strategy and seed in the last round, got 0 for 0" in err
        )


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (filled("split", "validation"), "0 for 6"),
        (filled("split", "x", row=-1), "5 for 6"),
        (filled("seed", 7, row=0), "6 for 7"),
        (filled("strategy", "x", row=0), "6 for 7"),
        (filled("round", 9, row=0), "0 for 6"),
        (lambda table: pa.concat_tables([table, table]), "12 for 6"),
    ],
)
def test_every_strategy_and_seed_is_measured_in_the_last_round(change, got: str, there: Path) -> None:
    rewrite(there / "rounds.parquet", change)
    with pytest.raises(InputError, match=f"in the last round, got {got} in"):
        list(read_runs(there))


def test_a_cell_without_test_rows_in_a_sweep_is_reported(base: Path, fairfate, tmp_path: Path) -> None:
    import hashlib

    folder = Path(shutil.copytree(base / "sweep", tmp_path / "there"))
    cell = sorted((folder / "cells").iterdir())[0]
    rewrite(cell, filled("split", "validation"))
    digest = hashlib.sha256(cell.read_bytes()).hexdigest()[:32]
    cell.rename(cell.with_name(f"{cell.stem.rpartition('_')[0]}_{digest}.parquet"))
    shutil.copy(base / "sweep.toml", tmp_path)
    for words in (["show", "there"], ["sweep", "sweep.toml", "--out", "there", "--jobs", "1"]):
        code, _, err = fairfate(*words)
        assert code == 2
        assert "one measurement on test rows" in err


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("rounds.parquet", filled("n_0_0_0", -1, row=0), "column 'n_0_0_0' must have numbers from 0 to"),
        ("rounds.parquet", filled("n_0_0_0", 2**62), "column 'n_0_0_0' must have numbers from 0 to"),
        ("rounds.parquet", filled("n_0_0_0", None, row=3), "a value in every row of column 'n_0_0_0'"),
        ("rounds.parquet", filled("round", 0, row=0), "column 'round' must have numbers from 1 to 10000000"),
        ("rounds.parquet", filled("round", 2**40), "column 'round' must have numbers from 1 to 10000000"),
        ("rounds.parquet", filled("accuracy", np.inf, row=0), "column 'accuracy' must have finite numbers"),
        ("clients.parquet", filled("round", 2**40, row=0), "column 'round' must have numbers from 1 to"),
        ("scores.parquet", filled("cut_0", np.inf), "column 'cut_0' must have finite numbers"),
        ("scores.parquet", filled("n_0_0", -1, row=0), "column 'n_0_0' must have numbers from 0 to"),
        ("scores.parquet", filled("bin", 0), "scores in 256 bins for each model"),
        ("scores.parquet", lambda table: table.slice(1), "scores in 256 bins for each model"),
        ("scores.parquet", lambda table: table.drop_columns(["n_1_1"]), "with column 'n_1_1'"),
        ("scores.parquet", lambda table: table.drop_columns(["cut_1"]), "with column 'cut_1'"),
        ("local.parquet", lambda table: table.drop_columns(["name"]), "with column 'name'"),
        ("local.parquet", lambda table: table.drop_columns(["n_1_1_1"]), "with column 'n_1_1_1'"),
        ("local.parquet", lambda table: table.drop_columns(["seed"]), "with column 'seed'"),
        ("local.parquet", filled("seed", "x"), "with int64 in column 'seed', got string"),
        ("local.parquet", filled("name", None, row=0), "with a value in every row of column 'name'"),
        (
            "local.parquet",
            lambda table: table.append_column("n_2_0_0", table.column("n_0_0_0")),
            "with counts of its groups, got 'n_2_0_0'",
        ),
    ],
)
def test_numbers_of_a_run_are_checked(file: str, change, message: str, there: Path, fairfate) -> None:
    rewrite(there / file, change)
    words = ["show", "there", "--clients"] if file == "clients.parquet" else ["report", "there"]
    code, _, err = fairfate(*words)
    assert code == 2
    assert message in err
    assert file in err
    assert not (there / "report.html").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("of-tomorrow = inf", "values that a run writes"),
        ("learning-rate = nan", "values that a run writes"),
        ("of-tomorrow = 1979-05-27", "values that a run writes"),
        ("[provenance]\ndata-rows = 'x'", "data-rows must be a whole number, got 'x'"),
        ("[provenance]\ndata-notes = 'x'", "data-notes must be a list, got 'x'"),
    ],
)
def test_config_with_values_that_no_run_writes_is_an_error(
    line: str, message: str, there: Path, fairfate
) -> None:
    (there / "config.toml").write_text(f"rounds = 1\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_written(there / "config.toml")
    code, _, err = fairfate("report", "there")
    assert code == 2
    assert message in err


def test_what_a_strategy_notes_may_be_infinite(there: Path, fairfate) -> None:
    rewrite(there / "rounds.parquet", filled("lam", -np.inf, row=-1))
    assert fairfate("report", "there").code == 0


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        (0, ["seed"], 10**30),
        (0, ["seed"], -1),
        (0, ["rounds"], 10**9),
        (0, ["strategies", 0, 0], None),
        (0, ["strategies", 0, 1], 5),
        (0, ["strategies", 0, 2], "x"),
        (0, ["strategies", 0, 2], "[]"),
        (0, ["strategies", 0], ["fedavg"]),
        (1, ["strategies", 0, "clients", 0, 2], "gone"),
        (1, ["strategies", 0, "test", 0], 2**62),
        (1, ["first"], 10**9),
    ],
)
def test_files_read_by_watch_are_checked(
    line: int, path: list[Any], value: object, base: Path, fairfate, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(base / "stopped", tmp_path / "there"))
    (file,) = (folder / "live").iterdir()
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    (whole,) = read_live_seeds(folder)
    assert (whole.rounds_done, len(whole.clients)) == (1, 2)
    inner = lines[line]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text("".join(f"{json.dumps(item)}\n" for item in lines))
    assert not [item for item in read_live_seeds(folder) if item.rounds_done]
    assert fairfate("report", "there").code == 0  # of the finished seed


# ---------------------------------------------------------------- checkpoints


def edited(file: Path, change: Callable[[dict[str, np.ndarray], dict[str, Any]], None]) -> None:
    """A checkpoint with something else in it, and a right checksum."""
    arrays, about = read_arrays(file)
    change(arrays, about)
    write_arrays(file, arrays, about)


def other(name: str, make: Callable[[np.ndarray], np.ndarray]):
    def change(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        assert name in arrays, sorted(arrays)
        arrays[name] = make(arrays[name])

    return change


def put(value: object, *path: str | int):
    def change(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> None:
        inner: Any = about
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rounds were taken up from checkpoints."""
    results: list[int] = []
    plain = Checkpoint.load

    def load(self: Checkpoint, *given: Any) -> tuple[int, Any]:
        outcome, more = plain(self, *given)
        results.append(outcome)
        return outcome, more

    monkeypatch.setattr(Checkpoint, "load", load)
    return results


MOMENTUM = ("content", "dict", "states", "list", 1, "tuple", 1)


@pytest.mark.parametrize(
    "change",
    [
        other("state.states.0.params", lambda array: array[..., None]),
        other("(texts)", lambda array: array[:-1]),
        put(5, *MOMENTUM[:-2], "x"),
        put([], "content", "dict", "recorders", "list"),
        put({"seed": 9}, "identity"),
    ],
)
def test_a_run_starts_over_where_its_checkpoint_is_not_a_good(
    change, base: Path, taken: list[int], fairfate, tmp_path: Path
) -> None:
    shutil.copy(base / "stopped.toml", tmp_path)
    shutil.copytree(base / "stopped", tmp_path / "there")
    (file,) = (tmp_path / "there/checkpoints").iterdir()
    edited(file, change)
    code, _, err = fairfate("run", "--no-report", "--config", "stopped.toml", "--out", "there")
    assert code == 0, err
    assert taken == [0]
    assert len(read_rounds(tmp_path / "there")) == 2 * 2 * 2 * 2  # strategies, seeds, rounds, splits


def test_a_good_checkpoint_is_used(base: Path, taken: list[int], fairfate, tmp_path: Path) -> None:
    """As the edits above would otherwise prove nothing."""
    shutil.copy(base / "stopped.toml", tmp_path)
    shutil.copytree(base / "stopped", tmp_path / "there")
    (file,) = (tmp_path / "there/checkpoints").iterdir()
    edited(file, lambda arrays, about: None)
    assert fairfate("run", "--no-report", "--config", "stopped.toml", "--out", "there").code == 0
    assert taken == [1]


def test_stored_rounds_of_another_run_are_trained_again(base: Path, fairfate, tmp_path: Path) -> None:
    """With the right checksum: as whoever copies files between folders may leave them."""
    shutil.copy(base / "stopped.toml", tmp_path)
    shutil.copytree(base / "stopped", tmp_path / "there")
    (file,) = (tmp_path / "there/cells").iterdir()
    table = pq.read_table(file)
    pq.write_table(table.set_column(0, "dataset", pa.array(["another"] * len(table))), file)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:32]
    file.rename(file.with_name(f"{file.stem.rpartition('_')[0]}_{digest}.parquet"))
    code, _, err = fairfate("run", "--no-report", "--config", "stopped.toml", "--out", "there")
    assert code == 0, err
    assert set(read_rounds(tmp_path / "there")["dataset"]) == {"synthetic"}
