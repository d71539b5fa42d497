"""The report's page in a browser: its numbers, its controls and its words, under any name and at any width.

What is expected is computed here from the run's files, with scikit-learn, fairlearn, statsmodels and NumPy.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import MetricFrame, selection_rate, true_positive_rate
from markdown_it import MarkdownIt
from sklearn.metrics import accuracy_score, balanced_accuracy_score, matthews_corrcoef
from statsmodels.stats.proportion import proportion_confint

import made_up
from browser import Visit, lacking, started
from fairfate import run
from fairfate.data.groups import Groups
from fairfate.experiments.config import expand
from fairfate.experiments.results import read_groups, write_rounds
from fairfate.experiments.sweep import sweep
from fairfate.report import packed
from fairfate.report.page import render
from fairfate.report.write import report, write_card
from made_up_runs import Named, first_format, settings, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())

CHARTS = ("rounds", "tradeoff", "rates", "calibration", "thresholds", "rows", "local", "taking")
STRATEGIES = ("fedavg", "fair_fate", "fedavg+average+thresholds")
SKILL = {
    "accuracy": "accuracy",
    "balanced accuracy": "balanced_accuracy",
    "MCC": "mcc",
    "selection rate": "acceptance",
}
FAIR = {"statistical parity": "sp", "equality of opportunity": "eo", "equalized odds": "eqo"}
SEXES = Groups.single("sex", ("female", "male"))
Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens pages; each must say nothing to the console, raise nothing and load nothing."""
    opened: list[Visit] = []

    def call(file: Path, **options: Any) -> Visit:
        opened.append(Visit(browser, **options))
        return opened[-1].open(file)

    yield call
    for one in opened:
        one.close()
    for one in opened:
        one.check()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attributes, three seeds, three strategies, one of them with thresholds; all counts are shown."""
    data = tmp_path_factory.mktemp("data")
    file = made_up.write(made_up.census(3000).drop(columns="Unnamed: 0"), data / "census.csv")
    run(
        data=str(file),
        target="rich",
        sensitive=("sex", "race"),
        strategies=STRATEGIES,
        seeds=(1, 2, 3),
        rounds=24,
        epochs=2,
        learning_rate=0.2,
        jobs=1,
        out=data / "run",
    )
    report([data / "run"], min_cell=0)
    return data / "run"


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return folder / "report.html"


@pytest.fixture(scope="module")
def shared(browser: Browser, page: Path) -> Iterator[Visit]:
    """One page for tests that choose all they depend on."""
    opened = Visit(browser).open(page)
    yield opened
    opened.close()
    opened.check()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small run that has everything, also a group that is small and one that is unknown."""
    groups = Groups.single("origin", ("A", "B", "tiny", "(missing)"))
    folder = tmp_path_factory.mktemp("small") / "run"
    return report([write_run(folder, groups, rounds=3, sizes=[300, 400, 20, 50])])


def chosen(
    opened: Visit,
    attribute: str = "sex",
    seed: int | None = None,
    metric: str = "eqo",
    model: tuple[str, int] | None = None,
) -> Visit:
    """The page with this chosen in its lists."""
    opened.choose("attribute", attribute)
    opened.choose("seed", f"seed {seed}" if seed else "all 3")
    opened.choose(
        "metric",
        {"sp": "SP, statistical parity", "eo": "EO, equality of opportunity"}.get(
            metric, "EQO, equalized odds"
        ),
    )
    if model is not None:
        opened.choose("strategy", model[0])
        opened.choose("modelSeed", f"seed {model[1]}")
    return opened


# --- what is expected, from the files


class Files:
    """A run's files, read without the report."""

    def __init__(self, folder: Path) -> None:
        rounds = pd.read_parquet(folder / "rounds.parquet")
        self.test = rounds[rounds["split"] == "test"]
        self.scores = pd.read_parquet(folder / "scores.parquet")
        self.local = pd.read_parquet(folder / "local.parquet")
        self.clients = pd.read_parquet(folder / "clients.parquet")
        self.rates = pd.read_csv(folder / "groups.csv") if (folder / "groups.csv").exists() else None
        groups = read_groups(folder)
        assert groups is not None
        self.groups = groups

    @property
    def last(self) -> int:
        return int(self.test["round"].max())

    def of(self, frame: pd.DataFrame, strategy: str, seed: int) -> pd.DataFrame:
        return frame[(frame["strategy"] == strategy) & (frame["seed"] == seed)]

    def counts(self, strategy: str, seed: int, at: int | None = None) -> np.ndarray | None:
        """(groups, 2, 2) of a model; None where it was not measured."""
        mine = self.of(self.test, strategy, seed)
        mine = mine[mine["round"] == (self.last if at is None else at)]
        return cells(mine)[0] if len(mine) else None

    def by(self, counts: np.ndarray, attribute: str) -> np.ndarray:
        """Counts by group as counts by the values of an attribute, or by all crossed."""
        if attribute not in self.groups.attributes:
            return counts
        place = self.groups.attributes.index(attribute)
        found = np.zeros((len(self.groups.values[place]), *counts.shape[1:]), dtype=counts.dtype)
        for g, member in enumerate(self.groups.members):
            found[member[place]] += counts[g]
        return found

    def names(self, attribute: str) -> tuple[str, ...]:
        if attribute not in self.groups.attributes:
            return self.groups.names
        return self.groups.values[self.groups.attributes.index(attribute)]

    def histogram(self, strategy: str, seed: int) -> np.ndarray:
        """(groups, 2, bins) the scores of a model."""
        mine = self.of(self.scores, strategy, seed).sort_values("bin")
        groups = range(len(self.groups))
        return np.stack([[mine[f"n_{g}_{y}"].to_numpy() for y in (0, 1)] for g in groups])


def cells(frame: pd.DataFrame) -> np.ndarray:
    groups = sum(name.endswith("_0_0") for name in frame.columns)
    columns = [f"n_{g}_{y}_{p}" for g in range(groups) for y in (0, 1) for p in (0, 1)]
    return frame[columns].to_numpy().reshape(len(frame), groups, 2, 2)


def ratio(part: np.ndarray, whole: np.ndarray, least: int = 1) -> float:
    """The lowest rate over the highest, of groups of so many people."""
    kept = whole >= max(least, 1)
    if kept.sum() < 2:
        return math.nan
    rates = part[kept] / whole[kept]
    return float(rates.min() / rates.max()) if rates.max() else 1.0


def measured(counts: np.ndarray, least: int = 10) -> dict[str, float]:
    """Skill, and fairness by the rule of the audit."""
    tn, fp, fn, tp = (counts[:, y, p] for y in (0, 1) for p in (0, 1))
    no, wrong, missed, yes = map(float, (tn.sum(), fp.sum(), fn.sum(), tp.sum()))
    margins = (yes + wrong) * (yes + missed) * (no + wrong) * (no + missed)
    tpr, fpr = ratio(tp, tp + fn, least), ratio(fp, fp + tn, least)
    return {
        "accuracy": (no + yes) / counts.sum(),
        "balanced_accuracy": (yes / (yes + missed) + no / (no + wrong)) / 2,
        "mcc": (yes * no - wrong * missed) / math.sqrt(margins) if margins else 0.0,
        "acceptance": (yes + wrong) / counts.sum(),
        "sp": ratio(tp + fp, tn + fp + fn + tp, least),
        "eo": tpr,
        "eqo": (tpr + fpr) / 2,
    }


def at_cuts(histogram: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """(groups, 2, 2) counts, where a group is accepted from a bin on."""
    found = [
        [[of[:cut].sum(), of[cut:].sum()] for of in group] for group, cut in zip(histogram, cuts, strict=True)
    ]
    return np.array(found)


def same(text: str, value: float, digits: int = 3) -> bool:
    """Whether a number is printed to its last digit; the page holds them to a 65,000th of their span."""
    number = text.removesuffix(" %")
    if not math.isfinite(value):
        return number == "undefined"
    value = 100 * value if text.endswith(" %") else value
    is_so = re.fullmatch(rf"-?\d+\.\d{{{digits}}}", number) is not None
    return is_so and abs(float(number) - value) <= 0.525 * 10**-digits


def mean(values: Sequence[float]) -> float:
    """Over the seeds where it is defined."""
    defined = [value for value in values if math.isfinite(value)]
    return float(np.mean(defined)) if defined else math.nan


@pytest.fixture(scope="module")
def files(folder: Path) -> Files:
    return Files(folder)


def test_what_is_expected_is_what_scikit_learn_says(files: Files) -> None:
    known = {
        "accuracy": accuracy_score,
        "balanced_accuracy": balanced_accuracy_score,
        "mcc": matthews_corrcoef,
    }
    for at in (1, 2, files.last):
        counts = files.counts("fedavg", 2, at)
        rows = {"y_true": [0, 0, 1, 1], "y_pred": [0, 1, 0, 1], "sample_weight": counts.sum(axis=0).ravel()}
        found = measured(counts)
        assert all(found[key] == pytest.approx(of(**rows)) for key, of in known.items())


# --- it loads nothing


def test_it_loads_nothing_and_says_nothing(visit: Open, page: Path) -> None:
    opened = visit(page)
    assert opened.asked == [page.as_uri()]
    assert opened.said == []
    policy = opened.page.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    allowed = dict(rule.strip().partition(" ")[::2] for rule in str(policy).split(";"))
    assert allowed.pop("default-src") == "'none'"
    assert set(allowed.values()) <= {"'none'", "'unsafe-inline'", "data:"}
    assert {"base-uri", "form-action"} <= set(allowed)  # which default-src does not cover
    assert opened.page.title() == "Fairness report: census"
    assert opened.page.locator("html").get_attribute("lang") == "en"


ATTEMPT = """([address, kind]) => new Promise((done) => {
  setTimeout(() => done("nothing"), 150);
  if (kind === "fetch") fetch(address, {mode: "no-cors"}).then(() => done("loaded"), () => done("blocked"));
  else if (kind === "beacon") navigator.sendBeacon(address);
  else if (kind === "events") new EventSource(address);
  else {
    const node = document.createElement(kind);
    node.onload = () => done("loaded");
    node.onerror = () => done("blocked");
    if (kind === "link") Object.assign(node, {rel: "stylesheet", href: address});
    else node.src = address;
    document.body.append(node);
  }
})"""
KINDS = ("fetch", "beacon", "events", "img", "script", "link")


def test_nothing_can_be_loaded_into_it(browser: Browser, page: Path, tmp_path: Path) -> None:
    (tmp_path / "free.html").write_text("<!DOCTYPE html><title>free</title><body>")
    for file in (tmp_path / "free.html", page):
        opened = Visit(browser).open(file)
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.3)
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            said = [opened.page.evaluate(ATTEMPT, [f"{address}/{kind}", kind]) for kind in KINDS]
            came = []
            with suppress(TimeoutError):
                while len(came) < 20:
                    server.accept()[0].close()
                    came.append(1)
        opened.close()
        if file == page:
            assert came == []
            assert said.count("blocked") == len(KINDS) - 2  # of two one is not told
            assert len(opened.said) >= len(KINDS)
            assert all("Content Security Policy" in line for line in opened.said)
        else:
            assert len(came) >= len(KINDS)  # without the policy all get through


