"""What several files must agree on: columns, categories, groups and ranges, without showing a row."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.columns import MISSING, OTHERS, SMALL, check_finite, encode_texts, read_dates
from fairfate.data.encoder import NONE, ONEHOT, ORDINAL, Encoder
from fairfate.data.groups import Groups, cut_into_bands
from fairfate.data.numbers import parse_bound, without_codes
from fairfate.data.table import Table
from fairfate.errors import InputError, listing, unknown
from fairfate.storage import write_bytes


class UnfitError(InputError):
    """A file that does not fit a schema.

    The message may show values of the file, for its owner to fix it; ``public`` names the column and the
    rule only, for others to read.
    """

    def __init__(self, public: str, detail: str = "") -> None:
        super().__init__(f"{public}{detail}")
        self.public = public


OnUnknown = Literal["raise", "note", "collect"]
FAR = 6.0
"""Standard deviations from the mean beyond which a number is unusual."""
LONGEST = 60
"""Characters that are shown of a value."""
ENOUGH = 10_000
"""Rows in which a second example is looked for."""


class ColumnValues(NamedTuple):
    """One column as a schema sees it, with what does not fit."""

    values: NDArray[np.float64]
    """(rows,) numbers, days, or indices of texts; NaN where a row has none."""
    unusable: tuple[UnfitError, ...] = ()
    """Values that cannot be read at all."""
    unknown: tuple[UnfitError, ...] = ()
    """Texts, or missing ones, that the schema has no index for."""
    note: str = ""
    """How many rows hold texts that the schema does not tell apart."""


class SchemaRows(NamedTuple):
    """Rows as a schema sees them; see `Schema.apply`."""

    features: NDArray[np.float64]
    """(rows, features)"""
    label: NDArray[np.int8] | None
    """(rows,) 1 is the favourable outcome; None where it was not looked at."""
    group: NDArray[np.int64] | None
    """(rows,) -1 where it is none of the known; None where a sensitive column is not there."""
    notes: tuple[str, ...]
    """What is unusual about the rows."""
    problems: tuple[str, ...]
    """Why rows do not fit, in a line each. They show values of the file: for its owner, not for others."""


class Vocabulary(NamedTuple):
    """The texts that a schema tells apart in one column, and what stands for all others."""

    names: tuple[str, ...]
    missing_in: tuple[str, ...] = ()
    """Names of which one must be known for rows without a text to fit."""

    @property
    def rest(self) -> int:
        """The index that stands for any other text; -1 for none."""
        return next((self.names.index(name) for name in (OTHERS, SMALL) if name in self.names), -1)

    @property
    def missing(self) -> int:
        """The index that stands for a missing text; -1 for none."""
        return self.names.index(MISSING) if MISSING in self.names else self.rest

    @property
    def indices(self) -> dict[str, int]:
        """The index of each text."""
        return {name: number for number, name in enumerate(self.names)}

    def read(self, values: pd.Series[Any]) -> ColumnValues:
        """The index of each row's text."""
        codes, names = encode_texts(values)
        index, rest, problems, note = self.indices, self.rest, [], ""
        indices = np.array([index.get(name, rest) for name in names] + [self.missing], dtype=np.float64)
        indices[indices < 0] = np.nan
        empty = np.flatnonzero(codes < 0)
        if len(empty) and set(self.missing_in).isdisjoint(self.names):
            why = ", since the schema knows no missing one" if OTHERS in self.missing_in else ""
            rule = f"column '{values.name}' must have a value in every row{why}"
            problems.append(UnfitError(rule, f", got {len(empty)} missing, the first in row {empty[0] + 1}"))
        unknown_names = [name for name in names if name not in index]
        if unknown_names:
            rows = np.flatnonzero(np.isin(codes, [names.index(name) for name in unknown_names]))
            counted = "" if rest < 0 else f", count as {self.names[rest]}"
            note = (
                f"{values.name}: {len(rows):,} rows with texts that the model does not tell apart, such as"
                f" '{unknown_names[0]}'{counted}"
            )
        if unknown_names and rest < 0:
            rule = f"column '{values.name}' must hold only the schema's {len(self.names)} values"
            number = f"{len(unknown_names)} other{'' if len(unknown_names) == 1 else 's'}"
            examples = _examples(rows, (names[codes[row]] for row in rows))
            known = f"the schema knows {listing(self.names)}"
            problems.append(UnfitError(rule, f", got {number} in {_rows(rows)}, {examples}; {known}"))
        return ColumnValues(indices[codes], (), tuple(problems), note)


