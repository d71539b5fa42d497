from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.storage import (
    LOCK,
    locked,
    read_arrays,
    remove_unfinished,
    replacing,
    write_arrays,
    write_bytes,
)

ARRAYS = {"w": np.arange(40, dtype=np.float32).reshape(5, 8), "n": np.array([3], dtype=np.int64)}
ABOUT = {"strategy": "fedavg", "features": ["age", "sex"], "number": 0.1}


def test_arrays_survive_a_write_and_a_read(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.safetensors", ARRAYS, ABOUT)
    arrays, about = read_arrays(tmp_path / "a.safetensors")
    assert about == ABOUT
    assert {name: array.tolist() for name, array in arrays.items()} == {
        n: a.tolist() for n, a in ARRAYS.items()
    }


def test_no_damaged_byte_goes_unnoticed(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    write_arrays(file, ARRAYS, ABOUT)
    whole, accepted, choose = file.read_bytes(), 0, random.Random(1)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << choose.randrange(8)
        file.write_bytes(damaged)
        try:
            read_arrays(file)
        except ValueError:
            continue
        accepted += 1
    assert accepted == 0
    for length in range(0, len(whole), 7):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r".+"):
            read_arrays(file)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_the_users_umask_is_respected(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_bytes(tmp_path / "inside" / "file", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "inside" / "file").stat().st_mode) == mode
    assert (tmp_path / "inside").stat().st_mode & umask == 0


@pytest.mark.slow
def test_every_file_of_a_run_and_of_a_new_app_is_private_under_umask_077(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    quick = "run --data synthetic:rows=200 --rounds 2 --seeds 1 --jobs 1 --out o"
    for command in (quick, "plot o", "flower init myfed"):
        words = f"umask 077; exec {sys.executable} -m fairfate {command}"
        subprocess.run(["bash", "-c", words], cwd=tmp_path, check=True, capture_output=True)
    made = [tmp_path / "o", tmp_path / "myfed"]
    paths = [path for folder in made for path in (folder, *folder.rglob("*"))]
    assert len(paths) > 20
    assert not [path for path in paths if path.stat().st_mode & 0o077]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", b"old")

    def fail() -> None:
        with replacing(tmp_path / "file") as temporary:
            temporary.write_bytes(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_only_our_own_unfinished_files_are_removed(tmp_path: Path) -> None:
    for name in (".gitignore", ".hidden.tmp", ".a.b.unfinished", "my.unfinished", LOCK):
        (tmp_path / name).write_text("")
    remove_unfinished(tmp_path, tmp_path / "nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".gitignore",
        ".hidden.tmp",
        LOCK,
        "my.unfinished",
    ]


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "o"
    with locked(folder):
        hold = "from fairfate.storage import locked; from pathlib import Path; import sys"
        take = f"{hold}\nwith locked(Path(sys.argv[1])): pass"
        other = [sys.executable, "-c", take, str(folder)]
        process = subprocess.run(other, capture_output=True, text=True, check=False)
        assert f"(held by process {os.getpid()} on " in process.stderr
    assert not folder.exists()
    assert subprocess.run(other, check=False).returncode == 0


def test_lock_of_a_killed_process_does_not_block_others(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("process 1 on moon since 1969-07-20")
    with locked(tmp_path):
        assert str(os.getpid()) in (tmp_path / LOCK).read_text()
    assert not (tmp_path / LOCK).exists()


def test_waiting_for_a_lock_ends(tmp_path: Path) -> None:
    taken = locked(tmp_path, seconds=0.3)
    with locked(tmp_path), pytest.raises(InputError, match="out must be a folder that no other run is using"):
        taken.__enter__()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such things there")
def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # stands for /dev/null, which root could replace
    with pytest.raises(InputError, match=r"out must be a file, got '.*pipe' \(neither a file nor a folder\)"):
        write_bytes(tmp_path / "pipe", b"a")
    assert (tmp_path / "pipe").is_fifo()


def test_a_name_as_long_as_the_system_takes_is_written(tmp_path: Path) -> None:
    path = tmp_path / f"{'x' * 251}.csv"
    write_bytes(path, b"a")
    assert path.read_bytes() == b"a"
