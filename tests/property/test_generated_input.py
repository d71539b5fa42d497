"""Bad input without end: no traceback, no hang, nothing half-written, and the documented exit codes."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from generated_input import MOST_SECONDS, calls, command, damage_folder, make_base

CALLS = {
    "options": 350,
    "toml": 350,
    "sweeps": 250,
    "files": 450,
    "folders": 200,
    "models": 250,
    "plugins": 250,
    "flower": 150,
    "api": 150,
}
"""In every run of the tests: 2,400."""
SLOW = 100_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("generated") / "base")


def check(family: str, seed: int, number: int, base: Path, scratch: Path) -> None:
    broken, codes = [], set()
    for call in calls(family, seed, number, base, scratch):
        codes.add(call.code)
        if call.broken or call.seconds > MOST_SECONDS:
            broken.append(f"{call.words}: {'; '.join(call.broken)}")
    assert not broken, f"{len(broken)} of {number} calls (seed {seed}):\n" + "\n".join(broken[:5])
    assert codes == {0, 2}, "some calls of every family are good ones"


@pytest.mark.parametrize("family", CALLS)
def test_odd_input_gets_an_answer(family: str, base: Path, tmp_path: Path) -> None:
    check(family, 20, CALLS[family], base, tmp_path / "calls")


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", CALLS)
def test_odd_input_gets_an_answer_however_often(family: str, base: Path, tmp_path: Path) -> None:
    check(family, 21, SLOW * CALLS[family] // sum(CALLS.values()), base, tmp_path / "calls")


def test_what_was_damaged_can_be_damaged_again(base: Path, tmp_path: Path) -> None:
    for kind in ("run", "stopped", "sweep"):
        place = Path(shutil.copytree(base / kind, tmp_path / kind))
        for n in range(150):
            damage_folder(np.random.default_rng([5, n]), place)
            if n % 15 == 14:
                shutil.rmtree(place)
                shutil.copytree(base / kind, place)


def test_a_call_that_works_or_waits_for_too_long_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def works() -> int:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        return 0

    monkeypatch.setattr("generated_input.MOST_SECONDS", 0.1)
    monkeypatch.setattr("fairfate.cli.main.run_command", works)
    assert command([], tmp_path).broken == ("0 s",)
    monkeypatch.setattr("generated_input.LONGEST", 0.1)
    monkeypatch.setattr("fairfate.cli.main.run_command", lambda: time.sleep(60))
    assert "HangError: more than 0.1 s" in command([], tmp_path).broken[0]


def test_calls_are_the_same_for_the_same_seed(base: Path, tmp_path: Path) -> None:
    first = [call.words for call in calls("options", 3, 4, base, tmp_path / "a")]
    again = [call.words for call in calls("options", 3, 4, base, tmp_path / "a")]
    assert first == again
