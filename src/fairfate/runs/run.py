"""One run: strategies compared on one dataset and partition, over several seeds."""

from __future__ import annotations

import html
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data import Schema, Table, load
from fairfate.errors import InputError, check, listing
from fairfate.fairness.metrics import CellRows
from fairfate.fairness.objective import check_defined
from fairfate.federation.split import build, split_rows
from fairfate.federation.streams import Streams
from fairfate.files import locked, remove_unfinished, write_bytes
from fairfate.models.fitted import FairModel
from fairfate.runs import results
from fairfate.runs.choice import Choice, choose, find_line
from fairfate.runs.config import PROVENANCE, Config, fields_given, from_mapping
from fairfate.runs.groups import GROUPS, group_rates, write_groups
from fairfate.runs.job import Cell, clear_tables, fitted, load_table, perform, ready, run_cell, table_of
from fairfate.runs.plan import Plan, dump_config, resolve
from fairfate.runs.pool import Progress, Report, cores
from fairfate.runs.results import BEST, CELLS, CLIENTS, CONFIG, CONFIGS, MODELS, ROUNDS, SUMMARY
from fairfate.runs.store import Store, file_checksum
from fairfate.strategies import THRESHOLDS, Setup, Spec, labels, load_plugin

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS, CHECKPOINTS = "clients", "checkpoints"
"""Folders for the records of finished seeds, and for what is needed to go on in unfinished ones."""


class Seed(NamedTuple):
    """What one seed has found."""

    rounds: pd.DataFrame
    clients: pd.DataFrame
    models: list[FairModel]
    """One for each strategy."""


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
    """The one to take, chosen by the validation rows; None if none can be recommended."""

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

    def plot(self, *metrics: str) -> Figure:
        """Metrics over the rounds; those of the command line's ``plot`` unless named."""
        from fairfate.report.figures import over_rounds  # the report is made from runs

        return over_rounds(self.rounds, metrics or ("accuracy", "sp", "eo", "eqo"), self.table.grouping)

    def __repr__(self) -> str:
        """A few lines."""
        names = ", ".join(labels(self.plan.specs))
        best = "none can be recommended" if self.best is None else f"{self.best.name}, seed {self.best.seed}"
        return f"<Run on {self.table.name}: {names}; {len(self.plan.config.seeds)} seeds; to take: {best}>"

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


def run(
    config: Config | None = None,
    *,
    data: Data | None = None,
    target: str | None = None,
    favourable: object = None,
    sensitive: str | Sequence[str] | None = None,
    privileged: str | Sequence[str] | None = None,
    strategies: str | Sequence[str] | None = None,
    metric: str | None = None,
    partition: str | None = None,
    clients: int | None = None,
    per_round: int | None = None,
    rounds: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    hidden: int | str | Sequence[int] | None = None,
    model: str | None = None,
    encode: str | None = None,
    seeds: int | str | Sequence[int] | None = None,
    protocol: str | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    schema: str | Path | None = None,
    client_column: str | None = None,
    drop: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    min_group: int | None = None,
    missing_group: str | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    data_dir: str | Path | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda done: None,
    **others: Any,
) -> Run:
    """Train and compare strategies.

    Every option is one of the command line's (``fairfate run --help``) and has the same default.

    Parameters
    ----------
    config : the options at once; what is named beside it wins
    data : the name of a dataset, a file, a folder, a pandas or polars frame, or a `Table`
    target, favourable, sensitive, privileged : what the columns mean
    strategies, metric : what to compare, and the fairness that strategies look at
    partition, clients, per_round : who holds which rows, and how many train in a round
    rounds, epochs, batch_size, learning_rate, hidden : the training, and the layers of the model
    model : a network of one's own, ``FILE.py:FUNCTION``
    encode : how columns become inputs
    seeds : N for the seeds 1..N, or several numbers
    protocol : ``paper`` or ``published``
    validation, test, schema : the server's own files
    client_column, drop, keep, categorical, min_group, missing_group : how a file's columns are treated
    sep, decimal, encoding, data_dir, plugins : where things are, and how they are read
    out : folder for the results; nothing is written without it
    jobs : processes; all cores if None. The results do not depend on it.
    force : replace the results that the folder may already have
    progress : called now and then with the number of rounds finished, over all seeds
    others : no other option exists; a misspelt one is named

    Examples
    --------
    >>> finished = run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> finished.summary[["strategy", "seeds"]].values.tolist()
    [['fedavg', 1], ['fair_fate', 1]]
    """
    named = {
        "target": target,
        "favourable": favourable,
        "sensitive": sensitive,
        "privileged": privileged,
        "strategies": strategies,
        "metric": metric,
        "partition": partition,
        "clients": clients,
        "per_round": per_round,
        "rounds": rounds,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "hidden": hidden,
        "model": model,
        "encode": encode,
        "seeds": seeds,
        "protocol": protocol,
        "validation": validation,
        "test": test,
        "schema": schema,
        "client_column": client_column,
        "drop": drop,
        "keep": keep,
        "categorical": categorical,
        "min_group": min_group,
        "missing_group": missing_group,
        "sep": sep,
        "decimal": decimal,
        "encoding": encoding,
        "data_dir": data_dir,
        "plugins": plugins,
    }
    options = {key: value for key, value in named.items() if value is not None} | others
    held = isinstance(data, str | Path) or data is None
    if data is not None:
        options["data"] = data if held else IN_MEMORY
    given = from_mapping(options, where="run")
    if config is not None:
        given = replace(config, **{key: getattr(given, key) for key in fields_given(options)})
    if held:
        plan, table = prepare(given)
    else:
        check(given.validation is None, "validation must be left out for a frame", given.validation)
        table = _table_of(data, given)
        plan = _checked(given, table)
    return execute(plan, table, out=out, jobs=jobs, force=force, progress=progress, in_memory=not held)


