"""Strategies of users' own: loaded from files, told apart by their code, and checked in their first use."""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fairfate.errors import InputError, Stopped, reason_of
from fairfate.strategies.strategy import Need, Strategy

_LOADED: dict[str, str] = {}
"""The SHA-256 of each plugin's file, by the name of its module."""


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Code of a user's in a block: its errors, and an exit, become an InputError that says where."""
    try:
        yield
    except (InputError, MemoryError, KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if "fairfate/" not in frame.filename
        ]
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        raise InputError(f"{what} must run without an error, got {reason_of(error)}{where}") from error


def module_of(build: Callable[..., Any]) -> str:
    """The name of the module that a factory comes from; "" of code that was run as a text."""
    return getattr(build, "__module__", None) or ""


def is_built_in(build: Callable[..., Any]) -> bool:
    """Whether a factory is this library's."""
    return module_of(build).startswith("fairfate.")


def is_in_plugin(build: Callable[..., Any]) -> bool:
    """Whether a factory comes from a file that every process can load."""
    return module_of(build) in _LOADED


def load_module(
    path: str | Path, run: Callable[[str, Callable[[], None]], None], content: bytes | None = None
) -> None:
    """Execute a Python file as a module of its own, unless it has been and is the same.

    On another machine, which does not have the file, its content is given.

    ``run(name, execute)`` is to call ``execute``; if it raises, the file counts as never loaded.
    """
    file = Path(path)
    if content is None and not file.is_file():
        raise InputError(f"plugin must be a Python file, got '{file}' (no such file)")
    folder = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]  # others may have the same name
    name = f"fairfate_plugin_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{folder}"
    content = file.read_bytes() if content is None else content
    digest = hashlib.sha256(content).hexdigest()
    if _LOADED.get(name) == digest:
        return
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name], _LOADED[name] = module, digest

    def execute() -> None:
        with user_code(f"plugin '{file}'"):
            exec(compile(content, str(file), "exec"), module.__dict__)

    try:
        run(name, execute)
    except BaseException:
        del _LOADED[name]
        raise


def code_checksum(*functions: Callable[..., Any], deep: bool = False) -> str:
    """The SHA-256 of what users' functions depend on; "" for this library's own.

    That is the file that they come from or, in a notebook, their code and whatever of the same module they
    use. With ``deep`` it is both, and the values that the functions hold.
    """
    digest = hashlib.sha256()
    visited: set[int] = set()
    for function in functions:
        module = module_of(function)
        if is_built_in(function) and not deep:
            return ""
        if module in _LOADED and not deep:
            return _LOADED[module]
        file = Path(getattr(sys.modules.get(module), "__file__", None) or "")
        if file.is_file():
            digest.update(file.read_bytes())
        if deep or not file.is_file():
            for part in _parts(function, module, {}, visited):
                digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, module: str, names: Mapping[str, Any], visited: set[int]) -> Iterator[bytes]:
    """What a value is, in bytes: of functions their code, closure, and what they use of their own module."""
    if isinstance(value, FunctionType | type | dict):  # which live on: others' ids are used again
        if id(value) in visited:
            return
        visited.add(id(value))
    inner: list[Any] = []
    if isinstance(value, FunctionType | type) and (value.__module__ or "") != module:
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif isinstance(value, FunctionType):
        names = value.__globals__
        inner = [value.__code__, value.__defaults__, value.__kwdefaults__, *_closure(value)]
    elif isinstance(value, CodeType):
        yield value.co_code + repr(value.co_names).encode()
        inner = [value.co_consts, [names[name] for name in value.co_names if name in names]]
    elif isinstance(value, type):
        inner = [member for key, member in sorted(vars(value).items()) if key not in _NO_CODE]
    elif isinstance(value, classmethod | staticmethod):
        inner = [value.__func__]
    elif isinstance(value, ModuleType):
        yield value.__name__.encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype}{value.shape}".encode() + value.tobytes()
    elif isinstance(value, dict):
        inner = [item for pair in value.items() for item in pair]
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif isinstance(value, frozenset):
        inner = sorted(value, key=repr)
    else:
        yield repr(value).encode()
    for item in inner:
        yield from _parts(item, module, names, visited)


