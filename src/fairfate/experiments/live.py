"""What an unfinished seed has found so far: a file that grows while it is trained, and goes with its end."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.engine.record import OUTCOMES, ClientRound
from fairfate.engine.simulate import Trace
from fairfate.experiments.results import (
    Line,
    Named,
    about_groups,
    empty_rounds,
    groups_in,
    rounds_frame,
    rounds_table,
)
from fairfate.experiments.tables import MOST_ROUNDS, MOST_ROWS
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import metrics_by
from fairfate.strategies import Notes

LIVE = "live"
"""The folder for these files in a run's folder."""
SECONDS = 1.0
"""How often a file grows, at most."""
FORMAT = 1
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged line may end in."""
_SPLITS = ("validation", "test")
_CLIENT = ["round", "name", "outcome", "reason", "strategy", "metric", "settings", "seed"]


class Seen(NamedTuple):
    """What one strategy did in some rounds, one after another."""

    validation: Sequence[Counts]
    """(groups, 2, 2) the released model on the validation rows; none where only the last one counts."""
    test: Sequence[Counts]
    notes: Sequence[Notes]
    clients: Sequence[ClientRound] = ()
    """Who was asked, and what became of it; none where that is not recorded."""


def live_file(folder: Path, seed: int) -> Path:
    """A seed's file in a run's folder."""
    return folder / LIVE / f"seed-{seed}.jsonl"


def clear_live(folder: Path, seed: int | None = None) -> None:
    """Remove the files of a run's folder, or one seed's, and their folder if that leaves it empty."""
    of = "*" if seed is None else seed
    for path in (folder / LIVE).glob(f"seed-{of}.jsonl"):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / LIVE).rmdir()


# -- writing ---------------------------------------------------------------------------------------------


def header(key: Mapping[str, Any], rounds: int, specs: Sequence[Named], groups: Groups) -> dict[str, Any]:
    """The first line: what is being trained.

    Parameters
    ----------
    key : dataset, partition, protocol and seed
    rounds : how many are planned
    specs : the strategies, in the order of every later line
    groups : what is counted by
    """
    strategies = [[spec.label, spec.metric, spec.settings_json] for spec in specs]
    return {"format": FORMAT, **key, "rounds": rounds, "strategies": strategies, **about_groups(groups)}


class Writer:
    """Appends rounds to a seed's file, all that are new at once, at most every ``seconds``.

    The file is begun anew by each writer. What cannot be written is tried again later and is no error: a
    run does not depend on it.

    Parameters
    ----------
    path : the file
    about : its `header`
    seconds : between two writes, and before the first
    clock : tells the time in seconds
    """

    def __init__(
        self,
        path: Path,
        about: Mapping[str, Any],
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path, self.about, self.seconds, self.clock = path, about, seconds, clock
        self._next, self._written = clock() + seconds, 0

    def add(self, t: int, since: Callable[[int], Sequence[Seen]]) -> None:
        """After round ``t``; ``since`` tells what each strategy did in a round and all later ones."""
        if self.clock() < self._next:
            return
        first = self._written + 1
        rows = {"rounds": [first, t], "of": [_packed(seen) for seen in since(first)]}
        try:
            self._append((_dump(self.about) if first == 1 else b"") + _dump(rows))
            self._written = t
        except OSError:
            self._written = 0
        self._next = self.clock() + self.seconds

    def _append(self, content: bytes) -> None:
        how = os.O_APPEND
        if self._written == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            how = os.O_CREAT | os.O_TRUNC
        handle = os.open(self.path, os.O_WRONLY | how, 0o666)  # less the user's umask
        try:
            while content:
                content = content[os.write(handle, content) :]
        finally:
            os.close(handle)


def seen_since(traces: Sequence[Trace], first: int) -> list[Seen]:
    """What the strategies of a simulation did in a round and all later ones."""
    found = []
    for trace in traces:
        clients = trace.clients[bisect_left(trace.clients, first, key=_round) :]
        place = first - 1  # of the counts: none where thresholds are chosen after the last round
        found.append(Seen(trace.validation[place:], trace.test[place:], trace.notes[place:], clients))
    return found


def _round(client: ClientRound) -> int:
    return client.round


def _packed(seen: Seen) -> dict[str, Any]:
    """As JSON values: lists of numbers, since a run does this for each of its rounds and has no time."""
    found: dict[str, Any] = {
        split: np.array(counts).ravel().tolist()
        for split, counts in zip(_SPLITS, seen[:2], strict=True)
        if len(counts)
    }
    names = dict.fromkeys(name for notes in seen.notes for name in notes)
    columns = {name: [_number(name, notes.get(name)) for notes in seen.notes] for name in names}
    found["notes"] = {name: of for name, of in columns.items() if any(value is not None for value in of)}
    if seen.clients:
        who: dict[tuple[Any, ...], int] = {}
        found["clients"] = [client.round for client in seen.clients]
        found["became"] = [who.setdefault(client[1:4], len(who)) for client in seen.clients]
        found["who"] = list(who)
    return found


def _number(name: str, value: Any) -> float | None:
    """A note that is a number, or how many clients are fair; the others are for clients."""
    if isinstance(value, float):
        return float(value)
    if name == "fair" and value is not None:
        is_yes_or_no = isinstance(value, np.ndarray) and value.dtype == np.bool_
        return int(np.count_nonzero(value)) if is_yes_or_no else float(np.sum(value))
    return None if value is None or np.ndim(value) else float(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def _dump(value: Mapping[str, Any]) -> bytes:
    return _ENCODER.encode(value).encode() + b"\n"


# -- reading ---------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """A strategy as a file names it, also one of a plugin that is not here."""

    label: str
    metric: str | None
    settings_json: str


class LiveSeed(NamedTuple):
    """What a seed's file holds."""

    seed: int
    done: int
    """The last round that is written down."""
    planned: int
    strategies: int
    """How many there are, also those that are not measured yet."""
    rounds: pd.DataFrame
    """As `read_rounds` gives them."""
    clients: pd.DataFrame
    """For each round, strategy and client, what became of it."""
    groups: Groups


