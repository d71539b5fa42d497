"""What an unfinished seed has found so far: a file that grows while it is trained, and goes with its end."""

from __future__ import annotations

import json
import math
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
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import metrics_by
from fairfate.rounds.record import ClientRound
from fairfate.rounds.simulate import Trace
from fairfate.runs.results import (
    Line,
    Named,
    about_groups,
    empty_rounds,
    groups_in,
    noted,
    rounds_frame,
    rounds_table,
)
from fairfate.strategies import Notes

LIVE = "live"
"""The folder for these files in a run's folder."""
SECONDS = 1.0
"""How often a file grows, at most."""
FORMAT = 1
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading a damaged line may end in."""
_SPLITS = ("validation", "test")
_CLIENT = ["round", "name", "outcome", "reason", "strategy", "metric", "settings", "seed"]


class Seen(NamedTuple):
    """What one strategy did in one round."""

    validation: Counts | None
    """(groups, 2, 2) the released model on the validation rows; None where only the last one counts."""
    test: Counts | None
    notes: Notes
    clients: Sequence[ClientRound] = ()
    """Who was asked, and what became of it; empty where that is not recorded."""


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

    def add(self, t: int, seen: Callable[[int], Sequence[Seen]]) -> None:
        """After round ``t``; ``seen`` tells what each strategy did in a round, this one or an earlier one."""
        if self.clock() < self._next:
            return
        lines = [_dump(self.about)] if self._written == 0 else []
        lines += [_dump(_row(number, seen(number))) for number in range(self._written + 1, t + 1)]
        try:
            self._append("".join(lines).encode())
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


def seen_in(traces: Sequence[Trace], t: int) -> list[Seen]:
    """What the strategies of a simulation did in a round."""
    return [_seen(trace, t) for trace in traces]


def _seen(trace: Trace, t: int) -> Seen:
    place = t - 1
    first = bisect_left(trace.clients, t, key=_round)
    clients = trace.clients[first : bisect_left(trace.clients, t + 1, lo=first, key=_round)]
    if not trace.rounds:  # thresholds are chosen, and the model measured, after the last round
        return Seen(None, None, trace.notes[place], clients)
    return Seen(trace.validation[place], trace.test[place], trace.notes[place], clients)


def _round(client: ClientRound) -> int:
    return client.round


def _row(t: int, seen: Sequence[Seen]) -> dict[str, Any]:
    return {"round": t, "of": [_packed(one) for one in seen]}


def _packed(seen: Seen) -> dict[str, Any]:
    found: dict[str, Any] = {
        split: counts.ravel().tolist()
        for split, counts in zip(_SPLITS, seen[:2], strict=True)
        if counts is not None
    }
    *numbers, others = noted(seen.notes)
    told = dict(zip(("lam", "beta", "fair"), map(float, numbers), strict=True))
    told = {name: number for name, number in told.items() if not math.isnan(number)}
    if told or others:
        found["notes"] = told | (json.loads(others) if others else {})
    if seen.clients:
        found["clients"] = [[client.name, client.outcome, client.reason] for client in seen.clients]
    return found


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


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
        told = [_Told(*map(_text, one)) for one in about["strategies"]]
    except _DAMAGED:
        return None
    rows: dict[int, list[Seen]] = {}
    for line in lines:
        with suppress(*_DAMAGED):
            t, seen = _unpacked(json.loads(line), len(told), len(groups))
            rows |= {t: seen} if 1 <= t <= planned else {}
    rounds = _rounds({**key, "seed": seed}, told, rows, groups)
    clients = _clients(seed, told, rows)
    return LiveSeed(seed, max(rows, default=0), planned, len(told), rounds, clients, groups)


def _text(value: object) -> Any:
    if value is not None and not isinstance(value, str):
        raise TypeError("a strategy's name must be a text")
    return value


def _unpacked(row: Any, strategies: int, groups: int) -> tuple[int, list[Seen]]:
    """The inverse of `_row`; ValueError and the like for what no writer has written."""
    t, seen = int(row["round"]), []
    for one in row["of"]:
        validation, test = (_counts(one.get(split), groups) for split in _SPLITS)
        notes = {str(name): float(value) for name, value in one.get("notes", {}).items()}
        clients = [
            ClientRound(t, str(name), str(outcome), str(reason))
            for name, outcome, reason in one.get("clients", ())
        ]
        seen.append(Seen(validation, test, notes, clients))
    if len(seen) != strategies:
        raise ValueError("not a round")
    return t, seen


def _counts(values: Any, groups: int) -> Counts | None:
    if values is None:
        return None
    counts = np.array(values, dtype=np.int64).reshape(groups, 2, 2)
    if not all(type(value) is int for value in values) or (counts < 0).any():
        raise ValueError("not counts")
    return counts


def _rounds(
    key: Mapping[str, Any], told: Sequence[_Told], rows: Mapping[int, Sequence[Seen]], groups: Groups
) -> pd.DataFrame:
    lines = []
    for place, spec in enumerate(told):
        mine = {t: rows[t][place] for t in sorted(rows)}
        mine = {t: seen for t, seen in mine.items() if seen.validation is not None or seen.test is not None}
        counts: dict[str, list[Counts]] = {}
        for split in _SPLITS:
            found = [of for of in (getattr(seen, split) for seen in mine.values()) if of is not None]
            counts |= {split: found} if mine and len(found) == len(mine) else {}
        if counts:
            lines.append(Line(spec, list(mine), counts, [seen.notes for seen in mine.values()]))
    if not lines:
        return empty_rounds(groups)
    return _as_read(rounds_frame(key, lines, metrics_by(groups)))


def _as_read(frame: pd.DataFrame) -> pd.DataFrame:
    """Rounds as they come from a file: which numbers are whole, what is missing."""
    found: pd.DataFrame = rounds_table(frame, {}).to_pandas()
    return found


def _clients(seed: int, told: Sequence[_Told], rows: Mapping[int, Sequence[Seen]]) -> pd.DataFrame:
    found = [
        (client.round, client.name, client.outcome, client.reason, *spec, seed)
        for place, spec in enumerate(told)
        for t in sorted(rows)
        for client in rows[t][place].clients
    ]
    return pd.DataFrame(found, columns=_CLIENT)
