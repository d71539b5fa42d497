"""What is measured of a released model beside its counts: at each client, and for single people."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.fairness.metrics import FAIRNESS, Counts, Values
from fairfate.fairness.thresholds import Margins, apply
from fairfate.federation.individual import IndividualRows
from fairfate.federation.split import Federation
from fairfate.models.model import Model, Models
from fairfate.models.rows import PackedRows

LEAST_ROWS = 20
"""Of each group (and label, where the metric asks) that a client must have to be measured."""


class Individual(NamedTuple):
    """Fairness to single people; NaN where it cannot be told."""

    consistency: float
    flip: float
    """The share whose decision changes: 0 is fair."""


class Probe:
    """The rows of one seed, arranged once for all models."""

    def __init__(self, table: Table, test: NDArray[np.int64], federation: Federation, model: Model) -> None:
        self.federation, self.model = federation, model
        self._individual = IndividualRows(table, test, federation.test, federation.encoder)

    def individual(self, params: Models, thresholds: Values | None) -> Individual:
        """How the model treats people who are alike."""
        accepted = self._individual.accepted(self.model, params, thresholds)
        return Individual(
            self._individual.consistency(accepted),
            self._individual.flip_rate(self.model, params, accepted, thresholds),
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
