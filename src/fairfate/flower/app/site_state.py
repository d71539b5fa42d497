"""What a site keeps of a study: the last question, how many it has answered, and a log of what left.

It is written, and safe on the disk, before an answer leaves.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from fairfate.errors import InputError
from fairfate.flower.sealing import pack, unpack
from fairfate.flower.study import TRAIN
from fairfate.storage import LOCK, hold, sync_folder, write_bytes

LOG = "answers.log"
ANSWERED, REFUSED = "answered", "refused"
NO_STUDY = "none"
"""In the place of a study's checksum: the site's settings lead to no study."""
MOST_REFUSED = 10_000
"""Lines of refused messages in the log, for one version of a study."""
_READING = ("rename", "target", "sensitive", "sep", "decimal", "encoding")
"""Settings that say what the site's file holds."""


@dataclass
class State:
    """Of one version of a study."""

    counter: int = 0
    """Of the last question."""
    answered: dict[str, int] = field(default_factory=dict)
    """How many questions of each kind."""
    attempts: dict[str, tuple[int, str]] = field(default_factory=dict)
    """How often each round of each run was trained, and the checksum of what with."""
    fixed: dict[str, int | str] = field(default_factory=dict)
    """What stays the same in each run: the site's number, the seeds, the strategy."""
    file: str = ""
    """The checksum of the site's file at the first answer."""
    refused: int = 0
    """How many messages were refused."""
    sums: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Secure sums that the site has masked for, and what of them it has opened."""
    opened: dict[str, list[str]] = field(default_factory=dict)
    """Over which sites it has opened what was made from which model."""

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
        with hold(self.path / LOCK):
            file = self.path / f"study-{study[:32]}.json"
            state = State.read(file.read_text("utf-8")) if os.path.lexists(file) else State()
            yield state
            write_bytes(file, json.dumps(vars(state)).encode())
            sync_folder(self.path)

    def keep_schema(self, study: str, text: str) -> None:
        """Keep a study's schema, which comes with the first question only; call once it has been checked."""
        if self.read_schema(study) != text:
            write_bytes(self._schema_file(study), text.encode())

    def read_schema(self, study: str) -> str:
        """The schema of a study, to be checked again; nothing where none was kept."""
        with suppress(OSError, ValueError):
            return self._schema_file(study).read_text("utf-8")
        return ""

    def _schema_file(self, study: str) -> Path:
        return self.path / f"schema-{study[:32]}.json"

    def check_owner(self) -> None:
        """InputError unless the folder is ours alone."""
        about = self.path.stat()
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise InputError(
                f"state must be a folder of this account's own that nobody else can use, got '{self.path}'"
                " (chmod 700)"
            )

    def refuse(self, study: str, **about: Any) -> None:
        """Log a message that was refused; after very many of one version of a study, only count them.

        Parameters
        ----------
        study : the study's checksum, or `NO_STUDY`
        about : what came, and why it was refused
        """
        number = 0  # of a state that cannot be read: then each one is logged
        with suppress(InputError, OSError, ValueError), self.state(study) as state:
            number = state.refused = state.refused + 1
        if number <= MOST_REFUSED:
            last = {"note": "later refused messages are only counted"} if number == MOST_REFUSED else {}
            self.log(REFUSED, **about, **last)

    def count_unlisted(self) -> int:
        """How many refused messages are not in the log."""
        total = 0
        for file in self.path.glob("study-*.json"):
            with suppress(InputError, OSError):
                total += max(0, State.read(file.read_text("utf-8")).refused - MOST_REFUSED)
        return total

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
        entries = []
        for line in text.splitlines():
            try:
                entries.append(dict(json.loads(line)))
            except ValueError:
                continue
        return entries


class AnswerStore:
    """Answers with noise that a site keeps, since the same question must get the same noise.

    Parameters
    ----------
    folder : the site's own
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, kind: str, question: str) -> RecordDict | None:
        """The answer to a question, if there was one."""
        try:
            return unpack(self._file(kind, question).read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"state must be what this site has written, got a damaged answer ({error})"
            ) from None

    def keep(self, kind: str, question: str, answer: RecordDict) -> None:
        """Keep an answer; of what was trained only the last one, since no earlier round is repeated."""
        file = self._file(kind, question)
        write_bytes(file, pack(answer))
        sync_folder(self.folder)
        if kind == TRAIN:
            for other in self.folder.glob(f"answer-{kind}-*"):
                if other != file:
                    other.unlink(missing_ok=True)

    def _file(self, kind: str, question: str) -> Path:
        digest = hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / f"answer-{kind}-{digest[:32]}"


def file_checksum(path: Path, config: Mapping[str, Any]) -> str:
    """Of the site's file as it is now, and of the settings by which it is read."""
    digest = hashlib.sha256(json.dumps([str(config.get(key) or "") for key in _READING]).encode())
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()
