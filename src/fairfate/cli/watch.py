"""``watch``: a run that is training, in the browser; and ``run --live``, which starts it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from fairfate.cli.parameters import Whole, option, whole
from fairfate.cli.screen import console, say
from fairfate.errors import InputError, Stopped


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
    """Show a run in the browser as it trains; nothing is written, and the run goes first."""
    from fairfate.report.watch import LivePage, WatchServer

    if not run.is_dir() and (run.exists() or (parent is None and not run.absolute().parent.is_dir())):
        raise InputError(f"run must be a folder, or one to come in a folder that exists, got '{run}'")

    has_ended = threading.Event()
    if parent is not None:
        signal.signal(signal.SIGTERM, lambda *_: has_ended.set())  # from `watched`; cuts off no answer
    with WatchServer(LivePage(run), host, port or 0, allow_remote) as server, TemporaryDirectory() as private:
        console(soft_wrap=True).print(f"Watching {run} at {server.url}  (Ctrl-C ends watching, not the run)")
        sys.stdout.flush()
        if open_browser:
            file = Path(private) / "watch.html"  # only this user can read it; command lines all users can
            file.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={server.url}">')
            webbrowser.open(file.as_uri())
        try:
            server.serve(until=lambda: has_ended.is_set() or (parent is not None and os.getppid() != parent))
        except Stopped as stopped:
            if stopped.number != signal.SIGINT and parent is None:
                raise
        if has_ended.is_set():
            server.serve_last_page()


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Watch a run from a process of its own while the block, which is the run, continues.

    That process ends soon after the block, once those who watch have the last page; at once if it fails.
    """
    here = not sys.path or sys.path[0] in ("", os.getcwd())
    command = [sys.executable, *([] if here else ["-P"]), "-m", "fairfate", "watch", str(folder)]
    command += ["--parent", str(os.getpid())]
    # Ctrl-C is for the run, so a group of its own; a session would share the processor with the run
    child = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, process_group=0, encoding="utf-8")
    try:
        assert child.stdout is not None
        with child.stdout as output:
            line = output.readline().strip()
        failure = "" if line.startswith("Watching ") else "Note: the run cannot be watched: "
        say(failure + (line.partition("  (")[0] or "no answer"))
        yield
    except BaseException:
        child.kill()
        child.wait()
        raise
    child.terminate()
    atexit.register(child.wait)
