"""Compiled kernels on disk: only in a folder of the user's alone, and never damaged ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
CODE = """
import numpy as np
from fairfate.models.shared_kernels import batch_order
out = np.zeros(6, dtype=np.int64)
batch_order(np.uint64(7), 1, 2, 3, 2, out)
print(out.tolist(), sum(batch_order.stats.cache_hits.values()), sum(batch_order.stats.cache_misses.values()))
"""


def call(cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rsplit(maxsplit=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache with what a first call has left."""
    _, hits, misses = call(tmp_path)
    assert (hits, misses) == ("0", "1")
    return tmp_path / "fairfate" / "compiled"


def test_what_was_compiled_is_kept_where_only_the_user_can_write(folder: Path, tmp_path: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert call(tmp_path)[1:] == ["1", "0"]


def test_a_damaged_file_is_compiled_again(folder: Path, tmp_path: Path) -> None:
    expected = call(tmp_path)[0]
    for damage in (lambda b: b[:100], lambda b: b"", lambda b: b[:500] + bytes([b[500] ^ 1]) + b[501:]):
        for file in folder.iterdir():
            file.write_bytes(damage(file.read_bytes()))
        assert call(tmp_path) == [expected, "0", "1"]
        assert call(tmp_path) == [expected, "1", "0"]


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_not_read(folder: Path, tmp_path: Path, mode: int) -> None:
    folder.chmod(mode)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert call(tmp_path)[1:] == ["0", "1"]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_link_to_somewhere_else_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert call(tmp_path)[1:] == ["0", "1"]


def test_nothing_is_written_into_the_package() -> None:
    import fairfate

    assert not list(Path(fairfate.__file__).parent.rglob("*.nb[ic]"))
