"""What the report says: the answer, the audit, the tests, its files and its errors."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fairlearn.metrics import demographic_parity_ratio, equalized_odds_ratio
from sklearn.metrics import roc_auc_score
from statsmodels.stats.proportion import proportion_confint

import made_up
from command import QUICK, Outcome
from fairfate import InputError, Run, run
from fairfate.data.groups import Groups
from fairfate.experiments.baselines import COLUMNS, PooledBaseline
from fairfate.experiments.live import StrategyRounds, Writer, header, live_file
from fairfate.fairness.metrics import METRICS, selection_rate
from fairfate.fairness.objective import fairness_by
from fairfate.fairness.thresholds import BINS
from fairfate.federation.seeds import Streams
from fairfate.federation.split import split_rows
from fairfate.report.audit import (
    ABOVE,
    BELOW,
    COLLAPSED_MODEL,
    TOO_FEW,
    UNCLEAR,
    UNTRAINED_MODEL,
    audits,
)
from fairfate.report.charts import _last_defined, _thresholds, chart_data, deviation, mean, natural, quantised
from fairfate.report.contents import contents
from fairfate.report.data import ReportData
from fairfate.report.page import report, write_card
from fairfate.report.picture import RATES, group_rates, points
from fairfate.results.details import read_final
from fairfate.results.folder import REPORT_FILES
from fairfate.results.tables import counts_of, histograms_of, read_rounds
from fairfate.strategies import parse_spec

Call = Callable[..., Outcome]
HOSTILE = '</script><img src=x onerror="alert(1)">'

TWO = ("fedavg", "fair_fate")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two attributes, three seeds, three strategies, one of them with thresholds."""
    folder = tmp_path_factory.mktemp("data")
    file = made_up.write(made_up.census(4000).drop(columns="Unnamed: 0"), folder / "census.csv")
    return run(
        data=str(file),
        target="rich",
        sensitive=("sex", "race"),
        strategies=("fedavg", "fair_fate", "fedavg+thresholds"),
        seeds=3,
        rounds=40,
        learning_rate=0.1,
        partition="random",
        jobs=1,
        out=folder / "run",
    )


@pytest.fixture(scope="module")
def folder(finished: Run) -> Path:
    assert finished.out is not None
    return finished.out


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return contents(ReportData.read([folder])[0])


def group_counts(*groups: tuple[int, int, int, int]) -> np.ndarray:
    """(1, groups, 2, 2) counts of true negatives, false positives, false negatives, true positives."""
    return np.array(groups, dtype=np.int64).reshape(1, -1, 2, 2)


def sexes(*names: str) -> Groups:
    return Groups.single("sex", names)


# --- the audit


def test_rates_and_intervals_are_those_of_statsmodels() -> None:
    counts = group_counts((300, 100, 40, 160), (200, 150, 20, 230))
    (audit,) = audits(counts, sexes("f", "m"))
    assert audit.shown["people"].tolist() == [[600, 600]]
    assert audit.shown["selected"].tolist() == [[260, 380]]
    for name, part, whole in (("selection_rate", 260, 600), ("tpr", 160, 200), ("fpr", 100, 400)):
        value = audit.rates[name]
        assert value.value[0, 0] == pytest.approx(part / whole)
        expected = proportion_confint(part, whole, method="wilson")
        assert (value.low[0, 0], value.high[0, 0]) == pytest.approx(expected)
    assert audit.ratios["selection_rate"].value[0].tolist() == pytest.approx([260 / 380, 1])


def test_the_verdicts_ratios_are_those_of_fairlearn() -> None:
    rng = np.random.default_rng(1)
    y, text, sex = rng.integers(0, 2, 900), rng.integers(0, 2, 900), rng.integers(0, 3, 900)
    counts = np.array(
        [[[np.sum((sex == g) & (y == a) & (text == b)) for b in (0, 1)] for a in (0, 1)] for g in range(3)]
    )
    (audit,) = audits(counts[None], sexes("a", "b", "c"))
    sp, eo, eqo = audit.verdicts(0)
    features = {"sensitive_features": sex}
    assert sp.value == pytest.approx(demographic_parity_ratio(y, text, **features))
    tpr, fpr = (
        min(rates) / max(rates)
        for rates in ([np.mean(text[(sex == g) & (y == a)]) for g in range(3)] for a in (1, 0))
    )
    assert min(tpr, fpr) == pytest.approx(equalized_odds_ratio(y, text, **features))
    assert (eo.value, eqo.value) == pytest.approx((tpr, (tpr + fpr) / 2))
    for item in (sp, eo, eqo):
        assert item.low <= item.value <= item.high


