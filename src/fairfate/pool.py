"""Tasks over processes: with progress, interruptible, and the same results for any number of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from fairfate.errors import InputError

Report = Callable[[float], None]
"""Called by a task with the work it has just finished."""
Progress = Callable[[float], None]
"""Called with all work finished so far."""
Work = Callable[[Any, Any, Report], Any]
"""``(payload, task, report) -> result``; a module's own function, so that processes find it."""


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_tasks(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Iterator[tuple[int, Any]]:
    """Do all tasks; yields each one's number and result as it ends.

    Parameters
    ----------
    work : what to do
    payload : what all tasks share; sent to each process once
    tasks : what to do it with
    jobs : number of processes; with 1, everything happens in this one
    progress : told now and then how much work is done
    """
    runner = _here if jobs == 1 or len(tasks) <= 1 else _elsewhere
    yield from runner(work, payload, tasks, min(jobs, len(tasks)), progress)


def _here(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Iterator[tuple[int, Any]]:
    done = 0.0

    def report(amount: float) -> None:
        nonlocal done
        done += amount
        progress(done)

    for number, task in enumerate(tasks):
        yield number, work(payload, task, report)


_PROCESS: dict[str, Any] = {}


def _start(work: Work, payload: Any, counter: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _PROCESS.update(work=work, payload=payload, counter=counter)


def _do(task: Any) -> Any:
    counter = _PROCESS["counter"]

    def report(amount: float) -> None:
        with counter.get_lock():
            counter.value += amount

    return _PROCESS["work"](_PROCESS["payload"], task, report)


def _elsewhere(
    work: Work, payload: Any, tasks: Sequence[Any], jobs: int, progress: Progress
) -> Iterator[tuple[int, Any]]:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("d", 0.0)
    with _pool(jobs, context, (work, payload, counter)) as pool:
        with _no_interrupt():  # half-started processes would die with a traceback
            waiting: dict[Future[Any], int] = {
                pool.submit(_do, task): number for number, task in enumerate(tasks)
            }
        while waiting:
            finished, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            progress(counter.value)
            for future in finished:
                yield waiting.pop(future), future.result()


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back until the block is over. Processes started in it never see it: the parent decides.

    They inherit this thread's mask; the handler is for the parent's other threads, which may be the ones
    to receive the signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if masks else set()
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if seen:
        raise KeyboardInterrupt


@contextmanager
def _pool(jobs: int, context: Any, arguments: tuple[Any, ...]) -> Iterator[ProcessPoolExecutor]:
    """A pool whose processes do not outlive an interruption or an error."""
    pool = ProcessPoolExecutor(jobs, context, _start, arguments)
    try:
        yield pool
    except BrokenProcessPool:
        pool.shutdown(wait=True, cancel_futures=True)
        raise InputError(
            "jobs must be 1 in a script without the guard if __name__ == '__main__':, got more; with it,"
            " a process died, perhaps for want of memory, and fewer jobs may help. Finished work is kept"
        ) from None
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()
