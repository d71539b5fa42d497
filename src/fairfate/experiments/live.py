"""What a seed has measured so far: a file that grows while it is trained, and goes with its end."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.engine.record import OUTCOMES, ClientRound
from fairfate.engine.recorder import Trace
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import metrics_by
from fairfate.results.tables import (
    MOST_ROUNDS,
    MOST_ROWS,
    Line,
    Named,
    about_groups,
    empty_rounds,
    groups_in,
    rounds_frame,
    rounds_table,
)
from fairfate.strategies import Notes

LIVE = "live"
"""The folder for these files in a run's folder."""
SECONDS = 1.0
"""How often a file grows, at most."""
_SPLITS = ("validation", "test")
_UNREADABLE = OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError
_CLIENT = ["round", "name", "outcome", "reason", "strategy", "metric", "settings", "seed"]


class StrategyRounds(NamedTuple):
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
    for path in (folder / LIVE).glob(f"seed-{'*' if seed is None else seed}.jsonl"):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / LIVE).rmdir()


def header(key: Mapping[str, Any], rounds: int, specs: Sequence[Named], groups: Groups) -> dict[str, Any]:
    """The first line: dataset, partition, protocol and seed; rounds planned; strategies; groups."""
    strategies = [[spec.label, spec.metric, spec.settings_json] for spec in specs]
    return {**key, "rounds": rounds, "strategies": strategies, **about_groups(groups)}


class Writer:
    """Appends rounds to a seed's file, all that are new at once, at most every ``seconds``.

    Each writer begins its file anew. A file that cannot be written is tried again later and is no error: a
    run does not depend on it.
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

    def add(self, t: int, since: Callable[[int], Sequence[StrategyRounds]]) -> None:
        """After round ``t``; ``since`` tells what each strategy did in a round and all later ones."""
        if self.clock() < self._next:
            return
        first = self._written + 1
        lines = [self.about] if first == 1 else []
        lines += [{"first": first, "strategies": [_pack(record) for record in since(first)]}]
        content = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        try:
            if first == 1:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("w" if first == 1 else "r+", encoding="utf-8") as file:
                file.seek(0, 2)
                file.write(content)
            self._written = t
        except OSError:
            self._written = 0  # from the first round again
        self._next = self.clock() + self.seconds


def rounds_since(traces: Sequence[Trace], first: int) -> list[StrategyRounds]:
    """What the strategies of a simulation did in a round and all later ones."""
    records = []
    for trace in traces:
        clients = trace.clients[bisect_left(trace.clients, first, key=attrgetter("round")) :]
        start = first - 1
        records.append(
            StrategyRounds(trace.validation[start:], trace.test[start:], trace.notes[start:], clients)
        )
    return records


def _pack(record: StrategyRounds) -> dict[str, Any]:
    """As JSON: counts as one list of numbers, notes by name, and (round, name, outcome, reason)."""
    counts = {
        split: np.array(counts).ravel().tolist()
        for split, counts in zip(_SPLITS, record[:2], strict=True)
        if len(counts)
    }
    notes = [
        {
            name: float(np.sum(value)) if name == "fair" else float(value)
            for name, value in of_round.items()
            if value is not None and (name == "fair" or np.ndim(value) == 0)
        }
        for of_round in record.notes
    ]
    return {**counts, "notes": notes, "clients": [client[:4] for client in record.clients]}


class LiveSeed(NamedTuple):
    """What a seed's file holds."""

    seed: int
    rounds_done: int
    """The last round that is written down."""
    planned: int
    strategies: int
    """How many there are, also those that are not measured yet."""
    rounds: pd.DataFrame
    """As `read_rounds` gives them."""
    clients: pd.DataFrame
    """For each round, strategy and client, what became of it."""
    groups: Groups


class _Strategy(NamedTuple):
    """A strategy as a file names it, also one of a plugin that is not here."""

    label: str
    metric: str | None
    settings_json: str


def join_clients(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Records of clients, one after another."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=_CLIENT)


def read_live_seeds(folder: Path) -> list[LiveSeed]:
    """What each seed's file holds, by seed; files that go away or are damaged are left out."""
    seeds = []
    for path in (folder / LIVE).glob("seed-*.jsonl"):
        with suppress(*_UNREADABLE):
            seeds.append(_read(path.read_bytes()))
    return sorted(seeds, key=attrgetter("seed"))


def _read(content: bytes) -> LiveSeed:
    about, *blocks = [json.loads(line) for line in content.split(b"\n")[:-1]]  # the last may not be whole
    groups = groups_in(about)
    strategies = [_Strategy(*strategy) for strategy in about["strategies"]]
    key = {name: about[name] for name in ("dataset", "partition", "protocol", "seed")}
    numbers = [block["first"] + n for block in blocks for n in range(len(block["strategies"][0]["notes"]))]
    lines, clients = [], []
    for index, strategy in enumerate(strategies):
        parts = [block["strategies"][index] for block in blocks]
        notes = [of_round for part in parts for of_round in part["notes"]]
        clients += [(*client, *strategy, key["seed"]) for part in parts for client in part["clients"]]
        splits = [split for split in _SPLITS if parts and all(split in part for part in parts)]
        counts = {split: [n for part in parts for n in part[split]] for split in splits}
        if splits:
            if not 0 <= min(map(min, counts.values())) <= max(map(max, counts.values())) <= MOST_ROWS:
                raise ValueError("no counts of rows")
            shaped = {
                split: list(np.reshape(values, (-1, len(groups), 2, 2))) for split, values in counts.items()
            }
            lines.append(Line(strategy, numbers, shaped, notes))
    planned, frame = int(about["rounds"]), pd.DataFrame(clients, columns=_CLIENT)
    is_possible = 1 <= planned <= MOST_ROUNDS and numbers == sorted(set(numbers) & set(range(1, planned + 1)))
    is_known = frame["outcome"].isin(OUTCOMES).all() and not any(map(_is_odd, strategies))
    if not is_possible or not is_known or not 0 <= key["seed"] < 2**63:
        raise ValueError("no record of a seed")
    rounds = empty_rounds(groups)
    if lines:
        rounds = rounds_table(rounds_frame(key, lines, metrics_by(groups)), {}).to_pandas()
    return LiveSeed(key["seed"], max(numbers, default=0), planned, len(strategies), rounds, frame, groups)


def _is_odd(strategy: _Strategy) -> bool:
    label, metric, settings = strategy
    is_named = isinstance(label, str) and isinstance(metric, str | None)
    return not is_named or not isinstance(json.loads(settings), dict)
