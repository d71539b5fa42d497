"""Strategies as texts: names, hyperparameters, steps, and what is wrong with them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import pytest

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.strategies import (
    EXTENSION,
    RUN_METRIC,
    Guarded,
    Objective,
    Range,
    Setup,
    fedavg,
    labels,
    parse_spec,
    register,
)
from fairfate.strategies.hyperparameters import (
    Choice,
    MetricSetting,
    Number,
    ObjectiveSetting,
    read_settings,
    read_signature,
    resolve_settings,
    split_outside,
)
from fairfate.strategies.registry import short_names
from fairfate.strategies.steps import Step, parse_steps, split_steps

# -- a signature -------------------------------------------------------------------------------------------


def test_a_signature_declares_hyperparameters() -> None:
    def factory(
        setup,
        *,
        metric: Objective = RUN_METRIC,
        share: Annotated[float, Range(0, 1, below_high=True), "of the clients"] = 0.3,
        keep: Annotated[float, Range(0, 1), Guarded(0.8), EXTENSION, "of skill"] = 0.0,
        number: Annotated[int, Range(1), "of clients"] = 2,
        kind: Annotated[Literal["a", "b"], "which"] = "b",
        any_number=-1.5,
    ): ...

    assert read_signature(factory, "mine") == {
        "metric": ObjectiveSetting("fairness it looks at"),
        "share": Number(0.3, "of the clients", below_high=True),
        "keep": Number(0.0, "of skill", extension=True, guarded=0.8),
        "number": Number(2, "of clients", low=1, high=math.inf, whole=True),
        "kind": Choice("b", "which", ("a", "b")),
        "any_number": Number(-1.5, "", low=-math.inf, high=math.inf),
    }


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "setup, x",
        "setup, x: str = 'a'",
        "setup, x: Literal['a'] = 'b'",
        "setup, x: bool = True",
        "setup, x: Unknown = 1",
    ],
)
def test_a_signature_that_declares_something_else_is_an_error(signature: str) -> None:
    scope = {"Literal": Literal}
    exec(f"from __future__ import annotations\ndef factory({signature}): ...", scope)
    with pytest.raises(InputError, match="mine"):
        read_signature(scope["factory"], "mine")


# -- one setting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "rule", "inside", "outside"),
    [
        (Number(0.5, ""), "in [0, 1]", ["0", "1", 0.5], [-0.001, 1.001]),
        (Number(0.5, "", below_high=True), "in [0, 1)", [0, 0.999], [1, 2]),
        (Number(0.5, "", above_low=True), "in (0, 1]", [0.001, 1], [0, -1]),
        (Number(3, "", low=-2, high=5), "in [-2, 5]", [-2, 5], [-2.1, 5.1]),
        (Number(3, "", high=math.inf), ">= 0", [0, 1e300], [-1, "inf", "-inf"]),
        (Number(3, "", high=math.inf, above_low=True), "> 0", [1e-300], [0, math.inf]),
    ],
)
def test_numbers_have_a_range(number: Number, rule: str, inside: list, outside: list) -> None:
    assert number.rule == rule
    for value in inside:
        assert number.parse(value, "x") == float(value)
    for value in [*outside, "nan"]:
        with pytest.raises(InputError) as result:
            number.parse(value, "x")
        assert str(result.value) == f"x must be {rule}, got {float(value):g}"
    with pytest.raises(InputError) as result:
        number.parse("a", "x")
    assert str(result.value) == f"x must be a number {rule}, got 'a'"


def test_whole_numbers_are_whole() -> None:
    assert Number(1, "", high=9, whole=True).parse("3.0", "x") == 3
    with pytest.raises(InputError, match=r"x must be a whole number, got 1\.5"):
        Number(1, "", high=9, whole=True).parse(1.5, "x")
    assert Number(1, "", high=9).parse(1.5, "x") == 1.5


def test_choices_and_metrics_are_read() -> None:
    choice = Choice("a", "", ("a", "b"))
    assert choice.parse("b", "x") == "b"
    with pytest.raises(InputError, match=r"x must be one of a\|b, got 'c'"):
        choice.parse("c", "x")
    assert MetricSetting("").parse(" eo ", "x") == "eo"
    with pytest.raises(InputError, match=r"x must be sp, eo or eqo, got 'sp.eo'"):
        MetricSetting("").parse("sp+eo", "x")
    with pytest.raises(InputError, match="x must be sp, eo or eqo, got 'accuracy'"):
        MetricSetting("").parse("accuracy", "x")
    assert ObjectiveSetting("").parse("sp + eo", "x") == "sp+eo"


# -- several -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("a,b", ["a", "b"]),
        ("f(a,b),c", ["f(a,b)", "c"]),
        ("f(g(a,b),c),d", ["f(g(a,b),c)", "d"]),
        ('"a,b",c', ['"a,b"', "c"]),
        ('"(",c', ['"("', "c"]),  # a bracket in quotes opens nothing
        ('"ab",f(c,d)', ['"ab"', "f(c,d)"]),
        ("a),b", ["a)", "b"]),
    ],
)
def test_texts_are_cut_outside_brackets_and_quotes(text: str, parts: list[str]) -> None:
    assert split_outside(text, ",") == parts


def test_pairs_are_read_once_each() -> None:
    assert read_settings("a=1, b=x=y,,", "n:...", "strategy") == {"a": "1", "b": "x=y"}
    with pytest.raises(InputError, match=r"strategy 'n:a' must be NAME:key=value,..., got 'a'"):
        read_settings("a", "n:a", "strategy")
    with pytest.raises(InputError, match="step 'n:a=1,a=2' must name each key once, got 'a' twice"):
        read_settings("a=1,a=2", "n:a=1,a=2", "step")


SOME = {
    "metric": ObjectiveSetting(""),
    "rate": Number(0.5, ""),
    "new": Number(0.25, "", extension=True),
    "watch": Number(0.0, "", extension=True, guarded=0.75),
    "kind": Choice("a", "", ("a", "b"), extension=True),
}


@pytest.mark.parametrize(
    ("given", "guard", "expected"),
    [
        ({}, False, {"metric": "eo", "rate": 0.5}),
        ({"metric": "sp", "rate": "1"}, False, {"metric": "sp", "rate": 1}),
        ({"new": "0.25", "kind": "a"}, False, {"metric": "eo", "rate": 0.5}),
        ({"new": "0.5", "kind": "b"}, False, {"metric": "eo", "rate": 0.5, "new": 0.5, "kind": "b"}),
        ({}, True, {"metric": "eo", "rate": 0.5, "watch": 0.75}),
        ({"watch": 0}, True, {"metric": "eo", "rate": 0.5, "watch": 0}),
        ({"watch": 0}, False, {"metric": "eo", "rate": 0.5, "watch": 0}),
    ],
)
def test_extensions_are_left_out_of_texts_at_their_default_and_guards_are_not(
    given: dict, guard: bool, expected: dict
) -> None:
    assert dict(resolve_settings("n", SOME, given, "eo", "strategy", guard=guard)) == expected


def test_unknown_settings_are_named() -> None:
    with pytest.raises(InputError, match="unknown hyperparameter of n 'rat'; did you mean 'rate'"):
        resolve_settings("n", SOME, {"rat": 1}, "eo", "strategy")
    with pytest.raises(InputError, match="step 'n' has no hyperparameters, got 'rate'"):
        resolve_settings("n", {}, {"rate": 1}, "eo", "step")
    with pytest.raises(InputError, match=r"n: rate must be in \[0, 1\], got 2"):
        resolve_settings("n", SOME, {"rate": 2}, "eo", "strategy")


# -- steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fedavg", ("fedavg", [])),
        ("fedavg + average", ("fedavg", ["average"])),
        ("fedval:metric=sp+eo+clip:norm=1+median", ("fedval:metric=sp+eo", ["clip:norm=1", "median"])),
        ("fedval:metric=worst(sp, eo+median)", ("fedval:metric=worst(sp, eo+median)", [])),
        ('fedval:metric=eo@"a+b"+clip', ('fedval:metric=eo@"a+b"', ["clip"])),
        ('fedval:metric=eo@"("+clip', ('fedval:metric=eo@"("', ["clip"])),
        ('fedval:metric=worst(eo@"ab", sp+clip)', ('fedval:metric=worst(eo@"ab", sp+clip)', [])),
        ("fedval:metric=sp)+clip", ("fedval:metric=sp)", ["clip"])),
        ("fedval:metric=sp+0.5*eo", ("fedval:metric=sp+0.5*eo", [])),
    ],
)
def test_steps_are_cut_off_a_strategy(text: str, parts: tuple[str, list[str]]) -> None:
    assert split_steps(text) == parts


def test_steps_are_taken_once_and_in_their_order() -> None:
    every = ["clip", "trimmed", "average", "thresholds"]
    assert [step.name for step in parse_steps(every, "eo")] == every
    assert dict(parse_steps(["thresholds"], "eo")[0].settings)["metric"] == "eo"
    for wrong in (["median", "clip"], ["median", "krum"], ["average", "average"], ["thresholds", "average"]):
        with pytest.raises(InputError, match=r"steps must be taken once each, .* got " + r"\+".join(wrong)):
            parse_steps(wrong, "eo")
    with pytest.raises(InputError, match="unknown step 'clop'; did you mean 'clip'"):
        parse_steps(["clop"], "eo")


def test_a_step_has_a_text_and_values() -> None:
    assert Step("median", ()).text == "median"
    step = parse_steps(["krum:keep=2"], "eo")[0]
    assert step.text == "krum:attackers=1,keep=2"
    assert step["keep"] == 2


def test_the_base_of_a_spec_is_what_is_trained() -> None:
    spec = parse_spec("fedmom+clip+median+average+thresholds:metric=sp", "eo")
    assert spec.base.label == "fedmom+clip+median"
    assert spec.own.label == "fedmom"
    assert (spec.metric, spec.base.metric) == ("sp", None)
    assert parse_spec("fedval", "eo").metric == "eo"
    assert parse_spec("fedval+thresholds:metric=sp", "eo").recorded["of"] == "eo"
    assert "of" not in parse_spec("fedmom+thresholds:metric=sp", "eo").recorded
    assert "of" not in parse_spec("fedval+average", "eo").recorded


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a b", "s", "r"), "a strategy's name must be a word, got 'a b'"),
        (("1a", "s", "r"), "a strategy's name must be a word, got '1a'"),
        ((3, "s", "r"), "a strategy's name must be a text, got 3"),
        (("a", None, "r"), "a strategy's summary must be a text, got None"),
        (("a", "s", 3), "a strategy's reference must be a text, got 3"),
    ],
)
def test_what_a_strategy_is_called_is_checked(given, message: str) -> None:
    with pytest.raises(InputError, match=message):
        register(*given)


def test_short_names_show_how_strategies_differ() -> None:
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


def test_name_of_a_strategy_must_be_a_new_word() -> None:
    with pytest.raises(InputError, match="name must be new, got 'fedavg'"):
        register("fedavg", "s", "r")(lambda setup: fedavg())
    with pytest.raises(InputError, match="name must be a word, got 'a/b'"):
        register("a/b", "s", "r")


def test_hyperparameters_keep_every_digit() -> None:
    assert parse_spec("fedmom:beta=0.123456789", "sp").text == "fedmom:beta=0.123456789"
    close = [parse_spec(f"fedmom:beta=0.100000{digit}", "sp") for digit in (1, 2)]
    assert len(set(labels(close))) == 2
