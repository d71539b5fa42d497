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
    TextCodes,
    encode_complete,
    encode_texts,
    find_numbers,
    find_value,
    is_number,
    least_rows,
)
from fairfate.errors import InputError, check, listing, unknown

FEWEST = 5
"""Rows of either label that a group needs to be in the training, the validation and the test rows."""
MOST_NUMBERS = 12
"""A sensitive column of numbers with more values is cut into bands."""
MOST_GROUPS = 100


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
        combinations = np.stack([np.asarray(code, dtype=np.int64) for code in codes], axis=1)
        members, group = np.unique(combinations, axis=0, return_inverse=True)
        grouping = cls(tuple(attributes), tuple(map(tuple, values)), tuple(map(tuple, members.tolist())))
        return grouping, group.reshape(-1).astype(np.int16)

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
        columns = [self.attributes.index(name) for name in attributes]
        names = {
            int(number): tuple(self.values[column][member[column]] for column in columns)
            for number, member in zip(index, self.members, strict=True)
        }
        return [names[number] for number in range(len(names))]

    def compared(self, attributes: tuple[str, ...]) -> NDArray[np.bool_]:
        """(combinations,) which are compared with each other; the others are too small or not known.

        >>> Groups.single("sex", ("f", "m", "(missing)")).compared(("sex",)).tolist()
        [True, True, False]
        """
        excluded = {SMALL} if self.missing_counts else {SMALL, MISSING}
        compared = np.array([excluded.isdisjoint(v) for v in self.categories(attributes)], dtype=bool)
        return compared if compared.sum() >= 2 else np.ones(len(compared), dtype=bool)

    def merge(self, counts: NDArray[Any], attributes: tuple[str, ...]) -> NDArray[Any]:
        """Counts by group, ``(..., groups, 2, 2)``, as counts by some of the attributes."""
        if len(attributes) == len(self.attributes):
            return counts
        index = self.index_of(attributes)
        merged = np.zeros((*counts.shape[:-3], int(index.max()) + 1, 2, 2), dtype=counts.dtype)
        for group, combination in enumerate(index):
            merged[..., combination, :, :] += counts[..., group, :, :]
        return merged


@cache
def _index_of(groups: Groups, attributes: tuple[str, ...]) -> NDArray[np.int64]:
    columns = [groups.attributes.index(name) for name in attributes]
    combinations = [tuple(member[column] for column in columns) for member in groups.members]
    order = {combination: number for number, combination in enumerate(sorted(set(combinations)))}
    return np.array([order[combination] for combination in combinations], dtype=np.int64)


def band_names(cuts: tuple[float, ...]) -> list[str]:
    """What the bands between some cuts are called; each begins with its lower cut.

    >>> band_names((25, 40))
    ['below 25', '25 to 40', '40 and over']
    """
    middle = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(cuts)]
    return [f"below {cuts[0]:g}", *middle, f"{cuts[-1]:g} and over"]


def cut_into_bands(numbers: NDArray[np.float64], cuts: tuple[float, ...]) -> pd.Series[Any]:
    """The band of each number, by its name; none where there is no number.

    >>> cut_into_bands(np.array([20.0, 25.0, 99.0]), (25, 40)).tolist()
    ['below 25', '25 to 40', '40 and over']
    """
    names = np.array(band_names(cuts), dtype=object)
    index = np.searchsorted(np.asarray(cuts, dtype=np.float64), numbers, side="right")
    bands = names[np.minimum(index, len(cuts))]
    bands[np.isnan(numbers)] = None
    return pd.Series(bands)


def quartile_cuts(values: pd.Series[Any]) -> tuple[float, ...]:
    """The quartiles of a column of many numbers, to cut it at, as far as they differ; none for others."""
    if not is_number(values) or values.dropna().nunique() <= MOST_NUMBERS:
        return ()
    present = values.dropna().to_numpy(dtype=np.float64)
    cuts = np.unique(np.round(np.quantile(present, [0.25, 0.5, 0.75]), 6))
    return tuple(float(cut) for cut in cuts if cut > present.min())


