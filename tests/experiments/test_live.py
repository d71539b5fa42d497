"""What an unfinished run tells of itself: written as it goes, read at any moment, gone at its end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from command import QUICK, TWO
from fairfate import InputError, read_rounds, run
from fairfate.data import Table
from fairfate.engine.simulate import simulate
from fairfate.experiments import execute
from fairfate.experiments.live import (
    LIVE,
    StrategyRounds,
    Writer,
    header,
    join_clients,
    live_file,
    read_live_seeds,
    rounds_since,
)
from fairfate.experiments.runs import load_run, read_unfinished
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.models.mlp import Mlp
from fairfate.models.training import Training
from fairfate.report.data import ReportData
from fairfate.results.tables import read_clients
from fairfate.strategies import Setup, parse_spec
from interruptions import everything

KEY = {"dataset": "d", "partition": "random", "protocol": "paper", "seed": 7}
SPECS = [parse_spec(text, "eqo") for text in ("fedavg", "fair_fate:metric=sp")]
SAME = ["round", "name", "outcome", "reason", "strategy", "metric", "settings", "seed"]


def read_live(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, Any]:
    """The rounds, clients and groups of all seeds."""
    seeds = read_live_seeds(folder)
    rounds = pd.concat([seed.rounds for seed in seeds], ignore_index=True)
    return rounds, join_clients([seed.clients for seed in seeds]), seeds[0].groups


@pytest.fixture
def about(small: Table) -> dict[str, Any]:
    return header(KEY, 50, SPECS, small.grouping)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def counts(t: int) -> np.ndarray:
    return np.arange(8).reshape(2, 2, 2) + t


def add(writer: Writer, t: int) -> None:
    """Rounds up to ``t`` of two strategies."""

    def since(first: int) -> list[StrategyRounds]:
        rounds = range(first, t + 1)
        first_value, other = [counts(r) for r in rounds], [counts(r + 1) for r in rounds]
        notes = [{"lam": r / 3, "fair": [1, 0, 1]} for r in rounds]
        return [
            StrategyRounds(first_value, other, [{}] * len(rounds)),
            StrategyRounds(other, first_value, notes),
        ]

    writer.add(t, since)


def written(path: Path, about: dict[str, Any], rounds: int = 20) -> Path:
    """A file, as if a line had been written after every round."""
    writer = Writer(path, about, seconds=0.0)
    for t in range(1, rounds + 1):
        add(writer, t)
    return path


# -- writing ---------------------------------------------------------------------------------------------


def test_it_writes_at_most_once_a_second_and_all_that_is_new_at_once(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    clock, file = Clock(), live_file(tmp_path, 7)
    writer, lengths = Writer(file, about, clock=clock), []
    for t in range(1, 41):
        clock.now += 0.125
        add(writer, t)
        lengths.append(read_live_seeds(tmp_path)[0].rounds_done if file.exists() else 0)
    assert lengths[6] == 0  # a run shorter than a second writes nothing
    assert sorted(set(lengths)) == [0, 8, 16, 24, 32, 40]
    first, *rows = map(json.loads, file.read_text().splitlines())
    assert (first["dataset"], first["seed"], first["rounds"]) == ("d", 7, 50)
    assert first["strategies"][1][:2] == ["fair_fate", "sp"]
    assert [row["first"] for row in rows] == [1, 9, 17, 25, 33]
    rounds, clients, groups = read_live(tmp_path)
    assert len(rounds) == 40 * 2 * 2
    assert len(clients) == 0
    assert groups is not None
    assert rounds["fair_clients"].dropna().unique().tolist() == [2]


def test_a_writer_begins_its_file_anew(tmp_path: Path, about: dict[str, Any]) -> None:
    file = written(live_file(tmp_path, 7), about, 30)
    with file.open("ab") as opened:
        opened.write(b'{"first":31,"strategies":[{"valid')  # killed while writing
    writer = Writer(file, about, seconds=0.0)
    assert read_live_seeds(tmp_path)[0].rounds_done == 30
    add(writer, 12)
    add(writer, 13)
    assert [json.loads(line)["first"] for line in file.read_text().splitlines()[1:]] == [1, 13]
    assert read_live_seeds(tmp_path)[0].rounds_done == 13


def test_what_cannot_be_written_is_not_an_error(tmp_path: Path, about: dict[str, Any]) -> None:
    (tmp_path / LIVE).write_text("a file where the folder should be")
    writer = Writer(live_file(tmp_path, 7), about, seconds=0.0)
    add(writer, 1)
    (tmp_path / LIVE).unlink()
    add(writer, 2)
    assert read_live_seeds(tmp_path)[0].rounds_done == 2


def test_a_file_that_is_taken_away_is_begun_anew(tmp_path: Path, about: dict[str, Any]) -> None:
    writer = Writer(live_file(tmp_path, 7), about, seconds=0.0)
    add(writer, 3)
    shutil.rmtree(tmp_path / LIVE)
    add(writer, 4)
    assert read_live_seeds(tmp_path) == []
    add(writer, 5)
    assert len(read_live(tmp_path)[0]) == 5 * 2 * 2


# -- reading ---------------------------------------------------------------------------------------------


def test_a_line_that_is_not_whole_is_not_read(tmp_path: Path, about: dict[str, Any]) -> None:
    file = written(live_file(tmp_path, 7), about, 2)
    content = file.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        file.write_bytes(content[:length])
        result, whole = read_live_seeds(tmp_path), sum(end <= length for end in ends)
        assert len(result) == (whole > 0), length
        assert not result or (result[0].rounds_done, len(result[0].rounds)) == (whole - 1, 4 * (whole - 1))


@pytest.mark.parametrize("line", [b"", b"null", b"{}", b"\x00\xff", b'{"first":2,"strategies":[{},{}]}'])
def test_damaged_file_is_left_out(tmp_path: Path, about: dict[str, Any], line: bytes) -> None:
    for seed in (7, 8):
        written(live_file(tmp_path, seed), {**about, "seed": seed}, 4)
    file = live_file(tmp_path, 7)
    lines = file.read_bytes().splitlines()
    for damaged in (0, 2):
        file.write_bytes(b"\n".join([*lines[:damaged], line, *lines[damaged + 1 :]]) + b"\n")
        assert [seed.seed for seed in read_live_seeds(tmp_path)] == [8]


# -- runs ------------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that write after every round, and leave what they wrote."""
    monkeypatch.setattr(execute, "Writer", partial(Writer, seconds=0.0))
    monkeypatch.setattr(execute, "clear_live", lambda *arguments: None)


