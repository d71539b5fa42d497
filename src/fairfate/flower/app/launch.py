"""Starts a site: Flower's SuperNode, after making sure that the guard is what it will run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fairfate.errors import InputError
from fairfate.flower.app.check import read_node
from fairfate.flower.app.gate import Gate, check_versions
from fairfate.flower.app.guard import CHECK, PASSED
from fairfate.flower.app.node import check_keys, data_file

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
_REFUSE = "#!/bin/sh\necho 'this site runs nothing but the app of its study' >&2\nexit 1\n"


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
        found = shutil.which(command, path=environment["PATH"])
        if found is None or Path(found).resolve() != (guard / command).resolve():
            raise InputError(f"guard must be what Flower runs as {command}, got '{found}'")
    try:
        done = subprocess.run(
            ["flwr-clientapp", CHECK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"guard must be a program that can run, got {error}") from None
    if done.stdout != PASSED:
        raise InputError(f"guard must answer that it guards this site, got {done.stderr.strip()[-300:]!r}")


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
            raise InputError(f"{option} must be left out: a site has its own, got it")
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
            sys.stderr.write("Not let in yet: the server still waits for the SuperNode that was killed\n")
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
