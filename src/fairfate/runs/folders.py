"""What the folder of a finished run or sweep holds, read without its data and without changing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.models.mlp import parse_hidden
from fairfate.models.training import Training
from fairfate.runs.config import PROVENANCE, from_mapping, read_config
from fairfate.runs.job import load_table
from fairfate.runs.results import CELLS, CONFIG, CONFIGS, ROUNDS, read_groups, read_rounds
from fairfate.runs.store import Store


class Held(NamedTuple):
    """The rounds of one dataset, partition and protocol."""

    name: str
    """Of the dataset, partition and protocol in a sweep; empty for a run."""
    rounds: pd.DataFrame
    metric: str
    """What its strategies look at, where they say nothing else."""
    groups: Callable[[], Groups | None]
    """What the counts are counted by; asked for objectives only, as a sweep has to look at its data."""


def is_sweep(folder: Path) -> bool:
    """Whether it is the folder of a sweep."""
    return all((folder / part).is_dir() for part in (CONFIGS, CELLS)) and not (folder / ROUNDS).exists()


def read_folder(folder: Path) -> Iterator[Held]:
    """What a run, or each part of a sweep, has found; one after another, so that memory stays small."""
    if is_sweep(folder):
        yield from _read_sweep(folder)
        return
    rounds = read_rounds(folder)
    config = (folder if folder.is_dir() else folder.parent) / CONFIG
    metric = read_config(config).get("metric", "eqo") if config.is_file() else "eqo"
    yield Held("", rounds, str(metric), lambda: read_groups(folder))


def _read_sweep(folder: Path) -> Iterator[Held]:
    store = Store(folder / CELLS)
    damaged = [path.name for path in store.damaged]
    if damaged:
        raise InputError(f"run must hold whole cells, got a damaged {damaged[0]}: run the sweep again")
    store.index()
    seen: dict[tuple[Any, ...], str] = {}
    for file in sorted((folder / CONFIGS).glob("*.toml")):
        config = read_config(file)
        paths = _files(store, config)
        key = (config.get("partition"), config.get("protocol"), _checksum(config))
        if not paths or key in seen:  # a later one is left over from an earlier sweep
            continue
        name = paths[0].stem.rpartition("_seed-")[0]
        same = list(seen.values()).count(name)  # other data of the same name
        seen[key] = name
        rounds = pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)
        named = f"{name}-{same + 1}" if same else name
        yield Held(named, rounds, str(config.get("metric", "eqo")), partial(_groups, config))
    if not seen:
        raise InputError(f"run must hold finished cells, got '{folder}' (none in {CELLS})")


def _checksum(config: Mapping[str, Any]) -> str:
    return str(config.get(PROVENANCE, {}).get("data-checksum", "")).removeprefix("sha256:")


def _files(store: Store, config: Mapping[str, Any]) -> list[Path]:
    """The cells that a config made; of a strategy whose code was edited, those of the version it names."""
    about = config.get(PROVENANCE, {})
    codes = {str(value).removeprefix("sha256:") for key, value in about.items() if key.startswith("plugin ")}
    mine = [(path, header) for path, header in store.held if _belongs(header["cell"], config)]
    mine.sort(key=lambda found: (found[1]["code"] in codes, found[0].stat().st_mtime), reverse=True)
    taken: dict[tuple[int, str], str] = {}
    paths = []
    for path, header in mine:
        held = [(header["cell"]["seed"], text) for text in header["specs"]]
        if all(taken.setdefault(key, header["code"]) == header["code"] for key in held):
            paths.append(path)
    return sorted(paths)


def _belongs(cell: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a cell was made by this config, and not by an earlier one."""
    names = ["partition", "protocol", "clients", *(field.name for field in fields(Training))]
    wanted = {name: config.get(name.replace("_", "-")) for name in names}
    wanted["version"] = config.get(PROVENANCE, {}).get("version")
    wanted["data-checksum"] = _checksum(config)
    wanted["hidden"] = list(parse_hidden(str(config.get("hidden", "10"))))
    same = all(cell.get(key) == value for key, value in wanted.items())
    return same and cell["seed"] in config.get("seeds", ())


def _groups(config: Mapping[str, Any]) -> Groups:
    """From the data, which must still be what they were."""
    table = load_table(from_mapping(config, where="the sweep"))
    if table.checksum != _checksum(config):
        raise InputError(f"data must be those of the sweep, got another '{config['data']}'")
    return table.grouping
