"""Differential privacy on Flower: the simulator's bits with its streams, and a ledger at each site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("dp_accounting")

from fairfate.engine.private import seeded
from fairfate.flower.app import private_site
from fairfate.flower.app.private_site import AtSite
from ready_app import ReadyApp, StudyApp, assert_same_as_fairfate_run

PRIVATE = {"privacy": "epsilon=8", "rounds": 3, "epochs": 1, "per-round": 0}
STRATEGIES = [
    "fedavg",
    "fair_fate",
    "fairgrad",
    "fedavg_lr+average",
    "fedavg+average+thresholds:from=clients",
    "fedavg_gr+average+common_threshold",
]


def ledger(app: StudyApp, name: str) -> list[dict[str, Any]]:
    file = Path(app.node_config(name)["data"])
    return list(json.loads(file.with_name(f"{file.name}.ledger").read_text()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_simulation_gives_the_bits_of_fairfate_run(tmp_path: Path, strategy: str) -> None:
    app = ReadyApp(tmp_path / "clinics")
    config = app.config(**PRIVATE, strategy=strategy)
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)


@pytest.mark.parametrize("strategy", ["fair_fate", STRATEGIES[-1]])
def test_sites_give_the_bits_of_the_simulator_with_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    app = StudyApp(tmp_path / "clinics", {**PRIVATE, "strategy": strategy})
    numbers = {name: number for number, name in enumerate(sorted(app.NODES))}

    def streams(place: AtSite, server: str) -> Any:
        name = place.account.file.stem.split(".")[0]
        return lambda kind, t: seeded(1, server, kind, numbers[name], t)

    monkeypatch.setattr(private_site.AtSite, "randomness", streams)
    config = app.config()
    app.serve(app.grid(config), config)
    assert_same_as_fairfate_run(app.result(), tmp_path)
