"""``watch``: a run that goes on, in the browser; and ``run --live``, which starts it."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fairfate.cli.parameters import Whole, option, whole
from fairfate.cli.screen import console, say
from fairfate.errors import InputError, Stopped

GRACE, MAKING = 3.0, 20.0
"""Seconds that those who watch have to fetch the last page, and that making it may take on a busy machine."""


def watch(
    run: Annotated[Path, typer.Argument(help="folder of a run, which may not be there yet")],
    port: Annotated[Whole, option("port to listen at (default: one that is free)", whole)] = None,
    host: Annotated[str, option("address to listen at (default: 127.0.0.1)")] = "127.0.0.1",
    allow_remote: Annotated[bool, option("allow a --host that other machines can reach")] = False,
    open_browser: Annotated[
        bool, typer.Option("--open", help="open the page in the browser", show_default=False)
    ] = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show a run in the browser while it goes on; nothing is written, and the run goes first."""
    from fairfate.report.watch import Watch, folder_stamp, is_finished

    if run.exists() and not run.is_dir():
        raise InputError(f"run must be a folder, got '{run}' (a file)")
    if parent is None and not run.exists() and not run.absolute().parent.is_dir():
        raise InputError(f"run must be a folder, or one to come in a folder that exists, got '{run}'")

    def render() -> str:
        page: Any = importlib.import_module("fairfate.report.page")  # loads much, once somebody watches
        found: str = page.render([run], live=True)
        return found

    stamp, finished = partial(folder_stamp, run), partial(is_finished, run)
    where: dict[str, Any] = {"host": host, "port": port or 0, "allow_remote": allow_remote}
    server = Watch(render, stamp, finished, **where, steps_back=True)
    try:
        with _opened(server.address if open_browser else None):
            _announce(run, server.address, alone=parent is None)
            server.serve(until=lambda: parent is not None and os.getppid() != parent)
    except Stopped as stopped:
        if parent is not None and stopped.number == signal.SIGTERM:
            server.farewell(GRACE, MAKING)
        elif stopped.number != signal.SIGINT:
            raise
    finally:
        server.close()


def _announce(run: Path, address: str, alone: bool) -> None:
    ending = "  (Ctrl-C ends watching, not the run)" if alone else ""
    console(soft_wrap=True).print(f"Watching {run} at {address}{ending}")
    if alone and not (run / "config.toml").exists():
        say(f"{run} {'holds no run' if run.exists() else 'is not there'} yet: waiting for it")
    sys.stdout.flush()
    if not alone:  # nobody listens any more
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)


@contextmanager
def _opened(address: str | None) -> Iterator[None]:
    """Open the browser by a file that only this user can read: all users can read commands."""
    if address is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="fairfate-") as folder:
        file = Path(folder) / "watch.html"
        file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={address}">')
        if not webbrowser.open(file.as_uri()):
            say("Note: no browser was found")
        yield


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Watch a run from a process of its own while the block, which is the run, goes on.

    That process ends soon after the block has: those who watch may fetch the last page while the results are
    printed, and this process ends after it. If the block fails, it ends at once.
    """
    here = not sys.path or sys.path[0] in ("", os.getcwd())
    words = [sys.executable, *([] if here else ["-P"]), "-m", "fairfate", "watch", str(folder)]
    child = subprocess.Popen(
        [*words, "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C is for the run; a session of its own would share the processor with the run
        text=True,
        errors="replace",
    )
    try:
        assert child.stdout is not None
        with child.stdout as told:
            line = told.readline().strip()
        say(
            line
            if line.startswith("Watching ")
            else f"Note: the run cannot be watched: {line or 'no answer'}"
        )
        yield
    except BaseException:
        _end(child, 0.0)
        raise
    child.terminate()
    atexit.register(_end, child, MAKING + GRACE + 2)


def _end(child: subprocess.Popen[str], seconds: float) -> None:
    """Give a process some time to end by itself."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
    child.kill()
    child.wait()
