r"""Embeddings for the categories of one-hot inputs, and batch norm.

fairfate run --data people.csv --target hired --favourable yes --sensitive sex \
    --model examples/torch_embeddings.py:build
"""

import torch
from torch import nn


class Embedded(nn.Module):
    """Each category's inputs become a few numbers of its own; the other inputs stay as they are."""

    def __init__(self, slots: list[int], widths: list[int], size: int = 4) -> None:
        super().__init__()
        self.widths = widths
        self.tables = nn.ModuleList(nn.Linear(n, size, bias=False) if n else nn.Identity() for n in slots)
        total = sum(size if n else width for n, width in zip(slots, widths, strict=True))
        self.rest = nn.Sequential(nn.Linear(total, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.split(self.widths, dim=1)  # a one-hot row times a matrix picks the embedding of its value
        return self.rest(
            torch.cat([table(part) for table, part in zip(self.tables, parts, strict=True)], dim=1)
        )


def build(schema) -> nn.Module:
    """Make the network for the columns of a schema."""
    encoder = schema.encoder
    if encoder.slots is None:  # not one-hot: every column is one number
        return Embedded([0] * len(schema.features), [1] * len(schema.features))
    slots = [int(n) for n in encoder.slots]
    return Embedded(slots, [n or 1 + int(flag) for n, flag in zip(slots, encoder.flagged, strict=True)])
