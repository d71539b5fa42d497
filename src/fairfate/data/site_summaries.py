"""What sites report to the server about their columns, and a schema that covers all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.columns import LEAST_ROWS, MISSING, OTHERS, check_finite, encode_texts
from fairfate.data.encoder import Encoder
from fairfate.data.schema import Schema, UnfitError

MOST_CATEGORIES = 200
"""More names of categories than this are not sent to others, nor added to a schema by all sites together;
nor are longer ones believed."""
MOST_RANGE_FACTOR = 100
"""A range that is so many times as wide as the server's is an error or an attack: it squeezes all others."""


def describe_frame(schema: Schema, frame: pd.DataFrame) -> dict[str, Any]:
    """What a file's owner may tell others about a schema's inputs: ranges and the names of categories.

    Parameters
    ----------
    schema : the inputs
    frame : the file's rows; UnfitError where they do not fit

    Returns
    -------
    For each input, a list. Of numbers that are standardised: how many there are, their sum and the sum of
    their squares, and whether some are missing. Of others the lowest and the highest value, which are
    somebody's values. Of texts those that enough rows share, or all of them; texts that are about as many as
    the rows are an UnfitError.
    """
    absent = [column for column in schema.columns if column not in frame.columns]
    if absent:
        raise UnfitError(f"column '{absent[0]}' must be in the file")
    frame = schema.without_codes(frame)
    names = [name for name in schema.features if name not in schema.sensitive or name in schema.bands]
    return {
        name: _categories(schema, frame[name])
        if name in schema.categories
        else _range_or_sums(schema, frame[name])
        for name in names
    }


def _categories(schema: Schema, values: pd.Series[Any]) -> list[str]:
    texts = encode_texts(values)
    fewest = LEAST_ROWS if OTHERS in schema.categories[str(values.name)] else 0
    names = {name for name, rows in zip(texts.names, texts.rows, strict=True) if rows >= fewest}
    if len(names) > min(MOST_CATEGORIES, len(values) / 2):
        raise UnfitError(
            f"column '{values.name}' must have few different texts to be described",
            f", got {len(names)} in {len(values)} rows, as on an identifier",
        )
    return sorted(names | ({MISSING} if (texts.codes < 0).any() else set()))


def _range_or_sums(schema: Schema, values: pd.Series[Any]) -> list[float]:
    numbers = schema.numbers(values)
    present = numbers[~np.isnan(numbers)]
    if schema.encoder.slots is not None:
        sums = float(present.sum()), float((present * present).sum())
        return [len(present), *sums, int(len(present) < len(numbers))]
    return [float(present.min()), float(present.max())] if len(present) else []


