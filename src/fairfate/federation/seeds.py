"""All random numbers of a run, made in one place from its seed.

Each use draws from a stream of its own, so that no use disturbs another: more rounds, clients or settings
leave the other numbers as they were.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RowNumbers = NDArray[np.int64]

_SPLIT, _PARTITION, _MODEL, _COHORT, _BATCH, _HELD_OUT, _FEW, _BUCKET, _ATTACK, _SAMPLE = range(10)
_TEST, _COPIES, _PERMUTED = 10, 11, 12
_ATTACKERS = 5
"""Without a client's number, which `_HELD_OUT` always has: docs/attacks.md was measured with these."""
LEAST_HELD = 5
"""Fewer rows of a group and label than this stay in a client's training."""


@dataclass(frozen=True)
class Streams:
    """The random numbers of one seed, under one protocol.

    The authors' code draws the split, the Dirichlet shares and the clients of each round from old generators
    seeded with ten times the run's number; with ``published`` the same calls are made here.
    """

    seed: int
    published: bool = False

    def _rng(self, use: int, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(use, *key)))

    def split(
        self, rows: int, strata: RowNumbers | None = None, *, same_test: bool = False
    ) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
        """Row numbers for training (60 %), validation (20 %) and test (20 %), shuffled.

        With ``strata``, the class of each row, every class of three rows or more is in each part; with
        ``same_test`` too, the test rows are those of every other seed.
        """
        if self.published:
            train, rest = _published_split(np.arange(rows), 0.4, 10 * self.seed)
            test, validation = _published_split(rest, 0.5, 10 * self.seed)
            return train, validation, test
        if strata is not None:
            train, validation, test = self._stratified(strata, (0.6, 0.2, 0.2), same_last=same_test)
            return train, validation, test
        order = self._rng(_SPLIT).permutation(rows)
        first, second = round(0.6 * rows), round(0.8 * rows)
        return order[:first], order[first:second], order[second:]

    def _stratified(
        self, strata: RowNumbers, shares: tuple[float, ...], *, same_last: bool = False
    ) -> list[RowNumbers]:
        """Parts of every class of rows by their shares; the last may be the same for all seeds."""
        rng = self._rng(_SPLIT)
        last = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(_TEST,))) if same_last else None
        parts: list[list[RowNumbers]] = [[] for _ in shares]
        for number in np.unique(strata):
            rows = np.flatnonzero(strata == number)
            sizes = [round(share * len(rows)) for share in shares[1:]]  # one each of three rows
            ends = np.cumsum([max(0, len(rows) - sum(sizes)), *sizes])
            if last is None:
                rows = rng.permutation(rows)
            else:
                rows = last.permutation(rows)
                rows[: ends[-2]] = rng.permutation(rows[: ends[-2]])
            for part, piece in zip(parts, np.split(rows, ends[:-1]), strict=True):
                part.append(piece)
        return [rng.permutation(np.concatenate(part)) for part in parts]

    def hold_out(self, strata: RowNumbers, share: float) -> tuple[RowNumbers, RowNumbers]:
        """Row numbers for training, and a share of each class of rows to be held out; both shuffled."""
        if share == 0:
            return self._rng(_SPLIT).permutation(len(strata)), np.arange(0)
        train, held_out = self._stratified(strata, (1 - share, share))
        return train, held_out

    def halves(
        self, rows: int, strata: RowNumbers | None = None, *, same_test: bool = False
    ) -> tuple[RowNumbers, RowNumbers]:
        """Row numbers for validation and test, where both come from one file, shuffled; likewise."""
        if strata is not None:
            first, second = self._stratified(strata, (0.5, 0.5), same_last=same_test)
            return first, second
        order = self._rng(_SPLIT).permutation(rows)
        return order[: (rows + 1) // 2], order[(rows + 1) // 2 :]

    def permuted(self, rows: int, column: int, repeat: int) -> RowNumbers:
        """Row numbers in another order, for one column and repetition."""
        return self._rng(_PERMUTED, column, repeat).permutation(rows)

    def against(self, targets: int, clients: int) -> RowNumbers:
        """(clients,) which target each client is biased against; each target has as many, or one more."""
        return np.resize(self.partition().permutation(targets), clients)

    def partition(self) -> np.random.Generator | np.random.RandomState:
        """The generator of the Dirichlet shares."""
        if self.published:
            return np.random.RandomState(10 * self.seed)  # the authors' generator
        return self._rng(_PARTITION)

    def weights(self, count: int) -> NDArray[np.float64]:
        """Standard normal numbers for the initial model."""
        return self._rng(_MODEL).standard_normal(count)

    def cohorts(self, rounds: int, clients: int, per_round: int) -> RowNumbers:
        """(rounds, per_round) the clients of each round, without replacement, in ascending order."""
        if self.published:
            return _published_cohorts(10 * self.seed, rounds, clients, per_round)
        chosen = [self.cohort(t, clients, per_round) for t in range(1, rounds + 1)]
        return np.array(chosen, dtype=np.int64).reshape(rounds, per_round)

    def cohort(self, t: int, clients: int, per_round: int) -> RowNumbers:
        """(per_round,) the clients of round ``t`` alone: a row of `cohorts`."""
        if self.published:
            return np.asarray(_published_cohorts(10 * self.seed, t, clients, per_round)[-1])
        chosen: RowNumbers = np.sort(self._rng(_COHORT, t).choice(clients, per_round, replace=False))
        return chosen

    def evaluators(self, t: int, clients: int, number: int) -> RowNumbers:
        """(number,) the clients that evaluate the model of round ``t`` on their own rows."""
        chosen: RowNumbers = np.sort(self._rng(_COHORT, t, 1).choice(clients, number, replace=False))
        return chosen

    def attackers(self, clients: RowNumbers, number: int) -> RowNumbers:
        """Which of some clients attack, in ascending order; fewer are always among the more."""
        return np.sort(self._rng(_ATTACKERS).permutation(clients)[:number])

    def attacked_rows(self, client: int) -> np.random.Generator:
        """The generator of an attacker's choice among its own rows."""
        return self._rng(_ATTACK, client)

    def few(self, rows: RowNumbers, number: int) -> RowNumbers:
        """So many of the server's rows; more of them hold the fewer."""
        return rows[self._rng(_FEW).permutation(len(rows))[:number]]

    def sample(self, sizes: RowNumbers, number: int) -> RowNumbers:
        """About so many of rows that stand class after class, with its share of every class, rounded up."""
        rng, starts = self._rng(_SAMPLE), np.cumsum(sizes) - sizes
        shares = -(-sizes * number // max(int(sizes.sum()), 1))
        chosen = [
            start + np.sort(rng.permutation(size)[:share])
            for start, size, share in zip(starts, sizes, shares, strict=True)
        ]
        return np.concatenate(chosen)

    def offset(self) -> float:
        """Where in [0, 1) a systematic draw of rows begins."""
        return float(self._rng(_COPIES).random())

    def held_out(self, client: int, cell: RowNumbers, share: float) -> NDArray[np.bool_]:
        """(rows,) which of a client's rows it holds out: a share of every (group, label) that has five."""
        rng, held_out = self._rng(_HELD_OUT, client), np.zeros(len(cell), dtype=bool)
        for number in np.unique(cell):
            rows = np.flatnonzero(cell == number)
            if len(rows) >= LEAST_HELD:
                held_out[rng.permutation(rows)[: round(share * len(rows))]] = True
        return held_out

    def buckets(self, t: int, clients: int, least: int) -> list[RowNumbers]:
        """The clients of round ``t`` in buckets of so many at least, in the order of their first members.

        One bucket if there are not enough clients for two.
        """
        if clients < 2 * least and least > 1:
            return [np.arange(clients)]
        order = self._rng(_BUCKET, t).permutation(clients)
        cuts = np.arange(least, clients - least + 1, least)  # who is left over joins the last one
        return sorted((np.sort(part) for part in np.split(order, cuts)), key=lambda part: int(part[0]))

    @property
    def batch_key(self) -> np.uint64:
        """What the batch order depends on, beside the round and the client."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_BATCH,))
        return np.uint64(sequence.generate_state(1, np.uint64)[0])


def _published_split(rows: RowNumbers, share: float, seed: int) -> tuple[RowNumbers, RowNumbers]:
    """What scikit-learn's ``train_test_split`` gives, which takes up to a second to import."""
    order = np.random.RandomState(seed).permutation(len(rows))  # the authors' generator
    held_out = math.ceil(share * len(rows))
    return rows[order[held_out:]], rows[order[:held_out]]


def _published_cohorts(seed: int, rounds: int, clients: int, per_round: int) -> RowNumbers:
    """As the authors drew them: whole numbers from one generator, repeats within a round thrown away."""
    source = random.Random(seed)
    chosen = np.empty((rounds, per_round), dtype=np.int64)
    for row in chosen:
        members: set[int] = set()
        while len(members) < per_round:
            members.add(source.randint(0, clients - 1))
        row[:] = sorted(members)
    return chosen
