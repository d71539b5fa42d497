"""docs/benchmark.md: what was compared, how, and what came of it, in words and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fairfate.fairness.intervals import TEST_TO_TRAIN
from fairfate.fairness.selection import KEEP, TOLERANCE
from fairfate.studies.benchmark.baselines import BASELINES, CLIENT, POOLED, SERVER
from fairfate.studies.benchmark.cost import bytes_sent
from fairfate.studies.benchmark.findings import DATASETS, LEVEL, ROUNDS, Findings, duration
from fairfate.studies.benchmark.methods import LEAD, METRICS, MOST_SETTINGS, REFERENCE, every
from fairfate.studies.benchmark.pictures import GOALS, split_name
from fairfate.studies.benchmark.rule import CELL

PARAMETERS = 161
"""Of the paper's model on Adult, for the column of bytes."""
GUARDED = "fair_fate:min_mcc=0.05,keep=0.8"


def page(found: Findings, images: str = "images/benchmark", interactive: str = "benchmark.html") -> str:
    """The page; pictures are beside it."""
    first = found.encodings[0]
    whole = found.is_whole(first)
    parts = [
        _head(found, interactive),
        _answer(found, first) if whole else _answer_of_part(found, first),
        _board(found, first, images),
        _lead(found, first),
        _sensitivity(found, first) if whole else "",
        _weaknesses(found, first),
        _baselines(found, first),
        _encodings(found),
        _cost(found, first),
        RULE if whole else RULE.replace("other data than these four", "other data than these"),
        RUN,
    ]
    return "\n".join(part for part in parts if part)


def _head(found: Findings, interactive: str) -> str:
    rows = found.rows
    seeds = rows.groupby("encode")["seed"].nunique().to_dict()
    places = rows[["encode", "dataset", "partition"]].drop_duplicates()
    federations = places.groupby("encode").size().to_dict()
    said = "; ".join(
        f"{_number(federations[name], 'federation')} and {_number(seeds[name], 'seed')} with {_encoding(name)}"
        for name in found.encodings
    )
    baselines = _number(len(set(rows["method"]) & set(BASELINES)), "baseline")
    if found.is_whole(found.encodings[0]):
        base = [name for name in found.methods if not name.endswith("+average") and "+thresholds" not in name]
        methods = f"""\
{len(base)} methods and variants, each also with the average of the models of the last half of the rounds
(`+average`), thresholds after training, and {baselines}: {said}."""
    else:
        methods = f"""\
**A part of the benchmark**: {_number(len(found.methods), "method")} and {baselines}; {said}."""
    own = f" Run now: {', '.join(_name(found, name) for name in found.asked)}." if found.asked else ""
    return f"""\
# The benchmark of the field

Written by `fairfate benchmark`. {methods} {_amount(found)}{own} [All cells, with charts to click]({interactive}).

A *federation* is a dataset ({_datasets(found)}: [datasets](datasets.md)) and a split over {_clients(found)}: `random`, or by a Dirichlet distribution of σ = 1 or 0.5 over groups and labels, the smaller the more clients differ. The model is the paper's, one
hidden layer of ten units, and the group is one of its inputs. A *cell* is a federation and a metric: SP, EO or EQO, ratios of the groups' rates, of which 1 is fair
(EQO is the mean of two of them: [metrics](metrics.md)). *Skill* is balanced accuracy above one half, and MCC a correlation of which 0 is no better than one
answer for everybody. Ours are `dual_reweighing`, `server_step`, the guard (`min_mcc`, `keep`), `+thresholds` with its guard, and FedVal's and others' variants that
[methods](methods.md) names; `afl` and `fedminmax` are published with the mean of all models, for which `+average` stands here.
"""


def _amount(found: Findings) -> str:
    """How many models there are, and how long those took that do not come with the package."""
    now, took = len(found.rows) - found.kept, duration(found.minutes)
    if not found.kept:
        return f"""\
{found.models:,} models were trained and
{now:,} released ones measured in {took} ({found.machine})."""
    return f"""\
{now:,} of {len(found.rows):,} results took {took} ({found.machine}); the others come with the package."""


