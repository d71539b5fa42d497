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
    l2: float = 0.0
    """Weight decay: clients also minimise half of it times the sum of squared weights, biases excepted."""
    early_stopping: int = 0
    """Rounds without a lower validation loss after which a strategy stops; 0 for never."""

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            check(value >= 1, f"{name.replace('_', '-')} must be >= 1", value)
            check(value <= most, f"{name.replace('_', '-')} must be <= {most:,}", value)
        check(self.early_stopping >= 0, "early-stopping must be >= 0", self.early_stopping)
        rate = self.learning_rate
        check(0 < rate < float("inf"), "learning-rate must be > 0 and finite", rate)
        check(1e-30 < rate < 1e6, "learning-rate must be between 1e-30 and 1e6", rate)
        check(0 <= self.l2 <= MOST_L2, f"l2 must be in [0, {MOST_L2:g}]", self.l2)
        check(rate * self.l2 < 1, "l2 must be < 1 / learning-rate", self.l2)


MOST_BATCH = 1_000_000
MOST_L2 = 100.0
_MOST = {
    "rounds": 10_000_000,
    "per_round": 10_000_000,
    "epochs": 10_000,
    "batch_size": MOST_BATCH,
}
"""What fits into memory and a lifetime."""
