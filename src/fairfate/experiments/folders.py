"""What the folder of a run or sweep holds, read without its data and without changing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.experiments.config import HIDDEN, PROVENANCE, read_written
from fairfate.experiments.results import (
    CELLS,
    CONFIG,
    CONFIGS,
    KEYS,
    ROUNDS,
    SUMMARY,
    empty_rounds,
    groups_in,
    part_file,
    read_clients,
    read_groups,
    read_rounds,
    read_sheet,
)
from fairfate.experiments.sheet import Sheet
from fairfate.models.mlp import parse_hidden
from fairfate.models.training import Training
from fairfate.models.user_network import split

if TYPE_CHECKING:
    from fairfate.experiments.store import Store

SWEPT = (
    "encode",
    "clients",
    "per-round",
    "validation-from",
    "min-cell",
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


USUAL = {"validation-from": "server"}
"""What a config says nothing of."""


class Held(NamedTuple):
    """The rounds of one config."""

    name: str
    """Of the dataset, partition and protocol in a sweep; empty for a run."""
    rounds: Sheet
    metric: str
    """What its strategies look at, where they say nothing else."""
    groups: Groups | None
    """What the counts are counted by; None for runs of older versions."""
    notes: tuple[str, ...] = ()
    """What was done to the data."""
    title: str = ""
    """What tells it from the other configs of a sweep."""
    has_test: bool = False
    """Whether test rows came from a file of their own."""


def is_sweep(folder: Path) -> bool:
    """Whether it is the folder of a sweep."""
    return all((folder / part).is_dir() for part in (CONFIGS, CELLS)) and not (folder / ROUNDS).exists()


def read_folder(folder: Path) -> Iterator[Held]:
    """What a run, or each part of a sweep, has found; one after another, so that memory stays small."""
    if is_sweep(folder):
        yield from _read_sweep(folder)
        return
    rounds = measured(read_sheet(folder), folder)
    file = (folder if folder.is_dir() else folder.parent) / CONFIG
    config = read_written(file) if file.is_file() else {}
    metric, has_test = str(config.get("metric", "eqo")), "test" in config
    yield Held("", rounds, metric, read_groups(folder), read_notes(config), has_test=has_test)


def measured(rounds: Sheet, folder: Path) -> Sheet:
    """The same, if every strategy and seed has one row of test rows in the last round."""
    last = rounds.where((rounds["split"] == "test") & (rounds["round"] == rounds["round"].max(initial=0)))
    lines, tested = (len(rows.numbered(*KEYS, "seed")[1]) for rows in (rounds, last))
    if not len(rounds) or not lines == tested == len(last):
        raise InputError(
            "run must hold one measurement on test rows for every strategy and seed in the last round, got"
            f" {len(last)} for {lines} in '{folder}'"
        )
    return rounds


class Unfinished(NamedTuple):
    """What a run that goes on, or was interrupted, has found so far."""

    rounds: pd.DataFrame
    """As `read_rounds` gives them; none where every strategy is measured after the last round only."""
    clients: pd.DataFrame
    """Who took part; examples and metrics of clients are there for finished seeds only."""
    groups: Groups | None
    metric: str
    """What its strategies look at, where they say nothing else."""
    notes: tuple[str, ...]
    """What was done to the data."""
    progress: dict[int, tuple[int, int]]
    """For each seed, the last round that is written down, and how many are planned."""


def read_unfinished(folder: str | Path) -> Unfinished | None:
    """All that an unfinished run's folder holds: finished seeds, and the others as far as they are.

    Nothing is written, nothing is locked, and files may come and go meanwhile.

    Returns
    -------
    None if the run is finished: `read_folder` reads it then.
    """
    from fairfate.experiments.live import join_clients, read_live_seeds  # with all that runs a cell
    from fairfate.experiments.store import Store, join_rounds

    place = Path(folder)
    config = _begun(place)
    live = {one.seed: one for one in read_live_seeds(place)}  # first, since a seed's end removes it last
    whole: dict[int, list[tuple[dict[str, Any], pd.DataFrame]]] = {}
    for header, rounds in Store(place / CELLS).whole():
        whole.setdefault(int(header["cell"]["seed"]), []).append((header, rounds))
    for seed, now in live.items():  # a plugin's strategies have a file of their own, perhaps not yet written
        if seed in whole and sum(len(header["specs"]) for header, _ in whole[seed]) < now.strategies:
            del whole[seed]
    seeds = list(dict.fromkeys([*map(int, config.get("seeds", ())), *sorted({*whole, *live})]))
    clients = [
        _part(part_file(place, seed)) if seed in whole else live[seed].clients
        for seed in seeds
        if seed in whole or seed in live
    ]
    if (place / SUMMARY).exists():
        return None
    if not whole and not live:
        raise InputError(
            f"run must have been training for some seconds, got '{folder}', which has just begun"
        )
    headers = [header for found in whole.values() for header, _ in found]
    groups = groups_in(headers[0]) if headers else next(iter(live.values())).groups
    asked = _asked(config, [(None, header) for header in headers])
    frames = [join_rounds(whole[seed], asked) for seed in seeds if seed in whole]
    frames += [live[seed].rounds for seed in seeds if seed in live and seed not in whole]
    frames = [frame for frame in frames if len(frame)]
    planned = int(config.get("rounds", 0)) or max((one.planned for one in live.values()), default=0)
    return Unfinished(
        pd.concat(frames, ignore_index=True) if frames else empty_rounds(groups),
        join_clients(clients),
        groups,
        str(config.get("metric", "eqo")),
        read_notes(config),
        {
            seed: (planned if seed in whole else live[seed].done if seed in live else 0, planned)
            for seed in seeds
        },
    )


def _begun(folder: Path) -> dict[str, Any]:
    """The config of a run that has begun."""
    try:
        return read_written(folder / CONFIG)
    except (OSError, InputError):
        raise InputError(f"run must be the folder of a run, got '{folder}' (no readable {CONFIG})") from None


def _part(file: Path) -> pd.DataFrame:
    try:
        return read_clients(file)
    except InputError:  # gone meanwhile
        return pd.DataFrame()


def read_notes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What a config says was done to the data."""
    return tuple(map(str, config.get(PROVENANCE, {}).get("data-notes", ())))