TEXTS = ["fedavg", "fair_fate", "fedavg+average", "fedval", "ffalm", "fairgrad:rate=0.1", "prejudice"]


@pytest.mark.usefixtures("kept")
def test_the_rounds_are_those_of_the_finished_run(tmp_path: Path) -> None:
    out = tmp_path / "o"
    run(data="synthetic:rows=600", strategies=TEXTS, rounds=5, epochs=1, seeds=(2, 5), jobs=1, out=out)
    rounds, clients, groups = read_live(out)
    pd.testing.assert_frame_equal(rounds, read_rounds(out), check_exact=True)
    assert rounds["notes"].notna().any()
    whole = read_clients(out)
    assert set(whole["outcome"]) >= {"fair", "used"}
    pd.testing.assert_frame_equal(clients, whole[SAME], check_exact=True)
    assert groups is not None


@pytest.mark.usefixtures("kept")
def test_a_model_that_is_measured_at_the_end_only_has_clients_and_progress(tmp_path: Path) -> None:
    out = tmp_path / "o"
    run(
        data="synthetic:rows=300",
        strategies=["fedavg+thresholds"],
        rounds=4,
        epochs=1,
        seeds=(1,),
        jobs=1,
        out=out,
    )
    (out / "summary.csv").unlink()
    shutil.rmtree(out / "cells", ignore_errors=True)
    unfinished = read_unfinished(out)
    assert unfinished is not None
    assert unfinished.progress == {1: (4, 4)}
    assert len(unfinished.rounds) == 0
    assert set(unfinished.clients["round"]) == {1, 2, 3, 4}


