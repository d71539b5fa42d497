"""Flower's own log, so that users find everything in one place."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("flwr")


def log(level: int, message: str, *values: object) -> None:
    """Write a line to Flower's log."""
    LOGGER.log(level, message, *values)
