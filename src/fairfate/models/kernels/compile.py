"""Compile the loops with Numba, once: its own cache keeps them in a folder that the user alone can write.

A loop that Python calls is a `Kernel` with one signature, compiled or loaded when it is first called. Loops
that only other loops call are compiled with these.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import llvmlite
import numba
from numba import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.codegen import get_host_cpu_features
from numba.core.runtime import rtsys

from fairfate.errors import InputError
from fairfate.storage import locked, private_folder

_LOCK_SECONDS = 300.0
"""Seconds to wait for a process that compiles, before doing the same."""
_OPTIONS = {"error_model": "numpy", "boundscheck": False, "_nrt": False, "no_cfunc_wrapper": True}
COMPILED: list[str] = []
"""The kernels that this process has compiled itself."""

if numba.config.DISABLE_JIT:
    raise InputError("NUMBA_DISABLE_JIT must be unset, since the kernels run compiled only, got 1")


def has_avx512() -> bool:
    """Whether the loops are compiled for a CPU with 32 registers of sixteen lanes."""
    features = numba.config.CPU_FEATURES or get_host_cpu_features()
    return "+avx512f" in features.split(",")


def read(dtype: Any, dimensions: int, layout: str = "C") -> Any:
    """The type of an array that a kernel reads."""
    return types.Array(dtype, dimensions, layout, readonly=True)


def write(dtype: Any, dimensions: int) -> Any:
    """The type of an array that a kernel writes."""
    return types.Array(dtype, dimensions, "C")


def inner(function: Callable[..., Any]) -> Any:
    """A loop for other loops to call."""
    return numba.njit(no_cpython_wrapper=True, **_OPTIONS)(function)


def inline(function: Callable[..., Any]) -> Any:
    """A loop that becomes part of each loop that calls it."""
    return numba.njit(no_cpython_wrapper=True, forceinline=True, **_OPTIONS)(function)


def kernel(*arguments: Any) -> Callable[[Callable[..., None]], Kernel]:
    """A loop for Python to call, with arguments of these types."""
    return lambda function: Kernel(function, arguments)


class Kernel:
    """A loop that writes into its arrays and returns nothing."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._compiled = numba.njit(nogil=True, **_OPTIONS)(function)
        self._arguments = arguments
        self._lock = Lock()
        self._call: Callable[..., None] = self._prepare

    def __call__(self, *args: Any) -> None:
        """Run it."""
        self._call(*args)

    def _prepare(self, *args: Any) -> None:
        """Compile it, or take it from the disk, and run it."""
        with self._lock:
            if self._call != self._compiled:
                folder = private_folder()
                if folder is not None:
                    self._compiled._cache = _Cache(self._compiled.py_func)
                with _compile_lock(folder):
                    self._compiled.compile(self._arguments)
                if not self._compiled.stats.cache_hits:
                    COMPILED.append(self._compiled.py_func.__name__)
                self._compiled.disable_compile()  # arguments of other types are errors
                self._call = self._compiled
        self._call(*args)


@contextmanager
def _compile_lock(folder: Path | None) -> Iterator[None]:
    """Hold the lock under which one process compiles; the system releases it if that process is killed."""
    with ExitStack() as stack:
        if folder is not None:
            with suppress(InputError, OSError):  # another process is stuck, or the folder cannot be locked
                stack.enter_context(locked(folder, seconds=_LOCK_SECONDS))
        yield


class _Locator(_CacheLocator):  # type: ignore[misc]  # numba ships no type information
    """Where Numba keeps a kernel: in the private folder, under a name for all that it is made from."""

    def get_cache_path(self) -> str:
        """The folder."""
        return str(private_folder())

    def get_source_stamp(self) -> str:
        """What the kernels are made from beside the signature and the CPU, which Numba looks at itself."""
        return _sources()

    def get_disambiguator(self) -> str:
        """Other sources have other files, so that several installations keep theirs."""
        return _sources()[:16]

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        """Numba asks this way."""
        return cls()


class _Stored(CompileResultCacheImpl):  # type: ignore[misc]  # as above
    """A kernel with the checksum of its machine code."""

    _locator_classes = (_Locator,)

    def reduce(self, cres: Any) -> Any:
        """What is kept."""
        kept = super().reduce(cres)
        return kept, _digest(kept)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """The kernel again; None if what was kept is damaged."""
        kept, digest = payload
        return super().rebuild(target_context, kept) if _digest(kept) == digest else None


class _Cache(FunctionCache):  # type: ignore[misc]  # as above
    """Numba's cache; what it cannot read is compiled, and what it cannot write is not kept."""

    _impl_class = _Stored

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel, or None."""
        rtsys.initialize(
            target_context
        )  # all that compiled code needs; Numba would load what compiling needs
        with suppress(Exception):  # whatever unpickling a damaged file ends with
            result = self._load_overload(sig, target_context)
            if result is not None:
                return result
        target_context.refresh()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a kernel for the next time, if that can be done."""
        with suppress(OSError):  # a full disk
            try:
                self._save_overload(sig, data)
            except Exception:  # whatever unpickling a damaged index ends with
                self.flush()
                self._save_overload(sig, data)


def _digest(kept: Any) -> str:
    return hashlib.sha256(repr(kept[0]).encode()).hexdigest()


@cache
def _sources() -> str:
    """A checksum of all that every kernel is made from."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    digest.update((Path(__file__).parents[1] / "rows.py").read_bytes())
    for name, value in sorted(os.environ.items()):
        if name.startswith("NUMBA_"):
            digest.update(f"{name}={value};".encode())
    return digest.hexdigest()
