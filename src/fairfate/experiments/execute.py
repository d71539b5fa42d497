"""A plan carried out: seeds over processes, files in a folder, and on from where it was interrupted."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data import ONEHOT, Table
from fairfate.data.groups import Groups
from fairfate.engine.recorder import Trace
from fairfate.errors import InputError
from fairfate.experiments.baselines import BASELINES, PooledBaseline, pooled_baselines
from fairfate.experiments.config import PROVENANCE
from fairfate.experiments.importances import IMPORTANCES, importances, write_importances
from fairfate.experiments.job import Job, fitted, key_of, run_job
from fairfate.experiments.live import Writer, clear_live, header, live_file, rounds_since
from fairfate.experiments.people import PEOPLE, people_covariances, write_people
from fairfate.experiments.plan import Plan, dump_config
from fairfate.experiments.refit import check_refit
from fairfate.experiments.refit import refit as refit_strategy
from fairfate.experiments.runner import Task, check_request, run_jobs
from fairfate.experiments.runs import Run, write_results
from fairfate.experiments.store import Store, file_checksum
from fairfate.experiments.workers import Progress, Report, cores, in_background, runs_here
from fairfate.models.fair_model import FairModel
from fairfate.privacy.ledger import LEDGER, read_ledger
from fairfate.results.details import Final, Released, describe, write_final
from fairfate.results.folder import (
    BEST,
    CELLS,
    CLIENTS,
    CONFIG,
    CONFIGS,
    DATE,
    GROUPS,
    LOCAL,
    MODELS,
    PARTS,
    REPORT_FILES,
    ROUNDS,
    SCORES,
    SUMMARY,
    clear_models,
    model_file,
    part_file,
    read_date,
    today,
)
from fairfate.results.summary import write_csv
from fairfate.results.tables import read_frame, write_table
from fairfate.storage import locked, remove_unfinished, write_bytes
from fairfate.strategies import labels, load_plugin

ABOUT = (BASELINES, IMPORTANCES, PEOPLE, DATE)
"""What else stands in a run's folder."""
CHECKPOINTS = "checkpoints"
"""Folder for what is needed to go on in unfinished seeds."""
_PARTS = (MODELS, CELLS, PARTS, CHECKPOINTS)


class Seed(NamedTuple):
    """What one seed has found."""

    rounds: pd.DataFrame
    clients: pd.DataFrame
    models: list[FairModel]
    """One for each strategy."""
    final: Final
    ledger: pd.DataFrame
    """What clients have released under differential privacy; empty without."""


