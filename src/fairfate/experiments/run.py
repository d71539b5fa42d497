"""One call that trains and compares strategies, with every option of the command line by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from fairfate.data import Table, load
from fairfate.errors import check
from fairfate.experiments.config import Config
from fairfate.experiments.execute import execute
from fairfate.experiments.prepare import checked, prepare
from fairfate.experiments.runs import Run
from fairfate.experiments.workers import Progress
from fairfate.options import Options, options_of, read_options
from fairfate.strategies import StrategyLike
from fairfate.strategies.registry import strategy_texts

IN_MEMORY = "(frame)"
"""The name of data that are in no file."""


class Frame(Protocol):
    """A pandas or polars frame."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""

    def __len__(self) -> int:
        """The number of its rows."""


def run(
    config: Config | None = None,
    *,
    data: str | Path | Table | Frame | None = None,
    data_dir: str | Path | None = None,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    schema: str | Path | None = None,
    target: str | None = None,
    favourable: str | float | None = None,
    favorable: str | float | None = None,
    sensitive: str | Sequence[str] | None = None,
    privileged: str | Sequence[str] | None = None,
    client_column: str | None = None,
    drop: str | Sequence[str] | None = None,
    categorical: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    min_group: int | None = None,
    missing_group: Literal["report", "keep", "drop", "refuse"] | None = None,
    missing: str | float | Sequence[str | float] | None = None,
    encode: Literal["auto", "onehot", "ordinal", "none"] | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    protocol: Literal["paper", "published"] | None = None,
    partition: str | None = None,
    attack: str | None = None,
    clients: int | None = None,
    validation_from: str | None = None,
    min_cell: int | None = None,
    secure_sums: bool | None = None,
    min_sum: int | None = None,
    privacy: str | None = None,
    strategies: StrategyLike | Sequence[StrategyLike] | None = None,
    metric: str | None = None,
    plugins: str | Path | Sequence[str | Path] | None = None,
    per_round: int | None = None,
    rounds: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    l2: float | None = None,
    early_stopping: int | None = None,
    hidden: int | str | Sequence[int] | None = None,
    model: str | None = None,
    seeds: int | str | Sequence[int] | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    force: bool = False,
    baselines: bool = False,
    refit: bool = False,
    progress: Progress = lambda amount: None,
) -> Run:
    """Train and compare strategies.

    Every option is one of the command line's (``fairfate run --help``), with the same default and meaning;
    docs/options.md lists them. None stands for the default.

    Parameters
    ----------
    config : all options at once; those given beside it take precedence
    data : the name of a dataset, a file, a folder, a pandas or polars frame, or a `Table`
    data_dir : folder to look in first for a public dataset
    validation, test, schema : the server's own files
    target, favourable, sensitive, privileged : what the columns mean
    favorable : another spelling of favourable
    client_column, drop, categorical, keep, min_group, missing_group : how a file's columns are treated
    missing : values that stand for a missing one, ``VALUE`` in all columns or ``COLUMN=VALUE`` in one
    encode, sep, decimal, encoding : how columns become inputs, and how files are read
    protocol : ``paper`` or ``published``
    partition, clients, per_round : which client holds which rows, and how many train in a round
    attack : what attackers among the clients do
    validation_from, min_cell : who holds validation rows, and the least count that clients send
    secure_sums, min_sum : whether the server sees only sums over clients, and the least clients in one
    privacy : ``epsilon=3,...``: differential privacy of each client's rows
    strategies, metric, plugins : what to compare, the objective, files with strategies of your own
    rounds, epochs, batch_size, learning_rate, l2, early_stopping : the training
    hidden, model : the layers of the built-in model, or a network of your own, ``FILE.py:FUNCTION``
    seeds : N for the seeds 1..N, or several numbers
    out : folder for the results; nothing is written without it
    jobs : processes; all cores if None. The results do not depend on it.
    force : replace the results that the folder may already have
    baselines : train logistic regression and gradient boosting on the pooled rows too, as the command does
    refit : train the recommended strategy once more on all rows, and recommend that model, which no rows are
        left to test
    progress : called from time to time with the number of rounds finished, over all seeds

    Returns
    -------
    the run: its tables, models and recommendation

    Examples
    --------
    >>> finished = run(data="synthetic:rows=200", rounds=2, seeds=(1,), jobs=1)
    >>> finished.summary["strategy"].tolist()
    ['fedavg', 'fair_fate', 'fedavg_lr+average', 'fedavg+average+thresholds']
    """
    arguments = locals()
    options = {name: arguments[name] for name in (*options_of(Options), "favorable")}
    options["strategies"] = strategy_texts(strategies)
    in_memory = data is not None and not isinstance(data, str | Path)
    if in_memory:
        options["data"] = IN_MEMORY
    chosen = replace(config or Config(), **read_options(options, where="run"))
    if in_memory:
        check(chosen.validation is None, "validation must be left out for a frame", chosen.validation)
        table = data if isinstance(data, Table) else _load_frame(data, chosen)
        plan = checked(chosen, table)
    else:
        plan, table = prepare(chosen)
    return execute(
        plan,
        table,
        out=out,
        jobs=jobs,
        force=force,
        progress=progress,
        baselines=baselines,
        refit=refit,
    )


def _load_frame(frame: Any, config: Config) -> Table:
    return load(frame, columns=config.columns, encode=config.encode, reading=config.reading)
