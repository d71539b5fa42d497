"""FedAvg with reweighed client losses (Abay et al. 2020, after Kamiran and Calders 2012)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from fairfate.strategies.fedavg import AVERAGING
from fairfate.strategies.hyperparameters import EXTENSION
from fairfate.strategies.registry import Setup, register
from fairfate.strategies.strategy import (
    CellRows,
    LossTerms,
    ModelState,
    Need,
    Needs,
    Statistics,
    Strategy,
    Vector,
    broadcast_weights,
)


def reweigh(rows: CellRows) -> NDArray[np.float64]:
    r"""Weights under which group and label are independent.

    .. math:: w(s, y) = P(s) P(y) / P(s, y), \quad 1 \text{ where a count is } 0

    Parameters
    ----------
    rows : (..., groups, 2) rows by group and label

    Returns
    -------
    (..., groups, 2) weights

    References
    ----------
    Kamiran, Calders, "Data Preprocessing Techniques for Classification without Discrimination", KAIS 2012.

    Examples
    --------
    >>> reweigh(np.array([[30, 10], [10, 30]])).tolist()
    [[0.6666666666666666, 2.0], [2.0, 0.6666666666666666]]
    """
    counts = rows.astype(np.float64)  # products of large counts do not fit into whole numbers
    expected = counts.sum(axis=-1, keepdims=True) * counts.sum(axis=-2, keepdims=True)
    observed = counts * counts.sum(axis=(-1, -2), keepdims=True)
    return np.where(observed > 0, expected / np.maximum(observed, 1), 1.0)


def local_reweighing(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
    """A client's loss with the weights of its own rows, which it does not send; for ``local_loss``.

    Parameters
    ----------
    message : not used
    rows : the client's rows by (group, label)
    local : not used

    Returns
    -------
    the terms of the loss

    Examples
    --------
    >>> from fairfate.strategies.strategy import NO_STATISTICS
    >>> rows = np.array([[30, 10], [10, 30]])
    >>> local_reweighing(np.zeros(0), rows, NO_STATISTICS).weight.round(2).tolist()
    [[0.67, 2.0], [2.0, 0.67]]
    """
    return LossTerms(reweigh(rows))


@register(
    "fedavg_lr", "FedAvg; each client weighs losses by its rows per group and label", "Abay et al. 2020"
)
def fedavg_lr(setup: Setup) -> Strategy:
    """FedAvg; every client reweighs its loss by its own rows, see `reweigh`.

    References
    ----------
    Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig, "Mitigating Bias in Federated Learning", arXiv
    2012.02447, 2020; weights of Kamiran and Calders, "Data Preprocessing Techniques for Classification
    without Discrimination", KAIS 2012.

    Examples
    --------
    >>> (fedavg_lr() + "average").text
    'fedavg_lr+average:share=0.5'
    """
    return AVERAGING._replace(local_loss=local_reweighing)


@register("fedavg_gr", "fedavg; losses reweighed by the round's counts", "Abay et al. 2020")
def fedavg_gr(
    setup: Setup,
    *,
    counts: Annotated[
        Literal["round", "once"], EXTENSION, "counts of the round's clients, or once of all clients"
    ] = "round",
) -> Strategy:
    """FedAvg; the clients of a round reweigh their losses by the rows of all of them, see `reweigh`.

    With ``counts=once`` weights are those of the rows of all clients and never change.

    Notes
    -----
    In the paper each client sends its counts once, with noise for differential privacy. Here counts are exact
    and, unless ``counts=once``, those of the round's clients, as in FAIR-FATE's experiments.

    References
    ----------
    Abay, Zhou, Baracaldo, Rajamoni, Chuba, Ludwig, "Mitigating Bias in Federated Learning", arXiv
    2012.02447, 2020.

    Examples
    --------
    >>> fedavg_gr(counts="once").text
    'fedavg_gr:counts=once'
    """

    def broadcast(state: ModelState, rows: CellRows) -> Vector:
        return reweigh(rows.sum(axis=0))

    needs: Needs = {Need.ALL_ROWS if counts == "once" else Need.ROWS}
    return AVERAGING._replace(broadcast=broadcast, local_loss=broadcast_weights, needs=needs)
