from __future__ import annotations

from pathlib import Path

import pytest

from fairfate.errors import InputError
from fairfate.report.figures import over_rounds, save
from fairfate.runs.run import run

STRATEGIES = ("fedavg", "fair_fate:metric=sp", "fair_fate:metric=eo")


@pytest.fixture(scope="module")
def rounds():
    return run(data="synthetic:rows=200", rounds=3, seeds=(1, 2), strategies=STRATEGIES, jobs=1).rounds


def test_a_panel_for_each_metric_and_a_line_for_each_strategy(rounds) -> None:
    figure = over_rounds(rounds, ("accuracy", "sp"))
    assert [panel.get_ylabel() for panel in figure.axes] == ["accuracy", "statistical parity (1 is fair)"]
    for panel in figure.axes:
        assert [line.get_label() for line in panel.lines] == [
            "fedavg",
            "fair_fate(metric=sp)",
            "fair_fate(metric=eo)",
        ]
        assert panel.get_xlabel() == "round"
    one, two = figure.axes[0].lines[1:]
    assert one.get_color() == two.get_color()
    assert one.get_linestyle() != two.get_linestyle()


def test_lines_are_means_over_seeds(rounds) -> None:
    figure = over_rounds(rounds, ("mcc",))
    mine = rounds[(rounds.strategy == "fedavg") & (rounds.split == "test")]
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx(
        mine.groupby("round")["mcc"].mean().tolist()
    )


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(rounds, tmp_path: Path, kind: str) -> None:
    one = save(over_rounds(rounds), tmp_path / f"a.{kind}").read_bytes()
    assert one == save(over_rounds(rounds), tmp_path / f"b.{kind}").read_bytes()
    assert len(one) > 5000


def test_other_endings_and_metrics_are_refused(rounds, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"figure must end in .png, .svg or .pdf"):
        save(over_rounds(rounds), tmp_path / "a.txt")
    with pytest.raises(InputError, match="unknown name in metric 'auc'"):
        over_rounds(rounds, ("auc",))


def test_an_objective_can_be_drawn(tmp_path) -> None:
    from fairfate.runs.results import read_groups, read_rounds
    from fairfate.runs.run import run

    run(data="synthetic:rows=300", rounds=2, seeds=1, jobs=1, out=tmp_path / "o")
    rounds, groups = read_rounds(tmp_path / "o"), read_groups(tmp_path / "o")
    figure = over_rounds(rounds, ("accuracy", "worst(sp, eo)"), groups)
    assert len(figure.axes) == 2
    with pytest.raises(InputError, match="without counts, got 'worst"):
        over_rounds(rounds, ("worst(sp, eo)",))
