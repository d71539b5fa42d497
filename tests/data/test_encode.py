"""From columns to a model's inputs: one-hot encoding, dates, and schemas that say the same to everybody."""

from __future__ import annotations

import json
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import made_up
from fairfate import InputError
from fairfate.data import (
    Columns,
    Encoder,
    Schema,
    Table,
    UnfitError,
    describe_frame,
    table_from_frame,
    widen_schema,
)
from fairfate.data import (
    encoder as encoder_module,
)
from fairfate.data.columns import DATES, find_dates, read_dates

# -- the encoder -----------------------------------------------------------------------------------------


def mixed(rows: int, seed: int) -> np.ndarray:
    """Two numbers and two categories of three and four values."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal([5, -300], [2, 40], (rows, 2))
    return np.column_stack([numbers, rng.integers(0, 3, rows), rng.integers(0, 4, rows)])[:, [0, 2, 1, 3]]


SLOTS = np.array([0, 3, 0, 4])


@given(st.integers(2, 40), st.integers(0, 99))
def test_one_hot_encoding_is_scikit_learns(rows: int, seed: int) -> None:
    train, other = mixed(rows, seed), mixed(9, seed + 1000)
    encoder = Encoder.fit_slots(train, SLOTS)
    hot = OneHotEncoder(categories=[range(3), range(4)], sparse_output=False, handle_unknown="ignore")
    hot.fit(train[:, [1, 3]])
    scaled = StandardScaler().fit(train[:, [0, 2]]).transform(other[:, [0, 2]])
    texts = hot.transform(other[:, [1, 3]])
    expected = np.column_stack([scaled[:, 0], texts[:, :3], scaled[:, 1], texts[:, 3:]])
    found = encoder.transform(other)
    assert encoder.inputs == found.shape[1] == 9
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_missing_number_is_the_mean_and_says_so() -> None:
    train = np.array([[1.0, 4.0], [3.0, 4.0], [np.nan, 4.0]])
    encoder = Encoder.fit_slots(train, np.array([0, 0]))
    assert encoder.inputs == 3
    rows = np.array([[np.nan, 5.0], [3.0, np.nan]])
    assert encoder.transform(rows).tolist() == [[0.0, 1.0, 0.25], [1.0, 0.0, 0.0]]
    assert encoder.names(("a", "b"), {}) == ["a", "a (missing)", "b"]


def test_unknown_categories_are_in_none_of_the_inputs() -> None:
    encoder = Encoder.fit_slots(np.array([[0.0], [1.0], [2.0]]), np.array([3]))
    assert encoder.transform(np.array([[-1.0], [3.0], [1.0]])).tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert encoder.names(("c",), {"c": ("x", "y", "z")}) == ["c=x", "c=y", "c=z"]


@pytest.mark.parametrize("value", [0.0, 7.0, 1e9, -1e-9, 1e30])
def test_constants_become_zero(value: float) -> None:
    encoder = Encoder.fit_slots(np.full((5, 1), value), np.array([0]))
    assert encoder.span[0] >= 1.0
    assert np.allclose(encoder.transform(np.full((2, 1), value)), 0.0, atol=1e-9)


@pytest.mark.parametrize("start", [0.0, 4e9, 4e12, 4e14])
def test_numbers_far_from_zero_are_standardised_all_the_same(start: float) -> None:
    """Account numbers, or times in nanoseconds: their spread is tiny beside them."""
    numbers = start + np.random.default_rng(0).integers(0, 1500, (3000, 1)).astype(np.float64)
    found = Encoder.fit_slots(numbers, np.array([0])).transform(numbers)
    assert abs(float(found.mean())) < 1e-3
    assert float(found.std()) == pytest.approx(1.0, abs=1e-3)
    counts, sums, squares = (np.array([value]) for value in (3000, numbers.sum(), (numbers**2).sum()))
    pooled = Encoder.from_sums(counts, sums, squares, np.array([False]), np.array([0]))
    assert np.abs(pooled.transform(numbers)).max() < 10  # never huge, even where sums have lost the spread


def test_a_column_without_any_value_is_zero() -> None:
    encoder = Encoder.fit_slots(np.full((5, 1), np.nan), np.array([0]))
    assert encoder.transform(np.array([[np.nan], [2.0]])).tolist() == [[0.0, 1.0], [2.0, 0.0]]


@given(st.integers(3, 60), st.integers(1, 4), st.integers(0, 99))
def test_sums_of_parts_are_those_of_the_whole(rows: int, parts: int, seed: int) -> None:
    features = mixed(rows, seed)
    features[np.random.default_rng(seed).random(rows) < 0.2, 0] = np.nan
    whole = Encoder.fit_slots(features, SLOTS)
    counts, sums, squares, gaps = 0, 0.0, 0.0, np.zeros(4, dtype=bool)
    for part in np.array_split(features, parts):
        present = ~np.isnan(part)
        counts = counts + present.sum(axis=0)
        sums = sums + np.nansum(part, axis=0)
        squares = squares + np.nansum(part * part, axis=0)
        gaps |= ~present.all(axis=0)
    pooled = Encoder.from_sums(counts, sums, squares, gaps, SLOTS)
    np.testing.assert_allclose(pooled.low, whole.low, rtol=1e-9)
    np.testing.assert_allclose(pooled.span, whole.span, rtol=1e-9)
    assert whole.flagged is not None
    assert pooled.flagged is not None
    assert pooled.flagged.tolist() == whole.flagged.tolist()
    numbers = features[:, 2]
    assert whole.low[2] == pytest.approx(numbers.mean())
    assert whole.span[2] == pytest.approx(numbers.std(), rel=1e-6)


# -- dates -----------------------------------------------------------------------------------------------

DAYS = [datetime(2021, 3, 25, 13, 45, 7), datetime(1969, 12, 31), datetime(2000, 2, 29, 6, 0)]


def days_of(moments: list[datetime]) -> list[float]:
    return [(moment - datetime(1970, 1, 1)).total_seconds() / 86400 for moment in moments]


@pytest.mark.parametrize("form", DATES)
def test_every_form_of_dates_is_read(form: str) -> None:
    spelled = [f"{day:{form}}" for day in DAYS]
    expected = days_of([datetime.strptime(text, form) for text in spelled])
    found = find_dates(pd.Series([*spelled, None], name="d"))
    assert found is not None
    days, told = found
    if "%b" not in form and "%B" not in form:
        assert told == form
    np.testing.assert_allclose(days, [*expected, np.nan])
    np.testing.assert_allclose(read_dates(pd.Series([*spelled, None]), told), days)
    np.testing.assert_allclose(read_dates(pd.Series(spelled, dtype="category"), told), expected)
    padded = pd.Series([f" {text} " for text in spelled])
    np.testing.assert_allclose(read_dates(padded, told), expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_columns_of_datetimes_are_read(unit: str) -> None:
    values = pd.Series(DAYS + [None]).astype(f"datetime64[{unit}]")  # noqa: RUF005
    found = find_dates(values)
    assert found is not None
    np.testing.assert_allclose(found[0], [*days_of(DAYS), np.nan])
    zoned = pd.Series(pd.to_datetime(["2020-01-01 01:00", "2020-07-01 02:00"])).dt.tz_localize(
        "Europe/Berlin"
    )
    found = find_dates(zoned)
    assert found is not None
    np.testing.assert_allclose(found[0], days_of([datetime(2020, 1, 1), datetime(2020, 7, 1)]))


def test_the_day_comes_first_where_it_could_be_either() -> None:
    first = find_dates(pd.Series(["03/04/2021", "05/06/2021"]))
    assert first is not None
    assert first[0].tolist() == days_of([datetime(2021, 4, 3), datetime(2021, 6, 5)])
    month = find_dates(pd.Series(["03/04/2021", "05/31/2021"]))
    assert month is not None
    assert month[1] == "%m/%d/%Y"
    assert month[0].tolist() == days_of([datetime(2021, 3, 4), datetime(2021, 5, 31)])


@pytest.mark.parametrize(
    "texts",
    [
        ["2020-13-01", "2020-01-01"],
        ["2020-02-30"],
        ["12/2020", "01/2021"],
        ["2020-01-01", "soon"],
        ["01.02.2020", "2020-02-01"],
        ["31/12/2020", "12/31/2020"],
        ["January"],
        ["2020-W03-1"],
        ["1.2.3.4"],
        ["2020-01-01", ""],
    ],
)
def test_what_is_not_quite_a_date_stays_text(texts: list[str]) -> None:
    assert find_dates(pd.Series(texts)) is None
    frame = pd.DataFrame({"d": texts * 40, "s": ["a", "b"] * (20 * len(texts))})
    table = tidy(frame.assign(y=np.arange(len(frame)) // 2 % 2), target="y", sensitive=("s",))
    assert table.dates == {}


@pytest.mark.parametrize(
    "values", [pd.Series([20200101, 20210101]), pd.Series([True, False]), pd.Series([1.5])]
)
def test_numbers_are_no_dates(values: pd.Series) -> None:
    assert find_dates(values) is None


# -- schemas ---------------------------------------------------------------------------------------------


def tidy(frame: pd.DataFrame, encode: str = "onehot", **named: object) -> Table:
    return table_from_frame(frame, Columns(**named), encode=encode, tidy=True)  # type: ignore[arg-type]


BANK = {"target": "subscribed", "favourable": "yes", "sensitive": ("origin",)}
AGES = {**BANK, "sensitive": ("age",), "bands": (("age", (30.0, 50.0)),)}


def gaps(frame: pd.DataFrame, column: str, share: float) -> pd.DataFrame:
    chosen = np.random.default_rng(8).random(len(frame)) < share
    return frame.assign(**{column: frame[column].mask(chosen)})


def many_yes(rows: int = 1500) -> pd.DataFrame:
    """The bank's file with labels enough for missing and small groups."""
    frame = made_up.bank(rows)
    return frame.assign(subscribed=np.random.default_rng(0).choice(["no", "yes"], rows))


