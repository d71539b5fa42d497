"""The benchmark against other libraries: peers that are installed do our job; the scripts hide no package."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
GIVEN_OUR_BATCHES = {"numpy", "flower", "torch", "jax"}
MODULE = {"jax": "jax", "torch": "torch", "flower": "flwr", "fluke": "fluke"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "peers.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_no_benchmark_hides_a_package() -> None:
    elsewhere = [path for path in sys.path if Path(path).resolve() != BENCHMARKS.resolve()]
    optional = {"coverage", "torch", "jax", "fluke", "declearn", "flwr"}  # perhaps not installed here
    for script in BENCHMARKS.glob("*.py"):
        assert script.stem not in optional
        spec = PathFinder.find_spec(script.stem, elsewhere)
        assert spec is None or spec.loader is None, script  # without a loader it is a folder of tests


def test_installed_peers_do_our_job(tmp_path) -> None:
    file = tmp_path / "peers.json"
    names = ["fairfate", "fairfate-16", "numpy", *MODULE]
    only = [word for name in names for word in ("--only", name)]
    finished_run = run("--rows", "600", "--rounds", "1", "--passes", "1", "--json", str(file), *only)
    assert finished_run.returncode == 0, finished_run.stdout + finished_run.stderr
    kept = json.loads(file.read_text())
    assert kept["job"]["rows"] == 600
    assert set(kept["peers"]) == set(names)
    for name, first in kept["peers"].items():
        if name in MODULE and find_spec(MODULE[name]) is None:
            assert first["missing"].startswith("pip install ")
            continue
        assert first["cpu_ms"] > 0, name
        assert first["versions"]["numpy"]
        if name in GIVEN_OUR_BATCHES:
            assert first["same_job"] is True, name
            assert first["client_steps"] == kept["job"]["client_steps"]
            assert first["largest_difference_of_weights"] < 1e-5, name


def test_another_job_is_called_one() -> None:
    code = """
import numpy as np, peers
sizes = np.array([25, 7])
job = peers.Job(*[None] * 3, np.cumsum([0, *sizes]), np.array([[0, 1]]), *[None] * 5)
assert (job.steps(False), job.steps(True)) == (25 + 7, 30 + 10)
ours = {"cpu_ms": 2.0, "accuracy": 0.8, "params": [1.0]}
for steps, accuracy, same in [(32, 0.8, True), (40, 0.82, True), (33, 0.8, False), (32, 0.75, False)]:
    found = {"cpu_ms": 3.0, "first_round_cpu_ms": 5.0, "params": [1.5]}
    found |= {"client_steps": steps, "accuracy": accuracy}
    shown = peers.summary("numpy", [found | {"cpu_ms": 9.0}, found], ours, job)
    assert shown["same_job"] is same, (steps, accuracy)
    assert (shown["cpu_ms"], shown["times_fairfate"]) == (3.0, 1.5)
    assert shown["largest_difference_of_weights"] == 0.5
    assert ("NOT THE SAME JOB" in peers.table({"numpy": shown}, job)) is not same
"""
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_a_peer_that_cannot_be_started_is_named_and_fails_the_script(tmp_path) -> None:
    wrong = tmp_path / "python"
    wrong.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    wrong.chmod(0o755)
    finished_run = run("--rows", "600", "--passes", "1", "--only", "jax", "--python", f"jax={wrong}")
    assert finished_run.returncode == 1
    assert "failed: no such library" in finished_run.stdout


@pytest.mark.parametrize(
    "words", [["--rounds", "0"], ["--rows", "12"], ["--python", "jax"], ["--python", "x=y"]]
)
def test_wrong_options_are_named(words) -> None:
    finished_run = run(*words)
    assert finished_run.returncode == 2
    assert words[0] in finished_run.stderr
    assert f"got '{words[1]}'" in finished_run.stderr
    assert "Traceback" not in finished_run.stderr
