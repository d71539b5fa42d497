"""A finished run, and what can be asked of it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing
from fairfate.experiments.baselines import Baseline, read_baselines
from fairfate.experiments.choice import Choice, choose, find_line
from fairfate.experiments.config import read_written
from fairfate.experiments.final import Final, read_final
from fairfate.experiments.folders import is_sweep, read_notes
from fairfate.experiments.groups import group_rates
from fairfate.experiments.importances import Importance, read_importances
from fairfate.experiments.plan import Plan
from fairfate.experiments.results import (
    BEST,
    CONFIG,
    MODELS,
    REPORT,
    SUMMARY,
    read_clients,
    read_date,
    read_groups,
    read_rounds,
    row_names,
    summarise,
)
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.models.fair_model import FairModel
from fairfate.models.user_network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run, as `fairfate.run` returns it and `fairfate.load_run` reads it."""

    config: Mapping[str, Any]
    """Its options, as ``config.toml`` has them."""
    grouping: Groups
    """What its counts are counted by."""
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
    notes: tuple[str, ...] = ()
    """What was done to the data and is said of the options."""
    outcome: str = ""
    """The favourable one, as in ``hired = yes``."""
    plan: Plan | None = None
    table: Table | None = None
    """What a run that has just been made was made from."""

    @property
    def names(self) -> list[str]:
        """The strategies' names in tables."""
        return row_names(self.summary)

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order in which they were asked for."""
        return [int(seed) for seed in self.rounds["seed"].unique()]

    def model(self, strategy: str | None = None, seed: int | None = None) -> FairModel:
        """A model: of the strategy and seed named, or the recommended one."""
        names = self.names
        if strategy is None and seed is None:
            if self.best is None:
                raise InputError("strategy must be given, since no model can be recommended, got none")
            return self.models[names[self.best.line], self.best.seed]
        line = find_line(names, [str(text) for text in self.config["strategy"]], strategy)
        chosen = self.seeds[0] if seed is None else seed
        if (names[line], chosen) not in self.models:
            raise InputError(f"seed must be one of the run's ({listing(self.seeds)}), got {chosen}")
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
        return over_rounds(self.rounds, shown, self.grouping, Style(width, font_size, title))

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
        data, names = self.rounds["dataset"].iloc[0], ", ".join(self.names)
        best = "none can be recommended" if self.best is None else f"{self.best.name}, seed {self.best.seed}"
        return f"<Run on {data}: {names}; {len(self.seeds)} seeds; recommended: {best}>"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        shown = ["accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo"]
        table = self.summary[["strategy", *(f"{name}_last_mean" for name in shown)]]
        table = table.rename(columns={f"{name}_last_mean": name for name in shown})
        return f"<p>{html.escape(repr(self))}</p>{table.round(3).to_html(index=False)}"

    def predict(self, frame: Any, **options: Any) -> NDArray[Any]:
        """The outcomes that the recommended model decides for new rows; see `FairModel.predict`."""
        return self.model().predict(frame, **options)

    @property
    def groups(self) -> pd.DataFrame:
        """What each strategy does to each group: rows, acceptance, error rates, with 95 % intervals."""
        return group_rates(self.rounds, self.grouping)


def load_run(folder: str | Path, model: str | None = None) -> Run:
    """Read a finished run from its folder: the same `Run` that `fairfate.run` returned.

    Parameters
    ----------
    folder : where the run was saved
    model : for a run with a network of your own, ``FILE.py:FUNCTION`` as for the run; no file brings its
        code along

    Examples
    --------
    >>> import fairfate, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = fairfate.run(data="synthetic:rows=300", rounds=2, seeds=1, out=f"{folder}/run")
    >>> fairfate.load_run(f"{folder}/run").seeds
    [1]
    """
    path = Path(folder)
    if is_sweep(path) or not (path / SUMMARY).is_file():
        what = "one of a sweep" if is_sweep(path) else f"no {SUMMARY}"
        raise InputError(f"run must be the folder of a finished run, got '{folder}' ({what})")
    config, rounds, grouping = read_written(path / CONFIG), read_rounds(path), read_groups(path)
    if grouping is None:
        raise InputError(f"run must hold counts by group, got '{folder}'")
    summary = summarise(rounds)
    models = _load_models(path, config, row_names(summary), model)
    schema = next(iter(models.values())).schema if models else None
    return Run(
        config,
        grouping,
        rounds,
        summary,
        read_clients(path),
        path,
        models=models,
        best=choose(rounds, str(config["metric"]), grouping),
        final=read_final(path, groups=len(grouping)),
        importances=read_importances(path),
        date=read_date(path),
        baselines=read_baselines(path),
        notes=read_notes(config),
        outcome="" if schema is None else f"{schema.target} = {schema.labels[1]}",
    )


def _load_models(
    folder: Path, config: Mapping[str, Any], names: Sequence[str], network: str | None
) -> dict[tuple[str, int], FairModel]:
    """The models of a run's folder, by the strategy's name and the seed."""
    names_of = dict(zip(config["strategy"], names, strict=True))
    models = {}
    for file in sorted((folder / MODELS).glob("*.safetensors")):
        if file.name == BEST:
            continue
        model = FairModel.load(file)
        if network is not None:
            model = replace(model, network=Network.read(network).model(model.schema).scores)
        name = names_of.get(str(model.about.get("strategy")))
        if name is not None:
            models[name, int(model.about["seed"])] = model
    return models
