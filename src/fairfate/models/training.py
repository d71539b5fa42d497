"""How long and how clients train."""

from __future__ import annotations

from dataclasses import dataclass

from fairfate.errors import check


@dataclass(frozen=True)
class Training:
    """Rounds, cohort size and the clients' SGD."""

    rounds: int = 100
    per_round: int = 3
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            check(value >= 1, f"{name.replace('_', '-')} must be >= 1", value)
            check(value <= most, f"{name.replace('_', '-')} must be <= {most:,}", value)
        rate = self.learning_rate
        check(0 < rate < float("inf"), "learning-rate must be > 0 and finite", rate)
        check(1e-30 < rate < 1e6, "learning-rate must be between 1e-30 and 1e6", rate)


MOST_BATCH = 1_000_000
_MOST = {
    "rounds": 10_000_000,
    "per_round": 10_000_000,
    "epochs": 10_000,
    "batch_size": MOST_BATCH,
}
"""What fits into memory and a lifetime."""
