"""What a report says, as plain values: the page, the JSON file and the model card are made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fairfate._version import __version__
from fairfate.fairness.intervals import bootstrap, holm, over_seeds, paired, wilson
from fairfate.fairness.metrics import COLLAPSED, METRICS, Values, mcc
from fairfate.report.audit import (
    ABOVE,
    BELOW,
    COLLAPSED_MODEL,
    FOUR_FIFTHS,
    RATES,
    TOO_FEW,
    UNCLEAR,
    Audit,
    Verdict,
    crossings,
    fairness_by,
)
from fairfate.report.comparison import fairest, remarks, said, sentence
from fairfate.report.material import Material
from fairfate.runs.config import PROVENANCE
from fairfate.runs.results import counts_of

FORMAT = 1
PERFORMANCE = ("accuracy", "balanced_accuracy", "mcc")
TESTED = ("accuracy", "mcc")
"""Beside the fairness that strategies look at."""
WORDS = {
    ABOVE: "reaches the line",
    BELOW: "below the line",
    UNCLEAR: "cannot be told",
    TOO_FEW: "too few people to tell",
    COLLAPSED_MODEL: "no use: the model collapsed",
}
LEAST_SEEDS = 3
"""For an interval over seeds."""
SIGNIFICANT = 0.05
"""The level of the paired tests."""


def contents(found: Material, line: float = FOUR_FIFTHS) -> dict[str, Any]:
    """The report of strategies on the same data.

    Parameters
    ----------
    found : what the runs have left
    line : the ratio that groups' rates should reach
    """
    return {
        "about": _about(found),
        "facts": _facts(found),
        "line": line,
        "answer": _answer(found, line),
        "strategies": _strategies(found),
        "tests": tests(found),
        "audit": [_audited(audit, found, line) for audit in found.audits],
        "clients": _clients(found),
        "notes": remarks(found.comparison),
        "settings": [_settings(config) for config in found.configs],
        "folders": [str(_folder(path)) for path, _ in found.comparison.sources],
        "unfinished": {str(seed): list(of) for seed, of in found.progress.items()},
    }


def _about(found: Material) -> dict[str, Any]:
    comparison = found.comparison
    first = comparison.rounds.iloc[0]
    groups = comparison.groups
    test = int(found.counts[0].sum()) if groups is not None else None
    provenance = found.configs[0].get(PROVENANCE, {}) if found.configs else {}
    return {
        "format": FORMAT,
        "version": __version__,
        "data": str(first["dataset"]),
        "title": comparison.title,
        "partition": str(first["partition"]),
        "protocol": str(first["protocol"]),
        "rows": provenance.get("data-rows"),
        "test-rows": test,
        "checksum": provenance.get("data-checksum"),
        "clients": found.configs[0].get("clients") if found.configs else None,
        "rounds": comparison.last,
        "seeds": found.seeds,
        "strategies": found.names,
        "attributes": list(groups.attributes) if groups is not None else [],
        "metric": comparison.fairness,
        "majority": _number(comparison.majority),
    }


def _answer(found: Material, line: float) -> dict[str, Any]:
    """Which model to take, why, how good and how fair it is, and what was given up for it."""
    comparison, chosen = found.comparison, found.to_take
    number, seed = found.shown
    place = found.models.index((number, seed)) if (number, seed) in found.models else 0
    name = found.names[number]
    answer: dict[str, Any] = {
        "take": None if chosen is None else {"strategy": name, "seed": seed, "file": found.model_file},
        "shown": {"strategy": name, "seed": seed, "line": number},
        "why": _why(found),
        "others": _others(found),
        "price": "" if _is_told(found) else _price(found),
        "compared": sentence(comparison),
        "worst": "",
        "measures": {},
        "fairness": [],
        "collapsed": [
            {"strategy": of, "seeds": times}
            for of, times in zip(found.names, comparison.collapsed, strict=True)
            if times
        ],
    }
    if comparison.groups is None:
        return answer
    counts = found.counts[place]
    answer["measures"] = {metric: _measured(found, number, metric, counts) for metric in PERFORMANCE}
    answer["measures"]["acceptance"] = _measured(found, number, "acceptance", counts)
    answer["collapsed-itself"] = bool(mcc(counts) < COLLAPSED)
    for audit in found.audits:
        for verdict in audit.verdicts(place, line):
            answer["fairness"].append(_judged(found, audit, verdict, place, number))
    answer["worst"] = _worst(answer["fairness"])
    return answer


def _facts(found: Material) -> list[str]:
    """The size of everything, for the first line."""
    about = _about(found)
    seeds, names = len(about["seeds"]), len(about["strategies"])
    facts = []
    if about["rows"]:
        test = f", {about['test-rows']:,} of them test rows" if about["test-rows"] else ""
        facts.append(f"{about['rows']:,} rows{test}")
    clients = f"{about['clients']} clients, " if about["clients"] else ""
    facts.append(f"{clients}split {about['partition']}")
    facts.append(f"{about['rounds']} rounds")
    facts.append(f"{seeds} seed" if seeds == 1 else f"{seeds} seeds")
    facts.append(f"{names} strategy" if names == 1 else f"{names} strategies")
    return facts


def _worst(fairness: list[dict[str, Any]]) -> str:
    """Which group is accepted least often, of the attribute where that differs most."""
    shares = [one for one in fairness if one["metric"] == "sp" and one["value"] is not None]
    if not shares:
        return ""
    one = min(shares, key=lambda each: each["value"])
    low, high = one["lowest"], one["highest"]
    return (
        f"{low['group']} (by {one['attribute']}), accepted in {100 * low['acceptance']:.1f} % of cases,"
        f" against {100 * high['acceptance']:.1f} % of {high['group']}."
    )


def _is_told(found: Material) -> bool:
    """Whether the sentence on the fairest strategy is about the one to take."""
    return found.to_take is not None and fairest(found.comparison) == found.to_take.line


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


def _why(found: Material) -> str:
    chosen, judged, metric = found.to_take, found.judged, said(found.comparison.fairness)
    if not judged:
        return "The run's records do not say how its models do on the validation rows."
    if chosen is None:
        return "None of the models can be recommended."
    allowed = [one for one in judged if not one.against]
    mine = judged[chosen.line]
    if len(judged) == 1:
        return "It is the only strategy of the run, and it has not collapsed."
    if len(allowed) == 1:
        return (
            "It is the only strategy that keeps its accuracy within 0.03 of the best, and 80 % of its skill,"
            f" on the validation rows; its {metric} there is {mine.fairness:.3f}."
        )
    which = f"all {len(allowed)}" if len(allowed) == len(judged) else f"the {len(allowed)}"
    return (
        f"Of {which} strategies that keep their accuracy within 0.03 of the best, and 80 % of its skill,"
        f" it is the fairest by {metric} on the validation rows: {mine.fairness:.3f}."
    )


def _others(found: Material) -> list[dict[str, Any]]:
    """Why each of the other strategies is not the one to take."""
    chosen, metric = found.to_take, said(found.comparison.fairness)
    others = []
    for number, one in enumerate(found.judged):
        if chosen is not None and number == chosen.line:
            continue
        fair = "undefined" if math.isnan(one.fairness) else f"{one.fairness:.3f}"
        reason = one.against or f"it is less fair on the validation rows: {metric} {fair}"
        others.append({"strategy": one.name, "reason": reason, "fairness": _number(one.fairness)})
    return others


def _measured(found: Material, number: int, metric: str, counts: Any) -> dict[str, Any]:
    """A metric of the model shown, with its interval over people, and of its strategy, over seeds."""
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
    return {**_interval(value, low, high), "seeds": _seeds(found, found.per_seed(metric, number), metric)}


def _judged(found: Material, audit: Audit, verdict: Verdict, place: int, number: int) -> dict[str, Any]:
    """A verdict with the rates of the two groups that it is about, and the same over seeds."""
    each = found.fairness[audit.attribute][verdict.metric][found.of_line(number)]
    rate = {"sp": "acceptance", "eo": "tpr", "eqo": "tpr"}[verdict.metric]
    ends = {}
    for end, group in (("lowest", verdict.least), ("highest", verdict.most)):
        if group:
            g = audit.groups.index(group)
            rates = ("tpr", "fpr") if verdict.metric == "eqo" else (rate,)
            ends[end] = {
                "group": group,
                **{name: _number(audit.rates[name].value[place, g]) for name in rates},
                "people": int(audit.people[place, g]),
            }
    return {
        "attribute": audit.attribute,
        "metric": verdict.metric,
        **_interval(verdict.value, verdict.low, verdict.high),
        "seeds": _seeds(found, each),
        **ends,
        "verdict": verdict.said,
        "said": WORDS[verdict.said],
        "left-out": list(verdict.left_out),
    }


def _strategies(found: Material) -> list[dict[str, Any]]:
    """Every strategy: means over seeds with intervals, and whether it may be taken."""
    comparison = found.comparison
    rows = []
    for number, name in enumerate(found.names):
        row: dict[str, Any] = {
            "strategy": name,
            "collapsed": comparison.collapsed[number],
            "taken": found.to_take is not None and found.to_take.line == number,
        }
        for metric in dict.fromkeys((*PERFORMANCE, "acceptance", comparison.fairness)):
            row[metric] = _seeds(found, found.per_seed(metric, number), metric)
        row["fairness"] = {
            attribute: {metric: _seeds(found, values[found.of_line(number)]) for metric, values in by.items()}
            for attribute, by in found.fairness.items()
        }
        rows.append(row)
    return rows


def tests(found: Material) -> dict[str, Any]:
    """Paired tests over seeds of every strategy against the one to take, or against the first."""
    reference = found.shown[0]
    metrics = list(dict.fromkeys((found.comparison.fairness, *TESTED)))
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        others = [number for number in range(len(found.names)) if found.can_pair(number, reference)]
        of_metric = [_test(found, number, reference, metric) for number in others]
        p_values = [math.nan if row["p"] is None else row["p"] for row in of_metric]
        for row, adjusted in zip(of_metric, holm(p_values) if p_values else (), strict=True):
            row["p-adjusted"] = _number(adjusted)
            row["said"] = _difference(row)
        rows += of_metric
    compared = len(found.names) - 1
    correction = f"Holm, over {compared} {'strategy' if compared == 1 else 'strategies'} for each measure"
    return {"against": found.names[reference], "metrics": metrics, "correction": correction, "rows": rows}


def _test(found: Material, number: int, reference: int, metric: str) -> dict[str, Any]:
    mine, other = found.per_seed(metric, number), found.per_seed(metric, reference)
    test = paired(mine, other, found.test_to_train)
    return {
        "strategy": found.names[number],
        "against": found.names[reference],
        "metric": metric,
        **_interval(test.difference, test.low, test.high),
        "wins": int(test.wins),
        "seeds": len(mine),
        "p": _number(test.p),
    }


def _difference(row: Mapping[str, Any]) -> str:
    """What a paired test says."""
    if row["p-adjusted"] is None:
        return "one seed tells nothing" if row["seeds"] < 2 else "cannot be tested"
    if row["p-adjusted"] >= SIGNIFICANT:
        return "may be chance" if row["p"] >= SIGNIFICANT else "may be chance, with so many comparisons"
    return "higher" if row["value"] > 0 else "lower"


def _audited(audit: Audit, found: Material, line: float) -> dict[str, Any]:
    """The audit of the model shown."""
    place = found.models.index(found.shown) if found.shown in found.models else 0
    return {
        "attribute": audit.attribute,
        "crossed": len(audit.attributes) > 1,
        "unknown": int(audit.people[place][audit.unknown].sum()),
        "rows": [_row(audit, place, g) for g in range(len(audit.groups)) if not audit.unknown[g]],
        "verdicts": [
            _judged(found, audit, one, place, found.shown[0]) for one in audit.verdicts(place, line)
        ],
    }


def _row(audit: Audit, place: int, g: int) -> dict[str, Any]:
    """A group: people, rates and ratios."""
    row: dict[str, Any] = {
        "group": audit.groups[g],
        "people": int(audit.people[place, g]),
        "selected": int(audit.selected[place, g]),
        "favourable": int(audit.positives[place, g]),
    }
    for rate in RATES:
        row[rate] = {
            **_interval(*(float(of[place, g]) for of in audit.rates[rate])),
            "enough": bool(audit.enough[rate][place, g]),
        }
    for rate, of in audit.ratios.items():
        row[f"{rate}-ratio"] = {
            **_interval(*(float(values[place, g]) for values in of)),
            "compared": bool(audit.compared[rate][place, g]),
        }
    return row


def audit_rows(found: Material) -> list[dict[str, Any]]:
    """The audit of every model, one row for each group, for a CSV file."""
    rows = []
    for audit in found.audits:
        for place, (number, seed) in enumerate(found.models):
            for g in range(len(audit.groups)):
                row = _row(audit, place, g)
                flat: dict[str, Any] = {
                    "strategy": found.names[number],
                    "seed": seed,
                    "attribute": audit.attribute,
                    "unknown": bool(audit.unknown[g]),
                }
                for key, value in row.items():
                    if not isinstance(value, dict):
                        flat[key] = value
                        continue
                    for part, of in value.items():
                        flat[key if part == "value" else f"{key}-{part}"] = of
                rows.append(flat)
    return rows


def _clients(found: Material) -> list[dict[str, Any]]:
    """How the model shown does at each client, on the rows that the client trained on."""
    local, groups = found.local, found.comparison.groups
    if local is None or groups is None:
        return []
    number, seed = found.shown
    mine = local[(found.line_of(local) == number) & (local["seed"] == seed)]
    counts = counts_of(mine)
    measured = {metric: METRICS[metric](counts) for metric in ("accuracy", "mcc")}
    fairness = {" x ".join(names): fairness_by(counts, groups, names) for names in crossings(groups)}
    rows = []
    for place, name in enumerate(mine["name"]):
        people = counts[place].sum(axis=(1, 2))
        rows.append(
            {
                "client": str(name),
                "rows": int(people.sum()),
                "groups": dict(zip(groups.names, map(int, people), strict=True)),
                **{metric: _number(values[place]) for metric, values in measured.items()},
                "fairness": {
                    attribute: {metric: _number(values[place]) for metric, values in by.items()}
                    for attribute, by in fairness.items()
                },
            }
        )
    return rows


def _seeds(found: Material, values: Values, metric: str = "") -> dict[str, float | None]:
    """The mean over seeds and its interval, within what the metric can be; two seeds tell too little."""
    mean, low, high = over_seeds(values, found.test_to_train)
    if len(values) < LEAST_SEEDS:
        return _interval(mean, math.nan, math.nan)
    return _interval(mean, max(low, -1.0 if metric == "mcc" else 0.0), min(high, 1.0))


def _folder(path: Path) -> Path:
    """Of a run that is named by its folder or by its rounds."""
    return path if path.is_dir() else path.parent


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value not in ([], None, "")}


def _interval(value: Any, low: Any, high: Any) -> dict[str, float | None]:
    return {"value": _number(value), "low": _number(low), "high": _number(high)}


def _number(value: Any) -> float | None:
    """A number for JSON: nothing where it is undefined."""
    number = float(value)
    return number if math.isfinite(number) else None
