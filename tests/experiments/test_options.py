"""The table of options, and that everything which lists options agrees with it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from fairfate.data import ENCODINGS, MISSING_GROUP, SOURCES, Columns
from fairfate.engine.attack import ATTACKS
from fairfate.errors import InputError
from fairfate.experiments.config import Config
from fairfate.experiments.run import run
from fairfate.fairness.metrics import FAIRNESS
from fairfate.options import SECTIONS, Execution, Options, options_of, read_options

OPTIONS = options_of(Options)


def test_every_field_is_an_option_with_help_and_a_section() -> None:
    assert list(OPTIONS) == [item.name for item in fields(Config)]
    assert all(option.help and option.section in SECTIONS for option in OPTIONS.values())
    keys = [option.key for option in OPTIONS.values()]
    assert len(set(keys)) == len(keys)


def test_choices_defaults_and_suggestions_are_those_of_the_code() -> None:
    assert OPTIONS["encode"].choices == ENCODINGS
    assert OPTIONS["missing_group"].choices == MISSING_GROUP
    assert (OPTIONS["min_group"].default, OPTIONS["missing_group"].default) == (
        Columns.min_group,
        Columns.missing_group,
    )
    assert set(OPTIONS["data"].suggestions) == {"synthetic", *SOURCES}
    assert set(OPTIONS["metric"].suggestions) == set(FAIRNESS)
    assert set(OPTIONS["attack"].suggestions) == set(ATTACKS)


# -- fairfate.run ------------------------------------------------------------------------------------------


def test_run_has_a_keyword_for_every_option_and_no_other() -> None:
    keywords = list(inspect.signature(run).parameters)
    spellings = [name for option in OPTIONS.values() for name in option.spellings]
    others = ["config", *options_of(Execution), "baselines", "refit", "progress"]
    assert sorted(keywords) == sorted([*OPTIONS, *spellings, *others])


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_keywords_of_run_have_the_types_of_the_table(option: Any) -> None:
    hint = get_type_hints(run)[option.name]
    parts = get_args(hint)
    kinds = {get_origin(part) or part for part in parts}
    assert type(None) in kinds  # the default
    if option.choices:
        assert Literal[option.choices] in parts
    elif get_origin(option.type) is tuple:
        assert Sequence in kinds
    else:
        assert option.type in kinds
    assert option.is_path == (Path in kinds or option.name == "model")


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "rounds must be >= 1, got 0"),
        ({"epochs": 10**6}, "epochs must be <= 10,000, got 1000000"),
        ({"l2": -0.5}, r"l2 must be in \[0, 100\], got -0.5"),
        ({"learning_rate": float("nan")}, "learning-rate must be > 0 and finite, got nan"),
        ({"min_cell": -1}, "min-cell must be >= 0, got -1"),
        ({"protocol": "both"}, "protocol must be one of paper|published, got 'both'"),
        ({"encode": "hot"}, "encode must be one of auto|onehot|ordinal|none, got 'hot'"),
    ],
)
def test_a_config_out_of_range_cannot_be_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        Config(**values)


def test_execution_is_checked_too() -> None:
    with pytest.raises(InputError, match="jobs must be >= 1, got 0"):
        Execution(jobs=0)
    with pytest.raises(InputError, match="x: force must be true or false, got 1"):
        read_options({"force": 1}, "x", options_of(Execution).values())
