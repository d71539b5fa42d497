"""The recommendation of a run is right, and no collapsed model is praised."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import fairfate
from command import QUICK
from fairfate.data.groups import Groups
from fairfate.engine.server import UNTRAINED
from fairfate.experiments.baselines import COLUMNS, PooledBaseline
from fairfate.fairness import metrics
from fairfate.fairness.objective import metrics_by
from fairfate.report.contents import contents
from fairfate.report.data import ReportData
from fairfate.report.page import card
from fairfate.report.picture import points
from fairfate.report.recommendation import _p_value, paired_tests, recommend
from fairfate.report.tables import format_tables, remarks
from fairfate.report.terminal import COLUMNS as COLUMNS_SHOWN
from fairfate.report.terminal import results_table, show_run
from fairfate.results.tables import count_columns

TWO = Groups.single("sex", ("f", "m"))
THREE = Groups.single("race", ("a", "b", "c"))
BOTH = Groups(("sex", "race"), (("f", "m"), ("a", "b")), ((0, 0), (0, 1), (1, 0), (1, 1)))


def counts(*groups: tuple[float, float], rows: int = 1000, positives: float = 0.3) -> np.ndarray:
    """(groups, 2, 2) from each group's true and false positive rate."""
    results = []
    for tpr, fpr in groups:
        ones = round(rows * positives)
        zeros = rows - ones
        results.append(
            [[zeros - round(zeros * fpr), round(zeros * fpr)], [ones - round(ones * tpr), round(ones * tpr)]]
        )
    return np.array(results)


UNFAIR, FAIR = counts((0.4, 0.05), (0.8, 0.2)), counts((0.7, 0.12), (0.7, 0.13))
BIT = counts((0.42, 0.06), (0.8, 0.2))
WEAK = counts((0.45, 0.3), (0.45, 0.3))
NOBODY, NEARLY = counts((0.0, 0.0), (0.0, 0.0)), counts((0.02, 0.02), (0.02, 0.02))


def compare(
    lines: Mapping[str, list[np.ndarray]],
    groups: Groups = TWO,
    metric: str = "eqo",
    rounds: int = 1,
    untrained: tuple[str, ...] = (),
    test: Mapping[str, list[np.ndarray]] | None = None,
) -> ReportData:
    """What strategies did in some seeds, in the last of some rounds alike; on the test rows as given."""
    rows = []
    known = metrics_by(groups)
    for strategy, seeds in lines.items():
        for seed in range(1, len(seeds) + 1):
            for split in ("validation", "test"):
                result = seeds[seed - 1] if split == "validation" else (test or lines)[strategy][seed - 1]
                for t in range(1, rounds + 1):
                    row = {"dataset": "d", "partition": "random", "protocol": "paper", "strategy": strategy}
                    row |= {"metric": None if strategy == "fedavg" else metric, "settings": json.dumps({})}
                    row |= {"seed": seed, "round": t, "split": split}
                    row |= {name: float(value(result)) for name, value in known.items()}
                    row["selection_rate"] = float(metrics.selection_rate(result))
                    row["notes"] = json.dumps({UNTRAINED: 1.0}) if strategy in untrained else None
                    rows.append(row | dict(zip(count_columns(len(groups)), result.ravel(), strict=True)))
    return ReportData(pd.DataFrame(rows), metric, (), groups)


def test_a_fairer_strategy_within_the_tolerance_is_recommended_with_its_price() -> None:
    answer = recommend(compare({"fedavg": [UNFAIR] * 5, "fair_fate": [FAIR] * 5}))
    assert answer.choice is not None
    assert answer.choice.name == "fair_fate"
    assert "EQO rises from 0.375 to 0.962, accuracy from 0.792 to 0.823" in answer.comparison
    assert [name for name, _ in answer.rejected] == ["fedavg"]
    assert answer.caveats == ()


