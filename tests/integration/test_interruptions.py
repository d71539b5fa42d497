"""Signals, deaths and locks: nothing hangs, nothing is lost, nobody is left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from interruptions import (
    RUN,
    SWEEP,
    all_gone,
    everything,
    finish,
    interrupt_randomly,
    kill,
    start,
    wipe,
    workers,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
LONG = ["run", "--data", "synthetic:rows=2000", "--rounds", "60", "--seeds", "40", "--out", "o"]


def working(process: subprocess.Popen[str], folder: Path, seeds: int = 1) -> None:
    """Wait until a long run has finished some seeds and its workers are busy."""
    end = time.monotonic() + 60
    while len(list((folder / "o" / "cells").glob("*.parquet"))) < seeds or len(workers(process)) < 2:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("whom", ["parent", "group"])
def test_signals_end_a_run_like_ctrl_c(tmp_path: Path, number: int, code: int, whom: str) -> None:
    process = start(LONG, tmp_path, 2)
    working(process, tmp_path)
    kill(process, whom, number, random.Random(1))
    begin = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - begin < 20  # a killed worker may first have to wait for a slow disk
    assert process.returncode == code, err
    assert err == "Interrupted. Finished seeds are kept; the same command with --out o continues.\n"
    assert all_gone(process)
    assert not list((tmp_path / "o").rglob(".*"))


def test_a_run_under_nohup_ignores_a_hangup(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "fairfate", *RUN, "--jobs", "2"]
    process = subprocess.Popen(["nohup", *words], cwd=tmp_path, text=True, stdout=subprocess.DEVNULL)
    while not (tmp_path / "o" / "config.toml").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    process = start(LONG, tmp_path, 2)
    working(process, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert all_gone(process, 10.0)
    process.communicate()


def test_killed_worker_is_named_by_its_signal(tmp_path: Path) -> None:
    process = start(LONG, tmp_path, 2)
    working(process, tmp_path)
    os.kill(workers(process)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith("Error: a process of the run died (killed by signal 9 (SIGKILL)")
    assert "Traceback" not in err
    assert "__main__" not in err
    assert all_gone(process)


def test_a_script_without_a_guard_gets_a_message(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import fairfate\nfairfate.run(data='synthetic:rows=200', rounds=2, jobs=2, out='o')\n")
    process = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert "jobs must be 1 in a script without the guard if __name__ == '__main__':" in process.stderr
    assert process.stderr.count("Traceback") == 1  # the script's own; none of its workers


def test_second_run_into_a_folder_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    process = start(LONG, tmp_path, 2)
    working(process, tmp_path)
    second = start(LONG, tmp_path, 2)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 2
    assert f"no other run is using, got 'o' (held by process {process.pid} on " in err
    kill(process, "parent", signal.SIGINT, random.Random(1))
    process.communicate(timeout=30)
    assert not (tmp_path / "o" / ".lock").exists()


def test_a_reader_that_goes_away_is_not_an_error(tmp_path: Path) -> None:
    quick = "run --data synthetic:rows=200 --rounds 2 --seeds 1 --jobs 1"
    for command in ("strategies", quick, "data list"):
        words = f"set -o pipefail; {sys.executable} -m fairfate {command} | head -c 1"
        process = subprocess.run(
            ["bash", "-c", words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (process.returncode, process.stderr) == (0, ""), command
    closed = f"exec 1>&-; {sys.executable} -m fairfate strategies"
    process = subprocess.run(["bash", "-c", closed], capture_output=True, text=True, check=False)
    assert "Traceback" not in process.stderr


def test_without_compilation_there_is_a_sentence(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "fairfate", "run"],
        cwd=tmp_path,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert process.stderr.startswith("Error: NUMBA_DISABLE_JIT must be unset")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What unbroken commands leave behind."""
    results = {}
    for words in (RUN, SWEEP):
        folder = tmp_path_factory.mktemp("whole")
        finish(words, folder)
        results[words[0]] = everything(folder / "o")
    return results


@pytest.mark.parametrize("words", [RUN, SWEEP], ids=["run", "sweep"])
def test_killed_at_random_moments_the_results_are_those_of_an_unbroken_run(
    words: list[str], whole: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    interrupt_randomly(words, tmp_path, whole[words[0]], tries=9, seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("words", [RUN, SWEEP], ids=["run", "sweep"])
def test_the_same_a_hundred_times(
    words: list[str], whole: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    interrupt_randomly(words, tmp_path, whole[words[0]], tries=100, seed=2)


def ctrl_c(tmp_path: Path, tries: int, seed: int) -> float:
    """Press Ctrl-C at random moments; returns the longest time that an end took."""
    choose, longest = random.Random(seed), 0.0
    begin = time.monotonic()
    finish(RUN, tmp_path)
    whole_time = time.monotonic() - begin
    for number in range(tries):
        wipe(tmp_path / "o")
        process = start(RUN, tmp_path, 2)
        moment = choose.uniform(0.1, 1.0) * whole_time
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            kill(process, choose.choice(["parent", "group"]), signal.SIGINT, choose)
        begin = time.monotonic()
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"try {number}: hangs after Ctrl-C at {moment:.2f} s") from None
        longest = max(longest, time.monotonic() - begin)
        assert process.returncode in (0, 130), (number, moment, err)
        assert "Traceback" not in err, (number, moment, err)
        assert all_gone(process), f"try {number}: processes live on after Ctrl-C at {moment:.2f} s"
        assert not list((tmp_path / "o").rglob(".*"))
    return longest


def test_ctrl_c_never_hangs(tmp_path: Path) -> None:
    assert ctrl_c(tmp_path, 10, seed=1) < 5


@pytest.mark.exhaustive
def test_ctrl_c_never_hangs_five_hundred_times(tmp_path: Path) -> None:
    longest = ctrl_c(tmp_path, 500, seed=2)
    sys.stderr.write(f"longest end after Ctrl-C: {longest:.2f} s\n")
    assert longest < 5


def test_a_signal_that_is_dropped_by_a_callback_comes_again() -> None:
    code = """
import signal, sys, time, weakref
import fairfate.__main__ as command

class Thing: pass

def dropped(reference):
    signal.raise_signal(signal.SIGTERM)
    sum(range(1000))

def busy():
    thing = Thing()
    reference = weakref.ref(thing, dropped)
    del thing
    time.sleep(20)
    return 0

import fairfate.cli.main as commands
commands.run_command = busy
command.main()
"""
    begun = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == 128 + signal.SIGTERM, process
    assert "Traceback" not in process.stderr
    assert time.monotonic() - begun < 15
