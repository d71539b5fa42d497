from __future__ import annotations

import json
import tomllib
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import fairfate
from fairfate.data import synthetic
from fairfate.errors import InputError
from fairfate.experiments import execute
from fairfate.experiments.config import Config, from_mapping, parse_seeds, read_config
from fairfate.experiments.run import run
from fairfate.experiments.runs import load_run
from fairfate.fairness import metrics
from fairfate.fairness.metrics import METRICS
from fairfate.models import mlp
from fairfate.results.summary import summarise, write_csv
from fairfate.results.tables import Line, _noted, counts_of, read_clients, read_counted_rounds, rounds_frame
from fairfate.strategies import parse_spec

# the columns of rounds.parquet, as users and other tools rely on them
COLUMNS = [
    *("dataset", "partition", "protocol", "strategy", "metric", "settings", "seed", "round", "split"),
    *("accuracy", "balanced_accuracy", "f1", "mcc", "sp", "eo", "eqo", "sp_diff", "eo_diff", "eqo_diff"),
    *(
        "sp_published",
        "eo_published",
        "eqo_published",
        "selection_rate",
        "lam",
        "beta",
        "fair_clients",
        "notes",
    ),
    *(f"n_{g}_{y}_{p}" for g in range(2) for y in range(2) for p in range(2)),
]

OPTIONS = {
    "data": "synthetic:rows=400",
    "rounds": 3,
    "epochs": 2,
    "seeds": (1, 2, 3),
    "strategies": ("fedavg", "fedmom", "fair_fate:metric=sp", "fair_fate:metric=eo,max=0.5"),
}


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    return run(**OPTIONS, out=tmp_path_factory.mktemp("run") / "a", jobs=1)


def test_rounds_have_the_documented_columns_and_rows(finished: fairfate.Run) -> None:
    frame = fairfate.read_rounds(finished.out)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 4 * 3 * 3 * 2
    keys = ["strategy", "metric", "settings", "seed", "round", "split"]
    assert not frame.duplicated(keys).any()
    assert set(frame["split"]) == {"validation", "test"}
    assert set(frame["round"]) == {1, 2, 3}
    assert set(frame["dataset"]) == {"synthetic"}
    assert json.loads(frame[frame.strategy == "fedmom"]["settings"].iloc[0]) == {"beta": 0.9}


def test_a_strategy_without_lambda_has_nulls_and_undefined_metrics_are_nan(finished: fairfate.Run) -> None:
    table = pq.read_table(finished.out / "rounds.parquet")
    frame = table.to_pandas()
    fedavg = table.filter((frame.strategy == "fedavg").to_numpy())
    for column in ("lam", "beta", "fair_clients", "metric"):
        assert fedavg[column].null_count == len(fedavg)
    assert table["sp"].null_count == 0
    assert pd.api.types.is_integer_dtype(
        pq.read_schema(finished.out / "rounds.parquet").field("fair_clients").type.to_pandas_dtype()
    )


def test_metrics_are_not_rounded(finished: fairfate.Run) -> None:
    frame = finished.rounds
    assert (frame["accuracy"] * 80 % 1 < 1e-9).all()  # 80 rows in each split
    assert (frame["accuracy"].round(2) != frame["accuracy"]).any()
    assert (frame["sp_published"].round(2) == frame["sp_published"]).all()


def test_summary_is_that_of_the_rounds(finished: fairfate.Run) -> None:
    summary = pd.read_csv(finished.out / "summary.csv")
    rounds = fairfate.read_rounds(finished.out)
    test = rounds[(rounds.split == "test") & (rounds.strategy == "fedmom")]
    last = test[test["round"] == 3]
    row = summary[summary.strategy == "fedmom"].iloc[0]
    assert row["accuracy_last_mean"] == pytest.approx(last["accuracy"].mean())
    assert row["sp_last_std"] == pytest.approx(last["sp"].std(ddof=1))
    assert row["eqo_last20_mean"] == pytest.approx(test.groupby("seed")["eqo"].mean().mean())
    assert list(summary["seeds"]) == [3] * 4


