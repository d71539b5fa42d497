"""What is measured of a released model beside its counts: at each client, and for single people."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.fairness.individual import attribute_flip_rate, consistency, gower_neighbours
from fairfate.fairness.metrics import FAIRNESS, Counts, Values
from fairfate.fairness.thresholds import Margins, apply
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows

MOST_PEOPLE = 2000
"""Whose neighbours are looked for: the first so many test rows."""
LEAST_ROWS = 20
"""Of each group (and label, where the metric asks) that a client must have to be measured."""


class Individual(NamedTuple):
    """Fairness to single people; NaN where it cannot be told."""

    consistency: float
    flip: float


class Probe:
    """The rows of one seed, arranged once for all models."""

    def __init__(self, table: Table, test: NDArray[np.int64], federation: Federation, model: Model) -> None:
        self.federation, self.model = federation, model
        order = np.argsort(table.cell[test], kind="stable")
        self._group = table.group[test][order].astype(np.int64)
        self._others: list[tuple[NDArray[np.int64], PackedRows]] = []
        inputs = [name for name in table.sensitive if name in table.feature_names and name not in table.bands]
        if len(table.sensitive) == 1 and inputs:
            column = table.feature_names.index(inputs[0])
            for step in range(1, table.groups):
                features = table.features[test].copy()
                group = (table.group[test].astype(np.int64) + step) % table.groups
                features[:, column] = group
                x = federation.encoder.transform(features)
                self._others.append((group[order], PackedRows.pack(x, table.cell[test], table.groups)))
        self._people = np.sort(np.argsort(order, kind="stable")[:MOST_PEOPLE])
        insensitive = [place for place, name in enumerate(table.feature_names) if name not in table.sensitive]
        features = table.features[test][order][self._people][:, insensitive]
        self._near = gower_neighbours(features, table.slots[insensitive] > 0)

    def individual(self, params: Models, thresholds: Values | None) -> Individual:
        """How the model treats people who are alike."""
        cuts = np.zeros(self.federation.groups) if thresholds is None else thresholds
        scores = np.concatenate(self.model.margins(params, self.federation.test))
        accepted = scores > cuts[self._group]
        flipped = [
            np.concatenate(self.model.margins(params, rows)) > cuts[group] for group, rows in self._others
        ]
        return Individual(
            consistency(accepted[self._people], self._near),
            attribute_flip_rate(accepted, np.stack(flipped)) if flipped else np.nan,
        )

    def worst(self, models: Models, thresholds: list[Values | None]) -> dict[str, Values]:
        """For each metric, (models,) the fairness of each model at the client where it is least fair.

        On the clients' own training rows; clients with too few of a group are left out.
        """
        each = [self._at(rows, models, thresholds) for rows in self.federation.local.values()]
        counts = np.stack(each, axis=1)
        found = {}
        for name, metric in FAIRNESS.items():
            cells = counts.sum(axis=-1)  # by group and label
            rows = {"sp": cells.sum(axis=-1), "eo": cells[..., 1], "eqo": cells.min(axis=-1)}[name]
            enough = rows.min(axis=-1) >= LEAST_ROWS
            values = np.where(enough, metric(counts), np.nan)
            least = np.where(np.isnan(values), np.inf, values).min(axis=1)
            found[name] = np.where(np.isinf(least), np.nan, least)
        return found

    def _at(self, rows: PackedRows, models: Models, thresholds: list[Values | None]) -> Counts:
        counts = self.model.count(models, rows)
        for place, chosen in enumerate(thresholds):
            if chosen is not None:
                margins: Margins = self.model.margins(models[place], rows)
                counts[place] = apply(margins, chosen)
        return counts
