"""What each group gets: groups.csv, the terminal's tables, and the tables of several runs and sweeps."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

import made_up
from command import Outcome
from fairfate import InputError, Run, run
from fairfate.data.groups import Groups
from fairfate.experiments import execute
from fairfate.experiments.config import expand
from fairfate.experiments.sweep import sweep
from fairfate.federation.seeds import Streams
from fairfate.federation.split import split_rows
from fairfate.models import mlp
from fairfate.results.folder import read_model
from fairfate.results.summary import group_rates, write_csv
from fairfate.results.tables import count_columns

Call = Callable[..., Outcome]
ROUNDS = 30
RATES = ("selection_rate", "tpr", "fpr", "accuracy")


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    frame = made_up.census(1500).drop(columns="Unnamed: 0")
    return made_up.write(frame, folder / "census.csv")


def options(census: Path, **more: object) -> dict[str, object]:
    usual = {"data": str(census), "target": "rich", "sensitive": ("sex", "race"), "seeds": (1, 2)}
    usual["strategies"] = ("fedavg", "fair_fate")
    return {**usual, "rounds": ROUNDS, "learning_rate": 0.1, "partition": "random", "jobs": 1, **more}


@pytest.fixture(scope="module")
def finished(census: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(**options(census), out=tmp_path_factory.mktemp("run") / "o")


def counted(finished: Run, seed: int, strategy: str) -> pd.DataFrame:
    """Each test row's sex and race, label and answer, from the saved model."""
    assert finished.out is not None
    (file,) = (finished.out / "models").glob(f"{strategy}*seed-{seed}.safetensors")
    arrays, _ = read_model(file)
    table = finished.table
    train, _, test = split_rows(table, Streams(seed))
    inputs = table.fit_encoder(train).transform(table.features[test])
    text = mlp.probabilities(arrays, inputs) > 0.5
    raw = pd.read_csv(str(finished.plan.config.data)).iloc[test]
    return raw[["sex", "race"]].assign(y=raw["rich"] == 1, said=text.ravel())


def by_hand(rows: pd.DataFrame) -> dict[str, tuple[int, int]]:
    return {
        "selection_rate": (int(rows["said"].sum()), len(rows)),
        "tpr": (int((rows["said"] & rows["y"]).sum()), int(rows["y"].sum())),
        "fpr": (int((rows["said"] & ~rows["y"]).sum()), int((~rows["y"]).sum())),
        "accuracy": (int((rows["said"] == rows["y"]).sum()), len(rows)),
    }


@pytest.mark.parametrize("strategy", ["fedavg", "fair_fate"])
def test_rates_are_those_of_a_count_by_hand(finished: Run, strategy: str) -> None:
    people = [counted(finished, seed, strategy) for seed in (1, 2)]
    assert any(0 < rows["said"].mean() < 1 for rows in people)
    rates = finished.groups
    own = rates[rates["strategy"] == strategy]
    assert list(dict.fromkeys(own["attribute"])) == ["sex", "race", "sex x race"]
    assert len(own) == 2 + 5 + 10
    for row in own.to_dict("records"):
        names = row["attribute"].split(" x ")
        values = row["group"].split(", ")
        seeds = []
        for rows in people:
            chosen = np.all([rows[name] == value for name, value in zip(names, values, strict=True)], axis=0)
            seeds.append(by_hand(rows[chosen]))
        assert row["seeds"] == 2
        assert row["rows"] == np.mean([each["accuracy"][1] for each in seeds])
        assert row["positives"] == np.mean([each["tpr"][1] for each in seeds])
        for name in RATES:
            part, whole = np.mean([each[name] for each in seeds], axis=0)
            assert row[name] == pytest.approx(part / whole), (row["group"], name)
            assert row[f"{name}_low"] <= row[name] + 1e-12
            assert row[name] <= row[f"{name}_high"] + 1e-12


def test_intervals_are_wilsons() -> None:
    counts = {"a": (40, 10, 5, 45), "b": (0, 0, 3, 0), "c": (7, 0, 0, 2)}  # tn, fp, fn, tp
    row = dict(zip(count_columns(3), itertools.chain.from_iterable(counts.values()), strict=True))
    about = {"dataset": "d", "partition": "p", "protocol": "paper", "strategy": "s", "metric": None}
    late = {**about, "settings": "{}", "split": "test", "round": 2, "seed": 1, **row}
    early = {**late, "round": 1, **dict.fromkeys(row, 1)}
    frame = pd.DataFrame([early, {**late, "split": "validation"}, late])
    indexed = group_rates(frame, Groups.single("g", tuple(counts))).set_index("group")
    for name, (tn, fp, fn, tp) in counts.items():
        parts = {
            "selection_rate": (fp + tp, tn + fp + fn + tp),
            "tpr": (tp, tp + fn),
            "fpr": (fp, fp + tn),
            "accuracy": (tp + tn, tn + fp + fn + tp),
        }
        for rate, (part, whole) in parts.items():
            values = [indexed.loc[name, f"{rate}{end}"] for end in ("", "_low", "_high")]
            if not whole:
                assert np.isnan(values).all()
                continue
            exact = binomtest(part, whole).proportion_ci(method="wilson")
            assert values == pytest.approx([part / whole, exact.low, exact.high], abs=1e-12)