def test_a_collapsed_strategy_is_never_recommended() -> None:
    data = compare({"fedavg": [UNFAIR] * 5, "fair_fate": [NOBODY] * 5})
    answer = recommend(data)
    assert answer.choice is not None
    assert answer.choice.name == "fedavg"
    assert dict(answer.rejected)["fair_fate"].startswith(
        "it collapsed on the validation rows of 5 of 5 seeds"
    )
    assert "It is fairer" not in " ".join(answer.paragraphs)
    assert data.best("eqo") == [True, False]
    assert data.best("accuracy") == [True, False]
    some = recommend(
        compare({"fedavg": [UNFAIR] * 4, "fair_fate": [FAIR] * 4, "fedval": [NOBODY] + [FAIR] * 3})
    )
    assert some.choice is not None
    assert some.choice.name == "fair_fate"


def test_a_strategy_that_loses_too_much_skill_is_rejected() -> None:
    answer = recommend(compare({"fedavg": [UNFAIR] * 3, "fair_fate": [WEAK] * 3}))
    assert answer.choice is not None
    assert answer.choice.name == "fedavg"
    assert "gives up 0.167 accuracy against fedavg" in dict(answer.rejected)["fair_fate"]
    assert answer.chance == ""


@pytest.mark.parametrize(("fpr", "lost", "name"), [(0.19, 0.0155, "fair_fate"), (0.204, 0.0255, "fedavg")])
def test_a_fairer_strategy_may_give_up_two_hundredths_of_accuracy(fpr: float, lost: float, name: str) -> None:
    data = compare({"fedavg": [UNFAIR] * 3, "fair_fate": [counts((0.7, fpr), (0.7, fpr))] * 3})
    assert data.mean("accuracy", 0) - data.mean("accuracy", 1) == pytest.approx(lost)
    choice = recommend(data).choice
    assert choice is not None
    assert choice.name == name


def test_one_rule_chooses_the_saved_and_the_reported_model(tmp_path: Path) -> None:
    run = fairfate.run(data="synthetic:rows=600", rounds=4, seeds=3, jobs=1, out=tmp_path / "run")
    (read,) = ReportData.read([tmp_path / "run"])
    assert recommend(read).choice == recommend(ReportData.from_runs([run])).choice == run.best


def test_the_seed_of_the_median_skill_is_taken() -> None:
    good, bad = counts((0.8, 0.1), (0.8, 0.1)), counts((0.6, 0.2), (0.6, 0.2))
    choice = compare({"fedavg": [good, FAIR, bad]}).recommended
    assert choice is not None
    assert choice.seed == 2


def test_thresholds_by_group_are_listed_apart_and_recommended_only_among_themselves() -> None:
    lines = {"fedavg": [UNFAIR] * 2, "fedavg+thresholds": [FAIR] * 2}
    answer = recommend(compare(lines))
    assert answer.choice is not None
    assert answer.choice.name == "fedavg"
    (caveat,) = answer.caveats
    assert "fedavg+thresholds has EQO 0.962" in caveat
    assert "law" in caveat
    alone = recommend(compare({"fedavg+thresholds": [FAIR] * 2}))
    assert alone.choice is not None
    assert "law" in alone.caveats[0]


def test_no_recommendation_says_what_to_try_next() -> None:
    answer = recommend(compare({"fedavg": [NOBODY] * 2, "fair_fate": [NOBODY] * 2}))
    assert answer.choice is None
    assert "--rounds" in answer.reason
    assert [name for name, _ in answer.rejected] == ["fedavg", "fair_fate"]
    lonely = FAIR.copy()
    lonely[0, 1] = 0
    undefined = recommend(compare({"fedavg": [lonely] * 2, "fair_fate": [lonely] * 2}))
    assert undefined.choice is None
    assert "--min-group" in undefined.reason
    untrained = recommend(compare({"fedavg": [FAIR] * 2}, untrained=("fedavg",)))
    assert untrained.choice is None
    assert "--clients" in untrained.reason


@pytest.mark.parametrize(("area", "is_said"), [(0.71, True), (0.52, False), (math.nan, False)])
def test_scores_of_collapsed_models_that_rank_people_are_named(area: float, is_said: bool) -> None:
    data = compare({"fedavg": [NOBODY] * 2, "fair_fate": [NOBODY] * 2})
    vars(data)["auc"] = np.array([area, area, math.nan, math.nan])
    assert ("The scores of fedavg do rank people (AUC 0.71" in recommend(data).reason) == is_said


