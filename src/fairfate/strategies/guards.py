"""Guards against models that are fair because they give everybody one answer."""

from __future__ import annotations

from typing import Annotated, Any

from fairfate.fairness.metrics import COLLAPSED, Counts, balanced_accuracy, mcc
from fairfate.strategies.hyperparameters import EXTENSION, Guarded, Range
from fairfate.strategies.strategy import Cohort, Need, Strategy

HALVINGS = 4
"""How often a strategy's own part is halved before it is 0."""

MinMcc = Annotated[
    float,
    Range(0, 1),
    Guarded(COLLAPSED),
    EXTENSION,
    "least MCC of a client that can be fair; 0.05 on your own data",
]
KeepSkill = Annotated[
    float,
    Range(0, 1),
    Guarded(0.8),
    EXTENSION,
    "share of balanced accuracy above one half that must be kept; 0.8 on your own data",
]


def guard(strategy: Strategy, *, min_mcc: float | None = None, keep: float = 0.0) -> Strategy:
    """Protect a strategy from models that give nearly everybody the same answer.

    Parameters
    ----------
    strategy : counts only clients that are ``cohort.eligible`` and, with ``keep``, multiplies what it adds to
        the FedAvg step by ``cohort.caution``
    min_mcc : least MCC on the validation rows of an eligible client; None: all are eligible
    keep : share of the FedAvg step's balanced accuracy above one half that the new model must have. While it
        has less, caution is halved, four times, and then 0. keep=0: no such rule

    Returns
    -------
    the strategy with these rules

    Examples
    --------
    >>> from fairfate.strategies.fedavg import AVERAGING
    >>> guard(AVERAGING, min_mcc=None) is AVERAGING
    True
    >>> sorted(map(str, guard(AVERAGING, keep=0.8).needs))
    ['Need.TRIALS']
    """
    if min_mcc is None and keep <= 0:
        return strategy

    def aggregate(state: Any, cohort: Cohort) -> Any:
        if min_mcc is not None:
            cohort = cohort._replace(eligible=mcc(cohort.client_counts) >= min_mcc)
        after = strategy.aggregate(state, cohort)
        if keep <= 0 or Need.TRIALS not in cohort.measured:
            return after
        score = cohort.get(Need.TRIALS)
        fedavg = state.params + cohort.mean(cohort.num_examples)
        least = keep * skill(score(fedavg[None])[0])
        caution = 1.0
        while least > 0 and caution > 0 and skill(score(after.params[None])[0]) < least:
            caution = caution / 2 if caution > 0.5**HALVINGS else 0.0
            after = strategy.aggregate(state, cohort._replace(caution=caution))
        return after

    def weigh(own: Counts, received: Counts) -> float:
        assert strategy.weigh is not None
        return strategy.weigh(own, received) if min_mcc is None or mcc(own) >= min_mcc else 0.0

    needs = {*strategy.needs, *([Need.TRIALS] if keep > 0 else [])}
    guarded = None if strategy.weigh is None else weigh
    return strategy._replace(aggregate=aggregate, needs=needs, weigh=guarded)


def skill(counts: Counts) -> float:
    """Balanced accuracy above one half; 0 for one answer for everybody, or where it is undefined."""
    above = float(balanced_accuracy(counts)) - 0.5
    return above if above == above else 0.0  # NaN is not equal to itself
