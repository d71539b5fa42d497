"""Strategies by their names: registered, brought by a file, and told apart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.strategies import Setup, fedavg, labels, load_plugin, parse_spec, register
from fairfate.strategies.plugins import _LOADED
from fairfate.strategies.registry import _ENTRIES, short_names

PLUGIN = """
from fairfate.strategies import fedavg, register
@register("NAME", "half of fedavg", "me")
def build(setup):
    return fedavg()
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    before, known = dict(_ENTRIES), dict(_LOADED)

    def write(file: str, name: str, more: str = "") -> Path:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(PLUGIN.replace("NAME", name) + more)
        return path

    yield write
    for entries_, old in ((_ENTRIES, before), (_LOADED, known)):
        entries_.clear()
        entries_.update(old)


def test_a_plugin_is_run_once_and_again_when_it_has_changed(plugin) -> None:
    load_plugin(plugin("mine.py", "mine_one"))
    first = _ENTRIES["mine_one"].build
    load_plugin(plugin("mine.py", "mine_one"))
    assert _ENTRIES["mine_one"].build is first
    load_plugin(plugin("mine.py", "mine_two"))
    assert "mine_two" in _ENTRIES
    assert "mine_one" not in _ENTRIES  # of the older version


def test_plugins_of_one_name_in_two_folders_are_two(plugin) -> None:
    load_plugin(plugin("a/mine.py", "mine_one"))
    load_plugin(plugin("b/mine.py", "mine_two"))
    assert {"mine_one", "mine_two"} <= set(_ENTRIES)
    modules = {_ENTRIES[name].build.__module__ for name in ("mine_one", "mine_two")}
    assert len(modules) == 2
    assert all(re.fullmatch(r"fairfate_plugin_mine_[0-9a-f]{12}", module) for module in modules)


def test_results_of_a_plugin_hang_on_its_file(plugin) -> None:
    file = plugin("mine.py", "mine_one")
    load_plugin(file)
    code = parse_spec("mine_one", "eo").code
    assert code == hashlib.sha256(file.read_bytes()).hexdigest()
    load_plugin(plugin("mine.py", "mine_one", "# another\n"))
    assert parse_spec("mine_one", "eo").code not in ("", code)
    assert parse_spec("fair_fate", "eo").code == ""


def test_code_that_is_in_no_file_is_told_apart_by_what_it_does(plugin) -> None:
    found = []
    for step in (1, 2, 1):
        scope = {"fedavg": fedavg, "__name__": None}
        exec(f"def build(setup):\n    {step}\n    x = {step}\n    return fedavg()", scope)
        register("mine_text", "s", "r")(scope["build"])
        found.append(parse_spec("mine_text", "eo").code)
        _ENTRIES.pop("mine_text")
    assert found[0] == found[2] != found[1]


def test_a_plugin_that_fails_leaves_everything_as_it_was(plugin) -> None:
    load_plugin(plugin("mine.py", "mine_one"))
    with pytest.raises(InputError, match="must run without an error, got ZeroDivisionError"):
        load_plugin(plugin("mine.py", "mine_two", "1 / 0\n"))
    assert "mine_one" in _ENTRIES
    assert "mine_two" not in _ENTRIES
    load_plugin(plugin("mine.py", "mine_two"))  # mended
    assert "mine_two" in _ENTRIES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a b", "s", "r"), "a strategy's name must be a word, got 'a b'"),
        (("1a", "s", "r"), "a strategy's name must be a word, got '1a'"),
        ((3, "s", "r"), "a strategy's name must be a text, got 3"),
        (("a", None, "r"), "a strategy's summary must be a text, got None"),
        (("a", "s", 3), "a strategy's reference must be a text, got 3"),
    ],
)
def test_what_a_strategy_is_called_is_checked(given, said: str) -> None:
    with pytest.raises(InputError, match=said):
        register(*given)


def test_short_names_show_what_tells_strategies_apart() -> None:
    given = [("a", {"x": 1, "y": 2}), ("a", {"x": 1, "y": 3}), ("b", {"x": 9}), ("a", {"x": 1})]
    assert short_names(given) == ["a(y=2)", "a(y=3)", "b", "a"]
    specs = [parse_spec(text, "sp") for text in ("fedval:metric=sp", "fedval:metric=eo", "fedavg")]
    assert labels(specs) == ["fedval(metric=sp)", "fedval(metric=eo)", "fedavg"]


def test_without_trials_the_guard_is_what_needs_none() -> None:
    assert dict(parse_spec("fair_fate", "sp", guard=True, trials=False).settings)["keep"] == 0
    assert dict(parse_spec("fair_fate:keep=0.5", "sp", guard=True, trials=False).settings)["keep"] == 0.5
    assert "keep" not in dict(parse_spec("fair_fate", "sp", trials=False).settings)
    assert "keep" not in dict(parse_spec("fedval", "sp", guard=True, trials=False).settings)


def test_rules_for_two_groups_and_for_the_runs_protocol() -> None:
    three = Setup(3, groups=Groups.single("g", ("a", "b", "c")))
    with pytest.raises(InputError, match="this must be run with two groups, got 3"):
        three.check_two_groups("this")
    Setup(3).check_two_groups("this")
    # 2 of 4 and 3 of 4 accepted with label 1, and rates of few rows where clients hold them
    counts = np.array([[[2, 2], [2, 2]], [[2, 2], [1, 3]]])
    assert Setup(3).fairness("eo")(counts) == pytest.approx(0.5 / 0.75)
    assert Setup(3, published=True).fairness("eo")(counts) == 0.67
    assert np.isnan(Setup(3, min_cell=5).fairness("eo")(counts))
    assert Setup(3, min_cell=4).fairness("eo")(counts) == pytest.approx(0.5 / 0.75)
    assert Setup(3).gap("eo")(counts) == pytest.approx(-0.25)