Data = Any
"""Text, path, pandas or polars frame, or `Table`."""
IN_MEMORY = "(frame)"
"""The name of data that are in no file."""


def _table_of(data: Any, config: Config) -> Table:
    if isinstance(data, Table):
        return data
    return load(data, columns=config.columns, encode=config.encode)


def prepare(config: Config) -> tuple[Plan, Table]:
    """Load the data and check every option, without running or writing anything."""
    clear_tables()  # a file may have changed since it was last read
    table = load_table(config)
    return _checked(config, table), table


def _checked(config: Config, table: Table) -> Plan:
    plan = resolve(config, table)
    setup = plan.setup(table)
    if plan.network is not None:
        plan.network.check(Schema.of(table, table.encoder))
    for spec in plan.specs:
        _try_build(spec, setup)
    for seed in plan.config.seeds:
        _check_seed(plan, table, seed, setup)
    return plan


def _check_seed(plan: Plan, table: Table, seed: int, setup: Setup) -> None:
    """Find out before anything is trained whether a seed's split can be run, and measured."""
    train, validation, _ = split_rows(table, Streams(seed, plan.published))
    if _may_fail(plan) or seed == plan.config.seeds[0]:
        build(table, plan.partition, plan.clients, Streams(seed, plan.published))
    cells = {"validation": validation, "training": train}
    for spec in plan.specs:
        step = spec.step(THRESHOLDS)
        looks = [(spec.base.metric, "validation")] if spec.base.metric else []
        if step is not None:
            looks.append((str(step["metric"]), "training" if step["from"] == "clients" else "validation"))
        for metric, part in looks:
            rows = np.bincount(table.cell[cells[part]], minlength=2 * table.groups).reshape(-1, 2)
            check_metric(str(metric), rows, setup, f"the {part} rows of seed {seed}", table)


def check_metric(metric: str, rows: CellRows, setup: Setup, where: str, table: Table) -> None:
    """InputError unless a metric is defined on (groups, 2) rows of a table."""

    def said() -> str:
        empty = [
            f"{name} with {label}"
            for name, of in zip(table.group_names, rows, strict=True)
            for label, count in zip(table.label_names, of, strict=True)
            if not count
        ]
        return f"metric '{metric}' must be defined on {where}, got no rows of {listing(empty)}"

    check_defined(setup.fairness(metric), rows, said)


