"""Strategies on the same data: their numbers, and what a reader of these should know."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing
from fairfate.experiments.baselines import Baseline, read_baselines
from fairfate.experiments.choice import Choice, Judged, judge, pick, spoken_of
from fairfate.experiments.folders import Held, is_sweep, read_folder
from fairfate.experiments.groups import rates_by_group
from fairfate.experiments.importances import Importance, read_importances
from fairfate.experiments.results import MODELS, counts_of, is_untrained, read_date, row_names, summary_of
from fairfate.experiments.sheet import Sheet, join
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS, METRICS, Values
from fairfate.fairness.objective import MIN_PEOPLE, bind, individual_terms, reported_fairness, small_groups
from fairfate.strategies import STEPS, THRESHOLDS, entries

if TYPE_CHECKING:
    from fairfate.experiments.finished import Run

RESPLIT = 1 / 3
"""Test rows over training rows, where each seed splits the data anew."""
TOO_GOOD = 0.95
"""An MCC that real data hardly ever allow."""
FLAWS = {
    "no round counted": "every round was discarded, so the model is the one that training began with",
    "collapsed": f"an MCC below {COLLAPSED} means that a model hardly tells people apart, whatever its"
    " fairness says",
}
"""Why a strategy is never the best, called fairer or recommended, and what it means; the first is named."""
LEGEND = (
    "balanced: balanced accuracy, 0.5 is chance. MCC: 1 is perfect, 0 is chance. selected: share predicted"
    " favourable. SP, EO, EQO: how equal groups are, the lowest group's rate over the highest's, 1 is equal."
    " SP (statistical parity): of selection rates. EO (equality of opportunity): of true positive rates, TPR."
    " EQO (equalized odds): the mean of two such ratios, of TPR and of false positive rates, FPR."
)
"""What the columns of a table are."""
RISING = 0.01
"""A gain of MCC between the last two fifths of the rounds that may show that training was cut short."""
CONSISTENT = 0.8
"""The share of seeds that must show it too."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Strategies on the same data; all of it is in a run's folder."""

    rounds: Sheet
    metric: str
    """Fairness to speak of where no strategy looks at one."""
    notes: tuple[str, ...]
    groups: Groups | None
    out: Path | None = None
    title: str = ""
    """What tells it from others of the same sweep."""
    sources: tuple[tuple[Path, str], ...] = ()
    """The runs' folders, and what was added to the names of each one's strategies to tell them apart."""
    baselines: tuple[Baseline, ...] = ()
    """Models of the pooled rows."""
    importances: tuple[Importance, ...] = ()
    """How much the recommended model relies on each column."""
    date: str = ""
    """The day of the run."""
    outcome: str = ""
    """The favourable one, where it is known."""
    test_to_train: float = RESPLIT
    """How many test rows there are for a training row, where seeds draw them anew; else 0."""

    def __post_init__(self) -> None:
        """Have one value of SP, EO and EQO wherever they are shown: see `reported_fairness`."""
        if self.groups is None or "n_0_0_0" not in self.rounds:
            return
        fairness = reported_fairness(counts_of(self.rounds), self.groups)
        object.__setattr__(self, "rounds", self.rounds.assign(**fairness))

    @classmethod
    def of(cls, run: Run) -> Comparison:
        """Of a run that has just finished."""
        again = tuple(f"{name} was damaged and has been run again" for name in run.damaged)
        notes = (*run.notes, *again)
        sources = () if run.out is None else ((run.out, ""),)
        return cls(
            Sheet.of_frame(run.rounds),
            str(run.config["metric"]),
            notes,
            run.grouping,
            run.out,
            sources=sources,
            baselines=run.baselines,
            importances=run.importances,
            date=run.date,
            outcome=run.outcome,
            test_to_train=0.0 if "test" in run.config else RESPLIT,
        )

    @classmethod
    def read(cls, folders: Sequence[Path]) -> list[Comparison]:
        """Of finished runs' and sweeps' folders: runs on the same data, split alike, side by side."""
        found: list[Comparison] = []
        alike: dict[tuple[object, ...], list[tuple[Path, Held]]] = {}
        for folder in folders:
            for held in read_folder(folder):
                if is_sweep(folder):
                    found.append(cls(held.rounds, held.metric, (), held.groups, title=held.title))
                    continue
                key = tuple(held.rounds[name][0] for name in ("dataset", "partition", "protocol"))
                rows = int(counts_of(held.rounds)[-1].sum()) if held.groups else 0
                alike.setdefault((*key, held.groups, rows), []).append((folder, held))
        for same in alike.values():
            lasts = [int(held.rounds["round"].max()) for _, held in same]
            if len(set(lasts)) > 1:
                told = (f"{last} in {folder}" for last, (folder, _) in zip(lasts, same, strict=True))
                raise InputError(f"runs must have the same number of rounds, got {listing(told)}")
        return [*map(cls._together, alike.values()), *found]

    @classmethod
    def _together(cls, same: Sequence[tuple[Path, Held]]) -> Comparison:
        first, notes = same[0][1], dict.fromkeys(note for _, held in same for note in held.notes)
        folders = [folder for folder, _ in same]
        added = _told_apart([held.rounds for _, held in same], folders)
        sheets = [
            held.rounds.assign(strategy=held.rounds["strategy"] + text) if text else held.rounds
            for (_, held), text in zip(same, added, strict=True)
        ]
        return cls(
            join(sheets),
            first.metric,
            tuple(notes),
            first.groups,
            sources=tuple(zip(folders, added, strict=True)),
            baselines=read_baselines(folders[0]) if len(folders) == 1 else (),
            importances=read_importances(folders[0]) if len(folders) == 1 else (),
            date=read_date(folders[0]) if len(folders) == 1 else "",
            outcome=_read_outcome(folders[0]),
            test_to_train=0.0 if any(held.has_test for _, held in same) else RESPLIT,
        )

    @cached_property
    def summary(self) -> Sheet:
        """One line for each strategy, with the mean of each objective that is no metric by itself."""
        rounds, groups = _with_acceptance(self.rounds), self.groups
        named = dict.fromkeys([*rounds["metric"].tolist(), self.metric])
        texts = [text for text in named if text is not None and text not in rounds]
        texts = [] if groups is None else [text for text in texts if not individual_terms(text)]
        if groups is not None and texts:
            counts = counts_of(rounds)
            rounds = rounds.assign(**{text: bind(text, groups)(counts) for text in texts})
        return summary_of(rounds, (*METRICS, "acceptance", *texts))

    @cached_property
    def last_rounds(self) -> Sheet:
        """The test rows in the last round."""
        rounds = self.rounds
        return _with_acceptance(rounds.where((rounds["split"] == "test") & (rounds["round"] == self.last)))

    @cached_property
    def names(self) -> list[str]:
        """Short names of the lines."""
        return row_names(self.summary)

    @cached_property
    def judged(self) -> list[Judged]:
        """Each strategy on the validation rows, and why it is rejected; empty where that is not known."""
        if self.groups is None:
            return []
        try:
            return judge(self.rounds.frame, self.metric, self.groups)
        except InputError:
            return []

    @cached_property
    def recommended(self) -> Choice | None:
        """The recommended model."""
        return pick(self.judged)

    @property
    def seeds(self) -> int:
        """How many seeds there are."""
        return len(np.unique(self.rounds["seed"]))

    @property
    def last(self) -> int:
        """The last round."""
        return int(self.rounds["round"].max())

    @property
    def fairness(self) -> str:
        """The fairness to speak of: what the first strategy that looks at some aims at, if counts tell it."""
        return spoken_of(self.summary["metric"], self.metric)

    @cached_property
    def majority(self) -> float:
        """Accuracy of the same answer for everybody, mean over seeds; NaN for runs without counts."""
        try:
            labels = counts_of(self.last_rounds).sum(axis=(1, 3))
        except InputError:
            return math.nan
        return float((labels.max(axis=1) / labels.sum(axis=1)).mean())

    @cached_property
    def collapsed(self) -> list[int]:
        """For each line, in how many seeds its model hardly tells people apart."""
        return [int((self.per_seed("mcc", line) < COLLAPSED).sum()) for line in range(len(self.summary))]

    @cached_property
    def untrained(self) -> list[int]:
        """For each line, in how many seeds no round counted."""
        last = self.last_rounds.where(is_untrained(self.last_rounds))
        return [int(self.is_line(last, line).sum()) for line in range(len(self.summary))]

    @cached_property
    def flaws(self) -> list[str]:
        """For each line, why its fairness says nothing and in how many seeds; empty where it does."""
        return [self._flaw(line) for line in range(len(self.summary))]

    def _flaw(self, line: int) -> str:
        for what, seeds in zip(FLAWS, (self.untrained, self.collapsed), strict=True):
            if seeds[line]:
                return f"{what} in {seeds[line]} of {self.summary['seeds'][line]}"
        return ""

    @cached_property
    def rates(self) -> Sheet | None:
        """What each strategy does to each group."""
        return None if self.groups is None else rates_by_group(self.rounds, self.groups)

    def mean(self, metric: str, line: int) -> float:
        """A line's mean over seeds in the last round."""
        name = f"{metric}_last_mean"
        return float(self.summary[name][line]) if name in self.summary else math.nan

    def per_seed(self, metric: str, line: int, split: str = "test") -> Values:
        """The metric of one line in each seed, in the last round."""
        mine = self.of_line(line)
        mine = mine.where((mine["split"] == split) & (mine["round"] == self.last))
        mine = mine.where(np.argsort(mine["seed"], kind="stable"))
        if metric not in mine and self.groups is not None:
            return np.asarray(bind(metric, self.groups)(counts_of(mine)))
        return np.asarray(mine[metric], dtype=np.float64)

    def seeds_of(self, line: int, split: str = "test") -> list[int]:
        """The seeds that `per_seed` is about, in its order."""
        mine = self.of_line(line)
        return sorted(mine["seed"][(mine["split"] == split) & (mine["round"] == self.last)].tolist())

    def of_line(self, line: int) -> Sheet:
        """All rounds of one line."""
        return self.rounds.where(self.is_line(self.rounds, line))

    def is_line(self, rows: Sheet, line: int) -> NDArray[np.bool_]:
        """(rows,) which of them are about one line."""
        found = np.ones(len(rows), dtype=bool)
        for key in ("strategy", "metric", "settings"):
            found &= np.asarray(rows[key] == self.summary[key][line], dtype=bool)
        return found

    def best(self, metric: str) -> list[bool]:
        """Which lines are the best by a metric; one that is flawed is never."""
        values = np.array([self.mean(metric, line) for line in range(len(self.summary))])
        values[[bool(flaw) for flaw in self.flaws]] = np.nan
        if len(values) < 2 or np.isnan(values).all():
            return [False] * len(values)
        return [bool(value == np.nanmax(values)) for value in values]


