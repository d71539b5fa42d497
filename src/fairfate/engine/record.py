"""Who took part in a round, who was fair, who was dropped and why; many rounds of it in little memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.engine.server import Outcome, Replies
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import metrics_by

FAIR, USED, DROPPED, REFUSED = "fair", "used", "dropped", "refused"
"""What becomes of a client in a round; who is refused is not asked at all."""
OUTCOMES = (FAIR, USED, DROPPED, REFUSED)
MEASURES = ("accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo")
"""Of a client's model on the validation rows, where it was scored."""


class ClientRound(NamedTuple):
    """One client in one round."""

    round: int
    name: str
    outcome: str
    reason: str = ""
    examples: float = math.nan
    counts: Counts | None = None
    """(groups, 2, 2) its model on the validation rows, where the strategy looks at that."""
    notes: Mapping[str, float] = MappingProxyType({})
    """What the strategy noted of it."""
    node: int | None = None
    """Its number on Flower."""


class CountsRecord(Sequence[Counts]):
    """The counts of many rounds: a list of arrays that holds 8 bytes for each number, and nothing else."""

    def __init__(self, counts: Iterable[Counts] = ()) -> None:
        self._values = array("q")
        self._shape: tuple[int, ...] = ()
        for each in counts:
            self.append(each)

    def append(self, counts: Counts) -> None:
        """Add a round."""
        self._shape = np.shape(counts)
        self._values.frombytes(np.asarray(counts, dtype=np.int64).tobytes())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """(rounds, groups, 2, 2) all of them."""
        return self._all().astype(dtype or np.int64)

    def _all(self) -> Counts:
        """The same as a view, which must not outlive the next round."""
        return np.frombuffer(self._values, dtype=np.int64).reshape(-1, *self._shape)

    def __len__(self) -> int:
        return len(self._values) // max(math.prod(self._shape), 1)

    @overload
    def __getitem__(self, index: int) -> Counts: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Counts]: ...

    def __getitem__(self, index: int | slice) -> Counts | Sequence[Counts]:
        counts = self._all()[index].copy()
        return list(counts) if isinstance(index, slice) else counts


class _Kind(NamedTuple):
    """What many clients' rounds have in common."""

    name: str
    outcome: str
    reason: str
    is_counted: bool
    noted: tuple[str, ...]
    """Names of its notes."""
    node: int | None


class ClientsRecord(Sequence[ClientRound]):
    """The clients of many rounds: a list of `ClientRound` that holds numbers, and each text once."""

    def __init__(self, clients: Iterable[ClientRound] = ()) -> None:
        self._kinds: dict[_Kind, int] = {}
        self._known: list[_Kind] = []
        self._kind, self._round, self._examples = array("q"), array("q"), array("d")
        self._counts, self._noted = CountsRecord(), array("d")
        self._counted_at, self._noted_at = array("q"), array("q")
        self.extend(clients)

    def extend(self, clients: Iterable[ClientRound]) -> None:
        """Add some, of the last round or a later one."""
        for client in clients:
            counted = client.counts is not None
            kind = _Kind(*client[1:4], counted, tuple(client.notes), client.node)
            if kind not in self._kinds:
                self._kinds[kind] = len(self._known)
                self._known.append(kind)
            self._kind.append(self._kinds[kind])
            self._round.append(client.round)
            self._examples.append(client.examples)
            self._counted_at.append(len(self._counts))
            self._noted_at.append(len(self._noted))
            if client.counts is not None:
                self._counts.append(client.counts)
            self._noted.extend(client.notes.values())

    def __len__(self) -> int:
        return len(self._kind)

    @overload
    def __getitem__(self, index: int) -> ClientRound: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ClientRound]: ...

    def __getitem__(self, index: int | slice) -> ClientRound | Sequence[ClientRound]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        kind, start = self._known[self._kind[index]], self._noted_at[index]
        counts = self._counts[self._counted_at[index]] if kind.is_counted else None
        notes = dict(zip(kind.noted, self._noted[start : start + len(kind.noted)], strict=True))
        known = self._round[index], kind.name, kind.outcome, kind.reason, self._examples[index]
        return ClientRound(*known, counts, notes, kind.node)

    def pack(self) -> tuple[list[Any], dict[str, NDArray[Any]]]:
        """Texts as JSON values, and numbers as arrays: copies, of which checkpoints are made."""
        columns = {name: np.array(getattr(self, f"_{name}")) for name in _COLUMNS}
        return [list(kind) for kind in self._known], columns

    @classmethod
    def unpack(cls, kinds: Sequence[Sequence[Any]], columns: Mapping[str, NDArray[Any]]) -> ClientsRecord:
        """The inverse of `pack`."""
        record = cls()
        record._known = [_Kind._make([*kind[:4], tuple(kind[4]), kind[5]]) for kind in kinds]
        record._kinds = {kind: number for number, kind in enumerate(record._known)}
        for name in _COLUMNS:
            values, code = columns[name], "d" if name in ("examples", "noted") else "q"
            packed = CountsRecord(values) if name == "counts" else array(code, values.tobytes())
            setattr(record, f"_{name}", packed)
        return record


_COLUMNS = ("kind", "round", "examples", "counts", "noted", "counted_at", "noted_at")


def client_rounds(t: int, replies: Replies, outcome: Outcome) -> list[ClientRound]:
    """What became of each client of a round."""
    of_client = {
        name: np.asarray(values, dtype=np.float64)
        for name, values in outcome.notes.items()
        if np.shape(values) == (len(replies.clients),)
    }
    rows = []
    for number, name in enumerate(replies.clients):
        notes = {key: float(values[number]) for key, values in of_client.items() if key != "fair"}
        fair = bool(of_client["fair"][number]) if "fair" in of_client else False
        became = DROPPED if outcome.problem else FAIR if fair else USED
        counts = replies.client_counts[number] if len(replies.client_counts) else None
        examples = float(replies.num_examples[number])
        reason = outcome.problem or (replies.remarks[number] if replies.remarks else "")
        node = replies.nodes[number] if replies.nodes else None
        rows.append(ClientRound(t, name, became, reason, examples, counts, notes, node))
    rows += [ClientRound(t, gone.client, DROPPED, gone.reason, node=gone.node) for gone in replies.dropped]
    return rows


def clients_frame(rows: Sequence[ClientRound], groups: Groups | None) -> pd.DataFrame:
    """The same as a table, one row for each client and round."""
    if not len(rows):
        return pd.DataFrame(columns=["round", "name", "outcome", "reason", "examples", *MEASURES])
    columns: dict[str, Any] = {"round": [row.round for row in rows], "name": [row.name for row in rows]}
    if any(row.node is not None for row in rows):
        columns["node"] = [math.nan if row.node is None else row.node for row in rows]
    columns |= {name: [getattr(row, name) for row in rows] for name in ("outcome", "reason", "examples")}
    is_counted = np.array([row.counts is not None for row in rows])
    counts = CountsRecord(row.counts for row in rows if row.counts is not None)
    metrics = metrics_by(groups)
    for name in MEASURES:
        columns[name] = np.full(len(rows), math.nan)
        if is_counted.any():
            columns[name][is_counted] = metrics[name](np.asarray(counts))
    for key in dict.fromkeys(chain.from_iterable(row.notes for row in rows)):
        columns[f"note_{key}"] = np.array([row.notes.get(key, math.nan) for row in rows])
    return pd.DataFrame(columns)