def _datasets(found: Findings) -> str:
    there = set(found.rows["dataset"])
    if there == set(DATASETS):
        return "COMPAS and Law School by race, Adult and Dutch by sex"
    return "here " + ", ".join(f"`{name}`" for name in dict.fromkeys(found.rows["dataset"]))


def _clients(found: Findings) -> str:
    if not found.usual or set(found.rows["dataset"]) - set(DATASETS):
        return "clients, of which some\ntrain in each round"
    return f"10 to 20 clients, of which a third\ntrain in each of {ROUNDS} rounds"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _name(found: Findings, method: str) -> str:
    """A method's name, in bold if it is the user's."""
    return f"**`{method}`** (yours)" if method in found.own else f"`{method}`"


def _answer_of_part(found: Findings, encode: str) -> str:
    """Who is first here, and where the user's methods are: a part of the benchmark says no more."""
    board = found.board[found.board["encode"] == encode]
    ranked = board[~board["method"].isin(BASELINES)].reset_index(drop=True)
    lines = ["## In short\n"]
    for place, row in enumerate(_records(ranked), start=1):
        if place > 1 and row.method not in found.own:
            continue
        where = f"{'the best mean rank' if place == 1 else f'number {place} by mean rank'} ({row.rank:.1f})"
        lines.append(
            f"- {_name(found, row.method)}: {where} of {_number(len(ranked), 'method')}; mean fairness"
            f" {row.fairness:.3f}, accuracy {0.0 - row.cost:+.3f} against `{REFERENCE}`, accuracy and skill kept in"
            f" {row.keeps} of {row.cells} cells."
        )
    lines.append(
        "- Few federations, seeds or methods tell little: conclusions are those of the whole benchmark, `fairfate"
        " benchmark` without options."
    )
    return "\n".join(lines) + "\n"


