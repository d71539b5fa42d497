"""A run, in memory or from its folder: the one object that everything else about it is made from."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Table
from fairfate.data.groups import Groups
from fairfate.errors import InputError, listing
from fairfate.experiments.baselines import BASELINES, PooledBaseline, read_baselines, write_baselines
from fairfate.experiments.config import HIDDEN, PROVENANCE, read_written
from fairfate.experiments.importances import Importance, read_importances
from fairfate.experiments.live import join_clients, read_live_seeds
from fairfate.experiments.people import Covariances, read_people
from fairfate.experiments.plan import Plan
from fairfate.experiments.store import Store, join_rounds
from fairfate.fairness.disclosure import MIN_CELL
from fairfate.models.fair_model import FairModel
from fairfate.models.mlp import parse_hidden
from fairfate.models.training import Training
from fairfate.models.user_network import Network, split
from fairfate.privacy.ledger import LEDGER, read_ledger
from fairfate.results.details import Final, read_final, write_final
from fairfate.results.folder import (
    BEST,
    CELLS,
    CLIENTS,
    CONFIG,
    CONFIGS,
    GROUPS,
    MODELS,
    REPORT,
    ROUNDS,
    SUMMARY,
    is_sweep,
    model_file,
    part_file,
    read_date,
)
from fairfate.results.recommendation import Candidate, RecommendedModel, assess, find_line, pick
from fairfate.results.summary import group_rates, row_names, summarise, write_csv
from fairfate.results.tables import (
    KEYS,
    empty_rounds,
    groups_in,
    read_clients,
    read_counted_rounds,
    read_rounds,
    write_rounds,
    write_table,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEPT = (
    "encode",
    "clients",
    "per-round",
    "validation-from",
    "min-cell",
    "privacy",
    "secure-sums",
    "min-sum",
    "rounds",
    "epochs",
    "batch-size",
    "learning-rate",
    "l2",
    "early-stopping",
    "hidden",
    "model",
)
"""What may differ between the runs of a sweep, beside data, partition, protocol and strategies."""
REFIT = "refit"
"""Says in a model's file that it was trained on all rows."""
USUAL = {"validation-from": "server"}
"""What a config says nothing of."""


class ModelFiles(Mapping[tuple[str, int], FairModel]):
    """The models of a run's folder by the strategy's name and the seed, each read when it is asked for."""

    def __init__(self, folder: Path, names: Sequence[str], seeds: Sequence[int], network: str | None) -> None:
        files = {(name, seed): folder / MODELS / model_file(name, seed) for name in names for seed in seeds}
        self.files, self.network = {key: file for key, file in files.items() if file.is_file()}, network

    def __getitem__(self, key: tuple[str, int]) -> FairModel:
        model = FairModel.load(self.files[key])
        if self.network is None:
            return model
        return replace(model, network=Network.read(self.network).model(model.schema).scores)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True, eq=False)