# --- the charts


def drawn(opened: Visit, part: int = 0) -> dict[str, list[dict[str, Any]]]:
    """For each chart, its drawings: role, name, number of marks, and whatever is not a number."""
    found: dict[str, list[dict[str, Any]]] = opened.page.evaluate(
        """(part) => Object.fromEntries([...document.querySelectorAll(`#p${part} [data-chart]`)].map((of) =>
          [of.dataset.chart, [...of.querySelectorAll("svg:not(.swatch)")].map((svg) => ({
            role: svg.getAttribute("role"), name: svg.getAttribute("aria-label"),
            marks: svg.querySelectorAll("path[d], circle, rect, line").length,
            wide: svg.getBoundingClientRect().width,
            outside: [...svg.querySelectorAll("path, circle, rect, line, text")].filter((node) => {
              const box = svg.getBoundingClientRect(), mine = node.getBoundingClientRect();
              return mine.left < box.left - 4 || mine.right > box.right + 4
                || mine.top < box.top - 4 || mine.bottom > box.bottom + 4;
            }).map((node) => node.outerHTML.slice(0, 100)),
            odd: [...svg.querySelectorAll("*")].flatMap((node) => [...node.attributes])
              .filter((a) => /NaN|Infinity|undefined/.test(a.value)).map((a) => a.name + "=" + a.value),
          }))]))""",
        part,
    )
    return found


@pytest.mark.parametrize("width", [400, 1600])
def test_all_charts_are_drawn(visit: Open, page: Path, width: int) -> None:
    opened = visit(page, width=width)
    found = drawn(opened)
    assert tuple(found) == CHARTS
    for chart, drawings in found.items():
        assert drawings, chart
        for one in drawings:
            assert one["role"] == "img"
            assert one["name"]
            assert one["marks"] > 3
            assert 200 < one["wide"] <= width
            assert one["odd"] == []
            assert one["outside"] == []
    assert len(found["rounds"]) == 7
    assert len(found["rates"]) == 3
    assert len({one["name"] for one in found["rounds"]}) == 7
    chosen_now = [
        opened.page.locator(f"[data-key={key}] option:checked").inner_text()
        for key in ("strategy", "modelSeed")
    ]
    assert opened.page.locator("#p0-answer-h").inner_text() == f"Recommended: {', '.join(chosen_now)}"


@pytest.mark.parametrize("line", [0.05, 1.0])
def test_a_line_far_from_all_values_stays_within_its_chart(
    visit: Open, small: Path, tmp_path: Path, line: float
) -> None:
    opened = visit(report([small.parent], tmp_path / "report.html", line=line))
    found = drawn(opened)
    assert [one["outside"] for name in ("rounds", "tradeoff", "local") for one in found[name]] == [[]] * 9
    assert f"The fairness threshold is {line}." in opened.page.locator(".verdicts caption").inner_text()
    assert "convention of United States" not in opened.page.locator(".answer").inner_text()


# --- the numbers


def lines_of(opened: Visit) -> list[list[int]]:
    """For each panel of the first chart, how many points each line has."""
    found: list[list[int]] = opened.chart("rounds").evaluate(
        """(chart) => [...chart.querySelectorAll(".panel svg")].map((svg) =>
          [...svg.querySelectorAll("g[stroke-width='2'] path")]
            .map((path) => path.getAttribute("d").split("L").length))"""
    )
    return found


def expected_rounds(
    files: Files, at: int, strategy: str, attribute: str, seeds: Sequence[int]
) -> dict[str, float]:
    found = [files.counts(strategy, seed, at) for seed in seeds]
    each = [measured(files.by(counts, attribute)) for counts in found if counts is not None]
    return {key: mean([of[key] for of in each]) for key in each[0]} if each else {}


@pytest.mark.parametrize(("attribute", "seed"), [("sex", None), ("race", None), ("sex x race", 2)])
def test_metrics_over_the_rounds(shared: Visit, files: Files, attribute: str, seed: int | None) -> None:
    opened = chosen(shared, attribute, seed)
    columns, rows, caption = opened.table("rounds")
    assert columns == ["round", "strategy", *SKILL, *(f"{name} by {attribute}" for name in FAIR)]
    assert caption.startswith(f"Seed {seed}, test rows" if seed else "Means over 3 seeds, test rows")
    keys = [*SKILL.values(), *FAIR.values()]
    assert len(rows) == 2 * files.last + 1  # thresholds are chosen at the end
    for row in rows:
        expected = expected_rounds(files, int(row[0]), row[1], attribute, [seed] if seed else [1, 2, 3])
        assert all(same(text, expected[key]) for text, key in zip(row[2:], keys, strict=True)), row
    assert [row[:2] for row in rows[-3:]] == [[str(files.last), name] for name in STRATEGIES]


def test_seeds_in_which_a_metric_is_undefined_are_named(shared: Visit, files: Files) -> None:
    """A mean over fewer seeds than it seems would be a lie."""
    for attribute in ("sex", "race", "sex x race"):
        opened = chosen(shared, attribute)
        caption, hint = opened.table("tradeoff")[2], opened.hint("tradeoff")
        eqo = {seed: measured(files.by(files.counts("fedavg", seed), attribute))["eqo"] for seed in (1, 2, 3)}
        undefined = [str(seed) for seed, value in eqo.items() if math.isnan(value)]
        named = (
            f"equalized odds by {attribute} in seed{'s' if len(undefined) > 1 else ''} {', '.join(undefined)}"
        )
        for text in (caption, hint, opened.hint("rounds")):
            assert (named in text) == bool(undefined), (attribute, text)


def test_a_strategy_that_is_not_chosen_is_not_drawn(visit: Open, page: Path, files: Files) -> None:
    opened = visit(page)
    rounds = files.last
    assert lines_of(opened) == [[rounds, rounds]] * 7
    opened.page.locator("input[data-strategy='0']").uncheck()
    assert lines_of(opened) == [[rounds]] * 7
    assert {row[1] for row in opened.table("rounds")[1]} == {"fair_fate", "fedavg+average+thresholds"}
    assert "fedavg" in [row[0] for row in opened.table("tradeoff")[1]]  # where it is pale
    for number in (1, 2):
        opened.page.locator(f"input[data-strategy='{number}']").uncheck()
    assert lines_of(opened) == [[]] * 7
    assert opened.hint("rounds").startswith("No strategy is chosen.")
    assert opened.table("rounds")[1] == []
    assert all(one["odd"] == [] for one in drawn(opened)["rounds"])
    opened.page.locator("input[data-strategy='1']").check()
    assert lines_of(opened) == [[rounds]] * 7


def test_zooming_in_on_some_rounds(visit: Open, page: Path) -> None:
    opened = visit(page)
    opened.slide("input[data-key=from]", 9)
    opened.slide("input[data-key=to]", 13)
    assert [row[0] for row in opened.table("rounds")[1]] == [str(t) for t in range(10, 15) for _ in "ab"]
    assert lines_of(opened) == [[5, 5]] * 7
    assert opened.chart("rounds").locator("output").all_inner_texts() == ["10", "14"]
    assert opened.page.locator("input[data-key=to]").get_attribute("aria-valuetext") == "round 14"
    opened.slide("input[data-key=from]", 20)  # no further than the other end
    assert opened.page.locator("input[data-key=from]").input_value() == "12"
    assert lines_of(opened) == [[2, 2]] * 7


