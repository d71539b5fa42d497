"""The sentence at the end of a run is right, and no collapsed model is praised."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from command import QUICK
from fairfate.data.groups import Groups
from fairfate.fairness import metrics
from fairfate.fairness.objective import metrics_by
from fairfate.report.comparison import Comparison, remarks, sentence
from fairfate.report.terminal import results_table, show_run
from fairfate.rounds.server import UNTRAINED
from fairfate.runs.results import count_columns
from fairfate.runs.sheet import Sheet

TWO = Groups.single("sex", ("f", "m"))
THREE = Groups.single("race", ("a", "b", "c"))
BOTH = Groups(("sex", "race"), (("f", "m"), ("a", "b")), ((0, 0), (0, 1), (1, 0), (1, 1)))


def counts(*groups: tuple[float, float], rows: int = 1000, positives: float = 0.3) -> np.ndarray:
    """(groups, 2, 2) from each group's true and false positive rate."""
    found = []
    for tpr, fpr in groups:
        ones = round(rows * positives)
        zeros = rows - ones
        found.append(
            [[zeros - round(zeros * fpr), round(zeros * fpr)], [ones - round(ones * tpr), round(ones * tpr)]]
        )
    return np.array(found)


UNFAIR, FAIR = counts((0.4, 0.05), (0.8, 0.2)), counts((0.7, 0.12), (0.7, 0.13))
WEAK = counts((0.45, 0.3), (0.45, 0.3))
NOBODY, NEARLY = counts((0.0, 0.0), (0.0, 0.0)), counts((0.02, 0.02), (0.02, 0.02))


def compare(
    lines: Mapping[str, list[np.ndarray]],
    groups: Groups = TWO,
    metric: str = "eqo",
    rounds: int = 1,
    untrained: tuple[str, ...] = (),
) -> Comparison:
    """What strategies did in some seeds, in the last of some rounds alike."""
    rows = []
    known = metrics_by(groups)
    for strategy, seeds in lines.items():
        for seed, found in enumerate(seeds, start=1):
            for split in ("validation", "test"):
                for t in range(1, rounds + 1):
                    row = {"dataset": "d", "partition": "random", "protocol": "paper", "strategy": strategy}
                    row |= {"metric": None if strategy == "fedavg" else metric, "settings": json.dumps({})}
                    row |= {"seed": seed, "round": t, "split": split}
                    row |= {name: float(of(found)) for name, of in known.items()}
                    row["acceptance"] = float(metrics.acceptance(found))
                    row["notes"] = json.dumps({UNTRAINED: 1.0}) if strategy in untrained else None
                    rows.append(row | dict(zip(count_columns(len(groups)), found.ravel(), strict=True)))
    return Comparison(Sheet.of_frame(pd.DataFrame(rows)), metric, (), groups)


def test_fairer_and_as_accurate() -> None:
    told = sentence(compare({"fedavg": [UNFAIR] * 5, "fair_fate": [FAIR] * 5}))
    assert told.startswith("Against fedavg, fair_fate gained 0.587 EQO (0.375 to 0.962)")
    assert "accuracy 0.792 to 0.823" in told
    assert "MCC" in told
    assert "balanced accuracy" in told
    assert told.endswith("It was fairer in 5 of 5 seeds.")


def test_fairer_and_collapsed() -> None:
    found = compare({"fedavg": [UNFAIR] * 5, "fedavg+thresholds": [NOBODY] * 5})
    told = sentence(found)
    assert told.startswith("No strategy can be recommended: fedavg+thresholds collapsed in 5 of 5 seeds")
    assert "gained" not in told
    assert "fairer" not in told
    assert found.best("eqo") == [True, False]
    assert found.best("accuracy") == [True, False]


def test_a_collapsed_strategy_is_left_aside_for_the_next() -> None:
    found = compare({"fedavg": [UNFAIR] * 4, "fair_fate": [FAIR] * 4, "fedval": [NOBODY] + [FAIR] * 3})
    assert sentence(found).startswith("Against fedavg, fair_fate gained")
    assert found.best("eqo") == [False, True, False]
    better = compare({"fedavg": [UNFAIR] * 4, "fair_fate": [FAIR] * 4, "fedval": [NEARLY] * 4})
    told = sentence(better)
    assert told.startswith("Against fedavg, fair_fate gained")
    assert told.endswith("Left aside: fedval (collapsed in 4 of 4 seeds).")


def test_the_price_is_said_first_when_skill_is_lost() -> None:
    told = sentence(compare({"fedavg": [UNFAIR] * 3, "fair_fate": [WEAK] * 3}))
    assert told.startswith("At the price of skill, fair_fate is fairer than fedavg: accuracy 0.792 to 0.625")
    assert "MCC 0.492 to 0.145" in told
    assert "gained 0.625 EQO (0.375 to 1.000)" in told


