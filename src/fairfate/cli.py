"""The command line: parses, calls, prints. Whatever it does is one call that a notebook can make too."""

from __future__ import annotations

import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from typer.core import TyperCommand

from fairfate._version import __version__
from fairfate.errors import InputError, ProcessDiedError, Stopped, unknown


class _Command(TyperCommand):
    """A command whose options count once, unless they are repeatable: the last of several does not win."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse repeated options, then parse as usual."""
        _, _, given = self.make_parser(ctx).parse_args(list(args))
        for param in dict.fromkeys(given):
            single = isinstance(param, click.Option) and not param.multiple and not param.count
            if single and given.count(param) > 1:
                raise click.UsageError(
                    f"{param.opts[0]} must be given once, got it {given.count(param)} times"
                )
        return super().parse_args(ctx, args)


Function = TypeVar("Function", bound=Callable[..., Any])


class _App(typer.Typer):
    """An app of such commands."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As Typer's."""
        return super().command(name, **{"cls": _Command, **options})


app = _App(
    help="Train and compare group-fair models in federated learning.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data_app = _App(help="The datasets: list, describe, fetch.", no_args_is_help=True)
app.add_typer(data_app, name="data")

flower_app = _App(help="Federations on Flower.", no_args_is_help=True)
app.add_typer(flower_app, name="flower")


def _option(text: str, parser: Callable[[str], Any] | None = None) -> Any:
    metavar = "NUMBER" if parser else None
    return typer.Option(help=text, show_default=False, parser=parser, metavar=metavar)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a whole number, got '{text}'") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number, got '{text}'") from None


Word = str | None
Words = list[str] | None
Whole = int | None

Target = Annotated[Word, _option("column of the label, for a file of your own")]
Favourable = Annotated[Word, _option("value of the label that is the good outcome")]
Sensitive = Annotated[Word, _option("column of the group")]
Privileged = Annotated[Word, _option("group to set against all others (default: all groups)")]
ClientColumn = Annotated[Word, _option("column that says which client holds a row")]
Drop = Annotated[Words, _option("column to leave out (repeatable)")]
Categorical = Annotated[Words, _option("column to read as text (repeatable)")]
Partition = Annotated[Word, _option("random | dirichlet:SIGMA | column:NAME (default: dirichlet:0.5)")]
Clients = Annotated[Whole, _option("number of clients (default: the paper's, else 10)", _whole)]
Protocol = Annotated[Word, _option("paper (exact) or published (as the printed numbers were made)")]
DataDir = Annotated[Word, _option("folder to look in first for adult.csv etc.")]
Plugin = Annotated[Words, _option("Python file that registers strategies of your own (repeatable)")]

_DATA = "synthetic[:rows=N,seed=S], adult, compas, law, dutch, a CSV or Parquet file, or a folder of them"
_STRATEGY = "NAME[:key=value,...] (repeatable; default: fedavg and fair_fate)"