def _answer(found: Findings, encode: str) -> str:
    lead, cells = found.lead(encode), found.of(encode)
    if lead.empty:
        return ""
    total = len(lead)
    reference = found.mean_of(REFERENCE, "fairness", encode)
    own = found.mean_of(LEAD, "fairness", encode)
    beaten_in = int((lead["ahead_of_us"] != "").sum())
    first = int((lead["rank"] == 1).sum())
    keeps = int(lead["keeps"].sum())
    ff = found.mean_of("fair_fate", "fairness", encode)
    ff_keeps = int(cells[cells["method"] == "fair_fate"]["keeps"].sum())
    no_groups = [name for name in _without_groups(found) if name in set(cells["method"])]
    best = cells[cells["method"].isin(no_groups)].groupby("method")["rank"].mean().sort_values()
    ranks = cells.groupby("method")["rank"].mean()
    by_split = {
        split: (
            found.mean_of("fair_fate", "fairness", encode, partition=split),
            found.mean_of("fedavg", "fairness", encode, partition=split),
        )
        for split in dict.fromkeys(cells["partition"])
    }
    gains = "; ".join(
        f"{split_name(str(split))}: {a:.2f} against FedAvg's {b:.2f}" for split, (a, b) in by_split.items()
    )
    mean_ranks, distance, _ = found.ranks(encode)
    near = int((mean_ranks <= mean_ranks.iloc[0] + distance).sum())
    higher = int((lead["ahead"] < 0).sum())
    lines = [
        "## In short\n",
        f"- **Where decisions may use a person's group, take `{LEAD}`.** It keeps accuracy and skill in {keeps} of {total} cells"
        f" and raises mean fairness from {reference:.2f} (`{REFERENCE}`) to {own:.2f}. {rank_of_lead(found, mean_ranks)}, and is the fairest"
        f" that keeps both in {first} cells; in {higher} another one has a higher mean, "
        + ("in none significantly." if not beaten_in else f"in {beaten_in} significantly (below).")
        + f" By ranks alone {near} of {len(mean_ranks)} are not told from {'it' if mean_ranks.index[0] == LEAD else 'the best'}, and [how much accuracy may be given up](#how-much-it-hangs-on-the-rule)"
        " decides who is first. Clients send a histogram of scores by group and label, once.",
    ]
    if len(best):
        name = str(best.index[0])
        flips = found.mean_of(name, "flip", encode)
        lines.append(
            f"- **Where one threshold must hold for everybody, take {_name(found, name).replace('**', '')}**: the best mean rank ({best.iloc[0]:.1f}) of those,"
            f" mean fairness {found.mean_of(name, 'fairness', encode):.2f}, accuracy and skill kept in"
            f" {int(cells[cells['method'] == name]['keeps'].sum())} of {total} cells."
            + _fairest_in_training(found, encode, total)
            + f" The model still sees the group: {100 * flips:.0f} % of decisions change with it alone. Without it,"
            " [other strategies](choosing.md#without-the-group) are better; none was run without it here."
        )
    if "fair_fate" in ranks and "fedavg" in ranks:
        own_cells = cells[cells["method"] == "fair_fate"].set_index(list(CELL))["accuracy"]
        plain = cells[cells["method"] == "fedavg"].set_index(list(CELL))["accuracy"]
        loss = (plain - own_cells).dropna()
        repairs = all(ours > theirs for split, (ours, theirs) in by_split.items() if split != "random")
        lines.append(
            f"- **FAIR-FATE {'repairs skewed federations' if repairs else 'against FedAvg'}.** Its mean fairness is {ff:.2f} ({gains}), collapsed seeds included, for"
            f" {loss.mean():.3f} of FedAvg's accuracy (within {TOLERANCE} in {int((loss <= TOLERANCE).sum())} of {len(loss)} cells). Against the"
            f" averaged reference it keeps accuracy and skill in {ff_keeps} of {total}; `fedavg` itself does in"
            f" {int(cells[cells['method'] == 'fedavg']['keeps'].sum())}." + _guarded(found, encode, total)
        )
    lower = all(ranks[f"{name}+average"] > ranks[name] for name in ("fedadam", "fedyogi", GUARDED))
    lines.append(
        f"- **Averaging the last rounds sends nothing more and gives FedAvg accuracy back** where clients differ:"
        f" `fedavg` {_accuracies(found, 'fedavg', encode)}, `{REFERENCE}` {_accuracies(found, REFERENCE, encode)}."
        + (" Adaptive servers and the guarded FAIR-FATE rank lower with it." if lower else "")
    )
    lines += _by_front(found, encode)
    server = cells[cells["method"] == SERVER]
    if len(server):
        lines.append(
            f"- **The paper's server could train alone.** An averaged model of its validation rows (20 % of all) has accuracy"
            f" {server['accuracy'].mean():.3f} in the mean; `{REFERENCE}` has {found.mean_of(REFERENCE, 'accuracy', encode):.3f}, `fedavg`"
            f" {found.mean_of('fedavg', 'accuracy', encode):.3f}, all rows pooled {found.mean_of(POOLED, 'accuracy', encode):.3f}. The paper does not print"
            " this baseline."
        )
    return "\n".join(lines) + "\n"


def rank_of_lead(found: Findings, mean_ranks: pd.Series[float]) -> str:
    """Whether the lead is the best by mean rank, and who is if it is not."""
    place = list(mean_ranks.index).index(LEAD) + 1
    if place == 1:
        return "It has the best rank"
    return f"Its rank is number {place}, after {_name(found, str(mean_ranks.index[0]))}'s"


