"""A strategy of your own: FedAvg without the least fair clients, whose losses count each group alike.

fairfate run --plugin examples/own_strategy.py --strategy fedavg --strategy drop_unfair:share=0.2+average

In a notebook, ``fairfate.run(strategies=["fedavg", drop_unfair(share=0.2) + "median"])`` needs no file.
"""

from typing import Annotated

import numpy as np

from fairfate.strategies import (
    RUN_METRIC,
    Cohort,
    LossTerms,
    ModelState,
    Need,
    Objective,
    Range,
    Setup,
    Strategy,
    register,
)


@register("drop_unfair", "fedavg without the least fair share of the clients", "this file")
def drop_unfair(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    share: Annotated[float, Range(0, 1, below_high=True), "share of the clients to leave out"] = 0.3,
) -> Strategy:
    """All functions are pure: what they need comes in, what they remember goes out."""
    fairness = setup.fairness(metric)

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        scores = np.nan_to_num(fairness(cohort.client_counts), nan=0.0)
        kept = scores >= np.quantile(scores, share)
        return ModelState(state.params + cohort.mean(cohort.num_examples * kept), {"kept": kept})

    def local_loss(message: object, rows: np.ndarray, local: object) -> LossTerms:
        group = np.maximum(rows.sum(axis=1, keepdims=True), 1)
        return LossTerms(np.broadcast_to(rows.sum() / (len(rows) * group), rows.shape))

    return Strategy(ModelState, aggregate, local_loss=local_loss, needs={Need.SCORES})
