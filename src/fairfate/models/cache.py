"""Compiled kernels kept on disk, so that only the first run compiles.

Numba keeps compiled functions as pickles, and whoever writes a pickle runs code in whoever reads it. So they
lie in a folder that the user alone can write, each behind a checksum; a damaged file, or a folder that
others can write, is not read, and the kernels are compiled again.
"""

from __future__ import annotations

import hashlib
import os
import pickle  # Numba's own form; see above
import platform
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from platformdirs import user_cache_path

from fairfate.errors import InputError
from fairfate.files import write_bytes

_DIGEST = 32


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, or take it from the disk."""
    if numba.config.DISABLE_JIT:
        raise InputError("NUMBA_DISABLE_JIT must be unset, since the kernels run compiled only, got 1")
    compiled = numba.njit(error_model="numpy", nogil=True, boundscheck=False)(function)
    compiled._cache = _Compiled(function)
    return compiled


def private_folder() -> Path | None:
    """The folder for compiled kernels; None if it is not the user's alone or cannot be made."""
    folder = user_cache_path("fairfate") / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    if os.name == "posix":
        others = stat.S_IWGRP | stat.S_IWOTH
        if found.st_uid != os.geteuid() or found.st_mode & others or not stat.S_ISDIR(found.st_mode):
            return None
    return folder


@cache
def _sources() -> bytes:
    """A checksum of the files that the kernels are written in."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()


class _Compiled(_Cache):  # type: ignore[misc]  # numba ships no type information
    """Where Numba looks for a compiled function before it compiles one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @property
    def cache_path(self) -> str:
        """The folder, for Numba's statistics."""
        return str(private_folder() or "")

    def _file(self, signature: Any, codegen: Any) -> Path | None:
        """A name that stands for everything the machine code depends on."""
        folder = private_folder()
        if folder is None:
            return None
        versions = (platform.python_version(), numba.__version__, llvmlite.__version__)
        name = self.function.__qualname__.replace(".<locals>.", "-")
        held = [cell.cell_contents for cell in self.function.__closure__ or ()]
        key = repr((name, held, str(signature), codegen.magic_tuple(), versions, _sources()))
        return folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function, or None."""
        rtsys.initialize(target)  # what compiled code calls; the rest of a refresh is for compiling
        file = self._file(signature, target.codegen())
        try:
            content = b"" if file is None else file.read_bytes()
            if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                return CompileResult._rebuild(target, *pickle.loads(content[_DIGEST:]))
        except Exception:  # not there, or not what this version of Numba can use
            pass
        target.refresh()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Keep a compiled function for the next time, if that can be done."""
        file = self._file(signature, result.codegen)
        if file is None or result.lifted or result.library.has_dynamic_globals:
            return
        content = dumps(result._reduce())
        try:
            write_bytes(file, hashlib.sha256(content).digest() + content)
        except OSError:
            return

    def enable(self) -> None:
        """Always on."""

    def disable(self) -> None:
        """Always on."""

    def flush(self) -> None:
        """Nothing is kept in memory."""
