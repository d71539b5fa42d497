"""Rules that are chosen after training: bounds tested on rows held out, and what users are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fairfate
from fairfate.engine.rules import lower_limit, reach_bound
from fairfate.errors import InputError
from fairfate.fairness.metrics import sp
from fairfate.models.fair_model import FairModel
from fairfate.report.data import ReportData
from fairfate.report.page import report
from fairfate.report.rule import bound_sentence, describe_rule
from fairfate.report.tables import remarks
from fairfate.storage import read_arrays, write_arrays
from fairfate.strategies import parse_spec
from fairfate.strategies.steps import parse_steps
from made_up import census, write

PRICED = "fedavg+average+tilt:metric=sp,margin=0,tolerance=0.1"
COMMON = "fedavg+average+common_threshold:metric=sp,tolerance=0.1,margin=0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fairfate.Run:
    out = tmp_path_factory.mktemp("rules") / "run"
    strategies = ("fedavg+average", COMMON, PRICED)
    return fairfate.run(
        data="synthetic:rows=3000", strategies=strategies, rounds=15, seeds=(1,), jobs=1, out=out
    )


def last(run: fairfate.Run, strategy: str, split: str = "test") -> dict[str, float]:
    rows = run.rounds
    rows = rows[(rows["split"] == split) & (rows["strategy"] == strategy)]
    return rows[rows["round"] == rows["round"].max()].iloc[0].to_dict()


def test_rules_for_everybody_are_fairer_within_the_tolerance(run: fairfate.Run) -> None:
    plain, common, tilted = (
        last(run, f"fedavg+average{rule}") for rule in ("", "+common_threshold", "+tilt")
    )
    assert tilted["sp"] > common["sp"] > plain["sp"]
    assert tilted["accuracy"] > plain["accuracy"] - 0.15


def test_file_of_a_tilted_score_decides_as_it_was_measured(run: fairfate.Run, tmp_path: Path) -> None:
    model = run.model("fedavg+average+tilt")
    assert not model.needs_groups
    assert "one rule for everybody" in repr(model)
    path = model.save(tmp_path / "model.safetensors")
    again = FairModel.load(path)
    assert again.tilt is not None
    assert model.tilt is not None
    assert again.tilt.rule.table.tolist() == model.tilt.rule.table.tolist()
    assert again.tilt.rule.prices == model.tilt.rule.prices
    assert again.about["rule"] == model.about["rule"]
    x = np.random.default_rng(0).normal(0, 1, (50, model.schema.encoder.inputs)).astype(np.float32)
    assert (again.margins(x) == model.margins(x)).all()
    for lacking in ("tilt.table", "tilt.prices", "tilt.group.w1"):
        arrays, about = read_arrays(path)
        del arrays[lacking]
        write_arrays(tmp_path / "part.safetensors", arrays, about)
        with pytest.raises(InputError):
            FairModel.load(tmp_path / "part.safetensors")


def test_excess_tells_the_decision_and_how_near_the_other_one_is(run: fairfate.Run) -> None:
    model = run.model("fedavg+average+tilt")
    assert model.tilt is not None
    rule = model.tilt.rule
    margins, guesses = np.random.default_rng(2).normal(0, 3, (2, 500))
    excess = rule.excess(margins, guesses)
    assert ((excess > 0) == rule.decide(margins, guesses)).all()
    near = np.isfinite(excess)
    beyond = margins[near] - excess[near] * (1 + 1e-6)
    assert (rule.decide(beyond, guesses[near]) != rule.decide(margins[near], guesses[near])).any()


def test_common_threshold_is_one_number_in_the_model(run: fairfate.Run) -> None:
    model = run.model("fedavg+average+common_threshold")
    assert model.thresholds is not None
    assert len(model.thresholds) == 1
    assert not model.needs_groups
    assert model.common_threshold == model.thresholds[0]


def test_report_says_how_is_decided_and_who_gains_and_loses(run: fairfate.Run) -> None:
    data = ReportData.from_runs([run])
    assert {name for name, _ in data.rules} == {"fedavg+average+common_threshold", "fedavg+average+tilt"}
    about = data.rules["fedavg+average+tilt", 1]
    changes = np.array(about["changes"])
    assert changes.sum() == np.array(about["guessed"]).sum() == 1800
    assert run.out is not None
    page = report([run.out], force=True).read_text("utf-8")
    assert "How it decides" in page
    assert "Everybody is decided by one" in page


def test_sensitive_column_among_the_inputs_is_noted(run: fairfate.Run) -> None:
    described = describe_rule(ReportData.from_runs([run]))
    assert described is not None
    inputs = run.model("fedavg+average+tilt").about["rule"]["group-inputs"]
    text = " ".join(described["says"])
    assert ("No group is needed at decisions." in text) == (not inputs)
    if inputs:
        assert f"--drop {inputs[0]}" in text
    assert all(row["gain"] is None or 0 <= row["gain"] <= 1 for row in described["rows"])


def counts(first: float, second: float, people: int = 1000) -> np.ndarray:
    """Two groups of whom such shares are accepted, three quarters of them rightly."""
    shares = [[0.5 * rate, 1.5 * rate] for rate in (first, second)]
    return np.array([[[round(people * (1 - s)), round(people * s)] for s in each] for each in shares])


def ladder(shown: list[float], held_out: list[float]):
    """Rules by number: what they have on the rows that they are chosen by, and on rows held out."""

    def choose(bound: float, slack: float) -> int:
        reaching = [number for number, value in enumerate(shown) if value >= bound - 1e-9]
        return reaching[-1] if reaching else 0

    return choose, (lambda n: counts(0.5 * shown[n], 0.5)), (lambda n: counts(0.5 * held_out[n], 0.5))


STEP = parse_steps(["tilt:metric=sp,bound=0.8"], "sp")[0]


def test_bound_takes_the_cheapest_rule_that_is_surely_fair_enough() -> None:
    """Rules get cheaper and less fair; the third is too near the bound to be sure of it."""
    shown = [0.99, 0.92, 0.84, 0.80]
    number, about = reach_bound(STEP, *ladder(shown, shown), sp)
    assert number == 1
    assert about["reached"]
    assert about["limit"] == pytest.approx(lower_limit(counts(0.5 * 0.92, 0.5), sp))
    assert 0.8 <= about["limit"] < 0.92


def test_bound_stops_at_the_first_rule_that_fails_on_rows_held_out() -> None:
    """A cheaper one that passes by luck is not looked at."""
    number, about = reach_bound(STEP, *ladder([0.99, 0.92, 0.86], [0.98, 0.7, 0.99]), sp)
    assert number == 0
    assert about["reached"]


def test_bound_that_cannot_be_reached_is_noted() -> None:
    _, about = reach_bound(STEP, *ladder([0.7, 0.6], [0.9, 0.9]), sp)
    assert (about["reached"], about["possible"]) == (False, False)
    _, about = reach_bound(STEP, *ladder([0.9, 0.85], [0.7, 0.9]), sp)
    assert (about["reached"], about["possible"]) == (False, True)
    assert about["limit"] < 0.8


def test_bound_of_a_difference_is_a_highest_value() -> None:
    step = parse_steps(["tilt:metric=sp,bound=0.1,measure=difference"], "sp")[0]
    number, about = reach_bound(
        step,
        *ladder([0.99, 0.9], [0.99, 0.9]),
        lambda given: 1 - np.abs(np.diff(given[..., 1].sum(-1) / 2000)[..., 0]),
    )
    assert number == 1
    assert about["reached"]
    assert about["limit"] <= 0.1


def test_lower_limit_is_below_most_samples_of_the_same_people() -> None:
    limit = lower_limit(counts(0.4, 0.5), sp)
    assert 0.74 < limit < 0.8


@pytest.mark.parametrize("step", ["common_threshold", "tilt", "thresholds:from=clients"])
def test_bound_is_reached_or_the_run_says_so(step: str) -> None:
    texts = [
        f"fedavg+average+{step}{',' if ':' in step else ':'}metric=sp,bound={bound}" for bound in (0.2, 1)
    ]
    run = fairfate.run(
        data="synthetic:rows=3000", strategies=(*texts, "fedavg+average"), rounds=10, seeds=(1,), jobs=1
    )
    low, high = (model.about["rule"] for model in run.models.values() if "rule" in model.about)
    assert not high["reached"]
    assert high["kind"] == low["kind"] == step.partition(":")[0]
    remarked = " ".join(remarks(ReportData.from_runs([run])))
    assert "The bound of 1 (SP) is not reached" in remarked
    if low["reached"]:
        assert low["limit"] >= 0.2


def test_one_answer_for_everybody_reaches_no_bound() -> None:
    nobody = np.array([[[1000, 0], [1000, 0]]] * 2)

    def surely_fair(given: np.ndarray) -> np.ndarray:
        return np.ones(given.shape[:-3])

    _, about = reach_bound(
        STEP, *ladder([0.99, 0.92], [0.99, 0.92])[:2], lambda number: nobody, lambda c: np.ones(c.shape[:-3])
    )
    assert (about["reached"], about["collapsed"]) == (False, True)
    assert "one answer to everybody" in bound_sentence({**about, "metric": "sp", "measure": "ratio"})


def test_bound_is_reached_at_less_cost_than_all_fairness() -> None:
    tilt = "fedavg+average+tilt:metric=sp,tolerance=0.1"
    run = fairfate.run(
        data="synthetic:rows=6000", strategies=(f"{tilt},bound=0.6", tilt), rounds=20, seeds=(1,), jobs=1
    )
    bounded, _ = (model.about["rule"] for model in run.models.values())
    assert bounded["reached"]
    assert bounded["limit"] >= 0.6
    (fairness, most), (accuracy, least) = (run.summary[f"{name}_last_mean"] for name in ("sp", "accuracy"))
    assert 0.6 <= fairness < most
    assert accuracy > least


@pytest.mark.parametrize(
    ("base", "options", "reason"),
    [("fair_fate", {}, "is trained by"), ("fedavg+average", {"early_stopping": 3}, "stops early by")],
)
def test_bound_is_not_tested_on_rows_that_have_chosen_the_model(
    base: str, options: dict[str, int], reason: str
) -> None:
    with pytest.raises(InputError, match=f"bound must be left out for .*{reason} the validation rows"):
        fairfate.run(
            data="synthetic:rows=300", strategies=(f"{base}+common_threshold:bound=0.8",), rounds=3, **options
        )


def test_bound_needs_rows_that_no_rule_was_chosen_by() -> None:
    with pytest.raises(InputError, match="from must be clients with a bound"):
        parse_spec("fedavg+thresholds:bound=0.8", "sp")


def test_more_groups_than_two_have_a_price_each_but_the_first(tmp_path: Path) -> None:
    run = fairfate.run(
        data=write(census(1500), tmp_path / "a.csv"),
        target="rich",
        sensitive=("age:30,50",),
        strategies="fedavg+tilt:metric=eqo",
        rounds=2,
        seeds=1,
        jobs=1,
    )
    model = run.model("fedavg+tilt")
    assert model.tilt is not None
    assert len(model.tilt.models) == len(model.groups) - 1 == 2
    assert np.shape(model.about["rule"]["prices"]) == (2, 2)
