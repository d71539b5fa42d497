"""``run``, ``sweep``, ``reproduce``, ``show`` and ``plot``: each is one call that a notebook can make."""

from __future__ import annotations

import io
import itertools
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairfate._version import __version__
from fairfate.cli import benchmark, data, flower, models, report
from fairfate.cli.completion import DATASETS, METRICS, STRATEGIES
from fairfate.cli.options import (
    DATA,
    PROGRAM,
    STRATEGY,
    Attack,
    Categorical,
    ClickError,
    ClientColumn,
    Clients,
    DataDir,
    Decimal,
    Drop,
    Encode,
    Encoding,
    Favourable,
    Force,
    Keep,
    MinCell,
    MinGroup,
    Missing,
    MissingGroup,
    Partition,
    Plugin,
    Privileged,
    Protocol,
    Sensitive,
    Sep,
    Target,
    ValidationFrom,
    Whole,
    Word,
    Words,
    app,
    data_option,
    federation_option,
    given_options,
    number,
    option,
    output_option,
    strategy_option,
    training_option,
    whole,
)
from fairfate.cli.report import FairFrom
from fairfate.cli.screen import Bar, console, say, watching
from fairfate.cli.watch import watched
from fairfate.errors import InputError, ProcessDiedError, Stopped, check, is_out_of_memory, shown
from fairfate.options import read_options

if TYPE_CHECKING:
    from fairfate.experiments.finished import Run
    from fairfate.report.tracking import Tracking

__all__ = ["app", "benchmark", "data", "flower", "models", "report", "run_command"]


@app.command()
def run(
    ctx: typer.Context,
    data: Annotated[Word, data_option(f"{DATA} (default: synthetic)", words=DATASETS)] = None,
    validation: Annotated[
        Word, data_option("file with the server's rows; then all of --data is for training")
    ] = None,
    test: Annotated[Word, data_option("file with test rows (default: half of the validation file)")] = None,
    schema: Annotated[Word, data_option("what the sites agreed on (default: made from --validation)")] = None,
    target: Target = None,
    favourable: Favourable = None,
    sensitive: Sensitive = None,
    privileged: Privileged = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    keep: Keep = None,
    min_group: MinGroup = None,
    missing_group: MissingGroup = None,
    missing: Missing = None,
    encode: Encode = None,
    sep: Sep = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    strategy: Annotated[Words, strategy_option(STRATEGY, words=STRATEGIES)] = None,
    metric: Annotated[
        Word, strategy_option("fairness strategies look at: sp|eo|eqo|0.5*sp+0.5*eo|...", words=METRICS)
    ] = None,
    plugin: Plugin = None,
    partition: Partition = None,
    attack: Attack = None,
    clients: Clients = None,
    validation_from: ValidationFrom = None,
    min_cell: MinCell = None,
    per_round: Annotated[
        Whole,
        federation_option("clients in a round (default: the paper's; all of up to 20 sites; a third)", whole),
    ] = None,
    rounds: Annotated[Whole, training_option("rounds (default: 100; 200 for files)", whole)] = None,
    epochs: Annotated[Whole, training_option("local epochs (default: 10; 2 for files)", whole)] = None,
    batch_size: Annotated[
        Whole, training_option("rows in a batch (default: 10; 20 or more for files)", whole)
    ] = None,
    learning_rate: Annotated[
        float | None, training_option("of the clients' SGD (default: 0.01; 0.03 for files)", number)
    ] = None,
    l2: Annotated[
        float | None,
        training_option("weight decay of the clients' SGD (default: 0; 0.01 for wide files)", number),
    ] = None,
    early_stopping: Annotated[
        Whole,
        training_option(
            "stop after N rounds without a lower validation loss, keep the best (default: off)", whole
        ),
    ] = None,
    hidden: Annotated[
        Word,
        training_option("hidden units: 32,16 for two layers, 0 for none (default: 10; 0 for wide files)"),
    ] = None,
    model: Annotated[
        Word, training_option("your own network: FILE.py:FUNCTION that makes a torch.nn.Module")
    ] = None,
    seeds: Annotated[
        Word, training_option("N for the seeds 1..N, or a list such as 3,5,8 (default: 5)")
    ] = None,
    protocol: Protocol = None,
    data_dir: DataDir = None,
    config: Annotated[Path | None, output_option("TOML file with these keys; the command line wins")] = None,
    jobs: Annotated[
        Whole, output_option("processes (default: all cores); results do not depend on it", whole)
    ] = None,
    out: Annotated[Path | None, output_option("folder for the results (default: new, under runs/)")] = None,
    force: Annotated[bool, output_option("replace the results that the folder already has")] = False,
    groups: Annotated[
        bool, output_option("show every group under every strategy (also in groups.csv)")
    ] = False,
    mlflow: Annotated[Word, output_option("log the run there too: sqlite:///mlflow.db or http://...")] = None,
    no_baselines: Annotated[bool, output_option("train no models on the pooled rows for comparison")] = False,
    no_report: Annotated[bool, output_option("write no report.html")] = False,
    fair_from: FairFrom = None,
    live: Annotated[bool, output_option("show the run in the browser while it goes on; see 'watch'")] = False,
) -> None:
    """Train strategies on one dataset over several seeds and compare them."""
    others = (
        "config",
        "jobs",
        "out",
        "force",
        "groups",
        "mlflow",
        "no_baselines",
        "no_report",
        "fair_from",
        "live",
    )
    given = given_options(ctx, *others)
    from fairfate.experiments.config import Config, file_options, read_config, without_provenance
    from fairfate.experiments.execute import execute
    from fairfate.experiments.plan import changes
    from fairfate.experiments.prepare import prepare
    from fairfate.experiments.runner import check_request
    from fairfate.report.audit import FOUR_FIFTHS
    from fairfate.report.comparison import Comparison
    from fairfate.report.terminal import show_run
    from fairfate.report.write import report as write_report

    if fair_from is not None:
        check(0 < fair_from <= 1, "fair-from must be in (0, 1]", f"{fair_from:g}")
    values = read_config(config) if config is not None else {}
    own_jobs, own_out, own_force = file_options(values, str(config))
    jobs = own_jobs if jobs is None else jobs
    check_request(own_out, own_jobs)
    out = Path(own_out) if out is None and own_out is not None else out
    force = force or own_force
    in_file = read_options(without_provenance(values, str(config)), str(config))
    plan, table = prepare(Config(**{**in_file, **read_options(given, "the command line")}))
    for note in changes(values.get("provenance", {}), table, config):
        say(f"Note: {note}")
    tracking = None if mlflow is None else _tracking(mlflow)
    check_request(out, jobs)
    folder = out if out is not None else _new_folder(table.name)
    total = len(plan.config.seeds) * plan.training.rounds
    done = []

    def write(found: Run) -> None:
        if not no_report:
            line = FOUR_FIFTHS if fair_from is None else fair_from
            done.append(f"Report: {write_report([folder], line=line)}")
        if tracking is not None:
            done.append(f"Logged to {tracking.shown} (run {tracking.log(found)})")

    try:
        with watched(folder) if live else nullcontext(), Bar("rounds", total) as bar:
            finished = execute(
                plan,
                table,
                out=folder,
                jobs=jobs,
                force=force,
                progress=bar.progress,
                baselines=not no_baselines,
                on_results=write,
            )
    except Stopped as stopped:
        stopped.advice = f"Finished seeds are kept; the same command with --out {folder} goes on."
        raise
    finally:
        with suppress(OSError):  # it holds something
            if out is None:
                folder.rmdir()
                folder.parent.rmdir()
    show_run(console(), Comparison.of(finished), groups)
    for line in done:
        console(soft_wrap=True).print(line)


