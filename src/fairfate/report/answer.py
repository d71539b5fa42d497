"""The answer that a report opens with: which model to take, why, how fair it is, what was given up."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from fairfate.report.material import Material, finite, interval, seeds_of
from fairfate.report.recommendation import recommend

PERFORMANCE = ("accuracy", "balanced_accuracy", "mcc")
SHOWN = (*PERFORMANCE, "auc", "acceptance")
"""In the tiles of the model shown."""
WORDS = {
    ABOVE: "reaches the threshold",
    BELOW: "below the threshold",
    UNCLEAR: "inconclusive",
    TOO_FEW: "too few people to tell",
    COLLAPSED_MODEL: "no use: the model collapsed",
    UNTRAINED_MODEL: "no use: no round counted",
}
BEHIND = {"acceptance": "people", "tpr": "favourable", "fpr": "unfavourable"}
"""The people whose rates they are."""


def answer(found: Material, line: float) -> dict[str, Any]:
    """The recommended model, why it is recommended, how good and how fair it is, and what it costs.

    Parameters
    ----------
    found : what the runs have left
    line : the ratio that groups' rates should reach
    """
    comparison, chosen = found.comparison, found.to_take
    number, seed = found.shown
    name, recommendation = found.names[number], recommend(comparison)
    about: dict[str, Any] = {
        "take": None if chosen is None else {"strategy": name, "seed": seed, "file": found.model_file},
        "shown": {"strategy": name, "seed": seed, "line": number},
        "why": recommendation.reason,
        "others": [{"strategy": name, "reason": reason} for name, reason in recommendation.rejected],
        "caveats": list(recommendation.caveats),
        "compared": recommendation.comparison,
        "chance": recommendation.chance,
        "pooled": recommendation.pooled,
        "saved": recommendation.fairness,
        "inputs": recommendation.inputs,
        "worst": "",
        "measures": {},
        "fairness": [],
        "untrained": _seeds(found.names, comparison.untrained),
        "collapsed": _seeds(found.names, comparison.collapsed),
    }
    if comparison.groups is None:
        return about
    place = found.place_of_shown
    measured = {metric: _measured(found, number, metric, place) for metric in SHOWN}
    about["measures"] = measured
    for audit in found.audits:
        verdicts = audit.verdicts(place, line)
        about["fairness"] += [judged(found, audit, verdict, place, number) for verdict in verdicts]
    if not comparison.flaws[number]:
        about["worst"] = _worst(found, about["fairness"])
    return about


def _seeds(names: Sequence[str], counts: Sequence[int]) -> list[dict[str, Any]]:
    """The strategies of which some seeds are counted, and how many."""
    return [{"strategy": name, "seeds": seeds} for name, seeds in zip(names, counts, strict=True) if seeds]


def _worst(found: Material, fairness: list[dict[str, Any]]) -> str:
    """Which group is accepted least often, of the attribute where that differs most."""
    shares = [one for one in fairness if one["metric"] == "sp" and one["value"] is not None]
    if not shares:
        return ""
    one = min(shares, key=lambda each: each["value"])
    low, high = one["lowest"], one["highest"]
    text = (
        f"{low['group']} (by {one['attribute']}): {100 * low['acceptance']:.1f} % selected, against"
        f" {100 * high['acceptance']:.1f} % of {high['group']}."
    )
    place = found.place_of_shown
    lower = [
        f"{audit.groups[g]}, {100 * rate:.1f} %"
        for audit in found.audits
        for g, rate in enumerate(audit.rates["acceptance"].value[place])
        if rate < low["acceptance"] and not audit.compared["acceptance"][place, g]
    ]
    return f"{text} Lower, but of too few people to compare: {listing(lower)}." if lower else text


def _measured(found: Material, line: int, metric: str, place: int) -> dict[str, Any]:
    """A metric of the model shown, with its interval over people, and of its strategy, over seeds."""
    counts = found.counts[place]
    rows = int(counts.sum())
    if metric == "auc":
        value = float(found.auc[place])
        low = high = np.asarray(value)
    elif metric in ("accuracy", "acceptance"):
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