def _sensitivity(found: Findings, encode: str) -> str:
    """Who is first if more or less accuracy may be given up."""
    from scipy.special import stdtrit

    rows = []
    for tolerance in (0.01, TOLERANCE, 0.03):
        ranks = found.at_tolerance(encode, tolerance)
        if LEAD not in ranks.index:
            return ""
        place = list(ranks.index).index(LEAD) + 1
        best = ", ".join(f"`{name}` {row['rank']:.1f}" for name, row in ranks.head(4).iterrows())
        own = ranks.iloc[place - 1]
        rows.append([f"{tolerance:g}", best, f"{place} ({own['rank']:.1f}), kept in {int(own['keeps'])}"])
    lead, cells = found.lead(encode), found.of(encode)
    by_split = "; ".join(
        f"{split_name(str(split))}: {int(here['beaten'].sum())} of {int(here['rivals'].sum())}"
        for split, here in lead.groupby("partition", sort=False)
    )
    rivals, seeds = int(cells.groupby(list(CELL)).size().max()) - 1, int(cells["seeds"].max())
    least = (
        float(stdtrit(seeds - 1, 1 - LEVEL / 2 / rivals) * np.sqrt(1 / seeds + TEST_TO_TRAIN))
        if seeds > 1
        else np.inf
    )
    return f"""\
## How much it hangs on the rule

{_table(["accuracy that may be given up", "best mean ranks", "place of the lead"], rows, numbers=0)}

- The thresholds optimise the very rule that ranks them: their own tolerances are 0.01, 0.02 and 0.05, and their guard keeps the same share of skill. With a smaller tolerance
  they have to be asked for less.
- A method that misses the tolerance by a thousandth ranks behind all that do not: compare *keeps* and *fairness* before ranks.
- Significance needs large differences: with {seeds} seeds that split the same rows, and {rivals} others in a cell, the first to be sure must differ by {least:.1f} standard deviations of
  the differences over seeds. That nobody is surely fairer than the lead is no proof that nobody is. Sure wins of the lead, of all its comparisons: {by_split}: mostly where
  clients are alike.
- The lead was chosen by us on these four datasets before, and corrections are within a cell, not over all cells. Splits of the same dataset are not independent
  federations, so that the critical difference is too small.
- Methods that look at the validation rows in training (`fair_fate`, `fedval`, `fair_avg`, `server_step`, `+thresholds` at the server) are tuned on the same rows, which flatters them
  there and not on test rows. The lead uses clients' rows.
- Thresholds were put on `fedavg` and `fedavg_lr` only: whether these are the best models below them, the table cannot tell. Learning rate, epochs and rounds are
  the paper's, tuned for nobody.
"""


def _by_front(found: Findings, encode: str) -> list[str]:
    """Who has the best front, if that is not the lead."""
    board = found.board[(found.board["encode"] == encode) & ~found.board["method"].isin(BASELINES)]
    areas = board.set_index("method")["area"].dropna().sort_values(ascending=False)
    if areas.empty or areas.index[0] == LEAD or LEAD not in areas.index:
        return []
    first = ", ".join(f"`{name}` {value:.2f}" for name, value in areas.head(3).items())
    return [
        f"- **By their whole fronts others lead**: {first}, and `{LEAD}` {areas[LEAD]:.2f}. The lead has three settings; chance"
        " alone raises the front of many. If you may give up more than the tolerance, look at these."
    ]


def _guarded(found: Findings, encode: str, total: int) -> str:
    """What FAIR-FATE's guard makes of it."""
    cells = found.of(encode)
    mine = cells[cells["method"] == GUARDED]
    if mine.empty:
        return ""
    return (
        f" With its [guard](strategies.md#the-guard) it keeps them in {int(mine['keeps'].sum())} of {total}, at a fairness of"
        f" {mine['fairness'].mean():.2f}."
    )


def _fairest_in_training(found: Findings, encode: str, total: int) -> str:
    """The fairest among those that keep accuracy and skill nearly everywhere, without thresholds."""
    cells = found.of(encode)
    mine = cells[cells["method"].isin(_without_groups(found))]
    means = mine.groupby("method").agg(fairness=("fairness", "mean"), keeps=("keeps", "sum"))
    often = means[means["keeps"] >= 0.75 * total].sort_values("fairness", ascending=False)
    if often.empty:
        return ""
    first = often.iloc[0]
    return (
        f" The fairest of those that keep both in three quarters of the cells is `{often.index[0]}`: {first['fairness']:.2f},"
        f" kept in {int(first['keeps'])}."
    )


def _accuracies(found: Findings, method: str, encode: str) -> str:
    splits = dict.fromkeys(found.of(encode)["partition"])
    return ", ".join(
        f"{found.mean_of(method, 'accuracy', encode, partition=split):.3f} ({split_name(str(split))})"
        for split in splits
    )


def _without_groups(found: Findings) -> list[str]:
    """Methods that decide by one threshold for everybody."""
    return [name for name in found.methods if "+thresholds" not in name]


