"""Signs a study off at a site: its settings name the study, by its checksum, and the site's key."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from contextlib import suppress
from pathlib import Path

from fairfate.errors import InputError, check
from fairfate.flower.app.check import read_node
from fairfate.flower.app.gate import check_versions, state_folder
from fairfate.flower.app.guard import app_checksum
from fairfate.flower.app.make_study import changes_from
from fairfate.flower.app.site_state import SiteFolder
from fairfate.flower.keys import PrivateKey
from fairfate.flower.study import Study
from fairfate.storage import write_bytes


def read_changes(node: Path, study: Study) -> list[str] | None:
    """What a study changes against the one that a site has pinned; None if it has pinned none."""
    with suppress(InputError):
        config = read_node(node)
        pinned = str(config.get("study-sha256"))
        before = Study.read(_kept(state_folder(config), pinned))
        if before.checksum != pinned:  # somebody has changed the copy
            return None
        follows = study.previous == before.checksum or study.checksum == before.checksum
        warning = f"! it does not follow version {before.version}, which is pinned here"
        return [*([] if follows else [warning]), *changes_from(before, study)]
    return None


def pin(node: Path, path: Path, study: Study, key: Path | None = None, app: Path | None = None) -> str:
    """Write the three lines of a site's settings by which it answers a study's questions; its name there.

    Parameters
    ----------
    node : the site's node-config
    path : the study file, which stays where it is
    study : what was read from it, and shown
    key : the site's private key; the one that its settings name if None
    app : the app that the site has looked through, whose checksum must be the study's
    """
    config, file = read_node(node), node.resolve()
    check_versions(study)
    private = Path(key or str(config.get("key") or "")).expanduser()
    own = PrivateKey.read(private).public
    names = [name for name, member in study.sites.items() if member.key == own]
    check(bool(names), "key must be that of a site of the study", f"another in '{private}'")
    if app is not None and app_checksum(app) != study.app:
        raise InputError(f"app must be the study's, got another in '{app}'")
    lines = file.read_text("utf-8").splitlines()
    pinned = {"study": str(path.absolute()), "study-sha256": study.checksum, "key": str(private.absolute())}
    for name, value in pinned.items():
        lines = _with_line(lines, name, f"{name} = {json.dumps(value, ensure_ascii=False)}")
    text = "\n".join(lines) + "\n"
    try:
        is_right = tomllib.loads(text) == {**tomllib.loads(file.read_text("utf-8")), **pinned}
    except ValueError:
        is_right = False
    if not is_right:
        raise InputError(
            f"node must be a file whose study, study-sha256 and key are lines of their own, got '{node}'"
        )
    mode = stat.S_IMODE(file.stat().st_mode)
    write_bytes(file, text.encode())
    file.chmod(mode)
    folder = SiteFolder(state_folder(read_node(node))).path
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
