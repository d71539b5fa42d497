"""Signs a study off at a site: its settings name the study, by its checksum, and the site's key."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

from fairfate.errors import InputError, check
from fairfate.files import write_bytes
from fairfate.flower.app.check import read_node
from fairfate.flower.app.gate import check_versions, state_folder
from fairfate.flower.app.guard import app_checksum
from fairfate.flower.app.make_study import changes_from
from fairfate.flower.app.site_state import SiteFolder
from fairfate.flower.keys import PrivateKey
from fairfate.flower.study import Study


def read_changes(node: Path, study: Study) -> list[str] | None:
    """What a study changes against the one that a site has pinned; None if it has pinned none."""
    with suppress(InputError):
        config = read_node(node)
        kept = _kept(state_folder(config), str(config.get("study-sha256")))
        return changes_from(Study.read(kept), study)
    return None


def pin(node: Path, path: Path, key: Path | None = None, app: Path | None = None) -> str:
    """Write the three lines of a site's settings by which it answers a study's questions; its name there.

    Parameters
    ----------
    node : the site's node-config
    path : the study file, which stays where it is
    key : the site's private key; the one that its settings name if None
    app : the app that the site has looked through, whose checksum must be the study's
    """
    config, study = read_node(node), Study.read(path)
    check_versions(study)
    private = Path(key or str(config.get("key") or "")).expanduser()
    own = PrivateKey.read(private).public
    names = [name for name, member in study.sites.items() if member.key == own]
    check(bool(names), "key must be that of a site of the study", f"another in '{private}'")
    if app is not None and app_checksum(app) != study.app:
        raise InputError(f"app must be the study's, got another in '{app}'")
    lines = node.read_text("utf-8").splitlines()
    pinned = {"study": str(path.resolve()), "study-sha256": study.checksum, "key": str(private.resolve())}
    for name, value in pinned.items():
        lines = _with_line(lines, name, f"{name} = {json.dumps(value, ensure_ascii=False)}")
    write_bytes(node, ("\n".join(lines) + "\n").encode())
    written = read_node(node)
    if any(written.get(name) != value for name, value in pinned.items()):
        raise InputError(f"node must have study, study-sha256 and key at its top level, got '{node}'")
    folder = SiteFolder(state_folder(written)).path
    write_bytes(_kept(folder, study.checksum), study.text().encode())  # to compare the next version with
    return names[0]


def _kept(folder: Path, checksum: str) -> Path:
    return folder / f"study-{checksum[:32]}.toml"


def _with_line(lines: list[str], name: str, line: str) -> list[str]:
    """Lines with a setting in place of the one of that name, or of a comment that shows it; else first."""
    for pattern in (rf"{name}\s*=", rf"#\s*{name}\s*="):
        for number, old in enumerate(lines):
            if re.match(pattern, old):
                return [*lines[:number], line, *lines[number + 1 :]]
    return [line, *lines]
