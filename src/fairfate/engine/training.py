"""How long and how clients train."""

from __future__ import annotations

from dataclasses import dataclass

from fairfate.errors import check


@dataclass(frozen=True)
class Training:
    """Rounds, cohort size, the clients' SGD and the model's width."""

    rounds: int = 100
    per_round: int = 3
    epochs: int = 10
    batch_size: int = 10
    learning_rate: float = 0.01
    hidden: int = 10

    def __post_init__(self) -> None:
        for name in ("rounds", "per_round", "epochs", "batch_size", "hidden"):
            value = getattr(self, name)
            check(value >= 1, f"{name.replace('_', '-')} must be >= 1", value)
        rate = self.learning_rate
        check(0 < rate < float("inf"), "learning-rate must be > 0 and finite", rate)
