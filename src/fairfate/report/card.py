"""A model card in Markdown, filled from the run; what the run cannot know is left to its owner."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "mcc": "MCC",
    "auc": "AUC",
    "acceptance": "Selection rate",
    "sp": "Statistical parity",
    "eo": "Equality of opportunity",
    "eqo": "Equalized odds",
}


def card(content: Mapping[str, Any]) -> str:
    """The card of the model that a report is about."""
    about, answer = content["about"], content["answer"]
    shown = answer["shown"]
    parts = [
        _head(content),
        f"# {_text(shown['strategy'])} on {_text(about['data'])}",
        _summary(content),
        "## How it was trained\n\n" + "\n".join(f"- {_text(fact)}" for fact in content["facts"]),
        _settings(content),
        _performance(answer),
        _fairness(content),
        *(_audit(table) for table in content["audit"]),
        _limits(content),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(content: Mapping[str, Any]) -> str:
    """What registries of models read."""
    about = content["about"]
    results = [
        {"type": name, "value": round(measure["value"], 4)}
        for name, measure in content["answer"]["measures"].items()
        if measure["value"] is not None
    ]
    lines = [
        "---",
        "library_name: fairfate",
        "tags: [federated-learning, fairness, tabular-classification]",
        f"datasets: [{json.dumps(about['data'])}]",
        "metrics: [accuracy, balanced_accuracy, mcc]",
        f"results: {json.dumps(results)}",
        "---",
    ]
    return "\n".join(lines)


def _summary(content: Mapping[str, Any]) -> str:
    answer = content["answer"]
    take, shown = answer["take"], answer["shown"]
    if content["unfinished"]:
        first = "The run has not finished; this card is of what there is so far."
    elif take is None:
        first = f"**No model of this run can be recommended.** {answer['why']}"
    else:
        first = f"The model of {take['strategy']}, seed {take['seed']}{_file(take)}. {answer['why']}"
    if take is None:
        first += f" The numbers below are those of {shown['strategy']}, seed {shown['seed']}."
    lines = [_text(first)]
    lines += [
        _text(text)
        for text in (answer["compared"], answer["chance"], answer["pooled"], *answer["caveats"])
        if text
    ]
    return "\n\n".join(lines)


def _file(take: Mapping[str, Any]) -> str:
    return f" ({take['file']})" if take["file"] else ""


def _settings(content: Mapping[str, Any]) -> str:
    rows = []
    for settings in content["settings"]:
        for key, value in settings.items():
            for name, item in value.items() if isinstance(value, Mapping) else [(key, value)]:
                rows.append((name, ", ".join(map(str, item)) if isinstance(item, list) else str(item)))
    return _table(("setting", "value"), [row for row in rows if row[1]])


def _performance(answer: Mapping[str, Any]) -> str:
    if not answer["measures"]:
        return ""
    rows = [
        (
            NAMES[name],
            _number(measure),
            _number(measure["seeds"]) if measure["seeds"]["low"] is not None else "",
        )
        for name, measure in answer["measures"].items()
    ]
    heading = (
        "measure",
        "this model (95 % interval over people)",
        "its strategy (mean, interval over seeds)",
    )
    return "## How good it is\n\n" + _table(heading, rows)


def _fairness(content: Mapping[str, Any]) -> str:
    answer, line = content["answer"], content["line"]
    if not answer["fairness"]:
        return ""
    rows = []
    for row in answer["fairness"]:
        ends = f"{row['lowest']['group']} to {row['highest']['group']}" if "lowest" in row else ""
        rows.append((row["attribute"], NAMES[row["metric"]], _number(row), ends, row["said"]))
    heading = ("by", "metric", "ratio (95 % interval over people)", "lowest to highest", f"against {line:g}")
    convention = " Four fifths is a convention, not a guarantee." if line == 0.8 else ""
    return (
        "## How fair it is\n\nThe lowest group's rate over the highest group's; 1 is equal."
        f"{convention}\n\n{_table(heading, rows)}"
    )


def _audit(table: Mapping[str, Any]) -> str:
    rows = [
        (
            row["group"],
            _count(row["people"]),
            _count(row["selected"]),
            _number(row["acceptance"]),
            _number(row["acceptance-ratio"]) if row["acceptance-ratio"]["compared"] else "left out",
            _number(row["tpr"]),
            _number(row["fpr"]),
        )
        for row in table["rows"]
    ]
    heading = ("group", "people", "selected", "selection rate", "impact ratio", "TPR", "FPR")
    unknown = (
        f"\n\n{_count(table['unknown'])} people of unknown {_text(table['attribute'])} are left out."
        if table["unknown"]
        else ""
    )
    return f"### By {_text(table['attribute'])}\n\n{_table(heading, rows)}{unknown}"


def _limits(content: Mapping[str, Any]) -> str:
    notes = [f"- {_text(note)}" for note in content["notes"]]
    notes += [
        f"- {_text(row['strategy'])} was not trained in {row['seeds']} seeds: no round counted"
        for row in content["answer"]["untrained"]
    ]
    notes += [
        f"- {_text(row['strategy'])} collapsed in {row['seeds']} seeds: it hardly tells people apart"
        for row in content["answer"]["collapsed"]
    ]
    notes += [
        f"- {_text(content['shown'])}",
        "- Fairness was measured on the test rows of this run; it says nothing of people unlike them.",
        "- For the owner to add: what the model is meant for and what it must not be used for, who is"
        " responsible, and how people can object to a decision.",
    ]
    return "## Limits\n\n" + "\n".join(notes)


def _count(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _number(interval: Mapping[str, Any]) -> str:
    if interval["value"] is None:
        return "too few people" if interval.get("hidden") else "undefined"
    if interval["low"] is None or interval["high"] is None or interval["low"] == interval["high"]:
        return f"{interval['value']:.3f}"
    return f"{interval['value']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(_text, row))} |" for row in lines)


def _text(value: str) -> str:
    """Somebody's words as Markdown shows them: in one line, and none of them a mark."""
    plain = " ".join(str(value).split())
    return plain if plain == "---" else re.sub(r"([\\`*_~&\[\]<>|])", r"\\\1", plain)
