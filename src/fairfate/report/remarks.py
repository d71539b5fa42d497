"""What a reader of a table of strategies should know."""

from __future__ import annotations

import math

import numpy as np

from fairfate.errors import listing
from fairfate.fairness.metrics import FAIRNESS
from fairfate.fairness.objective import MIN_PEOPLE, individual_terms, small_groups
from fairfate.report.data import FLAWS, ReportData
from fairfate.strategies import STEPS, THRESHOLDS, entries

TOO_GOOD = 0.95
"""An MCC that real data hardly ever allow."""
LEGEND = (
    "balanced: balanced accuracy, 0.5 is chance. MCC: 1 is perfect, 0 is chance. selected: share predicted"
    " favourable. SP, EO and EQO compare groups: the lowest group's rate divided by the highest's, 1 is"
    " equal. SP (statistical parity) compares selection rates, EO (equality of opportunity) true positive"
    " rates (TPR); EQO (equalized odds) is the mean of the ratios of TPR and of false positive rates (FPR)."
)
"""What the columns of a table are."""
RISING = 0.01
"""A gain of MCC between the last two fifths of the rounds that may show that training was cut short."""
CONSISTENT = 0.8
"""The share of seeds that must show it too."""


def methods(data: ReportData) -> list[tuple[str, str]]:
    """What each strategy and step does, in a few words, where it is one of ours."""
    known = {entry.name: entry.summary for entry in entries()}
    known |= {f"+{name}": step.summary for name, step in STEPS.items()}
    labels = [str(label).partition(" [")[0].split("+") for label in data.summary["strategy"]]
    names = dict.fromkeys(
        name for first, *steps in labels for name in (first, *(f"+{step}" for step in steps))
    )
    return [(name, known[name]) for name in names if name in known]


def remarks(data: ReportData) -> list[str]:
    """What a reader of the table should know: collapsed models, undefined metrics, runs cut short."""
    lines = list(data.notes)
    if any(f"+{THRESHOLDS}" in str(label) for label in data.summary["strategy"]):
        lines.append("strategies with +thresholds need the group of each person at prediction time")
    objectives = sorted({label for label in data.summary["metric"] if isinstance(label, str)})
    lines += [line for objective in objectives for line in small_groups(objective)]
    terms = sorted({term for objective in objectives for term in individual_terms(objective)})
    if terms:
        lines.append(
            f"{listing(terms)}: in no table, since counts do not tell; on the validation rows, in"
            " clients.parquet and in the notes of rounds.parquet"
        )
    few = _rates_of_few(data)
    if few:
        lines.append(
            f"SP, EO and EQO leave out rates that rest on fewer than {MIN_PEOPLE} test rows: {listing(few)}"
        )
    for what, why in FLAWS.items():
        low = [
            f"{name}{flaw.removeprefix(what)} seeds on the test rows"
            for name, flaw in zip(data.names, data.flaws, strict=True)
            if flaw.startswith(what)
        ]
        lines += [f"{what}: {listing(low)}; {why}"] if low else []
    for number, name in enumerate(data.names):
        undefined = [metric.upper() for metric in FAIRNESS if math.isnan(data.mean(metric, number))]
        if undefined:
            lines.append(
                f"{name}: {', '.join(undefined)} undefined, a group has no such test rows in some seed"
            )
    perfect = [name for line, name in enumerate(data.names) if data.mean("mcc", line) > TOO_GOOD]
    if perfect:
        lines.append(
            f"too good to be true? {listing(perfect)}: look for columns that are known only after the outcome"
        )
    rising = [name for line, name in enumerate(data.names) if _is_rising(data, line)]
    if rising:
        lines.append(f"not converged: {listing(rising)}; more rounds or a larger learning rate may help")
    return lines


def _rates_of_few(data: ReportData) -> list[str]:
    """The groups, and which of their rates have too few test rows behind them to count in SP, EO and EQO."""
    few: dict[str, list[str]] = {}
    for attribute, names in zip(data.groups.attributes, data.groups.values, strict=True):
        rows = data.groups.merge(data.counts[:1], (attribute,)).sum(axis=-1)[0]
        compared = data.groups.compared((attribute,))
        for rate, people in (("selection rate", rows.sum(axis=-1)), ("TPR", rows[:, 1]), ("FPR", rows[:, 0])):
            if (people[compared] >= MIN_PEOPLE).sum() < 2:
                continue  # then all count
            for name, is_small in zip(names, (people < MIN_PEOPLE) & compared, strict=True):
                if is_small:
                    few.setdefault(name, []).append(rate)
    return [f"{name} ({', '.join(rates)})" for name, rates in few.items()]


def _is_rising(data: ReportData, line: int) -> bool:
    """Whether the model was still learning when the rounds ended, by the MCC on the validation rows.

    The last two fifths of the rounds are taken in four parts. The mean over seeds must rise in each of them,
    between the two fifths by more than `RISING` and by more than twice its standard error over seeds, and
    nearly every seed must rise too.
    """
    rounds = data.rounds[(data.lines == line) & (data.rounds["split"] == "validation")]
    size = data.last_round // 10
    if size < 1 or rounds["round"].nunique() < data.last_round:
        return False
    part = (rounds["round"] - data.last_round + 4 * size - 1) // size  # 0 .. 3 in the last two fifths
    late = rounds[part >= 0]
    means = late["mcc"].groupby([late["seed"], part[part >= 0]]).mean(skipna=False).unstack().to_numpy()
    gains = (means[:, 2:] - means[:, :2]).mean(axis=1)
    error = gains.std(ddof=1) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(
        gains.mean() > max(RISING, 2 * error)
        and (gains > 0).mean() >= CONSISTENT
        and (np.diff(means.mean(axis=0)) > 0).all()
    )
