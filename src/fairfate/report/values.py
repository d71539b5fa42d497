"""Numbers of a report as JSON has them."""

from __future__ import annotations

import math
from typing import Any

from fairfate.fairness.intervals import over_seeds
from fairfate.fairness.metrics import Values
from fairfate.report.material import Material

LEAST_SEEDS = 3
"""For an interval over seeds."""


def finite(value: Any) -> float | None:
    """A number for JSON: nothing where it is undefined."""
    found = float(value)
    return found if math.isfinite(found) else None


def interval(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    """A value with the ends of its interval."""
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def seeds_of(found: Material, values: Values, metric: str = "") -> dict[str, float | None]:
    """The mean over seeds and its interval, within what the metric can be; two seeds tell too little."""
    mean, low, high = over_seeds(values, found.comparison.test_to_train)
    if len(values) < LEAST_SEEDS:
        return interval(mean, math.nan, math.nan)
    return interval(mean, max(low, -1.0 if metric == "mcc" else 0.0), min(high, 1.0))
