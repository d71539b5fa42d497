"""A table of people: inputs, label and group of each row, as numbers, with their names."""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.encode import Encoder
from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing, unknown

MISSING = "(missing)"
OTHERS = "(others)"
MOST_GROUPS = 100
LARGEST = 1e30
TRAINING, VALIDATION, TEST = range(3)


@dataclass(frozen=True)
class Columns:
    """What the columns of a user's file mean."""

    target: str
    sensitive: tuple[str, ...]
    """One column or several, whose combinations are the groups."""
    favourable: str | None = None
    privileged: tuple[tuple[str, str], ...] = ()
    """For some sensitive columns, the value to set against all others."""
    client: str | None = None
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """Rows ready to be split, encoded and given to clients."""

    name: str
    features: NDArray[np.float64]
    """(rows, inputs): numbers as they are (NaN where missing), categories as their index in sorted order."""
    label: NDArray[np.int8]
    """(rows,) 1 is the favourable outcome."""
    group: NDArray[np.int16]
    """(rows,) which of the groups."""
    feature_names: tuple[str, ...]
    label_names: tuple[str, str]
    grouping: Groups
    """What the groups are: the values of the sensitive columns."""
    categories: Mapping[str, tuple[str, ...]]
    client: NDArray[np.int64] | None = None
    """(rows,) index into ``client_names``, where the file says who holds a row."""
    client_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What was done to the values, for the user to read."""
    target: str = ""
    source: str | None = None
    """The public dataset it is, if it is one; a file's name says nothing."""
    part: NDArray[np.int8] | None = None
    """(rows,) TRAINING, VALIDATION or TEST, where the files say so; else every seed splits anew."""
    encoder: Encoder | None = None
    """How inputs are scaled, where that was agreed on beforehand; else each seed learns it."""

    def __len__(self) -> int:
        return len(self.label)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.grouping)

    @property
    def group_names(self) -> tuple[str, ...]:
        """Of the groups."""
        return self.grouping.names

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return self.grouping.attributes

    @property
    def cell(self) -> NDArray[np.int64]:
        """(rows,) the (group, label) cell: ``2 * group + label``."""
        return self.group.astype(np.int64) * 2 + self.label

    @property
    def cell_names(self) -> list[str]:
        """Names of the cells, for tables."""
        return [f"{group}, {label}" for group in self.group_names for label in self.label_names]

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all values and names."""
        digest = hashlib.sha256()
        categories = [text for name in self.categories for text in (name, *self.categories[name])]
        for names in (self.feature_names, self.label_names, self.group_names, self.client_names, categories):
            digest.update("\0".join(names).encode() + b"\1")
        scale = () if self.encoder is None else (self.encoder.low, self.encoder.span, self.encoder.median)
        for array in (self.features, self.label, self.group, self.client, self.part, *scale):
            if array is not None:
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def table_from_frame(frame: pd.DataFrame, columns: Columns, name: str = "data") -> Table:
    """Turn a frame of mixed types into a `Table`.

    Text becomes categories (sorted; a missing value is one more category), numbers stay (a missing one
    is later replaced by the median of the training rows), and the sensitive column stays an input, as the
    group's index.
    """
    _check_columns(frame, columns)
    label, label_names = _label(frame[columns.target], columns)
    coded = {name: _group(frame[name], columns) for name in columns.sensitive}
    grouping, group = _crossed(coded)
    notes: list[str] = []
    inputs: dict[str, NDArray[np.float64]] = {}
    categories: dict[str, tuple[str, ...]] = {}
    client: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    if columns.client is not None:
        client, names_found = complete(frame[columns.client], "client-column")
        client_names = tuple(names_found)
    for column in frame.columns:
        if column in {columns.target, columns.client, *columns.drop}:
            continue
        if column in coded:
            inputs[column] = coded[column][0].astype(np.float64)
        else:
            inputs[column], names = _input(frame[column], column in columns.categorical)
            if names is not None:
                categories[column] = names
        many = len(categories.get(column, ()))
        if many > max(20, len(frame) / 2):
            notes.append(
                f"{column}: {many} different texts in {len(frame)} rows, as on an identifier; --drop it?"
            )
        missing = int(frame[column].isna().sum())
        if missing:
            how = "a category" if column in categories else "imputed by the training median"
            notes.append(f"{column}: {missing} missing values, {how}")
    if not inputs:
        raise InputError(f"data must have a column besides the target, got {listing(frame.columns)}")
    return Table(
        name=name,
        features=np.stack(list(inputs.values()), axis=1),
        label=label,
        group=group,
        feature_names=tuple(inputs),
        label_names=label_names,
        grouping=grouping,
        categories=categories,
        client=client,
        client_names=client_names,
        notes=tuple(notes),
        target=columns.target,
    )


def _crossed(
    coded: Mapping[str, tuple[NDArray[np.int16], tuple[str, ...]]],
) -> tuple[Groups, NDArray[np.int16]]:
    """The groups that the sensitive columns make together, and each row's."""
    if len(coded) == 1:
        ((name, (codes, values)),) = coded.items()
        return Groups.single(name, values), codes
    crossed, group = Groups.cross(
        tuple(coded), [values for _, values in coded.values()], [codes for codes, _ in coded.values()]
    )
    if len(crossed) > MOST_GROUPS:
        raise InputError(
            f"sensitive columns must make at most {MOST_GROUPS} groups together, got {len(crossed)} of"
            f" {listing(coded)}"
        )
    return crossed, group


