"""Odd input by families: no traceback, no hang, nothing half-written, and the documented exit codes."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from odd_input import FAMILIES, command, forget_plugins, make_base, odd_arguments, python_call

CALLS = {
    "options": 350,
    "configs": 350,
    "sweeps": 250,
    "files": 120,
    "folders": 80,
    "models": 250,
    "plugins": 250,
    "flower": 150,
    "functions": 150,
}
"""In every run of the slow tests; with ``-m exhaustive`` forty times as many, others each time."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("odd") / "base")


def check(family: str, number: int, base: Path, scratch: Path, again: bool) -> None:
    codes, count = set(), itertools.count()

    @settings(
        max_examples=number,
        derandomize=again,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def make_call(data: st.DataObject) -> None:
        folder = scratch / f"{next(count):06}"  # of one length, since files hold paths
        folder.mkdir(parents=True)
        if family == "functions":
            outcome = python_call(odd_arguments(data.draw), folder)
        else:
            words = FAMILIES[family](data.draw, base, folder)
            note(f"fairfate {words}")
            outcome = command(words, folder)
            forget_plugins()
        shutil.rmtree(folder, ignore_errors=True)
        codes.add(outcome.code)
        assert not outcome.broken, "\n".join([*outcome.broken, outcome.err])

    make_call()
    assert codes == {0, 2}, "some calls of every family are good ones"


@pytest.mark.parametrize("family", CALLS)
def test_odd_input_ends_with_an_answer_or_a_message(family: str, base: Path, tmp_path: Path) -> None:
    check(family, CALLS[family], base, tmp_path / "calls", again=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", CALLS)
def test_odd_input_ends_with_a_result_or_a_message(family: str, base: Path, tmp_path: Path) -> None:
    check(family, 40 * CALLS[family], base, tmp_path / "calls", again=False)


def test_a_call_that_works_or_waits_for_too_long_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def works() -> int:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        return 0

    monkeypatch.setattr("odd_input.MOST_SECONDS", 0.1)
    monkeypatch.setattr("fairfate.cli.main.run_command", works)
    assert command([], tmp_path).broken == ("0 s",)
    monkeypatch.setattr("odd_input.LONGEST", 0.1)
    monkeypatch.setattr("fairfate.cli.main.run_command", lambda: time.sleep(60))
    assert "HangError: more than 0.1 s" in command([], tmp_path).broken[0]