def test_config_says_everything_and_runs_again(finished: fairfate.Run, tmp_path: Path) -> None:
    text = (finished.out / "config.toml").read_text()
    values = tomllib.loads(text)
    assert values["clients"] == 10
    assert values["per-round"] == 3
    assert values["partition"] == "dirichlet:0.5"
    assert values["seeds"] == [1, 2, 3]
    assert values["strategy"][1] == "fedmom:beta=0.9"
    assert values["provenance"]["version"] == fairfate.__version__
    assert values["provenance"]["data-checksum"] == f"sha256:{synthetic(rows=400).checksum}"
    again = run(from_mapping(read_config(finished.out / "config.toml")), out=tmp_path / "b", jobs=1)
    assert everything(again.out) == everything(finished.out)


def test_the_number_of_processes_does_not_change_a_byte(finished: fairfate.Run, tmp_path: Path) -> None:
    other = run(**OPTIONS, out=tmp_path / "two", jobs=2)
    assert everything(other.out) == everything(finished.out)


def test_a_run_without_a_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(**{**OPTIONS, "seeds": (1,)}, jobs=1)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_model_predicts_as_the_run_did(finished: fairfate.Run) -> None:
    file = finished.out / "models" / "fedavg-seed-2.safetensors"
    model = fairfate.FairModel.load(file)
    table = synthetic(rows=400)
    assert model.schema.features == table.feature_names
    assert model.about["strategy"] == "fedavg"
    from fairfate.federation.seeds import Streams

    _, _, test = Streams(2).split(400)
    probability = mlp.probabilities(dict(model.arrays), model.schema.encoder.transform(table.features[test]))
    counts = metrics.count(table.label[test], probability > 0.5, group=table.group[test])
    rounds = finished.rounds
    row = rounds[(rounds.strategy == "fedavg") & (rounds.seed == 2) & (rounds["round"] == 3)]
    row = row[row.split == "test"].iloc[0]
    assert row["accuracy"] == pytest.approx(float(metrics.accuracy(counts)))
    assert row["sp"] == pytest.approx(float(metrics.sp(counts)))


def test_every_strategy_and_seed_has_its_model(finished: fairfate.Run) -> None:
    names = {p.name for p in (finished.out / "models").iterdir()}
    assert len(names - {"best.safetensors"}) == 12
    assert "fair_fate-metric=sp-max=0.9-seed-1.safetensors" in names