def _check_columns(frame: pd.DataFrame, columns: Columns) -> None:
    named = {
        "target": [columns.target],
        "sensitive": columns.sensitive,
        "client-column": [] if columns.client is None else [columns.client],
        "drop": columns.drop,
        "categorical": columns.categorical,
    }
    for argument, names in named.items():
        for column in names:
            if column not in frame.columns:
                raise unknown(f"column for {argument}", column, frame.columns)
    for argument in ("sensitive", "client-column", "drop", "categorical"):
        if columns.target in named[argument]:
            raise InputError(f"{argument} must be another column than target, got '{columns.target}'")
    twice = [name for name in columns.sensitive if columns.sensitive.count(name) > 1]
    if twice:
        raise InputError(f"sensitive must name each column once, got '{twice[0]}' twice")
    for column, _ in columns.privileged:
        if column not in columns.sensitive:
            raise unknown("sensitive column for privileged", column, columns.sensitive)


class _Words(NamedTuple):
    """A column as text: the distinct words in sorted order, and each row's index (-1 where missing)."""

    codes: NDArray[np.int64]
    names: list[str]


def words(values: pd.Series[Any]) -> _Words:
    """A column as text."""
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:
        raise InputError(f"column '{values.name}' must hold numbers or texts, got lists or records") from None
    spelled = [_word(value) for value in distinct]
    names = sorted(set(spelled))
    place = {name: number for number, name in enumerate(names)}
    index = np.array([place[word] for word in spelled] + [-1])
    return _Words(index[codes], names)


def _word(value: object) -> str:
    """A cell as text; whole numbers as people type them, 1 and not 1.0."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def complete(values: pd.Series[Any], argument: str) -> _Words:
    """A column as text that has a value in every row."""
    found = words(values)
    missing = int((found.codes < 0).sum())
    if missing:
        raise InputError(
            f"{argument} must have a value in every row, got {missing} missing in column '{values.name}'"
        )
    return found


def _match(wanted: str, names: list[str], argument: str, column: object) -> int:
    """Where a value typed by the user stands among the column's (1.0 finds 1)."""
    try:
        plain = _word(float(wanted))
    except ValueError:
        plain = wanted
    for word in (wanted, plain):
        if word in names:
            return names.index(word)
    folded = [name.casefold() for name in names]
    if folded.count(wanted.casefold()) == 1:
        return folded.index(wanted.casefold())
    raise InputError(f"{argument} must be a value of column '{column}' ({listing(names)}), got '{wanted}'")


