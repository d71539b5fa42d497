"""Several sensitive columns: groups are their combinations, in files, runs and schemas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fairfate.data import Columns, Schema, UnfitError, load, table_from_frame
from fairfate.errors import InputError
from fairfate.experiments.run import run
from fairfate.fairness import metrics
from fairfate.fairness.objective import bind
from fairfate.results.tables import counts_of, read_counted_rounds

COLUMNS = Columns(target="hired", favourable="yes", sensitive=("sex", "race"))


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    n = 900
    sex, race = rng.choice(["f", "m"], n), rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1])
    score = rng.normal(size=n) + 0.5 * (sex == "m") + 0.4 * (race == "a")
    hired = np.where(score + rng.normal(size=n) > 0.4, "yes", "no")
    return pd.DataFrame({"score": score, "sex": sex, "race": race, "hired": hired})


@pytest.fixture
def file(frame: pd.DataFrame, tmp_path: Path) -> Path:
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_groups_are_the_combinations_that_occur(frame: pd.DataFrame) -> None:
    table = table_from_frame(frame[~((frame["sex"] == "m") & (frame["race"] == "c"))], COLUMNS)
    assert table.group_names == ("f, a", "f, b", "f, c", "m, a", "m, b")
    assert table.feature_names == ("score", "sex", "race")
    place = table.feature_names.index("race")
    assert set(table.features[:, place]) == {0, 1, 2}
    assert table.grouping.index_of(("race",)).tolist() == [0, 1, 2, 0, 1]


def test_a_run_measures_each_attribute_and_the_worst(file: Path, tmp_path: Path) -> None:
    options = {"data": file, "target": "hired", "favourable": "yes", "sensitive": ("sex", "race")}
    objective = "worst(eo@sex, eo@race)"
    done = run(
        **options,
        strategies=("fedavg", f"fair_fate:metric={objective}"),
        rounds=3,
        seeds=(1, 2),
        jobs=1,
        out=tmp_path / "o",
    )
    groups = read_counted_rounds(tmp_path / "o")[1]
    assert groups == done.table.grouping
    counts = counts_of(done.rounds)
    assert counts.shape[1:] == (6, 2, 2)
    worst = np.minimum(bind("eo@sex", groups)(counts), bind("eo@race", groups)(counts))
    np.testing.assert_array_equal(done.rounds["eo"], worst)
    by_sex = counts.reshape(-1, 2, 3, 2, 2).sum(axis=2)
    np.testing.assert_array_equal(bind("eo@sex", groups)(counts), metrics.eo(by_sex))
    assert objective in set(done.summary["metric"])


def test_one_value_of_one_column_can_stand_against_the_others(file: Path) -> None:
    options = {"data": str(file), "target": "hired", "favourable": "yes", "sensitive": ("sex", "race")}
    done = run(**options, privileged=("race=a",), strategies="fedavg", rounds=1, seeds=1, jobs=1)
    assert done.table.group_names == ("f, (others)", "f, a", "m, (others)", "m, a")
    with pytest.raises(InputError, match="privileged must be COLUMN=VALUE with one of the columns sex, race"):
        run(**options, privileged="a")
    with pytest.raises(InputError, match="privileged must be given once for a column"):
        run(**options, privileged=("race=a", "race=b"))


@pytest.mark.parametrize(
    ("sensitive", "message"),
    [
        (("many",), "sensitive must have at most 100 values, got 200 in column 'many'"),
        (("half", "sex", "race"), "sensitive columns must make at most 100 groups together, got"),
    ],
)
def test_bad_attributes_are_named(frame: pd.DataFrame, sensitive: tuple[str, ...], message: str) -> None:
    wide = frame.assign(many=[f"v{n % 200}" for n in range(900)], half=[f"v{n % 50}" for n in range(900)])
    with pytest.raises(InputError, match=message):
        table_from_frame(wide, Columns(target="hired", favourable="yes", sensitive=sensitive))


def test_an_unknown_attribute_in_an_objective_is_named_before_anything_runs(file: Path) -> None:
    options = {"data": str(file), "target": "hired", "favourable": "yes", "sensitive": ("sex", "race")}
    with pytest.raises(InputError, match="unknown attribute in 'eo@age' 'age'; known: sex, race"):
        run(**options, strategies="fair_fate:metric=eo@age")


@pytest.mark.data
def test_a_public_dataset_takes_several_attributes(data_folder: Path) -> None:
    columns = Columns("", ("gender", "race"))
    table = load("adult", data_dir=data_folder, columns=columns)
    assert table.grouping.attributes == ("gender", "race")
    assert table.grouping.values[0] == ("Female", "Male")
    assert len(table.grouping) == 10
    single = load("adult", data_dir=data_folder)
    np.testing.assert_array_equal(table.grouping.index_of(("gender",))[table.group], single.group)


def test_a_schema_with_several_attributes_survives_and_names_strangers(frame: pd.DataFrame) -> None:
    schema = Schema.from_table(table_from_frame(frame, COLUMNS))
    again = Schema.from_json(schema.to_json())
    assert again.grouping == schema.grouping
    assert again.table(frame, "x").group.tolist() == schema.table(frame, "x").group.tolist()
    few = Schema.from_table(
        table_from_frame(frame[~((frame["sex"] == "m") & (frame["race"] == "c"))], COLUMNS)
    )
    with pytest.raises(UnfitError, match="must hold only the schema's 5 combinations, got others in"):
        few.table(frame, "x")