def text(value: object) -> str:
    """A text that may be missing."""
    return value if isinstance(value, str) else ""


def _told_apart(sheets: list[Sheet], folders: Sequence[Path]) -> list[str]:
    """What is added to strategies' names: the folder's, where folders have the same strategy and seed."""
    models = []
    for sheet in sheets:
        _, first = sheet.numbered("strategy", "metric", "settings", "seed")
        names = (sheet[key][first].tolist() for key in ("strategy", "metric", "settings", "seed"))
        models += list(zip(*names, strict=True))
    repeated = len(set(models)) < len(models)
    return [f" [{folder.name}]" if repeated else "" for folder in folders]


def _read_outcome(folder: Path) -> str:
    """The favourable outcome, as a model of the run has it."""
    from fairfate.models.fair_model import FairModel

    for file in sorted((folder / MODELS).glob("*.safetensors"))[:1]:
        with suppress(InputError, OSError):
            schema = FairModel.load(file).schema
            return f"{schema.target} = {schema.labels[1]}"
    return ""


def _with_acceptance(rounds: Sheet) -> Sheet:
    """Runs of older versions have none."""
    if "acceptance" in rounds:
        return rounds
    return rounds.assign(acceptance=np.full(len(rounds), math.nan))


def methods(found: Comparison) -> list[tuple[str, str]]:
    """What each strategy and step does, in a few words, where it is one of ours."""
    known = {entry.name: entry.summary for entry in entries()}
    known |= {f"+{name}": step.summary for name, step in STEPS.items()}
    labels = [str(label).partition(" [")[0].split("+") for label in found.summary["strategy"]]
    names = dict.fromkeys(
        name for first, *steps in labels for name in (first, *(f"+{step}" for step in steps))
    )
    return [(name, known[name]) for name in names if name in known]


