"""The answer that a report opens with: which model to take, why, how fair it is, what was given up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairfate.errors import listing
from fairfate.fairness.intervals import bootstrap, wilson
from fairfate.fairness.metrics import METRICS
from fairfate.report.audit import (
    ABOVE,
    BELOW,
    COLLAPSED_MODEL,
    TOO_FEW,
    UNCLEAR,
    UNTRAINED_MODEL,
    Audit,
    Verdict,
)
from fairfate.report.comparison import fairest, said, sentence
from fairfate.report.material import Material
from fairfate.report.values import finite, interval, seeds_of
from fairfate.runs.choice import pick

PERFORMANCE = ("accuracy", "balanced_accuracy", "mcc")
WORDS = {
    ABOVE: "reaches the line",
    BELOW: "below the line",
    UNCLEAR: "cannot be told",
    TOO_FEW: "too few people to tell",
    COLLAPSED_MODEL: "no use: the model collapsed",
    UNTRAINED_MODEL: "no use: no round counted",
}
BEHIND = {"acceptance": "people", "tpr": "favourable", "fpr": "unfavourable"}
"""The people whose rates they are."""
SIGNIFICANT = 0.05
"""The level of the paired tests."""


def answer(found: Material, line: float, tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which model to take, why, how good and how fair it is, and what was given up for it.

    Parameters
    ----------
    found : what the runs have left
    line : the ratio that groups' rates should reach
    tests : the paired tests of the strategies
    """
    comparison, chosen = found.comparison, found.to_take
    number, seed = found.shown
    name = found.names[number]
    told: dict[str, Any] = {
        "take": None if chosen is None else {"strategy": name, "seed": seed, "file": found.model_file},
        "shown": {"strategy": name, "seed": seed, "line": number},
        "why": _why(found),
        "others": _others(found),
        "warning": _warning(found),
        "price": "" if _is_told(found) else _price(found),
        "compared": sentence(comparison),
        "chance": _chance(found, tests),
        "worst": "",
        "measures": {},
        "fairness": [],
        "untrained": _seeds(found.names, comparison.untrained),
        "collapsed": _seeds(found.names, comparison.collapsed),
    }
    if comparison.groups is None:
        return told
    place = found.place_of_shown
    measured = {metric: _measured(found, number, metric, place) for metric in (*PERFORMANCE, "acceptance")}
    told["measures"] = measured
    for audit in found.audits:
        verdicts = audit.verdicts(place, line)
        told["fairness"] += [judged(found, audit, verdict, place, number) for verdict in verdicts]
    told["worst"] = _worst(found, told["fairness"])
    return told


def _seeds(names: Sequence[str], counts: Sequence[int]) -> list[dict[str, Any]]:
    """The strategies of which some seeds are counted, and how many."""
    return [{"strategy": name, "seeds": seeds} for name, seeds in zip(names, counts, strict=True) if seeds]


def _why(found: Material) -> str:
    chosen, of_all, metric = found.to_take, found.judged, said(found.comparison.fairness)
    if not of_all:
        return "The run's records do not say how its models do on the validation rows."
    if chosen is None:
        return "None of the models can be recommended."
    allowed = [one for one in of_all if not one.against]
    mine = of_all[chosen.line]
    if len(of_all) == 1:
        why = "It is the only strategy of the run, and it was trained and has not collapsed."
    elif len(allowed) == 1:
        why = (
            "It is the only strategy that keeps, on the validation rows, its accuracy within 0.03 of the best"
            " and 80 % of the balanced accuracy above one half; its mean"
            f" {metric} there is {mine.fairness:.3f}."
        )
    else:
        which = f"all {len(allowed)}" if len(allowed) == len(of_all) else f"the {len(allowed)}"
        why = (
            f"Of {which} strategies that keep, on the validation rows, their accuracy within 0.03 of the best"
            " and 80 % of the balanced accuracy above one half, it is the fairest there: mean"
            f" {metric} {mine.fairness:.3f}."
        )
    if len(found.seeds) > 1:
        why += (
            f" Of its {len(found.seeds)} seeds, this one has the highest sum of accuracy and {metric} there."
        )
    return f"{why} The test rows below played no part in this choice."


def _others(found: Material) -> list[dict[str, Any]]:
    """Why each of the other strategies is not the one to take."""
    chosen, metric = found.to_take, said(found.comparison.fairness)
    others = []
    for number, one in enumerate(found.judged):
        if chosen is not None and number == chosen.line:
            continue
        fair = "undefined" if math.isnan(one.fairness) else f"{one.fairness:.3f}"
        reason = one.against or f"it is less fair on the validation rows: {metric} {fair}"
        others.append({"strategy": one.name, "reason": reason, "fairness": finite(one.fairness)})
    return others


def _warning(found: Material) -> str:
    """That a model needs each person's group to decide, and which is the best one that does not."""
    chosen = found.to_take
    if chosen is None or not found.takes_thresholds(chosen.line):
        return ""
    metric = said(found.comparison.fairness)
    text = (
        "This model decides by another threshold for each group (they are in the audit). It needs the group"
        " of every person when it decides, and the law may forbid treating people by it."
    )
    without = [line for line in range(len(found.names)) if not found.takes_thresholds(line)]
    best = pick([found.judged[line] for line in without])
    if best is None:
        return f"{text} Without such thresholds no model can be recommended."
    line = without[best.line]
    numbers = ", ".join(
        f"{name} {found.comparison.mean(of, line):.3f}"
        for name, of in ((metric, found.comparison.fairness), ("accuracy", "accuracy"), ("MCC", "mcc"))
    )
    return f"{text} Without such thresholds {found.names[line]} would be taken (mean over seeds: {numbers})."


