"""Federated averaging (McMahan et al. 2017)."""

from __future__ import annotations

from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import Cohort, ModelState, Strategy


def fedavg() -> Strategy:
    r"""Add the clients' mean update, weighted by their rows.

    .. math:: \theta \leftarrow \theta + \sum_k \frac{n_k}{n} \Delta_k
    """

    def aggregate(state: ModelState, cohort: Cohort) -> ModelState:
        return ModelState(state.params + cohort.mean(cohort.num_examples))

    return Strategy(ModelState, aggregate)


@register("fedavg", "mean of the clients' updates, weighted by rows", "McMahan et al. 2017")
def _build(setup: Setup) -> Strategy:
    return fedavg()
