"""What several files must agree on: columns, categories, groups and ranges, without showing a row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import MISSING, OTHERS, SMALL, into_bands, named_missing, read_dates, words
from fairfate.data.encode import NONE, ONEHOT, ORDINAL, Encoder
from fairfate.data.groups import Groups
from fairfate.data.inputs import finite
from fairfate.data.missing import without_codes
from fairfate.data.numerals import bound
from fairfate.data.table import Table
from fairfate.errors import InputError, listing, unknown
from fairfate.storage import write_bytes


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
    dates: Mapping[str, str] = field(default_factory=dict)
    """The columns that are dates, and their form."""
    bands: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """The sensitive columns that are numbers, and where they are cut; these are inputs as numbers."""
    missing: tuple[str, ...] = ()
    """Values that stand for a missing one: ``VALUE`` in all columns, ``COLUMN=VALUE`` in one."""

    @classmethod
    def of(cls, table: Table, encoder: Encoder | None = None) -> Schema:
        """The schema of a table; its ranges are those of the table's rows unless an encoder is given."""
        return cls(
            target=table.target,
            features=table.feature_names,
            categories=table.categories,
            labels=table.label_names,
            grouping=table.grouping,
            encoder=table.fit_encoder() if encoder is None else encoder,
            dates=table.dates,
            bands=table.bands,
            missing=tuple(table.missing),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        inputs = [name for name in self.features if name not in self.sensitive]
        return (*inputs, *self.sensitive, self.target)

    @property
    def encode(self) -> str:
        """How columns become inputs."""
        if self.encoder.slots is not None:
            return ONEHOT
        plain = (self.encoder.low == 0).all() and (self.encoder.span == 1).all()
        return NONE if plain else ORDINAL

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The sensitive columns."""
        return self.grouping.attributes

    def without_codes(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows in which values that stand for a missing one are missing."""
        return without_codes(frame, self.missing)[0]

    def table(self, frame: pd.DataFrame, name: str) -> Table:
        """A file's rows in this schema; UnfitError if they do not fit. Other columns are left alone."""
        frame = self.without_codes(frame)
        for column in self.columns:
            if column not in frame.columns:
                hint = str(unknown("column", column, frame.columns)).partition(";")[2]
                raise UnfitError(f"column '{column}' must be in the file, got none of that name", f";{hint}")
        label = _codes(frame[self.target], self.labels)
        coded = {name: self._values(frame[name], number) for number, name in enumerate(self.sensitive)}
        group = self._group(list(coded.values())) if coded else np.zeros(len(frame), dtype=np.int64)
        inputs = [
            coded[column].astype(np.float64)
            if column in coded and column not in self.bands
            else self.column(frame[column])
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
            encode=self.encode,
            dates=self.dates,
            bands=self.bands,
            missing=dict.fromkeys(self.missing, 0),
            stratified=self.encode == ONEHOT,
        )

    def takes_missing(self, sensitive: str) -> bool:
        """Whether rows without a value of a sensitive column have a group."""
        known = self.grouping.values[self.sensitive.index(sensitive)]
        return MISSING in known or SMALL in known

    def _values(self, values: pd.Series[Any], attribute: int) -> NDArray[np.int64]:
        """A sensitive column's values, by their place in the schema."""
        known, values = self.grouping.values[attribute], self.bands_of(values)
        if self.takes_missing(self.sensitive[attribute]):
            values = named_missing(values)
        if known[0] != OTHERS:
            return _codes(values, known)
        codes, names = words(values)
        _check_complete(codes, values.name)
        privileged = names.index(known[1]) if known[1] in names else -1
        return np.asarray(codes == privileged, dtype=np.int64)

    def bands_of(self, values: pd.Series[Any]) -> pd.Series[Any]:
        """A sensitive column with its numbers cut into bands, if it is cut."""
        cuts = self.bands.get(str(values.name))
        return into_bands(self.numbers(values), cuts).rename(str(values.name)) if cuts else values

    def _group(self, coded: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Each row's group, from its values of the sensitive columns."""
        if len(coded) == 1:
            return coded[0]
        place = {member: number for number, member in enumerate(self.grouping.members)}
        rows = list(zip(*(codes.tolist() for codes in coded), strict=True))
        strange = sum(row not in place for row in rows)
        if strange:
            raise UnfitError(
                f"columns {listing(self.sensitive)} must hold only the schema's {len(place)} combinations",
                f", got others in {strange} rows",
            )
        return np.array([place[row] for row in rows], dtype=np.int64)

    def column(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """An input column: numbers, days, or the places of texts in the schema."""
        column = str(values.name)
        if column in self.categories:
            return _codes(values, self.categories[column], missing=True).astype(np.float64)
        if column in self.dates:
            try:
                return read_dates(values, self.dates[column])
            except (ValueError, TypeError) as error:
                public = f"column '{column}' must hold dates such as {_EXAMPLE:{self.dates[column]}}"
                raise UnfitError(public, f" ({str(error).splitlines()[0]})") from None
        return self.numbers(values)

    def numbers(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """A column that must hold numbers; NaN where one is missing."""
        column = str(values.name)
        if values.dtype.kind not in "biufO":
            raise UnfitError(f"column '{column}' must hold numbers, got {values.dtype}")
        if values.dtype.kind == "O":
            numbers = parse_numbers(values)
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
        content: dict[str, Any] = {} if self.encode != ONEHOT else {"encode": ONEHOT}
        content |= {
            "target": {"column": self.target, "values": list(self.labels), "favourable": self.labels[1]},
            "sensitive": self.sensitive_json(),
            "inputs": {name: self._input_json(number) for number, name in enumerate(self.features)},
        }
        if self.missing:
            content["missing"] = list(self.missing)
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def _input_json(self, number: int) -> dict[str, Any]:
        name, encoder = self.features[number], self.encoder
        found: dict[str, Any] = {"date": self.dates[name]} if name in self.dates else {}
        if name in self.categories:
            found["categories"] = list(self.categories[name])
        low, span = float(encoder.low[number]), float(encoder.span[number])
        if encoder.slots is None or encoder.flagged is None:
            return {**found, "low": low, "span": span, "median": float(encoder.median[number])}
        if encoder.slots[number]:
            return found
        return {**found, "mean": low, "deviation": span, "missing": bool(encoder.flagged[number])}

    def sensitive_json(self) -> dict[str, Any]:
        """The sensitive columns, their values and the groups, as JSON values."""
        cut: dict[str, Any] = (
            {"bands": {name: list(cuts) for name, cuts in self.bands.items()}} if self.bands else {}
        )
        if self.grouping.missing_counts:
            cut["missing-counts"] = True
        if len(self.sensitive) == 1:
            return {"column": self.sensitive[0], "groups": list(self.grouping.values[0]), **cut}
        return {
            **cut,
            "columns": list(self.sensitive),
            "values": [list(values) for values in self.grouping.values],
            "groups": [list(member) for member in self.grouping.members],
        }

    @classmethod
    def from_json(cls, text: str, where: str = "schema", *, least_groups: int = 2) -> Schema:
        """Read `to_json`'s text; a schema of fewer groups is refused."""
        try:
            content = json.loads(text)
            inputs = content["inputs"]
            labels = [str(value) for value in content["target"]["values"]]
            good = str(content["target"].get("favourable", labels[1]))
            (bad,) = (value for value in labels if value != good)
            categories = {
                name: tuple(map(str, about["categories"]))
                for name, about in inputs.items()
                if "categories" in about
            }
            grouping, cut = _read_groups(content["sensitive"]), content["sensitive"].get("bands", {})
            bands = {str(name): tuple(map(float, cuts)) for name, cuts in cut.items()}
            _check_bands(bands, grouping)
            values = dict(zip(grouping.attributes, grouping.values, strict=True)) | categories
            slots = [0 if name in bands else len(values.get(name, ())) for name in inputs]
            schema = cls(
                target=str(content["target"]["column"]),
                features=tuple(inputs),
                categories=categories,
                labels=(bad, good),
                grouping=grouping,
                encoder=_read_encoder(inputs, slots if content.get("encode") == ONEHOT else None),
                dates={str(name): str(about["date"]) for name, about in inputs.items() if "date" in about},
                bands=bands,
                missing=tuple(map(str, content.get("missing", ()))),
            )
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{where} must be a schema that fairfate has written, got {reason}") from None
        ranges = (schema.encoder.low, schema.encoder.span, schema.encoder.median)
        usable = all(np.isfinite(values).all() for values in ranges) and (schema.encoder.span > 0).all()
        if not usable or len(schema.grouping) < least_groups or not inputs:
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


_EXAMPLE = datetime(2026, 12, 31, 23, 59, 58)


def _read_encoder(inputs: Mapping[str, Mapping[str, Any]], slots: list[int] | None) -> Encoder:
    if slots is None:
        low, span, median = (
            np.array([float(about[key]) for about in inputs.values()], dtype=np.float64)
            for key in ("low", "span", "median")
        )
        return Encoder(low, span, median)
    places = list(zip(inputs.values(), slots, strict=True))
    mean = np.array([0.0 if slot else float(about["mean"]) for about, slot in places])
    deviation = np.array([1.0 if slot else float(about["deviation"]) for about, slot in places])
    flagged = np.array([not slot and bool(about["missing"]) for about, slot in places])
    return Encoder(mean, deviation, mean, np.array(slots, dtype=np.int64), flagged)


def _read_groups(content: Mapping[str, Any]) -> Groups:
    missing_counts = content.get("missing-counts") is True
    if "column" in content:
        single = Groups.single(str(content["column"]), [str(value) for value in content["groups"]])
        return replace(single, missing_counts=missing_counts)
    values = tuple(tuple(map(str, of)) for of in content["values"])
    members = tuple(tuple(int(place) for place in member) for member in content["groups"])
    if any(len(member) != len(values) for member in members) or len(values) != len(content["columns"]):
        raise ValueError("a group without a value of each column")
    if any(not 0 <= place < len(values[a]) for member in members for a, place in enumerate(member)):
        raise ValueError("a group without a value")
    return Groups(tuple(map(str, content["columns"])), values, members, missing_counts)


def _check_bands(bands: Mapping[str, tuple[float, ...]], grouping: Groups) -> None:
    for name, cuts in bands.items():
        rising = (
            cuts and all(low < high for low, high in itertools.pairwise(cuts)) and np.isfinite(cuts).all()
        )
        if name not in grouping.attributes or not rising:
            raise ValueError(f"no bands of a sensitive column, {name}")


def parse_numbers(values: pd.Series[Any]) -> pd.Series[Any]:
    """Texts as numbers, of a censored one such as <0.6 its bound; NaN for anything else."""
    numbers = pd.to_numeric(values, errors="coerce")

    def bound_of(value: object) -> float:
        text = str(value).strip()
        number = bound(text) or bound(text, ",")
        return np.nan if number is None else number.value

    rest = values[numbers.isna() & values.notna()]
    return numbers.fillna(rest.map(bound_of).astype(np.float64)) if len(rest) else numbers


def _check_complete(codes: NDArray[np.int64], column: object) -> None:
    missing = int((codes < 0).sum())
    if missing:
        raise UnfitError(f"column '{column}' must have a value in every row", f", got {missing} missing")


def _codes(values: pd.Series[Any], known: tuple[str, ...], *, missing: bool = False) -> NDArray[np.int64]:
    """Each row's index among the known words."""
    codes, names = words(values)
    if not missing:
        _check_complete(codes, values.name)
    lost = int((codes < 0).sum())
    if lost and MISSING not in known and OTHERS not in known:
        raise UnfitError(
            f"column '{values.name}' must have a value in every row, since the schema knows no missing one",
            f", got {lost} missing",
        )
    place = {name: number for number, name in enumerate(known)}
    rest = next((place[word] for word in (OTHERS, SMALL) if word in place), None)
    strange = [name for name in names if name not in known]
    if strange and rest is None:
        raise UnfitError(
            f"column '{values.name}' must hold only the schema's {len(known)} values",
            f", got {len(strange)} more ({listing(strange)}; the schema knows {listing(known)})",
        )
    missing_place = place.get(MISSING, -1 if rest is None else rest)
    index = np.array([place.get(name, rest) for name in names] + [missing_place], dtype=np.int64)
    return index[codes]
