"""Every public function, class and method says what it takes and gives, and has an example.

Doctest runs the examples (``--doctest-modules``).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import textwrap
from typing import Any

import pytest

from fairfate import Config
from fairfate.options import Options, options_of

PUBLIC = ("fairfate", "fairfate.strategies", "fairfate.flower")


def public() -> dict[str, Any]:
    """All public functions and classes of this library, each once, by its name."""
    values = {}
    for module in PUBLIC:
        package = importlib.import_module(module)
        for name in sorted(package.__all__):
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                values[f"{value.__module__}.{name}"] = value
    return values


VALUES = public()
METHODS = {
    f"{name}.{member}": getattr(cls, member)
    for name, cls in VALUES.items()
    if inspect.isclass(cls)
    and name not in ("fairfate.flower.clients.Cohorts", "fairfate.flower.validation.Validation")
    for member, value in vars(cls).items()
    if not member.startswith("_")
    and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod))
}
CALLED = VALUES | METHODS
"""Public functions, classes and methods."""
FUNCTIONS = [name for name, value in VALUES.items() if inspect.isfunction(value)]
CLASSES = [name for name, value in VALUES.items() if inspect.isclass(value)]


def documented_fields(cls: type) -> set[str]:
    """The names that a class gives to values, each with a docstring of its own in the next line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    return {
        first.target.id
        for first, second in itertools.pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
    }


def undocumented(value: Any) -> list[str]:
    """The parameters that neither the docstring nor a field of the class explains."""
    text = inspect.getdoc(value) or ""
    try:
        parameters = list(inspect.signature(value).parameters)
    except ValueError:
        return []
    if getattr(value, "_is_protocol", False):
        return []
    fields = documented_fields(value) if inspect.isclass(value) else set()
    fields |= {name for name, option in options_of(Options).items() if value is Config and option.help}
    return [
        name
        for name in parameters
        if name not in (*fields, "self") and not re.search(rf"^(\w+, )*{name}(, \w+)* :", text, re.MULTILINE)
    ]


def test_missing_parameters_are_noticed() -> None:
    def documented(rows: int, seed: int) -> None:
        """Draw.

        Parameters
        ----------
        rows : how many
        """

    assert undocumented(documented) == ["seed"]


@pytest.mark.parametrize("name", CALLED)
def test_every_parameter_is_explained(name: str) -> None:
    assert undocumented(CALLED[name]) == []


@pytest.mark.parametrize("name", CALLED)
def test_there_is_an_example(name: str) -> None:
    assert "Examples\n--------\n" in (inspect.getdoc(CALLED[name]) or "")
    assert ">>> " in inspect.getdoc(CALLED[name])  # type: ignore[operator]


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_the_result_is_explained(name: str) -> None:
    function = CALLED[name]
    if inspect.signature(function).return_annotation not in (None, "None"):
        assert "Returns\n-------\n" in (inspect.getdoc(function) or "")


@pytest.mark.parametrize("name", CLASSES)
def test_public_methods_have_docstrings(name: str) -> None:
    cls = VALUES[name]
    methods = [
        member
        for member, value in vars(cls).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod))
    ]
    assert [member for member in methods if not inspect.getdoc(getattr(cls, member))] == []
