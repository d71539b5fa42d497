from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from fairfate.errors import InputError
from fairfate.experiments.config import Config, expand
from fairfate.experiments.execute import execute
from fairfate.experiments.prepare import prepare
from fairfate.experiments.run import run
from fairfate.experiments.runs import Run, read_runs, read_unfinished
from fairfate.experiments.store import Store
from fairfate.experiments.sweep import sweep

VALUES = {
    "data": ["synthetic:rows=300"],
    "partition": ["random", "dirichlet:0.5"],
    "strategy": ["fedavg", {"name": "fedmom", "beta": [0.8, 0.9]}],
    "seeds": [1, 2],
    "rounds": 3,
    "epochs": 1,
}


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    return sweep(expand(VALUES), tmp_path_factory.mktemp("sweep") / "a", jobs=1)


def test_the_product_of_lists_is_run(finished) -> None:
    assert finished.ran == 2 * 3 * 2
    assert len(list((finished.out / "cells").glob("*.parquet"))) == 4
    summary = pd.read_csv(finished.out / "summary.csv")
    assert len(summary) == 2 * 3
    assert set(summary["partition"]) == {"random", "dirichlet:0.5"}


def test_jobs_hold_what_a_run_finds(finished) -> None:
    options = {"data": "synthetic:rows=300", "partition": "dirichlet:0.5", "rounds": 3, "epochs": 1}
    alone = run(**options, strategies=("fedmom:beta=0.8",), seeds=(2,), jobs=1).rounds
    cell = next(c for c in finished.jobs if c.seed == 2 and c.plan.partition.kind == "dirichlet")
    rows = finished.rounds(cell)
    selected = rows[rows["settings"] == '{"beta": 0.8}'].reset_index(drop=True)
    columns = [c for c in alone.columns if alone[c].dtype == float and c not in ("lam", "fair_clients")]
    pd.testing.assert_frame_equal(selected[columns], alone.reset_index(drop=True)[columns])


def test_nothing_is_run_twice_and_additions_run_alone(finished, tmp_path: Path) -> None:
    assert sweep(expand(VALUES), finished.out, jobs=1).ran == 0
    first = sweep(expand(VALUES), tmp_path, jobs=1)
    before = everything(tmp_path / "cells")
    more_seeds = sweep(expand({**VALUES, "seeds": [1, 2, 3]}), tmp_path, jobs=1)
    assert more_seeds.ran == 2 * 3
    more_settings = sweep(
        expand({**VALUES, "strategy": [*VALUES["strategy"], "fedval:metric=sp|eo"]}), tmp_path, jobs=1
    )
    assert more_settings.ran == 2 * 2 * 2
    after = everything(tmp_path / "cells")
    assert before.items() <= after.items()
    assert first.ran == 12
    other_rounds = sweep(expand({**VALUES, "rounds": 2}), tmp_path, jobs=1)
    assert other_rounds.ran == 12  # other rounds are other cells


def test_processes_do_not_change_a_byte(finished, tmp_path: Path) -> None:
    sweep(expand(VALUES), tmp_path, jobs=2)
    assert everything(tmp_path) == everything(finished.out)


def test_a_damaged_cell_is_found_and_run_again(finished, tmp_path: Path) -> None:
    sweep(expand(VALUES), tmp_path, jobs=1)
    victim = sorted((tmp_path / "cells").glob("*.parquet"))[1]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(bytes(content))
    again = sweep(expand(VALUES), tmp_path, jobs=1)
    assert again.damaged == (victim.name,)
    assert again.ran == 3
    assert everything(tmp_path) == everything(finished.out)


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / ".half.parquet.abc.unfinished").write_bytes(b"PAR1")
    (tmp_path / "cells" / ".hidden").write_bytes(b"the user's")
    assert Store(tmp_path / "cells").repair() == []
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [".hidden"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"partitions": ["random"]}, r"unknown key in x 'partitions'; did you mean 'partition'\?"),
        ({"strategy": [3]}, "x: strategy must be a text or a table with a name, got 3"),
        ({"strategy": [{"name": "fedmom", "beta": [0.8, 2]}]}, r"fedmom: beta must be in \[0, 1\), got 2"),
        ({"strategy": [{"name": "fedmomm"}]}, "unknown strategy 'fedmomm'"),
        ({"strategy": ["fedmom:beta=0.8|x"]}, "fedmom: beta must be a number"),
    ],
)
def test_bad_sweeps_are_named(values, message) -> None:
    with pytest.raises(InputError, match=message):
        expand(values, where="x")


def test_a_sweep_needs_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="out must be a folder"):
        sweep(expand(VALUES), tmp_path / "file")


PLUGIN = """
from fairfate.strategies.schedules import constant
from fairfate.strategies import momentum, register
@register("mine_s", "s", "r")
def build(setup):
    return momentum(constant({beta}))
"""


def test_an_edited_plugin_is_run_again_and_nothing_else(tmp_path: Path) -> None:
    plugin, out = tmp_path / "mine.py", tmp_path / "o"
    values = {**VALUES, "partition": "random", "plugin": str(plugin), "strategy": ["fedavg", "mine_s"]}

    def found() -> pd.Series:
        summary = pd.read_csv(out / "summary.csv")
        assert list(summary["strategy"].value_counts()) == [1, 1]
        return summary.set_index("strategy")["accuracy_last_mean"]

    plugin.write_text(PLUGIN.format(beta=0.0))
    assert sweep(expand(values), out, jobs=1).ran == 4
    first = found()
    plugin.write_text(PLUGIN.format(beta=0.99))
    assert sweep(expand(values), out, jobs=2).ran == 2
    assert found()["mine_s"] != first["mine_s"]
    assert found()["fedavg"] == first["fedavg"]
    plugin.write_text(PLUGIN.format(beta=0.0))
    assert sweep(expand(values), out, jobs=1).ran == 0
    assert found()["mine_s"] == first["mine_s"]