def _is_told(found: Material) -> bool:
    """Whether the sentence on the fairest strategy is about the one to take."""
    chosen, comparison = found.to_take, found.comparison
    return chosen is not None and fairest(comparison) == chosen.line and not comparison.flaws[0]


def _price(found: Material) -> str:
    """What the strategy to take has gained and given up against the first one, in the mean over seeds."""
    comparison, chosen = found.comparison, found.to_take
    if chosen is None or len(found.names) == 1:
        return ""
    first, name = found.names[0], found.names[chosen.line]
    if chosen.line == 0:
        return f"{name} is the first strategy, which the others are compared with, so nothing was given up."
    parts = []
    for metric in (comparison.fairness, *PERFORMANCE):
        before, after = comparison.mean(metric, 0), comparison.mean(metric, chosen.line)
        label = {"balanced_accuracy": "balanced accuracy", "mcc": "MCC"}.get(metric, said(metric))
        parts.append(f"{label} {before:.3f} to {after:.3f} ({after - before:+.3f})")
    return f"From {first} to {name}, means over seeds on the test rows: {', '.join(parts)}."


def _chance(found: Material, tests: Sequence[Mapping[str, Any]]) -> str:
    """Whether the gain in fairness may be chance; and which fairness that is."""
    comparison, chosen = found.comparison, found.to_take
    metric, parts = said(comparison.fairness), []
    first = [
        row for row in tests if row["strategy"] == found.names[0] and row["metric"] == comparison.fairness
    ]
    if chosen is not None and chosen.line != 0 and first and first[0]["p-adjusted"] is not None:
        p = first[0]["p-adjusted"]
        verdict = "is more than chance" if p < SIGNIFICANT else "may be chance"
        parts.append(
            f"Tested over seeds and corrected for many comparisons, this difference in {metric} {verdict}"
            f" (p = {p:.3f})."
        )
    small = any(audit.has_small_groups(found.place_of_shown) for audit in found.audits)
    if comparison.groups is not None and (small or len(comparison.groups.attributes) > 1):
        parts.append(
            f"The {metric} of these sentences is what the strategies aim at. It takes every group as it is,"
            " also those of few people, so it is lower than in the tables, where these are left out."
        )
    return " ".join(parts)


def _worst(found: Material, fairness: list[dict[str, Any]]) -> str:
    """Which group is accepted least often, of the attribute where that differs most."""
    shares = [one for one in fairness if one["metric"] == "sp" and one["value"] is not None]
    if not shares:
        return ""
    one = min(shares, key=lambda each: each["value"])
    low, high = one["lowest"], one["highest"]
    text = (
        f"{low['group']} (by {one['attribute']}): {100 * low['acceptance']:.1f} % of {low['people']:,} people"
        f" accepted, against {100 * high['acceptance']:.1f} % of {high['people']:,} {high['group']}."
    )
    place = found.place_of_shown
    lower = [
        f"{audit.groups[g]}, {100 * rate:.1f} % of {audit.shown['people'][place, g]:,}"
        for audit in found.audits
        for g, rate in enumerate(audit.rates["acceptance"].value[place])
        if rate < low["acceptance"] and not audit.compared["acceptance"][place, g]
    ]
    return f"{text} Lower, but of too few people to compare: {listing(lower)}." if lower else text


def _measured(found: Material, line: int, metric: str, place: int) -> dict[str, Any]:
    """A metric of the model shown, with its interval over people, and of its strategy, over seeds."""
    counts = found.counts[place]
    rows = int(counts.sum())
    if metric in ("accuracy", "acceptance"):
        right = counts[:, 0, 0].sum() + counts[:, 1, 1].sum()
        part = right if metric == "accuracy" else counts[:, :, 1].sum()
        low, high = wilson(np.asarray(part), np.asarray(rows))
        value = float(part / rows) if rows else math.nan
    else:
        drawn = METRICS[metric](bootstrap(counts.reshape(-1, 2, 2)))
        low, high = np.quantile(drawn, [0.025, 0.975])
        value = float(METRICS[metric](counts))
    return {**interval(value, low, high), "seeds": seeds_of(found, found.per_seed(metric, line), metric)}


def judged(found: Material, audit: Audit, verdict: Verdict, place: int, line: int) -> dict[str, Any]:
    """A verdict with the rates of the groups that it is about, and the same over seeds."""
    each = found.fairness[audit.attribute][verdict.metric][found.of_line(line)]

    def end(group: str, rate: str) -> dict[str, Any]:
        g = audit.groups.index(group)
        value = finite(audit.rates[rate].value[place, g])
        people = audit.shown[BEHIND[rate]][place, g]
        return {"group": group, rate: value, "rate": value, "people": int(people)}

    pairs = [
        {
            "of": pair.rate,
            "ratio": finite(pair.value),
            "lowest": end(pair.least, pair.rate),
            "highest": end(pair.most, pair.rate),
        }
        for pair in verdict.pairs
        if pair.least
    ]
    said = UNTRAINED_MODEL if found.is_untrained(place) else verdict.said
    ends = {name: pairs[0][name] for name in ("lowest", "highest")} if pairs else {}
    return {
        "attribute": audit.attribute,
        "metric": verdict.metric,
        **interval(verdict.value, verdict.low, verdict.high),
        "seeds": seeds_of(found, each),
        **ends,
        "pairs": pairs,
        "verdict": said,
        "said": WORDS[said],
        "left-out": list(verdict.left_out),
    }
