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
from fairfate.data.groups import is_too_small
from fairfate.data.table import Table, table_from_frame
from fairfate.errors import InputError, check, unknown

SENSITIVE = "sensitive_feature"


def is_frame(values: Any) -> bool:
    """Whether it is a pandas or polars DataFrame, or something that becomes one."""
    return isinstance(values, pd.DataFrame) or (hasattr(values, "columns") and hasattr(values, "to_pandas"))


def as_pandas(frame: Any, what: str = "X") -> pd.DataFrame:
    """A DataFrame of any kind as one of pandas; its rows are numbered from 0, its columns named by texts."""
    table = frame if isinstance(frame, pd.DataFrame) else pd.DataFrame(frame.to_pandas())
    table = table.set_axis([str(name) for name in table.columns], axis=1).reset_index(drop=True)
    repeated = table.columns[table.columns.duplicated()]
    if len(repeated):
        raise InputError(f"{what} must have columns of different names, got '{repeated[0]}' twice")
    return table


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


def sensitive_frame(
    features: Any, inputs: pd.DataFrame, *, named: bool, known: Sequence[str] | None = None
) -> pd.DataFrame:
    """Sensitive features as a frame with a column for each.

    Parameters
    ----------
    features : one value for each row, a frame or array of several columns, or names of columns of X
    inputs : X
    named : whether X has names of its own, which sensitive features may be given by
    known : the columns' names in `fit`; an array's columns are these in their order
    """
    if named:
        features = _named_columns(features, inputs, known)
    elif isinstance(features, str):
        raise InputError(
            f"sensitive_features must have a value for each row where X is no DataFrame, got '{features}'"
        )
    frame = as_pandas(features, "sensitive_features") if is_frame(features) else _array_columns(features)
    if known is not None and is_frame(features) and (len(known) > 1 or known[0] in frame.columns):
        for name in known:
            if name not in frame.columns:
                raise unknown("column of sensitive_features: missing", name, frame.columns)
        frame = frame[list(known)]
    rows, width = len(inputs), frame.shape[1] if known is None else len(known)
    check(
        len(frame) == rows and frame.shape[1] == width >= 1,
        f"sensitive_features must have {width or 1} column(s) with a value for each of the {rows} rows",
        f"shape {frame.shape}",
    )
    return frame if known is None else frame.set_axis(list(known), axis=1)


def _named_columns(features: Any, inputs: pd.DataFrame, known: Sequence[str] | None) -> Any:
    """The columns of X that sensitive features name, or what is given, where it holds no names."""
    names = [features] if isinstance(features, str) else features
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return features
    present = [name in inputs.columns for name in names]
    if isinstance(features, str) or (any(present) and len(names) != len(inputs)):
        for name, is_present in zip(names, present, strict=True):
            if not is_present:
                raise unknown("column of X in sensitive_features", name, inputs.columns)
    is_list_of_names = all(present) and 0 < len(names) == len(set(names))
    is_known = isinstance(features, str) or known is None or sorted(names) == sorted(known)
    return inputs[names] if is_list_of_names and is_known else features


def _array_columns(features: Any) -> pd.DataFrame:
    """Sensitive features that are no frame."""
    if hasattr(features, "to_pandas") and not isinstance(features, pd.Series):
        features = features.to_pandas()
    if isinstance(features, pd.Series | pd.Index | pd.Categorical):
        name, values = getattr(features, "name", None), pd.Series(features).reset_index(drop=True)
        return pd.DataFrame({SENSITIVE if name is None else str(name): values})
    array = np.asarray(features, dtype=None if isinstance(features, np.ndarray) else object)
    check(array.ndim in (1, 2), "sensitive_features must have one or two dimensions", array.ndim)
    array = array.reshape(len(array), -1) if array.size else array.reshape(len(array), 1)
    width = array.shape[1]
    names = [f"{SENSITIVE}_{number}" for number in range(width)] if width > 1 else [SENSITIVE]
    return pd.DataFrame(array, columns=names).infer_objects()


