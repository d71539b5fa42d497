"""Figures, readable in print and for colour-blind readers. A strategy has the same colour in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.fairness.metrics import METRICS, Values
from fairfate.fairness.objective import bind, parse_objective
from fairfate.files import replacing
from fairfate.runs.results import counts_of, row_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {  # Okabe and Ito
    "fedavg": "#000000",
    "fedmom": "#E69F00",
    "feddemon": "#56B4E9",
    "fedavg_lr": "#009E73",
    "fedavg_gr": "#F0E442",
    "fedval": "#0072B2",
    "fair_fate": "#D55E00",
}
OTHER = "#CC79A7"
DASHES = ("-", "--", ":", "-.")
"""For settings of the same strategy."""
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "mcc": "MCC",
    "sp": "statistical parity",
    "eo": "equality of opportunity",
    "eqo": "equalized odds",
}


def over_rounds(
    rounds: pd.DataFrame,
    metrics: tuple[str, ...] = ("accuracy", "eqo"),
    groups: Groups | None = None,
) -> Figure:
    """Each metric over the rounds on the test rows: mean over seeds, and a band of one standard deviation.

    Parameters
    ----------
    rounds : as in ``rounds.parquet``
    metrics : one panel for each; objectives too, such as ``worst(sp, eo)``
    groups : what the counts of the rounds are counted by, for objectives
    """
    from matplotlib.figure import Figure

    for metric in metrics:
        if metric not in METRICS:
            rounds = rounds.assign(**{metric: _objective(metric, rounds, groups)})
    test = rounds[rounds["split"] == "test"]
    figure = Figure(figsize=(4.2 * len(metrics), 3.4), layout="constrained")
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        seen: dict[str, int] = {}
        for label, mine in _lines(test):
            name = str(mine["strategy"].iloc[0])
            kind = name.partition("+")[0] if name.partition("+")[0] in COLOURS else "other"
            dash = DASHES[seen.setdefault(kind, 0) % len(DASHES)]
            seen[kind] += 1
            seeds = mine.groupby("round")[metric]
            curve = pd.DataFrame({"mean": seeds.mean(skipna=False), "std": seeds.std(skipna=False)})
            colour = COLOURS.get(name.partition("+")[0], OTHER)
            marker = "o" if len(curve) == 1 else None
            panel.plot(
                curve.index, curve["mean"], dash, color=colour, label=label, linewidth=1.6, marker=marker
            )
            low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
            panel.fill_between(curve.index, low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set_xlabel("round")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylabel(
            NAMES.get(metric, metric) + (" (1 is fair)" if metric in ("sp", "eo", "eqo") else "")
        )
        if metric != "mcc":
            panel.set_ylim(0, 1.02)
        panel.grid(alpha=0.3, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=min(len(texts), 4), frameon=False)
    return figure


def _objective(metric: str, rounds: pd.DataFrame, groups: Groups | None) -> Values:
    """An objective in every round, from the counts."""
    parsed = parse_objective(metric)
    if groups is None:
        raise InputError(
            f"metric must be one of {', '.join(METRICS)} for a run without counts, got '{metric}'"
        )
    return bind(parsed, groups)(counts_of(rounds))


def _lines(test: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each strategy and setting, with a short label."""
    groups = test.groupby(["strategy", "metric", "settings"], dropna=False, sort=False)
    frames = [frame for _, frame in groups]
    first = pd.DataFrame([frame.iloc[0] for frame in frames])
    return list(zip(row_names(first), frames, strict=True))


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, SVG or PDF, by the file's ending; the same figure gives the same bytes."""
    import matplotlib as mpl

    file = Path(path)
    kind = file.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"figure must end in .png, .svg or .pdf, got '{file}'")
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    with mpl.rc_context({"svg.hashsalt": "fairfate"}), replacing(file) as temporary:
        figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)
        if kind == "png":
            _shrink(temporary)
    return file


def _shrink(path: Path) -> None:
    """Store a picture with a palette: 256 colours are enough for a plot, at a third of the size."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256)
    small.save(path, format="PNG", optimize=True)
