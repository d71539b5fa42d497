"""Agnostic federated learning: weights of clients follow their losses (Mohri et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    Cohort,
    Need,
    Notes,
    Strategy,
    Vector,
    client_losses,
    project,
)


class AflState(NamedTuple):
    """The model, and what is known of every client so far."""

    params: Vector
    base: Mapping[str, float]
    """What each client counts before anything has moved, by name."""
    moved: Mapping[str, float]
    """How far each client's share has moved from that."""
    notes: Notes = NO_NOTES


@register("afl", "weights of clients follow their losses", "Mohri et al. 2019")
def afl(
    setup: Setup,
    *,
    rate: Annotated[float, Range(0, 100), "step size of the weights"] = 0.01,
    start: Annotated[Literal["rows", "equal"], "clients' weights at the start"] = "rows",
) -> Strategy:
    r"""Train for the mixture of clients that the model does worst on.

    .. math::
        \theta &\leftarrow \theta + \sum_k \lambda_k \Delta_k / \sum_k \lambda_k \\
        \lambda &\leftarrow \text{project}(\lambda + \eta L), \quad \lambda_k^0 = n_k / n

    L are the losses of the received model on the clients' own rows. A round changes the shares of its clients
    only, and keeps their sum. With ``start=equal`` all shares start equal, as in a public implementation.

    Notes
    -----
    The paper releases the mean of all rounds' models: ``afl+average:share=1``. It alternates single gradient
    steps of the model and of the weights; here clients train for epochs.

    References
    ----------
    Mohri, Sivek, Suresh, "Agnostic Federated Learning", ICML 2019.

    Examples
    --------
    >>> (afl(rate=0.1) + "average:share=1").text
    'afl:rate=0.1+average:share=1'
    """

    def aggregate(state: AflState, cohort: Cohort) -> AflState:
        own = np.ones(len(cohort.clients)) if start == "equal" else cohort.num_examples.astype(np.float64)
        base = {**state.base, **dict(zip(cohort.clients, own.tolist(), strict=True))}
        total = sum(base.values())
        before = np.array([state.moved.get(name, 0.0) for name in cohort.clients])
        weights = np.maximum(own + total * before, 0.0)
        used = weights if weights.sum() > 0 else own
        params = state.params + cohort.mean(used)

        loss = client_losses(cohort.get(Need.REPORTS))
        share = used / total
        share_after = project(share + rate * (loss - loss.mean()), float(share.sum()))
        moved = dict(zip(cohort.clients, (share_after - own / total).tolist(), strict=True))
        notes = {"weight": used / used.sum(), "loss": loss}
        return AflState(params, base, {**state.moved, **moved}, notes)

    return Strategy(
        lambda params: AflState(params, {}, {}), aggregate, needs={Need.REPORTS}, group_blind=True
    )