def _label(values: pd.Series[Any], columns: Columns) -> tuple[NDArray[np.int8], tuple[str, str]]:
    codes, names = complete(values, "target")
    if len(names) != 2:
        raise InputError(
            f"target must have two values, got {len(names)} in column '{values.name}': {listing(names)}"
        )
    if columns.favourable is not None:
        good = _match(columns.favourable, names, "favourable", values.name)
    elif names == ["0", "1"]:
        good = 1
    else:
        raise InputError(
            f"favourable must name the good outcome of column '{values.name}' ({listing(names)}), got none"
        )
    return (codes == good).astype(np.int8), (names[1 - good], names[good])


def _group(values: pd.Series[Any], columns: Columns) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    codes, names = complete(values, "sensitive")
    chosen = dict(columns.privileged).get(str(values.name))
    if chosen is None and len(names) > MOST_GROUPS:
        raise InputError(
            f"sensitive must have at most {MOST_GROUPS} values, got {len(names)} in column '{values.name}';"
            " name one with --privileged to set it against the others"
        )
    if len(names) < 2:
        raise InputError(
            f"sensitive must have at least two values, got one in column '{values.name}': {names[0]}"
        )
    if chosen is None:
        return codes.astype(np.int16), tuple(names)
    privileged = _match(chosen, names, "privileged", values.name)
    rest = [name for name in names if name != names[privileged]]
    others = rest[0] if len(rest) == 1 else OTHERS
    return (codes == privileged).astype(np.int16), (others, names[privileged])


def _categories(values: pd.Series[Any]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    codes, names = words(values)
    if (codes < 0).any():  # a missing value is a category like any other, in its sorted place
        place = bisect(names, MISSING)
        codes = np.where(codes < 0, place, codes + (codes >= place))
        names.insert(place, MISSING)
    return codes.astype(np.float64), tuple(names)


def _input(values: pd.Series[Any], categorical: bool) -> tuple[NDArray[np.float64], tuple[str, ...] | None]:
    """One input column as numbers, and its categories if it is text."""
    if not categorical and (
        pd.api.types.is_numeric_dtype(values.dtype) or pd.api.types.is_bool_dtype(values.dtype)
    ):
        return finite(values.to_numpy(dtype=np.float64, na_value=np.nan), values.name), None
    if not categorical:
        numbers = _numbers(values)
        if numbers is not None:
            return finite(numbers, values.name), None
    return _categories(values)


def _numbers(values: pd.Series[Any]) -> NDArray[np.float64] | None:
    """Numbers that are stored as texts or decimals; None if the column is text.

    A column that is mostly numbers with some text in it is a mistake more often than a category.
    """
    codes, names = words(values)
    parsed = pd.to_numeric(pd.Series(names, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
    rows = np.flatnonzero(np.append(np.isnan(parsed), False)[codes])
    if 0 < len(rows) < (codes >= 0).sum() / 2:
        raise InputError(
            f"column '{values.name}' must be all numbers or all text, got '{names[codes[rows[0]]]}' in row"
            f" {rows[0] + 1} among numbers; mend the value, or keep the column as text with"
            f" --categorical {values.name}"
        )
    if len(rows) or not names:
        return None
    return np.append(parsed, np.nan)[codes]


def finite(numbers: NDArray[np.float64], column: object) -> NDArray[np.float64]:
    """The numbers, if they are finite and of a usable size; NaN stands for a missing one."""
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        row = int(infinite[0])
        raise InputError(
            f"column '{column}' must be finite, got {numbers[row]:g} in row {row + 1}"
            f" ({len(infinite)} such values)"
        )
    huge = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(huge):
        row = int(huge[0])
        raise InputError(
            f"column '{column}' must stay within ±{LARGEST:g}, got {numbers[row]:g} in row {row + 1}"
        )
    return numbers
