from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from typer.testing import CliRunner

from fairfate.cli import main as commands
from fairfate.errors import InputError
from fairfate.experiments.config import expand
from fairfate.experiments.run import run
from fairfate.experiments.runs import load_run
from fairfate.experiments.store import Store
from fairfate.experiments.sweep import sweep
from fairfate.fairness.metrics import METRICS
from fairfate.report.canvas import Style, parse_length, text_width, wrap
from fairfate.report.figures import PANELS, draw, limits, majority, over_rounds, save
from fairfate.report.lines import COLOURS, GREY, lines_of, widened
from fairfate.report.tradeoff import Point, front, trade_off
from fairfate.results.tables import count_columns, read_counted_rounds

STRATEGIES = ("fedavg", "fair_fate:metric=sp", "fair_fate:metric=eo")


@pytest.fixture(scope="module")
def rounds():
    return run(data="synthetic:rows=200", rounds=3, seeds=(1, 2), strategies=STRATEGIES, jobs=1).rounds


def test_a_panel_for_each_metric_and_a_line_for_each_strategy(rounds) -> None:
    figure = over_rounds(rounds.assign(mcc=0.5), ("accuracy", "sp"))  # so few rounds teach nothing
    assert [panel.get_ylabel() for panel in figure.axes] == ["accuracy", "statistical parity (1 is fair)"]
    for panel in figure.axes:
        assert [line.get_label() for line in panel.lines][:3] == [
            "fedavg",
            "fair_fate(metric=sp)",
            "fair_fate(metric=eo)",
        ]
        assert panel.get_xlabel() == "round"
    first, two = figure.axes[0].lines[1:3]
    assert first.get_color() == two.get_color()
    assert first.get_linestyle() != two.get_linestyle()


def test_lines_are_means_over_seeds(rounds) -> None:
    figure = over_rounds(rounds, ("mcc",))
    own = rounds[(rounds.strategy == "fedavg") & (rounds.split == "test")]
    assert figure.axes[0].lines[0].get_ydata().tolist() == pytest.approx(
        own.groupby("round")["mcc"].mean().tolist()
    )


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(rounds, tmp_path: Path, kind: str) -> None:
    content = save(over_rounds(rounds), tmp_path / f"a.{kind}").read_bytes()
    assert content == save(over_rounds(rounds), tmp_path / f"b.{kind}").read_bytes()
    assert len(content) > 5000


def test_other_endings_and_metrics_are_refused(rounds, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"figure must end in .png, .svg or .pdf"):
        save(over_rounds(rounds), tmp_path / "a.txt")
    with pytest.raises(InputError, match="unknown name in metric 'auc'"):
        over_rounds(rounds, ("auc",))


def test_an_objective_can_be_drawn(tmp_path) -> None:
    from fairfate.experiments.run import run
    from fairfate.results.tables import read_rounds

    run(data="synthetic:rows=300", rounds=2, seeds=1, jobs=1, out=tmp_path / "o")
    rounds, groups = read_rounds(tmp_path / "o"), read_counted_rounds(tmp_path / "o")[1]
    figure = over_rounds(rounds, ("accuracy", "worst(sp, eo)"), groups)
    assert len(figure.axes) == 2
    with pytest.raises(InputError, match="without counts, got 'worst"):
        over_rounds(rounds, ("worst(sp, eo)",))


# -- made by hand ----------------------------------------------------------------------------------------


def curve(*means: float, std: float = 0.0) -> pd.DataFrame:
    index = range(1, len(means) + 1)
    return pd.DataFrame({"mean": means, "std": std}, index=index)


def made(points: dict[str, tuple[float, float]], rounds: int = 4, **late: bool) -> pd.DataFrame:
    """Rounds of strategies by their accuracy and EQO, two seeds each; ``late``: the last round only."""
    rows = []
    for name, (accuracy, eqo) in points.items():
        for seed, shift in ((1, -0.01), (2, 0.01)):
            for number in range(rounds if late.get(name) else 1, rounds + 1):
                row = dict.fromkeys(METRICS, 0.5) | {"accuracy": accuracy + shift, "eqo": eqo + shift}
                counts = dict(zip(count_columns(2), (30, 10, 10, 10, 10, 10, 5, 15), strict=True))
                about = {"dataset": "people", "partition": "random", "protocol": "paper", "metric": None}
                where = {"strategy": name, "settings": "{}", "seed": seed, "round": number, "split": "test"}
                rows.append({**about, **where, **row, **counts})
    return pd.DataFrame(rows)


