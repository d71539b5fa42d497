"""What a finished run found: which strategies are worth a mark, and one honest sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing
from fairfate.fairness.grammar import individual_terms
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS, METRICS, Values
from fairfate.fairness.objective import bind, small_groups
from fairfate.runs.choice import spoken_of
from fairfate.runs.folders import Held, is_sweep, read_folder
from fairfate.runs.groups import rates_by_group
from fairfate.runs.results import counts_of, is_untrained, row_names, summary_of
from fairfate.runs.sheet import Sheet, join
from fairfate.strategies import THRESHOLDS

if TYPE_CHECKING:
    from fairfate.runs.finished import Run

SKILL = ("mcc", "balanced_accuracy")
SKILL_LOST = {"mcc": 0.05, "balanced_accuracy": 0.02}
"""A loss of more than this is said first."""
TOO_GOOD = 0.95
"""An MCC that real data hardly ever allow."""
FLAWS = {
    "no round counted": "every round was discarded, so the model is the one that training began with",
    "collapsed": f"an MCC below {COLLAPSED} means that a model hardly tells people apart, whatever its"
    " fairness says",
}
"""Why a strategy is never the best, called fairer or recommended, and what it means; the first is named."""
RISING = 0.01
"""A gain of MCC between the last two fifths of the rounds that shows that training was cut short."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Strategies on the same data; all of it is in a run's folder."""

    rounds: Sheet
    metric: str
    """Fairness to speak of where no strategy looks at one."""
    notes: tuple[str, ...]
    groups: Groups | None
    out: Path | None = None
    chosen: str = ""
    """The model to take, in words."""
    title: str = ""
    """What tells it from others of the same sweep."""
    sources: tuple[tuple[Path, str], ...] = ()
    """The runs' folders, and what was added to the names of each one's strategies to tell them apart."""

    @classmethod
    def of(cls, run: Run) -> Comparison:
        """Of a run that has just finished."""
        again = tuple(f"{name} was damaged and has been run again" for name in run.damaged)
        notes = (*run.table.notes, *run.plan.notes, *again)
        best = "" if run.best is None else f"{run.best.name}, seed {run.best.seed}"
        sources = () if run.out is None else ((run.out, ""),)
        metric, groups = run.plan.config.metric, run.table.grouping
        rounds = Sheet.of_frame(run.rounds)
        return cls(rounds, metric, notes, groups, run.out, best, sources=sources)

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
        sources = tuple(zip(folders, added, strict=True))
        return cls(join(sheets), first.metric, tuple(notes), first.groups, sources=sources)

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


def _with_acceptance(rounds: Sheet) -> Sheet:
    """Runs of older versions have none."""
    if "acceptance" in rounds:
        return rounds
    return rounds.assign(acceptance=np.full(len(rounds), math.nan))


def said(metric: str) -> str:
    """A metric's name in a sentence."""
    return metric.upper() if metric in FAIRNESS else metric


def fairest(found: Comparison) -> int | None:
    """The fairest of the strategies after the first that have no flaw."""
    fair = [found.mean(found.fairness, line) for line in range(len(found.summary))]
    usable = [x for x in range(1, len(fair)) if not found.flaws[x] and not math.isnan(fair[x])]
    return max(usable, key=lambda line: fair[line]) if usable else None


def sentence(found: Comparison) -> str:
    """What was gained and given up, for a reader who reads nothing else."""
    metric, lines = found.fairness, range(len(found.summary))
    fair = [found.mean(metric, line) for line in lines]
    usable = [line for line in lines if not found.flaws[line] and not math.isnan(fair[line])]
    if all(map(math.isnan, fair)):
        return f"{said(metric)} is undefined: a group has no such test rows, so nothing can be said about it."
    if len(fair) == 1:
        return _alone(found, usable)
    aside = [line for line in lines[1:] if found.flaws[line]]
    best = fairest(found)
    if best is None:
        return " ".join(filter(None, [_none_left(found, aside), _base(found)]))
    told = _against(found, best) if not found.flaws[0] else _instead(found, best)
    return " ".join(filter(None, [told, _set_aside(found, [x for x in aside if fair[x] > fair[best]])]))


def _alone(found: Comparison, usable: list[int]) -> str:
    return "" if usable else _base(found)


def _base(found: Comparison) -> str:
    """What is wrong with the first strategy, if anything is."""
    if not found.flaws[0]:
        return ""
    if found.untrained[0]:
        return (
            f"{found.names[0]} itself was not trained ({found.flaws[0]} seeds): there it is the model that"
            " training began with, so its mean fairness says little."
        )
    return (
        f"{found.names[0]} itself {found.flaws[0]} seeds (mean MCC"
        f" {found.mean('mcc', 0):.3f}): there it hardly tells people apart, so its mean fairness says little."
    )