@pytest.mark.parametrize("model", [NOBODY, FAIR])
def test_output_recommends_a_model_everywhere_or_nowhere(model: np.ndarray) -> None:
    data = compare({"fedavg": [model] * 2, "fair_fate": [model] * 2})
    out = io.StringIO()
    show_run(Console(file=out, width=200), data, saved_to=Path("run"))
    is_recommended = data.recommended is not None
    assert is_recommended == (model is FAIR)
    for text in ("Recommended: ", "Recommended model: ", "fedavg *"):
        assert (text in out.getvalue()) == is_recommended, text
    assert ("No model can be recommended" in out.getvalue()) != is_recommended


def test_pooled_model_that_collapsed_is_not_praised() -> None:
    scores = {"accuracy": 0.958, "mcc": 0.0, "eqo": 1.0}
    pooled = PooledBaseline("pooled logistic regression", 2, scores)
    changed = replace(compare({"fedavg": [NOBODY] * 2}), baselines=(pooled,))
    assert "logistic regression does no better: it collapsed" in recommend(changed).pooled
    assert "1.000" not in recommend(changed).pooled
    skilled = replace(changed, baselines=(pooled._replace(metrics=scores | {"mcc": 0.3}),))
    assert "collapsed" not in recommend(skilled).pooled


def test_a_model_below_the_majority_baseline_is_reported() -> None:
    low = counts((0.5, 0.3), (0.5, 0.3))
    (caveat,) = recommend(compare({"fedavg": [low] * 2})).caveats
    assert "majority baseline" in caveat
    assert "(0.700)" in caveat


def test_outcome_has_the_users_words() -> None:
    changed = replace(compare({"fedavg": [FAIR] * 2}), outcome="readmitted = N")
    screen = io.StringIO()
    show_run(Console(file=screen, width=100), changed)
    assert "readmitted = N" in screen.getvalue()
    assert "accepted" not in screen.getvalue()


def test_nothing_gained() -> None:
    answer = recommend(compare({"fedavg": [FAIR] * 3, "fair_fate": [UNFAIR] * 3}))
    assert answer.choice is not None
    assert answer.choice.name == "fedavg"
    assert "nothing" in answer.comparison


def test_plain_training_stays_without_a_clear_gain() -> None:
    data = compare({"fedavg": [UNFAIR] * 3, "fair_fate": [BIT] * 3})
    small = recommend(data)
    assert small.choice is not None
    assert small.choice.name == "fedavg"
    assert "0.412 against 0.375" in dict(small.rejected)["fair_fate"]
    noisy = recommend(compare({"fedavg": [UNFAIR, FAIR, UNFAIR], "fair_fate": [FAIR, UNFAIR, FAIR]}))
    assert noisy.choice is not None
    assert noisy.choice.name == "fedavg"
    assert "standard error" in dict(noisy.rejected)["fair_fate"]
    settings = recommend(compare({"fedval": [UNFAIR] * 3, "fair_fate": [BIT] * 3}))
    assert settings.choice is not None
    assert settings.choice.name == "fair_fate"  # no plain training to stay with


def test_what_others_gain_beside_plain_training_is_tested_too() -> None:
    bit = [counts((0.42 + step / 100, 0.06), (0.8, 0.2)) for step in range(4)]
    real = recommend(compare({"fedavg": [UNFAIR] * 4, "fair_fate": bit}))
    assert real.choice is not None
    assert real.choice.name == "fedavg"
    assert "fair_fate has 0.0" in real.chance
    noise = recommend(compare({"fedavg": [UNFAIR, FAIR, UNFAIR], "fair_fate": [FAIR, UNFAIR, UNFAIR]}))
    assert "smallest p = " in noise.chance
    assert "fair_fate has" not in noise.chance


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        (UNFAIR, "the whole interval is below 0.8"),
        (FAIR, "the whole interval is at or above 0.8"),
        (counts((0.6, 0.15), (0.75, 0.17), rows=300), "Inconclusive"),
    ],
)
def test_fairness_of_the_saved_model_is_compared_with_four_fifths(model: np.ndarray, verdict: str) -> None:
    assert verdict in recommend(compare({"fedavg": [model] * 3})).fairness


