"""What travels: models as flat vectors, and the names in messages; and how replies are waited for.

A reply that cannot be read, or is too large, costs only itself.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fairfate.errors import InputError, listing
from fairfate.flower.logs import one_line

BROADCAST, LEARNING_RATE, ROUND = "broadcast", "strategy-learning-rate", "server-round"
"""In a client's config: what it is told beside the model; the clients' learning rate, as the strategy knows
it; the round."""
CLIENT, NAME, PROBLEM, NOTE, COUNTS, ROWS = "client", "name", "problem", "note", "counts", "rows"
"""Names in a reply to a query: a ConfigRecord `client` with `name` (and `problem`, if the client cannot take
part, or a `note` for the log), and a MetricRecord `counts` with `rows`, its training rows by group and
label."""
ASK, SCORES, HISTOGRAM = "ask", "scores", "histogram"
"""In a query: what is asked for beside the name. The answer is a MetricRecord `counts` with `scores`, rows by
(model, group, label, prediction), or with `histogram`, rows by (group, label, score)."""
MODEL = "model-"
"""In a query for scores, or for a joint histogram of two models' scores: how the models' names begin."""
TARGET, GROUP, BINS = "target", "group", "bins"
"""In a config: what is trained for, where that is whether a row is in the second group and not its label. In
a query for a histogram of two models' scores: how many ranges of each there are."""
DECISION, TABLE, SPLIT = "decision", "table", "split"
"""In a config: what is trained for, where that is what a rule for everybody decides about a row; and its
table of decisions, as text. In a query for a histogram: that it is of the second model's score, and is split
by the first one's decision."""
GUESSED, PRICES = "guessed", "prices"
"""In a config, with more than two groups: the number of the group that is guessed. In a query for histograms
of tilted scores: the rules, as text; its number in the search is its round."""
HELD_SHARE, HELD_SEED = "held-share", "held-seed"
"""In a config: the share of its rows that a client holds out, and the seed by which it chooses them."""
PART, HELD = "part", "held"
"""In a query for a histogram: of the rows that are held out, and not of the others."""

SPEC = "spec"
"""In a question under differential privacy: the strategy with its steps, which its noise depends on."""

COHORT, ATTEMPT = "cohort", "attempt"
"""In a question under secure sums: the names of all who are asked, in order, and how often they were."""
UNMASK, QUESTION, SUM_PART = "unmask", "question", "sum"
"""In a query: that a sum is to be opened; of which question, and which part of it."""
SHARES, MEMBERS, SIGNATURES = "shares", "members", "signatures"
"""Of everybody: its shares, sealed for the recipient; its masked membership, and its signature of that."""
MASKED, REVEALED = "masked", "revealed"
"""In an answer: the masked numbers; shares of own masks."""

MOST_EXAMPLES = 2**53
"""Whole numbers up to here can be added."""
_EXACT = 2**24
"""Whole numbers up to here are exact in 32 bits."""
_WHOLE = 2**53
"""... and up to here in 64."""


_NUMPY = "numpy.ndarray"


class MismatchError(ValueError):
    """Arrays that are not those of the model; the message says in what."""


