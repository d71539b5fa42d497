"""A finished run in MLflow: its options, every strategy's metrics over the rounds, and its best model."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fairfate._version import __version__
from fairfate.errors import InputError, check
from fairfate.experiments.config import PROVENANCE
from fairfate.experiments.runs import Run
from fairfate.fairness.metrics import METRICS
from fairfate.results.folder import BEST, CONFIG, GROUPS, MODELS, REPORT, SUMMARY
from fairfate.results.summary import split_strategies
from fairfate.results.tables import KEYS
from fairfate.storage import csv_text

EXPERIMENT = "fairfate"
"""Unless MLFLOW_EXPERIMENT_NAME names another."""
ARTIFACTS = "mlflow-artifacts"
"""Folder for files, beside an SQLite file."""
SQLITE = "sqlite:///"
MOST_METRICS, MOST_PARAMETERS, LONGEST = 1000, 100, 6000
"""What MLflow takes at once."""


@dataclass(frozen=True, eq=False)
class Tracking:
    """An open MLflow store, and the experiment in it."""

    uri: str
    client: Any
    experiment: str

    @property
    def shown(self) -> str:
        """The address, without a password that it may hold."""
        return without_password(self.uri)

    def log(self, run: Run) -> str:
        """Write a finished run: a parent, and a nested run for each strategy; returns the parent's id."""
        with _errors(self.uri):
            return _log(self, run)


def open_tracking(uri: str) -> Tracking:
    """Get ready to write to an MLflow server or database; nothing of MLflow's own use is reported to anybody.

    Parameters
    ----------
    uri : ``http(s)://...``, ``sqlite:///FILE`` or another database's
    """
    check(
        "://" in uri and not uri.startswith("file:"),
        "mlflow must be an address such as sqlite:///mlflow.db or http://localhost:5000",
        f"'{uri}'",
    )
    location = _beside(uri) if uri.startswith(SQLITE) else None
    client = _client(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    with _errors(uri):
        answer = client.get_experiment_by_name(name)
        experiment = client.create_experiment(name, location) if answer is None else answer.experiment_id
    return Tracking(uri, client, str(experiment))


def _client(uri: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    try:
        import alembic  # noqa: F401
        import sqlalchemy  # noqa: F401
        from mlflow import MlflowClient
    except ImportError:
        raise InputError('mlflow needs MLflow: pip install "fairfate[mlflow]"') from None
    for name in ("mlflow", "alembic"):  # how they make their tables
        logging.getLogger(name).setLevel(logging.WARNING)
    with _errors(uri):
        return MlflowClient(uri)


def _beside(uri: str) -> str:
    """Where files go: beside the SQLite file, in a folder that is made if need be."""
    file = Path(uri.removeprefix(SQLITE).partition("?")[0]).absolute()
    check(not file.is_dir(), "mlflow must name a file after sqlite:///", f"'{uri}'")
    file.parent.mkdir(parents=True, exist_ok=True)
    check(
        os.access(file.parent, os.W_OK),
        "mlflow must name a file in a folder that can be written",
        f"'{file}'",
    )
    if file.exists():
        with file.open("rb") as opened:
            start = opened.read(15)
        check(start in (b"", b"SQLite format 3"), "mlflow must name an SQLite file, or none yet", f"'{file}'")
    return (file.parent / ARTIFACTS).as_uri()


@contextmanager
def _errors(uri: str) -> Iterator[None]:
    """MLflow's errors in one line."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"mlflow must be an address that takes runs, got '{uri}' ({reason})"
        raise InputError(without_password(message)) from None


def without_password(text: str) -> str:
    """A text whose addresses name no user and no password.

    >>> without_password("postgresql://me:secret@host/runs")
    'postgresql://***@host/runs'
    """
    return re.sub(r"://[^@/\s]+@", "://***@", text)


def _log(tracking: Tracking, run: Run) -> str:
    name = run.out.name if run.out is not None else str(run.rounds["dataset"].iloc[0])
    parent = _open(tracking, name, {})
    try:
        _parameters(tracking.client, parent, _options(run))
        _strategies(tracking, run, parent)
        if run.best is not None:
            tracking.client.set_tag(parent, "best", f"{run.best.name}, seed {run.best.seed}")
        tracking.client.log_text(parent, csv_text(run.summary), SUMMARY)  # its file is a run's last
        for file in _files(run):
            tracking.client.log_artifact(parent, str(file))
    except BaseException:
        with suppress(Exception):
            tracking.client.set_terminated(parent, "FAILED")
        raise
    tracking.client.set_terminated(parent)
    return parent


def _strategies(tracking: Tracking, run: Run, parent: str) -> None:
    """A nested run for each strategy."""
    client = tracking.client
    for line, (name, frame) in enumerate(split_strategies(run.rounds)):
        nested = _open(tracking, name, {"mlflow.parentRunId": parent})
        about = {"strategy": run.config["strategy"][line], "metric": frame["metric"].iloc[0]}
        _parameters(client, nested, {**about, "seeds": frame["seed"].nunique()})
        _metrics(client, nested, _by_round(frame))
        _metrics(client, nested, _final(run.summary.iloc[line]))
        client.set_terminated(nested)


def _open(tracking: Tracking, name: str, tags: Mapping[str, str]) -> str:
    about = {"fairfate": __version__, **tags}
    answer = tracking.client.create_run(tracking.experiment, tags=about, run_name=name)
    return str(answer.info.run_id)


def _options(run: Run) -> dict[str, Any]:
    """The config, and what the data were."""
    about = run.config[PROVENANCE]
    given = {key.replace("-", "_"): value for key, value in run.config.items() if key != PROVENANCE}
    return {**given, "data_checksum": about["data-checksum"], "data_rows": about["data-rows"]}


def _parameters(client: Any, run_id: str, values: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    texts = {
        key: " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for key, value in values.items()
        if value is not None and value not in ((), [])
    }
    made = [Param(key, text[:LONGEST]) for key, text in texts.items()]
    for part in _parts(made, MOST_PARAMETERS):
        client.log_batch(run_id, params=part)


def _by_round(frame: pd.DataFrame) -> list[tuple[str, float, int]]:
    """The metrics of each split and round, means over the seeds."""
    names = [*METRICS, "selection_rate"]
    means = frame.groupby(["split", "round"], sort=False)[names].mean(skipna=False)
    return [
        (f"{split}/{name}", float(value), int(number))
        for (split, number), row in zip(means.index, means.to_numpy(), strict=True)
        for name, value in zip(names, row, strict=True)
    ]


def _final(summary: pd.Series[Any]) -> list[tuple[str, float, int]]:
    """The summary's numbers."""
    return [
        (f"summary/{name}", float(value), 0)
        for name, value in summary.items()
        if name not in (*KEYS, "seeds")
    ]


def _metrics(client: Any, run_id: str, values: list[tuple[str, float, int]]) -> None:
    """Log what is defined."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    made = [Metric(name, value, now, step) for name, value, step in values if np.isfinite(value)]
    for part in _parts(made, MOST_METRICS):
        client.log_batch(run_id, metrics=part)


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _files(run: Run) -> list[Path]:
    """What is kept beside the numbers."""
    if run.out is None:
        return []
    files = [run.out / MODELS / BEST, *(run.out / name for name in (GROUPS, CONFIG, REPORT))]
    return [file for file in files if file.is_file()]
