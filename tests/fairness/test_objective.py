from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairfate.data.groups import Groups
from fairfate.errors import InputError
from fairfate.experiments.run import run
from fairfate.fairness import metrics
from fairfate.fairness.metrics import Counts
from fairfate.fairness.objective import (
    GroupMetric,
    bind,
    check_defined,
    metrics_by,
    parse_objective,
    small_groups,
)

TWO = Groups.single("sex", ("f", "m"))
FOUR = Groups(("sex", "race"), (("f", "m"), ("a", "b")), ((0, 0), (0, 1), (1, 0), (1, 1)))


def counts(groups: int, seed: int = 0, models: int = 5) -> Counts:
    return np.random.default_rng(seed).integers(1, 60, (models, groups, 2, 2))


@pytest.mark.parametrize("name", ["sp", "eo", "eqo", "accuracy", "balanced_accuracy", "f1"])
@pytest.mark.parametrize("published", [False, True])
def test_a_single_name_is_that_metric(name: str, published: bool) -> None:
    known = {**metrics.METRICS, **(metrics.PUBLISHED_FAIRNESS if published else {})}
    np.testing.assert_array_equal(bind(name, TWO, published=published)(counts(2)), known[name](counts(2)))


def test_combinations_by_hand() -> None:
    """METHODS: server (.95, .70); clients (.90, .80), (.99, .60), (.97, .72)."""

    def of(sp: float, eo: float) -> Counts:
        # label 1 alone, 10,000 rows a group: EO as told; label 0 makes up for SP
        tp = np.array([eo * 9000, 9000])
        fp = np.array([sp * 10000 - tp[0], 1000])
        return np.stack([[[20000 - fp[g], fp[g]], [10000 - tp[g], tp[g]]] for g in range(2)]).astype(np.int64)

    rows = np.stack([of(0.95, 0.7), of(0.9, 0.8), of(0.99, 0.6), of(0.97, 0.72)])
    results = {
        text: bind(text, TWO)(rows) for text in ("sp", "eo", "sp+eo", "worst(sp, eo)", "geometric(sp, eo)")
    }
    np.testing.assert_allclose(results["sp"], [0.95, 0.9, 0.99, 0.97], atol=1e-4)
    np.testing.assert_allclose(results["sp+eo"], [0.825, 0.85, 0.795, 0.845], atol=1e-4)
    np.testing.assert_allclose(results["worst(sp, eo)"], [0.7, 0.8, 0.6, 0.72], atol=1e-4)
    np.testing.assert_allclose(
        results["geometric(sp, eo)"], [0.815475, 0.848528, 0.770714, 0.835703], atol=1e-4
    )


def test_weights_are_shares() -> None:
    rows = counts(2)
    np.testing.assert_allclose(
        bind("3*sp+1*eo", TWO)(rows), 0.75 * metrics.sp(rows) + 0.25 * metrics.eo(rows), atol=1e-12
    )
    np.testing.assert_allclose(
        bind("0.5*sp+0.5*(eo+accuracy)", TWO)(rows),
        0.5 * metrics.sp(rows) + 0.25 * metrics.eo(rows) + 0.25 * metrics.accuracy(rows),
        atol=1e-12,
    )


def test_an_attribute_is_the_sum_over_the_others() -> None:
    rows = counts(4)
    by_sex = rows.reshape(5, 2, 2, 2, 2).sum(axis=2)
    by_race = rows.reshape(5, 2, 2, 2, 2).sum(axis=1)
    np.testing.assert_allclose(bind("sp@sex", FOUR)(rows), metrics.sp(by_sex))
    np.testing.assert_allclose(bind("eo@race", FOUR)(rows), metrics.eo(by_race))
    worst = np.minimum(metrics.eo(by_sex), metrics.eo(by_race))
    np.testing.assert_allclose(bind("worst(eo@sex, eo@race)", FOUR)(rows), worst)
    np.testing.assert_allclose(bind("eo", FOUR)(rows), worst)
    np.testing.assert_allclose(bind("eo@sex*race[shrink=0]", FOUR)(rows), metrics.eo(rows))


