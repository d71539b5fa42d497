"""What figures share: colours, names, axes and legends. A strategy looks the same in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairfate.data.groups import Groups
from fairfate.errors import InputError, check
from fairfate.fairness.grammar import parse_objective
from fairfate.fairness.metrics import COLLAPSED, METRICS, Values
from fairfate.fairness.objective import bind
from fairfate.lazy import pandas as pd
from fairfate.runs.results import counts_of, is_untrained, row_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
"""For settings of the same strategy, where they are points."""
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
_LONGEST = 38
"""Characters of a name."""


class Line(NamedTuple):
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


def lines_of(test: pd.DataFrame) -> list[Line]:
    """Each strategy and setting with a short name, its colour and its dash; flawed ones are grey."""
    frames = [
        frame for _, frame in test.groupby(["strategy", "metric", "settings"], dropna=False, sort=False)
    ]
    names = shortened(row_names(pd.DataFrame([frame.iloc[0] for frame in frames])))
    last = test["round"].max()
    seen: dict[str, int] = {}
    lines = []
    for name, rows in zip(names, frames, strict=True):
        own = str(rows["strategy"].iloc[0]).partition("+")[0].partition(" ")[0]
        place = seen.setdefault(kind := own if own in COLOURS else "other", 0)
        seen[kind] += 1
        end = rows[rows["round"] == last]
        collapsed = "collapsed" if end["mcc"].mean() < COLLAPSED else ""
        flaw = "no round counted" if is_untrained(end).any() else collapsed
        if flaw:
            place = seen.setdefault("flawed", 0)
            seen["flawed"] += 1
        colour = GREY if flaw else COLOURS.get(own, OTHER)
        dash, marker = DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)]
        lines.append(Line(name, colour, dash, marker, flaw, rows))
    return lines


def shorten(name: str, longest: int = _LONGEST) -> str:
    """A name with an ellipsis for its middle if it is too long.

    >>> shorten("fedavg+average+thresholds", 15)
    'fedavg+…esholds'
    """
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def shortened(names: Sequence[str]) -> list[str]:
    """Names that are short, and still differ from each other."""
    for longest in range(_LONGEST, _LONGEST + 25, 4):
        short = [shorten(name, longest) for name in names]
        if len(set(short)) == len(set(names)):
            return short
    return [f"{place}: {shorten(name)}" for place, name in enumerate(names, start=1)]


def title(test: pd.DataFrame, spread: str, where: str = "test rows") -> str:
    """The dataset, the partition, and what the mean is of; ``spread`` shows the standard deviation."""
    first = test.iloc[0]
    about = f"{shorten(str(first['dataset']), 22)}, {shorten(str(first['partition']), 22)}"
    if first["protocol"] != "paper":
        about += f", {first['protocol']} protocol"
    seeds = test.groupby(["strategy", "metric", "settings"], dropna=False)["seed"].nunique()
    few, many = seeds.min(), seeds.max()
    if many == 1:
        return f"{about}\n{where}, one seed"
    number = f"{many}" if few == many else f"{few} to {many}"
    return f"{about}\n{where}, mean over {number} seeds, {spread} of one standard deviation"


def axis_name(metric: str) -> str:
    """A metric in words, and which value is fair."""
    name = NAMES.get(metric, shorten(metric, 34))
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
    room = max(margin * (high - low), (LEAST_HEIGHT - (high - low)) / 2)
    low, high = max(low - room, floor), min(high + room, ceiling)
    if high - low < LEAST_HEIGHT:
        low = min(low, ceiling - LEAST_HEIGHT)
        high = max(high, low + LEAST_HEIGHT)
    return low, high


def say_undefined(panel: Axes, metric: str) -> None:
    """Words in the place of an empty panel."""
    words = f"{shorten(metric)} is undefined here:\nin some seed, a group has\nno test rows to measure it on"
    panel.text(0.5, 0.5, words, transform=panel.transAxes, ha="center", va="center", color="#555555")
    panel.set_xticks([])
    panel.set_yticks([])


def undefined_for(names: Sequence[str]) -> str:
    """Who is not in a panel, and why."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"undefined for {names[0]}{more}"


def whole_marker(drawn: Any) -> None:
    """Show all of a marker with error bars that stands at the edge of a panel."""
    drawn.lines[0].set_clip_on(False)


def tidy(panel: Axes) -> None:
    """A light grid and two spines."""
    panel.grid(alpha=0.3, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)


def page(width: float, height: float) -> Figure:
    """An empty figure whose parts keep a distance."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    space = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    return Figure(figsize=(width, height), layout=space)


def text_width(text: str, size: float) -> float:
    """In inches."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=size).get_extents().width) / 72


def heading(figure: Figure, text: str) -> None:
    """A title that is as large as the page is wide enough for."""
    room = (figure.get_size_inches()[0] - 0.4) / max(text_width(line, 10) for line in text.splitlines())
    figure.suptitle(text, fontsize=10 * min(1, room))


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend below the panels, in as many columns as there is room for; the figure grows by its height."""
    width, height = figure.get_size_inches()
    widest = max(text_width(str(handle.get_label()), 9) for handle in handles)
    columns = max(1, min(len(handles), int((width - 0.2) / (widest + 0.65))))
    figure.set_size_inches(width, height + 0.19 * math.ceil(len(handles) / columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
