"""What a report says of a rule that was chosen after training: how is decided, and who gains or loses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairfate.errors import listing
from fairfate.report.data import ReportData
from fairfate.strategies import COMMON, TILT

SHARED = {
    COMMON: "Everybody is decided by one threshold of the score, which the server has chosen from what the"
    " clients count.",
    TILT: "Everybody is decided by one rule: the score, and a price on the group that a second model guesses"
    " from the same columns (with more than two groups, a price and a model for each but the first).",
}
"""How is decided where that is the same for everybody."""
DISTILLED = (
    "Everybody is decided by one threshold of the score of one plain network, distilled from one rule for"
    " everybody: it has learned that rule's decisions, which are by the score and a price on the group"
    " that a second model guesses from the same columns."
)
"""The same where one network takes the place of a tilted score."""
NOT_DISTILLED = (
    "Nothing is distilled: the plain model is released, with its own decisions, since no fairer network keeps"
    " the accuracy surely."
)
PROXY = (
    "The rule of +tilt guesses a protected attribute of every person and decides by the guess: no group is"
    " needed at decisions, but the law may treat the guess as a use of the attribute."
)
"""What those who would deploy a tilted score must know."""
DISTILLED_PROXY = (
    "The distilled network has learned decisions by a guess of a protected attribute: no group is needed at"
    " decisions, and no guess is made there, but the law may treat what it has learned as a use of the"
    " attribute."
)
"""The same of a network that is distilled from one."""


def proxy_sentence(data: ReportData, number: int, seed: int) -> str:
    """What those who would deploy a strategy's model must know; "" without a guess of the group."""
    name = data.names[number]
    about = data.rules.get((name, seed), {})
    if "distilled" in about:
        return DISTILLED_PROXY if about["distilled"] else ""
    return PROXY if f"+{TILT}" in name else ""


def describe_rule(data: ReportData) -> dict[str, Any] | None:
    """The rule of the model shown, in sentences, and whose decisions it changes; None where there is none."""
    number, seed = data.shown
    about = data.rules.get((data.names[number], seed))
    if about is None:
        return None
    shared = SHARED.get(str(about["kind"]), "")
    if "distilled" in about:
        shared = DISTILLED if about["distilled"] else NOT_DISTILLED
    texts = [shared, _needed(about["group-inputs"]) if shared else "", _kept(about), bound_sentence(about)]
    rows = [_change(name, counts) for name, counts in zip(data.groups.names, about["changes"], strict=True)]
    guessed = [
        _change(f"guessed {name}", counts)
        for name, counts in zip(data.groups.names, about.get("guessed", ()), strict=False)
    ]
    return {"says": [text for text in texts if text], "rows": rows + guessed}


def _needed(inputs: list[str]) -> str:
    """Whether the group must be known at decisions, where everybody is decided alike."""
    if not inputs:
        return "No group is needed at decisions."
    return (
        f"Yet the model takes {listing(inputs)} as an input, which must be known at every decision;"
        f" {' '.join(f'--drop {name}' for name in inputs)} trains without it."
    )


def _kept(about: Mapping[str, Any]) -> str:
    """Why a rule changes nothing, where it does not."""
    if about["undefined"]:
        return "Fairness is undefined on the clients' rows, so the model's own decisions are kept."
    if about.get("distilled") is False:
        return ""  # said already
    changed = sum(counts[0][1] + counts[1][0] for counts in about["changes"])
    return "" if changed else "No fairer rule keeps the accuracy surely, so hardly any decision is changed."


def bound_sentence(about: Mapping[str, Any]) -> str:
    """Whether a bound is reached, in plain words; empty without one."""
    if "bound" not in about:
        return ""
    bound, limit = float(about["bound"]), about["limit"]
    is_ratio = about["measure"] == "ratio"
    name = f"{str(about['metric']).upper()}{'' if is_ratio else ' difference'}"
    least = "undefined" if limit is None else f"{'at least' if is_ratio else 'at most'} {float(limit):.3f}"
    measured = f"on rows held out it is {least} with 95 % confidence"
    if about["reached"]:
        return f"The bound of {bound:g} ({name}) is reached: {measured}."
    if about["collapsed"]:
        return (
            f"The bound of {bound:g} ({name}) is not reached: the model gives nearly one answer to everybody,"
            " which is of no use however fair it looks."
        )
    why = (
        "rules that reach it on the clients' rows do not reach it surely on rows held out"
        if about["possible"]
        else "no rule that keeps the accuracy reaches it on the clients' rows"
    )
    return f"The bound of {bound:g} ({name}) is not reached: {why}. The fairest rule is released; {measured}."


def _change(name: str, counts: list[list[int]]) -> dict[str, Any]:
    """How many people of a group there are, and the shares that gain and lose by the rule."""
    people = sum(map(sum, counts))
    shares = (counts[0][1] / people, counts[1][0] / people) if people else (None, None)
    return {"group": name, "people": people, "gain": shares[0], "lose": shares[1]}