@dataclass(frozen=True, eq=False)
class SensitiveFeatures:
    """The sensitive features that tell people apart, under names that are no other column's."""

    given: tuple[str, ...]
    """Their names as they were given, those with one value too."""
    kept: tuple[int, ...]
    """Which of them have several values."""
    names: tuple[str, ...]
    """What these are called."""

    @classmethod
    def select(cls, frame: pd.DataFrame, inputs: pd.DataFrame, label: NDArray[np.int8]) -> SensitiveFeatures:
        """Keep those that have several values; one that is also an input keeps its name."""
        kept = tuple(n for n, name in enumerate(frame) if _has_several_values(frame[name], label))
        names: list[str] = []
        for number in kept:
            name = str(frame.columns[number])
            is_input = name in inputs.columns and not differing_rows(inputs[name], frame[name]).any()
            names.append(name if is_input else free_name(name, [*inputs.columns, *names]))
        return cls(tuple(map(str, frame.columns)), kept, tuple(names))

    def columns(self, frame: pd.DataFrame) -> pd.DataFrame | None:
        """Those that tell people apart, by their names; None if there are none."""
        return frame.iloc[:, list(self.kept)].set_axis(list(self.names), axis=1) if self.kept else None


def _has_several_values(values: pd.Series[Any], label: NDArray[np.int8]) -> bool:
    """Whether a sensitive feature has two values at least; few missing ones are none."""
    missing, labels = values.isna().to_numpy(), pd.Series(label)
    is_group = missing.any() and not is_too_small(labels[missing], labels)
    return int(values.nunique()) + bool(is_group) > 1


def differing_rows(first: pd.Series[Any], second: pd.Series[Any]) -> NDArray[np.bool_]:
    """(rows,) where two columns differ, in whatever form they hold their values; missing ones are equal."""
    differ = first.isna().to_numpy() != second.isna().to_numpy()
    present = (first.notna() & second.notna()).to_numpy()
    values, others = (column.astype(object).to_numpy()[present] for column in (first, second))
    differ[present] = np.asarray(values != others, dtype=bool)
    return np.asarray(differ)


def table_from_arrays(
    inputs: pd.DataFrame,
    label: NDArray[np.int8],
    outcomes: tuple[Any, Any],
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
    outcomes : the two labels as users know them, the favourable one last
    attributes : the sensitive columns, as `SensitiveFeatures.columns` gives them; one group without them.
        Those that are no columns of the inputs are not seen by the model
    clients : who holds each row
    keep : take in columns that look like identifiers or are constant
    target : what to call the label

    Returns
    -------
    The table, with notes on what was done to its columns.
    """
    frame = inputs.set_axis([str(name) for name in inputs.columns], axis=1)
    names = list(frame.columns)
    sensitive = pd.DataFrame() if attributes is None else attributes
    hidden = [str(name) for name in sensitive if name not in inputs.columns]
    frame[hidden] = sensitive[hidden]
    target = free_name(target, frame.columns)
    frame[target] = label
    client = None
    if clients is not None:
        client = free_name("clients", frame.columns)
        frame[client] = clients
    columns = Columns(
        target=target,
        favourable="1",
        sensitive=tuple(map(str, sensitive)),
        client=client,
        drop=tuple(hidden),
        categorical=tuple(n for n in names if isinstance(frame[n].dtype, pd.CategoricalDtype)),
        keep=tuple(names) if keep else (),
    )
    try:
        table = table_from_frame(frame, columns, "X", encode=ONEHOT, tidy=True)
    except InputError as error:
        raise InputError(_without_options(str(error))) from None
    notes = tuple(_without_options(note) for note in table.notes)
    return replace(table, label_names=_outcome_names(outcomes), notes=notes)


def _without_options(text: str) -> str:
    """A message without the options of the command line."""
    text = re.sub(r"; --keep NAME takes one in| \(--[\w-]+\)|, as by --sensitive [^;]*", "", text)
    return re.sub(r"; (name one with|fix the value).* --\w.*$", "", text)


def _outcome_names(outcomes: tuple[Any, Any]) -> tuple[str, str]:
    """Two labels as texts that differ.

    >>> _outcome_names((False, True)), _outcome_names(("a", " a"))
    (('False', 'True'), ("'a'", "' a'"))
    """
    first, second = map(spell, outcomes)
    return (first, second) if first != second else (repr(outcomes[0]), repr(outcomes[1]))
