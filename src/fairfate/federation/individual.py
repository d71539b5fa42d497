"""Rows arranged to measure individual fairness: their neighbours, and the same rows in another group.

It scores models, so it stands after them; `fairness.individual` has the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fairfate.data import Encoder, Table
from fairfate.errors import InputError, check, listing
from fairfate.fairness.individual import (
    CONSISTENCY,
    FLIP,
    NEIGHBOURS,
    attribute_flip_rate,
    consistency,
    gower_neighbours,
)
from fairfate.fairness.metrics import Values
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows

MAX_COMPARED = 2000
"""Consistency is measured on the first so many rows: every pair of them is compared."""
Decisions = NDArray[np.bool_]
Decide = Callable[[PackedRows, NDArray[np.int64]], Decisions]
"""What is decided about packed rows of these groups, in their order."""


class IndividualRows:
    """Some rows of a table; what costs time or memory is made when it is first asked for.

    Parameters
    ----------
    table, numbers : the table, and which of its rows
    rows : the same, to score models on
    encoder : how columns become a model's inputs
    """

    def __init__(self, table: Table, numbers: NDArray[np.int64], rows: PackedRows, encoder: Encoder) -> None:
        self.table, self.numbers, self.rows, self.encoder = table, numbers, rows, encoder

    def check(self, terms: Collection[str]) -> None:
        """InputError unless these terms can be measured."""
        check_measurable(terms, self.table, len(self.numbers))

    def fairness(self, terms: Collection[str], model: Model, models: Models) -> dict[str, Values]:
        """For each term of individual fairness, (models,) its values; 1 is fair."""
        values = {term: np.empty(len(models)) for term in terms}
        for index, params in enumerate(models):
            decide = partial(_decide, model, params)
            accepted = self.accepted(decide)
            if CONSISTENCY in terms:
                values[CONSISTENCY][index] = self.consistency(accepted)
            if FLIP in terms:
                values[FLIP][index] = 1 - self.flip_rate(decide, accepted)
        return values

    def accepted(self, decide: Decide) -> Decisions:
        """(rows,) decisions, in the order of the packed rows."""
        return decide(self.rows, self._group)

    def consistency(self, accepted: Decisions) -> float:
        """Of decisions about these rows."""
        rows, neighbours = self._neighbours
        return consistency(accepted[rows], neighbours)

    def flip_rate(self, decide: Decide, accepted: Decisions) -> float:
        """Share of rows decided otherwise in another group; NaN if the group is no input of the model."""
        if not self._other_groups:
            return np.nan
        flipped = [decide(rows, group) for group, rows in self._other_groups]
        return attribute_flip_rate(accepted, np.stack(flipped))

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """As rows are packed."""
        return np.argsort(self.table.cell[self.numbers], kind="stable")

    @cached_property
    def _group(self) -> NDArray[np.int64]:
        return self.table.group[self.numbers][self._order].astype(np.int64)

    @cached_property
    def _neighbours(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The rows that are compared, by their positions among the packed rows, and their neighbours."""
        rows = np.sort(np.argsort(self._order, kind="stable")[:MAX_COMPARED])
        inputs = insensitive(self.table)
        features = self.table.features[self.numbers][self._order][rows][:, inputs]
        return rows, gower_neighbours(features, self.table.slots[inputs] > 0)

    @cached_property
    def _other_groups(self) -> list[tuple[NDArray[np.int64], PackedRows]]:
        """The same rows in each other group: these groups, and the rows with nothing else changed."""
        table, column = self.table, group_input(self.table)
        if column is None:
            return []
        others = []
        for step in range(1, table.groups):
            features = table.features[self.numbers].copy()
            group = (table.group[self.numbers].astype(np.int64) + step) % table.groups
            features[:, column] = group
            x = self.encoder.transform(features)
            others.append((group[self._order], PackedRows.pack(x, table.cell[self.numbers], table.groups)))
        return others


def _decide(model: Model, params: Models, rows: PackedRows, groups: NDArray[np.int64]) -> Decisions:
    """By the model's own score."""
    return np.asarray(np.concatenate(model.margins(params, rows)) > 0)


def insensitive(table: Table) -> list[int]:
    """Positions of the inputs that are no sensitive columns."""
    return [index for index, name in enumerate(table.feature_names) if name not in table.sensitive]


def group_input(table: Table) -> int | None:
    """The position of the input that is the group, as it is; None if there is no such input."""
    if len(table.sensitive) != 1 or table.sensitive[0] not in table.feature_names:
        return None
    index = table.feature_names.index(table.sensitive[0])
    return index if np.array_equal(table.features[:, index], table.group) else None


def check_measurable(terms: Collection[str], table: Table, rows: int) -> None:
    """InputError unless these terms of individual fairness can be measured on so many rows of a table."""
    if FLIP in terms:
        check(len(table.sensitive) == 1, "flip must be of one sensitive column", listing(table.sensitive))
        if group_input(table) is None:
            name, inputs = table.sensitive[0], listing(table.feature_names)
            got = "it as numbers, in bands" if name in table.bands else inputs
            raise InputError(f"flip must have the sensitive column '{name}' as an input, got {got}")
    if CONSISTENCY in terms:
        check(len(insensitive(table)) > 0, "consistency must have an input that is not sensitive")
        check(rows > NEIGHBOURS, f"consistency must have more than {NEIGHBOURS} validation rows", rows)
