"""What a client does in a round, in the simulator and at a Flower site alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.fairness.metrics import CellRows, Statistics
from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses, Model, Models, labels_of
from fairfate.models.private import NoisySteps, train_private
from fairfate.models.rows import ClientRows, PackedRows
from fairfate.models.training import Training
from fairfate.strategies import LossTerms, Need, Strategy, Vector
from fairfate.strategies.strategy import NO_MESSAGE, NO_STATISTICS, plain_loss


def local_terms(
    strategy: Strategy, broadcast: Vector | None, rows: CellRows, local: Statistics | None
) -> LossTerms:
    """A client's loss in a strategy, checked."""
    if strategy.local_loss is None:
        return plain_loss(rows)
    if local is None and Need.LOCAL in strategy.needs:
        raise InputError(
            "local must be given for a strategy that needs the model on its client's rows, got None"
        )
    message = NO_MESSAGE if broadcast is None else broadcast
    return check_terms(strategy.local_loss(message, rows, NO_STATISTICS if local is None else local), rows)


def check_terms(terms: LossTerms, rows: CellRows) -> LossTerms:
    """The same, found to be finite and to fit rows by (group, label)."""
    if not isinstance(terms, LossTerms):
        raise InputError(f"a strategy's local_loss must give LossTerms, got {type(terms).__name__}")
    for name in ("weight", "push", "target"):
        value = getattr(terms, name)
        if value is None and name != "weight":
            continue
        if not _finite(value, rows.shape):
            raise InputError(
                f"a strategy's local_loss must give a finite {name} for each of (groups, labels)"
                f" {rows.shape}, got {value}"
            )
    if terms.target is not None and not (np.min(terms.target) >= 0 and np.max(terms.target) <= 1):
        raise InputError(f"a strategy's local_loss must give a target in [0, 1], got {terms.target}")
    for name in ("prejudice", "prox"):
        number = getattr(terms, name)
        if not _finite(number, ()):
            raise InputError(f"a strategy's local_loss must give a finite {name}, got {number}")
    return terms