class Run:
    """A run, as `fairfate.run` returns it and `fairfate.load_run` reads it; or a part of a sweep.

    Examples
    --------
    >>> import fairfate
    >>> finished = fairfate.run(data="synthetic:rows=200", strategies="fedavg", rounds=2, seeds=2, jobs=1)
    >>> finished.names, finished.seeds
    (['fedavg'], [1, 2])
    >>> finished.model("fedavg", seed=1).labels
    ('not hired', 'hired')
    """

    config: Mapping[str, Any]
    """Its options, as ``config.toml`` has them."""
    grouping: Groups
    """The groups, by which rows are counted."""
    rounds: pd.DataFrame
    """Every metric of each strategy, seed, round and split."""
    clients: pd.DataFrame
    """Who took part in each round of each strategy and seed, and with what outcome; empty if not known."""
    out: Path | None
    """Its folder."""
    damaged: tuple[str, ...] = ()
    """Damaged files of an earlier attempt, whose results were computed again."""
    models: Mapping[tuple[str, int], FairModel] = field(default_factory=dict)
    """The models by the strategy's name in the tables and the seed."""
    final: Final | None = None
    """The released models' scores on the test rows, and their decisions at each client."""
    importances: tuple[Importance, ...] = ()
    """How much the recommended model relies on each column."""
    date: str = ""
    """The day of the run, if it has a folder."""
    baselines: tuple[PooledBaseline, ...] = ()
    """Models of the pooled rows, if they were asked for."""
    notes: tuple[str, ...] = ()
    """What was done to the data, and notes on the options."""
    outcome: str = ""
    """The favourable outcome, as in ``hired = yes``."""
    plan: Plan | None = None
    """The resolved options, if the run was made just now."""
    table: Table | None = None
    """The data, if the run was made just now."""
    name: str = ""
    """Of a part of a sweep: dataset, partition and protocol."""
    title: str = ""
    """The options in which a part of a sweep differs from the others."""
    ledger: pd.DataFrame = field(default_factory=pd.DataFrame)
    """What clients have released under differential privacy; empty without."""
    progress: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """For each seed of an unfinished run, the last recorded round and the planned number."""
    refitted: FairModel | None = None
    """The recommended strategy's model of all rows, if it was asked for; nothing is left to test it."""
    people: Covariances | None = None
    """How the strategies' means over seeds vary and covary over people, where all seeds have the same test
    rows."""

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row for each strategy: means and standard deviations over seeds on the test rows."""
        return summarise(self.rounds)

    @property
    def metric(self) -> str:
        """The objective of strategies that name none."""
        return str(self.config.get("metric", "eqo"))

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Each strategy's result on the validation rows, and why it is rejected, if it is."""
        return assess(self.rounds, self.metric, self.grouping)

    @property
    def best(self) -> RecommendedModel | None:
        """The recommended model, chosen on the validation rows; None if none can be recommended."""
        return pick(self.candidates)

    @property
    def names(self) -> list[str]:
        """The strategies' names in tables."""
        return row_names(self.summary)

    @property
    def seeds(self) -> list[int]:
        """The seeds, in the order in which they were asked for."""
        return [int(seed) for seed in self.rounds["seed"].unique()]

    def model(self, strategy: str | None = None, seed: int | None = None) -> FairModel:
        """The model of a strategy and seed, or the recommended one.

        Parameters
        ----------
        strategy : its name in the tables
        seed : one of the run's; the first if only a strategy is given

        Returns
        -------
        the model

        Examples
        --------
        >>> import fairfate
        >>> run = fairfate.run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
        >>> run.model("fedavg").groups
        ('female', 'male')
        """
        names, best = self.names, self.best
        if strategy is None and seed is None:
            if best is None:
                raise InputError("strategy must be given, since no model can be recommended")
            return self.models[best.name, best.seed] if self.refitted is None else self.refitted
        line = find_line(names, [str(text) for text in self.config["strategy"]], strategy)
        chosen = self.seeds[0] if seed is None else seed
        if (names[line], chosen) not in self.models:
            raise InputError(f"seed must be one of the run's ({listing(self.seeds)}), got {chosen}")
        return self.models[names[line], chosen]

    def plot(
        self,
        *metrics: str | Sequence[str],
        width: str | float | None = None,
        font_size: float = 10.0,
        title: bool = True,
    ) -> Figure:
        """Metrics over the rounds, as a figure that a notebook shows.

        Parameters
        ----------
        metrics : names or objectives, one by one or in a list; accuracy, sp, eo and eqo if none are given
        width : of the figure in inches, or with a unit such as ``"9cm"``; as the panels need if None
        font_size : in points
        title : whether there is one

        Returns
        -------
        a figure of Matplotlib; a notebook shows it

        Examples
        --------
        >>> import fairfate
        >>> run = fairfate.run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
        >>> len(run.plot("accuracy", "eqo").axes)
        2
        """
        from fairfate.report.canvas import Style, parse_length
        from fairfate.report.figures import over_rounds  # the report is made from runs

        listed = [metric for given in metrics for metric in ([given] if isinstance(given, str) else given)]
        shown = listed or ("accuracy", "sp", "eo", "eqo")
        inches = parse_length(width) if isinstance(width, str) else width
        return over_rounds(self.rounds, shown, self.grouping, Style(inches, font_size, title))

    def report(
        self,
        out: str | Path | None = None,
        *,
        fair_from: float = 0.8,
        min_cell: int = MIN_CELL,
        force: bool = False,
    ) -> Path:
        """Write the run's report as an HTML page, by default into its folder.

        Parameters
        ----------
        out : HTML file; the same as JSON and CSV goes beside it
        fair_from : the fairness threshold: the ratio that groups' rates should reach
        min_cell : the least count of people that is shown; 0 for all
        force : whether ``out`` may exist, and is replaced

        Returns
        -------
        the HTML file

        Examples
        --------
        >>> import fairfate
        >>> run = fairfate.run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
        >>> import tempfile
        >>> run.report(tempfile.mkdtemp() + "/report.html").name
        'report.html'
        """
        from fairfate.report.data import ReportData  # the report is made from runs
        from fairfate.report.page import write_report

        if out is None and self.out is None:
            raise InputError("out must be an HTML file for a run without a folder")
        path = Path(out) if out is not None else Path(str(self.out)) / REPORT
        return write_report(
            [ReportData.from_runs([self], min_cell)], path, fair_from, force=force or out is None
        )

    def __repr__(self) -> str:
        """One line."""
        data, names, best = self.rounds["dataset"].iloc[0], ", ".join(self.names), self.best
        recommended = "none can be recommended" if best is None else f"{best.name}, seed {best.seed}"
        return f"<Run on {data}: {names}; {len(self.seeds)} seeds; recommended: {recommended}>"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        shown = ["accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo"]
        table = self.summary[["strategy", *(f"{name}_last_mean" for name in shown)]]
        table = table.rename(columns={f"{name}_last_mean": name for name in shown})
        return f"<p>{html.escape(repr(self))}</p>{table.round(3).to_html(index=False)}"

    def predict(self, frame: Any, **options: Any) -> NDArray[Any]:
        """The outcomes that the recommended model decides for new rows.

        Parameters
        ----------
        frame, options : see `FairModel.predict`

        Returns
        -------
        (rows,) of the model's labels

        Examples
        --------
        >>> import fairfate, numpy as np, pandas as pd
        >>> score = np.random.default_rng(0).normal(size=600)
        >>> hired = np.where(score > 0, "yes", "no")
        >>> frame = pd.DataFrame({"score": score, "sex": ["f", "m"] * 300, "hired": hired})
        >>> columns = {"target": "hired", "favourable": "yes", "sensitive": "sex"}
        >>> run = fairfate.run(data=frame, **columns, strategies="fedavg", rounds=20, seeds=1, jobs=1)
        >>> run.predict(frame.drop(columns="hired")[:3]).shape
        (3,)
        """
        return self.model().predict(frame, **options)

    @cached_property
    def groups(self) -> pd.DataFrame:
        """Each group's rows, selection rate and error rates under each strategy, with 95 % intervals."""
        return group_rates(self.rounds, self.grouping)


