"""A finished run, and what can be asked of it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.errors import InputError, listing
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.lazy import pandas as pd
from fairfate.models.fitted import FairModel
from fairfate.runs.baselines import Baseline
from fairfate.runs.choice import Choice, find_line
from fairfate.runs.final import Final
from fairfate.runs.groups import group_rates
from fairfate.runs.importances import Importance
from fairfate.runs.plan import Plan
from fairfate.runs.results import REPORT
from fairfate.strategies import labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    plan: Plan
    table: Table
    rounds: pd.DataFrame
    summary: pd.DataFrame
    clients: pd.DataFrame
    """Who took part in each round of each strategy and seed, and what became of it."""
    out: Path | None
    damaged: tuple[str, ...] = ()
    """Files of an earlier attempt that were damaged and have been run again."""
    models: Mapping[tuple[str, int], FairModel] = field(default_factory=dict)
    """The models by the strategy's name in the tables and the seed."""
    best: Choice | None = None
    """The recommended model, chosen on the validation rows; None if none can be recommended."""
    final: Final | None = None
    """The released models' scores on the test rows, and their decisions at each client."""
    importances: tuple[Importance, ...] = ()
    """How much the recommended model relies on each column."""
    date: str = ""
    """The day of the run, where it has a folder."""
    baselines: tuple[Baseline, ...] = ()
    """Models of the pooled rows, where they were asked for."""

    def model(self, strategy: str | None = None, seed: int | None = None) -> FairModel:
        """A model: of the strategy and seed named, or the one to take."""
        names = labels(self.plan.specs)
        if strategy is None and seed is None:
            if self.best is None:
                raise InputError("strategy must be given, since no model can be recommended, got none")
            return self.models[names[self.best.line], self.best.seed]
        line = find_line(names, [spec.text for spec in self.plan.specs], strategy)
        chosen = self.plan.config.seeds[0] if seed is None else seed
        if (names[line], chosen) not in self.models:
            known = listing(self.plan.config.seeds)
            raise InputError(f"seed must be one of the run's ({known}), got {chosen}")
        return self.models[names[line], chosen]

    def plot(
        self,
        *metrics: str | Sequence[str],
        width: float | None = None,
        font_size: float = 10.0,
        title: bool = True,
    ) -> Figure:
        """Metrics over the rounds, as a figure that a notebook shows.

        Parameters
        ----------
        metrics : names or objectives, one by one or in a list; accuracy, sp, eo and eqo if none are given
        width : of the figure in inches; as the panels need if None
        font_size : in points
        title : whether there is one
        """
        from fairfate.report.figures import over_rounds  # the report is made from runs
        from fairfate.report.style import Style

        listed = [metric for given in metrics for metric in ([given] if isinstance(given, str) else given)]
        shown = listed or ("accuracy", "sp", "eo", "eqo")
        return over_rounds(self.rounds, shown, self.table.grouping, Style(width, font_size, title))

    def report(
        self,
        out: str | Path | None = None,
        *,
        fair_from: float = 0.8,
        min_cell: int = MIN_CELL,
        force: bool = False,
    ) -> Path:
        """Write a page about the run that anybody can read; into its folder unless another file is named.

        Parameters
        ----------
        out : HTML file; the same as JSON and CSV goes beside it
        fair_from : the ratio of groups' rates that counts as enough
        min_cell : the least count of people that is shown; 0 for all
        force : whether ``out`` may exist, and is replaced
        """
        from fairfate.report.material import Material  # the report is made from runs
        from fairfate.report.write import write_report

        if out is None and self.out is None:
            raise InputError("out must be an HTML file for a run without a folder, got none")
        path = Path(out) if out is not None else Path(str(self.out)) / REPORT
        return write_report([Material.of(self, min_cell)], path, fair_from, force=force or out is None)

    def __repr__(self) -> str:
        """A few lines."""
        names = ", ".join(labels(self.plan.specs))
        best = "none can be recommended" if self.best is None else f"{self.best.name}, seed {self.best.seed}"
        return (
            f"<Run on {self.table.name}: {names}; {len(self.plan.config.seeds)} seeds; recommended: {best}>"
        )

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        shown = ["accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo"]
        table = self.summary[["strategy", *(f"{name}_last_mean" for name in shown)]]
        table = table.rename(columns={f"{name}_last_mean": name for name in shown})
        return f"<p>{html.escape(repr(self))}</p>{table.round(3).to_html(index=False)}"

    def predict(self, frame: Any, **options: Any) -> NDArray[Any]:
        """The outcomes that the model to take decides for new rows; see `FairModel.predict`."""
        return self.model().predict(frame, **options)

    @property
    def groups(self) -> pd.DataFrame:
        """What each strategy does to each group: rows, acceptance, error rates, with 95 % intervals."""
        return group_rates(self.rounds, self.table.grouping)