def execute(
    plan: Plan,
    table: Table,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    executor: Executor | None = None,
    force: bool = False,
    progress: Progress = lambda amount: None,
    baselines: bool = False,
    refit: bool = False,
    on_results: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Run a plan; see `run`.

    With ``baselines`` models of the pooled rows are trained too, with ``refit`` the recommended strategy once
    more on all rows. ``on_results`` is called when all results
    but the summary are in the folder: a run that is killed before it returns is unfinished, and calls it
    again.
    """
    folder = check_request(out, jobs)
    if refit:
        check_refit(plan, table)
    config = dump_config(plan, table)
    with _opened(folder, config, force):
        run = _train(plan, table, tomllib.loads(config), folder, jobs, executor, progress, baselines)
        if refit and run.best is not None:
            run = replace(run, refitted=refit_strategy(plan, table, run.best.line, run.best.seed))
        if folder is not None:
            write_results(run, folder)
            if plan.budget is not None:
                write_csv(folder / LEDGER, run.ledger)
            if run.people is not None:
                write_people(folder / PEOPLE, run.people)
            if run.best is not None:
                run.model().save(folder / MODELS / BEST)
                write_importances(folder / IMPORTANCES, run.importances)
        on_results(run)
        if folder is not None:
            write_csv(folder / SUMMARY, run.summary)  # last: now it is finished
            _clear_seeds(folder)
    return run


@contextmanager
def _opened(folder: Path | None, config: str, force: bool) -> Iterator[None]:
    """Have a run's folder, if it has one, for this process alone; one that comes to nothing is emptied."""
    if folder is None:
        yield
        return
    with locked(folder):
        begun = _open(folder, config, force)
        try:
            yield
        except InputError:
            if begun and not Store(folder / CELLS).files:
                _remove_results(folder)
            raise
        finally:
            remove_unfinished(*(folder / part for part in _PARTS))


def _train(
    plan: Plan,
    table: Table,
    config: Mapping[str, Any],
    folder: Path | None,
    jobs: int | None,
    executor: Executor | None,
    progress: Progress,
    baselines: bool,
) -> Run:
    """The run of all seeds: those that the folder has, and the others once they are trained."""
    planned = {seed: Job.from_table(plan, seed, table) for seed in plan.config.seeds}
    seeds: dict[int, Seed] = {}
    damaged: list[str] = []
    if folder is not None:
        remove_unfinished(folder, *(folder / part for part in _PARTS))
        seeds, damaged = _finished(folder, planned, labels(plan.specs))
    start, amount = len(seeds) * plan.training.rounds, float(plan.training.rounds)
    live = folder if executor is None else None  # others may not see it
    tasks = [Task(job, (live,), amount) for seed, job in planned.items() if seed not in seeds]
    workers = jobs or _jobs(plan, table, len(tasks))
    here = executor is None and runs_here(workers, len(tasks))

    def keep(task: Task, result: Seed) -> None:
        seeds[task.job.seed] = result
        if folder is not None:
            _keep(folder, task.job, result, table.grouping)

    with ExitStack() as stack:
        if not baselines:
            pooled: Callable[[], tuple[PooledBaseline, ...]] = tuple
        elif here and jobs is None and cores() > 1:  # a short run, of which importing scikit-learn is a fifth
            pooled = stack.enter_context(in_background(_train_baselines, table, plan))
        else:
            pooled = partial(pooled_baselines, plan, table)
        run_jobs(
            run_seed,
            tasks,
            [table],
            keep,
            jobs=workers,
            executor=executor,
            progress=lambda amount: progress(start + amount),
        )
        pooled_models = pooled()
    ordered = [seeds[seed] for seed in plan.config.seeds]
    run = Run(
        config,
        table.grouping,
        pd.concat([seed.rounds for seed in ordered], ignore_index=True),
        pd.concat([seed.clients for seed in ordered], ignore_index=True),
        folder,
        tuple(damaged),
        _models(plan, seeds),
        Final.together([seed.final for seed in ordered]),
        date="" if folder is None else read_date(folder),
        baselines=pooled_models,
        notes=(*table.notes, *plan.notes),
        outcome=f"{table.target} = {table.label_names[1]}",
        plan=plan,
        table=table,
        ledger=pd.concat([seed.ledger for seed in ordered], ignore_index=True),
    )
    run = replace(run, people=people_covariances(plan, table, run.models))
    best = run.best
    return run if best is None else replace(run, importances=importances(plan, table, run.model(), best.seed))


def _models(plan: Plan, seeds: Mapping[int, Seed]) -> dict[tuple[str, int], FairModel]:
    """The models by the strategy's name and the seed."""
    names = labels(plan.specs)
    models = {
        (name, seed): model
        for seed in plan.config.seeds
        for name, model in zip(names, seeds[seed].models, strict=True)
    }
    if plan.network is None:
        return models
    return {  # no process can send a network
        key: replace(model, network=plan.network.model(model.schema).scores) for key, model in models.items()
    }


def _train_baselines(table: Table, plan: Plan, report: Report) -> tuple[PooledBaseline, ...]:
    """In another process, which finds this by its name."""
    for plugin in plan.config.plugins:
        load_plugin(plugin)
    return pooled_baselines(plan, table)


def _finished(
    folder: Path, planned: Mapping[int, Job], names: Sequence[str]
) -> tuple[dict[int, Seed], list[str]]:
    """The rounds of seeds that an interrupted run has finished, models and all, and the damaged files."""
    store = Store(folder / CELLS)
    damaged = store.repair()
    store.index()
    seeds: dict[int, Seed] = {}
    for seed, job in planned.items():
        if store.missing(job):
            continue
        saved = store.saved(job)
        bad = [name for name, digest in saved.items() if file_checksum(folder / name) != digest]
        rounds = store.read(job)
        if bad or not _is_of(rounds, job):
            removed = store.remove(job)
            damaged += bad or removed
        else:
            files = [folder / MODELS / model_file(name, seed) for name in names]
            part = part_file(folder, seed)
            clients = read_frame(part)
            models = [FairModel.load(file) for file in files]
            scores, local = (folder / PARTS / name for name in _final_parts(seed))
            final = Final(read_frame(scores), read_frame(local) if local.is_file() else None)
            ledger = read_ledger(folder / PARTS / _ledger_part(seed))
            seeds[seed] = Seed(rounds, clients, models, final, ledger)
    return seeds, damaged


def _is_of(rounds: pd.DataFrame, job: Job) -> bool:
    """Whether stored rounds are those of a job's strategies, and of nothing else."""
    if any((rounds[name] != value).any() for name, value in key_of(job.plan, job.seed).items()):
        return False
    known = {(spec.label, spec.metric or "", spec.settings_json) for spec in job.plan.specs}
    stored = zip(rounds["strategy"], rounds["metric"].fillna(""), rounds["settings"], strict=True)
    return set(stored) == known


def _final_parts(seed: int) -> tuple[str, str]:
    return f"scores-seed-{seed}.parquet", f"local-seed-{seed}.parquet"


def _ledger_part(seed: int) -> str:
    return f"ledger-seed-{seed}.csv"


def _clear_seeds(folder: Path) -> None:
    """Remove what single seeds have left, once all of it is in the results."""
    remove_unfinished(folder, folder / CELLS)
    Store(folder / CELLS).clear()
    _clear(folder / PARTS, "ledger-seed-*.csv")
    _clear(folder / PARTS, "*seed-*.parquet")
    _clear(folder / CHECKPOINTS, "seed-*.safetensors")
    clear_live(folder)


def _clear(folder: Path, pattern: str) -> None:
    """Remove files of ours, and the folder if that leaves it empty."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def run_seed(task: Task, table: Table, report: Report) -> Seed:
    """All strategies of one seed; in the run's folder, where there is one, stands how far it is."""
    job, (folder,) = task.job, task.items
    plan, seed = job.plan, job.seed
    outcome = run_job(
        plan,
        table,
        seed,
        plan.specs,
        lambda: report(1),
        record_clients=True,
        checkpoint=None if folder is None else folder / CHECKPOINTS / f"seed-{seed}.safetensors",
        on_record=None if folder is None else _live(folder, job, table),
    )
    released = [Released(trace.spec, trace.params, trace.rule) for trace in outcome.traces]
    final = describe(outcome.model, released, outcome.federation, seed)
    if plan.budget is not None:
        final = final._replace(local=None)  # exact counts of clients' rows
    models = fitted(plan, table, seed, outcome)
    return Seed(outcome.rounds, outcome.clients, models, final, outcome.ledger)


def _keep(folder: Path, job: Job, result: Seed, groups: Groups) -> None:
    """Write a finished seed, the job's file last."""
    plan, seed = job.plan, job.seed
    part = part_file(folder, seed)
    write_table(part, result.clients, CLIENTS)
    parts = [part, *write_final(folder / PARTS, result.final, _final_parts(seed))]
    if plan.budget is not None:
        parts.append(folder / PARTS / _ledger_part(seed))
        write_csv(parts[-1], result.ledger)
    saved = {f"{PARTS}/{path.name}": file_checksum(path) or "" for path in parts}
    for label, model in zip(labels(plan.specs), result.models, strict=True):
        file = model.save(folder / MODELS / model_file(label, seed))
        saved[f"{MODELS}/{file.name}"] = file_checksum(file) or ""
    Store(folder / CELLS).write(job, plan.specs, result.rounds, groups, saved)
    _clear(folder / CHECKPOINTS, f"seed-{seed}.safetensors")
    clear_live(folder, seed)


def _live(folder: Path, job: Job, table: Table) -> Callable[[int, Sequence[Trace]], None]:
    """Writes down now and then how the seed is doing."""
    plan, seed = job.plan, job.seed
    about = header(key_of(plan, seed), plan.training.rounds, plan.specs, table.grouping)
    writer = Writer(live_file(folder, seed), about)
    return lambda t, traces: writer.add(t, lambda first: rounds_since(traces, first))


def _jobs(plan: Plan, table: Table, seeds: int) -> int:
    """As many processes as there are cores, or one where starting more would take longer than the work."""
    return 1 if _expected_seconds(plan, table, seeds) < _WORTH_PROCESSES else cores()


def _expected_seconds(plan: Plan, table: Table, seeds: int) -> float:
    """Roughly, of so many seeds: their models' training, and their rows' splitting and encoding."""
    inputs = int(np.maximum(table.slots, 1).sum()) if plan.config.encode == ONEHOT else len(table.slots)
    widths = [inputs, *plan.hidden, 1]
    weights = sum(first * second for first, second in itertools.pairwise(widths))
    visit = max(1.0, weights / _USUAL_WEIGHTS) * _SECONDS_PER_VISIT
    visit = visit if plan.network is None else _TORCH_SECONDS_PER_VISIT
    training = plan.visits(len(table)) * len(plan.specs) * visit
    return seeds * (training + len(table) * inputs * _SECONDS_PER_VALUE)


_SECONDS_PER_VISIT, _USUAL_WEIGHTS = 4e-8, 161
"""Of one model and one row: of the built-in model on Adult, and its weights."""
_SECONDS_PER_VALUE = 5e-8
_TORCH_SECONDS_PER_VISIT = 5e-6
_WORTH_PROCESSES = 5.0


def _open(folder: Path, config: str, force: bool) -> bool:
    """Make the folder ready: new, or an interrupted run of the same config, or by force.

    Returns
    -------
    Whether the run begins anew.
    """
    if (folder / CONFIGS).exists():
        raise InputError(f"out must not be the folder of a sweep, got '{folder}' with {CONFIGS}")
    names = (CONFIG, ROUNDS, SUMMARY, CLIENTS, GROUPS, SCORES, LOCAL, BASELINES, MODELS, CELLS)
    ours = [name for name in names if (folder / name).exists()]
    unfinished = (folder / CONFIG).exists() and not (folder / SUMMARY).exists()
    if (folder / SUMMARY).exists():
        _clear_seeds(folder)  # of a run that was killed in its last moment
    if unfinished and (folder / CONFIG).read_bytes() == config.encode():
        return False  # the same run, interrupted: it goes on, also when it was begun with --force
    if ours and not force:
        if (folder / SUMMARY).exists() or not (folder / CONFIG).exists():
            raise InputError(
                f"out must be a folder without results (or give --force), got '{folder}'"
                f" with {', '.join(ours)}"
            )
        differing = _differences((folder / CONFIG).read_bytes().decode(errors="replace"), config)
        raise InputError(
            f"out must be new or hold the same run unfinished (or give --force), got '{folder}'"
            f" with another {', '.join(differing)}"
        )
    _remove_results(folder)
    write_bytes(folder / CONFIG, config.encode())
    write_bytes(folder / DATE, f"{today()}\n".encode())
    return True


def _remove_results(folder: Path) -> None:
    """Remove what an earlier run wrote, and nothing else."""
    for name in (CONFIG, ROUNDS, SUMMARY, CLIENTS, GROUPS, SCORES, LOCAL, LEDGER, *ABOUT, *REPORT_FILES):
        (folder / name).unlink(missing_ok=True)
    _clear_seeds(folder)
    clear_models(folder / MODELS)


def _differences(old: str, new: str) -> list[str]:
    """The keys in which two configs differ."""

    def keys(text: str) -> dict[str, Any]:
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError):
            return {"config.toml": text}
        about = values.pop(PROVENANCE, {})
        return {**(about if isinstance(about, dict) else {}), **values}

    before, after = keys(old), keys(new)
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
