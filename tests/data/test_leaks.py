"""Copies of rows and columns that tell the label are found, and honest data are left in peace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import made_up
from command import Outcome
from fairfate import InputError, load
from fairfate.data import Columns, ServerFiles, table_from_frame
from fairfate.data.inspection import find_leaks, find_revealing_inputs

Call = Callable[..., Outcome]
COLUMNS = Columns("y", ("s",))
NAMED = ["--target", "y", "--sensitive", "s"]
SHORT = ["--rounds", "2", "--seeds", "1", "--jobs", "1"]


def people(rows: int = 1000, seed: int = 0, share: float = 0.3, **columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    base = {"x": rng.normal(size=rows), "s": rng.choice(["a", "b"], rows)}
    return pd.DataFrame({**base, "y": (rng.random(rows) < share).astype(int), **columns})


def table(frame: pd.DataFrame):
    return table_from_frame(frame, COLUMNS, encode="onehot", tidy=True)


# -- files -----------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    names = ("data", "validation", "test")
    return {
        name: made_up.write(people(300, seed), tmp_path / f"{name}.csv") for seed, name in enumerate(names)
    }


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize(("one", "two"), [("data", "validation"), ("data", "test"), ("validation", "test")])
def test_a_model_is_not_measured_on_its_own_file(
    fairfate: Call, files: dict[str, Path], one: str, two: str, copied: bool
) -> None:
    if copied:
        shutil.copy(files[one], files[two])
    else:
        files[two] = files[one]
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    code, out, err = fairfate("run", *options, *NAMED, *SHORT)
    assert (code, out) == (2, "")
    assert err == f"Error: {two} must be another file than '{files[one]}', got the same content\n"


def test_a_file_of_the_folder_is_not_a_validation_file(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    shutil.copy(files["data"], tmp_path / "sites" / "north.csv")
    shutil.copy(files["validation"], tmp_path / "sites" / "south.csv")
    with pytest.raises(InputError, match=r"validation must be another file than .*south.csv"):
        load(str(tmp_path / "sites"), columns=COLUMNS, server_files=ServerFiles(str(files["validation"])))


def test_copies_in_the_servers_files_are_counted(files: dict[str, Path]) -> None:
    data, validation, test = (pd.read_csv(path) for path in files.values())
    pd.concat([validation, data[:7]]).to_csv(files["validation"], index=False)
    pd.concat([test, data[7:9], data[8:9]]).to_csv(files["test"], index=False)
    held = ServerFiles(str(files["validation"]), str(files["test"]))
    notes = load(str(files["data"]), columns=COLUMNS, server_files=held).notes
    assert "leak? 10 of the server's 610 rows are also among the training rows" in notes
    made_up.write(test, files["test"])
    made_up.write(validation, files["validation"])
    assert not any(
        "leak?" in note for note in load(str(files["data"]), columns=COLUMNS, server_files=held).notes
    )


def test_the_same_inputs_with_another_label_are_no_copy(files: dict[str, Path]) -> None:
    data = pd.read_csv(files["data"])
    data.assign(y=1 - data["y"]).to_csv(files["validation"], index=False)
    held = ServerFiles(str(files["validation"]), str(files["test"]))
    assert not any(
        "leak?" in note for note in load(str(files["data"]), columns=COLUMNS, server_files=held).notes
    )


@pytest.mark.parametrize(("copies", "told"), [(0, False), (9, False), (10, True), (11, True), (500, True)])
def test_copies_within_a_file_are_noted_from_one_per_cent(copies: int, told: bool) -> None:
    unlike = people(1000 - copies)
    unlike.loc[0, "x"] = np.nan  # a copy may have a gap, too
    found = find_leaks(table(pd.concat([unlike, unlike[:copies]], ignore_index=True)))
    expected = f"leak? {copies:,} of 1,000 rows are copies of another row, inputs and label; a copy may be in"
    assert [note.startswith(expected) for note in found] == [True] * told


def test_copies_of_rows_are_noted_by_a_run_and_in_its_folder(fairfate: Call, tmp_path: Path) -> None:
    frame = people(300)
    made_up.write(pd.concat([frame, frame]), tmp_path / "twice.csv")
    code, out, err = fairfate("run", "--data", "twice.csv", *NAMED, *SHORT, "--out", "o")
    assert code == 0, err
    assert "leak? 300 of 600 rows are copies" in " ".join(out.split())
    assert "leak? 300 of 600 rows are copies" in " ".join(fairfate("show", "o").out.split())


# -- columns ---------------------------------------------------------------------------------------------


def wrong(labels: pd.Series, rows: int) -> pd.Series:
    """The labels with some exceptions, of either kind."""
    changed = [*labels.index[labels == 1][: rows // 2], *labels.index[labels == 0][: rows - rows // 2]]
    return labels.where(~labels.index.isin(changed), 1 - labels)


TELLING: dict[str, Callable[[pd.Series], object]] = {
    "number": lambda y: y * 3.5,
    "inverted": lambda y: 7 - y,
    "text": lambda y: y.map({0: "refused", 1: "granted"}),
    "many texts": lambda y: [f"{'granted' if label else 'refused'} {n % 10}" for n, label in enumerate(y)],
    "a cut": lambda y: np.where(y == 1, 10, -10) + np.random.default_rng(1).normal(size=len(y)),
    "an inverted cut": lambda y: np.where(y == 1, -10, 10) + np.random.default_rng(1).normal(size=len(y)),
    "filled only if granted": lambda y: np.where(y == 1, np.arange(len(y)) % 9, np.nan),
    "exceptions": lambda y: wrong(y, 10) * 2.0,
    "exceptions in texts": lambda y: wrong(y, 10).map({0: "no", 1: "yes"}),
}


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("kind", TELLING)
def test_column_that_predicts_the_label_is_named(kind: str, share: float) -> None:
    frame = people(share=share)
    found = table(frame.assign(outcome=TELLING[kind](frame["y"])))
    (told,) = find_revealing_inputs(found)
    rows = 990 if "exceptions" in kind else 1000
    assert told == f"outcome ({rows / 1000:.1%})"
    (note,) = find_leaks(found)
    assert note.startswith(f"leak? one column alone tells the label in nearly every row: {told}; --drop")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.8])
def test_honest_columns_are_not_named(share: float) -> None:
    frame = people(share=share)
    y, rng = frame["y"], np.random.default_rng(2)
    strong = {
        "score": y + rng.normal(0, 0.5, len(y)),
        "answer": np.where(rng.random(len(y)) < 0.85, y, 1 - y).astype(str),
        "mostly one": np.where(rng.random(len(y)) < 0.99, "usual", "other"),
        "gap": np.where(rng.random(len(y)) < 0.1 + 0.6 * y, rng.normal(size=len(y)), np.nan),
        "often": rng.integers(0, 40, len(y)).astype(str),
    }
    found = table(frame.assign(**strong))
    assert set(strong) <= set(found.feature_names)
    assert find_revealing_inputs(found) == []
    assert find_leaks(found) == []


def test_the_made_up_files_have_no_leaks() -> None:
    for frame, columns in (
        (made_up.bank(), Columns("subscribed", ("origin",), "yes")),
        (made_up.census(3000), Columns("rich", ("sex",))),
        (made_up.credit(), Columns("risk", ("age",), "good")),
        (made_up.hospital(), Columns("readmitted", ("region",), "yes")),
    ):
        assert find_leaks(table_from_frame(frame, columns, encode="onehot", tidy=True)) == []


@pytest.mark.parametrize(("rarer", "told"), [(9, 0), (10, 1)])
def test_nothing_is_suspected_in_tiny_files(rarer: int, told: int) -> None:
    frame = people(60).assign(y=[1] * rarer + [0] * (60 - rarer))
    assert len(find_revealing_inputs(table(frame.assign(z=frame["y"] + 0.5)))) == told


def test_an_unknown_category_does_not_disturb() -> None:
    found = table(people(400, c=np.random.default_rng(3).choice(["u", "v"], 400)))
    features = found.features.copy()
    features[:50, found.feature_names.index("c")] = -1
    assert find_leaks(replace(found, features=features)) == []
