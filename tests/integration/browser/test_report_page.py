"""The report's page in a browser: it draws what Python computed, its controls work, nothing is loaded."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import made_up
from browser import Visit, lacking, started
from fairfate import run
from fairfate.data.groups import Groups
from fairfate.report.page import render, report
from made_up_runs import Named, settings, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())

CHARTS = ("rounds", "tradeoff", "rates", "calibration", "thresholds", "rows", "local", "taking")

STRATEGIES = ("fedavg", "fair_fate", "fedavg+average+thresholds")

SEXES = Groups.single("sex", ("female", "male"))

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as result:
        yield result


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens pages; each must say nothing to the console, raise nothing and load nothing."""
    opened: list[Visit] = []

    def call(file: Path, **options: Any) -> Visit:
        opened.append(Visit(browser, **options))
        return opened[-1].open(file)

    yield call
    for item in opened:
        item.close()
    for item in opened:
        item.check()


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


def test_import_loads_and_prints_nothing(visit: Open, page: Path) -> None:
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
            sentences = [opened.page.evaluate(ATTEMPT, [f"{address}/{kind}", kind]) for kind in KINDS]
            came = []
            with suppress(TimeoutError):
                while len(came) < 20:
                    server.accept()[0].close()
                    came.append(1)
        opened.close()
        if file == page:
            assert came == []
            assert sentences.count("blocked") == len(KINDS) - 2  # of two one is not told
            assert len(opened.said) >= len(KINDS)
            assert all("Content Security Policy" in line for line in opened.said)
        else:
            assert len(came) >= len(KINDS)  # without the policy all get through


def drawn(opened: Visit, part: int = 0) -> dict[str, list[dict[str, Any]]]:
    """For each chart, its drawings: role, name, number of marks, and whatever is not a number."""
    result: dict[str, list[dict[str, Any]]] = opened.page.evaluate(
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
    return result


@pytest.mark.parametrize("width", [400, 1600])
def test_all_charts_are_drawn(visit: Open, page: Path, width: int) -> None:
    opened = visit(page, width=width)
    figure = drawn(opened)
    assert tuple(figure) == CHARTS
    for chart, drawings in figure.items():
        assert drawings, chart
        for item in drawings:
            assert item["role"] == "img"
            assert item["name"]
            assert item["marks"] > 3
            assert 200 < item["wide"] <= width
            assert item["odd"] == []
            assert item["outside"] == []
    assert len(figure["rounds"]) == 7
    assert len(figure["rates"]) == 3
    assert len({item["name"] for item in figure["rounds"]}) == 7
    chosen_now = [
        opened.page.locator(f"[data-key={key}] option:checked").inner_text()
        for key in ("strategy", "modelSeed")
    ]
    assert opened.page.locator("#p0-answer-h").inner_text() == f"Recommended: {', '.join(chosen_now)}"


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


def test_no_row_is_dropped(visit: Open, small: Path) -> None:
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
            result = opened.page.evaluate(f"axe.run(document, {options})")["violations"]
            serious = [item for item in result if item["impact"] in ("serious", "critical")]
            messages = [(item["id"], [node["html"][:120] for node in item["nodes"][:3]]) for item in serious]
            assert messages == [], (width, scheme)


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
        widths = [item["wide"] for drawings in drawn(opened).values() for item in drawings]
        assert max(widths) <= min(width, 1140)


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
    groups, _ = Groups.cross((NASTY[0], NASTY[8]), (first, second), [value.ravel() for value in codes])
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
        assert [item["odd"] + item["outside"] for item in drawings] == [[]] * len(drawings), chart
    assert "\ufffd" not in page.evaluate("document.body.textContent")
    halves = page.evaluate(
        "[...document.querySelectorAll('svg text')].some((t) => !t.textContent.isWellFormed())"
    )
    assert not halves


def test_only_the_page_that_is_served_may_ask(folder: Path) -> None:
    still, live = render([folder]), render([folder], live=3)
    policy = re.compile(r'Content-Security-Policy" content="([^"]*)"')
    messages = {name: str(policy.findall(text)) for name, text in (("still", still), ("live", live))}
    assert "connect-src &#39;self&#39;" in messages["live"] or "connect-src 'self'" in messages["live"]
    assert "connect-src" not in messages["still"]
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


def test_numbers_on_the_page_are_those_of_report_json(shared: Visit, folder: Path) -> None:
    (part,) = json.loads((folder / "report.json").read_text("utf-8"))["parts"]
    seeds = len(part["about"]["seeds"])
    chosen(shared)
    for attribute in part["about"]["attributes"]:
        shared.choose("attribute", attribute)
        _, rows, _ = shared.table("tradeoff")
        drawn_rows = {row[0]: row for row in rows}
        for row in part["strategies"]:
            if row["strategy"] in drawn_rows:
                fair = row["fairness"][attribute]["eqo"]["value"]
                expected = [row["accuracy"]["value"], fair]
                texts = [drawn_rows[row["strategy"]][n] for n in (1, 3)]
                assert [float(text) for text in texts] == pytest.approx(expected, abs=6e-4)
    shown = part["answer"]["shown"]
    chosen(shared, model=(shown["strategy"], shown["seed"]))
    audit = {row["group"]: row for row in part["audit"][0]["rows"]}
    for group, people, *rates in shared.table("rates")[1]:
        assert people.replace(",", "") == str(audit[group]["people"])
        values = [float(text.rstrip(" %")) / 100 for text in rates[::2]]
        expected = [audit[group][name]["value"] for name in ("selection_rate", "tpr", "fpr")]
        assert values == pytest.approx(expected, abs=6e-4)
    before = shared.page.locator("#p0 tr[data-row=before] [data-metric=accuracy]").inner_text()
    assert float(before) == pytest.approx(part["answer"]["measures"]["accuracy"]["value"], abs=6e-4)
    assert seeds == 3


def test_controls_change_the_charts(visit: Open, page: Path) -> None:
    opened = visit(page)
    opened.page.locator("input[data-strategy='0']").uncheck()
    opened.choose("seed", "seed 2")
    _, rows, caption = opened.table("rounds")
    assert "Seed 2" in caption
    assert "fedavg" not in {row[1] for row in rows}
    opened.slide("#p0 input[data-key=from]", 5)
    assert opened.table("rounds")[1][0][0] == "6"
    opened.choose("strategy", "fedavg")
    opened.slide("#p0 [data-chart=thresholds] input[data-group=everybody]", 0)
    after = opened.page.locator("#p0 tr[data-row=after] [data-metric=selection_rate]")
    assert after.inner_text() == "1.000"  # everybody is selected
    opened.page.locator("#p0 input[data-key=together]").uncheck()
    opened.slide("#p0 [data-chart=thresholds] input[data-group=female]", 64)
    table = opened.chart("thresholds").locator("tr[data-group=female]").inner_text()
    assert table.split() == ["female", "1.00", "0.0", "%", "0.0", "%", "0.0", "%"]
    assert after.inner_text() == "–"  # what groups' own thresholds give together is not in the page
    opened.page.get_by_role("button", name="As the model decides").click()
    assert after.inner_text() != "–"
