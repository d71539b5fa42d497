"""The finished cells of a run or a sweep, one file each.

A cell's file carries the SHA-256 of its content in its name, so that a damaged one is found, and what it
holds in its header, so that only what is missing is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.experiments.job import Job
from fairfate.results.tables import about_groups, read_rounds, rounds_table
from fairfate.storage import remove_unfinished, replacing, sha256_of
from fairfate.strategies import Spec

HEADER = b"fairfate"
"""The metadata of a table that say what it holds."""


class Store:
    """The finished cells in a folder. Files that are not cells are left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, list[tuple[Path, dict[str, Any]]]] = {}

    @property
    def files(self) -> list[Path]:
        """The cells' files, damaged ones included, by name."""
        paths = self.folder.glob("*.parquet")
        return sorted(path for path in paths if re.fullmatch(r".+_seed-\d+_[0-9a-f]{32}", path.stem))

    @property
    def damaged(self) -> list[Path]:
        """The files whose content is not what was written."""
        return [path for path in self.files if path.stem.rpartition("_")[2] != _digest(path)]

    @property
    def indexed(self) -> list[tuple[Path, dict[str, Any]]]:
        """The files that `index` has read, each with its header."""
        return [entry for entries in self._files.values() for entry in entries]

    def repair(self) -> list[str]:
        """Remove damaged files, and what a killed process was writing; returns the damaged ones' names."""
        remove_unfinished(self.folder)
        damaged = self.damaged
        for path in damaged:
            path.unlink()
        return [path.name for path in damaged]

    def index(self) -> None:
        """Read what the files hold."""
        self._files = {}
        for path in self.files:
            header = _header(path)
            self._files.setdefault(_text(header["cell"]), []).append((path, header))

    def whole(self) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
        """The header and the rounds of each file that is whole, while others may write and remove some."""
        for path in self.files:
            with suppress(OSError, ValueError, KeyError, TypeError):
                if path.stem.rpartition("_")[2] == _digest(path):
                    yield _header(path), read_rounds(path)

    def missing(self, cell: Job) -> list[Spec]:
        """The cell's strategies that no file holds."""
        stored = {(header["code"], text) for _, header in self.files_of(cell) for text in header["specs"]}
        return [spec for spec in cell.plan.specs if (spec.code, spec.text) not in stored]

    def read(self, cell: Job) -> pd.DataFrame:
        """The rounds of a finished cell."""
        files = [(header, read_rounds(path)) for path, header in self.files_of(cell)]
        return join_rounds(files, [spec.text for spec in cell.plan.specs])

    def files_of(self, cell: Job) -> list[tuple[Path, dict[str, Any]]]:
        """A cell's files, but for those that an older version of a plugin made."""
        codes = {"", *(spec.code for spec in cell.plan.specs)}
        return [entry for entry in self._files.get(_text(cell.key), []) if entry[1]["code"] in codes]

    def saved(self, cell: Job) -> dict[str, str]:
        """The files that were saved with a cell, and the SHA-256 of each."""
        return {name: digest for _, header in self.files_of(cell) for name, digest in header["saved"].items()}

    def remove(self, cell: Job) -> list[str]:
        """Forget a cell; returns its files' names."""
        paths = [path for path, _ in self._files.pop(_text(cell.key), [])]
        for path in paths:
            path.unlink()
        return [path.name for path in paths]

    def clear(self) -> None:
        """Remove all cells, and the folder if that leaves it empty."""
        for path in self.files:
            path.unlink()
        with suppress(OSError):
            self.folder.rmdir()

    def write(
        self,
        cell: Job,
        specs: Sequence[Spec],
        rounds: pd.DataFrame,
        groups: Groups,
        saved: Mapping[str, str] | None = None,
    ) -> None:
        """Add its file, whole or not there. It may name other files that were saved with it.

        What a plugin's strategies found goes into a file of its own.
        """
        strategy = rounds["strategy"].str.partition("+")[0]
        for code in sorted({spec.code for spec in specs}, reverse=True):
            texts = [spec.text for spec in specs if spec.code == code]
            header = {"cell": cell.key, "code": code, "specs": texts, "saved": dict(saved or {})}
            header |= about_groups(groups)
            own_rounds = rounds[strategy.isin([spec.name for spec in specs if spec.code == code])]
            self.add(cell, rounds_table(own_rounds, header))

    def add(self, cell: Job, content: pa.Table) -> None:
        """Write a cell's file, whole or not there. The table's metadata have its header."""
        unnamed = self.folder / f"{cell.slug}.parquet"
        with replacing(unnamed, lambda file: f"{cell.slug}_{_digest(file)}.parquet") as temporary:
            pq.write_table(content, temporary, compression="zstd")


def join_rounds(
    files: Sequence[tuple[Mapping[str, Any], pd.DataFrame]], asked: Sequence[str]
) -> pd.DataFrame:
    """The rounds of cells' files, each seed's strategies in the order in which they are asked for.

    Strategies and settings that are no longer asked for are excluded. A plugin's strategies, and
    those that were added later, have files of their own, whose names say nothing of their order.

    Parameters
    ----------
    files : each one's header and rounds
    asked : the strategies' texts
    """
    ranks = {text: rank for rank, text in reversed(list(enumerate(asked)))}
    seeds = list(dict.fromkeys(header["cell"]["seed"] for header, _ in files))
    frames, keys = [], []
    for header, rounds in files:
        lines, known = _lines(rounds), np.array([ranks.get(text, -1) for text in header["specs"]])
        rank = known[lines] if lines.max(initial=-1) + 1 == len(known) else np.zeros_like(lines)
        frames.append(rounds[rank >= 0])
        keys.append(seeds.index(header["cell"]["seed"]) * len(asked) + rank[rank >= 0])
    joined = pd.concat(frames, ignore_index=True)
    return joined.iloc[np.argsort(np.concatenate(keys), kind="stable")].reset_index(drop=True)


def _lines(rounds: pd.DataFrame) -> NDArray[Any]:
    """Of each row, the number of its strategy and settings."""
    keys = rounds.groupby(["strategy", "metric", "settings"], dropna=False, sort=False)
    return keys.ngroup().to_numpy()


def _header(path: Path) -> dict[str, Any]:
    """What a cell's file says of itself."""
    try:
        header: dict[str, Any] = json.loads(pq.read_schema(path.absolute()).metadata[HEADER])
        kinds = {"cell": dict, "code": str, "specs": list, "saved": dict}
        right = all(isinstance(header[key], kind) for key, kind in kinds.items())
        right = right and isinstance(header["cell"]["seed"], int)
    except (ValueError, KeyError, TypeError, RecursionError):
        right = False
    if not right:
        raise InputError(
            f"each of the {path.parent.name} must be a file that a run has written, got '{path}'"
        )
    return header


def _text(key: dict[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)


def file_checksum(path: Path) -> str | None:
    """The SHA-256 of a file's content; None if there is no such file."""
    return sha256_of(path) if path.is_file() else None


def _digest(path: Path) -> str:
    return sha256_of(path)[:32]