CASES: dict[str, tuple[pd.DataFrame, dict[str, object]]] = {
    "small groups": (many_yes().assign(origin=lambda f: f["origin"].fillna("A")), BANK),
    "missing group": (gaps(many_yes(), "origin", 0.2), {**BANK, "min_group": 0}),
    "missing among small": (gaps(many_yes(), "origin", 0.012), BANK),
    "bands": (made_up.bank(1500), AGES),
    "bands with gaps": (gaps(many_yes(), "age", 0.2), AGES),
    "two columns": (gaps(many_yes(), "age", 0.2), {**AGES, "sensitive": ("age", "month")}),
    "against all others": (
        many_yes().fillna({"origin": "B"}),
        {**BANK, "privileged": (("origin", "A"),)},
    ),
    "a kept identifier": (many_yes().fillna({"origin": "A"}), {**BANK, "keep": ("iban", "customer")}),
}


@pytest.mark.parametrize("encode", ["onehot", "ordinal", "none"])
@pytest.mark.parametrize("case", CASES)
def test_schema_agrees_with_the_table_about_its_file(case: str, encode: str) -> None:
    frame, named = CASES[case]
    table = tidy(frame, encode, **named)
    assert len(table) == len(frame)
    if case == "missing among small":
        assert {"(missing)", "(small groups)"} <= set(table.group_names)
    schema = Schema.from_table(table)
    again = Schema.from_json(schema.to_json())
    assert again.to_json() == schema.to_json()
    for known in (schema, again):
        read = known.table(frame, "again")
        np.testing.assert_array_equal(read.features, table.features)
        np.testing.assert_array_equal(read.label, table.label)
        np.testing.assert_array_equal(read.group, table.group)
        assert (read.group_names, read.slots.tolist()) == (table.group_names, table.slots.tolist())
        assert (read.encode, read.dates, read.bands) == (encode, table.dates, table.bands)
        inputs = known.encoder.transform(read.features)
        np.testing.assert_array_equal(inputs, table.fit_encoder().transform(table.features))


