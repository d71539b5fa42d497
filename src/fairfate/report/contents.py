"""What a report says, as plain values: the page, the JSON file and the model card are made from it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairfate._version import __version__
from fairfate.data.columns import OTHERS
from fairfate.errors import hide_examples, listing
from fairfate.experiments.baselines import COLUMNS, MAJORITY
from fairfate.experiments.config import PROVENANCE
from fairfate.fairness.disclosure import HIDDEN
from fairfate.fairness.intervals import bootstrap, wilson
from fairfate.fairness.metrics import COLLAPSED, METRICS
from fairfate.fairness.objective import fairness_by
from fairfate.privacy.budget import describe_guarantee, parse_budget
from fairfate.report.audit import (
    ABOVE,
    BELOW,
    COLLAPSED_MODEL,
    FOUR_FIFTHS,
    TOO_FEW,
    UNCLEAR,
    UNTRAINED_MODEL,
    Audit,
    Verdict,
)
from fairfate.report.data import FLAWS, ReportData, finite, interval
from fairfate.report.recommendation import paired_tests, recommend
from fairfate.report.rule import describe_rule
from fairfate.report.tables import LEGEND, methods, remarks
from fairfate.results.summary import RATES, crossings
from fairfate.results.tables import counts_of, is_untrained

FORMAT = 1
MOST_COLUMNS = 12
"""Whose importances are shown."""
PERFORMANCE = ("accuracy", "balanced_accuracy", "mcc")
SHOWN = (*PERFORMANCE, "auc", "selection_rate")
"""In the tiles of the model shown."""
WORDS = {
    ABOVE: "reaches the threshold",
    BELOW: "below the threshold",
    UNCLEAR: "inconclusive",
    TOO_FEW: "too few people to interpret",
    COLLAPSED_MODEL: "no use: the model collapsed",
    UNTRAINED_MODEL: "no use: no round counted",
}
BEHIND = {"selection_rate": "people", "tpr": "favourable", "fpr": "unfavourable"}
"""The people whose rates they are."""
NOTES = "data-notes"
"""What a config says was done to the data."""


def contents(data: ReportData, line: float = FOUR_FIFTHS) -> dict[str, Any]:
    """The report of strategies on the same data.

    Parameters
    ----------
    data : what is known of them
    line : the ratio that groups' rates should reach
    """
    about, tested = _about(data), paired_tests(data, data.shown[0])
    return {
        "about": about,
        "facts": _facts(about),
        "line": line,
        "min-cell": data.min_cell,
        "shown": _shown(data.min_cell),
        "least": data.least,
        "answer": _answer(data, line),
        "strategies": _strategies(data),
        "baselines": [
            {
                "name": row.name,
                "seeds": row.seeds,
                "flaw": "collapsed" if row.metrics["mcc"] < COLLAPSED else "",
            }
            | {key: finite(value) for key, value in row.metrics.items()}
            for row in data.baselines
        ]
        + [_majority(data)],
        "legend": LEGEND,
        "methods": [{"name": name, "does": summary} for name, summary in methods(data)],
        "tests": tested,
        "importances": [row._asdict() for row in data.importances[:MOST_COLUMNS]],
        "audit": [_audited(audit, data, line) for audit in data.audits],
        "clients": _clients(data),
        "thresholds": _thresholds(data),
        "rule": describe_rule(data),
        "privacy": _privacy(data),
        "notes": _notes(data),
        "settings": [_settings(config, data.min_cell) for config in data.configs],
        "folders": _folders(data),
        "unfinished": {str(seed): list(rounds) for seed, rounds in data.progress.items()},
    }


def _majority(data: ReportData) -> dict[str, Any]:
    """One answer for everybody, beside the models; its fairness would say nothing."""
    known: dict[str, float | None] = {"accuracy": finite(data.majority), "balanced_accuracy": 0.5, "mcc": 0.0}
    row = {key: known.get(key) for key in COLUMNS} | {"auc": 0.5}
    return {"name": MAJORITY, "seeds": data.seed_count, "flaw": "", "is_majority": True} | row


def _answer(data: ReportData, line: float) -> dict[str, Any]:
    """The recommended model, why it is recommended, how good and how fair it is, and what it costs."""
    chosen = data.recommended
    number, seed = data.shown
    name, recommendation = data.names[number], recommend(data, line)
    about: dict[str, Any] = {
        "take": None if chosen is None else {"strategy": name, "seed": seed, "file": data.model_file},
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
        "untrained": _seeds(data.names, data.untrained),
        "collapsed": _seeds(data.names, data.collapsed),
    }
    index = data.shown_index
    measured = {metric: _measured(data, number, metric, index) for metric in SHOWN}
    about["measures"] = measured
    for audit in data.audits:
        verdicts = audit.verdicts(index, line)
        about["fairness"] += [_verdict_of(data, audit, verdict, index, number) for verdict in verdicts]
    if not data.flaws[number]:
        about["worst"] = _worst(data, about["fairness"])
    return about


def _seeds(names: Sequence[str], counts: Sequence[int]) -> list[dict[str, Any]]:
    """The strategies of which some seeds are counted, and how many."""
    return [{"strategy": name, "seeds": seeds} for name, seeds in zip(names, counts, strict=True) if seeds]


def _worst(data: ReportData, fairness: list[dict[str, Any]]) -> str:
    """Which group is accepted least often, of the attribute where that differs most."""
    shares = [row for row in fairness if row["metric"] == "sp" and row["value"] is not None]
    if not shares:
        return ""
    row = min(shares, key=lambda each: each["value"])
    low, high = row["lowest"], row["highest"]
    text = (
        f"{low['group']} (by {row['attribute']}): {100 * low['selection_rate']:.1f} % selected;"
        f" {high['group']}: {100 * high['selection_rate']:.1f} %."
    )
    index = data.shown_index
    lower = [
        f"{audit.groups[g]}, {100 * rate:.1f} %"
        for audit in data.audits
        for g, rate in enumerate(audit.rates["selection_rate"].value[index])
        if rate < low["selection_rate"] and not audit.compared["selection_rate"][index, g]
    ]
    return f"{text} Lower, but of too few people to compare: {listing(lower)}." if lower else text


def _measured(data: ReportData, line: int, metric: str, index: int) -> dict[str, Any]:
    """A metric of the model shown, with its interval over people, and of its strategy, over seeds."""
    counts = data.counts[index]
    rows = int(counts.sum())
    if metric == "auc":
        value = float(data.auc[index])
        low = high = np.asarray(value)
    elif metric in ("accuracy", "selection_rate"):
        right = counts[:, 0, 0].sum() + counts[:, 1, 1].sum()
        part = right if metric == "accuracy" else counts[:, :, 1].sum()
        low, high = wilson(np.asarray(part), np.asarray(rows))
        value = float(part / rows) if rows else math.nan
    else:
        drawn = METRICS[metric](bootstrap(counts.reshape(-1, 2, 2)))
        low, high = np.quantile(drawn, [0.025, 0.975])
        value = float(METRICS[metric](counts))
    return {**interval(value, low, high), "seeds": data.measured(metric, line)}


def _verdict_of(data: ReportData, audit: Audit, verdict: Verdict, index: int, line: int) -> dict[str, Any]:
    """A verdict with the rates of the groups that it is about, and the same over seeds."""
    each = data.fairness[audit.attribute][verdict.metric][data.models_of(line)]

    def end(group: str, rate: str) -> dict[str, Any]:
        g = audit.groups.index(group)
        value = finite(audit.rates[rate].value[index, g])
        people = audit.shown[BEHIND[rate]][index, g]
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
    sentence = UNTRAINED_MODEL if is_untrained(data.last)[index] else verdict.sentence
    ends = {name: pairs[0][name] for name in ("lowest", "highest")} if pairs else {}
    return {
        "attribute": audit.attribute,
        "metric": verdict.metric,
        **interval(verdict.value, verdict.low, verdict.high),
        "seeds": data.over_seeds(each, people=_spread(data, audit.attribute, verdict.metric, line)),
        **ends,
        "pairs": pairs,
        "verdict": sentence,
        "said": WORDS[sentence],
        "left-out": list(verdict.left_out),
    }


def _spread(data: ReportData, attribute: str, metric: str, line: int) -> float:
    """The variance over people of a fairness metric by one attribute, or by all crossed."""
    names = next(names for names in crossings(data.groups) if " x ".join(names) == attribute)
    return data.spread_over_people(
        lambda counts: fairness_by(counts, data.groups, names, data.least)[metric], line
    )


def _about(data: ReportData) -> dict[str, Any]:
    dataset, partition, protocol = (data.summary[key][0] for key in ("dataset", "partition", "protocol"))
    rows = data.shown_split_sizes
    provenance = data.configs[0].get(PROVENANCE, {}) if data.configs else {}
    return {
        "format": FORMAT,
        "version": __version__,
        "data": str(dataset),
        "title": data.title,
        "date": data.date,
        "partition": str(partition),
        "protocol": str(protocol),
        "rows": provenance.get("data-rows"),
        "test-rows": rows.get("test"),
        "validation-rows": rows.get("validation"),
        "outcome": data.outcome,
        "checksum": provenance.get("data-checksum"),
        "clients": data.configs[0].get("clients") if data.configs else None,
        "rounds": data.last_round,
        "seeds": data.seeds,
        "strategies": data.names,
        "attributes": list(data.groups.attributes),
        "metric": data.objective,
        "headline": data.headline,
        "over": "seeds and people" if data.shares_test_rows else "seeds",
        "majority": finite(data.shown_majority),
    }


def _facts(about: Mapping[str, Any]) -> list[str]:
    """The size of everything, for the first line."""
    seeds, names = len(about["seeds"]), len(about["strategies"])
    facts = [f"run on {about['date']}"] if about["date"] else []
    test, validation = about["test-rows"], about["validation-rows"]
    if about["rows"] and test:
        parts = [f"{about['rows'] - test - (validation or 0):,} for training at the clients"]
        parts += [f"{validation:,} for validation"] if validation else []
        facts.append(f"{about['rows']:,} rows: {', '.join(parts)}, {test:,} for the test")
    elif about["rows"]:
        facts.append(f"{about['rows']:,} rows")
    clients = f"{about['clients']} clients, " if about["clients"] else ""
    facts.append(f"{clients}split {about['partition']}")
    facts.append(f"{about['rounds']} rounds")
    facts.append(f"{seeds} seed" if seeds == 1 else f"{seeds} seeds")
    facts.append(f"{names} strategy" if names == 1 else f"{names} strategies")
    if about["outcome"]:
        facts.append(f"favourable outcome: {about['outcome']}")
    return facts


def _thresholds(data: ReportData) -> list[dict[str, Any]]:
    """The thresholds of the model shown, where groups have different ones."""
    cuts, groups = data.shown_thresholds, data.groups
    if cuts is None or len(set(cuts)) < 2:
        return []
    people = data.audits[-1].shown["people"][data.shown_index]
    return [
        {"group": name, "threshold": cut, "people": _count(rows, data.min_cell)}
        for name, cut, rows in zip(groups.names, cuts, people, strict=True)
    ]


def _count(shown: Any, min_cell: int) -> int | str:
    """A count as a report says it."""
    return fewer_than(min_cell) if shown == HIDDEN else int(shown)


def fewer_than(min_cell: int) -> str:
    """Stands for a count that is not shown."""
    return f"fewer than {min_cell}"


def _shown(min_cell: int) -> str:
    """Which counts the report shows."""
    if min_cell <= 1:
        return f"All counts are shown, also those of single people (fairfate report --min-cell {min_cell})."
    return (
        f"No count of fewer than {min_cell} people is shown (fairfate report --min-cell); where one is"
        f" hidden, those beside it are rounded to multiples of {min_cell}. Rates use exact counts, so small"
        " counts can be inferred."
    )


def _privacy(data: ReportData) -> list[str]:
    """The guarantee of differential privacy, where all runs have the same one; empty without."""
    texts = {config.get("privacy") for config in data.configs}
    budget = parse_budget(texts.pop()) if len(texts) == 1 else None
    return [] if budget is None else describe_guarantee(budget)


def _notes(data: ReportData) -> list[str]:
    """What a reader should know; flaws of strategies are shown elsewhere."""
    apart = tuple(f"{flaw}: " for flaw in FLAWS)
    shown = [hide_examples(note) for note in remarks(data) if not note.startswith(apart)]
    notes = [_without_small(note, data.min_cell) for note in shown]
    if OTHERS in data.groups.names:
        notes.append(f"{OTHERS}: everybody whose value is not the one that was set against the others")
    return notes


def _strategies(data: ReportData) -> list[dict[str, Any]]:
    """Every strategy: means over seeds with intervals, and whether it may be taken."""
    rows = []
    for number, name in enumerate(data.names):
        row: dict[str, Any] = {
            "strategy": name,
            "collapsed": data.collapsed[number],
            "flaw": data.flaws[number],
            "taken": data.recommended is not None and data.recommended.line == number,
        }
        for metric in dict.fromkeys((*SHOWN, data.objective, data.headline)):
            row[metric] = data.measured(metric, number)
        row["fairness"] = {
            attribute: {
                metric: data.over_seeds(
                    values[data.models_of(number)], people=_spread(data, attribute, metric, number)
                )
                for metric, values in measured.items()
            }
            for attribute, measured in data.fairness.items()
        }
        rows.append(row)
    return rows


def _audited(audit: Audit, data: ReportData, line: float) -> dict[str, Any]:
    """The audit of the model shown."""
    index = data.shown_index
    return {
        "attribute": audit.attribute,
        "crossed": len(audit.attributes) > 1,
        "unknown": _unknown(audit, index, data.min_cell),
        "rows": [
            _row(audit, index, g, data.min_cell) for g in range(len(audit.groups)) if not audit.unknown[g]
        ],
        "verdicts": [
            _verdict_of(data, audit, row, index, data.shown[0]) for row in audit.verdicts(index, line)
        ],
    }


def _unknown(audit: Audit, index: int, min_cell: int) -> int | str:
    """How many people are of no known category; of several categories, those that are shown."""
    people = audit.shown["people"][index][audit.unknown]
    if (people == HIDDEN).any() and not (people > 0).any():
        return fewer_than(min_cell * int((people == HIDDEN).sum()))
    return int(people[people != HIDDEN].sum())


def _row(audit: Audit, index: int, g: int, min_cell: int) -> dict[str, Any]:
    """A group: people, rates and ratios."""
    row: dict[str, Any] = {"group": audit.groups[g]}
    for name in ("people", "selected", "favourable"):
        row[name] = _count(audit.shown[name][index, g], min_cell)
    for rate in RATES:
        row[rate] = {
            **interval(*(float(interval_ends[index, g]) for interval_ends in audit.rates[rate])),
            "enough": bool(audit.enough[rate][index, g]),
            "hidden": bool(audit.hidden[rate][index, g]),
        }
    for rate, interval_ends in audit.ratios.items():
        row[f"{rate}-ratio"] = {
            **interval(*(float(values[index, g]) for values in interval_ends)),
            "compared": bool(audit.compared[rate][index, g]),
        }
    return row


def audit_rows(data: ReportData) -> list[dict[str, Any]]:
    """The audit of every model, one row for each group, for a CSV file."""
    rows = []
    for audit in data.audits:
        for index, (number, seed) in enumerate(data.models):
            for g in range(len(audit.groups)):
                row = _row(audit, index, g, data.min_cell)
                flat: dict[str, Any] = {
                    "strategy": data.names[number],
                    "seed": seed,
                    "attribute": audit.attribute,
                    "unknown": bool(audit.unknown[g]),
                }
                for key, value in row.items():
                    if not isinstance(value, dict):
                        flat[key] = value
                        continue
                    for part, part_value in value.items():
                        flat[key if part == "value" else f"{key}-{part}"] = part_value
                rows.append(flat)
    return rows


def _clients(data: ReportData) -> list[dict[str, Any]]:
    """How the model shown does at each client, on the rows that the client trained on."""
    local, groups = data.local, data.groups
    if local is None:
        return []
    number, seed = data.shown
    own_rows = local[(data.line_of(local) == number) & (local["seed"] == seed)]
    counts = counts_of(own_rows)
    shown, measured = data.local_rows(counts).sum(axis=-1), data.local_skill(counts)
    fairness = {
        " x ".join(names): fairness_by(counts, groups, names, data.least) for names in crossings(groups)
    }
    rows = []
    for index, name in enumerate(own_rows["name"]):
        people = shown[index]
        rows.append(
            {
                "client": str(name),
                "rows": int(people.sum()),
                "groups": dict(zip(groups.names, map(int, people), strict=True)),
                **{metric: finite(values[index]) for metric, values in measured.items()},
                "fairness": {
                    attribute: {metric: finite(values[index]) for metric, values in measured.items()}
                    for attribute, measured in fairness.items()
                },
            }
        )
    return rows


def _folders(data: ReportData) -> list[str]:
    """Where the runs are; one alone is not named, so that its report is the same wherever it is."""
    return list(map(str, data.folders)) if len(data.folders) > 1 else []


def _settings(config: Mapping[str, Any], min_cell: int) -> dict[str, Any]:
    settings = {
        "min-cell (in training)" if key == "min-cell" else key: value
        for key, value in config.items()
        if value not in ([], None, "")
    }
    about = settings.get(PROVENANCE, {})
    if NOTES in about:
        settings[PROVENANCE] = {
            **about,
            NOTES: [_without_small(str(note), min_cell) for note in about[NOTES]],
        }
    return settings


def _without_small(note: str, min_cell: int) -> str:
    """A note that says no small number of rows.

    >>> _without_small("3 rows have no label, 1,003 rows no age, 1 row is empty", 10)
    'fewer than 10 rows have no label, 1,003 rows no age, fewer than 10 rows is empty'
    """

    def hide(number: re.Match[str]) -> str:
        return f"{fewer_than(min_cell)} rows" if 0 < int(number[1]) < min_cell else number[0]

    return re.sub(r"(?<![\d.,])(?<!fewer than )(\d{1,9}) rows?\b", hide, note)
