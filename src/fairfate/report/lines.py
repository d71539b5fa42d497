"""What figures share: colours, names, axes and legends. A strategy looks the same in all of them."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check
from fairfate.fairness.metrics import COLLAPSED, METRICS, Values
from fairfate.fairness.objective import bind, parse_objective
from fairfate.results.summary import split_strategies
from fairfate.results.tables import STRATEGY, counts_of, is_untrained

COLOURS = {  # Okabe and Ito
    "fedavg": "#000000",
    "fedmom": "#E69F00",
    "feddemon": "#56B4E9",
    "fedavg_lr": "#009E73",
    "fedavg_gr": "#F0E442",
    "fedval": "#0072B2",
    "fair_fate": "#D55E00",
}
OTHERS = ("#CC79A7", "#6A4C93", "#8C6D1F", "#20808D", "#B22222", "#7A9E1F", "#3D5A80")
"""Of other strategies, in the order in which they come."""
GREY = "#999999"
"""Of strategies that have collapsed, or were not trained."""
Dash = str | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = (
    "-",
    "--",
    ":",
    "-.",
    (0, (8, 2)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (2, 1)),
    (0, (1, 4)),
)
"""For settings of the same strategy."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", "h", ">", "d", "8")
"""For settings of the same strategy, where they are points."""
FEW_SETTINGS = 3
"""Of one strategy that have its colour; more have shades of it."""
FEW_LINES = 8
"""That can be told apart by colour and dash alone, with a band each; more have markers and no bands."""
NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "mcc": "MCC",
    "sp": "statistical parity",
    "eo": "equality of opportunity",
    "eqo": "equalized odds",
    "sp_diff": "difference in statistical parity",
    "eo_diff": "difference in opportunity",
    "eqo_diff": "difference in odds",
    "sp_published": "statistical parity, as published",
    "eo_published": "opportunity, as published",
    "eqo_published": "equalized odds, as published",
}
PERFORMANCE = ("accuracy", "balanced_accuracy", "f1", "mcc")
"""The metrics that say nothing about fairness."""
LEAST_HEIGHT = 0.05
"""Of an axis: smaller differences are noise."""


class Curve(NamedTuple):
    """What is drawn of one strategy and setting, and how."""

    label: str
    colour: str
    dash: Dash
    marker: str
    flaw: str
    """Why it is out of the comparison, if it is."""
    rows: pd.DataFrame

    @property
    def key(self) -> str:
        """For the legend."""
        return f"{self.label} ({self.flaw})" if self.flaw else self.label

    def curve(self, metric: str) -> pd.DataFrame:
        """Mean and standard deviation over seeds in each round; undefined where it is in any seed."""
        seeds = self.rows.groupby("round")[metric]
        return pd.DataFrame({"mean": seeds.mean(skipna=False), "std": seeds.std(skipna=False)})


def on_test_rows(rounds: pd.DataFrame, metrics: Sequence[str], groups: Groups | None) -> pd.DataFrame:
    """The test rows of one dataset and partition, with a column for each objective."""
    for metric in metrics:
        if metric not in METRICS:
            rounds = rounds.assign(**{metric: _objective(metric, rounds, groups)})
    test = rounds[rounds["split"] == "test"]
    about = test[["dataset", "partition", "protocol"]].drop_duplicates()
    check(len(about) == 1, "rounds must be of one dataset, partition and protocol on test rows", len(about))
    return test


def _objective(metric: str, rounds: pd.DataFrame, groups: Groups | None) -> Values:
    """An objective in every round, from the counts."""
    parsed = parse_objective(metric)
    if groups is None:
        raise InputError(
            f"metric must be one of {', '.join(METRICS)} for a run without counts, got '{metric}'"
        )
    return bind(parsed, groups)(counts_of(rounds))


