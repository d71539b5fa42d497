"""The sensitive columns of a file: each row's group, and what the groups are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import columns as cols
from fairfate.data.columns import KEEP, MISSING, OTHERS, REFUSE, Columns, complete, match, words
from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing

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
        cuts = cols.usual_bands(values.to_numpy(dtype=np.float64, na_value=np.nan))
        if cuts:
            told = ",".join(f"{cut:g}" for cut in cuts)
            notes.append(f"{name}: cut into bands at its quartiles, as by --sensitive {name}:{told}")
    if cuts:
        numbers, odd = cols.find_numbers(values)
        if numbers is None:
            got = f"'{odd[0]}'" if odd else "no value in any row"
            raise InputError(f"sensitive '{name}' must hold numbers to be cut into bands, got {got}")
        values = cols.into_bands(numbers, cuts).rename(name)
    if not tidy or columns.missing_group == REFUSE:
        codes, names = complete(values, "sensitive")
    else:
        codes, names = words(cols.named_missing(values))
        if MISSING in names:
            rows = int((codes == names.index(MISSING)).sum())
            kept = columns.missing_group == KEEP
            what = f"a group, {MISSING}" if kept else f"reported as {MISSING} and not compared with others"
            what = what if chosen is None else f"not counted as {chosen}"
            notes.append(f"{name}: {rows:,} rows without a value are {what} (--missing-group)")
    if cuts:
        order = [band for band in (*cols.band_names(cuts), MISSING) if band in names]
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
            found = cols.Words(codes, list(names))
            codes, names, merged, alone = cols.merge_small(codes, names, label, columns.min_group)
            if merged:
                apart = len(set(names) - {cols.SMALL, MISSING}) > 1
                how = f"reported as {cols.SMALL}{' and not compared with others' if apart else ''}"
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


def _named(few: list[str], found: cols.Words) -> str:
    """Groups by name; those that hardly a row shares as examples, which no file keeps."""
    least = cols.least_rows(len(found.codes))
    rare = [name for name in few if found.rows[found.names.index(name)] < least]
    shared = [name for name in few if name not in rare]
    if not rare:
        return listing(shared, MOST_GROUPS)
    quoted = " and ".join(f"'{name}'" for name in rare)
    return (
        f"{listing([*shared, f'{len(rare)} of them with fewer than {least}'], MOST_GROUPS)}, such as {quoted}"
    )


def _many_numbers(values: pd.Series[Any]) -> bool:
    return cols.is_number(values) and values.dropna().nunique() > cols.MOST_NUMBERS


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