def words(figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def test_axes_span_the_data_after_the_first_tenth_and_not_more() -> None:
    rising = curve(*np.linspace(0.0, 0.1, 10), *np.full(90, 0.7))
    assert limits([rising, curve(*np.full(100, 0.8), std=0.05)], "accuracy") == pytest.approx(
        (0.7 - 0.05 * 0.15, 0.85 + 0.05 * 0.15)
    )
    low, high = limits([rising], "accuracy")
    assert (low, high) == pytest.approx((0.675, 0.725))


def test_axes_stay_inside_what_a_metric_can_be() -> None:
    assert widened(0.0, 1.0, "sp") == (0, 1)
    assert widened(0.0, 0.0, "sp") == pytest.approx((0, 0.05))
    assert widened(1.0, 1.0, "sp") == pytest.approx((0.95, 1))
    assert widened(-0.2, 0.9, "mcc")[0] < -0.2
    assert widened(-1.0, 1.0, "mcc") == (-1, 1)


def test_axes_hold_the_end_of_every_strategy_and_the_bars_of_single_rounds() -> None:
    many = [curve(*np.full(100, 0.8)) for _ in range(9)]
    single = curve(0.5, std=0.1).set_axis([100])
    low, high = limits([*many, single], "accuracy")
    assert low < 0.4
    assert 0.8 < high < 0.9
    assert limits([*many, curve(*np.full(99, 0.8), 0.3)], "accuracy")[0] < 0.3


def test_the_accuracy_panel_has_the_majority_dotted(rounds) -> None:
    frame = made({"fedavg": (0.7, 0.5)})
    assert majority(frame) == pytest.approx(60 / 100)
    figure = over_rounds(frame)
    assert [line.get_label() for line in figure.axes[0].lines][1:] == [
        "majority baseline (0.600, below the axis)"
    ]
    assert len(figure.axes[1].lines) == 1
    assert len(over_rounds(frame.drop(columns=count_columns(2))).axes[0].lines) == 1
    line = over_rounds(rounds).axes[0].lines[-1]
    assert line.get_ydata()[0] == pytest.approx(majority(rounds[rounds["split"] == "test"]))


def test_the_title_says_what_is_drawn() -> None:
    frame = made({"fedavg": (0.7, 0.5)})
    assert over_rounds(frame).get_suptitle() == (
        "people, random\ntest rows, mean over 2 seeds, band of one standard deviation"
    )
    changed = frame[frame["seed"] == 1].assign(protocol="published")
    assert over_rounds(changed).get_suptitle() == "people, random, published protocol\ntest rows, one seed"
    with pytest.raises(InputError, match=r"rounds must be of one dataset, partition and protocol.*got 2"):
        over_rounds(pd.concat([frame, changed]))


def test_strategies_measured_in_the_last_round_are_markers_with_bars() -> None:
    name = "fedavg+thresholds"
    panel = over_rounds(made({"fedavg": (0.7, 0.5), name: (0.8, 0.9)}, **{name: True})).axes[0]
    (bars,) = panel.containers
    marker, _, (stems,) = bars.lines
    assert bars.get_label() == name
    assert marker.get_xdata().tolist() == [4]
    assert marker.get_marker() != "None"
    (stem,) = stems.get_segments()
    std = 0.01 * 2**0.5
    assert stem[:, 1].tolist() == pytest.approx([0.8 - std, 0.8 + std])
    assert panel.get_xlim()[1] > 4


def test_undefined_metrics_are_explained_in_words() -> None:
    frame = made({"fedavg": (0.7, np.nan), "fedmom": (0.7, np.nan)})
    for figure in (over_rounds(frame), trade_off(frame)):
        assert any("eqo is undefined here" in word for word in words(figure))
    some = made({"fedavg": (0.7, np.nan), "fedmom": (0.7, 0.5)})
    assert over_rounds(some).axes[1].get_title() == "undefined for fedavg"
    assert trade_off(some).axes[0].get_title() == "undefined for fedavg"


def test_collapsed_strategies_are_grey_and_named_so() -> None:
    frame = made({"fedavg": (0.7, 0.5), "fedmom": (0.6, 1.0)})
    frame.loc[(frame["strategy"] == "fedmom") & (frame["round"] == 4), "mcc"] = 0.049
    for figure in (over_rounds(frame), trade_off(frame)):
        assert "fedmom (collapsed)" in words(figure)
    fine, grey = over_rounds(frame).axes[1].lines
    assert (fine.get_color(), grey.get_color()) == ("#000000", GREY)
    panel = trade_off(frame).axes[0]
    hollow = panel.containers[1].lines[0]
    assert (hollow.get_markeredgecolor(), hollow.get_markerfacecolor()) == (GREY, "white")
    assert [text.get_text() for text in panel.texts] == ["fedavg", "collapsed"]


def test_many_collapsed_settings_are_marked_once() -> None:
    frame = made({"fedavg": (0.8, 0.5), **{f"fedmom+step{i}": (0.6, 0.9 + 0.005 * i) for i in range(20)}})
    frame.loc[frame["strategy"] != "fedavg", "mcc"] = 0.01
    figure = trade_off(frame)
    shown = words(figure)
    assert sum("collapsed" in word for word in shown) == 1
    assert "hollow: collapsed" in shown


def test_text_is_wrapped_between_words_only() -> None:
    name = "fair_fate_of_mine(lam0=0.1, max=0.8)+average+thresholds"
    for width in (0.5, 1.0, 2.0, 4.0):
        lines = wrap(name, width, 10).splitlines()
        assert "".join(lines).replace(" ", "") == name.replace(" ", "")
        assert all(line[-1] in "+_(,:" or line[-1] == ")" for line in lines[:-1])
        longest = max(text_width(word, 10) for word in ("thresholds", "max=0.8)+"))
        assert all(text_width(line, 10) <= max(width, longest) for line in lines)
    assert wrap("d" * 200, 1.0, 10) == "d" * 200
    assert wrap("a short name", 4.0, 10) == "a short name"


POINTS = {
    "fedavg": (0.80, 0.50),
    "fedmom": (0.75, 0.70),
    "fedval": (0.74, 0.65),  # beaten by fedmom
    "fair_fate": (0.70, 0.90),
    "ffalm": (0.70, 0.80),  # beaten by fair_fate in one, and equal in the other
}


@pytest.mark.parametrize("metric", ["eqo", "eqo_diff"])
def test_the_front_is_what_no_other_beats(metric: str) -> None:
    frame = made(POINTS)
    frame["eqo_diff"] = 1 - frame["eqo"]
    points = [Point.from_line(line, metric, 4) for line in lines_of(frame)]
    assert [point.line.label for point in front(points, metric)] == ["fair_fate", "fedmom", "fedavg"]
    panel = trade_off(frame, metric).axes[0]
    assert [text.get_text() for text in panel.texts] == ["fair_fate", "fedmom", "fedavg"]
    joined = next(line for line in panel.lines if line.get_drawstyle() == "steps-pre")
    assert joined.get_xdata() == pytest.approx([0.70, 0.75, 0.80])


def test_a_point_is_the_mean_over_seeds_with_bars_both_ways() -> None:
    panel = trade_off(made({"fedavg": (0.8, 0.5)})).axes[0]
    (bars,) = panel.containers
    assert (bars.lines[0].get_xdata()[0], bars.lines[0].get_ydata()[0]) == pytest.approx((0.8, 0.5))
    assert bars.has_xerr
    assert bars.has_yerr
    assert panel.lines[0].get_xdata().tolist() == pytest.approx([0.79, 0.81])


def drawn_text(figure) -> list[Text]:
    """All text but that of ticks, once the figure is laid out."""
    FigureCanvasAgg(figure).draw()
    ticks = [tick for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    return [text for text in shown if text not in ticks]


def check_is_clean(figure) -> None:
    """Nothing is cut off, and no text or panel covers another one."""
    texts = drawn_text(figure)
    assert len(texts) >= 5
    boxes = [Text.get_window_extent(text) for text in texts]
    panels = [axes.get_tightbbox() for axes in figure.axes]  # with ticks
    for box in (*boxes, *panels):
        assert min(box.x0, box.y0) >= -1  # pixels
        assert box.x1 <= figure.bbox.x1 + 1
        assert box.y1 <= figure.bbox.y1 + 1
    for kind in (boxes, panels):
        for number, box in enumerate(kind):
            assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in kind[:number])
    for axes in figure.axes:
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            shown = [label.get_window_extent() for label in labels if label.get_text()]
            assert not any(a.padded(-0.5).overlaps(b.padded(-0.5)) for a, b in pairwise(shown))


PAPER = Style(3.5, 8, title=False)
LONG = "fair_fate_with_a_plugin_of_{}_and_a_very_long_name_that_goes_on_{}+average+thresholds"


@pytest.mark.parametrize(
    ("style", "number", "name"),
    [
        pytest.param(Style(), 22, "fedavg(beta={},gamma={})", marks=pytest.mark.slow),
        (Style(), 8, LONG),
        (PAPER, 3, "fedavg(beta={},gamma={})"),
        pytest.param(PAPER, 22, LONG, marks=pytest.mark.slow),
        (Style(7, 9), 22, LONG),
        (Style(font_size=16), 3, LONG),
    ],
)
def test_nothing_overlaps_or_is_cut_off(style: Style, number: int, name: str) -> None:
    points = {name.format(i, i): (0.7 + 0.004 * i, 0.9 - 0.03 * i) for i in range(number)}
    frame = made(points).assign(dataset="people of a town", partition="column:a_long_name_of_a_column")
    for figure in (over_rounds(frame, ("accuracy",), style=style), over_rounds(frame, PANELS, style=style)):
        check_is_clean(figure)
    check_is_clean(trade_off(frame, style=style))


def test_a_title_of_one_long_word_is_not_cut_off() -> None:
    frame = made({"fedavg": (0.7, 0.5)}).assign(dataset="d" * 120, partition="column:" + "p" * 80)
    for style in (Style(), Style(3.5, 8)):
        figure = over_rounds(frame, ("accuracy",), style=style)
        check_is_clean(figure)
        assert "d" * 120 in figure.get_suptitle()


def test_legends_have_whole_names_and_lines_differ_in_a_sweep_of_22_settings() -> None:
    names = [f"fair_fate_with_a_step_of_{i}+average" for i in range(12)] + [
        f"fedavg+step{i}" for i in range(10)
    ]
    frame = made({name: (0.7 + 0.004 * i, 0.9 - 0.03 * i) for i, name in enumerate(names)}, rounds=20)
    for style in (Style(), PAPER):
        figure = over_rounds(frame, ("accuracy",), style=style)
        (legend,) = figure.legends
        assert [text.get_text().replace("\n", "") for text in legend.get_texts()][:22] == names
        curves = figure.axes[0].lines[:22]
        looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in curves]
        assert len(set(looks)) == 22
        assert not figure.axes[0].collections  # 22 bands are mud
        assert "band" not in figure.get_suptitle()
    few, many = (over_rounds(made(dict.fromkeys(names[:k], (0.7, 0.5))), ("accuracy",)) for k in (2, 22))
    assert many.get_size_inches()[1] > few.get_size_inches()[1] + 1
    assert len(few.axes[0].collections) == 2