def _board(found: Findings, encode: str, images: str) -> str:
    board = found.board[found.board["encode"] == encode]
    methods = board[~board["method"].isin(BASELINES)]
    rows = [
        [
            _name(found, row.method),
            f"{row.rank:.1f}",
            f"{row.fairness:.3f}",
            f"{0.0 - row.cost:+.3f}",
            f"{row.mcc:.2f}",
            f"{row.keeps} of {row.cells}",
            _percent(row.collapsed),
            _rounded(row.area),
            _rounded(row.worst),
            _rounded(row.consistency),
            _percent(row.flip),
        ]
        for row in _records(methods)
    ]
    mean, distance, cells = found.ranks(encode)
    head = [
        "method",
        "rank",
        "fairness",
        "accuracy",
        "MCC",
        "keeps",
        "collapsed",
        "front",
        "worst client",
        "alike",
        "flips",
    ]
    near = [_name(found, name) for name in mean.index if mean[name] <= mean.iloc[0] + distance]
    paired = "; the\npaired tests below compare by seeds" if len(found.lead(encode)) else ""
    apart = f"""\
By Nemenyi's test over the {_number(cells, "federation")}, mean ranks must be {distance:.1f} apart to be told from each other at 5 %. These are not told from
the best: {", ".join(near[:12])}{f" and {len(near) - 12} more" if len(near) > 12 else ""}. The test is weak with so many methods and so few federations{paired}.
"""
    return f"""\
## The leaderboard

Means over {int(methods["cells"].iloc[0]) if len(methods) else 0} cells (federation and metric) on test rows; {_encoding(encode)}. Every method is tuned for each metric on validation
rows. *Rank*: by fairness among the methods that keep accuracy (within {TOLERANCE}) and skill ({KEEP:.0%} of balanced accuracy above one half) of
`{REFERENCE}` on the test rows; those that do not come last. *Accuracy*: less or more than `{REFERENCE}`'s. *Keeps*: cells in which it keeps both. *Collapsed*:
seeds with an MCC below 0.05. *Fairness* is the mean over all cells and seeds, also collapsed ones, which look fair. *Front*: the area, on test rows, that those settings cover which no other beats on validation
rows, above the accuracy of one answer for everybody, as a share of what a perfectly fair model with the accuracy of pooled rows would have. *Worst client*: fairness where
it is least, on clients' training rows, of clients with 20 rows of each group. *Alike*: consistency, how alike the five most similar people of the first 2,000 test rows are
treated. *Flips*: decisions that change with the person's group alone.

{_table(head, rows, numbers=len(head) - 1)}

![Mean ranks]({images}/ranks-{encode}.svg)

{apart if len(mean) > 1 else ""}
![Accuracy against equalized odds]({images}/tradeoffs-{encode}.svg)
"""


def _lead(found: Findings, encode: str) -> str:
    lead = found.lead(encode)
    if lead.empty:
        return ""
    rows = [
        [
            f"{row.dataset}, {split_name(str(row.partition))}",
            str(row.goal).upper(),
            f"{row.accuracy:.3f} / {row.fairness:.3f} / {row.mcc:.2f}"
            + ("" if row.keeps else " (accuracy or skill lost)"),
            f"{_name(found, row.rival)} {row.rival_accuracy:.3f} / {row.rival_fairness:.3f}",
            f"{row.ahead:+.3f}" + ("" if np.isnan(row.low) else f" ({row.low:+.3f} to {row.high:+.3f})"),
            f"{row.beaten} of {row.rivals}",
        ]
        for row in _records(lead)
    ]
    ahead = int((lead["ahead"] > 0).sum())
    sure = int(((lead["p"] < LEVEL) & (lead["ahead"] > 0)).sum())
    behind = int((lead["ahead_of_us"] != "").sum())
    return f"""\
## The lead, in public

`{LEAD}` against every other method that keeps accuracy and skill, cell by cell. It is fairer than the best of them in {ahead} of {len(lead)} cells,
surely so in {sure}; a method is surely fairer than it in {behind}. *Surely*: p below 0.05 in the paired test over seeds with Nadeau and
Bengio's correction for seeds that split the same rows, and Holm's for the number of methods. Numbers are accuracy / fairness / MCC;
the best other was picked for its test fairness, which favours it.

{_table(["federation", "metric", "the lead", "the best other", "ahead by (95 %)", "surely fairer than (of those that keep)"], rows, numbers=0)}
"""


