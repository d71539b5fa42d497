"""Group-fair federated learning: FAIR-FATE, its baselines, and what is needed to compare them.

Names are imported when they are first used, so that ``import fairfate`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fairfate._version import __version__

if TYPE_CHECKING:
    from fairfate.data import Table, load, synthetic
    from fairfate.errors import InputError
    from fairfate.estimator import FairFederatedClassifier
    from fairfate.experiments.config import Config
    from fairfate.experiments.run import run
    from fairfate.experiments.runs import Run, load_run
    from fairfate.fairness.metrics import measure
    from fairfate.models.fair_model import FairModel
    from fairfate.results.folder import read_model
    from fairfate.results.tables import read_rounds
    from fairfate.strategies import Cohort, Strategy, register

_HOMES = {
    "Cohort": "strategies",
    "Config": "experiments.config",
    "FairFederatedClassifier": "estimator",
    "FairModel": "models.fair_model",
    "InputError": "errors",
    "Run": "experiments.runs",
    "Strategy": "strategies",
    "Table": "data",
    "load": "data",
    "load_run": "experiments.runs",
    "measure": "fairness.metrics",
    "read_model": "results.folder",
    "read_rounds": "results.tables",
    "register": "strategies",
    "run": "experiments.run",
    "synthetic": "data",
}

__all__ = [
    "Cohort",
    "Config",
    "FairFederatedClassifier",
    "FairModel",
    "InputError",
    "Run",
    "Strategy",
    "Table",
    "__version__",
    "load",
    "load_run",
    "measure",
    "read_model",
    "read_rounds",
    "register",
    "run",
    "synthetic",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairfate' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fairfate.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
