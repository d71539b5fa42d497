"""Rows to clients. Every function returns the client of each row, so each row has exactly one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError, check, plain

BIASED = VALUE_BIASED, ATTRIBUTE_BIASED = "value-biased", "attribute-biased"
"""Each client is biased against another group, or against the disadvantaged value of another attribute."""
FORMS = f"random, dirichlet:SIGMA, {VALUE_BIASED}:STRENGTH, {ATTRIBUTE_BIASED}:STRENGTH"
"""The partitions that need no column."""


def dirichlet(
    cell: NDArray[np.int64],
    clients: int,
    sigma: float,
    rng: np.random.Generator | np.random.RandomState,
    *,
    groups: int = 2,
) -> NDArray[np.int64]:
    """Split each (group, label) cell by shares drawn from a Dirichlet distribution.

    The smaller ``sigma``, the more clients differ, in size too. The last client takes the rounding rest of
    each cell. Rows keep their order, so shuffle them first.

    Parameters
    ----------
    cell : (rows,) ``2 * group + label``
    clients : number of clients
    sigma : concentration, > 0; towards infinity all clients are alike
    rng : the source of the shares
    groups : number of groups
    """
    check(sigma > 0, "sigma must be > 0", sigma)
    shares = rng.dirichlet(np.full(clients, sigma), 2 * groups)
    if not np.isfinite(shares).all():
        raise InputError(f"sigma must be large enough for finite shares, got {sigma}")
    client = np.empty(len(cell), dtype=np.int64)
    # label 1 before label 0, and within it the privileged (last) group first: the authors' order
    order = [2 * group + label for label in (1, 0) for group in reversed(range(groups))]
    for share, number in zip(shares, order, strict=True):
        rows = np.flatnonzero(cell == number)
        ends = np.rint(share[:-1] * len(rows)).astype(np.int64).cumsum()
        client[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return client


def random(rows: int, clients: int) -> NDArray[np.int64]:
    """Cut shuffled rows into equal parts (sizes differ by one at most).

    >>> random(7, 3).tolist()
    [0, 0, 0, 1, 1, 2, 2]
    """
    sizes = np.full(clients, rows // clients)
    sizes[: rows % clients] += 1
    return np.repeat(np.arange(clients), sizes)


def biased(cell: NDArray[np.int64], against: NDArray[np.bool_], strength: float) -> NDArray[np.int64]:
    """Deal rows out in equal parts, then exchange rows so that clients are biased against groups.

    Each group's rows are dealt out equally, and so are its favourable ones. Then clients biased against the
    group give favourable rows of it to the other clients, and receive as many unfavourable rows of it. So a
    client keeps its size and its shares of the groups, and no row or label changes. As many pairs are
    exchanged as ``strength`` times the most that are possible, which is all favourable rows of the one side
    or all unfavourable ones of the other, whichever are fewer. Rows keep their order, so shuffle them first.

    Parameters
    ----------
    cell : (rows,) ``2 * group + label``
    against : (clients, groups) the groups that each client is biased against
    strength : from 0, which leaves the equal parts, to 1

    Examples
    --------
    Of the first group, four rows of eight are favourable. The first client gives up half of its two.

    >>> cell = np.repeat([0, 1, 2, 3], 4)
    >>> client = biased(cell, np.array([[True, False], [False, True]]), 0.5)
    >>> [np.bincount(cell[client == number], minlength=4).tolist() for number in (0, 1)]
    [[3, 1, 1, 3], [1, 3, 3, 1]]
    """
    clients, groups = against.shape
    counts = np.bincount(cell, minlength=2 * groups).reshape(groups, 2)
    client = np.empty(len(cell), dtype=np.int64)
    dealt = 0  # the client after the one that had the last group's last row is next, so that sizes are equal
    for group, (unfavourable, favourable) in enumerate(counts.tolist()):
        rows = unfavourable + favourable
        sizes = np.bincount((dealt + np.arange(rows)) % clients, minlength=clients)
        dealt += rows
        is_biased = against[:, group]
        own = int(sizes[is_biased].sum())
        kept = favourable * own // max(rows, 1)
        most = min(kept, rows - own - (favourable - kept))
        kept -= math.floor(strength * most + 0.5)
        of_client = np.zeros(clients, dtype=np.int64)
        of_client[is_biased] = _in_proportion(kept, sizes[is_biased])
        of_client[~is_biased] = _in_proportion(favourable - kept, sizes[~is_biased])
        client[cell == 2 * group + 1] = np.repeat(np.arange(clients), of_client)
        client[cell == 2 * group] = np.repeat(np.arange(clients), sizes - of_client)
    return client


def _in_proportion(number: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number in parts in proportion to some sizes, of which none exceeds its size."""
    ends = number * np.cumsum(sizes) // max(int(sizes.sum()), 1)
    return np.diff(ends, prepend=0)


@dataclass(frozen=True)
class Partition:
    """How rows go to clients, as the user says it."""

    kind: str
    sigma: float | None = None
    column: str | None = None
    strength: float | None = None
    """Of the bias, where clients are biased."""

    def __str__(self) -> str:
        number = self.sigma if self.strength is None else self.strength
        if number is not None:
            return f"{self.kind}:{plain(number)}"
        return self.kind if self.column is None else f"column:{self.column}"


def parse_partition(text: str) -> Partition:
    """Read what a user typed; see `FORMS`.

    >>> parse_partition("dirichlet:0.5").sigma, parse_partition("value-biased:0.8").strength
    (0.5, 0.8)
    """
    kind, _, argument = text.partition(":")
    if kind == "random" and not argument:
        return Partition("random")
    if kind == "column" and argument:
        return Partition("column", column=argument)
    if kind == "dirichlet":
        sigma = _read_number(text, argument, "SIGMA")
        check(0 < sigma < float("inf"), "sigma must be > 0 and finite", argument)
        return Partition("dirichlet", sigma=sigma)
    if kind in BIASED:
        strength = _read_number(text, argument, "STRENGTH")
        check(0 <= strength <= 1, f"strength of {kind} must be in [0, 1]", argument)
        return Partition(kind, strength=strength)
    raise InputError(f"partition must be {FORMS} or column:NAME, got '{text}'")


def _read_number(text: str, argument: str, name: str) -> float:
    try:
        return float(argument)
    except ValueError:
        kind = text.partition(":")[0]
        raise InputError(f"partition {kind}:{name} needs a number, got '{text}'") from None
