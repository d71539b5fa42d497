"""A network of the user's, named on the command line: ``module.py:build``."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fairfate.data import Schema
from fairfate.errors import InputError, listing

if TYPE_CHECKING:
    from fairfate.models.torch import TorchModel

FUNCTION = "build"
"""The function's name unless another is given."""


@dataclass(frozen=True)
class Network:
    """A function in a Python file that makes a ``torch.nn.Module``; every process loads it for itself."""

    path: str
    function: str
    content: bytes = field(repr=False)
    """Of the file when the run was planned; workers elsewhere do not have it."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file, on which results depend."""
        return hashlib.sha256(self.content).hexdigest()

    @classmethod
    def read(cls, text: str) -> Network:
        """Read ``module.py:build``; the file must be there and hold the function.

        >>> Network.read("nowhere.py:build")
        Traceback (most recent call last):
        fairfate.errors.InputError: model must be a Python file, got 'nowhere.py' (no such file)
        """
        path, function = split(text)
        if not Path(path).is_file():
            raise InputError(f"model must be a Python file, got '{path}' (no such file)")
        if find_spec("torch") is None:
            raise InputError(f"model '{text}' needs PyTorch: pip install \"fairfate[torch]\"")
        network = cls(path, function, Path(path).read_bytes())
        network._load()
        return network

    @property
    def key(self) -> str:
        """What results depend on, wherever the file is."""
        return f"{self.function} sha256:{self.digest}"

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"{self.path}:{self.function}"

    def model(self, schema: Schema) -> TorchModel:
        """The model for rows of a schema."""
        from fairfate.models.torch import TorchModel

        build = self._load()
        asked = _asks_for_schema(build, self.text)
        given: Any = schema if asked else schema.encoder.inputs

        def make() -> Any:
            try:
                return build(given)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise InputError(f"model '{self.text}' must run without an error, got {reason}") from error

        return TorchModel(make, schema.encoder.inputs, self.text, key=self.key)

    def check(self, schema: Schema) -> None:
        """Check before training that the network can be trained."""
        import numpy as np

        model = self.model(schema)
        normals = np.zeros(model.num_parameters)
        same = np.array_equal(model.initial(normals), model.initial(normals))
        if not same:
            raise InputError(f"model '{self.text}' must have the same weights for the same seed")

    def _load(self) -> Callable[..., Any]:
        """The function, from the file as it was when the run was planned."""
        file = Path(self.path)
        # files in other folders may have the same name
        origin = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
        name = f"fairfate_model_{re.sub(r'[^A-Za-z0-9_]', '_', file.stem)}_{origin}_{self.digest[:12]}"
        if name not in sys.modules:
            _run(self.content, file, name)
        build = getattr(sys.modules[name], self.function, None)
        if not callable(build):
            functions = [key for key, value in vars(sys.modules[name]).items() if inspect.isfunction(value)]
            raise InputError(
                f"model must name a function of '{file}', got '{self.function}'"
                f" (it has {listing(functions) or 'none'})"
            )
        loaded: Callable[..., Any] = build
        return loaded


def split(text: str) -> tuple[str, str]:
    """The file and the function of ``module.py:build``; the function may be left out.

    >>> split("nets/wide.py:make"), split("wide.py")
    (('nets/wide.py', 'make'), ('wide.py', 'build'))
    """
    path, _, function = text.rpartition(":")
    return (path, function) if path and function.isidentifier() else (text, FUNCTION)


def _run(content: bytes, file: Path, name: str) -> None:
    """Run a Python file as a module of this name."""
    loaded = ModuleType(name)
    loaded.__file__ = str(file)
    sys.modules[name] = loaded
    try:
        exec(compile(content, str(file), "exec", dont_inherit=True), loaded.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"model '{file}' must run without an error, got {reason}") from error


def _asks_for_schema(build: Callable[..., Any], text: str) -> bool:
    """Whether a function asks for the schema, by its parameter's name or type, and not for the inputs."""
    try:
        parameters = list(inspect.signature(build).parameters.values())
    except (TypeError, ValueError):
        return False
    empty = inspect.Parameter.empty
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is empty and parameter.kind not in (parameter.VAR_KEYWORD,)
    ]
    if not parameters or len(needed) > 1:
        names = listing(parameter.name for parameter in parameters) or "no parameter"
        raise InputError(f"model '{text}' must take inputs or schema alone, got {names}")
    first = parameters[0]
    kind = (
        first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    )
    return first.name == "schema" or kind.strip("'\"").rpartition(".")[2] == "Schema"