def _read_sweep(folder: Path) -> Iterator[Held]:
    from fairfate.experiments.store import Store, join_rounds  # as above

    store = Store(folder / CELLS)
    damaged = [path.name for path in store.damaged]
    if damaged:
        raise InputError(f"run must hold whole cells, got a damaged {damaged[0]}: run the sweep again")
    store.index()
    configs = [read_written(file) for file in sorted((folder / CONFIGS).glob("*.toml"))]
    differing = [key for key in SWEPT if len({str(config.get(key)) for config in configs}) > 1]
    names: list[str] = []
    for config in configs:
        held = _files(store, config)
        if not held:
            continue
        name = held[0][0].stem.rpartition("_seed-")[0]
        names.append(name)
        same = names.count(name)
        rounds = join_rounds([(header, read_rounds(path)) for path, header in held], _asked(config, held))
        if not len(rounds):
            names.pop()
            continue
        yield Held(
            name if same == 1 else f"{name}-{same}",
            measured(Sheet.of_frame(rounds), folder),
            str(config.get("metric", "eqo")),
            groups_in(held[0][1]),
            read_notes(config),
            ", ".join(f"{key} {config.get(key, USUAL.get(key))}" for key in differing),
        )
    if not names:
        raise InputError(f"run must hold finished cells, got '{folder}' (none in {CELLS})")


def _asked(config: Mapping[str, Any], files: Iterable[tuple[Any, Mapping[str, Any]]]) -> list[str]:
    """The strategies of a config in its order; those of the files where it names none."""
    named = list(map(str, config.get("strategy") or ()))
    return named or list(dict.fromkeys(text for _, header in files for text in header["specs"]))


def _checksum(config: Mapping[str, Any]) -> str:
    return str(config.get(PROVENANCE, {}).get("data-checksum", "")).removeprefix("sha256:")


def _files(store: Store, config: Mapping[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """The cells that a config made; of a strategy whose code was edited, those of the version it names."""
    about = config.get(PROVENANCE, {})
    codes = {str(value).removeprefix("sha256:") for key, value in about.items() if key.startswith("plugin ")}
    mine = [(path, header) for path, header in store.held if _belongs(header["cell"], config)]
    mine.sort(key=lambda found: (found[1]["code"] in codes, found[0].stat().st_mtime), reverse=True)
    taken: dict[tuple[int, str], str] = {}
    found = []
    for path, header in mine:
        held = [(header["cell"]["seed"], text) for text in header["specs"]]
        if all(taken.setdefault(key, header["code"]) == header["code"] for key in held):
            found.append((path, header))
    return sorted(found, key=lambda one: one[0])


def _belongs(cell: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a cell was made by this config, and not by an earlier one."""
    names = ["partition", "protocol", "clients", *(field.name for field in fields(Training))]
    wanted = {name: config.get(name.replace("_", "-")) or None for name in names}  # what is off is left out
    wanted["version"] = config.get(PROVENANCE, {}).get("version")
    wanted["data-checksum"] = _checksum(config)
    wanted["validation-from"] = config.get("validation-from")  # none of both stands for the server
    wanted["min-cell"] = config.get("min-cell") or None
    wanted["hidden"] = list(parse_hidden(str(config.get("hidden", HIDDEN))))
    wanted["attack"] = config.get("attack")
    if "model" in config:
        wanted["model"] = f"{split(config['model'])[1]} {config.get(PROVENANCE, {}).get('model')}"
    same = cell.get("model") == wanted.get("model") and all(
        cell.get(key) == value for key, value in wanted.items()
    )
    return same and cell["seed"] in config.get("seeds", ())