def _may_fail(plan: Plan) -> bool:
    """Whether some seed's shares may not be finite: tiny sigmas, with the authors' generator."""
    return plan.published and plan.partition.sigma is not None and plan.partition.sigma < 0.01


def _try_build(spec: Spec, setup: Setup) -> None:
    try:
        spec.build(setup)
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"strategy '{spec.text}' must be buildable, got {reason}") from error


def execute(
    plan: Plan,
    table: Table,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    progress: Progress = lambda done: None,
    in_memory: bool = False,
) -> Run:
    """Run a plan; see `run`. A table that is ``in_memory`` only is sent to the processes."""
    folder = ready(out, jobs)
    sent = table if in_memory else None
    if folder is None:
        return _execute(plan, table, None, jobs, progress, sent)
    with locked(folder):
        _open(folder, dump_config(plan, table), force)
        return _execute(plan, table, folder, jobs, progress, sent)


def _execute(
    plan: Plan, table: Table, folder: Path | None, jobs: int | None, progress: Progress, sent: Table | None
) -> Run:
    cells = {seed: Cell.of(plan, seed, table) for seed in plan.config.seeds}
    frames: dict[int, Seed] = {}
    damaged: list[str] = []
    if folder is not None:
        remove_unfinished(folder, folder / MODELS, folder / PARTS, folder / CHECKPOINTS)
        frames, damaged = _finished(folder, cells, labels(plan.specs))
    rest = [cell for seed, cell in cells.items() if seed not in frames]
    start = len(frames) * plan.training.rounds
    workers = jobs or _jobs(plan, table, len(rest))
    parts = (MODELS, CELLS, PARTS, CHECKPOINTS)
    payload = folder, sent
    found = perform(_work, payload, folder, rest, workers, lambda done: progress(start + done), *parts)
    frames |= {rest[number].seed: of_seed for number, of_seed in found.items()}
    rounds = pd.concat([frames[seed].rounds for seed in cells], ignore_index=True)
    clients = pd.concat([frames[seed].clients for seed in cells], ignore_index=True)
    names = labels(plan.specs)
    models = {(names[n], seed): model for seed in cells for n, model in enumerate(frames[seed].models)}
    if plan.network is not None:  # no process can send one
        models = {
            key: replace(model, network=plan.network.model(model.schema).scores)
            for key, model in models.items()
        }
    best = choose(rounds, plan.config.metric, table.grouping)
    summary = results.summarise(rounds)
    if folder is not None:
        results.write_rounds(folder / ROUNDS, rounds, table.grouping)
        results.write_clients(folder / CLIENTS, clients)
        write_groups(folder / GROUPS, group_rates(rounds, table.grouping))
        if best is not None:
            models[names[best.line], best.seed].save(folder / MODELS / BEST)
        results.write_summary(folder / SUMMARY, summary)
        _clear_seeds(folder)
    return Run(plan, table, rounds, summary, clients, folder, tuple(damaged), models, best)


def _finished(
    folder: Path, cells: Mapping[int, Cell], names: Sequence[str]
) -> tuple[dict[int, Seed], list[str]]:
    """The rounds of seeds that an interrupted run has finished, models and all, and the damaged files."""
    store = Store(folder / CELLS)
    damaged = store.repair()
    store.index()
    frames: dict[int, Seed] = {}
    for seed, cell in cells.items():
        if store.missing(cell):
            continue
        saved = store.saved(cell)
        bad = [name for name, digest in saved.items() if file_checksum(folder / name) != digest]
        if bad:
            damaged += bad
            store.remove(cell)
        else:
            files = [folder / MODELS / results.model_file(name, seed) for name in names]
            clients = pd.read_parquet(folder / PARTS / _part(seed))
            frames[seed] = Seed(store.read(cell), clients, [FairModel.load(file) for file in files])
    return frames, damaged


def _part(seed: int) -> str:
    return f"seed-{seed}.parquet"


def _clear_seeds(folder: Path) -> None:
    """Remove what single seeds have left, once all of it is in the results."""
    remove_unfinished(folder, folder / CELLS)
    Store(folder / CELLS).clear()
    _clear(folder / PARTS, "seed-*.parquet")
    _clear(folder / CHECKPOINTS, "seed-*.safetensors")


