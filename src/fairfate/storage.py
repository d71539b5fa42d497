"""Files that are whole or not there, folders that one process at a time writes, files with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.errors import InputError, reason_of

LOCK = ".lock"
_UNFINISHED = ".unfinished"
_ABOUT, _CHECKSUM = "fairfate", "checksum"


def short_name(name: str, most: int = 140) -> str:
    """A part of a file's name that leaves room for the others: what is too long ends with its checksum.

    >>> short_name("adult"), len(short_name("x" * 300))
    ('adult', 140)
    """
    content = name.encode()
    if len(content) <= most:
        return name
    digest = hashlib.sha256(content).hexdigest()[:12]
    return f"{content[: most - 13].decode(errors='ignore')}-{digest}"


@contextmanager
def replacing(path: str | Path, name: Callable[[Path], str] | None = None) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its name once the block has succeeded.

    Parameters
    ----------
    path : the file to write
    name : makes the final name from what was written, if it depends on that
    """
    target = Path(path).absolute()  # of a relative one with a colon, Arrow thinks that it is an address
    if target.exists() and not target.is_file():  # a device would be gone for everybody, if root says so
        what = "a folder" if target.is_dir() else "neither a file nor a folder"
        raise InputError(f"out must be a file, got '{path}' ({what})")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{short_name(target.name)}.{secrets.token_hex(8)}{_UNFINISHED}")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less the user's umask
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target if name is None else target.with_name(name(temporary)))
    except OSError as error:
        if error.filename is None:  # as where a disk is full
            error.filename = str(path)
        raise
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_output(path: str | Path, *inputs: str | Path, force: bool = False) -> None:
    """Refuse to write over a file that exists, unless ``force`` is given, and always over an input.

    Parameters
    ----------
    path : the file that the user wants written
    inputs : files that are read for it, under whatever name
    force : whether an existing file may be replaced
    """
    file = Path(path)
    for read in inputs:
        if file.exists() and Path(read).exists() and os.path.samefile(file, read):
            raise InputError(f"out must be another file than the input, got '{path}', which is '{read}'")
    if not force and (file.is_file() or file.is_symlink()):
        raise InputError(f"out must be a new file unless force is given, got '{path}', which exists")


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file, or leave it as it was."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def sync_folder(path: Path) -> None:
    """Have files that were renamed in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def spreadsheet_text(text: str) -> str:
    """A text that no spreadsheet takes for a formula: what could begin one gets an apostrophe in front.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("-4.5 %"), spreadsheet_text("a=b")
    ("'=1+1", '-4.5 %', 'a=b')
    """
    return f"'{text}" if text.startswith(_FORMULA) and not _SIGNED.fullmatch(text) else text


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SIGNED = re.compile(r"[+-]|[+-] ?[$€£]?\d[\d.,' \u00a0]*(e[+-]?\d+)?[ \u00a0]?[%$€£]?", re.IGNORECASE)
"""A number, or a dash that stands for a missing one."""


def csv_text(frame: pd.DataFrame) -> str:
    """A frame as CSV for spreadsheets; its numbers stay what they are."""
    safe = frame.set_axis([spreadsheet_text(str(name)) for name in frame.columns], axis=1)
    for index in range(safe.shape[1]):
        if safe.dtypes.iloc[index].kind == "O":  # texts, categories and what is mixed
            cells = safe.iloc[:, index].tolist()
            if any(isinstance(cell, str) and cell.startswith(_FORMULA) for cell in cells):
                safe.isetitem(index, [spreadsheet_cell(cell) for cell in cells])
    return safe.to_csv(index=False)


def spreadsheet_cell(value: object) -> object:
    """A cell: texts as `spreadsheet_text` has them, others as they are."""
    return spreadsheet_text(value) if isinstance(value, str) else value


def private_folder() -> Path | None:
    """The folder for code that was compiled; None if it is not the user's alone or cannot be made.

    Whoever writes code runs it in whoever reads it. So a folder that others can write is not used, nor a
    damaged file, and what would be in it is compiled again.
    """
    from platformdirs import user_cache_path

    folder = user_cache_path("fairfate") / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    if os.name == "posix":
        others = stat.S_IWGRP | stat.S_IWOTH
        if status.st_uid != os.geteuid() or status.st_mode & others or not stat.S_ISDIR(status.st_mode):
            return None
    return folder


def remove_unfinished(*folders: Path) -> None:
    """Remove what a killed process was writing; files that `replacing` has not made are left alone."""
    for folder in folders:
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name.startswith(".") and path.name.endswith(_UNFINISHED) and path.is_file():
                path.unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, what: str = "out", seconds: float = 0.0) -> Iterator[None]:
    """Hold a folder, which is made if need be, for this process alone.

    The system lets go when the process ends, however it ends. Where it cannot lock files (Windows), nothing
    is held.

    Parameters
    ----------
    folder : the folder
    what : the argument that names it, for the message
    seconds : how long to wait for a process that holds it
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / LOCK
    handle = None
    try:
        handle = _take(file, what, time.monotonic() + seconds)
        yield
    finally:
        if handle is not None:
            file.unlink(missing_ok=True)
            os.close(handle)
        with suppress(OSError):  # something was written, or the folder was there before
            if made:
                folder.rmdir()


@contextmanager
def hold(file: Path) -> Iterator[None]:
    """Wait for a lock file, and hold it; it stays when this ends. Where nothing can be locked, nothing is."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _take(file: Path, what: str, end: float) -> int | None:
    """Lock a file and write into it who we are; returns its handle."""
    try:
        import fcntl
    except ImportError:
        return None
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "a process that is starting"
            os.close(handle)
            if time.monotonic() >= end:
                raise InputError(
                    f"{what} must be a folder that no other run is using, got '{file.parent}'"
                    f" (held by {holder})"
                ) from None
            time.sleep(0.2)
            continue
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(file)):  # and not one that was just removed
                began = time.strftime("%Y-%m-%d %H:%M:%S")
                holder = f"process {os.getpid()} on {socket.gethostname()} since {began}\n"
                with suppress(OSError):  # a full disk: then nobody is told who holds it
                    os.truncate(handle, 0)
                    os.write(handle, holder.encode())
                return handle
        os.close(handle)


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write named arrays and a JSON object as safetensors, with a checksum of both."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps({**about, _CHECKSUM: _checksum(contiguous, about)})
    # one key, since the order in which several are written is not fixed
    write_bytes(path, save(contiguous, metadata={_ABOUT: text}))


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what `write_arrays` has written; ValueError if it is damaged, foreign, or no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = json.loads((opened.metadata() or {})[_ABOUT])
        checksum = about.pop(_CHECKSUM)
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ValueError(reason_of(error)) from None
    if checksum != _checksum(arrays, about):
        raise ValueError("its checksum is wrong: the file is damaged")
    return arrays, about


def _checksum(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode() + array.tobytes())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as ``sha256sum`` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
