"""Secure sums on Flower's own runtime: five sites behind TLS, one of them killed in each phase of a round."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from test_flower_live import needs_nginx, processes_of, wait_for

from fairfate.flower.app.init import init
from fairfate.flower.messages import UNMASK
from fairfate.results.tables import read_clients, read_rounds
from ready_app import ReadyApp

SITES = ("coast", "hills", "north", "south", "west")
STRATEGY = "fair_fate:metric=accuracy,lam0=0.5,keep=0,min_mcc=0"
"""Nearly all sites are fair in each round, so that all three exchanges take place."""


class SummedLive(ReadyApp):
    """The app that `fairfate flower init --secure-sums` writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = init(folder, secure_sums=True)
        self.name, self.package = folder.name, folder.name.replace("-", "_")


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[SummedLive]:
    """An app of five sites; nothing that it has started is left at the end."""
    yield SummedLive(tmp_path / "five-wards")
    for process in processes_of(tmp_path):
        os.kill(process, signal.SIGKILL)


def answered(here: Any, site: str, kind: str) -> int:
    """How many questions of a kind a site has answered, by its own log."""
    log = here.folder / site / f"{site}-study-state" / "answers.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(entry["verdict"] == "answered" and entry["kind"] == kind for entry in map(json.loads, lines))


@needs_nginx
@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", ["fit", "train", UNMASK])
def test_a_site_is_killed_in_a_phase_of_a_round(ready: SummedLive, tmp_path: Path, phase: str) -> None:
    """After its answer to a phase, and so before the next one; the others finish the round and the run."""
    deploy = ready.module("deploy_here.py")
    with deploy.Deployment(tmp_path / "deployment") as here:
        for site in SITES:
            here.join(site, ready.folder / "sites" / f"{site}.toml")
        settings = f"rounds=2 epochs=2 timeout=60.0 min-sites=5 strategy='{STRATEGY}'"
        here.start_server(settings)
        here.start_operator()
        for site in SITES:
            here.start_site(site)
        here.wait_for_sites(5)
        run = here.submit(settings.replace("min-sites=5", "min-sites=4"))
        wait_for(lambda: answered(here, "hills", phase) > 0, 120, f"no answer to {phase}")
        here.stop("hills", signal.SIGKILL)
        began = time.monotonic()
        status = here.wait(run, 300)
        assert status == "finished:completed", here.log(run)
        result = ready.result()
    clients = read_clients(result)
    sums = clients[clients["name"].str.startswith("sum of")]
    # an answer is written down before it leaves: a site that is killed then is left out by another attempt
    first = {"fit": {4}, "train": {4, 5}, UNMASK: {5}}[phase]
    names, took = sums["name"].tolist(), time.monotonic() - began
    assert names in [[f"sum of {number} clients", "sum of 4 clients"] for number in first], (clients, took)
    assert read_rounds(result)["round"].max() == 2
