"""Every strategy's factory has a docstring with its parameters, a reference and an example that runs."""

from __future__ import annotations

import doctest

import pytest

from fairfate import strategies
from fairfate.strategies import entries

BUILT_IN = [entry for entry in entries() if entry.build.__module__.startswith("fairfate.")]


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_a_factory_is_documented_by_parameters_reference_and_example(entry: strategies.Entry) -> None:
    text = getattr(strategies, entry.name).__doc__
    assert text.index("References\n----------\n") < text.index("Examples\n--------\n")
    for key, setting in entry.settings.items():
        assert f"\n{key} : {setting.rule}\n    {setting.help}\n" in text
    test = doctest.DocTestParser().get_doctest(text, vars(strategies).copy(), entry.name, None, 0)
    assert len(test.examples) > 0
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0