def write_results(run: Run, folder: Path) -> None:
    """Write the tables of a run but its summary, which comes last: it means that the run has finished."""
    if run.baselines:
        write_baselines(folder / BASELINES, run.baselines)
    write_rounds(folder / ROUNDS, run.rounds, run.grouping)
    write_table(folder / CLIENTS, run.clients, CLIENTS)
    if run.final is not None:
        write_final(folder, run.final)
    if len(run.rounds):
        write_csv(folder / GROUPS, run.groups)


def load_run(folder: str | Path, model: str | None = None) -> Run:
    """Read a finished run from its folder: the same `Run` that `fairfate.run` returned.

    Parameters
    ----------
    folder : where the run was saved
    model : for a run with a network of your own, ``FILE.py:FUNCTION`` as for the run, since files of a run
        hold no code

    Returns
    -------
    the run

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
    return _read_run(path, model)


def read_runs(folder: Path) -> Iterator[Run]:
    """A finished run, or each part of a sweep, one after another, so that memory stays small."""
    if is_sweep(folder):
        yield from _read_sweep(folder)
    else:
        yield _read_run(folder)


def _read_run(path: Path, network: str | None = None) -> Run:
    """A run from its folder, or from its table of rounds there."""
    rounds, grouping = read_counted_rounds(path)
    folder = path if path.is_dir() else path.parent
    config = read_written(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    has_clients = (folder / CLIENTS).is_file()
    run = Run(
        config,
        grouping,
        measured(rounds, path),
        read_clients(folder) if has_clients else pd.DataFrame(),
        folder,
        final=read_final(folder, len(grouping)),
        importances=read_importances(folder),
        refitted=_read_refitted(folder / MODELS / BEST),
        people=read_people(folder, len(summarise(rounds))),
        date=read_date(folder),
        baselines=read_baselines(folder),
        notes=_read_notes(config),
        ledger=read_ledger(folder / LEDGER),
    )
    models = ModelFiles(folder, run.names, run.seeds, network)
    outcome = ""
    for key in list(models)[:1]:
        with suppress(InputError, OSError):
            schema = FairModel.load(models.files[key]).schema
            outcome = f"{schema.target} = {schema.labels[1]}"
    return replace(run, models=models, outcome=outcome)


def measured(rounds: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The same, if every strategy and seed has one row of test rows in the last round."""
    last = rounds[(rounds["split"] == "test") & (rounds["round"] == rounds["round"].max())]
    lines, tested = (len(rows[[*KEYS, "seed"]].drop_duplicates()) for rows in (rounds, last))
    if not len(rounds) or not lines == tested == len(last):
        raise InputError(
            "run must hold one measurement on test rows for every strategy and seed in the last round, got"
            f" {len(last)} for {lines} in '{folder}'"
        )
    return rounds