def _weaknesses(found: Findings, encode: str) -> str:
    cells = found.of(encode)
    rows = []
    for goal in METRICS:
        mine = cells[(cells["goal"] == goal) & ~cells["method"].isin(BASELINES)]
        kept = mine[mine["keeps"]]
        means = kept.groupby("method")["fairness"].agg(["mean", "size"])
        everywhere = means[means["size"] == mine.groupby("method").size().max()].sort_values(
            "mean", ascending=False
        )
        best = "; ".join(
            f"{_name(found, str(name))} {row['mean']:.3f}" for name, row in everywhere.head(4).iterrows()
        )
        often = mine.groupby("method")["collapsed"].mean().sort_values(ascending=False).head(3)
        fell = "; ".join(
            f"{_name(found, str(name))} {value:.0%}" for name, value in often.items() if value > 0
        )
        rows.append([GOALS[goal], best, fell])
    return f"""\
## What suits which metric

The fairest of those that keep accuracy and skill in every federation, and those that collapse most often:

{_table(["metric", "the fairest that always keep", "most often collapsed (seeds)"], rows, numbers=0)}
"""


def _baselines(found: Findings, encode: str) -> str:
    cells = found.of(encode)
    here = cells[cells["method"].isin(BASELINES)]
    if here.empty:
        return ""
    rows = []
    for name in [*BASELINES, "fedavg", REFERENCE, LEAD]:
        mine = cells[cells["method"] == name]
        if mine.empty:
            continue
        by_goal = [f"{mine[mine['goal'] == goal]['fairness'].mean():.3f}" for goal in METRICS]
        about = BASELINES.get(name, "")
        rows.append(
            [f"`{name}`", about, f"{mine['accuracy'].mean():.3f}", f"{mine['mcc'].mean():.2f}", *by_goal]
        )
    return f"""\
## Baselines that papers leave out

Means over the federations. Fairlearn's two are points of reference with all rows pooled, and decide partly at random: ThresholdOptimizer is fitted on the validation rows,
ExponentiatedGradient on the training rows with two bounds and at most 20 iterations.

{_table(["", "", "accuracy", "MCC", *(goal.upper() for goal in METRICS)], rows, numbers=5)}

The others are trained with `+average`. A client alone (`{CLIENT}`) is what a site has that does not take part, measured on everybody's test rows.
"""


def _encodings(found: Findings) -> str:
    if len(found.encodings) < 2 or not {"fedavg", "fair_fate"} <= set(found.methods):
        return ""
    names = ["fedavg", REFERENCE, "fedavg_lr+average", "fair_fate", "fairfed", LEAD]
    common = set.intersection(
        *(set(found.of(e)["dataset"] + "|" + found.of(e)["partition"]) for e in found.encodings)
    )
    rows = []
    for name in [name for name in names if name in found.methods]:
        row = [f"`{name}`"]
        for encode in found.encodings:
            mine = found.of(encode)
            mine = mine[(mine["method"] == name) & (mine["dataset"] + "|" + mine["partition"]).isin(common)]
            for goal in METRICS:
                row.append(f"{mine[mine['goal'] == goal]['fairness'].mean():.2f}")
            row.append(f"{mine['accuracy'].mean():.3f}")
        rows.append(row)
    head = [""]
    for encode in found.encodings:
        head += [f"{encode}: {goal.upper()}" for goal in METRICS] + ["accuracy"]
    first, second = (found.of(e) for e in found.encodings[:2])
    gain = {
        name: (
            first[(first["method"] == name) & (first["dataset"] + "|" + first["partition"]).isin(common)][
                "fairness"
            ].mean(),
            second[(second["method"] == name) & (second["dataset"] + "|" + second["partition"]).isin(common)][
                "fairness"
            ].mean(),
        )
        for name in ("fedavg", "fair_fate")
    }
    a, b = gain["fedavg"], gain["fair_fate"]
    return f"""\
## How much of it is the encoder's doing

The paper gives a model categories as numbers (ordinal codes). With an input for each category and standardised numbers, FedAvg itself has a mean
fairness of {a[1]:.3f} instead of {a[0]:.3f} on the same {len(common)} federations; FAIR-FATE has {b[1]:.3f} instead of {b[0]:.3f}. What FAIR-FATE adds is
{b[0] - a[0]:+.2f} with ordinal codes and {b[1] - a[1]:+.2f} without.

{_table(head, rows, numbers=len(head) - 1)}
"""