def test_sliders_can_be_dragged(visit: Open, small: Path) -> None:
    opened = visit(small)
    for selector in ("input[data-key=to]", "[data-chart=thresholds] input[type=range]"):
        slider = opened.page.locator(selector).first
        slider.scroll_into_view_if_needed()
        box, before = slider.bounding_box(), float(slider.input_value())
        assert box is not None
        most = float(str(slider.get_attribute("max")))
        x, y = box["x"] + 8 + before / most * (box["width"] - 16), box["y"] + box["height"] / 2
        way = -1 if before > most / 2 else 1
        opened.page.mouse.move(x, y)
        opened.page.mouse.down()
        for step in range(1, 11):
            opened.page.mouse.move(x + way * step * box["width"] / 25, y)
        opened.page.mouse.up()
        assert abs(float(slider.input_value()) - before) / most == pytest.approx(0.4, abs=0.12)


def fairlearn_ratio(counts: np.ndarray, metric: str) -> float:
    """SP or EO of groups that are large enough, from single rows."""
    g, y, p = (of.ravel() for of in np.indices(counts.shape))
    row = np.repeat(np.arange(len(g)), counts.ravel())
    whole = counts.sum(axis=(1, 2)) if metric == "sp" else counts[:, 1].sum(axis=1)
    kept = np.isin(g[row], np.flatnonzero(whole >= 1))
    row = row[kept]
    of = selection_rate if metric == "sp" else true_positive_rate
    frame = MetricFrame(metrics=of, y_true=y[row], y_pred=p[row], sensitive_features=g[row])
    return float(frame.ratio(method="between_groups"))


@pytest.mark.parametrize(
    ("metric", "attribute", "seed"),
    [("sp", "sex", None), ("eo", "sex", None), ("sp", "race", 3), ("eqo", "sex", None)],
)
def test_accuracy_against_fairness(
    shared: Visit, files: Files, metric: str, attribute: str, seed: int | None
) -> None:
    opened = chosen(shared, attribute, seed, metric)
    columns, rows, caption = opened.table("tradeoff")
    assert columns == ["strategy", "accuracy", "± over seeds", metric.upper(), "± over seeds", "on the front"]
    assert f"by {attribute}" in caption
    points = {}
    for row in rows:
        counts = [files.counts(row[0], s) for s in ([seed] if seed else [1, 2, 3])]
        each = [measured(files.by(of, attribute)) for of in counts if of is not None]
        if metric != "eqo":
            learned = [fairlearn_ratio(files.by(of, attribute), metric) for of in counts if of is not None]
            assert [of[metric] for of in each] == pytest.approx(learned)
        xs, ys = ([of[key] for of in each] for key in ("accuracy", metric))
        spreads = [math.nan if seed else float(np.std(of, ddof=1)) for of in (xs, ys)]
        assert same(row[1], mean(xs))
        assert same(row[2], spreads[0])
        assert same(row[3], mean(ys))
        assert same(row[4], spreads[1])
        points[row[0]] = (mean(xs), mean(ys))
    assert list(points) == list(STRATEGIES)
    for row in rows:
        mine = points[row[0]]
        beaten = any(
            other != mine and other[0] >= mine[0] and other[1] >= mine[1] for other in points.values()
        )
        assert row[5] == ("no" if beaten else "yes")


def test_equally_fair_strategies_on_the_front(visit: Open, tmp_path: Path) -> None:
    """Of two that are equally fair the less accurate one is beaten; of two equals none is."""
    names = ("good", "worse", "again")
    folder = write_run(tmp_path / "run", SEXES, [Named(name, None) for name in names], seeds=1, rounds=2)
    rounds = pd.read_parquet(folder / "rounds.parquet")
    for name, errors in zip(names, (10, 20, 10), strict=True):
        counts = np.array([[[90 - errors, 10 + errors], [errors, 100 - errors]]] * 2)
        mine = rounds["strategy"] == name
        rounds.loc[mine, [f"n_{g}_{y}_{p}" for g, y, p in np.ndindex(2, 2, 2)]] = counts.ravel()
        rounds.loc[mine, ["accuracy", "mcc"]] = [measured(counts)[key] for key in ("accuracy", "mcc")]
    write_rounds(folder / "rounds.parquet", rounds, SEXES)
    opened = visit(report([folder]))
    assert [row[5] for row in opened.table("tradeoff")[1]] == ["yes", "no", "yes"]


@pytest.mark.parametrize(
    ("strategy", "seed", "attribute"),
    [("fedavg", 1, "sex"), ("fedavg+average+thresholds", 3, "race"), ("fair_fate", 2, "sex x race")],
)
def test_rates_by_group(shared: Visit, files: Files, strategy: str, seed: int, attribute: str) -> None:
    opened = chosen(shared, attribute, model=(strategy, seed))
    _, rows, caption = opened.table("rates")
    assert caption == f"{strategy}, seed {seed}, by {attribute}"
    assert tuple(row[0] for row in rows) == files.names(attribute)
    found = files.by(files.counts(strategy, seed), attribute)
    few = 0
    for row, ((tn, fp), (fn, tp)) in zip(rows, found, strict=True):
        assert int(row[1]) == tn + fp + fn + tp
        parts = ((tp + fp, tn + fp + fn + tp), (tp, tp + fn), (fp, fp + tn))
        for (part, whole), value, ends in zip(parts, row[2::2], row[3::2], strict=True):
            assert same(value, part / whole, 1)
            few += whole < 30
            if whole < 30:
                assert ends == "too few people to tell"
                continue
            low, high = ends.split(" to ")
            expected = proportion_confint(part, whole, method="wilson")
            assert same(low, expected[0], 1)
            assert same(high, expected[1], 1)
    assert bool(few) == (attribute != "sex")


def test_rates_agree_with_the_runs_own_table(shared: Visit, files: Files) -> None:
    """groups.csv holds means over seeds."""
    assert files.rates is not None
    seeds = []
    for seed in (1, 2, 3):
        opened = chosen(shared, model=("fair_fate", seed))
        seeds.append({row[0]: row for row in opened.table("rates")[1]})
    mine = files.rates.query("strategy == 'fair_fate' and attribute == 'sex'")
    for _, row in mine.iterrows():
        people = [int(of[row["group"]][1]) for of in seeds]
        accepted = [
            round(n * float(of[row["group"]][2].split()[0]) / 100)
            for n, of in zip(people, seeds, strict=True)
        ]
        assert row["rows"] == pytest.approx(np.mean(people))
        assert row["acceptance"] == pytest.approx(sum(accepted) / sum(people), abs=1e-9)


@pytest.mark.parametrize("attribute", ["sex", "race"])
def test_calibration(shared: Visit, files: Files, attribute: str) -> None:
    opened = chosen(shared, attribute, model=("fair_fate", 3))
    _, rows, _ = opened.table("calibration")
    held = files.by(files.counts("fair_fate", 3), attribute).sum(axis=2)  # (groups, 2) test rows by label
    scores = files.by(files.histogram("fair_fate", 3), attribute)
    bins = np.arange(scores.shape[-1])
    for g, name in enumerate(files.names(attribute)):
        mine = [row for row in rows if row[0] == name]
        assert sum(int(row[2]) for row in mine) == held[g].sum()
        right = sum(round(int(row[2]) * float(row[3].removesuffix(" %")) / 100) for row in mine)
        assert right == held[g, 1]
        steps = [bins * 10 // len(bins) == step for step in range(10)]
        filled = [step for step in steps if scores[g][:, step].sum()]
        assert len(mine) == len(filled)
        for row, step in zip(mine, filled, strict=True):
            no, yes = scores[g][:, step].sum(axis=1)
            middle = (scores[g][:, step].sum(axis=0) * (bins[step] + 0.5)).sum() / len(bins) / (no + yes)
            assert int(row[2]) == no + yes
            assert same(row[1], middle)
            assert same(row[3], yes / (no + yes), 1)
            low, high = row[4].split(" to ")
            expected = proportion_confint(yes, no + yes, method="wilson")
            assert same(low, expected[0], 1)
            assert same(high, expected[1], 1)


def before_and_after(opened: Visit) -> dict[str, dict[str, str]]:
    rows = opened.chart("thresholds").locator("tr[data-row]")
    found: dict[str, dict[str, str]] = rows.evaluate_all(
        """(rows) => Object.fromEntries(rows.map((row) => [row.dataset.row,
          Object.fromEntries([...row.querySelectorAll("[data-metric]")]
            .map((cell) => [cell.dataset.metric, cell.textContent]))]))"""
    )
    return found


def agree(found: dict[str, str], expected: dict[str, float]) -> bool:
    shown = set(expected) - (set(FAIR.values()) if expected["mcc"] < 0.05 else set())
    assert {found[key] for key in expected if key not in shown} <= {"–"}  # a collapsed model is not fair
    return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in shown)


THRESHOLDS = "[data-chart=thresholds]"


