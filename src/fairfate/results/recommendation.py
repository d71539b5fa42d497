"""Which of a run's models is recommended: chosen on the validation rows, never on the test rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.fairness.metrics import COLLAPSED
from fairfate.fairness.objective import bind, individual_terms, reported_fairness
from fairfate.fairness.selection import TOLERANCE, keeps
from fairfate.results.summary import split_strategies
from fairfate.results.tables import counts_of, is_untrained
from fairfate.strategies import THRESHOLDS

MIN_GAIN = 0.05
"""What a strategy must gain in fairness over a first strategy that aims at none, to be preferred to it."""
COLLAPSE, UNDEFINED, UNTRAINED = "collapsed", "undefined", "untrained"
"""What is wrong with a strategy, where nothing else needs to be said of it."""


class RecommendedModel(NamedTuple):
    """A strategy, as tables call it, and a seed."""

    line: int
    """Which of the strategies, in the order of the run."""
    name: str
    seed: int


@dataclass(frozen=True)
class Candidate:
    """How a strategy does on the validation rows, in the mean over seeds, and whether it may be taken."""

    name: str
    accuracy: float
    balanced_accuracy: float
    fairness: float
    seed: int
    """That of its models whose MCC is the median."""
    rejected_because: str = ""
    """Why it is rejected; empty if it may be recommended."""
    flaw: str = ""
    """`COLLAPSE`, `UNDEFINED` or `UNTRAINED`, where it is rejected for that."""
    needs_group: bool = False
    """Whether its decisions need the group of every person."""
    aims_at_fairness: bool = True
    """Whether it has a fairness objective."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """Fairness by seed."""

    def gain_over(self, other: Candidate) -> tuple[float, float]:
        """The gain in fairness over another strategy, and its standard error over seeds (NaN for one)."""
        seeds = [seed for seed in self.by_seed if seed in other.by_seed]
        gains = np.array([self.by_seed[seed] - other.by_seed[seed] for seed in seeds])
        error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
        return self.fairness - other.fairness, float(error)

    def is_clearly_fairer(self, other: Candidate) -> bool:
        """Whether the gain is worth speaking of: `MIN_GAIN` or more, and above its standard error."""
        gain, error = self.gain_over(other)
        return gain >= MIN_GAIN and not gain <= error


def choose(rounds: pd.DataFrame, metric: str, groups: Groups) -> RecommendedModel | None:
    """The recommended model, or None if all have collapsed, no round counted, or fairness is undefined.

    Of the strategies that were trained in every seed, collapsed in none and, in the mean over seeds, lie
    within 0.02 of the most accurate one's accuracy and keep 80 % of its balanced accuracy above one half, the
    fairest; but if the first strategy is among them and aims at no fairness (FedAvg), then only one that is
    fairer than it by 0.05 and by more than one standard error over seeds. Strategies whose decisions need
    each person's group are apart: they count only if all of them do. Of its seeds, the one whose MCC is the
    median. All on the validation rows of the last round.
    """
    return pick(assess(rounds, metric, groups))


def pick(candidates: Sequence[Candidate]) -> RecommendedModel | None:
    """The recommended model among candidates."""
    allowed = [line for line, candidate in enumerate(candidates) if not candidate.rejected_because]
    if not allowed:
        return None
    blind = [line for line in allowed if not candidates[line].needs_group]
    if blind or any(not candidate.needs_group for candidate in candidates):
        allowed = blind
    if not allowed:
        return None
    if 0 in allowed and not candidates[0].aims_at_fairness:
        allowed = [line for line in allowed if candidates[line].is_clearly_fairer(candidates[0])] or [0]
    best = max(allowed, key=lambda line: (candidates[line].fairness, candidates[line].accuracy))
    return RecommendedModel(best, candidates[best].name, candidates[best].seed)


def assess(rounds: pd.DataFrame, metric: str, groups: Groups) -> list[Candidate]:
    """What speaks for and against each strategy; see `choose`."""
    last = rounds[(rounds["split"] == "validation") & (rounds["round"] == rounds["round"].max())]
    objective = headline_metric(last["metric"], metric)
    counts = counts_of(last)
    reported = reported_fairness(counts, groups)
    scored = last.assign(
        fairness=reported[objective] if objective in reported else bind(objective, groups)(counts)
    )
    candidates = [_assess(name, frame.sort_values("seed")) for name, frame in split_strategies(scored)]
    usable = [candidate for candidate in candidates if not candidate.rejected_because]
    blind = [candidate for candidate in usable if not candidate.needs_group]

    def weak(candidate: Candidate) -> str:
        rivals = usable if candidate.needs_group else blind
        return _too_weak(candidate, max(rivals, key=lambda rival: rival.accuracy))

    return [
        candidate if candidate.rejected_because else replace(candidate, rejected_because=weak(candidate))
        for candidate in candidates
    ]


def headline_metric(objectives: Iterable[object], metric: str) -> str:
    """The fairness to speak of: the first strategy's objective that counts tell, or else the run's own."""
    return next((text for text in objectives if isinstance(text, str) and not individual_terms(text)), metric)


def _assess(name: str, frame: pd.DataFrame) -> Candidate:
    means = frame[["accuracy", "balanced_accuracy", "fairness"]].mean(skipna=False)
    by_skill = frame["mcc"].to_numpy(dtype=np.float64).argsort(kind="stable")
    seed = int(frame["seed"].iloc[int(by_skill[(len(frame) - 1) // 2])])
    collapsed = int((~(frame["mcc"] >= COLLAPSED)).sum())
    untrained = int(is_untrained(frame).sum())
    against = flaw = ""
    if untrained:
        flaw, against = UNTRAINED, f"no round counted in {untrained} of {len(frame)} seeds"
    elif collapsed:
        flaw, against = COLLAPSE, f"it collapsed on the validation rows of {collapsed} of {len(frame)} seeds"
    elif np.isnan(means["fairness"]):
        flaw, against = UNDEFINED, "its fairness is undefined: a group has no such validation rows"
    accuracy, balanced, fairness = (float(value) for value in means)
    return Candidate(
        name,
        accuracy,
        balanced,
        fairness,
        seed,
        against,
        flaw,
        needs_group=decides_by_group(str(frame["strategy"].iloc[0])),
        aims_at_fairness=isinstance(frame["metric"].iloc[0], str),
        by_seed={
            int(seed): float(value) for seed, value in zip(frame["seed"], frame["fairness"], strict=True)
        },
    )


def decides_by_group(label: str) -> bool:
    """Whether a strategy, by its name in tables, has a threshold for each group.

    >>> decides_by_group("fedavg+average+thresholds"), decides_by_group("fedavg+average [run-2]")
    (True, False)
    """
    return THRESHOLDS in label.partition(" [")[0].split("+")


def _too_weak(candidate: Candidate, top: Candidate) -> str:
    """What it has lost too much of against the most accurate strategy, if anything."""
    skill, most = candidate.balanced_accuracy - 0.5, top.balanced_accuracy - 0.5
    if keeps(candidate.accuracy, skill, (top.accuracy, most)):
        return ""
    lost = top.accuracy - candidate.accuracy
    if lost > TOLERANCE:
        given_up = f"{lost:.3f} accuracy against {top.name}, more than {TOLERANCE}"
        return f"on the validation rows it gives up {given_up}"
    kept = f"{100 * skill / most:.0f} % of {top.name}'s balanced accuracy above 0.5, less than 80 %"
    return f"on the validation rows it keeps {kept}"


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