def test_of_several_attributes_the_worst_counts() -> None:
    codes = np.meshgrid(range(2), range(2), indexing="ij")
    groups, _ = Groups.cross(
        ("sex", "age"), (("f", "m"), ("old", "young")), [value.ravel() for value in codes]
    )
    model = counts((0.5, 0.1), (0.6, 0.2), (0.8, 0.3), (0.9, 0.4))
    data = compare({"fedavg": [model] * 2}, groups)
    assert data.mean("eqo", 0) == pytest.approx(float(metrics_by(groups)["eqo"](model)))
    assert data.mean("eqo", 0) == data.candidates[0].fairness
    assert f"EQO {data.mean('eqo', 0):.3f}" in recommend(data).fairness


def test_rates_of_few_people_do_not_count_in_any_number() -> None:
    groups = Groups.single("origin", ("a", "b", "c"))
    few = np.array([[[8, 1], [0, 50]]])  # c: nine rows without the favourable outcome
    data = compare({"fedavg": [np.concatenate([FAIR, few])] * 2}, groups)
    assert data.mean("eqo", 0) == pytest.approx((0.7 + 0.12 / 0.13) / 2, abs=1e-3)
    assert data.candidates[0].fairness == data.mean("eqo", 0)
    assert any("c (FPR)" in note for note in remarks(data))
    both = compare({"fedavg": [counts((0.5, 0.2), (0.6, 0.3), rows=20)] * 2})
    assert not math.isnan(both.mean("eqo", 0))  # where no two groups have enough, all count
    assert not any("FPR" in note for note in remarks(both))


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ([UNFAIR], [FAIR], "One seed cannot show whether"),
        ([UNFAIR] * 3, [FAIR] * 3, "cannot be tested"),
        ([UNFAIR, FAIR, UNFAIR], [FAIR] * 3, "may be chance"),
        (
            [UNFAIR, *[BIT] * 2, UNFAIR, BIT, UNFAIR],
            [FAIR] * 6,
            "unlikely to be",
        ),
    ],
)
def test_whether_a_gain_may_be_chance(
    first: list[np.ndarray], other: list[np.ndarray], expected: str
) -> None:
    data = compare({"fedavg": first, "fair_fate": other})
    answer = recommend(data)
    assert expected in answer.chance
    if "p = " in answer.chance:
        assert answer.choice is not None
        (row,) = [row for row in paired_tests(data, answer.choice.line)["rows"] if row["metric"] == "eqo"]
        assert f"p = {row['p-adjusted']:.3f}" in answer.chance


def test_strategies_of_different_seeds_are_not_tested() -> None:
    rounds = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2}).rounds
    other = np.where(rounds["strategy"] == "fedavg", rounds["seed"], rounds["seed"] + 5)
    assert "different seeds" in recommend(ReportData(rounds.assign(seed=other), "eqo", (), TWO)).chance


def test_a_strategy_without_a_round_that_counted_is_never_recommended() -> None:
    lines = {"fedavg": [UNFAIR] * 2, "fedval": [FAIR] * 2, "fair_fate": [UNFAIR] * 2}
    data = compare(lines, rounds=3, untrained=("fedval",))
    assert data.flaws == ["", "no round counted in 2 of 2", ""]
    assert data.recommended is not None
    assert data.recommended.name != "fedval"
    assert not data.best("accuracy")[1]
    assert any(note.startswith("no round counted: fedval in 2 of 2 seeds") for note in remarks(data))
    out = io.StringIO()
    show_run(Console(file=out, width=140), data)
    assert "(no round counted in 2 of 2)" in out.getvalue()


def test_the_objective_of_the_strategies_is_what_is_compared() -> None:
    data = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2}, metric="0.5*sp+0.5*eo")
    assert "0.5*sp+0.5*eo" in recommend(data).comparison


def test_small_and_missing_groups_do_not_steer() -> None:
    groups = Groups.single("sex", ("f", "m", "(missing)", "(small groups)"))
    apart = np.concatenate([FAIR, counts((0.1, 0.1), (1.0, 0.9), rows=10)])
    known = metrics_by(groups)
    assert float(known["eqo"](apart)) == float(metrics.METRICS["eqo"](FAIR))
    assert float(known["accuracy"](apart)) == float(metrics.METRICS["accuracy"](apart))
    counted = metrics_by(replace(groups, missing_counts=True))
    assert float(counted["eqo"](apart)) < float(known["eqo"](apart))