def test_settings_of_a_strategy_have_shades_of_its_colour_and_other_strategies_another() -> None:
    points = {f"fair_fate+step{i}": (0.7, 0.5) for i in range(6)} | {"qffl": (0.7, 0.5), "ffalm": (0.7, 0.5)}
    colours = [line.colour for line in lines_of(made(points))]
    assert len(set(colours)) == 8
    assert not set(colours[6:]) & set(COLOURS.values())


def test_widths_and_font_sizes_are_those_asked_for() -> None:
    frame = made(POINTS)
    for figure in (over_rounds(frame, style=PAPER), trade_off(frame, style=PAPER)):
        assert figure.get_size_inches()[0] == 3.5
        FigureCanvasAgg(figure).draw()
        sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
        assert max(sizes) == 8
        assert min(sizes) >= 7
        assert figure.get_suptitle() == ""
    assert max(text.get_fontsize() for text in drawn_text(over_rounds(frame))) == 10


@pytest.mark.parametrize(
    ("text", "inches"), [("3.5in", 3.5), ("3.5", 3.5), ("8.89cm", 3.5), ("88.9 mm", 3.5), (".5", 0.5)]
)
def test_lengths_are_inches_unless_they_have_a_unit(text: str, inches: float) -> None:
    assert parse_length(text) == pytest.approx(inches)


