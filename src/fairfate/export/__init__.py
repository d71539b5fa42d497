"""Trained models for others to use: ONNX, skops and plain JSON."""

from fairfate.export.columns import onnx_inputs
from fairfate.export.json import to_json
from fairfate.export.onnx import to_onnx
from fairfate.export.sklearn import FairPipeline
from fairfate.export.write import export

__all__ = ["FairPipeline", "export", "onnx_inputs", "to_json", "to_onnx"]
