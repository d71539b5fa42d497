"""The app that `fairfate flower init` writes, loaded from where it was written, and its local twin."""

from __future__ import annotations

import importlib.util
import os
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from flwr.app import Context, RecordDict

from fairfate import read_model, read_rounds, run
from fairfate.experiments.config import from_mapping, read_config
from fairfate.flower.app.gate import state_folder
from fairfate.flower.app.init import init
from fairfate.flower.app.make_study import make_key, make_study, read_party
from fairfate.flower.app.site_state import SiteFolder
from fairfate.flower.sealing import PrivateKey
from fairfate.results.tables import read_clients
from federation_in_process import LocalGrid


class ReadyApp:
    """A written app."""

    def __init__(self, folder: Path) -> None:
        self.folder = init(folder)
        self.name = folder.name
        self.package = folder.name.replace("-", "_")

    def module(self, place: str) -> ModuleType:
        """One of its files."""
        spec = importlib.util.spec_from_file_location(f"{self.name}_{Path(place).stem}", self.folder / place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def config(self, **changes: Any) -> dict[str, Any]:
        """Its run config, with changes."""
        text = (self.folder / "pyproject.toml").read_text()
        config: dict[str, Any] = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
        config["max-wait"] = 5.0
        return {**config, **{key.replace("_", "-"): value for key, value in changes.items()}}

    def grid(self, config: dict[str, Any], nodes: tuple[int, ...] = (917, 12, 55)) -> LocalGrid:
        """Nodes as a simulation makes them, but in this process."""
        app = self.module(f"{self.package}/client_app.py").app
        numbered = {n: {"partition-id": i, "num-partitions": len(nodes)} for i, n in enumerate(nodes)}
        return LocalGrid(app, numbered, config)

    def serve(self, grid: LocalGrid, config: dict[str, Any], number: int = 1) -> None:
        """Run its ServerApp, as Flower's run of that number."""
        for at_node in grid.contexts.values():
            at_node.run_id = number
        context = Context(number, 1, {}, RecordDict(), config)
        self.module(f"{self.package}/server_app.py").app(grid, context)

    def result(self, number: int = 1) -> Path:
        """The folder of one of its runs."""
        return self.folder / "runs" / f"{self.name}-{number}"


def _results(rounds: pd.DataFrame) -> pd.DataFrame:
    """The rounds that both have: thresholds are measured after the last one only."""
    return rounds[rounds["round"] == rounds["round"].max()].drop(columns="dataset").reset_index(drop=True)


def assert_same_as_fairfate_run(result: Path, tmp_path: Path) -> pd.DataFrame:
    """`fairfate run --config` of the run's own config gives the same rounds and the same model."""
    out = tmp_path / "check"
    run(from_mapping(read_config(result / "config.toml")), out=out, jobs=1)
    ours, theirs = read_rounds(out), read_rounds(result)
    pd.testing.assert_frame_equal(_results(ours), _results(theirs), check_exact=True)
    (model,) = (result / "models").iterdir()
    arrays, about = read_model(model)
    twin, twin_about = read_model(out / "models" / model.name)
    assert arrays.keys() == twin.keys()
    for name, values in arrays.items():
        assert np.array_equal(values, twin[name]), name
    assert about["strategy"] == twin_about["strategy"]
    assert about["schema"] == twin_about["schema"]
    record, twins = read_clients(result), read_clients(out)
    same = ["round", "name", "outcome", "examples"]
    taking = record[record["outcome"].isin(["used", "fair"])]
    pd.testing.assert_frame_equal(taking[same].reset_index(drop=True), twins[same])
    summary, local = pd.read_csv(result / "summary.csv"), pd.read_csv(out / "summary.csv")
    pd.testing.assert_frame_equal(summary.drop(columns="dataset"), local.drop(columns="dataset"))
    return theirs


class StudyApp(ReadyApp):
    """A written app whose sites have signed off a study, each with a key and a state of its own."""

    NODES: ClassVar = {"north": 917, "south": 12, "west": 55}

    def __init__(self, folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(folder)
        self.parties = folder.parent / "parties"
        self.parties.mkdir()
        make_key("server", self.parties)
        for name in self.NODES:
            make_key(name, self.parties, self.folder / "sites" / f"{name}.toml")
        self.changes = dict(changes or {})
        self.file = self.folder / "study.toml"
        self.sign_off(**options)

    def sign_off(self, **options: Any) -> None:
        """Make the study, or amend it; every site pins it."""
        public = [read_party(file) for file in sorted(self.parties.glob("*.pub"))]
        self.study = make_study(self.folder, public, changes=self.changes, **options)
        self.file.write_text(self.study.text())

    def config(self, **changes: Any) -> dict[str, Any]:
        return super().config(study=str(self.file), **self.changes, **changes)

    def node_config(self, name: str) -> dict[str, Any]:
        """A site's own settings."""
        return {
            "data": str(self.folder / "data" / "sites" / f"{name}.csv"),
            "study": str(self.file),
            "study-sha256": self.study.checksum,
            "key": str(self.parties / f"{name}-study.key"),
        }

    def key(self, name: str) -> PrivateKey:
        return PrivateKey.read(self.parties / f"{name}-study.key")

    def grid(self, config: dict[str, Any], nodes: tuple[int, ...] = ()) -> LocalGrid:
        """Nodes as a deployment has them, but in this process."""
        app = self.module(f"{self.package}/client_app.py").app
        known = {node: self.node_config(name) for name, node in self.NODES.items()}
        return LocalGrid(app, known, config)

    def serve(self, grid: LocalGrid, config: dict[str, Any], number: int = 1) -> None:
        os.environ["FAIRFATE_SERVER_KEY"] = str(self.parties / "server-study.key")
        try:
            super().serve(grid, config, number)
        finally:
            del os.environ["FAIRFATE_SERVER_KEY"]

    def log(self, name: str) -> list[dict[str, Any]]:
        """What a site has written down of messages."""
        return SiteFolder(state_folder(self.node_config(name))).read_log()