def test_an_unfinished_run_continues_where_it_was(finished: fairfate.Run, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    calls = []

    def interrupt(amount: int) -> None:
        calls.append(amount)
        if amount == 5:  # in the middle of the second seed
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(**OPTIONS, out=folder, jobs=1, progress=interrupt)
    assert ["_seed-1_" in p.name for p in (folder / "cells").iterdir()] == [True]
    assert not (folder / "summary.csv").exists()
    resumed: list[int] = []
    run(**OPTIONS, out=folder, jobs=1, progress=resumed.append)
    assert resumed == [4, 5, 6, 7, 8, 9]  # the first seed was not run again
    assert everything(folder) == everything(finished.out)


def test_an_unfinished_run_of_something_else_is_not_continued(tmp_path: Path) -> None:
    def interrupt(amount: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(**OPTIONS, out=tmp_path, jobs=1, progress=interrupt)
    with pytest.raises(InputError, match="with another rounds"):
        run(**{**OPTIONS, "rounds": 4}, out=tmp_path, jobs=1)


def test_results_are_not_overwritten_unless_forced(finished: fairfate.Run, tmp_path: Path) -> None:
    before = everything(finished.out)
    with pytest.raises(InputError, match=r"out must be a folder without results \(or give --force\)"):
        run(**{**OPTIONS, "rounds": 1}, out=finished.out, jobs=1)
    assert everything(finished.out) == before
    finished_run = run(**{**OPTIONS, "seeds": (1,)}, out=tmp_path, jobs=1)
    (finished_run.out / "notes.txt").write_text("mine")
    run(**{**OPTIONS, "seeds": (2,)}, out=tmp_path, jobs=1, force=True)
    assert (finished_run.out / "notes.txt").read_text() == "mine"
    assert not list((finished_run.out / "models").glob("*seed-1*"))


def test_bad_input_with_force_loses_nothing(finished: fairfate.Run) -> None:
    before = everything(finished.out)
    with pytest.raises(InputError):
        run(**{**OPTIONS, "strategies": ("fedavgg",)}, out=finished.out, force=True)
    assert everything(finished.out) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "exact"}, r"protocol must be one of paper\|published, got 'exact'"),
        ({"metric": "dp"}, "unknown name in metric 'dp'"),
        ({"clients": 0}, "clients must be >= 1, got 0"),
        ({"clients": 1000}, "clients must be <= the 240 training rows of 'synthetic', got 1000"),
        ({"clients": 3, "per_round": 4}, "per-round must be <= the 3 clients, got 4"),
        ({"per_round": 0}, "per-round must be >= 1, got 0"),
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"batch_size": 0}, "batch-size must be >= 1, got 0"),
        ({"hidden": -1}, "hidden must be >= 1, or 0 for no layer at all, got -1"),
        ({"learning_rate": 0.0}, "learning-rate must be > 0 and finite, got 0.0"),
        ({"learning_rate": float("nan")}, "learning-rate must be > 0 and finite, got nan"),
        ({"seeds": ()}, "seeds must be a number >= 1 or a list"),
        ({"seeds": (1, 1)}, "seeds must differ, got 1,1"),
        ({"seeds": (-1,)}, r"each seed must be in \[0, 2\*\*32\), got -1"),
        ({"strategies": ()}, "strategy must be given at least once"),
        ({"partition": "column:site"}, "partition must be random, dirichlet:SIGMA, .* for 'synthetic'"),
        (
            {"partition": "attribute-biased:1"},
            "partition attribute-biased must have two or more sensitive columns in 'synthetic', got sex",
        ),
        (
            {"partition": "value-biased:1", "clients": 1},
            "clients must be >= 2 with partition value-biased, got 1",
        ),
        ({"target": "hired"}, "target must be left out for 'synthetic', whose columns are known"),
        ({"jobs": 0}, "jobs must be >= 1, got 0"),
    ],
)
def test_bad_options_are_named_with_rule_and_value(options, message, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        run(**{**OPTIONS, **options}, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": "3"}, "run: rounds must be a whole number, got '3'"),
        ({"rounds": 2.5}, "run: rounds must be a whole number, got 2.5"),
        ({"hidden": 10**9}, "hidden must be <= 10,000, got 1000000000"),
        ({"batch_size": 10**12}, "batch-size must be <= 1,000,000"),
        ({"learning_rate": 1e300}, "learning-rate must be between 1e-30 and 1e6, got 1e"),
        ({"protocol": "published", "seeds": (500_000_000,)}, r"each seed must be in \[0, 2\*\*32 / 10\)"),
        ({"drop": ("ability",)}, "drop must be left out for 'synthetic'"),
    ],
)
def test_python_options_are_checked_like_the_command_lines(options, message) -> None:
    with pytest.raises(InputError, match=message):
        run(**{**OPTIONS, **options}, jobs=1)


def test_python_options_take_the_command_lines_forms(people: Path) -> None:
    finished = run(
        Config(rounds=9, seeds=(4,)),
        data=people,
        target="hired",
        favourable="yes",
        sensitive="sex",
        strategies="fedavg",
        rounds=1,
        jobs=1,
    )
    assert finished.plan.training.rounds == 1
    assert finished.plan.config.seeds == (4,)
    assert run(data="synthetic:rows=100", rounds=1, seeds=2, jobs=1).plan.config.seeds == (1, 2)


