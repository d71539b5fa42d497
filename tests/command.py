"""The command line, run in the tests' own process."""

from __future__ import annotations

from typing import NamedTuple

QUICK = ["--data", "synthetic:rows=300", "--rounds", "2", "--epochs", "1", "--seeds", "2", "--jobs", "1"]
TWO = ["--strategy", "fedavg", "--strategy", "fair_fate"]


class Outcome(NamedTuple):
    code: int
    out: str
    err: str
