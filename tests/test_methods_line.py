"""FAIR-FATE where no client's own model is judged: mixtures on a line, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fairfate.fairness import metrics
from fairfate.strategies import Cohort, Need, Setup, parse_spec
from fairfate.strategies.fair_fate import choose_on_line, fair_fate_on_a_line
from fairfate.strategies.schedules import constant

GOOD = np.array([[[40, 10], [10, 40]], [[40, 10], [10, 40]]])
"""Right for 160 of 200 rows, with an MCC of 0.6."""
ONE_ANSWER = np.array([[[0, 50], [0, 50]], [[0, 50], [0, 50]]])


def fewer(wrong: int) -> np.ndarray:
    """The same with so many more wrong answers."""
    found = GOOD.copy()
    found[0, 0] += [-wrong, wrong]
    return found


def fairness(values: list[float], error: float = 0.0):
    """Of the five mixtures; what is drawn again of the best one differs by the error."""

    def metric(counts: np.ndarray) -> np.ndarray:
        if len(counts) == 5:
            return np.array(values)
        assert len(counts) % 2 == 0
        return np.resize([error, -error], len(counts))

    return metric


@pytest.mark.parametrize(
    ("values", "error", "taken"),
    [
        ([0.5, 0.6, 0.9, 0.9, 0.7], 0.0, 2),  # the first of the fairest
        ([0.5, 0.6, 0.9, 0.9, 0.7], 0.29, 2),
        ([0.5, 0.6, 0.9, 0.9, 0.7], 0.31, 1),  # as fair, but for chance
        ([0.5, 0.6, 0.9, 0.9, 0.7], 0.41, 0),
        ([0.5, np.nan, 0.9, 0.95, np.nan], 0.0, 3),
        ([np.nan, np.nan, 0.2, np.nan, np.nan], 1.0, 2),  # an undefined one is never taken
        ([np.nan] * 5, 0.0, 0),
    ],
)
def test_the_fairest_but_for_chance_is_taken(values: list[float], error: float, taken: int) -> None:
    assert choose_on_line(fairness(values, error), np.stack([GOOD] * 5)) == taken


@pytest.mark.parametrize(("wrong", "taken"), [(0, 4), (1, 4), (2, 4), (3, 0)])
def test_accuracy_may_fall_by_one_in_a_hundred(wrong: int, taken: int) -> None:
    """Of 200 rows, two."""
    counts = np.stack([*[GOOD] * 4, fewer(wrong)])
    assert choose_on_line(fairness([0.5, 0.1, 0.1, 0.1, 0.9]), counts) == taken


def test_models_of_one_answer_are_taken_only_where_the_first_is_one() -> None:
    rising = fairness([0.5, 0.1, 0.1, 0.1, 0.9])
    # half of the rows are right either way
    half = np.array([[[25, 25], [25, 25]]] * 2)
    little = np.array([[[26, 24], [24, 26]]] * 2)  # an MCC of 0.04
    enough = np.array([[[27, 23], [24, 26]]] * 2)  # 0.06
    assert choose_on_line(rising, np.stack([*[enough] * 4, little])) == 0
    assert choose_on_line(rising, np.stack([*[little] * 4, enough])) == 4
    assert choose_on_line(rising, np.stack([*[half] * 4, ONE_ANSWER])) == 4
    worse = little[:, ::-1]
    assert choose_on_line(rising, np.stack([*[half] * 4, worse])) == 0


def cohort(score, t: int = 1) -> Cohort:
    return Cohort(
        round=t,
        deltas=np.array([[1.0, 0.0], [0.0, 1.0]]),
        num_examples=np.array([30, 10]),
        client_counts=np.zeros((0, 2, 2, 2), np.int64),
        server_counts=np.zeros((2, 2, 2), np.int64),
        score=score,
    )


def test_mixtures_of_momentum_and_fedavg_are_tried() -> None:
    """The update is (.75, .25); the momentum is half of it, and then three quarters."""
    tried: list[np.ndarray] = []

    def score(models: np.ndarray) -> np.ndarray:
        tried.append(models)
        return np.stack([GOOD] * 5)

    strategy = fair_fate_on_a_line(fairness([0.1, 0.2, 0.3, 0.9, 0.2]), beta=constant(0.5))
    assert strategy.needs == Need.TRIALS
    start = strategy.init(np.array([10.0, 20.0]))
    assert start.momentum.tolist() == [0, 0]
    first = strategy.aggregate(start, cohort(score))
    update = np.array([0.75, 0.25])
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    assert tried[0] == pytest.approx(np.array([start.params + (1 - share / 2) * update for share in shares]))
    assert first.momentum == pytest.approx(update / 2)
    assert first.params == pytest.approx(start.params + (1 - 0.375) * update)
    assert first.notes == {"lam": 0.75, "beta": 0.5}
    second = strategy.aggregate(first, cohort(score, 2))
    assert second.momentum == pytest.approx(update * 0.75)
    assert tried[1] == pytest.approx(np.array([first.params + (1 - share / 4) * update for share in shares]))


def test_models_that_are_no_numbers_are_not_tried() -> None:
    strategy = fair_fate_on_a_line(metrics.sp, beta=constant(0.5))
    start = strategy.init(np.zeros(2))._replace(momentum=np.array([np.inf, 0.0]))
    with np.errstate(invalid="ignore"):
        found = strategy.aggregate(start, cohort(lambda models: 1 / 0))
    assert found.notes["lam"] == 0


def test_by_name_it_is_built_where_only_mixtures_are_judged() -> None:
    spec = parse_spec("fair_fate:metric=sp,momentum=constant,beta0=0.5", "eo")
    line, usual = (spec.build(Setup(10, line=on)) for on in (True, False))
    assert (line.needs, usual.needs) == (Need.TRIALS, Need.SCORES)
    state = line.aggregate(line.init(np.zeros(2)), cohort(lambda models: np.stack([GOOD] * 5)))
    assert state.notes == {"lam": 0, "beta": 0.5}  # all are as fair
