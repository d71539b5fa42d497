from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

from command import QUICK, Outcome
from fairfate.cli.main import run_command
from fairfate.data import Table, synthetic

settings.register_profile("ci", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("ci")

for _number in (signal.SIGINT, signal.SIGHUP):  # ignored in the background, and commands would inherit it
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler)


TIERS = {
    "slow": (
        *(
            "test_benchmark",
            "test_compile",
            "test_documentation",
            "test_flower_app",
            "test_flower_examples",
            "test_flower_memory",
        ),
        *(
            "test_odd_input",
            "test_golden_cpus",
            "test_interruptions",
            "test_peers",
            "test_reproduce",
            "test_skill",
        ),
    ),
    "deployment": ("test_docker", "test_flower_live", "test_report_page", "test_site", "test_watch"),
}
"""The files that `pytest` alone leaves out, so that it takes a few minutes."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of these files."""
    for item in items:
        for tier, files in TIERS.items():
            if item.path.stem in files and item.get_closest_marker("exhaustive") is None:
                item.add_marker(tier)


def pytest_collection_finish() -> None:
    """Keep what is imported by now out of the many collections that Flower and Hypothesis ask for."""
    gc.collect()
    gc.freeze()


os.environ["SOURCE_DATE_EPOCH"] = "1800000000"  # runs of tests have one date


@pytest.fixture
def data_folder() -> Path:
    """The folder with the public datasets; tests that need them are marked `data`."""
    folder = os.environ.get("FAIRFATE_DATA")
    if not folder:
        pytest.skip("FAIRFATE_DATA is not set")
    return Path(folder)


@pytest.fixture
def flower_log() -> Iterator[Any]:
    """What is written into Flower's log, the server's and the sites' apart."""
    from federation_in_process import Log

    handler = Log()
    logging.getLogger("flwr").addHandler(handler)
    yield handler
    logging.getLogger("flwr").removeHandler(handler)


@pytest.fixture
def lines(flower_log: Any) -> list[str]:
    """The server's log."""
    result: list[str] = flower_log.server
    return result


@pytest.fixture
def small() -> Table:
    return synthetic(rows=300, seed=3)


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """A file as users have them: mixed types, missing values, three groups, a site column."""
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 70, n).astype(float),
            "income": rng.normal(30, 8, n).round(2),
            "school": rng.choice(["north", "south", "west"], n),
            "sex": rng.choice(["male", "female", "other"], n, p=[0.5, 0.4, 0.1]),
            "site": rng.choice(["A", "B", "C", "D"], n),
            "hired": rng.choice(["yes", "no"], n),
        }
    )
    frame.loc[frame.index[::17], "age"] = np.nan
    frame.loc[frame.index[::23], "school"] = None
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def fairfate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """The command, run in this process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> Outcome:
        words = list(arguments)
        for option in QUICK[::2] if set(QUICK) <= set(words) else ():  # what a test names counts
            if words.count(option) > 1:
                del words[words.index(option) : words.index(option) + 2]
        if set(QUICK) <= set(words) and words[0] == "run":
            words.append("--no-baselines")  # whose imports alone take longer
        monkeypatch.setattr(sys, "argv", ["fairfate", *words])
        return Outcome(run_command(), *capsys.readouterr())

    return call
