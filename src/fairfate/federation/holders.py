"""Who holds the labelled rows that models are judged on: the server, or the clients."""

from __future__ import annotations

from dataclasses import dataclass

from fairfate.errors import InputError, check, plain, unknown
from fairfate.strategies.hyperparameters import Choice, Number, read_settings

SERVER, CLIENTS = "server", "clients"
CROSS, SECURE = "cross", "secure"
MIN_CELL = 20
"""Fewer rows than this behind a rate, all validators' together, and the clients' fairness is undefined."""

_MODE = Choice(CROSS, "how clients judge", (CROSS, SECURE))
_VALIDATORS = Choice("cohort", "who judges", ("cohort", "all"))
_SHARE = Number(0.2, "of a client's rows that it holds out", high=0.5, above_low=True)


@dataclass(frozen=True)
class Holders:
    """Where validation rows come from, as the user says it.

    With ``clients`` each holds out a share of its rows, and the clients of a round count how models do on
    them. ``cross``: every client's model is counted; ``secure``: only means of buckets of clients are.
    """

    who: str = SERVER
    rows: int | None = None
    """At most so many validation rows at the server."""
    mode: str = CROSS
    bucket: int = 2
    share: float = 0.2
    validators: str = "cohort"
    """Who judges: the clients of the round, or all."""

    @property
    def at_clients(self) -> bool:
        """Whether the server has no validation rows."""
        return self.who == CLIENTS

    @property
    def min_cell(self) -> int:
        """Rows that a rate must have behind it."""
        return MIN_CELL if self.at_clients else 0

    def __str__(self) -> str:
        if not self.at_clients:
            return SERVER if self.rows is None else f"{SERVER}:rows={self.rows}"
        bucket = f",bucket={self.bucket}" if self.mode == SECURE else ""
        everybody = ",validators=all" if self.validators == "all" else ""
        return f"{CLIENTS}:mode={self.mode}{bucket},share={plain(self.share)}{everybody}"


AT_SERVER = Holders()


def parse_holders(text: str) -> Holders:
    """Read ``server[:rows=N]`` or ``clients`` with ``mode``, ``bucket``, ``share`` and ``validators``.

    >>> str(parse_holders("clients:mode=secure"))
    'clients:mode=secure,bucket=2,share=0.2'
    """
    who, _, rest = text.partition(":")
    if who not in (SERVER, CLIENTS):
        raise InputError(f"validation-from must be server or clients, got '{text}'")
    given = read_settings(rest, text, "validation-from")
    known = ("rows",) if who == SERVER else ("mode", "bucket", "share", "validators")
    for key in given:
        if key not in known:
            raise unknown(f"setting of validation-from {who}", key, known)
    if who == SERVER:
        return Holders(rows=_whole(given["rows"], "rows", 1) if "rows" in given else None)
    mode = _MODE.parse(given.get("mode", CROSS), "validation-from: mode")
    if "bucket" in given and mode != SECURE:
        raise InputError(f"validation-from: bucket must be left out with mode={mode}, got {given['bucket']}")
    bucket = _whole(given["bucket"], "bucket", 1) if "bucket" in given else Holders.bucket
    share = _SHARE.parse(given.get("share", _SHARE.default), "validation-from: share")
    validators = _VALIDATORS.parse(
        given.get("validators", _VALIDATORS.default), "validation-from: validators"
    )
    return Holders(CLIENTS, None, mode, bucket, share, validators)


def _whole(text: str, name: str, least: int) -> int:
    right = text.isascii() and text.isdigit() and int(text) >= least
    check(right, f"validation-from: {name} must be a whole number >= {least}", f"'{text}'")
    return int(text)