def test_unknown_texts_are_others_and_unknown_groups_small_or_an_error() -> None:
    frame = many_yes().fillna({"origin": "A"})
    schema = Schema.from_table(tidy(frame, **BANK))
    strange = schema.table(frame.assign(job="astronaut", origin="Z"), "site")
    job = schema.features.index("job")
    assert {schema.categories["job"][int(place)] for place in strange.features[:, job]} == {"(others)"}
    assert {strange.group_names[place] for place in strange.group} == {"(small groups)"}
    alone = Schema.from_table(tidy(frame[frame["origin"].isin(["A", "B"])], **BANK))
    with pytest.raises(UnfitError, match="column 'origin' must hold only the schema's 2 values, got 1 other"):
        alone.table(frame.assign(origin="Z"), "site")
    with pytest.raises(UnfitError, match="column 'origin' must have a value in every row, got 1500 missing"):
        alone.table(frame.assign(origin=None), "site")


def test_missing_values_are_not_counted_as_others() -> None:
    frame = many_yes().fillna({"origin": "B"})
    schema = Schema.from_table(tidy(frame, **BANK, privileged=(("origin", "A"),)))
    assert schema.grouping.names == ("(others)", "A")
    assert not schema.table(frame.assign(origin="Z"), "site").group.any()
    with pytest.raises(UnfitError, match="column 'origin' must have a value in every row, got 1500 missing"):
        schema.table(frame.assign(origin=None), "site")