def test_pooled_baselines_are_shown_and_explained() -> None:
    data = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2})
    values = dict.fromkeys(COLUMNS, 0.612)
    pooled = replace(data, baselines=(PooledBaseline("pooled logistic regression", 2, values),))
    out = io.StringIO()
    show_run(Console(file=out, width=120), pooled)
    (row,) = (line for line in out.getvalue().splitlines() if line.startswith("logistic regression "))
    assert row.count("0.612") == len(COLUMNS) - 1  # the table has no AUC
    assert "accuracy 0.612" in recommend(pooled).pooled
    assert recommend(data).pooled == ""


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_the_majority_and_the_selection_rate(width: int) -> None:
    data = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [NOBODY] * 2})
    assert data.majority == pytest.approx(0.7)
    grid = results_table(data, width)
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in grid.columns}
    assert columns["selected"][:2] == (
        ["0.268±0.000", "0.000±0.000"] if width > 100 else [".27±.00", ".00±.00"]
    )
    assert columns["accuracy"][2].strip() in (".70", "0.700")
    assert [cell.endswith("*") for cell in columns["strategy"]] == [True, False, False]


@pytest.mark.parametrize(
    ("seeds", "told"),
    [((3, 3), "mean ± std over 3 seeds"), ((3, 2), "mean ± std over 2 to 3 seeds"), ((1, 1), "one seed")],
)
def test_the_title_says_how_many_seeds_there_are(seeds: tuple[int, int], told: str) -> None:
    screen = Console(file=io.StringIO(), width=120)
    show_run(screen, compare({"fedavg": [UNFAIR] * seeds[0], "fair_fate": [FAIR] * seeds[1]}))
    assert isinstance(screen.file, io.StringIO)
    assert f"d, split random: test rows, round 1, {told}\n" in screen.file.getvalue()


def test_runs_of_one_seed_each_are_titled_so() -> None:
    rounds = compare({"fedavg": [UNFAIR], "fair_fate": [FAIR]}).rounds
    other = np.where(rounds["strategy"] == "fedavg", 1, 2)
    screen = Console(file=io.StringIO(), width=120)
    show_run(screen, ReportData(rounds.assign(seed=other), "eqo", (), TWO))
    assert isinstance(screen.file, io.StringIO)
    assert "round 1, one seed each\n" in screen.file.getvalue()


def test_collapsed_models_are_counted_among_their_own_seeds() -> None:
    lines = {"fedavg": [UNFAIR] * 5, "fair_fate": [NOBODY, FAIR], "fedval": [FAIR] * 5}
    data = compare(lines)
    assert data.flaws == ["", "collapsed in 1 of 2", ""]
    assert any("collapsed: fair_fate in 1 of 2 seeds" in line for line in remarks(data))


def test_a_run_that_was_cut_short_is_reported() -> None:
    data = compare({"fedavg": [FAIR]}, rounds=20)
    assert not [line for line in remarks(data) if "not converged" in line]
    rising = data.rounds.assign(mcc=data.rounds["round"] / 100 + 0.2)
    cut = ReportData(rising, "eqo", (), TWO)
    assert remarks(cut)[-1].startswith("not converged: fedavg; more rounds or a larger learning rate")


def scored(curves: Sequence[np.ndarray]) -> bool:
    """Whether a strategy with these curves of MCC, one for each seed, is said to be still learning."""
    rounds = compare({"fedavg": [FAIR] * len(curves)}, rounds=len(curves[0])).rounds
    mcc = [
        curves[seed - rounds["seed"].min()][t - 1]
        for seed, t in zip(rounds["seed"], rounds["round"], strict=True)
    ]
    data = ReportData(rounds.assign(mcc=np.array(mcc)), "eqo", (), TWO)
    return any("not converged" in line for line in remarks(data))


