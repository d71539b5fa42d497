"""FAIR-FATE: fair federated learning with momentum (Salazar et al. 2023)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.metrics import Counts, Values
from fairfate.strategies.guards import KeepSkill, MinMcc, guard
from fairfate.strategies.hyperparameters import RUN_METRIC, Objective, Range
from fairfate.strategies.momentum import MomentumState
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.schedules import constant, demon, exponential, linear
from fairfate.strategies.strategy import Cohort, Strategy, Vector, needs_of, score_own, scores


def at_least_as_fair(scores: Values, server: Values) -> tuple[NDArray[np.bool_], Values]:
    """The fair set of the paper, ``F_k >= F``, and its weights. An undefined score is never fair."""
    return scores >= server, scores


def fairer_normalised(scores: Values, server: Values) -> tuple[NDArray[np.bool_], Values]:
    """The fair set of the published runs: scores min-max normalised first, and a strict ``>``."""
    low, high = min(np.minimum.reduce(scores), server), max(np.maximum.reduce(scores), server)
    normalised = (scores - low) / (high - low) if high > low else np.zeros_like(scores)
    return scores > server, normalised


@register(
    "fair_fate", "FedAvg plus momentum from fairer clients' updates; its weight grows", "Salazar et al. 2023"
)
def fair_fate(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    lam0: Annotated[float, Range(0, 1), "share of fairness at the start"] = 0.1,
    rho: Annotated[float, Range(0, 1), "growth rate of that share"] = 0.05,
    max: Annotated[float, Range(0, 1), "upper bound of that share"] = 0.9,  # noqa: A002  # the paper's name
    beta0: Annotated[float, Range(0, 1, below_high=True), "momentum at the start"] = 0.9,
    momentum: Annotated[
        Literal["none", "constant", "decaying"], "momentum schedule, for ablation"
    ] = "decaying",
    growth: Annotated[
        Literal["constant", "linear", "exponential"], "growth of the share, for ablation"
    ] = "exponential",
    min_mcc: MinMcc = 0.0,
    keep: KeepSkill = 0.0,
) -> Strategy:
    r"""Mix the momentum of the fair clients' updates (share lambda) with the FedAvg update.

    .. math::
        \alpha_F &= \sum_{k \in \text{fair}} F_k \Delta_k / \sum_{k \in \text{fair}} F_k \\
        \alpha_N &= \sum_k \tfrac{n_k}{n} \Delta_k \\
        v &\leftarrow \beta_t v + (1 - \beta_t) \alpha_F \\
        \theta &\leftarrow \theta + \lambda_t v + (1 - \lambda_t) \alpha_N

    A client is fair if its F on the validation rows is at least the server's. In a round without any
    validation, :math:`\alpha_F = \alpha_N`.

    Notes
    -----
    Under the protocol ``published``, as in the published runs, F is min-max normalised over clients and
    server, a fair client must exceed the server's F, and ``v / (1 - beta_t ** t)`` is applied. ``min_mcc``
    and ``keep`` are not in the paper; see `guard`.

    Under secure sums each client compares its F with the server's, and alpha_F is 0 in a round in which too
    few clients are fair, or too few are not, for their sum to be opened.

    References
    ----------
    Salazar, Fernandes, Araújo, Abreu, "FAIR-FATE: Fair Federated Learning with Momentum", ICCS 2023.

    Examples
    --------
    >>> fair_fate(metric="eo", lam0=0.2).text
    'fair_fate:metric=eo,lam0=0.2'
    """
    fairness = setup.objective(metric, min_mcc)
    fair_set = fairer_normalised if setup.published else at_least_as_fair
    beta = {
        "none": constant(0.0),
        "constant": constant(beta0),
        "decaying": demon(beta0, setup.num_rounds),
    }[momentum]
    lam = {
        "constant": linear(lam0, 0.0, max),
        "linear": linear(lam0, rho, max),
        "exponential": exponential(lam0, rho, max),
    }[growth]

    def init(params: Vector) -> MomentumState:
        return MomentumState(params, np.zeros_like(params))

    def aggregate(state: MomentumState, cohort: Cohort) -> MomentumState:
        t, b = cohort.round, beta(cohort.round)
        share = lam(t) * cohort.caution
        if cohort.summed is not None:
            fair: float | NDArray[np.bool_] = float(cohort.summed.members)
            alpha_n = cohort.mean(cohort.num_examples)
            alpha_f = np.zeros_like(alpha_n) if cohort.summed.mean is None else cohort.summed.mean
        else:
            is_fair, fairness_of = fair_set(*scores(fairness, cohort))
            fair = is_fair & cohort.eligible
            alpha_f, alpha_n = cohort.means(np.where(fair, fairness_of, 0.0), cohort.num_examples)
            if not cohort.server_counts.any():  # no model was validated: FedAvg with momentum
                alpha_f = alpha_n

        v = b * state.momentum + (1 - b) * alpha_f
        correction = 1 - b**t if setup.published else 1.0
        params = state.params + share * (v / correction) + (1 - share) * alpha_n
        return MomentumState(params, v, {"lam": share, "beta": b, "fair": fair})

    def weigh(own: Counts, received: Counts) -> float:
        is_fair, fairness_of = at_least_as_fair(*score_own(fairness, own, received))
        return float(np.where(is_fair, fairness_of, 0.0)[0])

    on_sums = None if setup.published else weigh  # whose scores are normalised by the round's extremes
    strategy = Strategy(init, aggregate, needs=needs_of(fairness), weigh=on_sums)
    return guard(strategy, min_mcc=min_mcc or None, keep=keep)
