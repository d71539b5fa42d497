"""Labelled rows as the kernels read them: to train on, client by client, and to score models on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

LANES = 16
"""Rows, hidden units or models that the loops take at a time."""


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows to score models on: sorted by (group, label) cell, in blocks of sixteen of one cell."""

    blocks: NDArray[np.float32]
    block_cell: NDArray[np.int64]
    mask: NDArray[np.uint16]
    sizes: NDArray[np.int64]
    """(groups * 2,) rows of each cell."""

    @classmethod
    def pack(cls, x: NDArray[np.float32], cell: NDArray[np.int64], groups: int) -> PackedRows:
        """Arrange encoded rows."""
        sizes = np.bincount(cell, minlength=2 * groups)
        blocks_of = -(-sizes // LANES)
        starts = np.concatenate([[0], np.cumsum(blocks_of)]) * LANES
        order = np.argsort(cell, kind="stable")
        within = np.arange(len(cell)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        index = np.empty(len(cell), dtype=np.int64)
        index[order] = starts[cell[order]] + within
        padded = np.zeros((int(starts[-1]), x.shape[1]), dtype=np.float32)
        padded[index] = x
        real = np.zeros(int(starts[-1]), dtype=bool)
        real[index] = True
        bits = (real.reshape(-1, LANES) * (1 << np.arange(LANES))).sum(axis=1)
        blocks = padded.reshape(-1, LANES, x.shape[1]).transpose(0, 2, 1)
        return cls(
            np.ascontiguousarray(blocks).ravel(),
            np.repeat(np.arange(2 * groups), blocks_of),
            bits.astype(np.uint16),
            sizes.astype(np.int64),
        )

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def only(self, rows: NDArray[np.int64]) -> PackedRows:
        """Some of the rows, by their numbers from cell to cell."""
        inputs = len(self.blocks) // max(len(self.real), 1)
        cell = np.repeat(np.arange(self.cells), self.sizes)
        return PackedRows.pack(self.plain(inputs)[rows], cell[rows], self.cells // 2)

    @property
    def cells(self) -> int:
        """Number of (group, label) cells."""
        return len(self.sizes)

    @property
    def rows(self) -> NDArray[np.int64]:
        """(groups, 2) rows by group and label."""
        return self.sizes.reshape(-1, 2)

    @cached_property
    def real(self) -> NDArray[np.bool_]:
        """Which slots of the blocks hold a row."""
        return ((self.mask[:, None] >> np.arange(LANES)) & 1).astype(bool).ravel()

    def split_by_cell(self, values: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Split one number for each slot of the blocks into a list for each cell."""
        return np.split(values[self.real], np.cumsum(self.sizes)[:-1])

    def plain(self, inputs: int) -> NDArray[np.float32]:
        """(rows, inputs) the rows again, cell by cell."""
        slots = self.blocks.reshape(-1, inputs, LANES).transpose(0, 2, 1).reshape(-1, inputs)
        return np.ascontiguousarray(slots[self.real])


@dataclass(frozen=True, eq=False)
class ClientRows:
    """Rows to train on, client by client."""

    x: NDArray[np.float32]
    """Encoded inputs, flat."""
    cell: NDArray[np.int32]
    """Twice the group, plus the label."""
    offsets: NDArray[np.int64]
    """(clients + 1,) where each client's rows begin."""

    def __len__(self) -> int:
        return len(self.cell)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return len(self.x) // max(len(self), 1)

    @cached_property
    def y(self) -> NDArray[np.float32]:
        """The labels."""
        return (self.cell & 1).astype(np.float32)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,) rows of each client."""
        return np.diff(self.offsets)

    def packed(self, client: int, groups: int) -> PackedRows:
        """A client's rows to score models on."""
        span = slice(self.offsets[client], self.offsets[client + 1])
        x = self.x.reshape(len(self), -1)[span]
        return PackedRows.pack(x, self.cell[span].astype(np.int64), groups)
