"""FAIR-FATE: fair federated learning with momentum (Salazar et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.individual import Fairness
from fairfate.fairness.metrics import Values
from fairfate.strategies.guard import KEEP, MIN_MCC, able, lowered, skill
from fairfate.strategies.momentum import MomentumState
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.schedules import Schedule, constant, demon, exponential, linear
from fairfate.strategies.settings import METRIC, Choice, Number
from fairfate.strategies.strategy import Cohort, Need, Strategy, Vector, needs_of, scores

FairSet = Callable[[Values, Values], tuple[NDArray[np.bool_], Values]]


def at_least_as_fair(scores: Values, server: Values) -> tuple[NDArray[np.bool_], Values]:
    """The fair set of the paper, ``F_k >= F``, and its weights. An undefined score is never fair."""
    return scores >= server, scores


def fairer_normalised(scores: Values, server: Values) -> tuple[NDArray[np.bool_], Values]:
    """The fair set of the published runs: scores min-max normalised first, and a strict ``>``."""
    low, high = min(np.minimum.reduce(scores), server), max(np.maximum.reduce(scores), server)
    normalised = (scores - low) / (high - low) if high > low else np.zeros_like(scores)
    return scores > server, normalised


def fair_fate(
    fairness: Fairness,
    *,
    beta: Schedule,
    lam: Schedule,
    fair_set: FairSet = at_least_as_fair,
    bias_correction: bool = False,
    min_mcc: float = 0.0,
    keep: float = 0.0,
) -> Strategy:
    r"""Mix the momentum of the fair clients' updates (share lambda) with the FedAvg update.

    .. math::
        \alpha_F &= \sum_{k \in \text{fair}} F_k \Delta_k / \sum_{k \in \text{fair}} F_k \\
        \alpha_N &= \sum_k \tfrac{n_k}{n} \Delta_k \\
        v &\leftarrow \beta_t v + (1 - \beta_t) \alpha_F \\
        \theta &\leftarrow \theta + \lambda_t v + (1 - \lambda_t) \alpha_N

    In a round in which nobody was judged, the mean of all clients stands for that of the fair ones.

    Parameters
    ----------
    fairness : F, on the validation rows
    beta, lam : schedules of the momentum and of the share of fairness
    fair_set : which clients are fair, and by what weights they count
    bias_correction : apply ``v / (1 - beta_t ** t)`` instead of ``v``, as the published runs did
    min_mcc : clients whose model has a lower MCC on the validation rows are never fair; 0 for no such rule
    keep : lambda is lowered in rounds in which less than this share of the skill of the FedAvg step, its
        balanced accuracy above one half, would be left; 0 for no such rule
    """

    def init(params: Vector) -> MomentumState:
        return MomentumState(params, np.zeros_like(params))

    def aggregate(state: MomentumState, cohort: Cohort) -> MomentumState:
        t, b, share = cohort.round, beta(cohort.round), lam(cohort.round)
        is_fair, fairness_of = fair_set(*scores(fairness, cohort))
        if min_mcc > 0:
            is_fair = is_fair & able(cohort.client_counts, min_mcc)

        fairness_of_the_fair = np.where(is_fair, fairness_of, 0.0)
        alpha_f, alpha_n = cohort.means(fairness_of_the_fair, cohort.num_examples)
        if not cohort.server_counts.any():  # nobody was judged: FedAvg with momentum
            alpha_f = alpha_n

        v = b * state.momentum + (1 - b) * alpha_f
        correction = 1 - b**t if bias_correction else 1.0

        def at(share: float) -> Vector:
            moved: Vector = state.params + share * (v / correction) + (1 - share) * alpha_n
            return moved

        if keep > 0 and cohort.score is not None:
            least = keep * skill(cohort.score((state.params + alpha_n)[None])[0])
            share = share if least <= 0 else lowered(share, at, least, cohort.score)
        return MomentumState(at(share), v, {"lam": share, "beta": b, "fair": is_fair})

    needs = needs_of(fairness) | (Need.TRIALS if keep > 0 else Need.NOTHING)
    return Strategy(init, aggregate, needs=needs)


@register(
    "fair_fate",
    "mixes fair clients' momentum with fedavg by a growing weight",
    "Salazar et al. 2023",
    metric=METRIC,
    lam0=Number(0.1, "share of fairness at the start"),
    rho=Number(0.05, "growth rate of that share"),
    max=Number(0.9, "upper bound of that share"),
    beta0=Number(0.9, "momentum at the start", below_high=True),
    momentum=Choice("decaying", "for ablation", ("none", "constant", "decaying")),
    growth=Choice("exponential", "of the share, for ablation", ("constant", "linear", "exponential")),
    min_mcc=MIN_MCC,
    keep=KEEP,
)
def _build(
    setup: Setup,
    metric: str,
    lam0: float,
    rho: float,
    max: float,  # noqa: A002  # the paper's name
    beta0: float,
    momentum: str,
    growth: str,
    min_mcc: float = 0.0,
    keep: float = 0.0,
) -> Strategy:
    betas = {
        "none": constant(0.0),
        "constant": constant(beta0),
        "decaying": demon(beta0, setup.num_rounds),
    }
    lams = {
        "constant": linear(lam0, 0.0, max),
        "linear": linear(lam0, rho, max),
        "exponential": exponential(lam0, rho, max),
    }
    return fair_fate(
        setup.objective(metric, min_mcc),
        beta=betas[momentum],
        lam=lams[growth],
        fair_set=fairer_normalised if setup.published else at_least_as_fair,
        bias_correction=setup.published,
        min_mcc=min_mcc,
        keep=keep,
    )
