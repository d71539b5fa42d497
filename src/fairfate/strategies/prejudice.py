"""The federated prejudice remover (Abay et al. 2020, after Kamishima et al. 2012)."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np

from fairfate.fairness.metrics import Values
from fairfate.strategies.hyperparameters import Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    NO_NOTES,
    CellRows,
    Cohort,
    LossTerms,
    Need,
    Needs,
    Notes,
    Statistics,
    Strategy,
    Vector,
)

_LEAST = 1e-6


class PrejudiceState(NamedTuple):
    """The model, and what the clients of the next round are told."""

    params: Vector
    push: Vector
    """(groups,) what a prediction costs in each group; empty before the first round."""
    notes: Notes = NO_NOTES


def group_push(eta: float, probability: Values, rows: CellRows) -> Values:
    r"""(groups,) the price of a positive prediction, ``eta (logit q_s - logit r)``.

    ``q_s`` is the mean predicted probability of group s, ``r`` that of all rows; a group without rows pays
    nothing. This is the exact gradient of ``eta`` times the mutual information of prediction and group.

    >>> group_push(1.0, np.array([[0.1, 0.3], [0.4, 0.8]]), np.array([[1, 1], [1, 1]])).round(6).tolist()
    [-0.980829, 0.81093]
    """
    total, count = probability.sum(axis=-1), rows.sum(axis=-1)
    q = np.clip(total / np.maximum(count, 1), _LEAST, 1 - _LEAST)
    r = np.clip(total.sum() / max(count.sum(), 1), _LEAST, 1 - _LEAST)
    push = eta * (np.log(q / (1 - q)) - np.log(r / (1 - r)))
    return np.where(count > 0, push, 0.0) if (count > 0).sum() > 1 else np.zeros(len(count))


@register(
    "prejudice",
    "fedavg; losses that penalise mutual information between prediction and group",
    "Abay et al. 2020, Kamishima et al. 2012",
)
def prejudice(
    setup: Setup,
    *,
    eta: Annotated[float, Range(0, 1000), "strength; from about 10 on, models tend to collapse"] = 1.0,
    scope: Annotated[Literal["batch", "client", "global"], "rows that rates are taken over"] = "client",
) -> Strategy:
    r"""FedAvg; clients minimise ``BCE + eta * I``, with I the mutual information of prediction and group.

    I is estimated over each ``batch``, over the ``client``'s own rows (again before every epoch), or over
    those of all clients of the previous round (``global``).

    Notes
    -----
    Kamishima et al. fit a logistic regression with separate weights for each group; here the run's own model
    is trained. ``scope="global"`` is not in the papers.

    References
    ----------
    Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig, "Mitigating Bias in Federated Learning", arXiv
    2012.02447, 2020; Kamishima, Akaho, Asoh, Sakuma, "Fairness-Aware Classifier with Prejudice Remover
    Regularizer", ECML PKDD 2012.

    Examples
    --------
    >>> prejudice(eta=5).text
    'prejudice:eta=5'
    """

    def aggregate(state: PrejudiceState, cohort: Cohort) -> PrejudiceState:
        params = state.params + cohort.mean(cohort.num_examples)
        if scope != "global":
            return PrejudiceState(params, state.push)
        together = cohort.get(Need.REPORTS).total()
        return PrejudiceState(params, group_push(eta, together.probability, together.rows))

    def local_loss(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
        ones = np.ones(rows.shape)
        if scope == "batch":
            return LossTerms(ones, prejudice=eta)
        if scope == "client":
            push = group_push(eta, local.probability, rows)
        else:
            push = message if len(message) else np.zeros(len(rows))
        return LossTerms(ones, np.broadcast_to(push[:, None], rows.shape))

    needs: dict[str, Needs] = {"batch": set(), "client": {Need.LOCAL}, "global": {Need.REPORTS}}
    return Strategy(
        lambda params: PrejudiceState(params, np.empty(0)),
        aggregate,
        broadcast=(lambda state, rows: state.push) if scope == "global" else None,
        local_loss=local_loss,
        needs=needs[scope],
        refresh=1 if scope == "client" else None,
    )
