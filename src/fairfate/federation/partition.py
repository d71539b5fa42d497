"""Rows to clients. Every function returns the client of each row, so each row has exactly one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError, check, plain


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


@dataclass(frozen=True)
class Partition:
    """How rows go to clients, as the user says it."""

    kind: str
    sigma: float | None = None
    column: str | None = None

    def __str__(self) -> str:
        if self.kind == "dirichlet":
            return f"dirichlet:{plain(self.sigma)}"
        return self.kind if self.column is None else f"column:{self.column}"


def parse_partition(text: str) -> Partition:
    """Read ``random``, ``dirichlet:SIGMA`` or ``column:NAME``.

    >>> parse_partition("dirichlet:0.5").sigma
    0.5
    """
    kind, _, argument = text.partition(":")
    if kind == "random" and not argument:
        return Partition("random")
    if kind == "column" and argument:
        return Partition("column", column=argument)
    if kind == "dirichlet":
        try:
            sigma = float(argument)
        except ValueError:
            raise InputError(f"partition dirichlet:SIGMA needs a number, got '{text}'") from None
        check(0 < sigma < float("inf"), "sigma must be > 0 and finite", argument)
        return Partition("dirichlet", sigma=sigma)
    raise InputError(f"partition must be random, dirichlet:SIGMA or column:NAME, got '{text}'")
