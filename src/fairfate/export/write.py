"""One file of a trained model, in the form that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fairfate.errors import InputError, check
from fairfate.export.columns import MEANING, raw_columns
from fairfate.export.json import to_json
from fairfate.export.onnx import ML, ML_OPSET, OPSET, to_onnx
from fairfate.export.sklearn import FairPipeline
from fairfate.models.fair_model import FairModel
from fairfate.storage import check_output, write_bytes

TRUSTED = ("fairfate.export.sklearn.FairPipeline",)
"""What ``skops.io.load`` has to be told to trust: our class, which holds texts and arrays only."""


class ExportedFile(NamedTuple):
    """A file that was written."""

    path: Path
    bytes: int
    notes: tuple[str, ...]
    """What goes in, what comes out, and what a reader needs."""


def export(model: FairModel, path: str | Path, form: str = "onnx", *, force: bool = False) -> ExportedFile:
    """Write a model for others to use.

    Parameters
    ----------
    model : a model of the built-in kind
    path : the file
    form : onnx, skops or json
    force : whether an existing file may be replaced

    Returns
    -------
    The file that was written, its size, and notes for those who use it.
    """
    check_form(form)
    check_output(path, force=force)
    content, notes = FORMS[form](model)
    write_bytes(path, content)
    return ExportedFile(Path(path), len(content), tuple(notes))


def check_form(form: str) -> None:
    """Refuse a form that is none of ours."""
    check(form in FORMS, f"format must be one of {'|'.join(FORMS)}", f"'{form}'")


Form = Callable[[FairModel], tuple[bytes, list[str]]]


def _onnx(model: FairModel) -> tuple[bytes, list[str]]:
    exported = to_onnx(model)
    probability, prediction = (output.name for output in exported.graph.output)
    unknown = ["A group without a threshold: the prediction is empty"] if model.needs_groups else []
    return exported.SerializeToString(), [
        *_inputs(model),
        f"Outputs: {probability} (of '{model.labels[1]}'), {prediction} ({_labels(model)})",
        *unknown,
        f"Opset {OPSET}, {ML} {ML_OPSET}",
    ]


def _skops(model: FairModel) -> tuple[bytes, list[str]]:
    try:
        from skops.io import dumps
    except ImportError:
        raise InputError('format skops needs skops: pip install "fairfate[skops]"') from None
    return dumps(FairPipeline.from_model(model)), [
        *_inputs(model),
        f"predict: {_labels(model)}; predict_proba: in this order",
        f"To be trusted: {', '.join(TRUSTED)}",
    ]


def _json(model: FairModel) -> tuple[bytes, list[str]]:
    return to_json(model).encode(), [*_inputs(model), f"Outcomes: {_labels(model)}"]


FORMS: dict[str, Form] = {"onnx": _onnx, "skops": _skops, "json": _json}


def _labels(model: FairModel) -> str:
    return " or ".join(f"'{label}'" for label in model.labels)


def _inputs(model: FairModel) -> list[str]:
    """The raw columns by kind."""
    columns, codes = raw_columns(model).values(), model.schema.missing
    named = {kind: [column.name for column in columns if column.kind == kind] for kind in MEANING}
    lines = [f"Inputs ({MEANING[kind]}): {', '.join(names)}" for kind, names in named.items() if names]
    return [*lines, *([f"Missing, and to be given as such: {', '.join(codes)}"] if codes else [])]
