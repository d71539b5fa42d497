"""The pictures of docs/fair-fate.md, from one real run.

``python tools/pictures.py`` does what ``fairfate run --strategy fedavg --strategy fair_fate --per-round 5
--seeds 1`` does. FAIR-FATE is watched by a strategy that calls it and notes the lengths of its updates, which
changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fairfate
from fairfate.federation.seeds import Streams
from fairfate.federation.split import build
from fairfate.strategies import (
    RUN_METRIC,
    Cohort,
    Objective,
    Setup,
    Strategy,
    fair_fate,
    register,
    weighted_mean,
)

OUT = Path(__file__).parent.parent / "docs" / "images" / "fair-fate"
ROUND = 25
"""The round that is looked at closely."""
INK, FAIR, OTHER, SERVER, PALE = "#767676", "#0072B2", "#D55E00", "#009E73", "#7676764d"
"""Colours that can be read on white and on black, and by those who see few colours."""
mpl.rcParams |= {
    "svg.hashsalt": "fairfate",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.labelcolor": INK,
}


@register("watched", "fair_fate, with the lengths of its updates")
def watched(setup: Setup, *, metric: Objective = RUN_METRIC, lam0: float = 0.1) -> Strategy:
    """FAIR-FATE itself; what it adds up is noted."""
    own = fair_fate(metric=metric, lam0=lam0).build(setup)
    fairness = setup.fairness(metric)

    def aggregate(state: object, cohort: Cohort) -> object:
        after = own.aggregate(state, cohort)
        scores, server = fairness(cohort.client_counts), fairness(cohort.server_counts)
        fair = weighted_mean(cohort.deltas, np.where(after.notes["fair"], scores, 0.0))
        mean = weighted_mean(cohort.deltas, cohort.num_examples)
        lengths = {
            "alpha_f": float(np.linalg.norm(fair)),
            "alpha_n": float(np.linalg.norm(mean)),
            "v": float(np.linalg.norm(after.momentum)),
            "server": float(server),
        }
        return after._replace(notes={**after.notes, **lengths})

    return own._replace(aggregate=aggregate)


def main() -> None:
    """Run once, draw everything."""
    OUT.mkdir(parents=True, exist_ok=True)
    run = fairfate.run(data="synthetic", strategies=("fedavg", "watched"), per_round=5, seeds=(1,), jobs=1)
    rounds = run.rounds[run.rounds["strategy"] == "watched"]
    validation = rounds[rounds["split"] == "validation"].reset_index(drop=True)
    notes = pd.DataFrame([json.loads(text) for text in validation["notes"]])
    clients = run.clients[run.clients["strategy"] == "watched"]
    save(rows_of_clients(run), "clients")
    save(one_round(clients[clients["round"] == ROUND], float(notes["server"][ROUND - 1])), "round")
    save(fair_set(clients), "fair-set")
    save(schedules(validation), "schedules")
    save(momentum(notes), "momentum")
    save(result(run.rounds), "result")


def save(figure: Figure, name: str) -> None:
    """As SVG without a date, transparent."""
    figure.savefig(OUT / f"{name}.svg", transparent=True, metadata={"Date": None}, bbox_inches="tight")


def rows_of_clients(run: fairfate.Run) -> Figure:
    """Who holds what."""
    federation = build(run.table, run.plan.partition, run.plan.clients, Streams(1))
    cells = np.asarray(federation.client_cells)  # (clients, groups, labels)
    figure = Figure(figsize=(6, 2.4))
    axes = figure.subplots()
    looks = {(0, 0): (OTHER, 0.35), (0, 1): (OTHER, 1.0), (1, 0): (FAIR, 0.35), (1, 1): (FAIR, 1.0)}
    left = np.zeros(len(cells))
    for (group, label), (color, alpha) in looks.items():
        name = f"{run.table.group_names[group]}, {('not hired', 'hired')[label]}"
        height = cells[:, group, label]
        axes.bar(range(1, len(cells) + 1), height, bottom=left, color=color, alpha=alpha, label=name)
        left = left + height
    axes.set(xlabel="client", ylabel="training rows", xticks=range(1, len(cells) + 1))
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=2, columnspacing=1.2, handlelength=1.2)
    return figure


def one_round(clients: pd.DataFrame, server: float) -> Figure:
    """The fair set, and the two means."""
    figure = Figure(figsize=(6, 2.6))
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(wspace=0.15)
    names, fair = clients["name"].tolist(), (clients["outcome"] == "fair").to_numpy()
    scores, rows = clients["eqo"].to_numpy(), clients["examples"].to_numpy()
    index = np.arange(len(names))[::-1]
    colors = np.where(fair, FAIR, OTHER)
    left.axvline(server, color=SERVER, linewidth=2)
    left.annotate(
        f"server's model {server:.2f}",
        (server, len(names) - 0.3),
        color=SERVER,
        ha="center",
        annotation_clip=False,
    )
    left.hlines(index, server, scores, color=PALE, linewidth=3)
    left.scatter(scores, index, color=colors, s=50, zorder=3)
    for at, score in zip(index, scores, strict=True):
        left.annotate(
            f"{score:.2f}",
            (score, at),
            (0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    left.set(
        xlabel="EQO on the validation rows", yticks=index, yticklabels=names, ylim=(-0.6, len(names) - 0.4)
    )
    by_rows, by_fairness = rows / rows.sum(), np.where(fair, scores, 0) / np.where(fair, scores, 0).sum()
    right.barh(index + 0.19, by_rows, 0.34, color=INK, alpha=0.6, label=r"$\alpha_N$, by rows")
    right.barh(index - 0.19, by_fairness, 0.34, color=FAIR, label=r"$\alpha_F$, by fairness")
    right.set(
        xlabel="weight of the client's update", yticks=index, yticklabels=[], ylim=(-0.6, len(names) - 0.4)
    )
    right.legend(
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=2,
        handlelength=1,
        columnspacing=1,
        handletextpad=0.4,
    )
    return figure


def fair_set(clients: pd.DataFrame) -> Figure:
    """Who took part in each round, and who was fair."""
    names = sorted(set(clients["name"]), key=lambda name: int(name.split()[1]))
    figure = Figure(figsize=(6, 2.2))
    axes = figure.subplots()
    for outcome, color, label in (
        ("used", OTHER, "less fair than the server's model"),
        ("fair", FAIR, "in the fair set"),
    ):
        own = clients[clients["outcome"] == outcome]
        axes.scatter(own["round"], own["name"].map(names.index), s=9, marker="s", color=color, label=label)
    axes.set(xlabel="round", yticks=range(len(names)), yticklabels=names, xlim=(0, 101))
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, markerscale=2, handletextpad=0.2)
    return figure


def schedules(rounds: pd.DataFrame) -> Figure:
    """Lambda grows, beta decays."""
    figure = Figure(figsize=(6, 2.2))
    axes = figure.subplots()
    axes.plot(rounds["round"], rounds["lam"], color=FAIR)
    axes.plot(rounds["round"], rounds["beta"], color=OTHER)
    axes.annotate(r"$\lambda_t$: share of the fair momentum", (27, 0.3), color=FAIR, ha="left", va="top")
    axes.annotate(r"$\beta_t$: momentum that is kept", (80, 0.6), color=OTHER, ha="right", va="top")
    axes.set(xlabel="round", ylim=(0, 1), xlim=(0, 101))
    return figure


def momentum(notes: pd.DataFrame) -> Figure:
    """How the momentum smooths the fair updates."""
    figure = Figure(figsize=(6, 2.2))
    axes = figure.subplots()
    number = np.arange(1, len(notes) + 1)
    axes.plot(number, notes["alpha_f"], color=PALE, linewidth=1.2)
    axes.plot(
        number,
        notes["alpha_f"],
        ".",
        color=INK,
        markersize=3,
        label=r"$\alpha_F$, the fair clients' mean update",
    )
    axes.plot(number, notes["v"], color=FAIR, linewidth=2, label="$v$, the momentum")
    axes.set(xlabel="round", ylabel="length", xlim=(0, 101), ylim=(0, None))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return figure


def result(rounds: pd.DataFrame) -> Figure:
    """Both strategies on the test rows."""
    figure = Figure(figsize=(6, 2.4))
    test = rounds[rounds["split"] == "test"]
    axes: list[Axes] = list(figure.subplots(1, 2))
    figure.subplots_adjust(wspace=0.25)
    for first, metric, title in zip(axes, ("eqo", "accuracy"), ("EQO (1 is fair)", "accuracy"), strict=True):
        for strategy, color, label in (("fedavg", OTHER, "FedAvg"), ("watched", FAIR, "FAIR-FATE")):
            own = test[test["strategy"] == strategy]
            first.plot(own["round"], own[metric], color=color, linewidth=1.4, label=label)
        first.set(title=title, xlabel="round", xlim=(0, 101))
    axes[0].set_ylim(0, 1.02)
    axes[1].legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
