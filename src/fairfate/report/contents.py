"""What a report says, as plain values: the page, the JSON file and the model card are made from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairfate._version import __version__
from fairfate.data.columns import OTHERS
from fairfate.experiments.config import PROVENANCE
from fairfate.experiments.results import counts_of
from fairfate.fairness.disclosure import HIDDEN
from fairfate.fairness.metrics import COLLAPSED
from fairfate.fairness.objective import fairness_by
from fairfate.report.answer import SHOWN, answer, judged
from fairfate.report.audit import FOUR_FIFTHS, RATES, Audit, crossings
from fairfate.report.comparison import FLAWS, LEGEND, methods, remarks
from fairfate.report.material import Material, finite, interval, seeds_of
from fairfate.report.recommendation import paired_tests

FORMAT = 1
MOST_COLUMNS = 12
"""Whose importances are shown."""
NOTES = "data-notes"
"""What a config says was done to the data."""


def contents(found: Material, line: float = FOUR_FIFTHS) -> dict[str, Any]:
    """The report of strategies on the same data.

    Parameters
    ----------
    found : what the runs have left
    line : the ratio that groups' rates should reach
    """
    about, tested = _about(found), paired_tests(found.comparison, found.shown[0])
    return {
        "about": about,
        "facts": _facts(about),
        "line": line,
        "min-cell": found.min_cell,
        "shown": _shown(found.min_cell),
        "least": found.least,
        "answer": answer(found, line),
        "strategies": _strategies(found),
        "baselines": [
            {
                "name": one.name,
                "seeds": one.seeds,
                "flaw": "collapsed" if one.metrics["mcc"] < COLLAPSED else "",
            }
            | {key: finite(value) for key, value in one.metrics.items()}
            for one in found.comparison.baselines
        ],
        "legend": LEGEND,
        "methods": [{"name": name, "does": summary} for name, summary in methods(found.comparison)],
        "tests": tested,
        "importances": [one._asdict() for one in found.comparison.importances[:MOST_COLUMNS]],
        "audit": [_audited(audit, found, line) for audit in found.audits],
        "clients": _clients(found),
        "thresholds": _thresholds(found),
        "notes": _notes(found),
        "settings": [_settings(config, found.min_cell) for config in found.configs],
        "folders": _folders(found),
        "unfinished": {str(seed): list(of) for seed, of in found.progress.items()},
    }


def _about(found: Material) -> dict[str, Any]:
    comparison = found.comparison
    data, partition, protocol = (comparison.rounds[key][0] for key in ("dataset", "partition", "protocol"))
    groups = comparison.groups
    rows = found.rows_of_shown if groups is not None else {}
    provenance = found.configs[0].get(PROVENANCE, {}) if found.configs else {}
    return {
        "format": FORMAT,
        "version": __version__,
        "data": str(data),
        "title": comparison.title,
        "date": comparison.date,
        "partition": str(partition),
        "protocol": str(protocol),
        "rows": provenance.get("data-rows"),
        "test-rows": rows.get("test"),
        "validation-rows": rows.get("validation"),
        "outcome": comparison.outcome,
        "checksum": provenance.get("data-checksum"),
        "clients": found.configs[0].get("clients") if found.configs else None,
        "rounds": comparison.last,
        "seeds": found.seeds,
        "strategies": found.names,
        "attributes": list(groups.attributes) if groups is not None else [],
        "metric": comparison.fairness,
        "majority": finite(found.majority),
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


def _thresholds(found: Material) -> list[dict[str, Any]]:
    """The thresholds of the model shown, where groups have different ones."""
    cuts, groups = found.cuts, found.comparison.groups
    if cuts is None or groups is None or len(set(cuts)) < 2:
        return []
    people = found.audits[-1].shown["people"][found.place_of_shown]
    return [
        {"group": name, "threshold": cut, "people": _count(rows, found.min_cell)}
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
        f" hidden, those beside it are rounded to multiples of {min_cell}. Rates and ratios are those of the"
        " exact counts."
    )


def _notes(found: Material) -> list[str]:
    """What a reader should know; flaws of strategies are told apart."""
    apart = tuple(f"{flaw}: " for flaw in FLAWS)
    notes = [
        _without_small(note, found.min_cell)
        for note in remarks(found.comparison)
        if not note.startswith(apart)
    ]
    if OTHERS in found.groups:
        notes.append(f"{OTHERS}: everybody whose value is not the one that was set against the others")
    return notes


def _strategies(found: Material) -> list[dict[str, Any]]:
    """Every strategy: means over seeds with intervals, and whether it may be taken."""
    comparison = found.comparison
    rows = []
    for number, name in enumerate(found.names):
        row: dict[str, Any] = {
            "strategy": name,
            "collapsed": comparison.collapsed[number],
            "flaw": comparison.flaws[number],
            "taken": found.to_take is not None and found.to_take.line == number,
        }
        for metric in dict.fromkeys((*SHOWN, comparison.fairness)):
            row[metric] = seeds_of(found, found.per_seed(metric, number), metric)
        row["fairness"] = {
            attribute: {
                metric: seeds_of(found, values[found.of_line(number)]) for metric, values in by.items()
            }
            for attribute, by in found.fairness.items()
        }
        rows.append(row)
    return rows


def _audited(audit: Audit, found: Material, line: float) -> dict[str, Any]:
    """The audit of the model shown."""
    place = found.place_of_shown
    return {
        "attribute": audit.attribute,
        "crossed": len(audit.attributes) > 1,
        "unknown": _unknown(audit, place, found.min_cell),
        "rows": [
            _row(audit, place, g, found.min_cell) for g in range(len(audit.groups)) if not audit.unknown[g]
        ],
        "verdicts": [judged(found, audit, one, place, found.shown[0]) for one in audit.verdicts(place, line)],
    }


def _unknown(audit: Audit, place: int, min_cell: int) -> int | str:
    """How many people are of no known category; of several categories, those that are shown."""
    people = audit.shown["people"][place][audit.unknown]
    if (people == HIDDEN).any() and not (people > 0).any():
        return fewer_than(min_cell * int((people == HIDDEN).sum()))
    return int(people[people != HIDDEN].sum())


def _row(audit: Audit, place: int, g: int, min_cell: int) -> dict[str, Any]:
    """A group: people, rates and ratios."""
    row: dict[str, Any] = {"group": audit.groups[g]}
    for name in ("people", "selected", "favourable"):
        row[name] = _count(audit.shown[name][place, g], min_cell)
    for rate in RATES:
        row[rate] = {
            **interval(*(float(of[place, g]) for of in audit.rates[rate])),
            "enough": bool(audit.enough[rate][place, g]),
            "hidden": bool(audit.hidden[rate][place, g]),
        }
    for rate, of in audit.ratios.items():
        row[f"{rate}-ratio"] = {
            **interval(*(float(values[place, g]) for values in of)),
            "compared": bool(audit.compared[rate][place, g]),
        }
    return row


def audit_rows(found: Material) -> list[dict[str, Any]]:
    """The audit of every model, one row for each group, for a CSV file."""
    rows = []
    for audit in found.audits:
        for place, (number, seed) in enumerate(found.models):
            for g in range(len(audit.groups)):
                row = _row(audit, place, g, found.min_cell)
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
    shown, measured = found.local_rows(counts).sum(axis=-1), found.local_skill(counts)
    fairness = {
        " x ".join(names): fairness_by(counts, groups, names, found.least) for names in crossings(groups)
    }
    rows = []
    for place, name in enumerate(mine["name"]):
        people = shown[place]
        rows.append(
            {
                "client": str(name),
                "rows": int(people.sum()),
                "groups": dict(zip(groups.names, map(int, people), strict=True)),
                **{metric: finite(values[place]) for metric, values in measured.items()},
                "fairness": {
                    attribute: {metric: finite(values[place]) for metric, values in by.items()}
                    for attribute, by in fairness.items()
                },
            }
        )
    return rows


def _folders(found: Material) -> list[str]:
    """Where the runs are; one alone is not named, so that its report is the same wherever it is."""
    paths = [path if path.is_dir() else path.parent for path, _ in found.comparison.sources]
    return list(map(str, paths)) if len(paths) > 1 else []


def _settings(config: Mapping[str, Any], min_cell: int) -> dict[str, Any]:
    found = {
        "min-cell (in training)" if key == "min-cell" else key: value
        for key, value in config.items()
        if value not in ([], None, "")
    }
    about = found.get(PROVENANCE, {})
    if NOTES in about:
        found[PROVENANCE] = {**about, NOTES: [_without_small(str(note), min_cell) for note in about[NOTES]]}
    return found


def _without_small(note: str, min_cell: int) -> str:
    """A note that says no small number of rows.

    >>> _without_small("3 rows have no label, 1,003 rows no age, 1 row is empty", 10)
    'fewer than 10 rows have no label, 1,003 rows no age, fewer than 10 rows is empty'
    """

    def hide(number: re.Match[str]) -> str:
        return f"{fewer_than(min_cell)} rows" if 0 < int(number[1]) < min_cell else number[0]

    return re.sub(r"(?<![\d.,])(?<!fewer than )(\d{1,9}) rows?\b", hide, note)