def read_unfinished(folder: str | Path) -> Run | None:
    """All that an unfinished run's folder holds: finished seeds, and the others as far as they are.

    Nothing is written, nothing is locked, and files may come and go meanwhile. The rounds may be none, where
    every strategy is measured after the last round only; examples and metrics of clients are there for
    finished seeds only.

    Returns
    -------
    None if the run is finished: `read_runs` reads it then.
    """
    path = Path(folder)
    try:
        config = read_written(path / CONFIG)
    except (OSError, InputError):
        raise InputError(f"run must be the folder of a run, got '{path}' (no readable {CONFIG})") from None
    live = {
        live_seed.seed: live_seed for live_seed in read_live_seeds(path)
    }  # first, since a seed's end removes it last
    whole: dict[int, list[tuple[dict[str, Any], pd.DataFrame]]] = {}
    for header, rounds in Store(path / CELLS).whole():
        whole.setdefault(int(header["cell"]["seed"]), []).append((header, rounds))
    for seed, now in live.items():  # a plugin's strategies have a file of their own, perhaps not yet written
        if seed in whole and sum(len(header["specs"]) for header, _ in whole[seed]) < now.strategies:
            del whole[seed]
    seeds = list(dict.fromkeys([*map(int, config.get("seeds", ())), *sorted({*whole, *live})]))
    clients = [
        _part(part_file(path, seed)) if seed in whole else live[seed].clients
        for seed in seeds
        if seed in whole or seed in live
    ]
    if (path / SUMMARY).exists():
        return None
    if not whole and not live:
        raise InputError(f"No results yet in '{folder}'; try again in a few seconds.")
    headers = [header for files in whole.values() for header, _ in files]
    groups = groups_in(headers[0]) if headers else next(iter(live.values())).groups
    asked = _asked(config, [(None, header) for header in headers])
    frames = [join_rounds(whole[seed], asked) for seed in seeds if seed in whole]
    frames += [live[seed].rounds for seed in seeds if seed in live and seed not in whole]
    frames = [frame for frame in frames if len(frame)]
    planned = int(config.get("rounds", 0)) or max(
        (live_seed.planned for live_seed in live.values()), default=0
    )
    rounds_done = dict.fromkeys(seeds, 0) | {seed: now.rounds_done for seed, now in live.items()}
    rounds_done |= dict.fromkeys(whole, planned)
    return Run(
        config,
        groups,
        pd.concat(frames, ignore_index=True) if frames else empty_rounds(groups),
        join_clients(clients),
        path,
        notes=_read_notes(config),
        progress={seed: (rounds_done[seed], planned) for seed in seeds},
    )


