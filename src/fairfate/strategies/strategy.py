"""What a strategy is, and what a round brings it.

A strategy has a half at the server (``init``, ``broadcast``, ``aggregate``) and a half at the clients
(``local_loss``). All are pure functions; all memory lives in the state that the server's half returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.fairness.individual import CONSISTENCY, FLIP, Fairness, IndividualObjective
from fairfate.fairness.metrics import CellRows as CellRows
from fairfate.fairness.metrics import Counts, Metric, Values
from fairfate.fairness.metrics import Statistics as Statistics
from fairfate.models.means import Matrix as Matrix
from fairfate.models.means import Vector as Vector
from fairfate.models.means import weighted_mean as weighted_mean
from fairfate.models.means import weighted_means as weighted_means


class LossTerms(NamedTuple):
    """A client's loss: the batch mean of ``weight * BCE + push * P(1)``, by each row's group and label.

    ``BCE`` is the cross-entropy to the label, or to ``target``: ``-(t log P(1) + (1 - t) log P(0))``.

    Examples
    --------
    >>> LossTerms(weight=np.array([[1.0, 2.0], [1.0, 0.5]])).prox  # two groups; no proximal term
    0.0
    """

    weight: Values
    """(groups, 2)"""
    push: Values | None = None
    """(groups, 2) the price of a row's predicted probability; a negative price raises the prediction."""
    prejudice: float = 0.0
    """Times the mutual information of prediction and group within the batch (Kamishima et al. 2012)."""
    prox: float = 0.0
    """Times half the squared distance from the received model (Li et al. 2020)."""
    target: Values | None = None
    """(groups, 2) in [0, 1], what predicted probabilities are compared with in place of the labels."""


Loss = Callable[[Statistics], LossTerms]
"""A loss on some rows, from statistics of the model on them."""
Descend = Callable[[Vector, Loss], Vector]
"""What one step of training on the validation rows, all in one batch, adds to a model: with plain SGD, less
the gradient of the loss."""
Score = Callable[[Matrix], Counts]
"""(models, groups, 2, 2) counts of (models, parameters) on the validation rows, the server's or those that
this round's clients hold out."""
Combine = Callable[..., list[Vector]]
"""How updates become one: from (clients, parameters), one result for each array of weights that follows."""

Measured = TypeVar("Measured")


