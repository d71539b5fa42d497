"""The numbers that the page draws, small enough to travel inside it."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fairfate.data.groups import Groups
from fairfate.engine.record import DROPPED, FAIR, REFUSED, USED
from fairfate.fairness.disclosure import is_small, merge_bins
from fairfate.fairness.intervals import wilson
from fairfate.fairness.metrics import COLLAPSED, METRICS, Values, selection_rate
from fairfate.fairness.objective import bind, fairness_by
from fairfate.fairness.selection import pareto_front
from fairfate.fairness.thresholds import BINS
from fairfate.report.audit import Audit, least_people
from fairfate.report.data import ReportData, finite
from fairfate.report.lines import COLOURS
from fairfate.results.summary import crossings
from fairfate.results.tables import counts_of, histograms_of

MOST_ROUNDS = 200
"""Points of a curve; of longer runs every second, third, ... round is drawn."""
MOST_CLIENTS = 60
"""That are drawn; the others are in the files."""
MOST_NUMBERS = 300_000
"""Of one kind in the page; above it, only each strategy's best seed is shown in detail."""
STEPS, CALIBRATION = 64, 10
"""Thresholds that are tried between 0 and 1, and steps of the score whose outcomes are shown."""
PALETTE = ("#0072B2", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#8C6D1F", "#6A4C93", "#B22222", "#20808D")
OUTCOMES = {USED: 1, FAIR: 2, DROPPED: 3, REFUSED: 4}
ABSENT = 65535
"""Stands for a value that is undefined or not there."""
SKILL = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "mcc": "MCC",
    "selection_rate": "selection rate",
}
SERVER = {
    "lam": "λ, weight of the fair update",
    "beta": "β, momentum",
    "fair_clients": "clients counted as fair",
}


def chart_data(data: ReportData, line: float) -> dict[str, Any]:
    """Everything that the charts of one comparison need."""
    groups = data.groups
    charts: dict[str, Any] = {
        "line": line,
        "least": least_people(data.min_cell),
        "compared": data.least,
        "collapsed": COLLAPSED,
        "minCell": data.min_cell,
        "metric": data.objective if data.objective in ("sp", "eo", "eqo") else "eqo",
        "objective": data.objective,
        "strategies": _strategies(data),
        "seeds": data.seeds,
        "shown": [data.shown[0], data.seeds.index(data.shown[1])],
        "taken": data.recommended is not None,
        "groups": list(groups.names),
        "attributes": [_attribute(groups, audit) for audit in data.audits],
        **_series(data),
    }
    detailed = _detailed(data)
    charts["models"] = [[line, data.seeds.index(seed)] for line, seed in detailed]
    indices = [data.models.index(model) for model in detailed]
    charts["rates"] = [_rates(audit, indices) for audit in data.audits]
    charts["scores"] = _scores(data, detailed)
    charts["local"] = _local(data, detailed)
    charts["taking"] = _taking(data, detailed)
    return charts


def _detailed(data: ReportData) -> list[tuple[int, int]]:
    """The models that are shown in detail: all, or each strategy's best where there are very many."""
    groups = len(data.groups)
    clients = 0 if data.local is None else data.local["name"].nunique()
    most = max(2 * BINS * groups, 4 * min(clients, MOST_CLIENTS) * groups)
    if len(data.models) * most <= MOST_NUMBERS or not data.candidates:
        return data.models
    return [
        (line, candidate.seed)
        for line, candidate in enumerate(data.candidates)
        if (line, candidate.seed) in data.models
    ]


