"""Flower's own log, so that users find everything in one place."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("flwr")


def log(level: int, message: str, *values: object, exc_info: BaseException | None = None) -> None:
    """Write a line to Flower's log, with an error's traceback if one is given."""
    LOGGER.log(level, message, *values, exc_info=exc_info)


def one_line(text: object, limit: int = 300) -> str:
    r"""What others say, made fit for a log and a table: one line of printable characters, not too long.

    >>> one_line("a\nfalse\x1b[31m line", 11)
    'a false [3…'
    """
    plain = "".join(c if c.isprintable() else " " for c in str(text))
    words = " ".join(plain.split())
    return words if len(words) <= limit else f"{words[: limit - 1]}…"
