"""What sites tell each other of their columns, and a schema that covers all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.columns import LEAST_ROWS, MISSING, OTHERS, finite, words
from fairfate.data.encoder import Encoder
from fairfate.data.schema import Schema, UnfitError

MOST_TOLD = 200
"""More names of categories than this are not told to others, nor added to a schema by all sites together;
nor are longer ones believed."""
MOST_WIDER = 100
"""A range that is so many times as wide as the server's is a slip or a lie: it would squeeze all others."""


def describe_frame(schema: Schema, frame: pd.DataFrame) -> dict[str, Any]:
    """What a file's owner may tell others about a schema's inputs: ranges and the names of categories.

    Of numbers that are standardised: how many there are, their sum and the sum of their squares, and whether
    some are missing. Of others the lowest and the highest value, which are somebody's values. Of texts those
    that enough rows share, or all of them; texts that are about as many as the rows are not told.

    Parameters
    ----------
    schema : the inputs
    frame : the file's rows
    """
    absent = [column for column in schema.columns if column not in frame.columns]
    if absent:
        raise UnfitError(f"column '{absent[0]}' must be in the file, got none of that name")
    frame = schema.without_codes(frame)
    inputs: dict[str, Any] = {}
    standardised = schema.encoder.slots is not None
    for column in schema.features:
        if column in schema.sensitive and column not in schema.bands:
            continue
        if column in schema.categories:
            found = words(frame[column])
            rows, missing = found.rows, int((found.codes < 0).sum())
            fewest = LEAST_ROWS if OTHERS in schema.categories[column] else 0
            names = [name for name, count in zip(found.names, rows, strict=True) if count >= fewest]
            if len(names) > min(MOST_TOLD, len(frame) / 2):
                raise UnfitError(
                    f"column '{column}' must have few different texts to be described",
                    f", got {len(names)} in {len(frame)} rows, as on an identifier",
                )
            inputs[column] = sorted({*names, *([MISSING] if missing else [])})
            continue
        numbers = schema.numbers(frame[column])
        present = numbers[~np.isnan(numbers)]
        if standardised:
            sums = float(present.sum()), float((present * present).sum())
            inputs[column] = [len(present), *sums, int(len(present) < len(numbers))]
            continue
        inputs[column] = [float(present.min()), float(present.max())] if len(present) else []
    return inputs


def cover(schema: Schema, described: Mapping[str, Any]) -> tuple[Schema, dict[str, str]]:
    """The schema that also covers the files described; medians, labels and groups stay as they are.

    Every description is held against the schema as it is, so that several together can widen a range or add
    names no further than one alone. A group that the server's own rows do not have would leave fairness
    undefined, so it is never added.

    Parameters
    ----------
    schema : what the server's own rows say
    described : for each site, what `describe_frame` says of its file

    Returns
    -------
    The schema, and for each site that is left out, why.
    """
    usable: dict[str, _Described] = {}
    refused: dict[str, str] = {}
    for site in sorted(described):
        try:
            usable[site] = _check_described(schema, described[site])
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            refused[site] = f"a description must hold ranges and category names, got {error}"
    for column in schema.categories:  # those who add most are left out first
        while True:
            added = {site: about.names.get(column, set()) for site, about in usable.items()}
            if len(set().union(*added.values())) <= MOST_TOLD:
                break
            most = max(sorted(added), key=lambda site: len(added[site]))
            del usable[most]
            refused[most] = f"all sites together must add at most {MOST_TOLD} names to '{column}', got more"
    return _widened(schema, list(usable.values())), refused


class _Described(NamedTuple):
    """What one file adds to a schema."""

    names: dict[str, set[str]]
    ranges: dict[str, tuple[float, float]]
    sums: dict[str, tuple[float, float, float, float]]
    """Numbers, their sum, the sum of their squares, and 1 if some are missing."""


