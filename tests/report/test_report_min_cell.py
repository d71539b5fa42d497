"""A report is handed on: it shows no count of fewer than ten people, and none is had by subtraction."""

from __future__ import annotations

import base64
import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import made_up
from command import Outcome
from fairfate import InputError, run
from fairfate.data.groups import Groups
from fairfate.fairness.disclosure import HIDDEN, merge_bins
from fairfate.report.audit import audits
from fairfate.report.charts import _blocks
from fairfate.report.contents import contents
from fairfate.report.data import ReportData
from fairfate.report.page import report, write_card
from fairfate.results.tables import histograms_of
from made_up_runs import write_run

K = 10
FEWER = "fewer than 10"


@pytest.fixture(scope="module", params=["small group", "crossed groups"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with groups, and clients, of few people."""
    folder = tmp_path_factory.mktemp("data")
    if request.param == "small group":
        groups = Groups.single("origin", ("A", "B", "tiny", "(missing)"))
        return write_run(folder / "run", groups, rounds=3, sizes=[300, 400, 7, 25])
    file = made_up.write(made_up.census(1500).drop(columns="Unnamed: 0"), folder / "census.csv")
    options: dict[str, Any] = {"target": "rich", "sensitive": ("sex", "race"), "rounds": 5, "seeds": 2}
    run(data=str(file), strategies=("fedavg", "fedavg+thresholds"), out=folder / "run", jobs=1, **options)
    return folder / "run"


def charts(page: Path) -> dict[str, Any]:
    """The numbers that the page draws."""
    match = re.search(r'id="p0-data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert match is not None
    return dict(json.loads(match[1]))


def whole(of: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(of["data"]), "<u4" if of["wide"] else "<u2").astype(np.int64)


def scores_of(material: ReportData) -> np.ndarray:
    """(models, groups, 2, bins) from the run's own file."""
    assert material.final is not None
    scores = material.final.scores
    first = scores[scores["bin"] == 0]
    models = list(zip(material.line_of(first).tolist(), first["seed"], strict=True))
    return np.asarray(histograms_of(scores)[[models.index(model) for model in material.models]])


def is_shown(counts: np.ndarray) -> bool:
    return bool(((counts == 0) | (counts >= K)).all())


def test_no_small_count_is_in_the_charts(folder: Path, tmp_path: Path) -> None:
    data = charts(report([folder], tmp_path / "r.html"))
    models, groups = len(data["models"]), len(data["groups"])
    material = ReportData.read([folder])[0]
    scores = merge_bins(material.score_rows(scores_of(material)), K)  # all that is told of scores
    assert is_shown(scores)
    assert scores.any()
    steps = [step for key in data["scores"]["calibration"] for model in key for step in model]
    assert is_shown(np.array([people for _, people, *_ in steps]))
    assert is_shown(np.array([round(people * rate) for _, people, _, rate, *_ in steps]))
    rows = whole(data["local"]["rows"][-1]).reshape(models, len(data["local"]["clients"]) + 1, groups, 2)
    assert is_shown(rows)
    assert rows.any()
    for value in data["rates"]:
        people = np.array(value["people"])
        assert is_shown(people[people != HIDDEN])
    # neither by subtraction from a total: all strata are rounded
    assert (scores.sum(axis=-1) % K == 0).all()
    assert (rows % K == 0).all()


def numbers_of(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """All values of nested ones, with the nearest names."""
    if isinstance(value, dict):
        return [item for key, values in value.items() for item in numbers_of(values, key)]
    if isinstance(value, list):
        return [item for values in value for item in numbers_of(values, name)]
    return [(name, value)]


def test_no_small_count_is_in_the_tables(folder: Path, tmp_path: Path) -> None:
    page = report([folder], tmp_path / "r.html")
    (message,) = json.loads((tmp_path / "r.json").read_text("utf-8"))["parts"]
    counts = [
        (name, value)
        for name, value in numbers_of([message[key] for key in ("answer", "audit", "clients", "thresholds")])
        if name in {"people", "selected", "favourable", "unknown", "rows", *message["clients"][0]["groups"]}
    ]
    assert {"people", "selected", "favourable", "rows"} <= {name for name, _ in counts}
    assert FEWER in {value for _, value in counts}
    assert [item for item in counts if item[1] != FEWER and 0 < item[1] < K] == []
    rows = list(csv.DictReader((tmp_path / "r-audit.csv").read_text("utf-8").splitlines()))
    shown = [row[name] for row in rows for name in ("people", "selected", "favourable")]
    assert FEWER in shown
    assert [text for text in shown if text != FEWER and 0 < int(text) < K] == []
    text = page.read_text("utf-8")
    audit = text[text.index('class="audit"') : text.index('class="charts"')]
    cells = re.findall(r'<td class="num">([^<]*)</td>', audit)
    assert FEWER in cells
    assert [cell for cell in cells if re.fullmatch("[1-9]", cell)] == []
    assert "No count of fewer than 10 people is shown" in text
    card = write_card([folder], tmp_path / "card.md").read_text("utf-8")
    audit = card[card.index("### By") : card.index("## Limits")]
    assert f"| {FEWER} |" in audit
    assert re.findall(r"\| [1-9] \|", audit) == []
    assert "No count of fewer than 10 people is shown" in card


def test_rates_of_few_people_are_not_shown_and_others_are_exact(folder: Path) -> None:
    hidden, every = (ReportData.read([folder], k)[0] for k in (K, 0))
    names = set()
    for ours, true in zip(hidden.audits, every.audits, strict=True):
        for rate, value in ours.rates.items():
            few = (true.parts[rate][1] > 0) & (true.parts[rate][1] < K)
            for part, expected in zip(value, true.rates[rate], strict=True):
                assert np.isnan(part[few]).all()
                np.testing.assert_array_equal(part[~few], expected[~few])
            names |= set(few.ravel().tolist())
    assert names == {True, False}


def test_counts_beside_a_hidden_one_are_rounded() -> None:
    counts = np.array([[[200, 93], [60, 50]], [[5, 1], [1, 0]]])[None]
    groups = Groups.single("sex", ("f", "m"))
    (audit,) = audits(counts, groups, K)
    assert audit.shown["people"].tolist() == [[400, HIDDEN]]
    assert audit.shown["favourable"].tolist() == [[110, HIDDEN]]
    (audit,) = audits(counts[:, :1], Groups.single("sex", ("f",)), K)
    assert audit.shown["people"].tolist() == [[403]]
    (audit,) = audits(np.array([[[200, 3], [60, 2]], [[50, 51], [60, 60]]])[None], groups, K)
    assert audit.shown["selected"].tolist() == [[HIDDEN, 110]]
    assert audit.shown["people"].tolist() == [[265, 221]]


def test_in_ranges_of_scores_labels_are_as_they_are(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path / "run", Groups.single("sex", ("f", "m", "x")), rounds=2, sizes=[300, 200, 12]
    )
    material = ReportData.read([folder])[0]
    true = scores_of(material)
    rows = material.score_rows(true)
    shown = merge_bins(rows, K)
    for model in range(len(true)):
        assert _blocks(rows[model, 2], K) == []  # 7 and 5 rows: hidden
        for g in range(2):
            starts = _blocks(rows[model, g], K)
            assert len(starts) > 1
            ours, all_rows = (np.add.reduceat(value[model, g], starts, axis=-1) for value in (shown, true))
            assert is_shown(ours)
            assert (ours <= all_rows).all()
            assert ((all_rows - ours).sum(axis=-1) < K).all()


def test_all_counts_are_shown_with_a_minimum_of_0(folder: Path, tmp_path: Path) -> None:
    data = charts(report([folder], tmp_path / "r.html", min_cell=0))
    material = ReportData.read([folder], 0)[0]
    people = [sum(step[1] for step in model) for model in data["scores"]["calibration"][-1]]
    assert people == scores_of(material).sum(axis=(1, 2, 3)).tolist()
    assert "All counts are shown" in (tmp_path / "r.html").read_text("utf-8")


def test_a_minimum_above_30_is_also_that_of_ratios(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Groups.single("sex", ("f", "m")), rounds=2, sizes=[300, 40])
    message = contents(ReportData.read([folder], 50)[0])
    assert {item["verdict"] for item in message["answer"]["fairness"]} == {"too few"}
    assert "rates of fewer than 50 people are not compared" in report([folder], min_cell=50).read_text(
        "utf-8"
    )


def test_notes_hold_no_small_number_of_rows(tmp_path: Path) -> None:
    frame = made_up.census(900).drop(columns="Unnamed: 0")
    frame.loc[:2, "rich"] = None
    file = made_up.write(frame, tmp_path / "census.csv")
    out = tmp_path / "run"
    run(
        data=str(file),
        target="rich",
        sensitive="sex",
        rounds=2,
        seeds=1,
        strategies="fedavg",
        out=out,
        jobs=1,
    )
    page = report([out]).read_text("utf-8")
    assert "rich: 3 rows without a value" not in page
    assert page.count("rich: fewer than 10 rows without a value") == 2
    assert "rich: 3 rows without a value" in report([out], min_cell=0).read_text("utf-8")


def test_the_minimum_of_the_command_line_and_of_python(
    fairfate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_run(tmp_path / "run", Groups.single("sex", ("f", "m")), rounds=2, sizes=[300, 14])
    outcome: Outcome = fairfate("report", "run", "--min-cell", "0")
    assert outcome.code == 0
    assert charts(folder / "report.html")["minCell"] == 0
    outcome = fairfate("report", "run", "--min-cell", "-1")
    assert (outcome.code, "min-cell must be >= 0, got -1" in outcome.err) == (2, True)
    finished = run(data="synthetic:rows=300", rounds=1, seeds=1, strategies="fedavg", jobs=1)
    assert charts(finished.report(tmp_path / "a.html"))["minCell"] == K
    assert charts(finished.report(tmp_path / "b.html", min_cell=0))["minCell"] == 0
    with pytest.raises(InputError, match="min-cell must be >= 0, got -1"):
        finished.report(tmp_path / "c.html", min_cell=-1)


def test_the_runs_own_files_keep_all_counts(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
    report([folder])
    assert before == {path.name: path.read_bytes() for path in folder.glob("*.parquet")}
    scores = pd.read_parquet(folder / "scores.parquet")
    assert not is_shown(scores[[name for name in scores if str(name).startswith("n_")]].to_numpy())