def read_days(values: pd.Series[Any], form: str) -> ColumnValues:
    """A column that must hold dates, as days since 1970; NaN where one is missing."""
    try:
        return ColumnValues(read_dates(values, form))
    except (ValueError, TypeError) as error:
        rule = f"column '{values.name}' must hold dates such as {_EXAMPLE:{form}}"
        raise UnfitError(rule, f" ({str(error).splitlines()[0]})") from None


def read_numbers(values: pd.Series[Any]) -> ColumnValues:
    """A column that must hold numbers, finite and of a usable size; NaN where one is missing."""
    column, problems = str(values.name), []
    if values.dtype.kind not in "biufO":
        raise UnfitError(f"column '{column}' must hold numbers, got {values.dtype}")
    if values.dtype.kind == "O":
        numbers = parse_numbers(values)
        rows = np.flatnonzero((numbers.isna() & values.notna()).to_numpy(dtype=bool))
        if len(rows):
            examples = _examples(rows, (values.iloc[row] for row in rows))
            rule = f"column '{column}' must hold numbers, got text"
            problems.append(UnfitError(rule, f" in {_rows(rows)}, {examples}"))
        values = numbers
    array = values.to_numpy(dtype=np.float64, na_value=np.nan)
    try:
        check_finite(array, column)
    except InputError as error:
        rule = f"column '{column}' must hold finite numbers of a usable size"
        problems.append(UnfitError(rule, f" ({error})"))
    return ColumnValues(array, tuple(problems))


def parse_numbers(values: pd.Series[Any]) -> pd.Series[Any]:
    """Texts as numbers, of a censored one such as <0.6 its bound; NaN for anything else.

    >>> parse_numbers(pd.Series(["1.5", "<0.6", "old"])).tolist()
    [1.5, 0.6, nan]
    """
    numbers = pd.to_numeric(values, errors="coerce")

    def bound_of(value: object) -> float:
        text = str(value).strip()
        bound = parse_bound(text) or parse_bound(text, ",")
        return np.nan if bound is None else bound.value

    rest = values[numbers.isna() & values.notna()]
    return numbers.fillna(rest.map(bound_of).astype(np.float64)) if len(rest) else numbers


