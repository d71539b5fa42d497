"""All that runs have left, gathered for a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.errors import InputError, check
from fairfate.experiments.choice import Choice
from fairfate.experiments.config import read_written
from fairfate.experiments.final import Final, histograms_of, read_final
from fairfate.experiments.finished import Run
from fairfate.experiments.folders import Unfinished, is_sweep, measured, read_unfinished
from fairfate.experiments.results import (
    BEST,
    CLIENTS,
    CONFIG,
    MODELS,
    ROUNDS,
    counts_of,
    is_untrained,
    read_clients,
)
from fairfate.experiments.sheet import Sheet
from fairfate.fairness.disclosure import MIN_CELL, is_small, round_histograms, show_counts
from fairfate.fairness.intervals import over_seeds
from fairfate.fairness.metrics import METRICS, CellRows, Counts, Values
from fairfate.fairness.objective import MIN_PEOPLE, bind, fairness_by
from fairfate.fairness.thresholds import auc
from fairfate.report.audit import Audit, audits, crossings
from fairfate.report.comparison import Comparison, text

LEAST_SEEDS = 3
"""For an interval over seeds."""


@dataclass(frozen=True, eq=False)
class Material:
    """Strategies on the same data, and everything that is known of them."""

    comparison: Comparison
    configs: tuple[Mapping[str, Any], ...]
    """Of each folder; empty where it holds none."""
    clients: pd.DataFrame
    """Who took part in each round; empty where that is not known."""
    final: Final | None
    """The released models in detail, where that is known."""
    progress: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """For each seed of an unfinished run, how many rounds it has done, and of how many."""
    begun: pd.DataFrame | None = None
    """All rounds of an unfinished run; those that are compared are of as many rounds in every seed."""
    min_cell: int = MIN_CELL
    """The least count that a report shows; 0 for all."""

    @classmethod
    def of(cls, run: Run, min_cell: int = MIN_CELL) -> Material:
        """Of a run that has just finished."""
        check(min_cell >= 0, "min-cell must be >= 0", min_cell)
        found = Comparison.of(run)
        return cls(found, (run.config,), run.clients, run.final, min_cell=min_cell)

    @classmethod
    def read(cls, folders: Sequence[Path], min_cell: int = MIN_CELL) -> list[Material]:
        """Of runs' and sweeps' folders, also of runs that have not finished.

        Runs on the same data, split alike, are one.
        """
        check(min_cell >= 0, "min-cell must be >= 0", min_cell)
        unfinished = {folder: found for folder in folders if (found := _unfinished(folder)) is not None}
        finished = [folder for folder in folders if folder not in unfinished]
        together = [cls._of(found) for found in Comparison.read(finished)]
        begun = [cls._begun(folder, found) for folder, found in unfinished.items()]
        return [replace(found, min_cell=min_cell) for found in (*together, *begun)]

    @classmethod
    def _begun(cls, folder: Path, found: Unfinished) -> Material:
        """Of a run that goes on, or was interrupted: its finished seeds or, if there is none, all so far."""
        rounds, progress = found.rounds, found.progress
        if not len(rounds):
            raise InputError(
                f"run must have measured a model, got '{folder}', whose strategies are at the end"
            )
        done = [seed for seed, (last, of) in progress.items() if last == of]
        compared = rounds[rounds["seed"].isin(done)]
        if not len(compared):
            common = min(rounds.groupby("seed")["round"].max())
            compared = rounds[rounds["round"] <= common]
        sources = ((folder, ""),)
        sheet = measured(Sheet.of_frame(compared), folder)
        comparison = Comparison(sheet, found.metric, found.notes, found.groups, sources=sources)
        return cls(comparison, (read_written(folder / CONFIG),), found.clients, None, progress, rounds)

    @classmethod
    def _of(cls, found: Comparison) -> Material:
        configs, clients, finals = [], [], []
        for path, added in found.sources:
            folder = path if path.is_dir() else path.parent
            configs.append(read_written(folder / CONFIG) if (folder / CONFIG).is_file() else {})
            if (folder / CLIENTS).is_file():
                clients.append(_named(read_clients(folder), added))
            final = read_final(folder, groups=None if found.groups is None else len(found.groups))
            if final is not None:
                local = None if final.local is None else _named(final.local, added)
                finals.append(Final(_named(final.scores, added), local))
        final = Final.together(finals) if finals else None
        together = pd.concat(clients, ignore_index=True) if clients else pd.DataFrame()
        return cls(found, tuple(configs), together, final)

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
        return np.stack([round_histograms(of_model, self.min_cell) for of_model in histograms])

    @property
    def model_file(self) -> str | None:
        """The file of the model to take, within the run's folder."""
        if len(self.comparison.sources) != 1:
            return None
        folder = self.comparison.sources[0][0] / MODELS
        files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
        if len(files) == 1 or (folder / BEST) in files:
            return f"{MODELS}/{BEST if (folder / BEST) in files else files[0].name}"
        return None

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups' names."""
        return () if self.comparison.groups is None else self.comparison.groups.names

    @property
    def names(self) -> list[str]:
        """Of the strategies."""
        return self.comparison.names

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds, in the order of the run."""
        return [int(seed) for seed in dict.fromkeys(self.rounds["seed"])]

    @property
    def rounds(self) -> pd.DataFrame:
        """All rounds that can be drawn."""
        return self.comparison.rounds.frame if self.begun is None else self.begun

    @cached_property
    def to_take(self) -> Choice | None:
        """The recommended model; none before the run has finished."""
        return None if self.progress else self.comparison.recommended

    @property
    def shown(self) -> tuple[int, int]:
        """The model that the report is about: the recommended one, or the first strategy's."""
        best, judged = self.comparison.recommended, self.comparison.judged
        if best is not None:
            return best.line, best.seed
        return 0, judged[0].seed if judged else int(self.comparison.rounds["seed"][0])

    @cached_property
    def last(self) -> pd.DataFrame:
        """The test rows of the last round, a row for each model, by strategy and seed."""
        last = self.comparison.last_rounds.frame
        order = {seed: place for place, seed in enumerate(self.seeds)}
        by = np.lexsort((last["seed"].map(order).to_numpy(), self.line_of(last)))
        return last.iloc[by].reset_index(drop=True)

    @cached_property
    def models(self) -> list[tuple[int, int]]:
        """The models that were measured in the last round: strategies and seeds."""
        return list(zip(self.line_of(self.last).tolist(), map(int, self.last["seed"]), strict=True))

    def is_untrained(self, place: int) -> bool:
        """Whether no round of a model counted."""
        return bool(is_untrained(self.last.iloc[[place]])[0])

    @cached_property
    def counts(self) -> Counts:
        """(models, groups, 2, 2) the models on the test rows."""
        return counts_of(self.last)

    @cached_property
    def auc(self) -> Values:
        """(models,) the area under the ROC curve on the test rows; NaN where scores are not known."""
        if self.final is None:
            return np.full(len(self.models), np.nan)
        first = self.final.scores[self.final.scores["bin"] == 0]
        order = list(zip(self.line_of(first).tolist(), map(int, first["seed"]), strict=True))
        areas = dict(zip(order, auc(histograms_of(self.final.scores)), strict=True))
        return np.array([areas.get(model, np.nan) for model in self.models])

    def per_seed(self, metric: str, line: int) -> Values:
        """A metric or an objective of a strategy's models."""
        places = self.of_line(line)
        if metric == "auc":
            return self.auc[places]
        if metric in self.last:
            return self.last[metric].to_numpy(dtype=np.float64)[places]
        assert self.comparison.groups is not None
        return np.asarray(bind(metric, self.comparison.groups)(self.counts[places]))

    @cached_property
    def audits(self) -> list[Audit]:
        """What each model does to each group; empty for runs of older versions."""
        groups = self.comparison.groups
        return [] if groups is None else audits(self.counts, groups, self.min_cell)

    @property
    def place_of_shown(self) -> int:
        """Where the model shown is among the models."""
        return self.models.index(self.shown) if self.shown in self.models else 0

    @property
    def rows_of_shown(self) -> dict[str, int]:
        """The rows of each split that the model shown is measured on."""
        rounds, (_, seed) = self.comparison.rounds, self.shown
        mine = rounds.where((rounds["round"] == self.comparison.last) & (rounds["seed"] == seed))
        first = mine.where(mine.numbered("split")[1])
        return dict(zip(first["split"], map(int, counts_of(first).sum(axis=(1, 2, 3))), strict=True))

    @property
    def majority(self) -> float:
        """The accuracy of one answer for all on the test rows of the model shown."""
        if self.comparison.groups is None:
            return float("nan")
        labels = self.counts[self.place_of_shown].sum(axis=(0, 2))
        return float(labels.max() / labels.sum())

    @property
    def cuts(self) -> list[float] | None:
        """The thresholds of the model shown, as probabilities, by group."""
        if self.final is None:
            return None
        scores, (line, seed) = self.final.scores, self.shown
        mine = scores[(self.line_of(scores) == line) & (scores["seed"] == seed)]
        columns = [name for name in scores.columns if str(name).startswith("cut_")]
        return [float(cut) for cut in mine[columns].iloc[0]] if len(mine) else None

    @cached_property
    def fairness(self) -> dict[str, dict[str, Values]]:
        """For each attribute and fairness metric, (models,) its values by the rule of the audit."""
        groups = self.comparison.groups
        if groups is None:
            return {}
        return {" x ".join(of): fairness_by(self.counts, groups, of, self.least) for of in crossings(groups)}

    def of_line(self, line: int) -> list[int]:
        """The places of a strategy's models."""
        return [place for place, (of, _) in enumerate(self.models) if of == line]

    def line_of(self, frame: pd.DataFrame) -> NDArray[np.int64]:
        """The number of the strategy of each row."""
        rows = _lines(frame)
        return np.array([self._places.get(row, -1) for row in rows], dtype=np.int64)

    @cached_property
    def _places(self) -> dict[tuple[str, str, str], int]:
        return {row: number for number, row in enumerate(_lines(self.comparison.summary))}