def blame(error: Exception) -> str:
    """What is wrong with a model on which the user's predictions fail."""
    known = isinstance(error, MismatchError)
    return one_line(error if known else f"predictions fail: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Layout:
    """The names, shapes and types of a model's arrays, and where they stand in a vector.

    Arrays that are counted rather than trained (whole numbers, a batch norm's running figures) stand at the
    end of the vector: they are averaged, and no strategy moves them.
    """

    names: tuple[str, ...]
    """In the order of the vector."""
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    dtype: str
    """Of the vector: 32-bit floats, or 64-bit ones where the arrays need them."""
    order: tuple[str, ...]
    """The names in the model's own order."""
    trained: int
    """How many of the arrays are trained."""
    floats: int
    """How many are not whole numbers; these come first."""

    @classmethod
    def from_record(cls, record: ArrayRecord, averaged: Collection[str] = ()) -> Layout:
        """The layout of a model's arrays; ``averaged`` are the last parts of the names not to be moved."""
        if not record:
            raise InputError("initial_arrays must hold at least one array, got none")
        arrays = {name: array.numpy() for name, array in record.items()}
        wide = False
        for name, values in arrays.items():
            if values.dtype.kind not in "fiub":
                raise InputError(f"initial_arrays must hold numbers, got {values.dtype} in '{name}'")
            if not np.isfinite(values).all():
                raise InputError(f"initial_arrays must be finite, got NaN or infinity in '{name}'")
            wide |= values.dtype == np.float64
            wide |= values.dtype.kind in "iu" and bool(np.abs(values.astype(float)).max(initial=0) > _EXACT)
        trained = [
            name
            for name, values in arrays.items()
            if values.dtype.kind == "f" and name.rpartition(".")[2] not in averaged
        ]
        if not trained:
            raise InputError(f"initial_arrays must hold an array of floats to train, got {listing(arrays)}")
        other = [n for n, values in arrays.items() if values.dtype.kind == "f" and n not in trained]
        whole = [name for name in arrays if name not in {*trained, *other}]
        names = (*trained, *other, *whole)
        return cls(
            names=names,
            shapes=tuple(arrays[name].shape for name in names),
            dtypes=tuple(str(arrays[name].dtype) for name in names),
            dtype="float64" if wide else "float32",
            order=tuple(arrays),
            trained=len(trained),
            floats=len(trained) + len(other),
        )

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(arrays,) where each array ends in the vector."""
        return np.cumsum([int(np.prod(shape)) for shape in self.shapes])

    @property
    def size(self) -> int:
        """Length of the vector."""
        return int(self.ends[-1])

    @property
    def moved(self) -> int:
        """Length of its trained part."""
        return int(self.ends[self.trained - 1])

    @property
    def measured(self) -> int:
        """Length of its part that counts for a norm: all but whole numbers."""
        return int(self.ends[self.floats - 1])

    def read(self, record: ArrayRecord, out: NDArray[Any], minus: NDArray[Any] | None = None) -> None:
        """Write a record's arrays into ``out``, less a vector; MismatchError if they are not this model's."""
        if set(record) != set(self.names):
            lacking = [name for name in self.names if name not in record]
            strange = [name for name in record if name not in self.names]
            missing, unknown = f"arrays missing: {listing(lacking)}", f"unknown arrays: {listing(strange)}"
            raise MismatchError(missing if lacking else unknown)
        start = 0
        for name, shape, dtype, end in zip(self.names, self.shapes, self.dtypes, self.ends, strict=True):
            values = _values(record[name], name, shape, dtype)
            if minus is None:
                out[start:end] = values.ravel()
            else:
                np.subtract(values.ravel(), minus[start:end], out=out[start:end])
            start = int(end)

    def tidy(self, record: ArrayRecord) -> ArrayRecord:
        """A record that `read` has accepted, in the model's own order and with true shapes and types."""
        about = dict(zip(self.names, zip(self.dtypes, self.shapes, strict=True), strict=True))
        return ArrayRecord({name: Array(*about[name], _NUMPY, record[name].data) for name in self.order})

    def flat(self, record: ArrayRecord) -> NDArray[Any]:
        """A record as a vector."""
        vector = np.empty(self.size, dtype=self.dtype)
        self.read(record, vector)
        return vector

    def record(self, vector: NDArray[Any]) -> ArrayRecord:
        """A vector as a record; whole numbers are rounded."""
        arrays: dict[str, Array] = {}
        pieces = np.split(vector, self.ends[:-1])
        for name, shape, dtype, piece in zip(self.names, self.shapes, self.dtypes, pieces, strict=True):
            whole = np.dtype(dtype).kind in "iub"
            values = np.rint(piece) if whole else piece
            arrays[name] = Array(values.reshape(shape).astype(dtype))
        return ArrayRecord({name: arrays[name] for name in self.order})


def _values(array: Array, name: str, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
    """An array's values without copying them, once its header has been found to be right."""
    if array.stype != _NUMPY:
        raise MismatchError(f"array '{name}' is stored as '{array.stype}' instead of '{_NUMPY}'")
    try:
        stream = BytesIO(array.data)
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        own_shape, fortran, kind = read[version](stream)
        if own_shape != shape:
            raise MismatchError(f"array '{name}' has shape {own_shape} instead of {shape}")
        if str(kind) != dtype:
            raise MismatchError(f"array '{name}' has type {kind} instead of {dtype}")
        size = int(np.prod(shape)) * kind.itemsize
        if len(array.data) != stream.tell() + size:
            raise MismatchError(
                f"array '{name}' has {len(array.data) - stream.tell()} bytes instead of {size}"
            )
        values = np.frombuffer(array.data, kind, offset=stream.tell())
    except MismatchError:
        raise
    except Exception as error:  # whatever bytes a client has sent
        raise MismatchError(f"array '{name}' cannot be read ({type(error).__name__})") from None
    if kind.kind in "iu" and np.abs(values.astype(np.float64)).max(initial=0) >= _WHOLE:
        raise MismatchError(f"array '{name}' has whole numbers beyond 2**53")
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


# -- waiting for replies ---------------------------------------------------------------------------------

PAUSE = 0.5
"""Seconds between two looks for replies."""
UNREADABLE = 1000
"""The code of an error that stands for a reply which could not be read; Flower's own are below."""
ANSWER = 8 << 20
"""Bytes of a reply to a question that asks for no model."""
MOST_OBJECTS = 10_000
"""Parts of a reply."""
_GRID = "flwr.superlink.grid.http_grid"


class TooLargeError(ValueError):
    """A reply of more bytes than its question can have asked for."""


def receive(grid: Grid, messages: Sequence[Message], timeout: float, largest: int = ANSWER) -> list[Message]:
    """Send messages; returns the replies that come in time, in any order.

    Parameters
    ----------
    grid : Flower's way to the nodes
    messages : the questions
    timeout : seconds to wait for their replies
    largest : bytes that a reply may have; one that cannot be read, or has more, is an error in its place
    """
    end = time.monotonic() + timeout
    waiting = {
        identity: message
        for identity, message in zip(grid.push_messages(messages), messages, strict=True)
        if identity is not None
    }
    replies: list[Message] = []
    while waiting:
        for identity in list(waiting):
            pulled = _pull(grid, identity, waiting[identity], largest)
            if pulled:
                replies += pulled
                del waiting[identity]
        left = end - time.monotonic()
        if not waiting or left <= 0:
            break
        time.sleep(min(PAUSE, left))
    return replies


def _pull(grid: Grid, identity: str, question: Message, largest: int) -> list[Message]:
    """The reply to one message, if it has come."""
    try:
        with within(largest, _GRID):
            return list(grid.pull_messages([identity]))
    except (ConnectionError, TimeoutError):
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
        MemoryError,
    ) as error:
        reason = f"a reply that cannot be read ({type(error).__name__}: {error})"
        return [Message(Error(UNREADABLE, reason), reply_to=question)]


@contextmanager
def within(largest: int, module_name: str) -> Iterator[None]:
    """Have one of Flower's modules give up a message before more than so many bytes of it are held."""
    module: Any = sys.modules.get(module_name)
    if module is None:
        yield
        return
    pull, inflate = module.pull_objects, module.inflate_object_from_contents

    def pull_within(object_ids: Iterable[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> Any:
        names = list(object_ids)
        if len(set(names)) > MOST_OBJECTS or len(names) > MOST_OBJECTS:
            raise TooLargeError(f"more than {MOST_OBJECTS} parts")
        taken, lock = [0], threading.Lock()

        def pull_counted(name: str) -> bytes:
            content = pull_object_fn(name)
            with lock:
                taken[0] += len(content)
            if taken[0] > largest:
                raise TooLargeError(f"more than {largest} bytes")
            return content

        return pull(names, pull_counted, **options)

    def inflate_within(name: str, contents: dict[str, bytes], **options: Any) -> Any:
        if options.get("objects") is None:  # the message itself, and not a part of it
            size = inflated_size(contents)
            if size > largest:
                raise TooLargeError(f"{size} bytes, more than {largest}")
        return inflate(name, contents, **options)

    module.pull_objects, module.inflate_object_from_contents = pull_within, inflate_within
    try:
        yield
    finally:
        module.pull_objects, module.inflate_object_from_contents = pull, inflate


def inflated_size(contents: Mapping[str, bytes]) -> int:
    """The bytes that Flower's objects take once arrays have been put together from their chunks.

    An array may name one chunk many times.
    """
    from flwr.app.message.array import Array
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_body,
        get_object_head_values_from_object_content,
    )

    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        total += len(content)
        if kind == Array.__qualname__:
            indices = json.loads(bytes(get_object_body(content, Array)))["arraychunk_ids"]
            total += sum(len(contents[children[index]]) for index in indices)
    return total
