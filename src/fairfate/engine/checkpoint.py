"""A run that was killed goes on: what its servers and recorders hold, in one file, written whole."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.engine.recorder import Recorder
from fairfate.engine.server import Server
from fairfate.errors import InputError
from fairfate.storage import read_arrays, write_arrays

Arrays = dict[str, NDArray[Any]]
_TEXTS = "(texts)"


class Saved(NamedTuple):
    """What a checkpoint holds."""

    round: int
    """The last one that is done."""
    identity: dict[str, Any]
    """What must be the same for a run to go on."""
    content: Any
    """Numbers, packed; see `unpack`."""
    arrays: Arrays
    texts: list[str]
    """A line of JSON for each recorder."""


class Checkpoint:
    """Writes the file at most every ``seconds``; without a path, never.

    Parameters
    ----------
    path : the file
    identity : what must be the same for a run to go on
    seconds : between two times that the file is written
    strict : a file that cannot be gone on from is an error; otherwise the run begins again
    """

    def __init__(
        self, path: Path | None, identity: dict[str, Any], seconds: float = 30.0, *, strict: bool = False
    ) -> None:
        self.path, self.identity, self.seconds, self.strict = path, identity, seconds, strict
        self._last = time.monotonic()

    def save(
        self, t: int, servers: Sequence[Server], recorders: Sequence[Recorder], more: Any = None
    ) -> None:
        """After a round; ``more`` is what else the run needs to go on."""
        if self.path is None or time.monotonic() - self._last < self.seconds:
            return
        packed = [recorder.pack() for recorder in recorders]
        content = {
            "states": [server.state for server in servers],
            "discarded": [server.discarded for server in servers],
            "recorders": [numbers for numbers, _ in packed],
            "more": more,
        }
        write_checkpoint(self.path, t, content, self.identity, [text for _, text in packed])
        self._last = time.monotonic()

    def load(self, servers: Sequence[Server], recorders: Sequence[Recorder]) -> tuple[int, Any]:
        """Take up what was saved, if it is of this run; returns the rounds that are done, and what more."""
        if self.path is None or not self.path.exists():
            return 0, None
        try:
            saved = read_checkpoint(self.path)
            self._check(saved)
            return saved.round, _take_up(saved, servers, recorders)
        except (InputError, LookupError, ValueError, TypeError, AttributeError):
            if self.strict:
                raise
            return 0, None

    def _check(self, saved: Saved) -> None:
        """InputError unless the file is of this run."""
        identity = json.loads(json.dumps(self.identity))
        for name in {**identity, **saved.identity}:
            before, now = saved.identity.get(name), identity.get(name)
            if before != now:
                raise InputError(
                    f"checkpoint must be of the same run, got '{self.path}' with another {name}:"
                    f" {before} instead of {now}"
                )

    def remove(self) -> None:
        """The run is done."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            with suppress(OSError):
                self.path.parent.rmdir()


def _take_up(saved: Saved, servers: Sequence[Server], recorders: Sequence[Recorder]) -> Any:
    """All of a checkpoint, or nothing of it; returns what more there is."""
    content = saved.content["dict"]
    states = [
        unpack(state, saved.arrays, server.state)
        for server, state in zip(servers, content["states"]["list"], strict=True)
    ]
    for server, state in zip(servers, states, strict=True):
        if np.shape(state.params) != np.shape(server.params):
            shapes = f"{np.shape(state.params)} numbers, this run's {np.shape(server.params)}"
            raise InputError(f"The checkpoint is of another run: its model has {shapes}.")
    numbers = [unpack(packed, saved.arrays, None) for packed in content["recorders"]["list"]]
    records = [
        (recorder, recorder.unpack(values, text))
        for recorder, values, text in zip(recorders, numbers, saved.texts, strict=True)
    ]
    more = unpack(content["more"], saved.arrays, None)
    for server, state, discarded in zip(servers, states, content["discarded"]["list"], strict=True):
        server.state, server.discarded = state, discarded
    for recorder, record in records:
        recorder.restore(record)
    return more


def write_checkpoint(path: Path, t: int, state: Any, identity: dict[str, Any], texts: Sequence[str]) -> None:
    """Write a checkpoint; whole, or the old one stays."""
    arrays: Arrays = {}
    content = pack(state, arrays)
    arrays[_TEXTS] = np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)
    write_arrays(path, arrays, {"round": t, "identity": identity, "content": content})


def read_checkpoint(path: Path) -> Saved:
    """Read what `write_checkpoint` has written."""
    try:
        arrays, about = read_arrays(path)
        texts = arrays.pop(_TEXTS).tobytes().decode().split("\n")
        return Saved(about["round"], about["identity"], about["content"], arrays, texts)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"checkpoint must be a file that an earlier run has written, got '{path}' ({error})"
        ) from None


def pack(value: Any, arrays: Arrays, where: str = "state") -> Any:
    """A state as JSON values, with its arrays under their names in ``arrays``.

    Named tuples, dictionaries by text, lists, arrays, numbers, texts and None may be nested at will.
    """
    if hasattr(value, "_fields"):
        return {"tuple": [pack(getattr(value, n), arrays, f"{where}.{n}") for n in value._fields]}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InputError(f"{where} must have texts as keys to be saved, got {key!r}")
        return {"dict": {key: pack(item, arrays, f"{where}.{key}") for key, item in value.items()}}
    if isinstance(value, np.ndarray):
        arrays[where] = np.ascontiguousarray(value)
        return {"array": where}
    if isinstance(value, list | tuple):
        return {"list": [pack(item, arrays, f"{where}.{number}") for number, item in enumerate(value)]}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        f"{where} must be made of tuples, dictionaries, arrays, numbers and texts to be saved, got"
        f" {type(value).__name__}"
    )


def unpack(content: Any, arrays: Mapping[str, NDArray[Any]], like: Any) -> Any:
    """The value again; named tuples are those of ``like``, a value of the same kind."""
    if isinstance(like, np.ndarray) and not (isinstance(content, dict) and "array" in content):
        raise InputError(f"The checkpoint holds {content!r} where the strategy's state has an array.")
    if not isinstance(content, dict):
        return content
    ((kind, packed),) = content.items()
    if kind == "array":
        return arrays[packed]
    if kind == "dict":
        inner = like if isinstance(like, Mapping) else {}
        return {key: unpack(value, arrays, inner.get(key)) for key, value in packed.items()}
    if kind == "tuple":
        if not hasattr(like, "_fields") or len(like._fields) != len(packed):
            kind = type(like).__name__
            raise InputError(
                f"The checkpoint holds no state like {kind}: another strategy or version wrote it."
            )
        return type(like)(*(unpack(value, arrays, old) for value, old in zip(packed, like, strict=True)))
    return [unpack(value, arrays, None) for value in packed]
