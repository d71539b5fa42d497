"""F3's heuristics: only the fairest of a round's clients count (Kanaparthy et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import (
    COLLAPSED,
    Counts,
    Metric,
    Values,
    accuracy,
    eo_diff,
    false_positive_rates,
    selection_rates,
    sp_diff,
    true_positive_rates,
)
from fairfate.strategies.guards import guard
from fairfate.strategies.hyperparameters import RUN_METRIC, Objective, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import Cohort, ModelState, Need, Strategy, Vector

Order = Callable[[Values, Values], Values]
"""What clients are sorted by, the least first, from their violations and accuracies."""


def _odds_between(counts: Counts) -> Values:
    rates = false_positive_rates(counts)
    return np.asarray(np.maximum(eo_diff(counts), rates.max(axis=-1) - rates.min(axis=-1)))


def _above_all(rates: Callable[[Counts], Values], counts: Counts) -> Values:
    """By how much the largest rate of a group is above that of everybody."""
    everybody = rates(counts.sum(axis=-3, keepdims=True))
    return np.asarray((rates(counts) - everybody).max(axis=-1))


def _misses_above_all(counts: Counts) -> Values:
    return _above_all(lambda counts: 1 - true_positive_rates(counts), counts)


def _odds_above_all(counts: Counts) -> Values:
    return np.maximum(_misses_above_all(counts), _above_all(false_positive_rates, counts))


def _selection_from_all(counts: Counts) -> Values:
    everybody = selection_rates(counts.sum(axis=-3, keepdims=True))
    return np.asarray(np.abs(selection_rates(counts) - everybody).max(axis=-1))


VIOLATIONS: dict[str, Mapping[str, Metric]] = {
    "groups": {"sp": sp_diff, "eo": eo_diff, "eqo": _odds_between},
    "overall": {"sp": _selection_from_all, "eo": _misses_above_all, "eqo": _odds_above_all},
}
"""D >= 0, of which 0 is fair: largest differences of rates between the groups (the authors' code), or how far
the worst group is from everybody (their paper; sp, which they do not have, in both directions)."""


def fairest(violation: Values, correct: Values) -> Values:
    """FairBest and FairAvg: the least violation first."""
    return violation


def best_ratio(violation: Values, correct: Values) -> Values:
    """FairAccAvg: the largest accuracy for its violation first; no violation at all is best.

    >>> best_ratio(np.array([0.05, 0.0]), np.array([0.5, 0.6])).tolist()
    [-10.0, -inf]
    """
    return np.where(violation > 0, -correct / np.where(violation > 0, violation, 1), -np.inf)


def chosen(order: Values, correct: Values, usable: NDArray[np.bool_], names: Vector, keep: int) -> Vector:
    """The first of the usable clients; ties go to the more accurate one, then by name."""
    first = np.lexsort((names, -correct, order, ~usable))[:keep]
    mask = np.zeros(len(order), dtype=bool)
    mask[first] = True
    return mask & usable


def f3(
    violation_of: Metric,
    order: Order,
    *,
    alpha: float = 0.0,
    min_mcc: float = -1.0,
    equal: bool = False,
) -> Strategy:
    r"""Average the models of the first :math:`\lceil \alpha K \rceil` clients in some order, at least of one.

    .. math:: \theta \leftarrow \sum_{k \in \text{kept}} n_k \theta_k \, / \sum_{k \in \text{kept}} n_k

    An undefined violation is never kept; if nobody is left, all clients count.

    Parameters
    ----------
    violation_of : D, from counts on the validation rows
    order : what clients are sorted by
    alpha : share of the round's clients that is kept
    min_mcc : clients that are worse are not kept: a model that gives everybody one answer violates nothing
    equal : the kept models count alike, as in the authors' code, and not by their rows
    """

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        counts, n = cohort.client_counts, cohort.num_examples
        violation, correct = violation_of(counts), np.nan_to_num(accuracy(counts))
        usable = ~np.isnan(violation) & cohort.eligible
        keep = max(1, math.ceil(alpha * len(n) - 1e-9))
        names = np.array(cohort.clients or range(len(n)))
        kept = chosen(order(violation, correct), correct, usable, names, keep)
        if not kept.any():
            return ModelState(state.params + cohort.mean(n), {"fair": kept})
        weights = np.where(kept, 1 if equal else n, 0)
        params = state.params + cohort.mean(weights)
        return ModelState(params, {"fair": kept, "violation": violation})

    return guard(Strategy(ModelState, aggregate, needs={Need.SCORES}), min_mcc=min_mcc)


Alpha = Annotated[float, Range(0, 1, above_low=True), "share of the round's clients that count"]
MinMcc = Annotated[float, Range(-1, 1), "least MCC of a client that counts; -1 for the paper's rule"]
Against = Annotated[
    Literal["groups", "overall"], "compare groups' rates with each other, or with the overall rate"
]
Weights = Annotated[Literal["rows", "equal"], "weights of the kept models"]
REFERENCE = "Kanaparthy et al. 2023"


@register("fair_best", "the model of the fairest client", REFERENCE)
def fair_best(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    against: Against = "groups",
    min_mcc: MinMcc = COLLAPSED,
) -> Strategy:
    """Release the model of the fairest client: `f3` with the one client of the least violation.

    Notes
    -----
    By default the violation is the authors' code's: the largest difference between groups, with ``eqo`` of
    true and false positive rates. ``against="overall"`` is the paper's: how far the worst group's error rate
    is above everybody's. ``sp`` is not in the paper, and neither is ``min_mcc``: a collapsed model violates
    nothing (-1 is the paper's rule). The paper returns the best model of all rounds, this strategy that of
    the last round.

    References
    ----------
    Kanaparthy, Padala, Damle, Sarvadevabhatla, Gujar, "F3: Fair and Federated Face Attribute
    Classification with Heterogeneous Data", PAKDD 2023.

    Examples
    --------
    >>> fair_best(metric="eo").text
    'fair_best:metric=eo'
    """
    return f3(setup.gap(metric, VIOLATIONS[against]), fairest, min_mcc=min_mcc)


@register("fair_avg", "mean of the fairest clients' models", REFERENCE)
def fair_avg(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    alpha: Alpha = 0.5,
    against: Against = "groups",
    weights: Weights = "rows",
    min_mcc: MinMcc = COLLAPSED,
) -> Strategy:
    """Average the models of the fairest clients: `f3` with the least violations.

    Notes
    -----
    As for `fair_best`.

    References
    ----------
    Kanaparthy, Padala, Damle, Sarvadevabhatla, Gujar, "F3: Fair and Federated Face Attribute
    Classification with Heterogeneous Data", PAKDD 2023.

    Examples
    --------
    >>> fair_avg(alpha=0.3).text
    'fair_avg:alpha=0.3'
    """
    gap = setup.gap(metric, VIOLATIONS[against])
    return f3(gap, fairest, alpha=alpha, min_mcc=min_mcc, equal=weights == "equal")


@register(
    "fair_acc_avg", "mean of the models of clients with the best accuracy for their unfairness", REFERENCE
)
def fair_acc_avg(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    alpha: Alpha = 0.5,
    against: Against = "groups",
    weights: Weights = "rows",
    min_mcc: MinMcc = COLLAPSED,
) -> Strategy:
    """Average the models with the best accuracy for their violation: `f3` with the best ratios.

    Notes
    -----
    As for `fair_best`.

    References
    ----------
    Kanaparthy, Padala, Damle, Sarvadevabhatla, Gujar, "F3: Fair and Federated Face Attribute
    Classification with Heterogeneous Data", PAKDD 2023.

    Examples
    --------
    >>> fair_acc_avg(weights="equal").text
    'fair_acc_avg:weights=equal'
    """
    gap = setup.gap(metric, VIOLATIONS[against])
    return f3(gap, best_ratio, alpha=alpha, min_mcc=min_mcc, equal=weights == "equal")
