"""``run``, and what shows its results: ``show``, ``report`` and ``plot``; and ``strategies``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from fairfate.cli.parameters import (
    Cluster,
    FairFrom,
    Force,
    Plugins,
    Whole,
    Word,
    Words,
    by_section,
    flag,
    number,
    option,
    whole,
    with_options,
)
from fairfate.cli.screen import Bar, console, say
from fairfate.cli.watch import watched
from fairfate.errors import Stopped, check
from fairfate.options import Execution, Options, options_of, read_options

if TYPE_CHECKING:
    from fairfate.experiments.runs import Run
    from fairfate.strategies.hyperparameters import Setting

_OPTIONS = [*by_section(options_of(Options).values()), *options_of(Execution).values()]
_METRICS = ("accuracy", *options_of(Options)["metric"].suggestions)


def _output(text: str) -> Any:
    return option(text, section="Output")


def _flag(name: str, text: str) -> Any:
    return flag(name, text, "Output")


@with_options(_OPTIONS)
def run(
    given: dict[str, Any],
    config: Annotated[Path | None, _output("TOML file with these keys; the command line wins")] = None,
    groups: Annotated[
        bool, _flag("--groups", "show every group under every strategy (also in groups.csv)")
    ] = False,
    mlflow: Annotated[Word, _output("log the run there too: sqlite:///mlflow.db or http://...")] = None,
    no_baselines: Annotated[
        bool, _flag("--no-baselines", "train no models on the pooled rows for comparison")
    ] = False,
    refit: Annotated[
        bool,
        _flag("--refit", "train the recommended strategy once more, on all rows; none are left to test it"),
    ] = False,
    no_report: Annotated[bool, _flag("--no-report", "write no report.html")] = False,
    fair_from: FairFrom = None,
    cluster: Cluster = None,
    live: Annotated[bool, _flag("--live", "show the run in the browser as it trains; see 'watch'")] = False,
) -> None:
    """Train strategies on one dataset over several seeds and compare them."""
    import numpy  # noqa: F401  # before pandas, whose import hides that memory ran out in NumPy's

    from fairfate.experiments.cluster import open_cluster
    from fairfate.experiments.config import Config, file_options, read_config, without_provenance
    from fairfate.experiments.execute import execute
    from fairfate.experiments.plan import changes
    from fairfate.experiments.prepare import prepare
    from fairfate.report.audit import FOUR_FIFTHS
    from fairfate.report.data import ReportData
    from fairfate.report.page import write_report
    from fairfate.report.terminal import show_run
    from fairfate.report.tracking import open_tracking
    from fairfate.results.folder import REPORT

    if fair_from is not None:
        check(0 < fair_from <= 1, "fair-from must be in (0, 1]", f"{fair_from:g}")
    values = {} if config is None else read_config(config)
    jobs, out, force = file_options(values, str(config))
    in_file = read_options(without_provenance(values, str(config)), str(config))
    where, table_of_execution = "the command line", options_of(Execution)
    typed = {name: given.pop(name) for name in table_of_execution if name in given}
    typed = read_options(typed, where, table_of_execution.values())
    execution = Execution(**{"jobs": jobs, "out": out, "force": force, **typed})
    plan, table = prepare(Config(**{**in_file, **read_options(given, where)}))
    for note in changes(values.get("provenance", {}), table, config):
        say(f"Note: {note}")
    tracking = None if mlflow is None else open_tracking(mlflow)  # before training: a bad address fails now
    folder = _new_folder(table.name) if execution.out is None else Path(execution.out)
    messages, parts = [], []

    def write(results: Run) -> None:
        parts.append(ReportData.from_runs([results]))
        if not no_report:
            threshold = FOUR_FIFTHS if fair_from is None else fair_from
            messages.append(f"Report: {write_report(parts, folder / REPORT, threshold, force=True)}")
        if tracking is not None:
            messages.append(f"Logged to {tracking.shown} (run {tracking.log(results)})")

    if plan.budget is not None:
        say(f"Note: {plan.notes[-1]}")  # before it is spent
    total = len(plan.config.seeds) * plan.training.rounds
    try:
        with (
            open_cluster(cluster) as executor,
            watched(folder) if live else nullcontext(),
            Bar("rounds", total) as bar,
        ):
            execute(
                plan,
                table,
                out=folder,
                jobs=execution.jobs,
                executor=executor,
                force=execution.force,
                progress=bar.progress,
                baselines=not no_baselines,
                refit=refit,
                on_results=write,
            )
    except Stopped as stopped:
        stopped.advice = f"Finished seeds are kept; the same command with --out {folder} continues."
        raise
    finally:
        with suppress(OSError):  # it holds something
            if execution.out is None:
                folder.rmdir()
                folder.parent.rmdir()
    show_run(console(), parts[0], groups, saved_to=folder)
    for message in messages:
        console(soft_wrap=True).print(message)


def _new_folder(name: str) -> Path:
    """The next folder under runs/ that is free, made at once so that no other run takes it."""
    for index in itertools.count(1):
        folder = Path("runs") / f"{name}-{index}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def show(
    run: Annotated[list[Path], typer.Argument(help="folders of runs or sweeps")],
    clients: Annotated[
        bool, flag("--clients", "who took part, who was fair, who was dropped and why")
    ] = False,
    seed: Annotated[Whole, option("whose clients to show (default: the first)", whole)] = None,
    groups: Annotated[bool, flag("--groups", "show every group under every strategy")] = False,
    format: Annotated[  # noqa: A002
        Word,
        option(
            "terminal|latex|markdown|csv (default: terminal; csv is not rounded)",
            words=("latex", "markdown", "csv"),
        ),
    ] = None,
    digits: Annotated[Whole, option("after the point (default: 3)", whole)] = None,
) -> None:
    """Print the results of finished runs side by side, wherever they ran."""
    from fairfate.report.data import ReportData
    from fairfate.report.tables import FORMATS, format_tables
    from fairfate.report.terminal import COLUMNS, show_clients, show_run
    from fairfate.results.tables import read_clients

    kind = "terminal" if format is None else format
    check(kind in FORMATS, f"format must be one of {'|'.join(FORMATS)}", f"'{kind}'")
    check(digits is None or 1 <= digits <= 15, "digits must be from 1 to 15", digits)
    if kind != "terminal":
        check(not clients and not groups, "format must be terminal for --clients and --groups", f"'{kind}'")
        typer.echo(format_tables(ReportData.read(run), kind, COLUMNS, digits), nl=False)
        return
    if not clients:
        for data in ReportData.read(run):
            show_run(console(), data, groups, digits)
        return
    for folder in run:
        show_clients(console(), read_clients(folder), seed)


def report(
    run: Annotated[list[Path], typer.Argument(help="folders of runs or sweeps, finished or not")],
    out: Annotated[Path | None, option("HTML file (default: report.html in the run's folder)")] = None,
    fair_from: FairFrom = None,
    min_cell: Annotated[
        int | None, option("least count of people that is shown (default: 10; 0 for all)", whole)
    ] = None,
    card: Annotated[bool, flag("--card", "write a model card in Markdown instead")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    force: Force = False,
) -> None:
    """Write a page about runs: the recommended model, its accuracy and fairness, an audit, and charts."""
    from fairfate.fairness.disclosure import MIN_CELL
    from fairfate.report.audit import FOUR_FIFTHS
    from fairfate.report.page import report, write_card

    threshold = FOUR_FIFTHS if fair_from is None else fair_from
    least = MIN_CELL if min_cell is None else min_cell
    path = (write_card if card else report)(run, out, threshold, least, force=force)
    console(soft_wrap=True).print(f"{'Card' if card else 'Report'}: {path}")
    if open_page:
        typer.launch(str(path))


def plot(
    run: Annotated[Path, typer.Argument(help="folder of a run or a sweep")],
    metric: Annotated[
        Words,
        option(
            "panel, also an objective (repeatable; default: accuracy, sp, eo, eqo)",
            words=_METRICS,
        ),
    ] = None,
    out: Annotated[Path | None, option("PNG, SVG or PDF file (default: in the folder)")] = None,
    kind: Annotated[
        Word,
        option(
            "rounds|tradeoff|both (default: both; with --out: rounds)", words=("rounds", "tradeoff", "both")
        ),
    ] = None,
    width: Annotated[Word, option("of the figure: 3.5in, 9cm or 90mm (default: as the panels need)")] = None,
    font_size: Annotated[float | None, option("in points (default: 10)", number)] = None,
    no_title: Annotated[
        bool, flag("--no-title", "leave the title out, for a paper that has captions")
    ] = False,
    force: Force = False,
) -> None:
    """Draw metrics over the rounds, and accuracy against fairness, of a finished run or sweep."""
    from fairfate.report.canvas import FONT_SIZE, Style, parse_length
    from fairfate.report.figures import draw

    inches = None if width is None else parse_length(width)
    style = Style(inches, FONT_SIZE if font_size is None else font_size, title=not no_title)
    for path in draw(run, metric or (), out, kind, style, force=force):
        console(soft_wrap=True).print(f"Saved {path}")


def strategies(
    plugins: Plugins = None,
) -> None:
    """List the strategies, with settings, defaults and reference."""
    from fairfate.strategies import STEPS, entries, load_plugin

    for file in plugins or []:
        load_plugin(file)
    screen = console()
    for entry in entries():
        reference = f" ({entry.reference})" if entry.reference else ""
        _show_settings(screen, entry.name, f"{entry.summary}{reference}", entry.settings)
    screen.print("\nSteps, after a +:", style="italic")
    for name, step in STEPS.items():
        _show_settings(screen, f"+{name}", step.summary, step.settings)


def _show_settings(screen: Console, name: str, summary: str, settings: Mapping[str, Setting]) -> None:
    """A strategy or a step, with a line for each hyperparameter."""
    screen.print(Text(name, "bold") + Text(f"  {summary}"))
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    grid.add_column(width=2)
    for key, setting in settings.items():
        default = "--metric" if setting.default is None else f"{setting.default}"
        grid.add_row("", key, f"{setting.help}; {setting.rule}, default {default}")
    if settings:
        screen.print(grid)
