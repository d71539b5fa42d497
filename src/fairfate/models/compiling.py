"""Compile the loops, with Numba. Only what finds no machine code on the disk comes here (`cache`).

The loops are called by nothing but `cache`, and own no memory: what they need and what they find is in arrays
that they are given. So their machine code needs nothing of Numba or Python when it runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba import types

COMPILED: list[str] = []
"""The loops that this process has compiled."""


def kernel(function: Callable[..., Any]) -> Any:
    """A function to compile; other such functions may call it."""
    return numba.njit(
        error_model="numpy", boundscheck=False, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)


def machine_code(module: str, name: str, kinds: Sequence[Any]) -> tuple[str, bytes]:
    """The symbol and the object file of one loop, for arguments of these kinds (`cache.Kernel`)."""
    function = getattr(importlib.import_module(f"fairfate.models.{module}"), name)
    signature = tuple(map(_type, kinds))
    function.compile(signature)
    result = function.overloads[signature]
    COMPILED.append(name)
    return result.fndesc.llvm_func_name, result.library._get_compiled_object()


def _type(kind: Any) -> Any:
    code, dimensions, layout = kind
    single = numba.from_dtype(np.dtype(code))
    return types.Array(single, dimensions, layout) if dimensions else single