def _strategies(data: ReportData) -> list[dict[str, Any]]:
    """Names, colours and dashes; the model to take and the first strategy are drawn from the start."""
    others = iter([*PALETTE] * (len(data.names) // len(PALETTE) + 1))
    bases = [str(name).partition("+")[0].partition(" [")[0] for name in data.summary["strategy"]]
    shown = data.shown[0]
    owner = {base: bases.index(base) for base in bases}
    if bases[shown] == "fair_fate":
        owner["fair_fate"] = shown
    drawn = {0, shown or 1} if len(data.names) > 3 else set(range(len(data.names)))
    rows = []
    for number, name in enumerate(data.names):
        own = bases[number] in ("fedavg", "fair_fate") and owner[bases[number]] == number
        colour = COLOURS[bases[number]] if own else next(others)
        rows.append(
            {
                "name": name,
                "colour": "var(--ink)" if colour == COLOURS["fedavg"] else colour,
                "dash": ("", "6 3", "2 2", "8 3 2 3")[(number // 8) % 4],
                "flaw": data.flaws[number],
                "drawn": number in drawn,
            }
        )
    return rows


def _attribute(groups: Groups, audit: Audit) -> dict[str, Any]:
    return {
        "name": audit.attribute,
        "groups": list(audit.groups),
        "unknown": [not compared for compared in groups.compared(audit.attributes)],
        "index": groups.index_of(audit.attributes).tolist(),
    }


def _series(data: ReportData) -> dict[str, Any]:
    """Every metric over the rounds: (strategies, seeds, rounds)."""
    rounds = data.drawn
    test = rounds[rounds["split"] == "test"]
    test = test[data.line_of(test) >= 0]
    numbers = np.array(sorted(set(test["round"])), dtype=np.int64)
    step = -(-len(numbers) // MOST_ROUNDS)
    drawn = np.unique(np.concatenate([numbers[::step], numbers[-1:]]))
    test = test[test["round"].isin(drawn)]
    seed_of = {seed: index for index, seed in enumerate(data.seeds)}
    where = (
        data.line_of(test),
        test["seed"].map(seed_of).to_numpy(),
        np.searchsorted(drawn, test["round"].to_numpy()),
    )
    shape = len(data.names), len(data.seeds), len(drawn)
    values: list[tuple[str, str, str, str, Values]] = []
    for key, name in SKILL.items():
        if key in test:
            values.append((key, name, "skill", "", test[key].to_numpy(dtype=np.float64)))
    counts = counts_of(test)
    for names in crossings(data.groups):
        for key, measured in fairness_by(counts, data.groups, names, data.least).items():
            values.append((key, key.upper(), "fair", " x ".join(names), measured))
    if data.objective not in ("sp", "eo", "eqo"):
        bound = bind(data.objective, data.groups)(counts)
        values.append((data.objective, data.objective, "fair", "", bound))
    for key, name in SERVER.items():
        noted = test[key].to_numpy(dtype=np.float64) if key in test else np.full(len(test), np.nan)
        if not np.isnan(noted).all():
            values.append((key, name, "server", "", noted))
    packed, last = [], {}
    for key, name, kind, attribute, column in values:
        cube = np.full(shape, np.nan)
        cube[where] = column
        last[key, attribute] = final = _last_defined(cube)
        packed.append(
            {
                "key": key,
                "name": name,
                "kind": kind,
                "attribute": attribute,
                "values": quantised(_with_mean(cube)),
                "std": quantised(deviation(cube)),
                "final": quantised(_with_mean(final[..., None])[..., 0]),
                "trade": _trade(last["accuracy", ""], final, data.flaws) if kind == "fair" else None,
            }
        )
    return {"rounds": drawn.tolist(), "every": step, "series": packed}


def mean(values: Values, axis: int = 1) -> Values:
    """The mean over seeds, of those that are defined; NaN where none is."""
    defined = np.isfinite(values)
    sums = np.add.reduce(np.where(defined, values, 0.0), axis=axis)
    counts = defined.sum(axis=axis)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def deviation(values: Values, axis: int = 1) -> Values:
    """The standard deviation over seeds, of those that are defined; NaN for fewer than two."""
    counts = np.isfinite(values).sum(axis=axis)
    squares = (values - np.expand_dims(mean(values, axis), axis)) ** 2
    variance = mean(squares, axis) * counts / np.maximum(counts - 1, 1)
    return np.asarray(np.where(counts > 1, np.sqrt(variance), np.nan))


def _with_mean(cube: Values) -> Values:
    """(strategies, seeds + 1, rounds) the values of each seed, and their mean."""
    return np.concatenate([cube, mean(cube)[:, None]], axis=1)


def _last_defined(cube: Values) -> Values:
    """(strategies, seeds) the last value of (strategies, seeds, rounds) that is defined."""
    defined = np.isfinite(cube)
    last = cube.shape[2] - 1 - defined[:, :, ::-1].argmax(axis=2)
    return np.where(defined.any(axis=2), np.take_along_axis(cube, last[:, :, None], axis=2)[:, :, 0], np.nan)


def _trade(accuracy: Values, fairness: Values, flaws: Sequence[str]) -> dict[str, Any]:
    """Accuracy against fairness: means and deviations over seeds, and the front for each seed and for all."""
    both = np.isfinite(accuracy) & np.isfinite(fairness) & np.array([not flaw for flaw in flaws])[:, None]
    pair = [np.where(both, values, np.nan) for values in (accuracy, fairness)]
    means, deviations = ([statistic(values) for values in pair] for statistic in (mean, deviation))
    xs, ys = (np.concatenate([v, m[:, None]], axis=1) for v, m in zip(pair, means, strict=True))
    best = np.zeros(xs.shape, dtype=np.uint8)
    for choice in range(xs.shape[1]):
        drawn = np.flatnonzero(np.isfinite(xs[:, choice]))
        front = pareto_front(zip(xs[drawn, choice], ys[drawn, choice], strict=True))
        best[drawn[front], choice] = 1
    numbers = np.stack([*means, *deviations], axis=1)
    return {"all": [[finite(value) for value in row] for row in numbers], "front": coded(best, np.uint8)}


def quantised(values: NDArray[Any]) -> dict[str, Any]:
    """Numbers as 16-bit steps between the least and the largest: an error of at most 1/131068 of the span."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    scale = (high - low) / (ABSENT - 1) or 1.0
    steps = np.where(np.isfinite(values), np.round((values - low) / scale), ABSENT)
    return {"low": low, "step": scale, "data": coded(steps, np.uint16)}


def coded(values: NDArray[Any], kind: type[Any]) -> str:
    """Numbers as base64."""
    little = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode("ascii")


def _whole(values: NDArray[np.int64]) -> dict[str, Any]:
    """Counts in as few bytes as hold the largest."""
    wide = int(values.max(initial=0)) > ABSENT
    return {"wide": wide, "data": coded(values, np.uint32 if wide else np.uint16)}


def _rates(audit: Audit, indices: Sequence[int]) -> dict[str, Any]:
    """Rates with intervals: (values and ends, models, groups)."""
    rates: dict[str, Any] = {"people": audit.shown["people"][indices].ravel().tolist()}
    for name, interval in audit.rates.items():
        rates[name] = quantised(np.stack([ends[indices] for ends in interval]))
        rates[f"{name}-enough"] = coded(audit.enough[name][indices], np.uint8)
    return rates


def _scores(data: ReportData, detailed: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """Calibration by group, and what other thresholds would give; from test rows by score."""
    groups = data.groups
    if data.final is None:
        return None
    scores = data.final.scores
    first = scores[scores["bin"] == 0]
    index = {model: n for n, model in enumerate(data.scored)}
    if any(model not in index for model in detailed):
        return None
    chosen = [index[model] for model in detailed]
    cuts = first[[name for name in first.columns if str(name).startswith("cut_")]].to_numpy()
    rows = data.score_rows(histograms_of(scores)[chosen])
    merged = merge_bins(rows, data.min_cell)
    tables = crossings(groups)
    calibration = [_calibration(rows, merged, groups, names, data.min_cell) for names in tables]
    return {
        "steps": STEPS,
        "cuts": np.round(cuts[chosen], 6).tolist(),
        "calibration": calibration,
        "means": [
            [_mean_scores(steps, len(groups.categories(names)), data.min_cell) for steps in models]
            for names, models in zip(tables, calibration, strict=True)
        ],
        "thresholds": [_thresholds(merged, groups, names, data.least) for names in tables],
    }


def _calibration(
    rows: NDArray[np.int64], merged: NDArray[np.int64], groups: Groups, names: tuple[str, ...], min_cell: int
) -> list[list[list[float]]]:
    """For each model, steps of the score: group, people, mean score, share favourable, its interval."""
    index = groups.index_of(names)
    size = int(index.max()) + 1
    middles = (np.arange(BINS) + 0.5) / BINS
    models = []
    for exact, of_model in zip(rows, merged, strict=True):
        sums = np.zeros((size, CALIBRATION, 3))  # without and with the favourable outcome, and their scores
        for g in range(len(groups)):
            starts = _blocks(exact[g], min_cell) if min_cell > 1 else list(range(BINS))
            if not starts:
                continue
            no, yes = (np.add.reduceat(of_model[g, label], starts) for label in (0, 1))
            score = np.add.reduceat(of_model[g].sum(axis=0) * middles, starts)
            people = no + yes
            some = people > 0
            mean_bin = score[some] / people[some] - 0.5 / BINS
            step = np.minimum((mean_bin * CALIBRATION).astype(int), CALIBRATION - 1)
            np.add.at(sums[index[g]], step, np.stack([no[some], yes[some], score[some]], axis=1))
        people = sums[..., 0] + sums[..., 1]
        low, high = wilson(sums[..., 1], people)
        models.append(
            [
                [g, int(people[g, k])]
                + [round(float(v), 6) for v in (sums[g, k, 2] / n, sums[g, k, 1] / n, low[g, k], high[g, k])]
                for g, k in np.argwhere(people > 0).tolist()
                for n in [people[g, k]]
            ]
        )
    return models


def _mean_scores(steps: list[list[float]], groups: int, min_cell: int) -> list[list[float] | None]:
    """For each group of enough people, the mean score and the share that has the favourable outcome."""
    means: list[list[float] | None] = []
    for g in range(groups):
        own = np.array([step[1:4] for step in steps if step[0] == g]).reshape(-1, 3)
        people = own[:, 0].sum()
        enough = people >= least_people(min_cell)
        means.append([float((own[:, 0] * own[:, k]).sum() / people) for k in (1, 2)] if enough else None)
    return means


def _thresholds(
    merged: NDArray[np.int64], groups: Groups, names: tuple[str, ...], least: int
) -> dict[str, Any]:
    """What each threshold would give: metrics with one for everybody, and the rates of each group."""
    below = np.concatenate(
        [np.zeros((*merged.shape[:-1], 1), dtype=np.int64), merged.cumsum(axis=-1)], axis=-1
    )
    refused = np.moveaxis(below[..., :: BINS // STEPS], -1, 1)  # (models, steps + 1, groups, labels)
    counts = np.stack([refused, merged.sum(axis=-1)[:, None] - refused], axis=-1)
    measures = [METRICS["accuracy"], METRICS["balanced_accuracy"], METRICS["mcc"], selection_rate]
    metrics = [measure(counts) for measure in measures]
    metrics += list(fairness_by(counts, groups, names, least).values())
    by_group = groups.merge(counts, names)
    accepted, all_rows = by_group[..., 1], by_group.sum(axis=-1)
    parts = [accepted.sum(axis=-1), accepted[..., 1], accepted[..., 0]]
    wholes = [all_rows.sum(axis=-1), all_rows[..., 1], all_rows[..., 0]]
    rates = [
        np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
        for part, whole in zip(parts, wholes, strict=True)
    ]
    return {"metrics": quantised(np.stack(metrics, axis=-1)), "rates": quantised(np.stack(rates, axis=-1))}


def _blocks(rows: NDArray[np.int64], min_cell: int) -> list[int]:
    """Where ranges of scores begin that hold none or enough of both labels' rows, of (2, bins).

    Merged bins of one label hold rows of a neighbour, so that shares of labels are right in such ranges only.
    A group of one label has none: the other's rows may be hidden.
    """
    if not rows.any(axis=-1).all():
        return []

    def halve(start: int, end: int) -> list[int]:
        middle = (start + end) // 2
        halves = [rows[:, start:middle].sum(axis=-1), rows[:, middle:end].sum(axis=-1)]
        if end - start == 1 or is_small(np.array(halves), min_cell).any():
            return [start]
        return [*halve(start, middle), *halve(middle, end)]

    return halve(0, rows.shape[-1])


def _local(data: ReportData, detailed: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """The rows of each client by group and label, and how the models do there; at all clients, last."""
    local, groups = data.local, data.groups
    if local is None:
        return None
    names, hidden = _largest(local["name"], counts_of(local).sum(axis=(1, 2, 3)))
    indices = {name: n for n, name in enumerate(names)}
    rows = np.zeros((len(detailed), len(names) + 1, len(groups), 2), dtype=np.int64)
    counts = np.zeros((*rows.shape, 2), dtype=np.int64)
    lines, seeds = data.line_of(local), local["seed"].to_numpy()
    for model, (line, seed) in enumerate(detailed):
        own_rows = local[(lines == line) & (seeds == seed)]
        every = counts_of(own_rows)
        shown = data.local_rows(every)
        at = own_rows["name"].map(indices)
        known = at.notna().to_numpy()
        which = at[known].to_numpy(dtype=np.int64)
        rows[model, which], counts[model, which] = shown[known], every[known]
        rows[model, -1], counts[model, -1] = shown.sum(axis=0), every.sum(axis=0)
    metrics = {name: quantised(values) for name, values in data.local_skill(counts).items()}
    fairness = []
    for crossing in crossings(groups):
        sure = fairness_by(counts, groups, crossing, least_people(data.min_cell))
        perhaps = fairness_by(counts, groups, crossing, max(data.min_cell, 1))
        counted: dict[str, Any] = {}
        for name, values in sure.items():
            enough = np.isfinite(values)
            counted[name] = quantised(np.where(enough, values, perhaps[name]))
            counted[f"{name}-enough"] = coded(enough, np.uint8)
        fairness.append(counted)
    people = [
        _whole(groups.merge(np.stack([rows, rows], axis=-1), crossing)[..., 0])
        for crossing in crossings(groups)
    ]
    return {"clients": names, "hidden": hidden, "metrics": metrics, "fairness": fairness, "rows": people}


def _taking(data: ReportData, detailed: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
    """What became of each client in each round, as a digit."""
    clients = data.clients
    if not len(clients):
        return None
    names, hidden = _largest(clients["name"], np.ones(len(clients)))
    clients = clients[clients["name"].isin(names)]
    last = int(clients["round"].max())
    step = -(-last // MOST_ROUNDS)
    outcomes = np.zeros((len(detailed), len(names), -(-last // step)), dtype=np.uint8)
    models = {model: n for n, model in enumerate(detailed)}
    indices = {name: n for n, name in enumerate(names)}
    outcomes_of = [
        models.get((int(line), int(seed)), -1)
        for line, seed in zip(data.line_of(clients), clients["seed"], strict=True)
    ]
    which = np.array(outcomes_of)
    client, became = clients["name"].map(indices).to_numpy(), clients["outcome"].map(OUTCOMES).to_numpy()
    times = np.zeros((len(detailed), len(names), len(OUTCOMES)), dtype=np.int64)
    known = which >= 0
    np.add.at(times, (which[known], client[known], became[known] - 1), 1)
    drawn = known & ((clients["round"].to_numpy() - 1) % step == 0)
    at = (clients["round"].to_numpy()[drawn] - 1) // step
    outcomes[which[drawn], client[drawn], at] = became[drawn]
    reasons = clients[clients["reason"].fillna("") != ""]
    counted = Counter(zip(map(str, reasons["name"]), map(str, reasons["reason"]), strict=True)).most_common(
        20
    )
    return {
        "clients": names,
        "hidden": hidden,
        "every": step,
        "rounds": outcomes.shape[2],
        "data": coded(outcomes, np.uint8),
        "times": _whole(times),
        "reasons": [[name, reason, times] for (name, reason), times in counted],
    }


def _largest(names: pd.Series[str], weights: NDArray[Any]) -> tuple[list[str], int]:
    """The clients that are drawn, in the order of their names, and how many others there are."""
    sums = pd.Series(weights, index=names.to_numpy()).groupby(level=0).sum()
    kept = sums.sort_values(ascending=False, kind="stable").index[:MOST_CLIENTS]
    return sorted(map(str, kept), key=natural), len(sums) - len(kept)


def natural(name: str) -> tuple[Any, ...]:
    """Sorts ``client 2`` before ``client 10``."""
    text, digits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
    return text, int(digits) if digits.isascii() and digits else -1, name
