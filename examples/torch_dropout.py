"""Two wide layers with dropout, whose masks come from the run's seed.

fairfate run --model examples/torch_dropout.py:build
"""

from torch import nn


def build(inputs: int) -> nn.Module:
    """Make the network for so many inputs."""
    return nn.Sequential(
        nn.Linear(inputs, 32),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(16, 1),
    )