@pytest.mark.parametrize(
    ("strategy", "attribute"), [("fair_fate", "sex"), ("fedavg+average+thresholds", "race")]
)
def test_one_threshold_for_everybody(shared: Visit, files: Files, strategy: str, attribute: str) -> None:
    opened = chosen(shared, attribute, model=(strategy, 2))
    own = measured(files.by(files.counts(strategy, 2), attribute))
    assert agree(before_and_after(opened)["before"], own)
    assert agree(before_and_after(opened)["after"], own)
    opened.page.locator(f"{THRESHOLDS} input[data-key=together]").set_checked(True)
    scores = files.histogram(strategy, 2)
    for cut in (64, 200, 256, 0):
        opened.slide(f"{THRESHOLDS} input[type=range]", cut)
        expected = measured(files.by(at_cuts(scores, [cut] * len(scores)), attribute))
        found = before_and_after(opened)
        assert agree(found["after"], expected), cut
        assert agree(found["before"], own)
        assert opened.chart("thresholds").locator("output").inner_text() == f"{cut / 256:.2f}"
    opened.page.get_by_role("button", name="As the model decides").click()
    assert agree(before_and_after(opened)["after"], own)
    columns, rows, _ = opened.table("thresholds")
    assert columns[1:] == ["accuracy", "balanced accuracy", "MCC", "selected", "SP", "EO", "EQO"]
    assert [row[0] for row in rows] == [f"{step / 20:.2f}" for step in range(21)]
    for row in rows[::4]:
        cuts = [math.floor(float(row[0]) * 256 + 0.5)] * len(scores)
        expected = measured(files.by(at_cuts(scores, cuts), attribute))
        assert agree(dict(zip(expected, row[1:], strict=True)), expected), row


def test_a_threshold_for_each_group(shared: Visit, files: Files) -> None:
    opened = chosen(shared, "race", model=("fair_fate", 1))
    opened.page.locator(f"{THRESHOLDS} input[data-key=together]").set_checked(False)
    assert opened.page.locator(f"{THRESHOLDS} input[type=range]").count() == 5
    opened.slide(f"{THRESHOLDS} input[data-group='race 1']", 100)
    opened.slide(f"{THRESHOLDS} input[data-group='race 3']", 20)
    cuts = [{1: 100, 3: 20}.get(member[1], 128) for member in files.groups.members]
    expected = measured(files.by(at_cuts(files.histogram("fair_fate", 1), cuts), "race"))
    assert agree(before_and_after(opened)["after"], expected)
    assert not agree(before_and_after(opened)["before"], expected)
    opened.choose("attribute", "sex")  # other sliders, from the start
    assert before_and_after(opened)["before"] == before_and_after(opened)["after"]


def test_a_model_with_thresholds_of_its_own_says_so(shared: Visit, files: Files) -> None:
    name = "fedavg+average+thresholds"
    opened = chosen(shared, model=(name, 1))
    opened.page.locator(f"{THRESHOLDS} input[data-key=together]").set_checked(False)
    cuts = files.of(files.scores, name, 1).query("bin == 0").filter(like="cut_").to_numpy()[0]
    told = "; ".join(f"{group}: {cut:.2f}" for group, cut in zip(files.groups.names, cuts, strict=True))
    assert f"This model has a threshold for each group: {told}." in opened.hint("thresholds")
    women = [cut for cut, member in zip(cuts, files.groups.members, strict=True) if member[0] == 0]
    shown = opened.chart("thresholds").locator("output").all_inner_texts()
    assert shown[0] == f"{min(women):.2f} to {max(women):.2f}"
    opened.slide(f"{THRESHOLDS} input[data-group=female]", 128)
    counts = files.counts(name, 1).copy()  # men as the model decides, women from the scores
    moved = at_cuts(files.histogram(name, 1), [128] * len(counts))
    for g, member in enumerate(files.groups.members):
        counts[g] = moved[g] if member[0] == 0 else counts[g]
    assert agree(before_and_after(opened)["after"], measured(files.by(counts, "sex")))
    chosen(shared, model=("fedavg", 1))
    assert "This model has a threshold" not in opened.hint("thresholds")


@pytest.mark.parametrize(("seed", "attribute"), [(1, "sex"), (2, "race")])
def test_rows_over_clients(shared: Visit, files: Files, seed: int, attribute: str) -> None:
    opened = chosen(shared, attribute, model=("fedavg", seed))
    columns, rows, _ = opened.table("rows")
    assert columns == ["client", *files.names(attribute), "all", "favourable"]
    mine = files.of(files.local, "fedavg", seed)
    assert sorted(row[0] for row in rows) == sorted(mine["name"])
    assert [row[0] for row in rows] == [f"client {n}" for n in range(1, 11)]
    for row in rows:
        held = files.by(cells(mine[mine["name"] == row[0]])[0], attribute)
        assert [int(text) for text in row[1:-2]] == held.sum(axis=(1, 2)).tolist()
        assert int(row[-2]) == held.sum()
        assert int(row[-1]) == held[:, 1].sum()
    assert sum(int(row[-2]) for row in rows) == cells(mine).sum()


@pytest.mark.parametrize(
    ("strategy", "attribute"), [("fair_fate", "race"), ("fedavg+average+thresholds", "sex")]
)
def test_fairness_at_each_client(shared: Visit, files: Files, strategy: str, attribute: str) -> None:
    opened = chosen(shared, attribute, model=(strategy, 1))
    columns, rows, _ = opened.table("local")
    assert columns == ["client", "rows", "accuracy", "MCC", "SP", "EO", "EQO"]
    mine = files.of(files.local, strategy, 1)
    together = cells(mine).sum(axis=0)
    told = set()
    for row in rows:
        held = together if row[0] == "all clients" else cells(mine[mine["name"] == row[0]])[0]
        sure = measured(files.by(held, attribute), least=30)
        perhaps = measured(files.by(held, attribute), least=1)
        assert int(row[1]) == held.sum()
        assert same(row[2], sure["accuracy"])
        assert same(row[3], sure["mcc"])
        for text, key in zip(row[4:], ("sp", "eo", "eqo"), strict=True):
            if math.isfinite(sure[key]):
                assert same(text, sure[key])
                told.add("sure")
            elif math.isfinite(perhaps[key]):
                assert text.endswith(" (too few people to tell)")
                assert same(text.partition(" ")[0], perhaps[key])
                told.add("few")
            else:
                assert text == "undefined"
    assert told == {"sure", "few"}
    assert len(rows) == 11
    lowest = [(float(row[6]), row[0]) for row in rows[1:] if re.fullmatch(r"[\d.]+", row[6])]
    said = re.search(r"Lowest: (client \d+) with ([\d.]+)\.", opened.hint("local"))
    assert (said is not None) == bool(lowest)
    if said is not None:
        assert (float(said[2]), said[1]) == min(lowest)


@pytest.mark.parametrize(("strategy", "seed"), [("fair_fate", 1), ("fair_fate", 2), ("fedavg", 3)])
def test_who_took_part(shared: Visit, files: Files, strategy: str, seed: int) -> None:
    opened = chosen(shared, model=(strategy, seed))
    columns, rows, _ = opened.table("taking")
    assert columns == ["client", "rounds it was asked", "counted as fair", "dropped", "took no part"]
    mine = files.of(files.clients, strategy, seed)
    for row in rows:
        outcome = mine[mine["name"] == row[0]]["outcome"]
        numbers = [
            (outcome != "refused").sum(),
            *((outcome == of).sum() for of in ("fair", "dropped", "refused")),
        ]
        assert [int(text) for text in row[1:]] == numbers
    assert sum(int(row[1]) for row in rows) == len(mine) == 3 * files.last
    assert (sum(int(row[2]) for row in rows) > 0) == (strategy == "fair_fate")
    drawings = [one["name"] for one in drawn(opened)["taking"]]
    assert ("clients counted as fair over the rounds" in drawings) == (strategy == "fair_fate")


# --- what is drawn, read back by the scales of the drawings


def read_back(opened: Visit, chart: str, marks: str) -> list[list[tuple[float, float]]]:
    """For each drawing, the values of its marks; of an axis of names, the place of the name."""
    found: list[list[tuple[float, float]]] = opened.chart(chart).evaluate(
        """(chart, marks) => [...chart.querySelectorAll("svg:not(.swatch)")].map((svg) => {
          const back = ["x", "y"].map((axis) => {
            const scale = svg.scale(axis), half = (scale.bandwidth ?? 0) / 2;
            if (scale.invert) return scale.invert;
            const places = scale.domain.map((name) => scale.apply(name) + half);
            return (at) => places.findIndex((place) => Math.abs(place - at) < 1);
          });
          const points = (node) => {
            const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => Number(node.getAttribute(name)));
            if (node.tagName === "circle") return [[node.cx.baseVal.value, node.cy.baseVal.value]];
            if (node.tagName === "rect") return [[x, y + h / 2], [x + w, y + h / 2]];
            return node.getAttribute("d").slice(1).split("L").map((pair) => pair.split(",").map(Number));
          };
          return [...svg.querySelectorAll(marks)].flatMap(points).map(([x, y]) => [back[0](x), back[1](y)]);
        })""",
        marks,
    )
    return found


def near(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, atol=0.0015)


def numbers(texts: Sequence[str]) -> list[float]:
    return [float(text.removesuffix(" %")) / (100 if text.endswith(" %") else 1) for text in texts]


@pytest.mark.parametrize("seed", [None, 3])
def test_the_lines_are_those_of_the_table(shared: Visit, seed: int | None) -> None:
    opened = chosen(shared, "sex", seed)
    _, rows, _ = opened.table("rounds")
    panels = read_back(opened, "rounds", "g[stroke-width='2'] path")
    for column, panel in enumerate(panels, start=2):
        lines = [
            [(float(row[0]), float(row[column])) for row in rows if row[1] == name] for name in STRATEGIES[:2]
        ]
        assert near(panel, lines[0] + lines[1])
    dots = read_back(opened, "rounds", "circle[r='5']")  # measured at the end only
    assert near([dot for panel in dots for dot in panel], [(24, value) for value in numbers(rows[-1][2:])])


