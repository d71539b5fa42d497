"""A small PyTorch network; its batch norm counts batches in whole numbers, which is no obstacle."""

import torch
from torch import nn


def make_model() -> nn.Module:
    """The network at its start, the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