def read_live(folder: str | Path) -> tuple[pd.DataFrame, pd.DataFrame, Groups | None]:
    """The rounds, the clients and the groups of a run's unfinished seeds, as far as they are written down.

    The rounds have the columns that `read_rounds` gives. Lines that are damaged or not yet whole are left
    out, and so are files that go away meanwhile.
    """
    seeds = read_live_seeds(Path(folder))
    rounds = [one.rounds for one in seeds if len(one.rounds)]
    groups = seeds[0].groups if seeds else None
    return (
        pd.concat(rounds, ignore_index=True) if rounds else empty_rounds(groups),
        join_clients([one.clients for one in seeds]),
        groups,
    )


def join_clients(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Records of clients, one after another."""
    found = [frame for frame in frames if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=_CLIENT)


def read_live_seeds(folder: Path) -> list[LiveSeed]:
    """What each seed's file holds, by seed."""
    read = [_read_file(path) for path in (folder / LIVE).glob("seed-*.jsonl")]
    return sorted((one for one in read if one is not None), key=lambda one: one.seed)


def _read_file(path: Path) -> LiveSeed | None:
    """One file; None if it is gone, or if not even its first line is there."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    first, *lines = content.split(b"\n")[:-1] or [b""]  # what no line end follows is not yet whole
    try:
        about = json.loads(first)
        groups = groups_in(about)
        if about["format"] != FORMAT or groups is None:
            return None
        key = {name: str(about[name]) for name in ("dataset", "partition", "protocol")}
        seed, planned = int(about["seed"]), int(about["rounds"])
        told = [_strategy(*one) for one in about["strategies"]]
        if not 0 <= seed < 2**63 or not 1 <= planned <= MOST_ROUNDS:
            return None
    except _DAMAGED:
        return None
    blocks: list[_Block] = []
    for line in lines:
        with suppress(*_DAMAGED):
            block = _Block.read(json.loads(line), planned, len(told), len(groups))
            blocks += [block] if not blocks or block.rounds[0] > blocks[-1].rounds[-1] else []
    done = blocks[-1].rounds[-1] if blocks else 0
    rounds = _rounds({**key, "seed": seed}, told, blocks, groups)
    return LiveSeed(seed, done, planned, len(told), rounds, _clients(seed, told, blocks), groups)


def _strategy(label: object, metric: object, settings: object) -> _Told:
    if not isinstance(label, str) or not isinstance(settings, str) or not isinstance(metric, str | None):
        raise TypeError("a strategy must be named by texts")
    if not isinstance(json.loads(settings), dict):
        raise TypeError("settings must have names")
    return _Told(label, metric, settings)


class _Part(NamedTuple):
    """What a line says of one strategy."""

    counts: dict[str, Counts]
    """For each split that was measured, (rounds, groups, 2, 2)."""
    notes: list[dict[str, float]]
    """Of each round."""
    clients: list[list[Any]]
    """Columns: round, name, outcome, reason."""


class _Block(NamedTuple):
    """A line: some rounds that follow each other."""

    rounds: range
    parts: list[_Part]
    """For each strategy."""

    @classmethod
    def read(cls, row: Any, planned: int, strategies: int, groups: int) -> _Block:
        """The inverse of what a writer does; ValueError and the like for what none has written."""
        first, last = map(int, row["rounds"])
        if not 1 <= first <= last <= planned or len(row["of"]) != strategies:
            raise ValueError("not rounds")
        rounds = range(first, last + 1)
        return cls(rounds, [_part(one, rounds, groups) for one in row["of"]])


def _part(one: Any, rounds: range, groups: int) -> _Part:
    counts = {split: _counts(one[split], len(rounds), groups) for split in _SPLITS if split in one}
    notes: list[dict[str, float]] = [{} for _ in rounds]
    for name, values in one["notes"].items():
        for of, value in zip(notes, values, strict=True):
            if value is not None:
                of[name] = float(value)
    at, became = one.get("clients", []), one.get("became", [])
    if not set(at) <= set(rounds) or len(at) != len(became):
        raise ValueError("not clients")
    who = [[str(text) for text in (name, outcome, reason)] for name, outcome, reason in one.get("who", [])]
    if not {outcome for _, outcome, _ in who} <= set(OUTCOMES):
        raise ValueError("not what becomes of clients")
    return _Part(counts, notes, [at, *([who[place][of] for place in became] for of in range(3))])


def _counts(values: Any, rounds: int, groups: int) -> Counts:
    counts = np.array(values)
    if counts.dtype.kind != "i" or (counts < 0).any() or (counts > MOST_ROWS).any():
        raise ValueError("not counts")
    return counts.astype(np.int64).reshape(rounds, groups, 2, 2)


def _rounds(
    key: Mapping[str, Any], told: Sequence[_Told], blocks: Sequence[_Block], groups: Groups
) -> pd.DataFrame:
    lines = []
    for place, spec in enumerate(told):
        mine = [(block.rounds, block.parts[place]) for block in blocks if block.parts[place].counts]
        splits = [split for split in _SPLITS if mine and all(split in part.counts for _, part in mine)]
        if splits:
            counts = {split: [of for _, part in mine for of in part.counts[split]] for split in splits}
            numbers = [t for rounds, _ in mine for t in rounds]
            lines.append(Line(spec, numbers, counts, [note for _, part in mine for note in part.notes]))
    if not lines:
        return empty_rounds(groups)
    return _as_read(rounds_frame(key, lines, metrics_by(groups)))


def _as_read(frame: pd.DataFrame) -> pd.DataFrame:
    """Rounds as they come from a file: which numbers are whole, what is missing."""
    found: pd.DataFrame = rounds_table(frame, {}).to_pandas()
    return found


def _clients(seed: int, told: Sequence[_Told], blocks: Sequence[_Block]) -> pd.DataFrame:
    columns: list[list[Any]] = [[] for _ in _CLIENT]
    for place, spec in enumerate(told):
        for block in blocks:
            mine = block.parts[place].clients
            about = ([value] * len(mine[0]) for value in (*spec, seed))
            for column, values in zip(columns, (*mine, *about), strict=True):
                column += values
    return pd.DataFrame(dict(zip(_CLIENT, columns, strict=True)))