class MergedGroups(NamedTuple):
    """Groups of which the small ones are one."""

    codes: NDArray[np.int64]
    """(rows,) each row's group."""
    names: list[str]
    merged: list[str]
    """The names that the small ones had."""
    alone: str = ""
    """The only small group, where it stays as it is since there is only one other."""


def merge_small(
    codes: NDArray[np.int64], names: list[str], label: NDArray[np.int8], least: int
) -> MergedGroups:
    """Put groups with too few rows, or of one label, together; two groups at least are left.

    No row is left out. Rows without a value are a group of their own, however few they are.

    Parameters
    ----------
    codes : (rows,) each row's group
    names : of the groups
    label : (rows,) 1 is the favourable outcome
    least : rows that a group must have
    """
    strata = np.bincount(codes * 2 + label, minlength=2 * len(names)).reshape(-1, 2)
    is_known = np.array([name != MISSING for name in names])
    is_small = (strata.sum(axis=1) < least) | (strata.min(axis=1) < max(1, least // 5))
    if is_small[is_known].all():  # a small file: only what cannot be split
        is_small = strata.min(axis=1) < FEWEST
    is_small &= is_known
    large = int((is_known & ~is_small).sum())
    if not is_small.any() or not large:
        return MergedGroups(codes, names, [])
    small = [name for name, few in zip(names, is_small, strict=True) if few]
    if large + len(small) == 2:
        return MergedGroups(codes, names, [], small[0])
    rest = [name for name in names if name not in small]
    index = np.where(is_small, len(rest), np.cumsum(~is_small) - 1)
    return MergedGroups(index[codes], [*rest, SMALL], sorted(small))


def is_too_small(labels: pd.Series[Any], all_labels: pd.Series[Any]) -> bool:
    """Whether rows with these labels cannot be a group that is in the training, validation and test rows."""
    return any(int((labels == value).sum()) < FEWEST for value in all_labels.dropna().unique())


class SensitiveColumn(NamedTuple):
    """A sensitive column: each row's value, the values' names, and where numbers were cut."""

    codes: NDArray[np.int16]
    names: tuple[str, ...]
    cuts: tuple[float, ...] = ()


def read_sensitive(
    values: pd.Series[Any], columns: Columns, label: NDArray[np.int8], tidy: bool, notes: list[str]
) -> SensitiveColumn:
    """Read a sensitive column; with ``tidy``, numbers are cut, small groups merged, missing values kept.

    Parameters
    ----------
    values : the column
    columns : its bands, the value to set against all others, and what becomes of small and missing ones
    label : (rows,) 1 is the favourable outcome
    tidy : whether the file is as it comes
    notes : where to say what was done
    """
    name, cuts = str(values.name), dict(columns.bands).get(str(values.name), ())
    privileged = dict(columns.privileged).get(name)
    if tidy and not cuts and privileged is None:
        cuts = quartile_cuts(values)
        if cuts:
            option = f"{name}:{','.join(f'{cut:g}' for cut in cuts)}"
            notes.append(f"{name}: cut into bands at its quartiles, as by --sensitive {option}")
    if cuts:
        values = _read_bands(values, cuts)
    if not tidy or columns.missing_group == REFUSE:
        texts = encode_complete(values, "sensitive")
    else:
        texts = encode_texts(values.astype(object).where(values.notna(), MISSING))
        if MISSING in texts.names:
            notes.append(_note_missing(name, texts, columns.missing_group == KEEP, privileged))
    if cuts:
        order = [band for band in (*band_names(cuts), MISSING) if band in texts.names]
        texts = TextCodes(np.array([order.index(band) for band in texts.names])[texts.codes], order)
    codes, names = texts
    if privileged is None and len(names) > MOST_GROUPS:
        raise InputError(
            f"sensitive must have at most {MOST_GROUPS} values, got {len(names)} in column '{name}';"
            " name one with --privileged to set it against the others"
        )
    if len(names) < 2:
        raise InputError(f"sensitive must have at least two values, got one in column '{name}': {names[0]}")
    if privileged is None:
        if tidy and columns.min_group > 0:
            merged = merge_small(codes, names, label, columns.min_group)
            notes += _note_merged(name, texts, merged, columns.min_group)
            codes, names = merged.codes, merged.names
        return SensitiveColumn(codes.astype(np.int16), tuple(names), cuts)
    chosen = find_value(privileged, names, "privileged", name)
    others = names[1 - chosen] if len(names) == 2 else OTHERS
    return SensitiveColumn((codes == chosen).astype(np.int16), (others, names[chosen]), cuts)


def _read_bands(values: pd.Series[Any], cuts: tuple[float, ...]) -> pd.Series[Any]:
    numbers, others = find_numbers(values)
    if numbers is None:
        example = f"'{others[0]}'" if others else "no value in any row"
        raise InputError(f"sensitive '{values.name}' must hold numbers to be cut into bands, got {example}")
    return cut_into_bands(numbers, cuts).rename(str(values.name))


def _note_missing(name: str, texts: TextCodes, is_group: bool, privileged: str | None) -> str:
    what = f"a group, {MISSING}" if is_group else f"reported as {MISSING} and not compared with others"
    what = what if privileged is None else f"not counted as {privileged}"
    rows = texts.rows[texts.names.index(MISSING)]
    return f"{name}: {rows:,} rows without a value are {what} (--missing-group)"


def _note_merged(name: str, texts: TextCodes, merged: MergedGroups, min_group: int) -> list[str]:
    notes = []
    if merged.merged:
        is_compared = len(set(merged.names) - {SMALL, MISSING}) <= 1
        how = f"reported as {SMALL}{'' if is_compared else ' and not compared with others'}"
        least = f"fewer than {min_group} rows in all, or very few of one outcome"
        names = _list_groups(merged.merged, texts)
        notes.append(f"{name}: groups of {least}, are {how} (--min-group): {names}")
    if merged.alone:
        names = _list_groups([merged.alone], texts)
        notes.append(f"{name}: a group with few rows stays, for there is only one other: {names}")
    return notes


def _list_groups(names: list[str], texts: TextCodes) -> str:
    """Groups by name; those that hardly a row shares as examples, which no file keeps."""
    least = least_rows(len(texts.codes))
    rare = [name for name in names if texts.rows[texts.names.index(name)] < least]
    shared = [name for name in names if name not in rare]
    if not rare:
        return listing(shared, MOST_GROUPS)
    quoted = " and ".join(f"'{name}'" for name in rare)
    shown = [*shared, f"{len(rare)} of them with fewer than {least}"]
    return f"{listing(shown, MOST_GROUPS)}, such as {quoted}"


def cross_columns(
    columns: Mapping[str, SensitiveColumn], missing_counts: bool = False
) -> tuple[Groups, NDArray[np.int16]]:
    """The groups that sensitive columns make together, and each row's.

    Parameters
    ----------
    columns : the sensitive columns by name
    missing_counts : whether people without a value are a group like any other
    """
    if len(columns) == 1:
        ((name, column),) = columns.items()
        return replace(Groups.single(name, column.names), missing_counts=missing_counts), column.codes
    values, codes = [column.names for column in columns.values()], [c.codes for c in columns.values()]
    grouping, group = Groups.cross(tuple(columns), values, codes)
    rule = f"sensitive columns must make at most {MOST_GROUPS} groups together"
    check(len(grouping) <= MOST_GROUPS, rule, f"{len(grouping)} of {listing(columns)}")
    return replace(grouping, missing_counts=missing_counts), group