@pytest.mark.slow
def test_only_a_gain_above_its_noise_means_not_converged() -> None:
    rng = np.random.default_rng(1)
    rising = np.linspace(0.0, 0.3, 50)
    assert scored([rising + rng.normal(0, 0.01, 50) for _ in range(5)])
    assert scored([rising])
    assert not scored([np.minimum(rising, 0.15)] * 5), "has converged"
    assert not scored([3 * rising, *[0.3 + rising / 100] * 4]), "most of it is one seed's"
    assert not scored([*[rising] * 7, *[0.3 - rising / 100] * 3]), "three seeds of ten do not rise"
    assert scored([*[rising] * 8, *[0.3 - rising / 100] * 2]), "eight do"
    noise = [scored([0.3 + rng.normal(0, 0.1, 50) for _ in range(5)]) for _ in range(40)]
    assert sum(noise) <= 2
    alone = [scored([0.3 + rng.normal(0, 0.1, 50)]) for _ in range(40)]
    assert sum(alone) <= 4


def test_an_objective_that_no_strategy_looks_at_is_measured_all_the_same(fairfate) -> None:
    outcome = fairfate(
        "run", *QUICK, "--metric", "worst(eo, sp)", "--strategy", "fedavg", "--strategy", "fedmom"
    )
    assert outcome.code == 0
    assert "undefined" not in outcome.out


def test_table_has_no_fairness_of_collapsed_models() -> None:
    pooled = PooledBaseline("pooled logistic regression", 2, dict.fromkeys(COLUMNS, 1.0) | {"mcc": 0.0})
    changed = replace(compare({"fedavg": [NOBODY] * 2, "fair_fate": [FAIR] * 2}), baselines=(pooled,))
    console = Console(file=io.StringIO(), width=100)
    console.print(results_table(changed, 100))
    lines = console.file.getvalue().splitlines()
    start = {line.split()[0]: len(line.split()) for line in lines if line.strip()}
    assert start["fedavg"] == 1 + 4
    assert start["fair_fate"] > 1 + 4
    assert sum("(collapsed" in line for line in lines) == 2


def test_a_much_fairer_strategy_that_costs_too_much_accuracy_is_named_as_a_trade_off() -> None:
    costly = counts((0.55, 0.25), (0.57, 0.26))
    answer = recommend(compare({"fedavg": [UNFAIR] * 3, "fair_fate": [costly] * 3}))
    assert answer.choice is not None
    assert answer.choice.name == "fedavg"
    assert any("fair_fate" in caveat for caveat in answer.caveats)
    similar = recommend(compare({"fedavg": [FAIR] * 3, "fair_fate": [costly] * 3}))
    assert not similar.caveats


def test_p_value_that_rounds_to_zero_is_below_a_thousandth() -> None:
    assert [_p_value(p) for p in (0.0, 6e-4, 0.001, 0.12)] == [
        "p < 0.001",
        "p < 0.001",
        "p = 0.001",
        "p = 0.120",
    ]


def test_model_that_collapsed_on_the_test_rows_is_not_praised() -> None:
    pooled = PooledBaseline("pooled logistic regression", 2, dict.fromkeys(COLUMNS, 0.8))
    data = replace(compare({"fedavg": [UNFAIR] * 2}, test={"fedavg": [NOBODY, UNFAIR]}), baselines=(pooled,))
    answer = recommend(data)
    assert answer.choice is not None
    assert answer.choice.seed == 1
    text = " ".join(answer.paragraphs)
    assert "it has not collapsed." not in text
    assert "EQO 1.000" not in text
    assert "fedavg has accuracy" in answer.pooled
    assert "EQO" not in answer.pooled.partition(";")[0]
    assert "the saved model collapsed" in answer.caveats[0]
    assert "collapsed on the test rows" in answer.fairness


def test_card_has_no_ratio_of_a_collapsed_model() -> None:
    data = compare({"fedavg": [UNFAIR] * 2}, test={"fedavg": [NOBODY, UNFAIR]})
    text = card(contents(data))
    assert "| Equalized odds | says nothing |" in text
    assert "in 1 of 2 seeds" in text
    assert "in 1 seeds" not in text


