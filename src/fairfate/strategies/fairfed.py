"""FairFed: clients count by how near their local fairness is to the global one (Ezzeldin et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.fairness.metrics import accuracy
from fairfate.strategies.hyperparameters import RUN_METRIC, Objective, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.reweighing import local_reweighing
from fairfate.strategies.strategy import NO_NOTES, Cohort, Need, Notes, Strategy, Vector


class FairFedState(NamedTuple):
    """The model, and what is known of every client so far."""

    params: Vector
    examples: Mapping[str, float]
    """Rows of each client, by name."""
    moved: Mapping[str, float]
    """How far each client's weight has moved from its share of all rows."""
    notes: Notes = NO_NOTES


@register(
    "fairfed", "weighs clients by how near their own fairness is to everybody's", "Ezzeldin et al. 2023"
)
def fairfed(
    setup: Setup,
    *,
    metric: Objective = RUN_METRIC,
    beta: Annotated[float, Range(0), "how fast weights move"] = 1.0,
    variant: Annotated[Literal["paper", "exp"], "weights with memory, or exp(-beta gap)"] = "paper",
    local: Annotated[
        Literal["reweigh", "none"], "clients' losses: reweighed by their own rows, or plain"
    ] = "reweigh",
) -> Strategy:
    r"""Lower the weight of clients whose fairness differs from that of all clients together.

    .. math::
        g_k &= |F_k - F| \quad (|\text{acc}_k - \text{acc}| \text{ where } F_k \text{ is undefined}) \\
        w_k &\leftarrow \max(w_k - \beta (g_k - \bar g), 0), \quad w_k^0 = n_k / n \\
        \theta &\leftarrow \theta + \sum_k w_k \Delta_k / \sum_k w_k

    F is a signed difference between groups. With ``variant=exp``, w_k = n_k exp(-beta g_k), without memory.
    Clients reweigh their own losses, as in the paper, unless ``local=none``.

    Notes
    -----
    ``variant="exp"`` is what several public implementations run, among them that of FAIR-FATE's authors. The
    paper does not define F for ``eqo`` (here the mean of the TPR and FPR differences) or more than two
    groups, nor rounds with some of the clients: here weights of absent clients stay, and the mean gap is the
    round's.

    References
    ----------
    Ezzeldin, Yan, He, Ferrara, Avestimehr, "FairFed: Enabling Group Fairness in Federated Learning", AAAI
    2023.

    Examples
    --------
    >>> fairfed(beta=0.5, local="none").text
    'fairfed:beta=0.5,local=none'
    """
    gap_of = setup.gap(metric)

    def init(params: Vector) -> FairFedState:
        return FairFedState(params, {}, {})

    def aggregate(state: FairFedState, cohort: Cohort) -> FairFedState:
        counts = cohort.get(Need.REPORTS).counts
        everybody = counts.sum(axis=0)
        gap = np.abs(gap_of(counts) - gap_of(everybody))
        gap = np.where(np.isnan(gap), np.abs(accuracy(counts) - accuracy(everybody)), gap)

        n = cohort.num_examples
        examples = {**state.examples, **dict(zip(cohort.clients, map(float, n), strict=True))}
        total, moved = sum(examples.values()), dict(state.moved)
        if variant == "exp":
            w = n * np.exp(-beta * gap)
        else:
            before = np.array([moved.get(name, 0.0) for name in cohort.clients])
            w = np.maximum(n + total * (before - beta * (gap - gap.mean())), 0.0)  # times the number of rows
            moved |= dict(zip(cohort.clients, ((w - n) / total).tolist(), strict=True))
        used = w if w.sum() > 0 else n
        params = state.params + cohort.mean(used)
        return FairFedState(params, examples, moved, {"gap": gap, "weight": used / used.sum()})

    return Strategy(
        init, aggregate, local_loss=local_reweighing if local == "reweigh" else None, needs={Need.REPORTS}
    )