def test_force_leaves_models_and_tables_of_the_users_alone(tmp_path: Path) -> None:
    run(**OPTIONS, out=tmp_path, jobs=1)
    own = [tmp_path / "models" / "mine.safetensors", tmp_path / "cells" / "mine.parquet"]
    for file in own:
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
    run(**OPTIONS, out=tmp_path, jobs=1, force=True)
    assert [file.read_text() for file in own] == ["mine", "mine"]


def test_force_removes_results_and_nothing_else(tmp_path: Path) -> None:
    run(**{**OPTIONS, "seeds": (1,)}, out=tmp_path, jobs=1)
    (tmp_path / "models" / "mine.txt").write_text("mine")
    run(**{**OPTIONS, "seeds": (2,)}, out=tmp_path, jobs=1, force=True)
    assert (tmp_path / "models" / "mine.txt").read_text() == "mine"


def test_an_interrupted_forced_run_continues_when_forced_again(tmp_path: Path) -> None:
    def interrupt(amount: float) -> None:
        if amount == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(**OPTIONS, out=tmp_path, jobs=1, force=True, progress=interrupt)
    resumed: list[float] = []
    run(**OPTIONS, out=tmp_path, jobs=1, force=True, progress=resumed.append)
    assert resumed == [4, 5, 6, 7, 8, 9]


def test_a_changed_plugin_is_another_run(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    body = "from fairfate.strategies import fedavg, register\n"
    body += "@register('mine_x', 's', 'r')\ndef build(setup): return fedavg()\n"
    plugin.write_text(body)
    options = {**OPTIONS, "strategies": ("mine_x",), "plugins": (str(plugin),)}

    def interrupt(amount: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(**options, out=tmp_path / "o", jobs=1, progress=interrupt)
    plugin.write_text(body + "# changed\n")
    with pytest.raises(InputError, match=r"with another plugin mine.py"):
        run(**options, out=tmp_path / "o", jobs=1)


@pytest.mark.parametrize("harm", ["remove", "damage"])
def test_a_finished_seed_without_its_model_is_run_again(
    finished: fairfate.Run, tmp_path: Path, harm: str
) -> None:
    def interrupt(amount: float) -> None:
        if amount > 2 * OPTIONS["rounds"]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(**OPTIONS, out=tmp_path, jobs=1, progress=interrupt)
    victim = sorted((tmp_path / "models").glob("*-seed-1.safetensors"))[0]
    if harm == "remove":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    again = run(**OPTIONS, out=tmp_path, jobs=1)
    assert again.damaged == (f"models/{victim.name}",)
    assert everything(tmp_path) == everything(finished.out)


def test_two_plugins_may_share_a_file_name_but_not_a_strategys(tmp_path: Path) -> None:
    body = "from fairfate.strategies import fedavg, register\n"
    body += "@register('{name}', 's', 'r')\ndef build(setup): return fedavg()\n"
    first, second = tmp_path / "a" / "mine.py", tmp_path / "b" / "mine.py"
    for file in (first, second):
        file.parent.mkdir()
    first.write_text(body.format(name="twin_1"))
    second.write_text(body.format(name="twin_2"))
    both = {
        **OPTIONS,
        "seeds": (1,),
        "plugins": (str(first), str(second)),
        "strategies": ("twin_1", "twin_2"),
    }
    assert list(run(**both, jobs=1).summary["strategy"]) == ["twin_1", "twin_2"]
    second.write_text(body.format(name="twin_1"))
    with pytest.raises(InputError, match="a strategy's name must be new, got 'twin_1'"):
        run(**both, jobs=1)


@pytest.mark.data
def test_a_public_dataset_takes_columns_to_drop_and_clients_from_a_column(data_folder: Path) -> None:
    options = {"data": "adult", "data_dir": data_folder, "rounds": 1, "epochs": 1, "seeds": 1, "jobs": 1}
    finished = run(**options, drop=("fnlwgt",), partition="column:race", strategies="fedavg")
    assert "fnlwgt" not in finished.table.feature_names
    assert finished.plan.clients == 5
    assert finished.plan.config.partition == "column:race"
    with pytest.raises(InputError, match="unknown column for drop 'nothere'"):
        run(**options, drop=("nothere",))


def test_repeated_strategies_are_run_once() -> None:
    finished = run(**{**OPTIONS, "seeds": (1,), "strategies": ("fedmom", "fedmom:beta=0.9")}, jobs=1)
    assert len(finished.summary) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"round": 3}, r"unknown key in x.toml 'round'; did you mean 'rounds'\?"),
        ({"rounds": "3"}, "x.toml: rounds must be a whole number, got '3'"),
        ({"rounds": True}, "x.toml: rounds must be a whole number, got True"),
        ({"learning-rate": "fast"}, "x.toml: learning-rate must be a number, got 'fast'"),
        ({"data": 3}, "x.toml: data must be a text, got 3"),
        ({"seeds": "one"}, "seeds must be a number >= 1 or a list such as 3,5,8, got 'one'"),
        ({"seeds": 0}, "seeds must be >= 1, got 0"),
    ],
)
def test_bad_config_keys_are_named(values, message) -> None:
    with pytest.raises(InputError, match=message):
        from_mapping(values, where="x.toml")


