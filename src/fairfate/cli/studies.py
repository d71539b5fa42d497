"""``sweep``, ``reproduce`` and ``benchmark``: many runs, from one call each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairfate.cli.parameters import (
    Cluster,
    DataDir,
    Jobs,
    Plugins,
    Whole,
    Word,
    Words,
    complete_strategy,
    flag,
    number,
    option,
    whole,
)
from fairfate.cli.screen import console, say, watching
from fairfate.errors import InputError, listing


def _listed(text: str | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """The values of a comma-separated option."""
    return default if text is None else tuple(part.strip() for part in text.split(","))


def sweep(
    file: Annotated[Path, typer.Argument(help="TOML file: keys as for 'run', with lists of values")],
    out: Annotated[Path | None, option("folder (default: runs/ and the file's name)")] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
) -> None:
    """Run the product of datasets, partitions, protocols, settings and seeds; only what is missing."""
    from fairfate.experiments.cluster import open_cluster
    from fairfate.experiments.config import expand, read_config
    from fairfate.experiments.sweep import sweep as run_sweep
    from fairfate.report.data import ReportData
    from fairfate.report.terminal import show_run

    configs = expand(read_config(file), where=str(file))
    folder = out if out is not None else Path("runs") / file.stem
    with open_cluster(cluster) as executor, watching(folder) as (progress, on_plan):
        finished = run_sweep(
            configs, folder, jobs=jobs, executor=executor, progress=progress, on_plan=on_plan
        )
    for name in finished.damaged:
        say(f"Note: {name} was damaged and has been run again")
    if finished.repeated:
        say(f"Note: {finished.repeated} of the configs are the same as others for these data and run once")
    for comparison in ReportData.read([folder]):
        show_run(console(), comparison)
    screen = console(soft_wrap=True)
    if len({config.privacy for config in configs}) > 1:
        screen.print(f"\nAgainst epsilon: {_draw_budgets(folder)}")
    screen.print(f"\n{finished.ran} runs done now, {len(finished.jobs)} jobs in all. Saved to {folder}/")


def _draw_budgets(folder: Path) -> Path:
    """The picture of a sweep over budgets of differential privacy."""
    import pandas as pd

    from fairfate.report.budgets import over_budgets
    from fairfate.report.figures import save
    from fairfate.results.folder import SUMMARY

    return save(over_budgets(pd.read_csv(folder / SUMMARY)), folder / "privacy.png")


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
    quick: Annotated[
        bool, flag("--quick", "COMPAS and three seeds: about two minutes, the same outputs")
    ] = False,
    jobs: Jobs = None,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    out: Annotated[Path, option("folder (default: runs/paper); continues where it stopped")] = Path(
        "runs/paper"
    ),
) -> None:
    """Run every experiment of the paper, set the results beside the printed ones, and say what holds."""
    from fairfate.experiments.cluster import open_cluster
    from fairfate.studies.reproduce.printed import DATASETS, SPLITS
    from fairfate.studies.reproduce.run import PROTOCOLS
    from fairfate.studies.reproduce.run import reproduce as run_paper

    if not 0 <= tolerance <= 1:
        raise InputError(f"tolerance must be in [0, 1], got {tolerance:g}")
    with open_cluster(cluster) as executor, watching(out) as (progress, on_plan):
        finished = run_paper(
            out,
            datasets=_listed(datasets, ("compas",) if quick else DATASETS),
            splits=_listed(sigmas, tuple(SPLITS)),
            protocols=_listed(protocols, PROTOCOLS),
            seeds=seeds if seeds is not None else 3 if quick else 10,
            jobs=jobs,
            executor=executor,
            data_dir=data_dir,
            tolerance=tolerance,
            reference=reference,
            progress=progress,
            on_plan=on_plan,
        )
    for name in finished.sweep.damaged:
        say(f"Note: {name} was damaged and has been run again")
    screen = console(soft_wrap=True)
    screen.print(f"{finished.sweep.ran} runs done now. The page is {finished.page}")


def benchmark(
    methods: Annotated[
        Words,
        option(
            "NAME or NAME:key=a|b+STEP to run against the kept results (repeatable; default: run all)",
            words=complete_strategy,
        ),
    ] = None,
    plugins: Plugins = None,
    data: Annotated[Word, option("comma-separated (default: compas,adult,law,dutch)")] = None,
    partition: Annotated[Word, option("comma-separated (default: dirichlet:0.5,dirichlet:1,random)")] = None,
    encode: Annotated[Word, option("comma-separated, of ordinal,onehot (default: ordinal)")] = None,
    track: Annotated[
        Word,
        option("aware: the group is an input and may decide; blind: neither; aware,blind (default: both)"),
    ] = None,
    seeds: Annotated[str, option("N for the seeds 1..N, or a list (default: 5)")] = "5",
    rounds: Annotated[Whole, option("other than usual, to try something out", whole)] = None,
    jobs: Jobs = None,
    cluster: Cluster = None,
    data_dir: DataDir = None,
    out: Annotated[Path, option("folder (default: runs/benchmark); continues where it stopped")] = Path(
        "runs/benchmark"
    ),
) -> None:
    """Tune and compare all methods of the field by one rule, or one of your own with them."""
    from fairfate.experiments.cluster import open_cluster
    from fairfate.studies.benchmark.findings import BIASED, DATASETS, PARTITIONS
    from fairfate.studies.benchmark.methods import TRACKS
    from fairfate.studies.benchmark.page import duration, show, write_all
    from fairfate.studies.benchmark.run import benchmark as run_benchmark

    with open_cluster(cluster) as executor, watching(out) as (progress, on_plan):
        finished = run_benchmark(
            out,
            methods=methods or (),
            plugins=plugins or (),
            data=_listed(data, DATASETS),
            partitions=_listed(partition, PARTITIONS + BIASED),
            tracks=_listed(track, TRACKS),
            encode=_listed(encode, ("ordinal",)),
            seeds=seeds,
            rounds=rounds,
            data_dir=data_dir,
            jobs=jobs,
            executor=executor,
            progress=progress,
            on_plan=on_plan,
        )
    findings = finished.findings
    show(console(), findings)
    page = write_all(out, findings)
    screen = console(soft_wrap=True)
    if finished.new:
        count = f"{len(finished.new)} method{'s' if len(finished.new) > 1 else ''}"
        screen.print(
            f"Run now: {count} ({listing(map(findings.label, finished.new))}), {finished.jobs} jobs."
        )
    own = len(findings.rows) - finished.kept
    shares = f"{own:,} results in {duration(finished.minutes)}"
    screen.print(f"{shares}, {finished.kept:,} come with the package. Open {page}")