def test_a_date_of_another_form_does_not_fit() -> None:
    frame = made_up.bank(1500).fillna({"origin": "A"})
    schema = Schema.from_table(tidy(frame, **BANK))
    assert dict(schema.dates) == {"last call": "%d.%m.%Y"}
    with pytest.raises(UnfitError, match=r"'last call' must hold dates such as 31.12.2026") as caught:
        schema.table(frame.assign(**{"last call": ["2021-05-30", "soon"] * 750}), "site")
    assert "2021" not in caught.value.public
    iso = schema.table(frame.assign(**{"last call": "2021-05-30"}), "site")  # one other form is fine
    european = schema.table(frame.assign(**{"last call": "30.05.2021"}), "site")
    assert iso.features.tolist() == european.features.tolist() or np.array_equal(
        iso.features, european.features, equal_nan=True
    )


# -- what sites tell each other --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def draft() -> Schema:
    return Schema.from_table(tidy(many_yes().fillna({"origin": "A"}), **BANK))


def test_pooled_ranges_are_those_of_all_rows(draft: Schema) -> None:
    frame = made_up.bank(3000, seed=9).fillna({"origin": "A"})
    frame = frame.assign(contacts=frame["contacts"].astype(float).mask(frame.index % 7 == 0))
    sites = {"a": frame[:700], "b": frame[700:1800], "c": frame[1800:]}
    wide, refused = widen_schema(draft, {name: describe_frame(draft, rows) for name, rows in sites.items()})
    assert refused == {}
    assert wide.encoder.flagged is not None
    numbers = wide.table(frame, "all").features
    for column in ("age", "balance", "contacts", "last call"):
        place = wide.features.index(column)
        assert wide.encoder.low[place] == pytest.approx(np.nanmean(numbers[:, place]), rel=1e-9)
        assert wide.encoder.span[place] == pytest.approx(np.nanstd(numbers[:, place]), rel=1e-6)
        assert wide.encoder.flagged[place] == (column in ("balance", "contacts"))
    assert wide.encoder.inputs == sum(map(len, wide.categories.values())) + len(wide.grouping) + 4 + 2
    assert Schema.from_json(wide.to_json()).to_json() == wide.to_json()


def test_without_sites_the_servers_own_ranges_stay(draft: Schema) -> None:
    same, _ = widen_schema(draft, {})
    assert same.to_json() == draft.to_json()


def test_only_names_that_enough_rows_share_are_sent(draft: Schema) -> None:
    rows = many_yes(800).assign(job=["pilot"] * 20 + ["spy"] * 19 + ["admin"] * 761)
    described = describe_frame(draft, rows)
    assert described["job"] == ["admin", "pilot"]
    assert described["age"] == [
        800,
        pytest.approx(rows["age"].sum()),
        pytest.approx((rows["age"] ** 2).sum()),
        0,
    ]
    assert described["balance"][3] == 1
    assert "origin" not in described
    wide, _ = widen_schema(draft, {"site": described})
    assert "pilot" in wide.categories["job"]
    assert wide.categories["job"][-2:] == ("(missing)", "(others)")


@pytest.mark.parametrize(
    "lie",
    [
        {"age": [100, np.nan, 200000, 0]},
        {"age": [100, 4800, np.nan, 0]},
        {"age": [np.nan, 4800, 260000, 0]},
        {"age": [100, 4800, 260000, np.nan]},
        {"age": [-100, -4800, 260000, 0]},
        {"age": [100.5, 4800, 260000, 0]},
        {"age": [100, 4800, 200000, 0]},  # less than the mean's square
        {"age": [100, 4800, -1, 0]},
        {"age": [100, 1e9, 1e18, 0]},  # a mean far away
        {"age": [100, 4800, 1e15, 0]},  # a deviation that would squeeze all others
        {"age": [0, 0, 1e9, 0]},
        {"age": [0, 5, 0, 0]},
        {"age": [100, np.inf, np.inf, 0]},
        {"age": [100, 4800, 260000]},
        {"age": [100, 4800, 260000, 7]},
        {"age": "old"},
        {"age": [2**60, 48 * 2**60, 2600 * 2**60, 0]},
        {"job": ["x\n"]},
        {"job": ["x" * 300]},
    ],
)
def test_sums_that_no_rows_have_are_refused(draft: Schema, lie: dict[str, object]) -> None:
    honest = {"age": [100, 4800, 260000, 0]}
    wide, refused = widen_schema(draft, {"liar": lie, "honest": honest})
    assert list(refused) == ["liar"]
    assert wide.to_json() == widen_schema(draft, {"honest": honest})[0].to_json()


