"""One call that trains and compares strategies, with every option of the command line by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairfate.data import Table, load
from fairfate.errors import check
from fairfate.experiments.config import Config, fields_given, from_mapping
from fairfate.experiments.execute import execute
from fairfate.experiments.finished import Run
from fairfate.experiments.prepare import checked, prepare
from fairfate.experiments.workers import Progress


def run(
    config: Config | None = None,
    *,
    data: Data | None = None,
    target: str | None = None,
    favourable: object = None,
    favorable: object = None,
    sensitive: str | Sequence[str] | None = None,
    privileged: str | Sequence[str] | None = None,
    strategies: str | Sequence[str] | None = None,
    metric: str | None = None,
    partition: str | None = None,
    attack: str | None = None,
    clients: int | None = None,
    min_cell: int | None = None,
    per_round: int | None = None,
    rounds: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    l2: float | None = None,
    early_stopping: int | None = None,
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
    missing: object = None,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    data_dir: str | Path | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    baselines: bool = False,
    progress: Progress = lambda done: None,
    **others: Any,
) -> Run:
    """Train and compare strategies.

    Every option is one of the command line's (``fairfate run --help``) and has the same default.

    Parameters
    ----------
    config : the options at once; what is named beside it wins
    data : the name of a dataset, a file, a folder, a pandas or polars frame, or a `Table`
    target, favourable, sensitive, privileged : what the columns mean; favorable is another spelling
    strategies, metric : what to compare, and the fairness that strategies look at
    partition, clients, per_round : who holds which rows, and how many train in a round
    attack : what some clients do to the others
    min_cell : the least count that clients tell the server
    rounds, epochs, batch_size, learning_rate, hidden : the training, and the layers of the model
    l2, early_stopping : against overfitting
    model : a network of one's own, ``FILE.py:FUNCTION``
    encode : how columns become inputs
    seeds : N for the seeds 1..N, or several numbers
    protocol : ``paper`` or ``published``
    validation, test, schema : the server's own files
    client_column, drop, keep, categorical, min_group, missing_group : how a file's columns are treated
    missing : values that stand for a missing one, ``VALUE`` in all columns or ``COLUMN=VALUE`` in one
    sep, decimal, encoding, data_dir, plugins : where things are, and how they are read
    out : folder for the results; nothing is written without it
    jobs : processes; all cores if None. The results do not depend on it.
    force : replace the results that the folder may already have
    baselines : train logistic regression and gradient boosting on the pooled rows too, as the command does
    progress : called now and then with the number of rounds finished, over all seeds
    others : no other option exists; a misspelt one is named

    Examples
    --------
    >>> finished = run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> finished.summary["strategy"].tolist()
    ['fedavg', 'fair_fate', 'fedavg_lr+average', 'fedavg+average+thresholds']
    """
    named = {
        "target": target,
        "favourable": favourable,
        "favorable": favorable,
        "sensitive": sensitive,
        "privileged": privileged,
        "strategies": strategies,
        "metric": metric,
        "partition": partition,
        "attack": attack,
        "clients": clients,
        "min_cell": min_cell,
        "per_round": per_round,
        "rounds": rounds,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "l2": l2,
        "early_stopping": early_stopping,
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
        "missing": missing,
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
        plan = checked(given, table)
    return execute(
        plan,
        table,
        out=out,
        jobs=jobs,
        force=force,
        progress=progress,
        baselines=baselines,
    )


Data = Any
"""Text, path, pandas or polars frame, or `Table`."""
IN_MEMORY = "(frame)"
"""The name of data that are in no file."""


def _table_of(data: Any, config: Config) -> Table:
    if isinstance(data, Table):
        return data
    return load(data, columns=config.columns, encode=config.encode, reading=config.reading)