def _finite(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether it is finite numbers of this shape."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        return False
    return array.shape == shape and array.dtype.kind in "biuf" and bool(np.isfinite(array).all())


def part(statistics: Statistics, index: Any) -> Statistics:
    """A part of statistics: of one model, say, or of some clients."""
    counts, probability, loss = statistics
    return Statistics(counts[index], probability[index], loss[index])


def train(
    model: Model,
    strategies: Sequence[Strategy],
    start: Models,
    broadcasts: Sequence[Vector | None],
    rows: ClientRows,
    clients: NDArray[np.int64],
    client_cells: CellRows,
    packed: dict[int, PackedRows],
    training: Training,
    key: np.uint64,
    t: int,
    noisy: Sequence[NoisySteps] | None = None,
) -> Models:
    """Train every strategy's model at every client: (strategies, clients, parameters).

    Strategies that look again at their clients' models between epochs are trained apart from the others.

    Parameters
    ----------
    model : the kind of model
    strategies, start, broadcasts : for each, its model and what its clients are told
    rows, client_cells, packed : all clients' rows; of those of the round by (client, group, label); by client
    clients : the clients of the round
    training, key, t : how long, and what the batches depend on
    noisy : for each client, how its steps are made private; then there is one strategy
    """

    def train_together(which: Sequence[int], refresh: int | None) -> Models:
        """Those that look at the same times."""
        chosen, messages = [strategies[s] for s in which], [broadcasts[s] for s in which]
        sent = start if len(which) == len(start) else start[which]
        current = np.repeat(sent[:, None], len(clients), 1)
        step = training.epochs if refresh is None else refresh
        for skip in range(0, training.epochs, step):
            losses = _losses(
                model, chosen, sent, current, messages, clients, client_cells, packed, training.l2
            )
            epochs = min(step, training.epochs - skip)
            if noisy is None:
                batches = Batches(key, t, skip, epochs)
                current = model.train(current, rows, clients, losses, training, batches)
            else:
                current = _train_private(model, current, rows, clients, losses, training, epochs, noisy)
        return current

    refreshes = list(dict.fromkeys(strategy.refresh for strategy in strategies))
    if len(refreshes) == 1:
        return train_together(range(len(strategies)), refreshes[0])
    trained = np.empty((len(strategies), len(clients), start.shape[-1]), dtype=np.float32)
    for refresh in refreshes:
        which = [s for s, strategy in enumerate(strategies) if strategy.refresh == refresh]
        trained[which] = train_together(which, refresh)
    return trained


MOST_WEIGHT = np.float32(10)
"""Of a row under privacy: what weighs more is clipped anyway, and takes the place of other rows."""


def _train_private(
    model: Model,
    start: Models,
    rows: ClientRows,
    clients: NDArray[np.int64],
    losses: Losses,
    training: Training,
    epochs: int,
    noisy: Sequence[NoisySteps],
) -> Models:
    """Train (1, clients, parameters) by noisy steps."""
    if not isinstance(model, Mlp):
        raise InputError(f"model must be the built-in one under privacy, got '{model.text}'")
    if losses.prejudice is not None:
        raise InputError("a strategy must have no prejudice term under privacy: it joins rows of a batch")
    trained = start.copy()
    for c, (client, steps) in enumerate(zip(clients.tolist(), noisy, strict=True)):
        own = Losses(
            np.minimum(losses.weight[:, c : c + 1], MOST_WEIGHT),
            None if losses.push is None else losses.push[:, c : c + 1],
            None,
            None if losses.prox is None else losses.prox[:, c : c + 1],
            None if losses.anchor is None else losses.anchor[:, c : c + 1],
            losses.targets[:, c : c + 1],
        )
        trained[0, c] = train_private(model, start[0, c], rows, client, own, training, epochs, steps)
    return trained


def _losses(
    model: Model,
    strategies: Sequence[Strategy],
    sent: Models,
    current: Models,
    broadcasts: Sequence[Vector | None],
    clients: NDArray[np.int64],
    client_cells: CellRows,
    packed: dict[int, PackedRows],
    l2: float,
) -> Losses:
    """What each strategy wants its clients to minimise."""
    cells = client_cells[0].size
    weight = np.ones((len(strategies), len(clients), cells), dtype=np.float32)
    push: NDArray[np.float32] | None = None
    target: NDArray[np.float32] | None = None
    prejudice: NDArray[np.float32] | None = None
    prox = np.zeros(weight.shape[:2], dtype=np.float32) if l2 else None
    for s, strategy in enumerate(strategies):
        if strategy.local_loss is None:
            continue
        for c, client in enumerate(clients):
            local = None
            if Need.LOCAL in strategy.needs:
                local = part(model.statistics(current[s, c][None], packed[int(client)]), 0)
            terms = local_terms(strategy, broadcasts[s], client_cells[c], local)
            weight[s, c] = np.ravel(terms.weight)
            if terms.push is not None:
                push = np.zeros_like(weight) if push is None else push
                push[s, c] = np.ravel(terms.push)
            if terms.target is not None:
                target = np.resize(labels_of(cells), weight.shape) if target is None else target
                target[s, c] = np.ravel(terms.target)
            if terms.prejudice:
                prejudice = np.zeros(len(strategies), dtype=np.float32) if prejudice is None else prejudice
                prejudice[s] = terms.prejudice
            if terms.prox:
                prox = np.zeros(weight.shape[:2], dtype=np.float32) if prox is None else prox
                prox[s, c] = terms.prox
    losses = Losses(weight, push, prejudice, target=target)
    if prox is None:
        return losses
    prox, anchor = _pulls(prox, sent, model.is_bias, l2)
    return losses._replace(prox=prox, anchor=anchor)


def _pulls(
    prox: NDArray[np.float32], sent: Models, is_bias: NDArray[np.bool_], l2: float
) -> tuple[NDArray[np.float32], Models]:
    """(models, clients) strengths and (models, clients, parameters) anchors of the proximal term and L2.

    Together they are one pull, to a point between the model that was sent out and 0. A bias is pulled to the
    one that was sent out, so that L2 does not change what training leads to.
    """
    if not l2:
        return prox, np.repeat(sent[:, None], prox.shape[1], axis=1)
    strength = prox + np.float32(l2)
    share = np.divide(prox, strength, out=np.zeros_like(prox), where=strength != 0)
    return strength, np.where(is_bias, sent[:, None], share[:, :, None] * sent[:, None])