def test_small_site_sends_no_text_that_few_rows_have(draft: Schema) -> None:
    rows = many_yes(40).assign(job=["spy"] * 2 + ["pilot"] * 18 + ["admin"] * 20)
    assert describe_frame(draft, rows)["job"] == ["admin"]


def test_large_numbers_of_many_rows_are_no_lie() -> None:
    """Milliseconds since 1970 have squares beyond what a column may hold."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"t": 1.6e12 + rng.normal(0, 1e10, 800), "s": ["a", "b"] * 400})
    frame["y"] = rng.integers(0, 2, 800)
    schema = Schema.from_table(tidy(frame, target="y", sensitive=("s",)))
    told = describe_frame(schema, frame)
    many = {"t": [1000 * value for value in told["t"][:3]] + [0]}
    wide, refused = widen_schema(schema, {"site": many})
    assert refused == {}
    np.testing.assert_allclose(wide.encoder.span, schema.encoder.span, rtol=1e-6)


# -- damaged schemas -------------------------------------------------------------------------------------


def damaged(change) -> str:
    frame = many_yes()
    schema = Schema.from_table(tidy(frame, **{**AGES, "sensitive": ("age", "month")}))
    content = json.loads(schema.to_json())
    change(content)
    return json.dumps(content)


def test_the_undamaged_schema_is_read() -> None:
    assert Schema.from_json(damaged(lambda content: None)).sensitive == ("age", "month")


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["target"].update(values=["yes"]),
        lambda c: c["target"].update(values=[]),
        lambda c: c["target"].update(values=["yes"], favourable="yes"),
        lambda c: c["target"].update(values=["a", "b", "c"]),
        lambda c: c["inputs"]["age"].update(mean=10**400),
        lambda c: c["inputs"]["age"].update(deviation=0),
        lambda c: c["inputs"]["age"].update(deviation=float("nan")),
        lambda c: c["inputs"]["age"].pop("missing"),
        lambda c: c["inputs"].update(age=7),
        lambda c: c["sensitive"]["groups"].append([0, 99]),
        lambda c: c["sensitive"]["groups"].append([0]),
        lambda c: c["sensitive"]["groups"].append([0, 0, 0]),
        lambda c: c["sensitive"]["groups"].append([float("inf"), 0]),
        lambda c: c["sensitive"].update(columns=["age"]),
        lambda c: c["sensitive"].update(groups=[]),
        lambda c: c["sensitive"].update(bands=[1]),
        lambda c: c["sensitive"].update(bands={"age": [10**400]}),
        lambda c: c["sensitive"].update(bands={"age": [50, 30]}),
        lambda c: c["sensitive"].update(bands={"age": []}),
        lambda c: c["sensitive"].update(bands={"job": [1, 2]}),
        lambda c: c.update(inputs={}),
        lambda c: c.update(sensitive=None),
    ],
)
def test_a_damaged_schema_is_refused(change) -> None:
    with pytest.raises(InputError, match=r"^schema must "):
        Schema.from_json(damaged(change))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"inputs": ' + "[" * 100_000, "9" * 5000, "NaN", "\x00"])
def test_odd_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="schema must be a schema that fairfate has written"):
        Schema.from_json(text)


def test_tables_are_encoded_block_by_block_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(50, 3)) * 10.0 ** np.arange(3)
    features[rng.random(features.shape) < 0.1] = np.nan
    features[:, 2] = rng.integers(-1, 4, 50)  # a category, sometimes one that is not known
    slots, rows = np.array([0, 0, 4]), rng.permutation(50)[:40]

    def encoded() -> list[np.ndarray]:
        found = []
        for encoder in (Encoder.fit(features, rows), Encoder.fit_slots(features, slots, rows)):
            found += [encoder.low, encoder.span, encoder.median]
            found += [encoder.transform(features, rows), encoder.transform(features)]
        return found

    whole = encoded()
    monkeypatch.setattr(encoder_module, "BLOCK", 7)
    for one, other in zip(whole, encoded(), strict=True):
        np.testing.assert_array_equal(one, other)
