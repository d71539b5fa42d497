"""The rule that models are selected by, and the front that none beats."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fairfate.fairness.selection import keeps, on_front, pareto_front, select


def test_accuracy_and_skill_are_both_kept_or_the_model_is_not() -> None:
    reference = (0.80, 0.20)
    assert keeps([0.80, 0.779, 0.90, math.nan], [0.20, 0.20, 0.159, 0.20], reference).tolist() == [
        True,
        False,
        False,
        False,
    ]
    assert keeps(0.779, 0.20, reference, tolerance=0.03)
    assert keeps(0.80, 0.0, reference, keep=0.0)
    assert not keeps(0.80, math.nan, reference)


def test_rounding_decides_nothing_where_slack_is_given() -> None:
    shares = 0.1 + 0.2, 0.3  # the first is larger by 5e-17
    assert not keeps(shares[1], 0.2, (shares[0], 0.2), tolerance=0.0)
    assert keeps(shares[1], 0.2, (shares[0], 0.2), tolerance=0.0, slack=1e-12)


def candidates() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "method": ["a", "a", "a", "b", "b", "c", "c"],
            "fairness": [0.6, 0.9, 0.95, 0.7, 0.8, math.nan, 0.1],
            "accuracy": [0.80, 0.80, 0.60, 0.60, 0.50, 0.80, 0.80],
        }
    )


def test_the_fairest_eligible_candidate_is_selected_and_else_the_most_accurate() -> None:
    frame = candidates()
    eligible = (frame["accuracy"] > 0.7).to_numpy()
    chosen = select(frame, eligible, "fairness", "accuracy", ["method"]).set_index("method")
    assert chosen["fairness"].to_dict() == {"a": 0.9, "b": 0.7, "c": 0.1}  # an undefined fairness comes last
    assert chosen["matched"].to_dict() == {"a": True, "b": False, "c": True}
    assert chosen["grid"].to_dict() == {"a": 3, "b": 2, "c": 2}


def test_of_equal_candidates_the_first_is_selected() -> None:
    frame = candidates().assign(fairness=0.5, number=range(7))
    chosen = select(frame, np.ones(7, dtype=bool), "fairness", "accuracy", ["method"])
    assert sorted(chosen["number"]) == [0, 3, 5]


def test_equal_points_are_on_the_front_together() -> None:
    assert pareto_front([(1, 1), (1, 1), (0, 2), (0, 1)]) == [2, 0, 1]
    assert pareto_front([]) == []


def test_a_point_without_fairness_is_on_the_front_for_its_accuracy_alone() -> None:
    assert on_front(np.array([[0.9, np.nan], [0.8, 0.1], [0.8, np.nan]])).tolist() == [True, True, False]
