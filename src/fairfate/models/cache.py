"""Machine code of the loops kept on disk, so that only the first run compiles, and others need no Numba.

It lies in the folder that the user alone can write (`files.private_folder`). Processes that need the same
loop wait for the one that compiles it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.storage import locked, private_folder, read_private, write_private

_PATIENCE = 300.0
"""Seconds to wait for a process that compiles, before doing the same."""
_SCRATCH = ctypes.create_string_buffer(64)
"""Where a loop puts what it returns, which is nothing."""
_WORD = ctypes.c_ssize_t
Code = tuple[str, bytes]
"""A symbol, and the object file that it is in."""


class Header:
    """Several arrays as one argument: their words are put together once, however often they are passed."""

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self.arrays = arrays  # which must live as long
        self.words: list[Any] = []
        self.kinds = [_put(array, self.words) for array in arrays]

    def __reduce__(self) -> tuple[Any, ...]:
        """In a copy, and in another process, the arrays lie elsewhere."""
        return Header, self.arrays


class Kernel:
    """A loop of ``module``, by its name: compiled when it is first called, or taken from the disk.

    Arguments are arrays, headers, and numbers: Python's whole ones, or NumPy's. Numba's functions take an
    array as the words of its header, one after another.
    """

    def __init__(self, module: str, name: str) -> None:
        if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
            raise InputError("NUMBA_DISABLE_JIT must be unset, since the kernels run compiled only, got 1")
        self.module, self.name = module, name
        self.ready: dict[tuple[Any, ...], Callable[..., int]] = {}

    def __call__(self, *args: Any) -> None:
        """Run it; it returns nothing and writes into its arrays."""
        words: list[Any] = []
        parts: list[Any] = []
        for arg in args:
            if isinstance(arg, Header):
                words += arg.words
                parts += arg.kinds
            else:
                parts.append(_put(arg, words))
        kinds = tuple(parts)
        run = self.ready.get(kinds)
        if run is None:
            run = self.ready[kinds] = _callable(self._code(kinds), kinds)
        status = run(_SCRATCH, _SCRATCH, *words)
        if status not in (0, -2):  # Numba's codes for a result and for none
            raise RuntimeError(f"the compiled loop '{self.name}' ended with status {status}")

    def _code(self, kinds: tuple[Any, ...]) -> Code:
        """From the disk; if it is not there, compiled once, however many processes want it."""
        file = self._file(kinds)
        found = None if file is None else _read(file)
        if found is not None:
            return found
        with _alone(file):
            found = None if file is None else _read(file)  # another process may have compiled it meanwhile
            if found is None:
                from fairfate.models.compiling import machine_code  # with Numba

                found = machine_code(self.module, self.name, kinds)
                if file is not None:
                    write_private(file, found[0].encode() + b"\n" + found[1])
        return found

    def _file(self, kinds: tuple[Any, ...]) -> Path | None:
        """A name that stands for everything the machine code depends on."""
        folder = private_folder()
        if folder is None:
            return None
        key = repr((self.module, self.name, kinds, _surroundings()))
        return folder / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _put(value: Any, words: list[Any]) -> Any:
    """Add an argument's words to the list; returns its kind: (dtype, dimensions, layout)."""
    if isinstance(value, np.ndarray):
        words += (0, 0, value.size, value.itemsize, value.__array_interface__["data"][0])
        words += value.shape
        words += value.strides
        return value.dtype.str, value.ndim, "C" if value.flags.c_contiguous else "A"
    if isinstance(value, np.generic):
        words.append(value.item())
        return value.dtype.str, 0, ""
    words.append(int(value))
    return "<i8", 0, ""


def _word_types(kind: Any) -> list[Any]:
    return [_WORD] * (5 + 2 * kind[1]) if kind[1] else [np.ctypeslib.as_ctypes_type(np.dtype(kind[0]))]


@cache
def _machine() -> Any:
    import llvmlite.binding as llvm  # here and below, since commands that train nothing do without

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(codemodel="jitdefault", jit=True)


_ENGINES: list[Any] = []


def _callable(code: Code, kinds: tuple[Any, ...]) -> Callable[..., int]:
    """The loop in memory; an engine of its own, since names in different object files may be the same."""
    import llvmlite.binding as llvm

    symbol, content = code
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(content))
    engine.finalize_object()
    _ENGINES.append(engine)  # which owns the memory
    words = [word for kind in kinds for word in _word_types(kind)]
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *words)
    return kind(engine.get_function_address(symbol))


@cache
def _surroundings() -> tuple[Any, ...]:
    """All that the machine code depends on beside the loop: versions, processor, settings, our own files."""
    import llvmlite
    import llvmlite.binding as llvm

    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    versions = platform.python_version(), version("numba"), llvmlite.__version__
    processor = llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    return versions, processor, settings, digest.hexdigest()


def _read(file: Path) -> Code | None:
    content = read_private(file)
    if content is None:
        return None
    symbol, _, code = content.partition(b"\n")
    return symbol.decode(), code


@contextmanager
def _alone(file: Path | None) -> Iterator[None]:
    """While no other process compiles; the system lets go of one that is killed."""
    with ExitStack() as stack:
        if file is not None:
            with suppress(InputError, OSError):  # one that is stuck, or a folder that cannot be locked
                stack.enter_context(locked(file.parent, seconds=_PATIENCE))
        yield