def _cost(found: Findings, encode: str) -> str:
    board = found.board[found.board["encode"] == encode]
    times = dict(zip(board["method"], board["seconds"].astype(float), strict=True))
    rows = []
    for method in every():
        if method.name not in times or method.name.endswith("+average"):
            continue
        sent = bytes_sent(method.specs[0], PARAMETERS, ROUNDS)
        ratio = times[method.name] / times["fedavg"] if "fedavg" in times else np.nan
        rows.append(
            [
                f"`{method.name}`",
                str(max(method.settings(goal) for goal in METRICS)),
                f"{sent:,.0f}",
                "" if np.isnan(ratio) else f"{ratio:.1f}",
            ]
        )
    if not rows:
        return ""
    return f"""\
## What it costs

*Settings*: tried for each metric, at most {MOST_SETTINGS}. *Bytes*: sent and received by a client in a round, for the {PARAMETERS} parameters of the paper's model on Adult;
counted, without headers. What is sent once is spread over 100 rounds. *Time*: of training one setting (with thresholds: and of choosing them all), as a multiple of FedAvg's. Settings of one method are trained side by
side, which makes methods with many settings cheaper for each.

{_table(["method", "settings", "bytes", "time"], rows, numbers=3)}
"""


RULE = f"""\
## The rule

1. A seed splits a dataset's rows 60 : 20 : 20 into training, validation and test rows, and the training rows over the clients. All methods
   of a seed have the same split, the same first model, the same clients in each round and the same batches.
2. Each method is tuned in each seed and for each metric by itself, over at most {MOST_SETTINGS} settings, on
   validation rows only: of the settings whose validation accuracy is within {TOLERANCE} of `{REFERENCE}`'s and that have {KEEP:.0%} of its skill, the
   fairest one; without any, the most accurate one. Grids are the published ones where these are smaller (FAIR-FATE's 36 were cut to 16);
   `src/fairfate/studies/benchmark/methods.py` has them all.
3. Settings are chosen without test rows; who keeps accuracy and skill, and who is the best other, is decided on them. Fairness is the exact ratio of the groups' rates ([metrics](metrics.md)); a method is compared
   where it keeps accuracy and skill. A collapsed model is never ranked for being fair.
4. Intervals and tests are over seeds, with Nadeau and Bengio's correction ([intervals](intervals.md)), and Holm's over methods.

What this does not show: larger models, other data than these four, more than two groups. [Clients that do harm](attacks.md) and
[no rows at the server](validation.md) have pages of their own. `{LEAD}` is tuned on the same validation rows as all others, though it needs
none to choose its thresholds. At the edge of the tolerance chance decides: a method that is tuned to give up 0.02 of accuracy on validation rows may give
up a little more on test rows, and then does not *keep* it. Methods were run as [described](methods.md).
"""
RUN = """\
## Run it, and your own method beside it

The whole benchmark, resumable:

<!-- not run: it takes an hour -->
```bash
fairfate benchmark
```

A method of your own against the kept results: only yours is run. [Write it](add-a-strategy.md) in a file, name the file, and give
settings to be tuned over with `|`; tables and pictures mark it *(yours)*. Here on one federation and two seeds:

```bash
fairfate benchmark --plugin examples/own_strategy.py --methods "drop_unfair:share=0.2|0.4" --data compas --partition random --seeds 2
```

It needs `pip install "fairfate[benchmark]"` for fairlearn's two baselines alone, and the public datasets, which are
[downloaded on request](datasets.md). The table is `leaderboard.csv`, every cell is in `cells.csv`, and `benchmark.html` shows all
of it.
"""


def _encoding(name: str) -> str:
    return {"ordinal": "the paper's ordinal codes", "onehot": "one-hot, standardised inputs"}.get(
        name, f"inputs `{name}`"
    )


def _records(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


def _rounded(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.0f} %"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """Markdown; the last ``numbers`` columns are set to the right."""
    marks = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [" | ".join(head), " | ".join(marks), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def leaderboard_csv(found: Findings) -> pd.DataFrame:
    """The leaderboard to read with other programs."""
    return found.board.round(4)