def test_small_combinations_are_shrunk_by_hand() -> None:
    """x = (40, 30, 2, 0) of n = (100, 100, 10, 3), m = 20: ratio .749398."""
    x, n = np.array([40, 30, 2, 0]), np.array([100, 100, 10, 3])
    rows = np.zeros((4, 2, 2), dtype=np.int64)
    rows[:, 1, 1], rows[:, 1, 0] = x, n - x
    assert bind("eo@sex*race", FOUR)(rows) == pytest.approx(0.749398, abs=1e-6)
    assert bind("eo@sex*race[shrink=20]", FOUR)(rows) == bind("eo@sex*race", FOUR)(rows)
    assert bind("eo@sex*race[shrink=0]", FOUR)(rows) == 0
    assert small_groups("0.5*sp+0.5*worst(eo@sex*race, sp)") == [
        "eo@sex*race: rates are drawn towards the overall one, as by 20 more rows of it"
    ]
    assert small_groups("worst(eo@sex, eo@race)") == []


def test_small_combinations_can_be_left_out() -> None:
    """Of n = (100, 100, 10, 3) the last two have fewer than 30 rows: 0.3 / 0.4."""
    x, n = np.array([40, 30, 2, 0]), np.array([100, 100, 10, 3])
    rows = np.zeros((4, 2, 2), dtype=np.int64)
    rows[:, 1, 1], rows[:, 1, 0] = x, n - x
    assert bind("eo@sex*race[min_count=30]", FOUR)(rows) == pytest.approx(0.75)
    assert bind("eo@sex*race[min_count=4]", FOUR)(rows) == pytest.approx(0.5)  # 3 rows are less than 2 %
    assert np.isnan(bind("eo@sex*race[min_count=101]", FOUR)(rows))
    assert small_groups("eo@sex*race[min_count=30]") == [
        "eo@sex*race[min_count=30]: groups of fewer than 30 rows, or 2 % of all, are not assessed"
    ]
    assert str(parse_objective("eo@sex*race[ min_count = 30 ]")) == "eo@sex*race[min_count=30]"


def test_rules_for_small_groups_need_no_attribute() -> None:
    """Without one they hold for the only attribute, or for each of several."""
    x, n = np.array([40, 30, 2]), np.array([100, 100, 10])
    three, rows = Groups.single("race", ["A", "B", "C"]), np.zeros((3, 2, 2), dtype=np.int64)
    rows[:, 1, 1], rows[:, 1, 0] = x, n - x
    assert bind("eo", three)(rows) == pytest.approx(0.5)
    assert bind("eo[min_count=30]", three)(rows) == pytest.approx(0.75)
    assert np.isnan(bind("eo[min_count=101]", three)(rows))
    four = np.arange(1, 17).reshape(4, 2, 2)
    each = bind("worst(sp@sex[shrink=5], sp@race[shrink=5])", FOUR)(four)
    assert bind("sp[shrink=5]", FOUR)(four) == each != bind("sp", FOUR)(four)
    assert np.isnan(bind("sp[min_count=40]", FOUR)(four))  # 36 of f, 100 of m
    assert small_groups("eqo[min_count=30]") == [
        "eqo[min_count=30]: groups of fewer than 30 rows, or 2 % of all, are not assessed"
    ]
    for text in ("eqo[min_count=30]", "worst(sp[shrink=2.5], eo)", "0.5*sp+0.5*eo[min_count=0]"):
        assert str(parse_objective(text)) == text


