from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from fairfate.cells import Store
from fairfate.errors import InputError
from fairfate.experiment import run
from fairfate.sweep import expand, sweep

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


def test_cells_hold_what_a_run_finds(finished) -> None:
    options = {"data": "synthetic:rows=300", "partition": "dirichlet:0.5", "rounds": 3, "epochs": 1}
    alone = run(**options, strategies=("fedmom:beta=0.8",), seeds=(2,), jobs=1).rounds
    cell = next(c for c in finished.cells if c.seed == 2 and c.plan.partition.kind == "dirichlet")
    rows = finished.rounds(cell)
    mine = rows[rows["settings"] == '{"beta": 0.8}'].reset_index(drop=True)
    columns = [c for c in alone.columns if alone[c].dtype == float and c not in ("lam", "fair_clients")]
    pd.testing.assert_frame_equal(mine[columns], alone.reset_index(drop=True)[columns])


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


def test_what_a_killed_process_was_writing_is_cleared(tmp_path: Path) -> None:
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


TOML = """
data = "synthetic:rows=400"
partition = ["random", "dirichlet:0.5"]
strategy = ["fedavg", "fair_fate:metric=sp|eo"]
seeds = 6
rounds = 12
"""


def command(folder: Path, jobs: int) -> subprocess.Popen[str]:
    arguments = [
        sys.executable,
        "-m",
        "fairfate",
        "sweep",
        "mine.toml",
        "--out",
        "o",
        "--jobs",
        str(jobs),
    ]
    return subprocess.Popen(
        arguments,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_killed_at_ten_random_moments_the_results_are_those_of_an_unbroken_run(tmp_path: Path) -> None:
    """Signal 9 to the whole group of processes, wherever they are."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
        (folder / "mine.toml").write_text(TOML)
    begin = time.monotonic()
    out, err = command(whole, 1).communicate(timeout=120)
    assert "36 runs done now" in out, err
    longest = time.monotonic() - begin
    moments = random.Random(1)
    for kill in range(10):
        process = command(broken, 1 + kill % 2)
        try:
            process.wait(timeout=moments.uniform(0.5, 0.9) * longest)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    out, err = command(broken, 1).communicate(timeout=120)
    assert "cells in all" in out, err
    assert everything(broken / "o") == everything(whole / "o")
