"""What several files must agree on: columns, categories, groups and ranges, without showing a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.encode import Encoder
from fairfate.data.groups import Groups
from fairfate.data.table import MISSING, OTHERS, Table, finite, words
from fairfate.errors import InputError, listing, unknown
from fairfate.files import write_bytes

MOST_TOLD = 200
"""More names of categories than this are not told to others, nor added to a schema by all sites together;
nor are longer ones believed."""
MOST_WIDER = 100
"""A range that is so many times as wide as the server's is a slip or a lie: it would squeeze all others."""


class UnfitError(InputError):
    """A file that does not fit a schema.

    The message may show values of the file, for its owner to mend it; ``public`` names the column and the
    rule only, for others to read.
    """

    def __init__(self, public: str, detail: str = "") -> None:
        super().__init__(f"{public}{detail}")
        self.public = public


@dataclass(frozen=True, eq=False)
class Schema:
    """How a row becomes the numbers a model sees, the same for everybody who shares the schema."""

    target: str
    features: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    """The values of each text column, in their order; the other columns are numbers."""
    labels: tuple[str, str]
    """The values of the target; the second is the favourable outcome."""
    grouping: Groups
    """The groups; a first value of ``(others)`` stands for all but the second."""
    encoder: Encoder

    @classmethod
    def of(cls, table: Table, encoder: Encoder | None = None) -> Schema:
        """The schema of a table; its ranges are those of the table's rows unless an encoder is given."""
        return cls(
            target=table.target,
            features=table.feature_names,
            categories=table.categories,
            labels=table.label_names,
            grouping=table.grouping,
            encoder=Encoder.fit(table.features) if encoder is None else encoder,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        inputs = [name for name in self.features if name not in self.sensitive]
        return (*inputs, *self.sensitive, self.target)

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return self.grouping.attributes

    def table(self, frame: pd.DataFrame, name: str) -> Table:
        """A file's rows in this schema; UnfitError if they do not fit. Other columns are left alone."""
        for column in self.columns:
            if column not in frame.columns:
                hint = str(unknown("column", column, frame.columns)).partition(";")[2]
                raise UnfitError(f"column '{column}' must be in the file, got none of that name", f";{hint}")
        label = _codes(frame[self.target], self.labels)
        coded = {name: self._values(frame[name], number) for number, name in enumerate(self.sensitive)}
        group = self._group(list(coded.values()))
        inputs = [
            coded[column].astype(np.float64) if column in coded else self._input(frame[column])
            for column in self.features
        ]
        return Table(
            name=name,
            features=np.stack(inputs, axis=1),
            label=label.astype(np.int8),
            group=group.astype(np.int16),
            feature_names=self.features,
            label_names=self.labels,
            grouping=self.grouping,
            categories=self.categories,
            target=self.target,
            encoder=self.encoder,
        )

    def _values(self, values: pd.Series[Any], attribute: int) -> NDArray[np.int64]:
        """A sensitive column's values, by their place in the schema."""
        known = self.grouping.values[attribute]
        if known[0] != OTHERS:
            return _codes(values, known)
        codes, names = words(values)
        _check_complete(codes, values.name)
        privileged = names.index(known[1]) if known[1] in names else -1
        return np.asarray(codes == privileged, dtype=np.int64)

    def _group(self, coded: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Each row's group, from its values of the sensitive columns."""
        if len(coded) == 1:
            return coded[0]
        place = {member: number for number, member in enumerate(self.grouping.members)}
        rows = list(zip(*(codes.tolist() for codes in coded), strict=True))
        strange = sum(row not in place for row in rows)
        if strange:
            raise UnfitError(
                f"columns {listing(self.sensitive)} must hold only the schema's {len(place)} combinations,"
                f" got others in {strange} rows"
            )
        return np.array([place[row] for row in rows], dtype=np.int64)

    def _input(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        column = str(values.name)
        if column in self.categories:
            return _codes(values, self.categories[column], missing=True).astype(np.float64)
        return self.numbers(values)

    def numbers(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """A column that must hold numbers; NaN where one is missing."""
        column = str(values.name)
        if values.dtype.kind not in "biufO":
            raise UnfitError(f"column '{column}' must hold numbers, got {values.dtype}")
        if values.dtype.kind == "O":
            numbers = pd.to_numeric(values, errors="coerce")
            odd = np.flatnonzero((numbers.isna() & values.notna()).to_numpy())
            if len(odd):
                row = int(odd[0])
                raise UnfitError(
                    f"column '{column}' must hold numbers, got text",
                    f" '{values.iloc[row]}' in row {row + 1} ({len(odd)} such values)",
                )
            values = numbers
        try:
            return finite(values.to_numpy(dtype=np.float64, na_value=np.nan), column)
        except InputError as error:
            public = f"column '{column}' must hold finite numbers of a usable size"
            raise UnfitError(public, f" ({error})") from None

    def to_json(self) -> str:
        """The schema as text, exact to the last digit."""
        ranges = zip(self.features, self.encoder.low, self.encoder.span, self.encoder.median, strict=True)
        content = {
            "target": {"column": self.target, "values": list(self.labels), "favourable": self.labels[1]},
            "sensitive": self._sensitive_json(),
            "inputs": {
                name: {
                    **({"categories": list(self.categories[name])} if name in self.categories else {}),
                    "low": float(low),
                    "span": float(span),
                    "median": float(median),
                }
                for name, low, span, median in ranges
            },
        }
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def _sensitive_json(self) -> dict[str, Any]:
        if len(self.sensitive) == 1:
            return {"column": self.sensitive[0], "groups": list(self.grouping.values[0])}
        return {
            "columns": list(self.sensitive),
            "values": [list(values) for values in self.grouping.values],
            "groups": [list(member) for member in self.grouping.members],
        }

    @classmethod
    def from_json(cls, text: str, where: str = "schema") -> Schema:
        """Read `to_json`'s text."""
        try:
            content = json.loads(text)
            inputs = content["inputs"]
            ranges = {
                key: np.array([float(inputs[name][key]) for name in inputs], dtype=np.float64)
                for key in ("low", "span", "median")
            }
            labels = [str(value) for value in content["target"]["values"]]
            good = str(content["target"].get("favourable", labels[1]))
            (bad,) = (value for value in labels if value != good)
            schema = cls(
                target=str(content["target"]["column"]),
                features=tuple(inputs),
                categories={
                    name: tuple(map(str, about["categories"]))
                    for name, about in inputs.items()
                    if "categories" in about
                },
                labels=(bad, good),
                grouping=_read_groups(content["sensitive"]),
                encoder=Encoder(**ranges),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{where} must be a schema that fairfate has written, got {reason}") from None
        usable = all(np.isfinite(values).all() for values in ranges.values()) and (ranges["span"] > 0).all()
        if not usable or len(schema.grouping) < 2 or not inputs:
            raise InputError(f"{where} must have inputs with finite ranges and two groups, got {where}")
        return schema

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a schema file."""
        file = Path(path)
        if not file.is_file():
            raise InputError(f"schema must be a JSON file, got '{file}' (no such file)")
        try:
            return cls.from_json(file.read_text(encoding="utf-8-sig"), f"schema '{file}'")
        except UnicodeDecodeError as error:
            raise InputError(f"schema must be a JSON file, got '{file}' ({error})") from None

    def write(self, path: str | Path) -> None:
        """Write a schema file."""
        write_bytes(path, self.to_json().encode())


def _read_groups(content: Mapping[str, Any]) -> Groups:
    if "column" in content:
        return Groups.single(str(content["column"]), [str(value) for value in content["groups"]])
    values = tuple(tuple(map(str, of)) for of in content["values"])
    members = tuple(tuple(int(place) for place in member) for member in content["groups"])
    if any(not 0 <= place < len(values[a]) for member in members for a, place in enumerate(member)):
        raise ValueError("a group without a value")
    return Groups(tuple(map(str, content["columns"])), values, members)


def describe_frame(schema: Schema, frame: pd.DataFrame) -> dict[str, Any]:
    """What a file's owner may tell others about a schema's inputs: ranges and the names of categories.

    The lowest and the highest value of a column are somebody's values; nothing else of a row is in it. Texts
    that are about as many as the rows are not told.
    """
    absent = [column for column in schema.columns if column not in frame.columns]
    if absent:
        raise UnfitError(f"column '{absent[0]}' must be in the file, got none of that name")
    inputs: dict[str, Any] = {}
    for column in schema.features:
        if column in schema.sensitive:
            continue
        if column in schema.categories:
            codes, names = words(frame[column])
            if len(names) > min(MOST_TOLD, len(frame) / 2):
                raise UnfitError(
                    f"column '{column}' must have few different texts to be described, got {len(names)} in"
                    f" {len(frame)} rows, as on an identifier"
                )
            inputs[column] = sorted({*names, *([MISSING] if (codes < 0).any() else [])})
        else:
            numbers = schema.numbers(frame[column])
            present = numbers[~np.isnan(numbers)]
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


def _check_described(schema: Schema, described: Mapping[str, Any]) -> _Described:
    """A site's description, if it makes sense beside the server's own rows."""
    result = _Described({}, {})
    low = dict(zip(schema.features, schema.encoder.low, strict=True))
    span = dict(zip(schema.features, schema.encoder.span, strict=True))
    for column, found in described.items():
        if column in schema.categories:
            names = [n for n in found if isinstance(n, str) and n.isprintable() and len(n) <= MOST_TOLD]
            if len(found) > MOST_TOLD or names != list(found):
                raise ValueError(f"{len(found)} categories of '{column}', not all of them usable")
            result.names[column] = set(names) - set(schema.categories[column])
        elif column in low and column not in schema.sensitive and found:
            least, most = finite(np.array(found, dtype=np.float64), column)
            widest = max(low[column] + span[column], most) - min(low[column], least)
            if not least <= most or widest > MOST_WIDER * span[column]:
                told = f"{least:g} to {most:g} for '{column}'"
                raise ValueError(f"{told}, over {MOST_WIDER} times as wide as the server's or no range")
            result.ranges[column] = (float(least), float(most))
    return result


def _widened(schema: Schema, added: Sequence[_Described]) -> Schema:
    names = {
        column: tuple(sorted({*values, *(name for about in added for name in about.names.get(column, ()))}))
        for column, values in schema.categories.items()
    }
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


def _check_complete(codes: NDArray[np.int64], column: object) -> None:
    missing = int((codes < 0).sum())
    if missing:
        raise UnfitError(f"column '{column}' must have a value in every row, got {missing} missing")


def _codes(values: pd.Series[Any], known: tuple[str, ...], *, missing: bool = False) -> NDArray[np.int64]:
    """Each row's index among the known words."""
    codes, names = words(values)
    if not missing:
        _check_complete(codes, values.name)
    lost = int((codes < 0).sum())
    if lost and MISSING not in known:
        raise UnfitError(
            f"column '{values.name}' must have a value in every row, since the schema knows no missing one,"
            f" got {lost} missing"
        )
    strange = [name for name in names if name not in known]
    if strange:
        raise UnfitError(
            f"column '{values.name}' must hold only the schema's {len(known)} values,"
            f" got {len(strange)} more",
            f" ({listing(strange)}; the schema knows {listing(known)})",
        )
    place = {name: number for number, name in enumerate(known)}
    index = np.array([place[name] for name in names] + [place.get(MISSING, -1)], dtype=np.int64)
    return index[codes]
