"""What clients have released, and what that costs together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairfate.errors import InputError
from fairfate.privacy.accounting import Cost, epsilon_of
from fairfate.storage import LOCK, hold, sha256_of, sync_folder, write_bytes

if TYPE_CHECKING:
    import pandas as pd

LEDGER = "ledger.csv"
"""The file of it in a run's folder."""


WORDS = {"update": "steps", "counts": "counts", "sums": "sums", "histogram": "histogram"}


class Entry(NamedTuple):
    """A number of releases of one client that are alike."""

    client: str
    rows: int
    release: str
    """An update, counts, sums or a histogram."""
    rate: float
    """The probability with which a row joins what is released: 1 but for the steps of updates."""
    noise: float
    """Standard deviation, in units of the sensitivity to one row."""
    times: int
    """Steps of updates, or releases."""

    @property
    def cost(self) -> Cost:
        """For the accountant."""
        return Cost(self.rate, self.noise, self.times)


def spent(entries: Iterable[Entry], delta: float) -> float:
    """The epsilon of all entries of a client together."""
    return epsilon_of([entry.cost for entry in entries], delta)


def ledger_frame(entries: Iterable[tuple[str, Entry]], seed: int) -> pd.DataFrame:
    """The entries of one seed, with the strategy that each is of."""
    import pandas as pd

    lines: list[dict[str, Any]] = [
        {"seed": seed, "strategy": strategy, **entry._asdict()} for strategy, entry in entries
    ]
    return pd.DataFrame(lines, columns=["seed", "strategy", *Entry._fields])


def spending(ledger: pd.DataFrame, delta: float) -> pd.DataFrame:
    """What each client has spent with each strategy and seed: epsilon, and its releases in words."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for (seed, strategy, client), own in ledger.groupby(["seed", "strategy", "client"], sort=False):
        entries = entries_of(own)
        lines.append(
            {
                "seed": seed,
                "strategy": strategy,
                "client": client,
                "rows": entries[0].rows,
                "releases": ", ".join(f"{entry.times:,} {WORDS[entry.release]}" for entry in entries),
                "noise": " / ".join(f"{entry.noise:.2f}" for entry in entries),
                "epsilon": spent(entries, delta),
            }
        )
    columns = ["seed", "strategy", "client", "rows", "releases", "noise", "epsilon"]
    return pd.DataFrame(lines, columns=columns)


def spent_together(ledger: pd.DataFrame, delta: float, *, same_rows: bool) -> pd.DataFrame:
    """What each client's rows have spent in all strategies together, of a seed or of all seeds.

    Parameters
    ----------
    ledger : of a run
    delta : at which epsilon is counted
    same_rows : whether a client has the same rows in every seed
    """
    import pandas as pd

    keys = ["client"] if same_rows else ["seed", "client"]
    lines = []
    for key, own in ledger.groupby(keys, sort=False):
        about = dict(zip(keys, key, strict=True))
        lines.append({"seed": "all", **about, "epsilon": spent(entries_of(own), delta)})
    return pd.DataFrame(lines, columns=["seed", "client", "epsilon"])


def read_ledger(file: Path) -> pd.DataFrame:
    """The entries of a file, empty where there is none."""
    import pandas as pd

    columns = ["seed", "strategy", *Entry._fields]
    if not file.is_file():
        return pd.DataFrame(columns=columns)
    try:
        frame = pd.read_csv(file, dtype={"strategy": str, "client": str, "release": str})
        return frame[columns].astype({"seed": int, "rows": int, "rate": float, "noise": float, "times": int})
    except (KeyError, ValueError, UnicodeDecodeError) as error:
        raise InputError(f"ledger must be a table that a run has written, got '{file}' ({error})") from None


def entries_of(frame: pd.DataFrame) -> list[Entry]:
    """The lines of a table as entries."""
    return [Entry(*line) for line in frame[list(Entry._fields)].itertuples(index=False, name=None)]


# -- at a site -------------------------------------------------------------------------------------------


class SpentError(RuntimeError):
    """A release that would pass a site's budget."""


class Posting(NamedTuple):
    """An entry in a site's account."""

    study: str
    """The beginning of its checksum."""
    strategy: str
    entry: Entry


class Rows(NamedTuple):
    """By what a file is known again under another name."""

    device: int
    inode: int
    checksum: str
    """Of its content."""

    @classmethod
    def of_file(cls, file: Path) -> Rows:
        """Those of a file as it is now."""
        about = file.stat()
        return cls(about.st_dev, about.st_ino, sha256_of(file))

    def is_same(self, other: Rows) -> bool:
        """Whether both are one file, or copies of each other."""
        return self[:2] == other[:2] or self.checksum == other.checksum


class Book(NamedTuple):
    """What is in a ledger."""

    postings: list[Posting]
    delta: float
    """The smallest that any release was counted at; 1 before the first."""
    rows: Rows | None
    """The file at the last release."""

    @property
    def releases(self) -> int:
        """How many there were."""
        return sum(posting.entry.times for posting in self.postings)


_EMPTY = Book([], 1.0, None)