def _part(file: Path) -> pd.DataFrame:
    try:
        return read_clients(file)
    except InputError:  # gone meanwhile
        return pd.DataFrame()


def _read_refitted(file: Path) -> FairModel | None:
    """The recommended model, if it is one of all rows; a damaged file is found when a model is asked for."""
    if not file.is_file():
        return None
    try:
        model = FairModel.load(file)
    except InputError:
        return None
    return model if REFIT in model.about else None


def _read_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a config says was done to the data."""
    return tuple(map(str, config.get(PROVENANCE, {}).get("data-notes", ())))


def _read_sweep(folder: Path) -> Iterator[Run]:
    store = Store(folder / CELLS)
    damaged = [path.name for path in store.damaged]
    if damaged:
        raise InputError(f"'{folder / CELLS / damaged[0]}' is damaged; run the sweep again.")
    store.index()
    configs = [read_written(file) for file in sorted((folder / CONFIGS).glob("*.toml"))]
    differing = [key for key in SWEPT if len({str(config.get(key)) for config in configs}) > 1]
    names: list[str] = []
    for config in configs:
        files = _files(store, config)
        if not files:
            continue
        rounds = join_rounds([(header, read_rounds(path)) for path, header in files], _asked(config, files))
        if not len(rounds):
            continue
        name = files[0][0].stem.rpartition("_seed-")[0]
        names.append(name)
        same = names.count(name)
        yield Run(
            config,
            groups_in(files[0][1]),
            measured(rounds, folder),
            pd.DataFrame(),
            None,
            name=name if same == 1 else f"{name}-{same}",
            title=", ".join(f"{key} {config.get(key, USUAL.get(key))}" for key in differing),
        )
    if not names:
        raise InputError(f"No job of the sweep in '{folder}' has finished yet.")


def _asked(config: Mapping[str, Any], files: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[str]:
    """The strategies of a config in its order; those of the files where it names none."""
    named = list(map(str, config.get("strategy") or ()))
    return named or list(dict.fromkeys(text for _, header in files for text in header["specs"]))


def _files(store: Store, config: Mapping[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """The cells that a config made; of a strategy whose code was edited, those of the version it names."""
    about = config.get(PROVENANCE, {})
    codes = {str(value).removeprefix("sha256:") for key, value in about.items() if key.startswith("plugin ")}
    own = [(path, header) for path, header in store.indexed if _belongs(header["cell"], config)]
    own.sort(key=lambda file: (file[1]["code"] in codes, file[0].stat().st_mtime), reverse=True)
    taken: dict[tuple[int, str], str] = {}
    files = []
    for path, header in own:
        keys = [(header["cell"]["seed"], text) for text in header["specs"]]
        if all(taken.setdefault(key, header["code"]) == header["code"] for key in keys):
            files.append((path, header))
    return sorted(files, key=lambda file: file[0])


def _belongs(cell: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a cell was made by this config, and not by an earlier one."""
    names = ["partition", "protocol", "clients", *(field.name for field in fields(Training))]
    wanted = {name: config.get(name.replace("_", "-")) or None for name in names}  # what is off is left out
    about = config.get(PROVENANCE, {})
    wanted["version"] = about.get("version")
    wanted["data-checksum"] = str(about.get("data-checksum", "")).removeprefix("sha256:")
    wanted["validation-from"] = config.get("validation-from")  # none of both stands for the server
    wanted["min-cell"] = config.get("min-cell") or None
    wanted["secure-sums"] = config.get("min-sum") if config.get("secure-sums") else None
    wanted["hidden"] = list(parse_hidden(str(config.get("hidden", HIDDEN))))
    wanted["attack"] = config.get("attack")
    wanted["privacy"] = config.get("privacy")
    if "model" in config:
        wanted["model"] = f"{split(config['model'])[1]} {about.get('model')}"
    same = cell.get("model") == wanted.get("model") and all(
        cell.get(key) == value for key, value in wanted.items()
    )
    return same and cell["seed"] in config.get("seeds", ())
