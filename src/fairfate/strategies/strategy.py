"""What a strategy is, and what a round brings it.

A strategy has a half at the server (``init``, ``broadcast``, ``aggregate``) and a half at the clients
(``local_loss``). All are pure functions; all memory lives in the state that the server's half returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Flag, auto
from functools import reduce
from operator import or_
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fairfate.fairness.individual import CONSISTENCY, FLIP, Fairness, OfPeople
from fairfate.fairness.metrics import CellRows as CellRows
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.fairness.metrics import Statistics as Statistics

Vector = NDArray[Any]
Matrix = NDArray[Any]


class Need(Flag):
    """What must be measured for a strategy; nothing else is measured, or told to the server."""

    NOTHING = 0
    SCORES = auto()
    """Each client's model on the server's validation rows: ``cohort.client_counts``."""
    LOCAL = auto()
    """The model on the client's own rows, for ``local_loss``; it stays at the client."""
    REPORTS = auto()
    """The same of the model that was sent out, told to the server: ``cohort.local``."""
    ROWS = auto()
    """Number of rows by group and label of each client of the round, for ``broadcast``."""
    ALL_ROWS = auto()
    """The same of all clients, also of those that do not take part in the round."""
    DESCENT = auto()
    """To train a model on the server's validation rows: ``cohort.descend``."""
    TRIALS = auto()
    """To try models of the server's making out on the validation rows: ``cohort.score``."""
    CONSISTENCY = auto()
    """Whether models treat people of the validation rows alike who are: ``cohort.people``."""
    FLIP = auto()
    """Whether they decide alike about the same people in another group: likewise."""
    PEOPLE = CONSISTENCY | FLIP


OF_PEOPLE = {CONSISTENCY: Need.CONSISTENCY, FLIP: Need.FLIP}
"""What the terms of individual fairness need."""
ON_VALIDATION = Need.SCORES | Need.DESCENT | Need.TRIALS
"""Where a strategy looks at the server's validation rows."""


class LossTerms(NamedTuple):
    """A client's loss: the batch mean of ``weight * BCE + push * P(1)``, by each row's group and label."""

    weight: Values
    """(groups, 2)"""
    push: Values | None = None
    """(groups, 2) what a row's predicted probability costs; negative values draw it up."""
    prejudice: float = 0.0
    """Times the mutual information of prediction and group within the batch (Kamishima et al. 2012)."""
    prox: float = 0.0
    """Times half the squared distance from the model that was sent out (Li et al. 2020)."""


Loss = Callable[[Statistics], LossTerms]
"""A loss on some rows, from statistics of the model on them."""
Descend = Callable[[Vector, Loss], Vector]
"""What one step of training on the validation rows, all in one batch, adds to a model: with plain SGD, less
the gradient of the loss."""


_BLOCK = 400_000
"""How many products `weighted_means` holds at a time."""
_LARGE = 10_000_000
"""How many numbers are worth a compiled loop, which takes a while to load and longer to compile."""


def weighted_mean(deltas: Matrix, weights: Vector) -> Vector:
    """``sum(weights * deltas) / sum(weights)``, zero when the weights sum to zero.

    Clients are added one after another, so the result depends on nothing but the values.

    >>> weighted_mean(np.array([[1.0, 2.0], [3.0, 6.0]]), np.array([1, 3])).tolist()
    [2.5, 5.0]
    """
    return weighted_means(deltas, weights)[0]


