"""Where validation rows come from: the server or the clients, and how many of them score clients' models."""

from __future__ import annotations

from dataclasses import dataclass

from fairfate.errors import InputError, check, plain, unknown
from fairfate.federation.seeds import Streams
from fairfate.models.rows import PackedRows
from fairfate.strategies.hyperparameters import Choice, Number, read_settings

SERVER, CLIENTS = "server", "clients"
CROSS, SECURE, OWN, PUBLIC = "cross", "secure", "own", "public"
MODES = (CROSS, SECURE, OWN, PUBLIC)
MIN_CELL = 20
"""Fewer rows than this behind a rate, all validators' together, and the clients' fairness is undefined."""
MIN_OWN = 5
"""The same where each client scores its own model alone, beside the one that it received."""
MAX_SCORES = 15_000_000
"""Most validation rows times clients of a round that are scored."""
MIN_SAMPLE = 5_000
"""Least validation rows in a sample."""

_MODE = Choice(CROSS, "how clients validate", MODES)
_VALIDATORS = Choice("cohort", "which clients validate", ("cohort", "all"))
_SHARE = Number(0.2, "share of a client's rows that it holds out", high=0.5, above_low=True)


@dataclass(frozen=True)
class ValidationSource:
    """Where validation rows come from, as the user says it.

    With ``clients`` each holds out a share of its rows, and the clients of a round count how models do on
    them. ``cross``: every client's model is counted; ``secure``: only means of buckets of clients are. Under
    secure sums each client scores its own model: ``own``, on the rows that it holds out, or ``public``, on
    the server's validation rows, of which every client has a copy.
    """

    who: str = SERVER
    rows: int | None = None
    """At most so many validation rows at the server."""
    mode: str = CROSS
    bucket: int = 2
    share: float = 0.2
    validators: str = "cohort"
    """Who validates: the clients of the round, or all."""

    @property
    def at_clients(self) -> bool:
        """Whether the server has no validation rows."""
        return self.who == CLIENTS and self.mode != PUBLIC

    @property
    def is_local(self) -> bool:
        """Whether each client scores its own model, and the server no single one."""
        return self.who == CLIENTS and self.mode in (OWN, PUBLIC)

    @property
    def min_cell(self) -> int:
        """Rows that a rate must have behind it."""
        if self.is_local:
            return MIN_OWN if self.at_clients else 0
        return MIN_CELL if self.at_clients else 0

    def __str__(self) -> str:
        if self.who == SERVER:
            return SERVER if self.rows is None else f"{SERVER}:rows={self.rows}"
        if self.mode == PUBLIC:
            return f"{CLIENTS}:mode={PUBLIC}"
        bucket = f",bucket={self.bucket}" if self.mode == SECURE else ""
        everybody = ",validators=all" if self.validators == "all" else ""
        return f"{CLIENTS}:mode={self.mode}{bucket},share={plain(self.share)}{everybody}"


AT_SERVER = ValidationSource()


def parse_validation_source(text: str) -> ValidationSource:
    """Read ``server[:rows=N]`` or ``clients`` with ``mode``, ``bucket``, ``share`` and ``validators``.

    >>> str(parse_validation_source("clients:mode=secure"))
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
        return ValidationSource(rows=_whole(given["rows"], "rows", 1) if "rows" in given else None)
    mode = _MODE.parse(given.get("mode", CROSS), "validation-from: mode")
    if "bucket" in given and mode != SECURE:
        raise InputError(f"validation-from: bucket must be left out with mode={mode}, got {given['bucket']}")
    for key in ("share", "validators") if mode == PUBLIC else ("validators",) if mode == OWN else ():
        if key in given:
            raise InputError(f"validation-from: {key} must be left out with mode={mode}, got {given[key]}")
    bucket = _whole(given["bucket"], "bucket", 1) if "bucket" in given else ValidationSource.bucket
    share = _SHARE.parse(given.get("share", _SHARE.default), "validation-from: share")
    validators = _VALIDATORS.parse(
        given.get("validators", _VALIDATORS.default), "validation-from: validators"
    )
    return ValidationSource(CLIENTS, None, mode, bucket, share, validators)


def _whole(text: str, name: str, least: int) -> int:
    is_valid = text.isascii() and text.isdigit() and int(text) >= least
    check(is_valid, f"validation-from: {name} must be a whole number >= {least}", f"'{text}'")
    return int(text)


def sample_size(rows: int, clients: int) -> int | None:
    """How many of the server's validation rows the models of so many clients are scored on; None for all.

    Every client's model is scored in every round, so with thousands of clients and hundreds of thousands of
    rows scoring would take a hundred times as long as training. The server's model, whose metrics users see,
    is always measured on all rows.

    >>> sample_size(200_000, 50), sample_size(200_000, 100), sample_size(200_000, 10_000)
    (None, 150000, 5000)
    """
    number = max(MIN_SAMPLE, MAX_SCORES // max(clients, 1))
    return None if number >= rows else number


def scoring_rows(rows: PackedRows, clients: int, streams: Streams) -> PackedRows:
    """The rows themselves, or a sample with its share of every group and label; the same in every round."""
    number = sample_size(len(rows), clients)
    return rows if number is None else rows.only(streams.sample(rows.sizes, number))


def describe_sample(rows: int, clients: int) -> str | None:
    """The note for users, if clients' models are scored on a sample."""
    number = sample_size(rows, clients)
    if number is None:
        return None
    return (
        f"the models of the {clients:,} clients of a round are scored on a sample of about {number:,} of the"
        f" {rows:,} validation rows; the server's model is measured on all"
    )