def test_the_other_drawings_show_the_numbers_of_their_tables(shared: Visit) -> None:
    opened = chosen(shared, "sex", metric="sp", model=("fair_fate", 2))
    (dots,) = read_back(opened, "tradeoff", "circle[r='6']")
    rows = opened.table("tradeoff")[1]
    assert near(dots, [(float(row[1]), float(row[3])) for row in rows])
    front = sorted((float(row[1]), float(row[3])) for row in rows if row[5] == "yes")
    if len(front) > 1:  # a line
        (drawn_front,) = read_back(opened, "tradeoff", "g[stroke-width='1.5'] path")
        assert near(drawn_front, front)

    rows = opened.table("rates")[1]
    for panel, (dots, ends) in enumerate(
        zip(
            read_back(opened, "rates", "circle"),
            read_back(opened, "rates", "g[stroke-width='2'] path"),
            strict=True,
        )
    ):
        assert near(dots, [(numbers([row[2 + 2 * panel]])[0], g) for g, row in enumerate(rows)])
        expected = [
            (end, g) for g, row in enumerate(rows) for end in numbers(row[3 + 2 * panel].split(" to "))
        ]
        assert near(ends, expected)

    (dots,) = read_back(opened, "calibration", "circle")
    rows = [row for row in opened.table("calibration")[1] if int(row[2]) >= 10]
    assert near(dots, [(float(row[1]), numbers([row[3]])[0]) for row in rows])

    (curves,) = read_back(opened, "thresholds", "g[stroke-width='2'] path")
    rows = opened.table("thresholds")[1]
    at_half = [value for at, value in curves if at == pytest.approx(0.5)]
    assert np.allclose(at_half, numbers([rows[10][n] for n in (1, 3, 4, 5)]), atol=0.0015)

    (bars,) = read_back(opened, "rows", "rect")
    rows = opened.table("rows")[1]
    ends = [[x for x, client in bars if client == k] for k in range(len(rows))]
    assert all(max(of) == pytest.approx(int(row[-2]), abs=1) for of, row in zip(ends, rows, strict=True))
    assert all(sorted(of)[1] == pytest.approx(int(row[1]), abs=1) for of, row in zip(ends, rows, strict=True))

    (dots,) = read_back(opened, "local", "circle")
    rows = opened.table("local")[1][1:]
    values = [(row[4].partition(" ")[0], client) for client, row in enumerate(rows)]
    expected = [(float(text), client) for text, client in values if text != "undefined"]
    assert near(sorted(dots, key=lambda dot: dot[1]), expected)
    (lines,) = opened.chart("local").evaluate(
        """(chart) => [[...chart.querySelectorAll("svg line[x1]")].map((line) =>
          chart.querySelector("svg").scale("x").invert(Number(line.getAttribute("x1"))))]"""
    )
    overall = float(opened.table("local")[1][0][4])
    assert any(value == pytest.approx(overall, abs=0.001) for value in lines)
    assert any(value == pytest.approx(0.8, abs=0.001) for value in lines)


def test_who_took_part_is_drawn_in_its_round(shared: Visit, files: Files) -> None:
    opened = chosen(shared, model=("fair_fate", 3))
    found = opened.chart("taking").evaluate(
        """(chart) => {
          const svg = chart.querySelector("svg"), x = svg.scale("x"), y = svg.scale("y");
          return [...svg.querySelectorAll("rect")].map((rect) => {
            const {x: left, y: top, width} = rect.getBBox();
            const name = y.domain.find((one) => Math.abs(y.apply(one) - top) < 1);
            return [Math.round(x.invert(left + width / 2)), name, rect.getAttribute("fill")];
          });
        }"""
    )
    mine = files.of(files.clients, "fair_fate", 3)
    colours = mine["outcome"].map({"used": "var(--used)", "fair": "var(--fair)"})
    expected = set(zip(mine["round"], mine["name"], colours, strict=True))
    assert len(expected) == len(found)
    assert {tuple(one) for one in found} == expected


def test_the_answer_is_of_the_model_that_it_names(shared: Visit, files: Files) -> None:
    opened = shared
    heading = opened.page.locator("#p0-answer-h").inner_text()
    said = re.fullmatch(r"Recommended: (.*), seed (\d)", heading)
    assert said is not None
    strategy, seed = said[1], int(said[2])
    own = measured(files.by(files.counts(strategy, seed), "sex"))
    big = opened.page.locator(".tiles .big").all_inner_texts()
    assert all(
        same(text, own[key])
        for text, key in zip(
            [*big[:3], big[4]], ("accuracy", "balanced_accuracy", "mcc", "acceptance"), strict=True
        )
    )
    ratios = opened.page.locator("table.verdicts tbody tr").evaluate_all(
        "(rows) => rows.slice(0, 3).map((row) => row.children[2].textContent.trim().split(' ')[0])"
    )
    assert all(same(text, own[key]) for text, key in zip(ratios, ("sp", "eo", "eqo"), strict=True))


# --- by keyboard alone


def tab_to(opened: Visit, wanted: str, most: int = 80) -> None:
    for _ in range(most):
        opened.page.keyboard.press("Tab")
        if opened.focused().startswith(wanted):
            return
    raise AssertionError(f"{wanted} cannot be reached, got {opened.focused()}")


def test_everything_can_be_done_by_keyboard(visit: Open, page: Path, files: Files) -> None:
    opened = visit(page)
    press = opened.page.keyboard.press
    press("Tab")
    assert opened.focused() == "a skip"
    box = opened.page.locator(".skip").bounding_box()
    assert box is not None
    assert box["x"] >= 0  # it can be seen
    press("Enter")
    assert opened.page.evaluate("location.hash") == "#content"
    for name in ("The answer", "Strategies", "Audit", "Charts", "How it was made"):
        press("Tab")
        assert opened.page.evaluate("document.activeElement.textContent") == name
    tab_to(opened, "summary")
    press("Enter")
    assert opened.page.locator(".answer details").get_attribute("open") is None  # it was open before

    tab_to(opened, "input checkbox")
    press("Space")
    assert lines_of(opened) == [[files.last]] * 7
    assert opened.focused().startswith("input checkbox")
    press("Space")
    assert lines_of(opened) == [[files.last] * 2] * 7
    tab_to(opened, "select select-one seed")
    press("ArrowDown")
    assert opened.focused() == "select select-one seed"
    assert opened.table("rounds")[2].startswith("Seed 1")


def test_lists_and_sliders_keep_the_focus(visit: Open, page: Path) -> None:
    opened = visit(page)
    press = opened.page.keyboard.press
    for key, down in (("seed", 2), ("metric", 1), ("attribute", 2), ("strategy", 1), ("modelSeed", 1)):
        tab_to(opened, f"select select-one {key}")
        before = opened.page.locator(f"select[data-key={key}]").input_value()
        for _ in range(down):
            press("ArrowUp" if key == "metric" else "ArrowDown")
            assert opened.focused() == f"select select-one {key}"
        if key != "modelSeed":
            assert opened.page.locator(f"select[data-key={key}]").input_value() != before
    tab_to(opened, "input range from rounds")
    press("ArrowRight")
    press("ArrowRight")
    assert opened.focused() == "input range from rounds"
    assert opened.table("rounds")[1][0][0] == "3"
    tab_to(opened, "input range to rounds")
    press("Home")
    assert opened.focused() == "input range to rounds"
    assert opened.page.locator("input[data-key=to]").input_value() == "3"
    tab_to(opened, "div panels rounds")
    tab_to(opened, "summary rounds")
    press("Enter")
    opened.chart("rounds").locator("tbody tr >> nth=3").wait_for()
    opened.chart("rounds").locator("tbody tr >> nth=4").wait_for(
        state="detached"
    )  # two rounds, two strategies
    tab_to(opened, "input checkbox together thresholds")
    press("Space")
    assert opened.focused() == "input checkbox together thresholds"
    tab_to(opened, "button button thresholds")
    tab_to(opened, "input range thresholds")
    slider = opened.page.locator(":focus")
    before = float(slider.input_value())
    for _ in range(5):
        press("ArrowRight")
    assert float(slider.input_value()) == before + 5
    while opened.focused() != "button button thresholds":
        press("Shift+Tab")
    press("Enter")
    assert opened.focused() == "button button thresholds"
    assert float(opened.page.locator(f"{THRESHOLDS} input[type=range]").first.input_value()) == before