def _tracking(uri: str) -> Tracking:
    """Open it before anything is trained: an address that is no good is known at once."""
    from fairfate.report.tracking import open_tracking

    return open_tracking(uri)


def _new_folder(name: str) -> Path:
    """The next folder under runs/ that is free, made at once so that no other run takes it."""
    for place in itertools.count(1):
        folder = Path("runs") / f"{name}-{place}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


@app.command()
def strategies(
    plugin: Plugin = None,
) -> None:
    """List the strategies, with settings, defaults and reference."""
    from fairfate.report.lists import show_strategies
    from fairfate.strategies import load_plugin

    for file in plugin or []:
        load_plugin(file)
    show_strategies(console())


@app.command("sweep")
def run_sweep(
    file: Annotated[Path, typer.Argument(help="TOML file: keys as for 'run', with lists of values")],
    out: Annotated[Path | None, option("folder (default: runs/ and the file's name)")] = None,
    jobs: Annotated[
        Whole, option("processes (default: all cores); results do not depend on it", whole)
    ] = None,
) -> None:
    """Run the product of datasets, partitions, protocols, settings and seeds; only what is missing."""
    from fairfate.experiments.config import read_config
    from fairfate.experiments.runner import check_request
    from fairfate.experiments.sweep import expand, sweep
    from fairfate.report.comparison import Comparison
    from fairfate.report.terminal import show_run

    configs = expand(read_config(file), where=str(file))
    check_request(out, jobs)
    folder = out if out is not None else Path("runs") / file.stem
    with watching(folder) as (progress, on_plan):
        done = sweep(configs, folder, jobs=jobs, progress=progress, on_plan=on_plan)
    for name in done.damaged:
        say(f"Note: {name} was damaged and has been run again")
    for found in Comparison.read([folder]):
        show_run(console(), found)
    screen = console(soft_wrap=True)
    screen.print(f"\n{done.ran} runs done now, {len(done.jobs)} jobs in all. Saved to {folder}/")


