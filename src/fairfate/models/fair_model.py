"""A trained model in one file: layers, schema, how is decided, and provenance."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate._version import __version__
from fairfate.data import OTHERS, Schema
from fairfate.data.table import note_merged_outcomes
from fairfate.errors import InputError, check, is_utf8, listing, unknown
from fairfate.fairness.disclosure import MIN_CELL, round_counts
from fairfate.fairness.metrics import Counts, Values, count
from fairfate.fairness.thresholds import BINS as RANGES
from fairfate.fairness.tilt import EO, SP, Tilt
from fairfate.fairness.tilt_groups import EQO, MOST_BINS, MOST_PRICE, GroupTilt
from fairfate.models.mlp import margins_of
from fairfate.storage import read_arrays, write_arrays

MEASURED = ("validation", "test")
"""The rows whose counts are in a model's file."""
BLOCK = 65_536
"""Rows that are encoded and scored at a time."""
TRAINED_ON = (
    "these rows were used to train or to choose the model, so the numbers are too good;"
    " measure it on rows that its run has not used"
)
Network = Callable[[Mapping[str, NDArray[Any]], NDArray[np.float32]], NDArray[Any]]
"""``(arrays, encoded rows) -> log-odds of the favourable outcome``"""
Frame = Any
"""pandas or polars DataFrame, or a NumPy array whose columns are the schema's inputs in their order."""


class Scored(NamedTuple):
    """A model's probabilities and decisions for some rows."""

    probability: NDArray[np.float64]
    """(rows,) of the favourable outcome."""
    decision: NDArray[np.int8]
    """(rows,) 1 where the favourable outcome is decided."""
    group: NDArray[np.int64] | None
    """(rows,) the group of each row, -1 where it is none of the known; None where groups are not given."""
    notes: tuple[str, ...]
    """What was unusual about the rows."""
    excess: NDArray[np.float64]
    """(rows,) by how much the log-odds exceed what they must exceed; the favourable outcome is above 0."""

    def warn(self, stacklevel: int = 3) -> Scored:
        """Give each note as a warning; returns itself."""
        for note in self.notes:
            warnings.warn(note, UserWarning, stacklevel=stacklevel)
        return self