class Need(Generic[Measured]):
    """Something that is measured for strategies that declare it, and for no others.

    ``cohort.get(need)`` is what was measured; its type is the need's.

    Parameters
    ----------
    name : of the need, as a class attribute

    Examples
    --------
    >>> from fairfate.strategies import Setup, parse_spec
    >>> parse_spec("fairfed", "eqo").build(Setup(num_rounds=10)).needs
    {Need.REPORTS}
    """

    SCORES: ClassVar[Need[Counts]]
    """Each client's model on the validation rows: ``cohort.client_counts``, and the server's."""
    LOCAL: ClassVar[Need[Statistics]]
    """The model on the client's own rows, for ``local_loss``; it stays at the client."""
    REPORTS: ClassVar[Need[Statistics]]
    """The received model on each client's own rows, which the clients report to the server."""
    ROWS: ClassVar[Need[CellRows]]
    """Number of rows by group and label of each client of the round, for ``broadcast``."""
    ALL_ROWS: ClassVar[Need[CellRows]]
    """The same of all clients, also of those that are not in the round."""
    DESCENT: ClassVar[Need[Descend]]
    """A training step on the server's validation rows."""
    TRIALS: ClassVar[Need[Score]]
    """Scores of any other models on the validation rows."""
    CONSISTENCY: ClassVar[Need[Values]]
    """(clients + 1,) individual fairness on the validation rows: the clients' models', the server's last."""
    FLIP: ClassVar[Need[Values]]
    """The same: 1 minus the attribute flip rate."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Need.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (Need, self.name)  # the same object in another process


Need.SCORES, Need.LOCAL, Need.REPORTS = Need("SCORES"), Need("LOCAL"), Need("REPORTS")
Need.ROWS, Need.ALL_ROWS = Need("ROWS"), Need("ALL_ROWS")
Need.DESCENT, Need.TRIALS = Need("DESCENT"), Need("TRIALS")
Need.CONSISTENCY, Need.FLIP = Need("CONSISTENCY"), Need("FLIP")
Needs = AbstractSet[Need[Any]]

INDIVIDUAL_NEEDS = {CONSISTENCY: Need.CONSISTENCY, FLIP: Need.FLIP}
"""What the terms of individual fairness need."""
ON_VALIDATION: Needs = frozenset({Need.SCORES, Need.DESCENT, Need.TRIALS})
"""What is measured on the validation rows."""
NOTHING: Mapping[Need[Any], Any] = MappingProxyType({})


class Summed(NamedTuple):
    """What sums say about a round in which no single client's update is known.

    Examples
    --------
    >>> Summed(clients=5).mean is None
    True
    """

    clients: int
    """Clients in the sums."""
    members: int = 0
    """Clients that have given themselves a weight of more than 0, where the strategy has them do so."""
    mean: Vector | None = None
    """Their updates, averaged by these weights; None where they, or the other clients, are too few to be
    hidden among each other."""


class Cohort(NamedTuple):
    """What one round brought the server.

    Examples
    --------
    >>> no_counts = np.zeros((0, 0, 2, 2))
    >>> cohort = Cohort(1, np.array([[1.0, 0.0], [0.0, 3.0]]), np.array([30.0, 10.0]), no_counts, no_counts)
    >>> cohort.mean(cohort.num_examples).tolist()
    [0.75, 0.75]
    """

    round: int
    """The round's number, from 1."""
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
    """The clients' names; a client keeps its name."""
    measured: Mapping[Need[Any], Any] = NOTHING
    """What was measured for the strategy's other needs; see `get`."""
    combine: Combine = weighted_means
    """How updates become one: their weighted mean, unless a step such as ``+median`` says otherwise."""
    measure: Callable[[Metric], Values] | None = None
    """(clients + 1,) a metric of the clients' models and, last, of the server's, if it is computed for
    several strategies at once; `scores` uses it."""
    eligible: NDArray[np.bool_] | bool = True
    """(clients,) whose models may count as fair: all, unless a guard says otherwise."""
    caution: float = 1.0
    """A factor from a guard for what a strategy adds to the FedAvg step."""
    summed: Summed | None = None
    """Under secure sums, whose cohort has one entry: all clients together."""

    def get(self, need: Need[Measured]) -> Measured:
        """What was measured for a need that the strategy declares.

        Parameters
        ----------
        need : the need, as in ``Strategy.needs``

        Returns
        -------
        the measurement, of the need's own type

        Examples
        --------
        >>> empty, sizes = np.zeros((0, 0, 2, 2)), np.array([[[10, 20]], [[5, 5]]])
        >>> cohort = Cohort(1, np.zeros((2, 1)), np.ones(2), empty, empty, measured={Need.ROWS: sizes})
        >>> int(cohort.get(Need.ROWS).sum())
        40
        """
        if need not in self.measured:
            raise InputError(f"a strategy must declare needs={{{need}}} to use it")
        measured: Measured = self.measured[need]
        return measured

    def mean(self, weights: Vector) -> Vector:
        """The clients' weighted mean update; zero if the weights sum to zero.

        Parameters
        ----------
        weights : (clients,)

        Returns
        -------
        (parameters,)

        Examples
        --------
        >>> empty = np.zeros((0, 0, 2, 2))
        >>> cohort = Cohort(1, np.array([[1.0, 0.0], [0.0, 3.0]]), np.ones(2), empty, empty)
        >>> cohort.mean(np.array([1.0, 3.0])).tolist()
        [0.25, 2.25]
        """
        return self.means(weights)[0]

    def means(self, *weights: Vector) -> list[Vector]:
        """The weighted mean update for several weights, in one pass over the updates.

        Parameters
        ----------
        weights : each (clients,)

        Returns
        -------
        for each weights, (parameters,)

        Examples
        --------
        >>> empty = np.zeros((0, 0, 2, 2))
        >>> cohort = Cohort(1, np.array([[2.0], [4.0]]), np.ones(2), empty, empty)
        >>> [update.tolist() for update in cohort.means(np.array([1.0, 1.0]), np.array([0.0, 1.0]))]
        [[3.0], [4.0]]
        """
        return self.combine(self.deltas, *weights)


