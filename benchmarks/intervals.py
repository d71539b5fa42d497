"""How often the 95 % intervals hold the truth, where the truth is known because the data are made up.

    python benchmarks/intervals.py                 # prints docs/measurements/coverage.txt, about a minute
    python benchmarks/intervals.py --repetitions 2000

All numbers are per cent of the repetitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import numpy as np

from fairfate.fairness.intervals import (
    difference,
    least_to_most,
    most_minus_least,
    over_seeds,
    paired,
    ratio,
    resample_people,
    wilson,
)
from fairfate.fairness.metrics import METRICS, count

SIZES = [
    (20, 20),
    (50, 50),
    (200, 200),
    (500, 500),
    (2000, 2000),
    (20, 50),
    (20, 200),
    (20, 2000),
    (50, 2000),
    (2000, 20),
]
RATES = (0.05, 0.95)
"""Each repetition draws its true rates uniformly from here."""
FIXED = (0.02, 0.05, 0.1, 0.3, 0.5)
GROUPS = [(50, 50), (20, 2000), (50,) * 5, (500,) * 5, (2000, 2000, 500, 100, 30)]
Interval = Callable[..., tuple[np.ndarray, np.ndarray]]


def holds(ends: tuple[np.ndarray, np.ndarray], truth: np.ndarray | float) -> float:
    """Share of intervals that hold the truth; a hair's breadth is not a miss."""
    return float(np.mean((ends[0] <= truth + 1e-9) & (truth - 1e-9 <= ends[1])))


def of_two_groups(rates: np.ndarray, sizes: tuple[int, int], rng: np.random.Generator) -> dict[str, float]:
    """How often the intervals of the first rate, of the difference and of the ratio hold the truth.

    ``rates`` are (repetitions, 2) true ones.
    """
    part, (first, second) = rng.binomial(sizes, rates), rates.T
    counts = (part[:, 0], sizes[0], part[:, 1], sizes[1])
    return {
        "rate": holds(wilson(part[:, 0], np.full(len(part), sizes[0])), first),
        "difference": holds(difference(*counts), first - second),
        "ratio": holds(ratio(*counts), first / second),
    }


def of_extremes(rates: np.ndarray, sizes: tuple[int, ...], rng: np.random.Generator) -> dict[str, float]:
    """The same of the lowest to the highest rate, and of `ratio` for the pair that looks extreme."""
    part = rng.binomial(sizes, rates)
    truth = rates.min(axis=1) / rates.max(axis=1)
    result, gap = least_to_most(part, sizes), most_minus_least(part, sizes)
    every, whole = np.arange(len(part)), np.array(sizes)
    low, high = ratio(
        part[every, result.least], whole[result.least], part[every, result.most], whole[result.most]
    )
    with np.errstate(divide="ignore"):
        picked = np.minimum(low, 1 / high), np.minimum(np.minimum(high, 1 / low), 1)
    return {
        "ratio": holds((result.low, result.high), truth),
        "difference": holds((gap.low, gap.high), np.ptp(rates, axis=1)),
        "picked pair, not adjusted": holds(picked, truth),
    }