def test_a_run_excludes_small_groups_without_naming_an_attribute() -> None:
    frame = pd.DataFrame({"x": np.arange(900) % 37, "race": np.array(["A", "B", "C"])[np.arange(900) % 3]})
    frame.loc[30:, "race"] = frame["race"].replace("C", "A")
    frame["y"] = np.where((frame["x"] + np.arange(900) % 5) > 18, "yes", "no")
    options = {"data": frame, "target": "y", "favourable": "yes", "sensitive": "race", "min_group": 0}
    options |= {"rounds": 2, "seeds": 1, "jobs": 1, "strategies": ["fair_fate", "fedavg+thresholds"]}
    finished = run(**options, metric="eqo[min_count=20]")
    assert set(finished.plan.config.strategies) == {spec.text for spec in finished.plan.specs}
    assert finished.plan.config.metric == "eqo[min_count=20]"
    assert "metric=eqo[min_count=20]" in finished.plan.specs[0].text
    assert set(finished.rounds["metric"].dropna()) >= {"eqo[min_count=20]"}
    with pytest.raises(
        InputError, match=r"'eqo\[min_count=400\]' must be defined .+ got too few rows: \d+ of C"
    ):
        run(**options, metric="eqo[min_count=400]")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("eo@sex[", "shrink or min_count"),
        ("eo@sex[most=3]", "shrink or min_count"),
        ("eo@sex[shrink]", "'='"),
        ("eo@sex[shrink=x]", "a number >= 0"),
        ("eo@sex[shrink=3", "'\\]'"),
        ("eo[most=3]", "shrink or min_count"),
        ("accuracy[min_count=3]", "the end, or a \\+"),
    ],
)
def test_rules_for_small_groups_are_checked(text: str, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        parse_objective(text)


def test_differences_are_signed() -> None:
    rows = np.array([[[6, 2], [3, 9]], [[8, 2], [4, 16]]])
    assert bind("eo", TWO, difference=True)(rows) == pytest.approx(-0.05)
    with pytest.raises(InputError, match="metric must be made of sp, eo and eqo"):
        bind("accuracy", TWO, difference=True)


@given(
    st.recursive(
        st.sampled_from(
            ["sp", "eo", "eqo", "accuracy", "sp@sex", "eo@race", "eqo@sex*race", "eqo[min_count=30]"]
        ),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"worst({', '.join(parts)})"),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "+".join(f"0.5*({p})" for p in parts)),
        ),
        max_leaves=6,
    )
)
def test_texts_survive_and_values_stay_between_zero_and_one(text: str) -> None:
    once = str(parse_objective(text))
    assert str(parse_objective(once)) == once
    values = bind(text, FOUR)(counts(4))
    assert ((values >= 0) & (values <= 1)).all()


def test_unknown_attributes_are_named() -> None:
    with pytest.raises(InputError, match="unknown attribute in 'sp@age' 'age'; known: sex, race"):
        bind("sp@age", FOUR)


def test_odd_names_are_quoted() -> None:
    groups = Groups.single("marital status", ("a", "b"))
    text = str(parse_objective('sp@"marital status"'))
    assert text == 'sp@"marital status"'
    np.testing.assert_array_equal(bind(text, groups)(counts(2)), metrics.sp(counts(2)))


def test_undefined_objectives_are_found_before_a_model_is_there() -> None:
    rows = np.array([[5, 5], [5, 0]])
    check_defined(metrics.sp, rows, lambda: "sp")
    with pytest.raises(InputError, match="eo is undefined"):
        check_defined(metrics.eo, rows, lambda: "eo is undefined")


@pytest.mark.parametrize(
    "text", ["sp+eo", "sp+2*eo+0*accuracy", "0.5*sp+(sp+3*eo)", "2*worst(sp, 0.5*sp+eo)+f1"]
)
def test_weights_of_one_are_left_out_of_a_text_and_others_are_not(text: str) -> None:
    assert str(parse_objective(text)) == text


def test_one_term_is_that_term_whatever_its_weight() -> None:
    assert parse_objective("0.5*sp") == parse_objective("(sp)") == GroupMetric("sp")


def test_a_term_without_a_weight_has_one_of_one() -> None:
    both = counts(2)
    expected = (metrics.sp(both) + 0.5 * metrics.eo(both)) / 1.5
    np.testing.assert_allclose(bind("sp+0.5*eo", TWO)(both), expected)