@app.command()
def run(
    data: Annotated[Word, _option(f"{_DATA} (default: synthetic)")] = None,
    validation: Annotated[
        Word, _option("file with the server's rows; then all of --data is for training")
    ] = None,
    test: Annotated[Word, _option("file with test rows (default: half of the validation file)")] = None,
    schema: Annotated[Word, _option("what the sites agreed on (default: made from --validation)")] = None,
    target: Target = None,
    favourable: Favourable = None,
    sensitive: Sensitive = None,
    privileged: Privileged = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    strategy: Annotated[Words, _option(_STRATEGY)] = None,
    metric: Annotated[Word, _option("fairness strategies look at: sp|eo|eqo (default: eqo)")] = None,
    plugin: Plugin = None,
    partition: Partition = None,
    clients: Clients = None,
    per_round: Annotated[
        Whole, _option("clients in a round (default: the paper's, or a third)", _whole)
    ] = None,
    rounds: Annotated[Whole, _option("rounds (default: 100)", _whole)] = None,
    epochs: Annotated[Whole, _option("local epochs (default: 10)", _whole)] = None,
    batch_size: Annotated[Whole, _option("rows in a batch (default: 10)", _whole)] = None,
    learning_rate: Annotated[float | None, _option("of the clients' SGD (default: 0.01)", _number)] = None,
    hidden: Annotated[Whole, _option("hidden units of the model (default: 10)", _whole)] = None,
    post: Annotated[Words, _option("thresholds[:metric=M,tolerance=T]: after training (repeatable)")] = None,
    seeds: Annotated[Word, _option("N for the seeds 1..N, or a list such as 3,5,8 (default: 5)")] = None,
    protocol: Protocol = None,
    data_dir: DataDir = None,
    config: Annotated[Path | None, _option("TOML file with these keys; the command line wins")] = None,
    jobs: Annotated[
        Whole, _option("processes (default: all cores); results do not depend on it", _whole)
    ] = None,
    out: Annotated[Path | None, _option("folder for the results (default: new, under runs/)")] = None,
    force: Annotated[bool, _option("replace the results that the folder already has")] = False,
) -> None:
    """Train strategies on one dataset over several seeds and compare them."""
    given = {
        key: value
        for key, value in locals().items()
        if key not in ("config", "jobs", "out", "force") and value is not None
    }
    from fairfate.config import from_mapping, read_config
    from fairfate.experiment import execute, prepare
    from fairfate.report.terminal import Results, show_run

    values = read_config(config) if config is not None else {}
    from_file = {key: values.pop(key, None) for key in ("jobs", "out", "force")}
    jobs = from_file["jobs"] if jobs is None else jobs
    out = _path(from_file["out"]) if out is None else out
    force = force or bool(from_file["force"])
    from_mapping(values, where=str(config))
    values = {key.replace("-", "_"): value for key, value in values.items()}
    plan, table = prepare(from_mapping({**values, **given}, where="the command line"))
    recorded = values.get("provenance", {}).get("data-checksum", f"sha256:{table.checksum}")
    if recorded != f"sha256:{table.checksum}":
        _say(f"Note: the data are not those that {config} was written for (checksum)")
    sites = values.get("provenance", {}).get("server-sites")
    if sites is not None and list(table.client_names) != sites:
        by, here = ", ".join(sites) or "nobody", ", ".join(table.client_names)
        _say(f"Note: {config} is of a run by {by}, and these are {here}: the results will differ")
    folder = out if out is not None else _new_folder(table.name)
    total = len(plan.config.seeds) * plan.training.rounds
    console = _console()
    try:
        with _Bar("rounds", total) as bar:
            finished = execute(plan, table, out=folder, jobs=jobs, force=force, progress=bar.progress)
    except Stopped as stopped:
        stopped.advice = f"Finished seeds are kept; the same command with --out {folder} goes on."
        raise
    finally:
        with suppress(OSError):  # it holds something
            if out is None:
                folder.rmdir()
                folder.parent.rmdir()
    show_run(console, Results.of(finished))


class _Bar(Progress):
    """A progress bar with the time left.

    It is drawn when progress is reported, and not by a thread of its own: a signal that comes while such a
    thread holds a lock could leave both waiting for ever.
    """

    def __init__(self, what: str, total: float | None, *, counts: bool = True) -> None:
        console = Console(stderr=True)
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn() if counts else TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self.what, self.task, self.drawn = what, self.add_task("starting", total=total), 0.0

    def progress(self, done: float) -> None:
        """So much work is done in all."""
        self.update(self.task, completed=done, description=self.what)
        if time.monotonic() - self.drawn > 0.1:
            self.refresh()
            self.drawn = time.monotonic()

    def plan(self, total: float) -> None:
        """So much work there is."""
        self.update(self.task, total=total, refresh=True)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _new_folder(name: str) -> Path:
    """The next folder under runs/ that is free, made at once so that no other run takes it."""
    for number in itertools.count(1):
        folder = Path("runs") / f"{name}-{number}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


@app.command()
def strategies(
    plugin: Plugin = None,
) -> None:
    """List the strategies, with settings, defaults and reference."""
    from fairfate.report.terminal import show_strategies
    from fairfate.strategies import load_plugin

    for file in plugin or []:
        load_plugin(file)
    show_strategies(_console())


