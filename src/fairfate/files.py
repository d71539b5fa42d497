"""Files that are whole or not there: written under a temporary name, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def replacing(path: str | Path, name: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name once the block has succeeded.

    Parameters
    ----------
    path : the file to write
    name : makes the final name from what was written, if it depends on that
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    temporary = Path(written)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target if name is None else target.with_name(name(temporary)))
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def clear_temporary(folder: Path, keep: str = "") -> None:
    """Remove what a killed process was writing, but for a file to keep."""
    for path in folder.glob(".*") if folder.is_dir() else ():
        if path.is_file() and path.name != keep:
            path.unlink()


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file, or leave it as it was."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
