"""Compiled kernels on disk: only in a folder of the user's alone, and never damaged ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fairfate
from fairfate.experiments.workers import run_tasks
from fairfate.models.kernels.compile import COMPILED as COMPILED_HERE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
CODE = """
import numpy as np
from fairfate.models.kernels.batches import batch_order
from fairfate.models.kernels.compile import COMPILED
out = np.zeros(6, dtype=np.int32)
batch_order(np.uint64(7), 1, 2, 3, 2, out)
print(out.tolist(), COMPILED[0] if COMPILED else "read")
"""
COMPILED, READ = "batch_order", "read"


def start(cache: Path, code: str = CODE, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> list[str]:
    message, _ = process.communicate()
    assert process.returncode == 0
    return message.rsplit(maxsplit=1)


def call(cache: Path, code: str = CODE, **environment: str) -> list[str]:
    return end(start(cache, code, **environment))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with what a first call has left."""
    assert call(tmp_path)[1] == COMPILED
    return tmp_path / "fairfate" / "compiled"


def test_what_was_compiled_is_kept_where_only_the_user_can_write(folder: Path, tmp_path: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert call(tmp_path)[1] == READ


def test_a_damaged_file_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    expected = call(tmp_path)[0]
    for damage in (lambda b: b[:100], lambda b: b"", lambda b: b[:500] + bytes([b[500] ^ 1]) + b[501:]):
        for file in folder.iterdir():
            file.write_bytes(damage(file.read_bytes()))
        assert call(tmp_path) == [expected, COMPILED]
        assert call(tmp_path) == [expected, READ]


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_not_read(folder: Path, tmp_path: Path, mode: int) -> None:
    folder.chmod(mode)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert call(tmp_path)[1] == COMPILED
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_link_to_somewhere_else_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert call(tmp_path)[1] == COMPILED


def test_without_a_folder_that_can_be_written_it_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way of the folder")
    for _ in range(2):
        assert call(tmp_path / "file")[1] == COMPILED


def test_a_full_disk_costs_the_copy_only(tmp_path: Path) -> None:
    full = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    )
    expected, how = call(tmp_path, full + CODE)
    assert how == COMPILED
    assert call(tmp_path) == [expected, COMPILED]
    assert call(tmp_path) == [expected, READ]
    assert not list((tmp_path / "fairfate/compiled").glob("*.tmp.*"))


def test_each_processor_has_machine_code_of_its_own(folder: Path, tmp_path: Path) -> None:
    expected = call(tmp_path)[0]
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert call(tmp_path, **other) == [expected, COMPILED]
    assert call(tmp_path, **other) == [expected, READ]
    assert call(tmp_path) == [expected, READ]


def test_after_an_edit_of_any_source_it_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    package = tmp_path / "edited" / "fairfate"
    shutil.copytree(Path(fairfate.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    edited = {"PYTHONPATH": str(package.parent)}
    assert call(tmp_path, **edited)[1] == READ  # the same sources elsewhere
    for name in ("kernels/simd.py", "rows.py"):
        with (package / "models" / name).open("a") as file:
            file.write("\n")
        assert call(tmp_path, **edited)[1] == COMPILED
        assert call(tmp_path, **edited)[1] == READ
    assert call(tmp_path)[1] == READ


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    together = [start(tmp_path) for _ in range(3)]
    results = [end(process) for process in together]
    assert sorted(how for _, how in results) == [COMPILED, READ, READ]
    assert len({numbers for numbers, _ in results}) == 1


def test_process_killed_while_compiling_does_not_block_others(tmp_path: Path) -> None:
    code = CODE.replace(
        "out = ",
        "import time\n"
        "batch_order._compiled.compile = lambda types: (print('holding', flush=True), time.sleep(600))\n"
        "out = ",
    )
    holder = start(tmp_path, code)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    waiting = start(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(3)
    holder.kill()
    holder.communicate()
    assert end(waiting)[1] == COMPILED
    assert call(tmp_path)[1] == READ


def compiled_by_a_run(payload: None, seed: int, report: Callable[[float], None]) -> list[str]:
    """What a process of ours compiles for a run; the work of one."""
    fairfate.run(data="synthetic:rows=100", rounds=2, seeds=(seed,), jobs=1, strategies=("fedavg",))
    return list(COMPILED_HERE)


def test_processes_of_a_run_compile_each_loop_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loops = ["_count_positives", "_margins", "_train_singly"]
    for expected in (loops, []):
        result = dict(run_tasks(compiled_by_a_run, None, [1, 2], 2, lambda amount: None))
        assert sorted(result[0] + result[1]) == expected


def test_nothing_is_written_into_the_package() -> None:
    assert not list(Path(fairfate.__file__).parent.rglob("*.nb[ic]"))
