"""The example apps run, in this process, through Flower's ServerApp and ClientApp."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict

from federation_in_process import LocalGrid

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("kind", ["torch", "sklearn"])
def test_an_example_trains_a_model(kind: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    if kind == "torch":
        pytest.importorskip("torch", reason='pip install "fairfate[torch]"')
    folder = EXAMPLES / f"flower-{kind}"
    monkeypatch.syspath_prepend(str(folder))
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    apps = project["tool"]["flwr"]["app"]["components"]
    client, server = (
        importlib.import_module(apps[part].partition(":")[0]).app for part in ("clientapp", "serverapp")
    )
    config = project["tool"]["flwr"]["app"]["config"]
    nodes = {number + 40: {"partition-id": number, "num-partitions": 4} for number in range(4)}
    grid = LocalGrid(client, nodes, config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    shown = capsys.readouterr().out
    trained = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trained) == 40
    last = next(line.split() for line in shown.splitlines() if line.split()[:1] == ["10"])
    accuracy, eqo = float(last[1]), float(last[4])
    assert accuracy > 0.7, shown
    assert eqo > 0.5, shown


@pytest.mark.parametrize("kind", ["torch", "sklearn"])
def test_flower_can_pack_an_example(kind: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(EXAMPLES / f"flower-{kind}")]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"FLWR_HOME": str(tmp_path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))