def lines_of(test: pd.DataFrame) -> list[Curve]:
    """Each strategy and setting with its name, colour, dash and marker; flawed ones are grey."""
    names, frames = zip(*split_strategies(test, STRATEGY), strict=True)
    last = test["round"].max()
    flaws = [_flaw(rows[rows["round"] == last]) for rows in frames]
    bases = [str(rows["strategy"].iloc[0]).partition("+")[0].partition(" ")[0] for rows in frames]
    others = [base for base in dict.fromkeys(bases) if base not in COLOURS]
    palette = COLOURS | {base: OTHERS[number % len(OTHERS)] for number, base in enumerate(others)}
    colours = [GREY if flaw else palette[base] for flaw, base in zip(flaws, bases, strict=True)]
    lines = []
    for number, (name, rows) in enumerate(zip(names, frames, strict=True)):
        index, size = colours[:number].count(colours[number]), colours.count(colours[number])
        colour = GREY if flaws[number] else shade(colours[number], index, size)
        dash, marker = DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
        lines.append(Curve(name, colour, dash, marker, flaws[number], rows))
    return lines


def _flaw(end: pd.DataFrame) -> str:
    """Why the last round of a strategy is out of the comparison, if it is."""
    if is_untrained(end).any():
        return "no round counted"
    return "collapsed" if end["mcc"].mean() < COLLAPSED else ""


def shade(colour: str, index: int, size: int) -> str:
    """The colour of one of several settings: the strategy's own for a few, from dark to light for many.

    >>> shade("#D55E00", 1, 2), shade("#D55E00", 0, 8), shade("#D55E00", 7, 8)
    ('#D55E00', '#602a00', '#ff9b4b')
    """
    if size <= FEW_SETTINGS:
        return colour
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    dark, bright = max(light - 0.23, 0.0), min(light + 0.23, 0.65)
    mixed = colorsys.hls_to_rgb(hue, dark + (bright - dark) * index / (size - 1), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in mixed)


def title(test: pd.DataFrame, spread: str, where: str = "test rows") -> str:
    """The dataset, the partition, and what the mean is of; ``spread``: what shows the standard deviation."""
    first = test.iloc[0]
    about = f"{first['dataset']}, {first['partition']}"
    if first["protocol"] != "paper":
        about += f", {first['protocol']} protocol"
    seeds = test.groupby(STRATEGY, dropna=False)["seed"].nunique()
    few, many = seeds.min(), seeds.max()
    if many == 1:
        return f"{about}\n{where}, one seed"
    number = f"{many}" if few == many else f"{few} to {many}"
    of_spread = f", {spread} of one standard deviation" if spread else ""
    return f"{about}\n{where}, mean over {number} seeds{of_spread}"


def axis_name(metric: str) -> str:
    """A metric in words, and which value is fair."""
    name = NAMES.get(metric, metric)
    if metric in PERFORMANCE:
        return name
    return f"{name} ({0 if metric.endswith('_diff') else 1} is fair)"


def widened(low: float, high: float, metric: str, margin: float = 0.05) -> tuple[float, float]:
    """A range with a margin, high enough, and not outside what the metric can be.

    >>> [round(value, 3) for value in widened(0.9, 1.0, "sp")]
    [0.895, 1.0]
    >>> [round(value, 3) for value in widened(1.0, 1.0, "sp")]
    [0.95, 1.0]
    """
    floor, ceiling = (-1.0 if metric == "mcc" else 0.0), 1.0
    space = max(margin * (high - low), (LEAST_HEIGHT - (high - low)) / 2)
    low, high = max(low - space, floor), min(high + space, ceiling)
    if high - low < LEAST_HEIGHT:
        low = min(low, ceiling - LEAST_HEIGHT)
        high = max(high, low + LEAST_HEIGHT)
    return low, high


def undefined_text(metric: str) -> str:
    """What stands in an empty panel."""
    return f"{metric} is undefined here: in some seed, a group has no test rows to measure it on"


def undefined_for(names: Sequence[str]) -> str:
    """Who is not in a panel, and why."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"undefined for {names[0]}{more}"


def whole_marker(drawn: Any) -> None:
    """Show all of a marker with error bars that stands at the edge of a panel."""
    drawn.lines[0].set_clip_on(False)