def test_seeds_are_a_number_or_a_list() -> None:
    assert from_mapping({"seeds": [4]}).seeds == (4,)
    assert from_mapping({"seeds": 2}).seeds == (1, 2)
    assert parse_seeds("4, 9") == (4, 9)


def test_the_papers_clients_are_the_default(data_folder: Path) -> None:
    from fairfate.experiments.prepare import prepare

    for name, clients, per_round in (("compas", 10, 3), ("adult", 15, 5), ("law", 12, 4), ("dutch", 20, 6)):
        plan, _ = prepare(Config(data=name, data_dir=str(data_folder)))
        assert (plan.clients, plan.training.per_round) == (clients, per_round)


def test_clients_by_a_column_of_the_users_file(people: Path) -> None:
    finished = run(
        data=str(people),
        target="hired",
        favourable="yes",
        sensitive="sex",
        privileged="male",
        client_column="site",
        rounds=2,
        seeds=(1,),
        jobs=1,
    )
    assert finished.plan.clients == 4
    assert str(finished.plan.partition) == "column:site"
    assert finished.table.client_names == ("A", "B", "C", "D")


def test_a_metric_that_is_undefined_on_the_validation_rows_is_an_error_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"metric 'eqo' must be defined on the validation rows of seed \d+"):
        run(data="synthetic:rows=40", clients=2, per_round=1, seeds=tuple(range(1, 13)))


def test_counts_are_kept_and_give_the_metrics_again(finished: fairfate.Run) -> None:
    rounds = fairfate.read_rounds(finished.out)
    counts = counts_of(rounds)
    assert (counts.sum(axis=(1, 2, 3)) == 80).all()
    for name in ("accuracy", "sp", "eo", "eqo", "mcc"):
        np.testing.assert_array_equal(METRICS[name](counts), rounds[name])
    assert read_counted_rounds(finished.out)[1].names == ("female", "male")


def test_record_of_clients_says_who_took_part(finished: fairfate.Run) -> None:
    clients = read_clients(finished.out)
    assert len(clients) == 4 * 3 * 3 * 3  # strategies, seeds, rounds, clients a round
    assert set(clients["outcome"]) <= {"fair", "used"}
    fair = clients[clients["outcome"] == "fair"].groupby(["strategy", "settings", "seed", "round"]).size()
    rounds = finished.rounds.query("split == 'test' and fair_clients > 0")
    message = rounds.set_index(["strategy", "settings", "seed", "round"])["fair_clients"]
    assert fair.to_dict() == message.astype(int).to_dict()


