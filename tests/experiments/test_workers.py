"""Tasks over processes: what comes back from them, and what becomes of those that fail."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import fairfate
from fairfate.errors import InputError, ProcessDiedError
from fairfate.experiments import workers as pool
from fairfate.experiments.workers import cores, in_background, run_tasks


class OddError(OSError):
    """Of a kind that cannot be made again from its text, as some libraries' errors are."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} {number}")


class OddInputError(InputError):
    """Likewise."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} {number}")


def add(payload: int, task: int, report: Callable[[float], None]) -> int:
    report(1)
    report(0.5)
    return payload + task


def fail(payload: str, task: int, report: Callable[[float], None]) -> Any:
    """Fail in the second task, as the payload says."""
    if task != 2:
        return task
    if payload == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if payload == "stopped":
        os.kill(os.getpid(), signal.SIGTERM)
    if payload == "ended":
        os._exit(3)
    raise {
        "input": InputError("rows must be >= 1, got 0"),
        "odd input": OddInputError(5, "rows"),
        "file": FileNotFoundError(2, "No such file", "people.csv"),
        "odd file": OddError(5, "no reply"),
        "memory": MemoryError(),
        "other": KeyError("a"),
        "exit": SystemExit(0),
    }[payload]


def outcome(payload: str) -> dict[int, Any]:
    return dict(run_tasks(fail, payload, [1, 2, 3], 2, lambda amount: None))


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_and_progress_do_not_depend_on_processes(jobs: int) -> None:
    messages: list[float] = []
    result = dict(run_tasks(add, 10, [1, 2, 3, 4], jobs, messages.append))
    assert result == {0: 11, 1: 12, 2: 13, 3: 14}
    assert messages == sorted(messages)
    assert messages[-1] == 6
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("payload", "kind", "message"),
    [
        ("input", InputError, "rows must be >= 1, got 0"),
        ("odd input", InputError, "rows 5"),
        ("file", FileNotFoundError, "No such file"),
        ("odd file", OSError, "no reply 5"),
        ("memory", MemoryError, "MemoryError"),
        ("other", RuntimeError, "KeyError: 'a'"),
        ("exit", RuntimeError, "SystemExit: 0"),
        ("ended", ProcessDiedError, "exit code 3"),
    ],
)
def test_an_error_of_a_process_is_raised_here(payload: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as error:
        outcome(payload)
    assert type(error.value) is kind  # which the command line knows, with its exit code
    if kind in (RuntimeError, OSError):
        assert "Traceback" in error.value.__notes__[0]  # of the process
    if payload == "input":
        fields = error.value.argument, error.value.rule, error.value.value  # type: ignore[attr-defined]
        assert fields == ("rows", "be >= 1", "0")
    if payload == "file":
        assert error.value.filename == "people.csv"
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"partition": "iid"}, ("partition", "be random, ", "'iid'")),
        ({"validation_from": "site"}, ("validation-from", "be server or clients", "'site'")),
        ({"rounds": 0}, ("rounds", "be >= 1", "0")),
    ],
)
def test_fields_of_an_error_survive_pickling(options: dict[str, Any], fields: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as error:
        fairfate.run(**{"data": "synthetic"} | options)
    for same in (error.value, error.value.plain(), pickle.loads(pickle.dumps(error.value))):
        assert (same.argument, same.value) == fields[::2]
        assert same.rule.startswith(fields[1])
        assert str(same) == str(error.value)


def test_unknown_strategy_is_an_error_with_fields() -> None:
    with pytest.raises(InputError, match="did you mean 'fedavg'") as error:
        fairfate.run(data="synthetic", strategies="fedavgg")
    assert (error.value.argument, error.value.value) == ("strategy", "'fedavgg'")
    assert error.value.rule.startswith("be one of ")


def test_sentence_about_a_state_has_no_fields() -> None:
    error = InputError("No results yet; try again in a few seconds.")
    assert (error.argument, error.rule, error.value) == ("", "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_process_that_is_killed_is_named_by_its_signal() -> None:
    with pytest.raises(ProcessDiedError, match=r"killed by signal 9 \(SIGKILL\), possibly out of memory"):
        outcome("killed")
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_process_that_is_stopped_from_outside_is_named_too() -> None:
    with pytest.raises(ProcessDiedError, match=r"killed by signal 15 \(SIGTERM\)\)\. Finished work is kept"):
        outcome("stopped")
    assert not multiprocessing.active_children()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_that_comes_while_processes_start_counts_once_they_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    class Interrupted(pool._Worker):
        def __init__(self, work: Any, payload: Any) -> None:
            super().__init__(work, payload)
            begun.append(len(multiprocessing.active_children()))
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pool, "_Worker", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        dict(run_tasks(add, 10, [1, 2, 3], 2, lambda amount: None))
    assert begun == [1, 2]  # the second one was started all the same
    assert not multiprocessing.active_children()


def test_tasks_can_be_done_from_another_thread() -> None:
    results: list[dict[int, Any]] = []
    thread = threading.Thread(
        target=lambda: results.append(dict(run_tasks(add, 10, [1, 2, 3], 2, lambda amount: None)))
    )
    thread.start()
    thread.join(120)
    assert results == [{0: 11, 1: 12, 2: 13}]


def test_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 7}, raising=False)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on other systems
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_closed_pipe_leaves_no_process_behind() -> None:
    finished = run_tasks(add, 10, list(range(50)), 2, lambda amount: None)
    next(finished)
    assert multiprocessing.active_children()
    finished.close()
    assert not multiprocessing.active_children()


def test_an_error_in_telling_progress_ends_the_processes() -> None:
    def stop(amount: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dict(run_tasks(add, 10, [1, 2, 3], 2, stop))
    assert not multiprocessing.active_children()


def test_task_in_the_background_returns_its_result_and_leaves_no_process() -> None:
    with in_background(add, 10, 5) as result:
        assert multiprocessing.active_children()
        assert result() == 15
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("how", "error"), [("input", InputError), ("killed", ProcessDiedError)])
def test_task_that_fails_in_the_background_raises(how: str, error: type[Exception]) -> None:
    with pytest.raises(error), in_background(fail, how, 2) as result:
        result()
    assert not multiprocessing.active_children()
