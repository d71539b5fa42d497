"""Settings: what they are if nobody says otherwise, what they may be, and how texts are read."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.strategies import STEPS, Choice, MetricSetting, Number, ObjectiveSetting, entries, parse_spec
from fairfate.strategies.settings import Setting, read_settings, resolve_settings, split_outside
from fairfate.strategies.steps import Average, Step, parse_steps, split_steps

SETTINGS = {
    "afl": {"rate": "0.01 in [0, 100]", "start": "rows one of rows|equal"},
    "dual_reweighing": {"metric": "the run's", "rate": "1 in [0, 100]", "keep": "0.8 in [0, 1]"},
    "fair_acc_avg": {
        "metric": "the run's",
        "alpha": "0.5 in (0, 1]",
        "against": "groups one of groups|overall",
        "weights": "rows one of rows|equal",
        "min_mcc": "0.05 in [-1, 1]",
    },
    "fair_avg": {
        "metric": "the run's",
        "alpha": "0.5 in (0, 1]",
        "against": "groups one of groups|overall",
        "weights": "rows one of rows|equal",
        "min_mcc": "0.05 in [-1, 1]",
    },
    "fair_best": {
        "metric": "the run's",
        "against": "groups one of groups|overall",
        "min_mcc": "0.05 in [-1, 1]",
    },
    "fair_fate": {
        "metric": "the run's",
        "lam0": "0.1 in [0, 1]",
        "rho": "0.05 in [0, 1]",
        "max": "0.9 in [0, 1]",
        "beta0": "0.9 in [0, 1)",
        "momentum": "decaying one of none|constant|decaying",
        "growth": "exponential one of constant|linear|exponential",
        "min_mcc": "0 in [0, 1], guarded 0.05, later",
        "keep": "0 in [0, 1], guarded 0.8, later",
    },
    "fairbatch": {"metric": "the run's", "alpha": "0.005 in [0, 1]"},
    "fairfed": {
        "metric": "the run's",
        "beta": "1 >= 0",
        "variant": "paper one of paper|exp",
        "local": "reweigh one of reweigh|none",
    },
    "fairgrad": {
        "metric": "the run's",
        "rate": "0.01 in [0, 10]",
        "epsilon": "0 in [0, 1]",
        "floor": "-1 in [-100, 1]",
    },
    "fedadam": {
        "rate": "0.1 in [0, 1000]",
        "beta1": "0.9 in [0, 1)",
        "beta2": "0.99 in [0, 1)",
        "tau": "0.001 in (0, 1000]",
        "correction": "none one of none|flower",
    },
    "fedavg": {},
    "fedavg_gr": {"counts": "round one of round|once, later"},
    "fedavg_lr": {},
    "feddemon": {"beta0": "0.9 in [0, 1)"},
    "fedfb": {
        "metric": "the run's",
        "alpha": "0.3 in [0, 10]",
        "step": "0.005 in [0, 1]",
        "surrogate": "loss one of loss|error",
        "gaps": "means one of means|sums",
    },
    "fedgft": {"metric": "the run's", "gamma": "1 in [0, 1000]", "penalty": "square one of square|absolute"},
    "fedminmax": {"rate": "0.01 in [0, 100]", "risks": "groups one of groups|cells"},
    "fedmom": {"beta": "0.9 in [0, 1)"},
    "fedprox": {"mu": "0.1 in [0, 1000]"},
    "fedval": {
        "metric": "the run's",
        "floor": "0.001 in [0, 1], later",
        "sharpness": "1 in [0, 100], later",
        "min_mcc": "0 in [0, 1], guarded 0.05, later",
    },
    "fedyogi": {
        "rate": "0.01 in [0, 1000]",
        "beta1": "0.9 in [0, 1)",
        "beta2": "0.99 in [0, 1)",
        "tau": "0.001 in (0, 1000]",
    },
    "ffalm": {
        "beta": "1 in [0, 100]",
        "rate": "0.2 in [0, 100]",
        "growth": "1.05 in [1, 2]",
        "labels": "all one of all|favourable",
    },
    "prejudice": {"eta": "1 in [0, 1000]", "scope": "client one of batch|client|global"},
    "qffl": {"q": "0.1 in [0, 100]"},
    "server_step": {"metric": "the run's", "rho": "0.3 in [0, 10]", "target": "1 in [0, 1]"},
    "+clip": {"norm": "0 >= 0"},
    "+median": {},
    "+trimmed": {"share": "0.2 in [0, 0.5)"},
    "+krum": {"attackers": "1 in [0, 1e+06], whole", "keep": "1 in [1, 1e+06], whole"},
    "+average": {"share": "0.5 in (0, 1]"},
    "+thresholds": {
        "metric": "the run's",
        "tolerance": "0.02 in [0, 1]",
        "keep": "0.8 in [0, 1]",
        "against": "own one of own|best",
        "from": "validation one of validation|clients",
    },
}
"""Defaults and ranges; results hang on the former. "later" ones are written down only where they differ, and
"guarded" is the default for users' own data."""


