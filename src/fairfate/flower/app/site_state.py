"""What a site keeps of a study: the last question, how many it has answered, and a log of what left.

It is written, and safe on the disk, before an answer leaves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairfate.errors import InputError
from fairfate.files import write_bytes

LOG, LOCK = "answers.log", ".lock"
ANSWERED, REFUSED = "answered", "refused"


@dataclass
class State:
    """Of one version of a study."""

    counter: int = 0
    """Of the last question."""
    answered: dict[str, int] = field(default_factory=dict)
    """How many questions of each kind."""
    attempts: dict[str, tuple[int, str]] = field(default_factory=dict)
    """How often each round of each run was trained, and the checksum of what with."""
    clients: dict[str, int] = field(default_factory=dict)
    """The site's number in each run."""
    file: str = ""
    """The checksum of the site's file at the first question."""

    @classmethod
    def read(cls, text: str) -> State:
        """From a file; InputError unless every part is there and of its type."""
        try:
            values = json.loads(text)
            state = cls(**values)
            kinds = {field.name: type(getattr(cls(), field.name)) for field in fields(cls)}
            if set(values) != set(kinds) or any(
                type(values[name]) is not kind for name, kind in kinds.items()
            ):
                raise ValueError("a part is missing")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"state must be what this site has written, got a damaged file ({error})"
            ) from None
        return state


class SiteFolder:
    """A folder of the site's own, which no other account can read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"state must be a folder that can be written, got '{path}' ({error})") from None

    @contextmanager
    def state(self, study: str) -> Iterator[State]:
        """The state of a study, for this process alone; changes are kept unless an error is raised."""
        with (self.path / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file = self.path / f"study-{study[:32]}.json"
            state = State.read(file.read_text("utf-8")) if os.path.lexists(file) else State()
            yield state
            write_bytes(file, json.dumps(vars(state)).encode())

    def log(self, verdict: str, **about: Any) -> None:
        """One line for each message: what came, who claims to have sent it, what became of it."""
        line = json.dumps(
            {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "verdict": verdict, **about},
            ensure_ascii=True,
        )
        handle = os.open(self.path / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_log(self) -> list[dict[str, Any]]:
        """The lines, the first one first; a line that was cut off is left out."""
        try:
            text = (self.path / LOG).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return []
        found = []
        for line in text.splitlines():
            try:
                found.append(dict(json.loads(line)))
            except ValueError:
                continue
        return found


def file_checksum(path: Path) -> str:
    """Of the site's file as it is now."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