@app.command()
def reproduce(
    datasets: Annotated[Word, option("comma-separated, of compas,adult,law,dutch (default: all)")] = None,
    sigmas: Annotated[Word, option("comma-separated, of 0.5,1.0,rnd (default: all)")] = None,
    protocols: Annotated[Word, option("comma-separated, of published,paper (default: both)")] = None,
    seeds: Annotated[Word, option("N for the seeds 1..N, or a list (default: 10)")] = None,
    tolerance: Annotated[
        float, option("validation accuracy that tuning may give up (default: 0.02)", number)
    ] = 0.02,
    reference: Annotated[
        str, option("strategy whose accuracy tuning starts from (default: fedavg)")
    ] = "fedavg",
    quick: Annotated[bool, option("COMPAS and three seeds: about two minutes, the same outputs")] = False,
    jobs: Annotated[
        Whole, option("processes (default: all cores); results do not depend on it", whole)
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, option("folder (default: runs/paper); goes on where it was")] = Path("runs/paper"),
) -> None:
    """Run every experiment of the paper, set the results beside the printed ones, and say what holds."""
    from fairfate.studies.reproduce import grid
    from fairfate.studies.reproduce.paper import reproduce

    def listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
        return default if text is None else tuple(part.strip() for part in text.split(","))

    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance must be in [0, 1], got {tolerance:g}")
    with watching(out) as (progress, on_plan):
        done = reproduce(
            out,
            datasets=listed(datasets, ("compas",) if quick else grid.DATASETS),
            splits=listed(sigmas, tuple(grid.SPLITS)),
            protocols=listed(protocols, grid.PROTOCOLS),
            seeds=seeds if seeds is not None else 3 if quick else 10,
            jobs=jobs,
            data_dir=data_dir,
            tolerance=tolerance,
            reference=reference,
            progress=progress,
            on_plan=on_plan,
        )
    for name in done.sweep.damaged:
        say(f"Note: {name} was damaged and has been run again")
    screen = console(soft_wrap=True)
    screen.print(f"{done.sweep.ran} runs done now. The page is {done.page}")


@app.command()
def show(
    run: Annotated[list[Path], typer.Argument(help="folders of runs or sweeps")],
    clients: Annotated[bool, option("who took part, who was fair, who was dropped and why")] = False,
    seed: Annotated[Whole, option("whose clients to show (default: the first)", whole)] = None,
    groups: Annotated[bool, option("show every group under every strategy")] = False,
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
    from fairfate.experiments.results import read_clients
    from fairfate.report.clients import show_clients
    from fairfate.report.comparison import Comparison
    from fairfate.report.tables import FORMATS, format_tables
    from fairfate.report.terminal import COLUMNS, show_run

    kind = "terminal" if format is None else format
    check(kind in FORMATS, f"format must be one of {'|'.join(FORMATS)}", f"'{kind}'")
    check(digits is None or 1 <= digits <= 15, "digits must be from 1 to 15", digits)
    if kind != "terminal":
        check(not clients and not groups, "format must be terminal for --clients and --groups", f"'{kind}'")
        typer.echo(format_tables(Comparison.read(run), kind, COLUMNS, digits), nl=False)
        return
    if not clients:
        for found in Comparison.read(run):
            show_run(console(), found, groups, digits)
        return
    for folder in run:
        show_clients(console(), read_clients(folder), seed)


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="folder of a run or a sweep")],
    metric: Annotated[
        Words,
        option(
            "panel, also an objective (repeatable; default: accuracy, sp, eo, eqo)",
            words=("accuracy", *METRICS),
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
    no_title: Annotated[bool, option("leave the title out, for a paper that has captions")] = False,
    force: Force = False,
) -> None:
    """Draw metrics over the rounds, and accuracy against fairness, of a finished run or sweep."""
    from fairfate.report.draw import draw
    from fairfate.report.style import FONT_SIZE, Style, parse_length

    inches = None if width is None else parse_length(width)
    style = Style(inches, FONT_SIZE if font_size is None else font_size, title=not no_title)
    for path in draw(run, metric or (), out, kind, style, force=force):
        console(soft_wrap=True).print(f"Saved {path}")


def _version(asked: bool) -> None:
    if asked:
        console().print(f"fairfate {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train and compare group-fair models in federated learning."""


def run_command() -> int:
    """Do what the arguments say; returns the exit code. User errors are one message, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no ± still gets its numbers
    try:
        return int(app(standalone_mode=False, prog_name=PROGRAM) or 0)
    except ClickError as error:
        text = io.StringIO()
        error.show(text)
        sys.stderr.write(shown(text.getvalue()))
        return int(error.exit_code)
    except InputError as error:
        say(f"Error: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        if is_out_of_memory(error):
            raise
        named = f" '{error.filename}'" if error.filename else ""
        say(f"Error: could not read or write{named}: {error.strerror or error}")
        return 2
    except ProcessDiedError as error:
        say(f"Error: {error}.")
        return 1