class Account:
    """A site's ledger: all that has been released of one file's rows, in every run.

    Parameters
    ----------
    file : where it is kept
    most : the epsilon that all releases together may cost
    delta : at which that is counted, unless a release was counted at a smaller one
    data : the file whose rows they are
    marker : where the site remembers, apart from the ledger, how much is in it
    """

    def __init__(self, file: Path, most: float, delta: float, data: Path, marker: Path) -> None:
        self.file, self.most, self.delta, self.data, self.marker = file, most, delta, data, marker

    def read(self) -> Book:
        """What was released so far; InputError where that is not known, or in another ledger."""
        book, rows = self._read(), Rows.of_file(self.data)
        known = self._marked()
        least, _ = known.get(str(self.file), (0, rows))
        if book.releases < least:
            raise InputError(
                f"ledger must have the {least:,} releases that this site has made, got {book.releases:,} in"
                f" '{self.file}': bring it back from a backup"
            )
        others = [Path(name) for name, (_, other) in known.items() if other.is_same(rows)]
        others += [file for file in self.file.parent.glob("*.ledger") if _is_of(file, rows)]
        for other in others:
            if other != self.file:
                raise InputError(
                    f"ledger must be the one that the same rows have, '{other}', got '{self.file}': name it"
                    " as ledger in the site's settings"
                )
        return book

    def _read(self) -> Book:
        try:
            return _read_book(self.file)
        except FileNotFoundError:
            return _EMPTY
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise InputError(
                f"ledger must be one that a site has written, got '{self.file}' ({error})"
            ) from None

    def _marked(self) -> dict[str, tuple[int, Rows]]:
        """Of each ledger that this site has written: how many releases it has, and of which file."""
        try:
            known = json.loads(self.marker.read_text("utf-8"))
            return {str(name): (int(number), Rows(*rows)) for name, (number, rows) in known.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"state must be what this site has written, got a damaged '{self.marker}' ({error})"
            ) from None

    def spent(self, book: Book) -> tuple[float, float]:
        """The epsilon of all releases together, and the delta at which it is counted."""
        delta = min(self.delta, book.delta)
        return spent([posting.entry for posting in book.postings], delta), delta

    def spend(self, postings: Sequence[Posting], delta: float, later: Sequence[Posting] = ()) -> None:
        """Write releases down before they are made; SpentError, and nothing is written, beyond the most.

        Parameters
        ----------
        postings : what is released now
        delta : of the run
        later : what else the run will ask for, which must be within the most as well
        """
        with hold(self.file.with_name(f".{self.file.name}{LOCK}")):
            book = self.read()
            lines = list(book.postings)
            for posting in postings:
                _add(lines, posting)
            smallest = min(self.delta, book.delta, delta)
            before = spent([line.entry for line in book.postings], smallest)
            total = spent([line.entry for line in [*lines, *later]], smallest)
            if total > self.most * (1 + 1e-6):
                raise SpentError(
                    f"epsilon must stay within {self.most:g} at delta {smallest:g}, got {total:.4g} with"
                    f" {'the rest of the run' if later else 'the next release'}; '{self.file}' has what was"
                    f" released before ({before:.4g}), and nothing more was spent"
                )
            book = Book(lines, smallest, Rows.of_file(self.data))
            write_bytes(self.file, _text_of(book).encode())
            sync_folder(self.file.parent)
            marked = {name: [number, list(rows)] for name, (number, rows) in self._marked().items()}
            marked[str(self.file)] = [book.releases, list(book.rows or ())]
            write_bytes(self.marker, json.dumps(marked).encode())
            sync_folder(self.marker.parent)


def _is_of(file: Path, rows: Rows) -> bool:
    """Whether a ledger beside ours is of the same rows; one that cannot be read says nothing."""
    try:
        own = _read_book(file).rows
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return False
    return own is not None and own.is_same(rows)


def _text_of(book: Book) -> str:
    rows = None if book.rows is None else list(book.rows)
    lines = [_line(posting) for posting in book.postings]
    return json.dumps({"delta": book.delta, "rows": rows, "releases": lines}, indent=1)


def _read_book(file: Path) -> Book:
    """The inverse; ValueError, LookupError or TypeError for anything else."""
    about = json.loads(file.read_text("utf-8"))
    delta, rows = about["delta"], Rows(*about["rows"])
    if type(delta) is not float or not 0 < delta <= 1 or [type(each) for each in rows] != [int, int, str]:
        raise ValueError("no delta, or no file")
    return Book([_posting(line) for line in about["releases"]], delta, rows)


def _add(lines: list[Posting], posting: Posting) -> None:
    """Another line, or more of one that is there."""
    for number, line in enumerate(lines):
        if line._replace(entry=line.entry._replace(times=0)) == posting._replace(
            entry=posting.entry._replace(times=0)
        ):
            times = line.entry.times + posting.entry.times
            lines[number] = line._replace(entry=line.entry._replace(times=times))
            return
    lines.append(posting)


def _line(posting: Posting) -> dict[str, Any]:
    return {"study": posting.study, "strategy": posting.strategy, **posting.entry._asdict()}


def _posting(line: dict[str, Any]) -> Posting:
    """The inverse; ValueError for anything else."""
    entry = Entry(**{name: line[name] for name in Entry._fields})
    kinds = [type(value) for value in entry]
    is_known = kinds == [str, int, str, float, float, int] and entry.release in WORDS
    if not is_known or not 0 < entry.rate <= 1 or not 0 < entry.noise < math.inf or entry.times < 1:
        raise ValueError("a line that is no release")
    return Posting(str(line["study"]), str(line["strategy"]), entry)
