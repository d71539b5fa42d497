"""The app that `fairfate flower init --secure-sums` writes, whose five sites have signed off a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from fairfate.flower.app.init import init
from fairfate.flower.app.make_study import make_key
from ready_app import StudyApp


class SummedApp(StudyApp):
    """Five sites with keys, in this process, each with a copy of the server's validation rows."""

    NODES: ClassVar = {"north": 917, "south": 12, "west": 55, "coast": 4, "hills": 600}

    def __init__(self, folder: Path, changes: dict[str, Any] | None = None, *, min_cell: int = 10) -> None:
        self.folder = init(folder, secure_sums=True)
        self.name, self.package = folder.name, folder.name.replace("-", "_")
        self.parties = folder.parent / "parties"
        self.parties.mkdir()
        make_key("server", self.parties)
        for name in self.NODES:
            make_key(name, self.parties, self.folder / "sites" / f"{name}.toml")
        self.changes = dict(changes or {})
        self.file = self.folder / "study.toml"
        self.sign_off(min_cell=min_cell)

    def node_config(self, name: str) -> dict[str, Any]:
        return {**super().node_config(name), "public": str(self.folder / "data" / "validation.csv")}