def seeds_of_equals(
    repetitions: int, rows: int, seeds: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """(2, repetitions, seeds) accuracy and SP of two equally good classifiers on the test rows of each seed.

    In each repetition, ``rows`` people are drawn once, with one of two groups, a label (1 for 60 % of one
    group and 40 % of the other), and five inputs for each of the two classifiers, whose means differ by
    label. Each seed splits these people 60 : 20 : 20. A classifier takes the nearer of the labels' mean
    inputs on the training rows. Both are of one kind and have inputs of one kind, so that neither is better,
    averaged over such people.
    """
    group = rng.integers(0, 2, (repetitions, rows))
    label = (rng.random((repetitions, rows)) < np.where(group, 0.4, 0.6)).astype(np.int64)
    shape = (2, repetitions, rows, 5)
    inputs = rng.normal(size=shape) + 0.5 * label[None, :, :, None]
    results = {name: np.empty((2, repetitions, seeds)) for name in ("accuracy", "sp")}
    first, second = round(0.6 * rows), round(0.8 * rows)
    for seed in range(seeds):
        index = rng.permuted(np.tile(np.arange(rows), (repetitions, 1)), axis=1)
        means = []
        for value in (0, 1):
            own = ((index < first) & (label == value)).astype(np.float64)
            means.append(np.einsum("rn,mrnd->mrd", own / own.sum(axis=1, keepdims=True), inputs))
        middle, towards = (means[0] + means[1]) / 2, means[1] - means[0]
        text = (
            np.einsum("mrnd,mrd->mrn", inputs, towards) > np.einsum("mrd,mrd->mr", middle, towards)[..., None]
        )
        test = index >= second
        results["accuracy"][..., seed] = ((text == label) & test).sum(axis=-1) / test.sum(axis=-1)
        rate = [
            (text & test & (group == g)).sum(axis=-1) / (test & (group == g)).sum(axis=-1) for g in (0, 1)
        ]
        most = np.maximum(*rate)
        results["sp"][..., seed] = np.where(most > 0, np.minimum(*rate) / np.where(most > 0, most, 1), 1)
    return results


def equals_on_shared_test_rows(
    rows: int, seeds: int, rng: np.random.Generator
) -> dict[str, tuple[float, float, float]]:
    """Two equally good classifiers, all seeds on the same test rows: p-values, and intervals.

    People are drawn with three inputs, of which each classifier sees two; it takes the nearer of the labels'
    mean inputs on the training rows of a seed, 60 of the 80 % that are not for the test. For each metric: the
    p-value over seeds alone, the p-value with the variance over people, and whether the latter's interval
    holds 0.
    """
    inputs = rng.normal(size=(rows, 3))
    label = (inputs.sum(axis=1) + rng.normal(size=rows) > 0).astype(np.int64)
    group, order = rng.integers(0, 2, rows), rng.permutation(rows)
    test, rest = order[: rows // 5], order[rows // 5 :]
    decisions = np.empty((2, seeds, len(test)), dtype=bool)
    for seed in range(seeds):
        train = rng.permutation(rest)[: int(0.6 * rows)]
        for number, columns in enumerate(((0, 2), (1, 2))):
            seen, of_test = inputs[train][:, columns], inputs[test][:, columns]
            means = [seen[label[train] == y].mean(axis=0) for y in (0, 1)]
            towards, middle = means[1] - means[0], (means[0] + means[1]) / 2
            decisions[number, seed] = (of_test * towards).sum(axis=1) > (middle * towards).sum()
    flat = decisions.reshape(2 * seeds, -1)
    counts = np.stack([count(label[test], said, group=group[test], groups=2) for said in flat])
    drawn = resample_people(
        flat, 2 * group[test] + label[test], 2, draws=400, seed=int(rng.integers(1 << 30))
    )
    found = {}
    for name in ("accuracy", "mcc", "sp", "eo", "eqo"):
        first, second = METRICS[name](counts).reshape(2, seeds)
        means_over_seeds = METRICS[name](drawn.reshape(-1, 2, 2, 2)).reshape(-1, 2, seeds).mean(axis=2)
        people = np.nanvar(means_over_seeds[:, 0] - means_over_seeds[:, 1])
        alone, added = paired(first, second), paired(first, second, people=people)
        found[name] = (float(alone.p), float(added.p), float(added.low <= 0 <= added.high))
    return found


def of_seeds(values: np.ndarray, test_to_train: float) -> dict[str, float]:
    """How often equals are called different, and how often the mean's interval holds the true mean.

    The true mean is that of all repetitions: what such a classifier reaches on people of this kind.
    """
    comparison = paired(values[0], values[1], test_to_train)
    _, low, high = over_seeds(values, test_to_train)
    return {
        "called different": float(np.mean(comparison.p < 0.05)),
        "mean": holds((low, high), values.mean()),
    }


def newcombe(part1: np.ndarray, whole1: int, part2: np.ndarray, whole2: int) -> tuple[np.ndarray, np.ndarray]:
    """Newcombe's hybrid score interval of the difference, the closed form that was not taken."""
    rate1, rate2 = part1 / whole1, part2 / whole2
    low1, high1 = wilson(part1, np.float64(whole1))
    low2, high2 = wilson(part2, np.float64(whole2))
    gap = rate1 - rate2
    return gap - np.hypot(rate1 - low1, high2 - rate2), gap + np.hypot(high1 - rate1, rate2 - low2)


def mover(part1: np.ndarray, whole1: int, part2: np.ndarray, whole2: int) -> tuple[np.ndarray, np.ndarray]:
    """MOVER-R with Wilson's intervals for the ratio, the closed form that was not taken."""

    def low(part1: np.ndarray, whole1: int, part2: np.ndarray, whole2: int) -> np.ndarray:
        rate1, rate2 = part1 / whole1, part2 / whole2
        least, most = wilson(part1, np.float64(whole1))[0], wilson(part2, np.float64(whole2))[1]
        down, up = least * (2 * rate1 - least), most * (2 * rate2 - most)
        with np.errstate(invalid="ignore"):
            result = down / (rate1 * rate2 + np.sqrt(np.maximum((rate1 * rate2) ** 2 - down * up, 0)))
        return np.where(part1 == 0, 0, result)

    with np.errstate(divide="ignore"):
        return low(part1, whole1, part2, whole2), 1 / low(part2, whole2, part1, whole1)


GRID = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95)


def exactly(interval: Interval, of_ratio: bool, sizes: tuple[int, int]) -> np.ndarray:
    """Coverage for each pair of rates of the grid, summed over all counts there can be; no draws."""
    from scipy.stats import binom

    part = [np.arange(size + 1) for size in sizes]
    ends = interval(part[0][:, None], sizes[0], part[1][None, :], sizes[1])
    chance = [binom.pmf(part[k][None], sizes[k], np.array(GRID)[:, None]) for k in (0, 1)]
    results = []
    for i, first in enumerate(GRID):
        for j, second in enumerate(GRID):
            truth = first / second if of_ratio else first - second
            inside = (ends[0] <= truth + 1e-9) & (truth - 1e-9 <= ends[1])
            results.append(chance[0][i] @ inside @ chance[1][j])
    return np.array(results)


def table(header: list[str], rows: Iterable[tuple[str, list[float]]]) -> None:
    """Print a Markdown table of shares in per cent."""
    print("| " + " | ".join(header) + " |")
    print("| --- |" + " ---: |" * (len(header) - 1))
    for name, shares in rows:
        print("| " + " | ".join([name, *(f"{100 * share:.1f}" for share in shares)]) + " |")
    print()


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=20_000)
    n = parser.parse_args().repetitions
    rng = np.random.default_rng(1)

    print(f"Rates drawn from uniform{RATES}, {n:,} repetitions:\n")
    rows = []
    for sizes in SIZES:
        result = of_two_groups(rng.uniform(*RATES, (n, 2)), sizes, rng)
        rows.append((f"{sizes[0]:,} and {sizes[1]:,}", list(result.values())))
    table(["people", "rate (first group)", "difference", "ratio"], rows)

    print(f"The same rate in two groups of one size, {n:,} repetitions; rate / difference / ratio:\n")
    print("| people | " + " | ".join(map(str, FIXED)) + " |")
    print("| --- |" + " ---: |" * len(FIXED))
    for size in (20, 50, 200, 500, 2000):
        cells = []
        for rate in FIXED:
            result = of_two_groups(np.full((n, 2), rate), (size, size), rng)
            cells.append(" / ".join(f"{100 * share:.1f}" for share in result.values()))
        print(f"| {size:,} | " + " | ".join(cells) + " |")
    print()

    print("Two fixed rates, all 81 pairs, no draws; lowest / mean / highest:\n")
    print("| people | difference | Newcombe | ratio | MOVER-R |")
    print("| --- |" + " ---: |" * 4)
    for sizes in [(20, 20), (50, 50), (200, 200), (20, 200), (20, 2000)]:
        cells = []
        for interval, of_ratio in ((difference, False), (newcombe, False), (ratio, True), (mover, True)):
            exact = 100 * exactly(interval, of_ratio, sizes)
            cells.append(f"{exact.min():.1f} / {exact.mean():.1f} / {exact.max():.1f}")
        print(f"| {sizes[0]:,} and {sizes[1]:,} | " + " | ".join(cells) + " |")
    print()

    print(f"Lowest to highest rate, rates drawn from uniform{RATES}, or all the same; {n:,} repetitions:\n")
    rows = []
    for groups in GROUPS:
        for same in (False, True):
            rates = rng.uniform(*RATES, (n, 1 if same else len(groups))) * np.ones(len(groups))
            name = ", ".join(f"{size:,}" for size in groups) + ("; equal rates" if same else "")
            rows.append((name, list(of_extremes(rates, groups, rng).values())))
    table(["people by group", "ratio", "difference", "ratio of the pair alone, not adjusted"], rows)

    repetitions = max(n // 10, 200)
    print(f"Seeds that split the same people anew, {repetitions:,} repetitions:\n")
    rows = []
    for people, seeds in ((300, 5), (300, 10), (300, 30), (1000, 10)):
        values = seeds_of_equals(repetitions, people, seeds, rng)
        for metric, own in values.items():
            with_it, without = of_seeds(own, 1 / 3), of_seeds(own, 0)
            key = ("called different", "mean")
            shares = [which[name] for name in key for which in (with_it, without)]
            rows.append((f"{people:,} people, {seeds} seeds, {metric}", shares))
    header = ["equals called different, corrected", "not corrected"]
    table(["", *header, "interval holds the mean, corrected", "not corrected"], rows)

    rng = np.random.default_rng(2)
    repetitions //= 2
    print(f"Seeds that share their test rows, {repetitions:,} repetitions:\n")
    rows = []
    for people, seeds in ((300, 5), (600, 5), (600, 10), (3000, 5), (3000, 10)):
        cases = [equals_on_shared_test_rows(people, seeds, rng) for _ in range(repetitions)]
        for metric in cases[0]:
            alone, added, inside = np.array([case[metric] for case in cases]).T
            shares = [float(np.mean(alone < 0.05)), float(np.mean(added < 0.05)), float(np.mean(inside))]
            rows.append((f"{people:,} people, {seeds} seeds, {metric}", shares))
    header = ["equals called different, over seeds alone", "over seeds and people"]
    table(["", *header, "interval over both holds 0"], rows)


if __name__ == "__main__":
    main()