def _none_left(found: Comparison, aside: list[int]) -> str:
    if not aside:
        return f"Nothing can be said: {said(found.fairness)} is undefined for all but {found.names[0]}."
    most = max(aside, key=lambda line: found.mean(found.fairness, line))
    low = found.mean("mcc", most)
    if found.untrained[most]:
        return (
            f"No strategy can be recommended: {found.names[most]} was not trained ({found.flaws[most]}"
            f" seeds), so it is the model that training began with, whatever {said(found.fairness)} says."
        )
    return (
        f"No strategy can be recommended: {found.names[most]} {found.flaws[most]} seeds (MCC"
        f" {found.mean('mcc', 0):.3f} to {low:.3f}), and giving nearly everybody the same answer is no"
        f" fairness, whatever {said(found.fairness)} says."
    )


def _set_aside(found: Comparison, aside: list[int]) -> str:
    if not aside:
        return ""
    told = (f"{found.names[line]} ({found.flaws[line]} seeds)" for line in aside)
    return f"Left aside: {listing(told)}."


def _instead(found: Comparison, best: int) -> str:
    """Where the first strategy is flawed."""
    metric = found.fairness
    return (
        f"{_base(found)} The fairest of the others is {found.names[best]}: {said(metric)}"
        f" {found.mean(metric, best):.3f}, accuracy {found.mean('accuracy', best):.3f}, MCC"
        f" {found.mean('mcc', best):.3f}."
    )


def _against(found: Comparison, best: int) -> str:
    """The fairest line against the first."""
    metric, name, first = found.fairness, found.names[best], found.names[0]
    base, other = found.mean(metric, 0), found.mean(metric, best)
    if math.isnan(base):
        return (
            f"{said(metric)} is undefined for {first}; of the others {name} is the fairest with {other:.3f}."
        )
    of = _between(found, metric)
    if other <= base:
        return (
            f"Nothing was gained: {first} is the fairest by {said(metric)} ({base:.3f}{of}); the next is"
            f" {name} with {other:.3f} ({_price(found, best)})."
        )
    gained = f"{name} gained {other - base:.3f} {said(metric)} ({base:.3f} to {other:.3f}{of})"
    lost = [m for m in SKILL if found.mean(m, 0) - found.mean(m, best) > SKILL_LOST[m]]
    chance = _chance(found, metric, best)
    if lost:
        return (
            f"At the price of skill, {name} is fairer than {first}: {_price(found, best)}; {gained}. {chance}"
        )
    return f"Against {first}, {gained}; {_price(found, best)}. {chance}"


def _between(found: Comparison, metric: str) -> str:
    """Between whom fairness is, where that is not two groups."""
    if found.groups is None or metric not in FAIRNESS or len(found.groups) == 2:
        return ""
    if len(found.groups.attributes) > 1:
        return f", the worst of {listing(found.groups.attributes)}"
    return f" between the worst and the best of {len(found.groups)} groups"


def _price(found: Comparison, line: int) -> str:
    """What a line has given up against the first one, in accuracy and in skill."""
    names = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "mcc": "MCC"}
    parts = []
    for metric, name in names.items():
        before, after = found.mean(metric, 0), found.mean(metric, line)
        parts.append(f"{name} {before:.3f} to {after:.3f}")
    return ", ".join(parts)


def _chance(found: Comparison, metric: str, line: int) -> str:
    """In how many seeds a line is fairer than the first one, where both were run with them."""
    first, mine = (dict(zip(found.seeds_of(of), found.per_seed(metric, of), strict=True)) for of in (0, line))
    common = [seed for seed in mine if seed in first]
    wins = sum(bool(mine[seed] > first[seed]) for seed in common)
    if not common:
        return "They were run with different seeds, so it may be chance."
    if len(common) == 1:
        which = "was run" if len(first) == len(mine) == 1 else "both were run with"
        fairer = "fairer" if wins else "not fairer"
        return f"It was {fairer} in the one seed that {which}; more seeds would show whether that is chance."
    which = "" if len(first) == len(mine) == len(common) else " that both were run with"
    doubt = ", so it may be chance" if wins < 0.8 * len(common) else ""
    return f"It was fairer in {wins} of {len(common)} seeds{which}{doubt}."


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
    for what, why in FLAWS.items():
        low = [
            f"{name}{flaw.removeprefix(what)} seeds"
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
        lines.append(f"not converged: {listing(rising)}; more rounds or a larger learning rate would help")
    return lines


def _is_rising(found: Comparison, line: int) -> bool:
    """Whether the model was still learning when the rounds ended."""
    mine = found.of_line(line)
    mine = mine.where(mine["split"] == "validation")
    fifth = found.last // 5
    if fifth < 2 or len(np.unique(mine["round"])) < found.last:
        return False
    late, before = mine["round"] > found.last - fifth, mine["round"] > found.last - 2 * fifth
    return bool(mine["mcc"][late].mean() - mine["mcc"][before & ~late].mean() > RISING)
