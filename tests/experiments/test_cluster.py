"""Jobs on a Dask cluster: the same bytes as here, whatever happens to its workers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from command import Outcome
from fairfate.errors import InputError, ProcessDiedError
from fairfate.experiments.cluster import DaskExecutor, check_address, check_versions
from fairfate.experiments.config import expand
from fairfate.experiments.sweep import sweep

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.slow
PLUGIN = """
from fairfate.strategies import ModelState, Strategy, register

@register("half_a_step", "half of the mean update", "this test")
def half_a_step(setup):
    def aggregate(state, cohort):
        return state._replace(params=state.params + 0.5 * cohort.mean(cohort.num_examples))
    return Strategy(ModelState, aggregate)
"""


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, Callable[[str], subprocess.Popen[bytes]]]]:
    """A scheduler's address, and what starts a worker with a folder of its own."""
    file, processes = tmp_path / "scheduler.json", []

    def start(*words: str, folder: str) -> subprocess.Popen[bytes]:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]]
        with (tmp_path / f"{folder}.log").open("ab") as log:
            processes.append(subprocess.Popen(command, cwd=tmp_path / folder, stdout=log, stderr=log))
        return processes[-1]

    where = ["--host", "127.0.0.1", "--port", "0"]
    start("dask_scheduler", *where, "--no-dashboard", "--scheduler-file", str(file), folder="scheduler")
    while not file.exists():
        time.sleep(0.1)
    with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
        address = client.scheduler.address

    def worker(name: str) -> subprocess.Popen[bytes]:
        words = ["--nthreads", "1", "--no-dashboard", "--no-nanny", "--name", name, "--host", "127.0.0.1"]
        return start("dask_worker", address, *words, folder=name)

    yield address, worker
    for process in processes:
        process.kill()
        process.wait()


def test_a_sweep_with_killed_workers_has_the_bytes_of_one_process(scheduler: Any, tmp_path: Path) -> None:
    address, worker = scheduler
    (tmp_path / "half_a_step.py").write_text(PLUGIN)
    values = {
        "data": "synthetic:rows=300",
        "plugin": [str(tmp_path / "half_a_step.py")],
        "strategy": ["fedavg", "fedmom:beta=0.8|0.9", "half_a_step"],
        "partition": ["random", "dirichlet:1"],
        "rounds": 4,
        "seeds": list(range(1, 9)),
    }
    workers = [worker("a"), worker("b")]
    sweep(expand(values), tmp_path / "here", jobs=1)
    finished: list[float] = []

    def progress(amount: float) -> None:
        finished.append(amount)
        if len(finished) in (2, 6):
            workers[-1].kill()
            workers.append(worker(f"c{len(finished)}"))

    with distributed.Client(address, set_as_default=False) as client:
        client.wait_for_workers(2)
        executor = DaskExecutor(client)
        sweep(expand(values), tmp_path / "there", executor=executor, progress=progress)
    assert len(finished) == 16
    assert everything(tmp_path / "there") == everything(tmp_path / "here")


def test_any_executor_of_the_standard_library_serves(tmp_path: Path) -> None:
    values = {"data": "synthetic:rows=300", "strategy": "fedavg", "rounds": 2, "seeds": [1, 2, 3]}
    sweep(expand(values), tmp_path / "here", jobs=1)
    with ThreadPoolExecutor(1) as executor:
        sweep(expand(values), tmp_path / "there", executor=executor)
    assert everything(tmp_path / "there") == everything(tmp_path / "here")


def test_a_run_starts_a_cluster_here(fairfate: Callable[..., Outcome], tmp_path: Path) -> None:
    words = ["--data", "synthetic:rows=300", "--rounds", "3", "--seeds", "2", "--no-baselines", "--no-report"]
    assert fairfate("run", *words, "--jobs", "1", "--out", "here").code == 0
    outcome = fairfate("run", *words, "--cluster", "dask", "--out", "there")
    assert outcome.code == 0, outcome.err
    assert everything(tmp_path / "there") == everything(tmp_path / "here")


@pytest.mark.parametrize("address", ["tcp://example.org:8786", "tcp://10.0.0.1:8786", "http://a", "nonsense"])
def test_an_address_that_others_could_listen_to_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="cluster"):
        check_address(address)
    check_address("tls://example.org:8786")
    check_address("tcp://127.0.0.1:8786")


def test_workers_with_another_version_are_refused() -> None:
    with pytest.raises(InputError, match="fairfate"):
        check_versions({"a": "0.0.1"})
    with pytest.raises(InputError, match="workers"):
        check_versions({})


def test_command_without_dask_says_what_to_install(
    fairfate: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    outcome = fairfate("run", "--cluster", "dask", "--out", "run")
    assert outcome.code == 2
    assert 'pip install "fairfate[cluster]"' in outcome.err
    assert not Path("run").exists()


class _Broken(ThreadPoolExecutor):
    """Its workers die with the first job, as a pool's do for want of memory."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(BrokenProcessPool("a process was killed"))
        return future


def test_a_pool_whose_workers_die_ends_the_sweep_in_one_sentence(tmp_path: Path) -> None:
    values = {"data": "synthetic:rows=300", "strategy": "fedavg", "rounds": 2, "seeds": [1]}
    with _Broken(1) as executor, pytest.raises(ProcessDiedError, match="Finished work is kept"):
        sweep(expand(values), tmp_path / "out", executor=executor)
