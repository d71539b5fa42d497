"""The groups that fairness is about: the values of the sensitive columns, alone or crossed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import (
    KEEP,
    MISSING,
    OTHERS,
    REFUSE,
    SMALL,
    Columns,
    Words,
    complete,
    find_numbers,
    is_number,
    least_rows,
    match,
    named_missing,
    words,
)
from fairfate.errors import InputError, listing, unknown


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


FEWEST = 5
"""Rows of either label that a group needs to be in the training, the validation and the test rows."""
MOST_NUMBERS = 12
"""A sensitive column of numbers with more values is cut into bands."""


def band_names(cuts: tuple[float, ...]) -> list[str]:
    """What the bands between some cuts are called; each begins with its lower cut.

    >>> band_names((25, 40))
    ['below 25', '25 to 40', '40 and over']
    """
    middle = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(cuts)]
    return [f"below {cuts[0]:g}", *middle, f"{cuts[-1]:g} and over"]


def into_bands(numbers: NDArray[np.float64], cuts: tuple[float, ...]) -> pd.Series[Any]:
    """The band of each number, by its name; none where there is no number."""
    names = np.array(band_names(cuts), dtype=object)
    band = np.searchsorted(np.asarray(cuts, dtype=np.float64), numbers, side="right")
    found = names[np.minimum(band, len(cuts))]
    found[np.isnan(numbers)] = None
    return pd.Series(found)


def usual_bands(numbers: NDArray[np.float64]) -> tuple[float, ...]:
    """The quartiles of numbers, to cut them at, as far as they differ."""
    present = numbers[~np.isnan(numbers)]
    cuts = np.unique(np.round(np.quantile(present, [0.25, 0.5, 0.75]), 6))
    return tuple(float(cut) for cut in cuts if cut > present.min())


class Merged(NamedTuple):
    """Groups of which the small ones are one."""

    codes: NDArray[np.int64]
    """(rows,) each row's group."""
    names: list[str]
    merged: list[str]
    """The names that the small ones had."""
    alone: str = ""
    """The only small group, where it stays as it is since there is only one other."""


