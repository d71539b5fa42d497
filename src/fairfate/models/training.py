"""How long and how clients train."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fairfate.errors import check
from fairfate.options import Options, options_of


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
        for item in fields(self):
            options_of(Options)[item.name].check(getattr(self, item.name))
        rate = self.learning_rate
        check(1e-30 < rate < 1e6, "learning-rate must be between 1e-30 and 1e6", rate)
        check(rate * self.l2 < 1, "l2 must be < 1 / learning-rate", self.l2)