def test_a_short_run_leaves_nothing_of_it(tmp_path: Path) -> None:
    run(data="synthetic:rows=300", rounds=2, epochs=1, seeds=(1,), jobs=1, out=tmp_path / "o")
    assert not (tmp_path / "o" / LIVE).exists()
    assert read_unfinished(tmp_path / "o") is None


def test_a_run_removes_its_own_files_and_those_of_an_interrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]
) -> None:
    monkeypatch.setattr(execute, "Writer", partial(Writer, seconds=0.0))
    out, there = tmp_path / "o", []
    options: dict[str, Any] = {"data": "synthetic:rows=300", "rounds": 3, "epochs": 1, "seeds": (1, 2)}

    def look(amount: float) -> None:
        there.append(sorted(path.name for path in (out / LIVE).glob("*")))

    run(**options, jobs=1, out=out, progress=look)
    assert there == [["seed-1.jsonl"]] * 3 + [["seed-2.jsonl"]] * 3
    assert not (out / LIVE).exists()
    written(live_file(out, 9), about)  # as if it had been killed at another moment
    (out / LIVE / "mine.txt").write_text("not ours")
    run(**options, jobs=1, out=out, force=True)
    assert [path.name for path in (out / LIVE).iterdir()] == ["mine.txt"]


def test_resumed_simulation_reports_all_its_rounds(small: Table, tmp_path: Path) -> None:
    streams, specs = Streams(1), [parse_spec(text, "eqo") for text in TEXTS]
    federation = build(small, parse_partition("random"), 6, streams)
    training = Training(rounds=8, per_round=3, epochs=1, batch_size=10, learning_rate=0.01)
    about = header({**KEY, "seed": 1}, 8, specs, small.grouping)

    def play(stop: int) -> list[list[int]]:
        writer = Writer(live_file(tmp_path, 1), about, seconds=0.0)
        messages = []

        def record(t: int, traces: Any) -> None:
            writer.add(t, lambda first: rounds_since(traces, first))
            lines = live_file(tmp_path, 1).read_text().splitlines()
            messages.append([json.loads(line)["first"] for line in lines[1:]])
            if t == stop:
                raise KeyboardInterrupt

        simulate(
            federation,
            specs,
            Mlp(federation.inputs),
            training,
            Setup(8, groups=small.grouping),
            streams,
            record_clients=True,
            checkpoint=tmp_path / "checkpoint.safetensors",
            seconds=0.0,
            on_record=record,
        )
        return messages

    with pytest.raises(KeyboardInterrupt):
        play(5)
    assert play(0) == [[1], [1, 7], [1, 7, 8]]
    again = read_live(tmp_path)
    (tmp_path / "checkpoint.safetensors").unlink()
    play(0)
    for first_value, other in zip(again[:2], read_live(tmp_path)[:2], strict=True):
        pd.testing.assert_frame_equal(first_value, other, check_exact=True)


# -- at any moment ---------------------------------------------------------------------------------------


def test_a_run_that_has_just_begun_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run must be the folder of a run, got '.*' \(no readable config"):
        read_unfinished(tmp_path)
    (tmp_path / "config.toml").write_text("seeds = [1]\nrounds = 3\n")
    with pytest.raises(InputError, match="try again in a few seconds"):
        read_unfinished(tmp_path)


EAGER = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from fairfate import run
from fairfate.experiments import execute
from fairfate.experiments.live import Writer

execute.Writer = partial(Writer, seconds=0.0)  # after every round

def look(done):
    time.sleep(float(sys.argv[3]))
    if done == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)

