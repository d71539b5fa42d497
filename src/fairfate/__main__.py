"""The command: ``fairfate``, or ``python -m fairfate``.

Signals are taken care of before anything large is imported.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from fairfate.errors import Stopped, shown

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP end it alike, and finished work is kept."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants SIGHUP to be
            signal.signal(number, _stop)
    sys.unraisablehook = _again
    gc.set_threshold(100_000, 20, 100)  # imports make many objects that stay: looking through them takes long
    code = 0
    try:
        from fairfate.cli.commands import run_command

        code = run_command()
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except Stopped as stopped:
        sys.stderr.write(shown(f"Interrupted. {stopped.advice}".strip()) + "\n")
        code = 128 + stopped.number  # as shells have it
    except BrokenPipeError:  # nobody reads on, as with | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        _ignore_signals()
    gc.freeze()  # the end of the process frees its memory, and need not look for garbage first
    sys.exit(code)


def _stop(number: int, frame: FrameType | None) -> None:
    _ignore_signals()  # one is enough
    raise Stopped(number)


def _again(lost: sys.UnraisableHookArgs) -> None:
    """A signal that came where Python drops exceptions, as in an import's callback: stop a moment later."""
    error = lost.exc_value
    if not isinstance(error, Stopped):
        sys.__unraisablehook__(lost)
    elif hasattr(signal, "setitimer"):  # not on Windows
        signal.signal(signal.SIGALRM, lambda _, frame: _stop(error.number, frame))
        signal.setitimer(signal.ITIMER_REAL, 0.001)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