def _rows(rows: NDArray[Any]) -> str:
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
    def from_table(cls, table: Table, encoder: Encoder | None = None) -> Schema:
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

    def unused(self, frame: pd.DataFrame) -> list[str]:
        """Columns of a file that the schema does not name."""
        return [name for name in frame.columns if name not in self.columns]

    def vocabulary(self, column: str) -> Vocabulary | None:
        """The texts of a column that the schema tells apart; None where it holds numbers or dates."""
        if column == self.target:
            return Vocabulary(self.labels)
        if column in self.sensitive and column not in self.bands:
            return Vocabulary(self.grouping.values[self.sensitive.index(column)], (MISSING, SMALL))
        if column in self.categories:
            return Vocabulary(self.categories[column], (MISSING, OTHERS))
        return None

    def takes_missing(self, sensitive: str) -> bool:
        """Whether rows without a value of a sensitive column have a group."""
        known = self.grouping.values[self.sensitive.index(sensitive)]
        return MISSING in known or SMALL in known

    def apply(self, frame: pd.DataFrame, on_unknown: OnUnknown = "raise") -> SchemaRows:
        """A file's rows as the schema sees them; columns that it does not name are left alone.

        Parameters
        ----------
        frame : the rows
        on_unknown : what becomes of rows that do not fit. ``raise``: the first problem is an UnfitError.
            ``collect``: all problems are in the result. ``note``: for rows to be scored, whose label is not
            looked at and whose group may be absent; a text that the schema does not know counts as one of the
            others (or, without such a value, as missing) and is counted in the notes, as are unusual numbers;
            what cannot be read at all is an InputError

        Returns
        -------
        Features, label and group of each row, with notes and problems.
        """
        frame = self.without_codes(frame)
        is_noted = on_unknown == "note"
        problems = [] if is_noted else list(self._absent_columns(frame))
        absent = [name for name in self.features if name not in frame.columns]
        if is_noted and absent:
            raise unknown("column in the data: the model needs", absent[0], frame.columns)
        names = (*self.features, *self.sensitive) if is_noted else self.columns
        columns = {name: self._read(frame[name]) for name in dict.fromkeys(names) if name in frame.columns}
        bands = {name: self._read_bands(frame[name], columns[name]) for name in self.bands if name in columns}
        group, combinations = self._group({**columns, **bands}, len(frame))
        for name, column in columns.items():
            problems += column.unusable
            if not is_noted:
                problems += column.unknown
                problems += bands[name].unknown if name in bands and not column.unusable else ()
        problems += () if is_noted else combinations
        if problems and is_noted:
            raise InputError(f"data must fit the model: {problems[0]}")
        if problems and on_unknown == "raise":
            raise problems[0]
        empty = ColumnValues(np.full(len(frame), np.nan))
        inputs = [columns.get(name, empty).values for name in self.features]
        label = columns.get(self.target, empty).values
        notes = [self._note(columns[n], n) for n in self.features] if is_noted else []
        return SchemaRows(
            features=np.stack(inputs, axis=1),
            label=None if is_noted else np.nan_to_num(label, nan=-1).astype(np.int8),
            group=group,
            notes=tuple(filter(None, notes)),
            problems=tuple(_one_line(str(problem)) for problem in problems),
        )

    def table(self, frame: pd.DataFrame, name: str) -> Table:
        """A file's rows in this schema; UnfitError if they do not fit. Other columns are left alone."""
        rows = self.apply(frame)
        assert rows.label is not None
        assert rows.group is not None
        return Table(
            name=name,
            features=rows.features,
            label=rows.label,
            group=rows.group.astype(np.int16),
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

    def numbers(self, values: pd.Series[Any]) -> NDArray[np.float64]:
        """A column of numbers or dates, as numbers; UnfitError for others, NaN where one is missing."""
        column = self._read(values)
        for problem in (*column.unusable, *column.unknown):
            raise problem
        return column.values

    def _absent_columns(self, frame: pd.DataFrame) -> Iterator[UnfitError]:
        """Columns that are not in the file, with the one that may be meant."""
        spare = {name.strip().casefold(): name for name in self.unused(frame)}
        for column in self.columns:
            if column not in frame.columns:
                near = difflib.get_close_matches(column.strip().casefold(), spare, n=1)
                hint = (
                    f"did you mean '{spare[near[0]]}'?" if near else f"the file has {listing(frame.columns)}"
                )
                yield UnfitError(f"column '{column}' must be in the file", f"; {hint}")

    def _read(self, values: pd.Series[Any], *, as_numbers: bool = False) -> ColumnValues:
        """One column: indices of texts, days, or numbers."""
        name = str(values.name)
        vocabulary = self.vocabulary(name)
        try:
            if vocabulary is not None and not as_numbers:
                return vocabulary.read(values)
            return read_days(values, self.dates[name]) if name in self.dates else read_numbers(values)
        except UnfitError as error:
            problem = error
        except InputError as error:  # of lists and records, which shows no value
            problem = UnfitError(str(error))
        except (TypeError, ValueError, OverflowError) as error:
            problem = UnfitError(f"column '{name}' must hold numbers or texts", f", got {error}")
        return ColumnValues(np.full(len(values), np.nan), (problem,))

    def _read_bands(self, values: pd.Series[Any], column: ColumnValues) -> ColumnValues:
        """The band of each number of a sensitive column."""
        name = str(values.name)
        numbers = self._read(values, as_numbers=True) if name in self.categories else column
        known = Vocabulary(self.grouping.values[self.sensitive.index(name)], (MISSING, SMALL))
        return known.read(cut_into_bands(numbers.values, self.bands[name]).rename(name))

    def _group(
        self, columns: Mapping[str, ColumnValues], rows: int
    ) -> tuple[NDArray[np.int64] | None, list[UnfitError]]:
        """Each row's group, -1 where its values make none; None where a sensitive column is not there."""
        if not set(self.sensitive) <= set(columns):
            return None, []
        if not self.sensitive:
            return np.zeros(rows, dtype=np.int64), []
        codes = np.stack([columns[name].values for name in self.sensitive], axis=1)
        codes = np.nan_to_num(codes, nan=-1).astype(np.int64)
        members = {member: number for number, member in enumerate(self.grouping.members)}
        combinations, inverse = np.unique(codes, axis=0, return_inverse=True)
        index = np.array([members.get(tuple(row), -1) for row in combinations.tolist()], dtype=np.int64)
        group = index[inverse.reshape(-1)]
        strange = np.flatnonzero((group < 0) & (codes >= 0).all(axis=1))
        if not len(strange):
            return group, []
        values = self.grouping.values
        texts = (", ".join(values[a][code] for a, code in enumerate(codes[row])) for row in strange)
        rule = f"columns {listing(self.sensitive)} must hold only the schema's {len(members)} combinations"
        return group, [UnfitError(rule, f", got others in {_rows(strange)}, {_examples(strange, texts)}")]

    def _note(self, column: ColumnValues, name: str) -> str:
        """What is unusual about an input: texts that are not told apart, or numbers far from the others."""
        if column.note or self.vocabulary(name) is not None:
            return column.note
        number, encoder = self.features.index(name), self.encoder
        low, span = encoder.low[number], encoder.span[number]
        if encoder.slots is None:
            is_far = (column.values < low) | (column.values > low + span)
            limit = "outside the range that inputs are scaled by"
        else:
            is_far = np.abs(column.values - low) > FAR * span
            limit = f"more than {FAR:g} standard deviations from the mean that inputs are scaled by"
        is_noted = self.encode != NONE and is_far.any()
        return f"{name}: {int(is_far.sum()):,} values {limit}" if is_noted else ""

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
        content: dict[str, Any] = {"date": self.dates[name]} if name in self.dates else {}
        if name in self.categories:
            content["categories"] = list(self.categories[name])
        low, span = float(encoder.low[number]), float(encoder.span[number])
        if encoder.slots is None or encoder.flagged is None:
            return {**content, "low": low, "span": span, "median": float(encoder.median[number])}
        if encoder.slots[number]:
            return content
        return {**content, "mean": low, "deviation": span, "missing": bool(encoder.flagged[number])}

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
            sensitive = content["sensitive"]
            grouping, bands = _read_groups(sensitive), sensitive.get("bands", {})
            bands = {str(name): tuple(map(float, cuts)) for name, cuts in bands.items()}
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
        ranges = [[float(about[key]) for about in inputs.values()] for key in ("low", "span", "median")]
        return Encoder(*np.array(ranges, dtype=np.float64))
    numbers = [None if slot else about for about, slot in zip(inputs.values(), slots, strict=True)]
    mean = np.array([0.0 if about is None else float(about["mean"]) for about in numbers])
    deviation = np.array([1.0 if about is None else float(about["deviation"]) for about in numbers])
    flagged = np.array([about is not None and bool(about["missing"]) for about in numbers])
    return Encoder(mean, deviation, mean, np.array(slots, dtype=np.int64), flagged)


def _read_groups(content: Mapping[str, Any]) -> Groups:
    missing_counts = content.get("missing-counts") is True
    if "column" in content:
        single = Groups.single(str(content["column"]), [str(value) for value in content["groups"]])
        return replace(single, missing_counts=missing_counts)
    values = tuple(tuple(map(str, texts)) for texts in content["values"])
    members = tuple(tuple(map(int, member)) for member in content["groups"])
    if len(values) != len(content["columns"]):
        raise ValueError("a group without a value of each column")
    for member in members:
        if not all(0 <= code < len(texts) for code, texts in zip(member, values, strict=True)):
            raise ValueError("a group without a value")
    return Groups(tuple(map(str, content["columns"])), values, members, missing_counts)


def _check_bands(bands: Mapping[str, tuple[float, ...]], grouping: Groups) -> None:
    for name, cuts in bands.items():
        is_rising = cuts and np.isfinite(cuts).all() and (np.diff(cuts) > 0).all()
        if name not in grouping.attributes or not is_rising:
            raise ValueError(f"no bands of a sensitive column, {name}")