def _clear(folder: Path, pattern: str) -> None:
    """Remove files of ours, and the folder if that leaves it empty."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _work(payload: tuple[Path | None, Table | None], cell: Cell, report: Report) -> Seed:
    """All strategies of one seed; what is written is written at its end, the cell's file last."""
    folder, sent = payload
    plan, table = cell.plan, table_of(cell) if sent is None else sent
    for plugin in plan.config.plugins:
        load_plugin(plugin)
    checkpoint = None if folder is None else folder / CHECKPOINTS / f"seed-{cell.seed}.safetensors"
    outcome = run_cell(
        plan,
        table,
        cell.seed,
        plan.specs,
        lambda: report(1),
        record_clients=True,
        checkpoint=checkpoint,
    )
    models = fitted(plan, table, cell.seed, outcome)
    found = Seed(outcome.rounds, outcome.clients, models)
    if folder is None:
        return found
    part = folder / PARTS / _part(cell.seed)
    results.write_clients(part, outcome.clients)
    saved = {f"{PARTS}/{part.name}": file_checksum(part) or ""}
    for label, model in zip(labels(plan.specs), models, strict=True):
        file = model.save(folder / MODELS / results.model_file(label, cell.seed))
        saved[f"{MODELS}/{file.name}"] = file_checksum(file) or ""
    Store(folder / CELLS).write(cell, plan.specs, outcome.rounds, table.grouping, saved)
    _clear(folder / CHECKPOINTS, f"seed-{cell.seed}.safetensors")
    return found


def _jobs(plan: Plan, table: Table, cells: int) -> int:
    """As many processes as there are cores, or one where starting more would take longer than the work."""
    visits = plan.visits(len(table)) * len(plan.specs) * cells
    seconds = _SECONDS_PER_VISIT if plan.network is None else _TORCH_SECONDS_PER_VISIT
    return 1 if visits * seconds < _WORTH_PROCESSES else cores()


_SECONDS_PER_VISIT = 4e-8
"""Roughly, for one model and one row."""
_TORCH_SECONDS_PER_VISIT = 5e-6
_WORTH_PROCESSES = 5.0


def _open(folder: Path, config: str, force: bool) -> None:
    """Make the folder ready: new, or an interrupted run of the same config, or by force."""
    if (folder / CONFIGS).exists():
        raise InputError(f"out must not be the folder of a sweep, got '{folder}' with {CONFIGS}")
    names = (CONFIG, ROUNDS, SUMMARY, CLIENTS, GROUPS, MODELS, CELLS)
    ours = [name for name in names if (folder / name).exists()]
    unfinished = (folder / CONFIG).exists() and not (folder / SUMMARY).exists()
    if (folder / SUMMARY).exists():
        _clear_seeds(folder)  # of a run that was killed in its last moment
    if unfinished and (folder / CONFIG).read_text(encoding="utf-8") == config:
        return  # the same run, interrupted: it goes on, also when it was begun with --force
    if ours and not force:
        if (folder / SUMMARY).exists() or not (folder / CONFIG).exists():
            raise InputError(
                f"out must be a folder without results (or give --force), got '{folder}'"
                f" with {', '.join(ours)}"
            )
        differing = _differences((folder / CONFIG).read_text(encoding="utf-8"), config)
        raise InputError(
            f"out must be new or hold the same run unfinished (or give --force), got '{folder}'"
            f" with another {', '.join(differing)}"
        )
    _remove_results(folder)
    write_bytes(folder / CONFIG, config.encode())


def _remove_results(folder: Path) -> None:
    """Remove what an earlier run wrote, and nothing else."""
    for name in (CONFIG, ROUNDS, SUMMARY, CLIENTS, GROUPS):
        (folder / name).unlink(missing_ok=True)
    _clear_seeds(folder)
    results.clear_models(folder / MODELS)


def _differences(old: str, new: str) -> list[str]:
    """The keys in which two configs differ."""

    def keys(text: str) -> dict[str, Any]:
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return {"config.toml": text}
        return {**values.pop(PROVENANCE, {}), **values}

    before, after = keys(old), keys(new)
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
