"""FedFB: FairBatch's weights from sums that clients send (Zeng et al. 2021)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np

from fairfate.fairness.metrics import Statistics, Values
from fairfate.strategies.fairbatch import ShareState, loss_gaps, moving_shares
from fairfate.strategies.hyperparameters import RUN_METRIC, GroupMetric, Range
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    Cohort,
    Need,
    Strategy,
    broadcast_weights,
    divide,
    rows_so_far,
)
from fairfate.sums import norm


def surrogate_sums(now: Statistics, surrogate: str) -> Values:
    """(groups, 2) sums of losses, or of errors in their place."""
    if surrogate == "loss":
        return now.loss
    return np.stack([now.counts[:, 0, 1], now.counts[:, 1, 0]], axis=1).astype(np.float64)


def selection(sums: Values, now: Statistics) -> Values:
    """(groups,) the selection rates that sums of losses stand for; with errors, the rates themselves."""
    rows = now.rows
    return divide(sums[:, 0] - sums[:, 1] + rows[:, 1], rows.sum(axis=1))


def fedfb_parity(alpha: float, surrogate: str = "loss") -> Strategy:
    r"""FedFB for statistical parity: a group that is selected too often learns more from its label 0.

    .. math::
        f_z &= (L_{z0} - L_{z1} + m_{z1}) / m_z - (L_{00} - L_{01} + m_{01}) / m_0 \\
        u_z &\leftarrow \text{clip}(u_z + \tfrac{\alpha}{\sqrt t} \tfrac{n}{m_z} f_z, 0, 2), \quad
        u_0 \leftarrow \text{clip}(u_0 - \tfrac{\alpha}{\sqrt t} \tfrac{n}{m_0} \textstyle\sum_z f_z, 0, 2) \\
        w(z, 0) &= u_z, \quad w(z, 1) = 2 - u_z, \quad u^0 = 1

    L are sums of losses over the rows of a round's clients, m their rows; n / m_z is of all clients that
    have reported so far. The first group is the one that others are compared with.

    Parameters
    ----------
    alpha : step in the first round
    surrogate : ``loss``, or ``error`` for wrong predictions in its place: f is then the difference of rates
    """

    def aggregate(state: ShareState, cohort: Cohort) -> ShareState:
        params = state.params + cohort.mean(cohort.num_examples)
        known, rows = rows_so_far(state.rows, cohort)
        now = cohort.get(Need.REPORTS).total()
        rate = selection(surrogate_sums(now, surrogate), now)
        f = np.nan_to_num(rate - rate[0])
        f[0] = -f.sum()
        weight_of_group = np.nan_to_num(divide(np.full(len(f), rows.sum()), rows.sum(axis=1)))
        before = state.moved if len(state.moved) else np.zeros(len(f))
        moved = np.clip(before + alpha / cohort.round**0.5 * weight_of_group * f, -1.0, 1.0)
        weight = np.stack([1 + moved, 1 - moved], axis=1)
        notes = {"gap": float(np.nan_to_num(np.ptp(rate)))}
        return ShareState(params, known, moved, weight.ravel(), notes)

    return Strategy(
        lambda params: ShareState(params, {}, np.empty(0), np.empty(0)),
        aggregate,
        broadcast=lambda state, rows: state.weight,
        local_loss=broadcast_weights,
        needs={Need.REPORTS},
    )


def fedfb_odds(
    step: float, *, labels: tuple[int, ...] = (0, 1), surrogate: str = "loss", sums: bool = False
) -> Strategy:
    r"""FedFB for equal odds (both labels) or opportunity (label 1), with two groups.

    .. math:: \lambda_y \leftarrow \text{clip}(\lambda_y + \alpha d_y / \lVert d \rVert, 0, P(y)),
        \quad d_y = L_{1y} / m_{1y} - L_{0y} / m_{0y}

    lambda_y is the share of (group 1, label y) among all rows, at first its own.

    Parameters
    ----------
    step : alpha
    labels : whose shares move
    surrogate : ``loss``, or ``error`` for wrong predictions in its place
    sums : compare sums and not means, as declearn reads the paper
    """

    def moves(now: Statistics) -> Values:
        losses, rows = surrogate_sums(now, surrogate), now.rows
        gaps = losses[1] - losses[0] if sums else loss_gaps(losses, rows)
        d = np.array([gaps[label] if label in labels else 0.0 for label in (0, 1)])
        d = np.where((rows > 0).all(axis=0), d, 0.0)
        length = norm(d)
        return np.asarray(step * d / length if length > 0 else d)

    return moving_shares(moves)


@register(
    "fedfb", "fedavg; loss weights of (group, label) that follow the groups' losses", "Zeng et al. 2021"
)
def fedfb(
    setup: Setup,
    *,
    metric: GroupMetric = RUN_METRIC,
    alpha: Annotated[float, Range(0, 10), "step in the first round, with sp"] = 0.3,
    step: Annotated[float, Range(0, 1), "step of the shares, with eo and eqo"] = 0.005,
    surrogate: Annotated[Literal["loss", "error"], "stands for rates: losses, or wrong predictions"] = "loss",
    gaps: Annotated[
        Literal["means", "sums"], "what is compared with eo and eqo: means or sums of losses"
    ] = "means",
) -> Strategy:
    """FedAvg; loss weights follow the groups' losses: `fedfb_parity` for ``sp``, `fedfb_odds` for the others.

    Notes
    -----
    With ``eo`` and ``eqo``, ``gaps="sums"`` is how declearn reads the paper; means, the default, are as in
    FairBatch. ``surrogate="error"`` is not in the paper: f is then the exact difference of selection rates.

    References
    ----------
    Zeng, Chen, Lee, "Improving Fairness via Federated Learning", arXiv 2110.15545, 2021.

    Examples
    --------
    >>> fedfb(metric="eo", step=0.01).text
    'fedfb:metric=eo,step=0.01'
    """
    if metric == "sp":
        return fedfb_parity(alpha, surrogate)
    setup.check_two_groups("fedfb with eo or eqo")
    labels = (1,) if metric == "eo" else (0, 1)
    return fedfb_odds(step, labels=labels, surrogate=surrogate, sums=gaps == "sums")