def test_arrow_keys_read_the_values_of_a_round(visit: Open, page: Path, files: Files) -> None:
    opened = visit(page)
    tab_to(opened, "div panels rounds")
    live = opened.page.locator("[data-chart=rounds] [role=status]")

    def check(at: int, seeds: Sequence[int] = (1, 2, 3)) -> None:
        text = live.inner_text()
        assert text.startswith(f"Round {at}: ")
        told = text.removeprefix(f"Round {at}: ").split("; ")
        assert len(told) == 3
        for strategy, line in zip(STRATEGIES, told, strict=True):
            expected = expected_rounds(files, at, strategy, "sex", seeds)
            for name, key in (SKILL | {f"{name} by sex": key for name, key in FAIR.items()}).items():
                found = re.search(rf"(?:^{re.escape(strategy)}|,) {name} ([\w.-]+)", line)
                assert found is not None, (name, line)
                assert same(found[1], expected.get(key, math.nan)), (at, strategy, name)

    opened.page.keyboard.press("ArrowRight")
    check(1)
    for _ in range(6):
        opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowLeft")
    check(6)
    opened.page.keyboard.press("End")
    check(files.last)
    opened.page.keyboard.press("ArrowRight")
    check(files.last)
    top = opened.page.evaluate("scrollY")
    for key in ("ArrowLeft", "Home", "End"):
        opened.page.keyboard.press(key)
        assert opened.focused() == "div panels rounds"
        assert opened.page.evaluate("scrollY") == top  # the page does not move
    opened.choose("seed", "seed 2")  # what is said is of what is chosen
    check(files.last, [2])
    opened.slide("input[data-key=to]", 9)
    check(10, [2])


# --- for everybody, on every screen


def test_sliders_are_said_as_they_are_shown(shared: Visit) -> None:
    """Their own values are numbers of steps."""
    told = shared.page.locator("input[type=range]").evaluate_all(
        """(all) => all.map((one) =>
          [one.ariaValueText, one.closest("label").querySelector("output").textContent])"""
    )
    assert len(told) > 2
    assert all(said.removeprefix("round ") == shown for said, shown in told)


def test_without_javascript_there_are_the_answer_and_the_audit(visit: Open, page: Path) -> None:
    opened = visit(page, java_script_enabled=False)
    assert "The charts need JavaScript" in opened.page.locator("noscript").inner_text()
    assert opened.page.locator("#p0-answer-h").inner_text().startswith("Recommended: ")
    cut = opened.page.locator(".audit caption", has_text="The model's thresholds").count()
    assert opened.page.locator(".audit table").count() == 6 + cut
    assert opened.page.locator(".charts figure").count() == 0
    assert opened.page.locator(".pictures svg").count() == 2


def opened_wide(opened: Visit, width: int) -> None:
    """All details open, at some width."""
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    opened.page.wait_for_timeout(200)  # it waits a little before it draws anew


def test_nobody_is_left_out(visit: Open, small: Path) -> None:
    axe = os.environ.get("FAIRFATE_AXE")
    if not axe:
        pytest.skip("FAIRFATE_AXE does not name axe.min.js")
    opened = visit(small)
    opened.page.evaluate(Path(axe).read_text("utf-8"))
    for width in (400, 1000, 1600):
        opened_wide(opened, width)
        for scheme, rules in (("light", ""), ("dark", "runOnly: ['color-contrast', 'link-in-text-block'],")):
            opened.page.emulate_media(color_scheme=scheme)  # which changes colours only
            options = f"{{{rules} resultTypes: ['violations']}}"
            found = opened.page.evaluate(f"axe.run(document, {options})")["violations"]
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            told = [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in serious]
            assert told == [], (width, scheme)


def test_nothing_is_wider_than_the_screen(visit: Open, page: Path) -> None:
    opened = visit(page, width=400)
    for width in (400, 320, 1000, 641, 1600, 400):  # as on a phone that is turned
        opened_wide(opened, width)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        # what is wider than its box can be scrolled, by keyboard too
        boxes = opened.page.evaluate(
            """[...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth)
              .map((box) => [box.tabIndex, getComputedStyle(box).overflowX, box.ariaLabel])"""
        )
        assert all(tab == 0 and overflow == "auto" and name for tab, overflow, name in boxes)
        assert len(boxes) > 5 or width > 400
        widths = [one["wide"] for drawings in drawn(opened).values() for one in drawings]
        assert max(widths) <= min(width, 1140)


def test_tips_can_be_read_in_the_dark(visit: Open, small: Path) -> None:
    opened = visit(small, color_scheme="dark")
    dot = opened.chart("tradeoff").locator("circle[r='6']").first
    dot.scroll_into_view_if_needed()
    box = dot.bounding_box()
    assert box is not None
    opened.page.mouse.move(box["x"] + 8, box["y"] + 8)
    tip = opened.chart("tradeoff").locator("g[aria-label=tip]")
    assert "accuracy" in str(tip.text_content())
    text, paper = (
        tip.locator(tag).first.evaluate("(node) => getComputedStyle(node).fill") for tag in ("text", "path")
    )
    light, dark = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (text, paper))
    assert light > 600 > 150 > dark


def test_it_can_be_printed(visit: Open, page: Path) -> None:
    opened = visit(page, color_scheme="dark")
    opened.page.locator(".answer summary").click()
    opened.page.emulate_media(media="print")
    hidden = "nav, .skip, select, input, button, .read, .only-screen, details:not([open])"
    assert opened.page.locator(hidden).count() > 20
    assert opened.page.evaluate(
        f"[...document.querySelectorAll('{hidden}')].every((node) => node.getClientRects().length === 0)"
    )
    assert "Fairness metric" not in opened.page.locator(".controls").first.inner_text()
    opened.page.set_viewport_size({"width": 718, "height": 1000})  # of A4 within its margins
    opened.page.wait_for_timeout(200)
    cut = opened.page.evaluate(
        "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth > box.clientWidth).length"
    )
    assert cut == 0
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 718
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    paper = opened.page.pdf(format="A4", outline=True, tagged=True)
    assert paper.startswith(b"%PDF")
    assert b"(Audit of " in paper  # in its outline
    assert b"(All strategies)" in paper
    assert 4 < paper.count(b"/Type /Page\n") < 30


# --- names that somebody chose

NASTY = (
    "</script><img src=x onerror=alert(1)>",
    "{{7*7}}{% raw %}",
    "**bold** _em_ [link](http://x) ~~gone~~ # h",
    "&amp; &lt;b&gt;",
    'it\'s "quoted" \\ and `ticked` | piped',
    "two\u2028lines",
    "\u202eright to left\u202c עברית العربية",
    "\U0001f469\u200d\U0001f52c" * 12,
    "long " + "x" * 295,
)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    first, second = (NASTY[0], NASTY[7]), NASTY[1:6]
    codes = np.meshgrid(range(2), range(5), indexing="ij")
    groups, _ = Groups.cross((NASTY[0], NASTY[8]), (first, second), [of.ravel() for of in codes])
    strategies = [Named("fedavg", None)]
    strategies += [Named("fair_fate", "eqo", settings(**{"key": name})) for name in NASTY]
    folder = tmp_path_factory.mktemp("nasty") / "a <b>'&\" folder"
    write_run(folder, groups, strategies, clients=NASTY, dataset=NASTY[0], reason=NASTY[0])
    report([folder])
    return folder


def test_names_are_shown_as_they_are(visit: Open, nasty: Path) -> None:
    opened = visit(nasty / "report.html")
    page = opened.page
    assert page.locator("h1 bdi").text_content() == NASTY[0]
    assert page.title() == f"Fairness report: {NASTY[0]}"
    tags = {tag: page.locator(tag).count() for tag in ("img", "script", "b", "em", "iframe", "a")}
    assert tags == {"img": 0, "script": 3, "b": 0, "em": 0, "iframe": 0, "a": 8}
    strategies = ["fedavg", *(f"fair_fate(key={name})" for name in NASTY)]
    assert page.locator(".checks bdi").all_text_contents() == strategies
    assert page.locator("select[data-key=strategy] option").all_text_contents() == strategies
    assert page.locator("#p0-strategies table").first.locator("tbody bdi").all_text_contents() == strategies
    assert page.locator("select[data-key=attribute] option").all_text_contents() == [
        NASTY[0],
        NASTY[8],
        f"{NASTY[0]} x {NASTY[8]}",
    ]
    page.select_option("select[data-key=attribute]", "1")
    assert [row[0] for row in opened.table("rates")[1]] == [
        text.replace("\u00a0", " ") for text in NASTY[1:6]
    ]
    for chart in ("rows", "local", "taking"):
        assert {row[0] for row in opened.table(chart)[1]} - {"all clients"} == set(NASTY)
    assert NASTY[0] in opened.chart("taking").text_content()  # the reason for which a client was dropped
    command = shlex.split(page.locator("code.command").text_content())
    assert command == ["fairfate", "run", "--config", "config.toml", "--out", "again"]
    for chart, drawings in drawn(opened).items():
        assert [one["odd"] + one["outside"] for one in drawings] == [[]] * len(drawings), chart
    assert "\ufffd" not in page.evaluate("document.body.textContent")
    halves = page.evaluate(
        "[...document.querySelectorAll('svg text')].some((t) => !t.textContent.isWellFormed())"
    )
    assert not halves


def test_long_names_do_not_make_it_wider(visit: Open, nasty: Path) -> None:
    opened = visit(nasty / "report.html", width=400)
    opened.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400
    left = opened.page.evaluate(
        """Math.min(...[...document.querySelectorAll("figure svg text")]
          .map((text) => text.getBoundingClientRect().left))"""
    )
    assert left >= 0  # names beside an axis are not cut off


def test_names_in_the_files_beside_the_page(nasty: Path) -> None:
    told = json.loads((nasty / "report.json").read_text("utf-8"))
    (part,) = told["parts"]
    assert part["about"]["data"] == NASTY[0]
    assert part["about"]["attributes"] == [NASTY[0], NASTY[8]]
    assert [row["group"] for row in part["audit"][1]["rows"]] == list(NASTY[1:6])
    assert [row["client"] for row in part["clients"]] == list(NASTY)
    frame = pd.read_csv(nasty / "report-audit.csv", keep_default_na=False)
    assert set(frame["group"]) >= set(NASTY[1:6])