Notes = Mapping[str, Any]
"""What a strategy wants on record about a round: a number, or one number for each of its clients."""
NO_NOTES: Notes = MappingProxyType({})
NO_MESSAGE: Vector = np.zeros(0)
"""What a client receives of a strategy that broadcasts nothing."""
NO_ROWS: CellRows = np.zeros((0, 0, 2), dtype=np.int64)
NO_STATISTICS = Statistics(np.zeros((0, 2, 2), dtype=np.int64), np.zeros((0, 2)), np.zeros((0, 2)))


class State(Protocol):
    """A strategy's memory: at least the server's model and the notes of the round.

    A NamedTuple of arrays, numbers, texts, dictionaries and other such tuples, so that it can be saved.

    Examples
    --------
    >>> class Counting(NamedTuple):
    ...     params: Vector
    ...     rounds: int = 0
    ...     notes: Notes = NO_NOTES
    """

    @property
    def params(self) -> Vector:
        """The server's model."""

    @property
    def notes(self) -> Notes:
        """What goes on record about the round."""


class ModelState(NamedTuple):
    """The state of a strategy that remembers nothing but the model.

    Examples
    --------
    >>> ModelState(np.zeros(3)).params.tolist()
    [0.0, 0.0, 0.0]
    """

    params: Vector
    """The server's model."""
    notes: Notes = NO_NOTES
    """What goes on record about the round."""


class Strategy(NamedTuple):
    """The two halves of a strategy.

    Examples
    --------
    FedAvg:

    >>> def aggregate(state, cohort):
    ...     return ModelState(state.params + cohort.mean(cohort.num_examples))
    >>> fedavg = Strategy(ModelState, aggregate)
    """

    init: Callable[[Vector], Any]
    """At the server: the state before the first round, from the initial model."""
    aggregate: Callable[[Any, Cohort], Any]
    """At the server: the state after a round."""
    broadcast: Callable[[Any, CellRows], Vector] | None = None
    """At the server: numbers that this round's clients receive beside the model, from the state and the rows
    by (client, group, label): these clients' with ``Need.ROWS``, all clients' with ``Need.ALL_ROWS``, and
    none without."""
    local_loss: Callable[[Vector, CellRows, Statistics], LossTerms] | None = None
    """At a client: its loss, from what was broadcast, its rows by (group, label) and the statistics of its
    current model on them, which are empty without ``Need.LOCAL``."""
    needs: Needs = frozenset()
    """What must be measured for it, such as ``{Need.REPORTS}``."""
    refresh: int | None = None
    """Epochs after which ``local_loss`` is called again, with statistics of the client's current model."""
    release: Callable[[Any], Vector] | None = None
    """The model to measure, save and deploy, if it is not ``state.params``."""
    scale: Callable[[Matrix], Values] | None = None
    """At the server: a factor for each of (clients, parameters) updates, before it is scored. Set by
    ``+clip``."""
    combine: Combine = weighted_means
    """At the server: what ``cohort.mean`` does. Set by ``+median``, ``+trimmed`` and ``+krum``."""
    weigh: Callable[[Counts, Counts], float] | None = None
    """At a client, under secure sums: its weight in [0, 1], from counts of its own model and of the received
    one on the same validation rows; the server learns ``cohort.summed``. Without it a strategy that scores
    clients cannot run on sums."""
    group_blind: bool = False
    """Whether it works the same with one group only."""