def _lines(frame: pd.DataFrame | Sheet) -> Iterator[tuple[str, str, str]]:
    """What tells each row's strategy from the others."""
    strategy, metric, settings = (frame[name].tolist() for name in ("strategy", "metric", "settings"))
    return zip(strategy, map(text, metric), settings, strict=True)


def _unfinished(folder: Path) -> Unfinished | None:
    """What a run has found so far, if it has begun and not finished."""
    begun = (folder / CONFIG).is_file() and not (folder / ROUNDS).exists() and not is_sweep(folder)
    return read_unfinished(folder) if begun else None


def _named(frame: pd.DataFrame, added: str) -> pd.DataFrame:
    return frame.assign(strategy=frame["strategy"] + added) if added and len(frame) else frame


def finite(value: Any) -> float | None:
    """A number for JSON: nothing where it is undefined."""
    found = float(value)
    return found if math.isfinite(found) else None


def interval(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    """A value with the ends of its interval."""
    return {"value": finite(value), "low": finite(low), "high": finite(high)}


def seeds_of(found: Material, values: Values, metric: str = "") -> dict[str, float | None]:
    """The mean over seeds and its interval, within what the metric can be; two seeds tell too little."""
    mean, low, high = over_seeds(values, found.comparison.test_to_train)
    if len(values) < LEAST_SEEDS:
        return interval(mean, math.nan, math.nan)
    return interval(mean, max(low, -1.0 if metric == "mcc" else 0.0), min(high, 1.0))