def weighted_means(deltas: Matrix, *weights: Vector) -> list[Vector]:
    """Several means of the same deltas, in one pass over them."""
    step = max(1, _BLOCK // len(deltas))
    if deltas.shape[1] <= step and deltas.size < _LARGE:  # a sweep comes here a hundred times a round
        return [_mean(deltas, each) for each in weights]
    totals = [float(each.sum()) for each in weights]
    means: list[Vector] = [np.zeros(deltas.shape[1], dtype=deltas.dtype) for _ in weights]
    counting = [k for k, total in enumerate(totals) if total > 0]
    shares = [(weights[k] / totals[k]).astype(deltas.dtype) for k in counting]
    first = 0
    if counting and _compiled(deltas, step):
        from fairfate.models.kernels import weighted_sums  # which takes a while to load

        for k, total in zip(counting, weighted_sums(deltas, np.stack(shares)), strict=True):
            means[k] = total
        # NumPy adds up a column that is alone in its block in another order, which is kept
        first = deltas.shape[1] - (deltas.shape[1] % step == 1)
    for start in range(first, deltas.shape[1], step):  # piece by piece, so that everything stays in the cache
        block = slice(start, start + step)
        for k, share in zip(counting, shares, strict=True):
            means[k][block] = (share[:, None] * deltas[:, block]).sum(axis=0)
    return means


def _mean(deltas: Matrix, weights: Vector) -> Vector:
    """One mean of deltas that stay in the cache."""
    total = float(np.add.reduce(weights))  # half the time of weights.sum()
    if not total > 0:
        return np.zeros(deltas.shape[1], dtype=deltas.dtype)
    shares = (weights / total).astype(deltas.dtype)
    mean: Vector = np.add.reduce(shares[:, None] * deltas, axis=0)
    return mean


def _compiled(deltas: Matrix, step: int) -> bool:
    """Whether means are worth a compiled loop, and NumPy would add row by row, as the loop does."""
    if deltas.size < _LARGE or step == 1 or deltas.dtype not in (np.float32, np.float64):
        return False
    width = deltas.shape[1] * deltas.itemsize
    return deltas.shape[1] > 1 and deltas.strides[1] == deltas.itemsize and deltas.strides[0] >= width


Combine = Callable[..., list[Vector]]
"""How updates become one: from (clients, parameters), one result for each array of weights that follows."""


Score = Callable[[Matrix], Counts]
"""(models, groups, 2, 2) counts of (models, parameters) on the validation rows, the server's or those that
this round's clients hold out."""


class Cohort(NamedTuple):
    """What one round brought the server."""

    round: int
    """1-based."""
    deltas: Matrix
    """(clients, parameters): local model minus server model."""
    num_examples: Vector
    """(clients,) training rows behind each delta."""
    client_counts: Counts
    """(clients, groups, 2, 2): each client's model on the validation rows, by (group, label, prediction).
    Empty without ``Need.SCORES``."""
    server_counts: Counts
    """(groups, 2, 2): the server's model on the same rows."""
    clients: tuple[str, ...] = ()
    """Their names; a client keeps its name."""
    local: Statistics | None = None
    """The model that was sent out, on each client's own rows; with ``Need.REPORTS``."""
    descend: Descend | None = None
    """A step of training at the server; with ``Need.DESCENT``."""
    score: Score | None = None
    """Counts of other models on the validation rows; with ``Need.TRIALS``."""
    combine: Combine = weighted_means
    """How updates become one: their weighted mean, unless a step such as ``+median`` says otherwise."""
    measure: Callable[[Metric], Values] | None = None
    """(clients + 1,) a metric of the clients' models and, last, of the server's, where it is taken of the
    models of several strategies at once; see `scores`."""
    people: Mapping[str, Values] | None = None
    """For each term of individual fairness that is needed, (clients + 1,) its values on the validation rows:
    the clients' models', and the server's last. With ``Need.CONSISTENCY`` and ``Need.FLIP``."""
    eligible: NDArray[np.bool_] | bool = True
    """(clients,) whose models may count as fair: all, unless a guard says otherwise."""
    caution: float = 1.0
    """What a guard multiplies by whatever a strategy adds to the FedAvg step."""

    def mean(self, weights: Vector) -> Vector:
        """The clients' updates as one, by some weights; zero when these sum to zero."""
        return self.means(weights)[0]

    def means(self, *weights: Vector) -> list[Vector]:
        """The same by several weights, in one pass."""
        return self.combine(self.deltas, *weights)


Notes = Mapping[str, Any]
"""What a strategy wants on record about a round: a number, or one number for each of its clients."""
NO_NOTES: Notes = MappingProxyType({})


class State(Protocol):
    """A strategy's memory: at least the server's model and the notes of the round.

    A NamedTuple of arrays, numbers, texts, dictionaries and other such tuples, so that it can be saved.
    """

    @property
    def params(self) -> Vector: ...  # noqa: D102

    @property
    def notes(self) -> Notes: ...  # noqa: D102


class ModelState(NamedTuple):
    """The state of a strategy that remembers nothing but the model."""

    params: Vector
    notes: Notes = NO_NOTES


class Strategy(NamedTuple):
    """The two halves of a strategy."""

    init: Callable[[Vector], Any]
    """At the server: the state before the first round, from the initial model."""
    aggregate: Callable[[Any, Cohort], Any]
    """At the server: the state after a round."""
    broadcast: Callable[[Any, CellRows | None], Vector] | None = None
    """At the server: numbers that this round's clients are told beside the model, from the state and, with
    ``Need.ROWS``, these clients' rows by (client, group, label), or all clients' with ``Need.ALL_ROWS``."""
    local_loss: Callable[[Vector | None, CellRows, Statistics | None], LossTerms] | None = None
    """At a client: its loss, from what was broadcast, its rows by (group, label) and, with ``Need.LOCAL``,
    the statistics of the model it has on them."""
    needs: Need = Need.NOTHING
    refresh: int | None = None
    """Epochs after which ``local_loss`` is called again, with statistics of the client's current model."""
    release: Callable[[Any], Vector] | None = None
    """The model to measure, save and deploy, where that is not the one that is trained further."""
    scale: Callable[[Matrix], Values] | None = None
    """At the server: by what each of (clients, parameters) updates is multiplied before it is scored."""
    combine: Combine = weighted_means
    """At the server: what ``cohort.mean`` does. This and ``scale`` are set by steps."""
    group_blind: bool = False
    """Whether it would do the same if everybody were in one group, whatever it asks of clients."""


def scores(fairness: Fairness, cohort: Cohort) -> tuple[Values, Values]:
    """Fairness of the clients' models and of the server's, in one call."""
    if isinstance(fairness, OfPeople):
        assert cohort.people is not None
        every = fairness(judged(cohort.client_counts, cohort.server_counts), cohort.people)
    elif cohort.measure is not None:
        every = cohort.measure(fairness)
    else:
        every = fairness(judged(cohort.client_counts, cohort.server_counts))
    return every[:-1], every[-1]


def judged(client_counts: Counts, server_counts: Counts) -> Counts:
    """(clients + 1, groups, 2, 2) counts of the clients' models and, last, of the server's."""
    return np.concatenate([client_counts, server_counts[None]])


def needs_of(fairness: Fairness) -> Need:
    """What a strategy needs to score clients by an objective."""
    terms = fairness.terms if isinstance(fairness, OfPeople) else ()
    return reduce(or_, (OF_PEOPLE[term] for term in terms), Need.SCORES)


def plain_loss(rows: CellRows) -> LossTerms:
    """The usual cross-entropy."""
    return LossTerms(np.ones(rows.shape))


def broadcast_weights(message: Vector | None, rows: CellRows, local: Statistics | None) -> LossTerms:
    """A client's loss with the weights that the server broadcasts; the usual one before there are some."""
    if message is None or not len(message):
        return plain_loss(rows)
    return LossTerms(message.reshape(rows.shape))


def rows_so_far(known: Mapping[str, Vector], cohort: Cohort) -> tuple[dict[str, Vector], Values]:
    """Rows by (group, label) of every client that has reported so far, by its name, and their sum."""
    assert cohort.local is not None
    every = {**known, **dict(zip(cohort.clients, cohort.local.rows, strict=True))}
    return every, np.sum(list(every.values()), axis=0).astype(np.float64)


def project(values: Values, total: float = 1.0) -> Values:
    """The nearest numbers >= 0 that add up to a total; themselves if they do.

    >>> project(np.array([0.9, 0.9, -0.5])).tolist()
    [0.5, 0.5, 0.0]
    >>> project(np.array([0.25, 0.75])).tolist()
    [0.25, 0.75]
    """
    if (values >= 0).all() and abs(values.sum() - total) <= 1e-12 * max(1.0, total):
        return values
    falling = np.sort(values)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, len(values) + 1)
    last = np.flatnonzero(falling > over)
    return np.asarray(np.maximum(values - over[last[-1] if len(last) else 0], 0.0))


def over_labels(sums: Vector) -> Vector:
    """(..., groups, 2) the sums of each group, for each label alike."""
    return np.broadcast_to(sums.sum(axis=-1, keepdims=True), sums.shape)


def divide(sums: Vector, rows: Vector) -> Values:
    """Means from sums; NaN where there are no rows."""
    out = np.full(np.shape(sums), np.nan)
    return np.asarray(np.divide(sums, rows, out=out, where=np.asarray(rows) > 0))


def client_losses(local: Statistics) -> Values:
    """(clients,) each client's mean loss; 0 of one that tells of no rows, or of a loss that is no number."""
    mean = divide(local.loss.sum(axis=(-1, -2)), local.rows.sum(axis=(-1, -2)))
    return np.where(np.isfinite(mean), mean, 0.0)