def remarks(found: Comparison) -> list[str]:
    """What a reader of the table should know: collapsed models, undefined metrics, runs cut short."""
    lines = list(found.notes)
    if any(f"+{THRESHOLDS}" in str(label) for label in found.summary["strategy"]):
        lines.append("thresholds need the group of each person at prediction time")
    objectives = sorted({label for label in found.summary["metric"] if isinstance(label, str)})
    lines += [line for objective in objectives for line in small_groups(objective)]
    terms = sorted({term for objective in objectives for term in individual_terms(objective)})
    if terms:
        lines.append(
            f"{listing(terms)}: in no table, since counts do not tell; on the validation rows, in"
            " clients.parquet and in the notes of rounds.parquet"
        )
    few = _rates_of_few(found)
    if few:
        lines.append(f"rates of fewer than {MIN_PEOPLE} test rows are not compared: {listing(few)}")
    for what, why in FLAWS.items():
        low = [
            f"{name}{flaw.removeprefix(what)} seeds on the test rows"
            for name, flaw in zip(found.names, found.flaws, strict=True)
            if flaw.startswith(what)
        ]
        lines += [f"{what}: {listing(low)}; {why}"] if low else []
    for number, name in enumerate(found.names):
        undefined = [metric.upper() for metric in FAIRNESS if math.isnan(found.mean(metric, number))]
        if undefined:
            lines.append(
                f"{name}: {', '.join(undefined)} undefined, a group has no such test rows in some seed"
            )
    perfect = [name for line, name in enumerate(found.names) if found.mean("mcc", line) > TOO_GOOD]
    if perfect:
        lines.append(
            f"too good to be true? {listing(perfect)}: look for columns that are known only after the outcome"
        )
    rising = [name for line, name in enumerate(found.names) if _is_rising(found, line)]
    if rising:
        lines.append(f"not converged: {listing(rising)}; more rounds or a larger learning rate may help")
    return lines


