"""The raw columns that an exported model asks for, and rows of a frame in that form."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import UnfitError, encode_texts
from fairfate.data.schema import Vocabulary
from fairfate.errors import InputError, check, unknown
from fairfate.models.fair_model import FairModel, Frame, as_frame

TEXT, NUMBER, DATE = "text", "number", "date"
MEANING = {
    TEXT: "text, empty where it is missing",
    NUMBER: "number, NaN where it is missing",
    DATE: "days since 1970-01-01, NaN where it is missing",
}


class RawColumn(NamedTuple):
    """A column that an exported model asks for."""

    name: str
    kind: str
    """text, number or date."""
    known: Vocabulary
    """The texts that are told apart."""


def raw_columns(model: FairModel) -> dict[str, RawColumn]:
    """The raw columns by name: the features, then sensitive columns that only the thresholds need."""
    schema = model.schema
    sensitive = schema.sensitive if model.needs_groups else ()
    names = dict.fromkeys((*schema.features, *sensitive))
    check("" not in names, "columns must have names to be exported", "an empty one")
    columns = {}
    for name in names:
        vocabulary = schema.vocabulary(name)
        if vocabulary is None:
            columns[name] = RawColumn(name, DATE if name in schema.dates else NUMBER, Vocabulary(()))
            continue
        check("" not in vocabulary.names, f"column '{name}' must have no empty text among its values")
        columns[name] = RawColumn(name, TEXT, vocabulary)
    return columns


def onnx_inputs(model: FairModel, frame: Frame) -> dict[str, NDArray[Any]]:
    """Rows as the tensors that the exported model asks for.

    Parameters
    ----------
    model : the model that was exported
    frame : the rows, with the raw columns

    Returns
    -------
    For each input of the ONNX graph, an array of shape (rows, 1).
    """
    table = model.schema.without_codes(as_frame(frame, model.schema))
    tensors = {}
    for name, column in raw_columns(model).items():
        if name not in table.columns:
            raise unknown("column in the data: the model needs", name, table.columns)
        try:
            if column.kind == TEXT:
                codes, texts = encode_texts(table[name])
                tensor: NDArray[Any] = np.array([*texts, ""], dtype=object)[codes]
            else:
                tensor = model.schema.numbers(table[name])
        except UnfitError as error:
            raise InputError(f"data must fit the model: {error}") from None
        tensors[name] = tensor.reshape(-1, 1)
    return tensors
