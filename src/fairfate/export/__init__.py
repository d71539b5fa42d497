"""Trained models for others to use: ONNX, skops and plain JSON.

Names are imported when they are first used: each form needs its own packages only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairfate.export.columns import onnx_inputs
    from fairfate.export.json import to_json
    from fairfate.export.onnx import to_onnx
    from fairfate.export.sklearn import FairPipeline
    from fairfate.export.write import export

_HOMES = {
    "FairPipeline": "sklearn",
    "export": "write",
    "onnx_inputs": "columns",
    "to_json": "json",
    "to_onnx": "onnx",
}

__all__ = ["FairPipeline", "export", "onnx_inputs", "to_json", "to_onnx"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairfate.export' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fairfate.export.{_HOMES[name]}"), name)
