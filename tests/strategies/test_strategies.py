"""Each strategy's rule, by hand: three numbers and the arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.errors import InputError
from fairfate.fairness.metrics import FAIRNESS, PUBLISHED_FAIRNESS, sp
from fairfate.strategies import (
    Cohort,
    Setup,
    Strategy,
    constant,
    demon,
    exponential,
    fair_fate,
    fedavg,
    fedavg_gr,
    fedavg_lr,
    fedval,
    labels,
    linear,
    load_plugin,
    momentum,
    parse_spec,
    register,
    reweigh,
)
from fairfate.strategies.fair_fate import at_least_as_fair, fairer_normalised
from fairfate.strategies.registry import _ENTRIES
from rounds_by_hand import rule


def counts(low: int, high: int) -> np.ndarray:
    """Ten rows in each group, of which so many are accepted: SP is low / high."""
    return np.array([[[10 - low, low], [0, 0]], [[10 - high, high], [0, 0]]])


# three clients that moved one parameter by 1, 2 and 4, with SP 0.2, 0.5 and 1.0; the server has 0.5
COHORT = Cohort(
    round=1,
    deltas=np.array([[1.0], [2.0], [4.0]]),
    num_examples=np.array([10, 30, 60]),
    client_counts=np.stack([counts(1, 5), counts(4, 8), counts(6, 6)]),
    server_counts=counts(5, 10),
)
ZERO = np.zeros(1)
ALPHA_N = 0.1 * 1 + 0.3 * 2 + 0.6 * 4  # 3.1


def test_fedavg_adds_the_mean_update() -> None:
    strategy = rule(fedavg())
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(ALPHA_N)


def test_momentum_carries_updates_over() -> None:
    strategy = momentum(constant(0.8))
    first = strategy.aggregate(strategy.init(ZERO), COHORT)
    second = strategy.aggregate(first, COHORT._replace(round=2))
    assert first.params == pytest.approx(0.2 * ALPHA_N)
    # v = 0.8 * 0.62 + 0.2 * 3.1 = 1.116
    assert second.params == pytest.approx(0.62 + 1.116)


def test_bias_correction_makes_the_first_step_whole() -> None:
    strategy = momentum(constant(0.8), bias_correction=True)
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(ALPHA_N)


def test_decaying_momentum_ends_as_fedavg() -> None:
    strategy = momentum(demon(0.9, 1))
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(ALPHA_N)


def test_fedval_weighs_clients_by_fairness() -> None:
    strategy = rule(fedval(), sp)
    expected = (0.201 * 1 + 0.501 * 2 + 1.001 * 4) / (0.201 + 0.501 + 1.001)
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(expected)


def test_fair_fate_mixes_fair_momentum_with_fedavg() -> None:
    strategy = rule(fair_fate(beta0=0.9, momentum="constant", lam0=0.4, growth="constant", max=1.0), sp)
    state = strategy.aggregate(strategy.init(ZERO), COHORT)
    # fair: the clients with SP 0.5 and 1.0, as fair as the server or fairer
    alpha_f = (0.5 * 2 + 1.0 * 4) / 1.5
    assert state.momentum == pytest.approx(0.1 * alpha_f)
    assert state.params == pytest.approx(0.4 * 0.1 * alpha_f + 0.6 * ALPHA_N)
    assert (state.notes["lam"], state.notes["beta"]) == (0.4, 0.9)
    assert state.notes["fair"].tolist() == [False, True, True]


def test_fair_fate_published_is_strict_normalised_and_corrected() -> None:
    strategy = rule(
        fair_fate(beta0=0.9, momentum="constant", lam0=0.4, growth="constant", max=1.0), sp, published=True
    )
    state = strategy.aggregate(strategy.init(ZERO), COHORT)
    # only the client with SP 1.0 is fairer; v = 0.1 * 4, divided by 1 - 0.9
    assert state.params == pytest.approx(0.4 * 4 + 0.6 * ALPHA_N)
    assert state.notes["fair"].sum() == 1


def test_normalised_scores_weigh_fair_clients_by_their_distance() -> None:
    is_fair, scores = fairer_normalised(np.array([0.2, 0.6, 1.0]), np.array(0.4))
    assert is_fair.tolist() == [False, True, True]
    assert scores.tolist() == pytest.approx([0, 0.5, 1])


def test_equal_scores_leave_the_published_fair_set_empty() -> None:
    is_fair, scores = fairer_normalised(np.array([0.7, 0.7]), np.array(0.7))
    assert not is_fair.any()
    assert scores.tolist() == [0, 0]


def test_reduces_to_fedavg_when_lambda_is_zero() -> None:
    strategy = rule(fair_fate(beta0=0.9, momentum="constant", lam0=0.0, growth="constant", max=1.0), sp)
    assert strategy.aggregate(strategy.init(ZERO), COHORT).params == pytest.approx(ALPHA_N)


def test_leaves_momentum_at_zero_when_no_client_is_fairer() -> None:
    strategy = rule(fair_fate(beta0=0.0, momentum="constant", lam0=1.0, growth="constant", max=1.0), sp)
    fairest = COHORT._replace(client_counts=np.stack([counts(1, 5)] * 3), server_counts=counts(6, 6))
    state = strategy.aggregate(strategy.init(ZERO), fairest)
    assert state.params == state.momentum == 0
    assert state.notes["fair"].sum() == 0


@pytest.mark.parametrize("fair_set", [at_least_as_fair])
def test_an_undefined_score_never_counts_as_fair(fair_set) -> None:
    nan = np.nan
    assert fair_set(np.array([nan, 0.9]), np.array(0.5))[0].tolist() == [False, True]
    assert fair_set(np.array([0.1, 0.9]), np.array(nan))[0].tolist() == [False, False]


def test_a_fair_set_of_zero_scores_gives_no_update() -> None:
    strategy = rule(fair_fate(beta0=0.0, momentum="constant", lam0=1.0, growth="constant", max=1.0), sp)
    unfair = np.stack([counts(0, 5)] * 3)
    state = strategy.aggregate(
        strategy.init(ZERO), COHORT._replace(client_counts=unfair, server_counts=counts(0, 3))
    )
    assert state.params == 0
    assert state.notes["fair"].sum() == 3


def test_local_weights_are_each_clients_own_and_nobody_is_told() -> None:
    strategy = rule(fedavg_lr())
    # P(s) P(y) / P(s, y) = 0.5 * 0.5 / (30/80)
    terms = strategy.local_loss(None, np.array([[30, 10], [10, 30]]), None)
    assert terms.weight[0].tolist() == pytest.approx([2 / 3, 2])
    assert (strategy.local_loss(None, np.full((2, 2), 25), None).weight == 1).all()
    assert strategy.broadcast is None
    assert strategy.needs == set()


def test_global_weights_are_those_of_all_rows_together() -> None:
    strategy = rule(fedavg_gr())
    rows = np.array([[[30, 10], [10, 30]], [[0, 20], [20, 0]]])
    # together 30, 30 / 30, 30: independent already
    told = strategy.broadcast(None, rows)
    assert (strategy.local_loss(told, rows[0], None).weight == 1).all()


def test_a_count_of_zero_has_weight_one() -> None:
    assert reweigh(np.array([[0, 5], [5, 5]]))[0, 0] == 1


def test_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"unknown strategy 'fairfate'; did you mean 'fair_fate'.*nearest of"
    ):
        parse_spec("fairfate", "sp")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fair_fate:lambda0=1", "unknown setting of fair_fate 'lambda0'; did you mean 'lam0'"),
        ("fair_fate:lam0=1.5", r"fair_fate: lam0 must be in \[0, 1\], got 1.5"),
        ("fair_fate:rho=-0.1", r"fair_fate: rho must be in \[0, 1\], got -0.1"),
        ("fair_fate:max=2", r"fair_fate: max must be in \[0, 1\], got 2"),
        ("fair_fate:beta0=1", r"fair_fate: beta0 must be in \[0, 1\), got 1"),
        ("fedmom:beta=nan", r"fedmom: beta must be in \[0, 1\), got nan"),
        ("fedmom:beta=much", r"fedmom: beta must be a number in \[0, 1\), got 'much'"),
        ("fedval:metric=dp", "unknown name in fedval: metric 'dp'; known: sp, eo, eqo"),
        ("fedavg+averag", "unknown step 'averag'; did you mean 'average'"),
        (
            "fedavg+thresholds+average",
            "steps must be taken once each, clip before median, trimmed or krum before",
        ),
        ("fedavg+average+average", "steps must be taken once each"),
        ("fedavg+average:share=0", r"average: share must be in \(0, 1\], got 0"),
        ("fedavg+thresholds:from=moon", r"thresholds: from must be one of validation\|clients, got 'moon'"),
        ("fairfed:beta=-1", "fairfed: beta must be >= 0, got -1"),
        ("fedavg:beta=1", "strategy 'fedavg' has no settings, got 'beta'"),
        ("fedmom:0.9", "must be NAME:key=value,..., got '0.9'"),
        ("fedmom:beta=0.1,beta=0.2", "must name each setting once, got 'beta' twice"),
    ],
)
def test_bad_settings_are_named_with_rule_and_value(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_spec(text, "sp")


def test_labels_show_only_what_tells_settings_apart() -> None:
    texts = ["fedavg", "fair_fate:metric=sp,max=0.8", "fair_fate:metric=sp,max=1"]
    assert labels([parse_spec(t, "eqo") for t in texts]) == [
        "fedavg",
        "fair_fate(max=0.8)",
        "fair_fate(max=1)",
    ]


def final(strategy: Strategy, rounds: int = 3) -> float:
    """One parameter after some rounds of the same cohort, seen from an ever fairer server."""
    state = strategy.init(ZERO)
    for t in range(1, rounds + 1):
        state = strategy.aggregate(state, COHORT._replace(round=t, server_counts=counts(5 - t, 10)))
    return float(state.params[0])


@pytest.mark.parametrize(
    ("text", "beta", "lam"),
    [
        ("lam0=0.2,rho=0.3,max=0.5,beta0=0.7", demon(0.7, 5), exponential(0.2, 0.3, 0.5)),
        ("lam0=0.2,rho=0.3,momentum=none,growth=linear", constant(0.0), linear(0.2, 0.3, 0.9)),
        (
            "metric=eo,lam0=0.2,momentum=constant,growth=constant,beta0=0.7",
            constant(0.7),
            constant(0.2),
        ),
    ],
)
def test_fair_fate_has_the_schedules_it_is_asked_for(text: str, beta, lam) -> None:
    strategy = parse_spec(f"fair_fate:{text}", "sp").build(Setup(5))
    for t in range(1, 6):
        notes = strategy.aggregate(strategy.init(ZERO), COHORT._replace(round=t)).notes
        assert (notes["beta"], notes["lam"]) == (beta(t), lam(t))


@pytest.mark.parametrize(
    ("text", "beta"), [("fedmom:beta=0.7", constant(0.7)), ("feddemon:beta0=0.7", demon(0.7, 5))]
)
@pytest.mark.parametrize("published", [False, True])
def test_server_momentum_has_the_schedule_of_its_name(text: str, beta, published: bool) -> None:
    named = parse_spec(text, "eqo").build(Setup(5, published=published))
    assert final(named) == pytest.approx(final(momentum(beta, bias_correction=published)))


@pytest.mark.parametrize("metric", ["sp", "eo"])
def test_fairness_is_that_of_the_protocol(metric: str) -> None:
    spec = parse_spec("fedval", metric)
    for published, known in ((False, FAIRNESS), (True, PUBLISHED_FAIRNESS)):
        named = spec.build(Setup(5, published=published))
        assert final(named) == pytest.approx(final(rule(fedval(), known[metric])))


def test_published_fair_fate_differs_from_the_papers() -> None:
    spec = parse_spec("fair_fate:metric=sp", "sp")
    results = []
    for published in (False, True):
        strategy = spec.build(Setup(100, published))
        results.append(float(strategy.aggregate(strategy.init(ZERO), COHORT).params[0]))
    assert results[0] != results[1]


def test_a_built_in_name_cannot_be_taken_and_names_are_words() -> None:
    with pytest.raises(InputError, match="a strategy's name must be new, got 'fedavg'"):
        register("fedavg", "s", "r")(lambda setup: fedavg())
    with pytest.raises(InputError, match="a strategy's name must be a word, got 'a/b'"):
        register("a/b", "s", "r")


def test_settings_keep_every_digit() -> None:
    assert parse_spec("fedmom:beta=0.123456789", "sp").text == "fedmom:beta=0.123456789"
    assert parse_spec("fair_fate:max=1", "sp").text.count("max=1,") == 1
    close = [parse_spec(f"fedmom:beta=0.100000{i}", "sp") for i in (1, 2)]
    assert len(set(labels(close))) == 2


def test_a_plugin_file_brings_its_own_strategy(tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from typing import Annotated\n"
        "from fairfate.strategies import Range, fedavg, register\n"
        "@register('mine', 'half of fedavg', 'me')\n"
        "def build(setup, step: Annotated[float, Range(0, 1), 'how much'] = 0.5):\n"
        "    return fedavg()\n"
    )
    try:
        load_plugin(file)
        assert parse_spec("mine:step=0.25", "sp").text == "mine:step=0.25"
    finally:
        _ENTRIES.pop("mine", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("x = 1\n", "must register"),
        ("1 / 0\n", "must run without an error, got ZeroDivisionError"),
        ("import sys; sys.exit(0)\n", "must run without an error, got SystemExit"),
        ("def broken(:\n", "must run without an error, got SyntaxError"),
    ],
)
def test_a_plugin_that_brings_nothing_is_refused(tmp_path, content, message) -> None:
    file = tmp_path / "empty.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InputError, match=message):
        load_plugin(file)


def test_registering_makes_a_name_known() -> None:
    try:
        register("twice", "s", "r")(lambda setup: fedavg())
        assert parse_spec("twice", "sp").name == "twice"
    finally:
        _ENTRIES.pop("twice", None)
