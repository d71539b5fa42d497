"""Trained models for others to use: ONNX, skops and plain JSON.

Names are imported when they are first used: each form needs its own packages only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairfate.export.graph import to_onnx
    from fairfate.export.inputs import onnx_inputs
    from fairfate.export.pipeline import FairPipeline
    from fairfate.export.plain import to_json
    from fairfate.export.write import export

_HOMES = {
    "FairPipeline": "pipeline",
    "export": "write",
    "onnx_inputs": "inputs",
    "to_json": "plain",
    "to_onnx": "graph",
}

__all__ = ["FairPipeline", "export", "onnx_inputs", "to_json", "to_onnx"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairfate.export' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fairfate.export.{_HOMES[name]}"), name)
