"""The raw columns that an exported model asks for, and rows of a frame in that form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import Schema, UnfitError, words
from fairfate.data.schema import Vocabulary
from fairfate.errors import InputError, check, unknown
from fairfate.models.fair_model import FairModel, Frame, as_frame

TEXT, NUMBER, DATE = "text", "number", "date"
MEANING = {
    TEXT: "text, empty where it is missing",
    NUMBER: "number, NaN where it is missing",
    DATE: "days since 1970-01-01, NaN where it is missing",
}


class Column(NamedTuple):
    """A raw column."""

    name: str
    kind: str
    """text, number or date."""
    known: Vocabulary
    """The texts that are told apart."""


def columns_of(model: FairModel) -> dict[str, Column]:
    """The raw columns by name: the features, then sensitive columns that only the thresholds need."""
    schema = model.schema
    sensitive = schema.sensitive if model.needs_groups else ()
    names = dict.fromkeys((*schema.features, *sensitive))
    check("" not in names, "columns must have names to be exported", "an empty one")
    return {name: _column(schema, name) for name in names}


def _column(schema: Schema, name: str) -> Column:
    known = schema.vocabulary(name)
    if known is None:
        return Column(name, DATE if name in schema.dates else NUMBER, Vocabulary(()))
    check("" not in known.names, f"column '{name}' must have no empty text among its values", "one")
    return Column(name, TEXT, known)


def onnx_inputs(model: FairModel, frame: Frame) -> dict[str, NDArray[Any]]:
    """Rows as the tensors that the exported model asks for, each (rows, 1).

    Parameters
    ----------
    model : the model that was exported
    frame : the rows, with the raw columns
    """
    table = model.schema.without_codes(as_frame(frame, model.schema))
    found = {}
    for name, column in columns_of(model).items():
        if name not in table.columns:
            raise unknown("column in the data: the model needs", name, table.columns)
        values = table[name]
        try:
            tensor = _texts(values) if column.kind == TEXT else model.schema.numbers(values)
        except UnfitError as error:
            raise InputError(f"data must fit the model: {error}") from None
        found[name] = tensor.reshape(-1, 1)
    return found


def _texts(values: Any) -> NDArray[Any]:
    codes, names = words(values)
    return np.array([*names, ""], dtype=object)[codes]
