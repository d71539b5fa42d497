"""Which of a run's models to take: chosen by the validation rows, never by the test rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.fairness.metrics import COLLAPSED
from fairfate.fairness.objective import bind
from fairfate.runs.results import KEYS, counts_of, row_names

TOLERANCE, KEEP = 0.03, 0.8
"""What a model may lose against the most accurate one: accuracy, and balanced accuracy above one half."""


class Choice(NamedTuple):
    """A strategy, as tables call it, and a seed."""

    line: int
    """Which of the strategies, in the order of the run."""
    name: str
    seed: int


def choose(rounds: pd.DataFrame, metric: str, groups: Groups) -> Choice | None:
    """The model to take, or None if all have collapsed or fairness is undefined.

    Of the strategies that collapsed in no seed and, in the mean over seeds, lie within 0.03 of the most
    accurate one's accuracy and keep 80 % of its balanced accuracy above one half, the fairest; of its seeds,
    the one with the highest sum of accuracy and fairness. All on the validation rows of the last round.
    """
    last = rounds[(rounds["split"] == "validation") & (rounds["round"] == rounds["round"].max())]
    objective = next((name for name in last["metric"] if isinstance(name, str)), metric)
    scored = last.assign(fairness=bind(objective, groups)(counts_of(last)))
    lines = [frame for _, frame in scored.groupby(KEYS, dropna=False, sort=False)]
    names = row_names(pd.DataFrame([frame.iloc[0] for frame in lines]))
    means = [frame[["accuracy", "balanced_accuracy", "fairness"]].mean(skipna=False) for frame in lines]
    usable = [
        line
        for line, frame in enumerate(lines)
        if (frame["mcc"] >= COLLAPSED).all() and not np.isnan(means[line]["fairness"])
    ]
    if not usable:
        return None
    top = means[max(usable, key=lambda line: means[line]["accuracy"])]
    skilled = [
        line
        for line in usable
        if means[line]["accuracy"] >= top["accuracy"] - TOLERANCE
        and means[line]["balanced_accuracy"] - 0.5 >= KEEP * (top["balanced_accuracy"] - 0.5)
    ]
    best = max(skilled, key=lambda line: (means[line]["fairness"], means[line]["accuracy"]))
    frame = lines[best].sort_values("seed")
    seed = int(frame["seed"].iloc[int((frame["accuracy"] + frame["fairness"]).to_numpy().argmax())])
    return Choice(best, names[best], seed)


def find_line(names: list[str], texts: list[str], wanted: str | None) -> int:
    """Which strategy is meant by a text as on the command line, or by its name in the tables."""
    if wanted is None:
        return 0
    for known in (names, texts, [text.partition(":")[0] for text in texts], [_bare(text) for text in texts]):
        if known.count(wanted) == 1:
            return known.index(wanted)
    raise InputError(f"strategy must be one of the run's ({', '.join(names)}), got '{wanted}'")


def _bare(text: str) -> str:
    """A strategy and its steps without their settings."""
    return "+".join(part.partition(":")[0] for part in text.split("+") if part[:1].isalpha())
