"""What stands where in the folder of a run or a sweep."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.storage import read_arrays, short_name

CONFIG, ROUNDS, SUMMARY, MODELS, CELLS = (
    "config.toml",
    "rounds.parquet",
    "summary.csv",
    "models",
    "cells",
)
CLIENTS, SCORES, LOCAL = "clients.parquet", "scores.parquet", "local.parquet"
GROUPS = "groups.csv"
REPORT, CARD = "report.html", "model-card.md"
REPORT_FILES = (REPORT, "report.json", "report-audit.csv", "report-tests.csv", CARD)
"""What is made from the other files."""
PARTS = "clients"
"""Folder for the records of finished seeds, until all are."""
DATE = "date.txt"
"""The day of the run."""
BEST = "best.safetensors"
"""The recommended model, beside the others."""
CONFIGS = "configs"
"""Of a sweep."""


def today() -> str:
    """The day, or that of SOURCE_DATE_EPOCH, by which others make the same bytes again."""
    now = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(now), UTC) if now.isdigit() else datetime.now(UTC)
    return moment.date().isoformat()


def read_date(folder: Path) -> str:
    """The day of a run; empty where it is not known."""
    file = folder / DATE
    text = file.read_text("utf-8", errors="replace").strip() if file.is_file() else ""
    return text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else ""


def is_sweep(folder: Path) -> bool:
    """Whether it is the folder of a sweep."""
    return all((folder / part).is_dir() for part in (CONFIGS, CELLS)) and not (folder / ROUNDS).exists()


def part_file(folder: Path, seed: int) -> Path:
    """The record of the clients of one finished seed, while others are not finished."""
    return folder / PARTS / f"seed-{seed}.parquet"


def model_file(label: str, seed: int) -> str:
    """The name of a model's file, from its strategy's label and its seed.

    >>> model_file("fedmom(beta=0.8)", 3)
    'fedmom-beta=0.8-seed-3.safetensors'
    """
    text = short_name(re.sub(r"[^A-Za-z0-9.=_]+", "-", label).strip("-"))
    return f"{text}-seed-{seed}.safetensors"


def clear_models(folder: Path) -> None:
    """Remove the models of a run, and the folder if that leaves it empty."""
    for path in folder.glob("*.safetensors"):
        if re.search(r"-seed-\d+$", path.stem) or path.name == BEST:
            path.unlink()
    with suppress(OSError):
        folder.rmdir()


def read_model(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read a saved model's file as plain data; `fairfate.FairModel.load` makes a model of it.

    Parameters
    ----------
    path : a ``.safetensors`` file of a run

    Returns
    -------
    the arrays by name, and what the file says about the model: strategy, columns, categories

    Examples
    --------
    >>> import fairfate, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> run = fairfate.run(data="synthetic:rows=300", rounds=2, seeds=1, jobs=1)
    >>> path = run.model("fedavg").save(f"{folder}/model.safetensors")
    >>> arrays, about = fairfate.read_model(path)
    >>> about["strategy"]
    'fedavg'
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"model must be a .safetensors file, got '{file}' (no such file)")
    try:
        return read_arrays(file)
    except ValueError as error:
        raise InputError(f"model must be a file that a run has written, got '{file}' ({error})") from None