def widen_schema(schema: Schema, described: Mapping[str, Any]) -> tuple[Schema, dict[str, str]]:
    """Make a schema cover the files described too; medians, labels and groups stay as they are.

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
    usable: dict[str, _Description] = {}
    rejected: dict[str, str] = {}
    for site in sorted(described):
        try:
            usable[site] = _check_description(schema, described[site])
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            rejected[site] = f"a description must hold ranges and category names, got {error}"
    for column in schema.categories:  # those who add most are left out first
        while True:
            added = {site: description.names.get(column, set()) for site, description in usable.items()}
            if len(set().union(*added.values())) <= MOST_CATEGORIES:
                break
            most = max(sorted(added), key=lambda site: len(added[site]))
            del usable[most]
            rule = f"all sites together must add at most {MOST_CATEGORIES} names to '{column}'"
            rejected[most] = rule
    return _widened(schema, list(usable.values())), rejected


class _Description(NamedTuple):
    """What one file adds to a schema, by column."""

    names: dict[str, set[str]]
    ranges: dict[str, tuple[float, float]]
    sums: dict[str, tuple[float, float, float, float]]
    """Numbers, their sum, the sum of their squares, and 1 if some are missing."""


def _check_description(schema: Schema, described: Mapping[str, Any]) -> _Description:
    """A site's description, if it makes sense beside the server's own rows."""
    names, ranges, sums = _Description({}, {}, {})
    low = dict(zip(schema.features, schema.encoder.low, strict=True))
    span = dict(zip(schema.features, schema.encoder.span, strict=True))
    for column, values in described.items():
        if column in schema.categories:
            texts = [name for name in values if isinstance(name, str) and name.isprintable()]
            usable = [name for name in texts if len(name) <= MOST_CATEGORIES]
            if len(values) > MOST_CATEGORIES or usable != list(values):
                raise ValueError(f"{len(values)} categories of '{column}', not all of them usable")
            names[column] = set(usable) - set(schema.categories[column])
        elif column in low and schema.encoder.slots is not None and values:
            count, total, squares, missing = np.array(values, dtype=np.float64).tolist()
            _check_sums(count, total, squares, missing, column)
            mean = total / max(count, 1)
            deviation = max(0.0, squares / max(count, 1) - mean * mean) ** 0.5
            if count and max(abs(mean - low[column]), deviation) > MOST_RANGE_FACTOR * span[column]:
                moments = f"a mean of {mean:g} and a deviation of {deviation:g}"
                raise ValueError(f"{moments} for '{column}', far from the server's")
            sums[column] = (count, total, squares, missing)
        elif column in low and column not in schema.sensitive and values:
            least, most = check_finite(np.array(values, dtype=np.float64), column).tolist()
            widest = max(low[column] + span[column], most) - min(low[column], least)
            if not least <= most or widest > MOST_RANGE_FACTOR * span[column]:
                raise ValueError(
                    f"{least:g} to {most:g} for '{column}', over {MOST_RANGE_FACTOR} times as wide as the"
                    " server's or no range"
                )
            ranges[column] = (least, most)
    return _Description(names, ranges, sums)


def _check_sums(count: float, total: float, squares: float, missing: float, column: str) -> None:
    """Refuse what no numbers add up to."""
    is_whole = 0 <= count < 2**53 and count == int(count) and missing in (0, 1)
    usable = is_whole and math.isfinite(total) and math.isfinite(squares)
    if not usable or squares * count < total * total * (1 - 1e-9) or (not count and squares):
        raise ValueError(f"sums of '{column}' that no numbers have")


def _widened(schema: Schema, added: Sequence[_Description]) -> Schema:
    names = {
        column: _in_order({*values, *(name for site in added for name in site.names.get(column, ()))})
        for column, values in schema.categories.items()
    }
    if schema.encoder.slots is not None:
        return replace(schema, categories=names, encoder=_pooled(schema, added, names))
    lows, highs = schema.encoder.low.copy(), schema.encoder.low + schema.encoder.span
    for number, column in enumerate(schema.features):
        if column in names:
            lows[number], highs[number] = 0.0, len(names[column]) - 1
        for site in added:
            least, most = site.ranges.get(column, (np.inf, -np.inf))
            lows[number], highs[number] = min(lows[number], least), max(highs[number], most)
    spans = highs - lows
    encoder = Encoder(lows, np.where(spans > 0, spans, 1.0), schema.encoder.median)
    return replace(schema, categories=names, encoder=encoder)


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Sorted; a name for all others is the last, and one for missing values before it."""
    if OTHERS not in names:
        return tuple(sorted(names))
    last = [name for name in (MISSING, OTHERS) if name in names]
    return (*sorted(names - set(last)), *last)


def _pooled(schema: Schema, added: Sequence[_Description], names: Mapping[str, tuple[str, ...]]) -> Encoder:
    """Means and deviations over the rows of all sites, from their sums; the server's where nobody tells."""
    own = schema.encoder
    assert own.slots is not None
    assert own.flagged is not None
    slots = np.array(
        [len(names[column]) if column in names else own.slots[n] for n, column in enumerate(schema.features)]
    )
    sums = np.array(
        [
            np.sum([site.sums.get(column, (0.0,) * 4) for site in added], axis=0) if added else np.zeros(4)
            for column in schema.features
        ]
    )
    flagged = own.flagged | (sums[:, 3] > 0)
    pooled = Encoder.from_sums(sums[:, 0], sums[:, 1], sums[:, 2], flagged, slots)
    is_described = sums[:, 0] > 0
    mean, span = np.where(is_described, pooled.low, own.low), np.where(is_described, pooled.span, own.span)
    return Encoder(mean, span, mean, slots, flagged)