_NO_CODE = ("__dict__", "__doc__", "__firstlineno__", "__module__", "__weakref__")


def _closure(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing in it yet
            yield cell.cell_contents


def checked(strategy: Any, name: str) -> Strategy:
    """A user's strategy: errors of its functions name them, and what each returns first is checked."""
    where = f"strategy '{name}'"
    if not isinstance(strategy, Strategy):
        raise InputError(f"{where} must be a Strategy, got {type(strategy).__name__}")
    for field in ("combine", *_CHECKS):
        function = getattr(strategy, field)
        if not callable(function) and not (function is None and field in _OPTIONAL):
            raise InputError(f"{where}: {field} must be a function, got {type(function).__name__}")
    is_set = isinstance(strategy.needs, AbstractSet)
    if not is_set or not all(isinstance(need, Need) for need in strategy.needs):
        raise InputError(f"{where}: needs must be a set of Need, got {strategy.needs!r}")
    refresh = strategy.refresh
    if refresh is not None and not (isinstance(refresh, int) and refresh >= 1):
        raise InputError(f"{where}: refresh must be a whole number >= 1 or None, got {refresh!r}")
    watched: dict[str, Any] = {
        field: _watched(getattr(strategy, field), f"{where}: {field}", field)
        for field in _CHECKS
        if getattr(strategy, field) is not None
    }
    return strategy._replace(**watched)


def _watched(function: Callable[..., Any], what: str, field: str) -> Callable[..., Any]:
    is_checked = False

    def call(first: Any, *others: Any) -> Any:
        nonlocal is_checked
        with user_code(what):
            result = function(first, *others)
        if not is_checked:
            _CHECKS[field](result, first, what)
            is_checked = True
        return result

    return call


def _check_state(state: Any, before: Any, what: str) -> None:
    for name in ("params", "notes"):
        if not hasattr(state, name):
            raise InputError(f"{what} must return a state with {name}, got {type(state).__name__}")
    _check_model(state.params, before, what)
    if not isinstance(state.notes, Mapping):
        raise InputError(f"{what} must return notes by name, got {type(state.notes).__name__}")
    for key, value in state.notes.items():
        rule = f"{what}: note {key!r} must have a text as its name and be a number, or one for each client"
        _check_numbers(value, rule)
        if not isinstance(key, str) or np.ndim(value) > (0 if key in ("lam", "beta") else 1):
            raise InputError(f"{rule}, got shape {np.shape(value)}")


def _check_model(model: Any, before: Any, what: str) -> None:
    shape = np.shape(getattr(before, "params", before))
    _check_numbers(model, f"{what} must return a model of numbers")
    if np.shape(model) != shape:
        raise InputError(f"{what} must keep the model's shape {shape}, got {np.shape(model)}")


def _check_broadcast(message: Any, before: Any, what: str) -> None:
    _check_numbers(message, f"{what} must return numbers")


def _check_numbers(value: Any, rule: str) -> None:
    try:
        kind = np.asarray(value).dtype.kind
    except Exception as error:  # whatever it is
        raise InputError(f"{rule}, got {reason_of(error)}") from None
    if kind not in "biuf":
        raise InputError(f"{rule}, got {type(value).__name__}")


def _no_check(result: Any, before: Any, what: str) -> None:
    """The engine checks each loss itself."""


_CHECKS: dict[str, Callable[[Any, Any, str], None]] = {
    "init": _check_state,
    "aggregate": _check_state,
    "broadcast": _check_broadcast,
    "release": _check_model,
    "local_loss": _no_check,
    "scale": _no_check,
}
_OPTIONAL = ("broadcast", "release", "local_loss", "scale")
