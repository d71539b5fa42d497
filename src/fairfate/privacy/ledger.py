"""What clients have released, and what that costs together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairfate.errors import InputError
from fairfate.privacy.accounting import Cost, epsilon_of

if TYPE_CHECKING:
    import pandas as pd

LEDGER = "ledger.csv"
"""The file of it in a run's folder."""


_WORDS = {"update": "steps", "counts": "counts", "sums": "sums", "histogram": "histogram"}


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
                "releases": ", ".join(f"{entry.times:,} {_WORDS[entry.release]}" for entry in entries),
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
