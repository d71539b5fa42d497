"""A site joins a federation: it signs off a study, and starts Flower's SuperNode under the guard."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairfate.errors import InputError, check
from fairfate.flower.app.gate import Gate, check_versions, state_folder
from fairfate.flower.app.guard import CHECK, PASSED, app_checksum
from fairfate.flower.app.make_study import changes_from
from fairfate.flower.app.node import check_keys, data_file, read_node
from fairfate.flower.app.site_state import SiteFolder
from fairfate.flower.sealing import PrivateKey
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


QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower calls nobody, and installs nothing."""
AGAIN, PAUSE = 120.0, 5.0
"""Seconds for which a SuperNode that was killed tries to come back, and between two tries: Flower's server
refuses it until it has noticed that the old one is gone, which takes about a minute."""
_RUNNING = "running"
_OWN = ("--isolation", "--node-config", "--trusted-entities", "--insecure")
"""Options of the SuperNode that nobody may give; it takes the beginning of one for the whole."""
_REFUSE = "#!/bin/sh\necho 'this site runs only the app of its study' >&2\nexit 1\n"


def prepare(node: Path) -> tuple[Gate, dict[str, str]]:
    """Check everything that a site needs, write the guard; the environment that the SuperNode must have.

    InputError for anything that would let another app run, or have the site refuse its own study's questions.
    """
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType

    config = read_node(node)
    check_keys(config)
    file = data_file(config)
    if not file.is_file():
        raise InputError(f"data must be a file, got '{file}' (no such file)")
    gate = Gate(config)
    check_versions(gate.study)
    home = gate.folder.path
    guard, apps = home / "guard", home / "apps"
    shutil.rmtree(guard, ignore_errors=True)
    for folder in (guard, apps):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in apps.glob(".*"):
        shutil.rmtree(left, ignore_errors=True)
    study = Path(str(config["study"])).expanduser().resolve()
    words = [sys.executable, "-P", "-m", "fairfate.flower.app.guard", str(study), str(config["study-sha256"])]
    script = f'#!/bin/sh\nexec {shlex.join([*words, str(apps.resolve())])} "$@"\n'
    for task, command in TASK_TYPE_TO_COMMAND.items():
        path = guard / command
        path.write_text(script if task == TaskType.CLIENT_APP else _REFUSE)
        path.chmod(0o700)
    environment = {**os.environ, **QUIET, "FLWR_HOME": str(home / "flwr-home")}
    environment["PATH"] = f"{guard.resolve()}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    check_guard(guard, list(TASK_TYPE_TO_COMMAND.values()), environment)
    return gate, environment


def check_guard(guard: Path, commands: list[str], environment: dict[str, str]) -> None:
    """InputError unless the guard is what Flower will find and run for every kind of task."""
    for command in commands:
        program = shutil.which(command, path=environment["PATH"])
        if program is None or Path(program).resolve() != (guard / command).resolve():
            raise InputError(f"guard must be what Flower runs as {command}, got '{program}'")
    try:
        finished = subprocess.run(
            ["flwr-clientapp", CHECK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"guard must be a program that can run, got {error}") from None
    if finished.stdout != PASSED:
        raise InputError(
            f"guard must answer that it guards this site, got {finished.stderr.strip()[-300:]!r}"
        )


def launch(node: Path, words: list[str]) -> int:
    """Run a site until it is stopped; returns the SuperNode's exit code.

    Parameters
    ----------
    node : the site's node-config
    words : arguments of ``flower-supernode``, but for the node-config
    """
    for word in words:
        option = word.partition("=")[0]
        if option.startswith("--") and any(own.startswith(option) or option == own for own in _OWN):
            raise InputError(f"{option} must be left out, since fairfate sets it, got it")
    os.umask(0o077)  # nobody else reads what this site writes
    gate, environment = prepare(node)
    command = [
        str(Path(sys.executable).parent / "flower-supernode"),
        *words,
        "--node-config",
        str(node.resolve()),
    ]
    marker = gate.folder.path / _RUNNING
    end = time.monotonic() + (AGAIN if marker.exists() else 0.0)
    marker.touch(mode=0o600)
    with _Child() as child:
        while True:
            code = child.run(command, environment)
            if code == 0 or child.is_stopped or time.monotonic() > end:
                break
            sys.stderr.write("The server has not yet noticed that the last SuperNode ended; trying again\n")
            time.sleep(PAUSE)
    marker.unlink(missing_ok=True)
    return code


class _Child:
    """A process that gets our signals and does not outlive us, nor do its own children."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> _Child:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        self.is_stopped = True
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        self.process = subprocess.Popen(
            command, env=environment, start_new_session=True, preexec_fn=_die_with_parent
        )
        try:
            code = self.process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # children that outlive their parent
        return 128 - code if code < 0 else code


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