def said(setting: Setting) -> str:
    if setting.default is None:
        return "the run's"
    if isinstance(setting, Choice):
        found = f"{setting.default} {setting.rule}"
    else:
        assert isinstance(setting, Number)
        found = f"{setting.default:g} {setting.rule}" + (", whole" if setting.whole else "")
        found += f", guarded {setting.guarded:g}" if setting.guarded is not None else ""
    return found + (", later" if setting.later else "")


def test_strategies_and_steps_have_these_settings() -> None:
    known = {
        entry.name: entry.settings for entry in entries() if entry.build.__module__.startswith("fairfate.")
    }
    known |= {f"+{name}": entry.settings for name, entry in STEPS.items()}
    assert {
        name: {key: said(setting) for key, setting in settings.items()} for name, settings in known.items()
    } == SETTINGS


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
        with pytest.raises(InputError) as found:
            number.parse(value, "x")
        assert str(found.value) == f"x must be {rule}, got {float(value):g}"
    with pytest.raises(InputError) as found:
        number.parse("a", "x")
    assert str(found.value) == f"x must be a number {rule}, got 'a'"


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
    with pytest.raises(InputError, match="step 'n:a=1,a=2' must name each setting once, got 'a' twice"):
        read_settings("a=1,a=2", "n:a=1,a=2", "step")


SOME = {
    "metric": ObjectiveSetting(""),
    "rate": Number(0.5, ""),
    "new": Number(0.25, "", later=True),
    "watch": Number(0.0, "", later=True, guarded=0.75),
    "kind": Choice("a", "", ("a", "b"), later=True),
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
def test_later_settings_are_left_out_at_their_default_and_guards_are_said(
    given: dict, guard: bool, expected: dict
) -> None:
    assert dict(resolve_settings("n", SOME, given, "eo", "strategy", guard=guard)) == expected


def test_unknown_settings_are_named() -> None:
    with pytest.raises(InputError, match="unknown setting of n 'rat'; did you mean 'rate'"):
        resolve_settings("n", SOME, {"rat": 1}, "eo", "strategy")
    with pytest.raises(InputError, match="step 'n' has no settings, got 'rate'"):
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


@pytest.mark.parametrize(
    ("share", "rounds", "first"), [(1.0, 10, 1), (0.5, 10, 6), (0.01, 10, 10), (0.25, 10, 9), (0.75, 3, 2)]
)
def test_an_average_begins_so_many_rounds_before_the_end(share: float, rounds: int, first: int) -> None:
    """A share of the rounds, to the nearest even number of two, and one at least."""
    assert Average(share, rounds).first == first


def test_an_average_is_of_the_models_from_its_first_round_on() -> None:
    average = Average(0.5, 4)
    models = [np.float32([t, 10 * t]) for t in (1, 2, 3, 4)]
    assert average.add(1, models[0]) is models[0]
    assert average.add(2, models[1]) is models[1]
    assert average.add(3, models[2]).tolist() == [3, 30]
    found = average.add(4, models[3])
    assert found.tolist() == [3.5, 35]
    assert found.dtype == np.float32
    assert average.count == 2


def test_the_base_of_a_spec_is_what_is_trained() -> None:
    spec = parse_spec("fedmom+clip+median+average+thresholds:metric=sp", "eo")
    assert spec.base.label == "fedmom+clip+median"
    assert spec.own.label == "fedmom"
    assert (spec.metric, spec.base.metric) == ("sp", None)
    assert parse_spec("fedval", "eo").metric == "eo"
    assert parse_spec("fedval+thresholds:metric=sp", "eo").recorded["of"] == "eo"
    assert "of" not in parse_spec("fedmom+thresholds:metric=sp", "eo").recorded
    assert "of" not in parse_spec("fedval+average", "eo").recorded