def test_strategies_keep_the_order_of_the_file_whatever_code_they_come_from(tmp_path: Path) -> None:
    """A plugin's strategies, and those added later, have files of their own, named by a checksum."""
    for number in range(4):
        text = PLUGIN.format(beta=f"0.{number}").replace("mine_s", f"mine_{number}")
        (tmp_path / f"{number}.py").write_text(text)
    plugins = [str(tmp_path / f"{number}.py") for number in range(4)]
    values = {**VALUES, "partition": "random", "plugin": plugins, "seeds": [1, 2, 3]}
    first = ["mine_0", "fedavg", "mine_1", "fedmom:beta=0.8|0.9"]
    more = ["fedval:metric=sp", "mine_3", *reversed(first), "mine_2"]
    for strategies in (first, more):
        runs = sweep(expand({**values, "strategy": strategies}), tmp_path / "o", jobs=1)
        wanted = [text for config in expand({**values, "strategy": strategies}) for text in config.strategies]
        order = [(text.partition(":")[0], "0.8" in text) for text in wanted]
        (kept_rows,) = read_runs(tmp_path / "o")
        tables = [kept_rows.rounds, *(runs.rounds(cell) for cell in runs.jobs)]
        for rounds in tables:
            for _, rows in rounds.groupby("seed"):
                lines = rows.drop_duplicates(["strategy", "settings"])
                assert order == [
                    (name, "0.8" in settings)
                    for name, settings in zip(lines["strategy"], lines["settings"], strict=True)
                ]
        summary = pd.read_csv(tmp_path / "o" / "summary.csv")
        assert list(summary["strategy"]) == [name for name, _ in order]
        assert len(kept_rows.rounds) == sum(len(runs.rounds(cell)) for cell in runs.jobs)


def test_a_run_that_continues_keeps_the_order_of_its_strategies(tmp_path: Path) -> None:
    for number in range(4):
        text = PLUGIN.format(beta=f"0.{number}").replace("mine_s", f"mine_r{number}")
        (tmp_path / f"{number}.py").write_text(text)
    names = ["mine_r2", "fedavg", "mine_r0", "fedval", "mine_r3", "mine_r1"]
    options = {"data": "synthetic:rows=300", "rounds": 2, "epochs": 1, "seeds": (1, 2, 3)}
    options |= {"strategies": names, "plugins": [str(tmp_path / f"{number}.py") for number in range(4)]}
    whole = run(**options, jobs=1).rounds
    plan, table = prepare(
        Config(**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})
    )

    def stop(finished: Run) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        execute(plan, table, out=tmp_path / "o", jobs=1, on_results=stop)
    unfinished = read_unfinished(tmp_path / "o")
    assert unfinished is not None
    resumed = execute(plan, table, out=tmp_path / "o", jobs=1).rounds
    for rounds in (resumed, unfinished.rounds):
        same = ["seed", "strategy", "round", "split", "accuracy"]
        pd.testing.assert_frame_equal(rounds[same], whole[same], check_dtype=False)


@pytest.mark.data
def test_a_dataset_by_name_and_its_file_are_different_cells(data_folder: Path, tmp_path: Path) -> None:
    """The published runs do not scale Law School, but scale every file of a user's."""
    named = {"protocol": "published", "rounds": 2, "epochs": 1, "seeds": [1], "strategy": ["fedavg"]}
    by_name = {**named, "data": "law", "data_dir": str(data_folder)}
    by_path = {
        **named,
        "data": str(data_folder / "law.csv"),
        **law_columns(data_folder),
        "partition": "random",
    }
    assert sweep(expand({**by_name, "partition": "random"}), tmp_path, jobs=1).ran == 1
    assert sweep(expand({**by_path, "clients": 10, "per_round": 2}), tmp_path, jobs=1).ran == 1


def law_columns(folder: Path) -> dict[str, str]:
    from fairfate.data import SOURCES

    columns = SOURCES["law"].columns
    results = {"target": columns.target, "favourable": columns.favourable}
    return {**results, "sensitive": list(columns.sensitive), "privileged": [columns.privileged[0][1]]}


def test_files_of_the_users_are_not_changed(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    own = tmp_path / "cells" / "my_notes.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(own)
    before = own.read_bytes()
    runs = sweep(expand({**VALUES, "seeds": [1]}), tmp_path, jobs=1)
    assert runs.damaged == ()
    assert own.read_bytes() == before


def test_a_sweep_does_not_write_into_a_run_nor_a_run_into_a_sweep(finished, tmp_path: Path) -> None:
    run(data="synthetic:rows=100", rounds=1, seeds=(1,), jobs=1, out=tmp_path)
    before = everything(tmp_path)
    with pytest.raises(InputError, match=r"out must be new or the folder of a sweep, got .* config.toml"):
        sweep(expand(VALUES), tmp_path, jobs=1)
    assert everything(tmp_path) == before
    with pytest.raises(InputError, match="out must not be the folder of a sweep"):
        run(data="synthetic:rows=100", rounds=1, seeds=(1,), jobs=1, out=finished.out, force=True)
    assert not (finished.out / ".lock").exists()


def test_configs_that_are_the_same_for_the_data_run_once(tmp_path: Path) -> None:
    values = {**VALUES, "partition": "random", "strategy": "fedavg", "encode": ["ordinal", "onehot"]}
    finished = sweep(expand(values), tmp_path, jobs=1)  # made-up data have one encoding
    assert (finished.ran, finished.repeated) == (2, 1)
    assert len(pd.read_csv(tmp_path / "summary.csv")) == len(list((tmp_path / "configs").iterdir())) == 1
