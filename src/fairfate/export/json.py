"""A trained model as plain JSON, for programs in any language."""

from __future__ import annotations

import json
from typing import Any

from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.errors import InputError
from fairfate.export.columns import MEANING, raw_columns
from fairfate.export.onnx import array_layers, model_layers
from fairfate.fairness.tilt import bin_edges
from fairfate.fairness.tilt_groups import UNIT, GroupTilt
from fairfate.models.fair_model import FairModel, TiltedScore

FORMAT = 1


def to_json(model: FairModel) -> str:
    """A model's schema, layers and thresholds as JSON, exact to the last digit; nothing can be executed.

    Parameters
    ----------
    model : a model of the built-in kind; InputError for one with a network of its own

    Returns
    -------
    One JSON object, which docs/export.md describes.
    """
    layers = model_layers(model)
    content: dict[str, Any] = {
        "format": FORMAT,
        "fairfate": __version__,
        "about": dict(model.about),
        "columns": {column.name: MEANING[column.kind] for column in raw_columns(model).values()},
        "schema": json.loads(model.schema.to_json()),
        "layers": _layers(layers),
        "groups": list(model.groups),
        "thresholds": None if model.thresholds is None else [_number(cut) for cut in model.thresholds],
        "tilt": None if model.tilt is None else _tilt(model.tilt),
    }
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise InputError(f"model must hold finite numbers to be written as JSON, got {error}") from None


def _layers(layers: list[tuple[NDArray[Any], NDArray[Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "activation": "sigmoid" if number == len(layers) else "tanh",
            "weights": weights.tolist(),
            "bias": bias.tolist(),
        }
        for number, (weights, bias) in enumerate(layers, start=1)
    ]


def _tilt(tilt: TiltedScore) -> dict[str, Any]:
    """One rule for everybody: a table of decisions by the ranges of both scores, and the second model.

    For several groups, whole prices of the ranges of their scores.
    """
    edges = bin_edges(tilt.rule.bins).astype(float).tolist()
    if isinstance(tilt.rule, GroupTilt):
        return {
            "edges": edges,
            "family": tilt.rule.family,
            "unit": UNIT,
            "prices": tilt.rule.prices.tolist(),
            "threshold": tilt.rule.threshold,
            "layers-of-groups": [_layers(array_layers(arrays)) for arrays in tilt.models],
        }
    return {
        "edges": edges,
        "table": tilt.rule.table.astype(int).tolist(),
        "layers": _layers(array_layers(tilt.models[0])),
    }


def _number(value: float) -> float | str:
    """A threshold; JSON has no infinity, so that is a text."""
    return float(value) if abs(value) < float("inf") else str(float(value))
