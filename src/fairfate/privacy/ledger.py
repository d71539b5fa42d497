"""What clients have released, and what that costs together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairfate.errors import InputError
from fairfate.privacy.accounting import Cost, epsilon_of
from fairfate.storage import LOCK, hold, sync_folder, write_bytes

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


class Account:
    """A site's ledger: all that has been released of one file's rows, in every run.

    Parameters
    ----------
    file : where it is kept
    most : the epsilon that all releases together may cost
    """

    def __init__(self, file: Path, most: float) -> None:
        self.file, self.most = file, most

    def read(self) -> list[Posting]:
        """What was released so far; InputError for a file that is none of ours."""
        try:
            lines = json.loads(self.file.read_text("utf-8"))
            return [_posting(line) for line in lines]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise InputError(
                f"ledger must be one that a site has written, got '{self.file}' ({error})"
            ) from None

    def spend(self, postings: Sequence[Posting], delta: float) -> None:
        """Write releases down before they are made; SpentError, and nothing is written, beyond the most."""
        with hold(self.file.with_name(f".{self.file.name}{LOCK}")):
            lines = self.read()
            for posting in postings:
                _add(lines, posting)
            total = spent([line.entry for line in lines], delta)
            if total > self.most * (1 + 1e-6):
                raise SpentError(
                    f"epsilon must stay within {self.most:g} at delta {delta:g}, got {total:.4g} with the"
                    f" next release; '{self.file}' has what was released before"
                )
            write_bytes(self.file, json.dumps([_line(line) for line in lines], indent=1).encode())
            sync_folder(self.file.parent)


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
