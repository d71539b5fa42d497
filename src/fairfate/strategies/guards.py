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
    "least MCC of a client that can be fair; 0.05 on data of your own",
]
KeepSkill = Annotated[
    float,
    Range(0, 1),
    Guarded(0.8),
    EXTENSION,
    "share of balanced accuracy above one half that the momentum must leave; 0.8 on data of your own",
]


def guard(strategy: Strategy, *, min_mcc: float | None = None, keep: float = 0.0) -> Strategy:
    """A strategy that is kept from models which nearly give everybody one answer.

    Parameters
    ----------
    strategy : it counts clients that are ``cohort.eligible`` only and, with ``keep``, multiplies what it adds
        to the FedAvg step by ``cohort.caution``
    min_mcc : least MCC on the validation rows of a client that is eligible; None for no such rule
    keep : share of the skill of the FedAvg step that must be left; while less is, caution is halved, and is 0
        in the end. 0 for no such rule
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