def _rates_of_few(found: Comparison) -> list[str]:
    """The groups, and which of their rates have too few test rows behind them to count in SP, EO and EQO."""
    if found.groups is None or not len(found.last_rounds):
        return []
    try:
        counts = counts_of(found.last_rounds)[:1]
    except InputError:
        return []
    few: dict[str, list[str]] = {}
    for attribute, names in zip(found.groups.attributes, found.groups.values, strict=True):
        rows = found.groups.merge(counts, (attribute,)).sum(axis=-1)[0]
        compared = found.groups.compared((attribute,))
        for rate, people in (("selection rate", rows.sum(axis=-1)), ("TPR", rows[:, 1]), ("FPR", rows[:, 0])):
            if (people[compared] >= MIN_PEOPLE).sum() < 2:
                continue  # then all count
            for name, is_small in zip(names, (people < MIN_PEOPLE) & compared, strict=True):
                if is_small:
                    few.setdefault(name, []).append(rate)
    return [f"{name} ({', '.join(rates)})" for name, rates in few.items()]


def _is_rising(found: Comparison, line: int) -> bool:
    """Whether the model was still learning when the rounds ended, by the MCC on the validation rows.

    The last two fifths of the rounds are taken in four parts. The mean over seeds must rise in each of them,
    between the two fifths by more than `RISING` and by more than twice its standard error over seeds, and
    nearly every seed must rise too.
    """
    rounds = found.of_line(line)
    rounds = rounds.where(rounds["split"] == "validation")
    part = found.last // 10
    if part < 1 or len(np.unique(rounds["round"])) < found.last:
        return False
    place = (rounds["round"] - found.last + 4 * part - 1) // part  # 0 .. 3 in the last two fifths
    seeds = np.unique(rounds["seed"])
    means = np.array(
        [
            [rounds["mcc"][(rounds["seed"] == seed) & (place == number)].mean() for number in range(4)]
            for seed in seeds
        ]
    )
    gains = (means[:, 2:] - means[:, :2]).mean(axis=1)
    error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(
        gains.mean() > max(RISING, 2 * error)
        and (gains > 0).mean() >= CONSISTENT
        and (np.diff(means.mean(axis=0)) > 0).all()
    )
