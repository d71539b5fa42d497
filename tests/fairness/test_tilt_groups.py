"""The tilted score for several groups: whole scores by hand, histograms against NumPy, and the search."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.fairness.metrics import FAIRNESS, accuracy, eqo, sp
from fairfate.fairness.split_scores import count_plain, cut_everywhere
from fairfate.fairness.tilt import Guard
from fairfate.fairness.tilt_groups import (
    MOST_QUESTIONS,
    UNIT,
    GroupSearch,
    GroupTilt,
    most_rules,
    plain_group_rule,
    priced_histogram,
    read_rule,
)


def rule_of(family: str, prices: list[list[int]], step: int = 128, bins: int = 4) -> GroupTilt:
    return GroupTilt(family, bins, np.array(prices), step)


def logit(values: np.ndarray) -> np.ndarray:
    return np.log(values / (1 - values))


def test_scores_by_hand() -> None:
    """Of 4 ranges: the label's in the 3rd (0.625 = 5/8), the guesses in the 1st and 4th (1/8 and 7/8)."""
    label, groups = np.array([2]), np.array([[0], [3]])
    assert rule_of("sp", [[-32, 16], [0, 0]]).scores(label, groups).tolist() == [64 * 5 - 32 * 1 + 16 * 7]
    assert rule_of("eo", [[-32, 16], [0, 0]]).scores(label, groups).tolist() == [5 * (64 * 8 - 32 + 112)]
    both = rule_of("eqo", [[-32, 16], [8, -24]]).scores(label, groups)
    assert both.tolist() == [5 * (64 * 8 - 32 + 112) + 3 * (8 - 168)]


def test_scores_are_those_of_the_formula() -> None:
    """e + sum a g; e (1 + sum a g); and e (1 + sum a1 g) + (1 - e) sum a0 g, at the middles of the ranges."""
    rng = np.random.default_rng(1)
    label, groups = rng.integers(0, 16, 99), rng.integers(0, 16, (3, 99))
    prices = rng.integers(-100, 100, (2, 3))
    e, g = (label + 0.5) / 16, (groups + 0.5) / 16
    first, second = prices @ g / UNIT
    own = prices * np.array([[1], [0]])
    whole = {
        family: GroupTilt(family, 16, prices if family == "eqo" else own, 128).scores(label, groups)
        for family in FAIRNESS
    }
    np.testing.assert_allclose(whole["sp"] / (32 * UNIT), e + first)
    np.testing.assert_allclose(whole["eo"] / (32 * 32 * UNIT), e * (1 + first))
    np.testing.assert_allclose(whole["eqo"] / (32 * 32 * UNIT), e * (1 + first) + (1 - e) * second)


@pytest.mark.parametrize("family", ["sp", "eo", "eqo"])
def test_plain_rule_decides_as_the_model(family: str) -> None:
    margins = np.random.default_rng(2).normal(0, 3, 500).astype(np.float32)
    guesses = [np.random.default_rng(k).normal(0, 3, 500).astype(np.float32) for k in (3, 4)]
    assert (plain_group_rule(family, 32, 3).decide(margins, guesses) == (margins > 0)).all()


@pytest.mark.parametrize("family", ["sp", "eo", "eqo"])
def test_every_threshold_of_a_histogram_counts_its_decisions(family: str) -> None:
    rng = np.random.default_rng(5)
    own = [rng.normal(0, 2, 60).astype(np.float32) for _ in range(6)]
    guesses = [[rng.normal(-1, 2, 60).astype(np.float32) for _ in range(6)] for _ in range(2)]
    prices = rng.integers(-90, 90, (2, 2))
    rule = GroupTilt(family, 16, prices, 0)
    rows = priced_histogram(rule, own, guesses)
    counts, changed = cut_everywhere(rows)
    assert count_plain(rows).reshape(6, 2)[:, 1].tolist() == [int((m > 0).sum()) for m in own]
    for step in (0, 1, 77, 128, 200, 255, 256):
        cut = rule._replace(step=step)
        decided = [cut.decide(own[k], [guess[k] for guess in guesses]) for k in range(6)]
        assert counts[step].reshape(6, 2)[:, 1].tolist() == [int(d.sum()) for d in decided]
        assert changed[step] == sum(int((d != (m > 0)).sum()) for d, m in zip(decided, own, strict=True))


def test_excess_tells_the_decision_and_how_near_the_other_one_is() -> None:
    rng = np.random.default_rng(6)
    margins, *guesses = rng.normal(0, 2, (4, 400))
    for family in ("sp", "eo", "eqo"):
        rule = GroupTilt(family, 16, rng.integers(-120, 120, (2, 3)), 120)
        excess = rule.excess(margins, guesses)
        assert ((excess > 0) == rule.decide(margins, guesses)).all()
        near = np.isfinite(excess)
        assert near.sum() > 100
        there = margins[near] - excess[near] * (1 + 1e-6)
        others = [guess[near] for guess in guesses]
        assert (rule.decide(there, others) != rule.decide(margins[near], others)).all()