def scores(fairness: Fairness, cohort: Cohort) -> tuple[Values, Values]:
    """Fairness of the clients' models and of the server's, in one call.

    Parameters
    ----------
    fairness : an objective, as a function of counts
    cohort : of a strategy that declares `needs_of` it

    Returns
    -------
    (clients,) values, and the server's

    Examples
    --------
    >>> from fairfate.fairness.metrics import sp
    >>> server = np.array([[[30, 20], [10, 40]], [[40, 10], [20, 30]]])
    >>> cohort = Cohort(1, np.zeros((1, 3)), np.ones(1), server[None], server)
    >>> [np.round(value, 3).tolist() for value in scores(sp, cohort)]
    [[0.667], 0.667]
    """
    if isinstance(fairness, IndividualObjective):
        terms = {term: cohort.get(INDIVIDUAL_NEEDS[term]) for term in fairness.terms}
        values = fairness(with_server(cohort.client_counts, cohort.server_counts), terms)
    elif cohort.measure is not None:
        values = cohort.measure(fairness)
    else:
        values = fairness(with_server(cohort.client_counts, cohort.server_counts))
    return values[:-1], values[-1]


def score_own(fairness: Fairness, own: Counts, received: Counts) -> tuple[Values, Values]:
    """(1,) fairness of a client's own model and that of the one it received, from its counts of both."""
    if isinstance(fairness, IndividualObjective):
        raise InputError(
            "A client's own model can be scored by an objective of groups only, not by one of single rows."
        )
    values = fairness(with_server(own[None], received))
    return values[:-1], values[-1]


def with_server(client_counts: Counts, server_counts: Counts) -> Counts:
    """(clients + 1, groups, 2, 2) counts of the clients' models and, last, of the server's."""
    return np.concatenate([client_counts, server_counts[None]])


def needs_of(fairness: Fairness) -> Needs:
    """What a strategy needs to score clients by an objective.

    Parameters
    ----------
    fairness : as `Setup.objective` or `Setup.fairness` returns it

    Returns
    -------
    the strategy's ``needs``

    Examples
    --------
    >>> from fairfate.strategies import Setup
    >>> needs_of(Setup(num_rounds=10).fairness("eqo"))
    {Need.SCORES}
    """
    terms = fairness.terms if isinstance(fairness, IndividualObjective) else ()
    return {Need.SCORES, *(INDIVIDUAL_NEEDS[term] for term in terms)}


def plain_loss(rows: CellRows) -> LossTerms:
    """The usual cross-entropy."""
    return LossTerms(np.ones(rows.shape))


def broadcast_weights(message: Vector, rows: CellRows, local: Statistics) -> LossTerms:
    """A client's loss with the weights that the server broadcasts; for ``local_loss``.

    Parameters
    ----------
    message : a weight for each (group, label), or empty for the usual loss
    rows : the client's rows by (group, label)
    local : not used

    Returns
    -------
    the terms of the loss

    Examples
    --------
    >>> broadcast_weights(np.array([1.0, 2.0, 0.5, 1.0]), np.ones((2, 2)), NO_STATISTICS).weight.tolist()
    [[1.0, 2.0], [0.5, 1.0]]
    """
    return LossTerms(message.reshape(rows.shape)) if len(message) else plain_loss(rows)


def rows_so_far(known: Mapping[str, Vector], cohort: Cohort) -> tuple[dict[str, Vector], Values]:
    """Rows by (group, label) of the clients that have reported so far.

    Parameters
    ----------
    known : the rows of the clients of earlier rounds, by name
    cohort : of a strategy that declares ``Need.REPORTS``

    Returns
    -------
    the rows of each client by name, with this round's, and their sum

    Examples
    --------
    >>> reports = Statistics(np.full((1, 2, 2, 2), 5), np.zeros((1, 2, 2)), np.zeros((1, 2, 2)))
    >>> no_counts = np.zeros((0, 0, 2, 2))
    >>> cohort = Cohort(1, np.zeros((1, 3)), np.ones(1), no_counts, no_counts, ("north",))
    >>> rows_so_far({}, cohort._replace(measured={Need.REPORTS: reports}))[1].tolist()
    [[10.0, 10.0], [10.0, 10.0]]
    """
    rows = {**known, **dict(zip(cohort.clients, cohort.get(Need.REPORTS).rows, strict=True))}
    return rows, np.sum(list(rows.values()), axis=0).astype(np.float64)


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
    """(clients,) each client's mean loss; 0 of one that reports no rows, or a loss that is no number."""
    mean = divide(local.loss.sum(axis=(-1, -2)), local.rows.sum(axis=(-1, -2)))
    return np.where(np.isfinite(mean), mean, 0.0)
