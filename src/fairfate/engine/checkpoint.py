"""A run's memory in one file: written whole after a round, so that a killed run can go on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairfate.errors import InputError
from fairfate.storage import read_arrays, write_arrays

Arrays = dict[str, NDArray[Any]]
_ROUNDS = "(rounds)"


class Saved(NamedTuple):
    """What a checkpoint holds."""

    identity: dict[str, Any]
    """What must be the same for a run to go on."""
    content: Any
    """States, packed; see `unpack`."""
    arrays: Arrays
    names: list[str]
    """Of all clients that ever took part, in the order of their numbers."""
    pieces: list[str]
    """A line of JSON for each round."""


def write_checkpoint(
    path: Path, state: Any, identity: dict[str, Any], names: list[str], pieces: list[str]
) -> None:
    """Write a checkpoint; whole, or the old one stays."""
    arrays: Arrays = {}
    content = pack(state, arrays)
    arrays[_ROUNDS] = np.frombuffer("\n".join(pieces).encode(), dtype=np.uint8)
    about = {"identity": identity, "content": content, "names": names, "shapes": _shapes(arrays)}
    write_arrays(path, arrays, about)


def read_checkpoint(path: Path) -> Saved:
    """Read what `write_checkpoint` has written."""
    try:
        arrays, about = read_arrays(path)
        if about["shapes"] != _shapes(arrays):
            raise ValueError("its arrays are not those that were written")
        pieces = arrays.pop(_ROUNDS).tobytes().decode().split("\n")
        return Saved(about["identity"], about["content"], arrays, about["names"], pieces)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"checkpoint must be a file that an earlier run has written, got '{path}' ({error})"
        ) from None


def _shapes(arrays: Arrays) -> dict[str, list[Any]]:
    return {name: [array.dtype.str, *array.shape] for name, array in arrays.items()}


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
        return {"dict": {key: pack(of, arrays, f"{where}.{key}") for key, of in value.items()}}
    if isinstance(value, np.ndarray):
        arrays[where] = np.ascontiguousarray(value)
        return {"array": where}
    if isinstance(value, list | tuple):
        return {"list": [pack(of, arrays, f"{where}.{number}") for number, of in enumerate(value)]}
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
        raise InputError(f"checkpoint must hold an array where the state has one, got {content!r}")
    if not isinstance(content, dict):
        return content
    ((kind, of),) = content.items()
    if kind == "array":
        return arrays[of]
    if kind == "dict":
        inner = like if isinstance(like, Mapping) else {}
        return {key: unpack(value, arrays, inner.get(key)) for key, value in of.items()}
    if kind == "tuple":
        if not hasattr(like, "_fields") or len(like._fields) != len(of):
            raise InputError(f"checkpoint must hold a state like {type(like).__name__}, got another")
        return type(like)(*(unpack(value, arrays, old) for value, old in zip(of, like, strict=True)))
    return [unpack(value, arrays, None) for value in of]
