"""Commands that are killed at random moments, and what must be true afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

TOML = """
data = "synthetic:rows=400"
partition = ["random", "dirichlet:0.5"]
strategy = ["fedavg", "fair_fate:metric=sp|eo"]
seeds = 6
rounds = 12
"""
RUN = ["run", "--data", "synthetic:rows=400", "--rounds", "20", "--seeds", "8", "--out", "o"]
SWEEP = ["sweep", "mine.toml", "--out", "o"]


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def start(words: list[str], folder: Path, jobs: int) -> subprocess.Popen[str]:
    """A command in a session of its own."""
    (folder / "mine.toml").write_text(TOML)
    return subprocess.Popen(
        [sys.executable, "-m", "fairfate", *words, "--jobs", str(jobs)],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(words: list[str], folder: Path, jobs: int = 2) -> None:
    """Run a command to its end."""
    out, err = (process := start(words, folder, jobs)).communicate(timeout=120)
    assert process.returncode == 0, out + err


def members(session: int) -> list[int]:
    """The processes of a session, zombies aside."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(its_session) == session and state != "Z":
            results.append(int(entry.name))
    return results


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that do the work."""
    results = []
    for pid in members(process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in command:
            results.append(pid)
    return results


def kill(process: subprocess.Popen[str], whom: str, number: int, choose: random.Random) -> None:
    """Send a signal to the parent, to a worker, or to all."""
    try:
        if whom == "group":
            os.killpg(process.pid, number)
        elif whom == "worker":
            os.kill(choose.choice(workers(process) or [process.pid]), number)
        else:
            os.kill(process.pid, number)
    except ProcessLookupError:
        pass


def all_gone(process: subprocess.Popen[str], seconds: float = 2.0) -> bool:
    """Whether no process of the session is left after so long."""
    end = time.monotonic() + seconds
    while left := members(process.pid):
        if time.monotonic() > end:
            for pid in left:
                kill_quietly(pid)
            return False
        time.sleep(0.02)
    return True


def kill_quietly(pid: int) -> None:
    """A process that should have been gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def interrupt_randomly(
    words: list[str], folder: Path, whole: dict[str, bytes], tries: int, seed: int
) -> None:
    """Kill a command ``tries`` times: when, whom and how at random; and finish it now and then."""
    choose = random.Random(seed)
    begin = time.monotonic()
    finish(words, folder)
    longest = time.monotonic() - begin
    wipe(folder / "o")
    for number in range(tries):
        whom = choose.choice(["parent", "worker", "group"])
        how = choose.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
        process = start(words, folder, 2)
        moment = choose.uniform(0.1, 1.05) * longest
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            kill(process, whom, signal.SIGKILL if whom == "worker" else how, choose)
        text = f"try {number}: {signal.Signals(how).name} to {whom} after {moment:.2f} s"
        try:
            _, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"{text}: it hangs") from None
        assert all_gone(process), f"{text}: processes live on"
        assert "Traceback" not in err or how == signal.SIGKILL, f"{text}: {err}"
        if number % 3 == 2 or (folder / "o" / "summary.csv").exists():
            if (folder / "o" / "summary.csv").exists():  # killed in its last moment: the next start tidies up
                start(words, folder, 2).communicate(timeout=120)
            else:
                finish(words, folder)
            result = everything(folder / "o")
            odd = [name for name in {**whole, **result} if whole.get(name) != result.get(name)]
            assert not odd, f"{text}: {odd}"
            wipe(folder / "o")


def wipe(folder: Path) -> None:
    """Remove a folder."""
    shutil.rmtree(folder, ignore_errors=True)