def test_saved_model_below_its_majority_baseline_is_reported() -> None:
    good, bad = counts((0.8, 0.02), (0.9, 0.05)), counts((0.7, 0.31), (0.7, 0.32))
    text = " ".join(
        recommend(compare({"fedavg": [BIT] * 5}, test={"fedavg": [good, good, bad, good, good]})).caveats
    )
    assert "the saved model's accuracy (0.6" in text


def test_collapsed_first_strategy_is_compared_with_nobody() -> None:
    lines = {"fedavg": [NOBODY] * 3, "fair_fate": [FAIR, BIT, FAIR]}
    answer = recommend(compare(lines))
    assert answer.choice is not None
    assert answer.choice.name == "fair_fate"
    assert "different seeds" not in answer.chance
    assert "fedavg collapsed in 3 of 3 seeds" in answer.chance
    assert "EQO 1.000 to" not in answer.comparison
    assert "accuracy" in answer.comparison


def test_pooled_models_are_compared_over_their_own_seeds() -> None:
    pooled = PooledBaseline("pooled logistic regression", 3, dict.fromkeys(COLUMNS, 0.5) | {"mcc": 0.4})
    lines = {"fedavg": [FAIR, FAIR, FAIR, UNFAIR, UNFAIR]}
    data = replace(compare(lines), baselines=(pooled,))
    text = recommend(data).pooled
    alike = float(data.per_seed("accuracy", 0)[0])  # in the first three seeds
    assert f"On the test rows fedavg has accuracy {alike:.3f}, EQO" in text
    assert "(means of 3 seeds); pooled logistic regression has accuracy 0.500, EQO 0.500" in text
    assert "5 seeds" not in text
    one = recommend(replace(data, baselines=(pooled._replace(seeds=1),))).pooled
    assert "(seed 1)" in one


@pytest.mark.parametrize("kind", ["latex", "markdown", "csv"])
def test_no_table_has_fairness_of_collapsed_models(kind: str) -> None:
    pooled = PooledBaseline("pooled logistic regression", 2, dict.fromkeys(COLUMNS, 0.987) | {"mcc": 0.0})
    data = compare({"fedavg": [UNFAIR, NOBODY], "fair_fate": [FAIR] * 2})  # the mean MCC is not small
    text = format_tables([replace(data, baselines=(pooled,))], kind, COLUMNS_SHOWN)
    first = next(line for line in text.splitlines() if "collapsed in 1 of 2" in line)
    assert f"{data.mean('accuracy', 0):.3f}" in first
    assert f"{data.mean('eqo', 0):.3f}" not in first
    baseline = next(line for line in text.splitlines() if "logistic" in line)
    assert "collapsed" in baseline
    assert baseline.count("0.987") == 3  # accuracy, balanced accuracy and selection rate
    console = Console(file=io.StringIO(), width=200)
    console.print(results_table(data, 200))
    line = next(line for line in console.file.getvalue().splitlines() if line.startswith("fedavg"))
    assert len(line.split()) == 1 + 4


def test_csv_says_which_strategy_is_recommended() -> None:
    data = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2})
    rows = pd.read_csv(io.StringIO(format_tables([data], "csv", COLUMNS_SHOWN)))
    assert list(rows["strategy"][rows["recommended"] == "yes"]) == ["fair_fate"]


def test_sentences_use_the_threshold_of_the_user() -> None:
    data = compare({"fedavg": [UNFAIR] * 2})
    told = contents(data, 0.9)["answer"]["saved"]
    assert "at least 0.9" in told
    assert "0.8" not in told
    assert "Four-fifths" not in told


def test_composite_objective_keeps_verdict_and_pooled_points() -> None:
    pooled = PooledBaseline("pooled logistic regression", 2, dict.fromkeys(COLUMNS, 0.7))
    lines = {"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2}
    data = replace(compare(lines, metric="eqo[min_count=30]"), baselines=(pooled,))
    told = contents(data)
    assert "EQO" in told["answer"]["saved"]
    assert "eqo[min_count=30] has no such interval" in told["answer"]["saved"]
    assert "pooled" in {point.kind for point in points(told)}


def test_intervals_of_rates_say_what_they_are_over() -> None:
    console = Console(file=io.StringIO(), width=120)
    show_run(console, compare({"fedavg": [UNFAIR] * 2}))
    assert "95 % intervals over people" in console.file.getvalue()
