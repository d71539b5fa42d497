"""What a config may hold: checked before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.experiments.config import (
    PROVENANCE,
    Config,
    Shape,
    from_mapping,
    parse_privileged,
)
from fairfate.options import MOST_SEEDS, parse_seeds, read_options

OWN: dict[str, Any] = {"data": "own.csv", "target": "y", "sensitive": ("sex",)}


def columns(**more: Any) -> Any:
    return Config(**{**OWN, **more}).columns


# -- columns -----------------------------------------------------------------------------------------------


def test_columns_have_the_given_roles() -> None:
    result = columns(
        favourable="1",
        sensitive=("sex", "age:30,60"),
        privileged=("sex=m",),
        client_column="site",
        drop=("a",),
        categorical=("b",),
        keep=("c",),
        min_group=7,
        missing_group="drop",
    )
    assert (result.target, result.favourable, result.sensitive) == ("y", "1", ("sex", "age"))
    assert [name for name, _ in result.bands] == ["age"]
    assert result.privileged == (("sex", "m"),)
    assert (result.client, result.drop, result.categorical, result.keep) == ("site", ("a",), ("b",), ("c",))
    assert (result.min_group, result.missing_group) == (7, "drop")


def test_the_column_of_clients_may_be_that_of_the_partition() -> None:
    assert columns(partition="column:site").client == "site"
    assert columns(partition="column:site", client_column="place").client == "place"
    assert columns(partition="random").client is None
    assert columns().client is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_group": -1}, "min-group must be >= 0, got -1"),
        ({"missing_group": "x"}, r"missing-group must be one of .*\|.*, got 'x'"),
        ({"privileged": ("a", "b")}, "privileged must be given once for a column, got a, b"),
    ],
)
def test_columns_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        columns(**given)
    assert columns(min_group=0).min_group == 0


@pytest.mark.parametrize(
    ("given", "sensitive", "expected"),
    [
        ((), ("sex",), ()),
        (("m",), ("sex",), (("sex", "m"),)),
        (("sex=m",), ("sex",), (("sex", "m"),)),
        (("a=b",), ("sex",), (("sex", "a=b"),)),  # no column of that name
        (("race=w", "sex=m"), ("sex", "race"), (("race", "w"), ("sex", "m"))),
        (("sex=a=b",), ("sex", "race"), (("sex", "a=b"),)),
    ],
)
def test_privileged_values_are_read(given: Any, sensitive: Any, expected: Any) -> None:
    assert parse_privileged(given, sensitive) == expected


@pytest.mark.parametrize(
    ("given", "sensitive", "message"),
    [
        (
            ("m",),
            ("sex", "race"),
            "privileged must be COLUMN=VALUE with one of the columns sex, race, got 'm'",
        ),
        (("age=m",), ("sex", "race"), "must be COLUMN=VALUE with one of the columns sex, race, got 'age=m'"),
        (("m",), (), "privileged must be COLUMN=VALUE"),
        (("sex=m", "sex=f"), ("sex", "race"), "must be given once for a column, got sex=m, sex=f"),
    ],
)
def test_privileged_values_that_fit_no_column_are_named(given: Any, sensitive: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_privileged(given, sensitive)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"data": "synthetic", "target": "y"},
            "target must be left out for 'synthetic', whose columns are known",
        ),
        (
            {"data": "synthetic:rows=9", "client_column": "c"},
            "client-column must be left out for 'synthetic'",
        ),
        ({"data": "synthetic", "categorical": ("a", "b")}, "categorical must be left out .* got 'a, b'"),
        ({"data": "compas", "favourable": "1"}, "favourable must be left out for 'compas'"),
        ({"data": "own.csv", "schema": "s.json", "drop": ("a",)}, "drop must be left out for 's.json'"),
    ],
)
def test_suggestions_do_not_repeat_given_columns(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _ = Config(**given).columns
    assert Config(data="synthetic").columns is None


@pytest.mark.parametrize("key", ["test", "schema"])
def test_files_of_the_server_come_with_validation(key: str) -> None:
    with pytest.raises(InputError, match=f"{key} must be left out without validation, got 'a.csv'"):
        _ = Config(**{key: "a.csv"}).server_files
    assert Config().server_files is None
    kept_rows = Config(validation="v.csv", **{key: "a.csv"}).server_files
    assert kept_rows is not None
    assert kept_rows.validation == "v.csv"


# -- seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [(1, (1,)), ("3", (1, 2, 3)), (" 2 ", (1, 2)), ("7,", (7,)), ("3, 5,8", (3, 5, 8)), ("0,1", (0, 1))],
)
def test_seeds_are_read(text: str | int, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "seeds must be a number >= 1 or a list such as 3,5,8, got ''"),
        (",", "seeds must be a number >= 1 or a list"),
        ("a", "seeds must be a number >= 1 or a list"),
        ("1,b", "seeds must be a number >= 1 or a list"),
        ("-1", "seeds must be a number >= 1 or a list"),
        ("²", "seeds must be a number >= 1 or a list"),
        ("0", "seeds must be >= 1, got 0"),
        (MOST_SEEDS + 1, f"seeds must be at most {MOST_SEEDS:,} in number"),
        ("9" * 5000, "seeds must have at most [0-9]+ digits"),
        ("1," + "9" * 5000, "seeds must have at most [0-9]+ digits"),
    ],
)
def test_invalid_seeds_are_reported(text: str | int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_seeds(text)


def test_as_many_seeds_as_there_may_be() -> None:
    assert len(parse_seeds(MOST_SEEDS)) == MOST_SEEDS


# -- keys and values ---------------------------------------------------------------------------------------


def test_keys_are_those_of_the_command_line() -> None:
    config = from_mapping(
        {
            "per-round": np.int64(3),
            "batch_size": 7,
            "learning-rate": 1,
            "strategy": ["fedavg", "fedmom"],
            "plugin": Path("a.py"),
            "seeds": range(3, 5),
            "hidden": [32, 16],
            "favourable": 1,
            "rounds": None,
            PROVENANCE: {"version": "1"},
        }
    )
    assert (config.per_round, config.batch_size, config.learning_rate) == (3, 7, 1.0)
    assert isinstance(config.learning_rate, float)
    assert (config.strategies, config.plugins, config.seeds) == (("fedavg", "fedmom"), ("a.py",), (3, 4))
    assert (config.hidden, config.favourable, config.rounds) == ("32,16", "1", None)
    assert read_options({"per-round": 1, "strategy": "a"}, "x") == {"per_round": 1, "strategies": ("a",)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({PROVENANCE: 3}, f"config: {PROVENANCE} must be a table, got 3"),
        ({"ronds": 3}, "unknown key in config 'ronds'; did you mean 'rounds'"),
        ({"strategy": "a", "strategies": "b"}, "config: each key must be given once, got 'strategies' again"),
        ({"per-round": 1, "per_round": 2}, "each key must be given once, got 'per_round' again"),
        ({"model": "m.py", "hidden": 3}, "config: hidden must be left out with model, got '3'"),
        ({"rounds": "3"}, "config: rounds must be a whole number, got '3'"),
        ({"rounds": True}, "config: rounds must be a whole number, got True"),
        ({"rounds": 1.5}, r"config: rounds must be a whole number, got 1\.5"),
        ({"learning-rate": "x"}, "config: learning-rate must be a number, got 'x'"),
        ({"learning-rate": 10**400}, "config: learning-rate must be a number, got one of 401 digits"),
        ({"metric": 3}, "config: metric must be a text, got 3"),
        ({"seeds": [1, "2"]}, "config: each seed must be a whole number, got '2'"),
        ({"seeds": [True]}, "config: each seed must be a whole number, got True"),
        ({"drop": [["a"]]}, r"config: drop must be a text or a list of texts, got \['a'\]"),
        ({"drop": [None]}, "config: drop must be a text or a list of texts, got None"),
        ({"data": ""}, "config: data must not be empty, got ''"),
        ({"metric": "\ud800"}, "config: metric must be in UTF-8"),
        ({"metric": "a\0b"}, "config: metric must be without NUL characters"),
    ],
)
def test_values_that_do_not_fit_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_mapping(given)


def test_empty_text_is_not_a_path_but_may_be_another_value() -> None:
    assert from_mapping({"target": ""}).target == ""


@pytest.mark.parametrize("encode", ["onehot", "ordinal"])
def test_training_defaults_depend_on_the_encoding(encode: str) -> None:
    usual = Config().training(Shape(encode), 4)
    result = (usual.rounds, usual.epochs, usual.batch_size, usual.learning_rate)
    assert result == ((200, 2, 20, 0.03) if encode == "onehot" else (100, 10, 10, 0.01))
    assert usual.per_round == 4
    training = Config(rounds=1, epochs=3, batch_size=5, learning_rate=0.5).training(Shape(encode), 4)
    assert (training.rounds, training.epochs, training.batch_size, training.learning_rate) == (1, 3, 5, 0.5)
    assert (usual.l2, usual.early_stopping) == (0.0, 0)


@pytest.mark.parametrize(
    ("rows", "columns", "hidden"),
    [(280, 14, "10"), (279, 14, "0"), (6000, 4000, "0"), (1_200_000, 14, "10"), (0, 4000, "10")],
)
def test_wide_files_get_no_hidden_layer(rows: int, columns: int, hidden: str) -> None:
    assert Shape("onehot", rows, columns, 10).hidden == hidden
    assert Shape("ordinal", rows, columns, 10).hidden == "10"


@pytest.mark.parametrize(("columns", "rate"), [(15, 0.03), (30, 0.015), (100, 0.0045), (1000, 0.003)])
def test_hidden_layers_learn_more_slowly_from_many_columns(columns: int, rate: float) -> None:
    shape = Shape("onehot", 100_000, columns, 10)
    assert shape.training(is_deep=True).learning_rate == rate
    assert shape.training(is_deep=False).learning_rate == 0.03
    assert Shape("ordinal", 100_000, columns, 10).training(is_deep=True).learning_rate == 0.01
    training = Config(learning_rate=0.5).training(shape, 3)
    assert training.learning_rate == 0.5


def test_only_wide_files_without_a_hidden_layer_have_a_weight_decay() -> None:
    wide, long = Shape("onehot", 6000, 4000, 10), Shape("onehot", 100_000, 40, 10)
    assert wide.training(is_deep=False).l2 == 0.01
    assert wide.training(is_deep=True) == Shape("onehot").training(is_deep=True)
    assert long.training(is_deep=False).l2 == 0
    assert Shape("ordinal", 6000, 4000, 10).training(is_deep=False).l2 == 0
    assert Config(l2=0.0).training(wide, 3, is_deep=False).l2 == 0


@pytest.mark.parametrize(("rows", "batch"), [(0, 20), (40_000, 20), (120_000, 60), (1_200_000, 600)])
def test_clients_with_many_rows_get_larger_batches(rows: int, batch: int) -> None:
    assert Shape("onehot", rows, 14, 10).training(is_deep=True).batch_size == batch
    assert Shape("ordinal", rows, 14, 10).training(is_deep=True).batch_size == 10


# -- spellings ---------------------------------------------------------------------------------------------


def test_favorable_is_the_same_key_as_favourable() -> None:
    assert from_mapping({"favorable": "yes"}).favourable == "yes"
    with pytest.raises(InputError, match="each key must be given once, got 'favorable' again"):
        from_mapping({"favourable": "yes", "favorable": "no"})