def test_nothing_gained() -> None:
    told = sentence(compare({"fedavg": [FAIR] * 3, "fair_fate": [UNFAIR] * 3}))
    assert told.startswith("Nothing was gained: fedavg is the fairest by EQO (0.962); the next is fair_fate")
    same = sentence(compare({"fedavg": [FAIR] * 3, "fair_fate": [FAIR] * 3}))
    assert same.startswith("Nothing was gained")


def test_several_groups() -> None:
    three, even = counts((0.4, 0.1), (0.7, 0.1), (0.8, 0.1)), counts((0.7, 0.1), (0.7, 0.1), (0.7, 0.1))
    told = sentence(compare({"fedavg": [three] * 2, "fair_fate": [even] * 2}, THREE))
    assert "(0.750 to 1.000 between the worst and the best of 3 groups)" in told


def test_several_attributes() -> None:
    uneven, even = counts(*[(0.4, 0.1), (0.8, 0.1)] * 2), counts(*[(0.7, 0.1)] * 4)
    told = sentence(compare({"fedavg": [uneven] * 2, "fair_fate": [even] * 2}, BOTH))
    assert ", the worst of sex, race)" in told


def test_one_seed() -> None:
    told = sentence(compare({"fedavg": [UNFAIR], "fair_fate": [FAIR]}))
    assert told.endswith("the one seed that was run; more seeds would show whether that is chance.")


def test_perhaps_chance() -> None:
    told = sentence(compare({"fedavg": [UNFAIR, FAIR, FAIR], "fair_fate": [FAIR, FAIR, FAIR]}))
    assert told.endswith("It was fairer in 1 of 3 seeds, so it may be chance.")


def test_undefined() -> None:
    lonely = FAIR.copy()
    lonely[0, 1] = 0
    told = sentence(compare({"fedavg": [lonely] * 2, "fair_fate": [lonely] * 2}))
    assert told == "EQO is undefined: a group has no such test rows, so nothing can be said about it."
    some = sentence(compare({"fedavg": [UNFAIR, UNFAIR], "fair_fate": [FAIR, lonely]}))
    assert "Nothing can be said: EQO is undefined for all but fedavg." in some
    first = sentence(compare({"fedavg": [UNFAIR, lonely], "fair_fate": [FAIR, FAIR]}))
    assert first.startswith("EQO is undefined for fedavg; of the others fair_fate is the fairest with 0.962")


def test_a_strategy_without_a_round_that_counted_is_never_fairer() -> None:
    lines = {"fedavg": [UNFAIR] * 2, "fedval": [FAIR] * 2, "fair_fate": [UNFAIR] * 2}
    assert "fedval gained" in sentence(compare(lines, rounds=3))
    found = compare(lines, rounds=3, untrained=("fedval",))
    assert found.flaws == ["", "no round counted in 2 of 2", ""]
    told = sentence(found)
    assert "fedval gained" not in told
    alone = sentence(compare({name: lines[name] for name in ("fedavg", "fedval")}, untrained=("fedval",)))
    assert alone.startswith(
        "No strategy can be recommended: fedval was not trained (no round counted in 2 of 2"
    )
    assert not found.best("accuracy")[1]
    assert any(note.startswith("no round counted: fedval in 2 of 2 seeds; ") for note in remarks(found))
    out = io.StringIO()
    show_run(Console(file=out, width=140), found)
    assert "fedval (no round counted)" in out.getvalue()


def test_the_first_strategy_was_not_trained() -> None:
    told = sentence(compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2}, untrained=("fedavg",)))
    assert told.startswith("fedavg itself was not trained (no round counted in 2 of 2 seeds)")
    assert "The fairest of the others is fair_fate" in told
    assert "gained" not in told


def test_the_first_strategy_collapsed() -> None:
    told = sentence(compare({"fedavg": [NOBODY] * 2, "fair_fate": [FAIR] * 2}))
    assert told.startswith("fedavg itself collapsed in 2 of 2 seeds (mean MCC 0.000)")
    assert "The fairest of the others is fair_fate: EQO 0.962, accuracy 0.823, MCC 0.576." in told
    alone = sentence(compare({"fedavg": [NOBODY] * 2}))
    assert alone.startswith("fedavg itself collapsed in 2 of 2 seeds")
    assert sentence(compare({"fedavg": [FAIR]})) == ""
    both = sentence(compare({"fedavg": [NOBODY] * 2, "fair_fate": [NOBODY] * 2}))
    assert both.startswith("No strategy can be recommended: fair_fate collapsed")
    assert "fedavg itself collapsed" in both


