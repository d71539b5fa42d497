"""Inputs, labels, sensitive features and clients that are given apart, row by row, as one table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import Columns, free_name, spell
from fairfate.data.encoder import ONEHOT
from fairfate.data.groups import too_few
from fairfate.data.table import Table, table_from_frame
from fairfate.errors import InputError, check, unknown

SENSITIVE = "sensitive_feature"


def is_frame(values: Any) -> bool:
    """Whether it is a pandas or polars DataFrame, or something that becomes one."""
    return isinstance(values, pd.DataFrame) or (hasattr(values, "columns") and hasattr(values, "to_pandas"))


def as_pandas(frame: Any, what: str = "X") -> pd.DataFrame:
    """A DataFrame of any kind as one of pandas; its rows are numbered from 0, its columns named by texts."""
    found = frame if isinstance(frame, pd.DataFrame) else pd.DataFrame(frame.to_pandas())
    found = found.set_axis([str(name) for name in found.columns], axis=1).reset_index(drop=True)
    twice = found.columns[found.columns.duplicated()]
    if len(twice):
        raise InputError(f"{what} must have columns of different names, got '{twice[0]}' twice")
    return found


def has_text(values: Any) -> bool:
    """Whether an array or a list of rows has a text in it."""
    if not isinstance(values, np.ndarray | list | tuple):
        return False
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return False
    return array.dtype.kind in "US" or (
        array.dtype.kind == "O" and any(isinstance(value, str) for value in array.flat)
    )


def named_columns(given: Any, inputs: pd.DataFrame, known: Sequence[str] | None = None) -> Any:
    """The columns of X that sensitive features name, or what is given, where it holds no names.

    Parameters
    ----------
    given : the name of a column, a list of names, or anything that `sensitive_frame` takes
    inputs : X
    known : the columns' names as they were before; a list of others holds values
    """
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return given
    present = [name in inputs.columns for name in names]
    if isinstance(given, str) or (any(present) and len(names) != len(inputs)):
        for name, is_present in zip(names, present, strict=True):
            if not is_present:
                raise unknown("column of X in sensitive_features", name, inputs.columns)
    is_list_of_names = all(present) and 0 < len(names) == len(set(names))
    is_known = isinstance(given, str) or known is None or sorted(names) == sorted(known)
    return inputs[names] if is_list_of_names and is_known else given


def sensitive_frame(given: Any, rows: int, known: Sequence[str] | None = None) -> pd.DataFrame:
    """Sensitive features as a frame with a column for each.

    Parameters
    ----------
    given : one value for each row, or a frame or array of several columns
    rows : how many rows there must be
    known : the columns' names as they were before; an array's columns are these in their order
    """
    frame = as_pandas(given, "sensitive_features") if is_frame(given) else _columns(given)
    if known is not None and is_frame(given) and (len(known) > 1 or known[0] in frame.columns):
        for name in known:
            if name not in frame.columns:
                raise unknown("column of sensitive_features: missing", name, frame.columns)
        frame = frame[list(known)]
    wanted = frame.shape[1] if known is None else len(known)
    check(
        len(frame) == rows and frame.shape[1] == wanted >= 1,
        f"sensitive_features must have {wanted or 1} column(s) with a value for each of the {rows} rows",
        f"shape {frame.shape}",
    )
    return frame if known is None else frame.set_axis(list(known), axis=1)


def _columns(given: Any) -> pd.DataFrame:
    """Sensitive features that are no frame."""
    if hasattr(given, "to_pandas") and not isinstance(given, pd.Series):
        given = given.to_pandas()
    if isinstance(given, pd.Series | pd.Index | pd.Categorical):
        name, values = getattr(given, "name", None), pd.Series(given).reset_index(drop=True)
        return pd.DataFrame({SENSITIVE if name is None else str(name): values})
    array = np.asarray(given, dtype=None if isinstance(given, np.ndarray) else object)
    check(array.ndim in (1, 2), "sensitive_features must have one or two dimensions", array.ndim)
    array = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 1)
    several = array.shape[1] > 1
    names = [f"{SENSITIVE}_{number}" if several else SENSITIVE for number in range(array.shape[1])]
    return pd.DataFrame(array, columns=names).infer_objects()


@dataclass(frozen=True, eq=False)
class Attributes:
    """The sensitive features that tell people apart, under names that are no other column's."""

    given: tuple[str, ...]
    """Their names as they were given, those with one value too."""
    kept: tuple[int, ...]
    """Which of them have several values."""
    names: tuple[str, ...]
    """What these are called."""

    @classmethod
    def of(cls, frame: pd.DataFrame, inputs: pd.DataFrame, label: NDArray[np.int8]) -> Attributes:
        """Find those that have several values; one that is also an input keeps its name."""
        kept = tuple(place for place, name in enumerate(frame) if _several(frame[name], label))
        names: list[str] = []
        for place in kept:
            name = str(frame.columns[place])
            shared = name in inputs.columns and same(inputs[name], frame[name])
            names.append(name if shared else free_name(name, [*inputs.columns, *names]))
        return cls(tuple(map(str, frame.columns)), kept, tuple(names))

    def select(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Those that tell people apart, by their names."""
        return frame.iloc[:, list(self.kept)].set_axis(list(self.names), axis=1)


def _several(values: pd.Series[Any], label: NDArray[np.int8]) -> bool:
    """Whether a sensitive feature has two values at least; few missing ones are none."""
    missing = values.isna().to_numpy()
    every = pd.Series(label)
    group = missing.any() and not too_few(every[missing], every)
    return int(values.nunique()) + bool(group) > 1


def same(one: pd.Series[Any], other: pd.Series[Any]) -> bool:
    """Whether two columns hold the same values, in whatever form."""
    return not (different(one, other)).any()


def different(one: pd.Series[Any], other: pd.Series[Any]) -> NDArray[np.bool_]:
    """(rows,) where two columns differ; missing values are alike."""
    first, second = one.astype(object).to_numpy(), other.astype(object).to_numpy()
    missing = one.isna().to_numpy(), other.isna().to_numpy()
    found = missing[0] != missing[1]
    present = ~(missing[0] | missing[1])
    found[present] = np.asarray(first[present] != second[present], dtype=bool)
    return np.asarray(found)


def table_from_arrays(
    inputs: pd.DataFrame,
    label: NDArray[np.int8],
    label_names: tuple[str, str],
    attributes: pd.DataFrame | None = None,
    clients: NDArray[Any] | None = None,
    *,
    keep: bool = False,
    target: str = "y",
) -> Table:
    """A table of rows whose parts are given apart; columns are encoded as those of files.

    Parameters
    ----------
    inputs : (rows, columns) what the model sees
    label : (rows,) 1 is the favourable outcome
    label_names : what the two outcomes are called
    attributes : the sensitive columns, as `Attributes.select` gives them; one group without them. Those that
        are no columns of the inputs are not seen by the model
    clients : who holds each row
    keep : take in columns that look like identifiers or are constant
    target : what to call the label
    """
    names = [str(name) for name in inputs.columns]
    apart = {} if attributes is None else {n: attributes[n] for n in attributes if n not in inputs.columns}
    taken = [*names, *map(str, apart)]
    target = free_name(target, taken)
    held = {} if clients is None else {free_name("clients", [*taken, target]): clients}
    frame = inputs.assign(**{str(name): of for name, of in apart.items()}, **{target: label}, **held)
    columns = Columns(
        target=target,
        favourable="1",
        sensitive=() if attributes is None else tuple(map(str, attributes.columns)),
        client=next(iter(held), None),
        drop=tuple(map(str, apart)),
        categorical=tuple(name for name in names if isinstance(inputs[name].dtype, pd.CategoricalDtype)),
        keep=tuple(names) if keep else (),
    )
    try:
        table = table_from_frame(frame, columns, "X", encode=ONEHOT, tidy=True)
    except InputError as error:
        raise InputError(_without_options(str(error))) from None
    notes = tuple(_without_options(note) for note in table.notes)
    return replace(table, label_names=label_names, notes=notes)


def _without_options(text: str) -> str:
    """A message without the options of the command line."""
    found = re.sub(r"; --keep NAME takes one in| \(--[\w-]+\)|, as by --sensitive [^;]*", "", text)
    return re.sub(r"; (name one with|mend the value).* --\w.*$", "", found)


def outcome_names(classes: Sequence[Any]) -> tuple[str, str]:
    """Two labels as texts that differ.

    >>> outcome_names([False, True]), outcome_names(["a", " a"])
    (('False', 'True'), ("'a'", "' a'"))
    """
    first, second = (spell(label) for label in classes)
    if first == second:
        first, second = (repr(label) for label in classes)
    return first, second
