"""The table of docs/privacy.md: what each strategy makes a client tell, from what its code asks for."""

from __future__ import annotations

from fairfate.strategies import STEPS, Need, Setup, entries, parse_spec

TELLS = {
    Need.REPORTS: "each round: 8 sums for each group",
    Need.ROWS: "once: its rows by group and label",
    Need.ALL_ROWS: "once: its rows by group and label",
}
SUMS = {
    "afl": "with one more exchange: each client has a weight of its own",
    "dual_reweighing": "yes",
    "fair_acc_avg": "no: each model is scored",
    "fair_avg": "no: each model is scored",
    "fair_best": "no: each model is scored",
    "fair_fate": "where each client scores its own model",
    "fairbatch": "yes",
    "fairfed": "with one more exchange: each client has a weight of its own",
    "fairgrad": "yes",
    "fedfact": "yes",
    "fedadam": "yes",
    "fedavg": "yes",
    "fedavg_gr": "yes",
    "fedavg_lr": "yes",
    "feddemon": "yes",
    "fedfb": "yes",
    "fedgft": "yes",
    "fedminmax": "yes",
    "fedmom": "yes",
    "fedprox": "yes",
    "fedval": "where each client scores its own model",
    "fedyogi": "yes",
    "ffalm": "yes",
    "prejudice": "yes",
    "qffl": "yes",
    "server_step": "yes",
}
"""Whether sums over the clients would be enough for the server; whoever adds a strategy says so here."""
VARIANTS = ("fedavg_gr:counts=once", "prejudice:scope=global")
STEP_TELLS = {
    "clip": ("nothing", "no", "no: each update is measured"),
    "median": ("nothing", "no", "no: each update is compared"),
    "trimmed": ("nothing", "no", "no: each update is compared"),
    "krum": ("nothing", "no", "no: each update is compared"),
    "average": ("nothing", "no", "yes"),
    "thresholds": ("nothing", "yes: thresholds are chosen on them", "yes"),
    "thresholds:from=clients": (
        "once: a histogram of scores, 256 bins for each group and label",
        "no",
        "yes",
    ),
    "common_threshold": (
        "once: a histogram of scores, 256 bins for each group and label",
        "no",
        "yes",
    ),
    "tilt": (
        "each round: an update of a second model, of the group; once: a histogram of both models' scores,"
        " 32 x 32 bins for each group and label (more than two groups: one for each but the first, and up"
        " to 101 times histograms of a rule's score, 2 x 256 bins); with `distil=true` each round: an update"
        " of one more; and once a histogram of its scores by the first one's decision, 2 x 256 bins",
        "no",
        "yes",
    ),
}


def table() -> str:
    """All strategies of this project, and the steps; those with the same needs share a row."""
    ours = [entry.name for entry in entries() if entry.build.__module__.startswith("fairfate.")]
    rows: dict[tuple[str, str, str], list[str]] = {}
    for text in sorted([*ours, *VARIANTS]):
        spec = parse_spec(text, "eqo")
        needs = spec.build(Setup(num_rounds=10, learning_rate=0.1)).needs
        sent = "; ".join(words for need, words in TELLS.items() if need in needs) or "nothing"
        scored = "yes: each client's model is scored on them" if Need.SCORES in needs else "no"
        scored = "yes: the model takes a step on them" if Need.DESCENT in needs else scored
        rows.setdefault((sent, scored, SUMS[spec.name]), []).append(text)
    missing = set(STEPS) - {name.partition(":")[0] for name in STEP_TELLS}
    if missing:
        raise KeyError(f"what these steps send: {missing}")
    for name, needs in STEP_TELLS.items():
        rows.setdefault(needs, []).append(f"+{name}")
    head = "| strategies and steps | a client also sends | needs the server's rows | sums suffice |\n"
    return (
        head
        + "| --- | --- | --- | --- |\n"
        + "".join(
            f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(key)} |\n"
            for key, names in rows.items()
        )
    )
