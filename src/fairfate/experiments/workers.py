"""Tasks over processes: with progress, interruptible, and the same results for any number of them.

Each process has a pipe of its own to this one and shares nothing with the others, so that any of them can
be killed at any moment without the others waiting for it. This process starts no threads.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from fairfate.errors import InputError, ProcessDiedError, is_out_of_memory, reason_of

Report = Callable[[float], None]
"""Called by a task with the work it has just finished."""
Progress = Callable[[float], None]
"""Called with all work finished so far."""
Work = Callable[[Any, Any, Report], Any]
"""``(payload, task, report) -> result``; a module's own function, so that processes find it."""

_NO_GUARD = 87
"""Exit code of a process whose script has no ``if __name__ == "__main__":``."""
_STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def end_if_imported() -> None:
    """End this process if it is one of ours that is importing the user's script, which lacks a guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_NO_GUARD)


def run_tasks(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Generator[tuple[int, Any]]:
    """Do all tasks; yields each one's number and result as it ends.

    Parameters
    ----------
    work : what to do
    payload : what all tasks share; sent to each process once
    tasks : what to do it with
    jobs : number of processes; with 1, everything happens in this one
    progress : called now and then with the work done so far
    """
    runner = _run_inline if runs_here(jobs, len(tasks)) else _run_parallel
    yield from runner(work, payload, tasks, min(jobs, len(tasks)), progress)


def runs_here(jobs: int, tasks: int) -> bool:
    """Whether `run_tasks` does so many tasks in this process."""
    return jobs == 1 or tasks <= 1


@contextmanager
def in_background(work: Work, payload: Any, task: Any) -> Iterator[Callable[[], Any]]:
    """Do a task in another process while this one continues; yields a function that waits for its result."""
    resource_tracker.ensure_running()
    with _uninterrupted():
        worker = _Worker(work, payload)
    worker.submit(0, task)

    def result() -> Any:
        while True:
            wait([worker.pipe])
            for kind, _, value in worker.read():
                if kind == "error":
                    raise value
                if kind == "result":
                    return value

    try:
        yield result
    finally:
        with _uninterrupted():
            worker.end()


def _run_inline(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Generator[tuple[int, Any]]:
    amount_done = 0.0

    def report(amount: float) -> None:
        nonlocal amount_done
        amount_done += amount
        progress(amount_done)

    for number, task in enumerate(tasks):
        yield number, work(payload, task, report)


def _run_parallel(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Generator[tuple[int, Any]]:
    waiting = list(enumerate(tasks))[::-1]
    amount_done, finished = 0.0, 0
    workers: list[_Worker] = []
    resource_tracker.ensure_running()  # now, since it would unblock signals below
    try:
        with _uninterrupted():  # half-started processes would die with a traceback
            workers += [_Worker(work, payload) for _ in range(jobs)]
        while finished < len(tasks):
            for worker in workers:
                if worker.idle and waiting:
                    worker.submit(*waiting.pop())
            ready = wait([worker.pipe for worker in workers], timeout=0.1)
            for worker in workers:
                for kind, number, value in worker.read() if worker.pipe in ready else ():
                    if kind == "error":
                        raise value
                    if kind == "progress":
                        amount_done += value
                    else:
                        finished += 1
                        yield number, value
            progress(amount_done)
    finally:
        with _uninterrupted():
            for worker in workers:
                worker.end()


class _Worker:
    """A process, and our end of its pipe."""

    def __init__(self, work: Work, payload: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, child_end = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(child_end, work, payload, os.getpid()), daemon=True
        )
        self.process.start()
        child_end.close()
        self.idle = True

    def submit(self, number: int, task: Any) -> None:
        """Send a task; a process that has died is noticed when its answer is read."""
        self.idle = False
        with suppress(OSError):
            self.pipe.send((number, task))

    def read(self) -> Iterator[tuple[str, int, Any]]:
        """What the process has to say: ``progress``, ``result`` or ``error``, the task's number, a value."""
        try:
            while self.pipe.poll():
                kind, number, value = self.pipe.recv()
                self.idle = kind == "result"
                yield kind, number, value
        except (EOFError, OSError):
            raise self._exit_reason() from None

    def _exit_reason(self) -> Exception:
        """Why the process is no more."""
        self.process.join(5)
        code = self.process.exitcode
        if code == _NO_GUARD:
            return InputError("jobs must be 1 in a script without the guard if __name__ == '__main__':")
        if code is not None and code < 0:
            if code == -signal.SIGTERM:
                time.sleep(2.0)  # perhaps we are being stopped as well: then that is what happened
            how = f"killed by signal {-code} ({signal.Signals(-code).name})"
            how += ", possibly out of memory: fewer jobs may help" if code == -signal.SIGKILL else ""
        else:
            how = f"exit code {code}"
        return ProcessDiedError(f"a process of the run died ({how}). Finished work is kept")

    def end(self) -> None:
        """Kill it, whatever it is doing: files are whole or not there."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, work: Work, payload: Any, parent: int) -> None:
    """What a process does: take tasks from its pipe until it is killed."""
    for number in _STOPPING:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    _die_with(parent)
    gc.set_threshold(100_000, 20, 100)  # what a seed records is many small objects that stay
    while True:
        try:
            number, task = pipe.recv()
        except EOFError:
            return
        try:
            answer = (
                "result",
                number,
                work(payload, task, lambda amount: pipe.send(("progress", 0, amount))),
            )
        except (Exception, SystemExit) as error:
            answer = ("error", number, _picklable(error))
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return


def _picklable(error: BaseException) -> Exception:
    """An error for another process: of a kind that it surely has, with where it came from."""
    if isinstance(error, InputError):
        return error.plain()
    failure: Exception = RuntimeError(reason_of(error))
    if is_out_of_memory(error):
        failure = MemoryError()
    elif isinstance(error, OSError):
        known = error.errno is not None
        failure = OSError(error.errno, error.strerror, error.filename) if known else OSError(str(error))
    failure.add_note("".join(traceback.format_exception(error)))
    return failure


def _die_with(parent: int) -> None:
    """End this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it was faster
            os._exit(1)
    watcher = threading.Thread(target=_watch, daemon=True)
    watcher.start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back until the block is over. Processes started in it inherit that, and see none.

    The mask is for this thread and its children; the handlers are for other threads (of a numeric library),
    which may be the ones to receive a signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda received, frame: numbers.append(received))
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING) if masks else set()
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if numbers:
        signal.raise_signal(numbers[0])
