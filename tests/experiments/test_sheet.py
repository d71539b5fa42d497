"""Tables without pandas: they say what pandas says."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fairfate.experiments.sheet import MANY, Sheet, deviations, join, means

TABLE = pa.table(
    {
        "name": ["b", "b", "a", None, "b"],
        "whole": [1, 2, 3, 4, 5],
        "gaps": [1, None, 3, None, 5],
        "real": [0.5, float("nan"), -1.0, 2.0, 0.25],
        "other": pa.array([[1], [2, 3], [], None, [4]]),
    }
)


def test_a_table_and_its_frame_hold_the_same() -> None:
    sheet, again = Sheet.of_table(TABLE), Sheet.of_frame(Sheet.of_table(TABLE).frame)
    assert list(sheet.columns) == ["name", "whole", "gaps", "real"]  # no lists
    assert list(again.columns) == list(sheet.frame.columns) == TABLE.column_names
    assert sheet["name"].tolist() == again["name"].tolist() == ["b", "b", "a", None, "b"]
    assert sheet["whole"].dtype == again["whole"].dtype == np.int64
    for name in ("whole", "gaps", "real"):
        np.testing.assert_array_equal(sheet[name], again[name])
    pd.testing.assert_frame_equal(sheet.frame, TABLE.to_pandas())


def test_several_chunks_and_none_at_all() -> None:
    whole = Sheet.of_table(pa.concat_tables([TABLE, TABLE]))
    assert whole["whole"].tolist() == [1, 2, 3, 4, 5] * 2
    assert len(Sheet.of_table(TABLE.schema.empty_table())["whole"]) == 0
    assert len(Sheet({})) == 0


def test_groups_are_numbered_as_they_come() -> None:
    number, first = Sheet.of_table(TABLE).numbered("name")
    assert number.tolist() == [0, 0, 1, 2, 0]
    assert first.tolist() == [0, 2, 3]
    number, first = Sheet.of_table(TABLE).numbered("name", "whole")
    assert number.tolist() == first.tolist() == [0, 1, 2, 3, 4]
    nobody = Sheet.of_table(TABLE).where(np.zeros(5, dtype=bool)).numbered("name")
    assert [len(of) for of in nobody] == [0, 0]


def test_rows_are_chosen_columns_exchanged_and_sheets_joined() -> None:
    sheet = Sheet.of_table(TABLE)
    assert sheet.where(sheet["whole"] > 3)["name"].tolist() == [None, "b"]
    changed = sheet.assign(whole=sheet["whole"] * 2)
    assert changed["whole"].tolist() == [2, 4, 6, 8, 10]
    assert changed.frame["whole"].tolist() == [2, 4, 6, 8, 10]
    assert sheet["whole"].tolist() == [1, 2, 3, 4, 5]
    both = join([sheet, changed.where(np.array([0]))])
    assert both["whole"].tolist() == [1, 2, 3, 4, 5, 2]
    lacking = join([sheet.where(np.array([0, 1])), Sheet({"whole": np.array([7])})])
    np.testing.assert_array_equal(lacking["real"], [0.5, np.nan, np.nan])
    assert lacking["name"].tolist() == ["b", "b", None]


def test_many_texts_are_the_same_as_few() -> None:
    names = [f"name {n % 7}" for n in range(MANY)]
    table = pa.chunked_array([names[:9], names[9:]])
    assert Sheet.of_table(pa.table({"name": table}))["name"].tolist() == names
    gaps = [*names, None]
    assert Sheet.of_table(pa.table({"name": gaps}))["name"].tolist() == gaps


def test_columns_are_made_when_they_are_looked_at() -> None:
    made: list[str] = []

    def make(name: str) -> np.ndarray:
        made.append(name)
        return np.arange(3)

    sheet = Sheet({name: partial(make, name) for name in "abc"})
    some = sheet.where(np.array([0, 2]))
    assert made == []
    assert some["b"].tolist() == some["b"].tolist() == [0, 2]
    assert made == ["b"]


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.tuples(st.integers(0, 4), numbers, numbers), min_size=1, max_size=60))
def test_means_and_deviations_are_those_of_pandas(rows: list[tuple[int, float, float]]) -> None:
    group, values = np.array([row[0] for row in rows]), np.array([row[1:] for row in rows])
    by = pd.DataFrame(values).groupby(group)
    expected = by.mean().reindex(range(5)).to_numpy()
    np.testing.assert_allclose(means(values, group, 5), expected, rtol=1e-9, atol=1e-9)
    spread = by.std().reindex(range(5)).to_numpy()
    np.testing.assert_allclose(deviations(values, group, 5), spread, rtol=1e-6, atol=1e-6)


def test_an_undefined_value_makes_its_mean_undefined_and_no_other() -> None:
    values, group = np.array([[1.0, 2.0], [np.nan, 4.0], [5.0, 6.0]]), np.array([0, 0, 1])
    np.testing.assert_array_equal(means(values, group, 3), [[np.nan, 3], [5, 6], [np.nan, np.nan]])
    found = deviations(values, group, 3)
    np.testing.assert_array_equal(found, [[np.nan, np.sqrt(2)], [np.nan, np.nan], [np.nan, np.nan]])
    assert deviations(np.full((7, 1), 0.1), np.zeros(7, dtype=int), 1)[0, 0] == 0.0


def test_a_mean_is_right_where_plain_sums_are_not() -> None:
    values = np.array([[1e16], [1.0], [1.0], [-1e16]])
    assert means(values, np.zeros(4, dtype=int), 1)[0, 0] == 0.5