both = ("fedavg", "fair_fate")
run(data="synthetic:rows=400", strategies=both, rounds=20, epochs=1, seeds=3, jobs=1, out=sys.argv[1],
    progress=look)
"""


def eager(folder: Path, out: str, die: int = 0, pause: float = 0.0) -> subprocess.Popen[str]:
    """A run that writes after every round, and dies after so many of all seeds."""
    words = [sys.executable, "-c", EAGER, out, str(die), str(pause)]
    return subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> int:
    _, err = process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
def test_killed_run_shows_its_results_so_far_and_continues(tmp_path: Path) -> None:
    assert ended(eager(tmp_path, "whole")) == 0
    assert ended(eager(tmp_path, "o", die=33)) == -signal.SIGKILL
    out = tmp_path / "o"
    before = everything(out)
    unfinished = read_unfinished(out)
    assert everything(out) == before
    assert unfinished is not None
    assert unfinished.progress == {1: (20, 20), 2: (13, 20), 3: (0, 20)}
    assert unfinished.metric == "eqo"
    whole, clients = read_rounds(tmp_path / "whole"), read_clients(tmp_path / "whole")
    for seed, (outcome, _) in unfinished.progress.items():
        selected = unfinished.rounds[unfinished.rounds["seed"] == seed].reset_index(drop=True)
        same = whole[(whole["seed"] == seed) & (whole["round"] <= outcome)].reset_index(drop=True)
        pd.testing.assert_frame_equal(selected, same, check_exact=True)
        selected = unfinished.clients[unfinished.clients["seed"] == seed][SAME].reset_index(drop=True)
        same = clients[(clients["seed"] == seed) & (clients["round"] <= outcome)][SAME].reset_index(drop=True)
        pd.testing.assert_frame_equal(selected, same, check_exact=True)
    (cell,) = (out / "cells").glob("*.parquet")
    content = cell.read_bytes()
    cell.write_bytes(content[:-9])  # the run would do it again
    other = cell.with_name(f"{cell.stem.rpartition('_')[0]}_{'0' * 32}.parquet")
    other.write_bytes(content)  # its content is not what its name says
    again = read_unfinished(out)
    assert again is not None
    assert again.progress == {1: (0, 20), 2: (13, 20), 3: (0, 20)}
    cell.write_bytes(content)
    other.unlink()
    assert ended(eager(tmp_path, "o")) == 0
    assert everything(out) == everything(tmp_path / "whole")
    assert read_unfinished(out) is None


@pytest.mark.slow
def test_a_run_can_be_read_at_any_moment_of_its_life(tmp_path: Path) -> None:
    """From its first to its last: each answer is whole, progress never goes back, and None is the end."""
    process, out, last, answers = eager(tmp_path, "o", pause=0.03), tmp_path / "o", 0, 0
    while not (out / "summary.csv").exists():
        assert process.poll() in (None, 0), process.communicate()
        time.sleep(0.001)
        try:
            unfinished = read_unfinished(out)
        except InputError:
            assert last == 0
            continue
        if unfinished is None:
            break
        answers += 1
        outcome = sum(t for t, _ in unfinished.progress.values())
        assert outcome >= last
        last = outcome
        for seed, (t, _) in unfinished.progress.items():
            own = unfinished.rounds[unfinished.rounds["seed"] == seed]
            assert len(own) == 2 * 2 * t
    assert ended(process) == 0
    assert answers > 0
    assert read_unfinished(out) is None


def test_files_that_go_away_between_listing_and_reading_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]
) -> None:
    (tmp_path / "config.toml").write_text("seeds = [7, 8]\nrounds = 50\n")
    for seed in (7, 8):
        written(live_file(tmp_path, seed), {**about, "seed": seed}, 5)
    glob = Path.glob

    def late(self: Path, pattern: str) -> Iterator[Path]:
        paths = list(glob(self, pattern))
        live_file(tmp_path, 7).unlink(missing_ok=True)
        return iter(paths)

    monkeypatch.setattr(Path, "glob", late)
    unfinished = read_unfinished(tmp_path)
    assert unfinished is not None
    assert unfinished.progress == {7: (0, 50), 8: (5, 50)}


def test_a_plugins_second_file_may_be_missing_for_a_moment(tmp_path: Path) -> None:
    """A seed whose cell is written in two files is told by its live record until both are there."""
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "from fairfate.strategies import register\n"
        "from fairfate.strategies.registry import _ENTRIES\n"
        "@register('own', 'the same', 'nobody')\n"
        "def own(setup):\n    return _ENTRIES['fedavg'].build(setup)\n"
    )
    out, patch = tmp_path / "o", pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(execute, "Writer", partial(Writer, seconds=0.0))
        patched.setattr(execute, "clear_live", lambda *arguments: None)
        patched.setattr(execute, "_clear_seeds", lambda folder: None)
        run(
            data="synthetic:rows=300",
            strategies=["fedavg", "own"],
            plugins=(str(plugin),),
            rounds=3,
            epochs=1,
            seeds=(1,),
            jobs=1,
            out=out,
        )
    (out / "summary.csv").unlink()
    files = sorted((out / "cells").glob("*.parquet"))
    assert len(files) == 2
    whole = read_unfinished(out)
    files[0].unlink()
    half = read_unfinished(out)
    assert whole is not None
    assert half is not None
    assert len(whole.rounds) == len(half.rounds) == 2 * 2 * 3
    shutil.rmtree(out / LIVE)
    less = read_unfinished(out)
    assert less is not None
    assert len(less.rounds) == 2 * 3


# -- on Flower -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fair_fate", "fedavg+thresholds"])
def test_the_ready_app_writes_every_round_down(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("flwr")
    from federation_in_process import Killed
    from ready_app import ReadyApp

    ready = ReadyApp(tmp_path / "three-wards")
    config = ready.config(strategy=strategy, rounds=5)
    grid, there = ready.grid(config), []

    def die(message: Any, honest: Any) -> Any:
        there.append([item.rounds_done for item in read_live_seeds(ready.result())])
        if message.content["config"].get("server-round") == 4:
            raise Killed
        return honest

    for node in grid.contexts:
        grid.tamper[node] = die
    with pytest.raises(Killed):
        ready.serve(grid, config)
    assert [1] in there
    assert [2] in there
    unfinished = read_unfinished(ready.result())
    assert unfinished is not None
    assert unfinished.progress == {1: (3, 5)}
    assert set(unfinished.clients["name"]) == {"north", "south", "west"}
    ready.serve(ready.grid(config), config)
    assert not (ready.result() / LIVE).exists()
    assert read_unfinished(ready.result()) is None
    whole = read_rounds(ready.result())
    if strategy == "fair_fate":
        same = whole[whole["round"] <= 3].groupby(["split"], sort=False, group_keys=False)
        expected = pd.concat([frame for _, frame in same]).reset_index(drop=True)
        pd.testing.assert_frame_equal(unfinished.rounds, expected, check_exact=True)
    else:
        assert len(unfinished.rounds) == 0


def test_a_finished_seed_that_has_lost_its_test_rows_is_reported(fairfate, tmp_path: Path) -> None:
    fairfate("run", *QUICK, *TWO, "--out", "o")
    run = load_run(tmp_path / "o")
    rounds = run.rounds
    last = rounds["round"].max()
    left = rounds[(rounds["split"] != "test") | (rounds["round"] < last)]
    progress = {int(seed): (int(last), int(last)) for seed in set(rounds["seed"])}
    begun = replace(run, progress=progress)
    with pytest.raises(InputError, match="one measurement on test rows for every strategy and seed"):
        ReportData.from_runs([replace(begun, rounds=left)])
    assert len(ReportData.from_runs([begun]).models) == 4