@app.command("sweep")
def run_sweep(
    file: Annotated[Path, typer.Argument(help="TOML file: keys as for 'run', with lists of values")],
    out: Annotated[Path | None, _option("folder (default: runs/ and the file's name)")] = None,
    jobs: Annotated[
        Whole, _option("processes (default: all cores); results do not depend on it", _whole)
    ] = None,
) -> None:
    """Run the product of datasets, partitions, protocols, settings and seeds; only what is missing."""
    from fairfate.config import read_config
    from fairfate.sweep import expand, sweep

    configs = expand(read_config(file), where=str(file))
    folder = out if out is not None else Path("runs") / file.stem
    with _watching(folder) as (progress, on_plan):
        done = sweep(configs, folder, jobs=jobs, progress=progress, on_plan=on_plan)
    for name in done.damaged:
        _say(f"Note: {name} was damaged and has been run again")
    console = _console(soft_wrap=True)
    console.print(f"{done.ran} runs done now, {len(done.cells)} cells in all. Saved to {folder}/")


@app.command()
def reproduce(
    datasets: Annotated[Word, _option("comma-separated, of compas,adult,law,dutch (default: all)")] = None,
    sigmas: Annotated[Word, _option("comma-separated, of 0.5,1.0,rnd (default: all)")] = None,
    protocols: Annotated[Word, _option("comma-separated, of published,paper (default: both)")] = None,
    seeds: Annotated[Word, _option("N for the seeds 1..N, or a list (default: 10)")] = None,
    tolerance: Annotated[
        float, _option("validation accuracy that tuning may give up (default: 0.02)", _number)
    ] = 0.02,
    reference: Annotated[
        str, _option("strategy whose accuracy tuning starts from (default: fedavg)")
    ] = "fedavg",
    quick: Annotated[bool, _option("COMPAS and three seeds: about two minutes, the same outputs")] = False,
    jobs: Annotated[
        Whole, _option("processes (default: all cores); results do not depend on it", _whole)
    ] = None,
    data_dir: DataDir = None,
    out: Annotated[Path, _option("folder (default: runs/paper); goes on where it was")] = Path("runs/paper"),
) -> None:
    """Run every experiment of the paper, set the results beside the printed ones, and say what holds."""
    from fairfate.reproduce import grid
    from fairfate.reproduce.paper import reproduce

    def listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
        return default if text is None else tuple(part.strip() for part in text.split(","))

    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance must be in [0, 1], got {tolerance:g}")
    with _watching(out) as (progress, on_plan):
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
        _say(f"Note: {name} was damaged and has been run again")
    console = _console(soft_wrap=True)
    console.print(f"{done.sweep.ran} runs done now. The page is {done.page}")


@contextmanager
def _watching(folder: Path) -> Iterator[tuple[Callable[[float], None], Callable[[float], None]]]:
    """A progress bar with the time left; Ctrl-C keeps what is finished."""
    try:
        with _Bar("running", None, counts=False) as bar:
            yield bar.progress, bar.plan
    except Stopped as stopped:
        stopped.advice = f"Finished cells are kept in {folder}; the same command goes on."
        raise


@app.command()
def show(
    run: Annotated[list[Path], typer.Argument(help="folders of runs, on the same data")],
) -> None:
    """Print the results of finished runs side by side, wherever they ran."""
    from fairfate.report.terminal import Results, show_run

    show_run(_console(), Results.read(run))


@app.command()
def plot(
    run: Annotated[Path, typer.Argument(help="folder of a run")],
    metric: Annotated[Words, _option("panel (repeatable; default: accuracy, sp, eo, eqo)")] = None,
    out: Annotated[Path | None, _option("PNG, SVG or PDF file (default: rounds.png in the folder)")] = None,
) -> None:
    """Draw metrics over the rounds of a finished run."""
    from fairfate.report.figures import over_rounds, save
    from fairfate.results import read_rounds

    figure = over_rounds(read_rounds(run), tuple(metric or ("accuracy", "sp", "eo", "eqo")))
    folder = run if run.is_dir() else run.parent
    _console(soft_wrap=True).print(f"Saved {save(figure, out or folder / 'rounds.png')}")


