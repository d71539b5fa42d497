"""Whether a file fits a schema: everything that does not, for the file's owner to read and mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import MISSING, OTHERS, SMALL, words
from fairfate.data.schema import Schema, parse_numbers
from fairfate.errors import InputError, listing

LONGEST = 60
"""Characters that are shown of a value."""
ENOUGH = 10_000
"""Rows in which a second example is looked for."""


def problems(schema: Schema, frame: pd.DataFrame) -> list[str]:
    """What keeps a file from fitting a schema, one line each; none if it fits.

    The lines show values of the file: they are for its owner, and not for others.
    """
    frame = schema.without_codes(frame)
    try:
        schema.table(frame, "file")
    except (InputError, TypeError, ValueError, OverflowError) as error:
        found = [*_absent(schema, frame), *_unfit(schema, frame)]
        return [_one_line(line) for line in found or [str(error)]]
    return []


def _absent(schema: Schema, frame: pd.DataFrame) -> Iterator[str]:
    """Columns that are not in the file, with the one that may be meant."""
    spare = {name.strip().casefold(): name for name in unused(schema, frame)}
    for column in schema.columns:
        if column not in frame.columns:
            near = difflib.get_close_matches(column.strip().casefold(), spare, n=1)
            hint = f"did you mean '{spare[near[0]]}'?" if near else f"the file has {listing(frame.columns)}"
            yield f"column '{column}' must be in the file, got none of that name; {hint}"


def unused(schema: Schema, frame: pd.DataFrame) -> list[str]:
    """Columns of the file that the schema does not name."""
    return [name for name in frame.columns if name not in schema.columns]


def _unfit(schema: Schema, frame: pd.DataFrame) -> Iterator[str]:
    """Columns that are in the file and hold what they must not."""
    known = dict(zip(schema.sensitive, schema.grouping.values, strict=True)) | {schema.target: schema.labels}
    for column in schema.columns:
        if column not in frame.columns:
            continue
        try:
            if column in schema.bands or column in schema.dates:
                schema.column(frame[column])
            elif column in known:
                yield from _texts(frame[column], known[column])
            elif column in schema.categories:
                yield from _texts(frame[column], schema.categories[column], gaps=True)
            else:
                yield from _numbers(schema, frame[column])
        except (InputError, TypeError, ValueError, OverflowError) as error:
            said = str(error)
            yield said if column in said else f"column '{column}' must hold numbers or texts, got {said}"
    yield from _combinations(schema, frame)


def _texts(values: pd.Series[Any], known: Sequence[str], *, gaps: bool = False) -> Iterator[str]:
    """A column that must hold known words; ``gaps``: the schema may know missing ones."""
    codes, names = words(values)
    empty = np.flatnonzero(codes < 0)
    if len(empty) and MISSING not in known and not (gaps and OTHERS in known):
        why = ", since the schema knows no missing one" if gaps else ""
        rule = f"column '{values.name}' must have a value in every row{why}"
        yield f"{rule}, got {len(empty)} missing, the first in row {empty[0] + 1}"
    strange = np.array([name not in known for name in names] + [False])
    rows = np.flatnonzero(strange[codes])
    if len(rows) and not {OTHERS, SMALL} & set(known):
        found = _examples(rows, (names[codes[row]] for row in rows))
        rule = f"column '{values.name}' must hold only the schema's {len(known)} values"
        others = f"{strange.sum()} other{'' if strange.sum() == 1 else 's'} in {_rows(rows)}"
        yield f"{rule}, got {others}, {found}; the schema knows {listing(known)}"


def _numbers(schema: Schema, values: pd.Series[Any]) -> Iterator[str]:
    """A column that must hold numbers, finite and of a usable size."""
    if values.dtype.kind == "O":
        odd = (parse_numbers(values).isna() & values.notna()).to_numpy(dtype=bool)
        rows = np.flatnonzero(odd)
        if len(rows):
            found = _examples(rows, (values.iloc[row] for row in rows))
            yield f"column '{values.name}' must hold numbers, got text in {_rows(rows)}, {found}"
        values = values.mask(odd)
    schema.numbers(values)


def _combinations(schema: Schema, frame: pd.DataFrame) -> Iterator[str]:
    """Known values of several sensitive columns that make no group together."""
    names = schema.sensitive
    if len(names) == 1 or schema.bands or not set(names) <= set(frame.columns):
        return
    try:
        places = [_places(frame[name], of) for name, of in zip(names, schema.grouping.values, strict=True)]
    except InputError:
        return  # told already
    members, values = set(schema.grouping.members), schema.grouping.values
    each = zip(*(column.tolist() for column in places), strict=True)
    strange = {row: of for row, of in enumerate(each) if min(of) >= 0 and of not in members}
    if strange:
        shown = [", ".join(values[a][place] for a, place in enumerate(of)) for of in strange.values()]
        rule = f"columns {listing(names)} must hold only the schema's {len(members)} combinations"
        yield f"{rule}, got others in {_rows(strange)}, {_examples(list(strange), shown)}"


def _places(values: pd.Series[Any], known: Sequence[str]) -> NDArray[np.int64]:
    """Each row's place among the known values; -1 for none."""
    codes, names = words(values)
    rest = next((place for place, name in enumerate(known) if name in (OTHERS, SMALL)), -1)
    index = [known.index(name) if name in known else rest for name in names]
    missing = known.index(MISSING) if MISSING in known else -1
    found: NDArray[np.int64] = np.array([*index, missing], dtype=np.int64)[codes]
    return found


def _rows(rows: Sequence[int] | NDArray[Any] | dict[int, Any]) -> str:
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"


def _examples(rows: Iterable[int], values: Iterable[object]) -> str:
    """Two different values, each with the first row that has it; rows count from 1, after the header."""
    first: dict[str, int] = {}
    for row, value in islice(zip(rows, values, strict=True), ENOUGH):
        text = str(value)
        first.setdefault(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", row)
        if len(first) == 2:
            break
    return "such as " + " and ".join(f"'{text}' (row {row + 1})" for text, row in first.items())


def _one_line(text: str) -> str:
    """Without line ends and other characters that cannot be shown."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
