"""The same strategies on a real federation, run by Flower.

Names are imported when they are first used: a site can check its file where Flower is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairfate.flower.aliases import FairFate, FedAvg, FedAvgGR, FedAvgLR, FedDemon, FedMom, FedVal
    from fairfate.flower.client import loss_terms
    from fairfate.flower.clients import Cohorts
    from fairfate.flower.replies import ReplyPolicy
    from fairfate.flower.strategy import FlowerStrategy
    from fairfate.flower.validation import Validation

_HOMES = {
    "Cohorts": "clients",
    "FairFate": "aliases",
    "FedAvg": "aliases",
    "FedAvgGR": "aliases",
    "FedAvgLR": "aliases",
    "FedDemon": "aliases",
    "FedMom": "aliases",
    "FedVal": "aliases",
    "FlowerStrategy": "strategy",
    "ReplyPolicy": "replies",
    "Validation": "validation",
    "loss_terms": "client",
}

__all__ = [
    "Cohorts",
    "FairFate",
    "FedAvg",
    "FedAvgGR",
    "FedAvgLR",
    "FedDemon",
    "FedMom",
    "FedVal",
    "FlowerStrategy",
    "ReplyPolicy",
    "Validation",
    "loss_terms",
]


def need_flower() -> None:
    """ImportError that says what to install, where Flower is missing."""
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise ImportError('fairfate.flower needs Flower: pip install "fairfate[flower]"') from error


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fairfate.flower' has no attribute '{name}'")
    need_flower()
    return getattr(importlib.import_module(f"fairfate.flower.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