def test_undefined_fairness_stays_undefined_in_the_summary() -> None:
    """With 40 rows, some seed's test rows lack a cell; the mean over seeds must not hide it."""
    finished = run(
        data="synthetic:rows=40",
        strategies="fedavg",
        clients=2,
        per_round=1,
        rounds=1,
        seeds=tuple(range(1, 13)),
        jobs=1,
    )
    eo = finished.rounds.query("split == 'test' and strategy == 'fedavg'")["eo"]
    assert eo.isna().any()
    assert not eo.isna().all()
    assert np.isnan(finished.summary["eo_last_mean"].iloc[0])


def test_a_run_stopped_before_its_summary_writes_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    """All seeds come from files then, where pandas holds texts otherwise than in memory."""

    def stop(path: Path, frame: pd.DataFrame) -> None:
        if path.name == "summary.csv":
            raise KeyboardInterrupt
        write_csv(path, frame)

    options = {"data": "synthetic:rows=200", "rounds": 3, "seeds": (1, 2), "jobs": 1}
    run(out=tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(execute, "write_csv", stop)
        with pytest.raises(KeyboardInterrupt):
            run(out=tmp_path / "again", **options)
    run(out=tmp_path / "again", **options)
    for file in sorted((tmp_path / "whole").rglob("*.*")):
        again = tmp_path / "again" / file.relative_to(tmp_path / "whole")
        assert file.read_bytes() == again.read_bytes(), file.name


def test_each_row_of_a_table_is_of_its_own_strategy_split_and_round() -> None:
    """Lines of two, one and three rounds; the n-th counts of all begin with n."""
    specs = [parse_spec(text, "sp") for text in ("fedavg", "fedmom", "fair_fate:metric=eo")]
    rounds, number, lines = ([1, 2], [7], [3, 4, 5]), iter(range(100)), []
    for spec, those in zip(specs, rounds, strict=True):
        splits = {
            split: [np.full((2, 2, 2), 5) + np.eye(8)[0].reshape(2, 2, 2) * next(number) for _ in those]
            for split in ("validation", "test")
        }
        lines.append(Line(spec, those, splits, [{"lam": float(t), "gap": t + 0.5} for t in those]))
    lines[1] = lines[1]._replace(notes=[{}])
    frame = rounds_frame({"dataset": "d", "seed": 3}, lines, {"accuracy": metrics.accuracy})
    assert frame["strategy"].tolist() == ["fedavg"] * 4 + ["fedmom"] * 2 + ["fair_fate"] * 6
    assert frame["metric"].isna().tolist() == [True] * 6 + [False] * 6
    assert frame["metric"].tolist()[6:] == ["eo"] * 6
    assert frame["settings"].tolist() == list(np.repeat([spec.settings_json for spec in specs], (4, 2, 6)))
    assert frame["round"].tolist() == [1, 2, 1, 2, 7, 7, 3, 4, 5, 3, 4, 5]
    assert frame["split"].tolist() == [
        *(["validation"] * 2 + ["test"] * 2),
        *("validation", "test"),
        *(["validation"] * 3 + ["test"] * 3),
    ]
    assert frame["n_0_0_0"].tolist() == [5 + n for n in range(12)]
    assert (frame["n_1_1_1"] == 5).all()
    assert frame["accuracy"].tolist() == [(20 + n) / (40 + n) for n in range(12)]
    assert frame["selection_rate"].tolist() == [20 / (40 + n) for n in range(12)]
    np.testing.assert_array_equal(frame["lam"], [1, 2, 1, 2, np.nan, np.nan, 3, 4, 5, 3, 4, 5])
    noted = [json.loads(text)["gap"] if isinstance(text, str) else None for text in frame["notes"]]
    assert noted == [1.5, 2.5, 1.5, 2.5, None, None, 3.5, 4.5, 5.5, 3.5, 4.5, 5.5]
    assert (frame["dataset"] == "d").all()
    assert (frame["seed"] == 3).all()


def test_notes_of_a_round_as_columns() -> None:
    nothing = _noted({})
    assert np.isnan(nothing[:3]).all()
    assert nothing[3] is None
    notes = {
        "lam": 0.5,
        "beta": 0.25,
        "fair": np.array([True, False, True]),
        "gap": 0.1,
        "weight": np.ones(3),
    }
    assert _noted(notes) == (0.5, 0.25, 2.0, '{"gap": 0.1}')
    result = _noted({"lam": 0.5})
    assert (result[0], result[3]) == (0.5, None)
    assert np.isnan(result[1:3]).all()


def test_a_summary_is_what_pandas_makes_of_the_last_rounds() -> None:
    rng, rows = np.random.default_rng(0), []
    for strategy, metric, seeds in (("fedavg", None, (1, 2, 3)), ("fair_fate", "eo", (2, 5))):
        for seed in seeds:
            for split in ("validation", "test"):
                for t in range(1, 26):
                    key = {"dataset": "d", "partition": "p", "protocol": "paper", "strategy": strategy}
                    key |= {"metric": metric, "settings": "{}", "seed": seed, "round": t, "split": split}
                    rows.append(
                        {**key, **dict.fromkeys(METRICS, 0.0), "sp": rng.random(), "eo": rng.random()}
                    )
    rows[-1]["eo"] = np.nan
    frame = pd.DataFrame(rows)
    indexed = summarise(frame).set_index("strategy")
    test = frame[frame["split"] == "test"]
    for kind, first in (("last", 25), ("last20", 6)):
        each = test[test["round"] >= first].groupby(["strategy", "seed"])[["sp", "eo"]].mean(skipna=False)
        grouped = each.groupby(level=0)
        for name in ("sp", "eo"):
            mean, std = (grouped[name].agg(value, skipna=False) for value in ("mean", "std"))
            np.testing.assert_allclose(indexed[f"{name}_{kind}_mean"][mean.index], mean, rtol=1e-12)
            np.testing.assert_allclose(indexed[f"{name}_{kind}_std"][std.index], std, rtol=1e-12)
    assert indexed["seeds"].to_dict() == {"fedavg": 3, "fair_fate": 2}
    assert indexed["eo_last_mean"].isna().to_dict() == {"fedavg": False, "fair_fate": True}
    assert indexed["metric"].isna().to_dict() == {"fedavg": True, "fair_fate": False}


def test_a_run_is_read_back_as_it_was_returned(tmp_path: Path) -> None:
    options = {"rounds": 3, "seeds": (2, 5), "strategies": ("fedavg", "fair_fate:lam0=0.5", "fair_fate")}
    made = run(data="synthetic:rows=600", out=tmp_path / "run", jobs=1, baselines=True, **options)
    read = load_run(tmp_path / "run")
    assert repr(read) == repr(made)
    assert (read.names, read.seeds, read.best) == (made.names, made.seeds, made.best)
    assert (read.date, read.baselines, read.outcome) == (made.date, made.baselines, made.outcome)
    for name in ("rounds", "summary", "clients", "groups"):
        frames = map(attrgetter(name), (read, made))
        ours, theirs = (frame.astype(object).where(frame.notna(), None) for frame in frames)
        pd.testing.assert_frame_equal(ours[theirs.columns], theirs)
    assert read.models.keys() == made.models.keys()
    rows = synthetic(50, seed=9)
    frame = pd.DataFrame(rows.features, columns=rows.feature_names).assign(sex=["female", "male"] * 25)
    ours, theirs = (which.model("fair_fate(lam0=0.5)", 5).score(frame).probability for which in (read, made))
    assert ours.tolist() == theirs.tolist()
    pages = [which.report(tmp_path / f"{number}.html") for number, which in enumerate((made, read))]
    assert pages[0].read_text() == pages[1].read_text()
    assert len(read.plot().axes) == 4


def test_only_a_finished_run_is_read_back(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder of a finished run"):
        load_run(tmp_path)