def test_an_objective_is_spoken_of() -> None:
    told = sentence(compare({"fedavg": [UNFAIR] * 2, "fair_fate": [FAIR] * 2}, metric="0.5*sp+0.5*eo"))
    assert "gained" in told
    assert "0.5*sp+0.5*eo" in told


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_has_the_majority_and_the_acceptance(width: int) -> None:
    found = compare({"fedavg": [UNFAIR] * 2, "fair_fate": [NOBODY] * 2})
    assert found.majority == pytest.approx(0.7)
    grid = results_table(found, width)
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in grid.columns}
    assert columns["accepted"][:2] == (
        ["0.268±0.000 ", "0.000±0.000 "] if width > 100 else [".27±.00 ", ".00±.00 "]
    )
    assert columns["accuracy"][2].strip() in (".70", "0.700")
    stars = [cell for name, cells in columns.items() for cell in cells[1:2] if "*" in cell]
    assert stars == []  # the collapsed one


def test_seeds_are_counted_where_both_strategies_were_run_with_them() -> None:
    """In seed 1 fedavg is fair, in the others it is not; fair_fate is FAIR but for its second seed."""

    def told(seeds: list[int]) -> str:
        own = [WEAK if place == 1 else FAIR for place in range(len(seeds))]
        both = compare({"fedavg": [WEAK, UNFAIR, UNFAIR], "fair_fate": own}).rounds
        names = dict(enumerate(seeds, start=1))
        new = [
            names[seed] if name == "fair_fate" else seed
            for name, seed in zip(both["strategy"], both["seed"], strict=True)
        ]
        return sentence(Comparison(both.assign(seed=np.array(new)), "eqo", (), TWO)).partition("MCC")[2]

    assert told([2, 1, 3]).endswith("It was fairer in 2 of 3 seeds, so it may be chance.")
    assert told([2, 4, 3]).endswith("It was fairer in 2 of 2 seeds that both were run with.")
    assert told([3, 2]).endswith("It was fairer in 2 of 2 seeds that both were run with.")
    assert told([4, 1, 2]).endswith("fairer in 1 of 2 seeds that both were run with, so it may be chance.")
    only = "in the one seed that both were run with; more seeds would show whether that is chance."
    assert told([7, 8, 3, 9]).endswith(f"It was fairer {only}")
    assert told([7, 1, 8]).endswith(f"It was not fairer {only}")
    assert told([4, 5]).endswith("They were run with different seeds, so it may be chance.")


@pytest.mark.parametrize(
    ("seeds", "told"),
    [((3, 3), "mean ± std over 3 seeds"), ((3, 2), "mean ± std over 2 to 3 seeds"), ((1, 1), "one seed")],
)
def test_the_title_says_how_many_seeds_there_are(seeds: tuple[int, int], told: str) -> None:
    screen = Console(file=io.StringIO(), width=120)
    show_run(screen, compare({"fedavg": [UNFAIR] * seeds[0], "fair_fate": [FAIR] * seeds[1]}))
    assert isinstance(screen.file, io.StringIO)
    assert f"d, random: test rows, round 1, {told}\n" in screen.file.getvalue()


def test_runs_of_one_seed_each_are_titled_so() -> None:
    rounds = compare({"fedavg": [UNFAIR], "fair_fate": [FAIR]}).rounds
    other = np.where(rounds["strategy"] == "fedavg", 1, 2)
    screen = Console(file=io.StringIO(), width=120)
    show_run(screen, Comparison(rounds.assign(seed=other), "eqo", (), TWO))
    assert isinstance(screen.file, io.StringIO)
    assert "round 1, one seed each\n" in screen.file.getvalue()


def test_collapsed_models_are_counted_among_their_own_seeds() -> None:
    lines = {"fedavg": [UNFAIR] * 5, "fair_fate": [NOBODY, FAIR], "fedval": [FAIR] * 5}
    found = compare(lines)
    assert found.flaws == ["", "collapsed in 1 of 2", ""]
    assert any("collapsed: fair_fate in 1 of 2 seeds" in line for line in remarks(found))


def test_a_run_that_was_cut_short_is_told() -> None:
    found = compare({"fedavg": [FAIR]}, rounds=20)
    assert not [line for line in remarks(found) if "not converged" in line]
    rising = found.rounds.assign(mcc=found.rounds["round"] / 100 + 0.2)
    cut = Comparison(rising, "eqo", (), TWO)
    assert remarks(cut)[-1].startswith("not converged: fedavg; more rounds or a larger learning rate")


def test_an_objective_that_no_strategy_looks_at_is_measured_all_the_same(fairfate) -> None:
    done = fairfate(
        "run", *QUICK, "--metric", "worst(eo, sp)", "--strategy", "fedavg", "--strategy", "fedmom"
    )
    assert done.code == 0
    assert "undefined" not in done.out
