"""A strategy of your own in thirty lines: FedAvg without the least fair clients.

fairfate run --plugin examples/own_strategy.py --strategy fedavg --strategy trimmed:share=0.2
"""

import numpy as np

from fairfate.strategies import METRIC, Cohort, ModelState, Need, Number, Setup, Strategy, register


@register(
    "trimmed",
    "fedavg without the least fair share of the clients",
    "this file",
    metric=METRIC,
    share=Number(0.3, "share of the clients to leave out", below_high=True),
)
def build(setup: Setup, metric: str, share: float) -> Strategy:
    """Both functions are pure: what they need comes in, what they remember goes out."""
    fairness = setup.fairness(metric)

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        scores = np.nan_to_num(fairness(cohort.client_counts), nan=0.0)
        kept = scores >= np.quantile(scores, share)
        return ModelState(state.params + cohort.mean(cohort.num_examples * kept))

    return Strategy(ModelState, aggregate, needs=Need.SCORES)
