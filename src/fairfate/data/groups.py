"""The groups that fairness is about: the values of one sensitive attribute, or of several crossed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import unknown

MISSING, SMALL = "(missing)", "(small groups)"
"""The values of people whose own is not known, or is that of too few."""


@dataclass(frozen=True)
class Groups:
    """Every group is a combination of one value of each attribute; rows are counted by group.

    Examples
    --------
    >>> groups = Groups(("sex", "race"), (("f", "m"), ("a", "b")), ((0, 0), (0, 1), (1, 1)))
    >>> groups.names
    ('f, a', 'f, b', 'm, b')
    >>> groups.index_of(("sex",)).tolist()
    [0, 0, 1]
    """

    attributes: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    """Of each attribute."""
    members: tuple[tuple[int, ...], ...]
    """(groups, attributes) the value of each attribute in each group."""
    missing_counts: bool = False
    """Whether people without a value are a group like any other; else they are reported and not compared."""

    @classmethod
    def everybody(cls) -> Groups:
        """One group of all people, where no attribute is known."""
        return cls((), (), ((),))

    @classmethod
    def single(cls, attribute: str, values: Sequence[str]) -> Groups:
        """The values of one attribute."""
        return cls((attribute,), (tuple(values),), tuple((number,) for number in range(len(values))))

    @classmethod
    def cross(
        cls, attributes: Sequence[str], values: Sequence[Sequence[str]], codes: Sequence[NDArray[Any]]
    ) -> tuple[Groups, NDArray[np.int16]]:
        """The combinations that occur, and the group of each row, from its values of each attribute."""
        together = np.stack([np.asarray(code, dtype=np.int64) for code in codes], axis=1)
        members, group = np.unique(together, axis=0, return_inverse=True)
        found = cls(
            tuple(attributes),
            tuple(tuple(of) for of in values),
            tuple(tuple(int(value) for value in row) for row in members),
        )
        return found, group.reshape(-1).astype(np.int16)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the groups."""
        if not self.attributes:
            return ("everybody",)
        return tuple(
            ", ".join(self.values[a][value] for a, value in enumerate(member)) for member in self.members
        )

    def check(self, attributes: Sequence[str], where: str) -> None:
        """InputError for a name that is not an attribute's."""
        for name in attributes:
            if name not in self.attributes:
                raise unknown(f"attribute in {where}", name, self.attributes)

    def index_of(self, attributes: tuple[str, ...]) -> NDArray[np.int64]:
        """(groups,) the combination of some of the attributes that each group belongs to."""
        return _index_of(self, attributes)

    def categories(self, attributes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The values of each combination of some of the attributes, in the order of `merge`."""
        index = self.index_of(attributes)
        places = [self.attributes.index(name) for name in attributes]
        names = {
            int(number): tuple(self.values[place][member[place]] for place in places)
            for number, member in zip(index, self.members, strict=True)
        }
        return [names[number] for number in range(len(names))]

    def compared(self, attributes: tuple[str, ...]) -> NDArray[np.bool_]:
        """(combinations,) which are compared with each other; the others are too small or not known.

        >>> Groups.single("sex", ("f", "m", "(missing)")).compared(("sex",)).tolist()
        [True, True, False]
        """
        apart = {SMALL} if self.missing_counts else {SMALL, MISSING}
        compared = np.array([not apart & set(values) for values in self.categories(attributes)], dtype=bool)
        return compared if compared.sum() >= 2 else np.ones(len(compared), dtype=bool)

    def merge(self, counts: NDArray[Any], attributes: tuple[str, ...]) -> NDArray[Any]:
        """Counts by group, ``(..., groups, 2, 2)``, as counts by some of the attributes."""
        if len(attributes) == len(self.attributes):
            return counts
        index = self.index_of(attributes)
        merged = np.zeros((*counts.shape[:-3], int(index.max()) + 1, 2, 2), dtype=counts.dtype)
        for group, place in enumerate(index):
            merged[..., place, :, :] += counts[..., group, :, :]
        return merged


@cache
def _index_of(groups: Groups, attributes: tuple[str, ...]) -> NDArray[np.int64]:
    places = [groups.attributes.index(name) for name in attributes]
    chosen = [tuple(member[place] for place in places) for member in groups.members]
    order = {combination: number for number, combination in enumerate(sorted(set(chosen)))}
    return np.array([order[combination] for combination in chosen], dtype=np.int64)