def test_names_in_the_card(nasty: Path) -> None:
    card = write_card([nasty]).read_text("utf-8")
    _, head, body = card.split("---\n", 2)
    datasets = re.search(r"^datasets: (.*)$", head, re.MULTILINE)
    assert datasets is not None
    assert json.loads(datasets[1]) == [NASTY[0]]
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(body)
    inline = [child for token in tokens for child in (token.children or [])]
    kinds = {token.type for token in (*tokens, *inline)}
    assert kinds.isdisjoint(
        {"html_block", "html_inline", "em_open", "s_open", "code_inline", "image", "link_open"}
    )
    texts = [
        "".join(child.content for child in token.children or []) for token in tokens if token.type == "inline"
    ]
    plain = [" ".join(name.split()) for name in NASTY]
    for name in plain[:6]:
        assert any(name in text for text in texts), name
    assert f"By {plain[0]}" in texts
    assert [text for text in texts if text in plain[1:6]][:5] == plain[1:6]


# --- large runs


def test_a_large_run_is_small_and_quick(browser: Browser, tmp_path: Path) -> None:
    strategies = [
        Named("fedavg", None),
        *(Named("fair_fate", "eqo", settings(lam0=n / 10)) for n in range(11)),
    ]
    codes = np.meshgrid(range(2), range(4), indexing="ij")
    groups, _ = Groups.cross(("sex", "race"), (("f", "m"), tuple("abcd")), [of.ravel() for of in codes])
    clients = [f"client {n}" for n in range(1, 21)]
    folder = write_run(tmp_path / "run", groups, strategies, seeds=10, rounds=100, clients=clients)
    before = time.process_time()
    page = report([folder])
    assert time.process_time() - before < 10
    assert page.stat().st_size < 3e6
    opened = Visit(browser)
    opened.page.add_init_script(
        """new MutationObserver((_, watch) => {
          if (!document.documentElement?.dataset.drawn) return;
          window.drawn = performance.now();
          watch.disconnect();
        }).observe(document, {attributes: true, childList: true, subtree: true});"""
    )
    times: list[float] = []
    while len(times) < 5 and min(times, default=math.inf) >= 1000:  # it may be the machine that is slow
        times.append(opened.open(page).page.evaluate("window.drawn"))
    assert min(times) < 1000
    assert opened.page.locator("input[data-strategy]:checked").count() == 2  # of twelve
    assert len(opened.table("tradeoff")[1]) == 12
    test = pd.read_parquet(folder / "rounds.parquet").query("split == 'test' and round == 100")
    accuracy = test.groupby("settings", sort=False)["accuracy"]
    for row, found, spread in zip(opened.table("tradeoff")[1], accuracy.mean(), accuracy.std(), strict=True):
        assert same(row[1], found)
        assert same(row[2], spread)
    opened.close()
    opened.check()


