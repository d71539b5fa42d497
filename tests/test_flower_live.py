"""Flower's own runtime: one simulation and one deployment with TLS and keys, on this machine, offline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("flwr")

from fairfate.flower.checkpoint import read_checkpoint
from ready_app import ReadyApp, assert_same_as_fairfate_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups")


def wait_for(what: Callable[[], bool], seconds: float, said: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, said
        time.sleep(0.3)


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line or environment names a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[ReadyApp]:
    """An app of two sites; nothing that it has started is left at the end."""
    app = ReadyApp(tmp_path / "three-wards")
    for place in ("sites/west.toml", "data/sites/west.csv"):
        (app.folder / place).unlink()
    yield app
    end = time.monotonic() + 20
    while (left := processes_of(tmp_path)) and time.monotonic() < end:
        time.sleep(0.5)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert not left, "processes were left behind"


def test_a_simulation_gives_what_fairfate_run_gives(ready: ReadyApp, tmp_path: Path) -> None:
    """As `flwr run` does it, but with a SuperLink on a port of our own instead of a fixed one."""
    deploy = ready.module("deploy_here.py")
    with deploy.Local(tmp_path / "simulation", "insecure = true") as here:
        superlink = f"flower-superlink --simulation --insecure --host 127.0.0.1 --port {here.port}"
        here.start("superlink", superlink)
        here.wait_for_superlink()
        nodes = ("--federation-config", "num-supernodes=2 client-resources-num-cpus=1")
        run = here.submit("rounds=3 per-round=1 strategy='fedavg_gr'", *nodes)
        assert here.wait(run, 120) == "finished:completed", here.log(run)
    assert_same_as_fairfate_run(ready.result(), tmp_path)


def rounds_done(result: Path) -> int:
    file = result / "checkpoint.safetensors"
    return len(read_checkpoint(file).pieces) - 1 if file.exists() else -1


def test_a_deployment_with_tls_and_keys_survives_its_faults(ready: ReadyApp, tmp_path: Path) -> None:
    deploy = ready.module("deploy_here.py")
    deploy.check_config()
    with deploy.Deployment(tmp_path / "deployment") as here:
        start_sites(here, ready)
        refuse_strangers(here, ready)
        survive_a_killed_superlink(here, ready)
        assert_same_as_fairfate_run(ready.result(), tmp_path)
        survive_a_killed_supernode(here, ready)


def start_sites(here: Any, ready: ReadyApp) -> None:
    here.start_superlink()
    for site in ("north", "south"):
        key = here.make_key(site)
        assert key.stat().st_mode & 0o077 == 0
        here.register(key)
        if site == "north":
            here.register(key)  # as a second call of the script does
        here.start_supernode(site, ready.folder / "sites" / f"{site}.toml", key)


def refuse_strangers(here: Any, ready: ReadyApp) -> None:
    """A key that nobody has registered, and a site that does not trust our authority."""
    config = ready.folder / "sites" / "north.toml"
    here.start_supernode("stranger", config, here.make_key("stranger"))
    here.start_supernode("distrustful", config, here.make_key("north"), trust=False)
    here.wait_for_sites(2)
    for name, reason in (("stranger", "[code: 2004]"), ("distrustful", "certificate verify failed")):
        assert here.processes[name].wait(60) != 0
        log = (here.folder / f"{name}.log").read_text()
        assert "Exit Code: 305" in log
        assert reason in log.lower().replace("_", " "), log
    assert here.online() == 2


def survive_a_killed_superlink(here: Any, ready: ReadyApp) -> None:
    """Killed after the first round, started again: the sites come back, and the run goes on."""
    settings = "rounds=3 max-wait=60.0"
    first = here.submit(settings)
    wait_for(lambda: rounds_done(ready.result()) >= 1, 90, "the first round did not end")
    here.stop("superlink", signal.SIGKILL)
    done = rounds_done(ready.result())
    assert 1 <= done < 3
    here.start_superlink()
    here.wait_for_sites(2)
    run = here.submit(settings)
    here.follow(run)
    status = here.wait(run, 150)
    here.stop("log")
    log = here.log(run)
    assert status == "finished:completed", log
    assert f"Going on after round {done}" in log
    assert here.status(first) != "finished:completed"
    assert not ready.result(2).exists()


def survive_a_killed_supernode(here: Any, ready: ReadyApp) -> None:
    """Killed after the first round: the run ends with the other site, and says who was missing."""
    run = here.submit("rounds=2 min-sites=1 timeout=15.0 strategy='fedavg'")
    wait_for(lambda: rounds_done(ready.result(2)) >= 1, 90, "the first round did not end")
    here.stop("south", signal.SIGKILL)
    status = here.wait(run, 120)
    assert status == "finished:completed", here.log(run)
    clients = pd.read_csv(ready.result(2) / "clients.csv")
    second = clients[clients["round"] == 2].set_index("name")
    assert second.loc["north", "outcome"] == "used"
    assert second.loc["south", "outcome"] == "dropped"
    reason = second.loc["south", "reason"]
    assert reason == "no reply within 15 s" or reason.startswith("error 5:")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--nonsense"], 2, "unrecognized arguments: --nonsense"),
        ([], 1, "pyproject.toml: unknown key in the run config 'ronds'; did you mean 'rounds'"),
    ],
)
def test_the_script_finds_mistakes_before_it_starts_anything(
    ready: ReadyApp, words: list[str], code: int, said: str
) -> None:
    project = ready.folder / "pyproject.toml"
    project.write_text(project.read_text().replace("rounds = 20", "ronds = 20"))
    script = str(ready.folder / "deploy_here.py")
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stderr
    assert not (ready.folder / "deployment").exists()
