"""The same strategies on a real federation, run by Flower."""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError('fairfate.flower needs Flower: pip install "fairfate[flower]"') from error

from fairfate.flower.client import loss_terms
from fairfate.flower.siblings import FairFate, FedAvg, FedAvgGR, FedAvgLR, FedDemon, FedMom, FedVal
from fairfate.flower.strategy import FlowerStrategy
from fairfate.flower.validation import Validation

__all__ = [
    "FairFate",
    "FedAvg",
    "FedAvgGR",
    "FedAvgLR",
    "FedDemon",
    "FedMom",
    "FedVal",
    "FlowerStrategy",
    "Validation",
    "loss_terms",
]
