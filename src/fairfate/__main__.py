"""The command: ``fairfate``, or ``python -m fairfate``.

Signals are taken care of before anything large is imported.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

from fairfate.errors import Stopped, is_out_of_memory, shown

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
        from fairfate.cli.main import run_command

        code = run_command()
        if sys.stdout is not None:  # it may be closed
            sys.stdout.flush()
    except Stopped as stopped:
        _say(shown(f"Interrupted. {stopped.advice}".strip()))
        code = 128 + stopped.number  # as shells have it
    except BrokenPipeError:  # nobody reads on, as with | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if is_out_of_memory(error):
            _say("Error: not enough memory. Finished work is kept.")
        elif not isinstance(error, OSError):  # of which only a message that cannot be written comes this far
            raise
        code = 2
    finally:
        _ignore_signals()
    gc.freeze()  # the end of the process frees its memory, and need not look for garbage first
    sys.exit(code)


def _say(message: str) -> None:
    with suppress(OSError):  # a file at its limit, or a full disk
        sys.stderr.write(f"{message}\n")


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