@data_app.command("list")
def list_data(
    data_dir: DataDir = None,
) -> None:
    """List the datasets and where they were found."""
    from fairfate.data import SOURCES, find
    from fairfate.report.terminal import show_sources

    found: dict[str, str] = {}
    for name in SOURCES:
        with suppress(InputError):
            found[name] = str(find(name, data_dir))
    show_sources(_console(soft_wrap=True), found)


@data_app.command()
def describe(
    data: Annotated[str, typer.Argument(help=_DATA)],
    target: Target = None,
    favourable: Favourable = None,
    sensitive: Sensitive = None,
    privileged: Privileged = None,
    client_column: ClientColumn = None,
    drop: Drop = None,
    categorical: Categorical = None,
    partition: Partition = None,
    clients: Clients = None,
    seed: Annotated[int, _option("whose split to show (default: 1)", _whole)] = 1,
    protocol: Protocol = None,
    data_dir: DataDir = None,
) -> None:
    """Show a dataset's groups and inputs and, with --partition, the clients' shares of them."""
    given = {k: v for k, v in locals().items() if k != "seed" and v is not None}
    from fairfate.cells import load_table
    from fairfate.config import from_mapping
    from fairfate.experiment import prepare
    from fairfate.federation import build
    from fairfate.report.terminal import show_partition, show_table
    from fairfate.streams import Streams

    config = from_mapping({**given, "seeds": [seed]}, where="the command line")
    console = _console()
    if partition is None and client_column is None and not Path(data).is_dir():
        show_table(console, load_table(config))
        return
    plan, table = prepare(config)
    show_table(console, table)
    federation = build(table, plan.partition, plan.clients, Streams(seed, plan.published))
    console.print()
    title = f"training rows by client, {plan.partition}, seed {seed} (share of the column)"
    show_partition(console, table, federation, title)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="adult, compas, law or dutch")],
    to: Annotated[Path | None, _option("folder (default: the cache)")] = None,
) -> None:
    """Download a dataset from its public home, check it and bring it into the documented form."""
    from fairfate import data

    if name not in data.SOURCES:
        raise unknown("dataset", name, data.SOURCES)
    _console(soft_wrap=True).print(f"Saved {data.fetch(name, to)}")


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="new folder; its name becomes the app's")],
) -> None:
    """Write a small Flower app that trains the built-in model, with invented data to try it on."""
    try:
        from fairfate.flower.init import init as write
    except ImportError as error:
        raise InputError(str(error)) from None
    written = write(folder)
    console = _console(soft_wrap=True)
    console.print(f"Wrote {written}. Its README.md says what each file is; next:")
    console.print(f"    python {folder}/deploy_here.py")


@flower_app.command()
def checksum(
    app: Annotated[Path, typer.Argument(help="folder of a Flower app that you have looked through")],
) -> None:
    """Print the checksum of an app as Flower sends it, for a site's list of apps that it trusts."""
    try:
        from fairfate.flower.guard import app_checksum
    except ImportError as error:
        raise InputError(str(error)) from None
    _console(soft_wrap=True).print(f"{app_checksum(app)}  # {app.resolve().name}")


def _version(asked: bool) -> None:
    if asked:
        _console().print(f"fairfate {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Train and compare group-fair models in federated learning."""


class _Console(Console):
    """A console that takes users' words as they are: no markup in group or column names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)

    def on_broken_pipe(self) -> None:
        """Nobody reads on, as with ``| head``: that is for the caller to notice."""
        raise BrokenPipeError


def _console(**options: bool) -> Console:
    return _Console(**options)


def _say(message: str) -> None:
    _console(stderr=True, soft_wrap=True).print(message)


def run_command() -> int:
    """Do what the arguments say; returns the exit code. User errors are one message, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no ± still gets its numbers
    try:
        return int(app(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except InputError as error:
        _say(f"Error: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        named = f" '{error.filename}'" if error.filename else ""
        _say(f"Error: could not read or write{named}: {error.strerror or error}")
        return 2
    except ProcessDiedError as error:
        _say(f"Error: {error}.")
        return 1
    except MemoryError:
        _say("Error: out of memory. Finished work is kept.")
        return 1