class TiltedScore(NamedTuple):
    """One rule for everybody, by a person's score and by what a second model guesses of the group."""

    rule: Tilt | GroupTilt
    models: tuple[Mapping[str, NDArray[Any]], ...]
    """For each group but the first, the layers of the model that guesses who is in it, by name."""

    def excess(self, margins: NDArray[np.float64], guesses: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        """(rows,) by how much the log-odds exceed what they must exceed, given those of each guess."""
        if isinstance(self.rule, GroupTilt):
            return self.rule.excess(margins, guesses)
        return self.rule.excess(margins, guesses[0])


@dataclass(frozen=True, eq=False)
class FairModel:
    """A trained model with everything that is needed to use it: encoding, layers, thresholds, names.

    Nothing in its file can be executed. `fairfate.Run.model` returns one, and `load` reads one.

    Examples
    --------
    >>> import fairfate
    >>> run = fairfate.run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> model = run.model("fedavg")
    >>> model.labels
    ('not hired', 'hired')
    """

    arrays: Mapping[str, NDArray[Any]]
    """The layers by name."""
    schema: Schema
    """Columns, categories, groups and outcomes."""
    thresholds: Values | None = None
    """The log-odds that each group's score must exceed, or a single one for everybody; 0 if None."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: strategy, protocol, seed, checksums of the data, version, and counts by group,
    label and prediction on the validation and test rows. Models are passed on, so the counts are rounded by
    `round_counts`: none is from 1 to 9."""
    network: Network | None = None
    """For a network of your own, how its arrays score rows; None for the built-in model. Never in the
    file."""
    tilt: TiltedScore | None = None
    """The rule by which it decides, if that is a tilted score."""

    def __post_init__(self) -> None:
        """Round the counts."""
        counts = {name: self.about[name] for name in MEASURED if name in self.about}
        rounded = {name: _round(values, len(self.groups)) for name, values in counts.items()}
        object.__setattr__(self, "about", {**self.about, **rounded})

    @property
    def labels(self) -> tuple[str, str]:
        """The two outcomes; the second is the favourable one."""
        return self.schema.labels

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names."""
        return self.schema.grouping.names

    @property
    def needs_groups(self) -> bool:
        """Whether decisions depend on each person's group beyond its being an input."""
        return self.thresholds is not None and self.common_threshold is None

    @property
    def common_threshold(self) -> float | None:
        """The log-odds that everybody's score must exceed, where there is a single threshold."""
        return (
            float(self.thresholds[0]) if self.thresholds is not None and len(self.thresholds) == 1 else None
        )

    @property
    def rule(self) -> str:
        """How it decides, in a few words; empty where that is by its own score."""
        if self.tilt is not None:
            guess = "group" if len(self.tilt.models) == 1 else "groups"
            return f"one rule for everybody, by the score and the guessed {guess}"
        if self.thresholds is None:
            return ""
        if self.common_threshold is not None:
            return "one threshold for everybody"
        return f"thresholds for {len(self.thresholds)} groups"

    def __repr__(self) -> str:
        """One line."""
        cut = f", {self.rule}" if self.rule else ""
        made = self.about.get("strategy", "a model")
        return f"<FairModel {made}: {len(self.schema.features)} columns to '{self.labels[1]}'{cut}>"

    def score(
        self, frame: Frame, *, sensitive_features: Any = None, strict: bool = False, decide: bool = True
    ) -> Scored:
        """Probabilities and decisions for new rows.

        A text that the schema does not know counts as one of the others (or, without such a category, as the
        median); a missing number is the mean or median of the training rows; columns may be in any order, and
        others are ignored. All of that is counted in the notes.

        Parameters
        ----------
        frame : the rows; the label is not needed
        sensitive_features : each row's group, where the frame has no such column: values of the sensitive
            column, or a frame of several
        strict : refuse rows with unknown texts, or numbers far from the mean or outside the range
        decide : compute no decisions if False, and then groups are not needed for thresholds

        Returns
        -------
        probabilities, decisions, groups and notes

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> model.score(frame[:3]).probability.shape
        (3,)
        """
        table = _with_groups(as_frame(frame, self.schema), sensitive_features, self.schema)
        rows = self.schema.apply(table, on_unknown="note")
        if strict and rows.notes:
            raise InputError(
                f"data must hold only what the model knows, got {'; '.join(rows.notes)} (strict)"
            )
        is_labelled = self.schema.target in table.columns
        ignored = [f"the column '{self.schema.target}' is the label, and ignored"] if is_labelled else []
        margins = np.empty(len(table), dtype=np.float64)
        excess = np.empty(len(table), dtype=np.float64)
        for start in range(0, len(table), BLOCK):
            block = slice(start, start + BLOCK)
            x = self.schema.encoder.transform(rows.features[block])
            margins[block] = self.margins(x)
            if self.tilt is not None and decide:
                guesses = [self._margins(arrays, x) for arrays in self.tilt.models]
                excess[block] = self.tilt.excess(margins[block], guesses)
        with np.errstate(over="ignore"):
            probability = 1 / (1 + np.exp(-margins))
        if self.tilt is None or not decide:
            excess = margins - (self._cuts(rows.group, table) if decide else 0.0)
        decision = (excess > 0).astype(np.int8)
        return Scored(probability, decision, rows.group, (*ignored, *rows.notes), excess)

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """The log-odds of the favourable outcome, of encoded rows.

        Parameters
        ----------
        x : (rows, inputs) as the schema's encoder makes them

        Returns
        -------
        (rows,)

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> model.margins(np.zeros((2, model.schema.encoder.inputs), dtype=np.float32)).shape
        (2,)
        """
        return self._margins(self.arrays, x)

    def _margins(self, arrays: Mapping[str, NDArray[Any]], x: NDArray[np.float32]) -> NDArray[np.float64]:
        """(rows,) what one of its models says of encoded rows."""
        if self.network is not None:
            return np.asarray(self.network(arrays, x), dtype=np.float64)
        if "w1" not in arrays:
            raise InputError("The model has a network of its own and was loaded without it.")
        return margins_of(dict(arrays), x)

    def _cuts(self, group: NDArray[np.int64] | None, frame: pd.DataFrame) -> Values:
        """The threshold of each row."""
        if self.thresholds is None:
            return np.zeros(len(frame))
        if self.common_threshold is not None:
            return np.full(len(frame), self.common_threshold)
        names = self.schema.sensitive
        if group is None:
            raise InputError(
                f"sensitive_features must be given, or a column '{listing(names)}': the model has a threshold"
                " for each group"
            )
        if (group < 0).any():
            row = int(np.flatnonzero(group < 0)[0])
            value = ", ".join(str(frame[name].iloc[row]) for name in names)
            raise InputError(
                f"each group must be one of those that have a threshold ({listing(self.groups)}), got"
                f" '{value}' in row {row + 1}"
            )
        return np.asarray(self.thresholds)[group]

    def predict_proba(self, frame: Frame, *, sensitive_features: Any = None) -> NDArray[np.float64]:
        """The probabilities of the two outcomes, before any threshold.

        Parameters
        ----------
        frame : the rows; the label is not needed
        sensitive_features : each row's group, where the frame has no such column; see `score`

        Returns
        -------
        (rows, 2) in the order of ``labels``

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> model.predict_proba(frame.drop(columns="hired")[:3]).sum(axis=1).tolist()
        [1.0, 1.0, 1.0]
        """
        scored = self.score(frame, sensitive_features=sensitive_features, decide=False).warn()
        return np.stack([1 - scored.probability, scored.probability], axis=1)

    def decision(self, frame: Frame, *, sensitive_features: Any = None) -> NDArray[np.int8]:
        """The decisions on new rows; with thresholds, by each person's group.

        Parameters
        ----------
        frame : the rows; the label is not needed
        sensitive_features : each row's group, where the frame has no such column; see `score`

        Returns
        -------
        (rows,) 1 where the favourable outcome is decided, else 0

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> set(model.decision(frame.drop(columns="hired")).tolist()) <= {0, 1}
        True
        """
        return self.score(frame, sensitive_features=sensitive_features).warn().decision

    def predict(self, frame: Frame, *, sensitive_features: Any = None) -> NDArray[Any]:
        """The outcomes that are decided for new rows, by their names.

        Parameters
        ----------
        frame : the rows; the label is not needed
        sensitive_features : each row's group, where the frame has no such column; see `score`

        Returns
        -------
        (rows,) of ``labels``

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> set(model.predict(frame.drop(columns="hired"))) <= set(model.labels)
        True
        """
        return np.array(self.labels, dtype=object)[
            self.decision(frame, sensitive_features=sensitive_features)
        ]

    def evaluate(self, frame: Frame) -> tuple[Counts, Scored]:
        """Measure the model on labelled rows.

        The first note is `TRAINED_ON` if they are the rows that the model was trained on or chosen by, in
        their order; some of these rows, or all in another order, are not recognised.

        Parameters
        ----------
        frame : the rows with labels and groups

        Returns
        -------
        (groups, 2, 2) counts by group, label and decision, and the model's scores of the rows

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> counts, scored = model.evaluate(frame)
        >>> int(counts.sum())
        600
        """
        rows = self.schema.without_codes(as_frame(frame, self.schema))
        table, notes = _labelled(rows, self.schema)
        known = self.schema.table(table, "data")
        used = self.about.get("rows-checksums")
        if isinstance(used, list) and known.rows_checksums[0] in used:
            notes.insert(0, TRAINED_ON)
        scored = self.score(table.drop(columns=self.schema.target))
        counts = count(known.label, scored.decision, group=known.group, groups=len(self.groups))
        return counts, scored._replace(notes=(*notes, *scored.notes))

    def save(self, path: str | Path) -> Path:
        """Write the model as one safetensors file.

        Parameters
        ----------
        path : the file

        Returns
        -------
        the file

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> import tempfile
        >>> model.save(tempfile.mkdtemp() + "/model.safetensors").name
        'model.safetensors'
        """
        tensors = {name: np.asarray(array) for name, array in self.arrays.items()}
        if self.thresholds is not None:
            tensors["thresholds"] = np.asarray(self.thresholds, dtype=np.float64)
        if self.tilt is not None:
            tensors |= _write_tilt(self.tilt)
        about = {"version": __version__, **self.about, "schema": json.loads(self.schema.to_json())}
        file = Path(path)
        write_arrays(file, tensors, {**about, "format": FORMAT})
        return file

    @classmethod
    def load(cls, path: str | Path, network: Network | None = None) -> FairModel:
        """Read a saved model; a damaged or foreign file is refused.

        Parameters
        ----------
        path : the file
        network : for a model of the user's own, how its arrays score encoded rows

        Returns
        -------
        the model

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> model = run.model()
        >>> import tempfile
        >>> fairfate.FairModel.load(model.save(tempfile.mkdtemp() + "/model.safetensors")).labels
        ('no', 'yes')
        """
        file = Path(path)
        if not file.is_file():
            raise InputError(f"model must be a .safetensors file, got '{file}' (no such file)")
        try:
            tensors, about = read_arrays(file)
        except ValueError as error:
            raise InputError(f"model must be a file that a run has written, got '{file}' ({error})") from None
        if about.get("format") != FORMAT:
            raise InputError(f"model must be of this version, got '{file}' of an older one: run it again")
        texts = json.dumps(about, ensure_ascii=False)
        check(
            is_utf8(texts), f"model '{file}' must hold texts that UTF-8 can hold", "a lone surrogate in one"
        )
        content = json.dumps(about.pop("schema", None))
        schema = Schema.from_json(content, f"the schema of '{file}'", least_groups=1)
        thresholds = tensors.pop("thresholds", None)
        tilt = _read_tilt(tensors, file)
        about = {key: value for key, value in about.items() if key != "format"}
        model = cls(tensors, schema, thresholds, about, network, tilt)
        _check(model, file)
        return model


FORMAT = 3
"""Of model files: 3 holds the whole schema."""


_TABLE, _PRICES, _GROUP = "tilt.table", "tilt.prices", "tilt.group."
"""Names of a tilted score's arrays in a file; the last begins those of the model that guesses the group."""


_FAMILY = "tilt.family"
"""A rule for several groups has whole prices and no table: its form, ranges and threshold's step."""
_FAMILIES = (SP, EO, EQO)


def _write_tilt(tilt: TiltedScore) -> dict[str, NDArray[Any]]:
    """A tilted score as arrays of a file."""
    if isinstance(tilt.rule, GroupTilt):
        form = [_FAMILIES.index(tilt.rule.family), tilt.rule.bins, tilt.rule.step]
        tensors = {_FAMILY: np.array(form, dtype=np.int64), _PRICES: tilt.rule.prices}
        for number, arrays in enumerate(tilt.models, start=1):
            tensors |= {f"{_GROUP}{number}.{name}": np.asarray(array) for name, array in arrays.items()}
        return tensors
    return {
        **{f"{_GROUP}{name}": np.asarray(array) for name, array in tilt.models[0].items()},
        _TABLE: tilt.rule.table.astype(np.uint8),
        _PRICES: np.array([*tilt.rule.prices, tilt.rule.threshold]),
    }


def _read_group_tilt(
    arrays: Mapping[str, NDArray[Any]], form: NDArray[Any], prices: NDArray[Any] | None, where: str
) -> TiltedScore:
    """A tilted score for several groups."""
    models: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in arrays.items():
        number, _, layer = name.partition(".")
        check(number.isdecimal() and bool(layer), where, "others")
        models.setdefault(int(number), {})[layer] = array
    is_form = form.shape == (3,) and form.dtype == np.int64 and prices is not None
    is_form = is_form and prices is not None and prices.dtype == np.int64
    if not is_form or prices is None or sorted(models) != [*range(1, len(models) + 1)]:
        raise InputError(f"{where}, got parts")
    family, bins, step = form.tolist()
    is_rule = (
        0 <= family < len(_FAMILIES) and 2 <= bins <= MOST_BINS and bins % 2 == 0 and 0 <= step <= RANGES
    )
    is_rule = is_rule and prices.shape == (2, len(models)) and len(models) > 0
    check(is_rule and bool((np.abs(prices) <= MOST_PRICE).all()), where, "others")
    rule = GroupTilt(_FAMILIES[family], bins, prices, step)
    return TiltedScore(rule, tuple(models[number] for number in sorted(models)))


def _read_tilt(tensors: dict[str, NDArray[Any]], file: Path) -> TiltedScore | None:
    """Take a tilted score from a file's arrays, if it has one."""
    arrays = {
        name.removeprefix(_GROUP): tensors.pop(name) for name in list(tensors) if name.startswith(_GROUP)
    }
    table, prices, form = (tensors.pop(name, None) for name in (_TABLE, _PRICES, _FAMILY))
    if form is not None and table is None:
        return _read_group_tilt(
            arrays, form, prices, f"model '{file}' must have a whole rule and its models of the groups"
        )
    if table is None and prices is None and not arrays:
        return None
    damaged = InputError(
        f"model '{file}' is damaged: parts of its rule, or its model of the group, are missing"
    )
    if table is None or prices is None or not arrays:
        raise damaged
    is_table = table.ndim == 2 and len(table) == table.shape[1] > 1 and bool(np.isin(table, (0, 1)).all())
    if not (is_table and prices.shape == (3,) and bool(np.isfinite(prices).all())):
        raise damaged
    first, second, threshold = map(float, prices)
    return TiltedScore(Tilt(table.astype(bool), (first, second), threshold), (arrays,))


def _round(counts: Any, groups: int) -> Any:
    """Counts by group, label and prediction without small ones; anything else as it is."""
    try:
        given = np.array(counts, dtype=np.int64)
    except (ValueError, TypeError, OverflowError):
        return counts
    return round_counts(given, MIN_CELL).tolist() if given.shape == (groups, 2, 2) else counts


def _check(model: FairModel, file: Path) -> None:
    """Refuse arrays that do not belong together."""
    where = f"model '{file}'"
    models = [model.arrays] if model.tilt is None else [model.arrays, *model.tilt.models]
    numbers = all(np.isfinite(array).all() for arrays in models for array in arrays.values())
    check(numbers, f"{where} must hold finite numbers", "NaN or infinity")
    if model.thresholds is not None:
        right = np.shape(model.thresholds) in ((len(model.groups),), (1,))
        right = right and not np.isnan(model.thresholds).any()
        check(right, f"{where} must have a threshold for each of {len(model.groups)} groups, or one")
    if model.network is None and "w1" not in model.arrays:
        return  # the user's own; it needs its network to score
    try:
        for arrays in models:
            margins = model._margins(arrays, np.zeros((3, model.schema.encoder.inputs), dtype=np.float32))
            check(
                np.shape(margins) == (3,),
                "a model must give each row one number",
                f"{np.shape(margins)} for 3",
            )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{where} must have layers that fit its schema, got {error}") from None


def as_frame(frame: Frame, schema: Schema) -> pd.DataFrame:
    """Rows of any kind as a pandas frame."""
    if isinstance(frame, pd.DataFrame):
        return frame
    if hasattr(frame, "to_pandas"):
        return pd.DataFrame(frame.to_pandas())
    values = np.asarray(frame)
    check(
        values.ndim == 2 and values.shape[1] == len(schema.features),
        f"data must be a frame, or an array with the columns {listing(schema.features)}",
        f"shape {values.shape}",
    )
    return pd.DataFrame(values, columns=list(schema.features))


def _labelled(frame: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, list[str]]:
    """The rows that have a label and a group, and how many have none."""
    for column in (schema.target, *schema.sensitive):
        if column not in frame.columns:
            raise unknown("column in the data: to be evaluated it needs", column, frame.columns)
    notes = []
    for name in (schema.target, *(name for name in schema.sensitive if not schema.takes_missing(name))):
        missing = frame[name].isna()
        if missing.any():
            notes.append(f"{name}: {int(missing.sum()):,} rows without a value are left out")
            frame = frame[~missing]
    check(len(frame) > 0, "data must have rows with a label and a group")
    if schema.labels[0] == OTHERS:
        notes.append(note_merged_outcomes(frame[schema.target], schema.labels[1]))
    return frame.reset_index(drop=True), notes


def _with_groups(frame: pd.DataFrame, given: Any, schema: Schema) -> pd.DataFrame:
    """The frame with the sensitive columns that were given apart."""
    if given is None:
        return frame
    if isinstance(given, pd.DataFrame):
        columns = {str(name): given[name].to_numpy() for name in given.columns}
    elif hasattr(given, "to_pandas") and not isinstance(given, pd.Series):
        return _with_groups(frame, given.to_pandas(), schema)
    else:
        check(
            len(schema.sensitive) == 1,
            f"sensitive_features must have {listing(schema.sensitive)}",
            "one column",
        )
        columns = {schema.sensitive[0]: np.asarray(given)}
    for name, values in columns.items():
        if name not in schema.sensitive:
            raise unknown("column of sensitive_features", name, schema.sensitive)
        check(
            np.shape(values) == (len(frame),),
            f"sensitive_features must have one value for each of the {len(frame)} rows",
            f"shape {np.shape(values)}",
        )
    return frame.assign(**columns)
