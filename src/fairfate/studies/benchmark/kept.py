"""Results of the benchmark, one file for each seed of a federation, and those that come with the package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fairfate.experiments.job import Job
from fairfate.storage import remove_unfinished, replacing
from fairfate.studies.benchmark.measure import COLUMNS, COUNTS, WORST
from fairfate.studies.benchmark.methods import Method

KEPT = "kept.parquet"
_HEADER, _CHECKSUM = b"fairfate", "checksum"
WHERE = ("encode", "dataset", "partition", "seed")
"""What a federation's seed is told by."""
_RATES = (*WORST, "consistency", "flip")


def key_of(cell: Job) -> dict[str, Any]:
    """All that a cell's numbers depend on, besides methods."""
    return {**cell.key, "encode": cell.plan.config.encode}


def where(cell: Job) -> dict[str, Any]:
    """The cell in a table's columns."""
    plan = cell.plan
    return {
        "encode": plan.config.encode,
        "dataset": plan.dataset,
        "partition": str(plan.partition),
        "seed": cell.seed,
    }


class Results:
    """The finished cells in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Job) -> Path:
        """A cell's file."""
        return self.folder / f"{cell.slug}_{cell.plan.config.encode}.parquet"

    def read(self, cell: Job) -> pd.DataFrame:
        """What is there of a cell; nothing if the file is damaged, or of another version or other data."""
        try:
            frame, about = _read(self.path(cell))
        except (OSError, ValueError, KeyError, TypeError):
            return pd.DataFrame(columns=list(COLUMNS))
        return frame if about == key_of(cell) else frame.iloc[:0]

    def add(self, cell: Job, rows: pd.DataFrame) -> None:
        """Add rows to a cell's file; those of the same methods are replaced."""
        old = self.read(cell)
        old = old[~old["method"].isin(rows["method"].unique())]
        together = rows if old.empty else pd.concat([old, rows], ignore_index=True)
        _write(self.path(cell), together, key_of(cell))

    def repair(self) -> None:
        """Remove what a killed process was writing."""
        remove_unfinished(self.folder)


def read_cells(folder: Path) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The rows of each finished cell of a folder, and what they depend on."""
    for path in sorted(folder.glob("*.parquet")):
        frame, key = _read(path)
        yield frame.assign(**{name: key[name] for name in WHERE}), key


def missing(held: pd.DataFrame, methods: Sequence[Method]) -> list[Method]:
    """The methods of which a setting lacks."""
    have = set(zip(held["method"], held["setting"], held["code"], strict=True))
    return [
        method
        for method in methods
        if any((method.name, spec.text, spec.code) not in have for spec in method.specs)
    ]


def kept_file() -> Path:
    """The results that come with the package."""
    return Path(str(files("fairfate.studies.benchmark") / KEPT))


def read_kept() -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows of all cells that come with the package, and what they are."""
    if not kept_file().is_file():
        return pd.DataFrame(columns=[*WHERE, *COLUMNS]), {"cells": [], "minutes": 0.0, "machine": ""}
    return _read(kept_file())


def write_kept(path: Path, frame: pd.DataFrame, about: dict[str, Any]) -> None:
    """All cells' rows in one file."""
    _write(path, frame, about)


def fingerprint(cell: Job) -> dict[str, Any]:
    """The same for results that are kept from one version to the next; a test guards that they still hold."""
    return {name: value for name, value in key_of(cell).items() if name != "version"}


def same(about: dict[str, Any], cells: Iterable[Job]) -> list[Job]:
    """The cells of which there are kept results, of the same data and training."""
    known = {json.dumps(key, sort_keys=True) for key in about["cells"]}
    return [cell for cell in cells if json.dumps(fingerprint(cell), sort_keys=True) in known]


def _read(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    with pq.ParquetFile(path) as opened:
        table = opened.read()
    about = json.loads(table.schema.metadata[_HEADER])
    frame = table.to_pandas()
    for name in ("method", "setting", "metric", "code"):
        frame[name] = frame[name].astype(str)
    if about.pop(_CHECKSUM) != _checksum(frame):
        raise ValueError(f"'{path}' is damaged")
    return frame, about


def _checksum(frame: pd.DataFrame) -> str:
    """Of all names and values."""
    digest = hashlib.sha256()
    for name in frame.columns:
        of = frame[name].to_numpy()
        digest.update(f"{name} {of.dtype.kind}{of.dtype.itemsize}\1".encode())
        digest.update(of.tobytes() if of.dtype.kind in "if" else "\0".join(map(str, of)).encode())
    return digest.hexdigest()


def _write(path: Path, frame: pd.DataFrame, about: dict[str, Any]) -> None:
    kinds: dict[str, Any] = dict.fromkeys(COUNTS, np.int32) | dict.fromkeys(_RATES, np.float32)
    typed = frame.astype({**kinds, "part": np.int16, "seconds": np.float32})
    typed[list(_RATES)] = typed[list(_RATES)].round(4)
    typed["seconds"] = typed["seconds"].round(3)
    table = pa.Table.from_pandas(typed, preserve_index=False)
    header = json.dumps({**about, _CHECKSUM: _checksum(typed)}, sort_keys=True).encode()
    with replacing(path) as temporary:
        pq.write_table(
            table.replace_schema_metadata({_HEADER: header}),
            temporary,
            compression="zstd",
            compression_level=19,
        )
