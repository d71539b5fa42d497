"""A trained model is a thing one can hold, save and use on rows of any kind."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fairfate
import made_up
from fairfate import FairModel
from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.export import to_json
from fairfate.fairness import metrics
from fairfate.fairness.disclosure import round_counts
from fairfate.fairness.objective import bind
from fairfate.federation.seeds import Streams
from fairfate.federation.split import split_rows
from fairfate.results.recommendation import choose
from fairfate.results.tables import count_columns
from fairfate.storage import read_arrays, write_arrays

STRATEGIES = ["fedavg", "fair_fate", "fedavg+average+thresholds:from=clients"]


@pytest.fixture(scope="module")
def bank() -> pd.DataFrame:
    return made_up.bank(2000)


@pytest.fixture(scope="module")
def finished(bank: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    return fairfate.run(
        data=bank,
        target="subscribed",
        favourable="yes",
        sensitive="origin",
        strategies=STRATEGIES,
        rounds=40,
        seeds=range(1, 3),
        jobs=1,
        out=tmp_path_factory.mktemp("run") / "o",
    )


@pytest.fixture
def model(finished: fairfate.Run) -> FairModel:
    return finished.model("fedavg+average+thresholds", 1)


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


@pytest.mark.parametrize("strategy", ["fedavg", "fair_fate", "fedavg+average+thresholds"])
def test_it_decides_as_it_was_measured(finished: fairfate.Run, bank: pd.DataFrame, strategy: str) -> None:
    """Raw rows through the saved file give the counts that the run has recorded."""
    file = finished.out / "models" / f"{strategy.replace('+', '-')}-seed-2.safetensors"
    model = FairModel.load(file)
    _, _, test = split_rows(finished.table, Streams(2))
    counts, _ = quietly(model.evaluate, bank.iloc[test])
    assert round_counts(counts, 10).tolist() == model.about["test"]
    rounds = finished.rounds
    own = rounds[(rounds["strategy"] == strategy) & (rounds["seed"] == 2) & (rounds["split"] == "test")]
    assert float(metrics.accuracy(counts)) == own["accuracy"].iloc[-1]
    assert float(bind("eqo", finished.table.grouping)(counts)) == own["eqo"].iloc[-1]


def test_saving_and_loading_changes_nothing(model: FairModel, bank: pd.DataFrame, tmp_path: Path) -> None:
    again = FairModel.load(model.save(tmp_path / "m.safetensors"))
    assert again.about["strategy"] == model.about["strategy"]
    assert np.array_equal(quietly(again.predict_proba, bank), quietly(model.predict_proba, bank))
    assert again.schema.to_json() == model.schema.to_json()
    assert model.save(tmp_path / "n.safetensors").read_bytes() == (tmp_path / "m.safetensors").read_bytes()


def test_counts_that_are_handed_on_are_of_ten_people_or_none(tmp_path: Path) -> None:
    options = {"data": "synthetic:rows=200", "strategies": "fedavg", "rounds": 5, "seeds": 2, "jobs": 1}
    run = fairfate.run(**options, out=tmp_path / "o")
    exact = run.rounds[count_columns(2)].to_numpy()
    assert ((exact > 0) & (exact < 10)).any()
    files = sorted((tmp_path / "o" / "models").glob("*.safetensors"))
    assert len(files) >= 2
    for file in files:
        model, (_, written) = FairModel.load(file), read_arrays(file)
        for about in (written, model.about, json.loads(to_json(model))["about"]):
            for rows in ("validation", "test"):
                counts = np.array(about[rows])
                assert counts.shape == (2, 2, 2)
                assert ((counts == 0) | (counts >= 10)).all()


@pytest.mark.parametrize("odd", [None, "x", [[1, 2], [3]], [1, 2, 3], {"a": 1}, [[[10**30]]]])
def test_odd_counts_of_a_file_are_left_as_they_are(model: FairModel, tmp_path: Path, odd: object) -> None:
    changed = replace(model, about={**model.about, "test": odd})
    assert FairModel.load(changed.save(tmp_path / "m.safetensors")).about["test"] == odd


def test_rows_of_any_kind(model: FairModel, bank: pd.DataFrame) -> None:
    polars = pytest.importorskip("polars")
    expected = quietly(model.predict, bank)
    assert set(expected) <= {"yes", "no"}
    rows = bank[list(reversed(bank.columns))].drop(columns=["subscribed", "iban", "country"]).assign(extra=1)
    assert np.array_equal(quietly(model.predict, rows), expected)
    assert np.array_equal(quietly(model.predict, polars.from_pandas(bank)), expected)
    array = bank[list(model.schema.features)].to_numpy(dtype=object)
    assert np.array_equal(quietly(model.predict, array), expected)
    apart = bank.drop(columns="origin")
    with pytest.raises(InputError, match="the model needs 'origin'"):
        model.predict(apart)
    assert np.array_equal(quietly(model.predict, apart, sensitive_features=bank["origin"]), expected)


def test_unusual_rows_are_noted_or_refused(model: FairModel, bank: pd.DataFrame) -> None:
    odd = bank.drop(columns="subscribed").head(20)
    odd = odd.assign(job="astronaut", balance=1e9, age=np.nan)
    notes = model.score(odd).notes
    assert "job: 20 rows with texts that the model does not tell apart, such as 'astronaut'" in notes[0]
    assert "count as (others)" in notes[0]
    assert (
        "balance: 20 values more than 6 standard deviations from the mean that inputs are scaled by" in notes
    )
    with pytest.raises(InputError, match="must hold only what the model knows, got job: 20 rows"):
        model.score(odd, strict=True)
    with pytest.warns(UserWarning, match=".") as message:
        model.predict(odd)
    assert [str(item.message) for item in message] == list(notes)
    usual = bank[bank["job"].isin(made_up.JOBS[:3]) & bank["origin"].isin(["A", "B"])].head(5)
    assert model.score(usual.drop(columns="subscribed"), strict=True).notes == ()
    assert model.score(usual).notes == ("the column 'subscribed' is the label, and ignored",)


def test_notes_on_numbers_say_what_they_are_compared_with(bank: pd.DataFrame) -> None:
    """Rows of the run's own file may lie outside the training rows' range: the note must be true of them."""
    rows = bank.assign(balance=np.where(np.arange(len(bank)) % 200, bank["balance"].clip(0, 100), 1e5))
    limits = {"ordinal": "outside the range", "onehot": "more than 6 standard deviations from the mean"}
    for encode, limit in limits.items():
        options = {"target": "subscribed", "favourable": "yes", "sensitive": "origin", "encode": encode}
        run = fairfate.run(data=rows, **options, strategies="fedavg", rounds=1, seeds=1, jobs=1)
        new = rows.head(30).assign(balance=-1e9)
        notes = [note for note in run.model("fedavg").score(new).notes if note.startswith("balance")]
        assert notes == [f"balance: 30 values {limit} that inputs are scaled by"]


def test_groups_are_asked_for_only_where_thresholds_need_them(bank: pd.DataFrame) -> None:
    run = fairfate.run(
        data=bank.assign(sex=np.where(np.arange(len(bank)) % 3, "f", "m")),
        target="subscribed",
        favourable="yes",
        sensitive="sex",
        drop=["sex"],
        strategies=["fedavg", "fedavg+thresholds"],
        rounds=5,
        seeds=1,
        jobs=1,
    )
    rows = bank.drop(columns="subscribed")
    plain, cut = run.model("fedavg", 1), run.model("fedavg+thresholds", 1)
    assert not plain.needs_groups
    assert cut.needs_groups
    assert len(quietly(plain.predict, rows)) == len(rows)
    assert len(quietly(cut.predict_proba, rows)) == len(rows)
    with pytest.raises(InputError, match="sensitive_features must be given, or a column 'sex'"):
        cut.predict(rows)
    with pytest.raises(InputError, match=r"one of those that have a threshold \(f, m\), got 'x' in row 1"):
        cut.predict(rows, sensitive_features=["x"] * len(rows))
    with pytest.raises(InputError, match="sensitive_features must have one value for each of the 2000 rows"):
        cut.predict(rows, sensitive_features=["f"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": "old"}, "column 'age' must hold numbers, got text"),
        ({"last call": "soon"}, "column 'last call' must hold dates such as 31.12.2026"),
    ],
)
def test_texts_where_numbers_or_dates_belong(
    model: FairModel, bank: pd.DataFrame, change: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.predict(bank.head(3).assign(**change))


def test_a_missing_column_is_named_with_the_one_that_may_be_meant(
    model: FairModel, bank: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match=r"the model needs 'balance'; did you mean 'Balance'\?"):
        model.predict(bank.rename(columns={"balance": "Balance"}))


def test_damaged_and_foreign_files(finished: fairfate.Run, tmp_path: Path) -> None:
    good = finished.out / "models" / "fedavg-seed-1.safetensors"
    content = good.read_bytes()
    for name, bad in {
        "cut": content[: len(content) // 2],
        "flipped": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
        "foreign": b"something else",
        "empty": b"",
    }.items():
        file = tmp_path / f"{name}.safetensors"
        file.write_bytes(bad)
        with pytest.raises(InputError, match="model must be a file that a run has written"):
            FairModel.load(file)
    with pytest.raises(InputError, match="no such file"):
        FairModel.load(tmp_path / "none.safetensors")
    arrays, about = read_arrays(good)
    for change, text in (
        ({"w1": np.full_like(arrays["w1"], np.nan)}, "must hold finite numbers"),
        ({"w1": arrays["w1"][:3]}, "must have layers that fit its schema"),
        ({"thresholds": np.zeros(9)}, "must have a threshold for each of"),
    ):
        file = tmp_path / "odd.safetensors"
        write_arrays(file, {**arrays, **change}, about)
        with pytest.raises(InputError, match=text):
            FairModel.load(file)
    write_arrays(tmp_path / "old.safetensors", arrays, {**about, "format": 2})
    with pytest.raises(InputError, match="of this version"):
        FairModel.load(tmp_path / "old.safetensors")


GOOD, UNFAIR, WEAK, NOTHING = (
    np.array([[[60, 10], [10, 40]], [[60, 10], [10, 40]]]),
    np.array([[[60, 10], [30, 20]], [[60, 10], [5, 45]]]),
    np.array([[[45, 25], [25, 25]], [[45, 25], [25, 25]]]),
    np.array([[[70, 0], [50, 0]], [[70, 0], [50, 0]]]),
)


def measured(lines: dict[str, dict[str, list[np.ndarray]]]) -> pd.DataFrame:
    """Rounds of strategies from their counts on each split, one for each seed."""
    rows = []
    for strategy, splits in lines.items():
        for split, seeds in splits.items():
            for seed, counts in enumerate(seeds, start=1):
                row = {"dataset": "d", "partition": "p", "protocol": "paper", "strategy": strategy}
                row |= {"metric": "eqo", "settings": "{}", "seed": seed, "round": 1, "split": split}
                row |= {name: float(metric(counts)) for name, metric in metrics.METRICS.items()}
                rows.append(row | dict(zip(count_columns(2), counts.ravel(), strict=True)))
    return pd.DataFrame(rows)


def test_the_one_to_take_is_chosen_by_the_validation_rows() -> None:
    """Whatever the test rows say, and never one without skill."""
    groups = Groups.single("sex", ("f", "m"))
    rounds = measured(
        {
            "fedavg": {"validation": [UNFAIR, UNFAIR], "test": [GOOD, GOOD]},
            "fair_fate": {"validation": [UNFAIR, GOOD], "test": [UNFAIR, UNFAIR]},
            "fedval": {
                "validation": [WEAK, WEAK],
                "test": [GOOD, GOOD],
            },  # fair, but hardly better than chance
        }
    )
    assert choose(rounds, "eqo", groups) == (1, "fair_fate", 1)
    collapsed = measured({"fedavg": {"validation": [NOTHING, GOOD], "test": [GOOD, GOOD]}})
    assert choose(collapsed, "eqo", groups) is None
    skilled = np.array([[[180, 5], [5, 10]], [[180, 5], [4, 11]]])
    lazy = np.array([[[184, 1], [12, 3]], [[184, 1], [12, 3]]])  # as accurate, and finds hardly anybody
    rare = {"fedavg": [skilled] * 2, "fair_fate": [lazy] * 2}
    rounds = measured({name: {"validation": value, "test": value} for name, value in rare.items()})
    assert choose(rounds, "eqo", groups) == (0, "fedavg", 1)


def test_the_one_to_take_is_saved(tmp_path: Path) -> None:
    run = fairfate.run(
        data="synthetic:rows=800", strategies=["fedavg"], rounds=30, seeds=2, jobs=1, out=tmp_path / "o"
    )
    assert run.best is not None
    saved = FairModel.load(tmp_path / "o" / "models" / "best.safetensors")
    assert saved.about["seed"] == run.best.seed


def test_a_frame_gives_what_its_file_gives(bank: pd.DataFrame, tmp_path: Path) -> None:
    pytest.importorskip("polars")
    options = {"target": "subscribed", "favourable": "yes", "sensitive": "origin", "rounds": 3, "seeds": 1}
    file = made_up.write(bank, tmp_path / "bank.csv")
    run = fairfate.run(data=file, **options, jobs=1)
    two = fairfate.run(data=pd.read_csv(file), **options, jobs=1)
    three = fairfate.run(data=__import__("polars").from_pandas(pd.read_csv(file)), **options, jobs=1)
    columns = ["accuracy", "mcc", "eqo"]
    assert run.rounds[columns].equals(two.rounds[columns])
    assert run.rounds[columns].equals(three.rounds[columns])


@pytest.mark.slow
def test_a_frame_is_sent_to_processes(bank: pd.DataFrame) -> None:
    options = {
        "target": "subscribed",
        "favourable": "yes",
        "sensitive": "origin",
        "rounds": 2,
        "seeds": (1, 2),
    }
    first, two = (fairfate.run(data=bank, **options, jobs=jobs) for jobs in (1, 2))
    assert first.rounds.equals(two.rounds)


def test_the_front_door(finished: fairfate.Run, bank: pd.DataFrame) -> None:
    assert repr(finished).startswith("<Run on frame: fedavg, fair_fate, fedavg+average+thresholds; 2 seeds")
    assert "<table" in finished._repr_html_()
    assert finished.plot("accuracy").axes
    assert set(finished.groups["group"]) == set(finished.table.group_names)
    assert set(finished.models) == {
        (name, seed) for name in ("fedavg", "fair_fate", "fedavg+average+thresholds") for seed in (1, 2)
    }
    with pytest.raises(InputError, match="strategy must be one of the run's"):
        finished.model("fedval")
    with pytest.raises(InputError, match=r"seed must be one of the run's \(1, 2\), got 7"):
        finished.model("fedavg", 7)
    if finished.best is not None:
        assert len(quietly(finished.predict, bank)) == len(bank)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": 3}, "data must be a name, a file or a frame, got int"),
        (
            {"data": pd.DataFrame({"a": []}), "target": "a", "sensitive": "a"},
            "data must have at least one row",
        ),
        ({"rounds": "many"}, "rounds must be a whole number, got 'many'"),
        ({"rounds": 2.5}, "rounds must be a whole number, got 2.5"),
        ({"seeds": [1.5]}, "each seed must be a whole number"),
        ({"hidden": object()}, "hidden must be"),
    ],
)
def test_wrong_types_get_a_clear_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fairfate.run(**options)


def test_numpy_numbers_and_ranges_are_numbers() -> None:
    run = fairfate.run(
        data="synthetic:rows=200",
        rounds=np.int64(2),
        learning_rate=np.float32(0.5),
        seeds=np.arange(1, 3),
        jobs=1,
    )
    assert run.plan.config.seeds == (1, 2)
    assert run.plan.training.rounds == 2


def test_measure_takes_groups_of_text() -> None:
    true, predicted = [1, 0, 0, 1], [1, 0, 1, 1]
    numbers = fairfate.measure(true, predicted, group=[0, 0, 1, 1])
    assert fairfate.measure(true, predicted, group=["f", "f", "m", "m"]) == numbers