def test_the_largest_difference_of_several_keeps_its_sign() -> None:
    # sp: .2 - .4; eo: .5 - .75; the other way round in the second, and undefined in the third
    first = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])
    every = np.stack([first, first[::-1], first])
    every[2, 0, 1] = 0
    both = bind("worst(sp, eo)", TWO, difference=True)
    np.testing.assert_allclose(both(every), [-0.25, 0.25, np.nan])
    mean = bind("0.5*sp+1.5*eo", TWO, difference=True)
    np.testing.assert_allclose(mean(every), [-(0.2 + 3 * 0.25) / 4, (0.2 + 3 * 0.25) / 4, np.nan])


@pytest.mark.parametrize(
    "text", ["accuracy", "sp+accuracy", "accuracy+sp", "geometric(sp, eo)", "worst(sp, f1)"]
)
def test_only_differences_of_rates_have_a_sign(text: str) -> None:
    with pytest.raises(InputError, match=r"metric must be made of sp, eo and eqo by \+ and worst\(\), got"):
        bind(text, TWO, difference=True)
    assert bind("worst(sp, sp+eqo)", TWO, difference=True)(counts(2)).shape == (5,)


def test_other_differences_may_be_given() -> None:
    result = bind("sp", TWO, difference=True, gaps={"sp": metrics.sp_diff})(counts(2))
    np.testing.assert_array_equal(result, metrics.sp_diff(counts(2)))


@pytest.mark.parametrize(("name", "least"), [("sp", 8), ("eo", 3), ("eqo", 3)])
def test_a_rate_needs_so_many_rows_behind_it(name: str, least: int) -> None:
    """Groups of 10 + 6 and of 5 + 3 rows by label; the smallest behind a rate are 8, 3 and 3."""
    first = np.array([[[6, 4], [3, 3]], [[3, 2], [1, 2]]])
    assert bind(name, TWO, least=least)(first) == metrics.METRICS[name](first)
    assert np.isnan(bind(name, TWO, least=least + 1)(first))
    assert bind("accuracy", TWO, least=1000)(first) == metrics.accuracy(first)
    both = np.stack([first, 2 * first])
    assert np.isnan(bind(name, TWO, least=least + 1)(both)).tolist() == [True, False]


def test_a_geometric_mean_by_hand() -> None:
    first = np.array([[[70, 10], [10, 10]], [[50, 10], [10, 30]]])  # sp 1/2, eo 2/3, accuracy 4/5
    result = bind("geometric(sp, eo, accuracy)", TWO)(np.stack([first, first]))
    np.testing.assert_allclose(result, [(1 / 2 * 2 / 3 * 4 / 5) ** (1 / 3)] * 2)


def test_a_rule_for_small_groups_counts_from_any_number_above_zero_on() -> None:
    every = counts(4)
    for number in (0.5, 1, 20):
        result = bind(f"eo@sex*race[shrink={number}]", FOUR)(every)
        np.testing.assert_array_equal(result, metrics.SHRUNK["eo"](number, every))
    np.testing.assert_array_equal(bind("eo@sex*race", FOUR)(every), metrics.SHRUNK["eo"](20, every))
    np.testing.assert_array_equal(bind("eo@sex*race[shrink=0]", FOUR)(every), metrics.eo(every))
    np.testing.assert_array_equal(
        bind("eo@sex*race[min_count=1]", FOUR)(every), metrics.COUNTED["eo"](1, every)
    )
    published = bind("eo@sex*race", FOUR, published=True)(every)
    np.testing.assert_array_equal(published, metrics.eo_published(every))


def test_a_group_without_rows_is_undefined_without_a_warning() -> None:
    empty = counts(2)
    empty[:, 1] = 0
    assert np.isnan(bind("sp", TWO)(empty)).all()


def test_every_metric_of_several_attributes_is_that_of_the_worst() -> None:
    every, both = counts(4), metrics_by(FOUR)
    assert both["accuracy"] is metrics.accuracy
    np.testing.assert_array_equal(both["sp"](every), bind("worst(sp@sex, sp@race)", FOUR)(every))
    assert metrics_by(None) == metrics_by(TWO) == metrics.METRICS