def test_what_is_not_drawn_is_counted(visit: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 rounds one in three is drawn, of 8 clients 6."""
    monkeypatch.setattr(packed, "MOST_ROUNDS", 20)
    monkeypatch.setattr(packed, "MOST_CLIENTS", 6)
    clients, groups = [f"site {n}" for n in range(1, 9)], Groups.single("age", [f"{n}0s" for n in range(14)])
    folder = write_run(tmp_path / "run", groups, seeds=2, rounds=50, clients=clients)
    opened = visit(report([folder], min_cell=0))
    files = Files(folder)
    assert "One round in 3 is drawn." in opened.hint("rounds")
    for name in ("rows", "local", "taking"):
        assert "2 smaller clients are in the files only." in opened.hint(name)
    opened.choose("strategy", "fair_fate")
    opened.choose("modelSeed", "seed 2")
    record, local = (files.of(of, "fair_fate", 2) for of in (files.clients, files.local))
    _, rows, _ = opened.table("taking")
    assert len(rows) == 6
    for row in rows:
        outcome = record[record["name"] == row[0]]["outcome"]
        numbers = [
            (outcome != "refused").sum(),
            *((outcome == of).sum() for of in ("fair", "dropped", "refused")),
        ]
        assert [int(text) for text in row[1:]] == numbers
    _, rows, _ = opened.table("local")
    assert rows[0][:2] == ["all clients", str(cells(local).sum())]
    assert same(rows[0][4], measured(cells(local).sum(axis=0))["sp"])
    drawn_rounds = {int(row[0]) for row in opened.table("rounds")[1]}
    assert {1, 4, 50} <= drawn_rounds
    assert 2 not in drawn_rounds
    colours = (
        opened.chart("rows").locator(".keys .box").evaluate_all("(all) => all.map((b) => b.style.background)")
    )
    assert len(colours) == 14
    assert all(colours)


# --- other runs


def words(opened: Visit, part: int = 0) -> str:
    return " ".join(opened.page.locator(f"#p{part}").inner_text().split())


def check_drawn(opened: Visit, charts: Sequence[str] = CHARTS, part: int = 0) -> None:
    found = drawn(opened, part)
    assert tuple(found) == tuple(charts)
    for one in (one for drawings in found.values() for one in drawings):
        assert one["marks"] > 2
        assert one["odd"] == []
        assert one["outside"] == []


def test_several_runs_are_parts_of_one_page(visit: Open, tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", SEXES, dataset="one")
    again = write_run(tmp_path / "b", SEXES, dataset="one")
    other = write_run(tmp_path / "c", Groups.single("race", ("x", "y")), dataset="two", seeds=1)
    (again / "config.toml").unlink()
    opened = visit(report([first, other, again], tmp_path / "all.html"))
    assert opened.page.locator("h1").all_inner_texts() == ["Fairness report: one", "Fairness report: two"]
    assert opened.page.locator("#p0 .checks bdi").all_text_contents() == [
        f"{name} [{folder}]" for folder in "ab" for name in ("fedavg", "fair_fate")
    ]
    check_drawn(opened)
    check_drawn(opened, part=1)
    opened.choose("metric", "SP, statistical parity", part=1)  # each part has controls of its own
    assert opened.table("tradeoff", part=1)[0][3] == "SP"
    assert opened.table("tradeoff", part=0)[0][3] == "EQO"
    assert f"--config {first}/config.toml" in words(opened)
    assert f"{again} holds no settings." in words(opened)
    names = opened.page.locator("nav").evaluate_all("(all) => all.map((nav) => nav.ariaLabel)")
    assert len(set(names)) == 2


def test_a_sweep_has_a_part_for_each_setting(visit: Open, tmp_path: Path) -> None:
    values = {
        "data": "synthetic:rows=400",
        "rounds": 3,
        "epochs": 1,
        "seeds": [1, 2],
        "strategy": ["fedavg", "fedmom"],
    }
    sweep(expand({**values, "learning-rate": [0.01, 0.3]}), tmp_path / "s", jobs=1)
    opened = visit(report([tmp_path / "s"]))
    titles = [f"Fairness report: synthetic, learning-rate {rate}" for rate in ("0.01", "0.3")]
    assert opened.page.locator("h1").all_inner_texts() == titles
    for part in (0, 1):
        check_drawn(opened, ("rounds", "tradeoff", "rates"), part)
        assert "The settings are in the sweep's folder, in configs." in words(opened, part)


def test_a_run_of_the_first_format(visit: Open, tmp_path: Path) -> None:
    folder = first_format(write_run(tmp_path / "new", SEXES), tmp_path / "old")
    opened = visit(report([folder]))
    check_drawn(opened, ("rounds", "tradeoff"))
    text = words(opened)
    assert "No model can be recommended" in text
    assert "The records of the run do not say how its models do on the validation rows." in text
    assert opened.page.locator("select[data-key=attribute], select[data-key=strategy], .audit").count() == 0
    new, old = (pd.read_parquet(of / "rounds.parquet") for of in (tmp_path / "new", folder))
    assert len(new.columns) > len(old.columns)
    columns, rows, _ = opened.table("rounds")
    assert columns[2:] == ["accuracy", "balanced accuracy", "MCC", *FAIR]
    last = old.query("split == 'test' and round == 12 and strategy == 'fair_fate'")
    keys = ("accuracy", "balanced_accuracy", "mcc", "sp", "eo", "eqo")
    assert all(same(text, last[key].mean()) for text, key in zip(rows[-1][2:], keys, strict=True))


def test_one_seed_and_one_strategy(visit: Open, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", SEXES, [Named("fair_fate")], seeds=1, rounds=2)
    opened = visit(report([folder]))
    check_drawn(opened)
    text = words(opened)
    assert "Recommended: fair_fate, seed 1" in text
    assert "1 seed · 1 strategy" in text
    assert "over seeds" not in opened.page.locator(".tiles").inner_text()
    assert "Is the difference more than chance?" not in text
    assert opened.page.locator("select[data-key=seed], input[data-key=from]").count() == 0
    assert opened.hint("rounds").startswith("Seed 1.")
    assert opened.table("tradeoff")[2].startswith("Seed 1, test rows of the last round")
    (row,) = opened.table("tradeoff")[1]
    assert row[2] == row[4] == "undefined"
    assert row[5] == "yes"


def test_two_strategies_and_one_seed_are_not_tested(visit: Open, tmp_path: Path) -> None:
    opened = visit(report([write_run(tmp_path / "run", SEXES, seeds=1)]))
    assert "This cannot be tested with one seed: run more of them." in words(opened)


def test_strategies_that_have_all_collapsed(visit: Open, tmp_path: Path) -> None:
    opened = visit(report([write_run(tmp_path / "run", SEXES, skill=0.0, sizes=[4000, 4000])]))
    check_drawn(opened)
    text = words(opened)
    assert "No model can be recommended" in text
    assert "Collapsed: fedavg in 3 of 3 seeds, fair_fate in 3 of 3 seeds." in text
    assert opened.table("tradeoff")[1] == []
    assert "No model to draw" in opened.chart("tradeoff").locator(".nothing").inner_text()
    assert opened.page.locator(".checks bdi").all_text_contents() == [
        "fedavg (collapsed in 3 of 3)",
        "fair_fate (collapsed in 3 of 3)",
    ]
    assert set(opened.page.locator(".verdicts .badge").all_inner_texts()) == {"no use: the model collapsed"}


def test_a_tiny_group_and_one_that_is_not_known(visit: Open, tmp_path: Path) -> None:
    groups = Groups.single("origin", ("A", "B", "(small groups)", "(missing)"))
    folder = write_run(tmp_path / "run", groups, sizes=[500, 400, 12, 60])
    opened = visit(report([folder], min_cell=0))
    check_drawn(opened)
    counts = Files(folder).counts("fair_fate", 1)
    opened.choose("strategy", "fair_fate")
    opened.choose("modelSeed", "seed 1")
    rates = {row[0]: row for row in opened.table("rates")[1]}
    assert rates["(small groups)"][1] == "12"
    assert rates["(small groups)"][3::2] == ["too few people to tell"] * 3
    assert "too few people to tell" not in rates["(missing)"][3]
    audit = opened.page.locator(".audit tbody").first.inner_text()
    assert re.search(r"\(small groups\)\s+12\s+\d+\s+[\d.]+.% too few people to tell\s+left out", audit)
    assert "(missing)" not in audit
    assert "60 people whose origin is not known are left out." in words(opened)
    assert "left out: (small groups)" in words(opened)
    # neither counts in ratios
    columns, rows, _ = opened.table("rounds")
    assert columns[-3:] == [f"{name} by origin" for name in FAIR]
    opened.choose("seed", "seed 1")
    last = opened.table("rounds")[1][-1]
    expected = measured(counts[:2])
    assert all(same(text, expected[key]) for text, key in zip(last[-3:], FAIR.values(), strict=True))
    assert same(before_and_after(opened)["before"]["eqo"], expected["eqo"])
    assert rows


def test_small_counts_are_not_shown(visit: Open, tmp_path: Path) -> None:
    groups = Groups.single("origin", ("A", "B", "tiny"))
    folder = write_run(tmp_path / "run", groups, sizes=[504, 403, 7])
    opened = visit(report([folder]))
    check_drawn(opened)
    opened.choose("strategy", "fair_fate")
    opened.choose("modelSeed", "seed 1")
    rates = {row[0]: row for row in opened.table("rates")[1]}
    assert rates["tiny"] == ["tiny", "fewer than 10", *["not shown", "too few people to tell"] * 3]
    assert [rates[name][1] for name in "AB"] == ["500", "400"]
    audit = opened.page.locator(".audit tbody").first.inner_text()
    assert re.search(r"tiny\s+fewer than 10\s+fewer than 10\s+too few people\s+left out", audit)
    assert {row[0] for row in opened.table("calibration")[1]} == {"A", "B"}
    assert {row[3] for row in opened.table("rows")[1]} == {"too few"}
    # what the model does is exact; other thresholds are by merged scores
    files = Files(folder)
    expected = measured(files.counts("fair_fate", 1), least=10)
    assert agree(before_and_after(opened)["before"], expected)
    assert agree(before_and_after(opened)["after"], expected)
    assert "off by up to 9 of each" in opened.hint("thresholds")


def test_a_group_of_few_people_can_be_compared_with_nobody(visit: Open, tmp_path: Path) -> None:
    opened = visit(report([write_run(tmp_path / "run", SEXES, sizes=[400, 8])]))
    assert "is undefined" in opened.chart("tradeoff").locator(".nothing").inner_text()
    assert set(opened.page.locator(".verdicts .badge").all_inner_texts()) == {"too few people to tell"}
    assert "equalized odds by sex in seeds 1, 2, 3" in opened.hint("rounds")
    found = drawn(opened)
    assert all(one["odd"] == [] for drawings in found.values() for one in drawings)
    told = opened.page.locator(".verdicts tbody tr").evaluate_all(
        "(rows) => rows.map((r) => r.children[3].innerText)"
    )
    assert {text.strip() for text in told} == {"left out: male"}
    ratios = opened.page.locator(".audit tbody").first.locator("tr td:last-child").all_inner_texts()
    assert ratios == ["no other group to compare with", "left out"]


def test_an_objective_of_its_own_has_its_own_name(visit: Open, tmp_path: Path) -> None:
    codes = np.meshgrid(range(2), range(2), indexing="ij")
    groups, _ = Groups.cross(("sex", "race"), (("f", "m"), ("a", "b")), [of.ravel() for of in codes])
    objective = "0.5*sp+0.5*eo@sex"
    folder = write_run(tmp_path / "run", groups, [Named("fedavg", None), Named("fair_fate", objective)])
    opened = visit(report([folder]))
    check_drawn(opened)
    opened.choose("metric", objective)
    opened.choose("attribute", "race")
    _, rows, caption = opened.table("tradeoff")
    assert caption.endswith(f"of the last round, {objective}.")  # by no attribute but those it names
    assert opened.table("rounds")[0][-1] == objective
    files = Files(folder)
    for row in rows:
        each = []
        for seed in (1, 2, 3):
            counts = files.counts(row[0], seed)
            sex, race = (measured(files.by(counts, name), least=0) for name in ("sex", "race"))
            each.append(0.5 * min(sex["sp"], race["sp"]) + 0.5 * sex["eo"])
        assert same(row[3], mean(each))


def test_a_run_that_has_not_finished(visit: Open, tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        if done == 14:  # in the second seed
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(
            data="synthetic:rows=600",
            rounds=10,
            epochs=1,
            seeds=(1, 2),
            learning_rate=0.3,
            jobs=1,
            out=tmp_path / "run",
            progress=interrupt,
        )
    opened = visit(report([tmp_path / "run"]))
    text = words(opened)
    assert "This run has not finished. What follows is what there is so far: seed 1: round 10 of 10" in text
    assert "No model yet" in text
    charts = drawn(opened)
    assert {"rounds", "tradeoff", "rates", "taking"} <= set(charts)
    assert all(one["odd"] == [] for drawings in charts.values() for one in drawings)


# --- as it is served while a run goes on


def test_only_the_page_that_is_served_may_ask(folder: Path) -> None:
    still, live = render([folder]), render([folder], live=3)
    policy = re.compile(r'Content-Security-Policy" content="([^"]*)"')
    told = {name: str(policy.findall(text)) for name, text in (("still", still), ("live", live))}
    assert "connect-src &#39;self&#39;" in told["live"] or "connect-src 'self'" in told["live"]
    assert "connect-src" not in told["still"]
    assert '<body data-live="3">' in live
    assert "<body>" in still


def test_a_page_that_is_served_follows_the_run(browser: Browser, tmp_path: Path) -> None:
    """What was chosen and opened stays, and so do the focus and the place."""
    pages, version = {}, 1
    for number, rounds in enumerate((6, 9), 1):
        pages[number] = render([write_run(tmp_path / str(rounds), SEXES, rounds=rounds)], live=number)

    def answer(route: Any) -> None:
        if route.request.url.endswith("/state"):
            route.fulfill(json={"version": version, "finished": version == 2})
        else:
            route.fulfill(body=pages[version], content_type="text/html")

    opened = Visit(browser)
    opened.page.route("http://run.test/**", answer)
    opened.page.goto("http://run.test/token/")
    assert opened.table("rounds")[1][-1][0] == "6"
    opened.choose("metric", "SP, statistical parity")
    opened.page.locator("input[data-strategy='0']").uncheck()
    opened.chart("local").locator("summary").click()
    opened.page.locator(".answer summary").click()
    opened.page.locator("input[data-key=from]").focus()
    opened.page.keyboard.press("ArrowRight")
    opened.chart("taking").evaluate("(chart) => chart.scrollIntoView()")
    top = opened.chart("taking").evaluate("(chart) => chart.getBoundingClientRect().top")
    version = 2
    opened.page.locator("input[data-key=to][max='8']").wait_for()
    opened.page.get_by_text("The run has finished.").wait_for()
    assert {row[1] for row in opened.table("rounds")[1]} == {"fair_fate"}
    assert [row[0] for row in opened.table("rounds")[1]] == [str(t) for t in range(2, 10)]
    assert opened.table("tradeoff")[0][3] == "SP"
    charts = "(open) => open.map((details) => details.closest('[data-chart]')?.dataset.chart)"
    assert opened.page.locator("details[open]").evaluate_all(charts) == ["local"]  # the answer's was closed
    assert opened.focused() == "input range from rounds"
    after = opened.chart("taking").evaluate("(chart) => chart.getBoundingClientRect().top")
    assert abs(after - top) < 100
    opened.close()
    assert opened.said == []