class People:
    """Rows of three groups, of which the models know the group well and the label a little."""

    def __init__(self, sizes: tuple[int, ...] = (4000, 3000, 2000), seed: int = 7) -> None:
        rng = np.random.default_rng(seed)
        self.own, self.guesses, self.asked = [], [[] for _ in sizes[1:]], 0
        self.questions = 0
        for group, size in enumerate(sizes):
            for label, share in enumerate((0.5 + 0.1 * group, 0.5 - 0.1 * group)):
                rows = int(size * share)
                self.own.append(rng.normal(1.2 * (2 * label - 1) - 0.5 * group, 1, rows).astype(np.float32))
                for other, guess in enumerate(self.guesses, start=1):
                    guess.append(rng.normal(2 if other == group else -2, 1, rows).astype(np.float32))

    def ask(self, rules: list[GroupTilt]) -> np.ndarray:
        self.asked += len(rules)
        self.questions += 1
        assert len(rules) <= most_rules(len(self.guesses) + 1)
        return np.stack([priced_histogram(rule, self.own, self.guesses) for rule in rules])


@pytest.mark.parametrize("family", ["sp", "eo", "eqo"])
def test_search_finds_a_fairer_rule_within_the_guard(family: str) -> None:
    people = People()
    fairness, guard = FAIRNESS[family], Guard(0.05)
    search = GroupSearch(people.ask, 3, fairness, guard, family, 32)
    search.run()
    plain, chosen = search.counts_of(search.plain), search.counts_of(search.best(guard))
    assert fairness(plain) < 0.75
    assert fairness(chosen) > 0.9
    assert accuracy(plain) - accuracy(chosen) <= 0.05
    assert people.questions <= MOST_QUESTIONS
    rule = search.best(guard)
    decided = [rule.decide(own, [g[k] for g in people.guesses]).sum() for k, own in enumerate(people.own)]
    assert chosen.reshape(6, 2)[:, 1].tolist() == decided


def test_search_does_nearly_as_well_as_all_prices_of_a_grid() -> None:
    """Every pair of prices in steps of a quarter, each with all thresholds, under the same guard."""
    people, guard = People(), Guard(0.03)
    search = GroupSearch(people.ask, 3, sp, guard, "sp", 32)
    search.run()
    most = 0.0
    plain = search.counts_of(search.plain)
    for first in range(-64, 129, 16):
        for second in range(-64, 129, 16):
            rule = rule_of("sp", [[first, second], [0, 0]], bins=32)
            counts, changed = cut_everywhere(priced_histogram(rule, people.own, people.guesses))
            drop = accuracy(plain) - accuracy(counts)
            error = np.sqrt(np.maximum(changed / plain.sum() - drop**2, 0) / plain.sum())
            most = max(most, float(np.max(np.where(drop + 2 * error <= 0.03, sp(counts), 0))))
    assert most > float(sp(plain)) + 0.1
    assert float(sp(search.counts_of(search.best(guard)))) > most - 0.03


def test_undefined_fairness_asks_nothing_and_keeps_the_plain_rule() -> None:
    people = People((4000, 3000, 0))
    search = GroupSearch(people.ask, 3, eqo, Guard(), "eqo", 32)
    search.run()
    assert people.asked == 1
    assert search.best(Guard(1.0, 0.0, 0.0)) == search.plain


def test_without_a_tolerance_no_decision_is_changed() -> None:
    people = People()
    search = GroupSearch(people.ask, 3, sp, Guard(0.0, margin=10.0), "sp", 32)
    search.run()
    best = search.best(search.guard)
    assert (search.counts_of(best) == search.counts_of(search.plain)).all()


@pytest.mark.parametrize(
    "text",
    ["sp 32 128", "sp 32 128 1", "no 32 128 1 0", "sp 31 128 1 0", "sp 32 257 1 0", "sp 32 8 999 0", "x y"],
)
def test_text_of_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|invalid|values|table|hexadecimal"):
        read_rule(text)
    rule = rule_of("eqo", [[-32, 16], [8, -24]], 100)
    again = read_rule(rule.text)
    assert isinstance(again, GroupTilt)
    assert again.prices.tolist() == rule.prices.tolist()
    assert (again.family, again.bins, again.step) == (rule.family, rule.bins, rule.step)


def test_threshold_is_rounded_up_to_a_whole_score() -> None:
    """From -256 to 640, so step 77 is at -256 + 77 * 3.5 = 13.5; the ends accept everybody and nobody."""
    rule = rule_of("sp", [[-32, 16], [0, 0]], 77)
    assert rule.ends == (-256, 640)
    assert rule.threshold == 14
    every = np.indices((4, 4, 4)).reshape(3, -1)
    scores = rule.scores(every[0], every[1:])
    assert (scores >= rule._replace(step=0).threshold).all()
    assert (scores < rule._replace(step=256).threshold).all()


def test_path_alone_makes_rates_more_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairfate.fairness.tilt_groups.NEARBY", ())
    for family in FAIRNESS:
        people, guard = People(), Guard(0.05)
        search = GroupSearch(people.ask, 3, FAIRNESS[family], guard, family, 32)
        search.run()
        assert FAIRNESS[family](search.counts_of(search.best(guard))) > 0.85
