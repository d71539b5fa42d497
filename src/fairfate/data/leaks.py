"""Signs that a model will be measured on what it has seen: copies of rows, inputs that tell the label."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.table import TRAINING, Table
from fairfate.errors import listing

TELLS = 0.9
"""Share of the mistakes of one answer for all that an input alone must avoid to be suspected."""
COPIES = 0.01
"""Share of rows that are copies from which on it is said."""
FEWEST = 10
"""Rows of either label without which nothing is suspected."""


def leaks(table: Table) -> list[str]:
    """What to warn of, with numbers."""
    found = []
    telling = telling_inputs(table)
    if telling:
        found.append(
            f"leak? one column alone tells the label in nearly every row: {listing(telling)}; --drop what is"
            " not known when the model is used"
        )
    copies, rows = _copies(table)
    if table.part is not None and copies:
        found.append(f"leak? {copies:,} of the server's {rows:,} rows are also among the training rows")
    elif table.part is None and copies >= COPIES * rows:
        found.append(
            f"leak? {copies:,} of {rows:,} rows are copies of another row, inputs and label; a copy may be in"
            " the training and in the test rows"
        )
    return found


def telling_inputs(table: Table) -> list[str]:
    """The inputs each of which by itself gives the label away, with the share of rows in which it does."""
    label = table.label.astype(np.int64)
    rarer = int(min(label.sum(), len(label) - label.sum()))
    if rarer < FEWEST:
        return []
    found = []
    for name, values, slots in zip(table.feature_names, table.features.T, table.slots, strict=True):
        wrong = _wrong_by_category(values, label) if slots else _wrong_by_cut(values, label)
        if wrong <= (1 - TELLS) * rarer:
            found.append(f"{name} ({1 - wrong / len(label):.1%})")
    return found


def _wrong_by_category(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong if each value stands for its more frequent label."""
    codes = values.astype(np.int64) - int(values.min())
    cells = np.bincount(codes * 2 + label, minlength=2 * (int(codes.max()) + 1)).reshape(-1, 2)
    return int(cells.min(axis=1).sum())


def _wrong_by_cut(values: NDArray[np.float64], label: NDArray[np.int64]) -> int:
    """Rows that are wrong at the best cut; missing values are one side of their own."""
    missing = np.isnan(values)
    aside = int(min(label[missing].sum(), (missing.sum() - label[missing].sum())))
    numbers, mine = values[~missing], label[~missing]
    if not len(numbers):
        return aside
    order = np.argsort(numbers, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(numbers[order]) > 0, True))
    ones = np.cumsum(mine[order])[ends]
    zeros = ends + 1 - ones
    low_is_zero = ones + (zeros[-1] - zeros)
    return aside + int(min(low_is_zero.min(), (len(mine) - low_is_zero).min()))


def _copies(table: Table) -> tuple[int, int]:
    """Rows that occur before with the same inputs and label, of how many."""
    digest = pd.util.hash_array(table.label.astype(np.int64))
    for values in table.features.T:
        digest = digest * np.uint64(1_000_003) + pd.util.hash_array(values)
    if table.part is None:
        return len(digest) - len(np.unique(digest)), len(digest)
    training = table.part == TRAINING
    held = digest[~training]
    return int(np.isin(held, digest[training]).sum()), len(held)