def merge_small(codes: NDArray[np.int64], names: list[str], label: NDArray[np.int8], least: int) -> Merged:
    """Groups with too few rows, or of one label, as one; two groups at least are left.

    No row is left out. Rows without a value are a group of their own, however few they are.
    """
    cells = np.bincount(codes * 2 + label, minlength=2 * len(names)).reshape(-1, 2)
    known = np.array([name != MISSING for name in names])
    few = (cells.sum(axis=1) < least) | (cells.min(axis=1) < max(1, least // 5))
    if few[known].all():  # a small file: only what cannot be split
        few = cells.min(axis=1) < FEWEST
    few &= known
    large = int((known & ~few).sum())
    if not few.any() or not large:
        return Merged(codes, names, [])
    if large + few.sum() == 2:
        return Merged(codes, names, [], names[int(np.flatnonzero(few)[0])])
    rest = np.flatnonzero(~few)
    index = np.full(len(names), len(rest))
    index[rest] = np.arange(len(rest))
    merged = sorted(names[number] for number in np.flatnonzero(few))
    return Merged(index[codes], [*(names[number] for number in rest), SMALL], merged)


def is_too_small(labels: pd.Series[Any], every: pd.Series[Any]) -> bool:
    """Whether rows with these labels cannot be a group that is in the training, validation and test rows."""
    return any(int((labels == value).sum()) < FEWEST for value in every.dropna().unique())


MOST_GROUPS = 100


class Attribute(NamedTuple):
    """A sensitive column: each row's value, the values' names, and where numbers were cut."""

    codes: NDArray[np.int16]
    names: tuple[str, ...]
    cuts: tuple[float, ...] = ()


def read_attribute(
    values: pd.Series[Any], columns: Columns, label: NDArray[np.int8], tidy: bool, notes: list[str]
) -> Attribute:
    """A sensitive column; with ``tidy``, numbers are cut, small groups merged, missing values kept."""
    name, cuts = str(values.name), dict(columns.bands).get(str(values.name), ())
    chosen = dict(columns.privileged).get(name)
    if tidy and not cuts and chosen is None and _many_numbers(values):
        cuts = usual_bands(values.to_numpy(dtype=np.float64, na_value=np.nan))
        if cuts:
            told = ",".join(f"{cut:g}" for cut in cuts)
            notes.append(f"{name}: cut into bands at its quartiles, as by --sensitive {name}:{told}")
    if cuts:
        numbers, odd = find_numbers(values)
        if numbers is None:
            got = f"'{odd[0]}'" if odd else "no value in any row"
            raise InputError(f"sensitive '{name}' must hold numbers to be cut into bands, got {got}")
        values = into_bands(numbers, cuts).rename(name)
    if not tidy or columns.missing_group == REFUSE:
        codes, names = complete(values, "sensitive")
    else:
        codes, names = words(named_missing(values))
        if MISSING in names:
            rows = int((codes == names.index(MISSING)).sum())
            kept = columns.missing_group == KEEP
            what = f"a group, {MISSING}" if kept else f"reported as {MISSING} and not compared with others"
            what = what if chosen is None else f"not counted as {chosen}"
            notes.append(f"{name}: {rows:,} rows without a value are {what} (--missing-group)")
    if cuts:
        order = [band for band in (*band_names(cuts), MISSING) if band in names]
        codes, names = np.array([order.index(band) for band in names])[codes], order
    if chosen is None and len(names) > MOST_GROUPS:
        raise InputError(
            f"sensitive must have at most {MOST_GROUPS} values, got {len(names)} in column '{name}';"
            " name one with --privileged to set it against the others"
        )
    if len(names) < 2:
        raise InputError(f"sensitive must have at least two values, got one in column '{name}': {names[0]}")
    if chosen is None:
        if tidy and columns.min_group > 0:
            found = Words(codes, list(names))
            codes, names, merged, alone = merge_small(codes, names, label, columns.min_group)
            if merged:
                apart = len(set(names) - {SMALL, MISSING}) > 1
                how = f"reported as {SMALL}{' and not compared with others' if apart else ''}"
                least = f"fewer than {columns.min_group} rows, or very few of one outcome"
                notes.append(f"{name}: groups of {least}, are {how} (--min-group): {_named(merged, found)}")
            if alone:
                named = _named([alone], found)
                notes.append(f"{name}: a group with few rows stays, for there is only one other: {named}")
        return Attribute(codes.astype(np.int16), tuple(names), cuts)
    privileged = match(chosen, names, "privileged", name)
    rest = [name for name in names if name != names[privileged]]
    others = rest[0] if len(rest) == 1 else OTHERS
    return Attribute((codes == privileged).astype(np.int16), (others, names[privileged]), cuts)


def _named(few: list[str], found: Words) -> str:
    """Groups by name; those that hardly a row shares as examples, which no file keeps."""
    least = least_rows(len(found.codes))
    rare = [name for name in few if found.rows[found.names.index(name)] < least]
    shared = [name for name in few if name not in rare]
    if not rare:
        return listing(shared, MOST_GROUPS)
    quoted = " and ".join(f"'{name}'" for name in rare)
    return (
        f"{listing([*shared, f'{len(rare)} of them with fewer than {least}'], MOST_GROUPS)}, such as {quoted}"
    )


def _many_numbers(values: pd.Series[Any]) -> bool:
    return is_number(values) and values.dropna().nunique() > MOST_NUMBERS


def crossed(
    coded: Mapping[str, tuple[NDArray[np.int16], tuple[str, ...]]], missing_counts: bool = False
) -> tuple[Groups, NDArray[np.int16]]:
    """The groups that the sensitive columns make together, and each row's."""
    if len(coded) == 1:
        ((name, (codes, values)),) = coded.items()
        return replace(Groups.single(name, values), missing_counts=missing_counts), codes
    crossed, group = Groups.cross(
        tuple(coded), [values for _, values in coded.values()], [codes for codes, _ in coded.values()]
    )
    if len(crossed) > MOST_GROUPS:
        raise InputError(
            f"sensitive columns must make at most {MOST_GROUPS} groups together, got {len(crossed)} of"
            f" {listing(coded)}"
        )
    return replace(crossed, missing_counts=missing_counts), group