@pytest.mark.parametrize("text", ["", "in", "3.5ft", "-3in", "1e400", "nan", "3,5cm"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="width must be a length such as"):
        parse_length(text)


def test_dollar_signs_in_names_are_no_formulas() -> None:
    figure = over_rounds(made({"fedavg": (0.7, 0.5)}).assign(dataset="$people$_1"), ("accuracy",))
    title = next(text for text in drawn_text(figure) if "people" in text.get_text())
    assert title._preprocess_math(title.get_text())[0].startswith("$people$_1")
    assert not title._preprocess_math(title.get_text())[1]


# -- notebooks -------------------------------------------------------------------------------------------


def test_a_notebook_shows_a_figure_once(rounds) -> None:
    figure = over_rounds(rounds)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure._repr_html_() is None
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_run_is_drawn_by_names_or_a_list_of_them() -> None:
    finished_run = run(data="synthetic:rows=200", rounds=2, seeds=(1, 2), strategies=["fedavg"], jobs=1)
    for figure in (finished_run.plot("accuracy", "eqo"), finished_run.plot(["accuracy", "eqo"])):
        assert [panel.get_ylabel() for panel in figure.axes] == ["accuracy", "equalized odds (1 is fair)"]
    assert len(finished_run.plot().axes) == 4
    small = finished_run.plot("sp", width=3.5, font_size=8, title=False)
    assert (small.get_size_inches()[0], small.get_suptitle()) == (3.5, "")


@pytest.mark.parametrize("by_hand", [True, False])
def test_text_stays_text_in_svg_and_pdf(tmp_path: Path, by_hand: bool) -> None:
    for figure in (over_rounds(made(POINTS)), trade_off(made(POINTS))):
        for kind in ("svg", "pdf"):
            path = tmp_path / f"a.{kind}"
            figure.savefig(path) if by_hand else save(figure, path)
        assert ">fair_fate</text>" in (tmp_path / "a.svg").read_text()
        content = (tmp_path / "a.pdf").read_bytes()
        assert b"/Type3" not in content
        assert b"/FontFile2" in content


# -- files -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plot") / "run"
    run(data="synthetic:rows=200", rounds=2, seeds=(1, 2), metric="sp", jobs=1, out=made)
    return made


def names(paths) -> list[str]:
    return [path.name for path in paths]


def test_a_run_has_two_figures_in_its_folder(folder: Path, capsys) -> None:
    outcome = CliRunner().invoke(commands.app, ["plot", str(folder)])
    assert outcome.output.split() == ["Saved", f"{folder}/rounds.png", "Saved", f"{folder}/tradeoff.png"]
    assert names(draw(folder, kind="tradeoff")) == ["tradeoff.png"]
    assert names(draw(folder / "rounds.parquet", kind="rounds")) == ["rounds.png"]


def test_the_command_takes_a_width_and_a_font_size(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    words = ["plot", str(folder), "--out", str(out), "--width", "9cm", "--font-size", "8", "--no-title"]
    assert CliRunner().invoke(commands.app, words).exit_code == 0
    content = out.read_text()
    assert f'width="{9 / 2.54 * 72:.4f}' in content
    assert "synthetic" not in content
    assert "font-size: 8px" in content
    for wrong in (["--width", "9 feet"], ["--width", "1cm"], ["--font-size", "0"]):
        bad = CliRunner().invoke(
            commands.app, ["plot", str(folder), "--out", str(tmp_path / "b.png"), *wrong]
        )
        assert isinstance(bad.exception, InputError)
        assert not (tmp_path / "b.png").exists()


def test_a_file_of_the_user(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    assert names(draw(folder, out=out)) == ["a.svg"]
    assert names(draw(folder, out=out, kind="both", force=True)) == ["a.svg", "a-tradeoff.svg"]
    assert sorted(names(tmp_path.iterdir())) == ["a-tradeoff.svg", "a.svg"]
    with pytest.raises(InputError, match=r"kind must be one of rounds\|tradeoff\|both, got 'all'"):
        list(draw(folder, kind="all"))


@pytest.mark.parametrize(
    ("metrics", "drawn"),
    [((), "sp"), (("accuracy", "mcc"), "sp"), (("accuracy", "worst(sp, eo)", "eqo"), "worst(sp, eo)")],
)
def test_the_trade_off_is_of_the_metric_asked_for_or_the_runs_own(
    folder: Path, tmp_path: Path, monkeypatch, metrics, drawn
) -> None:
    asked = []
    whole = trade_off
    monkeypatch.setattr(
        "fairfate.report.figures.trade_off", lambda *given: (asked.append(given[1]), whole(*given))[1]
    )
    list(draw(folder, metrics, tmp_path / "a.png", "tradeoff"))
    assert asked == [drawn]


SWEEP = {
    "data": ["synthetic:rows=200"],
    "partition": ["random", "dirichlet:0.5"],
    "strategy": ["fedavg", "fedmom"],
    "seeds": [1, 2],
    "rounds": 2,
    "epochs": 1,
}


def test_a_sweep_has_two_figures_for_each_partition(tmp_path: Path) -> None:
    sweep(expand({**SWEEP, "rounds": 1}), tmp_path, jobs=1)  # whose cells stay, and are not drawn
    sweep(expand(SWEEP), tmp_path, jobs=1)
    assert names(draw(tmp_path, ("accuracy", "worst(sp, eo)"))) == [
        "synthetic_random_paper-rounds.png",
        "synthetic_random_paper-tradeoff.png",
        "synthetic_dirichlet-0.5_paper-rounds.png",
        "synthetic_dirichlet-0.5_paper-tradeoff.png",
    ]
    with pytest.raises(InputError, match="out must be left out for a sweep"):
        list(draw(tmp_path, out=tmp_path / "a.png"))


def test_a_sweep_is_read_as_it_was_configured_last(tmp_path: Path) -> None:
    from fairfate.experiments.runs import read_runs

    sweep(expand({**SWEEP, "rounds": 1}), tmp_path, jobs=1)
    sweep(expand({**SWEEP, "partition": "dirichlet:0.5"}), tmp_path, jobs=1)
    sweep(expand({**SWEEP, "partition": "dirichlet:0.5", "strategy": ["fedval"]}), tmp_path, jobs=1)
    (kept_rows,) = read_runs(tmp_path)
    assert kept_rows.name == "synthetic_dirichlet-0.5_paper"
    assert set(kept_rows.rounds["round"]) == {1, 2}
    assert set(kept_rows.rounds["strategy"]) == {"fedval"}
    assert not kept_rows.rounds.duplicated(["strategy", "seed", "round", "split"]).any()


def test_other_folders_and_damaged_cells_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run must be the folder of a finished run"):
        list(draw(tmp_path))
    for part in ("configs", "cells"):
        (tmp_path / part).mkdir()
    with pytest.raises(InputError, match="No job of the sweep"):
        list(draw(tmp_path))
    sweep(expand({**SWEEP, "partition": "random"}), tmp_path, jobs=1)
    Store(tmp_path / "cells").files[0].write_bytes(b"")
    with pytest.raises(InputError, match=r"synthetic_random.* is damaged"):
        list(draw(tmp_path))


def test_a_run_takes_a_width_with_a_unit(folder: Path) -> None:
    finished = load_run(folder)
    assert finished.plot("eqo", width="9cm").get_size_inches()[0] == pytest.approx(9 / 2.54)
    with pytest.raises(InputError, match="width must be a length"):
        finished.plot("eqo", width="wide")
