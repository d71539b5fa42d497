"""The table of docs/privacy.md: what each strategy makes a client tell, from what its code asks for."""

from __future__ import annotations

from fairfate.strategies import STEPS, Need, Setup, entries, parse_spec

TELLS = {
    Need.REPORTS: "each round: 8 sums for each group",
    Need.ROWS: "once: its rows by group and label",
}
SUMS = {
    "fair_fate": "no: each model is scored",
    "fairfed": "with one more exchange: each client has a weight of its own",
    "fairgrad": "yes",
    "fedavg": "yes",
    "fedavg_gr": "yes",
    "fedavg_lr": "yes",
    "feddemon": "yes",
    "fedmom": "yes",
    "fedval": "no: each model is scored",
    "ffalm": "yes",
    "prejudice": "yes",
}
"""Whether sums over the clients would be enough for the server; whoever adds a strategy says so here."""
VARIANTS = ("prejudice:scope=global",)
STEP_TELLS = {
    "average": ("nothing", "", "yes"),
    "thresholds": ("nothing", "yes: thresholds are chosen on them", "yes"),
    "thresholds:from=clients": ("once: a histogram of scores, 256 bins for each group and label", "", "yes"),
}


def table() -> str:
    """All strategies of this project, and the steps."""
    ours = [entry.name for entry in entries() if entry.build.__module__.startswith("fairfate.")]
    rows = []
    for text in sorted([*ours, *VARIANTS]):
        spec = parse_spec(text, "eqo")
        needs = spec.build(Setup(num_rounds=10)).needs
        told = "; ".join(words for need, words in TELLS.items() if need in needs) or "nothing"
        scored = "yes: each client's model is scored on them" if Need.SCORES in needs else ""
        rows.append((text, told, scored, SUMS[spec.name]))
    missing = set(STEPS) - {name.partition(":")[0] for name in STEP_TELLS}
    if missing:
        raise KeyError(f"what these steps tell: {missing}")
    rows += [(f"+{name}", *said) for name, said in STEP_TELLS.items()]
    head = "| | a client also tells | needs the server's rows | sums would do |\n"
    return (
        head
        + "| --- | --- | --- | --- |\n"
        + "".join(f"| `{row[0]}` | {' | '.join(row[1:])} |\n" for row in rows)
    )