@pytest.mark.parametrize(
    ("accepted", "message"),
    [((9000, 9300), ABOVE), ((3000, 6000), BELOW)],
)
def test_a_verdict_needs_the_whole_interval(accepted: tuple[int, int], message: str) -> None:
    """With a model that has skill: 80 % of those accepted have the favourable outcome."""
    counts = group_counts(*((10_000 - n, n // 5, 2000, n * 4 // 5) for n in accepted))
    (audit,) = audits(counts, sexes("f", "m"))
    assert audit.verdicts(0)[0].sentence == message


def test_few_people_give_an_inconclusive_verdict() -> None:
    counts = group_counts((40, 10, 10, 40), (42, 8, 10, 40))
    assert audits(counts, sexes("f", "m"))[0].verdicts(0)[0].sentence == UNCLEAR
    fewer = group_counts((2, 1, 1, 3), (42, 8, 10, 40))
    verdict = audits(fewer, sexes("f", "m"), 10)[0].verdicts(0)[0]
    assert verdict.sentence == TOO_FEW
    assert verdict.left_out == ("f",)


def test_a_collapsed_model_gets_no_praise_for_its_ratio() -> None:
    counts = group_counts((0, 500, 0, 500), (0, 600, 0, 400))
    sp = audits(counts, sexes("f", "m"))[0].verdicts(0)[0]
    assert sp.value == 1
    assert sp.sentence == COLLAPSED_MODEL


def test_small_and_unknown_categories_are_left_out_of_ratios() -> None:
    counts = group_counts((300, 100, 40, 160), (200, 150, 20, 230), (9, 1, 0, 9), (0, 50, 0, 50))
    (audit,) = audits(counts, sexes("f", "m", "(small groups)", "(missing)"))
    assert audit.compared["selection_rate"][0].tolist() == [True, True, False, False]
    sp = audit.verdicts(0)[0]
    (pair,) = sp.pairs
    assert (pair.least, pair.most, sp.left_out) == ("f", "m", ("(small groups)",))
    assert np.isnan(audit.ratios["selection_rate"].value[0, 2:]).all()
    by_attribute = fairness_by(counts, sexes("f", "m", "(small groups)", "(missing)"), ("sex",))
    assert by_attribute["sp"][0] == pytest.approx(sp.value)


def test_no_rate_at_all_counts_as_equal() -> None:
    (audit,) = audits(group_counts((60, 0, 40, 0), (70, 0, 30, 0)), sexes("f", "m"))
    assert audit.ratios["selection_rate"].value[0].tolist() == [1, 1]


# --- the answer


def test_the_answer_is_the_runs_recommended_model(finished: Run, told: dict[str, Any]) -> None:
    best, take = finished.best, told["answer"]["take"]
    assert best is not None
    assert (take["strategy"], take["seed"]) == (best.name, best.seed)
    assert (finished.out / take["file"]).is_file()  # type: ignore[operator]
    others = {item["strategy"] for item in told["answer"]["others"]}
    assert others | {take["strategy"]} == set(told["about"]["strategies"])


def test_the_numbers_are_those_of_that_model(finished: Run, folder: Path) -> None:
    told = contents(ReportData.read([folder], 0)[0])
    assert finished.best is not None
    rounds, best = finished.rounds, finished.best
    line = rounds["strategy"] == finished.plan.specs[best.line].label
    own = rounds[line & (rounds["seed"] == best.seed) & (rounds["split"] == "test")]
    (counts,) = counts_of(own[own["round"] == own["round"].max()])
    right = counts[:, 0, 0].sum() + counts[:, 1, 1].sum()
    measured = told["answer"]["measures"]["accuracy"]
    assert measured["value"] == pytest.approx(right / counts.sum())
    low, high = proportion_confint(right, counts.sum(), method="wilson")
    assert (measured["low"], measured["high"]) == pytest.approx((low, high))
    assert sum(row["people"] for row in told["audit"][0]["rows"]) == counts.sum()


def test_crossed_groups_are_audited_too(told: dict[str, Any]) -> None:
    assert [value["attribute"] for value in told["audit"]] == ["sex", "race", "sex x race"]
    assert {item["attribute"] for item in told["answer"]["fairness"]} == {"sex", "race", "sex x race"}


def test_strategies_are_tested_against_the_recommended_one(told: dict[str, Any], folder: Path) -> None:
    from scipy.stats import t

    taken, rows = told["answer"]["take"]["strategy"], told["tests"]["rows"]
    assert {row["against"] for row in rows} == {taken}
    assert {row["strategy"] for row in rows} == set(told["about"]["strategies"]) - {taken}
    material = ReportData.read([folder])[0]
    row = next(row for row in rows if row["metric"] == "accuracy")
    own, other = (
        material.per_seed("accuracy", material.names.index(row[key])) for key in ("strategy", "against")
    )
    assert row["value"] == pytest.approx(np.mean(own - other))
    n = len(own)
    seeds = np.var(own - other, ddof=1) * (1 / n + 1 / 3)  # Nadeau and Bengio: with test/train
    first, second = (material.names.index(row[key]) for key in ("strategy", "against"))
    people = material.variance_of_difference("accuracy", first, second)  # all seeds have the same test rows
    assert 0 < people < material.variance_over_people("accuracy", first)
    freedom = int((n - 1) * ((seeds + people) / seeds) ** 2)
    score = abs(row["value"]) / np.sqrt(seeds + people)
    assert row["p"] == pytest.approx(2 * t.sf(score, min(freedom, 200)))
    assert row["p-adjusted"] >= row["p"]


def test_one_seed_tests_nothing(tmp_path: Path) -> None:
    run(data="synthetic:rows=400", rounds=3, seeds=(1,), jobs=1, out=tmp_path / "o")
    told = contents(ReportData.read([tmp_path / "o"])[0])
    assert all(row["p"] is None for row in told["tests"]["rows"])
    assert told["answer"]["measures"]["accuracy"]["seeds"]["low"] is None


def test_no_model_of_a_collapsed_run_is_recommended(tmp_path: Path) -> None:
    run(
        data="synthetic:rows=400",
        strategies=("fedavg", "fair_fate"),
        rounds=1,
        epochs=1,
        learning_rate=1e-6,
        seeds=2,
        jobs=1,
        out=tmp_path / "o",
    )
    told = contents(ReportData.read([tmp_path / "o"])[0])
    assert told["answer"]["take"] is None
    assert {item["strategy"] for item in told["answer"]["collapsed"]} == {"fedavg", "fair_fate"}
    assert ABOVE not in {item["verdict"] for item in told["answer"]["fairness"]}
    page = report([tmp_path / "o"]).read_text("utf-8")
    assert "No model can be recommended" in page
    assert "reaches the threshold</span>" not in page


def test_no_model_without_a_round_that_counted_is_recommended(tmp_path: Path) -> None:
    """Seed 2: the model that training begins with has an MCC of 0.41 here, and is the fairer one."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(BROKEN, "utf-8")
    folder = tmp_path / "o"
    options: dict[str, Any] = {"data": "synthetic:rows=600", "rounds": 5, "plugins": plugin, "jobs": 1}
    finished_run = run(**options, strategies=("broken", "broken+thresholds"), seeds=(2,), out=folder)
    assert finished_run.best is None
    assert not (folder / "models" / "best.safetensors").exists()
    (material,) = ReportData.read([folder])
    assert material.collapsed[0] == 0
    assert material.untrained == [1, 1]
    told = contents(material)
    assert told["answer"]["take"] is None
    assert {item["verdict"] for item in told["answer"]["fairness"]} == {UNTRAINED_MODEL}
    reasons = {item["reason"] for item in told["answer"]["others"]}
    assert reasons == {"no round counted in 1 of 1 seeds"}
    page = report([folder]).read_text("utf-8")
    assert "No round counted: every one was discarded" in page
    assert "reaches the threshold</span>" not in page
    card = write_card([folder]).read_text("utf-8")
    assert "was not trained in 1 of 1 seeds: no round counted" in card
    assert "**No model of this run can be recommended.**" in card


BROKEN = """
import numpy as np
from fairfate.strategies import ModelState, Strategy, register

@register("broken", summary="makes models that are not finite", reference="none")
def broken(setup):
    return Strategy(ModelState, lambda state, cohort: ModelState(np.full_like(state.params, np.nan)))
"""


def test_fairness_threshold_of_the_user_is_used(folder: Path) -> None:
    material = ReportData.read([folder])[0]
    strict, lenient = (contents(material, line)["answer"]["fairness"] for line in (0.999, 0.01))
    assert {item["verdict"] for item in strict} <= {BELOW, UNCLEAR, TOO_FEW}
    assert {item["verdict"] for item in lenient if item["low"] and item["low"] > 0.01} == {ABOVE}


def scores_of(finished: Run, strategy: str, seed: int, features: np.ndarray) -> np.ndarray:
    model = finished.model(strategy, seed)
    return model.margins(model.schema.encoder.transform(features))


def test_auc_is_that_of_the_scores_on_the_test_rows(finished: Run, told: dict[str, Any]) -> None:
    shown, table = told["answer"]["shown"], finished.table
    _, _, test = split_rows(table, Streams(shown["seed"]))
    scores = scores_of(finished, shown["strategy"], shown["seed"], table.features[test])
    expected = roc_auc_score(table.label[test], scores)
    assert expected > 0.6
    assert told["answer"]["measures"]["auc"]["value"] == pytest.approx(expected, abs=2e-3)


def test_importances_are_falls_of_the_auc_without_a_column(finished: Run, told: dict[str, Any]) -> None:
    shown, table, rows = told["answer"]["shown"], finished.table, told["importances"]
    _, _, test = split_rows(table, Streams(shown["seed"]))
    drops = [row["drop"] for row in rows]
    assert drops == sorted(drops, reverse=True)
    rng, falls = np.random.default_rng(1), []
    for row in (rows[0], rows[-1]):
        features = table.features[test].copy()
        column = table.feature_names.index(row["column"])
        whole = roc_auc_score(
            table.label[test], scores_of(finished, shown["strategy"], shown["seed"], features)
        )
        features[:, column] = rng.permutation(features[:, column])
        without = scores_of(finished, shown["strategy"], shown["seed"], features)
        falls.append(whole - roc_auc_score(table.label[test], without))
    assert falls[0] > 0.03
    assert [drops[0], drops[-1]] == pytest.approx(falls, abs=0.03)


def test_report_names_the_outcome_and_the_day_and_the_users_file(
    finished: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1900000000")  # a report of a later day
    page = report([folder], tmp_path / "r.html").read_text("utf-8")
    told = json.loads((tmp_path / "r.json").read_text("utf-8"))["parts"][0]
    digest = hashlib.sha256(Path(finished.config["data"]).read_bytes()).hexdigest()
    assert told["about"]["date"] == "2027-01-15"
    assert told["settings"][0]["provenance"]["sha256"] == digest
    facts = page[page.index('<p class="facts">') : page.index("<nav")]
    for text in ("2027-01-15", "rich = 1"):
        assert text in facts
    assert digest in page
    shown = re.sub(r"(?s)<(script|style).*?</\1>", "", page)
    assert "accepted" not in shown.lower()


def test_results_do_not_depend_on_the_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for name, day in (("a", "1800000000"), ("b", "1900000000")):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", day)
        options: dict[str, Any] = {"data": "synthetic:rows=300", "rounds": 3, "seeds": (1,), "jobs": 1}
        run(**options, strategies=("fedavg",), out=tmp_path / name)
        paths = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        files.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in paths})
    assert files[0].pop("date.txt") != files[1].pop("date.txt")
    assert files[0] == files[1]


def test_first_screen_is_a_sentence_and_pictures_before_other_text(folder: Path, tmp_path: Path) -> None:
    page = report([folder], tmp_path / "r.html").read_text("utf-8")
    answer = page[page.index('class="answer"') :]
    first, rest = answer.split('<div class="pictures">')
    assert first.count('<p class="lead">') == 1
    assert first.count("<p") == 2
    assert rest.index("<svg") < rest.index("<p")
    assert rest[: rest.index("</div>")].count("<svg") == 2


def test_intervals_say_what_they_are_over(folder: Path, tmp_path: Path) -> None:
    page = report([folder], tmp_path / "r.html").read_text("utf-8")
    tiles = page[page.index('<dl class="tiles">') :]
    tiles = tiles[: tiles.index("</dl>")]
    for tile in tiles.split("<dt>")[1:]:
        is_over_rows = [] if tile.startswith("AUC") else ["over test rows"]
        assert re.findall(r"over test rows|mean of the seeds", tile) == [*is_over_rows, "mean of the seeds"]


def test_picture_has_the_recommended_model_and_pooled_ones(folder: Path) -> None:
    (result,) = ReportData.read([folder])
    scores = dict.fromkeys(COLUMNS, 0.8)
    pooled = PooledBaseline("pooled logistic regression", 1, scores)
    collapsed = PooledBaseline("pooled gradient boosting", 1, scores | {"mcc": 0.0})
    told = contents(replace(result, baselines=(pooled, collapsed)))
    kinds = {point.name: point.kind for point in points(told)}
    assert kinds[told["answer"]["take"]["strategy"]] == "recommended"
    assert kinds[pooled.name] == "pooled"
    assert collapsed.name not in kinds
    assert {"fedavg", "fair_fate"} <= set(kinds)
    drawn = group_rates(told["audit"][0], "fedavg")
    for text in (*RATES.values(), *(row["group"] for row in told["audit"][0]["rows"])):
        assert f">{text}</text>" in drawn


# --- what a run keeps for it


def test_scores_and_decisions_agree_with_the_counts_of_the_last_round(finished: Run, folder: Path) -> None:
    final, rounds = read_final(folder, len(finished.grouping)), read_rounds(folder)
    assert final is not None
    assert final.local is not None
    test = rounds[(rounds["split"] == "test") & (rounds["round"] == rounds["round"].max())]
    expected = {(s, m): c for s, m, c in zip(test["strategy"], test["seed"], counts_of(test), strict=True)}
    first = final.scores[final.scores["bin"] == 0]
    for row, histogram in zip(first.itertuples(), histograms_of(final.scores), strict=True):
        counts = expected[row.strategy, row.seed]
        assert histogram.sum(axis=2).tolist() == counts.sum(axis=2).tolist()
        if row.strategy == "fedavg+thresholds":
            continue  # its cuts lie between the bins
        accepted = histogram[:, :, BINS // 2 :].sum(axis=2)
        assert accepted.tolist() == counts[:, :, 1].tolist()
    clients = counts_of(final.local).sum(axis=(1, 2, 3))
    per_model = final.local.assign(rows=clients).groupby(["strategy", "seed"])["rows"].sum()
    for (_, seed), rows in per_model.items():
        train, _, _ = split_rows(finished.table, Streams(seed))
        assert rows == len(train)


def test_models_with_thresholds_keep_them(finished: Run, folder: Path) -> None:
    final = read_final(folder, len(finished.grouping))
    assert final is not None
    own = final.scores[final.scores["strategy"] == "fedavg+thresholds"]
    for seed in (1, 2, 3):
        cuts = finished.model("fedavg+thresholds", seed).thresholds
        kept = own[own["seed"] == seed].iloc[0]
        for g, cut in enumerate(np.asarray(cuts)):
            assert kept[f"cut_{g}"] == pytest.approx(1 / (1 + np.exp(-cut)))


# --- files


def test_a_run_ends_with_its_report(fairfate: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = fairfate("run", *QUICK, "--out", "o")
    assert outcome.code == 0
    assert outcome.out.rstrip().endswith("Report: o/report.html")
    assert {"report.html", "report.json", "report-audit.csv", "report-tests.csv"} <= {
        path.name for path in Path("o").iterdir()
    }
    assert fairfate("run", *QUICK, "--out", "p", "--no-report").code == 0
    assert not Path("p/report.html").exists()


def test_the_same_run_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        report([folder], tmp_path / f"{name}.html")
        files = sorted(tmp_path.glob(f"{name}*"))
        assert len(files) == 4
        digests.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in files])
    assert digests[0] == digests[1]


def test_json_and_csv_say_the_same_as_the_page(folder: Path, tmp_path: Path) -> None:
    page = report([folder], tmp_path / "r.html").read_text("utf-8")
    told = json.loads((tmp_path / "r.json").read_text("utf-8"))["parts"][0]
    for item in told["answer"]["fairness"]:
        if item["value"] is not None:
            assert f"{item['value']:.3f} <span" in page
    rows = list(csv.DictReader((tmp_path / "r-audit.csv").read_text("utf-8").splitlines()))
    shown = told["answer"]["shown"]
    own = [row for row in rows if row["strategy"] == shown["strategy"] and int(row["seed"]) == shown["seed"]]
    for value in told["audit"]:
        for row in value["rows"]:
            (result,) = (
                r for r in own if r["group"] == row["group"] and r["attribute"] == value["attribute"]
            )
            assert result["selected"] == str(row["selected"])
            assert float(result["selection_rate"]) == pytest.approx(row["selection_rate"]["value"])
    tests = list(csv.DictReader((tmp_path / "r-tests.csv").read_text("utf-8").splitlines()))
    assert len(tests) == len(told["tests"]["rows"])


def test_from_python(finished: Run, folder: Path, tmp_path: Path) -> None:
    path = finished.report(tmp_path / "page.html", fair_from=0.9)
    assert "Against 0.9" in path.read_text("utf-8")
    made = finished.report()
    assert made == folder / "report.html"
    with pytest.raises(InputError, match="out must be an HTML file for a run without a folder"):
        run(data="synthetic:rows=200", rounds=1, seeds=(1,), jobs=1).report()


def test_a_model_card(folder: Path) -> None:
    text = write_card([folder]).read_text("utf-8")
    head, body = text.split("---\n", 2)[1:]
    assert "library_name: fairfate" in head
    told = contents(ReportData.read([folder])[0])
    assert f"{told['answer']['measures']['accuracy']['value']:.3f}" in body
    for row in told["audit"][1]["rows"]:
        assert f"| {row['group']} | {row['people']:,} |" in body
    (folder / "model-card.md").unlink()


def test_several_runs_on_the_same_data_are_one_comparison(tmp_path: Path) -> None:
    for name, seeds in (("a", 2), ("b", 2)):
        run(data="synthetic:rows=400", strategies=TWO, rounds=3, seeds=seeds, jobs=1, out=tmp_path / name)
    run(data="synthetic:rows=500", strategies=TWO, rounds=3, seeds=1, jobs=1, out=tmp_path / "c")
    parts = ReportData.read([tmp_path / name for name in "abc"])
    assert [part.names for part in parts] == [
        ["fedavg [a]", "fair_fate [a]", "fedavg [b]", "fair_fate [b]"],
        ["fedavg", "fair_fate"],
    ]
    first = contents(parts[0])
    assert len(first["audit"][0]["rows"]) == 2
    assert first["answer"]["take"]["file"] is None if first["answer"]["take"] else True
    page = report([tmp_path / name for name in "abc"], tmp_path / "all.html").read_text("utf-8")
    assert page.count('class="part"') == 2


def test_a_new_run_by_force_leaves_no_old_report(fairfate: Call, tmp_path: Path) -> None:
    out = tmp_path / "o"
    assert fairfate("run", *QUICK, "--out", str(out)).code == 0
    assert fairfate("report", str(out), "--card").code == 0
    assert fairfate("run", *QUICK, "--out", str(out), "--force", "--no-report").code == 0
    assert not [name for name in REPORT_FILES if (out / name).exists()]


# --- bad input


@pytest.mark.parametrize("name", ["rounds.parquet", "scores.parquet", "local.parquet", "clients.parquet"])
def test_a_damaged_file_is_named(name: str, fairfate: Call, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink(missing_ok=True)
    damaged = tmp_path / "run" / name
    damaged.write_bytes(damaged.read_bytes()[:200])
    outcome = fairfate("report", str(tmp_path / "run"))
    assert outcome.code == 2
    assert f"readable {name}" in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "run must be the folder of a finished run, got 'nowhere'"),
        (["."], "run must be the folder of a finished run, got '.'"),
        (["RUN", "--fair-from", "0"], "fair-from must be in (0, 1], got 0"),
        (["RUN", "--fair-from", "nan"], "fair-from must be in (0, 1], got nan"),
        (["RUN", "--fair-from", "x"], "must be a number, got 'x'"),
        (["RUN", "--out", "page.pdf"], "out must be an HTML file, got 'page.pdf'"),
    ],
)
def test_errors_name_the_rule(
    arguments: list[str],
    message: str,
    fairfate: Call,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = fairfate("report", *(str(folder) if word == "RUN" else word for word in arguments))
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    assert not list(tmp_path.iterdir())


def test_names_are_never_markup(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names = [HOSTILE, "שלום עולם", "x" * 300, "{{7*7}} **b** | `c`"]
    n = 800
    frame = pd.DataFrame({"age": rng.normal(size=n), "who": rng.choice(names, n)})
    frame["y"] = np.where(frame["age"] + rng.normal(size=n) > 0, "yes", "no")
    out = tmp_path / "o"
    run(data=frame, target="y", favourable="yes", sensitive="who", rounds=5, seeds=2, jobs=1, out=out)
    page = report([out]).read_text("utf-8")
    assert HOSTILE not in page
    assert "<img" not in page
    assert "{{7*7}}" in page
    assert "שלום עולם" in page
    assert "x" * 300 in page
    told = json.loads((out / "report.json").read_text("utf-8"))
    assert {row["group"] for row in told["parts"][0]["audit"][0]["rows"]} == set(names)
    card = write_card([out]).read_text("utf-8")
    assert HOSTILE not in card
    assert "| \\{" not in card


# --- packing


def test_quantised_numbers_are_near_the_true_ones() -> None:
    import base64

    values = np.array([0.1, np.nan, 0.7324, 1.0, -0.2])
    packed = quantised(values)
    steps = np.frombuffer(base64.b64decode(packed["data"]), dtype="<u2").astype(float)
    back = np.where(steps == 65535, np.nan, packed["low"] + steps * packed["step"])
    np.testing.assert_allclose(back, values, atol=1e-5)
    assert quantised(np.array([np.nan]))["low"] == 0


def test_clients_are_in_the_order_that_people_count() -> None:
    assert sorted(["client 10", "client 2", "b", "client 1"], key=natural) == [
        "b",
        "client 1",
        "client 2",
        "client 10",
    ]


# --- runs that have not finished


def begun(folder: Path, amount: dict[int, int], rounds: int = 50) -> Path:
    """The folder of a run that is in its rounds ``done``, by seed."""
    groups = Groups.single("sex", ("f", "m"))
    specs = [parse_spec(text, "eqo") for text in ("fedavg", "fair_fate")]
    for seed, last in amount.items():
        key = {"dataset": "d", "partition": "random", "protocol": "paper", "seed": seed}
        writer = Writer(live_file(folder, seed), header(key, rounds, specs, groups), seconds=0.0)
        counts = np.array([[[300, 100], [40, 160]], [[200, 150], [20, 230]]])
        each = [counts + t for t in range(1, last + 1)]
        writer.add(last, lambda first, each=each: [StrategyRounds(each, each, [{}] * len(each))] * 2)
    seeds = ", ".join(map(str, amount))
    (folder / "config.toml").write_text(f'data = "d"\nrounds = {rounds}\nseeds = [{seeds}]\n')
    return folder


def test_an_unfinished_run_reports_what_there_is(tmp_path: Path, fairfate: Call) -> None:
    folder = begun(tmp_path / "run", {1: 12, 2: 30})
    (result,) = ReportData.read([folder], unfinished=True)
    told = contents(result)
    assert told["unfinished"] == {"1": [12, 50], "2": [30, 50]}
    assert told["about"]["rounds"] == 12  # as far as both are
    assert told["answer"]["take"] is None
    assert chart_data(result, 0.8)["rounds"][-1] == 30  # the charts show all
    assert fairfate("report", str(folder)).code == 0
    page = (folder / "report.html").read_text("utf-8")
    assert "This run has not finished" in page
    assert "seed 2: round 30 of 50" in page
    assert "No model yet" in page
    assert fairfate("report", str(folder), "--card").code == 0
    assert "has not finished" in (folder / "model-card.md").read_text("utf-8")


def test_finished_seeds_count_where_there_are_some(tmp_path: Path) -> None:
    (result,) = ReportData.read([begun(tmp_path / "run", {1: 50, 2: 3})], unfinished=True)
    assert contents(result)["about"]["rounds"] == 50
    assert [model for model in result.models if model[1] == 2] == []
    assert result.seeds == [1, 2]


def test_a_run_that_has_just_begun_says_so(tmp_path: Path, fairfate: Call) -> None:
    folder = begun(tmp_path / "run", {1: 1})
    shutil.rmtree(folder / "live")
    outcome = fairfate("report", str(folder))
    assert outcome.code == 2
    assert "try again in a few seconds" in " ".join(outcome.err.split())


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(200, 200), (100, 2000)])
def test_the_interval_of_equalized_odds_covers(sizes: tuple[int, ...]) -> None:
    """The mean of two ratios: simulated groups with known rates."""
    rng, times = np.random.default_rng(5), 800
    tpr, fpr = rng.uniform(0.3, 0.95, (times, 2)), rng.uniform(0.05, 0.5, (times, 2))
    positives = np.round(rng.uniform(0.3, 0.7, (times, 2)) * sizes).astype(int)
    negatives = np.array(sizes) - positives
    tp, fp = rng.binomial(positives, tpr), rng.binomial(negatives, fpr)
    counts = np.stack([negatives - fp, fp, positives - tp, tp], axis=-1).reshape(times, 2, 2, 2)
    (audit,) = audits(counts, sexes("f", "m"))
    true = [(r.min(axis=1) / r.max(axis=1)) for r in (tpr, fpr)]
    kept_rows = 0
    for n in range(times):
        eqo = audit.verdicts(n)[2]
        kept_rows += eqo.low <= (true[0][n] + true[1][n]) / 2 <= eqo.high
    assert 0.93 <= kept_rows / times <= 0.975


def test_numbers_over_seeds_leave_out_what_is_undefined() -> None:
    cube = np.array([[[0.2, np.nan, 0.4], [0.4, np.nan, np.nan]]])  # a strategy, two seeds, three rounds
    np.testing.assert_allclose(mean(cube), [[0.3, np.nan, 0.4]])
    np.testing.assert_allclose(deviation(cube), [[np.std([0.2, 0.4], ddof=1), np.nan, np.nan]])
    np.testing.assert_allclose(_last_defined(cube), [[0.4, 0.4]])


def test_thresholds_give_the_metrics_of_their_counts() -> None:
    rows = np.random.default_rng(1).integers(0, 9, size=(1, 2, 2, 256))
    groups = Groups.single("sex", ("f", "m"))
    result = _thresholds(rows, groups, ("sex",), 1)
    steps = {name: np.frombuffer(base64.b64decode(value["data"]), "<u2") for name, value in result.items()}
    values = {name: value["low"] + steps[name] * value["step"] for name, value in result.items()}
    refused = rows[0, :, :, : 4 * 20].sum(axis=-1)
    counts = np.stack([refused, rows[0].sum(axis=-1) - refused], axis=-1)
    metrics = values["metrics"].reshape(65, 7)[20]
    names = ("accuracy", "balanced_accuracy", "mcc", "selection_rate")
    expected = [METRICS[name](counts) if name in METRICS else selection_rate(counts) for name in names]
    expected += list(fairness_by(counts, groups, ("sex",), 1).values())
    np.testing.assert_allclose(metrics, expected, atol=2e-5)
    rates = values["rates"].reshape(65, 2, 3)[20]
    np.testing.assert_allclose(
        rates[:, 0], counts[..., 1].sum(axis=-1) / counts.sum(axis=(-2, -1)), atol=2e-5
    )
