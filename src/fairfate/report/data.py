"""Strategies on the same data and all that is known of them: tables, sentences and pages are made from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check, listing
from fairfate.experiments.baselines import MAJORITY, PooledBaseline
from fairfate.experiments.importances import Importance
from fairfate.experiments.people import Covariances
from fairfate.experiments.runs import Run, measured, read_runs, read_unfinished
from fairfate.fairness.disclosure import MIN_CELL, is_small, round_histograms, show_counts
from fairfate.fairness.intervals import bootstrap, over_seeds
from fairfate.fairness.metrics import COLLAPSED, FAIRNESS, METRICS, CellRows, Counts, Values, selection_rate
from fairfate.fairness.objective import MIN_PEOPLE, bind, fairness_by, individual_terms, reported_fairness
from fairfate.fairness.thresholds import auc, auc_deviations
from fairfate.report.audit import Audit, audits
from fairfate.results.details import Final
from fairfate.results.folder import BEST, CONFIG, MODELS, ROUNDS, is_sweep
from fairfate.results.recommendation import Candidate, RecommendedModel, assess, headline_metric, pick
from fairfate.results.summary import crossings, group_rates, line_numbers, row_names, summarise
from fairfate.results.tables import STRATEGY, counts_of, histograms_of, is_untrained
from fairfate.strategies import RULES

LEAST_SEEDS = 3
"""For an interval over seeds."""
RESPLIT = 1 / 3
"""Test rows over training rows: what seeds that split the same rows anew are corrected by."""
_DRAWS = 400
"""Of people, for a variance."""
FLAWS = {
    "no round counted": "every round was discarded, so the model is the one that training began with",
    "collapsed": f"an MCC below {COLLAPSED} means nearly one decision for everybody, which is of no use"
    " however fair it looks",
}
"""Why a strategy is never the best, called fairer or recommended, and what it means; the first is named."""


@dataclass(frozen=True, eq=False)
class ReportData:
    """Strategies on the same data, from one run or several; a *line* is a strategy's number among them."""

    rounds: pd.DataFrame
    """What is compared; SP, EO and EQO are those of `reported_fairness`."""
    metric: str
    """Fairness to speak of where no strategy looks at one."""
    notes: tuple[str, ...]
    groups: Groups
    title: str = ""
    """What tells it from others of the same sweep."""
    folders: tuple[Path, ...] = ()
    """The runs'."""
    configs: tuple[Mapping[str, Any], ...] = ()
    clients: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Who took part in each round; empty where that is not known."""
    final: Final | None = None
    """The released models in detail, where that is known."""
    baselines: tuple[PooledBaseline, ...] = ()
    """Models of the pooled rows."""
    importances: tuple[Importance, ...] = ()
    """How much the recommended model relies on each column."""
    date: str = ""
    """The day of the run."""
    outcome: str = ""
    """The favourable one, where it is known."""
    is_refitted: bool = False
    """Whether the recommended model was trained once more, on all rows."""
    people: Covariances | None = None
    """How the strategies' means over seeds vary and covary over people, where that is known."""
    shares_test_rows: bool = False
    """Whether all seeds have the same test rows, so that seeds say nothing of other people."""
    progress: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """For each seed of an unfinished run, how many rounds it has done, and of how many."""
    begun: pd.DataFrame | None = None
    """All rounds of an unfinished run; those that are compared are of as many rounds in every seed."""
    min_cell: int = MIN_CELL
    """The least count that a report shows; 0 for all."""
    run: Run | None = None
    """The only finished one, which knows its candidates and rates by itself."""
    rules: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    """What is known of rules that were chosen after training, by the strategy's name and the seed."""

    def __post_init__(self) -> None:
        """Have one value of SP, EO and EQO wherever they are shown: see `reported_fairness`."""
        fairness = reported_fairness(counts_of(self.rounds), self.groups)
        object.__setattr__(self, "rounds", self.rounds.assign(**fairness))

    @classmethod
    def from_runs(cls, runs: Sequence[Run], min_cell: int = MIN_CELL) -> ReportData:
        """Of runs on the same data, side by side."""
        check(min_cell >= 0, "min-cell must be >= 0", min_cell)
        only = runs[0] if len(runs) == 1 else None
        added = _folder_suffixes(runs)
        finals = [
            Final(
                _renamed(run.final.scores, text),
                None if run.final.local is None else _renamed(run.final.local, text),
            )
            for run, text in zip(runs, added, strict=True)
            if run.final is not None
        ]
        again = [f"{name} was damaged and has been run again" for run in runs for name in run.damaged]
        rounds = _joined([run.rounds for run in runs], added)
        compared = rounds if only is None or not only.progress else _compared(only)
        return cls(
            compared,
            runs[0].metric,
            tuple(dict.fromkeys([note for run in runs for note in run.notes] + again)),
            runs[0].grouping,
            runs[0].title,
            tuple(run.out for run in runs if run.out is not None),
            tuple(run.config for run in runs),
            _joined([run.clients for run in runs], added),
            Final.together(finals) if finals else None,
            baselines=() if only is None else tuple(row for row in only.baselines if row.name != MAJORITY),
            importances=() if only is None else only.importances,
            date="" if only is None else only.date,
            outcome=runs[0].outcome,
            is_refitted=only is not None and only.refitted is not None,
            people=None if only is None or only.progress else only.people,
            shares_test_rows=all(run.people is not None or "test" in run.config for run in runs),
            progress=runs[0].progress,
            begun=None if compared is rounds else rounds,
            min_cell=min_cell,
            run=only if compared is rounds else None,
            rules=_read_rules(runs, added),
        )

    @classmethod
    def read(
        cls, folders: Sequence[Path], min_cell: int = MIN_CELL, *, unfinished: bool = False
    ) -> list[ReportData]:
        """Of runs' and sweeps' folders: finished runs on the same data, split alike, side by side.

        Runs that have not finished come last, where they are asked for.
        """
        check(min_cell >= 0, "min-cell must be >= 0", min_cell)
        same_data: dict[tuple[object, ...], list[Run]] = {}
        parts, begun = [], []
        for folder in folders:
            run = _read_unfinished(folder) if unfinished else None
            if run is not None:
                begun.append(cls.from_runs([run], min_cell))
            elif is_sweep(folder):
                parts += [cls.from_runs([part], min_cell) for part in read_runs(folder)]
            else:
                (run,) = read_runs(folder)
                key = tuple(run.rounds[name].iloc[0] for name in ("dataset", "partition", "protocol"))
                rows = int(counts_of(run.rounds.iloc[-1:]).sum())
                same_data.setdefault((*key, run.grouping, rows), []).append(run)
        for runs in same_data.values():
            lasts = [int(run.rounds["round"].max()) for run in runs]
            if len(set(lasts)) > 1:
                each = (f"{last} in {run.out}" for last, run in zip(lasts, runs, strict=True))
                raise InputError(f"runs must have the same number of rounds, got {listing(each)}")
        return [*(cls.from_runs(runs, min_cell) for runs in same_data.values()), *parts, *begun]

    # ------------------------------------------------------------ strategies

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row for each line, with the mean of each objective that is no metric by itself."""
        rounds = self.rounds
        objectives = [text for text in (*rounds["metric"].unique(), self.metric) if isinstance(text, str)]
        added = dict.fromkeys(
            text for text in objectives if text not in rounds and not individual_terms(text)
        )
        if added:
            counts = counts_of(rounds)
            rounds = rounds.assign(**{text: bind(text, self.groups)(counts) for text in added})
        return summarise(rounds, (*METRICS, "selection_rate", *added))

    @cached_property
    def names(self) -> list[str]:
        """Short names of the lines."""
        return row_names(self.summary)

    @cached_property
    def lines(self) -> NDArray[np.int64]:
        """The line of each row of `rounds`."""
        return self.line_of(self.rounds)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Each strategy on the validation rows, and why it is rejected; empty where that is not known."""
        try:
            return assess(self.rounds, self.metric, self.groups) if self.run is None else self.run.candidates
        except InputError:
            return []

    @cached_property
    def recommended(self) -> RecommendedModel | None:
        """The recommended model; none before the run has finished."""
        return None if self.progress else self._chosen

    @cached_property
    def _chosen(self) -> RecommendedModel | None:
        return pick(self.candidates)

    @property
    def objective(self) -> str:
        """The fairness to speak of: what the first strategy that looks at some aims at, if counts tell it."""
        return headline_metric(self.summary["metric"], self.metric)

    @property
    def headline(self) -> str:
        """The same where an interval or a pooled model is needed: of other objectives, equalized odds."""
        return self.objective if self.objective in FAIRNESS else "eqo"

    @property
    def seed_count(self) -> int:
        """How many seeds are compared."""
        return int(self.rounds["seed"].nunique())

    @property
    def last_round(self) -> int:
        """The last round."""
        return int(self.rounds["round"].max())

    @cached_property
    def majority(self) -> float:
        """Accuracy of the same answer for everybody, mean over models."""
        labels = self.counts.sum(axis=(1, 3))
        return float((labels.max(axis=1) / labels.sum(axis=1)).mean())

    @cached_property
    def collapsed(self) -> list[int]:
        """For each line, in how many seeds its model collapsed."""
        return [int((self.per_seed("mcc", line) < COLLAPSED).sum()) for line in range(len(self.names))]

    @cached_property
    def untrained(self) -> list[int]:
        """For each line, in how many seeds no round counted."""
        flawed = is_untrained(self.last)
        return [int(flawed[self.models_of(line)].sum()) for line in range(len(self.names))]

    @cached_property
    def flaws(self) -> list[str]:
        """For each line, why its fairness says nothing and in how many seeds; empty where it does."""
        return [self._flaw(line) for line in range(len(self.names))]

    def _flaw(self, line: int) -> str:
        for what, seeds in zip(FLAWS, (self.untrained, self.collapsed), strict=True):
            if seeds[line]:
                return f"{what} in {seeds[line]} of {self.summary['seeds'][line]}"
        return ""

    @cached_property
    def rates(self) -> pd.DataFrame:
        """What each strategy does to each group."""
        return group_rates(self.rounds, self.groups) if self.run is None else self.run.groups

    def rates_of_line(self, line: int) -> pd.DataFrame:
        """What one strategy does to each group."""
        rates: pd.DataFrame = self.rates[self.line_of(self.rates) == line]
        return rates

    def mean(self, metric: str, line: int) -> float:
        """A line's mean over seeds in the last round."""
        name = f"{metric}_last_mean"
        return float(self.summary[name][line]) if name in self.summary else math.nan

    def best(self, metric: str) -> list[bool]:
        """Which lines are the best by a metric; one that is flawed is never."""
        values = np.array([self.mean(metric, line) for line in range(len(self.names))])
        values[[bool(flaw) for flaw in self.flaws]] = np.nan
        if len(values) < 2 or np.isnan(values).all():
            return [False] * len(values)
        return [bool(value == np.nanmax(values)) for value in values]

    def line_of(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """The line of each row; -1 where it is of none."""
        numbers = line_numbers(frame, STRATEGY).to_numpy()
        firsts = frame.iloc[np.unique(numbers, return_index=True)[1]]
        lines = np.array([self._lines.get(key, -1) for key in _keys(firsts)], dtype=np.int64)
        return np.asarray(lines[numbers])

    @cached_property
    def _lines(self) -> dict[tuple[str, str, str], int]:
        return {key: line for line, key in enumerate(_keys(self.summary))}

    # ------------------------------------------------------------ models

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the run."""
        return [int(seed) for seed in dict.fromkeys(self.drawn["seed"])]

    @property
    def drawn(self) -> pd.DataFrame:
        """All rounds that can be drawn."""
        return self.rounds if self.begun is None else self.begun

    @cached_property
    def last(self) -> pd.DataFrame:
        """The test rows of the last round, a row for each model, by line and seed."""
        last = self.rounds[(self.rounds["split"] == "test") & (self.rounds["round"] == self.last_round)]
        order = {seed: index for index, seed in enumerate(self.seeds)}
        order_of_rows = np.lexsort((last["seed"].map(order).to_numpy(), self.line_of(last)))
        return last.iloc[order_of_rows].reset_index(drop=True)

    @cached_property
    def models(self) -> list[tuple[int, int]]:
        """The models that were measured in the last round: lines and seeds."""
        return list(zip(self.line_of(self.last).tolist(), map(int, self.last["seed"]), strict=True))

    def models_of(self, line: int) -> list[int]:
        """Where a line's models are among all."""
        return [index for index, model in enumerate(self.models) if model[0] == line]

    def seeds_of(self, line: int) -> list[int]:
        """The seeds that `per_seed` is about, in its order."""
        return [self.models[index][1] for index in self.models_of(line)]

    @cached_property
    def counts(self) -> Counts:
        """(models, groups, 2, 2) the models on the test rows."""
        return counts_of(self.last)

    def per_seed(self, metric: str, line: int) -> Values:
        """A metric or an objective of a line's models in the last round."""
        models = self.models_of(line)
        if metric == "auc":
            return self.auc[models]
        if metric in self.last:
            return self.last[metric].to_numpy(dtype=np.float64)[models]
        return np.asarray(bind(metric, self.groups)(self.counts[models]))

    @cached_property
    def auc(self) -> Values:
        """(models,) the area under the ROC curve on the test rows; NaN where scores are not known."""
        if self.final is None:
            return np.full(len(self.models), np.nan)
        areas = dict(zip(self.scored, auc(histograms_of(self.final.scores)), strict=True))
        return np.array([areas.get(model, np.nan) for model in self.models])

    @cached_property
    def scored(self) -> list[tuple[int, int]]:
        """The models whose scores are known, in the order of their histograms."""
        if self.final is None:
            return []
        first = self.final.scores[self.final.scores["bin"] == 0]
        return list(zip(self.line_of(first).tolist(), map(int, first["seed"]), strict=True))

    @cached_property
    def audits(self) -> list[Audit]:
        """What each model does to each group."""
        return audits(self.counts, self.groups, self.min_cell)

    @cached_property
    def fairness(self) -> dict[str, dict[str, Values]]:
        """For each attribute and fairness metric, (models,) its values by the rule of the audit."""
        return {
            " x ".join(names): fairness_by(self.counts, self.groups, names, self.least)
            for names in crossings(self.groups)
        }

    # ------------------------------------------------------------ the model shown

    @property
    def shown(self) -> tuple[int, int]:
        """The model that the report is about: the recommended one, or the first strategy's."""
        if self._chosen is not None:
            return self._chosen.line, self._chosen.seed
        return 0, self.candidates[0].seed if self.candidates else int(self.rounds["seed"].iloc[0])

    @property
    def shown_index(self) -> int:
        """Where the model shown is among the models."""
        return self.models.index(self.shown) if self.shown in self.models else 0

    @property
    def shown_split_sizes(self) -> dict[str, int]:
        """The rows of each split that the model shown is measured on."""
        rounds = self.rounds
        own = rounds[(rounds["round"] == self.last_round) & (rounds["seed"] == self.shown[1])]
        first = own.drop_duplicates("split")
        return dict(zip(first["split"], map(int, counts_of(first).sum(axis=(1, 2, 3))), strict=True))

    @property
    def shown_majority(self) -> float:
        """The accuracy of one answer for all on the test rows of the model shown."""
        labels = self.counts[self.shown_index].sum(axis=(0, 2))
        return float(labels.max() / labels.sum())

    @property
    def shown_thresholds(self) -> list[float] | None:
        """Its thresholds, as probabilities, by group."""
        if self.final is None or self.shown not in self.scored:
            return None
        first = self.final.scores[self.final.scores["bin"] == 0].iloc[self.scored.index(self.shown)]
        return [float(first[f"cut_{g}"]) for g in range(len(self.groups))]

    @property
    def model_file(self) -> str | None:
        """The file of the recommended model, within the run's folder."""
        if len(self.folders) != 1:
            return None
        files = sorted((self.folders[0] / MODELS).glob("*.safetensors"))
        names = [file.name for file in files]
        if len(names) == 1 or BEST in names:
            return f"{MODELS}/{BEST if BEST in names else names[0]}"
        return None

    # ------------------------------------------------------------ what may be shown

    @property
    def local(self) -> pd.DataFrame | None:
        """The models' decisions at each client, where they are known."""
        return None if self.final is None else self.final.local

    @property
    def least(self) -> int:
        """People behind a rate that counts in ratios."""
        return max(self.min_cell, MIN_PEOPLE)

    def local_rows(self, counts: Counts) -> CellRows:
        """(clients, groups, 2) rows of all clients by group and label, those that are not shown as 0."""
        rows = counts.sum(axis=-1)
        small = np.asarray(is_small(rows, self.min_cell).any())
        return np.maximum(show_counts(rows, self.min_cell, small), 0)

    def local_skill(self, counts: Counts) -> dict[str, Values]:
        """How good models are at clients, from (..., groups, 2, 2) counts; undefined on too few rows."""
        enough = counts.sum(axis=(-3, -2, -1)) >= max(self.min_cell, 1)
        return {name: np.where(enough, METRICS[name](counts), np.nan) for name in ("accuracy", "mcc")}

    def score_rows(self, histograms: NDArray[np.int64]) -> NDArray[np.int64]:
        """(models, groups, 2, bins) test rows by score, without strata of too few rows; bins may hold few."""
        return np.stack([round_histograms(rows, self.min_cell) for rows in histograms])

    def measured(self, metric: str, line: int) -> dict[str, float | None]:
        """The mean of a line's models in the last round, with its interval."""
        return self.over_seeds(self.per_seed(metric, line), metric, self.variance_over_people(metric, line))

    def variance_over_people(self, metric: str, line: int) -> float:
        """Of a line's mean over seeds, where all seeds have the same test rows; else 0, as seeds show it.

        At most the mean of the models' own standard deviations, squared: so it is if all of them are wrong
        about the same people.
        """
        if not self.shares_test_rows:
            return 0.0
        if self.people is not None and metric in self.people:
            return float(self.people[metric][line, line])
        if metric == "auc":
            return float(np.mean([self._auc_deviations[index] for index in self.models_of(line)]) ** 2)

        def measure(counts: Counts) -> Values:
            reported = reported_fairness(counts, self.groups)
            known = {**METRICS, "selection_rate": selection_rate}
            if metric in reported:
                return reported[metric]
            return np.asarray(known[metric](counts) if metric in known else bind(metric, self.groups)(counts))

        return self.spread_over_people(measure, line)

    def spread_over_people(self, measure: Callable[[Counts], Values], line: int) -> float:
        """The same of anything that counts tell."""
        if not self.shares_test_rows:
            return 0.0
        drawn = measure(self._drawn[self.models_of(line)].reshape(-1, *self.counts.shape[1:]))
        values = np.asarray(drawn).reshape(-1, _DRAWS)
        known = np.isfinite(values)
        deviations = [
            float(row[is_known].std()) for row, is_known in zip(values, known, strict=True) if is_known.any()
        ]
        return float(np.mean(deviations) ** 2) if deviations else math.nan

    @cached_property
    def _drawn(self) -> Counts:
        """(models, draws, groups, 2, 2) the counts of people drawn anew."""
        return np.stack([bootstrap(counts, _DRAWS) for counts in self.counts])

    @cached_property
    def _auc_deviations(self) -> Values:
        """(models,) the standard deviation of the AUC over people, by DeLong's placements."""
        if self.final is None:
            return np.full(len(self.models), np.nan)
        known = dict(zip(self.scored, auc_deviations(histograms_of(self.final.scores)), strict=True))
        return np.array([known.get(model, np.nan) for model in self.models])

    def variance_of_difference(self, metric: str, line: int, other: int) -> float:
        """Over people, of the difference between two lines' means.

        Where it is not known how often both decide alike, as if they were wrong independently: too large for
        models of the same rows.
        """
        if self.people is not None and metric in self.people:
            known = self.people[metric]
            return max(0.0, float(known[line, line] + known[other, other] - 2 * known[line, other]))
        return self.variance_over_people(metric, line) + self.variance_over_people(metric, other)

    def over_seeds(self, values: Values, metric: str = "", people: float = 0.0) -> dict[str, float | None]:
        """The mean over seeds and its interval, within what the metric can be; two seeds tell too little."""
        mean, low, high = over_seeds(values, RESPLIT, people)
        if len(values) < LEAST_SEEDS:
            return interval(mean, math.nan, math.nan)
        return interval(mean, max(low, -1.0 if metric == "mcc" else 0.0), min(high, 1.0))


def _read_unfinished(folder: Path) -> Run | None:
    """What a run has measured so far, if it has begun and not finished."""
    begun = (folder / CONFIG).is_file() and not (folder / ROUNDS).exists() and not is_sweep(folder)
    return read_unfinished(folder) if begun else None


def _compared(run: Run) -> pd.DataFrame:
    """Of an unfinished run, its finished seeds or, if there is none, all rounds that all seeds have done."""
    rounds = run.rounds
    if not len(rounds):
        raise InputError(f"No metrics yet in '{run.out}': thresholds are chosen after the last round.")
    finished = [seed for seed, (last, planned) in run.progress.items() if last == planned]
    compared = rounds[rounds["seed"].isin(finished)]
    if not len(compared):
        compared = rounds[rounds["round"] <= min(rounds.groupby("seed")["round"].max())]
    return measured(compared, Path(str(run.out)))


def _read_rules(runs: Sequence[Run], added: Sequence[str]) -> dict[tuple[str, int], Mapping[str, Any]]:
    """What the models' files say of rules that were chosen after training."""
    return {
        (f"{name}{text}", seed): run.models[name, seed].about["rule"]
        for run, text in zip(runs, added, strict=True)
        for name, seed in run.models
        if any(f"+{rule}" in name for rule in RULES) and "rule" in run.models[name, seed].about
    }


def _folder_suffixes(runs: Sequence[Run]) -> list[str]:
    """What is added to strategies' names: the folder's, where folders have the same strategy and seed."""
    models = pd.concat([run.rounds[[*STRATEGY, "seed"]].drop_duplicates() for run in runs])
    is_repeated = bool(models.duplicated().any())
    return [f" [{run.out.name}]" if is_repeated and run.out is not None else "" for run in runs]


def _joined(frames: Sequence[pd.DataFrame], added: Sequence[str]) -> pd.DataFrame:
    if len(frames) == 1:
        return frames[0]
    renamed = [_renamed(frame, text) for frame, text in zip(frames, added, strict=True) if len(frame)]
    return pd.concat(renamed, ignore_index=True) if renamed else pd.DataFrame()


def _renamed(frame: pd.DataFrame, added: str) -> pd.DataFrame:
    return frame.assign(strategy=frame["strategy"] + added) if added else frame


def _keys(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """What tells each row's strategy from the others."""
    metrics = [metric if isinstance(metric, str) else "" for metric in frame["metric"]]
    return list(zip(frame["strategy"], metrics, frame["settings"], strict=True))


def finite(value: Any) -> float | None:
    """A number for JSON: nothing where it is undefined."""
    number = float(value)
    return number if math.isfinite(number) else None


def interval(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    """A value with the ends of its interval."""
    return {"value": finite(value), "low": finite(low), "high": finite(high)}