def _check_described(schema: Schema, described: Mapping[str, Any]) -> _Described:
    """A site's description, if it makes sense beside the server's own rows."""
    result = _Described({}, {}, {})
    low = dict(zip(schema.features, schema.encoder.low, strict=True))
    span = dict(zip(schema.features, schema.encoder.span, strict=True))
    for column, found in described.items():
        if column in schema.categories:
            names = [n for n in found if isinstance(n, str) and n.isprintable() and len(n) <= MOST_TOLD]
            if len(found) > MOST_TOLD or names != list(found):
                raise ValueError(f"{len(found)} categories of '{column}', not all of them usable")
            result.names[column] = set(names) - set(schema.categories[column])
        elif column in low and schema.encoder.slots is not None and found:
            count, total, squares, missing = np.array(found, dtype=np.float64).tolist()
            _check_sums(count, total, squares, missing, column)
            mean = total / max(count, 1)
            deviation = max(0.0, squares / max(count, 1) - mean * mean) ** 0.5
            if count and max(abs(mean - low[column]), deviation) > MOST_WIDER * span[column]:
                told = f"a mean of {mean:g} and a deviation of {deviation:g} for '{column}'"
                raise ValueError(f"{told}, far from the server's")
            result.sums[column] = (count, total, squares, missing)
        elif column in low and column not in schema.sensitive and found:
            least, most = finite(np.array(found, dtype=np.float64), column)
            widest = max(low[column] + span[column], most) - min(low[column], least)
            if not least <= most or widest > MOST_WIDER * span[column]:
                told = f"{least:g} to {most:g} for '{column}'"
                raise ValueError(f"{told}, over {MOST_WIDER} times as wide as the server's or no range")
            result.ranges[column] = (float(least), float(most))
    return result


def _check_sums(count: float, total: float, squares: float, missing: float, column: str) -> None:
    """Refuse what no numbers add up to."""
    whole = 0 <= count < 2**53 and count == int(count) and missing in (0, 1)
    usable = whole and math.isfinite(total) and math.isfinite(squares)
    if not usable or squares * count < total * total * (1 - 1e-9) or (not count and squares):
        raise ValueError(f"sums of '{column}' that no numbers have")


def _widened(schema: Schema, added: Sequence[_Described]) -> Schema:
    names = {
        column: _in_order({*values, *(name for about in added for name in about.names.get(column, ()))})
        for column, values in schema.categories.items()
    }
    if schema.encoder.slots is not None:
        return replace(schema, categories=names, encoder=_pooled(schema, added, names))
    lows, highs = schema.encoder.low.copy(), schema.encoder.low + schema.encoder.span
    for number, column in enumerate(schema.features):
        if column in names:
            lows[number], highs[number] = 0.0, len(names[column]) - 1
        for about in added:
            least, most = about.ranges.get(column, (np.inf, -np.inf))
            lows[number], highs[number] = min(lows[number], least), max(highs[number], most)
    spans = highs - lows
    encoder = Encoder(lows, np.where(spans > 0, spans, 1.0), schema.encoder.median)
    return replace(schema, categories=names, encoder=encoder)


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted; where there is a place for all others, it is the last, and that for missing ones before it."""
    if OTHERS not in names:
        return tuple(sorted(names))
    last = [name for name in (MISSING, OTHERS) if name in names]
    return (*sorted(names - set(last)), *last)


def _pooled(schema: Schema, added: Sequence[_Described], names: Mapping[str, tuple[str, ...]]) -> Encoder:
    """Means and deviations over the rows of all sites, from their sums; the server's where nobody tells."""
    own = schema.encoder
    assert own.slots is not None
    assert own.flagged is not None
    slots = np.array(
        [len(names[column]) if column in names else own.slots[n] for n, column in enumerate(schema.features)]
    )
    sums = np.array(
        [
            np.sum([about.sums.get(column, (0.0,) * 4) for about in added], axis=0) if added else np.zeros(4)
            for column in schema.features
        ]
    )
    flagged = own.flagged | (sums[:, 3] > 0)
    found = Encoder.from_sums(sums[:, 0], sums[:, 1], sums[:, 2], flagged, slots)
    told = sums[:, 0] > 0
    mean, span = np.where(told, found.low, own.low), np.where(told, found.span, own.span)
    return Encoder(mean, span, mean, slots, flagged)