def test_the_file_says_what_the_run_says(finished: Run) -> None:
    assert finished.out is not None
    pd.testing.assert_frame_equal(
        pd.read_csv(finished.out / "groups.csv"), finished.groups, check_dtype=False, rtol=1e-12
    )


def test_an_interrupted_run_writes_the_same_file(
    finished: Run, census: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(amount: int) -> None:
        if amount == ROUNDS + 3:  # in the second seed
            raise KeyboardInterrupt

    def write(path: Path, frame: pd.DataFrame) -> None:
        if path.name == "summary.csv":
            raise KeyboardInterrupt
        write_csv(path, frame)

    with pytest.raises(KeyboardInterrupt):
        run(**options(census), out=tmp_path, progress=interrupt)
    assert not (tmp_path / "groups.csv").exists()
    with monkeypatch.context() as patch:
        patch.setattr(execute, "write_csv", write)
        with pytest.raises(KeyboardInterrupt):
            run(**options(census), out=tmp_path)
    assert (tmp_path / "groups.csv").exists()
    run(**options(census), out=tmp_path)
    assert finished.out is not None
    assert (tmp_path / "groups.csv").read_bytes() == (finished.out / "groups.csv").read_bytes()


# -- in the terminal -------------------------------------------------------------------------------------


def titles(out: str) -> list[str]:
    return re.findall(r"^(.*), by (.*?)(?: \(means of \d+ seeds\))?$", out, re.MULTILINE)


def test_up_to_six_groups_are_shown_and_all_if_asked_for(fairfate: Call, finished: Run) -> None:
    usual, every = (
        fairfate("show", str(finished.out)).out,
        fairfate("show", str(finished.out), "--groups").out,
    )
    assert {attribute for _, attribute in titles(usual)} == {"sex", "race"}
    assert ("fedavg", "sex") in titles(usual)
    assert titles(every) == [
        (strategy, attribute)
        for attribute in ("sex", "race", "sex x race")
        for strategy in ("fedavg", "fair_fate")
    ]
    assert "female, race 0" in every
    assert "female, race 0" not in usual
    row = finished.groups.iloc[0]
    shown = next(line for line in usual.splitlines() if line.startswith("female"))
    expected = (
        f"{row['selection_rate']:.2f} ({row['selection_rate_low']:.2f}-{row['selection_rate_high']:.2f})"
    )
    assert re.sub(r"\b0\.", ".", expected) in shown
    assert f" {row['rows']:.0f} " in shown


def test_seven_groups_are_not_shown_unasked(fairfate: Call, tmp_path: Path) -> None:
    frame = made_up.census(1200)[["amount 0", "rich"]]
    for groups in (6, 7):
        made_up.write(frame.assign(g=[f"g{n % groups}" for n in range(1200)]), tmp_path / "d.csv")
        named = ["--data", "d.csv", "--target", "rich", "--sensitive", "g", "--rounds", "2", "--seeds", "1"]
        words = ["run", *named, "--jobs", "1", "--strategy", "fedavg", "--out", "o", "--force"]
        assert bool(titles(fairfate(*words).out)) == (groups == 6)
        assert titles(fairfate(*words, "--groups").out) == [("fedavg", "g")]


# -- several runs and sweeps -----------------------------------------------------------------------------


def tables(out: str) -> list[list[str]]:
    """The rows of each table of strategies."""
    results: list[list[str]] = []
    for line in out.splitlines():
        if line.startswith("strategy "):
            results.append([])
        elif results and re.match(r"(fedavg|fair_fate|fedmom)( \*)?( +-?[\d.±]+){4,7} *$", line):
            results[-1].append(line)
    return results


def test_runs_on_different_data_have_tables_and_stars_of_their_own(
    fairfate: Call, finished: Run, census: Path, tmp_path: Path
) -> None:
    other = pd.read_csv(census).assign(race=lambda f: f["race"].replace("race 4", "race 3"))
    made_up.write(other, tmp_path / "other.csv")
    run(**options(census, data="other.csv"), out="b")
    run(**options(census, strategies="fedmom"), out="c")
    alone, another = (tables(fairfate("show", folder).out) for folder in (str(finished.out), "b"))
    code, out, err = fairfate("show", str(finished.out), "b", "c")
    assert code == 0, err
    both = tables(out)
    assert [len(rows) for rows in both] == [3, 2]  # the third run is on the first one's data
    assert both[1] == another[0]
    assert any("*" in row for row in both[0])
    assert any("*" in row for row in both[1])
    assert len(alone[0]) == 2
    assert out.count(f"test rows, round {ROUNDS}") == 2


LISTS = {
    "learning-rate": "[0.01, 0.2]",
    "rounds": "[2, 3]",
    "hidden": '["0", "4", "4,3"]',
    "encode": '["onehot", "ordinal"]',
    "epochs": "[1, 2]",
    "batch-size": "[5, 10]",
}


def write_sweep(census: Path, **lists: str) -> None:
    lines = [f'data = "{census}"', 'target = "rich"', 'sensitive = ["sex"]', "seeds = [1, 2]"]
    usual = {
        "rounds": "2",
        "epochs": "1",
        "learning-rate": "0.02",
        "batch-size": "10",
        "strategy": '["fedavg", "fedmom"]',
    }
    lines += [f"{key} = {value}" for key, value in {**usual, **lists}.items()]
    Path("s.toml").write_text("\n".join(lines))


def sweep_titles(out: str, key: str) -> list[str]:
    return re.findall(rf"^{key} .*$", out, re.MULTILINE)


@pytest.mark.parametrize("key", LISTS)
def test_a_sweep_over_a_list_has_a_table_for_each_value(fairfate: Call, census: Path, key: str) -> None:
    write_sweep(census, **{key: LISTS[key]})
    code, out, err = fairfate("sweep", "s.toml", "--out", "o", "--jobs", "1")
    assert code == 0, err
    values = [str(value) for value in eval(LISTS[key])]
    assert len(tables(out)) == len(values)
    assert all(len(rows) == 2 for rows in tables(out))
    assert sweep_titles(out, key) == [f"{key} {value}" for value in values]
    assert f"{4 * len(values)} runs done now, {2 * len(values)} jobs in all. Saved to o/" in out
    assert tables(fairfate("show", "o").out) == tables(out)


def test_a_sweep_over_several_lists_can_be_shown_and_drawn(fairfate: Call, census: Path) -> None:
    write_sweep(census, **{"learning-rate": "[0.01, 0.2]", "hidden": '["0", "4"]', "encode": '["onehot"]'})
    code, out, err = fairfate("sweep", "s.toml", "--out", "o", "--jobs", "1")
    assert code == 0, err
    expected = [f"learning-rate {rate}, hidden {hidden}" for rate in (0.01, 0.2) for hidden in (0, 4)]
    assert sweep_titles(out, "learning-rate") == expected
    code, out, err = fairfate("plot", "o", "--kind", "tradeoff")
    assert code == 0, err
    drawn = re.findall(r"Saved (\S+)", out)
    assert len(set(drawn)) == 4
    assert all(Path(file).stat().st_size > 1000 for file in drawn)
    write_sweep(census, **{"learning-rate": "[0.01]", "hidden": '["4"]'})
    code, out, err = fairfate("sweep", "s.toml", "--out", "o", "--jobs", "1")
    assert code == 0, err
    assert [path.name for path in Path("o/configs").iterdir()] == ["001.toml"]
    assert len(tables(out)) == 1
    assert out.strip().endswith("0 runs done now, 2 jobs in all. Saved to o/")


def test_configs_of_a_longer_sweep_are_gone_and_the_users_are_not(tmp_path: Path) -> None:
    """By number: 1000.toml comes before 101.toml by name."""
    (tmp_path / "configs").mkdir()
    for name in ("002", "101", "1000", "1001", "123 notes"):
        (tmp_path / "configs" / f"{name}.toml").write_text("")
    values = {"data": "synthetic:rows=100", "rounds": 1, "epochs": 1, "seeds": [1], "strategy": "fedavg"}
    sweep(expand(values), tmp_path, jobs=1)
    assert sorted(path.name for path in (tmp_path / "configs").iterdir()) == ["001.toml", "123 notes.toml"]


@pytest.mark.parametrize("key", ["data", "partition", *LISTS])
def test_an_empty_list_is_an_error(key: str) -> None:
    with pytest.raises(InputError, match=f"x: {key} must have a value, got an empty list"):
        expand({"strategy": ["fedavg"], key: []}, where="x")
